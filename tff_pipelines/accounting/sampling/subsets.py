"""Exact random cohorts, in time and memory proportional to the cohort.

Integers only: given uniform random bits, every sample has exactly its distribution, so
nothing of delta is consumed by sampling error.

A Poisson cohort is a binomial number of clients and then a uniform subset of that size.
Selecting each of N clients independently with probability p gives a set S of k clients
with probability p^k (1 - p)^(N - k). `binomial` returns k with probability
C(N, k) p^k (1 - p)^(N - k); `uniform`, which reads other bits, then returns each of the
C(N, k) subsets of that size with the same probability. The product is that of S.
"""

import bisect
from collections.abc import Callable, Iterable
import fractions
import functools
import itertools
import math
import os

import numpy as np

# A number n -> n independent uniform integers of 64 bits, uint64 [n].
RandomBits = Callable[[int], np.ndarray]

# Bits of the uniform number that a binomial sample compares first. They fail to decide
# with a probability of at most 2^-100.
_BITS = 128
# In populations below this multiple of the cohort, each client has a flag.
_DENSE = 16


def from_entropy(count: int) -> np.ndarray:
  """Returns `RandomBits` of the operating system."""
  return np.frombuffer(os.urandom(8 * count), np.uint64)


def from_key(key: int) -> RandomBits:
  """`RandomBits` that follow from a key of 128 bits, for simulations."""
  generator = np.random.Philox(key=key)
  return lambda count: generator.random_raw(count).astype(np.uint64)


def below(random_bits: RandomBits, bound: int, count: int) -> np.ndarray:
  """Independent uniform integers.

  Args:
    bound: In 1..2^63.
    count: Number of integers.

  Returns int64 [count] in 0..bound - 1. Of the 2^64 numbers of 64 bits, those from the
  largest multiple of `bound` on are dropped, so that each result has equally many.
  """
  last = np.uint64(2**64 - 2**64 % bound - 1)
  kept = np.zeros([0], np.uint64)
  while kept.size < count:
    drawn = random_bits(count - kept.size)
    kept = np.concatenate([kept, drawn[drawn <= last]])
  return (kept % np.uint64(bound)).astype(np.int64)


def uniform(random_bits: RandomBits, population: int, size: int) -> np.ndarray:
  """Samples a subset of 0..population - 1 of a size, each with the same probability.

  It is the set of the first `size` different values of a sequence of independent
  uniform integers. A permutation of the integers does not change the distribution of
  the sequence, so it does not change that of the set; and permutations take any subset
  of a size to any other. A set of more than half of the integers is the complement of
  such a set.

  Args:
    population: N in 1..2^63.
    size: In 0..N.

  Returns int64 [size], increasing.
  """
  # Only missing values are sampled, so there are never too many.
  if _DENSE * size < population:
    chosen = np.zeros([0], np.int64)
    while missing := size - chosen.size:
      chosen = np.unique(np.append(chosen, below(random_bits, population, missing)))
    return chosen
  fewer = min(size, population - size)
  flags = np.zeros([population], bool)
  while missing := fewer - np.count_nonzero(flags):
    flags[below(random_bits, population, missing)] = True
  return np.flatnonzero(flags == (fewer == size))


def poisson(random_bits: RandomBits, population: int, expected: float) -> np.ndarray:
  """Samples each of 0..population - 1 independently, with one probability.

  Args:
    population: N in 1..2^63.
    expected: Expected number n in (0, N]. The probability is at most n/N, in real
      numbers and as a quotient of floats, rounded down to a multiple of 2^-64.

  Returns int64, increasing.
  """
  if expected == population:
    return np.arange(population)
  rate = min(fractions.Fraction(expected) / population,
             fractions.Fraction(expected / population))
  size = binomial(random_bits, population, math.floor(rate * 2**64))
  return uniform(random_bits, population, size)


def binomial(random_bits: RandomBits, trials: int, numerator: int,
             bits: int = _BITS) -> int:
  """Samples from Binomial(trials, numerator / 2^64), by inversion.

  For U uniform in [0, 1), the number of k with F(k) <= U has the distribution function
  F. The first bits of U say that it is in [u / 2^b, (u + 1) / 2^b); F(k) is known to
  lie between quotients of integers, from weights that are rounded down and up. If
  several results are possible, U gets further bits, and the weights become more
  precise. So rounding decides how many bits are looked at, and never the result.

  Args:
    trials: N >= 1.
    numerator: In 0..2^64 - 1.
    bits: First number of bits of U, a multiple of 64; it does not change the
      distribution.

  Returns an integer in 0..N. Time and memory are proportional to the standard deviation.
  """
  number, missing = 0, bits
  while True:
    for word in random_bits(missing // 64).tolist():
      number = number << 64 | word
    first, last = _possible(trials, numerator, number, bits)
    if first == last:
      return first
    missing, bits = 64, bits + 64


def _possible(trials: int, numerator: int, number: int, bits: int) -> tuple[int, int]:
  """Minimum and maximum of the result for U in [number, number + 1) / 2^bits."""
  start, lower, upper, least, most = _cumulative(trials, numerator, bits)
  # F(k) <= U for certain: upper / least <= number / 2^bits.
  reached = bisect.bisect_right(upper, number * least >> bits)
  # U < F(k) for certain: (number + 1) / 2^bits <= lower / most.
  beyond = bisect.bisect_left(lower, -(-(number + 1) * most >> bits))
  return (start + reached if reached else 0,
          start + beyond if beyond < len(lower) else trials)


@functools.lru_cache(maxsize=16)
def _cumulative(trials: int, numerator: int, bits: int
               ) -> tuple[int, list[int], list[int], int, int]:
  """Bounds of the distribution function, from weights of which the mode has 2^bits.

  Returns (start, lower, upper, least, most): F(start + i) is at least lower[i] / most and
  at most upper[i] / least. Weights left out on either side are in `upper` and `most`.
  """
  other, mode = 2**64 - numerator, (trials + 1) * numerator >> 64
  down, below_all = _weights(((k * other, (trials - k + 1) * numerator)
                              for k in range(mode, 0, -1)), bits)
  up, above_all = _weights((((trials - k) * numerator, (k + 1) * other)
                            for k in range(mode, trials)), bits)
  weights = [(0, below_all), *reversed(down), (2**bits, 2**bits), *up]
  lower, upper = (list(itertools.accumulate(side)) for side in zip(*weights))
  return mode - len(down) - 1, lower, upper, lower[-1], upper[-1] + above_all


def _weights(ratios: Iterable[tuple[int, int]],
             bits: int) -> tuple[list[tuple[int, int]], int]:
  """Weights on one side of the mode, rounded down and up, and a bound on the rest.

  Args:
    ratios: Numerator and denominator of each weight's ratio to the one before, which
      decreases.
    bits: The weight of the mode is 2^bits.
  """
  lower = upper = 2**bits
  weights = []
  for numerator, denominator in ratios:
    lower = lower * numerator // denominator
    upper = -(-upper * numerator // denominator)
    if not lower:  # So the ratio is below 1, and a geometric series bounds the rest.
      return weights, -(-upper * denominator // (denominator - numerator))
    weights.append((lower, upper))
  return weights, 0
