"""What a vote keeps beside checkpoints and ledger: features, queries, the student.

All of it follows from public records and released labels. Files are seen complete
or not at all, so that a run that is killed goes on from the last one.
"""

import csv
import hashlib
import io
import json
import os
import pathlib
import tempfile

import numpy as np

from tff_pipelines import vote_features
from tff_pipelines.simulation import records

MAP = 'features.npz'
QUERIES = 'queries.npz'
STUDENT = 'student.npz'
CURVE = 'student.csv'


def write_arrays(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
  """Writes an .npz file that is seen complete or not at all."""
  handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f'.{path.name}.')
  try:
    with os.fdopen(handle, 'wb') as file:
      np.savez(file, **arrays)
      file.flush()
      os.fsync(file.fileno())
    os.chmod(partial, 0o644)
    os.replace(partial, path)
  except BaseException:
    os.unlink(partial)
    raise


def read_arrays(path: pathlib.Path) -> dict[str, np.ndarray] | None:
  """The arrays of a file, None if there is none; ValueError if it is damaged."""
  if not path.exists():
    return None
  try:
    with open(path, 'rb') as file:
      found = np.load(file, allow_pickle=False)
      return {name: found[name] for name in found.files}
  except Exception as error:
    raise ValueError(f'{path} is damaged: {error}') from error


def _digest(public: np.ndarray) -> str:
  content = np.ascontiguousarray(public)
  return hashlib.sha256(
      f'{content.dtype} {content.shape}'.encode() + content.tobytes()).hexdigest()


def write_map(folder: pathlib.Path, features: vote_features.PublicFeatures,
              public: np.ndarray) -> None:
  """Keeps a feature map of public records."""
  write_arrays(folder / MAP, {
      'kind': np.array(features.kind), 'public': np.array(_digest(public)),
      **{f'map_{name}': array for name, array in features.arrays.items()}})


def read_map(folder: pathlib.Path,
             public: np.ndarray) -> vote_features.PublicFeatures | None:
  """The feature map that `write_map` kept, None if none.

  Raises:
    ValueError: If it is damaged, or was made of other public records.
  """
  path = folder / MAP
  found = read_arrays(path)
  if found is None:
    return None
  if str(found['public']) != _digest(public):
    raise ValueError(f'{path} is of other public records than these')
  return vote_features.PublicFeatures(
      str(found['kind']), {
          name.removeprefix('map_'): array for name, array in found.items()
          if name.startswith('map_')}, public)


def write_queries(folder: pathlib.Path, rows: np.ndarray) -> None:
  """Keeps the queries, before anybody is asked."""
  write_arrays(folder / QUERIES, {'rows': rows})


def read_queries(folder: pathlib.Path) -> np.ndarray | None:
  """What `write_queries` kept, None if nothing."""
  found = read_arrays(folder / QUERIES)
  return None if found is None else found['rows']


def write_student(folder: pathlib.Path, state: list[np.ndarray],
                  curve: list[dict[str, float]]) -> None:
  """Keeps the student after an epoch, and its metrics of all epochs so far."""
  write_arrays(folder / STUDENT, {
      'curve': np.array(json.dumps(curve)),
      **{f'state_{i:03}': array for i, array in enumerate(state)}})
  text = io.StringIO()
  writer = csv.DictWriter(text, list(curve[0]), lineterminator='\n')
  writer.writeheader()
  writer.writerows(curve)
  records.write_atomically(folder / CURVE, text.getvalue())


def read_student(folder: pathlib.Path) -> tuple[
    list[np.ndarray], list[dict[str, float]]] | None:
  """What `write_student` kept, None if nothing."""
  found = read_arrays(folder / STUDENT)
  if found is None:
    return None
  state = [found[name] for name in sorted(found) if name.startswith('state_')]
  return state, json.loads(str(found['curve']))
