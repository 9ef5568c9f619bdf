"""Execution contexts in which secure sums run: as a simulation of them.

TFF's native contexts can't run `federated_secure_modular_sum`. Here its body is
a plain sum, taken by the worker and reduced by the modulus: the same integers
as secure aggregation would give, without the cryptography. Every report says
"secure aggregation: simulated".
"""

from collections.abc import Iterator
import contextlib
import hashlib
import os

import numpy as np
import tensorflow_federated as tff

from tff_pipelines.simulation import in_process
from tff_pipelines.simulation import workers

_TRANSFORMS = dict(transform_args=tff.tensorflow.transform_args,
                   transform_result=tff.tensorflow.transform_result)


def _compiler(compile_native):
  """Compiles secure sums as plain sums, and then by one of TFF's compilers."""
  return lambda comp: compile_native(
      tff.backends.test.replace_secure_intrinsics_with_bodies(comp))


@contextlib.contextmanager
def started(*, num_workers: int = 0) -> Iterator[tff.framework.SyncContext]:
  """A context; what it started ends with the block.

  Args:
    num_workers: 0 runs computations in this process (`in_process`). One of TFF's
      workers runs whole computations too, in a process of its own. Several share
      the clients of a round by a mergeable context: on one machine that gains
      nothing, it is the form in which a run leaves the machine, and allows one
      aggregation per computation.
  """
  if num_workers < 0:
    raise ValueError(f'num_workers must be at least 0, found {num_workers}')
  native = tff.backends.native
  with contextlib.ExitStack() as stack:
    if num_workers == 0:
      factory = in_process.InProcessExecutorFactory(os.cpu_count() or 1)
      stack.callback(factory.close)
      yield tff.framework.SyncExecutionContext(factory, **_TRANSFORMS)
      return
    factories = []
    for _ in range(num_workers):
      worker = workers.Worker()
      stack.callback(worker.stop)
      factories.append(worker.executor_factory())
    if num_workers == 1:
      yield tff.framework.SyncExecutionContext(
          factories[0], _compiler(native.desugar_and_transform_to_native),
          **_TRANSFORMS)
    else:
      yield tff.framework.MergeableCompExecutionContext(
          [tff.framework.AsyncExecutionContext(
              factory, native.desugar_and_transform_to_native, **_TRANSFORMS)
           for factory in factories],
          compiler_fn=_compiler(native.compile_to_mergeable_comp_form),
          **_TRANSFORMS)


def installed(context: tff.framework.SyncContext
              ) -> contextlib.AbstractContextManager[tff.framework.SyncContext]:
  """TFF's default context is `context` within the block, then the former one."""
  return tff.framework.get_context_stack().install(context)


@contextlib.contextmanager
def simulation(*, num_workers: int = 0) -> Iterator[None]:
  """TFF's default context is one by `started` within the block."""
  with started(num_workers=num_workers) as context, installed(context):
    yield


def client_key(simulation_seed: int, round_index: int, client: int) -> np.ndarray:
  """The key of a client in a round of a seeded run, int64 of shape [2].

  Clients of a run without a seed take their keys from the operating system.
  """
  digest = hashlib.sha256(
      f'client {simulation_seed} {round_index} {client}'.encode()).digest()
  return np.frombuffer(digest[:16], np.int64).copy()
