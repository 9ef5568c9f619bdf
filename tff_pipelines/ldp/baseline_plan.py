"""The privacy plans of the baselines of local distillation. No TensorFlow."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from aggregators import discrete_gaussian_table
from aggregators import validate
from tff_pipelines.accounting import base
from tff_pipelines.accounting import calibration
from tff_pipelines.accounting import caveats
from tff_pipelines.accounting import events
from tff_pipelines.accounting import mechanisms
from tff_pipelines.experiment import guarantee
from tff_pipelines.fedavg.plan import FedAvgPlan
from tff_pipelines.ldp.baseline_settings import BaselineSettings
from tff_pipelines.learning.noisy_sgd_plan import NoisySgdPlan

Recorded = Mapping[str, Any] | None

_FL_BITS = 18
_RDP = 'rdp'


def _noise(recorded: Recorded, name: str) -> float | None:
  """What an earlier start calibrated; None to calibrate. Version 1 kept none."""
  return None if recorded is None else recorded.get(name)


def dp_sgd(settings: BaselineSettings, *, records: int,
           recorded: Recorded = None) -> NoisySgdPlan:
  """The plan of DP-SGD on this number of records of one curator.

  Args:
    settings: Of the run.
    records: Of all owners.
    recorded: `configuration` of the plan of an earlier start; None for a new run.
  """
  noise = _noise(recorded, 'noise_multiplier')
  return NoisySgdPlan.calibrate(
      target_epsilon=settings.epsilon if noise is None else None,
      noise_multiplier=noise, delta=settings.delta, clip=settings.clip,
      sampling_rate=settings.record_rate, rounds=settings.rounds, clients=1,
      records=records, seed=settings.seed, terms=guarantee.Terms(
          privacy_unit='one record',
          observers='those who see the model and do not learn which records were '
          'sampled',
          against='observers of the model', sampling='poisson, of records',
          trust_model='a curator is trusted with all records',
          source=events.NoisyGradients.source))


def dp_fl(settings: BaselineSettings, *, num_clients: int, dimension: int,
          privacy_unit: str, recorded: Recorded = None) -> FedAvgPlan:
  """The plan of DP-FedAvg; all owners participate in every round.

  Args:
    settings: Of the run.
    num_clients: Number of owners.
    dimension: Coordinates of an update.
    privacy_unit: What one owner is.
    recorded: As for `dp_sgd`.
  """
  return FedAvgPlan.calibrate(
      mechanisms.SumMechanism(
          mechanism='skellam', clip=settings.clip, bits=_FL_BITS, dimension=dimension,
          cohort_size=float(num_clients), population=num_clients,
          rounds=settings.rounds),
      delta=settings.delta, target_epsilon=settings.epsilon,
      recorded_noise=_noise(recorded, 'noise_multiplier'), seed=settings.seed,
      privacy_unit=privacy_unit)


def pate_event(stddev: float, *, threshold_stddev: float, queries: int,
               answers: int) -> base.Event:
  """All that a call of Confident-GNMax releases, at most.

  Votes are charged as if one owner moved one of them, which covers any change of its
  records; the checks for agreement as well, which is more than they cost.
  """
  def vote(noise_stddev):
    return events.Vote(scheme='ae', level='instance', noise='discrete_gaussian',
                       noise_stddev=noise_stddev)
  return events.Composed(events=(
      events.SelfComposed(event=vote(threshold_stddev), count=queries),
      events.SelfComposed(event=vote(stddev), count=answers)))


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
  accountant: str = _RDP

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


def pate(settings: BaselineSettings, *, num_clients: int, pool: int, classes: int,
         privacy_unit: str, recorded: Recorded = None) -> PatePlan:
  """The plan of PATE; ValueError if the target can't be met.

  Args:
    settings: Of the run.
    num_clients: Number of owners, each of whom has a vote.
    pool: Number of public images.
    classes: Of the labels.
    privacy_unit: What one owner is.
    recorded: As for `dp_sgd`.
  """
  ratio, queries = settings.threshold_noise, min(settings.queries, pool)
  answers, stddev = min(settings.answers, queries), _noise(recorded, 'noise_stddev')
  if stddev is None:
    stddev = calibration.noise_multiplier(
        lambda z: pate_event(z, threshold_stddev=ratio * z, queries=queries,
                             answers=answers),
        epsilon=settings.epsilon, delta=settings.delta, accountant=_RDP,
        total_variation=lambda z: _total_variation(queries, classes))
  return PatePlan(
      threshold=settings.threshold * num_clients, stddev=stddev,
      threshold_stddev=ratio * stddev, answers=answers, queries=queries,
      classes=classes, delta=settings.delta, privacy_unit=privacy_unit,
      seed=settings.seed)
