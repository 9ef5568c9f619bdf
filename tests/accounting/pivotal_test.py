"""Suppressed rounds reveal participation: its probability and its cost."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from aggregators import params as params_lib
from tff_pipelines.accounting.divergences import curves, pld
from tff_pipelines.accounting.events import base, kinds as events
from tff_pipelines.accounting.guarantees import accountant, mechanisms
from tff_pipelines.accounting.sampling import cohorts

GAUSSIAN_CURVE = 0.4 * np.arange(2, 130)


def _pivotal(selected, dropouts, fraction, colluders):
  """Probability that the others, with these rates of dropouts, leave it to a client."""
  total = 0.0
  for outcome in itertools.product((0, 1), repeat=selected):
    if [params_lib.has_enough(sum(outcome) + one, selected + one, fraction, colluders)
        for one in (0, 1)] == [False, True]:
      total += math.prod(1 - rate if present else rate
                         for present, rate in zip(outcome, dropouts))
  return total


@pytest.mark.parametrize('fraction, colluders', [
    (0.9, 1), (0.5, 0), (0.5, 1), (0.75, 1), (0.3, 2), (0.7, 0), (2 / 3, 1)])
@pytest.mark.parametrize('rate', [0.2, 0.6, 1.0])
@pytest.mark.parametrize('dropout', [0.0, 0.1, 0.6])
def test_the_probability_is_that_of_an_enumeration_of_the_others(
    fraction, colluders, rate, dropout):
  others = 6
  probability = cohorts.pivotal_probability(
      others + 1, rate, fraction, colluders, dropout)
  # Whatever rates they have: of those that are selected some drop out as often as is
  # allowed.
  exact = sum(stats.binom.pmf(m, others, rate) * max(
          _pivotal(m, [dropout] * a + [0.0] * (m - a), fraction, colluders)
          for a in range(m + 1)) for m in range(others + 1))
  assert exact * (1 - 1e-12) <= probability <= exact * (1 + 1e-8) + 1e-15
  rng = np.random.default_rng(5)
  for rates in (np.full(others, dropout), *rng.uniform(0, dropout, [3, others])):
    found = sum(rate**sum(chosen) * (1 - rate)**(others - sum(chosen)) * _pivotal(
            sum(chosen), rates[np.flatnonzero(chosen)], fraction, colluders)
        for chosen in itertools.product((0, 1), repeat=others))
    assert found <= probability * (1 + 1e-12)


def test_reliable_clients_may_make_the_others_decide():
  # Nine of nineteen others never drop out, ten do half of the time.
  probability = cohorts.pivotal_probability(20, 1.0, 0.75, 0, 0.5)
  assert probability == pytest.approx(stats.binom.pmf(5, 10, 0.5), rel=1e-8)
  equal = stats.binom.pmf(5, 19, np.linspace(0, 0.5, 1001)).max()
  assert equal < 0.205 < 0.246 < probability


def test_probabilities_of_large_populations_are_those_of_a_simulation():
  rng = np.random.default_rng(3)
  num_selected = rng.binomial(10**5 - 1, 2e-3, size=400_000)
  def simulated(dropout, unreliable=1.0):
    missing = rng.binomial(rng.binomial(num_selected, unreliable), dropout)
    opened = [params_lib.has_enough(
        num_selected - missing + one, num_selected + one, 0.92, 3) for one in (0, 1)]
    return np.mean(~opened[0] & opened[1])
  few = simulated(0.03)
  # The worst equal rate is about 0.06: 12 of 200 may be missing.
  worst = max(map(simulated, (0.05, 0.06, 0.07)))
  for largest, exact, loose in (
      (0.03, few, 1.15), (0.07, worst, 1.15), (0.2, simulated(0.2, 0.3), 1.3)):
    probability = cohorts.pivotal_probability(10**5, 2e-3, 0.92, 3, largest)
    assert 0.95 * exact < probability < loose * exact and exact > 1e-4


def test_a_dropout_rate_that_is_too_high_promises_less():
  probabilities = [cohorts.pivotal_probability(1000, 0.1, 0.9, 0, rate)
                   for rate in (0.0, 1e-9, 0.02, 0.05, 0.1, 0.3, 0.99)]
  assert probabilities[0] == 0 and np.all(np.diff(probabilities) >= 0)
  assert probabilities[3] < probabilities[4]
  assert probabilities[5] == pytest.approx(probabilities[4], rel=0.2)


@pytest.mark.parametrize('fraction, dropout', [(1.0, 0.0), (1.0, 0.5), (0.6, 0.0)])
def test_without_colluders_others_alone_decide_if_no_client_may_drop_out(
    fraction, dropout):
  assert cohorts.pivotal_probability(50, 0.1, fraction, 0, dropout) == 0
  assert all(_pivotal(m, [dropout] * m, fraction, 0) == 0 for m in range(7))


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
  # Three in any order, and what is tiny is not lost in 1.
  three = [np.array([1e-18]), np.array([3e-18]), np.array([2e-18])]
  for listed in itertools.permutations(three):
    assert curves.mean(listed, (1 / 3,) * 3) == pytest.approx(2e-18, rel=1e-9)


DELTA = 1e-5
_mechanism = mechanisms.SumMechanism(
    mechanism='skellam', sampling='poisson', clip=0.3, dimension=7346, bits=18,
    cohort_size=10.0, population=1000, rounds=1, noise_multiplier=0.6,
    min_honest_fraction=0.9, assumed_colluders=1).replace


def delta_by_fft(loss, masses, rounds, epsilon, up):
  """Delta of composed losses, each moved to a lattice: below the true one, or above it.

  `masses` are those under the first distribution; the rest of it has infinite loss.
  """
  step, size = 1e-4, 1 << 21
  index = (np.ceil if up else np.floor)(loss / step).astype(int)
  lattice = np.bincount(index % size, masses, size)
  total = np.fft.irfft(np.fft.rfft(lattice)**rounds, size)
  # The losses of all rounds lie within the lattice, around 0.
  losses = step * np.fft.fftfreq(size, 1 / size)
  above = losses > epsilon
  return 1 - masses.sum()**rounds + total[above] @ -np.expm1(epsilon - losses[above])


def gaussian_cells(deviation):
  """Masses of N(1, z^2) and of N(0, z^2), and the loss, of cells of a fine lattice."""
  edges = deviation * np.linspace(-12, 13, 200_001)
  p, q = (np.diff(stats.norm.cdf(edges, mean, deviation)) for mean in (1, 0))
  return p, q, (np.add(edges[1:], edges[:-1]) / 2 - 0.5) / deviation**2


@pytest.mark.parametrize('direction', [0, 1])
def test_suppressed_rounds_are_composed_as_by_a_transform(direction):
  rate, pivotal, deviation, rounds, epsilon = 0.01, 0.1257, 0.6, 50, 4.0
  pair = events.PoissonSampled(
      event=events.CentralGaussian(noise_multiplier=deviation), sampling_rate=rate,
      pivotal_probability=pivotal).factors('tight')[0][0]
  p, q, loss = gaussian_cells(deviation)
  mixed, sampled = np.log1p(rate * np.expm1(loss)), (1 - rate) * q + rate * p
  losses = np.concatenate([mixed, loss, [0.0]])
  first, second = (np.concatenate([
      (1 - pivotal) * hidden, pivotal * rate * seen, [pivotal * (1 - rate)]])
                   for hidden, seen in ((sampled, p), (q, q)))
  if direction:
    losses, first = -losses, second
  bounds = [delta_by_fft(losses, first, rounds, epsilon, up) for up in (False, True)]
  atoms = pair.atoms(512)[direction]
  ours = delta_by_fft(atoms.loss, atoms.p, rounds, epsilon, False)
  assert bounds[0] * 0.99 <= ours <= bounds[1] * 1.02 and bounds[0] > 1e-6
  if not direction:  # The larger one.
    assert bounds[0] <= pld.delta(((pair, rounds),), epsilon) <= 1.001 * bounds[1]


def test_reference_number_of_suppressed_rounds():
  event = _mechanism(rounds=50).event()
  assert event.event.pivotal_probability == pytest.approx(0.1257, abs=1e-4)
  assert accountant.epsilon(event, 1e-3) == pytest.approx(4.575, abs=2e-3)
  assert accountant.epsilon(event, 1e-3, accountant='rdp') == pytest.approx(
      6.526, abs=2e-3)


@pytest.mark.parametrize('kind', ['pld', 'rdp'])
@pytest.mark.parametrize('fraction, colluders, limit', [
    (0.5, 1, None), (0.6, 1, None), (0.75, 0, None), (0.5, 1, 1)])
def test_two_rounds_of_few_clients_show_no_more(fraction, colluders, limit, kind):
  """All selections and dropouts of four clients, whose sums are seen or suppressed."""
  others, rate, dropout, noise = 3, 0.2, 0.1, 0.5
  limit_ = limit or 9
  edges = np.arange(-5, 4, 0.25)
  def masses(total):  # The last outcome is a suppressed round.
    upper = stats.norm.cdf(edges, total, noise)
    return np.diff(np.concatenate([[0.0], upper, [1.0, 1.0]]))
  nothing = np.eye(edges.size + 2)[-1]
  # One of them is reliable.
  rates = [dropout, dropout, 0.0, dropout]

  def seen(contribution):
    states = {(0,) * (others + 1): np.ones(1)}
    for _ in range(2):
      after = {}
      for counts, joint in states.items():
        # 0: not selected; 1: reports; 2: drops out.
        for now in itertools.product(range(3), repeat=others + 1):
          weight = 1.0
          for state, count, drop in zip(now, counts, rates):
            q = rate * (count < limit_)
            weight *= (1 - q, q * (1 - drop), q * drop)[state]
          if not weight:
            continue
          reports = [state == 1 for state in now]
          opened = params_lib.has_enough(
              sum(reports), sum(state > 0 for state in now), fraction, colluders)
          # The others point the other way.
          out = masses(reports[-1] * contribution - sum(
              reports[:-1])) if opened else nothing
          key = tuple(count + (state > 0) for state, count in zip(now, counts))
          if limit is None:
            key = (0,) * (others + 1)
          after[key] = after.get(key, 0.0) + weight * np.multiply.outer(
              joint, out).ravel()
      states = after
    return sum(states.values())

  probability = 1.0 if limit else cohorts.pivotal_probability(
      others + 1, rate, fraction, colluders, dropout)
  event = events.SelfComposed(count=2, event=events.PoissonSampled(
      event=events.CentralGaussian(noise_multiplier=noise), sampling_rate=rate,
      pivotal_probability=probability, max_participations=limit))
  p, q = seen(1.0), seen(0.0)
  assert p.sum() == pytest.approx(1) == q.sum()
  exact = {epsilon: max(np.maximum(first - math.exp(epsilon) * second, 0).sum()
                        for first, second in ((p, q), (q, p)))
           for epsilon in (0.0, 2.0, 4.0)}
  for epsilon, found in exact.items():
    assert found <= accountant.delta(event, epsilon, accountant=kind)
  if (fraction, limit) == (0.5, None):  # As if suppression revealed nothing.
    blind = dataclasses.replace(event, event=dataclasses.replace(
        event.event, pivotal_probability=0.0))
    assert exact[4.0] > 1.1 * accountant.delta(blind, 4.0)


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
  blind = accountant.epsilon(events.PoissonSampled(event=mechanism.release(),
          sampling_rate=mechanism.sampling_scheme().sampling_rate), DELTA)
  # As if the size of the cohort decided nothing: less than the true loss.
  assert max(_divergences(mechanism, blind)) > 2 * DELTA
  assert max(_divergences(mechanism, counted)) <= DELTA
  assert blind < counted < accountant.epsilon(event, DELTA, amplification='none')


@pytest.mark.parametrize('changes', [dict(assumed_colluders=0), dict(sampling='fixed'),
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
