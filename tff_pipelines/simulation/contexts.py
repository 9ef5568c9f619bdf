"""Execution contexts in which secure sums run: as a simulation of them.

TFF's native contexts can't run `federated_secure_modular_sum`. Here its body is
a plain sum, taken by the worker and reduced by the modulus: the same integers
as secure aggregation would give, without the cryptography. Every report says
"secure aggregation: simulated".

No worker outlives the program that started it.
"""

import atexit
from collections.abc import Iterator, Sequence
import contextlib
import os
from typing import Any

import numpy as np
import tensorflow_federated as tff

from aggregators import keys, tff_internals
from tff_pipelines.common import validate
from tff_pipelines.simulation import in_process, local_processes, proofs, slices

atexit.register(tff_internals.forget_default_context)


@contextlib.contextmanager
def started(*, local_workers: int = 0, engine: str = 'local',
            engine_address: str | None = None, slice_deadline: float = 600.0,
            data: Sequence[proofs.DataProof] = ()) -> Iterator[tff.framework.SyncContext]:
  """A context; what it started ends with the block.

  Args:
    local_workers: 0 runs computations in this process (`in_process`), else so many
      processes share the clients of a round (`slices`), which allows one aggregation
      per computation. With Ray, the number of actors; 0 for one per core.
    engine: 'local' for processes of this machine, 'ray' for a cluster.
    engine_address: Address of the cluster; None for one that is started here.
    slice_deadline: Seconds that a worker may take for a slice, > 0.
    data: The data that workers read themselves, which those of Ray must prove to have.

  Raises ValueError for numbers below 0, or a cluster that must not be used; OSError if
  no worker can be started.
  """
  if engine not in ('local', 'ray'):
    raise ValueError(f'engine must be local or ray in a simulation, found {engine!r}')
  validate.integer(local_workers=local_workers, low=0)
  cores = os.cpu_count() or 1
  if engine != 'ray' and not local_workers:
    context = in_process.InProcessContext(cores)
  else:
    if engine == 'ray':
      from tff_pipelines.simulation import ray_transport  # pylint: disable=g-import-not-at-top
      transport = ray_transport.RayTransport(local_workers, engine_address, data=data)
    else:
      transport = local_processes.LocalProcesses(local_workers)
    context = slices.SubroundContext(
        transport, num_threads=cores, deadline=slice_deadline)
  with contextlib.closing(context):
    yield context


def installed(context: tff.framework.SyncContext
              ) -> contextlib.AbstractContextManager[tff.framework.SyncContext]:
  """TFF's default context is `context` within the block, then the former one."""
  return tff.framework.get_context_stack().install(context)


@contextlib.contextmanager
def simulation(**where: Any) -> Iterator[None]:
  """TFF's default context is one by `started`, with its arguments, within the block."""
  with started(**where) as context, installed(context):
    yield


def client_key(simulation_seed: int, round_index: int, client: int) -> np.ndarray:
  """A client's key in a round of a seeded run, int64 [2]; others take the system's."""
  return keys.from_text(f'client {simulation_seed} {round_index} {client}')
