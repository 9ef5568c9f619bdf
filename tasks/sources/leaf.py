"""LEAF's JSON: files of users, num_samples and user_data."""

import os
from typing import Any, Mapping, Sequence

from tasks.sources import columns as columns_lib
from tasks.sources import json_stream
from tasks.sources import line_files
from tasks.sources import record_index
from tasks.sources import records
from tasks.sources import jsonl as source_jsonl
from tasks import task

# Of one user, as of one line elsewhere.
_MAX_USER_BYTES = line_files.MAX_LINE_BYTES


def open_files(
    paths: Sequence[str | os.PathLike[str]], *,
    fields: Sequence[records.Field] | None,
    skips: task.Skips) -> record_index.IndexedSource:
  """Opens .json and .json.gz files, together one population.

  A file is an object of `users`, a list of ids, `num_samples`, a list of numbers,
  and `user_data`, an object of user -> field -> list with one item per example. It
  is read once, to be checked and to note where each user lies, with no more than
  one user in memory.

  Args:
    paths: The files. A user must be in one of them only.
    fields: What to read, 'x' and 'y' for instance; None reads all fields of the
      first user, and then every user must have the same.
    skips: What to do about bad users.

  Returns:
    A source. Its clients stand in the order of `user_data`.

  Raises:
    ValueError: If a file is missing, damaged or malformed, or has a bad user that
      is not to be skipped. The message names file, client and field.
  """
  scan = _Scan(fields, skips)
  for path in paths:
    scan.file(path)
  return scan.source()


class _Scan:
  """What is known after the files so far."""

  def __init__(self, fields: Sequence[records.Field] | None, skips: task.Skips):
    self._fields, self._skips = fields, skips
    self._files, self._index = record_index.Files(), record_index.RecordIndex()
    self._observed = None if fields is None else [
        columns_lib.Observed(field) for field in fields]
    self._bad: dict[str, str] = {}

  def file(self, path: str | os.PathLike[str]) -> None:
    """Reads a file."""
    counts: dict[str, int] = {}
    lists: dict[str, list] = {}
    try:
      number = self._files.add(path)
      with line_files.opened(path) as file:
        stream = json_stream.JsonStream(file, _MAX_USER_BYTES)
        for quoted in stream.keys():
          key = source_jsonl.parse_json(quoted)
          stream.expect(b':')
          if key in lists or (key == 'user_data' and counts):
            raise ValueError(f'{key!r} is there twice')
          if key == 'user_data':
            self._users(stream, path, number, counts)
          elif key in ('users', 'num_samples'):
            lists[key] = source_jsonl.parse_json(stream.value()[1])
          else:
            stream.value()  # LEAF's files may have 'hierarchies'.
        stream.expect_end()
      self._check_lists(path, lists, counts)
    except task.BadClientError:
      raise
    except ValueError as error:
      where = '' if os.fspath(path) in str(error) else f'{path}: '
      raise ValueError(f'{where}{error}') from error

  def _users(self, stream: json_stream.JsonStream, path, number: int,
             counts: dict[str, int]) -> None:
    for quoted in stream.keys():
      client = record_index.client_id_of(
          source_jsonl.parse_json(quoted), 'user_data')
      stream.expect(b':')
      offset, content = stream.value()
      if client in counts or client in self._index:
        raise ValueError(f'client {client!r} is there twice')
      try:
        counts[client] = self._examples(content)
      except ValueError as error:
        counts[client] = -1
        self._is_bad(path, client, error)
      offset = self._files.copy(number, content, offset)
      self._index.add(client, number, offset, len(content), 0)

  def _examples(self, content: bytes) -> int:
    """Takes a user's fields into account; the number of examples."""
    found = _parse(content)
    if self._observed is None:
      self._observed = [columns_lib.Observed(records.Field(name=name))
                        for name in found]
    names = [column.source_name for column in self._observed]
    lacking = [column.source_name for column in self._observed
               if column.source_name not in found and not column.optional]
    if lacking:
      raise ValueError(
          f'there is no field {lacking[0]!r}; there are '
          f'{", ".join(map(repr, found)) or "none"}')
    if self._fields is None and len(found) > len(names):
      more = next(name for name in found if name not in names)
      raise ValueError(f'field {more!r} is not in the first user\'s data: name the '
                       'fields to read')
    lengths = {name: len(values) for name, values in found.items() if name in names}
    if len(set(lengths.values())) != 1:
      raise ValueError(f'fields differ in length: {lengths}')
    count = next(iter(lengths.values()))
    if not count:
      raise ValueError('there are no examples')
    for column in self._observed:
      for value in found.get(column.source_name, [None]):
        column.observe(value)
    return count

  def _is_bad(self, path, client: str, error: ValueError) -> None:
    message = f'{record_index.place(path, 0, client)}: {error}'
    self._skips.client(client, task.BadClientError(message))
    self._bad[client] = message

  def _check_lists(self, path, lists: Mapping[str, Any],
                   counts: Mapping[str, int]) -> None:
    """Checks users and num_samples against user_data."""
    users, numbers = lists.get('users'), lists.get('num_samples')
    if not isinstance(users, list) or not counts:
      raise ValueError('must have the lists users and num_samples, and user_data of '
                       'at least one user')
    if not isinstance(numbers, list) or len(numbers) != len(users):
      raise ValueError('num_samples must be a list of one number per user')
    users = [str(user) for user in users]
    for user in (set(users) ^ set(counts)):
      raise ValueError(f'client {user!r} is in users or in user_data, but not in both')
    if len(set(users)) != len(users):
      raise ValueError('users must not name a client twice')
    for user, number in zip(users, numbers):
      if counts[user] not in (-1, number):
        self._is_bad(path, user, ValueError(
            f'num_samples is {number!r}, but there are {counts[user]} examples'))

  def source(self) -> record_index.IndexedSource:
    """The source of all files."""
    self._index.sort()
    path = self._files.path(0)
    if self._observed is None:
      raise ValueError(f'{path} has no client whose data are good')
    try:
      columns = [column.column() for column in self._observed]
    except ValueError as error:
      raise ValueError(f'{path}: {error}') from error

    def parse(content: bytes) -> Mapping[str, list]:
      found = _parse(content)
      count = max(map(len, found.values()), default=0)
      return {column.source_name: found.get(column.source_name, [None] * count)
              for column in columns}

    return record_index.IndexedSource(
        self._files, self._index, columns, parse, bad_clients=self._bad)


def _parse(content: bytes) -> Mapping[str, list]:
  found = source_jsonl.parse_json(content)
  if not isinstance(found, dict):
    raise ValueError(f'must be an object of lists, found {type(found).__name__}')
  for name, values in found.items():
    if not isinstance(values, list):
      raise ValueError(
          f'field {name!r} must be a list of one item per example, found '
          f'{type(values).__name__}')
  return found
