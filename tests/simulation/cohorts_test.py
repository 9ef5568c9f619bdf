"""Tests of tff_pipelines.simulation.cohorts."""

import numpy as np
import pytest
from scipy import stats

from tests import statistics_lib
from tff_pipelines.simulation import cohorts

POPULATION = 400


def _sampler(**changes):
  return cohorts.CohortSampler(**{**dict(
      sampling='poisson', population=POPULATION, cohort_size=100), **changes})


def _included(sampler, rounds=2000):
  """Who took part: bool [rounds, population]."""
  included = np.zeros([rounds, POPULATION], bool)
  for r in range(rounds):
    chosen = sampler.sample(r)
    assert np.all(np.diff(chosen) > 0)
    included[r, chosen] = True
  return included


def _check_rate(included, q):
  """Asserts the rate of inclusion: of all, of each client, of each round."""
  statistics_lib.check_mean(included, q, q * (1 - q))
  # Exact tails: a rare client's few inclusions are not nearly normal.
  counts, law = included.sum(axis=0), stats.binom(len(included), q)
  tails = np.minimum(law.cdf(counts), law.sf(counts - 1))
  assert tails.min() > statistics_lib.FALSE_ALARM / 2 / POPULATION


@pytest.mark.parametrize('seed', [None, 3])
@pytest.mark.parametrize('cohort_size', [100, 1, 399.5, 0.25])
def test_poisson_includes_everyone_at_the_rate(seed, cohort_size):
  included = _included(_sampler(simulation_seed=seed, cohort_size=cohort_size))
  q = cohort_size / POPULATION
  _check_rate(included, q)
  for wrong in (q * 2 / 3, min(0.9999, q * 3 / 2)):
    if abs(wrong - q) * (included.size * wrong)**0.5 > 15 * wrong:
      with pytest.raises(AssertionError):
        _check_rate(included, wrong)


@pytest.mark.parametrize('seed', [None, 3])
def test_poisson_includes_clients_independently(seed):
  included = _included(_sampler(simulation_seed=seed)).astype(np.float64)
  q = 0.25
  # The size of the cohort is binomial; of samples of a fixed size it is not.
  sizes = included.sum(axis=1) - 100
  statistics_lib.check_variance(sizes, POPULATION * q * (1 - q), 6 / POPULATION)
  # Neighbours, and the same client in the next round.
  centred = included - q
  for products in (centred[:, 1:] * centred[:, :-1], centred[1:] * centred[:-1],
                   centred[:, ::2] * centred[:, 1::2]):
    statistics_lib.check_mean(products, 0, (q * (1 - q))**2)
  fixed = _included(_sampler(sampling='fixed', simulation_seed=seed))
  assert not statistics_lib.has_second_moment(
      fixed.sum(axis=1) - 100, POPULATION * q * (1 - q))


@pytest.mark.parametrize('cohort_size, population', [
    (1, 3), (2, 3), (100, 539), (7, 1999), (101.5, 3400), (1e-3, 10**6)])
def test_poisson_thresholds_are_the_rate_to_float64(cohort_size, population):
  # The sampler takes part in a round iff its 64-bit word is below q * 2^64.
  sampler = _sampler(cohort_size=cohort_size, population=population)
  threshold = int(cohort_size / population * 2.0**64)
  slack = threshold // 2**50 + 1
  for word, taken in [(0, True), (threshold - slack, True),
                      (threshold + slack, False), (2**64 - 1, False)]:
    sampler._words = lambda _, w=word: np.array([w], np.uint64)  # pylint: disable=protected-access
    assert bool(sampler.sample(0).size) == taken


@pytest.mark.parametrize('seed', [None, 3])
def test_fixed_is_a_uniform_subset_of_the_exact_size(seed):
  sampler = _sampler(sampling='fixed', cohort_size=37, simulation_seed=seed)
  included = _included(sampler)
  np.testing.assert_array_equal(included.sum(axis=1), 37)
  errors = (included.mean(axis=0) - 37 / POPULATION) / (
      37 / POPULATION * (1 - 37 / POPULATION) / len(included))**0.5
  assert np.abs(errors).max() < 6.0
  # Pairs: each of them as often as without replacement, within 5 deviations.
  pairs = np.mean(included[:, ::2] & included[:, 1::2])
  expected = 37 * 36 / (POPULATION * (POPULATION - 1))
  assert pairs == pytest.approx(expected, rel=0.08)


@pytest.mark.parametrize('arguments', [
    dict(sampling='none'), dict(sampling='none', cohort_size=5),
    dict(sampling='poisson', cohort_size=POPULATION),
    dict(sampling='fixed', cohort_size=POPULATION)])
@pytest.mark.parametrize('seed', [None, 1])
def test_everyone_takes_part_where_nothing_is_sampled(arguments, seed):
  sampler = _sampler(simulation_seed=seed, **arguments)
  for r in range(3):
    np.testing.assert_array_equal(sampler.sample(r), np.arange(POPULATION))


@pytest.mark.parametrize('sampling', ['poisson', 'fixed'])
def test_seeded_cohorts_repeat_and_differ_by_round_and_seed(sampling):
  sample = lambda seed, r: tuple(_sampler(
      sampling=sampling, simulation_seed=seed).sample(r))
  drawn = {(seed, r): sample(seed, r) for seed in range(3) for r in range(10)}
  for (seed, r), chosen in drawn.items():
    assert sample(seed, r) == chosen
  assert len(set(drawn.values())) == 30


@pytest.mark.parametrize('sampling', ['poisson', 'fixed'])
def test_unseeded_cohorts_never_repeat(sampling):
  samplers = [_sampler(sampling=sampling) for _ in range(2)]
  drawn = {tuple(s.sample(0)) for s in samplers for _ in range(50)}
  assert len(drawn) == 100


def test_poisson_rounds_of_nobody_happen_and_are_empty():
  sampler = _sampler(cohort_size=0.5, simulation_seed=0)
  sizes = [sampler.sample(r).size for r in range(200)]
  assert 0.5 < np.mean(np.equal(sizes, 0)) < 0.7  # exp(-0.5) = 0.61.


@pytest.mark.parametrize('arguments, message', [
    (dict(sampling='shuffle'), "sampling must be .*'shuffle'"),
    (dict(population=0), 'population .*0'),
    (dict(population=1.5), 'population .*1.5'),
    (dict(cohort_size=0), 'cohort_size .*0'),
    (dict(cohort_size=-3), 'cohort_size .*-3'),
    (dict(cohort_size=float('nan')), 'cohort_size .*nan'),
    (dict(cohort_size=401), 'cohort_size must be at most population=400, found '
                            '401'),
    (dict(sampling='none', cohort_size=401), 'cohort_size .*found 401'),
    (dict(sampling='fixed', cohort_size=1.5), 'integer for sampling=fixed'),
])
def test_impossible_arguments_are_named(arguments, message):
  with pytest.raises(ValueError, match=message):
    _sampler(**arguments)


def test_client_keys_differ_by_seed_round_and_client_and_repeat():
  names = [(s, r, c) for s in range(10) for r in range(10) for c in range(20)]
  drawn = {tuple(cohorts.client_key(*name)) for name in names}
  assert len(drawn) == len(names)
  key = cohorts.client_key(1, 2, 3)
  np.testing.assert_array_equal(key, cohorts.client_key(1, 2, 3))
  assert key.dtype == np.int64 and key.shape == (2,)
  # Numbers do not run together: 1, 23 is not 12, 3.
  assert tuple(cohorts.client_key(0, 1, 23)) != tuple(cohorts.client_key(0, 12, 3))
