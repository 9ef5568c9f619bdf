"""Converts many damaged files of clients' data: each must be refused or copied.

  python -m tests.tasks.sources.fuzz [--quick] [--format=NAME ...] [--inputs=N]
      [--seed=N] [--first=N]

An input is a valid file with some damage, or without; it follows from seed, format and
number. Its conversion may succeed, and then the copy must agree with its own counts; or
fail with a ValueError of one short line that names the file. Anything else is a finding:
another exception, a process that dies, hangs or takes too much memory, files that are
left, text that is printed, code that is executed. Conversions run in child processes;
one that dies is followed by another.
"""

import argparse
import collections
import dataclasses
import faulthandler
import functools
import json
import multiprocessing
import os
import pathlib
import re
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from typing import Any, Callable, Sequence

import tqdm

if __name__ == '__main__':
  # TensorFlow prints much when it is imported, and has little to do in parallel.
  os.environ.update(TF_CPP_MIN_LOG_LEVEL='3', TF_NUM_INTRAOP_THREADS='1')

# pylint: disable=g-import-not-at-top, wrong-import-position
import tensorflow as tf

from tasks import task
from tasks.sources import open_source
from tasks.sources import rows
from tasks.sources import sqlite
from tasks.sources import store
from tests.tasks.sources import fuzz_files
from tests.tasks.sources import fuzz_inputs
from tests.tasks.sources import populations

INPUTS, QUICK = 100_000, 500

_BATCH = 4000
_MESSAGE = 1000
_TOO_MUCH_MEMORY = 77  # An exit status.
_FOLDERS = ('data', 'out', 'tmp')
_STATE = 4000  # Characters, so that a shorter state covers a longer one.


class _Wrong(Exception):
  """A finding: its kind, and details."""


class _Deleter:
  """Instead of rows.deleted_with_process, whose process takes a while to start."""

  def __init__(self, *paths):
    self._paths = paths

  def communicate(self):
    for path in self._paths:
      if os.path.isdir(path):
        shutil.rmtree(path)
      else:
        pathlib.Path(path).unlink(missing_ok=True)


def _check_message(text: str, given: fuzz_inputs.Input, paths: Sequence[str]) -> None:
  if len(text.splitlines()) > 1:
    of = ' with a path' if any('\n' in path for path in given.files) else ''
    raise _Wrong(f'message of several lines{of}', text[:2000])
  if len(text) >= _MESSAGE:
    raise _Wrong('long message',
                 f'{len(text)} characters: {text[:200]} ... {text[-100:]}')
  # A difference between two parts is named for both.
  if not any(path in text for path in paths) and 'part must be those of' not in text:
    raise _Wrong('message without the file', text)


def _check_copy(given: fuzz_inputs.Input, splits: Sequence[str],
                counts: tuple[int, int], skips: task.Skips) -> None:
  """Reads all that was written."""
  clients = examples = 0
  fields = given.options['fields']
  with sqlite.connected('out/copy.sqlite') as connection:
    stored = {(split, client): number for split, client, number in connection.execute(
        'SELECT split_name, client_id, num_examples FROM client_metadata')}
    skipped = connection.execute('SELECT count(*) FROM skipped').fetchone()[0]
  if skipped != len(skips.clients) + len(skips.records):
    raise _Wrong('wrong counts', f'{skipped} skipped, but {skips}')
  for split in splits:
    try:
      source = sqlite.SqliteSource('out/copy.sqlite', split, fields=fields,
                                   copy_of=given.options['data_path'])
      for client in source.client_ids:
        clients += 1
        examples += stored[split, client]
        arrays = source.examples(client)
        if given.expected is not None:
          populations.assert_same(arrays, populations.expected(given.expected[client]))
        if {len(array) for array in arrays.values()} - {stored[split, client]}:
          raise _Wrong('wrong counts', f'{stored} of {client!r}')
    except ValueError as error:
      raise _Wrong('copy that cannot be read', repr(error)) from error
    except AssertionError as error:
      raise _Wrong('wrong values', repr(error)) from error
  if (clients, examples) != counts or len(stored) != clients or (
      given.expected is not None and clients != len(given.expected)):
    raise _Wrong('wrong counts', f'{counts}, but {stored}')


def _converted(given: fuzz_inputs.Input) -> str:
  """Converts an input; returns the outcome."""
  skips = task.Skips(given.skip)
  paths = [path for name in ('data_path', 'test_path')
           for path in given.options.get(name, '').split(',') if path]
  try:
    parts = open_source.readers(**given.options)
    counts = store.write('out/copy.sqlite', parts, fields=given.options['fields'],
                         skips=skips, for_store=given.for_store)
  except ValueError as error:
    # yajl takes one integer, -2^63, for an overflow.
    if given.expected is not None and 'integer overflow' not in str(error):
      raise _Wrong('refused, but valid', repr(error)) from error
    _check_message(str(error), given, paths)
    return 'refused' if not isinstance(error, task.BadClientError) else (
        'refused for a client')
  for text in (*skips.clients.values(), *skips.records):
    _check_message(text, given, paths)
  if (skips.clients or skips.records) and (
      not given.skip or given.expected is not None):
    raise _Wrong('skipped what is not to be skipped', repr(skips))
  _check_copy(given, list(parts), counts, skips)
  return 'copied' + (', some skipped' if skips.clients or skips.records else '')


def _check_rest(copied: bool) -> None:
  """Checks that nothing was executed, and that only the copy is left."""
  if os.path.exists(fuzz_files.MARKER):
    raise _Wrong('executed', fuzz_files.MARKER)
  if os.path.lexists(fuzz_files.ESCAPED):
    raise _Wrong('executed', fuzz_files.ESCAPED)
  left = {*os.listdir('.')} - {*_FOLDERS} | {*os.listdir('tmp')} | {*os.listdir('out')}
  if left != ({'copy.sqlite'} if copied else set()):
    raise _Wrong('files left', repr(sorted(left)))


def _clear() -> None:
  for name in os.listdir('.'):
    if os.path.isdir(name) and not os.path.islink(name):
      shutil.rmtree(os.fsencode(name))
    else:
      os.unlink(name)
  for name in _FOLDERS:
    os.mkdir(name)


def _finding(error: BaseException) -> dict[str, str]:
  """A finding; those of one group have the same cause."""
  if isinstance(error, _Wrong):
    kind, detail = error.args
    pattern = re.sub(r"'[^']*'|\"[^\"]*\"|[0-9]+|[^ ]{30,}", '_', detail)
    cause = '' if 'path' in kind else pattern.rsplit(': ', maxsplit=1)[-1][:60]
    return dict(kind=kind, detail=detail, group=f'{kind}: {cause}')
  frames = traceback.extract_tb(error.__traceback__)
  name = type(error).__name__
  at = [f'{pathlib.Path(frame.filename).name}:{frame.lineno}' for frame in frames[-3:]]
  return dict(kind=f'exception {name}', detail=f'{error!r:.500} at {" > ".join(at)}',
              group=f'{name} at {at[-1:]}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Job:
  """The work of a child process: the inputs [first, end)."""

  folder: str
  format_: str
  seed: int
  first: int
  end: int
  seconds: float
  megabytes: float


def _child(job: _Job) -> None:
  """Converts inputs; keeps files of the findings and of the progress."""
  folder = pathlib.Path(job.folder)
  files = {name: os.open(folder / name, os.O_CREAT | os.O_RDWR | os.O_TRUNC)
           for name in ('state', 'output', 'trace')}
  for descriptor in (1, 2):
    os.dup2(files['output'], descriptor)
  faulthandler.enable(files['trace'])
  # Code that lets Ghostscript run an image starts this program.
  os.environ['PATH'] = f'{folder / "bin"}:{os.environ["PATH"]}'
  os.chdir(folder / 'work')
  tempfile.tempdir = os.fspath(folder / 'work/tmp')
  # Neither semaphores nor threads of its own.
  tqdm.tqdm.set_lock(threading.RLock())
  tqdm.tqdm.monitor_interval = 0
  _clear()
  fuzz_inputs.warm_up()
  rows.deleted_with_process = _Deleter
  pages = int(pathlib.Path('/proc/self/statm').read_text(encoding='ascii').split()[0])
  limit = pages * resource.getpagesize() + 6 * 2**30
  resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  counts: dict[str, int] = collections.Counter()
  tf.constant(0)  # TensorFlow prints its messages now.
  printed = os.fstat(files['output']).st_size
  with open(folder / 'findings', 'a', encoding='utf-8') as findings:
    for number in range(job.first, job.end):
      state = json.dumps(dict(number=number, counts=counts))
      os.pwrite(files['state'], state.ljust(_STATE).encode(), 0)
      faulthandler.dump_traceback_later(job.seconds, exit=True, file=files['trace'])
      began, outcome, finding = time.monotonic(), '', None
      try:
        given = fuzz_inputs.build(job.format_, number, job.seed)
        given.write()
        outcome = _converted(given)
      except BaseException as error:  # pylint: disable=broad-exception-caught
        finding = _finding(error)
      # With the exception, the objects that it held are gone.
      try:
        _check_rest(outcome.startswith('copied'))
        # A progress bar may be there after a second.
        now = os.fstat(files['output']).st_size
        if now > printed and time.monotonic() - began < 0.8:
          raise _Wrong('printed', os.pread(
              files['output'], 1000, printed).decode('utf-8', 'replace'))
        printed = now
      except _Wrong as error:
        printed = os.fstat(files['output']).st_size
        if finding is None or error.args[0] == 'executed':
          finding = _finding(error)
      if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > job.megabytes * 1000:
        os._exit(_TOO_MUCH_MEMORY)
      _clear()
      if finding:
        findings.write(json.dumps(dict(number=number, **finding)) + '\n')
        findings.flush()
      counts[f'finding: {finding["kind"]}' if finding else outcome] += 1
    faulthandler.cancel_dump_traceback_later()
  state = json.dumps(dict(number=job.end, counts=counts))
  os.pwrite(files['state'], state.ljust(_STATE).encode(), 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
  """A fault of a conversion.

  Attributes:
    number: The number of the input.
    kind: The kind of fault.
    detail: The error, or its location.
    group: Findings of one group probably have the same cause.
  """

  number: int
  kind: str
  detail: str
  group: str


@dataclasses.dataclass
class Report:
  """The outcomes of the inputs of a format.

  Attributes:
    counts: Outcome -> number of inputs.
    findings: All findings.
    seconds: The time of the run.
  """

  counts: dict[str, int] = dataclasses.field(default_factory=collections.Counter)
  findings: list[Finding] = dataclasses.field(default_factory=list)
  seconds: float = 0.0


def _ended(folder: pathlib.Path, status: int) -> tuple[str, str]:
  """The kind and the details of a child's early end."""
  trace = (folder / 'trace').read_text(encoding='utf-8', errors='replace')
  output = (folder / 'output').read_text(encoding='utf-8', errors='replace')
  if status == _TOO_MUCH_MEMORY:
    return 'memory', 'a process took more than it may'
  lines = [line.strip() for line in trace.splitlines() if line.startswith('  File')]
  detail = f'status {status}; ' + ' < '.join(
      re.sub(r'File ".*/([^/"]+)", line', r'\1', line) for line in lines[:6])
  if trace.startswith('Timeout'):
    return 'hang', detail
  return 'crash', f'{detail}; {output[-300:]!r}'


def run(format_: str, *, inputs: int, first: int = 0, seed: int = 0,
        seconds: float = 10.0, megabytes: float = 1500.0, batch: int = _BATCH,
        tell: Callable[[str], Any] = lambda text: None) -> Report:
  """Converts inputs of a format in child processes.

  Args:
    format_: One of fuzz_inputs.FORMATS.
    inputs: The number of inputs.
    first: The number of the first one.
    seed: The seed of all inputs.
    seconds: The time after which an input is converted again; after six times as long
      it hangs.
    megabytes: The maximum of memory of a process.
    batch: The inputs of one process.
    tell: Gets lines about the progress.
  """
  context = multiprocessing.get_context('forkserver')
  # Children are forked from a process that has TensorFlow, but no threads of it.
  context.set_forkserver_preload(['tasks.sources.sqlite', 'pyarrow.parquet', 'ijson'])
  report, began = Report(), time.monotonic()
  groups: set[str] = set()
  number, end, repeated = first, first + inputs, None
  shared = '/dev/shm' if os.access('/dev/shm', os.W_OK) else None
  with tempfile.TemporaryDirectory(dir=shared, prefix='fuzz-') as name:
    folder = pathlib.Path(name)
    (folder / 'bin').mkdir()
    (folder / 'bin/gs').write_text(
        f'#!/bin/sh\nmkdir -p {folder}/work/{fuzz_files.MARKER}\n', encoding='utf-8')
    (folder / 'bin/gs').chmod(0o755)
    while number < end:
      shutil.rmtree(os.fsencode(folder / 'work'), ignore_errors=True)
      (folder / 'work').mkdir()
      (folder / 'findings').write_bytes(b'')
      (folder / 'state').write_bytes(b'')
      # An input that hung or took much memory on a busy machine or in a used process
      # gets another process, alone, and more time.
      alone = repeated == number
      until = number + 1 if alone else min(end, number + batch)
      process = context.Process(target=_child, daemon=True, args=[_Job(
          folder=name, format_=format_, seed=seed, first=number, end=until,
          seconds=seconds * (6 if alone else 1), megabytes=megabytes)])
      process.start()
      try:
        process.join()
      finally:
        process.kill()
      state = (folder / 'state').read_text(encoding='utf-8')
      if not state:
        raise RuntimeError('a child process did not start: ' +
                           (folder / 'output').read_text(encoding='utf-8')[-2000:])
      state = json.loads(state)
      number = state['number']
      report.counts.update(state['counts'])
      new = [Finding(**json.loads(line)) for line in (
          folder / 'findings').read_text(encoding='utf-8').splitlines()]
      if number < until:
        kind, detail = _ended(folder, process.exitcode)
        if kind == 'crash' or repeated == number:
          new.append(Finding(number=number, kind=kind, detail=detail,
                             group=f'{kind} {re.sub("[0-9]+", "_", detail)[:150]}'))
          report.counts[f'finding: {kind}'] += 1
          number += 1
        else:
          repeated = number
      report.findings += new
      for finding in new:
        if finding.group not in groups:
          groups.add(finding.group)
          tell(f'{format_} {finding.number}: {finding.kind}: {finding.detail!r:.500}\n'
               f'  --format={format_} --seed={seed} --first={finding.number} '
               '--inputs=1')
      report.seconds = time.monotonic() - began
      tell(f'{format_}: {number - first:,} of {inputs:,} inputs, '
           f'{(number - first) / report.seconds:.0f}/s, {len(report.findings)} '
           f'findings in {len(groups)} groups')
  return report


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the command; 1 if there are findings."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
  parser.add_argument('--quick', action='store_true', help=f'{QUICK} inputs per format')
  parser.add_argument('--format', action='append', choices=fuzz_inputs.FORMATS,
                      help='default: all')
  parser.add_argument('--inputs', type=int, help=f'per format; default: {INPUTS}')
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--first', type=int, default=0, help='number of the first input')
  given = parser.parse_args(arguments)
  inputs = given.inputs or (QUICK if given.quick else INPUTS)
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
  status = 0
  for format_ in given.format or fuzz_inputs.FORMATS:
    report = run(format_, inputs=inputs, first=given.first, seed=given.seed,
                 tell=functools.partial(print, flush=True))
    print(f'{format_}: {inputs:,} inputs in {report.seconds:.0f} s')
    for outcome, count in sorted(report.counts.items()):
      print(f'  {count:9,}  {outcome}')
    groups = collections.Counter(finding.group for finding in report.findings)
    for group, count in groups.most_common():
      one = next(finding for finding in report.findings if finding.group == group)
      print(f'  {count:9,}  {one.kind}, as in {one.number}: {one.detail!r:.500}',
            flush=True)
    status |= bool(report.findings)
  return status


if __name__ == '__main__':
  sys.exit(main())
