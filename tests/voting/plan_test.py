"""Plans of votes and of DP-FedSGD: calibrated, on the private side, explained."""

import math

import pytest

from aggregators.voting_params import VotingParams
from tff_pipelines import vote_plan
from tff_pipelines.accounting import accountant
from tff_pipelines.accounting import events
from tff_pipelines.vote_plan import SgdPlan


def _params(**changes):
  return VotingParams(**{**dict(
      queries=500, classes=10, agents=100, noise_stddev=1.0), **changes})


def _plan(params=_params(), **changes):
  return vote_plan.calibrate(params, **{**dict(
      scheme='ae', level='agent', epsilon=None, noise_stddev=25.0), **changes})


def test_numbers_of_the_paper_stand_beside_those_that_are_proved():
  plan = _plan()
  assert plan.epsilon_published == pytest.approx(3.72, abs=5e-3)
  assert plan.epsilon == pytest.approx(2.736, rel=2e-3)
  assert plan.delta == 1e-3 and plan.guarantee.accountant == 'pld'


def test_many_labels_of_an_agent_cost_as_in_the_paper():
  # CelebA: tau = 4, sigma = 50, 600 queries, stated as 4.0.
  params = _params(queries=600, classes=40, agents=300, attributes=4)
  plan = _plan(params, noise_stddev=50.0)
  assert plan.epsilon_published == pytest.approx(4.1, abs=0.05)
  assert plan.epsilon < 3.1
  single = _plan(params.replace(attributes=None), noise_stddev=50.0)
  assert single.epsilon < plan.epsilon / 1.9


@pytest.mark.parametrize('bound', ['tight', 'paper'])
@pytest.mark.parametrize('scheme, level, votes', [
    ('ae', 'agent', 1), ('ae', 'instance', 1), ('knn', 'instance', 30),
    ('knn', 'agent', 3)])
@pytest.mark.parametrize('noise', ['skellam', 'gaussian'])
def test_calibration_meets_the_target_from_below(
    bound, scheme, level, votes, noise):
  params = _params(queries=40, votes=votes, noise=noise)
  plan = _plan(params, scheme=scheme, level=level, epsilon=2.0, noise_stddev=None,
               bound=bound, allow_degenerate=True)
  assert 1.99 < plan.epsilon_planned <= 2.0
  assert plan.bound == bound
  # The published formula is never the smaller one, and the guarantee is proved.
  assert plan.epsilon <= plan.epsilon_published
  # Delta has a part for the sampler, if one is known.
  exact = accountant.epsilon(plan.event, plan.delta)
  assert exact <= plan.epsilon <= exact * (1 + 1e-9)
  assert (plan.delta_sampler is None) == (noise == 'gaussian')


def test_what_the_sampler_takes_of_delta_costs_epsilon():
  plan = _plan()
  deviation = 500 * 10 * 100 * 2.0**-86
  assert plan.params.sampler_deviation == deviation
  # (1 + e^epsilon) times it, at an epsilon a little above the one that is found.
  least = deviation * (1 + math.exp(plan.epsilon))
  assert least < plan.delta_sampler < 10 * least
  # With a delta of that size half of it is gone.
  tiny = _plan(delta=4e-17)
  assert tiny.delta_sampler > 1e-19
  assert tiny.epsilon > accountant.epsilon(tiny.event, tiny.delta)
  assert tiny.guarantee.delta == 4e-17


def test_sums_that_were_seen_twice_cost_as_twice_the_queries():
  plan = _plan(_params(queries=50))
  assert plan.epsilon_of(1) == plan.epsilon
  assert plan.epsilon_of(2) == pytest.approx(
      _plan(_params(queries=100)).epsilon, rel=1e-6)


def test_the_event_is_of_the_parameters_that_run():
  params = _params(votes=7, noise_stddev=2.0, max_weight=3)
  plan = vote_plan.VotePlan(
      params=params, scheme='knn', level='instance', delta=1e-4)
  assert plan.event == events.SelfComposed(
      event=events.Vote(scheme='knn', level='instance', noise_stddev=2.0,
                        neighbours=7, max_weight=3), count=500)
  # Twice the weight needs twice the noise, with Gaussian noise exactly.
  weighted, single = (
      _plan(_params(queries=9, noise='gaussian', max_weight=w), epsilon=1.0,
            noise_stddev=None) for w in (2, 1))
  assert weighted.params.noise_stddev == pytest.approx(
      2 * single.params.noise_stddev, rel=1e-5)


def test_honest_noise_alone_is_counted_on():
  half = _plan(_params(min_honest_fraction=0.5))
  assert half.epsilon == _plan().epsilon
  assert half.params.total_noise_variance == 2 * 625


def test_too_many_queries_say_how_many_fit():
  with pytest.raises(ValueError) as raised:
    _plan(epsilon=1.0, noise_stddev=25.0)
  text = str(raised.value)
  assert 'epsilon=1 cannot be reached with queries=500' in text
  fits = int(text.rpartition(' ')[2])
  assert _plan(_params(queries=fits)).epsilon <= 1.0
  assert _plan(_params(queries=fits + 1)).epsilon > 1.0
  # And none may fit at all.
  with pytest.raises(ValueError, match='queries that fits is 0$'):
    _plan(epsilon=0.001, noise_stddev=0.5)


def test_noise_that_drowns_the_votes_is_refused_with_the_queries_that_fit():
  with pytest.raises(ValueError) as raised:
    _plan(epsilon=0.1, noise_stddev=None)
  text = str(raised.value)
  assert 'cannot be reached in earnest with queries=500' in text
  fits = int(text.partition('queries that fits is ')[2].partition(';')[0])
  assert 0 < fits < 500
  fitting = _plan(_params(queries=fits), epsilon=0.1, noise_stddev=None)
  assert fitting.params.noise_stddev < 100
  allowed = _plan(epsilon=0.1, noise_stddev=None, allow_degenerate=True)
  assert any('labels of the noise' in text for text in allowed.warnings())
  with pytest.raises(ValueError, match='--allow_degenerate'):
    _plan(_params(agents=20))


@pytest.mark.parametrize('changes, message', [
    ({'noise_stddev': None}, 'epsilon or noise_stddev must be given'),
    ({'noise_stddev': 0.0}, 'noise_stddev must be greater than 0'),
    ({'epsilon': -1.0}, 'epsilon must be greater than 0'),
    ({'epsilon': math.nan}, 'epsilon must be a finite number'),
    ({'delta': 1.0}, 'delta must be strictly between 0 and 1'),
    ({'level': 'user'}, 'level must be one of'),
    ({'bound': 'loose'}, 'bound must be one of')])
def test_impossible_plans_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    _plan(**changes)


@pytest.mark.parametrize('bound', ['tight', 'paper'])
def test_a_published_number_below_the_proved_one_is_warned_of(bound):
  # All k votes of an agent on one label, under little Skellam noise.
  plan = _plan(_params(queries=50, votes=5), scheme='knn', noise_stddev=1.0,
               delta=1e-4, bound=bound)
  assert plan.epsilon_published == pytest.approx(55.35, abs=0.01)
  assert plan.epsilon > 59
  text = 'epsilon by the published formula is less than what is proved'
  assert any(text in warning for warning in plan.warnings())
  fine = _plan(bound=bound)
  assert fine.epsilon_published > fine.epsilon
  assert not any(text in warning for warning in fine.warnings())


def test_warnings_say_what_a_number_is_worth():
  assert _plan(_params(agents=1000)).warnings() == []
  assert 'seeded run: no guarantee' in _plan(simulation_seed=1).warnings()[0]
  gaussian = ' '.join(_plan(_params(noise='gaussian')).warnings())
  assert 'floating point' in gaussian and 'real' in gaussian
  assert 'above 1/population' in ' '.join(
      _plan(_params(agents=40), delta=0.1).warnings())
  assert 'server is trusted' in _plan(
      _params(noise='gaussian_central')).trust_model


def _sgd(**changes):
  return SgdPlan.calibrate(**{**dict(
      epsilon=4.0, noise_multiplier=None, delta=None, sampling_rate=0.02, clip=0.5,
      rounds=200, agents=3, records=2000), **changes})


def test_noisy_gradients_are_calibrated_from_below():
  plan = _sgd()
  assert 3.99 < plan.epsilon(200) <= 4.0 and plan.delta == 1e-4
  assert plan.epsilon(0) == 0 and plan.epsilon(100) < plan.epsilon(200)
  assert plan.guarantee(200).adjacency == 'record-zero-out'
  # Records drawn in secret: as in DP-SGD on all records together.
  central = events.SelfComposed(
      event=events.PoissonSampled(
          event=events.CentralGaussian(noise_multiplier=plan.noise_multiplier),
          sampling_rate=0.02), count=200)
  assert plan.epsilon(200) == accountant.epsilon(central, 1e-4)
  assert plan.expected_records == 40
  texts = ' '.join(plan.warnings(200))
  assert 'taken as public' in texts and 'records an agent drew' in texts


@pytest.mark.parametrize('changes, message', [
    ({'noise_multiplier': 1.0}, 'one of epsilon and noise_multiplier'),
    ({'epsilon': None}, 'one of epsilon and noise_multiplier'),
    ({'clip': 0.0}, 'clip must be greater than 0'),
    ({'sampling_rate': 0.0}, r'sampling_rate must be in \(0, 1\]'),
    ({'rounds': 0}, 'rounds must be at least 1')])
def test_impossible_rounds_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    _sgd(**changes)
