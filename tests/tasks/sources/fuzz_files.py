"""Files of every format: valid ones, ones with odd values, ones that are large."""

import csv
import dataclasses
import functools
import gzip
import io
import itertools
import json
import os
import pathlib
import pickle
import random
import re
import tempfile
from typing import Any, Callable, Mapping, Sequence
import warnings
import zipfile

import numpy as np
import pyarrow
from pyarrow import parquet

from tests.tasks.sources import fuzz_damage, populations

# Code that executes a part of an input creates this folder; code that trusts the name of
# an archive's member, the file.
MARKER = 'marker'
ESCAPED = '/var/tmp/tff_pipelines_fuzz_train.npy'

_CLIENTS = ('ann', "o'ben\u00e9", '7', 'x y', '-1', 'a,"b', '\u20ac\U0001f600')
_TEXTS = ('', 'x', 'a "b",\nc', '\u20ac', 'y|z', '12', "it's", '\U0001f600 \u2028',
          '\t', ':[', '[' * 20)
_INTEGERS = (0, 1, -3, 255, 2**31, -2**31, 2**53 + 1, 2**62, 2**63 - 1, -2**63 + 1)
_FLOATS = (0.0, -0.0, 0.1, 5.0, -6.5, 1e300, 5e-324, 1e22, -1.7976931348623157e308)


def _population(rng: random.Random, rows: int = 4) -> dict[str, list[dict]]:
  size = rng.choice((2, 2, 3))
  items = rng.choice((_INTEGERS, _FLOATS))

  def record():
    return dict(text=rng.choice(_TEXTS), number=rng.choice(_INTEGERS),
                real=rng.choice(_FLOATS), vector=rng.choices(items, k=size))

  return {client: [record() for _ in range(rng.randint(1, rows))]
          for client in rng.sample(_CLIENTS, rng.randint(1, 4))}


@dataclasses.dataclass(frozen=True)
class Valid:
  """A valid input.

  Attributes:
    files: Path -> content.
    population: The records in the files.
  """

  files: Mapping[str, bytes]
  population: Mapping[str, list[dict]]

  @property
  def content(self) -> bytes:
    """The first file."""
    return next(iter(self.files.values()))


@functools.cache
def corpus(format_: str) -> tuple[Valid, ...]:
  """The valid inputs, the last one with many rows."""
  result = []
  for number in range(13):
    population = _population(random.Random(number), 4 if number < 12 else 1500)
    if number == 0:
      population['least'] = [{**next(iter(population.values()))[0], 'number': -2**63}]
    with tempfile.TemporaryDirectory() as name:
      folder = pathlib.Path(name)
      written = populations.WRITERS[format_](folder, population)
      root = pathlib.Path(written['data_path'])
      files = {}
      for path in [root] if root.is_file() else sorted(root.rglob('*.*')):
        content = path.read_bytes()
        # Decompressed: gzip's header has the time.
        files[os.fspath(path.relative_to(folder)).removesuffix('.gz')] = (
            gzip.decompress(content) if path.suffix == '.gz' else content)
    result.append(Valid(files, population))
  return tuple(result)


def small(rng: random.Random, format_: str) -> Valid:
  """A valid input that does not have many rows."""
  return rng.choice(corpus(format_)[:-1])


def _dumped(rng: random.Random, value: Any) -> bytes:
  return json.dumps(value, ensure_ascii=rng.random() < 0.7, separators=rng.choice(
      ((',', ':'), (', ', ': ')))).encode('utf-8', 'surrogatepass')


def _odd_jsonl(rng: random.Random, valid: Valid) -> bytes:
  lines = valid.content.splitlines()
  for _ in range(rng.choice((1, 1, 2))):
    at = rng.randrange(len(lines))
    # json.loads does not read all that json.dumps writes.
    try:
      lines[at] = _dumped(rng, fuzz_damage.odd_json(rng, json.loads(lines[at])))
    except ValueError:
      pass
  return b'\n'.join(lines) + rng.choice((b'', b'\n', b'\r\n'))


def _odd_leaf(rng: random.Random, valid: Valid) -> bytes:
  return _dumped(rng, fuzz_damage.odd_json(rng, json.loads(valid.content)))


def _odd_csv(rng: random.Random, valid: Valid) -> bytes:
  rows = list(csv.reader(io.StringIO(valid.content.decode('utf-8'), newline='')))
  for _ in range(rng.choice((1, 1, 3))):
    row = rng.choice(rows)
    if row and rng.random() < 0.9:
      cell = fuzz_damage.token(rng).decode('utf-8', 'surrogateescape')
      row[rng.randrange(len(row))] = cell
    elif rng.random() < 0.5:
      row.append(rng.choice(fuzz_damage.NAMES))
    else:
      del row[-1:]
  text = io.StringIO(newline='')
  csv.writer(text, quoting=rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL)),
             lineterminator=rng.choice(('\n', '\r\n', '\r'))).writerows(rows)
  return text.getvalue().encode('utf-8', 'surrogatepass' if rng.random() < 0.5 else (
      'replace'))


class _Executed:
  """Creates the marker when it is unpickled."""

  def __reduce__(self):
    return os.mkdir, (MARKER,)


def _npy(array: Any, version: tuple[int, int] | None = None) -> bytes:
  file = io.BytesIO()
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    np.lib.format.write_array(file, np.asanyarray(array), version, allow_pickle=True)
  return file.getvalue()


def zipped(rng: random.Random, members: Sequence[tuple[str, bytes]]) -> bytes:
  """An archive, of any compression."""
  file = io.BytesIO()
  method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED,
                       zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
  with warnings.catch_warnings(), zipfile.ZipFile(file, 'w') as archive:
    warnings.simplefilter('ignore')
    for name, content in members:
      name = name.encode('utf-8', 'replace').decode()
      archive.writestr(zipfile.ZipInfo(name), content, method)
  return file.getvalue()


def archived(content: bytes) -> list[tuple[str, bytes]]:
  """Names and contents of the members of an archive."""
  with zipfile.ZipFile(io.BytesIO(content)) as archive:
    return [(name, archive.read(name)) for name in archive.namelist()]


def _odd_array(rng: random.Random, count: int) -> bytes:
  shape = rng.choice(((count,),) * 6 + ((count, 2), (count, 1), (count, 0), (), (0,),
                                        (count, 2, 3), (count + 1,), (1, count)))
  dtype = rng.choice((
      '?', 'i1', 'u1', '<i2', '>i4', '<u8', '>i8', '<f2', '<f4', '>f8', '<g', '<c8',
      '<M8[s]', '<m8', 'S3', 'V4', '<U3', '>U3', '<U0', 'i4,f8', '<U2000',
      [('client', '<U2', 2)]))
  kind = rng.random()
  if kind < 0.2:
    array = np.full(shape, None, object)
    array[...] = rng.choice((_Executed(), 'x', 1, None))
  elif kind < 0.3:
    array = np.full(shape, rng.choice(('\ud800', 'a\0', '\u20ac', 'x' * 3000, '', '\n')))
  elif kind < 0.4:
    array = np.full(shape, rng.choice((np.nan, np.inf, -0.0, 1e308, 2.0**60)))
  else:
    array = np.zeros(shape, dtype)
  if array.ndim > 1 and rng.random() < 0.3:
    array = np.asfortranarray(array)
  version = rng.choice((None, None, None, (2, 0), (3, 0)))
  return _npy(array, version)


_HEADERS = (
    "'|O'", "'<f8'", "'<U1000000000'", "'V2147483647'", "'<U-1'", "'f99'", "'>i8,>i8'",
    "[('a', '<f8')]", 'None', 'True', 'False', '(1000000000000,)',
    '(4611686018427387904,)', '(-1,)', '(3, 0)', '(99999999999999999999,)', '()',
    '(2, 2, 2)', '(2.5,)', "'(", "__import__('os').mkdir('marker')", '(' * 200,
    '9' * 5000, "('" + 'a' * 9000 + "',)")


def _with_other_header(rng: random.Random, content: bytes) -> bytes:
  """An array whose header has something else for a value."""
  length = int.from_bytes(content[8:10], 'little')
  header = content[10:10 + length]
  values = list(re.finditer(rb"'[^']*'(?=,)|True|False|\([^)]*\)", header))
  if not values:
    return content
  value = rng.choice(values)
  header = (header[:value.start()] + rng.choice(_HEADERS).encode() +
            header[value.end():].rstrip())
  header = header.ljust(len(header) // 64 * 64 + 117) + b'\n'
  return (content[:8] + len(header).to_bytes(2, 'little') + header +
          content[10 + length:])


def odd_npz(rng: random.Random, valid: Valid, suffix: str = '_train') -> bytes:
  """An archive with other arrays, headers or names."""
  members = archived(valid.content)
  count = sum(map(len, valid.population.values()))
  for _ in range(rng.choice((1, 1, 2))):
    at = rng.randrange(len(members))
    name, content = members[at]
    action = rng.random()
    if action < 0.3:
      members[at] = name, _odd_array(rng, count)
    elif action < 0.45:
      members[at] = name, _with_other_header(rng, content)
    elif action < 0.65:
      members[at] = name, fuzz_damage.damaged(rng, content, rng.choice(members)[1])
    elif action < 0.75:
      name = f'{rng.choice(fuzz_damage.NAMES)}{suffix}.npy'
      members.append((name, _odd_array(rng, count)))
    elif action < 0.85:
      members[at] = rng.choice((
          '../marker', '../../marker', '../../../marker', 'a/../../marker', '',
          'a/b', ESCAPED.removesuffix('_train.npy'), 'x' * 300, 'x' * 40_000, '\u20ac',
          'client', 'text', 'con\n', 'a/', '.', '..')) + rng.choice(
              (suffix, suffix, '_test', '')) + rng.choice(('.npy', '.npy', '')), content
    elif action < 0.9:
      members.append((name, rng.choice(members)[1]))
    elif action < 0.95:
      members += [(name.replace('_train', '_test'), rng.choice(
          (content, content, _odd_array(rng, count)))) for name, content in members]
    elif len(members) > 1:
      del members[at]
  return zipped(rng, members)


def _invalid_utf8(count: int) -> pyarrow.Array:
  whole = pyarrow.array([b'\xff\xfe'] * count, pyarrow.binary())
  return pyarrow.Array.from_buffers(pyarrow.string(), count, whole.buffers())


def _typed(kind: pyarrow.DataType, *values: Any) -> Callable[[int], pyarrow.Array]:
  """A function that builds a column of `count` rows with repeated values."""
  return lambda count: pyarrow.array(
      list(itertools.islice(itertools.cycle(values), count)), kind)


def _from_integers(kind: pyarrow.DataType, *values: int
                   ) -> Callable[[int], pyarrow.Array]:
  return lambda count: _typed(
      pyarrow.int32() if kind.bit_width == 32 else pyarrow.int64(), *values)(
          count).view(kind)


_A = pyarrow
_COLUMNS: tuple[Callable[[int], pyarrow.Array], ...] = (
    _invalid_utf8, _typed(_A.null(), None), _typed(_A.bool_(), True, False, None),
    _typed(_A.int8(), -128, None), _typed(_A.uint8(), 255), _typed(_A.int32(), 1),
    _typed(_A.uint64(), 2**64 - 1), _typed(_A.float16(), np.float16(0.5)),
    _typed(_A.float32(), 0.5, float('nan')), _typed(_A.float64(), float('inf'), 1.0),
    _typed(_A.decimal128(38, 2), 1, None), _typed(_A.decimal256(76, 0), 10**75),
    _typed(_A.date32(), 0), _from_integers(_A.date32(), 2**31 - 1, -2**31),
    _from_integers(_A.date64(), 2**62 // 86_400_000 * 86_400_000),
    _from_integers(_A.timestamp('us'), 2**63 - 1, -2**63, 0),
    _from_integers(_A.timestamp('ns'), 1, 2**63 - 1),
    _from_integers(_A.timestamp('ms', 'UTC'), 2**63 - 1, 0),
    _from_integers(_A.timestamp('us', 'No/Where'), 1, 2),
    _from_integers(_A.timestamp('us', '+25:99'), 1, 2),
    _from_integers(_A.time64('ns'), 1, 2**62), _from_integers(_A.time32('ms'), 2**31 - 1),
    _from_integers(_A.duration('us'), 2**63 - 1), _from_integers(_A.duration('ns'), 7),
    _typed(_A.binary(), b'x', b'\xff'), _typed(_A.large_binary(), b'', None),
    _typed(_A.binary(3), b'abc'), _typed(_A.large_string(), 'x', '7', None),
    _typed(_A.string(), 'x' * 3000, '\0', ''), _typed(_A.string(), None, 'a'),
    lambda count: _typed(_A.string(), 'a', 'b')(count).dictionary_encode(),
    _typed(_A.list_(_A.int64()), [1], [2, 3], [], None), _typed(_A.list_(_A.int64()), []),
    _typed(_A.list_(_A.string()), ['a', 'b'], ['|'], []),
    _typed(_A.list_(_A.list_(_A.float64())), [[1.0], [2.0]], [[3.0], None]),
    _typed(_A.list_(_A.null()), [None]), _typed(_A.list_(_A.int64(), 2), [1, 2]),
    _typed(_A.large_list(_A.bool_()), [True, False]),
    _typed(_A.list_(_A.timestamp('us')), [2**62]),
    _typed(_A.struct({'a': _A.int64()}), {'a': 1}, None),
    _typed(_A.list_(_A.struct({'a': _A.string()})), [{'a': 'x'}]),
    _typed(_A.map_(_A.string(), _A.int64()), [('a', 1), ('a', 2)], None))


def _schema_metadata(rng: random.Random) -> dict[bytes, bytes] | None:
  """Metadata of a column that may select an extension type of Arrow."""
  return rng.choice((None, None, None, {
      b'ARROW:extension:name': rng.choice((
          b'arrow.py_extension_type', b'arrow.fixed_shape_tensor', b'x', b'arrow.bool8')),
      b'ARROW:extension:metadata': rng.choice((
          pickle.dumps(_Executed()), b'{"shape":[2]}', b'', b'{', b'\xff'))}))


def _odd_parquet(rng: random.Random, valid: Valid) -> bytes:
  table = parquet.read_table(io.BytesIO(valid.content))
  for _ in range(rng.choice((0, 1, 1, 2))):
    at = rng.randrange(table.num_columns)
    name = table.column_names[at]
    action = rng.random()
    if action < 0.8:
      column = rng.choice(_COLUMNS)(table.num_rows)
      field = pyarrow.field(name, column.type, metadata=_schema_metadata(rng))
      table = table.set_column(at, field, column)
    elif action < 0.9:
      name = rng.choice(fuzz_damage.NAMES).encode('utf-8', 'replace').decode()
      table = table.append_column(name, rng.choice(_COLUMNS)(table.num_rows))
    elif table.num_columns > 1:
      table = table.remove_column(at)
  if rng.random() < 0.1:
    table = table.slice(0, rng.choice((0, 1)))
  return _parquet_of(rng, table)


def _parquet_of(rng: random.Random, table: pyarrow.Table) -> bytes:
  file = io.BytesIO()
  dictionary = rng.random() < 0.6
  options: dict[str, Any] = dict(
      compression=rng.choice(
          ('NONE', 'NONE', 'SNAPPY', 'GZIP', 'ZSTD', 'BROTLI', 'LZ4')),
      use_dictionary=dictionary, data_page_version=rng.choice(('1.0', '2.0')),
      row_group_size=rng.choice((None, 1, 2)), version=rng.choice(('1.0', '2.6')),
      write_page_checksum=rng.random() < 0.1, store_schema=rng.random() < 0.8)
  if not dictionary and rng.random() < 0.5:
    options['column_encoding'] = {
        field.name: encoding for field in table.schema for kind, encoding in (
            ('int64', rng.choice(('DELTA_BINARY_PACKED', 'BYTE_STREAM_SPLIT'))),
            ('double', 'BYTE_STREAM_SPLIT'),
            ('string', rng.choice(('DELTA_BYTE_ARRAY', 'DELTA_LENGTH_BYTE_ARRAY'))))
        if str(field.type) == kind}
  try:
    parquet.write_table(table, file, **options)
  except (pyarrow.ArrowException, OSError, ValueError):  # Not every type can be stored.
    return corpus('parquet')[0].content
  return file.getvalue()


ODD: Mapping[str, Callable[[random.Random, Valid], bytes]] = {
    'csv': _odd_csv, 'jsonl': _odd_jsonl, 'leaf': _odd_leaf, 'npz': odd_npz,
    'parquet': _odd_parquet}


@functools.cache
def zeros(count: int) -> bytes:
  """An archive of arrays of one row of `count` zeros."""
  file, content = io.BytesIO(), _npy(np.zeros([1, count]))
  with zipfile.ZipFile(file, 'w') as archive:
    for name in ('client_train.npy', 'text_train.npy'):
      archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, 1)
  return file.getvalue()


def bomb(rng: random.Random, format_: str) -> bytes:
  """Small, and large when it is read."""
  if format_ == 'npz':
    return zeros(2**23)
  wide = [f'n{number}' for number in range(2000)]
  if format_ == 'parquet':
    if rng.random() < 0.5:
      table = pyarrow.table({name: [1] for name in ['client', *wide]})
    else:
      table = pyarrow.table({'client': ['a'] * 2000, 'text': ['x' * 20_000] * 2000})
    return _parquet_of(rng, table)
  if format_ == 'csv':
    wide = ','.join(['client', *wide])
    wider = ','.join(f'n{number}' for number in range(100_000))
    return rng.choice((
        f'{wide}\n{wide}\n'.encode(), f'{wider}\n'.encode(),
        b'client,text\na,' + b'x' * 2**21, b'client,text\na,"' + b'x\n' * 2**19,
        b',' * 2**21, b'client,text\n' * 2**16))
  piece = rng.choice((
      b'[],', b'[[', b'[[],', b'["]",', b'{"a":', b'0,', b'"x",', b'1.5,', b'1', b'x'))
  content = piece * (rng.choice((2**20, 2**22)) // len(piece))
  start, end = rng.choice(((b'[', b'0]'), (b'"', b'"'), (b'', b'0'), (b'{"a":', b'}')))
  if format_ == 'leaf':
    return (b'{"users":["a"],"num_samples":[1],"user_data":{"a":{"text":' + start +
            content + end + b'}}}')
  if rng.random() < 0.3:
    return json.dumps({name: 1 for name in ['client', *wide]}).encode()
  return b'{"client":"a","text":' + start + content + end + b'}'
