"""Files of a vote besides checkpoints and ledger: features, queries, the student.

All of it follows from public records and released labels. Files are seen complete or
not at all, so that a run that is killed continues from the last one.
"""

import hashlib
import json
import pathlib

import numpy as np

from tff_pipelines.experiment import files
from tff_pipelines.voting import features as features_lib

MAP = 'features.npz'
QUERIES = 'queries.npz'
STUDENT = 'student.npz'
CURVE = 'student.csv'


def _digest(public: np.ndarray) -> str:
  return hashlib.sha256(
      f'{public.dtype} {public.shape}'.encode() + public.tobytes()).hexdigest()


def write_map(folder: pathlib.Path, features: features_lib.PublicFeatures,
              public: np.ndarray) -> None:
  """Keeps a feature map of public records."""
  files.write_arrays(folder / MAP, {
      'kind': np.array(features.kind), 'public': np.array(_digest(public)),
      **{f'map_{name}': array for name, array in features.arrays.items()}})


def read_map(folder: pathlib.Path,
             public: np.ndarray) -> features_lib.PublicFeatures | None:
  """The feature map that `write_map` kept; None if there is none.

  Raises:
    ValueError: If it is damaged, or is of other public records.
  """
  path = folder / MAP
  arrays = files.read_arrays(path)
  if arrays is None:
    return None
  if str(arrays['public']) != _digest(public):
    raise ValueError(f'{path} is of other public records than these')
  return features_lib.PublicFeatures(
      str(arrays['kind']), {
          name.removeprefix('map_'): array for name, array in arrays.items()
          if name.startswith('map_')}, public)


def write_student(folder: pathlib.Path, state: list[np.ndarray],
                  curve: list[dict[str, float]]) -> None:
  """Keeps the student after an epoch, and its metrics of all epochs so far."""
  files.write_arrays(folder / STUDENT, {
      'curve': np.array(json.dumps(curve)),
      **{f'state_{i:03}': array for i, array in enumerate(state)}})
  files.write_table(folder / CURVE, curve)


def read_student(folder: pathlib.Path
                 ) -> tuple[list[np.ndarray], list[dict[str, float]]]:
  """State and metrics that `write_student` kept; both empty before the first epoch."""
  arrays = files.read_arrays(folder / STUDENT) or {'curve': '[]'}
  state = [arrays[name] for name in sorted(arrays) if name.startswith('state_')]
  return state, json.loads(str(arrays['curve']))
