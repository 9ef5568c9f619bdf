"""PATE: a noisy vote of teachers that labels public records, if they agree.

The Confident-GNMax aggregator (arXiv 1802.08908, Algorithm 1) of a curator who sees all
votes. Its noise is discrete Gaussian, drawn by integers, and so are the votes.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from aggregators import alias_draw, alias_table, keys
from tff_pipelines.accounting.events import base, kinds as events
from tff_pipelines.accounting.guarantees import calibration, plan as guarantee
from tff_pipelines.common import caveats, validate
from tff_pipelines.experiment import rounds as rounds_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class PatePlan(guarantee.Plan):
  """A calibrated plan of Confident-GNMax, whose one round is the vote on all queries.

  Attributes:
    threshold: Votes of the winner, with noise, that an answer takes.
    threshold_noise: Noise of the check for agreement over that of a label's votes.
    stddev: Standard deviation of the noise on each label's votes.
    answers: Maximum number of queries that are answered.
    queries: Number of public images that are asked about.
    classes: Number of labels.
    privacy_unit: What one owner is.
  """

  threshold: validate.Finite
  threshold_noise: validate.Positive
  stddev: validate.Positive
  answers: validate.Count
  queries: validate.Count
  classes: validate.Count
  delta: float = 1e-5
  privacy_unit: str = 'one owner'
  seed: int | None = None
  accountant: str = 'rdp'

  def __post_init__(self):
    validate.fields(self)

  @classmethod
  def calibrate(cls, *, epsilon: float, stddev: float | None = None,
                **rest: Any) -> 'PatePlan':
    """Builds the plan for a target epsilon, or for a given noise.

    Args:
      epsilon: Target, if no noise is given.
      stddev: Noise of an earlier start; None for a new run.
      **rest: Further attributes; `answers` beyond the queries are not paid for.

    Raises ValueError if the target can't be met, or the noise is too large to be drawn.
    """
    rest['answers'] = min(rest['answers'], rest['queries'])
    plan = cls(stddev=1.0, **rest)
    if stddev is None:
      stddev = calibration.noise_multiplier(
          lambda z: dataclasses.replace(plan, stddev=z).event(1),
          epsilon=epsilon, delta=plan.delta, accountant=cls.accountant,
          total_variation=lambda z: plan.total_variation)
    plan = dataclasses.replace(plan, stddev=stddev)
    for name in ('threshold_stddev', 'stddev'):
      if not alias_table.DISCRETE_GAUSSIAN.fits(_variance(getattr(plan, name))):
        raise ValueError(f'{name}={getattr(plan, name)!r} is too large for a table')
    return plan

  @property
  def threshold_stddev(self) -> float:
    """Noise of the check for agreement, votes."""
    return self.threshold_noise * self.stddev

  def event(self, index: int) -> base.Event:
    # Votes are charged as if one owner moved one of them, which covers any change of its
    # records; the checks for agreement as well, which is more than they cost.
    return events.Composed(events=tuple(
        events.SelfComposed(count=count, event=events.Vote(
            scheme='ae', level='instance', noise='discrete_gaussian',
            noise_stddev=stddev))
        for stddev, count in ((self.threshold_stddev, self.queries),
                              (self.stddev, self.answers))))

  @property
  def total_variation(self) -> float:
    # Noise is drawn for the labels of every query, answered or not. Random bits are
    # taken as uniform.
    return min(1.0, self.queries * (1 + self.classes) * alias_table.TOTAL_VARIATION)

  @property
  def terms(self) -> guarantee.Terms:
    return guarantee.Terms(
        privacy_unit=f'{self.privacy_unit}: whatever it may be replaced by',
        observers='all who see the labels or what is computed from them',
        against='observers of the labels', sampler='exact tables',
        trust_model='a curator is trusted with all votes',
        source='arXiv 1802.08908, Algorithm 1; arXiv 2004.00010, Proposition 5',
        adjacency='any change of one owner\'s records, which moves its vote')

  def notes(self) -> list[caveats.Caveat]:
    return [caveats.Caveat(
        'epsilon independent of the votes', 'epsilon holds for any votes; the '
        'data-dependent one of publications is itself private')]

  def configuration(self) -> dict[str, Any]:
    return {'noise_stddev': self.stddev}


def _variance(stddev: float) -> float:
  """The variance of what is drawn: rounded up, as what is accounted for is not."""
  return stddev**2 * (1 + 2.0**-40)


def _noise(stddev: float, key: tf.Tensor, shape: Sequence[int]) -> np.ndarray:
  """int64 draws of the discrete Gaussian."""
  table = alias_table.DISCRETE_GAUSSIAN.build(_variance(stddev))
  return alias_draw.sample(key, shape, table).numpy()


def answer(votes: np.ndarray, plan: PatePlan, key: tf.Tensor) -> np.ndarray:
  """Answers queries, in their order.

  Formal guarantees: One owner moves one vote of a query: the largest count by at most
  1, the counts by sqrt(2) in L2. So a query costs at most a Gaussian release of the
  sensitivity 1 and noise `threshold_stddev`, and, if it is answered, one of sqrt(2) and
  `stddev`.

  Args:
    votes: int64 [n, classes].
    plan: Noise, threshold and maximum number of answers.
    key: int64[2], of this call alone.

  Returns:
    int64 [n], labels, or -1.
  """
  check_key, label_key = keys.split(key, 2)
  agreed = votes.max(axis=1) + _noise(
      plan.threshold_stddev, check_key, [len(votes)]) >= plan.threshold
  named = np.argmax(votes + _noise(plan.stddev, label_key, votes.shape), axis=1)
  return np.where(agreed & (np.cumsum(agreed) <= plan.answers), named, -1)


@dataclasses.dataclass(eq=False)
class PateRounds(rounds_lib.ChargedRounds):
  """One vote on all queries; its labels are kept.

  `rows`, int64 [Q], are the queries among the public records; `votes` returns the
  teachers' votes on them, int64 [Q, classes], which are private.
  """

  rows: np.ndarray
  votes: Callable[[], np.ndarray]
  plan: PatePlan

  unit = 'vote'
  total = 1

  def restore(self, lines, kept) -> None:
    self._kept = kept

  def done(self) -> int:
    return len(self._kept)

  def next_event(self) -> base.Event | None:
    return None if self._kept else self.plan.event(1)

  def draw(self, line) -> dict[str, np.ndarray]:
    """Asks the teachers: `rows`, and int64 `labels`, -1 where there was no answer."""
    key = keys.fresh() if self.plan.seed is None else tf.constant(
        keys.from_seed(self.plan.seed))
    return {'rows': self.rows, 'labels': answer(self.votes(), self.plan, key)}
