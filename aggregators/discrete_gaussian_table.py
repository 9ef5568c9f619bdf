"""Alias tables of the discrete Gaussian, exact to far below 2^-64.

N_Z(0, v): P[X = k] proportional to exp(-k^2 / (2 v)) (arXiv 2004.00010,
Definition 1). Its variance is below v: by less than 1e-6 of it from v = 1 on, by
a seventh at v = 1/4. Probabilities are computed in integers; `TOTAL_VARIATION` bounds
the distance of a draw from the distribution.
"""

import decimal
import math

from aggregators import alias_table

# Bound on the total variation distance between a draw and the distribution: mass
# outside the table, rounding of the weights and of the thresholds are each below 2^-88
# for tables of up to 2^19 cells.
TOTAL_VARIATION = alias_table.TOTAL_VARIATION
# The same of `discrete_gaussian.sample`, which draws where no table fits.
REJECTION_TOTAL_VARIATION = 2.0**-80

# The weight of 0 is 2^this. Each step rounds twice, by less than 1 each; over the
# 2^18 steps of the largest table that adds up to less than 2^-230 of all.
_FRACTION_BITS = 288
_DIGITS = 110


def reach(variance: float) -> int:
  """A k with P[X >= k] < 2^-100: that of N(0, v) at k - 1 (Proposition 25)."""
  return 1 + math.ceil(
      math.sqrt(2 * variance * alias_table.TAIL_LOG2 * math.log(2)))


def weights(variance: float) -> list[int]:
  """Integers proportional to P[X = k] for k = 0 .. reach.

  With g = exp(-1 / (2 v)) the weight of k + 1 is g^(2k + 1) times that of k, and
  the factor itself shrinks by g^2 a step.
  """
  numerator, denominator = float(variance).as_integer_ratio()
  with decimal.localcontext() as context:
    context.prec = _DIGITS
    base = (decimal.Decimal(-denominator) / (2 * decimal.Decimal(numerator))).exp()
    factor = int(base * (1 << _FRACTION_BITS))
  ratio = (factor * factor) >> _FRACTION_BITS
  result = [1 << _FRACTION_BITS]
  for _ in range(reach(variance)):
    result.append((result[-1] * factor) >> _FRACTION_BITS)
    factor = (factor * ratio) >> _FRACTION_BITS
  return result


_FAMILY = alias_table.Family(reach, weights)
log_size, fits, build = _FAMILY.log_size, _FAMILY.fits, _FAMILY.build
