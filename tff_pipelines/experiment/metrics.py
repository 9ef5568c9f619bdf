"""Metrics of a run's rounds: a CSV file and TensorBoard events, both appended to.

Without TensorFlow. They are synced to the disk once in as many rounds as there are
checkpoints: rows that a power cut loses are restored from those.
"""

from collections.abc import Mapping
import csv
import io
import pathlib
from typing import Any

from tensorboard.compat.proto import event_pb2
from tensorboard.plugins.scalar import summary_v2
from tensorboard.summary.writer import record_writer

from tff_pipelines.experiment import files


def read(path: pathlib.Path, key: str) -> dict[int, dict[str, str]]:
  """Rows of a CSV file by the integer in the column `key`, without it.

  A last row that was not written to its end is left out.
  """
  if not path.exists():
    return {}
  text = path.read_text(encoding='utf-8')
  with io.StringIO(text[:text.rfind('\n') + 1], newline='') as file:
    return {int(float(row.pop(key))): row for row in csv.DictReader(file)}


class Table:
  """A CSV file with one row for each round or step, in their order."""

  def __init__(self, path: pathlib.Path, key: str):
    """Initializes the table; reads and writes nothing.

    Args:
      path: Path of the file.
      key: Name of the column with the index of the round.
    """
    self._path, self._key = path, key
    self._names: dict[str, None] | None = None  # In order.
    self._last = -1

  def open(self, last: int | None = None) -> dict[int, dict[str, str]]:
    """Reads the rows, and removes those after `last` and one that was torn."""
    rows = {index: row for index, row in read(self._path, self._key).items()
            if last is None or index <= last}
    if self._path.exists():
      self._write(rows)
    return rows

  def add(self, index: int, values: Mapping[str, Any], *, durable: bool = False) -> None:
    """Adds a row; one out of order, or of other columns, rewrites the file.

    Args:
      index: Index of the round or step.
      values: Name -> value.
      durable: Whether to sync the file to the disk.
    """
    if self._names is None:
      self.open()
    if self._names and index > self._last and self._names.keys() >= values.keys():
      files.append(self._path, self._text([(index, values)], header=False),
                   durable=durable)
      self._last = index
    else:
      self._write({**read(self._path, self._key), index: values})

  def _text(self, rows, header: bool = True) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, [self._key, *self._names], lineterminator='\n')
    if header:
      writer.writeheader()
    writer.writerows({self._key: index, **row} for index, row in rows)
    return text.getvalue().encode('utf-8')

  def _write(self, rows: Mapping[int, Mapping[str, Any]]) -> None:
    """Writes all rows, seen complete or not at all, unless they are there."""
    self._names = dict.fromkeys(name for row in rows.values() for name in row)
    self._last = max(rows, default=-1)
    content = self._text(sorted(rows.items()))
    if not self._path.exists() or self._path.read_bytes() != content:
      files.write_bytes(self._path, content)


class Events:
  """A file of TensorBoard events whose times are the indices of the rounds.

  The writers of TensorFlow note when an event was written, and the duration of a round
  reveals how many clients participated.
  """

  def __init__(self, path: pathlib.Path):
    """Starts a new file; its folder is created if it does not exist."""
    path.parent.mkdir(exist_ok=True)
    self._path = path
    # TensorBoard reads the version from a file's first event.
    self._write(
        event_pb2.Event(wall_time=0.0, file_version='brain.Event:2'), durable=True)

  def _write(self, event: event_pb2.Event, durable: bool) -> None:
    record = io.BytesIO()
    record_writer.RecordWriter(record).write(event.SerializeToString())
    files.append(self._path, record.getvalue(), durable=durable)

  def add(self, metrics: Mapping[str, float], rounds: int, *, durable: bool) -> None:
    """Writes a round's metrics; they survive if the process is killed.

    Args:
      metrics: Name -> value.
      rounds: Index of the round.
      durable: Whether to sync the file to the disk.
    """
    event = event_pb2.Event(wall_time=float(rounds), step=rounds)
    for name, value in metrics.items():
      event.summary.value.extend(summary_v2.scalar_pb(name, value).value)
    self._write(event, durable)
