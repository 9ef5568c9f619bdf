"""Statistical checks with power, shared by tests of random mechanisms.

Every check accepts the right distribution except for a false-alarm rate of about
1e-6, and those of a scale also show that they would have rejected 2/3 and 3/2 of it.
Tests fix their seeds, so that false alarms are repeatable; only tests of the
operating system's entropy can't, and those may fail once in a million.
"""

import fractions
import functools
import math

import mpmath
import numpy as np
from scipy import stats

from aggregators import alias_table

FALSE_ALARM = 1e-6
# Standard errors that a Gaussian statistic exceeds with that probability.
Z = float(stats.norm.isf(FALSE_ALARM / 2))


def has_second_moment(samples, variance: float, excess_kurtosis: float = 0.0) -> bool:
  """Whether the mean square of samples of mean zero agrees with `variance`."""
  squares = np.square(np.asarray(samples, np.float64)).ravel()
  error = variance * math.sqrt((2 + excess_kurtosis) / squares.size)
  return abs(squares.mean() - variance) <= Z * error


def check_variance(samples, variance: float, excess_kurtosis: float = 0.0) -> None:
  """Asserts the variance of samples of mean zero, and the power to see it."""
  samples = np.asarray(samples, np.float64)
  # With fewer, 3/2 of the variance could lie within Z errors on either side.
  assert samples.size >= (5 * Z)**2 * (2 + excess_kurtosis), 'too few samples'
  assert has_second_moment(samples, variance, excess_kurtosis), (
      f'mean square {np.mean(samples**2)} of {samples.size}, not {variance}')
  assert not has_second_moment(samples, variance * 2 / 3, excess_kurtosis)
  assert not has_second_moment(samples, variance * 3 / 2, excess_kurtosis)


def check_mean(samples, mean: float, variance: float) -> None:
  """Asserts the mean of samples whose variance is known."""
  samples = np.asarray(samples, np.float64)
  error = math.sqrt(variance / samples.size)
  assert abs(samples.mean() - mean) <= Z * error, (
      f'mean {samples.mean()} of {samples.size}, not {mean} within {Z * error}')


def fits(counts, probabilities) -> bool:
  """Whether counts agree with probabilities, by chi-square.

  Outcomes outside the bins, if any, must never have been observed.
  """
  counts = np.asarray(counts, np.float64)
  expected = np.asarray(probabilities, np.float64) * counts.sum()
  # Neighbouring bins are joined until each is large enough for chi-square.
  joined = []
  observed_sum = expected_sum = 0.0
  for observed, mean in zip(counts, expected):
    observed_sum += observed
    expected_sum += mean
    if expected_sum >= 8:
      joined.append([observed_sum, expected_sum])
      observed_sum = expected_sum = 0.0
  joined[-1][0] += observed_sum
  joined[-1][1] += expected_sum
  assert len(joined) > 1, 'too few samples'
  joined = np.array(joined)
  statistic = np.sum((joined[:, 0] - joined[:, 1])**2 / joined[:, 1])
  return stats.chi2.sf(statistic, len(joined) - 1) > FALSE_ALARM


def bits_are_uniform(samples) -> bool:
  """Whether every bit of 64-bit samples [n, k] is 0 and 1 equally often."""
  samples = np.asarray(samples).view(np.uint64)
  shifts = np.arange(64, dtype=np.uint64)
  ones = np.sum((samples[..., np.newaxis] >> shifts) & np.uint64(1), axis=0)
  errors = np.abs(ones - len(samples) / 2.0) / (math.sqrt(len(samples)) / 2)
  return bool(np.max(errors) <= stats.norm.isf(FALSE_ALARM / 2 / errors.size))


def table_distance(table: alias_table.AliasTable, variance, draws: int = 1):
  """Total variation distance of a sum of draws from Skellam noise, by mpmath."""
  one = table.packed.size << 86
  shares = np.array([int(p * one) for p in table_probabilities(table)], object)
  sums = functools.reduce(np.convolve, [shares] * draws)
  with mpmath.workdps(100):
    v = mpmath.mpmathify(variance)
    return mpmath.fsum(
        max(0, mpmath.mpf(share) / one**draws - mpmath.exp(-v) * mpmath.besseli(k, v))
        for k, share in enumerate(sums, start=-draws * (len(shares) // 2)))


def table_probabilities(table: alias_table.AliasTable) -> list[fractions.Fraction]:
  """The exact probabilities of all values of a table, from the smallest value on."""
  size = table.packed.size
  capacity = 1 << (alias_table.FIRST_BITS + alias_table.TIE_BITS)
  shares = [0] * size
  for cell, (packed, tie) in enumerate(zip(table.packed, table.tie)):
    threshold = (int(packed) >> 32 << alias_table.TIE_BITS) + int(tie) + (1 << 63)
    shares[cell] += threshold
    shares[int(packed) & 0xffffffff] += capacity - threshold
  return [fractions.Fraction(share, size * capacity) for share in shares]
