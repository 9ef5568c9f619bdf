"""Transports and computations for tests of slices."""

from concurrent import futures

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pipelines.simulation import transports


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
      tff.FederatedType(table_type, tff.SERVER),
      tff.FederatedType(np.int32, tff.CLIENTS))
  def total(table, indices):  # pylint: disable=redefined-outer-name
    return tff.federated_sum(tff.federated_map(
        look_up, (tff.federated_broadcast(table), indices)))

  return total


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
