"""The noise mechanisms of sums of integers: one object each, which says everything.

Tables, samplers, kernels, accounting and reports ask the object and know no names. One
that leaves something unsaid can't be built; a name without an object is refused.
"""

import dataclasses

from aggregators import alias_table
from tff_pipelines.common import validate

# Samplers of the graph, for what is not drawn from tables (`distributed_sum`).
SAMPLERS = ('poisson', 'rejection')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
  """The noise mechanism of a sum of integers.

  Attributes:
    name: Name of the mechanism, as flags and parameters have it.
    has_shares: Whether clients add shares of the noise; else the server adds all.
    is_divisible: Whether shares of any size add up to one distribution. Otherwise
      shares are sized for the largest planned cohort, and a share is one draw.
    smallest_share: Minimum standard deviation of a share for which the bound holds,
      grid units; 0 for none.
    tables: Tables that shares are drawn from.
    sampler: Sampler of draws without a table, one of SAMPLERS.
    sampler_total_variation: Total variation distance of such a draw from its
      distribution; None if no bound is proved.
    in_kernels: Whether the compiled kernels draw its shares from its tables.
  """

  name: str
  has_shares: bool
  is_divisible: bool
  smallest_share: validate.NonNegative
  tables: alias_table.Family
  sampler: str
  sampler_total_variation: validate.UnitInterval | None
  in_kernels: bool

  def __post_init__(self):
    validate.fields(self)
    validate.one_of(SAMPLERS, sampler=self.sampler)
    for name in ('has_shares', 'is_divisible', 'in_kernels'):
      if not isinstance(value := getattr(self, name), bool):
        raise ValueError(f'{name} must be True or False, found {value!r}')
    if not isinstance(self.tables, alias_table.Family):
      raise ValueError(f'tables must be a family of tables, found {self.tables!r}')
    if self.sampler_total_variation is None and not self.is_divisible:
      raise ValueError(f'sampler_total_variation of {self.name} must be given where '
                       'is_divisible is False, found None')


_SKELLAM = Noise(name='skellam', has_shares=True, is_divisible=True, smallest_share=0.0,
                 tables=alias_table.SKELLAM, sampler='poisson',
                 sampler_total_variation=None, in_kernels=True)
# From half a grid unit on the bound on sums of shares is tight (arXiv 2102.06387).
_DISCRETE_GAUSSIAN = Noise(
    name='discrete_gaussian', has_shares=True, is_divisible=False, smallest_share=0.5,
    tables=alias_table.DISCRETE_GAUSSIAN, sampler='rejection',
    sampler_total_variation=2.0**-80, in_kernels=True)

NOISES: dict[str, Noise] = {noise.name: noise for noise in (
    _SKELLAM, _DISCRETE_GAUSSIAN,
    dataclasses.replace(_SKELLAM, name='skellam_central', has_shares=False))}


def named(name: str) -> Noise:
  """The mechanism of a name. Raises ValueError for any other."""
  validate.one_of(NOISES, mechanism=name)
  return NOISES[name]
