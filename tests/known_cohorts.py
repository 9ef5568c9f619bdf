"""Epsilon against whoever knows the cohorts, computed without the accountant.

How often a client is in a round tells nothing of the data. So delta, or a Renyi moment,
is the mean of those of that many Gaussian releases.
"""

import itertools
import math

from dp_accounting.rdp import rdp_privacy_accountant
import numpy as np
from scipy import optimize, special, stats


def law(*parts):
  """The sum of squared signal-to-noise ratios of rounds with a client.

  Args:
    *parts: (rounds, sampling rate, limit or None, noise multiplier), of independent
      rounds each.

  Returns:
    Values and their probabilities.
  """
  listed = []
  for rounds, rate, limit, noise in parts:
    most = rounds if limit is None else min(limit, rounds)
    chances = stats.binom.pmf(np.arange(most + 1), rounds, rate)
    chances[-1] = stats.binom.sf(most - 1, rounds, rate)
    listed.append([(k / noise**2, chance) for k, chance in enumerate(chances)])
  pairs = [(sum(value for value, _ in pair), math.prod(chance for _, chance in pair))
           for pair in itertools.product(*listed)]
  return tuple(map(np.array, zip(*pairs)))


def of_person(rounds, rate, clients, noise):
  """The same of a person with several clients, in rounds without a limit."""
  squares, total = np.zeros(clients**2 + 1), np.ones(1)
  squares[np.arange(clients + 1)**2] = stats.binom.pmf(
      np.arange(clients + 1), clients, rate)
  for _ in range(rounds):
    total = np.convolve(total, squares)
  return np.arange(total.size) / noise**2, total


def gaussian_delta(epsilon, ratio):
  """Delta of Gaussian pairs of these squared signal-to-noise ratios >= 0."""
  mean = np.sqrt(np.maximum(ratio, 1e-300))
  return np.exp(special.log_ndtr(mean / 2 - epsilon / mean)) - np.exp(
      epsilon + special.log_ndtr(-mean / 2 - epsilon / mean))


def gaussian_epsilon(ratio, delta):
  """Epsilon of one Gaussian pair."""
  return epsilon(np.array([ratio]), np.ones(1), delta)


def epsilon(ratios, weights, delta):
  """Epsilon at delta, by the mean of deltas; ratios and weights as of `law`."""
  ratios, weights = ratios[ratios > 0], weights[ratios > 0]
  excess = lambda value: weights @ gaussian_delta(value, ratios) - delta
  return optimize.brentq(excess, 0, 1e3, xtol=1e-13) if excess(0) > 0 else 0.0


def renyi_epsilon(ratios, weights, delta, curve=None):
  """The same by the mean of moments, at least as large.

  Renyi divergences of a round, at the orders 2, 3, ..., may be given in place of those of
  Gaussian noise of a noise multiplier of one.
  """
  orders = np.arange(2, 257 if curve is None else len(curve) + 2)
  curve = orders / 2 if curve is None else curve
  moments = special.logsumexp(
      np.multiply.outer((orders - 1) * curve, ratios), b=weights, axis=1)
  return rdp_privacy_accountant.compute_epsilon(orders, moments / (orders - 1), delta)[0]
