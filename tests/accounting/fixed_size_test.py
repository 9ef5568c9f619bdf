"""Cohorts of fixed size against all subsets of small populations.

Contributions are on a line, where all subsets are enumerated and mixtures of Gaussians
are integrated on a fine lattice; several rounds by convolving their losses.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tff_pipelines.accounting.divergences import pairs
from tff_pipelines.accounting.events import base, kinds as events
from tff_pipelines.accounting.guarantees import accountant, calibration

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


def _event(noise, cohort, population, neighbours, rounds):
  return events.SelfComposed(count=rounds, event=events.FixedSizeSampled(
      event=events.CentralGaussian(noise_multiplier=noise), cohort_size=cohort,
      population=population, neighbours=neighbours))


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
