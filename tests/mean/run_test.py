"""Distributed mean estimation: its numbers, its errors, its files."""

import csv
import json
import math
import os
import pathlib
import subprocess
import sys

import matplotlib.image
import mpmath
import numpy as np
import pytest

from tasks import mean_estimation as vectors_lib
from tests import statistics_lib
from tff_pipelines import mean_estimation
from tff_pipelines import mean_figure
from tff_pipelines import mean_plan
from tff_pipelines.accounting import accountant
from tff_pipelines.accounting import analytic_gaussian
from tff_pipelines.accounting import events

ROOT = pathlib.Path(__file__).parents[2]


def config(**changes):
  """The setting of arXiv 2110.04995, section 5.1, at one of its points."""
  values = dict(
      n=(100,), d=(250,), bits=(16,), epsilon=(1.0,), mechanisms=('skellam',),
      delta=1e-5, clip=10.0, k_stddevs=2.0, beta=math.exp(-0.5),
      accountant='auto', vectors='sphere', repeats=2, data_seed=0, seed=1,
      allow_degenerate=False)
  return mean_plan.MeanConfig(**{**values, **changes})


def only_cell(**changes):
  (cell,), _ = mean_plan.plan(config(**changes))
  return cell


def start(*flags, code=0):
  """Runs the binary in an interpreter of its own."""
  # What the tests say to TensorFlow must not hide what the binary says.
  environment = {key: value for key, value in os.environ.items()
                 if key != 'TF_CPP_MIN_LOG_LEVEL'}
  done = subprocess.run(
      [sys.executable, '-m', 'tff_pipelines.estimate_mean', *flags],
      capture_output=True, text=True, cwd=ROOT, timeout=400, check=False,
      env=environment)
  assert done.returncode == code, done.stderr
  return done


# The noise.


@pytest.mark.parametrize('bits, epsilon, expected', [
    (10, 1.0, 0.1787), (16, 1.0, 0.1637), (10, 6.0, 0.00713),
    (16, 6.0, 0.00667)])
def test_skellam_noise_is_that_of_the_published_implementation(
    bits, epsilon, expected):
  cell = only_cell(bits=(bits,), epsilon=(epsilon,))
  assert cell.noise_mse == pytest.approx(expected, rel=1e-3)
  event = events.DistributedSkellam.from_params(cell.params)
  assert epsilon * 0.9999 < accountant.epsilon(event, 1e-5) <= epsilon


@pytest.mark.parametrize('epsilon, expected', [(1.0, 0.1392), (6.0, 0.00583)])
def test_analytic_gaussian_noise(epsilon, expected):
  cell = only_cell(mechanisms=('gaussian',), epsilon=(epsilon,))
  assert cell.accountant == 'analytic'
  assert cell.noise_mse == cell.gaussian_mse == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize('epsilon', [1e-4, 0.1, 1.0, 8.0, 50.0])
@pytest.mark.parametrize('delta', [1e-2, 1e-5, 1e-12])
def test_analytic_gaussian_meets_delta_and_wastes_nothing(epsilon, delta):
  def exact(z):
    with mpmath.workdps(50):
      z = mpmath.mpf(z)
      centre, shift = 1 / (2 * z), mpmath.mpf(epsilon) * z
      return mpmath.ncdf(centre - shift) - mpmath.exp(epsilon) * mpmath.ncdf(
          -centre - shift)

  noise = analytic_gaussian.noise_multiplier(epsilon=epsilon, delta=delta)
  assert exact(noise) <= delta < exact(noise * (1 - 1e-6))
  assert exact(noise) <= analytic_gaussian.delta(noise, epsilon)


def test_analytic_gaussian_is_what_the_loss_distribution_gives():
  event = events.CentralGaussian(noise_multiplier=analytic_gaussian
                                 .noise_multiplier(epsilon=2.0, delta=1e-5))
  assert accountant.epsilon(event, 1e-5, accountant='pld') == pytest.approx(
      2.0, rel=1e-3)


@pytest.mark.parametrize('epsilon, delta, message', [
    (math.nan, 1e-5, 'epsilon'), (0.0, 1e-5, 'epsilon'), (1.0, 0.0, 'delta'),
    (1.0, 1.0, 'delta'), (1e-300, 1e-300, 'cannot be reached')])
def test_analytic_gaussian_refuses(epsilon, delta, message):
  with pytest.raises(ValueError, match=message):
    analytic_gaussian.noise_multiplier(epsilon=epsilon, delta=delta)


def test_accountant_rdp_accounts_the_gaussian_as_skellam():
  cell = only_cell(mechanisms=('gaussian',), accountant='rdp')
  assert cell.accountant == 'rdp'
  assert cell.noise_mse == cell.gaussian_rdp_mse > cell.gaussian_mse


@pytest.mark.parametrize('n', [100, 1000])
def test_skellam_at_16_bits_is_within_5_percent_of_the_gaussian(n):
  cells, _ = mean_plan.plan(config(
      n=(n,), bits=(16, 18, 20), epsilon=tuple(float(e) for e in range(1, 9))))
  assert len(cells) == 24
  for cell in cells:
    # Noise alone, and the whole error: vectors of norm c have a mean of c^2/n.
    predicted = cell.predicted_mse(cell.clip**2 / n / cell.d)
    assert 1 < cell.noise_mse / cell.gaussian_rdp_mse < 1.05
    assert 0.99 < predicted / cell.gaussian_rdp_mse < 1.05


# The error of what is really executed.


def _agrees(row, spread=0.0):
  """Whether the measured error is the predicted one, but for chance."""
  count = row['repeats'] * row['d']
  allowed = statistics_lib.Z * math.sqrt(2 / count) + spread
  return abs(row['mse'] / row['predicted_mse'] - 1) <= allowed


@pytest.mark.parametrize('changes', [
    dict(bits=(16,)),
    # A quarter of the error is rounding, on a coarse grid.
    dict(bits=(10,), n=(300,), epsilon=(8.0,)),
    dict(bits=(20,), epsilon=(6.0,)),
    dict(mechanisms=('discrete_gaussian',), bits=(12,)),
    dict(mechanisms=('skellam_central',), bits=(14,)),
    dict(mechanisms=('gaussian',)),
    dict(mechanisms=('gaussian_rdp',), epsilon=(4.0,)),
], ids=['table', 'rounding', 'poisson', 'discrete_gaussian', 'skellam_central',
        'gaussian', 'gaussian_rdp'])
def test_measured_error_is_the_predicted_one(changes):
  chosen = config(repeats=40, **changes)
  (cell,), _ = mean_plan.plan(chosen)
  row = mean_estimation.estimate(chosen, cell)
  assert _agrees(row)
  # It would have been seen if the error were a quarter off.
  assert not _agrees({**row, 'mse': row['mse'] * 1.25})
  assert not _agrees({**row, 'mse': row['mse'] * 0.75})
  assert row['mse_low'] < row['mse'] < row['mse_high']
  assert row['l2_low'] < row['l2_error'] < row['l2_high']
  assert row['l2_error']**2 == pytest.approx(row['mse'] * row['d'], rel=0.02)


def test_rounding_adds_what_is_predicted_to_the_noise():
  cell = only_cell(bits=(10,), n=(300,), epsilon=(8.0,))
  assert cell.predicted_mse(0.0) > 1.3 * cell.noise_mse


def test_wrapping_of_identical_vectors_is_predicted():
  # All clients alike fill the field: at one standard deviation a third of the
  # coordinates wrap around. Too few vectors a data set for the chance of the
  # data to be left out, so the agreement is rougher.
  chosen = config(vectors='identical', k_stddevs=1.0, repeats=30, epsilon=(8.0,))
  (cell,), _ = mean_plan.plan(chosen)
  row = mean_estimation.estimate(chosen, cell)
  assert row['mse'] > 20 * row['noise_mse']
  assert row['mse'] == pytest.approx(row['predicted_mse'], rel=0.15)


def test_wrapped_error_against_simulation():
  rng = np.random.default_rng(5)
  signal, error, modulus = 4.0, 1.0, 6.0
  truth = rng.normal(0, math.sqrt(signal), 400_000)
  total = truth + rng.normal(0, math.sqrt(error), truth.size)
  wrapped = total - modulus * np.round(total / modulus)
  expected = mean_plan._wrapped_error(signal + error, signal, modulus)
  squares = (wrapped - truth)**2
  assert abs(squares.mean() - expected) < statistics_lib.Z * squares.std() / (
      math.sqrt(squares.size))


def test_rounding_variance_against_simulation():
  rng = np.random.default_rng(6)
  fraction = rng.normal(0, 0.3, 400_000) % 1
  products = fraction * (1 - fraction)
  expected = mean_plan._rounding_variance(0.3**2)
  assert abs(products.mean() - expected) < statistics_lib.Z * products.std() / (
      math.sqrt(products.size))


def test_intervals_cover_and_narrow():
  low, high = mean_estimation._interval([1.0, 2.0, 3.0])
  assert (low + high) / 2 == pytest.approx(2.0)
  # Student's t with two degrees of freedom, 4.303, times 1 / sqrt(3).
  assert (high - low) / 2 == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)


def test_seed_repeats_a_row_and_its_absence_does_not():
  def mse(**changes):
    chosen = config(n=(5,), d=(8,), epsilon=(8.0,), **changes)
    (cell,), _ = mean_plan.plan(chosen)
    return mean_estimation.estimate(chosen, cell)['mse_of_repeats']

  first = mse(seed=3)
  assert first == mse(seed=3)
  assert first != mse(seed=4)
  assert first[0] != first[1]
  assert mse(seed=None) != mse(seed=None) != first


# The vectors.


@pytest.mark.parametrize('vectors', vectors_lib.VECTORS)
def test_vectors_have_the_norm_and_follow_from_the_seed(vectors):
  def make(**changes):
    return vectors_lib.clients(**{**dict(
        num_clients=50, dimension=20, radius=3.0, seed=7, vectors=vectors),
                                  **changes})

  found = make()
  assert found.shape == (50, 20) and found.dtype == np.float32
  np.testing.assert_allclose(np.linalg.norm(found, axis=1), 3.0, rtol=1e-6)
  np.testing.assert_array_equal(found, make())
  assert np.any(found != make(repeat=1))
  assert np.any(found != make(seed=8))
  assert (len(np.unique(found, axis=0)) == 1) == (vectors == 'identical')


def test_vectors_are_uniform_on_the_sphere():
  found = vectors_lib.clients(num_clients=40_000, dimension=4, radius=2.0, seed=0)
  # A coordinate has mean 0 and variance radius^2 / d, and E[x^4] that of the
  # sphere, 3 radius^4 / (d (d + 2)).
  statistics_lib.check_mean(found[:, 1], 0.0, 1.0)
  assert np.mean(found[:, 2]**2) == pytest.approx(1.0, abs=0.03)
  assert np.mean(found[:, 3]**4) == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize('changes, message', [
    (dict(num_clients=0), 'n must'), (dict(dimension=True), 'd must'),
    (dict(radius=math.inf), 'radius'), (dict(seed=-1), 'data_seed'),
    (dict(vectors='cube'), 'vectors must be one of')])
def test_vectors_refuse(changes, message):
  with pytest.raises(ValueError, match=message):
    vectors_lib.clients(**{**dict(
        num_clients=2, dimension=2, radius=1.0, seed=0), **changes})


# Mistakes.


@pytest.mark.parametrize('changes, message', [
    (dict(n=(0,)), 'n must be at least 1'), (dict(d=()), 'd must name'),
    (dict(d=(True,)), 'd must be an integer'),
    (dict(bits=(16, 16)), 'bits must not name a value twice'),
    (dict(bits=(31,)), 'bits must be at most 30'),
    (dict(epsilon=(math.nan,)), 'epsilon'), (dict(epsilon=(-1.0,)), 'epsilon'),
    (dict(mechanisms=('laplace',)), 'mechanisms must be one of'),
    (dict(delta=0.0), 'delta'), (dict(clip=math.inf), 'clip'),
    (dict(k_stddevs=0.0), 'k_stddevs'), (dict(beta=math.nan), 'beta'),
    (dict(beta=1.0, allow_degenerate=True), 'beta'),
    (dict(accountant='pld'), 'accountant'),
    (dict(vectors='cube'), 'vectors'), (dict(repeats=1), 'repeats'),
    (dict(data_seed=-1), 'data_seed'), (dict(seed=-1), 'seed'),
    (dict(n=(1000,), bits=(10,)), 'bits=10 .*degenerate.*allow_degenerate'),
    (dict(n=(1000,), bits=(6,)), 'n=1000 .*bits=6 are too few')])
def test_wrong_settings_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    mean_plan.plan(config(**changes))


def test_degenerate_settings_are_listed_when_allowed():
  cells, warnings = mean_plan.plan(config(
      n=(1000,), bits=(6, 10, 16), epsilon=(1.0, 2.0), allow_degenerate=True,
      seed=None))
  assert [cell.bits for cell in cells] == [10, 10, 16, 16]
  assert len(warnings) == 3
  assert 'left out skellam n=1000 d=250 bits=6 epsilon=1:' in warnings[0]
  assert 'degenerate grid at skellam n=1000 d=250 bits=10 epsilon=1,2:' in warnings[2]


def test_nothing_left_to_do_is_an_error():
  with pytest.raises(ValueError, match='nothing is left to do: left out skellam'):
    mean_plan.plan(config(n=(1000,), bits=(6,), allow_degenerate=True))


@pytest.mark.parametrize('flags, message', [
    (['--bits=10,x'], 'bits must be a comma-separated list of integers'),
    (['--epsilon=1;2'], 'epsilon must be a comma-separated list of numbers'),
    (['--accountant=pld'], 'accountant'),
    (['--n=1000', '--bits=10'], 'degenerate setting')])
def test_a_wrong_flag_is_one_line_and_code_2(flags, message):
  done = start(*flags, code=2)
  assert message in done.stderr
  assert done.stderr.startswith('error: ') and done.stderr.count('\n') == 1


# The files.


def test_smoke_resume_and_figure(tmp_path, capsys):
  small = dict(n=(20,), d=(5,), epsilon=(2.0, 4.0), seed=None,
               mechanisms=('gaussian_rdp', 'gaussian', 'skellam'))
  folder = tmp_path / 'deep' / 'run'

  def run(**changes):
    chosen = config(**{**small, **changes})
    cells, warnings = mean_plan.plan(chosen)
    rows = mean_estimation.run(chosen, cells, warnings, os.fspath(folder))
    return rows, capsys.readouterr().out

  first, printed = run()
  assert len(first) == 6 and '(was there)' not in printed
  assert 'secure aggregation: simulated' in printed
  # Nothing is computed again, and new settings join those that are there.
  second, printed = run(epsilon=(2.0, 4.0, 6.0))
  assert printed.count('(was there)') == 6
  assert len(second) == 9
  assert [row for row in second if row['epsilon'] != 6] == first
  with open(folder / mean_estimation.TABLE, encoding='utf-8') as file:
    table = list(csv.DictReader(file))
  found = json.loads((folder / mean_estimation.RESULTS).read_text(
      encoding='utf-8'), parse_constant=pytest.fail)
  assert len(table) == len(found['rows']) == 9
  assert list(table[0]) == list(mean_estimation.COLUMNS)
  assert [float(row['mse']) for row in table] == [
      row['mse'] for row in found['rows']]
  assert found['adjacency'] == 'zero-out'
  assert {group['releases'] for group in found['against_gaussian']} == {6}
  picture = matplotlib.image.imread(folder / mean_estimation.PICTURE)
  assert picture.shape[0] > 500 and picture.shape[1] > 500
  assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 100
  # What an interrupted run left, a rerun completes.
  found['rows'] = found['rows'][:5]
  (folder / mean_estimation.RESULTS).write_text(json.dumps(found),
                                                encoding='utf-8')
  third, printed = run()
  assert printed.count('(was there)') == 5
  assert third[:5] == first[:5]
  assert third[5]['mse'] != first[5]['mse']
  with pytest.raises(ValueError, match='another configuration: delta, repeats'):
    run(delta=1e-6, repeats=3)
  (folder / mean_estimation.RESULTS).write_text('{"rows": [', encoding='utf-8')
  with pytest.raises(ValueError, match='damaged'):
    run()


def test_binary_runs_and_says_what_is_not_used(tmp_path):
  done = start('--mechanisms=gaussian', '--epsilon=1', '--n=10', '--d=3',
               '--repeats=2', '--bits=9', '--seed=1', f'--output_dir={tmp_path}')
  assert done.stderr == ''
  assert '--bits is not used by mechanisms=gaussian' in done.stdout
  assert 'seeded run: no guarantee' in done.stdout
  assert sorted(os.listdir(tmp_path)) == sorted(
      [mean_estimation.RESULTS, mean_estimation.TABLE, mean_estimation.PICTURE])


def test_figure_of_a_single_point(tmp_path):
  chosen = config(n=(10,), d=(3,), mechanisms=('gaussian',))
  (cell,), _ = mean_plan.plan(chosen)
  mean_figure.draw(tmp_path / 'one.png', [mean_estimation.estimate(chosen, cell)],
                   delta=1e-5)
  assert matplotlib.image.imread(tmp_path / 'one.png').size > 0
