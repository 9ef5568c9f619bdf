"""Plans of local distillation: never more than the total, and why."""

import math

import pytest

from tff_pipelines import ldp_plan
from tff_pipelines.accounting import accountant
from tff_pipelines.accounting import events

PURE = ['piecewise', 'duchi', 'laplace']
ALL = [*PURE, 'gaussian']


def _plan(mechanism='piecewise', owners=40, owners_per_query=2, holdings=None,
          seed=None, **budget):
  return ldp_plan.calibrate(
      ldp_plan.Budget(mechanism=mechanism, **budget), dimension=10, owners=owners,
      owners_per_query=owners_per_query, holdings=holdings, simulation_seed=seed)


def test_without_a_wish_every_owner_answers_once_with_the_whole_budget():
  plan = _plan()
  assert plan.epsilon_per_query == ldp_plan.DEFAULT_EPSILON
  assert (plan.answers_per_owner, plan.groups, plan.queries) == (1, 20, 20)
  assert plan.delta == 0 and plan.epsilon(1) == plan.epsilon_per_query


@pytest.mark.parametrize('mechanism', PURE)
@pytest.mark.parametrize('answers', [1, 3, 7, 10, 49])
@pytest.mark.parametrize('total', [0.7, 1.1, 5.0, 8.0])
def test_a_shared_total_is_never_exceeded_and_next_to_all_used(
    mechanism, answers, total):
  plan = _plan(mechanism, epsilon_total=total, answers_per_owner=answers)
  assert plan.epsilon_per_query * answers <= total
  assert total * (1 - 1e-12) < plan.epsilon(answers) <= total
  assert plan.queries == 20 * answers


@pytest.mark.parametrize('total, each, answers', [
    (4.0, 1.0, 4), (0.3, 0.1, 3), (4.0, 1.1, 3), (1.0, 1.0, 1)])
def test_from_both_epsilons_follows_how_often_an_owner_answers(total, each, answers):
  plan = _plan(epsilon_total=total, epsilon_per_query=each)
  # 3 x 0.1 is more than 0.3 in floating point, and then one answer less.
  exact = answers if answers * each <= total else answers - 1
  assert plan.answers_per_owner == exact and plan.epsilon(exact) <= total


def test_epsilon_of_an_answer_alone_makes_the_total_what_it_comes_to():
  plan = _plan(epsilon_per_query=5.0, answers_per_owner=1000)
  assert plan.epsilon(1000) == pytest.approx(5000) and plan.queries == 20_000
  assert any('above 20' in text for text in plan.guarantee(1000).warnings)


@pytest.mark.parametrize('mechanism', ['piecewise', 'laplace'])
def test_a_delta_buys_more_answers(mechanism):
  pure = _plan(mechanism, epsilon_total=4.0, epsilon_per_query=0.05)
  plan = _plan(mechanism, epsilon_total=4.0, epsilon_per_query=0.05, delta=1e-5)
  assert plan.answers_per_owner > 3 * pure.answers_per_owner
  count = plan.answers_per_owner
  assert plan.epsilon(count) <= 4.0 < plan.epsilon(count + 1)
  shared = _plan(mechanism, epsilon_total=4.0, answers_per_owner=100, delta=1e-5)
  assert shared.epsilon_per_query > 1.5 * 4.0 / 100
  assert 3.99 < shared.epsilon(100) <= 4.0


def test_gaussian_noise_is_calibrated_to_all_answers():
  plan = _plan('gaussian', epsilon_total=5.0, answers_per_owner=4)
  assert plan.epsilon_per_query is None and plan.delta == 1e-5
  assert 4.99 < plan.epsilon(4) <= 5.0
  event = events.SelfComposed(event=events.LocalDiscreteGaussian(
      noise_multiplier=plan.noise_multiplier), count=4)
  # What the sampler takes is less than a last digit of delta.
  assert accountant.epsilon(event, 1e-5) == plan.epsilon(4)
  # 2^-15 of delta is kept for it.
  assert accountant.epsilon(event, 1e-5 * (1 - 2.0**-15)) <= 5.0
  each = _plan('gaussian', epsilon_total=5.0, epsilon_per_query=1.0)
  assert each.answers_per_owner > 5  # They compose better than they add up.
  assert each.epsilon(each.answers_per_owner) <= 5.0


def test_what_the_gaussian_sampler_deviates_comes_out_of_delta():
  plan = _plan('gaussian', epsilon_total=8.0, answers_per_owner=4)
  assert plan.deviation_per_answer == 10 * 2.0**-86
  # Twelve queries of twenty groups: nobody answers twice. Forty: everybody does.
  assert plan.deviation_per_step(12) == 10 * 2.0**-86
  assert plan.deviation_per_step(40) == 20 * 2.0**-86
  # (1 + e^epsilon) t, at an epsilon that is no less than the one found.
  assert plan.delta_sampler(4) >= (1 + math.exp(plan.epsilon(4))) * 40 * 2.0**-86
  assert plan.delta_sampler(4) < 1e-19 and plan.delta_sampler(0) == 0.0
  assert plan.guarantee(4).delta == plan.delta
  for mechanism in PURE:
    assert _plan(mechanism, delta=1e-5).delta_sampler(1) == 0.0
  with pytest.raises(ValueError, match='epsilon=45 at delta=1e-05 can not be had'):
    _plan('gaussian', epsilon_total=45.0)
  loose = _plan('gaussian', epsilon_per_query=10.0, answers_per_owner=30)
  assert loose.epsilon(30) > 50  # Asked for, and said.
  assert any('that of exact laws' in text for text in loose.guarantee(30).warnings)
  assert not any('exact laws' in text for text in plan.guarantee(4).warnings)


@pytest.mark.parametrize('total', [26.0, 30.0, 33.0, 36.0, 39.0, 42.0])
def test_where_the_sampler_matters_a_total_is_kept_or_refused(total):
  try:
    plan = _plan('gaussian', epsilon_total=total, answers_per_owner=3)
  except ValueError as error:
    assert 'can not be had' in str(error) and total > 30
    return
  assert total < 39
  assert plan.delta_sampler(3) <= 1e-5 * 2.0**-15
  assert 0.99 * total < plan.epsilon(3) <= total


def test_the_ledgers_events_say_who_answered_how_often():
  plan = _plan(epsilon_total=6.0, answers_per_owner=3)
  steps = [(0, 15), (15, 40), (40, 60)]
  found = events.Composed(events=tuple(plan.step_event(*step) for step in steps))
  assert accountant.epsilon(found, 0.0) == pytest.approx(plan.epsilon(3))
  half = events.Composed(events=tuple(plan.step_event(*s) for s in steps[:2]))
  assert accountant.epsilon(half, 0.0) == pytest.approx(plan.epsilon(2))
  assert [plan.most_answers(n) for n in (0, 1, 20, 21, 60)] == [0, 1, 1, 2, 3]


@pytest.mark.parametrize('holdings', [1, 3, 7, 40])
@pytest.mark.parametrize('size', [1, 2, 8])
def test_answers_of_a_set_of_records_are_at_most_what_the_plan_says(holdings, size):
  plan = _plan(holdings=holdings, owners_per_query=size, answers_per_owner=3)
  counts = [0] * holdings
  for query in range(plan.queries):
    first = query % plan.groups * size
    for owner in range(first, first + size):
      counts[owner % holdings] += 1
    assert max(counts) <= plan.holding_answers(query + 1)
  assert plan.holding_answers(plan.queries) <= 3 * -(-40 // holdings)


def test_nothing_is_guaranteed_of_no_answers_and_nothing_is_spent():
  plan = _plan()
  assert plan.guarantee(0) is None and plan.epsilon(0) == 0.0


@pytest.mark.parametrize('arguments, message', [
    (dict(mechanism='coin'), 'mechanism must be one of'),
    (dict(epsilon_total=math.nan), 'epsilon_total .*nan'),
    (dict(epsilon_total=-1.0), 'epsilon_total .*-1'),
    (dict(epsilon_per_query=0.0), 'epsilon_per_query .*0'),
    (dict(epsilon_per_query=40.0), 'epsilon_per_query must be from .*40'),
    (dict(epsilon_total=1e-5), 'epsilon_per_query must be from'),
    (dict(answers_per_owner=0), 'answers_per_owner .*0'),
    (dict(delta=1.0), 'delta .*1.0'), (dict(delta=0.0), 'delta .*0.0'),
    (dict(epsilon_total=1.0, epsilon_per_query=1.0, answers_per_owner=1),
     'answers_per_owner must not be given'),
    (dict(epsilon_total=1.0, epsilon_per_query=2.0), 'less than one answer costs'),
    (dict(mechanism='gaussian', epsilon_total=1.0, epsilon_per_query=2.0),
     'less than one answer costs'),
    (dict(owners_per_query=3), 'owners_per_query must divide owners=40, found 3'),
    (dict(owners_per_query=0), 'owners_per_query .*0'),
    (dict(holdings=41), 'holdings .*41'), (dict(seed=-1), 'seed .*-1')])
def test_budgets_that_can_not_be_had_are_named(arguments, message):
  with pytest.raises(ValueError, match=message):
    _plan(**arguments)
