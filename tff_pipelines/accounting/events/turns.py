"""Events of rows of weighted sums whose clients take turns: correlated noise.

Formulas and proofs: docs/correlated_noise.md.
"""

import collections
import dataclasses
from typing import Self

from dp_accounting import dp_event
import numpy as np

from aggregators import params as params_lib
from tff_pipelines.accounting.divergences import pairs
from tff_pipelines.accounting.events import attended, base, combinators, sampled
from tff_pipelines.common import caveats as caveats_lib, validate


def check_turns(column: tuple[int, ...], turn_size: int, population: int) -> None:
  """Raises ValueError unless the turns of a client are at least a window apart."""
  validate.integer(turn_size=turn_size, low=1, high=population)
  if len(column) > (apart := population // turn_size):
    raise ValueError(
        f'column must have at most {apart} weights, the rounds between two turns of a '
        f'client: {population} clients, {turn_size} a round; found {len(column)}')


def rows_of_turns(column: tuple[int, ...], count: int, turn_size: int,
                  population: int) -> list[tuple[tuple[int, ...], int]]:
  """The weights > 0 of the rows of a turn, and how many turns have these rows.

  Of `count` >= 1 rounds; all turns but the last are complete.
  """
  turns = -(-count * turn_size // population)
  before = (turns - 1) * population // turn_size
  found = collections.Counter({tuple(filter(None, column)): turns - 1})
  found[tuple(filter(None, column[:count - before]))] += 1
  return [(weights, times) for weights, times in found.items() if times]


class TurnSampled(base.Equivalent, sampled.Ordered):
  """A row of weighted sums of this round and those before, by clients who take turns.

  The clients have one order, which is dealt once, independently of all data. Each round
  is the turn of the next `turn_size` of them, cyclically. In its turn a client is
  sampled with a probability, independently; its contribution is in the rows of that
  round and of the next ones, with the weights of `column`.

  Attributes:
    event: The contribution in one row, with weight 1; zero-out.
    column: Weights g_0 > 0, g_1, ..., g_(b-1) >= 0.
    turn_size: m, clients who have a turn in a round.
    population: N >= b m clients.
    sampling_rate: q' of a client in its turn. Below 1, amplification holds against
      observers to whom cohorts and their sizes stay hidden.
    pivotal_probability: As in `PoissonSampled`, of the row of the client's turn; 0 if
      all are sampled.
  """

  column: tuple[int, ...]
  turn_size: validate.Count
  population: validate.Count
  sampling_rate: validate.Fraction = 1.0
  pivotal_probability: validate.UnitInterval = 0.0

  source = 'docs/correlated_noise.md'

  def keeps_closed(self) -> bool:
    return len(self.column) > 1

  def __post_init__(self):
    super().__post_init__()
    object.__setattr__(self, 'column', params_lib.check_column(self.column))
    check_turns(self.column, self.turn_size, self.population)
    self._refuse_failures(self.event)
    _ = self.equivalent  # Raises ValueError if contributions have no weights.
    if self.sampling_rate == 1 and self.pivotal_probability:
      raise ValueError('pivotal_probability must be 0 where all are sampled, found '
                       f'{self.pivotal_probability!r}')

  @property
  def equivalent(self) -> base.Event:
    (row, _), = self.counted(1, 'tight')
    return row

  def _turns(self, count: int) -> list[tuple[tuple[int, ...], int]]:
    return rows_of_turns(self.column, count, self.turn_size, self.population)

  def _amplified(self, release: base.Event) -> base.Event:
    return release if self.sampling_rate == 1 else sampled.PoissonSampled(
        event=release, sampling_rate=self.sampling_rate,
        pivotal_probability=self.pivotal_probability)

  def counted(self, count: int, amplification: str) -> base.Counted:
    turns = [(self.event.rows(column), times) for column, times in self._turns(count)]
    return tuple(turns if amplification == 'none' else (
        (self._amplified(turn), times) for turn, times in turns))

  def without_sampling(self) -> Self:
    return dataclasses.replace(self, sampling_rate=1.0, pivotal_probability=0.0)

  def known(self, count: int, participants: base.Participants | None) -> base.Counted:
    if self.sampling_rate == 1:
      return ((base.seen_by(self, participants), count),)
    return tuple((self._attended(column, times, participants), 1)
                 for column, times in self._turns(count))

  def _attended(self, column: tuple[int, ...], turns: int,
                participants: base.Participants | None) -> attended.Attended:
    """So many turns in which whoever knows the cohorts may see the client."""
    release, depends, failure = self.event.rows(column), False, 0.0
    if participants is not None and self.is_known_in_part():
      # The colluders are in the row for certain; other clients in its turn may be.
      found = attended.cohorts(self.sampling_rate, participants._replace(
          colluders=participants.colluders - 1, population=self.turn_size), None, None)
      sizes, weights = ((1,), (1.0,)) if found is None else (found.sizes, found.weights)
      shares = participants.shares
      release = attended.coin([
          _without_shares(self.event, shares, size).rows(column) for size in sizes],
                              weights)
      if shares != 1 and len(column) > 1:
        # One size for all rows is above their own sizes in convex order, if noise is
        # left in all; `Attended` counts one row.
        depends = True
        failure = min(1.0, (len(column) - 1) * turns * sum(
            weight for size, weight in zip(sizes, weights) if size <= shares))
    return attended.Attended(
        event=release, rounds=turns, depends=depends, failure=failure,
        probability=sampled.rounded_up(self.sampling_rate))

  def seen(self, colluders: float, cohort: float | None) -> Self:
    return dataclasses.replace(self, event=_without_shares(
        self.event, colluders, self.minimum_cohort() or 1))

  def minimum_cohort(self) -> float | None:
    return self.turn_size if self.sampling_rate == 1 else None

  def repeated(self) -> base.Event:
    row = self.event.rows((max(self.column),))
    # Participants do not know a minimum of its cohort.
    return row if self.sampling_rate == 1 else sampled.PoissonSampled(
        event=row, sampling_rate=1.0)

  def may_be_chained(self, known: bool) -> bool:
    return self.sampling_rate < 1  # That clients wait is forgotten in a group.

  def group_of_several(self, count: int, clients: int,
                       known: bool) -> tuple[base.Event, int] | None:
    release = self.event.scaled(clients)
    if release is None:
      return None
    rows = sum((column * times for column, times in self._turns(count)), ())
    if self.event.is_additive():
      return release.rows(rows), 1
    # Each of the clients may be in rows that no other is in.
    return release.rows((max(rows),)), min(count, clients * len(rows))

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    return self._amplified(self.event).caveats()

  def to_dp_accounting(self) -> dp_event.DpEvent:
    return self.equivalent.to_dp_accounting()


class OneRowKnown(base.Release, base.WithoutShares):
  """A contribution in rows, for one participant who knows its share of one of them.

  Attributes:
    events: The contribution in a row without that share, and in one with all noise.
    column: Weights > 0 of the rows.
  """

  events: base.Several
  column: tuple[int, ...] = (1,)

  source = 'docs/correlated_noise.md'
  failure_probability = base.never_fails
  pure_epsilon = base.not_pure
  scaled = base.no_known_group  # Each of the clients may be in another row.
  as_gaussian = attended.as_gaussian_inside

  def __post_init__(self):
    if len(self.events) != 2:
      raise ValueError(f'events must be two, found {len(self.events)}')
    for index, weight in enumerate(self.column):
      validate.integer(**{f'column[{index}]': weight}, low=1)

  @property
  def adjacency(self) -> str:
    return self.events[1].adjacency

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    # Which row is the worst is proved of Gaussian noise alone: take all of them.
    return self.events[0].rows(self.column).curve(max_order, amplification)

  def factors(self, amplification: str) -> base.Factors | None:
    first, *others = sorted(self.column, reverse=True)
    least, whole = self.events
    rows = least.rows((first,)), *([whole.rows(tuple(others))] if others else [])
    found = combinators.Together(events=rows).factors(amplification)
    pair = found and pairs.together(found)
    return found if pair and pair.gaussian_cases() else least.rows(
        self.column).factors(amplification)

  def rows(self, column: tuple[int, ...]) -> Self:
    if self.column != (1,):
      raise ValueError(f'column must be (1,), found {self.column!r}')
    return dataclasses.replace(self, column=column)

  def replace_one(self) -> Self:
    return attended.mapped(self, lambda event: event.replace_one())

  def skellam_coordinates(self) -> int:
    return len(self.column) * self.events[1].skellam_coordinates()

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    return self.events[1].caveats()


def _without_shares(event: base.Event, shares: float, cohort: float) -> base.Event:
  """A row as participants see it who are in a cohort of this size, if in any."""
  known = event.seen(shares, cohort)
  # Several may be in several rows, whose noise is then taken to be less in each.
  return known if shares != 1 else OneRowKnown(events=(known, event.seen(0, None)))
