"""Events of records that silos sample in secret."""

import dataclasses

from dp_accounting import dp_event
import numpy as np

from tff_pipelines.accounting.events import base, sampled
from tff_pipelines.common import caveats as caveats_lib, validate

HIDDEN = caveats_lib.Caveat(
    'batches assumed to be hidden',
    'amplification holds against everyone who does not learn which, or how many, '
    'records a silo drew for a step; the silo itself does')


class SampledRecords(base.Event):
  """A sum over records that their silos sample independently and in secret.

  Every silo draws each of its records with one probability, encodes each by itself and
  sends the sum with one share of the noise (`aggregators.record_sum`). Whoever holds no
  record learns nothing of the sample, so the amplified number is one against all, the
  server and other silos included; nothing holds against the silo of the record.

  Attributes:
    event: The sum of the sample, stated for zero-out: of a record. Its cohort is the
      silos, who hold the shares of its noise.
    sampling_rate: q, of a record, the same in all silos.
  """

  event: base.Inner
  sampling_rate: validate.Fraction

  source = 'arXiv 1607.00133; of the sum: arXiv 2210.00597 (tight)'
  adjacency = base.RECORD_ZERO_OUT
  scaled = base.no_known_group  # A silo is no record.
  is_secret = base.yes

  def __post_init__(self):
    super().__post_init__()
    _ = self._poisson  # Raises ValueError if records can't be sampled.

  @property
  def _poisson(self) -> sampled.PoissonSampled:
    return sampled.PoissonSampled(event=self.event, sampling_rate=self.sampling_rate)

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    return self._poisson.curve(max_order, amplification)

  def failure_probability(self) -> float:
    return self.event.failure_probability()

  def pure_epsilon(self, amplification: str) -> float:
    return self._poisson.pure_epsilon(amplification)

  def factors(self, amplification: str) -> base.Factors | None:
    return self._poisson.factors(amplification)

  def without_sampling(self) -> base.Event:
    return dataclasses.replace(self, sampling_rate=1.0)

  known = base.any_cohorts

  def counted(self, count: int, amplification: str) -> base.Counted:
    return ((self, count),)

  def repeated(self) -> base.Event:
    return self

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    return sampled.unique((*self.event.caveats(), *[HIDDEN] * (self.sampling_rate < 1)))

  def honest_fraction(self) -> float | None:
    return self.event.honest_fraction()

  def minimum_cohort(self) -> float | None:
    return self.event.minimum_cohort()

  def is_known_in_part(self) -> bool:
    return self.event.is_known_in_part()

  def seen(self, colluders: float, cohort: float | None) -> base.Event:
    return dataclasses.replace(self, event=self.event.seen(colluders, None))

  def group(self, clients: int, known: bool) -> None:
    """States that the number is of one record, or person, of one silo."""

  def to_dp_accounting(self) -> dp_event.DpEvent:
    return self._poisson.to_dp_accounting()

  def skellam_coordinates(self) -> int:
    return self.event.skellam_coordinates()

  def as_gaussian(self, distance: float) -> base.Event:
    return dataclasses.replace(self, event=self.event.as_gaussian(distance))
