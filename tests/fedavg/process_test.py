"""Federated averaging in the contexts that it runs in."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import keys
from tests import tiny_task
from tff_pipelines.accounting.guarantees import mechanisms
from tff_pipelines.fedavg import local_training, process as process_lib, run as run_lib
from tff_pipelines.fedavg.plan import FedAvgPlan
from tff_pipelines.fedavg.server_optimizer import ServerConfig

COHORT = 4
TASK = tiny_task.task()
UPDATE = local_training.client_update(TASK.model.loss, local_training.LocalConfig(
    learning_rate=0.3, batch_size=3, epochs=2))


@functools.lru_cache(maxsize=None)
def _factory(mechanism, seed=None):
  mechanism = mechanisms.SumMechanism(**{
      'mechanism': mechanism, 'clip': 0.5, 'bits': 18, 'cohort_size': COHORT,
      'sampling': 'poisson', 'noise_multiplier': None if mechanism == 'none' else 1.0,
      'dimension': tiny_task.DIMENSION, 'population': 8})
  return run_lib.sum_factory(FedAvgPlan.calibrate(mechanism, delta=1e-2, seed=seed))


@functools.lru_cache(maxsize=None)
def _process(factory, rate=1.0, momentum=0.0):
  return process_lib.build_chunked(
      UPDATE, TASK.train.element_spec, initial_weights=tiny_task.initial_weights(0),
      sum_factory=factory, expected_cohort_size=COHORT,
      server=ServerConfig(learning_rate=rate, momentum=momentum))


def _next(process, state, clients):
  return process.next(state, process_lib.grouped(clients, 2))['state']


def _client(examples, number=None):
  value = collections.OrderedDict(
      examples=collections.OrderedDict(sorted(examples.items())))
  if number is not None:
    value['key'] = np.array([number, 77], np.int64)
  return value


def _clients(count, seeded=False):
  return [_client(TASK.train.examples(TASK.train.client_ids[i]),
                  i if seeded else None) for i in range(count)]


def _arrays(structure):
  return [np.asarray(leaf) for leaf in tf.nest.flatten(structure)]


def _assert_identical(result, wanted):
  result, wanted = _arrays(result), _arrays(wanted)
  assert len(result) == len(wanted)
  for a, b in zip(result, wanted):
    assert a.tobytes() == b.tobytes()


def _names(type_signature):
  """All names of fields in a TFF type."""
  result = set()
  if isinstance(type_signature, tff.StructType):
    for name, member in tff.structure.iter_elements(type_signature):
      result |= {name} | _names(member)
  return result


@pytest.mark.parametrize('mechanism, measured', [('none', set()), ('gaussian', set()),
    ('skellam', {'scale', 'estimated_wrapped_fraction', 'suppressed'})])
def test_nothing_of_a_client_is_measured_unless_asked_for(mechanism, measured):
  process = _process(_factory(mechanism))
  metrics = process.next.type_signature.result['metrics'].member
  assert _names(metrics) == {'aggregator'} | measured


@pytest.mark.slow
def test_process_has_a_map_reduce_form_with_one_secure_sum():
  form = tff.backends.mapreduce.get_map_reduce_form_for_computation(
      _process(_factory('skellam')).next)
  assert form.securely_aggregates_tensors


@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_server_is_sgd_with_momentum_on_the_mean_update(one_worker, momentum):
  del one_worker
  process = _process(_factory('none', seed=3), rate=0.5, momentum=momentum)
  state = process.initialize()
  clients = _clients(3, seeded=True)
  weights = tiny_task.initial_weights(0)
  velocity = [np.zeros_like(w) for w in weights]
  for _ in range(3):
    deltas = [UPDATE(weights, client['examples'], keys.derive(client['key'], 0))[0]
              for client in clients]
    # Three report, four were expected: the divisor is the constant.
    mean = [sum(d.numpy() for d in leaf) / COHORT for leaf in zip(*deltas)]
    velocity = [momentum * v - m for v, m in zip(velocity, mean)]
    weights = [(w - 0.5 * v).astype(np.float32) for w, v in zip(weights, velocity)]
    state = _next(process, state, clients)
    for result, wanted in zip(state['weights'], weights):
      np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-6)
  moved = np.abs(weights[0] - tiny_task.initial_weights(0)[0]).max()
  assert moved > 0.1


@pytest.mark.parametrize('mechanism', ['gaussian', 'skellam'])
def test_round_without_clients_releases_noise_alone(in_process, mechanism):
  del in_process
  factory = _factory(mechanism)
  process = _process(factory)
  state = process_lib.set_cohort_size(process.initialize(), 0, factory)
  weights = _next(process, state, [])['weights']
  noise = np.concatenate([
      (np.asarray(a) - b).ravel() for a, b in zip(weights, tiny_task.initial_weights(0))])
  stddev = 0.5 * 1.0 / COHORT
  assert np.all(np.isfinite(noise))
  # 15 draws; six standard deviations, and not zero.
  assert stddev / 6 < np.abs(noise).max() < 6 * stddev


@pytest.mark.parametrize('mechanism, value', [
    ('none', np.inf), ('gaussian', np.inf), ('skellam', np.nan)])
def test_client_that_is_not_finite_contributes_zero_and_its_noise(
    in_process, mechanism, value):
  del in_process
  factory = _factory(mechanism, seed=3)
  process = _process(factory)
  state = process_lib.set_cohort_size(process.initialize(), 3, factory)
  good = _clients(2, seeded=True)
  bad = tiny_task.examples(5, 9)
  bad['x'][3, 2] = value
  # The noise follows from the client's key, not from its examples.
  result = _next(process, state, [*good, _client(bad, 9)])
  silent = _next(process, state, [*good, _client(tiny_task.examples(0, 9), 9)])
  _assert_identical(result, silent)
  without = _next(process, state, [_client(tiny_task.examples(0, 9), 9)])
  assert np.any(np.asarray(result['weights'][0]) != without['weights'][0])
