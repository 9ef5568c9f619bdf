"""The event of records that silos sample in secret."""

import dataclasses
import math
from typing import Self

from dp_accounting import dp_event
import numpy as np

from aggregators import params as params_lib
from tff_pipelines.accounting.divergences import curves, gaussian_mixtures
from tff_pipelines.accounting.events import base, sampled, turns
from tff_pipelines.common import caveats as caveats_lib, validate


class SampledRecords(base.Equivalent, sampled.Sampled, base.Release):
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
    column: Weights of the sums of a row that is opened. With b > 1 of them a record can
      be drawn in every b-th round alone, by a rule that depends on no other record, and
      is in the rows of that round and of the next ones (arXiv 2306.08153).
  """

  sampling_rate: validate.Fraction
  neighbours: str = base.RECORD_ZERO_OUT
  column: tuple[int, ...] = (1,)

  source = (
      'rows: docs/correlated_noise.md; added, removed: arXiv 1607.00133; arXiv 2210.00597 (tight), Zhu and Wang 2019, '
      'Theorem 5 (generic), arXiv 2106.08567, Theorem 11 (PLD); replaced: '
      'docs/fixed_size.md (PLD), arXiv 1808.00087, Theorem 9 (RDP)')
  known = base.any_cohorts
  is_secret = base.yes

  def __post_init__(self):
    super().__post_init__()
    validate.one_of((base.RECORD_ZERO_OUT, base.INSTANCE), neighbours=self.neighbours)
    object.__setattr__(self, 'column', params_lib.check_column(self.column))
    if self.is_ordered() and self.neighbours != base.RECORD_ZERO_OUT:
      raise ValueError(f'neighbours must be {base.RECORD_ZERO_OUT} with a column of '
                       f'several weights, found {self.neighbours}')
    _ = self.equivalent  # Raises ValueError if records can't be sampled.

  @property
  def adjacency(self) -> str:
    return self.neighbours

  @property
  def equivalent(self) -> sampled.PoissonSampled:
    """The release whose neighbours differ by a record that is added or removed."""
    event = self.event if self.column == (1,) else self.event.rows(self.column[:1])
    return sampled.PoissonSampled(event=event, sampling_rate=self.sampling_rate)

  def is_ordered(self) -> bool:
    return len(self.column) > 1

  keeps_closed = is_ordered

  def _in_rows(self, column: tuple[int, ...]) -> Self:
    return dataclasses.replace(self, event=self.event.rows(column), column=(1,))

  def counted(self, count: int, amplification: str) -> base.Counted:
    if not self.is_ordered():
      return super().counted(count, amplification)
    return tuple((self._in_rows(column), times) for column, times in turns.rows_of_turns(
        self.column, count, 1, len(self.column)))

  def repeated(self) -> base.Event:
    # A row that is opened again has the same sums of earlier rounds: nothing is drawn.
    return super().repeated() if not self.is_ordered() else dataclasses.replace(
        self._in_rows((max(self.column),)), sampling_rate=1.0)

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
        (gaussian_mixtures.PoissonReplaced(
            noise_multiplier=noise, sampling_rate=self.sampling_rate), 1),)

  def without_sampling(self) -> Self:
    return dataclasses.replace(self, sampling_rate=1.0)

  def minimum_cohort(self) -> float | None:
    return self.event.minimum_cohort()

  def seen(self, colluders: float, cohort: float | None) -> base.Event:
    if colluders:
      # One may run the server, which knows the shares of silos that are missing.
      colluders += math.floor((1 - (self.honest_fraction() or 1.0)) * (
          self.minimum_cohort() or 0.0) + 1e-9)
    return dataclasses.replace(self, event=self.event.seen(colluders, None))

  def to_dp_accounting(self) -> dp_event.DpEvent:
    return (self.equivalent if self.neighbours == base.RECORD_ZERO_OUT else super()
            ).to_dp_accounting()

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    hidden = caveats_lib.Caveat(
        'batches assumed to be hidden',
        'amplification holds against everyone who does not learn which, or how many, '
        'records a silo drew for a step; the silo itself does')
    return sampled.unique((*self.event.caveats(), *[hidden] * (self.sampling_rate < 1)))
