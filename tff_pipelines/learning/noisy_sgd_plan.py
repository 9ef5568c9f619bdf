"""The privacy plan of rounds of noisy gradients on Poisson-sampled records.

DP-SGD of a curator and DP-FedSGD of clients have it in common: every round releases
the noisy sum of clipped gradients of the records that the round samples.
"""

import dataclasses
import functools
from typing import Any

from aggregators import validate
from tff_pipelines.accounting import base
from tff_pipelines.accounting import calibration
from tff_pipelines.accounting import caveats
from tff_pipelines.accounting import events
from tff_pipelines.experiment import guarantee

_PUBLIC_NUMBER = caveats.Caveat(
    'number of records public',
    'the number of all records is taken as public: it sets the sampling rate and '
    'divides the sums')
_FLOATING_POINT = caveats.Caveat(
    'floating-point Gaussian noise',
    'Gaussian noise in floating point carries the guarantee of ideal arithmetic only')


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisySgdPlan(guarantee.Plan):
  """A calibrated plan.

  Attributes:
    terms: See guarantee.Terms.
    noise_multiplier: Of the noise in a round's sum over the clip of a record.
    sampling_rate: Of a record, in (0, 1].
    clip: L2 clip of a record's gradient.
    rounds: Of the whole run.
    delta: Strictly between 0 and 1.
    clients: That participate in every round.
    records: Of all clients together; taken as public.
    seed: With a simulation seed there is no privacy guarantee (noise is predictable).
  """

  terms: guarantee.Terms
  noise_multiplier: float
  sampling_rate: float
  clip: float
  rounds: int
  delta: float
  clients: int
  records: int
  seed: int | None = None

  @classmethod
  def calibrate(cls, *, target_epsilon: float | None, noise_multiplier: float | None,
                **rest: Any) -> 'NoisySgdPlan':
    """Builds the plan for a target epsilon, or for a given noise multiplier."""
    if (target_epsilon is None) == (noise_multiplier is None):
      raise ValueError(
          'one of epsilon and noise_multiplier must be given, found '
          f'epsilon={target_epsilon!r} and noise_multiplier={noise_multiplier!r}')
    plan = cls(noise_multiplier=1.0 if noise_multiplier is None else noise_multiplier,
               **rest)
    if noise_multiplier is None:
      plan = dataclasses.replace(
          plan, noise_multiplier=calibration.noise_multiplier(
              lambda z: dataclasses.replace(plan, noise_multiplier=z).released(
                  plan.rounds), epsilon=target_epsilon, delta=plan.delta))
    return plan

  def __post_init__(self):
    validate.open_unit_interval(delta=self.delta)
    validate.positive(clip=self.clip, noise_multiplier=self.noise_multiplier)
    validate.integer(rounds=self.rounds, clients=self.clients, records=self.records,
                     low=1)
    self.event(1)  # Raises what is out of range.

  @property
  def expected_records(self) -> float:
    """Expected number of records of a round: the constant that sums are divided by."""
    return self.sampling_rate * self.records

  def event(self, index: int) -> base.Event:
    return self._round_event

  @functools.cached_property
  def _round_event(self) -> base.Event:
    return events.NoisyGradients(
        noise_multiplier=self.noise_multiplier, sampling_rate=self.sampling_rate)

  def released(self, rounds: int) -> base.Event:
    return events.SelfComposed(event=self._round_event, count=rounds)

  def notes(self) -> list[caveats.Caveat]:
    return [_PUBLIC_NUMBER, _FLOATING_POINT]

  def configuration(self) -> dict[str, Any]:
    return {'noise_multiplier': self.noise_multiplier, 'delta': self.delta,
            'records': self.records}
