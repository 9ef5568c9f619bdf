"""The interface of privacy events, and their round trip through JSON.

An event describes one release, or several, fully: an accountant reads events
and never the code that releases. Events are frozen, keyword-only and validated
when constructed.

A kind of event answers everything that is asked of it. An answer is inherited only
where it is proved for every kind that may inherit it: from base classes, which are
declared `abstract=True`, and never from another kind. Answers such as `not_pure`
state that nothing better is proved; a kind writes them down like any other.
"""

import abc
import dataclasses
import inspect
from typing import Annotated, Any, ClassVar, dataclass_transform, NamedTuple

from dp_accounting import dp_event
import numpy as np

from tff_pipelines.accounting.divergences import pairs
from tff_pipelines.common import caveats as caveats_lib, validate

ACCOUNTANTS = ('auto', 'rdp', 'pld')
AMPLIFICATIONS = ('tight', 'generic', 'none')

# Relations of neighbouring inputs.
ANY = 'any'
ZERO_OUT = 'zero-out'
REPLACE_ONE = 'replace-one'
INSTANCE = 'instance'
RECORD = 'record'
RECORD_ZERO_OUT = 'record-zero-out'
LOCAL = 'local'

ADJACENCY_IN_WORDS = {
    ANY: 'any two inputs',
    ZERO_OUT: 'one client\'s contribution is replaced by zero; it still '
              'participates and still adds its noise share',
    REPLACE_ONE: 'one client\'s contribution is replaced by any other',
    INSTANCE: 'one record of one agent is added, removed or replaced',
    RECORD_ZERO_OUT: 'one record (or protected person) is added or removed',
    RECORD: 'one record is replaced by any other; the number of records is public',
    LOCAL: 'any two inputs of one client',
}

# Those where neighbouring inputs differ in a record, not in a client.
OF_RECORDS = (INSTANCE, RECORD, RECORD_ZERO_OUT)

Factor = pairs.Factor
Factors = tuple[Factor, ...]
# Independent events, and how often each is released.
Counted = tuple[tuple['Event', int], ...]


class Participants(NamedTuple):
  """Participants who pool what they know, in all rounds of the client.

  Attributes:
    colluders: k >= 1, their number.
    shares: Number of shares of the noise that are missing or theirs, >= k; k where no
      share is missing.
    population: Number of clients; None if unknown.
    rounds: Number of rounds of the run, or more: a limit on participations is reached
      in them.
  """

  colluders: int = 1
  shares: float = 1.0
  population: int | None = None
  rounds: int = 1


_KINDS: dict[str, type['Event']] = {}


@dataclass_transform(kw_only_default=True)
class Event(abc.ABC):
  """A release, as accountants see it.

  Every subclass is a frozen, keyword-only dataclass, whose fields are checked. Unless
  it is `abstract`, it is a kind, and its name is the kind in ledgers.

  Class attributes:
    source: Publication of the bound, with the theorem's number.

  Raises TypeError on the definition of a kind that leaves something unsaid or misstates
  it.
  """

  source: ClassVar[str]

  def __init_subclass__(cls, *, abstract: bool = False, **kwargs):
    super().__init_subclass__(**kwargs)
    validate.check_fields_first(cls)
    dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    if abstract:
      return
    for problem in _problems(cls):
      raise TypeError(f'event kind {cls.__name__} {problem}')
    _KINDS[cls.__name__] = cls

  def __post_init__(self):
    validate.fields(self)

  @property
  @abc.abstractmethod
  def adjacency(self) -> str:
    """One of the keys of ADJACENCY_IN_WORDS."""

  @abc.abstractmethod
  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    """Renyi divergence in both directions at the orders 2..max_order."""

  @abc.abstractmethod
  def failure_probability(self) -> float:
    """The probability of outcomes that `curve` leaves out, which is added to delta."""

  @abc.abstractmethod
  def pure_epsilon(self, amplification: str) -> float:
    """Epsilon at delta = 0, the divergence of infinite order; infinite if unknown."""

  @abc.abstractmethod
  def factors(self, amplification: str) -> Factors | None:
    """The pairs whose product dominates the release, or None if not known."""

  @abc.abstractmethod
  def without_sampling(self) -> 'Event':
    """The release from cohorts that whoever knows them may have chosen."""

  @abc.abstractmethod
  def known(self, count: int, participants: Participants | None) -> Counted:
    """The releases that stand for `count` >= 1 of these where cohorts are known.

    Cohorts are drawn by the rule, independently of all that is released, so the number
    of rounds of a client has the same distribution for both inputs.

    Args:
      count: Number of releases in a row.
      participants: Who also knows shares of the noise; None for none.

    Returns independent events, and how often each is released; nothing is to be
    amplified.
    """

  @abc.abstractmethod
  def counted(self, count: int, amplification: str) -> Counted:
    """The releases that stand for `count` >= 1 of these: those with one client.

    Independent events, and how often each is there; they are not counted again.
    """

  @abc.abstractmethod
  def repeated(self) -> 'Event':
    """The event of a release that is repeated, with fresh noise and a fresh sample."""

  @abc.abstractmethod
  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    """The sentences that a reader of the guarantee must know."""

  @abc.abstractmethod
  def honest_fraction(self) -> float | None:
    """The fraction of clients' shares of the noise of a sum that is counted on.

    Returns:
      In (0, 1], the smallest of all sums; None where clients add no such shares.
    """

  @abc.abstractmethod
  def minimum_cohort(self) -> float | None:
    """The minimum cohort of the release; None if one may be of one, or is unknown."""

  @abc.abstractmethod
  def seen(self, colluders: float, cohort: float | None) -> 'Event':
    """The release as seen by participants, who subtract what they added themselves.

    It is to be accounted without amplification, and is `NoPrivacy` where no finite
    number is proved.

    Args:
      colluders: k >= 1 participants who pool what they know; 0 for observers who add
        nothing: for them all the noise is there.
      cohort: Minimum cohort of the sample that the release is from; None for its own.
    """

  @abc.abstractmethod
  def is_known_in_part(self) -> bool:
    """Whether a participant may know a part of what hides the others."""

  def seen_by_participants(self, colluders: float = 1.0) -> 'Event':
    """The release as seen by k = `colluders` >= 1 participants who pool what they know.

    Of the noise, of variance v/h in all (v counted on, h the honest fraction), they
    leave (v/h)(1 - k/m) in a cohort of m. Nothing is amplified. See
    docs/participation.md.
    """
    validate.finite(colluders=colluders)
    if colluders < 1:
      raise ValueError(f'colluders must be at least 1, found {colluders!r}')
    return self.seen(colluders, None) if self.is_known_in_part() else self

  def seen_by_observers(self) -> 'Event':
    """The release as seen by those who add no share of the noise: all v/h is there."""
    return self.seen(0, None) if self.is_known_in_part() else self

  def has_shares(self) -> bool:
    """Whether clients add shares of the noise of a sum in the event."""
    return self.honest_fraction() is not None

  @abc.abstractmethod
  def scaled(self, clients: int) -> 'Event | None':
    """The release between inputs that differ in so many clients, all of them in it.

    Returns None if it is not known, or if the release is one of sampled clients.
    """

  @abc.abstractmethod
  def group(self, clients: int, known: bool) -> 'Event | None':
    """The release between inputs that differ in up to so many clients.

    Args:
      clients: g >= 2.
      known: Whether only `without_sampling` of the result is to be accounted.

    Returns:
      None if it is not known: from neighbour to neighbour the guarantee still holds.
    """

  def group_of_several(self, count: int, clients: int,
                       known: bool) -> 'tuple[Event, int] | None':
    """`count` of these releases in a row: one of them as in `group`, and how many."""
    release = self.group(clients, known)
    return None if release is None else (release, count)

  def may_be_chained(self, known: bool) -> bool:
    """Whether a person may cost less from neighbour to neighbour than by `group`."""
    return False

  def is_additive(self) -> bool:
    """Whether k releases with one client are proved to cost at most one with k."""
    return False

  def keeps_closed(self) -> bool:
    """Whether it is proved that the sum of a suppressed round is opened to no one."""
    return False

  def is_ordered(self) -> bool:
    """Whether all rounds follow one order of the clients: they have the same event."""
    return False

  def is_secret(self) -> bool:
    """Whether nobody learns what is sampled but who holds it: it is amplified for all."""
    return False

  def rows(self, column: tuple[int, ...]) -> 'Event':
    """Such sums, each with noise of its own, in which a client has these weights > 0."""
    raise ValueError(f'event {type(self).__name__} has no rows of weighted sums')

  def to_dp_accounting(self) -> dp_event.DpEvent:
    """The same release as an event of dp_accounting, for its accountants.

    They are to be asked about the same neighbours: ADD_OR_REMOVE_ONE where adjacency
    is zero-out (a removed client), REPLACE_ONE where it is replace-one. Where it is
    local, the event has the distance of any two inputs already. Raises
    NotImplementedError if dp_accounting has no event that says the same.
    """
    raise NotImplementedError(
        f'event {type(self).__name__} has no equivalent in dp_accounting')

  def skellam_coordinates(self) -> int:
    """Number of integers with noise that `as_gaussian` may change."""
    return 0

  def as_gaussian(self, distance: float) -> 'Event':
    """The release with Gaussian noise in place of integer noise, as far as possible.

    This release is a post-processing of the result up to a total variation distance
    of `skellam_coordinates` times the given one. So its delta at any epsilon is at
    most that of the result, in the same direction, plus 1 + e^epsilon times that
    (`skellam_as_gaussian`). `distance` in (0, 1) is that of one integer at most.

    Returns the event itself where it has no such noise, or no certificate exists.
    """
    return self

  def replace_one(self) -> 'Event':
    """The same release between inputs that differ by a replaced client.

    Raises ValueError if there is none: sampling clients does not apply to this release.
    """
    raise ValueError(f'event {type(self).__name__} cannot be amplified by sampling')

  def to_json(self) -> dict[str, Any]:
    """A dictionary of JSON values; `from_json` gives an equal event."""
    return {'kind': type(self).__name__, **{
        field.name: _plain(getattr(self, field.name))
        for field in dataclasses.fields(self)}}


def check_event(**arguments: Any) -> None:
  """Raises ValueError unless every argument is an Event."""
  for name, value in arguments.items():
    if not isinstance(value, Event):
      raise ValueError(f'{name} must be an event, found {value!r}')


def check_events(**arguments: Any) -> None:
  """Raises ValueError unless every argument is a tuple of Events, at least one."""
  for name, events in arguments.items():
    if not isinstance(events, tuple) or not events:
      raise ValueError(f'{name} must be a non-empty tuple, found {events!r}')
    check_event(**{f'{name}[{i}]': event for i, event in enumerate(events)})


# Types of fields that are an event, or several.
Inner = Annotated[Event, check_event]
Several = Annotated[tuple[Event, ...], check_events]


def seen_by(event: Event, participants: Participants | None) -> Event:
  """An event as `participants`, if any, see it."""
  return event if participants is None else event.seen_by_participants(
      participants.shares)


# The worst pair of a release that hides nothing.
EVERYTHING: Factors = ((pairs.Leak(probability=1.0), 1),)

# Answers of methods, for the bodies of kinds.


def not_pure(self, amplification: str) -> float:
  """States that no epsilon is proved at delta = 0."""
  return np.inf


def no_known_pair(self, amplification: str) -> None:
  """States that no dominating pair is known."""


def no_known_group(self, clients: int) -> None:
  """States that the release is known between inputs of one client alone."""


def any_cohorts(self, count: int, participants: Participants | None) -> Counted:
  """States that nothing better is proved than for any cohorts."""
  return tuple((seen_by(part.without_sampling(), participants), times)
               for part, times in self.counted(count, 'none'))


def never_fails(self) -> float:
  """States that the curve leaves no outcomes out."""
  return 0.0


def no_caveats(self) -> tuple[caveats_lib.Caveat, ...]:
  """States that a reader need not know more than the numbers."""
  return ()


def yes(self) -> bool:
  """States that it is so."""
  return True


class Release(Event, abstract=True):
  """One release that samples nothing, described as if it were the only one."""

  def without_sampling(self) -> Event:
    return self

  def known(self, count: int, participants: Participants | None) -> Counted:
    return ((seen_by(self, participants), count),)

  def counted(self, count: int, amplification: str) -> Counted:
    return ((self, count),)

  def repeated(self) -> Event:
    return self

  def group(self, clients: int, known: bool) -> Event | None:
    return self.scaled(clients)


class WithoutShares(Event, abstract=True):
  """A release whose noise participants know nothing of: they see what all see."""

  def honest_fraction(self) -> float | None:
    return None

  def minimum_cohort(self) -> float | None:
    return None

  def seen(self, colluders: float, cohort: float | None) -> Event:
    return self

  def is_known_in_part(self) -> bool:
    return False


class Equivalent(Event, abstract=True):
  """A release that loses as much privacy as another event, between its neighbours."""

  @property
  @abc.abstractmethod
  def equivalent(self) -> Event:
    """The other event."""

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    return self.equivalent.curve(max_order, amplification)

  def failure_probability(self) -> float:
    return self.equivalent.failure_probability()

  def pure_epsilon(self, amplification: str) -> float:
    return self.equivalent.pure_epsilon(amplification)

  def factors(self, amplification: str) -> Factors | None:
    return self.equivalent.factors(amplification)


def _problems(kind: type[Event]) -> list[str]:
  """Lists what a kind leaves unsaid or misstates; see `Event`."""
  parents = [base.__name__ for base in kind.__mro__[1:] if base in _KINDS.values()]
  missing = [name for name in dir(kind) if getattr(
      getattr(kind, name, None), '__isabstractmethod__', False)]
  source = getattr(kind, 'source', None)
  missing += [] if source and isinstance(source, str) else ['source']
  adjacency = kind.adjacency
  problems = [message for is_wrong, message in (
      (parents, f'must not derive from another kind, found {", ".join(parents)}'),
      (kind.__name__ in _KINDS, 'must have a name of its own: another kind has it'),
      (missing, f'must define {", ".join(missing)}'),
      (isinstance(adjacency, str) and adjacency not in ADJACENCY_IN_WORDS,
       f'must have a known adjacency, found {adjacency!r}'),
      ((kind.as_gaussian is Event.as_gaussian) != (
          kind.skellam_coordinates is Event.skellam_coordinates),
       'must define as_gaussian and skellam_coordinates together')) if is_wrong]
  for name, stated in inspect.getmembers(Event, inspect.isfunction):
    own = getattr(kind, name)
    if not name.startswith('_') and (not inspect.isfunction(own) or _parameters(
        own) != _parameters(stated)):
      problems.append(f'must define {name} as a method with the parameters '
                      f'{_parameters(stated)}')
  return problems + [
      f'must have events in fields called event or events, found {field.name}'
      for field in dataclasses.fields(kind)
      if field.type in (Event, Inner, Several, tuple[Event, ...]) and field.name not in (
          'event', 'events')]


def _parameters(method: Any) -> tuple[str, ...]:
  return tuple(inspect.signature(method).parameters)


def parts(event: Event) -> list[Event]:
  """The events inside an event."""
  inner = getattr(event, 'event', None)
  return list(getattr(event, 'events', ())) if inner is None else [inner]


def _plain(value: Any) -> Any:
  """A JSON value for a field's value, free of numpy types."""
  if isinstance(value, Event):
    return value.to_json()
  if isinstance(value, tuple):
    return list(map(_plain, value))
  return value.item() if isinstance(value, np.generic) else value


def from_json(data: Any) -> Event:
  """The event that `Event.to_json` described.

  Raises ValueError unless `data` has exactly the fields of a known kind, with values
  that the event accepts.
  """
  if not isinstance(data, dict):
    raise ValueError(f'event must be a JSON object, found {data!r}')
  cls = _KINDS.get(data.get('kind'))
  if cls is None:
    raise ValueError(f'event kind must be a known one, found {data.get("kind")!r}')
  names = {field.name for field in dataclasses.fields(cls)}
  if (given := set(data) - {'kind'}) != names:
    raise ValueError(f'event {cls.__name__} must have the fields {sorted(names)}, '
                     f'found {sorted(given)}')
  return cls(**{name: _restored(data[name]) for name in names})


def innermost_kind(data: dict[str, Any]) -> type[Event]:
  """The kind of an event's JSON, inside of all that samples it; `Event` if unknown."""
  while isinstance(data.get('event'), dict):
    data = data['event']
  return _KINDS.get(data['kind'], Event)


def _restored(value: Any) -> Any:
  if isinstance(value, dict):
    return from_json(value)
  return tuple(map(_restored, value)) if isinstance(value, list) else value
