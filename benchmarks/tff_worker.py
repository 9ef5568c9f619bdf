"""TFF's own worker, the peer of benchmarks and the oracle of tests.

It is a process that speaks gRPC, listens on every interface without authentication and
executes what it is sent: nothing else starts it.
"""

from collections.abc import Iterator
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time

import grpc
import portpicker
import tensorflow_federated as tff

_PR_SET_PDEATHSIG = 1


def _compiled(computation: tff.Computation) -> tff.Computation:
  """Secure sums become plain sums, and the rest what the worker executes."""
  return tff.backends.native.desugar_and_transform_to_native(
      tff.backends.test.replace_secure_intrinsics_with_bodies(computation))


def _wait_until_it_listens(process: subprocess.Popen, port: int) -> None:
  """Waits for the port; OSError if the process ends before, or after a minute."""
  deadline = time.monotonic() + 60
  while time.monotonic() < deadline and process.poll() is None:
    with contextlib.suppress(OSError):
      socket.create_connection(('localhost', port), timeout=1).close()
      return
    time.sleep(0.05)
  raise OSError(f'the TFF worker did not start at port {port}')


@contextlib.contextmanager
def started() -> Iterator[tff.framework.SyncContext]:
  """A context whose computations run in a worker, which ends with the block.

  Raises:
    OSError: If the worker can't be started.
  """
  binary = os.path.join(os.path.dirname(tff.__file__), 'data', 'worker_binary')
  port = portpicker.pick_unused_port()
  die_with_parent = ctypes.CDLL(None).prctl
  process = subprocess.Popen(
      [binary, f'--port={port}', '--max_concurrent_computation_calls=-1'],  # No limit.
      stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
      start_new_session=True,
      preexec_fn=lambda: die_with_parent(_PR_SET_PDEATHSIG, signal.SIGKILL))
  # Vectors of a million floats exceed gRPC's default limit; 2 GB is its maximum.
  channel = grpc.insecure_channel(f'localhost:{port}', [
      (f'grpc.{name}message_length', 2_000_000_000)
      for name in ('max_', 'max_receive_', 'max_send_')])
  # TFF's stub subscribes for good to a status that nothing here reads, and gRPC's
  # watcher thread then races with the closing of the channel.
  channel.subscribe = lambda *_, **__: None

  def executor(cardinalities):
    result = tff.framework.RemoteExecutor(tff.framework.RemoteExecutorGrpcStub(channel))
    result.set_cardinalities({tff.CLIENTS: 0, **cardinalities})
    return result

  try:
    _wait_until_it_listens(process, port)
    yield tff.framework.SyncExecutionContext(
        tff.framework.ResourceManagingExecutorFactory(executor), _compiled,
        transform_args=tff.tensorflow.transform_args,
        transform_result=tff.tensorflow.transform_result)
  finally:
    channel.close()
    process.kill()
    process.wait()
