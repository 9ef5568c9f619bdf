"""A mechanism of its own, from its noise to its event: shares of binomial noise.

A share is a binomial number of fair coins, less half of them; coins of different
clients add up. For sums of one client more or less, see `DistributedBinomial`.
"""

import math

import numpy as np

from aggregators import alias_table, noises
from tff_pipelines.accounting.events import base, sum_events
from tff_pipelines.accounting.guarantees import mechanisms

_FAILURE = 1e-12


def _coins(variance: float) -> int:
  """Half the number of coins that have at least this variance."""
  return math.ceil(2 * variance)


def _weights(variance: float) -> list[int]:
  half = _coins(variance)
  return [math.comb(2 * half, half + k) << 200 for k in range(half + 1)]


# aggregators/noises.py, aggregators/alias_table.py
NOISE = dict(name='binomial', has_shares=True, is_divisible=True, smallest_share=0.0,
    tables=alias_table.Family(_coins, _weights),
    sampler='poisson', sampler_total_variation=None, in_kernels=False)


def define() -> type[base.Event]:
  """Defines the event, as accounting/events/sum_events.py would."""

  class DistributedBinomial(sum_events._Shares):
    """A sum of integer vectors with shares of binomial noise.

    Of n coins in a coordinate, less n / 2, at most t = sqrt(n ln(2 D / b) / 2) are off
    in each of D coordinates but with probability b (Hoeffding). There a unit step
    changes the probability by at most (n/2 + t + L1) / (n/2 - t - L1 + 1), and a client
    is L1 such steps: so the divergence of any order is at most L1 times its logarithm.
    More coins than these are a post-processing.

    Attributes:
      dimension: Number of coordinates (padded), >= 1.
    """

    dimension: int

    source = 'Hoeffding 1963, Theorem 2; ratios of binomial coefficients'
    caveats = base.no_caveats

    def failure_probability(self):
      return _FAILURE

    def pure_epsilon(self, amplification):
      half = math.floor(2 * self.noise_variance)
      reach = math.sqrt(half * math.log(2 * self.dimension / _FAILURE))
      most = reach + self.l1_sensitivity
      if half - most + 1 <= 0:
        return math.inf
      return self.l1_sensitivity * math.log((half + most) / (half - most + 1))

    def curve(self, max_order, amplification):
      return np.full(max_order - 1, self.pure_epsilon(amplification))

    def scaled(self, clients):
      return self._with_clients(clients)

  return DistributedBinomial


def add(monkeypatch) -> type[base.Event]:
  """Adds the mechanism where a change of the files of the recipe would."""
  monkeypatch.setattr(base, '_KINDS', dict(base._KINDS))
  noise, kind = noises.Noise(**NOISE), define()
  monkeypatch.setitem(noises.NOISES, 'binomial', noise)
  monkeypatch.setitem(
      mechanisms.MECHANISMS, 'binomial', mechanisms._integers(noise, kind))
  return kind
