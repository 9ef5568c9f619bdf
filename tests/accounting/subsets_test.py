"""Cohorts have exactly the accounted distribution; wrong samplers would be seen."""

import fractions
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tests import statistics_lib
from tff_pipelines.accounting.sampling import schemes, subsets

SMALL, RATE = 5, 0.3  # All 32 subsets are counted.


def _distribution(trials, numerator):
  """F(0), ..., F(trials), exact."""
  rate = fractions.Fraction(numerator, 2**64)
  return list(itertools.accumulate(
      math.comb(trials, k) * rate**k * (1 - rate)**(trials - k)
      for k in range(trials + 1)))


def _inverted(distribution, number, bits):
  return sum(f <= fractions.Fraction(number, 2**bits) for f in distribution)


def _script(*numbers):
  """Random bits that are these, one after the other."""
  left = iter(numbers)
  return lambda count: np.array([next(left) for _ in range(count)], np.uint64)


@pytest.mark.parametrize('trials', [1, 2, 7, 40])
@pytest.mark.parametrize('numerator', [
    0, 1, 2**62, 2**63, 2**63 + 1, 2**64 // 3, 2**64 - 2**40, 2**64 - 1])
def test_size_is_that_of_exact_inversion_at_and_between_all_steps(trials, numerator):
  distribution = _distribution(trials, numerator)
  assert distribution[-1] == 1
  rng = np.random.default_rng(0)
  for step in (*distribution[:-1], *rng.random(20).tolist()):
    # The nearest numbers of 192 bits on either side of a step, where an error of one
    # unit, of the tables or of a comparison, would give another size.
    near = math.floor(fractions.Fraction(step) * 2**192)
    for number in {near - 1, near, near + 1} & set(range(max(near - 1, 0), near + 2)):
      parts = [number >> shift & (2**64 - 1) for shift in (128, 64, 0)]
      if number >> 192:
        continue
      more = rng.integers(1, 2**63, size=4).tolist()
      whole = number
      for part in more:
        whole = whole << 64 | part
      expected = _inverted(distribution, whole, 192 + 256)
      for bits in (64, 128):
        assert subsets.binomial(
            _script(*parts, *more), trials, numerator, bits) == expected


def test_bounds_of_few_bits_never_contradict_the_distribution():
  for trials, numerator in itertools.product((3, 30), (2**61, 2**63, 2**64 - 2**60)):
    distribution = _distribution(trials, numerator)
    for bits, number in itertools.product((3, 5, 8), range(256)):
      if number >> bits:
        continue
      first, last = subsets._possible(trials, numerator, number, bits)
      assert first <= _inverted(distribution, number, bits)
      # Up to the end of the interval, which is not in it.
      end = fractions.Fraction(number + 1, 2**bits)
      assert sum(f < end for f in distribution) <= last


@pytest.mark.parametrize('trials, mean', [(10**7, 50), (10**7, 5e6), (1000, 999.5)])
def test_bounds_are_so_close_that_the_first_bits_decide(trials, mean):
  numerator = int(mean / trials * 2**64)
  _, lower, upper, least, most = subsets._cumulative(trials, numerator, 128)
  assert len(lower) < 100 + 30 * (trials * mean / trials * (1 - mean / trials))**0.5
  gaps = sum(fractions.Fraction(u, least) - fractions.Fraction(l, most)
             for l, u in zip(lower[::97], upper[::97]))
  assert 0 <= gaps < 2.0**-80
  # An independent program, in float64.
  start = subsets._cumulative(trials, numerator, 128)[0]
  ks = np.arange(start, start + len(lower))
  np.testing.assert_allclose(np.array([l / most for l in lower]),
      stats.binom(trials, numerator / 2**64).cdf(ks), atol=1e-8)


def test_integers_below_a_bound_are_equally_many_words():
  # 2^64 = 3 * 0x5555555555555555 + 1: the last word is dropped.
  top = 2**64 - 1
  assert subsets.below(_script(top, top, 5), 3, 1).tolist() == [2]
  assert subsets.below(_script(top - 1), 3, 1).tolist() == [(top - 1) % 3]
  assert subsets.below(_script(top), 2**63, 1).tolist() == [2**63 - 1]
  assert subsets.below(_script(top, 0), 1, 2).tolist() == [0, 0]


def _poisson(seed, population=SMALL):
  return schemes.build('poisson', population=population, cohort_size=RATE * population,
                       simulation_seed=seed)


def _cells(draw, count=12_000):
  """How often each subset of SMALL clients was drawn, as a number of bits."""
  counts = np.zeros(2**SMALL)
  for index in range(count):
    counts[sum(1 << int(client) for client in draw(index))] += 1
  return counts


def _size(trials):
  random_bits = subsets.from_key(5)
  return lambda: subsets.binomial(random_bits, trials, int(RATE * 2**64))


def _with_size(size, choose=None):
  random_bits = subsets.from_key(6)
  if choose is None:
    choose = lambda k: subsets.uniform(random_bits, SMALL, k)
  return lambda index: choose(min(size(), SMALL))


def test_all_poisson_cohorts_have_their_probabilities():
  wanted = [RATE**bin(s).count('1') * (1 - RATE)**(SMALL - bin(s).count('1'))
            for s in range(2**SMALL)]
  assert statistics_lib.fits(_cells(_poisson(3).sample), wanted)
  assert statistics_lib.fits(_cells(_poisson(None).sample), wanted)
  rng = np.random.default_rng(2)
  block = lambda k: (rng.integers(SMALL) + np.arange(k)) % SMALL
  repeated = lambda k: set(rng.integers(SMALL, size=k).tolist())
  last = lambda k: subsets.uniform(subsets.from_key(int(rng.integers(2**60))),
                                   SMALL - 1, min(k, SMALL - 1))
  wrong = {'one client less': _with_size(_size(SMALL - 1)),
      'one client more': _with_size(_size(SMALL + 1)),
      'a Poisson size': _with_size(lambda: int(rng.poisson(RATE * SMALL))),
      'a fixed size': _with_size(lambda: 1 + int(rng.random() < 0.5)),
      'neighbours': _with_size(_size(SMALL), block),
      'with replacement': _with_size(_size(SMALL), repeated),
      'never the last client': _with_size(_size(SMALL), last)}
  for name, draw in wrong.items():
    assert not statistics_lib.fits(_cells(draw), wanted), name


@pytest.mark.parametrize('size', [1, 2, 3, 4])
def test_all_subsets_of_a_size_are_equally_likely(size):
  counts = _cells(schemes.build(
      'fixed', population=SMALL, cohort_size=size, simulation_seed=4).sample, 5000)
  of_size = [bin(s).count('1') == size for s in range(2**SMALL)]
  assert counts[np.logical_not(of_size)].sum() == 0
  counts = counts[of_size]
  assert statistics_lib.fits(counts, [1 / len(counts)] * len(counts))
  shifted = np.append(counts[0] * 1.5, counts[1:])
  assert not statistics_lib.fits(shifted, [1 / len(counts)] * len(counts))


def test_ten_million_clients_are_sampled_as_few_are():
  population, rounds = 10**7, 2000
  scheme = schemes.build('poisson', population=population, cohort_size=50,
                         simulation_seed=1)
  cohorts = [scheme.sample(index) for index in range(rounds)]
  for cohort in cohorts:
    assert cohort.dtype == np.int64 and np.all(np.diff(cohort) > 0)
  sizes = np.array([cohort.size for cohort in cohorts])
  binomial = stats.binom(population, 50 / population)
  assert statistics_lib.fits(np.bincount(sizes, minlength=120),
                             binomial.pmf(np.arange(120)))
  statistics_lib.check_variance(sizes - 50, 50, 1 / 50)
  assert not statistics_lib.fits(np.bincount(sizes + 2, minlength=120),
                                 binomial.pmf(np.arange(120)))
  clients = np.concatenate(cohorts)
  for counts in (np.bincount(clients // 10**5), np.bincount(clients % 97)):
    assert statistics_lib.fits(counts, np.full(len(counts), 1 / len(counts)))
  assert 0 <= clients.min() < 1000 and population - 1000 < clients.max() < population
