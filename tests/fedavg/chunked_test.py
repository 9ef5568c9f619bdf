"""Many clients in one graph call: the same bits as by the aggregation process."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import chacha, keys, share_tables, structures
from aggregators.adaptive_clip import AdaptiveClipSumFactory
from aggregators.banded_sum import BandedCentralSumFactory, BandedSumFactory
from aggregators.central_sum import CentralSumFactory
from aggregators.distributed_sum import DistributedSumFactory
from aggregators.expected_mean import ExpectedMeanFactory
from aggregators.params import AdaptiveClipParams, DistributedSumParams
from aggregators.plain_sum import PlainSumFactory
from tests import tiny_task
from tff_pipelines.fedavg import local_training, process as process_lib
from tff_pipelines.fedavg.server_optimizer import ServerConfig
from tff_pipelines.simulation import contexts

COHORT, ROUNDS = 6, 3
TASK = tiny_task.task(num_clients=COHORT)
SETTINGS = dict(initial_weights=tiny_task.initial_weights(0), server=ServerConfig(
        optimizer='adam', learning_rate=0.1, adaptivity=1e-2, schedule='linear_decay',
        warmup_rounds=1, rounds=ROUNDS))
UPDATE = local_training.client_update(tiny_task.loss, local_training.LocalConfig(
        learning_rate=0.3, batch_size=3, epochs=2, proximal=0.5, weight_decay=0.1))


def _params(**changes):
  return DistributedSumParams(**{**dict(
      clip=0.4, noise_multiplier=0.5, bits=16, dimension=tiny_task.DIMENSION,
      cohort_size=COHORT), **changes})


def _adaptive(**common):
  return AdaptiveClipSumFactory(_params(), AdaptiveClipParams(count_stddev=1.0), **common)


# Name -> factory of a sum and the sizes of chunks that it is taken in.
CASES = {
    # Floats in the order of the clients: one chunk adds them as TFF does.
    'plain averaging': (PlainSumFactory, [[6]]), 'gaussian': (
        lambda **c: CentralSumFactory(clip=0.4, noise_multiplier=1.0, **c), [[6]]),
    'skellam': (lambda **c: DistributedSumFactory(_params(), **c),
        [[6], [2, 4], [1, 1, 1, 1, 1, 1]]),
    'skellam beyond tables': (
        lambda **c: DistributedSumFactory(_params(bits=26), **c), [[3, 3]]),
    'discrete gaussian': (lambda **c: DistributedSumFactory(
            _params(mechanism='discrete_gaussian'), **c), [[1, 5]]),
    'skellam central': (lambda **c: DistributedSumFactory(
            _params(mechanism='skellam_central'), **c), [[2, 4]]),
    'skellam by rows': (lambda **c: BandedSumFactory(_params(column=(4, 3, 2)), **c),
        [[6], [2, 4], [1, 1, 1, 1, 1, 1]]),
    'gaussian by rows': (lambda **c: BandedCentralSumFactory(
            column=(4, 3), dimension=tiny_task.DIMENSION, clip=0.4,
            noise_multiplier=1.0, **c), [[6]]),
    'adaptive clipping': (_adaptive, [[4, 2], [2, 2, 2]])}


def _client(number, round_number):
  examples = TASK.train.examples(TASK.train.client_ids[number])
  # Clients of different numbers of examples, one of them of none.
  kept = {name: x[:number] for name, x in sorted(examples.items())}
  return collections.OrderedDict(examples=collections.OrderedDict(kept),
      key=np.array([number, 1000 + round_number], np.int64))


@functools.lru_cache(maxsize=None)
def _factory(name, seed=7, diagnostics=False):
  return CASES[name][0](simulation_seed=seed, diagnostics=diagnostics)


class _Reference:
  """Rounds by pure functions and the aggregation process, each client one of TFF's."""

  def __init__(self, factory):
    server = process_lib.Server(SETTINGS['initial_weights'], SETTINGS['server'])
    weights, optimizer = server.weights_type, server.optimizer_type
    self._mean = ExpectedMeanFactory(factory, COHORT).create(
        structures.keyed_type(weights))
    client = process_lib.client_type(TASK.train.element_spec, seeded=True)

    @tff.tensorflow.computation(weights, client)
    def update(weights, client):
      value, _ = UPDATE(weights, client['examples'], keys.derive(client['key'], 0))
      return collections.OrderedDict(value=value, key=keys.derive(client['key'], 1))

    self._update = update
    self._step = tff.tensorflow.computation(server.step, (weights, optimizer, weights))
    self.initialize = _chunked(factory).initialize

  def next(self, state, clients):
    output = self._mean.next(state['aggregator'], [
        self._update(state['weights'], client) for client in clients])
    weights, optimizer = self._step(state['weights'], state['optimizer'], output.result)
    return {'metrics': collections.OrderedDict(aggregator=output.measurements),
            'state': collections.OrderedDict(
                weights=weights, optimizer=optimizer, aggregator=output.state)}


# To trace a process takes seconds, to run it next to nothing.
@functools.lru_cache(maxsize=None)
def _chunked(factory):
  return process_lib.build_chunked(UPDATE, TASK.train.element_spec, sum_factory=factory,
      expected_cohort_size=COHORT, **SETTINGS)


def _run(process, group, rounds=ROUNDS):
  """State and metrics after each round; `group` makes a round's values."""
  state, result = process.initialize(), []
  for r in range(rounds):
    output = process.next(state, group([_client(i, r) for i in range(COHORT)]))
    state = output['state']
    result.append((state, output['metrics']))
  return result


def _in_chunks(sizes):
  ends = np.cumsum(sizes)
  return lambda clients: [
      process_lib.make_chunk(clients[end - size:end]) for size, end in zip(sizes, ends)]


def _bytes(structure):
  return [np.asarray(leaf).tobytes() for leaf in tf.nest.flatten(structure)]


@pytest.mark.parametrize('name', [pytest.param(name, marks=[pytest.mark.slow] * (
        name not in ('plain averaging', 'gaussian', 'skellam')))
    for name in sorted(CASES)])
def test_chunks_give_the_bits_of_the_aggregation_process(in_process, name):
  factory, groupings = _factory(name), CASES[name][1]
  wanted = _run(_Reference(factory), list)
  process = _chunked(factory)
  for sizes in groupings:
    result = _run(process, _in_chunks(sizes))
    # Weights, optimizer, keys, the clip, tables, and what is measured.
    assert _bytes(result) == _bytes(wanted), sizes
  assert _bytes(wanted[0][0]['weights']) != _bytes(wanted[1][0]['weights'])


@pytest.mark.parametrize('name', [
    'plain averaging', pytest.param('skellam', marks=pytest.mark.slow)])
def test_a_worker_gives_the_bits_of_this_process(
    name, _in_process_context, _one_worker_context):
  factory, groupings = _factory(name), CASES[name][1]
  result = []
  for context in (_in_process_context, _one_worker_context):
    with contexts.installed(context):
      result.append(_bytes(_run(_chunked(factory), _in_chunks(groupings[-1]))))
  if name == 'plain averaging':
    # TFF's worker has a TensorFlow of its own, whose floats are its own too.
    for one, other in zip(*result):
      np.testing.assert_allclose(
          np.frombuffer(one, np.float32), np.frombuffer(other, np.float32), rtol=1e-4,
          atol=1e-4)
    return
  assert result[0] == result[1]


def test_the_size_of_the_cohort_reaches_clients_in_chunks(in_process):
  factory = _factory('adaptive clipping')
  clients = [_client(i, 0) for i in range(5)]
  result = []
  for process, values in ((_Reference(factory), clients),
                          (_chunked(factory), _in_chunks([2, 3])(clients))):
    state = process_lib.set_cohort_size(process.initialize(), 5, factory)
    assert state['aggregator']['noise_table']['variance'] == (
        share_tables.share_variance(_params(), 5))
    result.append(process.next(state, values))
  assert _bytes(result[0]) == _bytes(result[1])
  assert not result[0]['metrics']['aggregator']['suppressed']


@pytest.mark.slow
def test_keys_of_a_chunk_are_derived_by_the_generator_of_the_sum(monkeypatch):
  made = []
  for module in (chacha, keys):
    original = module.derive

    def spy(key, index, module=module, original=original):
      made.append(module)
      return original(key, index)

    monkeypatch.setattr(module, 'derive', spy)
  used = []
  for factory in (CentralSumFactory(clip=0.4, noise_multiplier=1.0),
                  DistributedSumFactory(_params())):
    made.clear()
    _chunked(factory)
    used.append(made.count(chacha))
  # Each client's, of training, of the sum and in it, and the server's.
  assert used[0] == 0 and used[1] >= 5
