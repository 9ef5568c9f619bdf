"""The interface of privacy events, and their round trip through JSON.

An event describes one release, or several, fully: an accountant reads events
and never the code that releases. Events are frozen, keyword-only and validated
when constructed.
"""

import abc
import dataclasses
from typing import Any, ClassVar

from dp_accounting import dp_event
import numpy as np

from tff_pipelines.common import validate
from tff_pipelines.common import caveats as caveats_lib
from tff_pipelines.accounting.divergences import pairs

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
    RECORD_ZERO_OUT: 'one record of one agent is added or removed',
    RECORD: 'one record is replaced by any other; the number of records is public',
    LOCAL: 'any two inputs of one client',
}

# Those where neighbouring inputs differ in a record, not in a client.
OF_RECORDS = (INSTANCE, RECORD, RECORD_ZERO_OUT)

Factor = pairs.Factor

_KINDS: dict[str, type['Event']] = {}


class Event(abc.ABC):
  """A release, as accountants see it.

  Class attributes:
    source: Publication of the bound, with the theorem's number.
  """

  source: ClassVar[str] = ''

  def __init_subclass__(cls, **kwargs):
    super().__init_subclass__(**kwargs)
    if not cls.__name__.startswith('_'):
      _KINDS[cls.__name__] = cls

  @property
  @abc.abstractmethod
  def adjacency(self) -> str:
    """One of the keys of ADJACENCY_IN_WORDS."""

  @property
  @abc.abstractmethod
  def sensitivity(self) -> str:
    """The sensitivity in words, with its unit."""

  def to_dp_accounting(self) -> dp_event.DpEvent:
    """The same release as an event of dp_accounting, for its accountants.

    They are to be asked about the same neighbours: ADD_OR_REMOVE_ONE where adjacency
    is zero-out (a removed client), REPLACE_ONE where it is replace-one. Where it is
    local, the event has the distance of any two inputs already.

    Raises:
      NotImplementedError: If dp_accounting has no event that says the same.
    """
    raise NotImplementedError(
        f'event {type(self).__name__} has no equivalent in dp_accounting')

  @abc.abstractmethod
  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    """Renyi divergence in both directions at the orders 2..max_order."""

  def pure_epsilon(self, amplification: str) -> float:
    """Epsilon at delta = 0: the divergence of infinite order."""
    del amplification
    return np.inf

  def failure_probability(self) -> float:
    """The probability of outcomes that `curve` leaves out, which is added to delta."""
    return 0.0

  def factors(self, amplification: str) -> tuple[Factor, ...] | None:
    """The pairs whose product dominates the release, or None if not known."""
    del amplification
    return None

  def skellam_coordinates(self) -> int:
    """Number of integers with noise that `as_gaussian` may change."""
    return 0

  def as_gaussian(self, distance: float) -> 'Event':
    """The release with Gaussian noise in place of integer noise, as far as possible.

    This release is a post-processing of the result up to a total variation distance
    of `skellam_coordinates` times the given one. So its delta at any epsilon is at
    most that of the result, in the same direction, plus 1 + e^epsilon times that
    (`skellam_as_gaussian`).

    Args:
      distance: Maximum total variation distance of one integer, in (0, 1).

    Returns:
      The event itself where it has no such noise, or no certificate exists.
    """
    del distance
    return self

  def replace_one(self) -> 'Event':
    """The same release between inputs that differ by a replaced client."""
    raise ValueError(
        f'event {type(self).__name__} has no replace-one form and cannot be '
        'sampled')

  def check_sampled(self) -> None:
    """Raises ValueError if sampling clients does not apply to this release."""
    raise ValueError(
        f'event {type(self).__name__} cannot be amplified by sampling clients')

  def without_sampling(self) -> 'Event':
    """The release as seen by observers who know which clients were selected."""
    return self

  def participations(self, count: int, amplification: str) -> int:
    """Number of releases to compose for `count` of these: those with one client.

    Args:
      count: Number of releases in a row, >= 1.
      amplification: As for `curve`.
    """
    del amplification
    return count

  def repeated(self) -> 'Event':
    """The event that is added if the same release is repeated.

    A run that is restarted may repeat a round that was seen but not committed, with
    fresh noise and a fresh sample. That costs what the release costs, unless an event
    says otherwise.
    """
    return self

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    """The sentences that a reader of the guarantee must know."""
    return ()

  def to_json(self) -> dict[str, Any]:
    """A dictionary of JSON values; `from_json` gives an equal event."""
    result: dict[str, Any] = {'kind': type(self).__name__}
    for field in dataclasses.fields(self):  # pytype: disable=wrong-arg-types
      result[field.name] = _plain(getattr(self, field.name))
    return result


def _plain(value: Any) -> Any:
  """A JSON value for a field's value, free of numpy types."""
  if isinstance(value, Event):
    return value.to_json()
  if isinstance(value, tuple):
    return [_plain(item) for item in value]
  if isinstance(value, np.generic):
    return value.item()
  return value


def from_json(data: Any) -> Event:
  """The event that `Event.to_json` described.

  Raises:
    ValueError: Unless `data` has exactly the fields of a known kind, with
      values that the event accepts.
  """
  if not isinstance(data, dict):
    raise ValueError(f'event must be a JSON object, found {data!r}')
  cls = _KINDS.get(data.get('kind'))
  if cls is None or not dataclasses.is_dataclass(cls):
    raise ValueError(f'event kind must be a known one, found {data.get("kind")!r}')
  names = {field.name for field in dataclasses.fields(cls)}
  given = set(data) - {'kind'}
  if given != names:
    raise ValueError(
        f'event {cls.__name__} must have the fields {sorted(names)}, found '
        f'{sorted(given)}')
  return cls(**{name: _restored(data[name]) for name in names})


def _restored(value: Any) -> Any:
  if isinstance(value, dict):
    return from_json(value)
  if isinstance(value, list):
    return tuple(_restored(item) for item in value)
  return value


def check_event(**arguments: Any) -> None:
  """Raises ValueError unless every argument is an Event."""
  for name, value in arguments.items():
    if not isinstance(value, Event):
      raise ValueError(f'{name} must be an event, found {value!r}')


def scaled(noise_variance: float, surviving_fraction: float) -> float:
  """The variance of the noise if only a fraction of its shares is present."""
  validate.unit_interval(surviving_fraction=surviving_fraction)
  return noise_variance * surviving_fraction
