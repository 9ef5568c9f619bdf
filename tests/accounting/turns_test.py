"""Clients who take turns: schedules as they are drawn, against what their event counts."""

import collections
import functools
import itertools
import math

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
from scipy import stats

from tests import statistics_lib
from tests.known_cohorts import gaussian_delta
from tff_pipelines.accounting.divergences import pairs
from tff_pipelines.accounting.events import base, combinators, kinds as events, turns
from tff_pipelines.accounting.guarantees import (
    accountant, answers, bounds, ledger as ledger_lib, mechanisms, observers)
from tff_pipelines.accounting.sampling import cohorts, schemes

GAUSSIAN = events.CentralGaussian(noise_multiplier=1.0)
SHARES = events.DistributedSkellam(l1_sensitivity=4e4, l2_sensitivity=1e4,
    noise_variance=9e8, dimension=16, min_honest_fraction=1.0, cohort_size=4.0)
PRELIMINARY = functools.partial(
    events.PreliminaryRelease, l2_sensitivity=4.0, noise_variance=900.0)
SETTINGS = hypothesis.settings(max_examples=60, deadline=None)


def _rounds(event, count):
  return events.SelfComposed(event=event, count=count)


def _turn(column, turn_size, population, event=GAUSSIAN, **more):
  return events.TurnSampled(event=event, column=column, turn_size=turn_size,
                            population=population, **more)


def _ratio(event):
  """The squared signal-to-noise ratio of an event of Gaussian noise."""
  (pair, times), = pairs.simplified(event.factors('none'))
  assert times == 1
  return pair.noise_multiplier**-2


def _squares(column, selected, rounds):
  """Sum of squares of the weights with which a client's contributions are opened."""
  return sum(sum(weight**2 for weight in column[:rounds - index]) for index in selected)


@st.composite
def _schedules(draw):
  """A scheme's arguments and a number of rounds."""
  size = draw(st.integers(1, 9))
  population = draw(st.integers(size, 40))
  bands = draw(st.integers(1, min(6, population // size)))
  column = (draw(st.integers(1, 9)), *(draw(st.integers(0, 9)) for _ in range(bands - 1)))
  return dict(population=population, cohort_size=size, simulation_seed=draw(
      st.integers(0, 99)), column=(1,) if bands == 1 else column), draw(
          st.integers(1, 60))


def _turns_of(arguments, rounds, random=None):
  """The rounds of each client's turns, with a scheme that is killed and restored."""
  scheme = schemes.build('turns', **arguments)
  state, found = scheme.state(), [[] for _ in range(scheme.population)]
  for index in range(1, rounds + 1):
    if random is not None and random.random() < 0.3:
      # A new process, which may have had another seed.
      scheme = schemes.build('turns', **{**arguments, 'simulation_seed': None})
      scheme.restore(state)
      scheme.sample(index)  # A round that was not committed.
    for client in scheme.sample(index):
      found[client].append(index)
  return found


def _check_counts(arguments, rounds, random=None):
  """Asserts that the event charges what the worst client's contributions show."""
  found = _turns_of(arguments, rounds, random)
  scheme, column = schemes.build('turns', **arguments), arguments['column']
  for selected in found:
    assert np.diff(selected).min(initial=len(column)) >= len(column)
  worst = max(_squares(column, [index - 1 for index in selected], rounds)
              for selected in found)
  counted = scheme.event(GAUSSIAN, 1).counted(rounds, 'tight')
  assert sum(times for _, times in counted) == max(map(len, found))
  assert _ratio(combinators.composed(dict(counted))) == pytest.approx(worst, rel=1e-9)


@SETTINGS
@hypothesis.given(_schedules(), st.randoms(use_true_random=False))
def test_the_worst_client_of_any_schedule_is_charged_exactly(schedule, random):
  _check_counts(*schedule, random)


@pytest.mark.parametrize('mutation', [
    # One turn too few; the last one left out, too short, or forgotten to be complete.
    lambda column, count, size, clients: (column, -(-count * size // clients) - 1 or 1),
    lambda column, count, size, clients: (column, max(1, count * size // clients)),
    lambda column, count, size, clients: (column[:1], -(-count * size // clients)),
    lambda column, count, size, clients: (column[:count - (clients // size) * (
        -(-count * size // clients) - 1)], -(-count * size // clients))])
def test_other_counts_of_turns_do_not_pass(monkeypatch, mutation):
  monkeypatch.setattr(turns.TurnSampled, '_turns', lambda self, count: [
      mutation(self.column, count, self.turn_size, self.population)])
  with pytest.raises(AssertionError):
    for population, rounds in itertools.product((6, 7, 11), range(1, 30)):
      _check_counts(dict(population=population, cohort_size=2, simulation_seed=1,
                         column=(3, 2, 1)), rounds)


@SETTINGS
@hypothesis.given(_schedules(), st.integers(0, 30), st.randoms(use_true_random=False))
def test_clients_that_are_missed_and_added_rounds_cost_no_more(schedule, more, random):
  arguments, rounds = schedule
  event = schemes.build('turns', **arguments).event(GAUSSIAN, 1)
  charged = [_ratio(_rounds(event, count)) for count in range(1, rounds + more + 1)]
  assert (np.diff(charged) >= -1e-9).all()  # Epsilon of the rounds so far is the least.
  for selected in _turns_of(arguments, rounds + more):
    reporting = [index - 1 for index in selected if random.random() < 0.7]
    assert _squares(arguments['column'], reporting, rounds + more) <= (
        charged[-1] * (1 + 1e-9))


@SETTINGS
@hypothesis.given(_schedules(), st.data())
def test_lost_and_repeated_rows_are_charged(schedule, data):
  """Rows of lost rounds, and rows that restarts open again, in all time lines."""
  arguments, rounds = schedule
  column, lost = arguments['column'], data.draw(st.integers(0, rounds))
  kept = data.draw(st.integers(0, lost))
  repeats = data.draw(st.lists(st.integers(1, rounds), max_size=5))
  event = schemes.build('turns', **arguments).event(GAUSSIAN, 1)
  charges = {event: rounds}
  if again := lost - kept + len(repeats):
    assert event.repeated() == events.CentralGaussian(noise_multiplier=1 / max(column))
    charges[event.repeated()] = again
  charged = _ratio(combinators.composed(charges))
  for selected in _turns_of(arguments, rounds):
    # The latest contribution in row t has the weight g of their distance.
    shown = [*range(1, rounds + 1), *range(kept + 1, lost + 1), *repeats]
    assert sum(sum(column[row - index] for index in selected
                   if 0 <= row - index < len(column))**2
               for row in shown) <= charged * (1 + 1e-9)


def test_a_row_that_is_repeated_free_is_not_covered():
  event = _turn((2, 1), 1, 2)
  # Rows of weights 2 and 1; the second is opened again.
  assert _ratio(_rounds(event, 2)) == 5.0
  assert _ratio(combinators.composed({event: 2, event.repeated(): 1})) == (
      pytest.approx(9.0))


def _numbers(mechanism, **how):
  return answers.answer(answers.Query(delta=1e-3, **how), mechanism)


def _mechanism(**changes):
  return mechanisms.SumMechanism(**{**dict(
      mechanism='skellam', noise_multiplier=1.7, clip=0.3, bits=18, dimension=1000,
      cohort_size=11.0, population=59, rounds=47, sampling='turns',
      column=(16, 15, 14, 13, 13)), **changes})


@pytest.mark.parametrize('mechanism', ['skellam', 'skellam_central', 'gaussian'])
@pytest.mark.parametrize('column', [(1,), (2, 1), (16, 15, 14, 13, 13)])
def test_one_number_against_all_where_all_have_their_turn(mechanism, column):
  about = _mechanism(mechanism=mechanism, column=column)
  found = _numbers(about)
  assert found.epsilon == found.server.epsilon == found.server_any_cohorts.epsilon
  view = observers.View(about.event())
  for observer in (bounds.OUTSIDERS, bounds.SERVER, bounds.SERVER_ANY_COHORTS):
    listed = observers.candidates(view, observer, observers.Method())
    assert {accountant.epsilon(one.event, 1e-3) for one in listed} == {found.epsilon}
  if mechanism == 'skellam':
    assert found.epsilon < found.participant.epsilon < 1.1 * found.epsilon


def test_a_whole_turn_costs_the_noise_multiplier():
  for column in ((1,), (2, 1), (16, 15, 14, 13, 13)):
    event, skellam = (_mechanism(
        mechanism=mechanism, column=column, rounds=50, cohort_size=10.0, population=50
        ).event() for mechanism in ('gaussian', 'skellam'))
    assert _ratio(event) == pytest.approx(10 / 1.7**2, rel=1e-12)
    # With rounding, and the certificate of Skellam noise.
    exact = accountant.epsilon(event, 1e-3)
    assert exact < accountant.epsilon(skellam, 1e-3) < 1.01 * exact


@pytest.mark.parametrize('rate', [0.5, 0.2])
def test_sampling_in_a_turn_is_amplified_averaged_or_whole(rate):
  about = _mechanism(turn_rate=rate, mechanism='gaussian', cohort_size=2.2, column=(2, 1))
  size, turn = about.sampling_scheme().turn_size, about.event().event
  q, (turns_, rows) = turn.sampling_rate, divmod(47 * size, 59)
  assert size == math.ceil(2.2 / rate) and q == 2.2 / size
  assert rows  # The last turn is not of all clients: its window is complete or not.
  whole = _ratio(_rounds(turn.without_sampling(), 47))
  found = _numbers(about)
  assert found.epsilon < found.server.epsilon < found.server_any_cohorts.epsilon
  assert found.server_any_cohorts.epsilon == pytest.approx(accountant.epsilon(
      events.CentralGaussian(noise_multiplier=whole**-0.5), 1e-3), rel=1e-9)
  last = whole - turns_ * 1.7**-2
  assert 0 < last <= 1.7**-2 * (1 + 1e-9)
  # The mean over coins, in closed form.
  epsilon, delta = found.server.epsilon, 0.0
  for full, coin in itertools.product(range(turns_ + 1), (0, 1)):
    delta += stats.binom.pmf(full, turns_, q) * (q if coin else 1 - q) * (
        gaussian_delta(epsilon, full * 1.7**-2 + coin * last))
  assert delta == pytest.approx(1e-3, rel=1e-3)
  amplified = events.Composed(events=[
      _rounds(events.PoissonSampled(event=events.CentralGaussian(
          noise_multiplier=noise), sampling_rate=q), times)
      for noise, times in ((1.7, turns_), (last**-0.5, 1))])
  assert found.epsilon == pytest.approx(accountant.epsilon(amplified, 1e-3), rel=1e-6)


def test_rows_that_may_be_suppressed_show_the_coin_of_a_turn():
  about = _mechanism(turn_rate=0.5, cohort_size=5.0, column=(2, 1), rounds=20,
                     min_honest_fraction=0.8, dropout_rate=0.1)
  event = about.event().event
  assert event.pivotal_probability == pytest.approx(
      cohorts.pivotal_probability(10, 0.5, 0.8, 0, 0.1) + 0.5**9, rel=1e-6)
  assert 0 < event.pivotal_probability < 1 and about.sampling_scheme().turn_size == 10
  found = _numbers(about)
  never = accountant.epsilon(
      _rounds(events.TurnSampled(**{**vars(event), 'pivotal_probability': 0.0}), 20
              ).seen_by_observers(), 1e-3)
  assert never < found.epsilon < found.server_any_cohorts.epsilon
  assert 'suppression depends on single clients' in {note.name for note in found.caveats}
  assert _mechanism(min_honest_fraction=0.8, dropout_rate=0.1).event(
      ).event.pivotal_probability == 0


def test_rows_that_no_client_hides_are_suppressed_and_show_the_coin_of_a_turn():
  # With rows of one sum an empty cohort has nothing to hide.
  few = dict(turn_rate=0.5, cohort_size=2.0, rounds=20)
  assert _mechanism(**few, column=(1,)).event().event.pivotal_probability == 0
  event, server = (_mechanism(**few, column=(2, 1), mechanism=mechanism).event().event
                   for mechanism in ('skellam', 'skellam_central'))
  # Three others have a turn with the client.
  assert 0.5**3 < event.pivotal_probability == pytest.approx(0.5**3)
  assert server.pivotal_probability == 0  # It adds noise to all rows.
  hidden, shown = (accountant.epsilon(_rounds(one, 20), 1e-3) for one in (server, event))
  assert hidden < shown


def test_what_a_reader_must_know_is_said_where_cohorts_are_hidden():
  for changes, is_hidden in (({}, False), (dict(turn_rate=0.5, cohort_size=5.0), True)):
    assert is_hidden == ('cohorts assumed to be hidden' in {
        note.name for note in _numbers(_mechanism(**changes)).caveats})


def _shown(column, population, size, rounds):
  """Weights of each client in each row: int64 [population, rounds]."""
  found = np.zeros([population, rounds], np.int64)
  for client, row in np.ndindex(population, rounds):
    for distance, weight in enumerate(column[:row + 1]):
      places = np.arange((row - distance) * size, (row - distance + 1) * size)
      found[client, row] += weight * (client in places % population)
  return found


@pytest.mark.parametrize('column, population, size, rounds', [((2, 1), 5, 2, 7),
    ((1, 2, 1), 9, 3, 8), ((3, 1), 8, 4, 5), ((1,), 4, 3, 6), ((2, 0, 1), 13, 4, 11)])
@pytest.mark.parametrize('count', [1, 2, 3])
def test_participants_know_their_shares(column, population, size, rounds, count):
  """All clients, and all others who pool what they know, of Gaussian noise."""
  event = _rounds(_turn(column, size, population, SHARES), rounds)
  method = observers.Method(colluders=count, population=population)
  (candidate,) = observers.candidates(observers.View(event), bounds.PARTICIPANT, method)
  squares, worst = _shown(column, population, size, rounds)[0]**2, 0.0
  places = np.arange(rounds * size).reshape(rounds, size) % population
  for colluders in itertools.combinations(range(1, population), count):
    # The fraction of the noise of each row that is not theirs.
    left = 1 - np.isin(places, colluders).sum(axis=1) / size
    seen = squares > 0
    worst = max(worst, (squares[seen] / left[seen]).sum() if left[seen].all()
                else math.inf)
  if math.isinf(worst) or count == size:  # All of a row's noise may be theirs.
    assert accountant.epsilon(candidate.event, 1e-3) == math.inf
    return
  # Noise of three sensitivities.
  charged = _ratio(candidate.event.as_gaussian(1e-30)) * 9.0
  assert worst <= charged <= squares.sum() / (1 - count / size) * 1.001
  if count == 1 and population % size == 0:
    assert charged == pytest.approx(worst, rel=1e-3)  # It is attained.
  # Renyi accounting takes less noise in all rows, and is never below the server's.
  server, participant = (accountant.epsilon(one, 1e-3, accountant='rdp')
                         for one in (event, candidate.event))
  assert server < participant


@pytest.mark.parametrize('column', [(1,), (2, 1)])
def test_a_participant_lacks_its_share_in_all_rows_of_other_noise(column):
  less, whole = (events.SkellamCount(noise_variance=variance) for variance in (4.0, 5.0))
  event = events.OneRowKnown(events=(less, whole), column=column)
  assert event.factors('none') == less.rows(column).factors('none')
  assert accountant.epsilon(event, 1e-3) >= accountant.epsilon(less.rows(column), 1e-3)


@pytest.mark.parametrize('count', [1, 2])
@pytest.mark.parametrize('column', [(2, 1), (1, 2), (1,)])
def test_participants_of_random_cohorts(column, count):
  """The mean over all coins of two turns, with the worst places of the participants."""
  q, size = 0.7, 7
  event = _rounds(_turn(column, size, 2 * size, SHARES, sampling_rate=q), 4)
  method = observers.Method(colluders=count, population=2 * size)
  view = observers.View(event)
  for delta in (0.02, 0.1):
    server, participant = (observers.bound(view, delta, method, observer).epsilon
                           for observer in (bounds.SERVER, bounds.PARTICIPANT))
    assert server <= participant < math.inf
    exact = [_mean_delta(column, rows, q, size, participant)
             for rows in itertools.product(range(len(column)), repeat=count)]
    # Sizes are rounded down; a row without the client may be smaller by one.
    assert (0.5 if count == 1 else 0.2) * delta < max(exact) <= delta


def _sums(*parts):
  """Distribution of a sum of independent values: value -> probability."""
  found = {0.0: 1.0}
  for part in parts:
    after = collections.Counter()
    for (one, chance), (more, also) in itertools.product(found.items(), part):
      after[round(one + more, 12)] += chance * also
    found = after
  return found


def _mean_delta(column, rows, q, size, epsilon):
  """Delta of two turns where participants have shares in these rows of each.

  One of them is in one row; the client is in its own, which is the first.
  """
  parts = []  # Squared ratios of a row, and their probabilities.
  for index, weight in enumerate(column):
    known = rows.count(index)
    least, others = known + (index == 0), size - known - (index == 0)
    parts.append([
        (weight**2 / 9.0 / (1 - known / (least + more)) if least + more > known else
         math.inf if known else weight**2 / 9.0, stats.binom.pmf(more, others, q))
        for more in range(others + 1)])
  turn = [(0.0, 1 - q), *((ratio, q * also) for ratio, also in _sums(*parts).items())]
  return sum(chance * (1.0 if math.isinf(ratio) else gaussian_delta(epsilon, ratio))
             for ratio, chance in _sums(turn, turn).items())


@pytest.mark.parametrize('column, population, size, rounds', [((2, 1), 5, 2, 7),
    ((5, 1), 4, 1, 9), ((1, 2, 1), 9, 3, 8), ((3, 1), 8, 4, 5), ((1,), 4, 3, 6)])
@pytest.mark.parametrize('clients', [2, 3])
def test_a_person_moves_rows_by_no_more_than_is_charged(
    column, population, size, rounds, clients):
  shown = _shown(column, population, size, rounds)
  event = _rounds(_turn(column, size, population), rounds)
  charged = _ratio(event.group(clients, known=True))
  assert charged == pytest.approx(clients**2 * _ratio(event), rel=1e-9)
  sampled = _rounds(_turn(column, size, population, sampling_rate=0.4), rounds)
  assert sampled.group(clients, known=False) == event.group(clients, known=True)
  # A grid so coarse, and orders so high, that either Renyi bound may be the smaller.
  sums = [events.DistributedSkellam(
      l1_sensitivity=l1, l2_sensitivity=2.0, noise_variance=variance)
      for l1, variance in ((4.0, 30.0), (2.0, 3.0), (2.0, 1.0), (4.0, 0.5))]
  curves = [(row, _rounds(_turn(column, size, population, row), rounds).group(
      clients, known=True).curve(400, 'none')) for row in sums]
  for owned in itertools.combinations_with_replacement(range(population), clients):
    moved = shown[list(owned)].sum(axis=0)
    assert (moved**2).sum() <= charged * (1 + 1e-9)
    for row, curve in curves:
      exact = sum(row.rows((int(weight),)).curve(400, 'none')
                  for weight in moved if weight)
      assert (exact <= curve * (1 + 1e-9)).all()


def test_other_noise_of_a_person_is_charged_row_by_row():
  """Discrete Gaussian noise costs more than in proportion to the square."""
  event = _turn((1,), 3, 7, events.Together(events=(
      GAUSSIAN, events.SkellamCount(noise_variance=4.0))))
  (release, count) = event.group_of_several(5, 2, known=True)
  assert release == event.event.scaled(2) and count == 5  # 3 turns of 2, in 5 rounds.
  assert event.group_of_several(9, 2, known=True)[1] == 8
  assert _rounds(event, 5).group(2, known=True) is not None


@pytest.mark.parametrize('changes, message', [
    (dict(column=(2, 1, 1)), 'column must have at most 2 weights, .* 9 clients, '
                             '4 a round; found 3'),
    (dict(turn_size=10), 'turn_size must be at most 9, found 10'),
    (dict(column=(0, 1)), 'column must begin with a positive weight'),
    (dict(column=(2,)), 'column of one weight must be'),
    (dict(column=(2, -1)), r'column\[1\] must be at least 0, found -1'),
    (dict(sampling_rate=1.5), 'sampling_rate must be in'),
    (dict(pivotal_probability=0.1), 'pivotal_probability must be 0'),
    (dict(event=events.Vote(scheme='ae', noise_stddev=5.0)), 'cannot be amplified'),
    (dict(event=PRELIMINARY(dimension=50)), 'no rows of weighted'),
    (dict(event=PRELIMINARY(dimension=50, items=16, threshold=200)), 'it may fail'),
    (dict(event=events.Nfdp(records=9, subset_size=2)), 'cannot be amplified'),
    (dict(event=events.PoissonSampled(event=GAUSSIAN, sampling_rate=0.5)), 'cannot be')])
def test_impossible_turns_are_named(changes, message):
  with pytest.raises(ValueError, match=message):
    _turn(**{**dict(column=(2, 1), turn_size=4, population=9), **changes})


@pytest.mark.parametrize('changes, message', [
    (dict(events=(GAUSSIAN,)), 'must be two'), (dict(column=(1, 0)), r'column\[1\] must be'),
    (dict(events=(GAUSSIAN, 1)), r'events\[1\] must be an event')])
def test_impossible_rows_are_named(changes, message):
  with pytest.raises(ValueError, match=message):
    events.OneRowKnown(**{**dict(events=(GAUSSIAN, GAUSSIAN)), **changes})


@pytest.mark.parametrize('changes, message', [
    (dict(sampling='epochs'), r'column must not be given for epochs, found \(16, 15'),
    *((dict(sampling=sampling), f'column must not be given for {sampling}')
      for sampling in ('poisson', 'fixed', 'none')),
    (dict(sampling='epochs', column=(1,), turn_rate=0.5),
     'turn_rate must not be given for epochs, found 0.5'),
    (dict(cohort_size=20.0), 'column must have at most 2 weights'),
    (dict(cohort_size=1.5), 'cohort_size must be an integer for turn_rate=1, found 1.5'),
    (dict(turn_rate=0.1), 'turn_rate must be at least cohort_size / population, found'),
    (dict(adaptive_clipping=True), 'adaptive_clipping needs a column of one weight'),
    (dict(max_participations=3), 'max_participations must not be given for turns')])
def test_impossible_mechanisms_are_named(changes, message):
  with pytest.raises(ValueError, match=message) as error:
    _mechanism(**changes).event()
  assert '\n' not in str(error.value)


def test_an_adaptive_clip_is_accounted_where_rows_have_one_sum():
  fixed, found = (_numbers(
      _mechanism(column=(1,), adaptive_clipping=adaptive), clients_per_person=2)
                  for adaptive in (False, True))
  assert fixed.epsilon < found.epsilon == found.server.epsilon < found.person.epsilon


def test_a_run_has_one_event_of_its_rounds_and_its_ledger_repeats_them(tmp_path):
  event, other = (_turn((2, 1), size, 8) for size in (4, 2))
  with pytest.raises(ValueError, match='one order of the clients must all have the same'):
    combinators.composed({event: 3, other: 3})
  ledger = ledger_lib.Ledger.create(tmp_path / 'ledger.jsonl')
  for starts in (1, 1, 2, 2, 3, 3, 3):
    ledger.append_line(ledger.next_line(
        event, outcome='released', configuration_hash='a', starts=starts))
  # Rounds 1, 3, 5 and the first row of 7; two rows of weight 2 again.
  assert _ratio(ledger.event()) == pytest.approx(3 * 5 + 4)
  assert _ratio(ledger.seen_event()) == pytest.approx(3 * 5 + 4 + 2 * 4)


def test_each_of_several_runs_has_an_order_of_its_own():
  # A client may have a turn in both, beside a run of which cohorts are sampled, too.
  run = _rounds(_turn((1, 1, 1), 10, 500), 10)
  sampled = _rounds(events.PoissonSampled(event=GAUSSIAN, sampling_rate=0.01), 1)
  both = events.Composed(events=(run, run, sampled))
  assert combinators.contributions(run) == 1
  assert combinators.contributions(both) == 3
  # The turns alone are two releases of three rows each.
  turns = accountant.epsilon(_rounds(GAUSSIAN.rows((1, 1, 1)), 2), 1e-3)
  for observer in (bounds.OUTSIDERS, bounds.SERVER, bounds.SERVER_ANY_COHORTS):
    found = observers.bound(observers.View(both), 1e-3, observers.Method(), observer)
    assert found.epsilon > turns
  with pytest.raises(ValueError, match='must not be sampled one by one'):
    events.Together(events=(run.event, GAUSSIAN))


def test_repeated_rows_of_random_cohorts_promise_participants_nothing():
  event = _turn((2, 1), 60, 120, SHARES, sampling_rate=0.5)
  once = _rounds(event, 4)
  again = events.Composed(events=(once, event.repeated()))
  for released, observer, is_finite in ((once, bounds.PARTICIPANT, True),
      (again, bounds.SERVER, True), (again, bounds.PARTICIPANT, False)):
    found = observers.bound(
        observers.View(released), 1e-3, observers.Method(population=120), observer)
    assert found.is_finite == is_finite
  # Nor does a server that chooses cohorts: they may be of one.
  assert event.minimum_cohort() is None
  assert accountant.epsilon(
      once.seen_by_participants().without_sampling(), 1e-3) == math.inf


def test_sizes_of_several_rows_of_participants_are_above_independent_ones():
  event = _turn((2, 0, 1), 5, 15, SHARES, sampling_rate=0.5)
  for count, depends in ((1, False), (2, True)):
    (full, _), (last, _) = event.known(
        4, base.Participants(colluders=count, shares=count))
    assert (full.depends, last.depends) == (depends, False)  # The last has one row.
    # In one of two rows of one turn no other client is left, and no noise.
    assert full.failure == pytest.approx(depends * 0.5**(5 - count))
    assert last.failure == 0


def _scheme(**changes):
  return schemes.build('turns', **{**dict(population=60, cohort_size=10), **changes})


@pytest.mark.parametrize('seed', [None, 5])
def test_all_clients_have_one_turn_in_a_cycle(seed):
  scheme = _scheme(simulation_seed=seed)
  cycle = np.array([scheme.sample(index) for index in range(1, 13)])
  assert cycle.dtype == np.int64 and (np.diff(cycle) > 0).all()
  np.testing.assert_array_equal(np.sort(cycle[:6].ravel()), np.arange(60))
  np.testing.assert_array_equal(cycle[:6], cycle[6:])


def test_orders_are_uniform():
  """Which of three clients are in the first turn of one, and in the second."""
  counts = np.zeros([3, 3])
  for seed in range(3000):
    scheme = _scheme(population=3, cohort_size=1, simulation_seed=seed)
    counts[scheme.sample(1)[0], scheme.sample(2)[0]] += 1
  assert not counts.diagonal().any()
  assert stats.chisquare(counts[~np.eye(3, dtype=bool)]).pvalue > 1e-6
  entropy = [tuple(_scheme(population=3, cohort_size=1).sample(1)) for _ in range(300)]
  assert len(set(entropy)) == 3


@pytest.mark.parametrize('seed', [None, 3])
def test_clients_are_sampled_in_their_turn_at_the_rate_and_independently(seed):
  q, rounds = 0.3, 4000
  scheme = _scheme(population=40, cohort_size=6.0, turn_rate=q, simulation_seed=seed)
  assert scheme.turn_size == 20
  whole = _scheme(population=40, cohort_size=20)
  whole.restore(scheme.state())
  included = np.zeros([rounds, 40])
  for index in range(rounds):
    chosen = scheme.sample(index + 1)
    assert np.isin(chosen, whole.sample(index + 1)).all()
    included[index, chosen] = 1
  coins = np.stack([included[index, whole.sample(index + 1)] for index in range(rounds)])
  statistics_lib.check_mean(coins, q, q * (1 - q))
  for wrong in (q * 2 / 3, q * 3 / 2):
    with pytest.raises(AssertionError):
      statistics_lib.check_mean(coins, wrong, wrong * (1 - wrong))
  centred = coins - q
  # Two clients of a turn, two rounds, and a client's next turn, two rounds later.
  for products in (centred[:, 1:] * centred[:, :-1], centred[1:] * centred[:-1],
                   centred[2:] * centred[:-2]):
    statistics_lib.check_mean(products, 0, (q * (1 - q))**2)


@pytest.mark.parametrize('turn_rate, cohort_size, size', [
    (0.1, 10, 100), (0.3, 30, 100), (1 / 3, 7, 21), (0.7, 7, 10), (0.999, 10, 11),
    (1.0, 10, 10), (0.5, 10.5, 21), (1e-3, 0.4, 400)])
def test_turns_are_as_long_as_the_rate_needs(turn_rate, cohort_size, size):
  scheme = _scheme(population=1000, turn_rate=turn_rate, cohort_size=cohort_size)
  assert scheme.turn_size == scheme.largest_cohort == size
  event = scheme.event(GAUSSIAN, 1)
  assert event.turn_size == size and event.sampling_rate == cohort_size / size
  assert event.sampling_rate <= turn_rate * (1 + 1e-9)
  assert scheme.expected_cohort == cohort_size
  if size == cohort_size:
    assert (scheme.planned_cohort, scheme.cohort_in_words) == (None, 'exactly')
  else:
    assert scheme.planned_cohort == cohorts.upper_quantile(size, event.sampling_rate)
    assert scheme.cohort_in_words == 'expected'


def test_cohorts_follow_from_the_key_and_the_round_alone():
  scheme, other = _scheme(simulation_seed=1), _scheme(simulation_seed=2)
  expected = [scheme.sample(index).tolist() for index in range(1, 20)]
  assert expected != [other.sample(index).tolist() for index in range(1, 20)]
  other.restore(scheme.state())
  # In any order, and again.
  for index in (7, 3, 3, 19, 1, 7):
    assert other.sample(index).tolist() == expected[index - 1]
  assert scheme.sample(1).tolist() == _scheme(simulation_seed=1).sample(1).tolist()
  state = scheme.state()
  state['key'][0] += 1
  assert scheme.state()['key'].tolist() != state['key'].tolist()


@pytest.mark.parametrize('state', [{}, {'key': np.zeros(3, np.int64)},
    {'key': np.zeros(2)}, {'key': 7}, {'deck': np.zeros(2, np.int64)},
    {'key': np.zeros(2, np.int64), 'deck': np.zeros(2, np.int64)}])
def test_other_states_are_refused(state):
  with pytest.raises(ValueError, match='state must be that of sampling=turns with 60'):
    _scheme().restore(state)


def test_rows_stand_for_releases_of_neighbours_of_one_client():
  event = _scheme(column=(2, 1)).event(SHARES, 3)
  assert event.adjacency == base.ZERO_OUT and event.honest_fraction() == 1.0
  assert event.minimum_cohort() == 10 and event.is_known_in_part()
  assert event.without_sampling() == event == event.seen_by_observers()


def test_rounds_of_an_order_are_no_release_of_a_coin_or_a_count():
  turn = _turn((1, 16), 2, 8, events.CentralGaussian(noise_multiplier=2.0))
  for build in (lambda: events.Attended(event=turn, rounds=3, probability=0.5),
                lambda: events.Coin(events=(turn,), weights=(1.0,))):
    with pytest.raises(ValueError, match='must not be a round of clients who take turns'):
      build()
