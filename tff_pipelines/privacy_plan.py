"""The privacy plan of a run: what is accounted is what is executed.

One object holds the sampling, the aggregator's parameters, the privacy event
of a round and the trust model. The trainer takes its sampler and its
aggregation factory from it, the ledger and the report take their numbers from
it; none of them is told a privacy parameter by anyone else.
"""

import dataclasses
import functools
import hashlib
import json
import math

from tff_pipelines.accounting import accountant
from tff_pipelines.accounting import base
from tff_pipelines.accounting import calibration
from tff_pipelines.accounting import events
from tff_pipelines.accounting import request as request_lib
from tff_pipelines.simulation import cohorts
from aggregators import params as params_lib
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
  """A calibrated plan for rounds of federated learning.

  Attributes:
    request: The calibrated request: mechanism, noise multiplier, clip, bits,
      cohort, population, sampling, rounds, delta and the rest.
    given: Names of the fields that the user gave, for the warnings.
    simulation_seed: A seed voids the guarantee.
    diagnostics: Whether values outside the guarantee are measured.
    assumed_colluders: As in DistributedSumParams.
    target_quantile: Of the norms, for an adaptive clip.
    clip_learning_rate: Of an adaptive clip.
  """

  request: request_lib.Request
  given: frozenset[str] = frozenset()
  simulation_seed: int | None = None
  diagnostics: bool = False
  assumed_colluders: int = 0
  target_quantile: float = 0.5
  clip_learning_rate: float = 0.2

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
      plan.sampler  # Raises what sampling can't be done.
      return plan
    _check_clip_count(request)
    if request.noise_multiplier is None:
      request = request.replace(
          noise_multiplier=calibration.noise_multiplier(
              lambda z: request.replace(noise_multiplier=z).event(),
              epsilon=request.epsilon, delta=request.delta,
              accountant=request.accountant,
              amplification=request.amplification))
    plan = cls(request=request, **attributes)
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
    return self.request.params().replace(assumed_colluders=self.assumed_colluders)

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

  def guarantee(self, rounds: int) -> accountant.Guarantee:
    """What holds against those who see the models after so many rounds."""
    event = events.SelfComposed(event=self.round_event, count=max(1, rounds))
    return accountant.guarantee(
        event, self.request.delta, accountant=self.request.accountant,
        amplification=self.request.amplification,
        population=self.request.population)

  def epsilon(self, rounds: int) -> float:
    """Epsilon against those who see the models after so many rounds."""
    return self.guarantee(rounds).epsilon if rounds else 0.0

  def epsilon_unamplified(self, rounds: int) -> float:
    """Epsilon against those who know who took part in each round."""
    if not rounds:
      return 0.0
    event = events.SelfComposed(event=self.round_event, count=rounds)
    return accountant.epsilon(
        event.without_sampling(), self.request.delta,
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
    given = self.given
    if self.assumed_colluders and (
        self.params is None or not self.params.has_shares):
      given = given | {'assumed_colluders'}
    return given - used

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
                  assumed_colluders=self.assumed_colluders,
                  target_quantile=self.target_quantile,
                  clip_learning_rate=self.clip_learning_rate)
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
  return f'{math.ceil(value * 1e4) / 1e4:.4f}'
