"""Transports, computations and rounds for tests of slices."""

import collections
from concurrent import futures
import contextlib
import hashlib
import threading
from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from aggregators.distributed_sum import DistributedSumFactory
from aggregators.params import DistributedSumParams
from tests import tiny_task
from tff_pipelines.fedavg import local_training, process as process_lib
from tff_pipelines.fedavg.server_optimizer import ServerConfig
from tff_pipelines.simulation import contexts, forks, native_chunks, transports


@tff.tensorflow.computation(np.int32)
def _checked(x):
  with tf.control_dependencies([tf.debugging.assert_greater(x, 0, 'never negative')]):
    return tf.identity(x)


@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def total(values):
  """Sums integers of clients, and fails where one is below 1."""
  return tff.federated_sum(tff.federated_map(_checked, values))


def total_of_table(size):
  """Builds the sum of entries of the server's int32 [size], by indices of clients."""
  table_type = tff.TensorType(np.int32, [size])
  look_up = tff.tensorflow.computation(
      lambda table, i: table[i], (table_type, tff.TensorType(np.int32)))

  @tff.federated_computation(
      tff.FederatedType(table_type, tff.SERVER), tff.FederatedType(np.int32, tff.CLIENTS))
  def total(table, indices):  # pylint: disable=redefined-outer-name
    return tff.federated_sum(tff.federated_map(
        look_up, (tff.federated_broadcast(table), indices)))

  return total


class Rounds:
  """Seeded rounds of all clients of a tiny task, in chunks of a size."""

  def __init__(self, clients, chunk, sum_factory=None, *, epochs=2):
    self._clients, self._chunk = clients, chunk
    self._train = tiny_task.task(num_clients=clients).train
    self.process = process_lib.build_chunked(
        local_training.client_update(tiny_task.loss, local_training.LocalConfig(
            learning_rate=0.3, batch_size=3, epochs=epochs)),
        self._train.element_spec, initial_weights=tiny_task.initial_weights(0),
        sum_factory=sum_factory or DistributedSumFactory(DistributedSumParams(
            clip=0.4, noise_multiplier=0.5, bits=18, dimension=tiny_task.DIMENSION,
            cohort_size=clients), simulation_seed=7, diagnostics=True),
        expected_cohort_size=clients,
        server=ServerConfig(learning_rate=1.0, momentum=0.9))

  def outputs(self, context, rounds=2, before=lambda number: None):
    """The output of each round in a context; calls `before` with its number."""
    with contexts.installed(context):
      state = self.process.initialize()
      for number in range(rounds):
        clients = [collections.OrderedDict(
            examples=collections.OrderedDict(
                sorted(self._train.examples(client).items())),
            key=contexts.client_key(7, number, i))
                   for i, client in enumerate(self._train.client_ids)]
        chunks = [process_lib.make_chunk(clients[i:i + self._chunk])
                  for i in range(0, self._clients, self._chunk)]
        before(number)
        output = self.process.next(state, chunks)
        state = output['state']
        yield output


def digest(structure):
  """Of all arrays of a structure."""
  result = hashlib.sha256()
  for array in tf.nest.flatten(structure):
    result.update(np.ascontiguousarray(array).tobytes())
  return result.hexdigest()


def in_graph_form():
  """A context in which graphs encode and decode, for comparison with the kernels."""
  return mock.patch.object(native_chunks, '_tried', [None, None])


@contextlib.contextmanager
def session_elsewhere():
  """A context in which another thread, and only it, refers to a session."""
  kept, begun, ended = threading.local(), threading.Event(), threading.Event()

  def hold():
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
    kept.session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
    forks.ALIVE.add(kept.session)
    begun.set()
    ended.wait()

  thread = threading.Thread(target=hold)
  thread.start()
  begun.wait()
  try:
    yield
  finally:
    ended.set()
    thread.join()


class Part(transports.Transport):
  """The first workers of another transport, which this one leaves open."""

  def __init__(self, whole: transports.Transport, num_workers: int):
    self._whole, self.num_workers = whole, num_workers
    self.submit, self.replace = whole.submit, whole.replace

  submit = replace = None  # Those of the whole.

  def close(self):
    pass


class Threads(transports.Transport):
  """Workers in this process, whose answers a test may drop or hold back.

  Attributes:
    requests: Pairs of a worker and its request, in the order of their submission.
    replaced: Workers in the order in which they were replaced.
    fate: (worker, request, runner) -> result; may raise what a transport raises.
  """

  def __init__(self, num_workers, fate=lambda worker, request, run: run()):
    self.num_workers, self.fate = num_workers, fate
    self.requests, self.replaced = [], []
    self._runners = [transports.Runner() for _ in range(num_workers)]
    self._known = [frozenset()] * num_workers
    self._threads = futures.ThreadPoolExecutor(num_workers)

  def submit(self, worker, request):
    self.requests.append((worker, request))
    sent = request.lacking(self._known[worker])
    self._known[worker] = request.known(self._known[worker])
    runner, digests = self._runners[worker], frozenset(request.contents)
    return self._threads.submit(
        self.fate, worker, request, lambda: runner.run(sent, digests))

  def replace(self, worker):
    self.replaced.append(worker)
    self._runners[worker] = transports.Runner()
    self._known[worker] = frozenset()

  def close(self):
    self._threads.shutdown(wait=False)
