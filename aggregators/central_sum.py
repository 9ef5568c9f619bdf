"""The sum of clipped vectors, with Gaussian noise of the server, or of every client.

The baselines that distributed mechanisms are compared with. Clients' vectors reach the
server in the clear, or each with noise of its own.
"""

import collections

from aggregators import normal, plain_sum
from tff_pipelines.common import validate


class CentralSumFactory(plain_sum.PlainSumFactory):
  """Sums structures of float tensors, clipped, under the Gaussian mechanism.

  Formal guarantees of one call of `next`:

  * It is a Gaussian mechanism of L2 sensitivity `clip` and noise multiplier
    `noise_multiplier` under zero-out adjacency, (alpha, alpha / (2 z^2))-Renyi DP,
    against those who see results.
  * The server is trusted, unless every client adds the noise: then its vector alone has
    this guarantee, against all others.
  * The guarantee is that of ideal arithmetic: noise in floating point leaks through its
    low bits (Mironov, CCS 2012), which the integer mechanisms avoid.
  * With `noise_multiplier` 0 or `simulation_seed` there is no guarantee.
  """

  def __init__(self, *, clip: float, noise_multiplier: float, by_each: bool = False,
               diagnostics: bool = False, simulation_seed: int | None = None):
    """Initializes the factory.

    Args:
      clip: L2 clip of one client's vector, model units, > 0.
      noise_multiplier: Standard deviation of the noise over the clip, >= 0.
      by_each: Whether every client adds it; their sum is drawn at once.
      diagnostics, simulation_seed: As for `ClientSumFactory`.
    """
    validate.positive(clip=clip)
    validate.non_negative(noise_multiplier=noise_multiplier)
    super().__init__(diagnostics=diagnostics, simulation_seed=simulation_seed)
    self._clip = clip
    self._stddev, self._by_each = noise_multiplier * clip, by_each

  def contribute(self, vector, key, state):
    return plain_sum.clipped(vector, self._clip)

  def release(self, state, total, num_reporting, key):
    count = num_reporting if self._by_each else 1
    return state, normal.add(total, self._stddev, key, count), collections.OrderedDict()
