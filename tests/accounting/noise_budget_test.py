"""What the samplers of the noise take of delta."""

import fractions
import math

import numpy as np
import pytest

from aggregators import discrete_gaussian_table
from aggregators import share_tables
from aggregators import skellam_table
from aggregators.params import DistributedSumParams
from tff_pipelines import noise_sampler
from tff_pipelines.accounting import accountant
from tff_pipelines.accounting import deviation as deviation_lib
from tff_pipelines.accounting import request as request_lib
from tff_pipelines.privacy_plan import PrivacyPlan


def _params(**changes):
  return DistributedSumParams(**{**dict(
      clip=0.03, noise_multiplier=0.85, bits=18, dimension=1_018_174,
      cohort_size=100, max_cohort_size=132), **changes})


def _plan(noise_generator='philox', **changes):
  return PrivacyPlan.calibrate(request_lib.Request(**{
      'query': 'epsilon', 'mechanism': 'skellam', 'epsilon': 4.0, 'clip': 0.3,
      'bits': 18, 'cohort_size': 20.0, 'population': 200, 'dimension': 1000,
      'rounds': 10, 'sampling': 'poisson', **changes}),
                               noise_generator=noise_generator)


def test_federated_emnist_takes_what_the_formula_says():
  # 2^20 coordinates, shares of one draw, cohorts of up to all 3,400, 1,500 rounds.
  params = _params()
  assert share_tables.table_draws(params) == 1
  found = noise_sampler.total_variation(params, 3400, 1500)
  exact = fractions.Fraction(2**20 * 3400 * 1500, 2**86)
  assert found == pytest.approx(float(exact), rel=1e-12)
  # At epsilon 10 a part in 10^5 of delta = 1/3400.
  taken = deviation_lib.taken(found, 10.0)
  assert taken == pytest.approx(float(exact) * (1 + 22026.4657948), rel=1e-9)
  assert taken < 1e-5 / 3400


def test_a_real_table_is_within_the_bound_of_the_law():
  """The bound itself, of all cells in integers, against the law at 400 bits."""
  import mpmath  # pylint: disable=g-import-not-at-top
  variance = 3.7
  table = skellam_table.build(variance)
  size = table.packed.size
  capacity = 2**86
  shares = [0] * size
  for i in range(size):
    threshold = (int(table.packed[i]) >> 32 << 64) + int(table.tie[i]) + 2**63
    alias = int(np.int64(table.packed[i]).astype(np.int32))
    # A threshold of 2^22 wins whatever the other bits are.
    threshold = min(threshold, capacity)
    shares[i] += threshold
    shares[alias] += capacity - threshold
  with mpmath.workprec(400):
    v = mpmath.mpf(variance)
    distance = mpmath.mpf(0)
    covered = mpmath.mpf(0)
    for i, share in enumerate(shares):
      exact = mpmath.exp(-v) * mpmath.besseli(abs(i - size // 2), v)
      distance += abs(exact - mpmath.mpf(share) / (size * capacity))
      covered += exact
    distance = (distance + (1 - covered)) / 2
    assert 0 < distance < mpmath.mpf(2)**-86
  assert skellam_table.TOTAL_VARIATION == 2.0**-86


@pytest.mark.parametrize('bits, cohort', [(14, 20), (18, 20), (20, 40), (18, 2)])
@pytest.mark.parametrize('most', [1.0, 1.3, 20.0])
def test_no_cohort_takes_more_draws_than_are_counted(bits, cohort, most):
  most_clients = round(most * cohort)
  params = _params(bits=bits, cohort_size=cohort, max_cohort_size=None,
                   dimension=64, noise_generator='chacha20')
  bound = share_tables.most_draws(params, most_clients)
  # By brute force; told 0 is one share of the server's.
  worst = max(max(told, 1) * share_tables.draws_of_cohort(params, told)
              for told in range(most_clients + 1))
  assert worst <= bound
  assert bound <= 2 * worst + 1


def test_the_discrete_gaussian_counts_the_weaker_of_its_samplers():
  params = _params(mechanism='discrete_gaussian', dimension=64, bits=14,
                   max_cohort_size=None, cohort_size=20)
  found = noise_sampler.total_variation(params, 20, 3)
  assert found == 64 * 21 * 3 * 2.0**-80
  assert discrete_gaussian_table.REJECTION_TOTAL_VARIATION == 2.0**-80
  only_tables = params.replace(noise_generator='chacha20')
  assert noise_sampler.total_variation(only_tables, 20, 3) == 64 * 21 * 3 * 2.0**-86


@pytest.mark.parametrize('changes', [
    dict(bits=28), dict(mechanism='skellam_central'), dict(noise_multiplier=0.0)])
def test_without_a_proved_bound_nothing_is_claimed(changes):
  params = _params(**changes)
  assert noise_sampler.total_variation(params, 3400, 1500) is None
  if changes != dict(noise_multiplier=0.0):
    assert 'no bound' in noise_sampler.describe(params, False)
    assert 'Poisson sampler' in noise_sampler.describe(params, False)


def test_words_say_what_is_not_covered():
  philox = noise_sampler.describe(_params(), False)
  assert 'below three quarters' in philox and 'no bound' in philox
  assert 'adaptive clip' in noise_sampler.describe(_params(), True)
  chosen = noise_sampler.describe(_params(noise_generator='chacha20'), False)
  assert 'tables alone' in chosen and 'no bound' not in chosen
  assert 'Gaussian numbers' in noise_sampler.describe(None, False)


def test_delta_is_at_most_one_and_never_overflows():
  assert deviation_lib.taken(1e-3, 1e6) == 1.0
  assert deviation_lib.taken(1e-10, 0.0) == 2e-10


@pytest.mark.parametrize('generator', ['philox', 'chacha20'])
def test_epsilon_is_calibrated_for_what_the_sampler_leaves(generator):
  # So small a delta that the sampler takes a good part of it.
  deviation = noise_sampler.total_variation(_plan().params, 200, 10, draws=4)
  delta = deviation * (1 + math.exp(4.0)) * 3
  plan = _plan(generator, delta=delta)
  taken = plan.delta_sampler
  assert taken == pytest.approx(
      (1 + math.exp(4.0)) * 10 * 1024 * 2.0**-86 *
      share_tables.most_draws(plan.params, 200), rel=1e-12)
  assert 0.05 * delta < taken <= delta / 3 * (1 + 1e-9)
  exact = accountant.epsilon(plan.request.event(), delta - taken)
  assert plan.epsilon(10) == exact <= 4.0
  # More noise than for an exact sampler.
  loose = PrivacyPlan.calibrate(
      plan.request.replace(noise_multiplier=None, epsilon=4.0, bits=28))
  assert loose.delta_sampler is None
  assert accountant.epsilon(plan.request.event(), delta) < exact
  assert plan.guarantee(10).delta == delta
  # Further rounds than were planned are counted for.
  assert plan.epsilon(11) > accountant.epsilon(
      plan.request.replace(rounds=11).event(), delta - taken)


def test_more_than_half_of_delta_is_refused_for_a_target():
  with pytest.raises(ValueError, match='beyond what is proved of the noise'):
    _plan(delta=1e-19)
  with pytest.raises(ValueError, match='epsilon=60 at delta=0.005'):
    _plan(epsilon=60.0)
  # Where no bound is known nothing can be subtracted.
  assert _plan(epsilon=60.0, bits=28).delta_sampler is None


def test_a_given_noise_beyond_the_proof_is_warned_of():
  plan = _plan(epsilon=None, noise_multiplier=0.1)
  assert plan.delta_sampler > plan.request.delta / 2
  assert plan.epsilon(10) == accountant.epsilon(
      plan.request.event(), plan.request.delta)
  assert any('epsilon is that of exact laws' in text for text in plan.warnings(10))
  quiet = _plan(epsilon=None, noise_multiplier=1.0)
  assert not any('exact laws' in text for text in quiet.warnings(10))
  assert 0 < quiet.delta_sampler < 1e-9 * quiet.request.delta
  assert quiet.delta_sampler_unamplified(10) > quiet.delta_sampler
  assert quiet.delta_sampler_unamplified(0) is None


@pytest.mark.parametrize('changes, message', [
    (dict(mechanism='gaussian'), 'found mechanism=gaussian'),
    (dict(mechanism='none'), 'found mechanism=none'),
    (dict(mechanism='skellam_central'), 'found mechanism=skellam_central'),
    (dict(adaptive_clipping=True), 'adaptive_clipping'),
    (dict(bits=26), 'use fewer bits or more clients')])
def test_a_generator_that_cannot_be_had_is_refused(changes, message):
  with pytest.raises(ValueError, match=f'noise_generator=chacha20.*{message}'):
    _plan('chacha20', **changes)
