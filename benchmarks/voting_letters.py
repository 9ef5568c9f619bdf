"""Writes the letters of unipen62_writers.npz as a file for `vote --task=npz`.

  python -m benchmarks.voting_letters --data_dir=$DATA_DIR --output=letters.npz

Upper and lower case are one class, 26 in all; with --case they are two, 52. Writers
stay the agents, unless a run simulates others.
"""

import argparse
from collections.abc import Sequence
import pathlib

import numpy as np

_DIGITS, _LETTERS = 10, 26


def write(data_dir: str | pathlib.Path, output: str | pathlib.Path,
          case: bool = False) -> None:
  """Writes the file; classes are numbered from A, with `case` then from a."""
  classes = _LETTERS * (2 if case else 1)
  arrays = {'num_classes': np.array(classes)}
  with np.load(pathlib.Path(data_dir) / 'unipen62_writers.npz') as file:
    for part in ('train', 'test'):
      y = file[f'y_{part}']
      rows = y >= _DIGITS
      arrays[f'y_{part}'] = (y[rows].astype(np.int64) - _DIGITS) % classes
      for name in ('x', 'writer'):
        arrays[f'{name}_{part}'] = file[f'{name}_{part}'][rows]
  np.savez_compressed(output, **arrays)


def main(arguments: Sequence[str] | None = None) -> None:
  """Runs the script with these arguments, those of the command line by default."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data_dir', required=True)
  parser.add_argument('--output', required=True)
  parser.add_argument('--case', action='store_true')
  flags = parser.parse_args(arguments)
  write(flags.data_dir, flags.output, flags.case)


if __name__ == '__main__':
  main()
