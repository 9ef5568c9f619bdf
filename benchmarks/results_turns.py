"""Accuracy against epsilon of noise that cancels: tables of docs/correlated_noise.md.

  python -m tff_pipelines.sweep --flagfile=sweep_turns_emnist \\
      --common=--data_path=$DATA_DIR/mnist.npz --output_dir=out/sweep_turns_emnist
  python -m benchmarks.results_turns [--folder=out] [--document=FILE] [--figures=FOLDER]

Reads the runs that the sweeps of the flag files sweep_turns_* left in a folder, as far as
they are done, and rewrites the tables between the marks of the document and the figures.
Settings of these sweeps are called 'WHAT, EPSILON', and 'none'.
"""

import argparse
import collections
from collections.abc import Mapping, Sequence
import pathlib
import statistics

from matplotlib import figure as figure_lib

from benchmarks import documents
from tff_pipelines.common import files
from tff_pipelines.experiment import report

# Name of a flag file and of its table -> what it measures.
SWEEPS = {'turns_emnist': 'digits of MNIST, 539 writers',
          'turns_shakespeare': 'next characters of Shakespeare, 1,206 roles',
          'turns_stackoverflow_tag': 'tags of Stack Overflow, 5,499 users'}
# Settings in the order of the table, and their names there.
WORDS = {'skellam by rows': 'Skellam by rows', 'gaussian by rows':
         'Gaussian by rows (trusted server)', 'skellam in turns':
         'Skellam in turns, independent noise', 'skellam, poisson':
         'Skellam, Poisson sampling, ε of its server'}

# What -> epsilon, None without noise -> results of the repeats, per cent.
Results = Mapping[str, Mapping[float | None, Sequence[float]]]


def read(folder: pathlib.Path) -> tuple[Results, str]:
  """The results of a sweep's finished runs, and the name of the metric."""
  found = collections.defaultdict(lambda: collections.defaultdict(list))
  metric = ''
  for path in sorted(folder.glob(f'*/*/run/{files.SUMMARY}')):
    summary = report.read_summary(path)
    flags = path.parents[1].joinpath('command.json').read_text(encoding='utf-8')
    what = 'none'
    if summary['mechanism'] != 'none':
      kind = summary['mechanism']
      what = (f'{kind}, poisson' if summary['sampling'] == 'poisson' else
              f'{kind} in turns' if '--bands=1' in flags else f'{kind} by rows')
    metric = summary['headline']
    # The folder of a setting ends in its epsilon.
    epsilon = None if what == 'none' else float(path.parents[2].name.split('_')[-1])
    found[what][epsilon].append(
        100 * summary['held_out'][summary['headline_of']][metric])
  return found, metric


def _cell(values: Sequence[float] | None) -> str:
  """Mean and range of the repeats."""
  if not values:
    return '–'
  mean = f'{statistics.fmean(values):.2f}'
  return mean if len(values) == 1 else (
      f'{mean} ({min(values):.2f} to {max(values):.2f})')


def table(results: Results) -> str:
  """The table of a sweep: a line for each kind of noise, a column for each epsilon."""
  epsilons = sorted({epsilon for values in results.values() for epsilon in values
                     if epsilon is not None})
  lines = ['| | ' + ' | '.join(f'ε = {epsilon:g}' for epsilon in epsilons) + ' |',
           '|---' * (1 + len(epsilons)) + '|']
  lines += [f'| {words} | ' + ' | '.join(
      _cell(results[what].get(epsilon)) for epsilon in epsilons) + ' |'
            for what, words in WORDS.items() if what in results]
  if 'none' in results:
    lines.append(f'\nWithout noise: {_cell(results["none"][None])}.')
  return '\n'.join(lines)


def draw(results: Results, path: pathlib.Path, title: str, metric: str) -> None:
  """Draws the means against epsilon, and the range of the repeats."""
  figure = figure_lib.Figure(figsize=(7, 4.2))
  axes = figure.subplots()
  for what, words in WORDS.items():
    if what not in results:
      continue
    points = sorted(results[what].items())
    axes.plot([x for x, _ in points], [statistics.fmean(y) for _, y in points],
              marker='.', label=words)
    axes.fill_between([x for x, _ in points], [min(y) for _, y in points],
                      [max(y) for _, y in points], alpha=0.15, linewidth=0)
  if 'none' in results:
    axes.axhline(statistics.fmean(results['none'][None]), color='black', linewidth=1,
                 linestyle='--', label='no noise')
  axes.set_xlabel('epsilon against the server and against observers (Poisson: server)')
  axes.set_ylabel(f'{metric.replace("_", " ")} (%)')
  axes.set_title(title, fontsize=10)
  axes.grid(alpha=0.3)
  axes.legend(fontsize=8)
  figure.tight_layout()
  figure.savefig(path, dpi=120)


def main(arguments: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--folder', default='out', help='folder of the sweeps')
  parser.add_argument('--document', default='docs/correlated_noise.md',
                      help='page of the tables, empty for none')
  parser.add_argument('--figures', default='docs/figures', help='folder of the figures')
  flags = parser.parse_args(arguments)
  tables = {}
  for name, what in SWEEPS.items():
    results, metric = read(pathlib.Path(flags.folder) / f'sweep_{name}')
    if not results:
      print(f'{name}: no finished runs')
      continue
    tables[name] = table(results)
    print(f'{what}\n{tables[name]}\n')
    draw(results, pathlib.Path(flags.figures) / f'{name}.png', what, metric)
  documents.put(flags.document, tables)


if __name__ == '__main__':
  main()
