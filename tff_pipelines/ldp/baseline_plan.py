"""The privacy plan of PATE, a baseline of local distillation. No TensorFlow."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from aggregators import discrete_gaussian_table
from aggregators import validate
from tasks.ldp import task as tasks_lib
from tff_pipelines.accounting import base
from tff_pipelines.accounting import calibration
from tff_pipelines.accounting import caveats
from tff_pipelines.accounting import events
from tff_pipelines.experiment import guarantee
from tff_pipelines.ldp.baseline_settings import BaselineSettings


def pate_event(stddev: float, *, threshold_stddev: float, queries: int,
               answers: int) -> base.Event:
  """All that a call of Confident-GNMax releases, at most.

  Votes are charged as if one owner moved one of them, which covers any change of its
  records; the checks for agreement as well, which is more than they cost.
  """
  return events.Composed(events=tuple(
      events.SelfComposed(count=count, event=events.Vote(
          scheme='ae', level='instance', noise='discrete_gaussian',
          noise_stddev=noise_stddev))
      for noise_stddev, count in ((threshold_stddev, queries), (stddev, answers))))


def variance(stddev: float) -> float:
  """The variance of what is drawn: rounded up, as what is accounted for is not."""
  return stddev**2 * (1 + 2.0**-40)


def _total_variation(queries: int, classes: int) -> float:
  return min(1.0, queries * (1 + classes) * discrete_gaussian_table.TOTAL_VARIATION)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PatePlan(guarantee.Plan):
  """A calibrated plan of Confident-GNMax, whose one round is the vote on all queries.

  Attributes:
    threshold: Votes of the winner, with noise, that an answer takes.
    threshold_stddev: Of that noise, votes, > 0.
    stddev: Of the noise on each label's votes, > 0.
    answers: Maximum number of queries that are answered, >= 1.
    queries: Number of public images that are asked about, >= 1.
    classes: Of the labels.
    delta: Of the guarantee.
    privacy_unit: What one owner is.
    seed: A simulation seed voids the guarantee.
  """

  threshold: float
  threshold_stddev: float
  stddev: float
  answers: int
  queries: int
  classes: int
  delta: float = 1e-5
  privacy_unit: str = 'one owner'
  seed: int | None = None
  accountant: str = 'rdp'

  def __post_init__(self):
    validate.finite(threshold=self.threshold)
    validate.positive(threshold_stddev=self.threshold_stddev, stddev=self.stddev)
    validate.integer(answers=self.answers, queries=self.queries, low=1)
    for name in ('threshold_stddev', 'stddev'):
      if not discrete_gaussian_table.fits(variance(getattr(self, name))):
        raise ValueError(f'{name}={getattr(self, name)!r} is too large: its table '
                         'of the noise would be')

  def event(self, index: int) -> base.Event:
    return pate_event(self.stddev, threshold_stddev=self.threshold_stddev,
                      queries=self.queries, answers=self.answers)

  @property
  def total_variation(self) -> float:
    """Distance of all draws of a vote from their ideal distributions.

    Noise is drawn for the labels of every query, answered or not. Random bits are
    taken as uniform.
    """
    return _total_variation(self.queries, self.classes)

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
        'epsilon independent of the votes',
        'what is paid for does not depend on the votes; the data-dependent epsilon of '
        'publications is itself private')]

  def configuration(self) -> dict[str, Any]:
    return {'noise_stddev': self.stddev}


def pate(settings: BaselineSettings, task: tasks_lib.DistillationTask,
         recorded: Mapping[str, Any] | None = None) -> PatePlan:
  """The plan of PATE; ValueError if the target can't be met.

  Args:
    settings: Of the run.
    task: Each of its owners has a vote.
    recorded: `configuration` of the plan of an earlier start; None for a new run.
  """
  ratio, queries = settings.threshold_noise, min(settings.queries, len(task.public))
  answers = min(settings.answers, queries)
  # Version 1 recorded none.
  stddev = (recorded or {}).get('noise_stddev')
  if stddev is None:
    stddev = calibration.noise_multiplier(
        lambda z: pate_event(z, threshold_stddev=ratio * z, queries=queries,
                             answers=answers),
        epsilon=settings.epsilon, delta=settings.delta, accountant=PatePlan.accountant,
        total_variation=lambda z: _total_variation(queries, task.num_classes))
  return PatePlan(
      threshold=settings.threshold * task.num_clients, stddev=stddev,
      threshold_stddev=ratio * stddev, answers=answers, queries=queries,
      classes=task.num_classes, delta=settings.delta, privacy_unit=task.privacy_unit,
      seed=settings.seed)
