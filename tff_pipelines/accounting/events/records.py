"""The event of records that silos sample in secret."""

import dataclasses
from typing import Self

from dp_accounting import dp_event
import numpy as np

from tff_pipelines.accounting.divergences import curves, replaced
from tff_pipelines.accounting.events import base, sampled
from tff_pipelines.common import caveats as caveats_lib, validate


class SampledRecords(base.Equivalent, base.Release):
  """A sum over records that their silos sample independently and in secret.

  Every silo draws each of its records with one probability, encodes each by itself and
  sends the sum with one share of the noise (`aggregators.record_sum`). Whoever holds no
  record learns nothing of the sample, so the amplified number is one against all, the
  server and other silos included; nothing holds against the silo of the record.

  Attributes:
    event: The sum of the sample, stated for zero-out: of a record. Its cohort is the
      silos, who hold the shares of its noise.
    sampling_rate: q, of a record, the same in all silos.
    neighbours: Adjacency: 'record-zero-out', a record is added or removed; or
      'instance', or replaced by another, which moves a sum twice as far.
  """

  event: base.Inner
  sampling_rate: validate.Fraction
  neighbours: str = base.RECORD_ZERO_OUT

  source = (
      'added, removed: arXiv 1607.00133; arXiv 2210.00597 (tight), Zhu and Wang 2019, '
      'Theorem 5 (generic), arXiv 2106.08567, Theorem 11 (PLD); replaced: '
      'docs/fixed_size.md (PLD), arXiv 1808.00087, Theorem 9 (RDP)')
  scaled = base.no_known_group  # A silo is no record.
  known = base.any_cohorts
  is_secret = base.yes

  def __post_init__(self):
    super().__post_init__()
    validate.one_of((base.RECORD_ZERO_OUT, base.INSTANCE), neighbours=self.neighbours)
    _ = self.equivalent  # Raises ValueError if records can't be sampled.

  @property
  def adjacency(self) -> str:
    return self.neighbours

  @property
  def equivalent(self) -> sampled.PoissonSampled:
    """The release whose neighbours differ by a record that is added or removed."""
    return sampled.PoissonSampled(event=self.event, sampling_rate=self.sampling_rate)

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    if self.neighbours == base.RECORD_ZERO_OUT:
      return super().curve(max_order, amplification)
    known = self.event.replace_one().curve(max_order, amplification)
    # With the record, with the other, and without: as far apart as in cohorts of a size.
    return known if amplification == 'none' else curves.fixed_size(
        known, self.sampling_rate)

  def pure_epsilon(self, amplification: str) -> float:
    return np.inf if self.neighbours != base.RECORD_ZERO_OUT else (
        super().pure_epsilon(amplification))

  def factors(self, amplification: str) -> base.Factors | None:
    if self.neighbours == base.RECORD_ZERO_OUT:
      return super().factors(amplification)
    noise = getattr(self.event, 'noise_multiplier', None)
    if amplification == 'none' or self.sampling_rate == 1 or noise == 0:
      return self.event.replace_one().factors(amplification)
    return None if amplification == 'generic' or noise is None else (
        (replaced.PoissonReplaced(
            noise_multiplier=noise, sampling_rate=self.sampling_rate), 1),)

  def without_sampling(self) -> Self:
    return dataclasses.replace(self, sampling_rate=1.0)

  def honest_fraction(self) -> float | None:
    return self.event.honest_fraction()

  def minimum_cohort(self) -> float | None:
    return self.event.minimum_cohort()

  def is_known_in_part(self) -> bool:
    return self.event.is_known_in_part()

  def seen(self, colluders: float, cohort: float | None) -> base.Event:
    return dataclasses.replace(self, event=self.event.seen(colluders, None))

  def skellam_coordinates(self) -> int:
    return self.event.skellam_coordinates()

  def as_gaussian(self, distance: float) -> base.Event:
    return dataclasses.replace(self, event=self.event.as_gaussian(distance))

  def to_dp_accounting(self) -> dp_event.DpEvent:
    return (self.equivalent if self.neighbours == base.RECORD_ZERO_OUT else super()
            ).to_dp_accounting()

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    hidden = caveats_lib.Caveat(
        'batches assumed to be hidden',
        'amplification holds against everyone who does not learn which, or how many, '
        'records a silo drew for a step; the silo itself does')
    return sampled.unique((*self.event.caveats(), *[hidden] * (self.sampling_rate < 1)))
