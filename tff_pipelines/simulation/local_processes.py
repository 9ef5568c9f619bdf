"""Workers as processes of this machine, connected by sockets without an address."""

from concurrent import futures
import multiprocessing.connection
import os
import pickle
import re
import subprocess
import sys
import tempfile
from typing import Any

from tff_pipelines.simulation import transports

# From its first moment a worker ends with its parent, and it finds the modules that its
# parent finds. Arguments: file descriptor, parent, number of threads, search path.
_PR_SET_PDEATHSIG = 1
_START = f'''
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, signal.SIGKILL)
fd, parent, num_threads = map(int, sys.argv[1:4])
if os.getppid() == parent:
  sys.path[:] = sys.argv[4:]
  from tff_pipelines.simulation import local_processes
  local_processes.serve(fd, num_threads)
'''
# Last words of a worker that are told: others may have values of clients' data.
_OF_IMPORTS = re.compile(r'(ImportError|ModuleNotFoundError): ')


class _Process:
  """A worker process and the thread that waits for its answers."""

  def __init__(self, num_threads: int):
    self._connection, child = multiprocessing.connection.Pipe()
    self._log = tempfile.TemporaryFile()
    with child:
      self._process = subprocess.Popen(
          [sys.executable, '-c', _START, str(child.fileno()), str(os.getpid()),
           str(num_threads), *sys.path],
          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._log,
          env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'}, pass_fds=[child.fileno()],
          start_new_session=True)  # Ctrl-C is for the driver.
    self.pid = self._process.pid
    self.thread = futures.ThreadPoolExecutor(1)
    self._known: frozenset[str] = frozenset()
    self.memory = transports.Memory()
    self.bytes_sent = 0

  def ask(self, request: transports.Request) -> Any:
    """The answer to a request; raises what a future of `submit` has."""
    try:
      message = pickle.dumps((request.lacking(self._known), frozenset(request.contents)),
                             protocol=pickle.HIGHEST_PROTOCOL)
      self._connection.send_bytes(message)
      self.bytes_sent += len(message)
      self._known = request.known(self._known)
      is_result, answer, told = self._connection.recv()
    except (EOFError, OSError) as error:
      raise transports.WorkerLostError(
          f'worker process {self.pid} ended{self._last_words()}') from error
    self.memory.record(*told)
    if not is_result:
      raise answer
    return answer

  def _last_words(self) -> str:
    """The last line of the process's standard error, if that has no values of data."""
    self._log.seek(0)
    lines = self._log.read().decode(errors='replace').split('\n')
    last = next((line.strip() for line in reversed(lines) if line.strip()), '')
    return f' ({last})' if _OF_IMPORTS.match(last) else ''

  def stop(self) -> None:
    self._process.kill()  # Also ends a process that was stopped.
    self._process.wait()
    self.thread.shutdown(wait=True)  # It reads to the end of the connection.
    self._connection.close()
    self._log.close()


class LocalProcesses(transports.Transport):
  """Worker processes of this machine.

  They listen nowhere: each has one end of a socket pair. They end with this process,
  however it ends. One whose memory has grown is replaced before its next slice.
  """

  def __init__(self, num_workers: int, *, num_threads: int | None = None):
    """Starts the processes, at least one, and does not wait for them.

    A worker computes `num_threads` clients in parallel; None for its part of the cores.
    """
    self.num_workers = num_workers
    self._num_threads = num_threads or max(1, (os.cpu_count() or 1) // num_workers)
    self._bytes_of_former = 0
    # The kernel ends children with the thread that started them, so it must last.
    self._starter = futures.ThreadPoolExecutor(1)
    self._processes: dict[int, _Process] = {}
    for worker in range(num_workers):
      self._start(worker)

  @property
  def bytes_sent(self) -> int:
    return self._bytes_of_former + sum(
        process.bytes_sent for process in self._processes.values())

  @property
  def pids(self) -> list[int]:
    """Numbers of the processes, by worker."""
    return [process.pid for _, process in sorted(self._processes.items())]

  def _start(self, worker: int) -> None:
    try:
      self._processes[worker] = self._starter.submit(_Process, self._num_threads).result()
    except (OSError, RuntimeError) as error:  # The latter once this is closed.
      raise transports.WorkerLostError(f'no process can be started: {error}') from error

  def submit(self, worker: int, request: transports.Request) -> futures.Future:
    if self._processes[worker].memory.has_grown:
      self.replace(worker)
    process = self._processes[worker]
    return process.thread.submit(process.ask, request)

  def replace(self, worker: int) -> None:
    former = self._processes[worker]
    former.stop()
    self._bytes_of_former += former.bytes_sent
    self._start(worker)

  def close(self) -> None:
    self._starter.shutdown()
    for process in self._processes.values():
      process.stop()


def serve(fd: int, num_threads: int) -> None:
  """Computes the requests of a connection until it is closed."""
  with multiprocessing.connection.Connection(fd) as connection:
    runner = transports.Runner(num_threads)
    while True:
      try:
        request, digests = connection.recv()
      except EOFError:
        return
      try:
        answer = True, runner.run(request, digests)
      except transports.SliceFailedError as error:
        answer = False, error
      connection.send((*answer, transports.condition()))
