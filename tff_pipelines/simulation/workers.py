"""TFF worker processes that never outlive the program that started them.

Every local TFF context is a child process that speaks gRPC. Left to itself it
survives a killed driver and keeps the driver's pipes open. Here a small
supervisor process stands between: it holds the read end of a pipe whose write
end only the driver has, so it sees the driver end in whatever way, SIGKILL
included, and then ends the worker. The kernel in turn ends the worker if the
supervisor dies.
"""

import atexit
from collections.abc import Iterator
import contextlib
import fcntl
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import weakref

import grpc
import portpicker
import tensorflow_federated as tff

_START_TIMEOUT_SECONDS = 60
_ATTEMPTS = 3
# Vectors of a million floats exceed gRPC's default limit; 2 GB is its maximum.
_MESSAGE_BYTES = 2_000_000_000

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
  """One local TFF worker process and the channel to it."""

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
        self._channel = grpc.insecure_channel(f'localhost:{port}', [
            (f'grpc.{name}message_length', _MESSAGE_BYTES)
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
    deadline = time.monotonic() + _START_TIMEOUT_SECONDS
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
def _stop_all() -> None:
  for worker in list(_live):
    worker.stop()
