"""Suppressed rounds reveal participation: its probability and its cost."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from aggregators import params as params_lib
from tff_pipelines.accounting.divergences import curves
from tff_pipelines.accounting.events import base, kinds as events
from tff_pipelines.accounting.guarantees import accountant, mechanisms
from tff_pipelines.accounting.sampling import cohorts

GAUSSIAN_CURVE = 0.4 * np.arange(2, 130)


def _by_enumeration(population, rate, fraction, colluders, dropout):
  """Sums over the others: each is not selected, reports, or drops out."""
  total = 0.0
  chances = (1 - rate, rate * (1 - dropout), rate * dropout)
  for outcomes in itertools.product(range(3), repeat=population - 1):
    selected = sum(outcome != 0 for outcome in outcomes)
    reporting = sum(outcome == 1 for outcome in outcomes)
    opened = [params_lib.has_enough(
        reporting + one, selected + one, fraction, colluders) for one in (0, 1)]
    if opened == [False, True]:
      total += math.prod(chances[outcome] for outcome in outcomes)
  return total


@pytest.mark.parametrize('fraction, colluders', [
    (0.9, 1), (0.5, 0), (0.5, 1), (0.75, 1), (0.3, 2), (0.7, 0), (2 / 3, 1)])
@pytest.mark.parametrize('rate', [0.2, 0.6, 1.0])
@pytest.mark.parametrize('dropout', [0.0, 0.1, 0.6])
def test_the_probability_is_that_of_an_enumeration_of_the_others(
    fraction, colluders, rate, dropout):
  probability = cohorts.pivotal_probability(7, rate, fraction, colluders, dropout)
  # For any rate of dropouts up to the one that was given.
  expected = max(_by_enumeration(7, rate, fraction, colluders, lower)
                 for lower in np.linspace(0, dropout, 13 if dropout else 1))
  assert probability >= expected * (1 - 1e-12)
  assert probability <= 1.05 * expected + 1e-15


def test_probabilities_of_large_populations_are_those_of_a_simulation():
  rng = np.random.default_rng(3)
  num_selected = rng.binomial(10**5 - 1, 2e-3, size=400_000)
  simulated = []
  for dropout in (0.03, 0.05, 0.06, 0.07):
    present = rng.binomial(num_selected, 1 - dropout)
    opened = [params_lib.has_enough(present + one, num_selected + one, 0.92, 3)
              for one in (0, 1)]
    simulated.append(np.mean(~opened[0] & opened[1]))
  # The worst rate is about 0.06: 12 of 200 may be missing.
  for largest, worst in ((0.03, simulated[0]), (0.07, max(simulated)),
                      (0.5, max(simulated))):
    probability = cohorts.pivotal_probability(10**5, 2e-3, 0.92, 3, largest)
    assert 0.95 * worst < probability < 1.15 * worst and worst > 1e-4


def test_a_dropout_rate_that_is_too_high_promises_less():
  probabilities = [cohorts.pivotal_probability(1000, 0.1, 0.9, 0, rate)
                   for rate in (0.0, 1e-9, 0.02, 0.05, 0.1, 0.3, 0.99)]
  assert probabilities[0] == 0 and np.all(np.diff(probabilities) >= 0)
  assert probabilities[3] < probabilities[4]
  assert probabilities[5] == pytest.approx(probabilities[4], rel=0.1)


@pytest.mark.parametrize('fraction, dropout', [
    (1.0, 0.0), (1.0, 0.5), (0.6, 0.0)])
def test_without_colluders_others_alone_decide_if_no_client_may_drop_out(
    fraction, dropout):
  assert cohorts.pivotal_probability(50, 0.1, fraction, 0, dropout) == 0
  assert _by_enumeration(7, 0.3, fraction, 0, dropout) == 0 or fraction == 1


def test_the_cost_lies_between_hidden_and_shown():
  rate = 0.02
  hidden = curves.poisson(GAUSSIAN_CURVE, rate)
  shown = curves.mixed(np.zeros_like(GAUSSIAN_CURVE), GAUSSIAN_CURVE, rate)
  assert np.all(hidden < shown) and np.all(shown < GAUSSIAN_CURVE)
  last = hidden
  for probability in (1e-9, 1e-3, 0.3, 0.999):
    curve = curves.mixed(hidden, shown, probability)
    assert np.all(curve >= last) and np.all(curve < shown)
    last = curve
  np.testing.assert_array_equal(curves.mixed(hidden, shown, 0.0), hidden)
  np.testing.assert_array_equal(curves.mixed(hidden, shown, 1.0), shown)
  # The definition, where nothing overflows.
  alpha = np.arange(2, 20)
  np.testing.assert_allclose(shown[:18], np.log(
      1 - rate + rate * np.exp((alpha - 1) * GAUSSIAN_CURVE[:18])) / (alpha - 1))


def test_infinite_and_huge_losses_stay_what_they_are():
  curve = np.array([3.0, 1e4, np.inf])
  revealed = curves.mixed(np.zeros_like(curve), curve, 0.1)
  assert np.isinf(revealed[2])
  assert revealed[1] == pytest.approx(1e4 + math.log(0.1) / 2)
  both = curves.mixed(np.array([1.0, np.inf]), np.array([2.0, np.inf]), 0.5)
  assert np.isinf(both[1]) and 1 < both[0] < 2


DELTA = 1e-5


def _mechanism(**changes):
  return mechanisms.SumMechanism(**{**dict(
      mechanism='skellam', sampling='poisson', clip=0.3, dimension=7346, bits=18,
      cohort_size=10.0, population=1000, rounds=1, noise_multiplier=0.6,
      min_honest_fraction=0.9, assumed_colluders=1), **changes})


def _divergences(mechanism, epsilon):
  """Hockey-stick divergences of one round, both directions, by quadrature.

  A worst case: all others send their clip, the client its opposite. Noise is
  Gaussian, of the whole variance that outsiders get, z^2 c^2 / h with c = 1.
  """
  step, reach = 2e-3, 60.0
  x = np.arange(-reach, reach, step)
  deviation = mechanism.noise_multiplier / math.sqrt(mechanism.min_honest_fraction)
  rate = mechanism.sampling_scheme().sampling_rate
  with_it, without = np.zeros_like(x), np.zeros_like(x)
  others = stats.binom(mechanism.population - 1, rate)
  for m in range(int(others.isf(1e-14)) + 1):
    opened = [params_lib.has_enough(m + one, m + one, mechanism.min_honest_fraction,
                                    mechanism.assumed_colluders) for one in (0, 1)]
    absent = stats.norm.pdf(x, m if opened[0] else 0, deviation)
    present, zero = (stats.norm.pdf(x, m - sent if opened[1] else 0, deviation)
                   for sent in (1, 0))
    with_it += others.pmf(m) * ((1 - rate) * absent + rate * present)
    without += others.pmf(m) * ((1 - rate) * absent + rate * zero)
  return [step * np.maximum(p - math.exp(epsilon) * q, 0).sum()
          for p, q in ((with_it, without), (without, with_it))]


@pytest.mark.parametrize('changes', [
    {}, dict(min_honest_fraction=0.8, assumed_colluders=2),
    dict(population=400, noise_multiplier=0.8)])
def test_epsilon_covers_a_client_that_opens_rounds(changes):
  mechanism = _mechanism(**changes)
  event = mechanism.event()
  assert event.event.pivotal_probability > 0.1
  counted = accountant.epsilon(event, DELTA)
  blind = accountant.epsilon(
      events.PoissonSampled(
          event=mechanism.release(),
          sampling_rate=mechanism.sampling_scheme().sampling_rate), DELTA)
  # As if the size of the cohort decided nothing: less than the true loss.
  assert max(_divergences(mechanism, blind)) > 2 * DELTA
  assert max(_divergences(mechanism, counted)) <= DELTA
  assert blind < counted < accountant.epsilon(
      event, DELTA, amplification='none')


@pytest.mark.parametrize('changes', [
    dict(assumed_colluders=0), dict(sampling='fixed'),
    dict(mechanism='skellam_central'), dict(min_honest_fraction=1.0,
                                            assumed_colluders=0, dropout_rate=0.3)])
def test_where_nothing_is_revealed_nothing_is_paid(changes):
  event = _mechanism(**changes).event().event
  assert getattr(event, 'pivotal_probability', 0.0) == 0
  assert not any('whether a round is opened' in text for text in event.caveats())


def test_dropouts_below_a_whole_cohort_are_paid_for_and_reported():
  event = _mechanism(assumed_colluders=0, dropout_rate=0.1).event()
  assert 0 < event.event.pivotal_probability < 0.5
  guarantee = accountant.bound(event, 1e-3)
  assert any('whether a round is opened' in text and 'drop out' in text
             for text in guarantee.caveats)
  assert base.from_json(event.to_json()) == event
  assert event.event.pure_epsilon('tight') == event.event.event.pure_epsilon('none')
  assert event.factors('tight') is None


def test_a_count_is_suppressed_with_its_sum():
  mechanism = _mechanism(adaptive_clipping=True, clip_count_stddev=3.0)
  count = mechanism.sampled(mechanism.clip_count()).event
  assert count.pivotal_probability == mechanism.event().event.pivotal_probability > 0.1


def test_an_event_built_directly_states_its_assumptions():
  sums = {h: events.DistributedSkellam.from_params(
      _mechanism(min_honest_fraction=h, assumed_colluders=0).params())
          for h in (0.9, 1.0)}
  caveats = {h: ' '.join(events.PoissonSampled(
      event=events.Together(events=(event,)), sampling_rate=0.01).caveats())
             for h, event in sums.items()}
  assert 'only if no client drops out or colludes' in caveats[0.9]
  assert 'colludes' not in caveats[1.0]
  central = _mechanism(mechanism='skellam_central', assumed_colluders=0).event()
  assert not any('colludes' in text for text in central.caveats())
