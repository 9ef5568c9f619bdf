"""Runs the tables of arXiv 2009.05537 on the available data, and draws figures.

  python -m benchmarks.results_fedmd --data_path=$DATA_DIR
  python -m benchmarks.results_fedmd --data_path=$DATA_DIR --only=cifar-np,cifar-kall
  python -m benchmarks.results_fedmd --tables     # of the finished runs
  python -m benchmarks.results_fedmd --figures    # of the same

Every setting is a run of `tff_pipelines.fedmd` under its real guarantee, in its own
folder below --output_dir; its result is a line of results.jsonl as soon as it is
finished. Started again, the script continues where it stopped, within a run as
well. With --rounds and --public_per_round below the paper's it takes an hour; every
size has its own folder. When all is done, or with --tables, the tables between the
marks in --document are rewritten.
"""

import argparse
from collections.abc import Sequence
import csv
import math
import os
import pathlib
import statistics
import time

from benchmarks import documents, fedmd_cases
from benchmarks.documents import Results
from benchmarks.fedmd_cases import Case
from tff_pipelines.common import files

_PAPER_ROUNDS, _PAPER_PUBLIC = 20, 5000
_CLASSES = 6


def _history(folder: pathlib.Path) -> list[list[float]]:
  """Reads the accuracies of the parties, a list for every round."""
  with open(folder / 'metrics.csv', encoding='utf-8') as file:
    rows = list(csv.DictReader(file))
  names = sorted((name for name in rows[0] if name.startswith('party_')),
                 key=lambda name: int(name.split('/')[0].split('_')[1]))
  return [[float(row[name]) for name in names] for row in rows]


class Runner:
  """Runs cases; public models are trained once for all that share them."""

  def __init__(self, folder: pathlib.Path, data_path: str | None, rounds: int,
               public_per_round: int):
    self._folder = folder
    self._data_path = data_path
    self._sizes = dict(rounds=rounds, public_per_round=public_per_round)
    self._pretrained = {}
    self._task = (None, None)

  def run(self, case: Case, seed: int) -> dict:
    """Starts or continues a run, and returns its result."""
    # TensorFlow takes seconds to import: tables and figures need not wait.
    from tff_pipelines.fedmd import run as fedmd_run  # pylint: disable=g-import-not-at-top
    folder = self._folder / case.run(seed)
    sizes = dict(self._sizes)
    if not case.has_consensus:
      del sizes['public_per_round']
    if case.task != 'digits':
      sizes['data_path'] = self._data_path
    settings = case.settings(seed, output_dir=str(folder), resume=True, **sizes)
    start, start_cpu = time.monotonic(), time.process_time()
    key = (settings.task, settings.split, settings.num_clients,
           settings.records_per_client, settings.architectures, settings.data_seed,
           case.has_consensus)
    if self._task[0] != key:
      self._task = (key, fedmd_run.load_task(settings))
    task = self._task[1]
    key = (settings.task, settings.architectures, settings.initial_weights_seed)
    if key not in self._pretrained and not (
        (folder / files.PRIVATE / 'checkpoints').exists()):
      self._pretrained[key] = fedmd_run.pretrain(task, settings)
    summary = fedmd_run.distill(
        settings, task=task, pretrained=self._pretrained.get(key))
    details = summary['details']
    return dict(
        run=case.run(seed), case=case.key, seed=seed, task=case.task, **self._sizes,
        accuracy=summary['accuracy'], epsilon=summary['epsilon'],
        delta=summary['delta'], noise_scale=details['noise_scale'],
        records=[party['records'] for party in details['parties']],
        history=_history(folder), starts=summary['starts'],
        seconds=round(time.monotonic() - start, 1),
        cpu_seconds=round(time.process_time() - start_cpu, 1),
        warnings=summary['warnings'])


def run_all(runner: Runner, folder: pathlib.Path, only: Sequence[str]) -> None:
  """Runs what is not done yet, of the runs whose names start with one of `only`."""
  folder.mkdir(parents=True, exist_ok=True)
  done = documents.read(folder, 'run')
  for case, seed in fedmd_cases.runs():
    name = case.run(seed)
    if name in done or not name.startswith(tuple(only)):
      continue
    print(f'\n=== {name}: table {case.table}, {case.name}', flush=True)
    done[name] = runner.run(case, seed)
    documents.append(folder, done[name])


def _accuracies(done: Results, key: str) -> list[float]:
  """Returns the accuracies of the runs of a key, in percent, by seed."""
  results = sorted((r for r in done.values() if r['case'] == key),
                   key=lambda result: result['seed'])
  return [100 * result['accuracy'] for result in results]


def _percent(values: Sequence[float]) -> str:
  """Formats the mean and, of several, the single values."""
  text = f'{statistics.fmean(values):.2f}'
  if len(values) > 1:
    text += ' (' + ', '.join(f'{value:.2f}' for value in values) + ')'
  return text


def _up(value: float | None) -> str:
  """Formats epsilon or delta: 4 decimals, rounded up."""
  return '–' if value is None else f'{math.ceil(value * 1e4) / 1e4:.4f}'


def _line(case: Case, done: Results) -> str | None:
  """Formats a row of a table in Markdown; None if nothing of it has been run."""
  results = [done[case.run(seed)] for seed in case.seeds if case.run(seed) in done]
  if not results:
    return None
  records = sorted({n for result in results for n in result['records']})
  size = f'{records[0]}' if len(records) == 1 else f'{records[0]}–{records[-1]}'
  guarantee = '–'
  if results[0]['epsilon'] is not None:
    guarantee = f'{_up(results[0]["epsilon"])}, {_up(results[0]["delta"])}'
  printed = '–' if case.printed is None else f'{case.printed:.2f}'
  decimal = '–' if case.printed_epsilon is None else f'{case.printed_epsilon:.4f}'
  return (f'| {fedmd_cases.TASK_NAMES[case.task]} | {case.name} | {printed} | '
          f'{_percent(_accuracies(done, case.key))} | {decimal} | '
          f'{_up(case.paper_epsilon)} | {size} | {guarantee} |')


def table(done: Results, name: str) -> str | None:
  """Formats a table of the finished runs in Markdown; None if there are none."""
  lines = [_line(case, done) for case in fedmd_cases.cases() if case.table == name]
  lines = list(filter(None, lines))
  if not lines:
    return None
  return '\n'.join([
      '| data | setting | paper, % | ours, % | ε printed (decimal log.) | its ε '
      '(natural log.) | records of a party, ours | our ε, δ |',
      '|---|---|---|---|---|---|---|---|', *lines])


def _differences(done: Results, one: str, other: str) -> list[float]:
  """Returns the points that `one` is above the other, by seed that both have."""
  seeds = [{r['seed']: 100 * r['accuracy'] for r in done.values() if r['case'] == key}
           for key in (one, other)]
  both = sorted(seeds[0].keys() & seeds[1].keys())
  return [seeds[0][s] - seeds[1][s] for s in both]


def _claim(name: str, result: str, met: bool) -> str:
  return f'| {name} | {result} | {"yes" if met else "**no**"} |'


def _not_below(name: str, differences: Sequence[float]) -> list[str]:
  """Formats a claim of at most 1 point below, in the mean of the seeds."""
  if not differences:
    return []
  mean = round(statistics.fmean(differences), 2)
  result = f'{mean:+.2f} points'
  if len(differences) > 1:
    result += ' (' + ', '.join(f'{value:+.2f}' for value in differences) + ')'
  return [_claim(f'{name} at most 1 point below', result, mean >= -1)]


def claims(done: Results) -> str | None:
  """Judges the claims of the paper by our numbers; None without them."""
  lines = []
  values = {key: _accuracies(done, key) for key in {r['case'] for r in done.values()}}
  mean = {key: statistics.fmean(accuracies) for key, accuracies in values.items()}
  for kind, end in (('softmax', ''), ('argmax', '-argmax')):
    lines += _not_below(
        f'CIFAR, {kind}: NFDP at full k against NP,',
        _differences(done, f'cifar-kall{end}', f'cifar-np{end}'))
  lines += _not_below(
      'CIFAR, softmax: NFDP at full k against NP with as many records as a draw has '
      'different ones,', _differences(done, 'cifar-kall', 'cifar-np-190'))
  lines += _not_below(
      'CIFAR, k = 16: argmax against logits,',
      _differences(done, 'cifar-k16-argmax-10', 'cifar-k16-logits-10'))
  drawn = ('cifar-k60-with', 'cifar-k60-without')
  if all(len(values.get(key, ())) > 1 for key in drawn):
    difference = abs(mean[drawn[0]] - mean[drawn[1]])
    spread = max(max(values[key]) - min(values[key]) for key in drawn)
    lines.append(_claim(
        'CIFAR, k = 60: with and without replacement differ by less than the seeds '
        'do', f'{difference:.2f} points; seeds {spread:.2f}', difference <= spread))
  if 'cifar-ldp-digest' in values:
    chance = 100 / _CLASSES
    lines.append(_claim(
        'CIFAR: parties that learn from the consensus of FedMD-LDP alone, at the '
        '(ε, δ) of k = 60, end at most 5 points above chance',
        f'{mean["cifar-ldp-digest"]:.2f}%; chance {chance:.2f}%',
        mean['cifar-ldp-digest'] <= chance + 5))
  if not lines:
    return None
  return '\n'.join(['| claim | found | met |', '|---|---|---|', *lines])


def sizes(done: Results) -> str | None:
  """Describes the finished runs and their times; None if there are none."""
  if not done:
    return None
  seconds = [result['seconds'] for result in done.values()]
  rounds, public = (
      '/'.join(map(str, sorted({result[name] for result in done.values()})))
      for name in ('rounds', 'public_per_round'))
  return (f'Runs: {len(done)}, of {rounds} rounds with {public} public records each '
          f'(paper: {_PAPER_ROUNDS} and {_PAPER_PUBLIC}). A run took '
          f'{statistics.median(seconds):.0f} s (median; longest '
          f'{max(seconds):.0f} s), all together {sum(seconds) / 60:.0f} minutes.')


def tables(done: Results) -> dict[str, str]:
  """Returns the Markdown of the finished runs by name of the mark."""
  texts = {'sizes': sizes(done), 'claims': claims(done),
           **{name: table(done, name) for name in fedmd_cases.TABLES}}
  return {name: text for name, text in texts.items() if text is not None}


def is_complete(done: Results) -> bool:
  """Whether all runs are done."""
  return all(case.run(seed) in done for case, seed in fedmd_cases.runs())


def report(done: Results, document: str) -> None:
  """Prints the tables and writes them to a document, '' for none."""
  texts = tables(done)
  for name, text in texts.items():
    print(f'\n{name}\n\n{text}')
  documents.put(document, {f'fedmd {name}': text for name, text in texts.items()})


def main(arguments: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
  parser.add_argument('--data_path', '--data_dir', default=os.environ.get('DATA_DIR'),
                      help='folder of the .npz files')
  parser.add_argument('--output_dir', default='out/results_fedmd',
                      help='folder of the runs and of results.jsonl')
  parser.add_argument('--rounds', type=int, default=_PAPER_ROUNDS, help='of each run')
  parser.add_argument('--public_per_round', type=int, default=_PAPER_PUBLIC,
                      help='public records of a round')
  parser.add_argument('--only', default='',
                      help='prefixes of the names of runs, separated by commas')
  parser.add_argument('--tables', action='store_true',
                      help='tables of the finished runs, run nothing')
  parser.add_argument('--figures', action='store_true',
                      help='draw figures of the finished runs, run nothing')
  parser.add_argument('--document', default='docs/fedmd.md',
                      help='page of the tables; empty for none')
  parser.add_argument('--pictures', default='docs/figures',
                      help='folder of the figures')
  flags = parser.parse_args(arguments)
  folder = pathlib.Path(
      flags.output_dir, f'r{flags.rounds}-p{flags.public_per_round}')
  if flags.figures:
    from benchmarks import fedmd_figures  # pylint: disable=g-import-not-at-top
    fedmd_figures.draw(pathlib.Path(flags.pictures), documents.read(folder, 'run'))
  if not flags.tables and not flags.figures:
    if flags.data_path is None:
      parser.error('--data_path must be given to run anything')
    runner = Runner(folder, flags.data_path, flags.rounds, flags.public_per_round)
    run_all(runner, folder, flags.only.split(','))
  if not flags.figures or flags.tables:
    done = documents.read(folder, 'run')
    # A page is only rewritten with fewer rows if asked for.
    rewrite = flags.tables or is_complete(done)
    report(done, flags.document if rewrite else '')


if __name__ == '__main__':
  main()
