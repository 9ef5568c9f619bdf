"""Plans of local distillation: never more than the total, and why."""

import math

import pytest

from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import accountant, ledger as ledger_lib
from tff_pipelines.ldp import plan as ldp_plan, run as ldp_run
from tff_pipelines.ldp.settings import DEFAULT_EPSILON, LdpSettings

PURE = ['krr', 'subset', 'piecewise', 'duchi', 'laplace']


def _plan(mechanism='piecewise', holdings=40, recorded=None, **settings):
  return ldp_plan.build(
      LdpSettings(**{'mechanism': mechanism, 'num_clients': 40,
                     'clients_per_query': 2, **settings}),
      dimension=10, holdings=holdings, recorded=recorded)


def _caveats(plan, answers):
  return [caveat.name for caveat in plan.guarantee(answers).caveats]


def test_without_a_wish_every_owner_answers_once_with_the_whole_budget():
  plan = _plan()
  assert plan.epsilon_per_query == DEFAULT_EPSILON
  assert (plan.answers_per_client, plan.groups, plan.queries) == (1, 20, 20)
  assert plan.delta == plan.epsilon(0) == 0
  assert plan.epsilon(1) == plan.epsilon_per_query
  # Classes are told twice at that total, and not at less than two shares.
  for total, answers in ((None, 2), (7.9, 1), (12.5, 3)):
    plan = _plan('subset', epsilon=total)
    assert plan.answers_per_client == answers
    assert plan.epsilon(answers) <= (total or DEFAULT_EPSILON)
  assert _plan('krr', delta=1e-5).answers_per_client == 1


@pytest.mark.parametrize('mechanism', PURE)
@pytest.mark.parametrize('answers, total', [(1, 5.0), (3, 0.7), (10, 1.1), (49, 8.0)])
def test_a_shared_total_is_never_exceeded_and_next_to_all_used(mechanism, answers, total):
  plan = _plan(mechanism, epsilon=total, answers_per_client=answers)
  assert plan.epsilon_per_query * answers <= total
  assert total * (1 - 1e-12) < plan.epsilon(answers) <= total
  assert plan.queries == 20 * answers


@pytest.mark.parametrize('total, each, answers', [
    (4.0, 1.0, 4), (0.3, 0.1, 3), (4.0, 1.1, 3), (1.0, 1.0, 1)])
def test_from_both_epsilons_follows_how_often_an_owner_answers(total, each, answers):
  plan = _plan(epsilon=total, epsilon_per_query=each)
  # 3 x 0.1 is more than 0.3 in floating point, and then one answer less.
  exact = answers if answers * each <= total else answers - 1
  assert plan.answers_per_client == exact and plan.epsilon(exact) <= total


def test_epsilon_of_an_answer_alone_makes_the_total_what_it_comes_to():
  plan = _plan(epsilon_per_query=5.0, answers_per_client=1000)
  assert plan.epsilon(1000) == pytest.approx(5000) and plan.queries == 20_000
  assert _caveats(plan, 1000) == ['large epsilon']
  # That outputs are rounded to a grid is what the event's own caveat asks for.
  assert _caveats(plan, 1) == []


@pytest.mark.parametrize('mechanism, size', [('krr', 1), ('subset', 3)])
def test_answers_with_classes_are_the_events_of_what_is_drawn(mechanism, size):
  plan = _plan(mechanism, epsilon_per_query=1.0)
  assert plan.event(1) == events.SubsetSelection(epsilon=1.0, classes=10, size=size)
  assert ldp_run.mechanism_of(plan).size == size


def test_ties_of_an_even_number_of_classes_count_for_duchi():
  assert _plan('duchi').event(1).answered == 1 - 252 / 1024


@pytest.mark.parametrize('mechanism', PURE)
def test_a_delta_buys_more_answers(mechanism):
  pure = _plan(mechanism, epsilon=4.0, epsilon_per_query=0.05)
  plan = _plan(mechanism, epsilon=4.0, epsilon_per_query=0.05, delta=1e-5)
  assert plan.answers_per_client > 3 * pure.answers_per_client
  count = plan.answers_per_client
  assert plan.epsilon(count) <= 4.0 < plan.epsilon(count + 1)
  shared = _plan(mechanism, epsilon=4.0, answers_per_client=100, delta=1e-5)
  assert shared.epsilon_per_query > 1.5 * 4.0 / 100
  assert 3.99 < shared.epsilon(100) <= 4.0


def test_gaussian_noise_is_calibrated_to_all_answers():
  plan = _plan('gaussian', epsilon=5.0, answers_per_client=4)
  assert plan.epsilon_per_query is None and plan.delta == 1e-5
  assert 4.99 < plan.epsilon(4) <= 5.0
  event = events.SelfComposed(event=events.LocalDiscreteGaussian(
      noise_multiplier=plan.noise_multiplier), count=4)
  # What sampling error consumes is less than a last digit of delta.
  assert accountant.epsilon(event, 1e-5) == plan.epsilon(4)
  consumed = plan.guarantee(4).outsiders.consumed_delta
  assert 0 < consumed and accountant.epsilon(event, 1e-5 - consumed) <= 5.0
  each = _plan('gaussian', epsilon=5.0, epsilon_per_query=1.0)
  assert each.answers_per_client > 5  # They compose better than they add up.
  assert each.epsilon(each.answers_per_client) <= 5.0


@pytest.mark.parametrize('mechanism', ['piecewise', 'gaussian'])
def test_what_was_recorded_is_not_calibrated_again(mechanism):
  first = _plan(mechanism, epsilon=5.0, answers_per_client=4)
  assert _plan(mechanism, epsilon=5.0, answers_per_client=4,
               recorded=first.configuration()) == first
  name = 'noise_multiplier' if mechanism == 'gaussian' else 'epsilon_per_query'
  recorded = {**first.configuration(), name: 1.5}
  again = _plan(mechanism, epsilon=5.0, answers_per_client=4, recorded=recorded)
  assert getattr(again, name) == 1.5


def test_what_the_gaussian_sampler_deviates_comes_out_of_delta():
  plan = _plan('gaussian', epsilon=8.0, answers_per_client=4)
  assert plan.total_variation == 10 * 2.0**-86
  # Twelve queries of twenty groups: no owner answers twice. Forty: every owner does.
  for queries, answers in ((12, 1), (40, 2)):
    step = _plan('gaussian', epsilon=8.0, answers_per_client=4, queries_per_step=queries)
    assert step.header(1)['deviation_per_round'] == answers * 10 * 2.0**-86
  # (1 + e^epsilon) t, at an epsilon that is no less than the one found.
  guarantee = plan.guarantee(4)
  assert guarantee.delta == plan.delta
  consumed = guarantee.outsiders.consumed_delta
  assert (1 + math.exp(plan.epsilon(4))) * 40 * 2.0**-86 <= consumed < 1e-19
  for mechanism in PURE:
    pure = _plan(mechanism, delta=1e-5).guarantee(1)
    assert pure.outsiders.consumed_delta == 0.0
  with pytest.raises(ValueError, match='epsilon=47 at delta=1e-05 is beyond'):
    _plan('gaussian', epsilon=47.0)
  loose = _plan('gaussian', epsilon_per_query=10.0, answers_per_client=30)
  assert loose.epsilon(30) > 50  # Asked for, and said.
  assert 'epsilon of ideal distributions' in _caveats(loose, 30)
  assert 'epsilon of ideal distributions' not in _caveats(plan, 4)


@pytest.mark.parametrize('total', [26.0, 30.0, 33.0, 36.0, 39.0, 42.0])
def test_where_the_sampler_matters_a_total_is_kept_or_refused(total):
  try:
    plan = _plan('gaussian', epsilon=total, answers_per_client=3)
  except ValueError as error:
    assert 'is beyond what is proved' in str(error) and total > 36
    return
  assert total < 45
  assert plan.guarantee(3).outsiders.consumed_delta <= 0.5e-5
  assert 0.99 * total < plan.epsilon(3) <= total


def test_the_ledgers_events_say_who_answered_how_often():
  plan = _plan(epsilon=6.0, answers_per_client=3)
  steps = [(0, 15), (15, 40), (40, 60)]
  whole = events.Composed(events=tuple(plan.step_event(*step) for step in steps))
  assert accountant.epsilon(whole, 0.0) == pytest.approx(plan.epsilon(3))
  half = events.Composed(events=tuple(plan.step_event(*s) for s in steps[:2]))
  assert accountant.epsilon(half, 0.0) == pytest.approx(plan.epsilon(2))
  assert [plan.most_answers(n) for n in (0, 1, 20, 21, 60)] == [0, 1, 1, 2, 3]


@pytest.mark.parametrize('holdings, of_a_holding', [(40, None), (8, 9)])
def test_guarantee_of_a_ledger_is_that_of_the_client_with_most_answers(
    tmp_path, holdings, of_a_holding):
  plan = _plan(epsilon=6.0, answers_per_client=3, holdings=holdings)
  ledger = ledger_lib.Ledger.create(tmp_path / 'ledger.jsonl', **plan.header(1))
  for step in ((0, 15), (15, 33)):
    ledger.append_line(ledger.next_line(
        plan.step_event(*step), outcome='released', configuration_hash='c'))
  guarantee = plan.guarantee_of(ledger)
  assert guarantee.outsiders.epsilon == plan.epsilon(2) == 4.0
  assert guarantee.server is None and guarantee.delta == 0
  assert guarantee.adjacency == 'local'
  # The five owners of each holding answered, then four of them once more.
  assert guarantee.further == {
      'epsilon_at_delta_1e-6': None, 'epsilon_server_at_delta_1e-6': None,
      'answers_of_a_client': 2, 'answers_of_a_holding': of_a_holding,
      'epsilon_of_a_holding': of_a_holding and 2.0 * of_a_holding}
  assert 'answers of a client: 2' in guarantee.details()


@pytest.mark.parametrize('holdings', [1, 3, 7, 40])
@pytest.mark.parametrize('size', [1, 2, 8])
def test_answers_of_a_set_of_records_are_at_most_what_the_plan_says(holdings, size):
  plan = _plan(holdings=holdings, clients_per_query=size, answers_per_client=3)
  counts = [0] * holdings
  for query in range(plan.queries):
    first = query % plan.groups * size
    for owner in range(first, first + size):
      counts[owner % holdings] += 1
    assert max(counts) <= plan.holding_answers(query + 1)
  assert plan.holding_answers(plan.queries) <= 3 * -(-40 // holdings)


@pytest.mark.parametrize('arguments, message', [
    (dict(epsilon=math.nan), 'epsilon .*nan'),
    (dict(epsilon_per_query=40.0), 'epsilon_per_query must be from .*40'),
    (dict(epsilon=1e-5), 'epsilon_per_query must be from'),
    (dict(delta=1.0), 'delta .*1.0'),
    (dict(epsilon=1.0, epsilon_per_query=1.0, answers_per_client=1),
     'answers_per_client must not be given'),
    (dict(epsilon=1.0, epsilon_per_query=2.0), 'less than one answer costs'),
    (dict(mechanism='gaussian', epsilon=1.0, epsilon_per_query=2.0),
     'less than one answer costs'),
    (dict(clients_per_query=3), 'clients_per_query must divide num_clients=40, found 3')])
def test_budgets_that_can_not_be_had_are_named(arguments, message):
  with pytest.raises(ValueError, match=message):
    _plan(**arguments)
