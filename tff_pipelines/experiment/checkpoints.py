"""Checkpoints: one file holds all that a round commits, and is whole or not used.

Without TensorFlow, and without pickle: nothing that is read is executed. A file is
records in NumPy's .npy format, one after another, and 32 bytes, the SHA-256 of all of
them. The first record is the header, JSON in bytes: the version of the format and the
attributes of `Checkpoint`, with the paths of the arrays in place of these; the others
are the arrays, in its order.
"""

from collections.abc import Collection, Mapping
from concurrent import futures
import dataclasses
import errno
import hashlib
import io
import json
import os
import pathlib
import re
from typing import Any, BinaryIO

import numpy as np
import tree

from tff_pipelines.common import files

VERSION = 1
# Number of the latest rounds that are kept.
KEPT = 3

# Bytes from which on a thread saves more than it costs.
_LARGE = 2**20
_DIGEST = hashlib.sha256().digest_size
_KINDS = {'run': str, 'rounds': int, 'line': str, 'metrics': dict, 'table': str,
          'repeats_due': int}
_NAME = re.compile(r'round_(\d+)')
# Names of the files that a killed process was writing.
PARTIAL = '.round_*'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
  """The content that a round commits.

  Attributes:
    run: Name of the run, as in its configuration.
    rounds: Number of rounds that are committed, >= 0.
    arrays: Path in the state -> array of a dtype of integers, floats or booleans.
    line: Ledger line of the round, without a newline; empty before the first.
    metrics: Metrics of the round.
    table: Digest of the metrics of all rounds so far; see `metrics.Table`.
    lost: Events, as JSON, of rounds that were released and whose checkpoints were
      lost; the ledger has them.
    repeats_due: Number of following rounds that are charged as repeated ones.
  """

  run: str
  rounds: int
  arrays: Mapping[str, np.ndarray]
  line: str = ''
  metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
  table: str = ''
  lost: tuple[Mapping[str, Any], ...] = ()
  repeats_due: int = 0


def _path(parts: tuple[str | int, ...]) -> str:
  return '/'.join(map(str, parts))


def arrays_of(structure: Any, derived: Collection[str] = ()) -> dict[str, np.ndarray]:
  """Path -> array of nested dictionaries, lists and tuples, but for `derived` parts."""
  return {_path(path): np.asarray(leaf) for path, leaf in tree.flatten_with_path(
      structure) if not set(derived).intersection(path)}


def rebuilt(structure: Any, arrays: Mapping[str, np.ndarray],
            derived: Collection[str] = ()) -> Any:
  """The nested structure with these arrays as leaves; ValueError if paths differ."""
  if differing := arrays_of(structure, derived).keys() ^ arrays.keys():
    raise ValueError('the checkpoint is of a state of another form: '
                     f'{", ".join(sorted(differing)[:3])}')
  return tree.map_structure_with_path(
      lambda path, leaf: arrays.get(_path(path), leaf), structure)


def _records(checkpoint: Checkpoint) -> memoryview:
  """The content of a file without its digest."""
  header = {'version': VERSION, **vars(checkpoint), 'arrays': list(checkpoint.arrays)}
  content = io.BytesIO()
  np.save(content, np.frombuffer(json.dumps(header, default=float).encode(), np.uint8))
  for path, array in checkpoint.arrays.items():
    if array.dtype.kind not in 'biufS' or array.dtype == bool and (
        array.view(np.uint8) > 1).any():
      raise ValueError(f'{path} must be of numbers, booleans or bytes, found {array.dtype}')
    np.save(content, array)
  return content.getbuffer()


def to_bytes(checkpoint: Checkpoint) -> bytes:
  """The content of a checkpoint's file."""
  content = _records(checkpoint)
  return bytes(content) + hashlib.sha256(content).digest()


def from_bytes(content: bytes) -> Checkpoint:
  """Reads a content; ValueError unless it is exactly `to_bytes` of some checkpoint."""
  if hashlib.sha256(content[:-_DIGEST]).digest() != content[-_DIGEST:]:
    raise ValueError('its SHA-256 is not that of its content')
  try:
    file = io.BytesIO(content)
    header = json.loads(np.lib.format.read_array(file, allow_pickle=False).tobytes())
    version = header.pop('version')
    result = Checkpoint(**{**header, 'lost': tuple(header['lost']), 'arrays': {
        path: np.lib.format.read_array(file, allow_pickle=False)
        for path in header['arrays']}})
    if any(a.dtype.itemsize == 0 or a.nbytes > len(content) for a in (
        result.arrays.values())):
      raise ValueError('more elements than bytes')
    is_written = result.rounds >= 0 and result.repeats_due >= 0 and all(
        isinstance(getattr(result, name), kind) for name, kind in _KINDS.items()
    ) and all(isinstance(one, dict) for one in result.lost) and all(
        isinstance(path, str) for path in result.arrays) and (
            version != VERSION or to_bytes(result) == content)
  except Exception:  # Parsers raise more kinds of errors than they tell.
    is_written = False
  if not is_written:
    raise ValueError('its content is not in the form that is written')
  if version != VERSION:
    raise ValueError(f'its format has version {version!r:.20}, not {VERSION}')
  return result


def read(path: pathlib.Path) -> Checkpoint:
  """Reads a checkpoint; OSError, or ValueError if damaged, is one line that names it."""
  try:
    return from_bytes(path.read_bytes())
  except ValueError as error:
    raise ValueError(f'{path} is damaged: {error}') from None
  except OSError as error:
    if error.errno != errno.EIO:  # Such as a lost permission: nothing is damaged.
      raise
    raise ValueError(f'{path} is damaged: {error.strerror}') from None


def path_of(folder: pathlib.Path, rounds: int) -> pathlib.Path:
  """The file of a round's checkpoint."""
  return folder / f'round_{rounds:06}'


def write(folder: pathlib.Path, checkpoint: Checkpoint) -> None:
  """Writes a checkpoint durably: seen whole, after a power cut too, or not at all."""
  content = _records(checkpoint)

  def stream(file: BinaryIO) -> None:
    if len(content) < _LARGE:
      file.writelines((content, hashlib.sha256(content).digest()))
      return
    # Hashing takes as long as writing: the disk begins meanwhile.
    with futures.ThreadPoolExecutor(1) as thread:
      digest = thread.submit(hashlib.sha256, content)
      file.write(content)
      os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
      file.write(digest.result().digest())

  files.write_durably(path_of(folder, checkpoint.rounds), stream)


def list_all(folder: pathlib.Path) -> list[tuple[int, pathlib.Path]]:
  """Lists (rounds, path) of all checkpoints in a folder, damaged or not, latest first."""
  return sorted(((int(match[1]), path) for path in folder.iterdir()
                 if (match := _NAME.fullmatch(path.name))), reverse=True)


def superseded(folder: pathlib.Path, rounds: int) -> list[pathlib.Path]:
  """Paths of checkpoints that are not needed after the one of this round."""
  # Later ones are damaged: else the round would not have been run again.
  return [path for number, path in list_all(folder)
          if not rounds - KEPT < number <= rounds]
