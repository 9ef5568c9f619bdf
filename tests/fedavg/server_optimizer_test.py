"""The server's optimizers and schedules, against Reddi et al. 2021 in NumPy."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from tests.fedavg import tiny_run
from tff_pipelines.fedavg import settings as settings_lib
from tff_pipelines.fedavg.server_optimizer import ServerConfig

TAU = 1e-2
UPDATES = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
START = np.arange(4, dtype=np.float32)


def _config(**changes):
  return ServerConfig(**{'learning_rate': 0.1, 'adaptivity': TAU, **changes})


def _taken(config):
  """Weights after each of UPDATES."""
  optimizer = config.build()
  weights = [tf.constant(START)]
  state = optimizer.initialize([tf.TensorSpec([4], tf.float32)])
  result = []
  for update in UPDATES:
    state, weights = optimizer.next(state, weights, [tf.constant(-update)])
    result.append(weights[0].numpy())
  return result


def _adam(mean, square, t):
  return mean * np.sqrt(1 - 0.99**t) / (1 - 0.9**t) / (np.sqrt(square) + TAU)


_RULES = {
    # Name -> first moment, second moment, both after an update, and the step.
    'sgdm': (0.0, lambda m, d: 0.9 * m + d, lambda v, d: v, lambda m, v, d, t: m),
    'adam': (0.0, lambda m, d: 0.9 * m + 0.1 * d,
             lambda v, d: 0.99 * v + 0.01 * d**2, lambda m, v, d, t: _adam(m, v, t)),
    'adagrad': (TAU**2, lambda m, d: d, lambda v, d: v + d**2,
                lambda m, v, d, t: d / np.sqrt(v)),
    'yogi': (TAU**2, lambda m, d: 0.9 * m + 0.1 * d,
             lambda v, d: v - 0.01 * d**2 * np.sign(v - d**2),
             lambda m, v, d, t: _adam(m, v, t))}


@pytest.mark.parametrize('name', settings_lib.SERVER_OPTIMIZERS)
def test_steps_are_those_of_the_paper(name):
  first, mean_rule, square_rule, step = _RULES[name]
  mean, square, weights = np.zeros(4), np.full(4, first), START.astype(np.float64)
  for t, (update, result) in enumerate(
      zip(UPDATES, _taken(_config(optimizer=name, momentum=0.9))), start=1):
    update = update.astype(np.float64)
    mean, square = mean_rule(mean, update), square_rule(square, update)
    weights = weights + 0.1 * step(mean, square, update, t)
    np.testing.assert_allclose(
        result, weights, rtol=1e-5, atol=1e-6, err_msg=f'round {t}')


def test_schedules_rise_and_fall_as_they_say():
  def rates(schedule, rounds=8):
    config = _config(learning_rate=2.0, schedule=schedule, warmup_rounds=4, rounds=rounds)
    return [float(config.rate(tf.constant(index))) for index in range(9)]

  rise = [0.5, 1.0, 1.5, 2.0]
  assert rates('linear_warmup') == [*rise, 2, 2, 2, 2, 2]
  np.testing.assert_allclose(rates('linear_decay'), [*rise, 2, 1.5, 1, 0.5, 0])
  np.testing.assert_allclose(rates('cosine'),
      [*rise, *(1 + math.cos(math.pi * i / 4) for i in range(5))], atol=1e-6)
  # Each of the planned rounds moves the model, without a warm-up too.
  for schedule in settings_lib.SERVER_SCHEDULES[1:]:
    config = _config(schedule=schedule, warmup_rounds=0, rounds=3)
    assert min(float(config.rate(tf.constant(i))) for i in range(3)) > 0
    assert float(config.rate(tf.constant(0))) == pytest.approx(0.1)


@pytest.mark.parametrize('name', settings_lib.SERVER_OPTIMIZERS)
def test_each_round_has_the_rate_of_its_index(name):
  config = _config(optimizer=name, schedule='cosine', warmup_rounds=2, rounds=5)
  states, weights = [], [tf.constant(START)]
  optimizer = config.build()
  state = optimizer.initialize([tf.TensorSpec([4], tf.float32)])
  for index, update in enumerate(UPDATES):
    states.append(float(state['optimizer']['learning_rate']))
    assert int(state['round_num']) == index
    state, weights = optimizer.next(state, weights, [tf.constant(-update)])
  assert states == [float(config.rate(tf.constant(i))) for i in range(5)]
  assert len(set(states)) >= 4


@pytest.mark.parametrize('changes, message', [
    ({'adaptivity': math.nan}, 'adaptivity must be a finite number'),
    ({'schedule': 'cosine'}, 'rounds must be an integer')])
def test_values_out_of_range_are_refused(changes, message):
  with pytest.raises(ValueError, match=f'^{message}'):
    _config(**changes)


CHANGED = dict(
    server_optimizer='adam', server_learning_rate=0.05, server_schedule='cosine',
    client_proximal=0.5, client_weight_decay=0.1, rounds=4, seed=8,
    mechanism='gaussian', accountant='rdp')


def _plan(**changes):
  experiment = tiny_run.experiment('unused', **changes)
  return experiment.build_plan(experiment.build_task(), None)


def test_plan_and_epsilon_are_those_of_the_defaults():
  mine, default = _plan(**CHANGED), _plan(
      rounds=4, seed=8, mechanism='gaussian', accountant='rdp')
  # Noise cancels in the models of the one optimizer or the other.
  assert mine.mechanism.column != default.mechanism.column
  mechanism = mine.mechanism.replace(column=default.mechanism.column)
  assert dataclasses.replace(mine, mechanism=mechanism) == default
  assert mine.epsilon(4) == default.epsilon(4) > 0
