"""The privacy plan of a vote: what is accounted is what is executed.

One object holds the parameters that the factory counts by and the event that the
ledger and the report take their numbers from.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import functools
import math
from typing import Any

from aggregators import validate
from aggregators.voting_params import VotingParams
from tff_pipelines.accounting import base
from tff_pipelines.accounting import calibration
from tff_pipelines.accounting import caveats
from tff_pipelines.accounting import events
from tff_pipelines.accounting import mechanisms
from tff_pipelines.accounting import report as accounting_report
from tff_pipelines.accounting import vote_events
from tff_pipelines.accounting import voting as voting_accounting
from tff_pipelines.experiment import files
from tff_pipelines.experiment import guarantee
from tff_pipelines.voting.settings import VoteSettings

_NO_BOUND = caveats.Caveat(
    'published epsilon is no bound',
    'epsilon by the published formula is less than what is proved: it is no bound '
    'here, and stands for comparison alone')


@dataclasses.dataclass(frozen=True, kw_only=True)
class VotePlan(guarantee.Plan):
  """A calibrated plan for one vote on Q queries, answered or not.

  Attributes:
    params: Of the vote.
    scheme: 'ae' or 'knn'.
    level: 'agent' or 'instance'.
    delta: Strictly between 0 and 1.
    calibrated_by: 'tight', or 'paper' if the noise was calibrated by the published
      formula; the guarantee is the tight one in any case.
    seed: A simulation seed voids the guarantee.
    privacy_unit: What one of two neighbouring inputs lacks.
  """

  params: VotingParams
  scheme: str
  level: str
  delta: float
  calibrated_by: str = 'tight'
  seed: int | None = None
  privacy_unit: str = 'one agent'

  amplification = 'none'  # All agents vote.

  def __post_init__(self):
    validate.open_unit_interval(delta=self.delta)
    validate.one_of(vote_events.BOUNDS, bound=self.calibrated_by)
    self.event(1)  # Raises what is out of range.

  def _vote(self, **changes) -> events.Vote:
    params = self.params
    return events.Vote(**{**dict(
        scheme=self.scheme, level=self.level,
        noise='skellam' if params.is_integer else 'gaussian',
        noise_stddev=params.noise_stddev,
        neighbours=params.votes if self.scheme == 'knn' else None,
        attributes=params.attributes or 1, max_weight=params.max_weight),
                          **changes})

  def event(self, index: int) -> base.Event:
    return self._event

  @functools.cached_property
  def _event(self) -> base.Event:
    return events.SelfComposed(event=self._vote(), count=self.params.queries)

  @property
  def population(self) -> int | None:
    return self.params.agents if self.level == 'agent' else None

  @property
  def total_variation(self) -> float | None:
    return self.params.sampler_deviation

  @functools.cached_property
  def vote_bound(self) -> guarantee.Bound:
    """The bound of one vote."""
    return self.bound(self._event, 1)

  @property
  def published(self) -> events.Vote:
    """The event of one query in the published formula."""
    return self._vote(noise='gaussian', bound='paper')

  @property
  def epsilon_published(self) -> float:
    """Epsilon by the published sensitivity and conversion, for comparison."""
    return voting_accounting.published_epsilon(
        self.published, self.params.queries, self.delta)

  @property
  def epsilon_planned(self) -> float:
    """Epsilon by the bound that the noise is calibrated by."""
    return (self.epsilon_published if self.calibrated_by == 'paper'
            else self.vote_bound.epsilon)

  def also(self, released: base.Event) -> dict[str, Any]:
    return {'epsilon_published': files.finite(self.epsilon_published)}

  @property
  def terms(self) -> guarantee.Terms:
    shares = self.params.has_shares
    own = f' ({accounting_report.OWN_SHARE})' if shares else ''
    return guarantee.Terms(
        privacy_unit=self.privacy_unit, against='everyone who sees the labels',
        observers=f'everyone who sees the labels or what is made of them{own}',
        observers_server=(
            'the server, which sees the noisy sums (each start of the run before the '
            f'vote was kept counts as a vote){own}') if shares else None,
        against_server='the server, which sees noisy sums',
        trust_model=mechanisms.MECHANISMS[
            'ae_vote' if shares else 'gaussian'].trust_model,
        source=self._vote().source, sampler=self.params.sampler_in_words,
        secure_aggregation=shares)

  def degeneracy(self) -> str | None:
    """Why labels would be of the noise alone; None if they are not."""
    params = self.params
    most = params.agents * params.max_weight
    if params.noise_stddev < most:
      return None
    return (f'noise of {params.noise_stddev:.4g} on the votes of {params.agents} '
            f'agents, which sum to {most} at most: labels of the noise and not of the '
            'agents')

  def notes(self) -> list[caveats.Caveat]:
    found = []
    if self.degeneracy() is not None:
      found.append(caveats.Caveat('noise drowns the votes', self.degeneracy()))
    if not self.params.is_integer:
      found.append(caveats.Caveat(
          'floating-point Gaussian noise',
          'Gaussian noise in floating point carries the guarantee of ideal arithmetic '
          'only' + ('; the sum of real ballots is taken as if secure aggregation had '
                    'real numbers' if self.params.has_shares else '')))
    if self.vote_bound.epsilon > self.epsilon_published:
      found.append(_NO_BOUND)
    return found

  def header(self, rounds: int, more: Iterable[str] = ()) -> dict[str, Any]:
    return {**super().header(rounds, more), 'population': self.params.agents}

  def configuration(self) -> dict[str, Any]:
    return {'noise_stddev': self.params.noise_stddev, 'delta': self.delta,
            'agents': self.params.agents, 'classes': self.params.classes}

  def with_noise(self, noise_stddev: float) -> 'VotePlan':
    """The same vote with this noise, in agents."""
    return dataclasses.replace(
        self, params=self.params.replace(noise_stddev=noise_stddev))

  def _fits(self, queries: int, epsilon: float) -> bool:
    plan = dataclasses.replace(self, params=self.params.replace(queries=queries))
    return plan.epsilon_planned <= epsilon

  def largest_queries(self, epsilon: float) -> int:
    """The maximum number of queries within epsilon at this noise; 0 if none is."""
    low, high = 0, 1
    while high <= 2**30 and self._fits(high, epsilon):
      low, high = high, 2 * high
    while high - low > 1:
      middle = (low + high) // 2
      if self._fits(middle, epsilon):
        low = middle
      else:
        high = middle
    return low

  def _published_noise(self, epsilon: float) -> float:
    """The noise that gives epsilon by the published formula, which is explicit.

    s + 2 sqrt(s ln(1/delta)) = epsilon for s = Q Delta^2 / (2 sigma^2).
    """
    log = math.log(1 / self.delta)
    root = epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))
    # One part in 10^12 more, for the private side of all roundings.
    return self.published.l2_sensitivity * math.sqrt(
        self.params.queries / 2) / root * (1 + 1e-12)

  def _calibrated(self, epsilon: float) -> 'VotePlan':
    if self.calibrated_by == 'paper':
      return self.with_noise(self._published_noise(epsilon))

    return self.with_noise(calibration.noise_multiplier(
        lambda z: self.with_noise(z).event(1), epsilon=epsilon, delta=self.delta,
        total_variation=lambda z: self.with_noise(z).total_variation))

  @classmethod
  def calibrate(cls, params: VotingParams, *, target_epsilon: float | None,
                noise_stddev: float | None, recorded_noise: float | None = None,
                allow_degenerate: bool = False, **attributes: Any) -> 'VotePlan':
    """Builds the plan for a target, or for a given noise.

    Args:
      params: All but the noise, which is ignored.
      target_epsilon: Never exceeded; with `noise_stddev`, a limit.
      noise_stddev: Of the noise, agents; None to calibrate it.
      recorded_noise: That an earlier start of the run was calibrated to and that is
        taken over; None to calibrate.
      allow_degenerate: Whether noise may drown the votes.
      **attributes: Further attributes of the plan.

    Raises:
      ValueError: If the target can't be met; the message says how many queries fit.
    """
    if target_epsilon is None and noise_stddev is None:
      raise ValueError('epsilon or noise_stddev must be given, found neither')
    if target_epsilon is not None:
      validate.positive(epsilon=target_epsilon)
    if noise_stddev is not None:
      validate.positive(noise_stddev=noise_stddev)
    plan = cls(params=params.replace(noise_stddev=noise_stddev or 1.0), **attributes)
    if recorded_noise is not None:
      plan = plan.with_noise(recorded_noise)
    elif noise_stddev is None:
      plan = plan._calibrated(target_epsilon)
    elif target_epsilon is not None and plan.epsilon_planned > target_epsilon:
      raise ValueError(
          f'epsilon={target_epsilon:g} cannot be reached with '
          f'queries={params.queries} at noise_stddev={noise_stddev:g}, which gives '
          f'{plan.epsilon_planned:.4g}: the largest number of queries that fits is '
          f'{plan.largest_queries(target_epsilon)}')
    message = plan.degeneracy()
    if message is None or allow_degenerate:
      return plan
    if target_epsilon is not None:
      # Just below what would be degenerate.
      limit = plan.with_noise(0.999 * params.agents * params.max_weight)
      message = (
          f'epsilon={target_epsilon:g} cannot be reached in earnest with '
          f'queries={params.queries}: it takes {message}; the largest number of '
          f'queries that fits is {limit.largest_queries(target_epsilon)}')
    raise ValueError(f'{message}; allow it with --allow_degenerate')


def build(settings: VoteSettings, *, agents: int, classes: int,
          privacy_unit: str = 'one agent',
          recorded: Mapping[str, Any] | None = None) -> VotePlan:
  """The calibrated plan of a vote.

  Args:
    settings: Of the run, with algorithm ae or knn.
    agents: Number of agents.
    classes: Number of labels.
    privacy_unit: What one of two neighbouring inputs lacks.
    recorded: `configuration` of the plan of an earlier start; None for a new run.
  """
  calibrated = settings.noise_stddev is None
  return VotePlan.calibrate(
      VotingParams(
          queries=settings.queries, classes=classes, agents=agents, noise_stddev=1.0,
          votes=settings.neighbours if settings.algorithm == 'knn' else 1,
          noise=settings.noise, threshold=settings.threshold,
          min_honest_fraction=settings.min_honest_fraction,
          assumed_colluders=settings.assumed_colluders),
      target_epsilon=settings.target_epsilon, noise_stddev=settings.noise_stddev,
      recorded_noise=recorded['noise_stddev'] if recorded and calibrated else None,
      allow_degenerate=settings.allow_degenerate, scheme=settings.algorithm,
      level=settings.privacy_level, delta=settings.privacy_delta,
      calibrated_by=settings.bound, seed=settings.seed, privacy_unit=privacy_unit)
