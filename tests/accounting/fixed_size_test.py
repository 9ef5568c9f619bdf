"""Cohorts of fixed size against all subsets of small populations.

Contributions are on a line, where all subsets are enumerated and mixtures of Gaussians
are integrated on a fine lattice; several rounds by convolving their losses.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tests.accounting import pivotal_test
from tff_pipelines.accounting.divergences import pairs, pld
from tff_pipelines.accounting.events import base, combinators, kinds as events
from tff_pipelines.accounting.guarantees import (
    accountant, bounds, calibration, groups, mechanisms, observers)

_LATTICE = np.linspace(-14, 14, 28 * 256 + 1)


def _released(contributions, cohort, noise):
  """Masses of the noisy sum of a uniform cohort, on the cells of a lattice."""
  sums = [sum(chosen) for chosen in itertools.combinations(contributions, cohort)]
  upper = stats.norm.cdf((_LATTICE[:, None] - np.array(sums)) / noise).mean(axis=1)
  return np.diff(np.concatenate([[0.0], upper, [1.0]]))


def _hockey_stick(p, q, rounds, epsilon):
  """A lower bound on the divergence: cells are a post-processing, losses floored."""
  if rounds == 1:
    return np.maximum(p - math.exp(epsilon) * q, 0.0).sum()
  joint_p, joint_q = np.multiply.outer(p, p), np.multiply.outer(q, q)
  return np.maximum(joint_p - math.exp(epsilon) * joint_q, 0.0).sum()


def _event(noise, cohort, population, neighbours, rounds, clients=1):
  return groups.of_group(events.SelfComposed(count=rounds, event=events.FixedSizeSampled(
          event=events.CentralGaussian(noise_multiplier=noise), cohort_size=cohort,
          population=population, neighbours=neighbours)), clients)


def _inputs(population, rng):
  """Contributions in [-1, 1], the worst among them."""
  yield [1.0] + [-1.0] * (population - 1)
  yield [1.0] + [1.0] * (population - 1)
  yield [1.0] + [0.0] * (population - 1)
  for _ in range(3):
    yield rng.choice([-1.0, -0.5, 0.0, 1.0], population).tolist()


@pytest.mark.parametrize('neighbours', [base.REPLACE_ONE, base.ZERO_OUT])
@pytest.mark.parametrize('population, cohort, noise', [
    (2, 1, 0.6), (3, 2, 2.0), (5, 3, 0.6), (8, 1, 2.0), (8, 4, 0.6), (8, 7, 2.0)])
def test_no_subset_shows_more_than_the_profile(population, cohort, noise, neighbours):
  rng = np.random.default_rng(population * 10 + cohort)
  event = _event(noise, cohort, population, neighbours, 1)
  bounds = {epsilon: accountant.delta(event, epsilon) for epsilon in (0.0, 0.3, 1, 2)}
  largest = dict.fromkeys(bounds, 0.0)
  for contributions in _inputs(population, rng):
    changed = [0.0] if neighbours == base.ZERO_OUT else [-1.0, 0.0]
    p = _released(contributions, cohort, noise)
    for value in changed:
      q = _released([value, *contributions[1:]], cohort, noise)
      for epsilon, bound in bounds.items():
        both = max(_hockey_stick(p, q, 1, epsilon), _hockey_stick(q, p, 1, epsilon))
        assert both <= bound * (1 + 1e-9)
        largest[epsilon] = max(largest[epsilon], both)
  if neighbours == base.ZERO_OUT:  # The worst case is among the inputs.
    for epsilon, bound in bounds.items():
      assert bound <= 1.01 * largest[epsilon] + 1e-5


@pytest.mark.slow
@pytest.mark.parametrize('neighbours', [base.REPLACE_ONE, base.ZERO_OUT])
@pytest.mark.parametrize('population, cohort', [(3, 1), (5, 2)])
def test_two_rounds_show_no_more_than_the_composed_profile(
    population, cohort, neighbours):
  event = _event(1.0, cohort, population, neighbours, 2)
  value = 0.0 if neighbours == base.ZERO_OUT else -1.0
  for contributions in list(_inputs(population, np.random.default_rng(1)))[:3]:
    # Sums of cells are cells: a post-processing.
    p, q = (np.add.reduceat(masses, range(0, masses.size, 8)) for masses in (
        _released([first, *contributions[1:]], cohort, 1.0)
        for first in (contributions[0], value)))
    for epsilon in (0.0, 0.5, 1.5, 3.0):
      bound = accountant.delta(event, epsilon)
      assert _hockey_stick(p, q, 2, epsilon) <= bound
      assert _hockey_stick(q, p, 2, epsilon) <= bound


def test_sensitivity_alone_would_not_cover_zeroed_clients():
  """What an accountant would say that forgot the client in the other's place."""
  noise, population, cohort = 0.5, 2, 1
  p = _released([1.0, -1.0], cohort, noise)
  q = _released([0.0, -1.0], cohort, noise)
  naive = pairs.WithoutReplacement(
      pair=pairs.Gaussian(noise_multiplier=noise), fraction=cohort / population)
  (atoms,) = naive.atoms(512)
  claimed = np.maximum(atoms.p - 2 * atoms.q, 0).sum() + atoms.p_only
  assert _hockey_stick(p, q, 1, math.log(2)) > claimed + 0.02


@pytest.mark.parametrize('fraction', [0.01, 0.3, 0.9])
@pytest.mark.parametrize('noise', [0.3, 1.0, 5.0])
def test_profiles_are_those_of_their_formulas(noise, fraction):
  y = np.linspace(-40 * noise, 40 * noise, 400_001)
  width = y[1] - y[0]
  normal = lambda mean: stats.norm.pdf(y, mean, noise) * width
  mix = lambda first, second: (1 - fraction) * first + fraction * second
  zeroed = pairs.ZeroedWithoutReplacement(noise_multiplier=noise, fraction=fraction)
  replaced = pairs.WithoutReplacement(
      pair=pairs.Gaussian(noise_multiplier=noise), fraction=fraction)
  cases = ((zeroed, 0, mix(normal(-1), normal(1)), mix(normal(-1), normal(0))),
           (zeroed, 1, mix(normal(1), normal(0)), normal(1)),
           (replaced, 0, mix(normal(0), normal(1)), normal(0)))
  for pair, way, p, q in cases:
    atoms = pair.atoms(1024)[way]
    assert atoms.p.sum() + atoms.p_only == pytest.approx(1, abs=1e-9)
    assert atoms.q.sum() + atoms.q_only == pytest.approx(1, abs=1e-9)
    for alpha in (1.0, 1.2, 2.0, 5.0):
      exact = np.maximum(p - alpha * q, 0).sum()
      listed = np.maximum(atoms.p - alpha * atoms.q, 0).sum() + atoms.p_only
      assert exact * (1 - 1e-6) - 1e-9 <= listed <= exact * 1.01 + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize('population, rounds, epsilon, renyi, replaced, zeroed', [
    (3400, 1500, 10, 2.5416, 1.7582, 1.3646), (539, 50, 8, 3.0813, 1.8336, 1.2605)])
def test_reference_noise(population, rounds, epsilon, renyi, replaced, zeroed):
  def noise(neighbours, kind='auto'):
    return calibration.noise_multiplier(
        lambda z: _event(z, 100, population, neighbours, rounds), epsilon=epsilon,
        delta=1 / population, accountant=kind)
  assert noise(base.REPLACE_ONE, 'rdp') == pytest.approx(renyi, rel=1e-3)
  assert noise(base.REPLACE_ONE) == pytest.approx(replaced, rel=1e-3)
  assert noise(base.ZERO_OUT) == pytest.approx(zeroed, rel=1e-3)


# A person who owns several clients.


@pytest.mark.parametrize('neighbours', [base.REPLACE_ONE, base.ZERO_OUT])
@pytest.mark.parametrize('population, cohort, clients, noise', [
    (4, 1, 2, 0.8), (4, 2, 2, 2.0), (5, 2, 3, 1.0), (7, 4, 3, 3.0), (8, 3, 2, 1.5),
    (8, 1, 5, 0.8)])
def test_no_subset_shows_more_of_a_person(population, cohort, clients, noise, neighbours):
  event = _event(noise, cohort, population, neighbours, 1, clients)
  assert event.event.clients == clients
  alone = _event(noise, cohort, population, neighbours, 1)
  bounds = {epsilon: [accountant.delta(each, epsilon, accountant=kind) for each, kind in (
      (event, 'pld'), (event, 'rdp'), (alone, 'pld'))] for epsilon in (0.0, 0.5, 1.5, 3.0)}
  more, rng = False, np.random.default_rng(population * cohort)
  others = [np.full(population - clients, value) for value in (-1.0, 0.0, 1.0)]
  others += list(rng.choice([-1.0, -0.5, 0.0, 1.0], [2, population - clients]))
  for rest in others:
    for own in ([1.0] * clients, [1.0] * (clients - 1) + [-1.0]):
      changed = 0.0 if neighbours == base.ZERO_OUT else -1.0
      p, q = (_released([*values, *rest], cohort, noise)
              for values in (own, [changed] * clients))
      for epsilon, (listed, renyi, of_one) in bounds.items():
        found = max(_hockey_stick(p, q, 1, epsilon), _hockey_stick(q, p, 1, epsilon))
        assert found <= listed * (1 + 1e-9) and found <= renyi
        more |= found > of_one
  assert more  # The number of one client would not cover it.


@pytest.mark.parametrize('neighbours', [base.REPLACE_ONE, base.ZERO_OUT])
@pytest.mark.parametrize('population, cohort, clients', [(4, 1, 2), (5, 2, 3)])
def test_two_rounds_show_no_more_of_a_person(population, cohort, clients, neighbours):
  event = _event(1.5, cohort, population, neighbours, 2, clients)
  changed = 0.0 if neighbours == base.ZERO_OUT else -1.0
  for value in (-1.0, 1.0):
    p, q = (np.add.reduceat(masses, range(0, masses.size, 16)) for masses in (
        _released([own] * clients + [value] * (population - clients), cohort, 1.5)
        for own in (1.0, changed)))
    for epsilon in (0.0, 1.0, 3.0):
      bound = accountant.delta(event, epsilon)
      assert _hockey_stick(p, q, 2, epsilon) <= bound
      assert _hockey_stick(q, p, 2, epsilon) <= bound


def _replaced(noise, cohort, population, clients):
  """Chances of 0, 1, ... clients in a cohort, and the fractions of the proof."""
  k = np.arange(clients + 1)
  chances = stats.hypergeom.pmf(k, population, clients, cohort)
  shares = k**2 * chances / (k**2 @ chances)
  return k[1:], chances[1:], chances[1:] / (chances[1:] + chances[0] * shares[1:])


@pytest.mark.parametrize('clients', [1, 2, 5])
def test_profile_of_a_person_is_that_of_its_formula(clients):
  """sum_k w_k H_beta_k(N(2k), N(0)) for alpha >= 1, in closed form."""
  noise, cohort, population = 1.5, 20, 100
  ((pair, _),) = _event(noise, cohort, population, base.REPLACE_ONE, 1, clients
                        ).event.factors('tight')
  (atoms,) = pair.atoms(2048)
  assert atoms.p.sum() + atoms.p_only == pytest.approx(1, abs=1e-9)
  k, chances, fractions = _replaced(noise, cohort, population, clients)
  for alpha in (1.0, 1.1, 2.0, 10.0):
    beta = 1 + (alpha - 1) / fractions
    exact = chances @ [calibration.analytic_delta(noise / 2 / times, math.log(at))
                       for times, at in zip(k, beta)]
    listed = np.maximum(atoms.p - alpha * atoms.q, 0).sum() + atoms.p_only
    assert exact * (1 - 1e-9) <= listed <= exact * 1.001 + 1e-7


@pytest.mark.parametrize('clients, reference', [(1, 8.000), (2, 21.096), (3, 37.871)])
def test_reference_numbers_of_a_person(clients, reference):
  """539 clients, 100 a round, 50 rounds; the composition by a transform of our own."""
  noise, rounds, delta = 1.8336, 50, 1 / 539
  event = _event(noise, 100, 539, base.REPLACE_ONE, rounds, clients)
  assert accountant.epsilon(event, delta) == pytest.approx(reference, abs=0.01)
  k, chances, fractions = _replaced(noise, 100, 539, clients)
  losses, masses = [], []
  for times, chance, fraction in zip(k, chances, fractions):
    p, q, loss = pivotal_test.gaussian_cells(noise / 2 / times)
    above = loss > 0
    mixed = np.log1p(fraction * np.expm1(loss[above]))
    first = chance * (p[above] + (1 - fraction) / fraction * q[above])
    # Replacing is symmetric: below 0 it is the same reversed.
    losses += [mixed, -mixed]
    masses += [first, chance / fraction * q[above]]
  losses, masses = map(np.concatenate, (losses, masses))
  losses, masses = np.append(losses, 0.0), np.append(masses, 1 - masses.sum())
  below, above = (pivotal_test.delta_by_fft(losses, masses, rounds, reference, up)
                  for up in (False, True))
  assert below <= pld.delta(event.factors('tight'), reference) <= 1.002 * above
  assert above < 1.1 * delta and below > 0.9 * delta


def test_persons_who_are_too_many_for_an_exchange_are_not_covered():
  event = _event(3.0, 6, 10, base.REPLACE_ONE, 3)
  assert groups.of_group(event, 4).event.clients == 4
  for clients in (5, 10):
    assert groups.of_group(event, clients) is None
    assert groups.may_be_chained(event, clients, known=False)
    known = groups.of_group(event, clients, known=True)
    # It has no amplified number, and against known cohorts the mean over k.
    assert accountant.epsilon(known, 1e-5) == accountant.epsilon(
        known, 1e-5, amplification='none') > accountant.epsilon(
            combinators.known(known), 1e-5)
  person = groups.of_group(event, 3)
  assert person.event.group(2, False) is None
  for how in (dict(amplification='none'), {}):
    assert accountant.epsilon(
        person if how else person.without_sampling(), 1e-5, **how) == pytest.approx(
            accountant.epsilon(events.SelfComposed(
                event=events.CentralGaussian(noise_multiplier=0.5), count=3), 1e-5),
            rel=1e-9)
  # Skellam noise too, as the Gaussian noise of which it is a post-processing.
  sums = mechanisms.SumMechanism(
      mechanism='skellam', noise_multiplier=4.0, clip=0.3, bits=18, dimension=1024,
      cohort_size=20, population=200, rounds=5, sampling='fixed').event()
  gaussian = _event(4.0, 20, 200, base.REPLACE_ONE, 5, 2)
  assert accountant.epsilon(groups.of_group(sums, 2), 1e-5) == pytest.approx(
      accountant.epsilon(gaussian, 1e-5), rel=1e-2)


@pytest.mark.parametrize('neighbours, times', [(base.REPLACE_ONE, 2), (base.ZERO_OUT, 1)])
def test_known_cohorts_of_a_person_are_averaged(neighbours, times):
  noise, cohort, population, clients, rounds = 3.0, 3, 12, 2, 3
  event = groups.of_group(_event(noise, cohort, population, neighbours, rounds), clients,
                          known=True)
  chances = stats.hypergeom.pmf(np.arange(clients + 1), population, clients, cohort)
  for epsilon in (0.5, 2.0):
    exact = 0.0
    for numbers in itertools.product(range(clients + 1), repeat=rounds):
      if any(numbers):
        exact += math.prod(chances[list(numbers)]) * calibration.analytic_delta(
            noise / times / math.hypot(*numbers), epsilon)
    found = accountant.delta(combinators.known(event, None), epsilon)
    assert exact * (1 - 1e-9) <= found <= 1.001 * exact
    assert found < accountant.delta(event.without_sampling(), epsilon)


@pytest.mark.parametrize('noise, chain_is_less', [(1.0, False), (4.0, True)])
def test_a_person_has_the_least_of_both_numbers(noise, chain_is_less):
  one, both = (_event(noise, 20, 200, base.ZERO_OUT, 5, clients) for clients in (1, 2))
  direct = accountant.epsilon(both, 1e-5)
  chain = groups.chained(lambda delta: accountant.epsilon(one, delta), 2, 1e-5)
  assert (chain < direct) == chain_is_less
  found = observers.bound(
      observers.View(one), 1e-5, observers.Method(clients_per_person=2), bounds.PERSON)
  assert found.epsilon <= min(chain, direct) * (1 + 1e-12)
  assert (found.amplification == 'chained') == chain_is_less


def test_everyone_and_known_cohorts_have_the_sensitivity_of_the_adjacency():
  release = events.CentralGaussian(noise_multiplier=2.0)
  for neighbours, noise in ((base.REPLACE_ONE, 1.0), (base.ZERO_OUT, 2.0)):
    plain = accountant.epsilon(events.CentralGaussian(noise_multiplier=noise), 1e-5)
    some, everyone = (events.FixedSizeSampled(
        event=release, cohort_size=size, population=10, neighbours=neighbours)
                      for size in (3, 10))
    assert some.adjacency == neighbours
    assert accountant.epsilon(everyone, 1e-5) == pytest.approx(plain, rel=1e-9)
    assert accountant.epsilon(some, 1e-5, amplification='none') == pytest.approx(
        plain, rel=1e-9)
    assert accountant.epsilon(some.without_sampling(), 1e-5) == pytest.approx(
        plain, rel=1e-9)
    assert accountant.epsilon(some, 1e-5) < plain


def test_neighbours_must_be_of_clients_and_stated():
  event = _event(1.0, 2, 5, base.REPLACE_ONE, 3)
  data = event.to_json()
  assert events.from_json(data) == event
  del data['event']['neighbours']
  with pytest.raises(ValueError, match='must have the fields'):
    events.from_json(data)
  with pytest.raises(ValueError, match='neighbours must be one of'):
    _event(1.0, 2, 5, base.RECORD, 3)
