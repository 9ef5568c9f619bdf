"""Execution contexts in which secure sums run: as a simulation of them.

TFF's native contexts can't run `federated_secure_modular_sum`. Here its body is
a plain sum, taken by the worker and reduced by the modulus: the same integers
as secure aggregation would give, without the cryptography. Every report says
"secure aggregation: simulated".

TFF's own worker is a process that speaks gRPC: it listens on every interface, without
authentication, and executes what it is sent. No default uses it. No worker outlives the
program that started it.
"""

import atexit
from collections.abc import Iterator, Sequence
import contextlib
import fcntl
import hashlib
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any
import weakref

import grpc
import numpy as np
import portpicker
import tensorflow_federated as tff

from aggregators import tff_internals
from aggregators.native import kept
from tff_pipelines.simulation import in_process
from tff_pipelines.simulation import local_processes
from tff_pipelines.simulation import proofs
from tff_pipelines.simulation import slices

_ATTEMPTS = 3

# Run by `python -S -c`, so it imports the standard library only.
_SUPERVISOR = r'''
import ctypes, os, select, signal, subprocess, sys
PR_SET_PDEATHSIG = 1
def die_with_parent():
  # An ignored signal stays ignored in the worker, which must end on SIGTERM.
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
for name in ("SIGINT", "SIGTERM", "SIGHUP"):
  signal.signal(getattr(signal, name), signal.SIG_IGN)
worker = subprocess.Popen(
    sys.argv[1:], stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
try:
  while worker.poll() is None:
    ready, _, _ = select.select([0], [], [], 1.0)
    if ready and not os.read(0, 1):
      break
finally:
  if worker.poll() is None:
    worker.terminate()
    try:
      worker.wait(timeout=2)
    except subprocess.TimeoutExpired:
      worker.kill()
      worker.wait()
'''

_live = weakref.WeakSet()

_TRANSFORMS = dict(transform_args=tff.tensorflow.transform_args,
                   transform_result=tff.tensorflow.transform_result)


def _binary() -> str:
  path = os.path.join(os.path.dirname(tff.__file__), 'data', 'worker_binary')
  if not os.path.isfile(path):
    raise OSError(f'TFF came without its worker binary: {path} is missing')
  return path


@contextlib.contextmanager
def _held_port() -> Iterator[int]:
  """A free port that no other worker is given until this ends.

  A port looks free until its worker binds it, and gRPC may let two workers bind
  one port. So the choice is kept under a lock until the worker listens.
  """
  while True:
    port = portpicker.pick_unused_port()
    path = pathlib.Path(
        tempfile.gettempdir(), f'tff_worker_port_{os.getuid()}_{port}.lock')
    with path.open('a', encoding='utf-8') as file:
      try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        continue
      try:
        # Who held the lock a moment ago may listen there by now.
        if portpicker.is_port_free(port):
          yield port
          return
      finally:
        path.unlink(missing_ok=True)


class Worker:
  """One local TFF worker process and the channel to it.

  Left to itself a worker survives a killed driver and keeps the driver's pipes open.
  Here a small supervisor process stands between: it holds the read end of a pipe whose
  write end only the driver has, so it sees any end of the driver, SIGKILL
  included, and then ends the worker. The kernel in turn ends the worker if the
  supervisor dies.
  """

  def __init__(self):
    """Starts the worker and waits until it answers.

    Raises:
      OSError: If it can't be started.
    """
    for attempt in range(_ATTEMPTS):
      # Another program may take the port between the choice and the bind.
      with _held_port() as port:
        self._process = subprocess.Popen(
            [sys.executable, '-S', '-c', _SUPERVISOR, _binary(), f'--port={port}',
             '--max_concurrent_computation_calls=-1'],  # No limit.
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True)
        _live.add(self)
        # Vectors of a million floats exceed gRPC's default limit; 2 GB is its maximum.
        self._channel = grpc.insecure_channel(f'localhost:{port}', [
            (f'grpc.{name}message_length', 2_000_000_000)
            for name in ('max_', 'max_receive_', 'max_send_')])
        # TFF's stub subscribes for good to a status that nothing here reads, and
        # gRPC's watcher thread then races with the closing of the channel.
        self._channel.subscribe = lambda *_, **__: None
        if self._wait_until_it_listens(port):
          break
      self.stop()
    else:
      raise OSError(f'the TFF worker did not start in {_ATTEMPTS} attempts')
    self._stub = tff.framework.RemoteExecutorGrpcStub(self._channel)

  def _wait_until_it_listens(self, port: int) -> bool:
    """Whether the worker listened before it ended or time ran out."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and self._process.poll() is None:
      try:
        socket.create_connection(('localhost', port), timeout=1).close()
        return True
      except OSError:
        time.sleep(0.05)
    return False

  def executor_factory(self) -> tff.framework.ExecutorFactory:
    """Executors for this worker, one per number of clients."""

    def create(cardinalities):
      executor = tff.framework.RemoteExecutor(self._stub)
      executor.set_cardinalities({tff.CLIENTS: 0, **cardinalities})
      return executor

    return tff.framework.ResourceManagingExecutorFactory(create)

  def stop(self) -> None:
    """Ends the process. Idempotent."""
    _live.discard(self)
    self._channel.close()
    self._process.stdin.close()
    try:
      self._process.wait(timeout=10)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()


@atexit.register
def _end_all() -> None:
  for worker in list(_live):
    worker.stop()
  tff_internals.forget_default_context()


def _compiled(computation: tff.Computation) -> tff.Computation:
  """Secure sums become plain sums, and the rest what TFF's worker executes."""
  return tff.backends.native.desugar_and_transform_to_native(
      tff.backends.test.replace_secure_intrinsics_with_bodies(computation))


@contextlib.contextmanager
def started(*, num_workers: int = 0, local_workers: int = 0, engine: str = 'local',
            engine_address: str | None = None, slice_deadline: float = 600.0,
            data: Sequence[proofs.DataProof] = ()
            ) -> Iterator[tff.framework.SyncContext]:
  """A context; what it started ends with the block.

  Args:
    num_workers: 1 runs whole computations in TFF's own worker. More count as
      `local_workers`: TFF's workers take turns.
    local_workers: 0 runs computations in this process (`in_process`). Otherwise this
      number of worker processes share the clients of a round (`slices`), which allows
      one aggregation per computation. With Ray, the number of actors; 0 for one per
      core.
    engine: 'local' for processes of this machine, 'ray' for a cluster.
    engine_address: Address of the cluster; None for one that is started here.
    slice_deadline: Seconds that a worker may take for a slice, > 0.
    data: The data that workers read themselves, which those of Ray must prove to have.

  Raises:
    ValueError: For numbers below 0, or a cluster that must not be used.
    OSError: If no worker can be started.
  """
  for name, number in (('num_workers', num_workers), ('local_workers', local_workers)):
    if number < 0:
      raise ValueError(f'{name} must be at least 0, found {number}')
  cores = os.cpu_count() or 1
  with contextlib.ExitStack() as stack:
    if engine == 'ray' or local_workers or num_workers > 1:
      kept.folder()  # Processes that are started take over where kernels are.
    if engine == 'ray':
      from tff_pipelines.simulation import ray_transport  # pylint: disable=g-import-not-at-top
      transport = ray_transport.RayTransport(
          local_workers, engine_address, data=data)
    elif local_workers or num_workers > 1:
      transport = local_processes.LocalProcesses(local_workers or num_workers)
    elif num_workers == 1:
      worker = Worker()
      stack.callback(worker.stop)
      yield tff.framework.SyncExecutionContext(
          worker.executor_factory(), _compiled, **_TRANSFORMS)
      return
    else:
      factory = in_process.InProcessExecutorFactory(cores)
      stack.callback(factory.close)
      yield tff.framework.SyncExecutionContext(factory, **_TRANSFORMS)
      return
    context = slices.SubroundContext(
        transport, num_threads=cores, deadline=slice_deadline)
    stack.callback(context.close)
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
  """The key of a client in a round of a seeded run, int64 of shape [2].

  Clients of a run without a seed take their keys from the operating system.
  """
  digest = hashlib.sha256(
      f'client {simulation_seed} {round_index} {client}'.encode()).digest()
  return np.frombuffer(digest[:16], np.int64).copy()
