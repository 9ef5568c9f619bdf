"""Tests of the columns of correlated noise."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from aggregators import params as params_lib
from tff_pipelines.fedavg import columns, settings as settings_lib
from tff_pipelines.fedavg.columns import Workload
from tff_pipelines.fedavg.server_optimizer import ServerConfig

SCHEDULES = settings_lib.SERVER_SCHEDULES
RATES = tuple(np.random.default_rng(0).uniform(0.1, 1.0, size=12).tolist())


def _constant(rounds, momentum=0.0):
  return Workload(rates=(1.0,) * rounds, momentum=momentum)


WORKS = pytest.mark.parametrize('work', [
    _constant(40), _constant(40, 0.9), Workload(rates=RATES, momentum=0.9)],
                                ids=['plain', 'momentum', 'schedule'])


def _matrix(work):
  """The workload as a dense matrix, by its definition."""
  rounds = len(work.rates)
  return np.array([[sum(work.rates[s] * work.momentum**(s - r) for s in range(r, t + 1))
      for r in range(rounds)] for t in range(rounds)])


def _dense_error(matrix, column):
  """The error with C as a dense matrix that is inverted."""
  rounds = len(matrix)
  mixing = sum(weight * np.eye(rounds, k=-band) for band, weight in enumerate(column))
  models = np.linalg.norm(matrix @ np.linalg.inv(mixing))
  return models / math.sqrt(rounds) * np.linalg.norm(column)


@pytest.mark.parametrize('momentum', [0.0, 0.5, 0.9])
@pytest.mark.parametrize('rates', [(1.0,) * 12, RATES], ids=['constant', 'schedule'])
@pytest.mark.parametrize('column', [(1,), (16, 11), (16, 15, 0, 13), (2, *[1] * 20)])
def test_error_is_that_of_dense_matrices(momentum, rates, column):
  work = Workload(rates=rates, momentum=momentum)
  expected, alone = (_dense_error(_matrix(work), one) for one in (column, (1,)))
  assert columns.error(work, column) == pytest.approx(expected, rel=1e-10)
  assert columns.gain(work, column) == pytest.approx(alone / expected, rel=1e-10)


def test_error_is_that_of_models_whose_noise_was_decoded_round_by_round():
  column, rounds, rng = (16, 14, 9, 3), 30, np.random.default_rng(1)
  decoded, velocity, model, squares = [], 0.0, 0.0, []
  for _ in range(rounds):
    opened = np.linalg.norm(column) * rng.normal(size=20_000)
    past = sum(w * x for w, x in zip(column[1:], reversed(decoded)))
    decoded.append((opened - past) / column[0])
    velocity = 0.8 * velocity + decoded[-1]
    model = model + 0.5 * velocity
    squares.append(np.mean(model**2))
  work = Workload(rates=(0.5,) * rounds, momentum=0.8)
  assert columns.error(work, column) == pytest.approx(
      math.sqrt(np.mean(squares)), rel=0.01)


@pytest.mark.parametrize('optimizer, schedule', [
    *(('sgdm', schedule) for schedule in SCHEDULES),
    *((name, 'cosine') for name in settings_lib.SERVER_OPTIMIZERS[1:])])
def test_workload_is_the_map_of_the_optimizer(optimizer, schedule):
  # So large a constant that the second moment does not count.
  config = ServerConfig(
      learning_rate=0.5, momentum=0.7, beta_1=0.6, adaptivity=1e4, optimizer=optimizer,
      schedule=schedule, warmup_rounds=3, rounds=9)
  tff_optimizer = config.build()
  state = tff_optimizer.initialize([tf.TensorSpec([9], tf.float32)])
  weights, models = [tf.zeros(9)], [np.zeros(9)]
  for update in np.eye(9, dtype=np.float32):
    state, weights = tff_optimizer.next(state, weights, [tf.constant(-update)])
    models.append(weights[0].numpy())
  mine = _matrix(columns.workload(config, 9))
  if optimizer == 'sgdm':
    np.testing.assert_allclose(models[1:], 0.5 * mine, atol=1e-6)
  # Adam's correction of its first moment is a factor of the round.
  steps, mine = np.diff(models, axis=0), np.diff(mine, axis=0, prepend=0)
  np.testing.assert_allclose(
      steps / np.diag(steps)[:, np.newaxis], mine / np.diag(mine)[:, np.newaxis],
      rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize('schedule', SCHEDULES[1:])
def test_rates_in_numpy_are_those_in_graph(schedule):
  config = ServerConfig(learning_rate=0.3, schedule=schedule, warmup_rounds=5, rounds=25)
  np.testing.assert_allclose(
      config.rate(np.arange(30)), config.rate(tf.range(30)).numpy(), atol=1e-6)


@pytest.mark.parametrize('rounds, bands, plain, momentum', [
    (50, 2, 1.35, 1.40), (50, 5, 1.84, 2.11), (50, 10, 2.15, 2.75),
    (200, 20, 3.18, 4.08), (1500, 34, 4.86, 5.60)])
def test_gains_are_those_of_another_program(rounds, bands, plain, momentum):
  for beta, expected in ((0.0, plain), (0.9, momentum)):
    work = _constant(rounds, beta)
    optimum = columns._optimum(work, bands)
    assert columns.gain(work, optimum) == pytest.approx(expected, abs=0.0055)
    column = columns.best(work, bands)
    assert columns.error(work, column) <= 1.0022 * columns.error(work, optimum)
    assert len(column) == bands and column[0] == 16


@WORKS
def test_gradient_is_that_of_finite_differences(work):
  weights = np.random.default_rng(2).uniform(0.2, 1.0, size=6)
  weights[0] = 1.5
  _, gradient = columns._log_error(work, weights)
  for index, step in enumerate(1e-6 * np.eye(6)):
    difference = (columns._log_error(work, weights + step)[0]
                  - columns._log_error(work, weights - step)[0]) / 2e-6
    assert gradient[index] == pytest.approx(difference, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_general_path_is_that_of_a_constant_rate(momentum):
  fast, general = _constant(60, momentum), _constant(60, momentum)
  vars(general)['is_constant'] = False
  weights = np.array([1.0, 0.7, 0.1, 0.4])
  for ours, theirs in zip(columns._log_error(fast, weights),
                          columns._log_error(general, weights)):
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
  assert '_form' in vars(general) and '_form' not in vars(fast)


@WORKS
def test_optimum_is_below_its_neighbours_and_falls_with_the_bands(work):
  rng = np.random.default_rng(3)
  errors = [columns.error(work, (1,))]
  for bands in (2, 3, 5, 8):
    optimum = columns._optimum(work, bands)
    errors.append(columns.error(work, optimum))
    for _ in range(20):
      other = np.append(1.0, np.maximum(
          0.0, optimum[1:] + rng.normal(scale=0.03, size=bands - 1)))
      assert columns.error(work, other) > errors[-1]
  assert all(b < a for a, b in itertools.pairwise(errors))


def test_two_bands_are_the_best_of_a_grid():
  work = _constant(50, 0.9)
  grid = min(((16, w) for w in range(65)), key=lambda g: columns.error(work, g))
  assert columns.best(work, 2) == grid == (16, 15)


def test_rounding_keeps_clear_of_columns_whose_inverse_does_not_decay():
  # The optimum is 16 15.6 or so; 1 1 has a root on the unit circle.
  work = _constant(10_000, 0.5)
  assert columns.error(work, columns.best(work, 2)) < 1.001 * columns.error(
      work, columns._optimum(work, 2)) < columns.error(work, (1, 1)) / 1.05
  # Noise that grows without limit.
  assert columns.error(_constant(1000), (1, 16)) == math.inf
  assert columns.gain(_constant(1000), (1, 16)) == 0


@WORKS
def test_best_columns_are_columns_of_a_sum(work):
  assert columns.best(work, 1) == (1,)
  for bands in (2, 7, 64):
    column = columns.best(work, bands)
    assert params_lib.check_column(column) == column
    assert len(column) <= min(bands, work.rounds) and column[-1] > 0
    assert math.gcd(*column) == 1


def test_weights_have_no_common_factor():
  found = {columns.best(_constant(2, m), 2) for m in np.linspace(0, 0.9, 10)}
  assert all(math.gcd(*column) == 1 for column in found)
  assert any(1 < column[0] < 16 for column in found)


def test_one_sum_in_the_models_needs_no_past():
  assert columns.best(Workload(rates=(0.0, 0.0, 1.0)), 3) == (1,)
  assert columns.best(_constant(1), 10) == (1,)


@pytest.mark.parametrize('momentum', [0.0, 0.9])
@pytest.mark.parametrize('most', [1, 2, 10, 64])
def test_auto_is_the_fewest_bands_that_lose_little(momentum, most):
  work = _constant(50, momentum)
  column, best = columns.auto(work, most), [
      columns.best(work, bands) for bands in range(1, most + 1)]
  limit = 1.02 * columns.error(work, best[-1])
  assert column == next(one for one in best if columns.error(work, one) <= limit)
  assert (len(column) < most) == (most > 10 or most == 10 and momentum == 0)


@pytest.mark.parametrize('call, message', [
    (lambda: _constant(3, 1.0), r'momentum must be in \[0, 1\), found 1.0'),
    (lambda: Workload(rates=(1.0, -0.5)), r'rates\[1\] must not be negative, found'),
    (lambda: Workload(rates=(0.0, 0.0)), 'rates must not all be 0, found 2 of them'),
    (lambda: Workload(rates=()), 'rates must not all be 0, found 0 of them'),
    (lambda: columns.best(_constant(3), 0), 'bands must be at least 1, found 0'),
    (lambda: columns.best(_constant(3), 2000), 'bands must be at most 1024, found'),
    (lambda: columns.auto(_constant(3), 0), 'bands must be at least 1, found 0'),
    (lambda: columns.error(_constant(3), (0, 1)), 'column must begin with a positive'),
    (lambda: columns.error(_constant(3), ()), 'column must begin with a positive'),
    (lambda: columns.error(_constant(3), (1, math.nan)), r'column\[1\] must be'),
    (lambda: columns.workload(ServerConfig(learning_rate=1.0), 0),
     'rounds must be at least 1, found 0')])
def test_bad_values_are_refused(call, message):
  with pytest.raises(ValueError, match=f'^{message}'):
    call()


def test_auto_stays_within_turns_and_memory():
  assert columns.most_auto(3, 100) == 3 and columns.most_auto(1000, 100) == 64
  # 256 MiB of float32 and int32.
  assert columns.most_auto(1000, 2**20) == 33 and columns.most_auto(9, 2**30) == 1
