"""Participants who know their own shares: less noise, and no amplification."""

import dataclasses
import fractions
import functools
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tests.accounting import pivotal_test
from tests.known_cohorts import gaussian_epsilon
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import (
    accountant, bounds, groups, mechanisms, observers)
from tff_pipelines.accounting.sampling import cohorts, schemes

DELTA, ROUNDS = 1e-5, 20
# In units of the grid: large enough for Skellam noise to be as good as Gaussian noise.
SENSITIVITY = 10_000.0


def _sum(**changes):
  """One round at a noise multiplier of 1."""
  return events.DistributedSkellam(**{**dict(
      l1_sensitivity=SENSITIVITY, l2_sensitivity=SENSITIVITY,
      noise_variance=SENSITIVITY**2, min_honest_fraction=1.0, dimension=1), **changes})


def _epsilon(event):
  return accountant.epsilon(event, DELTA)


def _rounds(event, count=ROUNDS):
  return events.SelfComposed(event=event, count=count)


@pytest.mark.parametrize('cohort, reference', [
    (100, 28.57), (10, 30.51), (5, 33.10), (2, 46.21)])
def test_a_participant_of_all_rounds(cohort, reference):
  exact = gaussian_epsilon(ROUNDS / (1 - 1 / cohort), DELTA)
  assert exact == pytest.approx(reference, abs=0.006)
  for round_ in (_sum(cohort_size=cohort), events.FixedSizeSampled(event=_sum(),
      cohort_size=cohort, population=10_000, neighbours='zero-out'),
      events.PoissonSampled(event=_sum(), sampling_rate=0.5, least_cohort=cohort)):
    known = _rounds(round_).seen_by_participants()
    assert round_.minimum_cohort() == cohort
    assert exact <= _epsilon(known.without_sampling()) <= 1.002 * exact


def test_the_server_and_a_participant_of_some_rounds():
  assert gaussian_epsilon(ROUNDS, DELTA) == pytest.approx(28.37, abs=0.006)
  some = events.Composed(events=(
      _rounds(_sum(cohort_size=5).seen_by_participants(), 4), _rounds(_sum(), 16)))
  exact = gaussian_epsilon(4 / 0.8 + 16, DELTA)
  assert exact == pytest.approx(29.34, abs=0.006)
  assert exact <= _epsilon(some) <= 1.002 * exact


def test_colluders_and_shares_that_nobody_counts_on():
  known = _sum(cohort_size=10, min_honest_fraction=0.5).seen_by_participants(3)
  # Twice the noise is there, of which three tenths are theirs.
  left = 2 * 0.7 * SENSITIVITY**2
  assert left >= known.noise_variance == pytest.approx(left, rel=1e-11)
  sampled = events.PoissonSampled(event=_sum(cohort_size=100), sampling_rate=0.1)
  for alone, colluders in (
      (_sum(cohort_size=3), 3), (_sum(), 1), (sampled, 1), (_sum(cohort_size=1), 1)):
    assert _epsilon(alone.seen_by_participants(colluders).without_sampling()) == math.inf


def test_unbounded_number_of_a_participant_does_not_say_that_no_noise_is_added():
  bound = observers.bound(observers.View(_rounds(_sum(cohort_size=1))), 1e-3,
                          observers.Method(), bounds.PARTICIPANT)
  assert not bound.is_finite
  assert [note.name for note in bound.caveats] == ['participants: a cohort may be of one']


def test_a_count_of_the_same_round_loses_its_share_too():
  both = events.Together(events=(
      _sum(cohort_size=5), events.SkellamCount(noise_variance=100.0)))
  sums, count = both.seen_by_participants().events
  assert sums.noise_variance == pytest.approx(0.8 * SENSITIVITY**2, rel=1e-11)
  assert count.noise_variance == pytest.approx(80, rel=1e-11)


def test_a_limit_on_participations_limits_what_a_participant_sees():
  known = _rounds(events.PoissonSampled(event=_sum(), sampling_rate=0.1, least_cohort=5,
      max_participations=4)).seen_by_participants()
  exact = gaussian_epsilon(4 / 0.8, DELTA)
  assert exact <= _epsilon(known.without_sampling()) <= 1.002 * exact


@pytest.mark.parametrize('event', [events.CentralGaussian(noise_multiplier=1.0),
    events.PoissonSampled(event=events.CentralSkellam(
        l1_sensitivity=1.0, l2_sensitivity=1.0, noise_variance=4.0), sampling_rate=0.1)])
def test_noise_of_a_server_has_no_shares(event):
  assert not event.has_shares() and event.seen_by_participants() == event


def test_colluders_are_at_least_one():
  with pytest.raises(ValueError, match='colluders must be at least 1, found 0'):
    _sum(cohort_size=5).seen_by_participants(0)


def _kept(clients: int, rate: fractions.Fraction, least: int):
  """Probability of each kept cohort, as a tuple of flags."""
  chances = {cohort: math.prod(rate if flag else 1 - rate for flag in cohort)
             for cohort in itertools.product((0, 1), repeat=clients)
             if sum(cohort) >= least}
  total = sum(chances.values())
  return {cohort: chance / total for cohort, chance in chances.items()}


@pytest.mark.parametrize('clients, rate, least', [
    (2, '1/2', 1), (5, '1/3', 2), (6, '1/10', 1), (6, '2/3', 5), (4, '1/5', 4)])
def test_rounds_in_which_a_client_is_selected_for_certain(clients, rate, least):
  rate = fractions.Fraction(rate)
  chances = _kept(clients, rate, least)
  forced = 0
  for others in itertools.product((0, 1), repeat=clients - 1):
    out, with_ = (chances.get((flag, *others), 0) for flag in (0, 1))
    if out:  # Otherwise as in Poisson sampling.
      assert with_ / (out + with_) == rate
    forced += with_ if not out else 0
  found = cohorts.redrawn_probability(
      clients, float(rate), least, rounds=1, max_participations=None, suppresses=False)
  assert float(forced) <= found <= float(forced) * (1 + 1e-8)


def test_with_a_limit_every_round_that_may_be_drawn_again_counts():
  # Three clients, two rounds, one participation each, cohorts of one at least.
  found = cohorts.redrawn_probability(
      3, 0.5, 1, rounds=2, max_participations=1, suppresses=False)
  # Rounds in which the two others are not enough, if nothing is drawn again.
  flags = itertools.product(itertools.product((0, 1), repeat=2), repeat=2)
  assert sum(not any(first) or not any(b and not a for a, b in zip(first, second))
             for first, second in flags) / 16 <= 2 * found
  # Of many clients: the probabilities of all rounds add up to no more than leaks in each
  # of them have together.
  exact = stats.binom.cdf(11, 299, 0.1)
  for rounds in (1, 40):
    found = cohorts.redrawn_probability(
        300, 0.1, 12, rounds=rounds, max_participations=rounds, suppresses=False)
    assert exact <= found <= 1.01 * exact
    assert -math.expm1(rounds * math.log1p(-found)) >= rounds * exact


def test_a_cohort_is_drawn_again_until_it_has_enough():
  build = functools.partial(
      schemes.Poisson, population=20, cohort_size=2, min_cohort_size=3)
  for seed in (None, 3):
    scheme = build(simulation_seed=seed)
    sizes = [scheme.sample(index).size for index in range(200)]
    assert min(sizes) == 3 and max(sizes) > 3
  assert np.array_equal(scheme.sample(7), scheme.sample(7))  # Of the seed.
  # The sizes that are kept are distributed as those of one draw that are enough.
  law = stats.binom.pmf(np.arange(3, 7), 20, 0.1) / stats.binom.sf(2, 20, 0.1)
  counts = np.bincount(
      sizes + [build().sample(1).size for _ in range(2000)], minlength=7)[3:7]
  assert np.abs(counts / 2200 - law).max() < 0.05


def test_a_limit_that_leaves_too_few_clients_is_named():
  scheme = schemes.Poisson(population=4, cohort_size=2, min_cohort_size=3,
                           max_participations=1, rounds=5)
  with pytest.raises(ValueError, match='min_cohort_size=3 can\'t be met in round'):
    for index in range(5):
      scheme.sample(index)


@pytest.mark.parametrize('least', [0, 21, 1.5])
def test_impossible_least_cohorts_are_refused(least):
  with pytest.raises(ValueError, match='min_cohort_size must be'):
    schemes.Poisson(population=20, cohort_size=2, min_cohort_size=least)
  with pytest.raises(ValueError, match='min_cohort_size must not be given for'):
    schemes.build('fixed', population=20, cohort_size=2, min_cohort_size=2)


def _seen(clients, rate, least, owned, contribution, limit=None):
  """Masses of two rounds' sums, in which cohorts are drawn until they are enough.

  `owned` clients contribute `contribution`, and all others -1; noise has variance 1.
  """
  def masses(total):
    upper = stats.norm.cdf(np.arange(-6, 7, 0.5), total)
    return np.diff(np.concatenate([[0.0], upper, [1.0]]))
  states = {(0,) * clients: np.ones(1)}
  for _ in range(2):
    after = {}
    for counts, joint in states.items():
      rates = [rate * (limit is None or count < limit) for count in counts]
      chances = {cohort: chance for cohort in itertools.product((0, 1), repeat=clients)
                 if sum(cohort) >= least and (chance := math.prod(
                     one if flag else 1 - one for flag, one in zip(cohort, rates)))}
      for cohort, chance in chances.items():
        total = contribution * sum(cohort[:owned]) - sum(cohort[owned:])
        key = counts if limit is None else tuple(map(sum, zip(counts, cohort)))
        after[key] = after.get(key, 0.0) + chance / sum(
            chances.values()) * np.multiply.outer(joint, masses(total)).ravel()
    states = after
  return sum(states.values())


@pytest.mark.parametrize('kind', ['pld', 'rdp'])
@pytest.mark.parametrize('clients, rate, least, owned, limit', [(4, 0.3, 2, 1, None),
    (5, 0.1, 1, 1, None), (5, 0.2, 3, 1, None), (5, 0.2, 2, 2, None),
    (5, 0.4, 4, 2, None), (5, 0.3, 1, 3, None), (5, 0.5, 1, 1, 1)])
def test_cohorts_that_are_drawn_again_show_no_more(
    clients, rate, least, owned, limit, kind):
  scheme = schemes.Poisson(population=clients, cohort_size=rate * clients,
      min_cohort_size=least, rounds=2, max_participations=limit)
  event = scheme.events(events.CentralGaussian(noise_multiplier=1.0), 2)
  assert (event.failure_probability() > 0) == (limit is not None)
  event = groups.of_group(event, owned)
  p, q = (_seen(clients, rate, least, owned, contribution, limit)
          for contribution in (1.0, 0.0))
  free = dataclasses.replace(event, event=dataclasses.replace(
      event.event, redrawn_probability=0.0))
  falls_short = False
  for epsilon in (0.0, 0.5, 1.5, 3.0):
    bound, without = (accountant.delta(each, epsilon, accountant=kind)
                      for each in (event, free))
    exact = max(np.maximum(first - math.exp(epsilon) * second, 0).sum()
                for first, second in ((p, q), (q, p)))
    assert exact <= bound
    falls_short |= exact > without
  # Without what the rule costs the number would be wrong.
  assert falls_short or kind == 'rdp' or limit or rate < 0.2 or owned > 1


def test_rounds_that_are_drawn_again_are_not_amplified():
  rate, rounds, epsilon = 0.01, 100, 3.0
  event = schemes.Poisson(population=1000, cohort_size=10, min_cohort_size=5,
      rounds=rounds).events(events.CentralGaussian(noise_multiplier=1.0), rounds)
  assert event.failure_probability() == 0
  forced = event.event.redrawn_probability
  assert forced == pytest.approx(1.928e-4, rel=1e-3)
  assert accountant.epsilon(event, 1e-5) == pytest.approx(3.472, abs=2e-3)
  assert 3.472 < accountant.epsilon(event, 1e-5, accountant='rdp') < 6
  p, q, loss = pivotal_test.gaussian_cells(1.0)
  losses = np.concatenate([np.log1p(rate * np.expm1(loss)), loss])
  masses = np.concatenate([(1 - forced) * ((1 - rate) * q + rate * p), forced * p])
  below, above = (pivotal_test.delta_by_fft(losses, masses, rounds, epsilon, up)
                  for up in (False, True))
  assert below <= accountant.delta(event, epsilon) <= 1.001 * above
  assert above <= 1.1 * below


@pytest.mark.parametrize('limits', [
    dict(max_participations=3), dict(pivotal_probability=0.1)])
def test_with_a_limit_or_suppression_it_is_taken_off_delta(limits):
  run = lambda event, **changes: _rounds(events.PoissonSampled(event=event, **{**dict(
      sampling_rate=0.1, redrawn_probability=1e-7), **limits, **changes}), 10)
  gaussian = events.CentralGaussian(noise_multiplier=1.0)
  event, free = run(gaussian), run(gaussian, redrawn_probability=0.0)
  assert event.failure_probability() == pytest.approx(1e-6)
  # A round that is repeated, which depends on the others' as well, is not amplified.
  again = event.repeated()
  assert again.without_sampling().event == gaussian
  assert accountant.epsilon(again, 1e-4) == accountant.epsilon(
      again, 1e-4, amplification='none')
  # Nor has a participant more than the least cohort in it.
  least = run(_sum(), least_cohort=4).repeated().event.seen_by_participants()
  assert least.without_sampling() == _sum().seen(1, 4)
  for kind in ('pld', 'rdp'):
    assert accountant.epsilon(event, 1e-4, accountant=kind) == pytest.approx(
        accountant.epsilon(free, 1e-4 - 1e-6, accountant=kind), rel=2e-3)
  assert accountant.epsilon(event, 9e-7) == math.inf


@pytest.mark.parametrize('kind', ['pld', 'rdp'])
def test_what_is_drawn_again_costs_in_the_amplified_number_alone(kind):
  free, least = (mechanisms.build(
      'gaussian', noise_multiplier=1.0, rounds=30, population=1000, cohort_size=20,
      sampling='poisson', **limit).event() for limit in ({}, dict(min_cohort_size=5)))
  taken = 30 * least.event.redrawn_probability
  assert 1e-6 < taken < 1e-4
  epsilon = accountant.epsilon(least, 1e-4, accountant=kind)
  assert epsilon >= accountant.epsilon(free, 1e-4, accountant=kind)
  if kind == 'pld':  # Less than if those rounds told everything.
    assert epsilon <= accountant.epsilon(free, 1e-4 - taken)
  assert least.without_sampling() == free.without_sampling()
  assert accountant.epsilon(least, taken / 2, accountant=kind) < 20
