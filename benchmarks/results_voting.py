"""Accuracy and epsilon of voting beside its baselines: the tables of docs/voting.md.

  python -m benchmarks.results_voting --data_dir=$DATA_DIR

Every experiment is a run of `tff_pipelines.vote` in a process of its own, so what
is reported is what a user gets. Its summary goes as one line into results.jsonl as
soon as it is there; what is there already is not run again, and a run that was
stopped goes on. At the end the tables between the marks in --document are
rewritten, and the picture of the ablations is drawn.
"""

import dataclasses
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import time
from typing import Any, Iterator, Sequence

from absl import app
from absl import flags
import matplotlib

_DATA_DIR = flags.DEFINE_string(
    'data_dir', os.environ.get('DATA_DIR'), 'Folder of the data files.')
_OUTPUT_DIR = flags.DEFINE_string(
    'output_dir', 'out/results_voting', 'Folder of the runs and of results.jsonl.')
_DOCUMENT = flags.DEFINE_string(
    'document', 'docs/voting.md', 'Where the tables go; empty for nowhere.')
_PICTURE = flags.DEFINE_string(
    'picture', 'docs/pictures/voting_ablations.png', 'Of the ablations; empty for '
    'none.')
_ONLY = flags.DEFINE_list('only', [], 'Only experiments whose names start so.')
_LIST = flags.DEFINE_bool('list', False, 'Print the commands and run nothing.')

RESULTS = 'results.jsonl'
SEEDS = (0, 1, 2)
_BEGIN, _END = '<!-- {}: begin -->', '<!-- {}: end -->'
# What of a summary is kept.
_KEPT = ('accuracy', 'epsilon', 'epsilon_published', 'epsilon_server', 'delta',
         'level', 'noise', 'noise_stddev', 'noise_multiplier', 'queries',
         'labels_right', 'answered', 'rounds', 'features', 'model', 'parameters',
         'student_model', 'neighbours', 'uplink_bytes_per_agent', 'warnings')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
  """One run.

  Attributes:
    row: What its repetitions share.
    seed: Of the deal, the public map, the queries and all weights; never of noise.
    flags: Of the binary, one string.
    map_of: Name of an earlier run whose public feature map is taken.
  """

  row: str
  seed: int
  flags: str
  map_of: str | None = None

  @property
  def name(self) -> str:
    return f'{self.row}-{self.seed}'

  def command(self, folder: pathlib.Path, data_dir: str) -> list[str]:
    """The command line; the run goes to a folder of its own below `folder`."""
    seeds = [f'--{name}={self.seed}' for name in (
        'data_seed', 'feature_seed', 'initial_weights_seed')]
    if '--task=office' in self.flags:
      seeds = seeds[1:]  # Its agents are the domains: there is no deal.
    if '--algorithm=ae' in self.flags or '--algorithm=knn' in self.flags:
      seeds.append(f'--student_seed={self.seed}')
    if self.map_of is not None:
      seeds.append(f'--features_from={folder / self.map_of}')
    return [sys.executable, '-m', 'tff_pipelines.vote', *shlex.split(self.flags),
            *seeds, f'--data_dir={data_dir}', '--resume',
            f'--output_dir={folder / self.name}']


_AE = '--algorithm=ae --agent_confidence=0.9 --delta=1e-3 '
_FEDAVG = ('--algorithm=fedavg --client_learning_rate=0.1 --client_batch_size=20 '
           '--rounds_per_evaluation=10 ')
_DP_FEDAVG = '--algorithm=dp_fedavg --delta=1e-3 --rounds_per_evaluation=10 '
# Tuned on task mnist: rounds, clip and rates, by hand.
_DP_IMAGES = _DP_FEDAVG + ('--rounds=20 --clip=0.5 --client_learning_rate=0.1 '
                           '--client_batch_size=20 ')
_DP_FEATURES = _DP_FEDAVG + (
    '--features=contrastive --rounds=10 --clip=1.0 --client_learning_rate=0.02 '
    '--client_batch_size=20 ')


def _mnist() -> Iterator[Experiment]:
  for seed in SEEDS:
    task = '--task=mnist '
    given = dict(seed=seed, map_of=f'mnist-ae-{seed}')
    yield Experiment(row='mnist-ae', seed=seed, flags=(
        task + _AE + '--queries=50 --epsilon=4.3 --bound=paper'))
    yield Experiment(row='mnist-ae-own', **given, flags=(
        task + _AE + '--queries=50 --epsilon=4.3 --bound=paper '
        '--agents_see=records'))
    yield Experiment(row='mnist-ae-random', seed=seed, flags=(
        task + _AE + '--queries=500 --epsilon=4.3 --bound=paper --features=pca '
        '--query_choice=random --agents_see=records --student=labels'))
    yield Experiment(row='mnist-dp_fedavg-features', **given, flags=(
        task + _DP_FEATURES + '--epsilon=4.3'))
    yield Experiment(row='mnist-dp_fedavg', seed=seed, flags=(
        task + _DP_IMAGES + '--epsilon=4.3'))
    yield Experiment(row='mnist-fedavg', seed=seed, flags=(
        task + _FEDAVG + '--rounds=40'))


def _digits() -> Iterator[Experiment]:
  task = '--task=digits '
  for seed in SEEDS:
    yield Experiment(row='digits-ae', seed=seed, flags=(
        task + _AE + '--queries=500 --noise_stddev=25 --agents_see=records'))
    given = dict(seed=seed, map_of=f'digits-ae-{seed}')
    yield Experiment(row='digits-ae-da', **given, flags=(
        task + _AE + '--queries=500 --noise_stddev=30 --adversarial_strength=0.3'))
    yield Experiment(row='digits-ae-features', **given, flags=(
        task + _AE + '--queries=50 --epsilon=2.8 --bound=paper'))
    yield Experiment(row='digits-dp_fedavg', seed=seed, flags=(
        task + _DP_IMAGES + '--epsilon=3.7'))
    yield Experiment(row='digits-fedavg', seed=seed, flags=(
        task + _FEDAVG + '--rounds=15'))


TARGETS = {'webcam': 206, 'dslr': 110, 'amazon': 500, 'caltech10': 500}


def _office() -> Iterator[Experiment]:
  for target, queries in TARGETS.items():
    task = f'--task=office --target={target} --delta=1e-4 '
    for seed in SEEDS:
      yield Experiment(row=f'office-{target}-knn', seed=seed, flags=(
          task + f'--algorithm=knn --queries={queries} --neighbours=20 '
          '--epsilon=3.9 --student_model=softmax --student_learning_rate=0.02'))
      yield Experiment(row=f'office-{target}-dp_fedsgd', seed=seed, flags=(
          task + '--algorithm=dp_fedsgd --epsilon=3.9 --rounds=100 '
          '--record_rate=0.1 --clip=1.0 --server_learning_rate=0.5 '
          '--rounds_per_evaluation=50'))
      yield Experiment(row=f'office-{target}-fedavg', seed=seed, flags=(
          f'--task=office --target={target} --algorithm=fedavg --rounds=20 '
          '--client_learning_rate=0.01 --rounds_per_evaluation=20'))


RECORDS = (50, 100, 200, 400, 600)
AGENTS = (50, 100, 200, 400, 800)


def _ablations() -> Iterator[Experiment]:
  settings = [(f'records{count}', f'--records_per_agent={count} ', 100)
              for count in RECORDS]
  settings += [(f'agents{count}', f'--num_agents={count} ', count)
               for count in AGENTS if count != 100]
  for name, given, agents in settings:
    task = f'--task=mnist --public_records=1000 {given}'
    first = f'ablation-ae-records{RECORDS[0]}-0'
    yield Experiment(
        row=f'ablation-ae-{name}', seed=0,
        map_of=None if name == f'records{RECORDS[0]}' else first,
        flags=task + _AE + '--queries=50 --epsilon=5 --bound=paper')
    yield Experiment(
        row=f'ablation-dp_fedavg-features-{name}', seed=0, map_of=first,
        flags=task + _DP_FEATURES + '--epsilon=5')
    cohort = '' if agents <= 100 else '--cohort_size=100 '
    yield Experiment(
        row=f'ablation-dp_fedavg-{name}', seed=0,
        flags=task + _DP_IMAGES + cohort + '--epsilon=5')


def experiments() -> list[Experiment]:
  """All experiments, those that others take their feature map from first."""
  return [*_mnist(), *_digits(), *_office(), *_ablations()]


def read(path: pathlib.Path) -> dict[str, dict[str, Any]]:
  """Name -> result, of the lines that are there."""
  if not path.exists():
    return {}
  lines = path.read_text(encoding='utf-8').splitlines()
  found = [json.loads(line) for line in lines if line.endswith('}')]
  return {row['name']: row for row in found}


def run(experiment: Experiment, folder: pathlib.Path,
        data_dir: str) -> dict[str, Any]:
  """Runs one experiment and returns its line."""
  start = time.monotonic()
  logs = folder / 'logs'
  logs.mkdir(parents=True, exist_ok=True)
  log = logs / f'{experiment.name}.log'
  with open(log, 'a', encoding='utf-8') as file:
    done = subprocess.run(
        experiment.command(folder, data_dir), check=False, stdout=file,
        stderr=subprocess.STDOUT)
  if done.returncode:
    last = log.read_text(encoding='utf-8').strip().splitlines()[-1:]
    raise RuntimeError(f'{experiment.name} failed: {" ".join(last)} (see {log})')
  summary = json.loads(
      (folder / experiment.name / 'summary.json').read_text(encoding='utf-8'))
  return {'name': experiment.name, 'row': experiment.row, 'seed': experiment.seed,
          'flags': experiment.flags, 'seconds': round(time.monotonic() - start, 1),
          **{key: summary[key] for key in _KEPT}}


def _of_row(results: dict[str, dict[str, Any]], row: str) -> list[dict[str, Any]]:
  return [found for found in results.values() if found['row'] == row]


def _percent(values: Sequence[float]) -> str:
  """Mean and, of several, standard deviation, in percent."""
  mean = 100 * statistics.fmean(values)
  if len(values) < 2:
    return f'{mean:.1f}'
  return f'{mean:.1f} ± {100 * statistics.stdev(values):.1f}'


def _epsilons(found: Sequence[dict[str, Any]]) -> tuple[str, str]:
  """By the published formula, and the one that is proved; of all seeds alike."""
  first = found[0]
  texts = []
  for key in ('epsilon_published', 'epsilon'):
    texts.append('–' if first[key] is None else f'{first[key]:.2f}')
  return texts[0], texts[1]


# Row -> what it is, and the paper's accuracy and epsilon beside it.
_TABLES = {
    'mnist': [
        ('mnist-ae', 'AE-DPFL, agents on public features, 50 queries', '95.1', '4.3'),
        ('mnist-ae-own', 'AE-DPFL, agents with CNNs of their own, 50 queries',
         '95.1', '4.3'),
        ('mnist-ae-random', 'AE-DPFL without public features: 500 random queries, '
         'student on them alone', '95.1', '4.3'),
        ('mnist-dp_fedavg', 'DP-FedAvg, CNN of 7,346 parameters', '84.2', '4.3'),
        ('mnist-dp_fedavg-features', 'DP-FedAvg on the same public features', '–',
         '–'),
        ('mnist-fedavg', 'FedAvg, no privacy', '97.8', '–')],
    'digits': [
        ('digits-ae', 'AE-DPFL, Q = 500, σ = 25', '83.8', '3.6'),
        ('digits-ae-da', 'AE-DPFL + DA, Q = 500, σ = 30', '92.5', '2.8'),
        ('digits-ae-features', 'AE-DPFL, agents on public features, 50 queries', '–',
         '–'),
        ('digits-dp_fedavg', 'DP-FedAvg', '76.3', '3.7'),
        ('digits-fedavg', 'FedAvg, no privacy', '87.6', '–')],
    'office': [
        (f'office-{target}-{algorithm}', f'{others} → {target}, {what}',
         *paper.get(algorithm, ('–', '–')))
        for target, others, paper in (
            ('webcam', 'A, C, D', {'knn': ('75.4', '3.9'),
                                   'dp_fedsgd': ('32.6', '4.1'),
                                   'fedavg': ('90.5', '–')}),
            ('dslr', 'A, C, W', {'knn': ('84.3', '3.7'),
                                 'dp_fedsgd': ('48.3', '4.0'),
                                 'fedavg': ('96.8', '–')}),
            ('amazon', 'C, D, W', {}), ('caltech10', 'A, D, W', {}))
        for algorithm, what in (('knn', 'kNN-DPFL'), ('dp_fedsgd', 'DP-FedSGD'),
                                ('fedavg', 'FedAvg, no privacy'))],
}


def table(results: dict[str, dict[str, Any]], name: str) -> str:
  """A table as Markdown; rows without results are left out."""
  lines = ['| | accuracy | ε, published formula | ε | labels right | paper: accuracy '
           '| paper: ε |', '|---|---|---|---|---|---|---|']
  for row, what, accuracy, epsilon in _TABLES[name]:
    found = _of_row(results, row)
    if not found:
      continue
    published, proved = _epsilons(found)
    labels = '–'
    if found[0]['labels_right'] is not None:
      labels = _percent([f['labels_right'] for f in found])
    lines.append(
        f"| {what} | {_percent([f['accuracy'] for f in found])} | {published} | "
        f'{proved} | {labels} | {accuracy} | {epsilon} |')
  return '\n'.join(lines)


def rewritten(document: str, name: str, content: str) -> str:
  """A document with what stands between the marks of a name replaced."""
  begin, end = _BEGIN.format(name), _END.format(name)
  before, found, rest = document.partition(begin)
  _, found_end, after = rest.partition(end)
  if not found or not found_end:
    raise ValueError(f'the document must have the marks {begin} and {end}')
  return f'{before}{begin}\n{content}\n{end}{after}'


_CURVES = (('ae', 'AE-DPFL', 'o-'),
           ('dp_fedavg-features', 'DP-FedAvg on the same public features', 's--'),
           ('dp_fedavg', 'DP-FedAvg', '^:'))


def draw(results: dict[str, dict[str, Any]], path: str) -> None:
  """Draws the ablations: data per agent, and number of agents."""
  matplotlib.use('Agg')
  from matplotlib import pyplot  # pylint: disable=g-import-not-at-top
  figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
  for panel, kind, values, label in (
      (axes[0], 'records', RECORDS, 'records per agent, 100 agents'),
      (axes[1], 'agents', AGENTS, 'agents with 600 records each')):
    for curve, name, style in _CURVES:
      points = []
      for value in values:
        key = f'{kind}{value}' if (kind, value) != ('agents', 100) else 'records600'
        found = _of_row(results, f'ablation-{curve}-{key}')
        if found:
          points.append((value, 100 * found[0]['accuracy']))
      if points:
        panel.plot(*zip(*points), style, label=name)
    panel.set(xlabel=label, xscale='log', xticks=values)
    panel.set_xticks([], minor=True)
    panel.set_xticklabels([str(value) for value in values])
    panel.grid(alpha=0.3)
  axes[0].set_ylabel('accuracy on 9,000 test digits (%)')
  axes[0].legend(fontsize=8)
  figure.suptitle('MNIST, agents of 6 digits, epsilon 5, delta 1e-3', fontsize=10)
  figure.tight_layout()
  figure.savefig(path, dpi=110)
  pyplot.close(figure)


def main(argv: Sequence[str]) -> None:
  del argv  # Unused.
  if not _DATA_DIR.value:
    raise app.UsageError('--data_dir must name the folder of the data files')
  folder = pathlib.Path(_OUTPUT_DIR.value)
  wanted = [e for e in experiments()
            if not _ONLY.value or e.name.startswith(tuple(_ONLY.value))]
  if _LIST.value:
    for experiment in wanted:
      print(shlex.join(experiment.command(folder, _DATA_DIR.value)))
    return
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / RESULTS
  results = read(path)
  for number, experiment in enumerate(wanted, start=1):
    if experiment.name in results:
      continue
    line = run(experiment, folder, _DATA_DIR.value)
    with open(path, 'a', encoding='utf-8') as file:
      file.write(json.dumps(line) + '\n')
    results[experiment.name] = line
    print(f"{number}/{len(wanted)} {line['name']}: accuracy "
          f"{100 * line['accuracy']:.2f}, epsilon {line['epsilon']}, "
          f"{line['seconds']:.0f} s", flush=True)
  for name in _TABLES:
    print(f'\n{name}\n{table(results, name)}')
  if _DOCUMENT.value:
    document = pathlib.Path(_DOCUMENT.value)
    text = document.read_text(encoding='utf-8')
    for name in _TABLES:
      if any(_of_row(results, row[0]) for row in _TABLES[name]):
        text = rewritten(text, name, table(results, name))
    document.write_text(text, encoding='utf-8')
  if _PICTURE.value and any(row['row'].startswith('ablation')
                            for row in results.values()):
    draw(results, _PICTURE.value)


if __name__ == '__main__':
  app.run(main)
