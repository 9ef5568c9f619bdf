"""Tables and figure of voting and its baselines, from lines of results.

A line is what `results_voting` keeps of a run: row, seed, and fields of its summary.
"""

from collections.abc import Mapping, Sequence
import math
from typing import Any

import matplotlib

from benchmarks import documents
from benchmarks.documents import Results
from benchmarks.voting_experiments import AGENTS, RECORDS


# Row -> what it is, and the paper's accuracy and epsilon.
TABLES = {
    'mnist': [
        ('mnist-ae', 'AE-DPFL, agents on public features, 50 queries', '95.1', '4.3'),
        ('mnist-ae-own', 'AE-DPFL, agents with CNNs of their own, 50 queries',
         '95.1', '4.3'),
        ('mnist-ae-random', 'AE-DPFL without public features: 500 random queries, '
         'student on them alone', '95.1', '4.3'),
        ('mnist-dp_fedavg', 'DP-FedAvg, CNN of 7,346 parameters', '84.2', '4.3'),
        ('mnist-dp_fedavg-features', 'DP-FedAvg on the same public features', '–',
         '–'),
        ('mnist-dp_fedavg-student', 'DP-FedAvg on the same features, and the same '
         'student of the same 50 queries', '–', '–'),
        ('mnist-fedavg', 'FedAvg, no privacy', '97.8', '–')],
    'digits': [
        ('digits-ae', 'AE-DPFL, Q = 500, σ = 25', '83.8', '3.6'),
        ('digits-ae-da', 'AE-DPFL + DA, Q = 500, σ = 30', '92.5', '2.8'),
        ('digits-ae-features', 'AE-DPFL, agents on public features, 50 queries', '–',
         '–'),
        ('digits-dp_fedavg', 'DP-FedAvg', '76.3', '3.7'),
        ('digits-dp_fedavg-da', 'DP-FedAvg + DA', '71.2', '3.6'),
        ('digits-dp_fedavg-student', 'DP-FedAvg on the same features, and the same '
         'student of the same 50 queries', '–', '–'),
        ('digits-fedavg', 'FedAvg, no privacy', '87.6', '–'),
        ('digits-fedavg-da', 'FedAvg + DA, no privacy', '86.9', '–')],
    'office': [
        (f'office-{target}-{algorithm}', f'{others} → {target}, {what}',
         *paper.get(algorithm, ('–', '–')))
        for target, others, paper in (
            ('webcam', 'A, C, D', {'knn': ('75.4', '3.9'),
                                   'dp_fedsgd-added': ('32.6', '4.1'),
                                   'fedavg': ('90.5', '–')}),
            ('dslr', 'A, C, W', {'knn': ('84.3', '3.7'),
                                 'dp_fedsgd-added': ('48.3', '4.0'),
                                 'fedavg': ('96.8', '–')}),
            ('amazon', 'C, D, W', {}), ('caltech10', 'A, D, W', {}))
        for algorithm, what in (
            ('knn', 'kNN-DPFL'), ('dp_fedsgd', 'DP-FedSGD'),
            ('dp_fedsgd-added', 'DP-FedSGD, a record added or removed'),
            ('dp_fedsgd-student', 'DP-FedSGD, and the student of kNN-DPFL'),
            ('fedavg', 'FedAvg, no privacy'))],
}


def _bytes(count: float) -> str:
  """A number of bytes for the reader of a table."""
  for unit, size in (('MB', 1e6), ('kB', 1e3)):
    if count >= size:
      return f'{count / size:.3g} {unit}'
  return f'{count:.3g} bytes'


def _measured(lines: Sequence[Mapping[str, Any]]) -> str:
  """Machine, dates, commits and processor time of runs."""
  minutes = math.ceil(sum(line['cpu_seconds'] for line in lines) / 60)
  days = sorted({line['date'] for line in lines})
  commits = sorted({str(line['commit']) for line in lines})
  runs = '1 run' if len(lines) == 1 else f'{len(lines)} runs'
  time = '1 minute' if minutes == 1 else f'{minutes} minutes'
  return (f"{runs}, {time} of processor time on "
          f"{lines[0]['cpu']}, {lines[0]['cores']} cores; {' to '.join(days)}, on "
          f"top of commit {', '.join(commits)}.")


def shown(results: Results) -> list[str]:
  """Tables that have at least one row."""
  return [name for name, rows in TABLES.items()
          if any(documents.of_row(results, row[0]) for row in rows)]


def table(results: Results, name: str) -> str:
  """A table as Markdown; rows without results are left out."""
  lines = ['| | accuracy | labels right | ε, published formula | ε | uplink of an '
           'agent | paper: accuracy | paper: ε |', '|---|---|---|---|---|---|---|---|']
  shown_runs = []
  for row, what, accuracy, epsilon in TABLES[name]:
    runs = documents.of_row(results, row)
    if not runs:
      continue
    shown_runs += runs
    first, labels = runs[0], '–'
    # By the published formula, and the one that is proved; the same for all seeds.
    published, proved = (
        '–' if first[key] is None else f'{math.ceil(100 * first[key]) / 100:.2f}'
        for key in ('epsilon_published', 'epsilon'))
    if first['labels_right'] is not None:
      labels = documents.percent([run['labels_right'] for run in runs])
    lines.append(
        f"| {what} | {documents.percent([run['accuracy'] for run in runs])} | {labels} "
        f"| {published} | {proved} | {_bytes(first['uplink_bytes_per_agent'])} | "
        f'{accuracy} | {epsilon} |')
  if shown_runs:
    lines += ['', _measured(shown_runs)]
  return '\n'.join(lines)


_CURVES = (('ae', 'AE-DPFL', 'o-'),
           ('dp_fedavg', 'DP-FedAvg on the same public features', 's--'))


def draw(results: Results, path: str) -> None:
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
        runs = documents.of_row(results, f'ablation-{curve}-{key}')
        if runs:
          points.append((value, 100 * runs[0]['accuracy']))
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
