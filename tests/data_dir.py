"""Where the real data files are that some tests read."""

import os
import pathlib

import pytest


def data_dir() -> pathlib.Path:
  """$DATA_DIR, or else the folder ../shared/data beside the repository."""
  if 'DATA_DIR' in os.environ:
    return pathlib.Path(os.environ['DATA_DIR'])
  return pathlib.Path(__file__).resolve().parents[2] / 'shared' / 'data'


def require(name: str) -> pathlib.Path:
  """The path of a data file; skips the calling test where it is absent."""
  path = data_dir() / name
  if not path.is_file():
    pytest.skip(f'{path} is absent: set DATA_DIR to the folder that has it')
  return path
