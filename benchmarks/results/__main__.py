"""Computes the tables and figures of the documents from one list of experiments.

  make results DATA_DIR=FOLDER                       # all that is not done yet
  make results DATA_DIR=FOLDER ONLY=voting,emnist/none
  python -m benchmarks.results --list                # the commands of all runs
  python -m benchmarks.results --tables              # pages of what is done, in seconds
  python -m benchmarks.results --data_dir=FOLDER --repeat    # seeded rows, and compare

Each row (`benchmarks/results/*.py`) tries its settings on data that are in no table, then
runs the best with every seed. A run is one of the programs, with its guarantee, in a
folder of its own; what is kept of it goes into a record as soon as it is over, and what
is in a record with the same settings is not run again. A run that was stopped resumes.
Pages, figures and manifest.json go into the output folder, and with --update into the
project, together with the records.
"""

import argparse
from collections.abc import Iterable, Sequence
import contextlib
import csv
import fcntl
import hashlib
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time
from typing import Any

from benchmarks import measure
from benchmarks.results import experiments, pages, splits
from benchmarks.results import rows as rows_lib
from benchmarks.results.rows import Row
from tff_pipelines.common import files
from tff_pipelines.experiment import report

ROOT = pathlib.Path(__file__).parents[2]
_PARENT = os.getppid()
# Kept of a summary, in addition to numbers, texts and truth values of its details.
_KEPT = ('value', 'headline', 'headline_of', 'held_out', 'mechanism', 'sampling',
         'population', 'cohort_size', 'rounds', 'epsilon', 'epsilon_server',
         'epsilon_server_any_cohorts', 'epsilon_participant', 'delta', 'adjacency',
         'noise_multiplier', 'starts', 'caveats')


def _cpu_seconds() -> float:
  """Processor time of this process and of all that it has waited for."""
  return sum(os.times()[:4])


def _kept(folder: pathlib.Path, row: Row) -> dict[str, Any]:
  """The fields of a record for a finished run."""
  summary = report.read_summary(folder / files.SUMMARY)
  result = {name: summary[name] for name in _KEPT if name in summary}
  result['details'] = {
      name: value for name, value in summary['details'].items()
      if value is None or isinstance(value, (bool, int, float, str))}
  if row.metric:
    result['value'] = result['details'][row.metric]
  if row.curve:
    with open(folder / files.METRICS, encoding='utf-8', newline='') as file:
      result['curve'] = [[float(line[name]) for name in row.curve if line[name]]
                         for line in csv.DictReader(file)]
  if row.keep:
    name, key = row.keep
    result['kept'] = json.loads((folder / name).read_text(encoding='utf-8'))[key]
  return result


class Runner:
  """Runs one row and keeps its record.

  Attributes:
    record: As it is in the file.
  """

  def __init__(self, row: Row, folder: pathlib.Path, data_dir: pathlib.Path | None):
    """Reads the record; for other settings or data the row starts over."""
    self._row, self._folder, self._data_dir = row, folder, data_dir
    self._path = folder / 'records' / f'{row.name}.json'
    self._path.parent.mkdir(parents=True, exist_ok=True)
    self._digests = splits.DATA[row.data].digests(data_dir) if row.data else {}
    self.record = read_record(self._path)
    if self.record is None or not self._regrid():
      self._start_over()

  def _regrid(self) -> bool:
    """Whether the record is the row's; tries of a changed grid that remain are kept."""
    record, identity = self.record, self._row.identity()
    if record['data'] != self._digests:
      return False
    if record['identity'] == identity:
      return True
    if self._row.map_of or {**record['identity'], 'grid': identity['grid']} != identity:
      return False
    record['identity'] = identity
    record['tried'] = [one for one in record['tried'] if one['flags'] in identity['grid']]
    for path in (self._folder / 'runs' / self._row.name).glob('trial-*'):
      (shutil.rmtree if path.is_dir() else os.remove)(path)
    files.write_json(self._path, record)
    return True

  def _start_over(self, tried: Sequence[dict[str, Any]] = ()) -> None:
    """Writes a record without runs; those of an earlier one, which would resume, go."""
    for path in (self._folder / 'runs' / self._row.name).glob(
        'seed-*' if tried else '*'):
      (shutil.rmtree if path.is_dir() else os.remove)(path)
    self.record = {
        'name': self._row.name, 'identity': self._row.identity(),
        'data': self._digests, 'lock': hashlib.sha256(
            (ROOT / 'requirements.txt').read_bytes()).hexdigest()[:16],
        'tried': list(tried), 'chosen': None, 'runs': []}
    files.write_json(self._path, self.record)

  def run(self, chosen: dict[str, Any] | None) -> None:
    """Tries settings unless the best is `chosen` elsewhere, and runs all seeds."""
    row, record = self._row, self.record
    for number, flags in enumerate(row.grid):
      if flags not in [one['flags'] for one in record['tried']]:
        found = self._execute(f'trial-{number}', flags, row.seeds[0],
                              is_trial=True)
        record['tried'].append({'flags': flags, **{
            name: found[name] for name in ('value', 'seconds', 'cpu_seconds', 'date')}})
        files.write_json(self._path, record)
    if row.grid:
      chosen = _best(record)
    chosen = chosen or {}
    if record['runs'] and record['chosen'] != chosen:
      self._start_over(record['tried'])
      record = self.record
    record['chosen'] = chosen
    for seed in row.seeds:
      if seed not in [run['seed'] for run in record['runs']]:
        found = self._execute(f'seed-{seed}', chosen, seed, is_trial=False)
        record['runs'].append({'seed': seed, **found})
        files.write_json(self._path, record)

  def repeated(self) -> list[tuple[str, Any, Any]]:
    """Runs the first seed once more; what differs, as (name, before, now)."""
    before = self.record['runs'][0]
    shutil.rmtree(self._folder / 'runs' / self._row.name / 'repeated', ignore_errors=True)
    found = self._execute('repeated', self.record['chosen'], before['seed'],
                          is_trial=False, resume=False)
    return [(name, before[name], found[name]) for name in ('value', 'held_out')
            if before[name] != found[name]]

  def command(self, name: str, chosen: dict[str, Any], seed: int, *,
              is_trial: bool) -> list[str]:
    """The command of a run, without its folder."""
    row = self._row
    more = dict(row.trial) if is_trial else {}
    with_map = f'{row.map_of}/{"trial-0" if is_trial else name}'
    if row.map_of and with_map != f'{row.name}/{name}':
      more['features_from'] = self._folder / 'runs' / with_map
    if row.data is not None:
      more['data_path'] = splits.DATA[row.data].paths(
          self._data_dir, self._folder / 'data' / row.data, is_trial=is_trial)
    return row.arguments(chosen, seed, more)

  def _execute(self, name: str, chosen: dict[str, Any], seed: int, *, is_trial: bool,
               resume: bool = True) -> dict[str, Any]:
    if os.getppid() != _PARENT:
      raise RuntimeError('the process that started this one has ended')
    folder = self._folder / 'runs' / self._row.name / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    start, cpu = time.monotonic(), _cpu_seconds()
    arguments = [*self.command(name, chosen, seed, is_trial=is_trial),
                 f'--output_dir={folder}', *['--resume'] * resume]
    log = folder.with_name(f'{name}.log')
    with open(log, 'a', encoding='utf-8') as file:
      with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        code = rows_lib.main_of(self._row.program)(arguments)
    if code:
      raise RuntimeError(f'{self._row.name} {name} failed: {_last_line(log)} ({log})')
    found = {**_kept(folder, self._row),
             'seconds': round(time.monotonic() - start, 1),
             'cpu_seconds': round(_cpu_seconds() - cpu, 1), **measure.machine()}
    print(f'{self._row.name} {name}: {found["value"]}, {found["seconds"]:.0f} s '
          f'{dict(chosen)}', flush=True)
    return found


def _last_line(log: pathlib.Path) -> str:
  return ' '.join(log.read_text(encoding='utf-8').strip().splitlines()[-1:])


def read_record(path: pathlib.Path) -> dict[str, Any] | None:
  """A record; None if there is none."""
  return json.loads(path.read_text(encoding='utf-8')) if path.exists() else None


def _best(record: dict[str, Any]) -> dict[str, Any]:
  return max(record['tried'], key=lambda one: one['value'])['flags']


def _is_tried(row: Row, record: dict[str, Any] | None) -> bool:
  return (record is not None and record['identity'] == row.identity()
          and len(record['tried']) == len(row.grid))


def _is_done(row: Row, records: pathlib.Path) -> bool:
  """Whether all seeds are recorded, with the settings that are the best by now."""
  record = read_record(records / f'{row.name}.json')
  if not _is_tried(row, record) or not {
      run['seed'] for run in record['runs']} >= set(row.seeds):
    return False
  other = row.tuned_as and read_record(records / f'{row.tuned_as}.json')
  return not other or not other['tried'] or record['chosen'] == _best(other)


def _started(row: Row, folder: pathlib.Path, flags) -> subprocess.Popen:
  """A process of a row: what ran before in one may change the last bits of floats."""
  return subprocess.Popen([
      sys.executable, '-m', 'benchmarks.results', f'--row={row.name}',
      f'--output_dir={folder}', *[f'--data_dir={flags.data_dir}'] * bool(flags.data_dir),
      *['--quick'] * flags.quick, *['--repeat'] * flags.repeat], cwd=ROOT)


def _run_all(wanted: Sequence[Row], folder: pathlib.Path, flags) -> list[str]:
  """Runs rows in processes of their own, `jobs` at a time; the names of failed ones."""
  waiting, running, failed = list(wanted), {}, []
  is_over = lambda name: name not in {row.name for row in waiting} | set(running)
  while waiting or running:
    ready = [row for row in waiting if all(
        other in ('', row.name) or is_over(other)
        for other in (row.tuned_as, row.map_of))]
    while ready and len(running) < flags.jobs:
      row = ready.pop(0)
      waiting.remove(row)
      if _is_done(row, folder / 'records'):
        continue
      running[row.name] = _started(row, folder, flags)
    for name, process in list(running.items()):
      if process.poll() is not None:
        del running[name]
        failed += [name] * (process.returncode != 0)
    time.sleep(0.2)
  return failed


def _wanted(rows: Iterable[Row], only: str) -> list[Row]:
  """The rows of the sections, or whose names begin with the texts, in their order."""
  rows, found = list(rows), {}
  for one in filter(None, only.split(',')):
    found.update((row.name, row) for row in rows if (
        row.name.startswith(one) if '/' in one else row.section == one))
  return list(found.values()) if only else rows


def _repeat(row: Row, folder: pathlib.Path, data_dir: pathlib.Path | None) -> int:
  """Runs the first seed again; compares with the output folder's record or our own.

  A copy of the record is used, since a runner starts over if the data are others.
  """
  done = [records for records in (folder / 'records', pages.RECORDS)
          if _is_done(row, records)]
  found = 'no record of it'
  if done:
    path = folder / 'repeated' / 'records' / f'{row.name}.json'
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(done[0] / f'{row.name}.json', path)
    runner = Runner(row, folder / 'repeated', data_dir)
    found = runner.repeated() if runner.record['runs'] else (
        'the data are not those of the record')
  print(f'{row.name}: {found or "the same"}', flush=True)
  return int(bool(found))


def _list(row: Row) -> None:
  """Prints the commands of the runs of a row, with the settings that are recorded."""
  record = read_record(pages.RECORDS / f'{row.name}.json')
  chosen = (record or {}).get('chosen')
  paths = []
  if row.data:
    data = splits.DATA[row.data]
    file = '' if data.is_folder else data.reads or next(iter(data.files))
    folder = f'out/results/data/{row.data}/tables' if data.tables else '$DATA_DIR'
    paths = [f'--data_path="{folder}/{file}"']
  for seed in row.seeds:
    maps = [f'--features_from=out/results/runs/{row.map_of}/seed-{seed}'] * (
        row.map_of not in ('', row.name))
    print(f'{row.name}, seed {seed}: python -m tff_pipelines.{row.program}', shlex.join(
        row.arguments(chosen or {}, seed, {})), *paths, *maps,
          *['# no setting is chosen yet'] * (chosen is None))


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the script with these flags, those of the command line by default."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data_dir', default=os.environ.get('DATA_DIR') or None,
                      help='folder of the data files')
  parser.add_argument('--output_dir', default='out/results', help='folder of all files')
  parser.add_argument('--only', default='', help='sections, or beginnings of names of '
                      'rows, separated by commas')
  parser.add_argument('--jobs', type=int, default=2, help='rows at a time')
  parser.add_argument('--list', action='store_true', help='print the commands of all '
                      'runs, with the recorded settings, and run nothing')
  parser.add_argument('--tables', action='store_true', help='run nothing')
  parser.add_argument('--repeat', action='store_true', help='run the first seed of rows '
                      'without a random choice once more, and compare with the record')
  parser.add_argument('--update', action='store_true', help='write records, pages and '
                      'figures into the project as well')
  parser.add_argument('--quick', action='store_true', help='tiny rows of embedded data')
  parser.add_argument('--row', help=argparse.SUPPRESS)
  flags = parser.parse_args(arguments)
  rows = experiments.QUICK if flags.quick else experiments.ROWS
  folder = pathlib.Path(flags.output_dir).absolute()
  data_dir = flags.data_dir and pathlib.Path(flags.data_dir).absolute()
  records = folder / 'records'
  if flags.row:
    row = rows[flags.row]
    if flags.repeat:
      return _repeat(row, folder, data_dir)
    chosen = None
    if row.tuned_as:
      other = read_record(records / f'{row.tuned_as}.json')
      if other is None or not _is_tried(rows[row.tuned_as], other):
        print(f'{row.name}: {row.tuned_as} must be tuned first', file=sys.stderr)
        return 1
      chosen = _best(other)
    Runner(row, folder, data_dir).run(chosen)
    return 0
  wanted = _wanted(rows.values(), flags.only)
  if data_dir is None and not (flags.list or flags.tables) and any(
      row.data for row in wanted):
    parser.error('--data_dir must name the folder of the data files')
  if flags.list:
    for row in wanted:
      _list(row)
    return 0
  folder.mkdir(parents=True, exist_ok=True)
  with open(folder / '.lock', 'w', encoding='utf-8') as lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      print(f'error: output_dir={folder} is in use by another process', file=sys.stderr)
      return 2
    failed = []
    if flags.repeat:
      seeded = [row for row in wanted if 'seed' in row.seeded]
      for row in seeded:
        failed += [row.name] * bool(_started(row, folder, flags).wait())
      print(f'{len(seeded)} rows were repeated, {len(failed)} of them differ or failed')
      return int(bool(failed) or not seeded)
    elif not flags.tables:
      failed = _run_all(wanted, folder, flags)
    if not flags.quick:
      pages.write(rows, experiments.TABLES, experiments.answers, experiments.FIGURES,
                  folder, ROOT, update=flags.update)
  if failed:
    print('failed:', ', '.join(failed), file=sys.stderr)
  return bool(failed)


if __name__ == '__main__':
  sys.exit(main())
