"""A site's own rules: a policy, and a ledger of all runs on its data that it enforces.

The policy is a JSON file of the site's administrator. The ledger is a chain of lines, each
with the digest of the one before. A run is charged as a whole before its first upload.
"""

from collections.abc import Iterator, Mapping
import dataclasses
import datetime
import json
import os
import pathlib
from typing import Any

from tff_pipelines.accounting.events import base, combinators
from tff_pipelines.accounting.guarantees import bounds, observers
from tff_pipelines.common import decimals, files, validate
from tff_pipelines.deployment import agreements, locks, messages
from tff_pipelines.deployment.agreements import Agreement

_KEYS = ('data_set', 'agreement', 'run', 'study', 'program', 'unit', 'event', 'date',
         'before')
_YEAR = datetime.timedelta(days=365)



@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
  """Rules of a site for one data set.

  Attributes:
    data_set: Its name.
    programs: Digests of the programs that may run.
    helpers: Fingerprints of the keys of helpers that are trusted.
    unit: What runs must protect: client, record or person. Epsilons of different units
      can't be added.
    least_cohort: Minimum number of clients of an opened sum, without those that the run
      assumes to collude.
    epsilon, delta: Limit for a unit, over all runs of any 365 days (UTC), against either
      server.
    seeded: Whether runs may be seeded, whose noise is predictable: for tests.
  """

  data_set: str
  programs: tuple[str, ...]
  helpers: tuple[str, ...]
  unit: str
  least_cohort: int
  epsilon: float
  delta: float
  seeded: bool = False

  def __post_init__(self):
    validate.positive(epsilon=self.epsilon)
    validate.open_unit_interval(delta=self.delta)
    validate.integer(least_cohort=self.least_cohort, low=1)
    validate.one_of(agreements.UNITS, unit=self.unit)

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
    before, entries = '', []
    *lines, rest = self._path.read_bytes().split(b'\n')
    for number, line in enumerate([*lines, rest], start=1):
      try:
        entry = json.loads(line)
      except ValueError:
        entry = None
      if not isinstance(entry, dict) or tuple(sorted(entry)) != tuple(sorted(_KEYS)) or (
          entry['before'] != before or messages.canonical(entry) != line):
        if number > len(lines):
          # A last line that was not complete: nothing was sent for it.
          break
        raise ValueError(f'{self._path} is damaged or was edited: line {number}')
      before = messages.digest(line)
      entries.append(entry)
    return entries

  def epsilon(self, policy: Policy, also: Mapping[str, Any] | None = None) -> float:
    """Epsilon of the runs on the policy's data set in 365 days, and of one more event."""
    # A run counts once, for 365 days after the last day on which it was answered.
    charged = {entry['agreement']: entry['event'] for entry in self.entries()
               if entry['data_set'] == policy.data_set and _counts(entry)}
    parts = [base.from_json(event)
             for event in (*charged.values(), *[also] * (also is not None))]
    if not parts:
      return 0.0
    event = combinators.Composed(events=tuple(parts))
    # A server may choose cohorts as it likes; of silos another one may run it.
    return observers.bound(
        observers.View(event), policy.delta, observers.Method(),
        bounds.PARTICIPANT if event.adjacency in base.OF_RECORDS and event.has_shares()
        else bounds.SERVER_ANY_COHORTS).epsilon

  def allow(self, policy: Policy, agreement: Agreement) -> None:
    """Charges a run, unless it was on this day; ValueError if the policy forbids it."""
    with locks.exclusive(self._path):
      self.check(policy, agreement)
      entries = self.entries()
      if any((entry['agreement'], entry['date']) == (
          agreement.digest, _today().isoformat()) for entry in entries):
        return
      lines = [messages.canonical(entry) + b'\n' for entry in entries]
      line = messages.canonical(dict(
          data_set=policy.data_set, agreement=agreement.digest, run=agreement.run,
          study=agreement.study, program=agreement.program, unit=agreement.unit,
          event=dict(agreement.event), date=_today().isoformat(),
          before=messages.digest(lines[-1][:-1]) if lines else ''))
      content = self._path.read_bytes() if lines else b''
      if lines and not content.endswith(b'\n') and b''.join(lines) == content + b'\n':
        line = b'\n' + line
      elif self._path.exists():  # Less a line whose charge was interrupted.
        os.truncate(self._path, len(b''.join(lines)))
      locks.append(self._path, line + b'\n')

  def check(self, policy: Policy, agreement: Agreement) -> bool:
    """Whether a run was charged; ValueError, for the administrator, if it is forbidden."""
    if problems := self.problems(policy, agreement):
      raise ValueError('; '.join(problems))
    return any(entry['agreement'] == agreement.digest for entry in self.entries())

  def problems(self, policy: Policy, agreement: Agreement) -> list[str]:
    """All reasons why the policy forbids a run, for the administrator."""
    return list(self._problems(policy, agreement))

  def _problems(self, policy: Policy, agreement: Agreement) -> Iterator[str]:
    entries = self.entries()
    charged = [entry for entry in entries if entry['agreement'] == agreement.digest]
    if any(entry['run'] == agreement.run for entry in entries) and not charged:
      yield (f'run {agreement.run!r} was charged under other terms: a changed run needs a '
             'new name')
    if agreement.program not in policy.programs:
      yield (f'program {agreement.program[:16]} is not among those that the policy allows')
    if (helper := agreement.roster.helper.fingerprint) not in policy.helpers:
      yield f'helper {helper[:16]} is not among those that the policy trusts'
    if agreement.unit != policy.unit:
      yield f'the run protects a {agreement.unit}, and the policy a {policy.unit}'
    others = {entry['unit'] for entry in entries
              if entry['data_set'] == policy.data_set} - {policy.unit}
    for unit in sorted(others):
      yield (f'{policy.data_set} has runs that protect a {unit}, whose epsilon can\'t be '
             f'added to that of a {policy.unit}')
    for entry in charged:
      if entry['data_set'] != policy.data_set:
        yield (f'run {agreement.run!r} was charged to {entry["data_set"]}, and the policy '
               f'is of {policy.data_set}')
    if agreement.seed is not None and not policy.seeded:
      yield 'the run is seeded: its noise is predictable'
    colluders = agreement.params.assumed_colluders
    least = agreement.least(agreement.cohort_size or 1) - colluders
    if least < policy.least_cohort:
      yield (f'sums of {least} clients, besides {colluders} that may collude, may be '
             f'opened, and the policy asks for {policy.least_cohort}')
    if others or any(map(_counts, charged)):
      return
    total = self.epsilon(policy, agreement.event)
    if not total <= policy.epsilon:
      spent = self.epsilon(policy)
      yield (
          f'study {agreement.study!r} would bring epsilon of {policy.data_set} in 365 days '
          f'from {decimals.epsilon(spent)} to {decimals.epsilon(total)}, above the limit '
          f'{policy.epsilon:g}, at the policy\'s delta {policy.delta:g}')


def _counts(entry: Mapping[str, Any]) -> bool:
  return entry['date'] > (_today() - _YEAR).isoformat()


def _today() -> datetime.date:
  return datetime.datetime.now(datetime.timezone.utc).date()
