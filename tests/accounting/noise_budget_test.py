"""Delta consumed by sampling error of the noise."""

from fractions import Fraction as F
import math

import numpy as np
import pytest

from aggregators import alias_table, share_tables
from aggregators.params import DistributedSumParams
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import accountant, mechanisms, noise_budget
from tff_pipelines.fedavg.plan import FedAvgPlan
from tests import statistics_lib

_params = DistributedSumParams(
    clip=0.03, noise_multiplier=0.85, bits=18, dimension=1_018_174,
    cohort_size=100, max_cohort_size=132).replace


def _plan(epsilon=4.0, delta=None, **changes):
  return FedAvgPlan.calibrate(mechanisms.SumMechanism(**{
          'mechanism': 'skellam', 'clip': 0.3, 'bits': 18, 'cohort_size': 20.0,
          'population': 200, 'dimension': 1000, 'rounds': 10, 'sampling': 'poisson',
          **changes}),
      target_epsilon=epsilon, delta=delta)


def _consumed(plan):
  return plan.guarantee(10).outsiders.consumed_delta


def _noise(params):
  return F(params.total_noise_variance * share_tables.SHARE_EXCESS)


def test_federated_emnist_consumes_what_the_formula_says():
  # 2^20 coordinates, shares of one draw, cohorts of up to all 3,400, 1,500 rounds.
  params = _params(noise_multiplier=0.7915)
  assert share_tables.table_draws(params) == 1
  total_variation = 1500 * noise_budget.of_sum(params, 3400)
  exact = F(2**20 * 3400 * 1500, 2**86)
  assert total_variation == pytest.approx(float(exact), rel=1e-12)
  # At epsilon 10 a part in 10^5 of delta = 1/3400.
  assert pytest.approx(float(exact) * (1 + 22026.4657948), rel=1e-9) == (
      noise_budget.consumed(total_variation, 10.0)) < 1e-5 / 3400
  # Noise whose variance is off by a fraction r is off by about r sqrt(D / (4 pi)) in D
  # coordinates. Quotients in floating point would cost hundreds of times as much.
  gap = max(abs(m * F(share_tables.share_variance(params, m)) / _noise(params) - 1)
            for m in range(75, 172))
  assert 300 * exact / 1500 < gap * math.sqrt(2**20 / (4 * math.pi)) < 1e-13


def test_sums_of_all_cohorts_are_within_the_bound_of_one_distribution():
  params = _params(clip=1.0, fixed_scale=1.0, dimension=1, noise_multiplier=2.5,
                   cohort_size=6, max_cohort_size=8)
  rounded = []
  for m, k in {1: 3, 2: 2, 3: 1, 5: 1, 6: 1, 7: 1, 8: 1}.items():
    table = share_tables.noise_table(params, m)
    assert table['draws'] == k
    assert 0 < statistics_lib.table_distance(
        alias_table.AliasTable(table['packed'], table['tie']), _noise(params), m * k
        ) < m * k * 2.0**-86 <= noise_budget.of_sum(params, 8)
    rounded.append(statistics_lib.table_distance(
        alias_table.SKELLAM.build(float(table['variance'])), _noise(params), m * k))
  assert max(rounded) > 1e6 * noise_budget.of_sum(params, 8)


def test_no_release_has_less_noise_than_is_counted_on():
  short = 0
  for clip in np.linspace(1, 2, 100):
    # The tolerance lets 1 of 3 pass for this fraction.
    params = _params(min_honest_fraction=0.33333333366666673, clip=clip, dimension=64)
    assert params.has_enough(1, 3)
    counted = F(params.noise_variance)
    assert min(_noise(params) / 3, F(share_tables.share_variance(params, 3))) > counted
    short += F(params.total_noise_variance * (1 + 1e-9)) / 3 < counted
  assert short  # By the tolerance alone.


@pytest.mark.parametrize('bits, cohort', [(14, 20), (18, 20), (20, 40), (18, 2)])
@pytest.mark.parametrize('most', [1.0, 1.3, 20.0])
def test_no_cohort_takes_more_draws_than_are_counted(bits, cohort, most):
  most_clients = round(most * cohort)
  params = _params(bits=bits, cohort_size=cohort, max_cohort_size=None,
                   dimension=64)
  bound = share_tables.most_draws(params, most_clients)
  # By brute force; of no client the server draws one share.
  worst = max(max(cohort, 1) * share_tables.draws_of_cohort(params, cohort)
              for cohort in range(most_clients + 1))
  assert worst <= bound <= 2 * worst + 1


def test_the_discrete_gaussian_counts_the_weaker_of_its_samplers():
  params = _params(mechanism='discrete_gaussian', dimension=64, bits=20,
                   max_cohort_size=None, cohort_size=20)
  assert noise_budget.of_sum(params, 20) == 64 * 21 * 2.0**-80
  assert params.noise.sampler_total_variation == 2.0**-80
  only_tables = params.replace(bits=14)
  assert noise_budget.of_sum(only_tables, 20) == 64 * 21 * 2.0**-86


@pytest.mark.parametrize('changes', [
    dict(bits=28), dict(bits=28, mechanism='skellam_central'),
    dict(noise_multiplier=0.0)])
def test_without_a_proved_bound_nothing_is_claimed(changes):
  params = _params(**changes)
  assert noise_budget.of_sum(params, 3400) is None
  if changes != dict(noise_multiplier=0.0):
    assert 'no bound' in noise_budget.describe_sum(params, False)
    assert 'Poisson sampler' in noise_budget.describe_sum(params, False)


def test_a_server_draws_from_tables_as_far_as_they_reach():
  params = _params(mechanism='skellam_central', bits=19)
  draws = share_tables.server_draws(params)
  assert draws > 1
  assert noise_budget.of_sum(params, 3400) == params.padded_dimension * draws * 2.0**-86
  assert 'exact tables' in noise_budget.describe_sum(params, False)
  assert 'no bound' not in noise_budget.describe_sum(params, False)
  assert share_tables.server_draws(_params()) is None


def test_description_names_what_is_not_covered():
  alone = noise_budget.describe_sum(_params(), False)
  assert 'tables alone' in alone and 'no bound' not in alone and 'Philox' not in alone
  adaptive = noise_budget.describe_sum(_params(), True)
  assert all(words in adaptive for words in ('adaptive clip', 'no bound', 'Philox'))
  sampled = noise_budget.describe_sum(
      _params(mechanism='discrete_gaussian', bits=18, clip=1.0, noise_multiplier=1.0,
              dimension=4096, cohort_size=20, max_cohort_size=None), False)
  assert 'below three quarters' in sampled and 'Philox' in sampled
  assert 'Gaussian numbers' in noise_budget.describe_sum(None, False)


def test_nothing_is_consumed_where_nothing_deviates_and_never_more_than_one():
  assert noise_budget.consumed(1e-3, 1e6) == 1.0  # And nothing overflows.
  assert noise_budget.consumed(1e-10, 0.0) == 2e-10
  event = events.CentralGaussian(noise_multiplier=1.0)
  assert noise_budget.consumed_by(event, 0.0, 1e-5) == 0.0
  assert noise_budget.consumed_by(event, None, 1e-5) is None
  assert noise_budget.remaining(1e-5, None) == noise_budget.remaining(1e-5, 0.0) == 1e-5
  assert noise_budget.remaining(1e-5, 4e-6) == pytest.approx(6e-6)
  assert noise_budget.remaining(1e-5, 6e-6) == 1e-5  # Of ideal distributions.


@pytest.mark.parametrize('total_variation', [1e-12, 1e-8, 1e-6])
def test_what_is_consumed_is_never_too_little(total_variation):
  event = events.CentralGaussian(noise_multiplier=1.0)
  part = noise_budget.consumed_by(event, total_variation, 1e-3)
  epsilon = accountant.epsilon(event, noise_budget.remaining(1e-3, part))
  assert part >= total_variation * (1 + math.exp(epsilon))


@pytest.mark.slow
def test_epsilon_is_calibrated_for_what_sampling_error_leaves():
  # A delta so small that sampling error consumes a large fraction of it.
  deviation = 10 * noise_budget.of_sum(_plan().params, 200)
  delta = deviation * (1 + math.exp(4.0)) * 12
  plan = _plan(delta=delta)
  consumed = _consumed(plan)
  of_run = 10 * 1024 * 2.0**-86 * share_tables.most_draws(plan.params, 200)
  assert consumed >= of_run * (1 + math.exp(plan.epsilon(10)))
  assert 0.02 * delta < consumed <= delta / 2
  exact = accountant.epsilon(plan.mechanism.event(), delta - consumed)
  assert 3.99 < plan.epsilon(10) == exact <= 4.0
  # More noise than for an exact sampler.
  assert accountant.epsilon(plan.mechanism.event(), delta) < exact
  assert plan.guarantee(10).delta == plan.delta == delta
  # Each number of rounds pays for its own draws.
  for rounds in (5, 11):
    assert plan.epsilon(rounds) > accountant.epsilon(plan.released(rounds), delta)
  # Where no bound is known nothing is consumed.
  assert _consumed(_plan(delta=delta, bits=28)) is None


def test_more_than_half_of_delta_is_refused_for_a_target():
  with pytest.raises(ValueError, match='beyond what is proved of the noise'):
    _plan(delta=1e-19)
  with pytest.raises(ValueError, match='epsilon=60 at delta=0.0029'):
    _plan(epsilon=60.0)
  # Where no bound is known nothing can be subtracted.
  assert _consumed(_plan(epsilon=None, noise_multiplier=0.3, bits=28)) is None


@pytest.mark.slow
def test_a_given_noise_beyond_the_proof_gets_a_caveat():
  plan = _plan(epsilon=None, noise_multiplier=0.1)
  guarantee = plan.guarantee(10)
  assert guarantee.outsiders.consumed_delta > plan.delta / 2
  assert plan.epsilon(10) == accountant.epsilon(plan.mechanism.event(), plan.delta)
  assert any('epsilon is that of ideal distributions' in note
             for note in guarantee.caveats)
  quiet = _plan(epsilon=None, noise_multiplier=1.0)
  guarantee = quiet.guarantee(10)
  assert not any('ideal distributions' in note for note in guarantee.caveats)
  assert 0 < guarantee.outsiders.consumed_delta < 1e-9 * quiet.delta
  assert guarantee.server.consumed_delta > guarantee.outsiders.consumed_delta
  assert (quiet.guarantee(1).outsiders.consumed_delta <
          guarantee.outsiders.consumed_delta)
