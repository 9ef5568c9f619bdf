"""The event of one step of NoisySGD whose records lie with several agents."""

import dataclasses
from typing import ClassVar

import numpy as np

from aggregators import validate
from tff_pipelines.accounting import base
from tff_pipelines.accounting import caveats as caveats_lib
from tff_pipelines.accounting import combinators
from tff_pipelines.accounting import sum_events

_SECRET_BATCH = caveats_lib.Caveat(
    'batches assumed to be hidden',
    'amplification holds against everyone who does not learn which, or how '
    'many, records an agent drew for a step; the agent itself does')


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyGradients(base.Event):
  """The sum of clipped gradients of randomly sampled records, with Gaussian noise.

  Every agent participates in every step, samples each of its own records
  independently and in secret, clips each gradient, and adds a share of the
  noise. Real-valued noise in floating point carries the guarantee of ideal
  arithmetic only.

  Attributes:
    noise_multiplier: Standard deviation of the honest noise in the sum over the
      clip of one gradient, >= 0 (0: no guarantee).
    sampling_rate: In (0, 1], of a record, the same in all agents.
  """

  noise_multiplier: float
  sampling_rate: float

  source: ClassVar[str] = (
      'arXiv 1607.00133; arXiv 2210.00597 (tight), Zhu and Wang 2019, Theorem 5 '
      '(generic); arXiv 2106.08567, Theorem 11 (PLD)')

  def __post_init__(self):
    validate.non_negative(noise_multiplier=self.noise_multiplier)
    validate.fraction(sampling_rate=self.sampling_rate)

  @property
  def _sampled(self) -> combinators.PoissonSampled:
    return combinators.PoissonSampled(
        event=sum_events.CentralGaussian(noise_multiplier=self.noise_multiplier),
        sampling_rate=self.sampling_rate)

  @property
  def adjacency(self) -> str:
    return base.RECORD_ZERO_OUT

  @property
  def sensitivity(self) -> str:
    return 'L2 1, in units of the clip of one gradient'

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    return self._sampled.curve(max_order, amplification)

  def factors(self, amplification: str) -> tuple[base.Factor, ...] | None:
    return self._sampled.factors(amplification)

  def without_sampling(self) -> 'NoisyGradients':
    return dataclasses.replace(self, sampling_rate=1.0)

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    return () if self.sampling_rate == 1 else (_SECRET_BATCH,)
