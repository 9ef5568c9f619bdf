"""Averages over cohorts that are drawn by the rule, against other computations."""

import collections
import dataclasses
import itertools
import math

import hypothesis
from hypothesis import strategies as st
import mpmath
import numpy as np
import pytest
from scipy import optimize, special, stats

from tests.known_cohorts import gaussian_delta
from tff_pipelines.accounting.divergences import counts, gaussian_mixtures, pairs, pld
from tff_pipelines.accounting.events import attended, base, combinators, kinds as events
from tff_pipelines.accounting.guarantees import (
    accountant, bounds, mechanisms, observers)
from tff_pipelines.accounting.sampling import schemes

ANY = math.inf  # Slack where nothing is claimed to be tight.


def binomial(count, rate, limit):
  """Probabilities of 0, 1, ... rounds with a client."""
  law = stats.binom.pmf(np.arange(count + 1), count, rate)
  return law if limit is None else np.append(law[:limit], law[limit:].sum())


central = lambda noise: events.CentralGaussian(noise_multiplier=noise)


def shares(noise, grid=1e4):
  """A sum on a grid so fine that its noise is as good as Gaussian."""
  return events.DistributedSkellam(l1_sensitivity=grid, l2_sensitivity=grid,
      noise_variance=(noise * grid)**2, dimension=1)


def poisson(release, rate, rounds, limit=None):
  return events.SelfComposed(count=rounds, event=events.PoissonSampled(
      event=release, sampling_rate=rate, max_participations=limit))


def epsilon_of(event, observer, delta, **method):
  return observers.bound(
      observers.View(event), delta, observers.Method(**method), observer).epsilon


@pytest.mark.parametrize('rate, rounds, noise, delta, limit, drawn, most', [
    (100 / 539, 50, 0.8633, 1 / 539, None, 18.747, 56.458),
    (100 / 539, 50, 0.8633, 1 / 539, 13, 17.754, 20.086),
    (100 / 3400, 1500, 0.7914, 1 / 3400, None, 71.787, 1364.72),
    (1e-3, 2000, 0.58688, 1e-8, None, 34.284, 3330.04)])
def test_reference_numbers_against_the_server(
    rate, rounds, noise, delta, limit, drawn, most):
  law = binomial(rounds, rate, limit)
  ratios = np.arange(law.size) / noise**2
  for observer, reference, weights in ((bounds.SERVER, drawn, law),
      (bounds.SERVER_ANY_COHORTS, most, ratios == ratios[-1])):
    exact = optimize.brentq(lambda epsilon, weights=weights: weights @ gaussian_delta(
        epsilon, ratios) - delta, 1.0, 5e3)
    assert exact == pytest.approx(reference, rel=3e-5)
    assert exact * (1 - 1e-9) <= epsilon_of(poisson(central(noise), rate, rounds,
        limit), observer, delta) <= (exact * (1 + 1e-6))


@pytest.mark.parametrize('limit, participant, person', [
    (None, (18.89, 18.90), (36.455, 36.457)), (13, (17.89, 17.95), (34.68, 34.681))])
def test_reference_numbers_of_participants_and_persons(limit, participant, person):
  for observer, release, (low, high) in ((bounds.PARTICIPANT, shares, participant),
                                         (bounds.PERSON_SERVER, central, person)):
    assert low <= epsilon_of(poisson(release(0.8633), 100 / 539, 50, limit), observer,
        1 / 539, population=539, clients_per_person=2) <= high


def losses_of(release):
  """Losses of one release and their masses, up to a mass far below delta."""
  if isinstance(release, events.CentralGaussian):
    mean = 0.5 / release.noise_multiplier**2
    law = stats.norm(mean, (2 * mean)**0.5)
    edges = 5e-4 * np.arange(int(law.ppf(1e-18) / 5e-4), int(law.isf(1e-18) / 5e-4))
    return (edges[1:] + edges[:-1]) / 2, np.diff(law.cdf(edges))
  half, values = release.noise_variance / 2, np.arange(-25, 26)
  one, none = (stats.skellam.logpmf(values - shift, half, half) for shift in (1, 0))
  return one - none, np.exp(one)


@pytest.mark.parametrize('limit', [None, 4])
@pytest.mark.parametrize('release, rate, rounds', [
    (central(1.1), 0.2, 20), (events.SkellamCount(noise_variance=2.0), 0.3, 12)])
def test_losses_rounded_up_and_down_bracket_the_server(release, rate, rounds, limit):
  delta, step, size = 1e-5, 5e-4, 1 << 20
  losses, masses = losses_of(release)
  law = np.polynomial.Polynomial(binomial(rounds, rate, limit))
  values = step * np.fft.fftfreq(size, 1 / size)
  def of(epsilon, rounding):
    index = rounding(losses / step).astype(int) % size
    total = np.fft.irfft(law(np.fft.rfft(np.bincount(index, masses, size))), size)
    return total @ -np.expm1(np.minimum(epsilon - values, 0.0))
  found = epsilon_of(poisson(release, rate, rounds, limit), bounds.SERVER, delta)
  assert of(found, np.floor) <= delta <= of(found * (1 - 2e-3), np.ceil)


class _Again(Exception):
  """A cohort is drawn again."""


def choices(scheme):
  """All that a scheme may draw at random: an attribute, its value, a probability."""
  clients = scheme.population
  if isinstance(scheme, schemes.Epochs):
    for order in itertools.permutations(range(clients)):
      yield '_random_bits', lambda *_, order=order: lambda _: np.array(order), 1.0
    return
  rate, fixed = scheme.cohort_size / clients, isinstance(scheme, schemes.FixedSize)
  for flags in itertools.product((0, 1), repeat=clients):
    def drawn(_, draw=0, cohort=np.flatnonzero(flags)):
      if draw:
        raise _Again
      return cohort
    if not fixed or sum(flags) == scheme.cohort_size:
      yield 'sample' if fixed else '_drawn', drawn, (
          rate**sum(flags) * (1 - rate)**(clients - sum(flags)))


def sequences(scheme, rounds):
  """All sequences of cohorts, and their probabilities."""
  if not rounds:
    return {(): 1.0}
  state, found = scheme.state(), collections.Counter()
  for name, value, chance in choices(scheme):
    scheme.restore(state)
    setattr(scheme, name, value)
    try:
      cohort = tuple(scheme.sample(1))
    except _Again:
      continue
    except ValueError:
      cohort = ()  # Too few clients are left: the run has ended.
    for rest, more in sequences(scheme, rounds - 1).items():
      found[cohort, *rest] += chance * more
  total = sum(found.values())
  return {key: chance / total for key, chance in found.items()}


NOISE = 1.3
CASES = pytest.mark.parametrize('rounds, sampling', [
    (3, dict(cohort_size=1.6)), (3, dict(cohort_size=3.2, max_participations=2)),
    (3, dict(cohort_size=2.4, max_participations=1)),
    (3, dict(cohort_size=1.6, min_cohort_size=2)),
    (2, dict(cohort_size=3.6, min_cohort_size=1, max_participations=1)),
    (3, dict(cohort_size=2.4, min_cohort_size=1, max_participations=2)),
    (3, dict(name='fixed', cohort_size=2, adjacency='zero-out')),
    (2, dict(name='fixed', cohort_size=3)), (3, dict(name='epochs', cohort_size=3)),
    (2, dict(name='epochs', cohort_size=1))])


def built(sampling, rounds, clients=4):
  return schemes.build(**{'name': 'poisson', 'population': clients, 'rounds': rounds,
      **sampling, 'cohort_size': sampling['cohort_size'] * clients / 4})


def candidates(event, observer, **method):
  return {name: found for name, found in observers.candidates(observers.View(event),
      observer, observers.Method(population=4, clients_per_person=2, **method))}


def check(event, observer, law, ratio_of, slack=ANY, **method):
  """Asserts that no delta is below the exact one, nor above it by more than `slack`."""
  found = candidates(event, observer, **method)
  distance = 2 if event.adjacency == base.REPLACE_ONE else 1
  ratios = np.array([sum(map(ratio_of, cohorts)) for cohorts in law]) * (
      distance / NOISE)**2
  for epsilon in (0.0, 0.3, 1.0, 2.5, 6.0):
    exact = np.array(list(law.values())) @ gaussian_delta(epsilon, ratios)
    bound, any_cohorts = (accountant.delta(found[name].as_gaussian(1e-20), epsilon,
        amplification='none') for name in (observers.AVERAGE, 'none'))
    assert exact <= min(bound, any_cohorts) * (1 + 1e-9)
    assert exact > 0.05 or bound <= exact * (1 + slack)


@CASES
def test_servers_and_persons_with_all_cohorts(rounds, sampling):
  scheme = built(sampling, rounds)
  event, law = scheme.events(central(NOISE), rounds), sequences(scheme, rounds)
  limits = {'max_participations', 'min_cohort_size'} & {*sampling}
  check(event, bounds.SERVER, law, lambda cohort: 0 in cohort,
        ANY if len(limits) == 2 else 1e-6)
  check(event, bounds.PERSON_SERVER, law, lambda cohort: (
      (0 in cohort) + (1 in cohort))**2, ANY if limits or 'name' in sampling else 1e-6)
  # Nothing is drawn again if others alone are enough in all rounds.
  for observer, name, others in ((bounds.SERVER, 'at_most', 3), (
      bounds.PERSON_SERVER, 'failure', 2)) if len(limits) == 2 else ():
    alone = sequences(built(
        {**sampling, 'min_cohort_size': None}, rounds, others), rounds)
    seen = candidates(event, observer)[observers.AVERAGE].event
    assert getattr(seen, name) >= sum(
        chance for cohorts, chance in alone.items() if () in cohorts)


@CASES
def test_participants_with_all_cohorts(rounds, sampling):
  """In some of the client's rounds, drawn by the rule, or in all of them."""
  scheme = built(sampling, rounds)
  event = scheme.events(shares(NOISE), rounds)
  check(event, bounds.PARTICIPANT, sequences(scheme, rounds), lambda cohort: (
      (0 in cohort) / (1 - (1 in cohort) / max(2, len(cohort)))))
  limited = 'max_participations' in sampling
  for colluders in (1, 2) if not {'name', 'min_cohort_size'} & {*sampling} else ():
    law = sequences(built(sampling, rounds, 4 - colluders), rounds)
    check(event, bounds.PARTICIPANT, law, lambda cohort, k=colluders: (
        (0 in cohort) / (1 - k / (k + max(1, len(cohort))))), ANY if limited else 1e-3,
          colluders=colluders)
  if limited and (least := sampling.get('min_cohort_size')) is None:
    seen = candidates(event, bounds.PARTICIPANT)[observers.AVERAGE].event
    assert seen.depends and 0 < seen.failure <= 1e-20
  elif limited:  # How often others are drawn again is not known.
    assert attended.cohorts(0.5, base.Participants(population=4), 2, least) is None


@pytest.mark.parametrize('rate, rounds, limit', [(0.4, 3, 2), (0.7, 4, 2), (0.2, 4, 1)])
def test_sizes_of_cohorts_of_clients_that_the_limit_never_stops(rate, rounds, limit):
  law = {flags: rate**sum(flags) * (1 - rate)**(rounds - sum(flags))
         for flags in itertools.product((0, 1), repeat=rounds) if sum(flags) <= limit}
  never = sum(law.values())
  first = sum(chance for flags, chance in law.items() if flags[0]) / never
  # Of three, sums of what falls with the size are below those of independent sizes in
  # increasing convex order.
  joint = collections.Counter()
  for three in itertools.product(law, repeat=3):
    joint[tuple(map(sum, zip(*three)))] += math.prod(law[one] / never for one in three)
  single = stats.binom.pmf(np.arange(4), 3, first)
  sums, chances, independent = np.array([
      (sum(1 / (1 + size) for size in sizes), joint[sizes], math.prod(single[[*sizes]]))
      for sizes in itertools.product(range(4), repeat=rounds)]).T
  for level in np.linspace(0, rounds, 41):
    above = np.maximum(sums - level, 0)
    assert chances @ above <= independent @ above + 1e-12
  # Of many clients nearly all that there are count, and no more.
  found = attended.cohorts(rate, base.Participants(
      colluders=2, population=5000, rounds=rounds), limit, None)
  exact = stats.binom(int(stats.binom.ppf(1e-20, 5000 - 3, never)), first)
  sizes, below = np.array(found.sizes) - 3, np.cumsum((0.0, *found.weights))
  assert found.depends and 0 < found.failure <= 1e-20 and sizes[0] == 0
  assert (exact.cdf(sizes - 1) <= below[:-1] + 1e-12).all()
  assert 0.97 * exact.mean() <= sizes @ found.weights <= exact.mean()


def test_rounds_that_are_seen_are_means():
  coin = events.Coin(weights=(0.25, 0.75), events=[
      events.LocalLaplace(epsilon=epsilon) for epsilon in (0.5, 0.2)])
  seen = events.Attended(event=coin, rounds=9, probability=0.3, most=2, at_most=0.1)
  assert (coin.pure_epsilon('none'), seen.pure_epsilon('none')) == (0.5, 1.0)
  law, less = 0.9 * binomial(9, 0.3, 2) + (0, 0, 0.1), np.arange(1, 8)
  once = sum(weight * np.exp(less * event.curve(8, 'none'))
             for weight, event in zip(coin.weights, coin.events))
  np.testing.assert_allclose(coin.curve(8, 'none'), np.log(once) / less, rtol=1e-12)
  np.testing.assert_allclose(seen.curve(8, 'none'),
      np.log(np.polynomial.Polynomial(law)(once)) / less, rtol=1e-7)
  fails = dataclasses.replace(seen, failure=0.2)
  assert fails.pure_epsilon('none') == math.inf and fails.failure_probability() == 0.2
  assert accountant.delta(fails, 0.3) == pytest.approx(
      0.2 + 0.8 * accountant.delta(seen, 0.3), rel=1e-3)
  many = events.Attended(event=coin, rounds=10**6, probability=1e-3)
  assert many.failure_probability() == many.counts.missing > 0
  coin = events.Coin(weights=(0.5, 0.5), events=(shares(1.0), events.NoPrivacy()))
  for number in (dict(most=2), dict(most=5), {}):
    assert events.Attended(event=coin, rounds=3, probability=0.3, **number
                           ).skellam_coordinates() == min(3, number.get('most', 3))
  # Chances of sizes that are too small add up, as they need not be independent.
  alone, known = (events.Attended(event=coin.as_gaussian(1e-9), rounds=3, depends=depends,
                                  probability=0.3) for depends in (False, True))
  (mixed, _), (leak, _) = known.factors('none')
  assert mixed.convex and leak.probability == pytest.approx(0.9 * 0.5, rel=1e-6)
  assert accountant.delta(alone, 1.0) < accountant.delta(known, 1.0)
  with pytest.raises(pairs.TooLarge, match='depend on each other'):
    mixed.atoms(64)


@pytest.mark.parametrize('negligible, most, reach', [
    (1e-40, 4096, 15), (1e-4, 4096, 15), (1e-40, 64, 15), (1e-40, 4096, 1)])
@pytest.mark.parametrize('ratios, number', [
    ((1.0, 1.015), (1, 1.0)), ((1.0, 2 * (1 + 8e-10)), (1, 1.0)),
    ((0.05, 0.1), (150, 0.5)), ((0.05, 0.05 * 2**0.5), (120, 0.6))])
def test_sums_are_rounded_up(monkeypatch, ratios, number, negligible, most, reach):
  for module, name, value in (
      (gaussian_mixtures, '_NEGLIGIBLE', negligible), (counts, '_REACH', reach),
      (gaussian_mixtures, '_MOST_VALUES', most), (counts, '_MARGIN', 3 * reach)):
    monkeypatch.setattr(module, name, value)
  gaussian = lambda ratio: pairs.Gaussian(noise_multiplier=ratio**-0.5)
  mixture = gaussian_mixtures.of((
      (pairs.Mixed(pairs=tuple(map(gaussian, ratios)), weights=(0.7, 0.3)),
       counts.binomial(*number)), (gaussian(1e-3), counts.binomial(60, 0.4))))
  k = np.arange(number[0] + 1)
  law = stats.binom.logpmf(k, *number)[:, None] + stats.binom.logpmf(k, k[:, None], 0.3)
  sums, kept = ratios[0] * (k[:, None] - k) + ratios[1] * k, law > -60
  law, sums = np.exp(law[kept]), sums[kept]
  for epsilon in (0.1, 0.6, 2.0, 12.0):
    exact = sum(weight * law @ gaussian_delta(epsilon, sums + 1e-3 * more)
                for more, weight in enumerate(binomial(60, 0.4, None)))
    found = mixture.delta(epsilon)
    assert exact <= found * (1 + 1e-12)
    # Tight, but for what the constants of this test leave out.
    assert (negligible, most, reach) != (1e-40, 4096, 15) or (
        not 1e-15 < exact < 0.05 or found <= exact * 1.05)


@pytest.mark.parametrize('epsilon', [1e-9, 1e-3, 0.3, 5.0, 80.0, 600.0])
def test_gaussian_deltas_and_their_convex_majorant(epsilon):
  ratios = np.linspace(0.0, 8 * epsilon + 40, 4001)[1:]
  found, convex = (of(epsilon, ratios) for of in (
      gaussian_mixtures._delta, gaussian_mixtures._convex_delta))
  assert (convex >= found).all() and (np.diff(convex) >= 0).all()
  assert (np.diff(convex, 2) >= -1e-11 * convex[2:]).all()
  with mpmath.workdps(400):
    for ratio in (*ratios[::500], epsilon**2 / 1000, 1e-7, 1e7):
      m = mpmath.sqrt(float(ratio))
      true = mpmath.ncdf(m / 2 - epsilon / m) - (
          mpmath.exp(epsilon) * mpmath.ncdf(-m / 2 - epsilon / m))
      (delta,) = gaussian_mixtures._delta(epsilon, np.array([ratio]))
      assert true <= delta + 1e-320 and (true < 1e-200 or delta <= true * (1 + 1e-4))


@pytest.mark.parametrize('convex', [False, True])
def test_epsilon_of_a_mixture_inverts_delta(convex):
  mixture = gaussian_mixtures.Mixture(
      np.array([0.0, 0.5, 2.0]), np.array([0.5, 0.4, 0.1]), 1e-7, 1e-8, convex)
  for delta in (0.04, 1e-3, 2e-7):
    epsilon = mixture.epsilon(delta)
    assert mixture.delta(epsilon) <= delta <= mixture.delta(epsilon * (1 - 1e-8))
  assert mixture.epsilon(1.09e-7) == math.inf and mixture.epsilon(1.0) == 0


@pytest.mark.parametrize('trials, rate, most, at_most', [
    (7, 0.3, None, 0.0), (60, 0.1, 9, 1e-3), (400, 0.001, None, 0.0),
    (300, 0.9, 200, 0.0), (600, 0.01, 400, 0.25), (5, 1.0, 2, 0.0)])
def test_counts_are_binomial_up_to_the_largest(trials, rate, most, at_most):
  found = counts.binomial(trials, rate, most, at_most)
  most = min(trials, most or trials)
  exact, p = collections.Counter({most: at_most}), mpmath.mpf(rate)
  with mpmath.workdps(60):
    for k in range(trials + 1):
      exact[min(k, most)] += (1 - at_most) * float(
          mpmath.binomial(trials, k) * p**k * (1 - p)**(trials - k))
  assert sum(chance for k, chance in exact.items() if k > found.most) <= found.missing
  assert found.missing <= 1e-30 and sum(found.weights) + found.missing >= 1 - 1e-12
  for k, weight in list(zip(found.numbers, found.weights))[1:]:
    assert exact[k] * (1 - 1e-12) - 1e-30 <= weight <= exact[k] * (1 + 2e-8)
  twice = found * 2
  assert [twice.first, twice.most, twice.missing] == [
      2 * found.first, 2 * found.most, 2 * found.missing]
  assert np.dot(twice.numbers, twice.weights) == pytest.approx(
      2 * np.dot(found.numbers, found.weights), rel=3e-8)


@pytest.mark.parametrize('limits', [
    {}, dict(max_participations=3), dict(least_cohort=4, redrawn_probability=1e-7),
    dict(max_participations=3, least_cohort=4, redrawn_probability=9e-7),
    dict(max_participations=3, least_cohort=4, redrawn_probability=1e-3)])
@pytest.mark.parametrize('release', [shares, central])
def test_every_number_is_the_least_of_its_candidates(release, limits):
  view = observers.View(events.SelfComposed(count=10, event=events.PoissonSampled(
      event=release(2.0), sampling_rate=0.1, **limits)))
  method = observers.Method(population=100, clients_per_person=2)
  for observer in bounds.KEYS:
    found = observers.bound(view, 1e-5, method, observer).epsilon
    for candidate in observers.candidates(view, observer, method):
      assert found <= (1 + 1e-9) * observers.of_candidate(
          candidate, view, 1e-5, method).epsilon


@pytest.mark.parametrize('population, rate, rounds, noise, lost', [
    (8, 0.9, 2, 2.0, 5), (6, 0.8, 2, 2.0, 3), (12, 0.5, 3, 1.0, 4)])
def test_rounds_that_are_lost_have_others_whom_the_limit_stopped(
    population, rate, rounds, noise, lost):
  """The last round is lost so often; earlier ones are taken at their least cost."""
  event = poisson(shares(noise), rate, rounds, 1)
  run = combinators.Composed(events=(
      event, events.SelfComposed(event=event.event.repeated(), count=lost)))
  found = epsilon_of(run, bounds.PARTICIPANT, 1e-5, population=population)
  law = collections.Counter()
  for available, chance in enumerate(binomial(
      population - 2, (1 - rate)**(rounds - 1), None)):
    # A lost round is without the client, or with it and so many others.
    sizes = {0.0: 1 - rate, **{1 + 1 / (1 + more): rate * weight
        for more, weight in enumerate(binomial(available, rate, None))}}
    total = dict(enumerate(chance * binomial(rounds, rate, 1)))
    for _ in range(lost):
      after = collections.Counter()
      for (ratio, first), (more, second) in itertools.product(
          total.items(), sizes.items()):
        after[round(ratio + more, 6)] += first * second
      total = after
    law.update(total)
  ratios, weights = map(np.array, zip(*law.items()))
  positive = ratios > 0
  assert weights[positive] @ gaussian_delta(
      found, (1 - 1e-5) * ratios[positive] / noise**2) <= 1e-5


@pytest.mark.parametrize('number', [
    counts.Counts(first=0, weights=(0.2, 0.5, 0.2), missing=0.1),
    counts.Counts(first=2), counts.Counts(first=1, weights=(0.9,), missing=0.1)])
@pytest.mark.parametrize('epsilon', [0.0, 0.7, 2.2])
def test_random_numbers_of_compositions_against_closed_forms(epsilon, number):
  mixed = pairs.Mixed(weights=(0.6, 0.3, 0.1), pairs=(
      pairs.Gaussian(noise_multiplier=1.0), pairs.Gaussian(noise_multiplier=0.5**0.5),
      pairs.Leak(probability=1.0)))
  truth, ratios = special.expit(0.8), {1.0: 0.6, 2.0: 0.3, math.inf: 0.1}
  of_losses = lambda k: sum(chance * max(0.0, -math.expm1(epsilon - 0.8 * (2 * hits - k)))
      for hits, chance in enumerate(binomial(int(k), truth, None)))
  of_ratios = lambda k: sum(math.prod(map(ratios.get, each)) * (
          1 if math.inf in each else gaussian_delta(epsilon, sum(each)))
      for each in itertools.product(ratios, repeat=int(k)))
  leak = (pairs.Leak(probability=0.01), counts.Counts(first=0, weights=(0.5, 0.5)))
  response = pairs.RandomizedResponse(epsilon=0.8)
  for pair, of in (response, of_losses), (mixed, of_ratios):
    exact = number.missing + sum(map(
        lambda k, weight, of=of: weight * of(k), number.numbers, number.weights))
    for more, delta in ((), exact), ((leak,), 0.005 + 0.995 * exact):
      assert delta * (1 - 1e-12) <= pld.delta(((pair, number), *more), epsilon) <= (
          delta * (1 + 2e-3) + 1e-16)


def numbers(delta, clients, **settings):
  event = mechanisms.SumMechanism(
      clip=0.3, bits=18, dimension=64, population=200, **settings).event()
  return {observer: epsilon_of(event, observer, delta, population=200,
                               clients_per_person=clients) for observer in bounds.KEYS}


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
    st.sampled_from(['gaussian', 'skellam', 'skellam_central', 'discrete_gaussian']),
    st.sampled_from(['poisson', 'poisson', 'fixed', 'epochs']),
    st.sampled_from([0.8, 1.5, 4.0]), st.sampled_from([10, 40, 90]), st.integers(2, 15),
    st.sampled_from([None, 1, 3]), st.sampled_from([None, 2, 5]), st.sampled_from([
        ('noise_multiplier', 1.1), ('rounds', 0.5), ('cohort_size', 0.9),
        ('delta', 3.0), ('clients', 0.7)]))
def test_less_never_costs_more(mechanism, sampling, noise, cohort, rounds, limit, least,
                               change):
  settings = dict(mechanism=mechanism, sampling=sampling, noise_multiplier=noise,
                  cohort_size=cohort, rounds=rounds, delta=1e-5, clients=3)
  if sampling == 'poisson':
    settings |= dict(max_participations=limit, min_cohort_size=least)
  more, (name, factor) = numbers(**settings), change
  settings[name] = type(settings[name])(settings[name] * factor)
  for who, epsilon in numbers(**settings).items():
    # Small cohorts have larger shares of the noise, and are drawn again more often.
    assert epsilon <= more[who] * (1 + 1e-3) or name == 'cohort_size' and (
        who == bounds.PARTICIPANT or settings.get('min_cohort_size'))
  for weaker, *stronger in ((bounds.OUTSIDERS, bounds.SERVER, bounds.PARTICIPANT,
      bounds.PERSON), (bounds.SERVER, bounds.SERVER_ANY_COHORTS, bounds.PERSON_SERVER),
      (bounds.PERSON, bounds.PERSON_SERVER)):
    assert more[weaker] <= min(map(more.get, stronger)) * (1 + 1e-3)
