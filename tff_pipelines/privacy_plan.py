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

MECHANISMS = ('none', 'gaussian', 'skellam')

# What the trainer uses whatever the mechanism.
_ALWAYS_USED = frozenset({'cohort_size', 'population', 'rounds', 'sampling'})


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
    return
  validate.positive(clip=request.needed('clip'))
  if request.epsilon is not None and request.noise_multiplier is not None:
    raise ValueError(
        'epsilon and noise_multiplier must not both be given: one follows from '
        f'the other; found epsilon={request.epsilon!r} and '
        f'noise_multiplier={request.noise_multiplier!r}')
  if request.noise_multiplier is not None:
    validate.positive(noise_multiplier=request.noise_multiplier)
  else:
    validate.positive(epsilon=request.needed('epsilon'))


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
  """

  request: request_lib.Request
  given: frozenset[str] = frozenset()
  simulation_seed: int | None = None
  diagnostics: bool = False
  assumed_colluders: int = 0

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
    if request.noise_multiplier is None:
      request = request.replace(
          noise_multiplier=calibration.noise_multiplier(
              lambda z: request.replace(noise_multiplier=z).event(),
              epsilon=request.epsilon, delta=request.delta,
              accountant=request.accountant,
              amplification=request.amplification))
    plan = cls(request=request, **attributes)
    plan.sampler  # Raises what sampling can't be done.
    if plan.params is not None and not request.allow_degenerate:
      calibration.refuse_degenerate(plan.params)
    return plan

  @functools.cached_property
  def params(self) -> params_lib.DistributedSumParams | None:
    """Parameters of the distributed sum; None for central mechanisms."""
    if not self.request.family.params:
      return None
    return self.request.params().replace(assumed_colluders=self.assumed_colluders)

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
      found.append(
          f'--{name} is not used by mechanism={self.request.mechanism}')
    if self.is_private:
      found.extend(self.guarantee(rounds).warnings)
    return found

  def _unused(self) -> frozenset[str]:
    """Names of the flags that were given and have no effect."""
    used = _ALWAYS_USED
    if self.is_private:
      used = used | self.request.family.uses | {'clip'}
    given = self.given
    if self.assumed_colluders and self.params is None:
      given = given | {'assumed_colluders'}
    return given - used

  def configuration(self) -> dict:
    """Everything that defines the plan, as JSON."""
    fields = dataclasses.asdict(self.request)
    fields.update(simulation_seed=self.simulation_seed,
                  diagnostics=self.diagnostics,
                  assumed_colluders=self.assumed_colluders)
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
