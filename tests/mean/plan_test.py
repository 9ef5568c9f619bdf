"""The plan of mean estimations: noise, predicted error, refused settings."""

import math

import mpmath
import numpy as np
import pytest

from tests import statistics_lib
from tff_pipelines.accounting.events import combinators, kinds as events
from tff_pipelines.accounting.guarantees import accountant, calibration
from tff_pipelines.mean import plan as plan_lib
from tff_pipelines.mean.settings import MeanSettings


def settings(**changes):
  """The setting of arXiv 2110.04995, section 5.1, at one of its points."""
  values = dict(
      num_clients=(100,), dimension=(250,), bits=(16,), epsilon=(1.0,),
      mechanisms=('skellam',), delta=1e-5, clip=10.0, k_stddevs=2.0,
      beta=math.exp(-0.5), repeats=2, seed=1)
  values.update(changes)
  if not set(values['mechanisms']) & {'skellam', 'discrete_gaussian', 'skellam_central'}:
    values = {name: value for name, value in values.items()
              if name in changes or name not in ('bits', 'beta', 'k_stddevs')}
  return MeanSettings(**values)


def only_cell(**changes):
  (cell,), _ = plan_lib.cells(settings(**changes))
  return cell


@pytest.mark.parametrize('bits, epsilon, expected', [
    (10, 1.0, 0.1787), (16, 1.0, 0.1637), (10, 6.0, 0.00713), (16, 6.0, 0.00667)])
def test_skellam_noise_is_that_of_the_published_implementation(bits, epsilon, expected):
  cell = only_cell(bits=(bits,), epsilon=(epsilon,), accountant='rdp')
  assert cell.noise_mse == pytest.approx(expected, rel=1e-3)
  event = events.DistributedSkellam.from_params(cell.plan.params)
  assert epsilon * 0.9999 < accountant.epsilon(event, 1e-5, accountant='rdp') <= epsilon
  tight = only_cell(bits=(bits,), epsilon=(epsilon,))
  assert tight.accountant == 'pld'
  assert tight.gaussian_mse < tight.noise_mse < cell.noise_mse


@pytest.mark.parametrize('epsilon, expected', [(1.0, 0.1392), (6.0, 0.00583)])
def test_analytic_gaussian_noise(epsilon, expected):
  cell = only_cell(mechanisms=('gaussian',), epsilon=(epsilon,))
  assert cell.accountant == 'analytic'
  assert cell.noise_mse == cell.gaussian_mse == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize('epsilon', [1e-4, 0.1, 1.0, 8.0, 50.0])
@pytest.mark.parametrize('delta', [1e-2, 1e-5, 1e-12])
def test_analytic_gaussian_meets_delta_with_minimum_noise(epsilon, delta):
  def exact(z):
    with mpmath.workdps(50):
      z = mpmath.mpf(z)
      centre, shift = 1 / (2 * z), mpmath.mpf(epsilon) * z
      return mpmath.ncdf(centre - shift) - mpmath.exp(epsilon) * mpmath.ncdf(
          -centre - shift)

  noise = calibration.analytic_noise_multiplier(epsilon=epsilon, delta=delta)
  assert exact(noise) <= delta < exact(noise * (1 - 1e-6))
  assert exact(noise) <= calibration.analytic_delta(noise, epsilon)


def test_analytic_gaussian_agrees_with_the_loss_distribution():
  event = events.CentralGaussian(
      noise_multiplier=calibration.analytic_noise_multiplier(epsilon=2.0, delta=1e-5))
  assert accountant.epsilon(event, 1e-5, accountant='pld') == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize('epsilon, delta, message', [
    (math.nan, 1e-5, 'epsilon'), (0.0, 1e-5, 'epsilon'), (1.0, 0.0, 'delta'),
    (1.0, 1.0, 'delta'), (1e-300, 1e-300, 'cannot be reached')])
def test_analytic_gaussian_refuses(epsilon, delta, message):
  with pytest.raises(ValueError, match=message):
    calibration.analytic_noise_multiplier(epsilon=epsilon, delta=delta)


def test_accountant_rdp_accounts_the_gaussian_as_skellam():
  cell = only_cell(mechanisms=('gaussian',), accountant='rdp')
  assert cell.accountant == 'rdp'
  assert cell.noise_mse == cell.gaussian_rdp_mse > cell.gaussian_mse


@pytest.mark.parametrize('n', [100, 1000])
def test_skellam_at_16_bits_is_within_5_percent_of_the_gaussian(n):
  cells, _ = plan_lib.cells(settings(
      num_clients=(n,), bits=(16, 18, 20), accountant='rdp',
      epsilon=tuple(float(e) for e in range(1, 9))))
  assert len(cells) == 24
  for cell in cells:
    # Noise alone, and the whole error: vectors of norm c have a mean of c^2/n.
    predicted = cell.predicted_mse(10.0**2 / n / cell.d)
    assert 1 < cell.noise_mse / cell.gaussian_rdp_mse < 1.05
    assert 0.99 < predicted / cell.gaussian_rdp_mse < 1.05


def test_predicted_error_contains_the_rounding():
  cell = only_cell(bits=(10,), num_clients=(300,), epsilon=(8.0,), accountant='rdp')
  assert cell.predicted_mse(0.0) > 1.3 * cell.noise_mse


def test_wrapped_error_against_simulation():
  rng = np.random.default_rng(5)
  signal, error, modulus = 4.0, 1.0, 6.0
  truth = rng.normal(0, math.sqrt(signal), 400_000)
  total = truth + rng.normal(0, math.sqrt(error), truth.size)
  wrapped = total - modulus * np.round(total / modulus)
  expected = plan_lib._wrapped_error(signal + error, signal, modulus)
  squares = (wrapped - truth)**2
  statistics_lib.check_mean(squares, expected, squares.var())


def test_rounding_variance_against_simulation():
  rng = np.random.default_rng(6)
  fraction = rng.normal(0, 0.3, 400_000) % 1
  products = fraction * (1 - fraction)
  statistics_lib.check_mean(products, plan_lib._rounding_variance(0.3**2), products.var())


def test_epsilon_of_a_plan_is_that_of_all_its_releases_together():
  cells, _ = plan_lib.cells(settings(
      epsilon=(1.0, 4.0), mechanisms=('skellam', 'gaussian_rdp'), repeats=3))
  steps = tuple(combinators.SelfComposed(event=cell.plan.event(1), count=3)
                for cell in cells)
  plan = plan_lib.MeanPlan(
      steps=steps, cells=tuple(cells), delta=1e-5,
      mechanisms=tuple(cell.mechanism for cell in cells))
  guarantee = plan.guarantee(4)
  together = accountant.epsilon(events.Composed(events=steps), 1e-5)
  assert guarantee.outsiders.epsilon == pytest.approx(together, rel=1e-9)
  assert guarantee.server is None and guarantee.adjacency == 'zero-out'
  assert plan.epsilon(1) < together


@pytest.mark.parametrize('changes, message', [
    (dict(num_clients=(0,)), 'num_clients must be from 1'),
    (dict(dimension=()), 'dimension must name'),
    (dict(dimension=(True,)), 'dimension must be an integer'),
    (dict(bits=(16, 16)), 'bits must not name a value twice'),
    (dict(bits=(31,)), 'bits must be from 2 to 30'),
    (dict(epsilon=(math.nan,)), 'epsilon'), (dict(epsilon=(-1.0,)), 'epsilon'),
    (dict(mechanisms=('laplace',)), 'mechanisms must be one of'),
    (dict(delta=0.0), 'delta'), (dict(clip=math.inf), 'clip'),
    (dict(k_stddevs=0.0), 'k_stddevs'), (dict(beta=math.nan), 'beta'),
    (dict(beta=1.0, allow_degenerate=True), 'beta'),
    (dict(accountant='pld'), 'accountant'),
    (dict(vectors='cube'), 'vectors'), (dict(repeats=1), 'repeats'),
    (dict(data_seed=-1), 'data_seed'), (dict(seed=-1), 'seed'),
    (dict(num_clients=(1000,), bits=(10,)), 'bits=10 .*degenerate.*allow_degenerate'),
    (dict(resume=True), 'resume needs output_dir'),
    (dict(num_clients=(1000,), bits=(6,), accountant='rdp'),
     'n=1000 .*bits=6 are too few')])
def test_wrong_settings_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    plan_lib.cells(settings(**changes))


def test_degenerate_settings_are_listed_when_allowed():
  cells, warnings = plan_lib.cells(settings(
      num_clients=(1000,), bits=(6, 10, 16), epsilon=(1.0, 2.0), allow_degenerate=True,
      accountant='rdp', seed=None))
  assert [cell.bits for cell in cells] == [10, 10, 16, 16]
  assert len(warnings) == 4
  assert 'left out skellam n=1000 d=250 bits=6 epsilon=1:' in warnings[0]
  assert 'degenerate grid at skellam n=1000 d=250 bits=10 epsilon=1:' in warnings[2]


def test_nothing_left_to_do_is_an_error():
  with pytest.raises(ValueError, match='nothing is left to do: left out skellam'):
    plan_lib.cells(settings(num_clients=(1000,), bits=(6,), allow_degenerate=True,
                            accountant='rdp'))
