"""Plans of votes and of DP-FedSGD: calibrated, on the private side, explained."""

import math

import numpy as np
import pytest

from aggregators.voting_params import VotingParams
from tasks.voting import task as voting_tasks
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import (
    accountant, guarantee as guarantee_lib, plan as guarantee)
from tff_pipelines.voting import baselines, run
from tff_pipelines.voting.plan import VotePlan
from tff_pipelines.voting.settings import DEFAULT_DELTA, VoteSettings


def _params(**changes):
  return VotingParams(**{**dict(
      queries=500, classes=10, agents=100, noise_stddev=1.0), **changes})


def _plan(params=_params(), *, level='agent', delta=None, **changes):
  return VotePlan.calibrate(params, **{**dict(
      scheme='ae', level=level, delta=delta or DEFAULT_DELTA.get(level, 0.5),
      target_epsilon=None, noise_stddev=25.0), **changes})


def _task(agents, *, classes=10, records=1):
  """A task of vectors of 9 coordinates, with this number of records an agent."""
  examples = {'x': np.zeros((records, 9), np.float32), 'y': np.zeros(records, np.int32)}
  return voting_tasks.VotingTask(
      name='tiny', num_classes=classes, agents=voting_tasks.AgentRecords(
          {f'agent{i}': examples for i in range(agents)}),
      public=np.zeros((5, 9), np.float32), public_labels=np.zeros(5, np.int32),
      test=examples, privacy_unit='one of these agents')


def _warnings(plan):
  return plan.guarantee(1).caveats


def test_numbers_of_the_paper_stand_beside_those_that_are_proved():
  plan = _plan()
  assert plan.epsilon_published == pytest.approx(3.72, abs=5e-3)
  assert plan.epsilon(1) == pytest.approx(2.736, rel=2e-3)
  result = plan.guarantee(1)
  assert result.delta == 1e-3 and result.outsiders.accountant == 'pld'
  assert result.further['epsilon_published'] == plan.epsilon_published


def test_many_labels_of_an_agent_cost_as_in_the_paper():
  # CelebA: tau = 4, sigma = 50, 600 queries, stated as 4.0.
  params = _params(queries=600, classes=40, agents=300, attributes=4)
  plan = _plan(params, noise_stddev=50.0)
  assert plan.epsilon_published == pytest.approx(4.1, abs=0.05)
  assert plan.epsilon(1) < 3.1
  single = _plan(params.replace(attributes=None), noise_stddev=50.0)
  assert single.epsilon(1) < plan.epsilon(1) / 1.9


@pytest.mark.parametrize('bound', ['tight', 'paper'])
@pytest.mark.parametrize('scheme, level, votes', [
    ('ae', 'agent', 1), ('ae', 'instance', 1), ('knn', 'instance', 30),
    ('knn', 'agent', 3)])
@pytest.mark.parametrize('noise', ['skellam', 'gaussian'])
def test_calibration_meets_the_target_from_below(bound, scheme, level, votes, noise):
  params = _params(queries=40, votes=votes, noise=noise)
  plan = _plan(params, scheme=scheme, level=level, target_epsilon=2.0,
               noise_stddev=None, calibrated_by=bound, allow_degenerate=True)
  assert 1.99 < plan.epsilon_planned <= 2.0
  # The published formula is never the smaller one, and the guarantee is proved.
  assert plan.epsilon(1) <= plan.epsilon_published
  # Delta has a part for the sampler, if one is known.
  exact = accountant.epsilon(plan.event(1), plan.delta)
  assert exact <= plan.epsilon(1) <= exact * (1 + 1e-9)
  consumed = plan.guarantee(1).outsiders.consumed_delta
  assert (consumed is None) == (noise == 'gaussian')


def test_what_the_sampler_takes_of_delta_costs_epsilon():
  plan = _plan()
  deviation = 500 * 10 * 100 * 2.0**-86
  assert plan.total_variation == deviation
  # (1 + e^epsilon) times it, at an epsilon a little above the one that is found.
  least = deviation * (1 + math.exp(plan.epsilon(1)))
  assert least < plan.guarantee(1).outsiders.consumed_delta < 10 * least
  # With a delta of that size half of it is gone.
  tiny = _plan(delta=4e-17)
  assert tiny.guarantee(1).outsiders.consumed_delta > 1e-19
  assert tiny.epsilon(1) > accountant.epsilon(tiny.event(1), tiny.delta)
  assert tiny.guarantee(1).delta == 4e-17


def test_sums_that_were_seen_twice_cost_as_twice_the_queries():
  plan = _plan(_params(queries=50))
  assert plan.guarantee(1).server.epsilon == plan.epsilon(1)
  twice = plan.guarantee(1, repeats=1, seen=plan.released(2))
  assert twice.server.epsilon == pytest.approx(
      _plan(_params(queries=100)).epsilon(1), rel=1e-6)
  # The labels were released once.
  assert twice.outsiders.epsilon == plan.epsilon(1)


def test_the_event_is_of_the_parameters_that_run():
  params = _params(votes=7, noise_stddev=2.0, max_weight=3)
  plan = VotePlan(params=params, scheme='knn', level='instance', delta=1e-4)
  assert plan.event(1) == events.SelfComposed(
      event=events.Vote(scheme='knn', level='instance', noise_stddev=2.0,
                        neighbours=7, max_weight=3), count=500)
  # Twice the weight needs twice the noise, with Gaussian noise exactly.
  weighted, single = (
      _plan(_params(queries=9, noise='gaussian', max_weight=w), target_epsilon=1.0,
            noise_stddev=None) for w in (2, 1))
  assert weighted.params.noise_stddev == pytest.approx(
      2 * single.params.noise_stddev, rel=1e-5)


def test_honest_noise_alone_is_counted_on():
  half = _plan(_params(min_honest_fraction=0.5))
  assert half.epsilon(1) == _plan().epsilon(1)
  assert half.params.total_noise_variance == 2 * 625


def test_too_many_queries_say_how_many_fit():
  with pytest.raises(ValueError) as raised:
    _plan(target_epsilon=1.0, noise_stddev=25.0)
  text = str(raised.value)
  assert 'epsilon=1 cannot be reached with queries=500' in text
  fits = int(text.rpartition(' ')[2])
  assert _plan(_params(queries=fits)).epsilon(1) <= 1.0
  assert _plan(_params(queries=fits + 1)).epsilon(1) > 1.0
  # And none may fit at all.
  with pytest.raises(ValueError, match='queries that fits is 0$'):
    _plan(target_epsilon=0.001, noise_stddev=0.5)


def test_noise_that_drowns_the_votes_is_refused():
  with pytest.raises(ValueError, match='queries=500 with epsilon=0.1 take noise of'):
    _plan(target_epsilon=0.1, noise_stddev=None)
  allowed = _plan(target_epsilon=0.1, noise_stddev=None, allow_degenerate=True)
  assert any('labels of the noise' in text for text in _warnings(allowed))
  with pytest.raises(ValueError, match='--allow_degenerate'):
    _plan(_params(agents=20))


@pytest.mark.parametrize('changes, message', [
    ({'noise_stddev': None}, 'epsilon or noise_stddev must be given'),
    ({'noise_stddev': 0.0}, 'noise_stddev must be greater than 0'),
    ({'target_epsilon': -1.0}, 'epsilon must be greater than 0'),
    ({'target_epsilon': math.nan}, 'epsilon must be a finite number'),
    ({'delta': 1.0}, 'delta must be strictly between 0 and 1'),
    ({'level': 'user'}, 'level must be one of'),
    ({'calibrated_by': 'loose'}, 'bound must be one of')])
def test_impossible_plans_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    _plan(**changes)


@pytest.mark.parametrize('bound', ['tight', 'paper'])
def test_a_published_number_below_the_proved_one_is_warned_of(bound):
  # All k votes of an agent on one label, under little Skellam noise.
  plan = _plan(_params(queries=50, votes=5), scheme='knn', noise_stddev=1.0,
               delta=1e-4, calibrated_by=bound)
  assert plan.epsilon_published == pytest.approx(55.35, abs=0.01)
  assert plan.epsilon(1) > 59
  text = 'epsilon by the published formula is less than what is proved'
  assert any(text in warning for warning in _warnings(plan))
  fine = _plan(calibrated_by=bound)
  assert fine.epsilon_published > fine.epsilon(1)
  assert not any(text in warning for warning in _warnings(fine))


def test_warnings_say_what_a_number_is_worth():
  assert _warnings(_plan(_params(agents=999))) == (guarantee_lib.SIMULATED,)
  assert guarantee.SEEDED in _warnings(_plan(seed=1))
  gaussian = ' '.join(_warnings(_plan(_params(noise='gaussian'))))
  assert 'floating point' in gaussian and 'real' in gaussian
  many = _params(agents=40)
  assert 'not below 1/population' in ' '.join(_warnings(_plan(many, delta=0.1)))
  assert 'not below 1/population' not in ' '.join(_warnings(
      _plan(many, delta=0.1, level='instance')))
  # The number of records is as private as one of them is.
  for delta, is_said in ((1e-4, True), (1e-6, False)):
    plan = _plan(many, delta=delta, level='instance')
    assert ('well below 1 over the number of records' in ' '.join(_warnings(plan))) == is_said


def test_a_trusted_server_has_no_epsilon_of_its_own():
  central = _plan(_params(noise='gaussian_central'))
  assert 'server is trusted' in central.terms.trust_model
  assert central.guarantee(1).server is None
  assert not central.terms.secure_aggregation


def test_the_ledger_states_the_agents_at_every_level():
  for level in ('agent', 'instance'):
    header = _plan(level=level).header(1, ['more'])
    assert header['population'] == 100 and 'more' in header['warnings']
    assert header['deviation_per_round'] == _plan().total_variation


def test_a_plan_follows_from_settings_and_what_was_recorded():
  settings = VoteSettings(algorithm='knn', neighbours=5, queries=20, bound='paper',
                          threshold=0.5, seed=4)
  task = _task(50, classes=4)
  plan = run.VoteExperiment(settings).build_plan(task, None)
  assert (plan.params.agents, plan.params.classes, plan.params.queries) == (50, 4, 20)
  assert (plan.params.votes, plan.params.threshold) == (5, 0.5)
  assert (plan.scheme, plan.level, plan.delta) == ('knn', 'instance', 1e-4)
  assert (plan.seed, plan.terms.privacy_unit) == (
      4, 'one record of an agent (an agent is one of these agents)')
  assert plan.epsilon_planned == pytest.approx(4.3, rel=1e-9)
  recorded = {**plan.configuration(), 'noise_stddev': 2.0}
  again = run.VoteExperiment(settings).build_plan(task, recorded)
  assert again.params.noise_stddev == 2.0
  given = run.VoteExperiment(settings.replace(noise_stddev=3.0)).build_plan(
      task, recorded)
  assert given.params.noise_stddev == 3.0


def _sgd(**changes):
  settings = VoteSettings(**{**dict(
      algorithm='dp_fedsgd', epsilon=4.0, record_rate=0.02, clip=0.5, rounds=200,
      noise='gaussian_central'), **changes})
  return baselines.FedSgdExperiment(settings).build_plan(_task(4, records=500), None)


def test_votes_and_noisy_gradients_are_of_the_same_neighbours():
  vote = _plan(_params(votes=30), scheme='knn', level='instance')
  plan = _sgd()
  assert 3.99 < plan.epsilon(200) <= 4.0
  assert plan.guarantee(200).adjacency == vote.guarantee(1).adjacency == 'instance'
  added = _sgd(adjacency='record-zero-out', epsilon=None,
               noise_multiplier=plan.mechanism.noise_multiplier)
  assert added.epsilon(200) < plan.epsilon(200)


def test_noisy_gradients_are_calibrated_from_below():
  plan = _sgd(adjacency='record-zero-out')
  assert 3.99 < plan.epsilon(200) <= 4.0 and plan.delta == 1e-4
  assert plan.epsilon(0) == 0 and plan.epsilon(100) < plan.epsilon(200)
  result = plan.guarantee(200)
  assert result.adjacency == 'record-zero-out'
  # Records sampled in secret: as in DP-SGD on all records together.
  central = events.SelfComposed(
      event=events.PoissonSampled(
          event=events.CentralGaussian(
              noise_multiplier=plan.mechanism.noise_multiplier),
          sampling_rate=0.02), count=200)
  assert plan.epsilon(200) == accountant.epsilon(central, 1e-4)
  assert (plan.mechanism.cohort_size, plan.population, plan.mechanism.silos) == (
      40, 2000, 4)
  assert 'records a silo drew' in ' '.join(result.caveats)
  # Agents' integers cost what the Gaussian does; one that knows its share has less noise.
  shares = _sgd(adjacency='record-zero-out', noise='skellam')
  assert shares.mechanism.noise_multiplier == pytest.approx(
      plan.mechanism.noise_multiplier, rel=2e-3)
  assert 4.0 < shares.guarantee(200).participant.epsilon < 6.1
  assert 'taken as public' in ' '.join(result.caveats)


def test_the_server_of_noisy_gradients_sees_repeated_rounds_amplified():
  plan = _sgd(noise='skellam')
  result = plan.guarantee(200, repeats=7, seen=plan.released(207))
  assert result.server.epsilon == plan.epsilon(207) > result.outsiders.epsilon
  assert result.server.epsilon < 1.1 * result.outsiders.epsilon


def _averaged(recorded=None, **changes):
  settings = VoteSettings(**{**dict(algorithm='dp_fedavg', rounds=5), **changes})
  return baselines.AveragingExperiment(settings).build_plan(_task(30), recorded)


@pytest.mark.slow
def test_averaging_of_all_agents_is_not_sampled():
  plan = _averaged()
  assert plan.mechanism.sampling == 'none' and plan.delta == 1e-3
  assert (plan.mechanism.dimension, plan.terms.privacy_unit) == (
      100, 'one of these agents')
  assert 4.29 < plan.epsilon(5) <= 4.3
  some = _averaged(cohort_size=10.0, noise='gaussian_central')
  assert (some.mechanism.sampling, some.mechanism.mechanism) == ('poisson', 'gaussian')
  recorded = {**plan.configuration(), 'noise_multiplier': 2.0}
  assert _averaged(recorded).mechanism.noise_multiplier == 2.0
  assert not _averaged(algorithm='fedavg').is_private
