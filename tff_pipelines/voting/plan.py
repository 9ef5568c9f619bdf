"""The privacy plan of a vote: what is accounted is what is executed.

One object holds the parameters that the factory counts by and the event that the
ledger and the report take their numbers from.
"""

import dataclasses
import functools
import math

from aggregators import validate
from aggregators.voting_params import VotingParams
from tff_pipelines.accounting import accountant
from tff_pipelines.accounting import base
from tff_pipelines.accounting import calibration
from tff_pipelines.accounting import deviation as deviation_lib
from tff_pipelines.accounting import events
from tff_pipelines.accounting import request as request_lib
from tff_pipelines.accounting import vote_events
from tff_pipelines.accounting import voting as voting_accounting

# As in the experiments of Zhu et al. 2020.
DEFAULT_DELTA = {'agent': 1e-3, 'instance': 1e-4}

_OUTLIVES = 'labels of the noise and not of the agents'


@dataclasses.dataclass(frozen=True, kw_only=True)
class VotePlan:
  """A calibrated plan for one vote on Q queries.

  Attributes:
    params: Of the vote.
    scheme: 'ae' or 'knn'.
    level: 'agent' or 'instance'.
    delta: Strictly between 0 and 1.
    bound: 'tight', or 'paper' if the noise was calibrated by the published
      formula; the guarantee is the tight one in any case.
    simulation_seed: A seed voids the guarantee.
  """

  params: VotingParams
  scheme: str
  level: str
  delta: float
  bound: str = 'tight'
  simulation_seed: int | None = None

  def __post_init__(self):
    validate.open_unit_interval(delta=self.delta)
    validate.one_of(vote_events.BOUNDS, bound=self.bound)
    self.event  # Raises what is out of range.

  def _vote(self, **changes) -> events.Vote:
    params = self.params
    return events.Vote(**{**dict(
        scheme=self.scheme, level=self.level,
        noise='skellam' if params.is_integer else 'gaussian',
        noise_stddev=params.noise_stddev,
        neighbours=params.votes if self.scheme == 'knn' else None,
        attributes=params.attributes or 1, max_weight=params.max_weight),
                          **changes})

  @functools.cached_property
  def event(self) -> base.Event:
    """All queries, answered or not."""
    return events.SelfComposed(event=self._vote(), count=self.params.queries)

  @functools.cached_property
  def delta_sampler(self) -> float | None:
    """What of delta the sampler of the noise takes; None if that is unknown.

    It is part of delta, unless it is more than half: then epsilon is that of exact
    laws.
    """
    return self._taken(1)

  def _taken(self, votes: int) -> float | None:
    deviation = self.params.sampler_deviation
    if deviation is None:
      return None
    # Renyi divergences give an epsilon that is larger, and found at once.
    return deviation_lib.taken_at_most(
        min(1.0, votes * deviation), self._votes(votes), self.delta,
        accountant='rdp')

  def _votes(self, count: int) -> base.Event:
    if count == 1:
      return self.event
    return events.SelfComposed(event=self.event, count=count)

  @functools.cached_property
  def guarantee(self) -> accountant.Guarantee:
    """What holds against everyone who sees the labels, and the server."""
    return self._guarantee(1)

  def _guarantee(self, votes: int) -> accountant.Guarantee:
    found = accountant.guarantee(
        self._votes(votes), deviation_lib.left(self.delta, self._taken(votes)),
        population=self.params.agents if self.level == 'agent' else None)
    return dataclasses.replace(found, delta=self.delta)

  def epsilon_of(self, votes: int) -> float:
    """Against those who saw the sums of so many votes on the same queries."""
    return self._guarantee(votes).epsilon

  @property
  def epsilon(self) -> float:
    return self.guarantee.epsilon

  @property
  def published(self) -> events.Vote:
    """One query as the published formula takes it."""
    return self._vote(noise='gaussian', bound='paper')

  @property
  def epsilon_published(self) -> float:
    """By the published sensitivity and conversion, for comparison."""
    return voting_accounting.published_epsilon(
        self.published, self.params.queries, self.delta)

  @property
  def epsilon_planned(self) -> float:
    """By the bound that the plan was made with."""
    return self.epsilon_published if self.bound == 'paper' else self.epsilon

  @property
  def trust_model(self) -> str:
    kind = 'ae_vote' if self.params.has_shares else 'gaussian'
    return request_lib.MECHANISMS[kind].trust_model

  def degeneracy(self) -> str | None:
    """Why labels would be of the noise alone, or None."""
    params = self.params
    most = params.agents * params.max_weight
    if params.noise_stddev < most:
      return None
    return (f'noise of {params.noise_stddev:.4g} on the votes of {params.agents} '
            f'agents, who sum to {most} at most: {_OUTLIVES}')

  def warnings(self, starts: int = 1) -> list[str]:
    """What a reader of the numbers must know, in words.

    Args:
      starts: How many votes the server may have seen.
    """
    found = []
    for votes, whose in ((1, ''), (starts, ' against the server')):
      taken = self._taken(votes)
      if taken is not None and taken > self.delta / 2:
        found.append(
            f'epsilon{whose} is that of exact laws: at such an epsilon the draws '
            f'from tables would take {taken:.3g} of delta, more than half')
    if self.simulation_seed is not None:
      found.append('seeded run: no guarantee (noise follows from a seed)')
    if self.degeneracy() is not None:
      found.append(self.degeneracy())
    if not self.params.is_integer:
      found.append(
          'Gaussian noise in floating point carries the guarantee of ideal '
          'arithmetic only' + (
              '; the sum of real ballots is taken as if secure aggregation had '
              'real numbers' if self.params.has_shares else ''))
    if self.epsilon > self.epsilon_published:
      found.append(
          'epsilon by the published formula is less than what is proved: it is no '
          'bound here, and stands for comparison alone')
    found.extend(self.guarantee.warnings)
    return found

  def configuration(self) -> dict:
    """Everything that defines the plan, as JSON."""
    fields = dataclasses.asdict(self)
    fields['params'] = dataclasses.asdict(self.params)
    return fields


def _with_noise(plan: VotePlan, noise_stddev: float) -> VotePlan:
  return dataclasses.replace(
      plan, params=plan.params.replace(noise_stddev=noise_stddev))


def _with_queries(plan: VotePlan, queries: int) -> VotePlan:
  return dataclasses.replace(plan, params=plan.params.replace(queries=queries))


def largest_queries(plan: VotePlan, epsilon: float) -> int:
  """The most queries within epsilon at this noise, 0 if not even one is."""
  low, high = 0, 1
  while high <= 2**30 and _with_queries(plan, high).epsilon_planned <= epsilon:
    low, high = high, 2 * high
  while high - low > 1:
    middle = (low + high) // 2
    if _with_queries(plan, middle).epsilon_planned <= epsilon:
      low = middle
    else:
      high = middle
  return low


def _published_noise(plan: VotePlan, epsilon: float) -> float:
  """The noise that gives epsilon by the published formula, which is explicit.

  s + 2 sqrt(s ln(1/delta)) = epsilon for s = Q Delta^2 / (2 sigma^2).
  """
  log = math.log(1 / plan.delta)
  root = epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))
  # One part in 10^12 more, for the private side of all roundings.
  return plan.published.l2_sensitivity * math.sqrt(
      plan.params.queries / 2) / root * (1 + 1e-12)


def _calibrated(plan: VotePlan, epsilon: float) -> VotePlan:
  if plan.bound == 'paper':
    return _with_noise(plan, _published_noise(plan, epsilon))

  def noise(delta):
    return _with_noise(plan, calibration.noise_multiplier(
        lambda z: _with_noise(plan, z).event, epsilon=epsilon, delta=delta))

  found = noise(plan.delta)
  if found.epsilon > epsilon:  # By what the sampler takes of delta.
    part = 2 * found.delta_sampler
    if part > plan.delta / 2:
      raise ValueError(
          f'epsilon={epsilon:g} at delta={plan.delta:.3g} is beyond what is proved of '
          f'the noise: draws from tables take {found.delta_sampler:.3g} of delta')
    found = noise(plan.delta - part)
  return found


def calibrate(params: VotingParams, *, scheme: str, level: str,
              epsilon: float | None, noise_stddev: float | None,
              delta: float | None = None, bound: str = 'tight',
              simulation_seed: int | None = None,
              allow_degenerate: bool = False) -> VotePlan:
  """The plan for a target, or for a given noise.

  Args:
    params: Everything but the noise, which is ignored.
    scheme: 'ae' or 'knn'.
    level: 'agent' or 'instance'.
    epsilon: Target; with `noise_stddev`, what must not be exceeded.
    noise_stddev: Of the noise, agents; None to calibrate it to `epsilon`.
    delta: None for DEFAULT_DELTA.
    bound: As in VotePlan.
    simulation_seed: As in VotePlan.
    allow_degenerate: Whether noise may drown the votes.

  Raises:
    ValueError: If the target can't be met; the message says how many queries fit.
  """
  validate.one_of(vote_events.LEVELS, level=level)
  if epsilon is None and noise_stddev is None:
    raise ValueError('epsilon or noise_stddev must be given, found neither')
  if epsilon is not None:
    validate.positive(epsilon=epsilon)
  if noise_stddev is not None:
    validate.positive(noise_stddev=noise_stddev)
  delta = DEFAULT_DELTA[level] if delta is None else delta
  plan = VotePlan(
      params=params.replace(noise_stddev=noise_stddev or 1.0), scheme=scheme,
      level=level, delta=delta, bound=bound, simulation_seed=simulation_seed)
  if noise_stddev is None:
    plan = _calibrated(plan, epsilon)
  elif epsilon is not None and plan.epsilon_planned > epsilon:
    raise ValueError(
        f'epsilon={epsilon:g} cannot be reached with queries={params.queries} at '
        f'noise_stddev={noise_stddev:g}, which gives {plan.epsilon_planned:.4g}: '
        f'the largest number of queries that fits is '
        f'{largest_queries(plan, epsilon)}')
  if plan.degeneracy() is not None and not allow_degenerate:
    message = plan.degeneracy()
    if epsilon is not None:
      # Just below what would be degenerate.
      limit = _with_noise(plan, 0.999 * params.agents * params.max_weight)
      message = (
          f'epsilon={epsilon:g} cannot be reached in earnest with '
          f'queries={params.queries}: it takes {message}; the largest number of '
          f'queries that fits is {largest_queries(limit, epsilon)}')
    raise ValueError(f'{message}; allow it with --allow_degenerate')
  return plan


@dataclasses.dataclass(frozen=True, kw_only=True)
class SgdPlan:
  """A calibrated plan for rounds of DP-FedSGD, as `simulation.loop` takes it.

  Attributes:
    noise_multiplier: Of the noise in a round's sum over the clip of a record.
    sampling_rate: Of a record.
    clip: L2, of a record's gradient.
    rounds: In all.
    delta: Strictly between 0 and 1.
    agents: That take part in every round.
    records: Of all agents together; taken as public.
    simulation_seed: A seed voids the guarantee.
  """

  noise_multiplier: float
  sampling_rate: float
  clip: float
  rounds: int
  delta: float
  agents: int
  records: int
  simulation_seed: int | None = None

  @classmethod
  def calibrate(cls, *, epsilon: float | None, noise_multiplier: float | None,
                delta: float | None, **rest) -> 'SgdPlan':
    """The plan for a target epsilon, or for a given noise multiplier."""
    if (epsilon is None) == (noise_multiplier is None):
      raise ValueError(
          'one of epsilon and noise_multiplier must be given, found '
          f'epsilon={epsilon!r} and noise_multiplier={noise_multiplier!r}')
    delta = DEFAULT_DELTA['instance'] if delta is None else delta
    plan = cls(noise_multiplier=noise_multiplier or 1.0, delta=delta, **rest)
    validate.positive(noise_multiplier=plan.noise_multiplier)
    if noise_multiplier is None:
      plan = dataclasses.replace(
          plan, noise_multiplier=calibration.noise_multiplier(
              lambda z: dataclasses.replace(plan, noise_multiplier=z).all_rounds(
                  plan.rounds), epsilon=epsilon, delta=delta))
    return plan

  def __post_init__(self):
    validate.open_unit_interval(delta=self.delta)
    validate.positive(clip=self.clip)
    validate.integer(rounds=self.rounds, agents=self.agents, records=self.records,
                     low=1)
    self.round_event  # Raises what is out of range.

  @property
  def expected_records(self) -> float:
    """Records of a round, expected: the constant that sums are divided by."""
    return self.sampling_rate * self.records

  @functools.cached_property
  def round_event(self) -> base.Event:
    return events.NoisyGradients(
        noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate)

  def all_rounds(self, rounds: int) -> base.Event:
    return events.SelfComposed(event=self.round_event, count=max(1, rounds))

  def guarantee(self, rounds: int) -> accountant.Guarantee:
    return accountant.guarantee(self.all_rounds(rounds), self.delta)

  def epsilon(self, rounds: int) -> float:
    return self.guarantee(rounds).epsilon if rounds else 0.0

  def warnings(self, rounds: int) -> list[str]:
    found = []
    if self.simulation_seed is not None:
      found.append('seeded run: no guarantee (noise and batches follow from a seed)')
    found.append('the number of all records is taken as public: it sets the '
                 'sampling rate and divides the sums')
    found.append('Gaussian noise in floating point carries the guarantee of ideal '
                 'arithmetic only')
    return found + list(self.guarantee(rounds).warnings)

  def configuration(self) -> dict:
    return dataclasses.asdict(self)
