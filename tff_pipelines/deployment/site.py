"""A site's own rules: a policy, and a ledger of all runs on its data that it enforces.

The policy is a JSON file of the site's administrator. The ledger is a chain of lines, each
with the digest of the one before. A run is charged as a whole before its first upload.
"""

from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import datetime
import fcntl
import json
import os
import pathlib
from typing import Any

from tff_pipelines.accounting.events import base, combinators
from tff_pipelines.accounting.guarantees import bounds, observers
from tff_pipelines.common import decimals, files, validate
from tff_pipelines.deployment import messages
from tff_pipelines.deployment.agreements import Agreement

_KEYS = ('data_set', 'agreement', 'run', 'study', 'program', 'event', 'date', 'before')

UNITS = ('client', 'record', 'person')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
  """Rules of a site for one data set.

  Attributes:
    data_set: Its name.
    programs: Digests of the programs that may run.
    helpers: Fingerprints of the keys of helpers that are trusted.
    units: Units that runs may protect: client, record or person.
    least_cohort: Minimum number of clients of an opened sum.
    epsilon, delta: Limit for a record, or whatever is protected, over all runs of a year
      (UTC), against either server.
    seeded: Whether runs may be seeded, whose noise is predictable: for tests.
  """

  data_set: str
  programs: tuple[str, ...]
  helpers: tuple[str, ...]
  units: tuple[str, ...]
  least_cohort: int
  epsilon: float
  delta: float
  seeded: bool = False

  def __post_init__(self):
    validate.positive(epsilon=self.epsilon)
    validate.open_unit_interval(delta=self.delta)
    validate.integer(least_cohort=self.least_cohort, low=1)
    for unit in self.units:
      validate.one_of(UNITS, units=unit)

  @classmethod
  def read(cls, path: pathlib.Path) -> 'Policy':
    """Reads a policy; ValueError if a key is missing, unknown or out of range."""
    value = files.read_json(path)
    names = [field.name for field in dataclasses.fields(cls)]
    if value.keys() != set(names):
      raise ValueError(f'{path} must have the keys {", ".join(names)}, found '
                       f'{", ".join(value)}')
    return cls(**{name: tuple(x) if isinstance(x, list) else x
                  for name, x in value.items()})


class SiteLedger:
  """The runs that a site takes part in, all data sets together."""

  def __init__(self, path: pathlib.Path):
    self._path = path

  def entries(self) -> list[dict[str, Any]]:
    """The entries; ValueError if the chain is broken, and all runs are refused then."""
    if not self._path.exists():
      return []
    content, before, entries = self._path.read_bytes(), '', []
    # A last line without an end was not complete, so that nothing was sent for it.
    *lines, _ = content.split(b'\n')
    for number, line in enumerate(lines, start=1):
      try:
        entry = json.loads(line)
      except ValueError:
        entry = None
      if not isinstance(entry, dict) or tuple(sorted(entry)) != tuple(sorted(_KEYS)) or (
          entry['before'] != before or messages.canonical(entry) != line):
        raise ValueError(f'{self._path} is damaged or was edited: line {number}')
      before = messages.digest(line)
      entries.append(entry)
    return entries

  def epsilon(self, policy: Policy, year: int,
              also: Mapping[str, Any] | None = None) -> float:
    """Epsilon of all runs on the policy's data set in a year, and of one more event."""
    charged = [entry['event'] for entry in self.entries()
               if entry['data_set'] == policy.data_set
               and entry['date'][:4] == f'{year:04}']
    parts = [base.from_json(event) for event in (*charged, *[also] * (also is not None))]
    if not parts:
      return 0.0
    # A server may choose cohorts as it likes.
    return observers.bound(
        observers.View(combinators.Composed(events=tuple(parts))), policy.delta,
        observers.Method(), bounds.SERVER_ANY_COHORTS).epsilon

  def allow(self, policy: Policy, agreement: Agreement) -> None:
    """Charges a run, unless it was; ValueError if the policy forbids it."""
    with self._locked():
      if self.check(policy, agreement):
        return
      if self._path.exists():  # Less a line whose charge was interrupted.
        os.truncate(self._path, self._path.read_bytes().rfind(b'\n') + 1)
      line = messages.canonical(dict(
          data_set=policy.data_set, agreement=agreement.digest, run=agreement.run,
          study=agreement.study, program=agreement.program, event=dict(agreement.event),
          date=_today().isoformat(), before=self._last(self.entries())))
      files.append(self._path, line + b'\n', durable=True)

  def check(self, policy: Policy, agreement: Agreement) -> bool:
    """Whether a run was charged; ValueError, for the administrator, if it is forbidden."""
    entries = self.entries()
    if any(entry['agreement'] == agreement.digest for entry in entries):
      return True
    if any(entry['run'] == agreement.run for entry in entries):
      raise ValueError(f'run {agreement.run!r} was charged under other terms: a changed '
                       'run needs a new name')
    if agreement.program not in policy.programs:
      raise ValueError(f'program {agreement.program[:16]} is not among those that the '
                       'policy allows')
    if (helper := agreement.roster.helper.fingerprint) not in policy.helpers:
      raise ValueError(f'helper {helper[:16]} is not among those that the policy trusts')
    if agreement.unit not in policy.units:
      raise ValueError(f'the run protects a {agreement.unit}, and the policy allows '
                       f'{", ".join(policy.units) or "nothing"}')
    if agreement.seed is not None and not policy.seeded:
      raise ValueError('the run is seeded: its noise is predictable')
    least = agreement.least(agreement.cohort_size or 1)
    if least < policy.least_cohort:
      raise ValueError(f'sums of {least} clients may be opened, and the policy asks for '
                       f'{policy.least_cohort}')
    year = _today().year
    total = self.epsilon(policy, year, agreement.event)
    if not total <= policy.epsilon:
      spent = self.epsilon(policy, year)
      raise ValueError(
          f'study {agreement.study!r} would bring epsilon of {policy.data_set} in {year} '
          f'from {decimals.epsilon(spent)} to {decimals.epsilon(total)}, above the limit '
          f'{policy.epsilon:g}')
    return False

  def _last(self, entries: list[dict[str, Any]]) -> str:
    return messages.digest(messages.canonical(entries[-1])) if entries else ''

  @contextlib.contextmanager
  def _locked(self) -> Iterator[None]:
    """Two runs of a site charge one after the other."""
    handle = files.opener(self._path.with_suffix('.lock'), os.O_RDWR | os.O_CREAT)
    try:
      fcntl.flock(handle, fcntl.LOCK_EX)
      yield
    finally:
      os.close(handle)


def _today() -> datetime.date:
  return datetime.datetime.now(datetime.timezone.utc).date()
