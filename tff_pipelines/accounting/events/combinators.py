"""Events of several releases: one after the other, or from one sample; of none."""

import abc
import collections
from collections.abc import Mapping

from dp_accounting import dp_event
import numpy as np

from tff_pipelines.accounting.divergences import curves
from tff_pipelines.accounting.events import attended, base
from tff_pipelines.common import caveats as caveats_lib, validate


class NoPrivacy(base.Release, base.WithoutShares):
  """A release without noise: epsilon is infinite."""

  adjacency = base.ANY
  source = 'nothing is claimed'

  failure_probability = base.never_fails
  is_additive = base.yes
  pure_epsilon = base.not_pure

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    return curves.no_guarantee(max_order)

  def factors(self, amplification: str) -> base.Factors:
    return base.EVERYTHING

  def replace_one(self) -> 'NoPrivacy':
    return self

  def rows(self, column: tuple[int, ...]) -> 'NoPrivacy':
    return self

  def scaled(self, clients: int) -> 'NoPrivacy':
    return self

  def to_dp_accounting(self) -> dp_event.DpEvent:
    return dp_event.NonPrivateDpEvent()

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    return (caveats_lib.Caveat(
        'no noise', 'no noise is added: there is no privacy guarantee'),)


class AgentsShares(base.WithoutShares, abstract=True):
  """A release with shares of agents' noise: no number is proved against agents.

  They are no shares of a sum of clients.
  """

  is_known_in_part = base.yes

  def seen(self, colluders: float, cohort: float | None) -> base.Event:
    return NoPrivacy() if colluders else self


class _Product(base.Event, abstract=True):
  """Several releases: their curves add, their dominating pairs multiply."""

  source = 'arXiv 1702.07476, Proposition 1'
  scaled = base.no_known_group  # Samples are independent; `Together` has one.
  as_gaussian = attended.as_gaussian_inside
  caveats = attended.caveats_inside

  @abc.abstractmethod
  def _counts(self) -> Mapping[base.Event, int]:
    """The events, and how often each is released."""

  @property
  def adjacency(self) -> str:
    adjacencies = {event.adjacency for event in self._counts()} - {base.ANY}
    if len(adjacencies) > 1:
      raise ValueError('events can only be composed under one adjacency, found '
                       f'{", ".join(sorted(adjacencies))}')
    return adjacencies.pop() if adjacencies else base.ANY

  def _counted(self, amplification: str) -> list[tuple[base.Event, int]]:
    """The releases that stand for the events, and how often each counts."""
    return [part for event, count in self._counts().items()
            for part in event.counted(count, amplification)]

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    return sum(count * event.curve(max_order, amplification)
               for event, count in self._counted(amplification))

  def failure_probability(self) -> float:
    return min(1.0, sum(count * event.failure_probability()
                        for event, count in self._counts().items()))

  def pure_epsilon(self, amplification: str) -> float:
    return sum(count * event.pure_epsilon(amplification)
               for event, count in self._counted(amplification))

  def factors(self, amplification: str) -> base.Factors | None:
    listed = [(event.factors(amplification), times)
              for event, times in self._counted(amplification)]
    return None if any(inner is None for inner, _ in listed) else tuple(
        (pair, count * times) for inner, times in listed for pair, count in inner)

  def to_dp_accounting(self) -> dp_event.DpEvent:
    parts = [dp_event.SelfComposedDpEvent(part.to_dp_accounting(), times)
             for part, times in self._counted('tight')]
    return parts[0] if len(parts) == 1 else dp_event.ComposedDpEvent(parts)

  def skellam_coordinates(self) -> int:
    return sum(count * event.skellam_coordinates()
               for event, count in self._counts().items())

  def replace_one(self) -> base.Event:
    return attended.mapped(self, lambda event: event.replace_one())

  def counted(self, count: int, amplification: str) -> base.Counted:
    return ((self, count),)

  def without_sampling(self) -> base.Event:
    counts = collections.Counter()
    for event, count in self._counts().items():
      whole = ((event.without_sampling(), count),)
      # One that is limited without sampling, too, keeps its own limit.
      for part, times in whole if whole[0][0].counted(count, 'none') != whole else (
          event.counted(count, 'none')):
        counts[part.without_sampling()] += times
    return self if counts == self._counts() else composed(counts)

  def known(self, count: int, participants: base.Participants | None) -> base.Counted:
    # Copies of the product are runs of their own, each with its own limits: rounds of an
    # order are counted here, and never together with those of another run.
    return tuple((part, number * count) for event, times in self._counts().items()
                 for known, rounds in event.known(times, participants)
                 for part, number in known.counted(rounds, 'none'))

  def repeated(self) -> base.Event:
    return attended.mapped(self, lambda event: event.repeated())

  def honest_fraction(self) -> float | None:
    return min((event.honest_fraction() for event in self._counts()
                if event.has_shares()), default=None)

  def minimum_cohort(self) -> float | None:
    cohorts = [event.minimum_cohort() for event in self._counts() if event.has_shares()]
    return None if not cohorts or None in cohorts else min(cohorts)

  def is_known_in_part(self) -> bool:
    return any(event.is_known_in_part() for event in self._counts())

  def seen(self, colluders: float, cohort: float | None) -> base.Event:
    return attended.mapped(self, lambda event: event.seen(colluders, cohort))

  def group(self, clients: int, known: bool) -> base.Event | None:
    several = [event.group_of_several(count, clients, known)
               for event, count in self._counts().items()]
    if None in several:
      return None
    parts = tuple(SelfComposed(event=event, count=count) for event, count in several)
    return parts[0] if len(parts) == 1 else Composed(events=parts)


class SelfComposed(_Product):
  """The same event, `count` times in a row, adaptively."""

  event: base.Inner
  count: validate.Count

  def _counts(self) -> Mapping[base.Event, int]:
    return {self.event: self.count}


class _Several(_Product, abstract=True):
  """Events side by side, at least one, all of one adjacency."""

  events: base.Several

  def __post_init__(self):
    _ = self.adjacency  # Raises ValueError if there are several.

  def _counts(self) -> Mapping[base.Event, int]:
    return collections.Counter(self.events)


class Composed(_Several):
  """Different events one after the other, adaptively, each with its own sample."""


class Together(_Several):
  """Several releases from one sample, such as a sum and a bit about its clip.

  Under `PoissonSampled` or `FixedSizeSampled` their curves are added before the
  amplification: a client is in all of them or in none. None is sampled on its own.
  """

  def __post_init__(self):
    super().__post_init__()
    for event in self.events:
      if event.is_ordered() or event.without_sampling() != event:
        raise ValueError('events of Together must not be sampled one by one, found '
                         f'{type(event).__name__}')

  def known(self, count: int, participants: base.Participants | None) -> base.Counted:
    return ((base.seen_by(self, participants), count),)

  def seen(self, colluders: float, cohort: float | None) -> base.Event:
    # A count alongside a sum of shares has shares too.
    return super().seen(colluders, self.minimum_cohort() if cohort is None else cohort)

  def scaled(self, clients: int) -> base.Event | None:
    parts = tuple(event.scaled(clients) for event in self.events)
    return None if None in parts else Together(events=parts)

  def group(self, clients: int, known: bool) -> base.Event | None:
    return self.scaled(clients)

  def rows(self, column: tuple[int, ...]) -> base.Event:
    return Together(events=tuple(event.rows(column) for event in self.events))

  def is_additive(self) -> bool:
    return all(event.is_additive() for event in self.events)


def known(event: base.Event, participants: base.Participants | None = None
          ) -> base.Event:
  """All of an event for whoever knows the cohorts, which are drawn by the rule."""
  if participants is not None:
    participants = participants._replace(rounds=sum(releases(event).values()))
  counts = collections.Counter()
  for part, count in event.known(1, participants):
    counts[part] += count
  return composed(counts)


def releases(event: base.Event) -> Mapping[base.Event, int]:
  """The single releases of an event, and how often each is there."""
  if not isinstance(event, _Product) or isinstance(event, Together):
    return {event: 1}
  counts = collections.Counter()
  for part, count in event._counts().items():
    for release, times in releases(part).items():
      counts[release] += count * times
  return counts


def contributions(event: base.Event) -> int:
  """Maximum number of the single releases of an event with one client."""
  if not isinstance(event, _Product) or isinstance(event, Together):
    return sum(times for _, times in event.counted(1, 'none'))
  return sum(
      count * contributions(part) if isinstance(part, _Product) else
      sum(times for _, times in part.counted(count, 'none'))
      for part, count in event._counts().items())


def is_sampled(event: base.Event) -> bool:
  """Whether a release in it is one of sampled clients or records."""
  return any(release.known(1, None) != ((release, 1),) for release in releases(event))


def is_secret(event: base.Event) -> bool:
  """Whether there are samples, and whoever holds no part of one learns none of them."""
  sampled_ones = [one for one in releases(event) if one.known(1, None) != ((one, 1),)]
  return bool(sampled_ones) and all(one.is_secret() for one in sampled_ones)


def composed(counts: Mapping[base.Event, int]) -> base.Event:
  """The composition of at least one event, each released as often as counted.

  Raises ValueError if rounds of one order of the clients have different events: how
  often a client is in those of each event is not known. Runs are composed one by one,
  then together: each has an order of its own.
  """
  ordered = sum(event.is_ordered() for event in counts)
  if ordered > 1:
    raise ValueError('rounds of one order of the clients must all have the same event, '
                     f'found {ordered} different ones')
  parts = tuple(SelfComposed(event=event, count=count) for event, count in counts.items())
  return parts[0] if len(parts) == 1 else Composed(events=parts)
