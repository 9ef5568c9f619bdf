"""Tests of tff_pipelines.simulation.contexts: no worker outlives its driver.

Processes are followed by their ids, from the driver down.
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import textwrap
import time

import portpicker
import pytest

from tff_pipelines.simulation import contexts

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PROC = pathlib.Path('/proc')


def _processes():
  """Process id -> (parent, state, when it started), of all there are."""
  result = {}
  for path in _PROC.iterdir():
    if path.name.isdigit():
      try:
        fields = (path / 'stat').read_text().rpartition(')')[2].split()
      except OSError:
        continue  # It has just ended.
      result[int(path.name)] = (int(fields[1]), fields[0], fields[19])
  return result


def _descendants(pid):
  """Ids, with the times of start, of the processes that `pid` has started."""
  processes = _processes()
  result, fresh = {}, [pid]
  while fresh:
    parent = fresh.pop()
    for child, (its_parent, _, started) in processes.items():
      if its_parent == parent:
        result[child] = started
        fresh.append(child)
  return result


def _workers_below(pid):
  return {child: started for child, started in _descendants(pid).items()
          if b'worker_binary' in (_PROC / str(child) / 'cmdline').read_bytes()
          .split(b'\0')[0]}


def _alive(known):
  processes = _processes()
  return [pid for pid, started in known.items()
          if pid in processes and processes[pid][2] == started
          and processes[pid][1] not in 'ZX']


def _wait_until_gone(known, seconds):
  deadline = time.monotonic() + seconds
  while _alive(known) and time.monotonic() < deadline:
    time.sleep(0.05)
  assert not _alive(known)


_DRIVER_HEAD = '''
import threading
import time
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tff_pipelines.simulation import contexts

@tff.tensorflow.computation(np.int32)
def double(x):
  return 2 * x

@tff.tensorflow.computation(np.int64)
def never_ends(x):
  return tf.while_loop(lambda i: i >= 0, lambda i: [(i + 1) % 1000], [x])[0]

@tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
def endless_round(values):
  return tff.federated_sum(tff.federated_map(never_ends, values))
'''


class _Driver:
  """A program that uses workers, in a process of its own."""

  def __init__(self, body, before=''):
    self._process = subprocess.Popen(
        ['sh', '-c', f'{before} exec "$@"', 'sh', sys.executable, '-c',
         _DRIVER_HEAD + textwrap.dedent(body)],
        cwd=_ROOT, env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True)
    self.pid = self._process.pid

  def wait_for(self, word):
    """Reads until a line that is this word."""
    for line in self._process.stdout:
      if line.strip() == word:
        return
    pytest.fail(f'no {word!r}: {self._process.stderr.read()[-2000:]}')

  def kill(self, number=signal.SIGKILL):
    self._process.send_signal(number)

  def finish(self, seconds):
    """Waits for the end; the exit code and what was printed to stderr."""
    try:
      _, errors = self._process.communicate(timeout=seconds)
    finally:
      self._process.kill()
    return self._process.returncode, errors


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGTERM])
def test_workers_die_with_a_driver_that_is_killed_in_a_round(number):
  driver = _Driver('''
      thread_workers = []
      def start():
        thread_workers.append(contexts.Worker())
      thread = threading.Thread(target=start)
      thread.start()
      thread.join()
      with contexts.simulation(num_workers=1):
        assert double(21) == 42
        threading.Timer(1.0, lambda: print('running', flush=True)).start()
        endless_round([1, 2, 3])
  ''')
  driver.wait_for('running')
  below, workers_found = _descendants(driver.pid), _workers_below(driver.pid)
  # One from a thread that has ended long ago, one from the main thread.
  assert len(workers_found) == 2 and len(_alive(workers_found)) == 2
  driver.kill(number)
  _wait_until_gone(below, seconds=6)
  code, _ = driver.finish(seconds=10)
  assert code == -number


@pytest.mark.slow
def test_workers_end_with_a_driver_that_ends():
  # In a background job of a script SIGINT is ignored.
  driver = _Driver('''
      left_over = contexts.Worker()
      with contexts.simulation(num_workers=1):
        assert double(21) == 42
        print('running', flush=True)
        time.sleep(5)  # While they are counted.
  ''', before='trap "" INT;')
  driver.wait_for('running')
  below = _descendants(driver.pid)
  assert len(_workers_below(driver.pid)) == 2
  code, errors = driver.finish(seconds=30)
  assert code == 0, errors
  _wait_until_gone(below, seconds=5)


@pytest.mark.slow
def test_a_driver_that_is_interrupted_in_a_round_ends_with_its_workers():
  driver = _Driver('''
      with contexts.simulation(num_workers=1):
        threading.Timer(1.0, lambda: print('running', flush=True)).start()
        endless_round([1])
  ''')
  driver.wait_for('running')
  below = _descendants(driver.pid)
  driver.kill(signal.SIGINT)
  code, errors = driver.finish(seconds=30)
  assert code == -signal.SIGINT, errors
  assert 'KeyboardInterrupt' in errors
  _wait_until_gone(below, seconds=5)


def test_a_worker_that_is_stopped_is_gone_at_once_and_may_be_stopped_again():
  before = set(_descendants(os.getpid()))
  worker = contexts.Worker()
  below = {pid: started for pid, started in _descendants(os.getpid()).items()
           if pid not in before}
  assert len(below) == 2
  time.sleep(0.5)
  start = time.monotonic()
  worker.stop()
  assert time.monotonic() - start < 8  # It is not killed after ten seconds.
  assert not _alive(below)
  worker.stop()


def test_a_worker_dies_with_its_supervisor():
  before = set(_workers_below(os.getpid()))
  worker = contexts.Worker()
  workers_found = {pid: started for pid, started in _workers_below(os.getpid()).items()
           if pid not in before}
  (pid,) = workers_found
  supervisor = _processes()[pid][0]
  assert supervisor != os.getpid()
  os.kill(supervisor, signal.SIGKILL)
  _wait_until_gone(workers_found, seconds=3)
  time.sleep(0.5)
  worker.stop()


def _picks(monkeypatch, *ports):
  """Makes these the ports that look free, one after the other."""
  remaining = iter(ports)
  monkeypatch.setattr(
      contexts.portpicker, 'pick_unused_port', lambda: next(remaining))


def test_workers_that_start_at_once_take_different_ports(monkeypatch):
  first, second = (portpicker.pick_unused_port() for _ in range(2))
  _picks(monkeypatch, first, first, second, first)
  before = set(_workers_below(os.getpid()))
  with contexts._held_port() as held:  # pylint: disable=protected-access
    assert held == first
    worker = contexts.Worker()
  (pid,) = set(_workers_below(os.getpid())) - before
  command = (_PROC / str(pid) / 'cmdline').read_bytes().split(b'\0')
  assert f'--port={second}'.encode() in command
  worker.stop()
  # It was held for no longer than that.
  with contexts._held_port() as held:  # pylint: disable=protected-access
    assert held == first


def test_a_port_that_was_taken_meanwhile_is_not_held(monkeypatch):
  with socket.create_server(('localhost', 0)) as server:
    other = portpicker.pick_unused_port()
    _picks(monkeypatch, server.getsockname()[1], other)
    with contexts._held_port() as held:  # pylint: disable=protected-access
      assert held == other


def test_a_binary_that_is_missing_is_named(monkeypatch, tmp_path):
  monkeypatch.setattr(contexts.tff, '__file__', str(tmp_path / '__init__.py'))
  with pytest.raises(OSError, match='worker binary: .*worker_binary is missing'):
    contexts.Worker()


@pytest.mark.slow
def test_a_binary_that_does_not_start_is_an_error(monkeypatch):
  before = set(_descendants(os.getpid()))
  monkeypatch.setattr(contexts, '_binary', lambda: 'false')
  with pytest.raises(OSError, match='did not start in 3 attempts'):
    contexts.Worker()
  assert set(_descendants(os.getpid())) == before
  time.sleep(0.5)
