"""A person who owns several clients: no number is below what its release reveals."""

import fractions
import itertools
import math

from dp_accounting.pld import privacy_loss_distribution as dp_pld
import numpy as np
import pytest
from scipy import integrate, stats

from tff_pipelines.accounting.divergences import curves
from tff_pipelines.accounting.events import combinators, kinds as events, preliminary
from tff_pipelines.accounting.guarantees import (
    accountant, bounds, calibration, groups, mechanisms, observers, release_noise)
from tff_pipelines.accounting.sampling import cohorts

DELTA = 1e-5


def _gaussian(noise):
  return events.CentralGaussian(noise_multiplier=noise)


def _poisson(noise, rate, count, **limits):
  return events.SelfComposed(count=count, event=events.PoissonSampled(
      event=_gaussian(noise), sampling_rate=rate, **limits))


def _person(event, clients, delta=DELTA, *, known=False, total_variation=0.0, **how):
  """The number against observers, or against who knows cohorts, whatever they are."""
  method = observers.Method(clients_per_person=clients, **how)
  view = observers.View(event, total_variation)
  if not known:
    return observers.bound(view, delta, method, bounds.PERSON)
  *_, chosen = observers.candidates(view, bounds.PERSON_SERVER, method)
  assert chosen.amplification in ('none', None)
  return observers.of_candidate(chosen, view, delta, method)


def _epsilon(*arguments, **how):
  found = _person(*arguments, **how)
  assert not {groups.IDEAL.name, observers.IDEAL} & {note.name for note in found.caveats}
  return found.epsilon


def _sum(mechanism='skellam', **changes):
  return mechanisms.SumMechanism(**{**dict(
      mechanism=mechanism, noise_multiplier=3.0, clip=0.3, bits=18, dimension=1024,
      cohort_size=50.0, population=500, rounds=20, sampling='poisson'),
                                    **changes}).event()


@pytest.mark.parametrize('noise, rate, clients, count, delta, reference', [
    (1.0, 0.01, 2, 1000, 1e-5, 3.9790897), (1.0, 0.01, 5, 1000, 1e-5, 11.6379765),
    (2.0, 0.3, 3, 50, 1e-5, 21.1589261), (0.9762, 100 / 539, 2, 50, 1 / 539, 16.0849147)])
def test_the_mixture_of_gaussians_of_dp_accounting(
    noise, rate, clients, count, delta, reference):
  """References: from_mixture_gaussian_mechanism of its version 0.5.0, grid 1e-4."""
  ours = _epsilon(_poisson(noise, rate, count), clients, delta)
  assert reference <= ours <= reference * (1 + 1e-4)


def worst_delta(p, q, epsilon):
  """The larger delta of both directions."""
  return max(np.maximum(first - math.exp(epsilon) * second, 0).sum()
             for first, second in ((p, q), (q, p)))


@pytest.mark.parametrize('angle', [0.0, 1.0, 2.5])
def test_clients_that_point_elsewhere_reveal_no_more(angle):
  """Two clients of different norms, rates and directions, on a plane of cells."""
  noise, rate = 0.8, 0.4
  plane = lambda point: np.multiply.outer(*(
      np.diff(stats.norm.cdf(np.arange(-5, 7, 0.05), at, noise)) for at in point))
  one, other = np.array([1.0, 0.0]), 0.8 * np.array([math.cos(angle), math.sin(angle)])
  with_ = (0.6 * 0.7 * plane([0, 0]) + 0.4 * 0.7 * plane(one) +
           0.6 * 0.3 * plane(other) + 0.4 * 0.3 * plane(one + other))
  without = plane([0, 0])
  group = groups.of_group(_poisson(noise, rate, 1), 2)
  for epsilon in (0.0, 0.5, 1.5):
    assert worst_delta(with_, without, epsilon) <= accountant.delta(group, epsilon)


def _masses(mean):
  upper = stats.norm.cdf(np.arange(-5, 7, 0.25), mean, 1.0)
  return np.diff(np.concatenate([[0.0], upper, [1.0]]))


def seen(rate, limit, rounds, contribution, clients=2):
  """Masses of all releases with some clients, whose selections are not seen."""
  out = {(0,) * clients: np.ones(1)}
  for _ in range(rounds):
    after = {}
    for counts, joint in out.items():
      for now in itertools.product((0, 1), repeat=clients):
        weight = math.prod((rate if count < limit else 0) if flag else 1 - rate * (
            count < limit) for flag, count in zip(now, counts))
        if weight:
          key = tuple(map(sum, zip(counts, now)))
          after[key] = after.get(key, 0.0) + np.multiply.outer(
              joint, weight * _masses(contribution * sum(now))).ravel()
    out = after
  return sum(out.values())


@pytest.mark.parametrize('how', ['pld', 'rdp'])
@pytest.mark.parametrize('rate, limit, rounds', [(0.5, 1, 2), (0.3, 1, 3), (0.5, 2, 3)])
def test_a_limit_reveals_no_more_of_a_person(rate, limit, rounds, how):
  group = groups.of_group(_poisson(1.0, rate, rounds, max_participations=limit), 2)
  p, q = (seen(rate, limit, rounds, contribution) for contribution in (1.0, 0.0))
  for value in (0.0, 1.0, 2.0):
    assert worst_delta(p, q, value) <= accountant.delta(group, value, accountant=how)


@pytest.mark.parametrize('how', ['pld', 'rdp'])
@pytest.mark.parametrize('together', [False, True])
def test_exact_counts_of_a_sample(together, how):
  """Skellam noise, alone and beside a Gaussian sum: all counts and cells of a round."""
  rate, clients = 0.2, 3
  chances = stats.binom.pmf(np.arange(clients + 1), clients, rate)
  release = events.SkellamCount(noise_variance=4.0)
  masses = alone = lambda k: stats.skellam.pmf(np.arange(-40, 45) - k, 2.0, 2.0)
  if together:
    release = events.Together(events=(release, _gaussian(1.0)))
    masses = lambda k: np.multiply.outer(alone(k), _masses(k)).ravel()
  p, q = sum(chance * masses(k) for k, chance in enumerate(chances)), masses(0)
  group = groups.of_group(
      events.PoissonSampled(event=release, sampling_rate=rate), clients)
  for epsilon in (0.0, 0.5, 1.5):
    bound = accountant.delta(group, epsilon, accountant=how)
    exact = worst_delta(p, q, epsilon)
    assert exact <= bound
    if how == 'pld' and epsilon == 0:
      assert bound <= 1.1 * exact


def test_renyi_curve_of_the_mixture():
  noise, rate, clients = 1.5, 0.05, 3
  y = np.linspace(-30, 40, 200_001)
  chances = stats.binom.logpmf(np.arange(clients + 1), clients, rate)
  ratio = np.logaddexp.reduce([
      chance + (2 * k * y - k * k) / (2 * noise**2) for k, chance in enumerate(chances)])
  curve = groups.of_group(_poisson(noise, rate, 1), clients).curve(12, 'tight')
  for order in (2, 3, 5, 12):
    for power in (order, 1 - order):
      exact = math.log(integrate.trapezoid(
          np.exp(stats.norm.logpdf(y, 0, noise) + power * ratio), y)) / (order - 1)
      assert exact <= curve[order - 2] * (1 + 1e-9)
  # Nothing is lost at a rate at which two of them hardly meet.
  few = groups.of_group(_poisson(noise, 1e-6, 1), 2).curve(2, 'tight')[0]
  one = _poisson(noise, 2e-6, 1).curve(2, 'tight')[0]
  assert one * (1 - 1e-4) <= few <= one * (1 + 1e-4)


@pytest.mark.parametrize('rate, least, limit', [
    ('1/3', 2, None), ('2/3', 4, None), ('1/10', 1, None), ('1/2', 2, 1)])
def test_cohorts_that_are_drawn_again_for_a_person(rate, least, limit):
  rate, clients, owned = fractions.Fraction(rate), 6, 3
  event = events.PoissonSampled(event=_gaussian(1.0), sampling_rate=float(rate),
      max_participations=limit, redrawn_probability=cohorts.redrawn_probability(clients,
      float(rate), least, rounds=2, max_participations=limit, suppresses=False))
  found = groups.of_group(event, owned).redrawn_probability
  if limit is None:
    # Rounds of a cohort that the others alone could not be.
    chances = {cohort: math.prod(rate if flag else 1 - rate for flag in cohort)
               for cohort in itertools.product((0, 1), repeat=clients)
               if sum(cohort) >= least}
    exact = float(sum(chance for cohort, chance in chances.items()
                      if sum(cohort[owned:]) < least) / sum(chances.values()))
  else:
    exact = stats.binom.cdf(least - 1, clients - owned, 0.5 * 0.5)
  assert min(exact, 1) <= found <= max(1.0, 30 * exact)


@pytest.mark.parametrize('clients', [2, 3])
@pytest.mark.parametrize('sampled', [
    dict(sampling='poisson', max_participations=4), dict(sampling='epochs', rounds=40)])
def test_rounds_of_a_person_with_all_clients_at_once(clients, sampled):
  theirs = dp_pld.from_gaussian_mechanism(3.0 / clients,
      value_discretization_interval=1e-4).self_compose(4).get_epsilon_for_delta(DELTA)
  for mechanism in ('gaussian', 'skellam', 'skellam_central'):
    ours = _epsilon(_sum(mechanism, **sampled), clients, known=True)
    assert (1 - 1e-4) * theirs <= ours <= 1.02 * theirs


@pytest.mark.parametrize('noise', [_gaussian(1.3), events.DistributedSkellam(
    l1_sensitivity=9.0, l2_sensitivity=3.0, noise_variance=30.0)])
def test_no_other_rounds_of_a_person_cost_more(noise):
  """All schedules of two clients in at most three of five rounds each."""
  clients, limit, rounds = 2, 3, 5
  scaled = [0.0, *(groups.of_group(noise, k).curve(64, 'none') for k in (1, 2))]
  most = groups.of_group(events.SelfComposed(count=rounds, event=events.PoissonSampled(
      event=noise, sampling_rate=0.5, max_participations=limit)),
                         clients, known=True).without_sampling().curve(64, 'none')
  worst = np.max([np.zeros(63) + sum(scaled[k] for k in schedule)
                  for schedule in itertools.product(range(clients + 1), repeat=rounds)
                  if sum(schedule) <= clients * limit], axis=0)
  assert (worst <= most * (1 + 1e-12)).all() and (worst >= most * (1 - 1e-9)).all()


@pytest.mark.parametrize('sampled, rounds', [
    (dict(max_participations=3), 6), (dict(max_participations=13), 20),
    (dict(sampling='epochs'), 4), (dict(), 20), (dict(sampling='none', cohort_size=500), 20)])
@pytest.mark.parametrize('mechanism, more', [
    ('discrete_gaussian', {}), ('skellam', dict(adaptive_clipping=True))])
def test_noise_that_is_dear_with_few_clients_takes_a_round_for_each(
    sampled, rounds, mechanism, more):
  event = _sum(mechanism, **more, **sampled)
  # Every one of those rounds with both clients.
  release = event.event if sampled.get('sampling') == 'none' else event.event.event
  expected = accountant.epsilon(events.SelfComposed(
      event=groups.of_group(release, 2), count=rounds), DELTA, accountant='rdp')
  assert _epsilon(event, 2, known=True, accountant='rdp') == pytest.approx(
      expected, rel=1e-12)


def test_skellam_noise_pays_in_every_round_that_the_clients_may_be_in():
  """As Gaussian noise, of which it lacks a little in each coordinate and round."""
  event = _sum(max_participations=4)
  assert groups.of_group(event, 3, known=True).without_sampling().skellam_coordinates(
      ) == 3 * event.without_sampling().skellam_coordinates() == 3 * 4 * 1024


@pytest.mark.parametrize('adjacency, times', [('zero-out', 3), ('replace-one', 6)])
def test_cohorts_of_fixed_size_that_are_known(adjacency, times):
  event = _sum('gaussian', sampling='fixed', fixed_adjacency=adjacency, rounds=7)
  exact = accountant.epsilon(
      events.SelfComposed(event=_gaussian(3.0 / times), count=7), DELTA)
  assert _epsilon(event, 3, known=True) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize('clients', [2, 6])
@pytest.mark.parametrize('mu', [0.1, 1.0])
def test_a_chain_is_not_below_the_exact_gaussian(clients, mu):
  asked = []
  def of(delta):
    asked.append(accountant.epsilon(_gaussian(1 / mu), delta))
    return asked[-1]
  epsilon = groups.chained(of, clients, DELTA)
  exact = accountant.epsilon(_gaussian(1 / (clients * mu)), DELTA)
  assert exact <= epsilon < (math.inf if clients * mu > 4 else 3 * exact)
  # The delta of the chain is met by that of the one client.
  one = epsilon / clients
  assert min(asked, key=lambda found: abs(found - one)) == pytest.approx(one, rel=1e-12)
  assert 0.9 * DELTA <= calibration.analytic_delta(1 / mu, one) * sum(
      math.exp(k * one) for k in range(clients)) <= DELTA


def test_a_chain_of_pure_guarantees_is_exact():
  assert groups.chained(lambda _: 0.7, 3, 0.0) == pytest.approx(2.1)
  local = events.SelfComposed(event=events.LocalLaplace(epsilon=0.5), count=2)
  assert _epsilon(local, 3, 0.0) == pytest.approx(3.0, rel=1e-12)
  assert groups.chained(lambda _: math.inf, 2, DELTA) == math.inf
  assert groups.chained(lambda _: 0.0, 5, DELTA) == 0


@pytest.mark.parametrize('event', [
    _sum('gaussian', sampling='fixed', fixed_adjacency='zero-out', rounds=3,
         population=51),
    _sum(min_honest_fraction=0.9, dropout_rate=0.05, noise_multiplier=9.0)])
def test_what_has_no_other_form_is_a_chain(event):
  assert groups.of_group(event, 2) is None
  ours, seen = _epsilon(event, 2), event.seen_by_observers()
  assert ours <= groups.chained(lambda d: accountant.epsilon(seen, d), 2, DELTA)
  assert 2 * accountant.epsilon(seen, DELTA) < ours < math.inf
  # A part of all suffices: what is released before the first round has one.
  assert groups.of_group(combinators.Composed(events=(_gaussian(2.0), event)), 2) is None


def test_keys_that_nobody_else_has():
  planned = release_noise.planned(
      l2_sensitivity=2.0, dimension=100, items=4, epsilon=1.0, delta=DELTA)
  group = groups.of_group(planned, 3)
  assert group.noise_multiplier == pytest.approx(planned.noise_multiplier / 3)
  # Four keys of which all three have each, or twelve of one each.
  exact = lambda keys, count: -math.expm1(keys * math.log1p(-preliminary.tail(
      planned.noise_variance, planned.threshold - count)))
  assert max(exact(4, 3), exact(12, 1)) <= group.failure_probability()
  assert planned.failure_probability() == pytest.approx(exact(4, 1))
  assert accountant.epsilon(planned, DELTA) < _epsilon(planned, 3) < 8
  assert _epsilon(planned, planned.threshold) == math.inf
  rounds = _sum(max_participations=4)
  for known in (False, True):
    alone, both = (_epsilon(event, 2, known=known) for event in (
        rounds, combinators.Composed(events=(planned, rounds))))
    assert alone < both < math.inf


@pytest.mark.parametrize('event', [
    _poisson(1.0, 0.1, 5, max_participations=2), _sum(sampling='fixed'),
    _sum(sampling='epochs'), _sum(min_honest_fraction=0.9, dropout_rate=0.1)])
def test_one_client_has_its_own_number(event):
  assert _epsilon(event, 1) == accountant.epsilon(event.seen_by_observers(), DELTA)
  assert _epsilon(event, 1, known=True) == accountant.epsilon(
      event.without_sampling(), DELTA, amplification='none')


def test_more_clients_never_cost_less():
  event = _poisson(2.0, 0.1, 10, max_participations=3)
  for known in (False, True):
    one, two, five = (_epsilon(event, clients, known=known) for clients in (1, 2, 5))
    assert one < two < five
  # Of very many the curves are those of all at once.
  curve, all_at_once = (groups.of_group(event, clients).curve(8, 'tight')
                        for clients in (64, 65))
  assert (curve < all_at_once).all()
  assert (groups.of_group(event, 2).curve(8, 'none') == 3 * curves.gaussian(1.0, 8)).all()


def test_sampling_error_is_of_the_person_s_epsilon():
  event = _poisson(2.0, 0.1, 10)
  exact, value = (_epsilon(event, 2, total_variation=tv) for tv in (0.0, 1e-8))
  assert exact < value < 1.2 * exact
  assert value == _epsilon(event, 2, DELTA - 1e-8 * (1 + math.exp(
      _epsilon(event, 2, DELTA / 2, accountant='rdp'))))
  ideal = _person(event, 2, total_variation=1e-6)
  assert (ideal.epsilon, ideal.caveats) == (exact, (groups.IDEAL,))


def test_records_are_refused():
  votes = mechanisms.build('ae_vote', queries=3, noise_stddev=9.0, level='instance')
  with pytest.raises(ValueError, match='clients_per_person=2 needs a guarantee of cli'):
    _person(votes.event(), 2)
  for clients in (0, 1.5):
    with pytest.raises(ValueError, match='clients_per_person must be'):
      _person(_poisson(1.0, 0.1, 1), clients)
