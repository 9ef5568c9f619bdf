"""The privacy ledger: an append-only file with one JSON line a release.

A round is written twice: its line is formed (`next_line`), committed together with the
model's checkpoint, and then appended (`append_line`). After a crash `reconcile`
completes the file. A release is thus never forgotten, and never counted twice.

Every line holds the hash of the line before it and its own; a missing, edited or
reordered line breaks the chain. Lines cut off at the end leave an intact chain: only a
known count, as kept in the checkpoint, shows them. The chain has no key: it shows
accidents and careless edits, not the forgery of the whole file.

A ledger is the operator's: outcomes and times reveal dropouts and cohorts.

Every line holds how often the run had been started. An interrupted run may have
released the round of its next line before: `seen_event` counts one repetition of that
round for each start that its line counts and the line before does not.
"""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
import datetime
import fcntl
import functools
import hashlib
import itertools
import json
import os
import pathlib
from typing import Any

from tff_pipelines.accounting.events import base, combinators, kinds as events_lib
from tff_pipelines.common import files, validate

FORMAT = 'tff_pipelines privacy ledger'
VERSION = 1
# A round that was charged but not run, because the run was stopped: the decision may
# follow from what was released, so all planned rounds count.
UNUSED = 'unused'
OUTCOMES = ('released', 'suppressed', UNUSED)

_HEADER_KEYS = {'format', 'version', 'time', 'population', 'delta', 'adjacency',
                'trust_model', 'warnings', 'seeded', 'deviation_per_round',
                'certificates', 'configuration', 'previous', 'hash'}
_LINE_KEYS = {'round', 'event', 'outcome', 'starts', 'time', 'configuration',
              'previous', 'hash'}
_NO_HASH = '0' * 64
# Characters of a problem that are shown: a damaged line may be long.
_SHOWN = 500
# Errors that values of any kind and depth may raise where others are expected.
_WRONG = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError,
          RecursionError)


def unused(lines: Iterable[Mapping[str, Any]]) -> int:
  """Number of these lines that are of rounds that were not run."""
  return sum(line['outcome'] == UNUSED for line in lines)


def _canonical(record: dict[str, Any]) -> str:
  return json.dumps(record, sort_keys=True, separators=(',', ':'), allow_nan=False)


def _sealed(record: dict[str, Any]) -> str:
  """The line of a record, with its own hash added."""
  digest = hashlib.sha256(_canonical(record).encode()).hexdigest()
  return _canonical({**record, 'hash': digest})


def _now() -> str:
  """UTC, ISO 8601."""
  return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds')


@functools.lru_cache(maxsize=1024)
def _event(text: str) -> base.Event:
  """An event by its JSON: it is checked once, however often it is there."""
  return events_lib.from_json(json.loads(text))


def _record(line: str, what: str, check: Callable[[dict[str, Any]], None]
            ) -> dict[str, Any]:
  """The record of one line that passes a check, and whose own hash holds.

  Raises ValueError if there is none; the message, of bounded length, names the line.
  """
  try:
    record = json.loads(line)
  except (ValueError, RecursionError) as error:
    raise ValueError(f'{what} must be JSON: {error}') from None
  if not isinstance(record, dict) or 'hash' not in record:
    raise ValueError(f'{what} must be an object with a hash')
  try:
    sealed = _sealed({key: value for key, value in record.items() if key != 'hash'})
  except (ValueError, RecursionError):  # NaN, infinite, or too deep.
    sealed = None
  if sealed != line:
    raise ValueError(f'{what} must match its own hash: it was edited')
  try:
    check(record)
  except _WRONG as error:
    raise ValueError(f'{what}: {error}'[:_SHOWN]) from None
  return record


def _check_texts(record: Mapping[str, Any], *names: str) -> None:
  for name in names:
    if not isinstance(record[name], str) or not record[name]:
      raise ValueError(f'{name} must be a non-empty text, found {record[name]!r}')


def _check_round(record: Mapping[str, Any]) -> None:
  """Raises an error of `_WRONG` if a value of a line after the header is wrong."""
  if set(record) != _LINE_KEYS:
    raise ValueError(f'it must have the keys {sorted(_LINE_KEYS)}')
  _check_texts(record, 'time', 'configuration')
  _event(_canonical(record['event']))
  validate.one_of(OUTCOMES, outcome=record['outcome'])
  validate.integer(starts=record['starts'], low=1)


def _check_header(header: Mapping[str, Any]) -> None:
  """Raises an error of `_WRONG` if a value of a header is wrong."""
  version, is_header = header.get('version'), header.get('format') == FORMAT
  if is_header and version != VERSION:
    raise ValueError(f'it must have format version {VERSION}, found {version!r}')
  if not is_header or set(header) | {'hash'} != _HEADER_KEYS:
    raise ValueError(f'it must be a header of {FORMAT!r}')
  for name, check in (
      ('population', functools.partial(validate.integer, low=1)),
      ('delta', validate.open_unit_interval),
      ('adjacency', functools.partial(validate.one_of, tuple(base.ADJACENCY_IN_WORDS))),
      ('deviation_per_round', validate.unit_interval)):
    if header[name] is not None:
      check(**{name: header[name]})
  _check_texts(header, 'time', *(
      name for name in ('trust_model', 'configuration') if header[name] is not None))
  for name, kind in (('warnings', str), ('certificates', Mapping)):
    value = header[name]
    if not isinstance(value, list) or not all(isinstance(one, kind) for one in value):
      raise ValueError(f'{name} must be a list, found {value!r}')
  if not isinstance(header['seeded'], bool):
    raise ValueError(f'seeded must be true or false, found {header["seeded"]!r}')


def _numbered(number: int, line: str) -> dict[str, Any]:
  """`_record` of a line of a file, counted from 1."""
  return _record(line, f'line {number}', _check_header if number == 1 else _check_round)


class Ledger:
  """A ledger file. Opening one reads nothing and writes nothing.

  Attributes:
    path: Path of the file.
  """

  def __init__(self, path: str | os.PathLike):
    self.path = pathlib.Path(path)
    # (size of the file, number of rounds, hash of the last line), or None.
    self._head: tuple[int, int, str] | None = None

  @classmethod
  def create(cls, path: str | os.PathLike, *, population: int | None = None,
             delta: float | None = None, adjacency: str | None = None,
             trust_model: str | None = None, warnings: Sequence[str] = (),
             seeded: bool = False, deviation_per_round: float | None = None,
             certificates: Sequence[Mapping[str, float]] = (),
             configuration_hash: str | None = None) -> 'Ledger':
    """Starts a new file with its header line.

    Args:
      path: Path of a file that does not exist; its folder does.
      population: Number of clients, for the default delta.
      delta: That the run was planned for, strictly between 0 and 1.
      adjacency: Adjacency of all releases.
      trust_model: Who is trusted with what, in words.
      warnings: That belong to every epsilon computed from this file.
      seeded: Whether randomness follows from a seed: then nothing is guaranteed.
      deviation_per_round: Total variation distance, in [0, 1], between a round's
        release and that of the ideal distributions in its event; None if no bound is
        known.
      certificates: Certificates by which Skellam noise is accounted as Gaussian noise
        for the planned rounds (`sum_events.GaussianOfSkellam.certificate`).
      configuration_hash: Hash of the configuration of the run that begins.

    Raises FileExistsError if there is a file already; ValueError if an argument is out
    of range.
    """
    header = {'format': FORMAT, 'version': VERSION, 'time': _now(),
              'population': population, 'delta': delta, 'adjacency': adjacency,
              'trust_model': trust_model, 'warnings': list(warnings),
              'seeded': bool(seeded), 'deviation_per_round': deviation_per_round,
              'certificates': list(map(dict, certificates)),
              'configuration': configuration_hash, 'previous': _NO_HASH}
    _check_header(header)
    ledger = cls(path)
    # Complete or absent: a header is never seen in part.
    partial = ledger.path.with_name(f'{ledger.path.name}.{os.getpid()}.new')
    partial.unlink(missing_ok=True)
    try:
      files.append(partial, f'{_sealed(header)}\n'.encode(), durable=True)
      os.link(partial, ledger.path)
    finally:
      partial.unlink(missing_ok=True)
    files.sync_folder(ledger.path.parent)
    return ledger

  def _split(self) -> tuple[list[str], str]:
    """(complete lines, what follows the last newline)."""
    text = self.path.read_bytes().decode('utf-8', errors='replace')
    *complete, torn = text.split('\n')
    return complete, torn

  def _intact(self) -> list[str]:
    """All lines; ValueError unless the chain holds."""
    if problems := self.verify():
      raise ValueError(f'{self.path} must hold an intact chain: {problems[0]}')
    return self._split()[0]

  def header(self) -> dict[str, Any]:
    """The first line; ValueError unless it is intact."""
    return self._records(1)[0]

  def _records(self, most: int | None = None) -> list[dict[str, Any]]:
    """The header and the lines after it, up to so many; ValueError if damaged."""
    complete, _ = self._split()
    if not complete:
      raise ValueError(f'{self.path} must begin with a header line')
    try:
      return list(itertools.starmap(_numbered, enumerate(complete[:most], start=1)))
    except ValueError as error:
      raise ValueError(f'{self.path} {error}') from None

  def _at_head(self) -> tuple[int, int, str]:
    """Size, rounds and last hash of an intact file; ValueError if it is not."""
    size = self.path.stat().st_size
    if self._head is None or self._head[0] != size:
      lines = self._intact()
      self._head = (size, len(lines) - 1, json.loads(lines[-1])['hash'])
    return self._head

  def next_line(self, event: base.Event, *, outcome: str,
                configuration_hash: str, starts: int = 1) -> str:
    """Forms the line of the next release; writes nothing.

    Args:
      event: The release as planned (expected cohort, guaranteed honest fraction),
        never with the cohort that reported.
      outcome: 'released' or 'suppressed', which must look the same to an outsider, and
        costs the same; or 'unused', of a run that was stopped, at the same cost.
      configuration_hash: Hash of the run's configuration.
      starts: How many times the run has been started so far.

    Returns one line without a newline.
    """
    base.check_event(event=event)
    _, count, previous = self._at_head()
    record = {'round': count + 1, 'event': event.to_json(), 'outcome': outcome,
              'starts': starts, 'time': _now(), 'configuration': configuration_hash,
              'previous': previous}
    _check_round({**record, 'hash': None})
    return _sealed(record)

  def append_line(self, line: str) -> None:
    """Writes a line that `next_line` formed, durably.

    Raises ValueError unless it continues the chain of the file as it now is.
    """
    record = _record(line, 'line', _check_round)
    with open(self.path, 'rb') as file:
      # Another process would fork the chain: one writer at a time.
      fcntl.flock(file, fcntl.LOCK_EX)
      _, count, previous = self._at_head()
      if record['previous'] != previous or record['round'] != count + 1:
        raise ValueError(f'line must continue {self.path} as round {count + 1}, found '
                         f'round {record["round"]!r}')
      files.append(self.path, f'{line}\n'.encode(), durable=True)
      self._head = (file.seek(0, os.SEEK_END), count + 1, record['hash'])

  def configuration_and_starts(self) -> tuple[str | None, int]:
    """Hash of the run's configuration, and number of its starts, by the complete lines.

    Returns the configuration hash of the last line, and the maximum number of starts of
    all lines, 0 if there is none after the header.

    Raises ValueError if the file is missing, or a line is damaged; `verify` checks the
    chain.
    """
    if not self.path.exists():
      raise ValueError(f'{self.path} is missing: what was released is not known')
    records = self._records()
    return records[-1]['configuration'], max(
        (record['starts'] for record in records[1:]), default=0)

  def drop_torn(self) -> None:
    """Removes a last line that was not written to its end.

    For callers who append a line before the release that it stands for, and release
    only when `append_line` has returned: what a torn line announces did not happen.
    """
    complete, torn = self._split()
    if torn:
      self._truncate(complete)

  def _truncate(self, complete: Sequence[str]) -> None:
    """Cuts the file off after these lines, its first."""
    with open(self.path, 'r+b') as file:
      fcntl.flock(file, fcntl.LOCK_EX)
      file.truncate(sum(len(text.encode()) + 1 for text in complete))
      file.flush()
      os.fsync(file.fileno())
    self._head = None

  def reconcile(self, line: str) -> None:
    """Brings the file up to the last line that a checkpoint committed.

    Nothing happens if the file has the line. If it ends just before it, or in a torn
    part of it, the line is written.

    Raises ValueError if none of these holds: the file is not that of the checkpoint.
    """
    record = _record(line, 'line', _check_round)
    complete, torn = self._split()
    if torn:
      if not line.startswith(torn):
        raise ValueError(f'{self.path} must end in a part of the committed line')
      self._truncate(complete)
    self._head = None
    _, count, _ = self._at_head()
    if record['round'] <= count:
      if complete[record['round']] != line:
        raise ValueError(
            f'{self.path} must hold the committed line as round {record["round"]}')
      return
    self.append_line(line)

  def lines(self) -> list[dict[str, Any]]:
    """The records of all rounds. Raises ValueError if the chain is broken."""
    return [json.loads(line) for line in self._intact()[1:]]

  def verify(self, expected_count: int | None = None) -> list[str]:
    """Describes the problems of the file, with line numbers; empty if it has none.

    Args:
      expected_count: How many rounds there must be, if known from elsewhere.
    """
    complete, torn = self._split()
    problems = []
    if torn:
      problems.append(f'line {len(complete) + 1} is torn: it has no end')
    if not complete:
      return problems + ['line 1 must be a header, found none']
    previous = _NO_HASH
    for number, text in enumerate(complete, start=1):
      try:
        record = _numbered(number, text)
      except ValueError as error:
        problems.append(str(error))
        previous = None
        continue
      if number > 1 and record['round'] != number - 1:
        problems.append(f'line {number} must be round {number - 1}, found round '
                        f'{record["round"]!r:.50}')
      if previous is not None and record['previous'] != previous:
        problems.append(f'line {number} does not follow the line before it: a line is '
                        'missing, edited or out of order')
      previous = record['hash']
    count = len(complete) - 1
    if expected_count is not None and count != expected_count:
      problems.append(f'the file must hold {expected_count} rounds, found {count}')
    return problems

  def event(self) -> base.Event:
    """The event of everything that was released, suppressed rounds included.

    Raises ValueError if the chain is broken or nothing has been released yet.
    """
    return self._composed(with_repeats=False)

  def seen_event(self) -> base.Event:
    """The event of an observer who sees every attempt at a round.

    It is everything that was released and, for every line, its own event's
    `repeated` as often as its round may have been repeated; errors as of `event`.
    """
    return self._composed(with_repeats=True)

  @property
  def repeats(self) -> int:
    """How many rounds may have been repeated; ValueError if the chain is broken."""
    return sum(count for _, count in self._lines_with_repeats())

  def _lines_with_repeats(self) -> list[tuple[base.Event, int]]:
    """Every line's event, and how often its round may have been repeated."""
    lines = self.lines()
    starts = itertools.pairwise([1, *(line['starts'] for line in lines)])
    return [(_event(_canonical(line['event'])), max(0, after - before))
            for line, (before, after) in zip(lines, starts)]

  def _composed(self, *, with_repeats: bool) -> base.Event:
    counts = collections.Counter()
    for event, repeats in self._lines_with_repeats():
      counts[event] += 1
      if with_repeats and repeats:
        counts[event.repeated()] += repeats
    if not counts:
      raise ValueError(f'{self.path} must hold at least one round, found none')
    try:
      return combinators.composed(counts)
    except ValueError as error:
      raise ValueError(f'{self.path}: {error}') from None
