"""Locates the real data files that some tests read."""

import os
import pathlib

import pytest


def data_dir() -> pathlib.Path:
  """Returns $DATA_DIR, or else the folder ../shared/data next to the repository."""
  if 'DATA_DIR' in os.environ:
    return pathlib.Path(os.environ['DATA_DIR'])
  return pathlib.Path(__file__).resolve().parents[2] / 'shared' / 'data'


def require(name: str) -> pathlib.Path:
  """Returns the path of a data file; skips the calling test where it is absent."""
  path = data_dir() / name
  if not path.is_file():
    pytest.skip(f'{path} is absent: set DATA_DIR to the folder that has it')
  return path
