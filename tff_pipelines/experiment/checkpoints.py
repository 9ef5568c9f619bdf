"""Checkpoints: one file holds all that a round commits, and is whole or not used.

Without TensorFlow, and without pickle: nothing that is read is executed. The layout of
a file, integers little-endian:

  8 bytes    magic
  uint32     version of the format
  uint32     length of the header
  header     JSON in ASCII, padded by spaces to a multiple of 64 bytes from the start
  arrays     raw bytes, C order, little-endian, each padded by zeros to 64 bytes
  32 bytes   SHA-256 of everything before

The header has the run, the round, its ledger line and metrics, a digest of the metrics
of all rounds, the releases that were lost with damaged checkpoints, and of each array
the path in the state, dtype, shape and offset from the end of the header.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent import futures
import dataclasses
import errno
import hashlib
import json
import math
import os
import pathlib
import re
import struct
from typing import Any, BinaryIO

import numpy as np

from tff_pipelines.common import files

MAGIC = b'\x89TPRUN\r\n'
VERSION = 1
# Number of the latest rounds that are kept.
KEPT = 3

_START = struct.Struct('<8sII')
_ALIGNMENT = 64
_DIGEST = hashlib.sha256().digest_size
_DTYPES = {np.dtype(kind).str: np.dtype(kind) for kind in (
    '|b1', '|i1', '<i2', '<i4', '<i8', '|u1', '<u2', '<u4', '<u8', '<f2', '<f4', '<f8')}
_KINDS = {'run': str, 'rounds': int, 'line': str, 'metrics': dict, 'table': str,
          'repeats_due': int}
# Bytes from which on a thread saves more than it costs.
_LARGE = 2**20
_NAME = re.compile(r'round_(\d+)')
_PARTIAL = '.round_'


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


def leaves(structure: Any, derived: Collection[str] = (),
           path: str = '') -> Iterator[tuple[str, Any]]:
  """Yields (path, leaf) of nested dictionaries and lists, keys in their order.

  Args:
    structure: Dictionaries, lists and tuples of arrays or numbers.
    derived: Names of parts to leave out, wherever they are.
    path: Path of the structure, for the recursion.
  """
  if isinstance(structure, Mapping):
    parts = sorted(structure.items())
  elif isinstance(structure, (list, tuple)):
    parts = enumerate(structure)
  else:
    yield path, structure
    return
  for name, part in parts:
    if name not in derived:
      yield from leaves(part, derived, f'{path}/{name}' if path else str(name))


def arrays_of(structure: Any, derived: Collection[str] = ()) -> dict[str, np.ndarray]:
  """Path -> array of a nested structure; see `leaves`."""
  return {path: np.asarray(leaf) for path, leaf in leaves(structure, derived)}


def rebuilt(structure: Any, arrays: Mapping[str, np.ndarray],
            derived: Collection[str] = ()) -> Any:
  """The nested structure with these arrays as its leaves.

  Raises:
    ValueError: If paths differ.
  """
  expected = {path for path, _ in leaves(structure, derived)}
  if expected != arrays.keys():
    differing = ', '.join(sorted(expected ^ arrays.keys())[:3])
    raise ValueError(f'the checkpoint is of a state of another form: {differing}')

  def build(part, path, known):
    if isinstance(part, Mapping):
      parts = [(name, build(value, f'{path}/{name}' if path else str(name),
                            known or name in derived)) for name, value in part.items()]
      return type(part)(parts)
    if isinstance(part, (list, tuple)):
      parts = [build(value, f'{path}/{number}' if path else str(number), known)
               for number, value in enumerate(part)]
      return type(part)(*parts) if hasattr(part, '_fields') else type(part)(parts)
    return part if known else arrays[path]

  return build(structure, '', False)


def _padding(size: int) -> int:
  return -size % _ALIGNMENT


def _plain(value: Any) -> int | float:
  """A metric as a number of JSON."""
  return value if type(value) is int else float(value)  # pylint: disable=unidiomatic-typecheck


def _parts(checkpoint: Checkpoint) -> Iterator[Any]:
  """Yields the content of a file, buffer by buffer, without its digest."""
  arrays, specs, offset = [], [], 0
  for path, array in checkpoint.arrays.items():
    # Little-endian, in C order; `ascontiguousarray` would give scalars a dimension.
    array = np.asarray(array, array.dtype.newbyteorder('<'), order='C')
    if array.dtype.str not in _DTYPES:
      raise ValueError(f'{path} must be of numbers or booleans, found {array.dtype}')
    specs.append({'path': path, 'dtype': array.dtype.str, 'shape': list(array.shape),
                  'offset': offset})
    arrays.append(array)
    offset += array.nbytes + _padding(array.nbytes)
  header = json.dumps({
      'run': checkpoint.run, 'round': checkpoint.rounds, 'table': checkpoint.table,
      'ledger_line': checkpoint.line,
      'metrics': {name: _plain(value) for name, value in checkpoint.metrics.items()},
      'lost': list(checkpoint.lost), 'repeats_due': checkpoint.repeats_due,
      'arrays': specs}).encode('ascii')
  header += b' ' * _padding(_START.size + len(header))
  yield _START.pack(MAGIC, VERSION, len(header)) + header
  for array in arrays:
    if array.nbytes:
      yield memoryview(array.reshape(-1)).cast('B')
      yield bytes(_padding(array.nbytes))


def _digest(parts: Iterable[Any]) -> bytes:
  digest = hashlib.sha256()
  for part in parts:
    digest.update(part)
  return digest.digest()


def to_bytes(checkpoint: Checkpoint) -> bytes:
  """The content of a checkpoint's file."""
  content = b''.join(_parts(checkpoint))
  return content + hashlib.sha256(content).digest()


def from_bytes(content: bytes) -> Checkpoint:
  """Reads the content of a file; arrays are copies.

  Raises:
    ValueError: Unless it is exactly the result of `to_bytes` for some checkpoint;
      nothing larger than the content is allocated.
  """
  if len(content) < _START.size + _DIGEST:
    raise ValueError(f'it has only {len(content)} bytes')
  magic, version, length = _START.unpack_from(content)
  if magic != MAGIC:
    raise ValueError('it does not begin as a checkpoint')
  data = memoryview(content)[:-_DIGEST]
  if hashlib.sha256(data).digest() != content[-_DIGEST:]:
    raise ValueError('its SHA-256 is not that of its content')
  if version != VERSION:
    raise ValueError(f'its format has version {version}, not {VERSION}')
  try:
    header = json.loads(content[_START.size:_START.size + length].decode('ascii'))
    arrays, offset = {}, _START.size + length
    for spec in header['arrays']:
      arrays[spec['path']] = array = _array(data[offset:], spec['dtype'], spec['shape'])
      offset += array.nbytes + _padding(array.nbytes)
    result = Checkpoint(
        run=header['run'], rounds=header['round'], arrays=arrays,
        line=header['ledger_line'], metrics=header['metrics'], table=header['table'],
        lost=tuple(header['lost']), repeats_due=header['repeats_due'])
    is_written = result.rounds >= 0 and result.repeats_due >= 0 and all(
        isinstance(getattr(result, name), kind) for name, kind in _KINDS.items()
    ) and all(isinstance(one, dict) for one in result.lost) and all(
        isinstance(path, str) for path in arrays) and b''.join(_parts(result)) == data
  except (KeyError, TypeError, AttributeError, ValueError, OverflowError,
          RecursionError):
    is_written = False
  if not is_written:
    raise ValueError('its header is not in the form that is written')
  return result


def _array(data: memoryview, dtype: str, shape: list[int]) -> np.ndarray:
  """A copy of the array at the start of the data; ValueError if it does not fit."""
  size = math.prod(shape) * _DTYPES[dtype].itemsize
  if not 0 <= size <= len(data):
    raise ValueError('it is not in the data')
  if dtype == '|b1' and any(one > 1 for one in data[:size]):
    raise ValueError('booleans must be zeros and ones')
  return np.frombuffer(data[:size], _DTYPES[dtype]).reshape(shape).copy()


def read(path: pathlib.Path) -> Checkpoint:
  """Reads a checkpoint.

  Raises:
    OSError: If the file can't be opened.
    ValueError: If it is damaged; one line that names it.
  """
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

  parts = list(_parts(checkpoint))

  def stream(file: BinaryIO) -> None:
    if sum(map(len, parts)) < _LARGE:
      file.writelines([*parts, _digest(parts)])
      return
    # Hashing takes as long as writing: the disk begins meanwhile.
    with futures.ThreadPoolExecutor(1) as thread:
      digest = thread.submit(_digest, parts)
      file.writelines(parts)
      os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
      file.write(digest.result())

  files.write_durably(path_of(folder, checkpoint.rounds), stream)


def list_all(folder: pathlib.Path) -> list[tuple[int, pathlib.Path]]:
  """Lists (rounds, path) of all checkpoints in a folder, damaged or not, latest first."""
  if not folder.exists():
    return []
  return sorted(((int(match[1]), path) for path in folder.iterdir()
                 if (match := _NAME.fullmatch(path.name))), reverse=True)


def is_partial(path: pathlib.Path) -> bool:
  """Whether a path is of a checkpoint that a killed process was writing."""
  return path.name.startswith(_PARTIAL)


def superseded(folder: pathlib.Path, rounds: int) -> list[pathlib.Path]:
  """Paths of checkpoints that are not needed after the one of this round.

  Those of later rounds are damaged: else the round would not have been run again.
  """
  return [path for number, path in list_all(folder)
          if not rounds - KEPT < number <= rounds]
