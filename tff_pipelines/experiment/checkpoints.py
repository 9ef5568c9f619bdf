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
# A damaged shape must not ask for more than there is, nor for more than numpy counts.
_MOST_DIMENSIONS, _MOST_ELEMENTS = 32, 2**48
_DTYPES = {np.dtype(kind).str: np.dtype(kind) for kind in (
    '|b1', '|i1', '<i2', '<i4', '<i8', '|u1', '<u2', '<u4', '<u8', '<f2', '<f4', '<f8')}
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
    owed: Number of following rounds that are charged as repeated ones.
  """

  run: str
  rounds: int
  arrays: Mapping[str, np.ndarray]
  line: str = ''
  metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
  table: str = ''
  lost: tuple[Mapping[str, Any], ...] = ()
  owed: int = 0


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

  Args:
    structure: A structure of the same form; derived parts are taken from it.
    arrays: See `arrays_of`.
    derived: See `leaves`.

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
      'lost': list(checkpoint.lost), 'owed': checkpoint.owed,
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
  end = len(content) - _DIGEST
  if hashlib.sha256(memoryview(content)[:end]).digest() != content[end:]:
    raise ValueError('its SHA-256 is not that of its content')
  if version != VERSION:
    raise ValueError(f'its format has version {version}, not {VERSION}')
  start = _START.size + length
  if start > end or start % _ALIGNMENT:
    raise ValueError(f'its header can\'t have {length} bytes')
  try:
    header = json.loads(content[_START.size:start].decode('ascii'))
  except RecursionError:
    raise ValueError('its header nests too deep') from None
  result = _checked(header, memoryview(content)[start:end])
  if next(_parts(result)) != content[:start]:
    raise ValueError('its header is not in the form that is written')
  return result


def _is_count(value: Any) -> bool:
  return type(value) is int and value >= 0  # pylint: disable=unidiomatic-typecheck


def _is_text(value: Any) -> bool:
  return isinstance(value, str) and '\n' not in value


def _is_number(value: Any) -> bool:
  return isinstance(value, (int, float)) and not isinstance(value, bool)


def _checked(header: Any, data: memoryview) -> Checkpoint:
  """The checkpoint of a header and the bytes after it; ValueError if they are wrong."""
  kinds = {
      'round': _is_count, 'owed': _is_count,
      'run': _is_text, 'table': _is_text, 'ledger_line': _is_text,
      'metrics': lambda value: isinstance(value, dict) and all(
          map(_is_number, value.values())),
      'lost': lambda value: isinstance(value, list) and all(
          isinstance(part, dict) for part in value),
      'arrays': lambda value: isinstance(value, list)}
  if not isinstance(header, dict) or header.keys() != kinds.keys():
    raise ValueError(f'its header must have the keys {", ".join(sorted(kinds))}')
  for name, is_kind in kinds.items():
    if not is_kind(header[name]):
      raise ValueError(f'its header has a wrong value of {name}')
  arrays, offset = {}, 0
  for number, spec in enumerate(header['arrays']):
    path, array = _array(spec, data, offset, f'array {number}')
    if path in arrays:
      raise ValueError(f'array {number} has the path of another one')
    arrays[path] = array
    offset += array.nbytes + _padding(array.nbytes)
  if offset != len(data):
    raise ValueError(f'its arrays take {offset} bytes, and it has {len(data)}')
  return Checkpoint(
      run=header['run'], rounds=header['round'], arrays=arrays,
      line=header['ledger_line'], metrics=header['metrics'], table=header['table'],
      lost=tuple(header['lost']), owed=header['owed'])


def _array(spec: Any, data: memoryview, offset: int,
           what: str) -> tuple[str, np.ndarray]:
  """Path and array of a spec whose bytes begin at the offset; ValueError if wrong."""
  if not isinstance(spec, dict) or spec.keys() != {'path', 'dtype', 'shape', 'offset'}:
    raise ValueError(f'{what} must have path, dtype, shape and offset')
  path, shape = spec['path'], spec['shape']
  if not isinstance(path, str):
    raise ValueError(f'{what} must have a path of text')
  if not isinstance(spec['dtype'], str) or spec['dtype'] not in _DTYPES:
    raise ValueError(f'{what} must have one of the dtypes {", ".join(_DTYPES)}')
  dtype = _DTYPES[spec['dtype']]
  if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS or not all(
      map(_is_count, shape)) or math.prod(max(1, n) for n in shape) > _MOST_ELEMENTS:
    raise ValueError(f'{what} has an impossible shape')
  if not _is_count(spec['offset']) or spec['offset'] != offset:
    raise ValueError(f'{what} must begin where the one before ends')
  size = math.prod(shape) * dtype.itemsize
  end = offset + size + _padding(size)
  if end > len(data):
    raise ValueError(f'{what} takes {size} bytes from {offset}, beyond the end')
  if any(data[offset + size:end]):
    raise ValueError(f'{what} must be followed by zeros')
  array = np.frombuffer(data[offset:offset + size], dtype).reshape(shape)
  if dtype.kind == 'b' and np.any(array.view(np.uint8) > 1):
    raise ValueError(f'{what} must have zeros and ones as booleans')
  return path, array.copy()


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


def found(folder: pathlib.Path) -> list[tuple[int, pathlib.Path]]:
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
  return [path for number, path in found(folder)
          if not rounds - KEPT < number <= rounds]
