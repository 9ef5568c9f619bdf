"""Tests of tff_pipelines.simulation.slices: a round does not depend on its workers."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import keys
from aggregators.central_sum import CentralSumFactory
from tests.simulation import pools
from tff_pipelines.simulation import (
    contexts, in_process, local_processes, slices, transports)


def _invoked(transport, computation, *arguments):
  with contexts.installed(slices.SubroundContext(transport)):
    return computation(*arguments)


def test_number_of_slices_grows_with_the_clients_alone():
  assert [in_process.num_slices(n) for n in (0, 1, 5, 8, 9, 64, 65, 160, 512, 10**4)] == [
      1, 1, 5, 8, 8, 8, 9, 20, 64, 64]


@pytest.mark.parametrize('after, has_grown', [(130, False), (155, False), (157, True)])
def test_a_worker_has_grown_by_a_fifth_of_what_it_had_when_it_was_warm(after, has_grown):
  memory = transports.Memory()
  for resident in (100, *[130] * (transports.WARM - 1)):
    memory.record(resident)
    assert not memory.has_grown
  memory.record(after)
  assert memory.has_grown == has_grown


def test_memory_that_is_used_is_resident():
  before = transports.condition()[0]
  used = bytearray(b'x' * 50_000_000)
  assert transports.condition()[0] - before > 40_000_000
  del used


@pytest.mark.parametrize('workers', [1, 3])
def test_each_slice_is_computed_once_and_content_travels_once(workers):
  table = np.arange(4096, dtype=np.int32)
  total = pools.total_of_table(len(table))

  transport = pools.Threads(workers)
  with contexts.installed(slices.SubroundContext(transport)):
    for _ in range(2):
      assert total(table, list(range(100))) == 99 * 50
  requests = [request for _, request in transport.requests]
  assert [r.num_clients for r in requests] == 2 * [
      100 * (i + 1) // 13 - 100 * i // 13 for i in range(13)]
  # The computation, and the table; not a copy for each slice.
  assert {len(r.contents) for r in requests} == {2}
  first = requests[0]
  assert not first.lacking(first.known(frozenset())).contents
  assert not any(isinstance(leaf, np.ndarray) and leaf.size == 4096
                 for leaf in tf.nest.flatten(first.argument))


def test_content_that_the_last_request_did_not_name_travels_again():
  def request(*names):
    return transports.Request(
        'computation a', 1, None,
        {'computation a': b'', **{name: np.zeros(1) for name in names}})

  known = request('x', 'y').known(frozenset())
  known = request('y', 'z').known(known)
  assert set(request('x', 'y').lacking(known).contents) == {'x'}


def test_an_error_of_the_computation_is_not_repeated():
  transport = pools.Threads(2)
  context = slices.SubroundContext(transport)
  with contexts.installed(context):
    with pytest.raises(transports.SliceFailedError, match='failed: .*Assert') as raised:
      pools.total([1, 2, -3, 4, 5])
    # Values of the data are in what is for the operator alone.
    assert 'never negative' in raised.value.detail
    assert 'never negative' not in str(raised.value)
    assert len(transport.requests) <= 5 and not transport.replaced
    assert pools.total([1, 2, 3]) == 6


def test_lost_workers_are_replaced_and_their_slices_computed_again():
  lost = set()

  def fate(worker, request, run):
    del worker
    value = int(request.argument.values[0])
    if value not in lost:
      lost.add(value)
      raise transports.WorkerLostError('it was stopped by the test')
    return run()

  transport = pools.Threads(3, fate)
  assert _invoked(transport, pools.total, list(range(1, 9))) == 36
  assert len(transport.requests) == 16 and len(transport.replaced) == 8


def test_a_slow_worker_is_replaced_and_its_late_answer_dropped():
  answered, late = [], threading.Event()

  def fate(worker, request, run):
    value = request.argument.values[0]
    if value == 5 and not late.is_set():
      late.set()
      time.sleep(1.0)
      answered.append('late')
      return run()
    return run()

  transport = pools.Threads(2, fate)
  context = slices.SubroundContext(transport, deadline=0.2)
  with contexts.installed(context):
    assert pools.total([1, 1, 1]) == 3  # From now on workers have started.
    assert pools.total([5, 6, 7]) == 18 and transport.replaced
    time.sleep(1.0)
    assert answered == ['late']
    assert pools.total([5, 6, 7]) == 18


def test_a_slice_that_is_lost_four_times_ends_the_round_in_one_line():
  def fate(worker, request, run):
    if request.argument.values[0] == 2:
      raise transports.WorkerLostError('it was stopped by the test')
    return run()

  transport = pools.Threads(2, fate)
  context = slices.SubroundContext(transport)
  with contexts.installed(context):
    with pytest.raises(slices.RoundAbandonedError, match='4 times.*by the test') as e:
      pools.total([1, 2, 3])
    assert '\n' not in str(e.value)
    times = sum(r.argument.values[0] == 2 for _, r in transport.requests)
    assert times == 4
    transport.fate = lambda worker, request, run: run()
    assert pools.total([1, 2, 3]) == 6


def test_results_at_clients_come_in_the_order_of_the_clients():
  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def shares(values):
    total = tff.federated_broadcast(tff.federated_sum(values))
    ratio = tff.tensorflow.computation(lambda x, y: x / y)
    return tff.federated_map(ratio, (values, total)), tff.federated_sum(values)

  results, total = _invoked(pools.Threads(3), shares, list(range(21)))
  np.testing.assert_allclose(results, np.arange(21) / 210)
  assert total == 210


_noisy = tff.tensorflow.computation(
    lambda x: x + tf.random.stateless_normal([], keys.fresh()), np.float32)
_difference = tff.tensorflow.computation(lambda x, y: y - x)
_MODEL_AND_VALUES = [
    tff.FederatedType(np.float32, placement) for placement in (tff.SERVER, tff.CLIENTS)]


@tff.federated_computation(*_MODEL_AND_VALUES)
def _noise_before_the_sum(model, values):
  noisy = tff.federated_broadcast(tff.federated_map(_noisy, model))
  return tff.federated_sum(tff.federated_map(_difference, (values, noisy)))


@tff.federated_computation(*_MODEL_AND_VALUES)
def _noise_after_the_sum(model, values):
  return tff.federated_map(
      _noisy, tff.federated_map(_difference, (model, tff.federated_sum(values))))


@tff.federated_computation(*_MODEL_AND_VALUES)
def _noise_for_clients(model, values):
  total = tff.federated_broadcast(_noise_after_the_sum(model, values))
  return tff.federated_map(_difference, (values, total))


@pytest.mark.parametrize('computation', [_noise_before_the_sum, _noise_for_clients])
def test_noise_of_the_server_is_not_drawn_for_each_slice(computation):
  transport = pools.Threads(2)
  with pytest.raises(NotImplementedError, match='each draw noise.*local_workers=0'):
    _invoked(transport, computation, 0.0, [1.0, 2.0, 3.0])
  assert not transport.requests


def test_noise_of_the_server_after_the_sum_is_drawn_once():
  transport = pools.Threads(2)
  results = {float(_invoked(transport, _noise_after_the_sum, 0.0, [1.0, 2.0, 3.0]))
             for _ in range(2)}
  assert len(results) == 2


@pytest.fixture(name='pool', scope='module')
def _pool():
  pool = local_processes.LocalProcesses(4, num_threads=1)
  yield pool
  pool.close()


@pytest.mark.slow
@pytest.mark.parametrize('name', ['skellam', 'gaussian'])
def test_rounds_are_the_same_to_the_last_bit(
    name, pool, _in_process_context, monkeypatch):
  rounds, count, weights = pools.Rounds(24, 2, None if name == 'skellam' else (
      CentralSumFactory(clip=0.4, noise_multiplier=1.0, simulation_seed=7,
                        diagnostics=True))), 1, {}
  last = lambda context: list(rounds.outputs(context))[-1]
  monkeypatch.setattr(in_process, 'num_slices', lambda _: count)
  here = slices.SubroundContext(pools.Threads(1))
  elsewhere = [slices.SubroundContext(pools.Part(pool, workers)) for workers in (1, 3)]
  for count in (1, 8):
    output = last(here)
    weights[count] = pools.digest(output['state'])
    for context in elsewhere:
      assert pools.digest(last(context)) == pools.digest(output)
  if name == 'skellam':
    # Sums of integers do not depend on how they are divided.
    assert set(weights.values()) == {pools.digest(last(_in_process_context)['state'])}


@pytest.mark.slow
def test_a_worker_that_grew_is_replaced_before_its_next_slice(pool, monkeypatch):
  context = slices.SubroundContext(pools.Part(pool, 1))
  with contexts.installed(context):
    assert pools.total([1, 2]) == 3
    former = pool.pids[0]
    assert pools.total([1, 2]) == 3 and pool.pids[0] == former
    # From now on it has warmed up, and is larger than it seems to have been.
    monkeypatch.setattr(transports, 'WARM', 0)
    pool._processes[0].memory._largest = 1  # pylint: disable=protected-access
    assert pools.total([1]) == 1 and pool.pids[0] == former
    assert pools.total([1, 2]) == 3 and pool.pids[0] != former
