"""Metrics of a run's rounds: a CSV file and TensorBoard events, both appended to.

Without TensorFlow. They are synced to the disk once in as many rounds as there are
checkpoints: rows that a power cut loses are restored from those.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import csv
import functools
import hashlib
import io
import json
import pathlib
from typing import Any

from tensorboard.compat.proto import event_pb2
from tensorboard.plugins.scalar import summary_v2
from tensorboard.summary.writer import record_writer

from tff_pipelines.common import files

UNKNOWN_COST = "what it cost is not known, so the run can't be continued"


def rows(path: pathlib.Path) -> list[dict[str, str]]:
  """Rows of a CSV file, but for a torn last one; ValueError if any lacks columns."""
  try:
    text = path.read_text(encoding='utf-8')
    with io.StringIO(text[:text.rfind('\n') + 1], newline='') as file:
      result = list(csv.DictReader(file, strict=True))
  except (ValueError, csv.Error) as error:
    raise ValueError(f'{path} is damaged: {error}') from error
  for number, row in enumerate(result, start=1):
    if None in row or None in row.values():
      raise ValueError(f'{path} is damaged: row {number} must have all columns')
  return result


def read(path: pathlib.Path, key: str) -> dict[int, dict[str, str]]:
  """Rows by the integer in the column `key`, without it; ValueError if one has none."""
  if not path.exists():
    return {}
  table = rows(path)
  try:
    return {int(float(row.pop(key))): row for row in table}
  except (KeyError, ValueError, OverflowError) as error:
    raise ValueError(f'{path} is damaged: column {key}: {error}') from error


class Table:
  """A CSV file with one row for each round or step, in their order.

  `digest` is SHA-256 of all rows, one after another, hexadecimal; empty without rows.
  """

  def __init__(self, path: pathlib.Path, key: str):
    self._path, self._key = path, key
    self._names: dict[str, None] | None = None  # In order.
    self._last, self.digest = -1, ''

  def restore(self, last: int, digest: str, charged: int,
              kept: Callable[[int], Mapping[str, Any] | None] = lambda index: None
              ) -> tuple[dict[int, Mapping[str, str]], dict[int, Mapping[str, Any]]]:
    """Removes the rows after that of index `last`, and one that was torn.

    `digest` is of the rows that stay; `charged` the index of the last that the ledger
    charges; `kept` gives rows that the file has not, by index, from elsewhere. Returns
    the rows that the file has, and those that it has not, for the caller to add.

    Raises ValueError unless their digest is right, and no row is after those that were
    charged; then nothing is changed.
    """
    rows = read(self._path, self._key)
    if max(rows, default=0) > charged:
      raise ValueError(f'{self._path} has a {self._key} without a line in '
                       f'{files.LEDGER}, {max(rows)}: {UNKNOWN_COST}')
    rows = {index: row for index, row in rows.items() if index <= last}
    missing = {index: row for index in range(1, last + 1)
               if index not in rows and (row := kept(index)) is not None}
    if _digest_of({**rows, **missing}) != digest:
      raise ValueError(f'{self._path} is damaged: its rows up to {self._key} {last} '
                       'are not those that the run wrote')
    if self._path.exists():
      self._write(rows)
    return rows, missing

  def add(self, index: int, values: Mapping[str, Any], *, durable: bool = False) -> None:
    """Adds a row, synced if `durable`; rewrites all if out of order or of new columns."""
    if self._names is None and self._path.exists():
      self._write(read(self._path, self._key))
    if self._names and index > self._last and self._names.keys() >= values.keys():
      digest = digest_with(self.digest, index, values)
      files.append(self._path, _text([self._key, *self._names], [(index, values)],
                                     header=False), durable=durable)
      self._last, self.digest = index, digest
    else:
      self._write({**read(self._path, self._key), index: values})

  def _write(self, by_index: Mapping[int, Mapping[str, Any]]) -> None:
    """Writes all rows, seen complete or not at all, unless they are there."""
    self._names = dict.fromkeys(name for row in by_index.values() for name in row)
    self._last, self.digest = max(by_index, default=-1), _digest_of(by_index)
    content = _text([self._key, *self._names], sorted(by_index.items()))
    if not self._path.exists() or self._path.read_bytes() != content:
      files.write_bytes(self._path, content)


def _text(columns: Sequence[str], by_index: Iterable[tuple[int, Mapping[str, Any]]],
          header: bool = True) -> bytes:
  """Rows as CSV; the first column has their index."""
  text = io.StringIO()
  writer = csv.DictWriter(text, columns, lineterminator='\n')
  if header:
    writer.writeheader()
  writer.writerows({columns[0]: index, **row} for index, row in by_index)
  return text.getvalue().encode('utf-8')


def _digest_of(by_index: Mapping[int, Mapping[str, Any]]) -> str:
  """The digest of a table with these rows; see `Table`."""
  return functools.reduce(
      lambda digest, row: digest_with(digest, *row), sorted(by_index.items()), '')


def digest_with(before: str, index: int, values: Mapping[str, Any]) -> str:
  """Digest of rows with the digest `before` and of one more, of columns with values."""
  cells = [('', str(index)), *((name, str(value)) for name, value in sorted(
      values.items()) if value not in (None, ''))]
  return hashlib.sha256(json.dumps([before, cells]).encode()).hexdigest()


class Events:
  """A file of TensorBoard events whose times are the indices of the rounds.

  The duration of a round would reveal how many clients participated.
  """

  def __init__(self, path: pathlib.Path):
    """Starts a new file; its folder is created if it does not exist."""
    files.make_folder(path.parent)
    self._path = path
    # TensorBoard reads the version from a file's first event.
    self._write(
        event_pb2.Event(wall_time=0.0, file_version='brain.Event:2'), durable=True)

  def _write(self, event: event_pb2.Event, durable: bool) -> None:
    record = io.BytesIO()
    record_writer.RecordWriter(record).write(event.SerializeToString())
    files.append(self._path, record.getvalue(), durable=durable)

  def add(self, metrics: Mapping[str, float], rounds: int, *, durable: bool) -> None:
    """Writes a round's metrics, synced to the disk if `durable`."""
    event = event_pb2.Event(wall_time=float(rounds), step=rounds)
    for name, value in metrics.items():
      event.summary.value.extend(summary_v2.scalar_pb(name, value).value)
    self._write(event, durable)
