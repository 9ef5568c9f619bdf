"""The dominating pair of a sum of sampled records, one of which is replaced."""

import numpy as np
from scipy import special

from tff_pipelines.accounting.divergences import pairs
from tff_pipelines.common import validate


class PoissonReplaced(pairs.Pair):
  """A sum of Poisson-sampled records with Gaussian noise, in which one is replaced.

  With q = `sampling_rate`, z = `noise_multiplier` of a record and noise of z, it is
  (1 - q) N(0) + q N(1) against (1 - q) N(0) + q N(-1): opposite records are the worst.
  The pair is its own reverse. Proof: docs/fixed_size.md.
  """

  noise_multiplier: validate.Positive
  sampling_rate: validate.OpenUnitInterval

  def atoms(self, cells: int) -> tuple[pairs.Atoms, ...]:
    q = self.sampling_rate
    shift = min(1.0 / self.noise_multiplier, float(pairs.MAX_VALUES))
    reach = pairs.NORMAL_REACH + 2 * shift
    count = 2 * int(np.ceil(reach * cells)) + 1
    self._check_size(count)
    # In standard deviations of the noise; densities are over that of N(0).
    y, sides = np.linspace(-reach, reach, count), (shift, -shift)
    ahead, behind = (np.logaddexp(
        np.log1p(-q), np.log(q) + mean * y - mean**2 / 2) for mean in sides)
    p, other = ((1 - q) * pairs.normal_masses(y) + q * pairs.normal_masses(y - mean)
                for mean in sides)
    # Beyond either end is less than beyond the reach of one Gaussian.
    tail = special.ndtr(-pairs.NORMAL_REACH)
    return (pairs.at_nodes(ahead - behind, p, other, tail, tail),)
