"""Distributed mean estimation: figure 4 of arXiv 2110.04995."""

from collections.abc import Mapping
import pathlib
import shutil

from benchmarks.results import pages
from benchmarks.results.pages import Record, Table
from benchmarks.results.rows import Row

CLIENTS = (10, 100, 1000)
_NAME = 'mean/figure-4'
_PICTURE = 'mean_estimation.png'
ROWS = (Row(
    name=_NAME, label='errors by mechanism, bits, epsilon and clients',
    program='estimate_mean', seeds=(0,), seeded=(),
    keep=('results.json', 'against_gaussian'), flags=dict(
        num_clients=','.join(map(str, CLIENTS)), dimension='250',
        bits='10,12,14,16,18,20', epsilon='1,2,3,4,5,6,7,8', repeats=20,
        allow_degenerate=True)),)


def _name(one: Mapping) -> str:
  bits = one['bits']
  return one['mechanism'] + (f', {bits} bits' if bits is not None else '')


def table(records: Mapping[str, Record]) -> str:
  """Squared errors over the Gaussian's by formula, with 95% intervals."""
  record = records[_NAME]
  found = record['runs'][0]['kept']
  lines = ['```', 'python -m tff_pipelines.estimate_mean ' + ' '.join(
      f'--{name}' if value is True else f'--{name}={value}'
      for name, value in record['identity']['flags'].items()), '```', '',
           '| mechanism | ' + ' | '.join(f'n = {n:,}' for n in CLIENTS) + ' |',
           '|---' * (1 + len(CLIENTS)) + '|']
  for name in dict.fromkeys(map(_name, found)):
    cells = {one['n']: f'{one["ratio"]:.4g} [{one["ratio_low"]:.4g}, '
                       f'{one["ratio_high"]:.4g}]'
             for one in found if _name(one) == name}
    lines.append(f'| {name} | ' + ' | '.join(cells[n] for n in CLIENTS) + ' |')
  lines += ['', f'One run of {record["runs"][0]["cpu_seconds"]:.0f} s of processor time; '
            f'{pages.made([record])}.']
  return '\n'.join(lines)


def verdicts(records: Mapping[str, Record]) -> dict[str, tuple[str, str]]:
  """Row of the claims -> the ratio, and whether it is within 5% of the Gaussian's."""
  result = {}
  for one in records[_NAME]['runs'][0]['kept'] if _NAME in records else ():
    bits = '' if one['bits'] is None else f'-{one["bits"]}'
    low, high = one['ratio_low'], one['ratio_high']
    text = (f'{one["ratio"]:.3f} [{low:.3f}, {high:.3f}] of the error of the Gaussian by '
            'Rényi accounting')
    word = ('equal within 5%' if 0.95 < low and high < 1.05 else
            'worse' if low > 1 else 'better' if high < 1 else 'undecided')
    result[f'mean/n{one["n"]}-{one["mechanism"]}{bits}'] = text, word
  return result


TABLES = (Table(page='mean_estimation.md', mark='mean', rows=[_NAME], render=table),)


def _draw(records, runs: pathlib.Path, path: pathlib.Path) -> None:
  """Copies the figure of the run."""
  del records
  made = runs / _NAME / 'seed-0' / _PICTURE
  if made.exists():
    shutil.copyfile(made, path)


FIGURES = {_PICTURE: _draw}
