"""Skellam noise as a post-processing of Gaussian noise: the certificate, and its use.

The oracles share nothing with the module: moments by mpmath's Taylor coefficients, the
quadrature by its orthogonal polynomials, distances and divergences summed term by term
with tens of digits.
"""

import fractions
import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from aggregators import distributed_sum, params as params_lib, rotation
from tff_pipelines.accounting.divergences import pairs, skellam_as_gaussian
from tff_pipelines.accounting.events import kinds as events, sum_events
from tff_pipelines.accounting.guarantees import accountant, mechanisms

F = fractions.Fraction
DIGITS = 90


def _moments(mu, count):
  """The moments c_j from Taylor coefficients in sqrt(2x), by mpmath."""
  def generating(x):
    h = mpmath.sqrt(2 * x)
    rho = (h / 2) / mpmath.sin(h / 2)
    return mpmath.exp(mu * (mpmath.cos(h) - 1 + x)) * rho
  # Even and analytic in h: a circle about 0 gives all coefficients at once.
  points, radius = 4 * count, mpmath.mpf(1) / max(20, mu)
  values = [generating(radius * mpmath.expjpi(mpmath.mpf(2) * k / points))
            for k in range(points)]
  return [(-1)**j * mpmath.factorial(j) * mpmath.re(mpmath.fsum(
      value * mpmath.expjpi(-mpmath.mpf(2) * j * k / points)
      for k, value in enumerate(values))) / points / radius**j for j in range(count)]


def _quadrature(mu, nodes):
  """Nodes and weights of the Gauss quadrature for the moments about mu."""
  c = [mpmath.mpf(x.numerator) / x.denominator
       for x in skellam_as_gaussian.moments(F(mu), 2 * nodes)]
  hankel = mpmath.matrix(nodes, nodes)
  right = mpmath.matrix(nodes, 1)
  for i, j in itertools.product(range(nodes), repeat=2):
    hankel[i, j] = c[i + j]
  for i in range(nodes):
    right[i] = -c[i + nodes]
  polynomial = mpmath.lu_solve(hankel, right)
  roots = mpmath.polyroots(
      [1, *(polynomial[nodes - 1 - i] for i in range(nodes))], maxsteps=500,
      extraprec=400)
  vandermonde = mpmath.matrix(nodes, nodes)
  for i, j in itertools.product(range(nodes), repeat=2):
    vandermonde[i, j] = mpmath.re(roots[j])**i
  weights = mpmath.lu_solve(vandermonde, mpmath.matrix(c[:nodes]))
  return [mu + mpmath.re(root) for root in roots], list(weights)


def _distance(mu, variances, weights):
  """Total variation distance of round(N(0, V_J)) from Sk(mu), term by term."""
  reach = int(12 * mpmath.sqrt(mu) + 40) if mu < 3000 else int(22 * math.sqrt(mu))
  total, tail = mpmath.mpf(0), mpmath.mpf(1)
  upper = {v: mpmath.erfc(mpmath.mpf(-1) / 2 / mpmath.sqrt(2 * v)) / 2 for v in variances}
  for k in range(reach):
    mixture = mpmath.mpf(0)
    for v, w in zip(variances, weights):
      after = mpmath.erfc((k + mpmath.mpf(1) / 2) / mpmath.sqrt(2 * v)) / 2
      mixture += w * (upper[v] - after)
      upper[v] = after
    skellam = mpmath.exp(-mu) * mpmath.besseli(k, mu)
    times = 1 if k == 0 else 2
    total += times * abs(mixture - skellam)
    tail -= times * skellam
  return total / 2 + abs(tail)


@pytest.mark.parametrize('mu', [20, 1000, 10**6])
def test_moments_are_those_of_the_generating_function(mu):
  with mpmath.workdps(120):
    for ours, oracle in zip(skellam_as_gaussian.moments(F(mu), 13), _moments(mu, 13)):
      assert mpmath.almosteq(mpmath.mpf(ours.numerator) / ours.denominator, oracle, 1e-25)


def _largest_root(nodes):
  return float(np.polynomial.hermite_e.HermiteE.basis(nodes).roots()[-1])


@pytest.mark.parametrize('mu, nodes', [
    (60, 2), (100, 4), (400, 6), pytest.param(2500, 8, marks=pytest.mark.slow)])
def test_distance_is_above_the_true_one_and_near_it(mu, nodes):
  removed = F(math.ceil(100 * 1.005 * math.sqrt(mu / 3) * _largest_root(nodes)), 100)
  certified = skellam_as_gaussian.verify(F(mu), removed, nodes)
  with mpmath.workdps(DIGITS):
    variances, weights = _quadrature(mu, nodes)
    assert min(variances) > mu - removed and min(weights) > 0
    assert mpmath.fsum(weights) == pytest.approx(1, abs=1e-40)
    true = _distance(mu, variances, weights)
  assert true <= certified.total_variation < 1e5 * true


def test_formula_gives_the_reference_distance():
  removed = F(math.ceil(1.005 * math.sqrt(10**4 / 3) * _largest_root(9)))
  certified = skellam_as_gaussian.verify(F(10**4), removed, 9)
  assert math.log10(certified.total_variation) == pytest.approx(-31.6, abs=0.1)


@pytest.mark.parametrize('mu, target, nodes, factor', [
    (1e3, 1e-20, 8, 2.36), (1e3, 1e-30, 13, 3.30), (1e4, 1e-20, 6, 1.92),
    (1e4, 1e-40, 12, 3.17), (1e6, 1e-30, 6, 1.92), (1e6, 1e-60, 12, 3.18),
    (1e8, 1e-60, 8, 2.39), (1e10, 1e-30, 4, 1.35), (1e10, 1e-60, 7, 2.17)])
def test_search_takes_the_fewest_nodes(mu, target, nodes, factor):
  found = skellam_as_gaussian.find(mu, target)
  assert found.nodes == nodes and found.total_variation <= target
  assert float(found.removed) / mu**0.5 == pytest.approx(factor, rel=0.03)
  assert found.variance <= mu < found.variance * (1 + F(1, 2**14))
  assert found == skellam_as_gaussian.verify(found.variance, found.removed, nodes)


def _attacked(mu, factor, nodes):
  return lambda: skellam_as_gaussian.verify(
      F(mu), F(round(100 * factor * mu**0.5), 100), nodes)


@pytest.mark.parametrize('attack, message', [
    (_attacked(10**4, 1.64, 5), 'removed=.* is too small'),
    (_attacked(10**4, 1.0, 6), 'removed=.* is too small'),
    (_attacked(25, 3.0, 4), 'variance - removed must be at least 20'),
    (_attacked(10**4, 100.0, 4), 'variance - removed must be at least 20'),
    (_attacked(10**4, 0.0, 4), 'removed must be greater than 0'),
    (_attacked(10**4, 2.0, 0), 'nodes must be'),
    (lambda: skellam_as_gaussian.find(float('nan'), 1e-20), 'variance must be'),
    (lambda: skellam_as_gaussian.find(1e4, 0.0), 'total_variation must be')])
def test_wrong_parameters_are_refused(attack, message):
  with pytest.raises(ValueError, match=message):
    attack()


def test_nodes_that_are_too_many_have_no_quadrature():
  """Even where the variance of the Gaussian would allow them."""
  refused = 0
  for nodes in range(2, 20):
    try:
      skellam_as_gaussian.verify(F(24), F(3), nodes)
    except ValueError as error:
      refused += 'too many' in str(error) or 'too small' in str(error)
  assert refused >= 15


def test_a_wrong_moment_is_not_certified(monkeypatch):
  moments = skellam_as_gaussian.moments
  def wrong(variance, count):
    # The second moment of a wider distribution: nodes need not stay above.
    zeroth, first, second, *rest = moments(variance, count)
    return zeroth, first, second / 4, *rest
  monkeypatch.setattr(skellam_as_gaussian, 'moments', wrong)
  with pytest.raises(ValueError, match='too many|too small'):
    skellam_as_gaussian.verify(F(10**4), F(200), 6)


def test_no_certificate_for_little_noise():
  assert skellam_as_gaussian.find(25.0, 1e-20) is None
  assert skellam_as_gaussian.find(1e-3, 1e-5) is None


# --- What the accountant makes of it.


def _sum(shift, variance, dimension):
  return events.DistributedSkellam(l1_sensitivity=float(np.abs(shift).sum()),
      l2_sensitivity=float(np.linalg.norm(shift)), noise_variance=float(variance),
      dimension=dimension)


def _pmf(variance, reach):
  with mpmath.workdps(40):
    half = [mpmath.exp(-variance) * mpmath.besseli(k, variance) for k in range(reach + 1)]
  return np.array([float(half[abs(k)]) for k in range(-reach, reach + 1)])


def _joint(shifts, variance, reach):
  """Masses of noise and of shifted noise on a lattice that has nearly all of both."""
  axes = []
  for shift in shifts:
    base = _pmf(variance, reach + abs(shift))
    at = np.arange(-reach, reach + 1) + abs(shift) + reach
    axes.append((base[at], base[at - shift]))
  noise, shifted = np.ones(1), np.ones(1)
  for one, other in axes:
    noise = np.multiply.outer(noise, one).ravel()
    shifted = np.multiply.outer(shifted, other).ravel()
  return noise, shifted


@pytest.mark.parametrize('shift, variance', [
    ((12,), 150.0), ((30,), 400.0), ((3, 4), 120.0), ((1, -1), 200.0), ((0, 9), 400.0),
    pytest.param((2, 1, 2), 150.0, marks=pytest.mark.slow)])
def test_epsilon_is_never_below_the_exact_one(shift, variance):
  event = _sum(shift, variance, len(shift))
  noise, shifted = _joint(shift, variance, int(9 * variance**0.5))
  for delta in (1e-3, 1e-5):
    result = accountant.bound(event, delta, accountant='pld')
    # A single integer needs none.
    assert bool(result.certificates) == (len(shift) > 1)
    assert result.accountant == 'pld'
    for p, q in ((noise, shifted), (shifted, noise)):
      exact = np.maximum(p - math.exp(result.epsilon) * q, 0.0).sum()
      assert exact <= delta
    # And it is not far from it.
    looser = math.exp(0.85 * result.epsilon)
    assert np.maximum(shifted - looser * noise, 0.0).sum() > delta


def _composed(p, q, rounds, epsilons):
  """A lower bound on the divergence of p^rounds from q^rounds, at each epsilon."""
  kept = (p > 1e-18) & (q > 0)
  loss, p = np.log(p[kept] / q[kept]), p[kept]
  # Losses rounded down: convolved directly, for FFTs are not exact in the tails.
  step = np.ptp(loss) / 4000
  index = np.floor(loss / step).astype(np.int64)
  low, one = index.min(), np.bincount(index - index.min(), p)
  total = np.ones(1)
  for _ in range(rounds):
    total = np.convolve(total, one)
  losses = step * (rounds * low + np.arange(total.size))
  return np.array([(total * np.maximum(-np.expm1(e - losses), 0)).sum()
                   for e in epsilons])


@pytest.mark.slow
@pytest.mark.parametrize('rate, rounds', [(0.1, 1), (0.5, 4), (0.1, 8)])
def test_epsilon_of_sampled_rounds_is_never_below_the_exact_one(rate, rounds):
  shift, variance = 15, 200.0
  event = events.SelfComposed(count=rounds, event=events.PoissonSampled(
      event=_sum((shift,), variance, 1), sampling_rate=rate))
  noise, shifted = _joint((shift,), variance, int(10 * variance**0.5))
  mixed = (1 - rate) * noise + rate * shifted
  deltas = np.array([1e-3, 1e-5])
  epsilons = np.array([
      accountant.epsilon(event, delta, accountant='pld') for delta in deltas])
  for p, q in ((mixed, noise), (noise, mixed)):
    assert (_composed(p, q, rounds, epsilons) <= deltas).all()


@pytest.mark.parametrize('slack', accountant.SLACKS)
def test_distance_of_every_coordinate_of_every_release_is_paid_for(slack):
  event = events.SelfComposed(count=20, event=events.Together(events=(
      _sum((300,), 1e5, 1024), events.SkellamCount(noise_variance=2500.0))))
  assert event.skellam_coordinates() == 20 * 1025
  epsilon, delta = 10.0, 1e-5
  gaussian = accountant.as_gaussian(event, delta, epsilon, slack)
  certificates = sum_events.certificates(gaussian)
  assert [one.dimension for one in certificates] == [1024, 1]
  spent = sum(20 * one.dimension * one.total_variation for one in certificates)
  assert (1 + math.exp(epsilon)) * spent <= slack * delta
  for one, (l2, variance) in zip(certificates, ((300, 1e5), (1, 2500.0))):
    assert one.noise_multiplier**2 * l2**2 <= one.variance - one.removed
    assert one.variance <= variance


def test_auto_takes_the_smaller_number_and_names_it():
  vector = lambda variance: _sum((50,), variance, 2**20)
  plenty, little = vector(1e6), vector(30.0)
  best = accountant.bound(plenty, 1e-6)
  assert best.accountant == 'pld' and best.order is None
  assert best.epsilon < accountant.epsilon(plenty, 1e-6, accountant='rdp')
  refused = accountant.bound(little, 1e-6)
  assert refused.accountant == 'rdp' and refused.certificates == ()
  with pytest.raises(ValueError, match='need a certified distance from a Gaussian'):
    accountant.epsilon(little, 1e-6, accountant='pld')
  unknown = events.DistributedSkellam(
      l1_sensitivity=50.0, l2_sensitivity=50.0, noise_variance=1e6)
  assert accountant.bound(unknown, 1e-6).accountant == 'rdp'


def _paid(event, delta, result):
  """Fraction of delta that the certificates of a bound spend at its epsilon."""
  return sum(one['dimension'] * one['total_variation'] for one in result.certificates
             ) * (1 + math.exp(result.epsilon)) / delta


@pytest.mark.parametrize('variance, excess', [
    (300.0, 0.09), (1000.0, 0.04), (3000.0, 0.02)])
def test_more_slack_saves_nodes_where_noise_is_small(monkeypatch, variance, excess):
  shift, delta = round(variance**0.5), 1e-5
  event = _sum((shift,) + 999 * (0,), variance, 1000)
  found = accountant.bound(event, delta)
  gaussian = accountant.epsilon(events.CentralGaussian(
      noise_multiplier=variance**0.5 / shift), delta)
  assert found.certificates and gaussian < found.epsilon < (1 + excess) * gaussian
  # What is paid is more than the least slack, and it is left out of delta.
  slack = next(s for s in accountant.SLACKS if _paid(event, delta, found) <= s)
  certified = events.CentralGaussian(noise_multiplier=math.sqrt(
      found.certificates[0]['variance'] - found.certificates[0]['removed']) / shift)
  assert slack > accountant.SLACKS[0]
  assert found.epsilon >= (1 - 1e-9) * accountant.epsilon(
      certified, (1 - _paid(event, delta, found)) * delta) / 1.001
  monkeypatch.setattr(accountant, 'SLACKS', accountant.SLACKS[:1])
  accountant._epsilon.cache_clear()
  assert accountant.epsilon(event, delta) > found.epsilon
  accountant._epsilon.cache_clear()


@pytest.mark.parametrize('variance', [0.5, 7.0, 60.0])
def test_the_largest_integer_is_the_worst(variance):
  """The divergences of all smaller shifts, summed, in both directions."""
  event = events.PoissonSampled(sampling_rate=0.3, event=events.CentralSkellam(
      l1_sensitivity=4.0, l2_sensitivity=4.0, noise_variance=variance, dimension=1))
  for epsilon in (0.0, 0.3, 1.0, 2.0):
    claimed, worst = accountant.delta(event, epsilon, accountant='pld'), 0.0
    for shift in range(-4, 5):
      noise, shifted = _joint((shift,), variance, 90)
      shifted = np.roll(noise, shift)
      mixed = 0.7 * noise + 0.3 * shifted
      for p, q in ((mixed, noise), (noise, mixed)):
        worst = max(worst, np.maximum(p - math.exp(epsilon) * q, 0).sum())
    assert worst * (1 - 1e-9) <= claimed <= 1.01 * worst + 1e-12


def test_a_bound_on_one_coordinate_is_rounded_down_to_an_integer():
  def of(l1):
    return events.DistributedSkellam(
        l1_sensitivity=l1, l2_sensitivity=l1, noise_variance=50.0, dimension=1)
  at = [accountant.epsilon(of(l1), 1e-5) for l1 in (3.0, 3.7, 3.9999999999, 4.0)]
  assert at[0] == at[1] < at[2] == at[3]


def test_no_renyi_curve_follows_from_the_gaussian():
  """The slack enters once, in delta: curves stay those of Skellam noise."""
  event = _sum((50,), 1e6, 2**20)
  assert accountant.as_gaussian(event, 1e-6, 5.0) != event
  assert accountant.epsilon(event, 1e-6, accountant='rdp') == (
      accountant.renyi_epsilon(event, 1e-6)[0])


def test_a_million_clients_and_two_thousand_rounds():
  event = mechanisms.SumMechanism(
      mechanism='skellam', sampling='poisson', bits=18, clip=0.3, cohort_size=1000,
      population=10**6, rounds=2000, dimension=2**20, noise_multiplier=0.6533).event()
  assert accountant.epsilon(event, 1e-8) == pytest.approx(2.748, rel=2e-3)


@pytest.mark.parametrize('votes', [(8, 0), (3, 3, 2)])
def test_votes_of_nearest_neighbours_are_accounted_as_gaussian(votes):
  vote = events.Vote(scheme='knn', neighbours=8, noise_stddev=2.5)
  result = accountant.bound(vote, 1e-4)
  assert result.accountant == 'pld' and result.certificates[0]['dimension'] == 8
  assert result.epsilon < accountant.epsilon(vote, 1e-4, accountant='rdp')
  noise, shifted = _joint(votes, vote.count_stddev**2, 130)
  for p, q in ((noise, shifted), (shifted, noise)):
    assert np.maximum(p - math.exp(result.epsilon) * q, 0.0).sum() <= 1e-4


# --- Several pairs of one sample, as of an adaptive clip with little noise.


def test_pairs_of_one_sample_dominate_their_product():
  listed = (pairs.Skellam(shift=3, variance=9.0), pairs.Skellam(shift=1, variance=4.0))
  (atoms,) = pairs.Together(pairs=listed).atoms(64)
  ways = [_joint((3,), 9.0, 40), _joint((1,), 4.0, 40)]
  noise = np.multiply.outer(ways[0][0], ways[1][0]).ravel()
  shifted = np.multiply.outer(ways[0][1], ways[1][1]).ravel()
  for rate in (1.0, 0.2):
    for epsilon in (0.0, 0.5, 2.0):
      exact = np.maximum(
          rate * shifted + (1 - rate) * noise - math.exp(epsilon) * noise, 0).sum()
      p = rate * atoms.p + (1 - rate) * atoms.q
      listed_ = np.maximum(p - math.exp(epsilon) * atoms.q, 0).sum()
      assert exact <= listed_ + 1e-12 <= 1.02 * exact + 1e-4


def test_adaptive_clip_with_little_noise_in_its_count_is_accounted_by_pairs():
  event = events.PoissonSampled(sampling_rate=0.2, event=events.Together(events=(
      _sum((50,), 1e6, 64), events.SkellamCount(noise_variance=25.0))))
  result = accountant.bound(events.SelfComposed(event=event, count=10), 1e-5)
  assert result.accountant == 'pld' and len(result.certificates) == 1


@pytest.mark.slow
def test_attack_on_encoded_vectors_does_not_exceed_the_claim():
  """Two clients' sums, rotation, rounding and wrapping included.

  A distinguisher who knows the rotation estimates the divergence of the best threshold
  of a projection.
  """
  draws, seed = 2000, 0
  params = params_lib.DistributedSumParams(
      clip=1.0, noise_multiplier=2.0, bits=16, dimension=4, cohort_size=2,
      fixed_scale=12.0)
  event = events.DistributedSkellam.from_params(params)
  epsilon = accountant.epsilon(event, 0.01, accountant='pld')
  key = tf.constant([seed, 5], tf.int64)
  unit = np.array([1.0, 0.0, 0.0, 0.0], np.float32)

  @tf.function(autograph=False)
  def sums(vector, first):
    def one(i):
      sent = [distributed_sum.encode(
          v, tf.stack([2 * i + number, tf.constant(seed + 1, tf.int64)]), key, 2,
          params).values for number, v in enumerate((vector, tf.zeros([4])))]
      return tf.math.floormod(sent[0] + sent[1], 2**params.bits)
    return tf.map_fn(one, tf.range(first, first + draws, dtype=tf.int64),
                     fn_output_signature=tf.int32, parallel_iterations=64)

  # The direction in which the client moves the sum; its signs are public.
  moved = rotation.rotate(tf.constant(unit), key, params.rotation).numpy()
  half = 2**(params.bits - 1)
  seen = []
  for number, vector in enumerate((unit, np.zeros(4, np.float32))):
    values = sums(tf.constant(vector), tf.constant(number * draws, tf.int64)).numpy()
    seen.append(np.where(values >= half, values - 2 * half, values) @ moved)
  levels = np.quantile(seen[0], np.linspace(0.001, 0.999, 400))
  p, q = ((values[None] >= levels[:, None]).mean(axis=1) for values in seen)
  gain = p - math.exp(epsilon) * q
  best = int(gain.argmax())
  error = math.sqrt((p[best] * (1 - p[best]) + math.exp(2 * epsilon) * q[best] *
                     (1 - q[best])) / draws)
  # A one-sided test at less than 1e-6.
  assert gain[best] <= accountant.delta(
      event, epsilon, accountant='pld') + stats.norm.isf(1e-6) * error


def test_a_matrix_that_is_nearly_singular_is_positive_definite_only_by_a_margin():
  def hankel(weight):  # Of a measure on 1/3, 2/3 and 1; singular if the last has none.
    return [(F(1, 3)**j + F(2, 3)**j) / 2 + weight for j in range(5)]

  found = [skellam_as_gaussian._is_positive_definite(hankel(F(weight)))  # pylint: disable=protected-access
           for weight in (F(-1, 2**100), 0, F(1, 2**200), F(1, 2**100), 1)]
  # The third is, by less than entries are rounded by.
  assert found == [False, False, False, True, True]
