"""Schedules never exceed their limit, and both printed numbers cover what is seen."""

import math

import numpy as np
import pytest
from scipy import stats

from tests.accounting import groups_test
from tff_pipelines.accounting.events import base, combinators, kinds as events
from tff_pipelines.accounting.guarantees import (
    accountant, ledger as ledger_lib, mechanisms)
from tff_pipelines.accounting.sampling import cohorts, schemes

GAUSSIAN = events.CentralGaussian(noise_multiplier=1.0)


def _rounds(count, event=GAUSSIAN):
  return events.SelfComposed(event=event, count=count)


def _poisson(count, rate, event=GAUSSIAN, **limit):
  return _rounds(count, events.PoissonSampled(event=event, sampling_rate=rate, **limit))


def _epsilon(event):
  return accountant.epsilon(event, 1e-5)


def _schedule(make, rounds, kill_chance, rng):
  """How often each client is in a committed round; killed and restored at random.

  Also the number of rounds that were repeated.
  """
  scheme, state, repeats = make(), None, 0
  counts = np.zeros(scheme.population, np.int64)
  for index in range(1, rounds + 1):
    while True:
      if state is not None:
        scheme.restore(state)
      selected = scheme.sample(index)
      if rng.random() >= kill_chance:
        break
      repeats += 1
      scheme = make()  # Killed before the commit: a new process.
    counts[selected] += 1
    state = {name: np.array(value) for name, value in scheme.state().items()}
    assert np.array_equal(np.unique(selected), selected)
  return counts, repeats


@pytest.mark.parametrize('population', [1000, pytest.param(
    100_000, marks=pytest.mark.slow)])
def test_no_client_is_in_more_rounds_than_the_limit(population):
  rng, rounds, cohort = np.random.default_rng(3), 60, population // 10
  limit = cohorts.suggested_participations(0.1, rounds)
  assert limit == 9
  counts, repeats = _schedule(lambda: schemes.build('poisson', population=population,
      cohort_size=cohort, max_participations=limit), rounds, 0.2, rng)
  assert counts.max() == limit and repeats > 3
  # Independent selections up to the limit.
  law = stats.binom(rounds, 0.1)
  for count in range(3, limit + 1):
    expected = population * (law.pmf(count) if count < limit else law.sf(limit - 1))
    assert abs((counts == count).sum() - expected) < 5 * math.sqrt(expected)


@pytest.mark.parametrize('population, cohort, rounds', [
    (1000, 100, 30), (1000, 300, 11), (7, 3, 20), (5, 5, 4), (10, 7, 9),
    pytest.param(100_000, 30_000, 25, marks=pytest.mark.slow)])
def test_epochs_select_all_once_before_any_again(population, cohort, rounds):
  make = lambda: schemes.build('epochs', population=population, cohort_size=cohort)
  counts, _ = _schedule(make, rounds, 0.2, np.random.default_rng(5))
  slots = cohort * rounds
  assert [counts.sum(), counts.max(), counts.min()] == [
      slots, -(-slots // population), slots // population]
  assert make().event(GAUSSIAN, 1).counted(rounds, 'tight') == ((GAUSSIAN, counts.max()),)


def test_orders_of_epochs_are_uniform():
  """Each client is in the first cohort equally often: chi-squared at 1e-6."""
  counts = np.zeros(6)
  for seed in range(3000):
    scheme = schemes.build('epochs', population=6, cohort_size=4, simulation_seed=seed)
    scheme.sample(1)
    counts[scheme.sample(2)] += 1  # Across the end of the first order.
  assert stats.chisquare(counts).pvalue > 1e-6


@pytest.mark.parametrize('sampling', ['poisson', 'epochs'])
def test_state_of_another_scheme_or_population_is_refused(sampling):
  limit = dict(max_participations=2) if sampling == 'poisson' else {}
  scheme = schemes.build(sampling, population=10, cohort_size=2, **limit)
  other = schemes.build(sampling, population=11, cohort_size=11, **limit)
  other.sample(1)
  for state in ({}, other.state(), {'deck': np.arange(10)}):
    with pytest.raises(ValueError, match='state must be that of sampling='):
      scheme.restore(state)


@pytest.mark.parametrize('damaged', [
    [[3, 2], [1, 1]], [[2, 2], [1, 1]], [[2, 10], [1, 1]], [[-1, 2], [1, 1]],
    [[1, 2], [1, 0]], [[1, 2], [1, -1]], [1, 2], [[1], [1], [1]], 7])
def test_damaged_counts_are_refused(damaged):
  scheme = schemes.build('poisson', population=10, cohort_size=4, max_participations=2)
  with pytest.raises(ValueError, match='state must be that of sampling=poisson'):
    scheme.restore({'participations': np.array(damaged)})


@pytest.mark.parametrize('rate, limit, rounds', [
    (0.5, 1, 1), (0.5, 1, 2), (0.3, 1, 3), (0.5, 2, 3), (0.7, 1, 3)])
def test_observers_of_releases_see_no_more_than_without_the_limit(rate, limit, rounds):
  event = _poisson(rounds, rate, max_participations=limit)
  p, q = (groups_test.seen(rate, limit, rounds, contribution, clients=1)
          for contribution in (1.0, 0.0))
  for epsilon in (0.0, 0.5, 1.0, 2.0):
    assert groups_test.worst_delta(p, q, epsilon) <= accountant.delta(event, epsilon)


def test_random_allocation_is_not_covered_by_poisson_sampling():
  """Why it isn't offered: two rounds, one of them with the client, noise 0.4."""
  noise, q = 0.4, np.exp(1)
  edges = np.linspace(-3, 4, 701)
  of = lambda mean: np.diff(np.concatenate([[0], stats.norm.cdf(edges, mean, noise), [1]]))
  once, two = np.multiply.outer(of(1.0), of(0.0)), np.multiply.outer(of(0.0), of(0.0))
  exact = np.maximum(0.5 * (once + once.T) - q * two, 0).sum()
  sampled = accountant.delta(_poisson(
      2, 0.5, events.CentralGaussian(noise_multiplier=noise)), 1.0)
  assert exact == pytest.approx(0.581, abs=2e-3) and exact > sampled + 0.1


def test_repeated_rounds_are_beyond_the_limit(tmp_path):
  event = _poisson(1, 0.1, max_participations=3).event
  ledger = ledger_lib.Ledger.create(tmp_path / 'ledger.jsonl')
  for starts in (1, 1, 2, 2, 3, 3, 3, 3):  # Two rounds may have been repeated.
    ledger.append_line(ledger.next_line(
        event, outcome='released', configuration_hash='a', starts=starts))
  for found, count in ((ledger.event(), 3), (ledger.seen_event(), 5)):
    assert _epsilon(found.without_sampling()) == pytest.approx(
        _epsilon(_rounds(count)), rel=1e-9)


def test_amplified_number_does_not_change_with_the_limit():
  limited, free = (_poisson(20, 0.1, max_participations=limit) for limit in (4, None))
  assert _epsilon(limited) == _epsilon(free)
  for unsampled in (accountant.epsilon(limited, 1e-5, amplification='none'),
                    _epsilon(limited.without_sampling())):
    assert unsampled == pytest.approx(_epsilon(_rounds(4)), rel=1e-9)
  assert events.from_json(limited.to_json()) == limited != free


@pytest.mark.parametrize('sampling, expected', [
    (dict(sampling='poisson', max_participations=10), [6.343, 13.94]),
    (dict(sampling='poisson'), [6.343, 46.43]), (dict(sampling='epochs'), [13.94] * 2)])
def test_reference_numbers_against_the_server(sampling, expected):
  event = mechanisms.SumMechanism(
      mechanism='skellam', noise_multiplier=0.9762, clip=0.3, bits=18, dimension=2**20,
      cohort_size=100, population=539, rounds=50, **sampling).event()
  assert expected == pytest.approx([accountant.epsilon(each, 1 / 539) for each in (
      event, event.without_sampling())], rel=1e-3)


def test_limits_of_other_samplings_are_refused():
  with pytest.raises(ValueError, match='max_participations must not be given for'):
    mechanisms.SumMechanism(mechanism='gaussian', noise_multiplier=1.0, cohort_size=2,
        population=4, sampling='fixed', max_participations=3).event()
  assert events.EpochSampled(
      event=GAUSSIAN, cohort_size=2, population=4).adjacency == base.ZERO_OUT


def test_an_epoch_schedule_has_one_event():
  """Five rounds each of two events may be four and six rounds of a client's epochs."""
  half = events.CentralGaussian(noise_multiplier=0.5)
  dear, cheap = ({events.EpochSampled(event=event, cohort_size=2, population=4): 10}
                 for event in (half, GAUSSIAN))
  with pytest.raises(ValueError, match='one order of the clients must all have the same'):
    combinators.composed({**dear, **cheap})
  # Rounds that were repeated are not in the order.
  (event,) = dear
  assert combinators.composed({**dear, event.repeated(): 2}).adjacency == base.ZERO_OUT
  # Each of several runs has an order of its own.
  runs = events.Composed(events=(combinators.composed(dear), combinators.composed(cheap)))
  exact = events.Composed(events=(_rounds(5, half), _rounds(5)))
  for event in (runs, runs.without_sampling()):
    assert _epsilon(event) == pytest.approx(_epsilon(exact), rel=1e-9)
