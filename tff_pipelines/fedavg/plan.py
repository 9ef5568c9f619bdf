"""The privacy plan of a run: what is accounted is what is executed.

One object holds the sampling, the aggregator's parameters, the privacy event
of a round and the trust model. The trainer takes its sampler and its
aggregation factory from it, the ledger and the report take their numbers from
it; none of them is told a privacy parameter by anyone else.
"""

import dataclasses
import decimal
import functools
import hashlib
import json
import math

from tff_pipelines import noise_sampler
from tff_pipelines.accounting import accountant
from tff_pipelines.accounting import base
from tff_pipelines.accounting import calibration
from tff_pipelines.accounting import deviation as deviation_lib
from tff_pipelines.accounting import events
from tff_pipelines.accounting import request as request_lib
from tff_pipelines.simulation import cohorts
from aggregators import params as params_lib
from aggregators import share_tables
from aggregators import validate

MECHANISMS = (
    'none', 'gaussian', 'skellam', 'discrete_gaussian', 'skellam_central')

# What the trainer uses whatever the mechanism.
_ALWAYS_USED = frozenset({'cohort_size', 'population', 'rounds', 'sampling'})
# What only an adaptive clip uses.
_OF_ADAPTIVE_CLIPS = frozenset(
    {'clip_count_stddev', 'target_quantile', 'clip_learning_rate'})


def check(request: request_lib.Request) -> None:
  """Raises ValueError for what is wrong whatever the task's data are."""
  validate.one_of(MECHANISMS, mechanism=request.mechanism)
  # What this mechanism does not use must be a number too: it is recorded.
  for name, value in vars(request).items():
    if isinstance(value, float):
      validate.finite(**{name: value})
  validate.finite(cohort_size=request.cohort_size)
  if request.cohort_size < 1:
    raise ValueError(
        f'cohort_size must be at least 1, found {request.cohort_size!r}')
  if request.delta is not None:
    validate.open_unit_interval(delta=request.delta)
  if request.mechanism == 'none':
    if request.adaptive_clipping:
      raise ValueError(
          'adaptive_clipping needs a mechanism that clips, found mechanism=none')
    return
  validate.positive(clip=request.needed('clip'))
  if request.adaptive_clipping and not request.family.params:
    raise ValueError(
        'adaptive_clipping needs a mechanism under secure aggregation (skellam, '
        f'discrete_gaussian, skellam_central), found mechanism={request.mechanism}')
  if request.clip_count_stddev is not None:
    validate.positive(clip_count_stddev=request.clip_count_stddev)
  if request.epsilon is not None and request.noise_multiplier is not None:
    raise ValueError(
        'epsilon and noise_multiplier must not both be given: one follows from '
        f'the other; found epsilon={request.epsilon!r} and '
        f'noise_multiplier={request.noise_multiplier!r}')
  if request.noise_multiplier is not None:
    validate.positive(noise_multiplier=request.noise_multiplier)
  else:
    validate.positive(epsilon=request.needed('epsilon'))


def _check_clip_count(request: request_lib.Request) -> None:
  """Raises ValueError if the count of an adaptive clip alone is over the target.

  No noise of the sum could make up for it.
  """
  count = request_lib.clip_count(request)
  if count is None or request.noise_multiplier is not None:
    return
  alone = accountant.epsilon(
      request_lib.sampled(request, count), request.delta,
      accountant=request.accountant, amplification=request.amplification)
  if alone >= request.epsilon:
    raise ValueError(
        f'clip_count_stddev={request.adaptive_clip().count_stddev:g} is too '
        f'little: the count of the adaptive clip alone costs epsilon={alone:.4g} '
        f'of the target {request.epsilon:g}')


def _most_clients(request: request_lib.Request) -> int:
  """No cohort is larger."""
  if request.sampling == 'poisson':
    return request.needed('population')
  return int(request.needed('cohort_size'))


def _reserved_delta(request: request_lib.Request) -> float:
  """What is kept of delta for the sampler of the noise, at most half of it."""
  if not request.family.params:
    return 0.0
  return min(request.delta / 2, noise_sampler.reserve(
      request.replace(epsilon=None, noise_multiplier=1.0).params(),
      _most_clients(request), request.rounds, request.epsilon))


def _solved(request: request_lib.Request) -> request_lib.Request:
  """With the least noise that meets the target; `calibration.Unreachable` if none."""
  return request.replace(noise_multiplier=calibration.noise_multiplier(
      lambda z: request.replace(noise_multiplier=z).event(),
      epsilon=request.epsilon, delta=request.delta - _reserved_delta(request),
      accountant=request.accountant, amplification=request.amplification))


def _with_noise(request: request_lib.Request) -> request_lib.Request:
  """As `_solved`; a ValueError that names the bits that would do if there are any."""
  try:
    return _solved(request)
  except calibration.Unreachable as error:
    if not request.family.params or request.bits is None:
      raise
    raise ValueError(calibration.unreachable_reason(
        request.replace(noise_multiplier=1.0).params(),
        lambda trial: _solved(request.replace(bits=trial.bits)).params(),
        error)) from None


def _check_generator(plan: 'PrivacyPlan') -> None:
  """Raises ValueError if the generator asked for can't draw all the noise."""
  if plan.noise_generator == params_lib.NOISE_GENERATORS[0]:
    return
  where = f'noise_generator={plan.noise_generator}'
  if plan.params is None:
    raise ValueError(
        f'{where} needs a mechanism whose clients add the noise (skellam, '
        f'discrete_gaussian), found mechanism={plan.request.mechanism}')
  if plan.adaptive is not None:
    raise ValueError(
        f'{where} can\'t be had with adaptive_clipping: the noise of its count is '
        'drawn by TensorFlow\'s Poisson sampler')
  share_tables.check_generator(plan.params)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
  """A calibrated plan for rounds of federated learning.

  Attributes:
    request: The calibrated request: mechanism, noise multiplier, clip, bits,
      cohort, population, sampling, rounds, delta and the rest.
    given: Names of the fields that the user gave, for the warnings.
    simulation_seed: A seed voids the guarantee.
    diagnostics: Whether values outside the guarantee are measured.
    target_quantile: Of the norms, for an adaptive clip.
    clip_learning_rate: Of an adaptive clip.
    noise_generator: As in DistributedSumParams.
  """

  request: request_lib.Request
  given: frozenset[str] = frozenset()
  simulation_seed: int | None = None
  diagnostics: bool = False
  target_quantile: float = 0.5
  clip_learning_rate: float = 0.2
  noise_generator: str = 'philox'

  @classmethod
  def calibrate(cls, request: request_lib.Request, **attributes) -> 'PrivacyPlan':
    """Makes the plan of a request that gives epsilon or the noise multiplier.

    Args:
      request: Its `dimension` and `population` are known. Exactly one of
        `epsilon` and `noise_multiplier` is given, unless the mechanism is none.
      **attributes: Further attributes of the plan.

    Raises:
      ValueError: If the request can't be met; the message says why.
    """
    check(request)
    population = request.needed('population')
    validate.integer(population=population, low=1)
    if request.cohort_size > population:
      raise ValueError(
          f'cohort_size={request.cohort_size:g} is larger than the population of '
          f'{population} clients')
    if request.sampling == 'none' and request.cohort_size != population:
      raise ValueError(
          'sampling=none takes all clients every round: cohort_size must be the '
          f'population, {population}, found {request.cohort_size:g}')
    if request.delta is None:
      request = request.replace(delta=1 / population)
    if not 0 < request.delta < 1:
      raise ValueError(
          'delta must be given, strictly between 0 and 1, for a population of 1')
    if request.mechanism == 'none':
      plan = cls(request=request.replace(epsilon=None, noise_multiplier=None),
                 **attributes)
      _check_generator(plan)
      plan.sampler  # Raises what sampling can't be done.
      return plan
    _check_clip_count(request)
    if request.noise_multiplier is None:
      request = _with_noise(request)
    plan = cls(request=request, **attributes)
    _check_generator(plan)
    plan.check_sampler()
    plan.sampler  # Raises what sampling can't be done.
    plan.adaptive  # Raises for settings out of range.
    if plan.params is not None:
      plan.params.check_shares()
      if not request.allow_degenerate:
        calibration.refuse_degenerate(plan.params)
    return plan

  @functools.cached_property
  def params(self) -> params_lib.DistributedSumParams | None:
    """Parameters of the distributed sum; None for central mechanisms."""
    if not self.request.family.params:
      return None
    return self.request.params().replace(noise_generator=self.noise_generator)

  @functools.cached_property
  def adaptive(self) -> params_lib.AdaptiveClipParams | None:
    """How the clip adapts; None if it stays."""
    return self.request.adaptive_clip(
        target_quantile=self.target_quantile,
        learning_rate=self.clip_learning_rate)

  @functools.cached_property
  def sampler(self) -> cohorts.CohortSampler:
    """Draws the clients of each round, as `round_event` says."""
    request = self.request
    return cohorts.CohortSampler(
        sampling=request.sampling, population=request.population,
        cohort_size=request.cohort_size, simulation_seed=self.simulation_seed)

  @functools.cached_property
  def round_event(self) -> base.Event:
    """The privacy event of one round, sampling included."""
    if self.request.mechanism == 'none':
      return events.NoPrivacy()
    return self.request.replace(rounds=1).event().event

  @property
  def is_private(self) -> bool:
    return self.request.mechanism != 'none'

  @functools.cached_property
  def delta_sampler(self) -> float | None:
    """What of delta the sampler of the noise takes, all rounds; None if unknown.

    (1 + e^epsilon) times the total variation between what is released and what
    exact laws would release: see `noise_sampler`. It is part of delta, unless it
    is more than half: then epsilon is that of exact laws.
    """
    return self._taken(self.request.rounds, self.request.epsilon)

  @property
  def sampler_in_words(self) -> str | None:
    """What draws the noise; None if there is none."""
    if not self.is_private:
      return None
    return noise_sampler.describe(self.params, self.adaptive is not None)

  def check_sampler(self) -> None:
    """Raises ValueError if epsilon was asked for and is beyond the sampler."""
    taken, request = self.delta_sampler, self.request
    if request.epsilon is None or taken is None or taken <= request.delta / 2:
      return
    raise ValueError(
        f'epsilon={request.epsilon:g} at delta={request.delta:.3g} is beyond what '
        'is proved of the noise: draws from tables are so near to their law that '
        f'over {request.rounds} rounds they take {taken:.3g} of delta, and at most '
        'half may be; a smaller epsilon or a larger delta would do, or '
        'noise_multiplier in place of epsilon')

  @property
  def deviation_per_round(self) -> float | None:
    """Total variation between a round's release and exact laws'; None if unknown."""
    found = self._deviation(1)
    return None if found is None else min(1.0, found)

  def _deviation(self, rounds: int) -> float | None:
    if not self.is_private:
      return None
    return noise_sampler.total_variation(
        self.params, _most_clients(self.request), rounds)

  def _taken(self, rounds: int, epsilon: float | None,
             sampled: bool = True) -> float | None:
    """As `delta_sampler`, at an epsilon; None for the one that will be found."""
    deviation = self._deviation(rounds)
    if deviation is None:
      return None
    if epsilon is not None:
      return deviation_lib.taken(deviation, epsilon)
    return deviation_lib.taken_at_most(
        deviation, self._event(rounds, sampled), self.request.delta,
        accountant=self.request.accountant,
        amplification=self.request.amplification if sampled else 'none')

  def _left(self, taken: float | None) -> float:
    """What of delta is left for the exact law."""
    return deviation_lib.left(self.request.delta, taken)

  def _delta_left(self, rounds: int) -> float:
    if rounds <= self.request.rounds:
      return self._left(self.delta_sampler)
    return self._left(self._taken(rounds, None))

  def _event(self, rounds: int, sampled: bool = True) -> base.Event:
    event = events.SelfComposed(event=self.round_event, count=rounds)
    return event if sampled else event.without_sampling()

  def guarantee(self, rounds: int) -> accountant.Guarantee:
    """What holds against those who see the models after so many rounds."""
    rounds = max(1, rounds)
    found = accountant.guarantee(
        self._event(rounds), self._delta_left(rounds),
        accountant=self.request.accountant,
        amplification=self.request.amplification,
        population=self.request.population)
    return dataclasses.replace(found, delta=self.request.delta)

  def epsilon(self, rounds: int) -> float:
    """Epsilon against those who see the models after so many rounds."""
    return self.guarantee(rounds).epsilon if rounds else 0.0

  def delta_sampler_unamplified(self, rounds: int) -> float | None:
    """As `delta_sampler`, at the epsilon of `epsilon_unamplified`."""
    return self._taken(rounds, None, sampled=False) if rounds else None

  def epsilon_unamplified(self, rounds: int) -> float:
    """Epsilon against those who know who took part in each round."""
    if not rounds:
      return 0.0
    return accountant.epsilon(
        self._event(rounds, sampled=False),
        self._left(self.delta_sampler_unamplified(rounds)),
        accountant=self.request.accountant, amplification='none')

  def warnings(self, rounds: int) -> list[str]:
    """What a reader of the numbers must know, in words."""
    found = []
    if self.simulation_seed is not None:
      found.append(
          'seeded run: no guarantee (noise, rounding and cohorts follow from a '
          'seed)')
    if self.diagnostics:
      found.append(
          'diagnostics are on: what they measure comes from raw values and '
          'cohort sizes and is outside the guarantee')
    if self.params is not None and self.params.degeneracy() is not None:
      found.append(f'degenerate grid: {self.params.degeneracy()}')
    for name in sorted(self._unused()):
      why = f'mechanism={self.request.mechanism}'
      if name in _OF_ADAPTIVE_CLIPS and self._may_adapt:
        why = 'a clip that stays; --adaptive_clipping makes it move'
      found.append(f'--{name} is not used by {why}')
    found.extend(self._of_mechanism())
    if self.delta_sampler is not None and (
        self.delta_sampler > self.request.delta / 2):
      found.append(
          f'epsilon is that of exact laws: at such an epsilon the draws from '
          f'tables would take {self.delta_sampler:.3g} of delta, more than half')
    if self.is_private:
      found.extend(self.guarantee(rounds).warnings)
    return found

  def _unused(self) -> frozenset[str]:
    """Names of the flags that were given and have no effect."""
    used = _ALWAYS_USED
    if self.is_private:
      used = used | self.request.family.uses | {'clip'}
    used -= _OF_ADAPTIVE_CLIPS
    if self._may_adapt and self.request.adaptive_clipping:
      used |= _OF_ADAPTIVE_CLIPS
    return self.given - used

  @property
  def _may_adapt(self) -> bool:
    return 'adaptive_clipping' in self.request.family.uses

  def _of_mechanism(self) -> list[str]:
    """What this mechanism and rotation do not promise."""
    found = []
    if self.params is None:
      return found
    if self.request.mechanism == 'discrete_gaussian' and (
        self.request.sampling == 'poisson'):
      found.append(
          'discrete Gaussian shares do not add up to one law as the cohort '
          'varies: amplification by Poisson sampling holds approximately only')
    if self.params.rotation == 'none':
      found.append(
          'rotation=none does not spread updates over the coordinates: large '
          'coordinates may wrap around, which costs accuracy but no privacy')
    return found

  def configuration(self) -> dict:
    """Everything that defines the plan, as JSON."""
    fields = dataclasses.asdict(self.request)
    fields.update(simulation_seed=self.simulation_seed,
                  diagnostics=self.diagnostics,
                  target_quantile=self.target_quantile,
                  clip_learning_rate=self.clip_learning_rate,
                  noise_generator=self.noise_generator)
    return fields


def configuration_hash(configuration: dict) -> str:
  """SHA-256 of a configuration's canonical JSON."""
  text = json.dumps(configuration, sort_keys=True, separators=(',', ':'),
                    allow_nan=False)
  return hashlib.sha256(text.encode()).hexdigest()


def describe_epsilon(value: float) -> str:
  """A value of epsilon for people, rounded up."""
  if math.isinf(value):
    return 'inf'
  # What a float is printed as tells it from all others, so it stands for it.
  return str(decimal.Decimal(repr(float(value))).quantize(
      decimal.Decimal('0.0001'), decimal.ROUND_CEILING, decimal.Context(prec=400)))
