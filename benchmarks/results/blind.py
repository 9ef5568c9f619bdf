"""Tuning by somebody who had not seen the grids: the best try of each, side by side."""

from collections.abc import Mapping
import json
import pathlib

from benchmarks.results.pages import Record, Table

_TRIES = pathlib.Path(__file__).with_name('blind_tuning.jsonl')
# Method of the tries -> row of the same programs and data.
_ROWS = {'emnist-none': 'emnist/none', 'emnist-gaussian-8': 'emnist/gaussian-8',
         'emnist-rows-gaussian-2': 'emnist/rows-gaussian-2',
         **{f'emnist62-{name}': f'emnist62/{name}' for name in ('none', 'gaussian-8')},
         **{f'voting-{name}': f'voting/mnist-{name}' for name in (
             'fedavg', 'ae', 'dp_fedavg', 'dp_fedavg-features')},
         **{f'office-{name}': f'voting/office-webcam-{name}' for name in (
             'knn', 'dp_fedsgd')},
         **{f'ldp-{name}': f'ldp/mnist-{name}-5' for name in (
             'krr', 'dp_fl', 'dp_sgd', 'pate')},
         **{f'{task}-gaussian-8': f'{task}/gaussian-8' for task in (
             'tags', 'shakespeare', 'words')},
         **{f'fedmd-cifar-{name}': f'fedmd/cifar-{name}' for name in ('np', 'kall')}}


def table(records: Mapping[str, Record]) -> str:
  """The best accuracy on the data of trials, by the grid and by the other's tries."""
  tries: dict[str, list] = {}
  for line in _TRIES.read_text(encoding='utf-8').splitlines():
    one = json.loads(line)
    tries.setdefault(one['method'], []).append(one)
  lines = ['| row | tries of the grid | best | tries of another | best | its setting | '
           'difference |', '|---|---|---|---|---|---|---|']
  for method, row in _ROWS.items():
    if row in records and records[row]['tried'] and method in tries:
      ours = max(one['value'] for one in records[row]['tried'])
      best = max(tries[method], key=lambda one: one['value'])
      flags = ' '.join(f'{name}={value}' for name, value in best['flags'].items())
      lines.append(
          f'| {row} | {len(records[row]["tried"])} | {100 * ours:.2f} | '
          f'{len(tries[method])} | {100 * best["value"]:.2f} | {flags or "defaults"} | '
          f'{100 * (best["value"] - ours):+.2f} |')
  return '\n'.join(lines)


TABLES = (Table(page='results.md', mark='blind', rows=list(_ROWS.values()),
                render=table),)
