"""Slices on actors of Ray: the bits of this process, faults, and who may ask.

Two network namespaces stand for two machines in tests/simulation/ray_cluster_test.py.
"""

import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import psutil
import pytest

from tests.fedavg import failing_task
from tests.simulation import pools
from tff_pipelines.accounting.sampling import schemes
from tff_pipelines.fedavg import loop
from tff_pipelines.simulation import (
    contexts, native_chunks, ray_transport, slices, transports)

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec('ray') is None,
    reason='Ray is not installed: requirements-ray.txt, which `make test` installs')
ROOT = pathlib.Path(__file__).absolute().parents[2]
CLIENTS = 12


def _actors(pid=None):
  """Actors below a process, by name: processes of Ray itself are others."""
  return [process for process in psutil.Process(pid).children(recursive=True)
          if 'ray::Actor' in ' '.join(process.cmdline())]


@pytest.fixture(name='transport', scope='module')
def _transport():
  handler = signal.getsignal(signal.SIGTERM)
  ray_transport.check(None)  # Imports Ray, before there is a token.
  # Children that Ray forks forget other threads, and what only they refer to.
  with pools.session_elsewhere():
    transport = ray_transport.RayTransport(2)
  assert signal.getsignal(signal.SIGTERM) is handler
  yield transport
  transport.close()
  transport.close()
  assert not _actors()


class _Killing:
  """Another transport, whose worker is killed right after some submissions."""

  def __init__(self, whole, at):
    self._whole, self._at, self.submitted, self.replaced = whole, set(at), 0, []
    self.num_workers = whole.num_workers

  def submit(self, worker, request):
    future = self._whole.submit(worker, request)
    self.submitted += 1
    if self.submitted in self._at:
      _actors()[0].kill()
    return future

  def replace(self, worker):
    self.replaced.append(worker)
    self._whole.replace(worker)

  def close(self):
    pass


ROUNDS = pools.Rounds(CLIENTS, 2)


def _digest(context):
  """Of the weights after two rounds of all clients, in six chunks."""
  return pools.digest(list(ROUNDS.outputs(context))[-1]['state']['weights'])


@pytest.mark.slow
def test_rounds_on_two_actors_have_the_bits_of_this_process_whoever_dies(
    transport, _in_process_context):
  with pools.in_graph_form():
    wanted = _digest(_in_process_context)
  native_chunks.encoders.clear()
  assert _digest(slices.SubroundContext(_Killing(transport, ()))) == wanted
  # Reported by the actors.
  assert native_chunks.encoders == {'native'}
  killing = _Killing(transport, at=[3])
  assert _digest(slices.SubroundContext(killing)) == wanted
  # The worker that was killed held one slice, which another computed.
  assert len(killing.replaced) == 1 and killing.submitted == 13


@pytest.mark.slow
def test_contents_travel_once_and_errors_of_a_computation_are_told(transport):
  table = np.arange(250_000, dtype=np.int32)
  total = pools.total_of_table(len(table))

  before = transport.bytes_sent
  with contexts.installed(slices.SubroundContext(_Killing(transport, ()))):
    for _ in range(2):
      assert total(table, list(range(100))) == 99 * 50
    # A copy for each of the two workers, however many slices they had.
    assert table.nbytes <= transport.bytes_sent - before < 2.1 * table.nbytes
    with pytest.raises(transports.SliceFailedError, match='failed: .*Assert') as raised:
      pools.total([1, 2, -3])
    assert 'never negative' in raised.value.detail
    assert 'never negative' not in str(raised.value)
    assert pools.total([1, 2, 3]) == 6


@pytest.mark.slow
def test_actors_find_a_failing_client_and_the_driver_prints_no_value(transport):
  told, weights = {}, []
  for change in (failing_task.out_of_range, failing_task.nothing):
    rounds = loop.FedAvgRounds(
        ROUNDS.process, task=failing_task.task({failing_task.CLIENT: change}, CLIENTS),
        scheme=schemes.Everyone(
            population=CLIENTS, cohort_size=CLIENTS, simulation_seed=7),
        rounds=1, clients_per_call=2, on_bad=told.__setitem__)
    with contexts.installed(slices.SubroundContext(_Killing(transport, ()))):
      step = rounds.step(rounds.initial_state(False), 1)
    weights.append([w.tobytes() for w in step.state['process']['weights']])
  assert weights[0] == weights[1]
  (client, error), = told.items()
  assert client == failing_task.CLIENT and str(failing_task.LABEL) in error.detail
  assert error.kind == 'InvalidArgumentError in SparseSoftmaxCrossEntropyWithLogits'
  assert str(failing_task.LABEL) not in str(error)


@pytest.mark.slow
def test_a_second_instance_in_a_process_is_refused(transport):
  del transport
  with pytest.raises(ValueError, match='where Ray is connected already'):
    ray_transport.RayTransport(1)


class _OfOneProcess:
  """Data that are others in each process."""

  name = 'data of this process'

  def digest(self, *, in_worker):
    del in_worker
    return str(os.getpid()).encode()


@pytest.mark.slow
def test_one_that_grew_is_replaced_and_a_replacement_that_disagrees_is_no_worker(
    transport, monkeypatch):
  monkeypatch.setattr(transport, '_data', (_OfOneProcess(),))
  former = set(_actors())
  transport._workers[1].memory.has_grown = True  # pylint: disable=protected-access
  future = transport.submit(1, transports.Request('', 0, None, {}))
  with pytest.raises(transports.WorkerLostError,
                     match='worker 1 of Ray differs from this process in data of this'):
    future.result()
  assert len(former - set(_actors())) == 1
  # Nobody has a use for this worker after this test.


_DRIVER = '''
import json, os, pathlib, sys, time
import psutil
from tff_pipelines.simulation import ray_transport
transport = ray_transport.RayTransport(1)
below = psutil.Process().children(recursive=True)
print(json.dumps({
    'below': [[process.pid, process.create_time()] for process in below],
    'listening': [connection.laddr.ip
                  for process in [psutil.Process(), *below]
                  for connection in process.net_connections('inet')
                  if connection.status in ('LISTEN', 'NONE')],
    'folder': transport._watcher.args[-1].partition('=')[2]}), flush=True)
time.sleep(100)
'''


def _alive(pid, created):
  try:
    process = psutil.Process(pid)
    return process.create_time() == created and process.status() != 'zombie'
  except psutil.NoSuchProcess:
    return False


@pytest.mark.slow
def test_a_private_instance_listens_on_the_loopback_only_and_dies_with_its_driver():
  driver = subprocess.Popen(
      [sys.executable, '-c', _DRIVER], cwd=ROOT, stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE, text=True, env={
          **{name: value for name, value in os.environ.items()
             if not name.startswith('RAY_')}, 'TF_CPP_MIN_LOG_LEVEL': '3'})
  told = json.loads(driver.stdout.readline())
  folder = pathlib.Path(told['folder'])
  assert len(told['below']) > 4 and len(told['listening']) > 3
  assert {ip.removeprefix('::ffff:') for ip in told['listening']} == {'127.0.0.1'}
  assert folder.stat().st_mode & 0o777 == 0o700
  driver.kill()
  driver.communicate()
  deadline = time.monotonic() + 5
  while time.monotonic() < deadline and (
      folder.exists() or any(_alive(*one) for one in told['below'])):
    time.sleep(0.05)
  assert not [one for one in told['below'] if _alive(*one)]
  assert not folder.exists()


@pytest.mark.parametrize('address, environment, message', [
    ('10.0.0.1', {}, "engine_address must be HOST:PORT, found '10.0.0.1'"),
    ('ray://10.0.0.1:10001', {}, 'engine_address must be HOST:PORT'),
    ('10.0.0.1:6379', {}, 'engine_address=10.0.0.1:6379 is not of the loopback, so its '
     'cluster must demand a token: set RAY_AUTH_MODE=token, and'),
    ('10.0.0.1:6379', {'RAY_AUTH_TOKEN': 'x'}, 'must demand a token'),
    ('10.0.0.1:6379', {'RAY_AUTH_MODE': 'token'}, 'must demand a token'),
    ('head:6379', {'RAY_AUTH_MODE': 'token', 'RAY_AUTH_TOKEN_PATH': os.devnull},
     'must demand a token'),
    ('[::1]:6379', {}, None), ('localhost:6379', {}, None),
    ('head:6379', {'RAY_AUTH_MODE': 'token', 'RAY_AUTH_TOKEN': 'x'}, None),
    (None, {}, None)])
def test_a_cluster_elsewhere_needs_a_token(monkeypatch, tmp_path, address, environment,
                                           message):
  monkeypatch.setenv('HOME', str(tmp_path))
  for name in ('RAY_AUTH_MODE', 'RAY_AUTH_TOKEN', 'RAY_AUTH_TOKEN_PATH'):
    monkeypatch.delenv(name, raising=False)
    if name in environment:
      monkeypatch.setenv(name, environment[name])
  if message is None:
    ray_transport.check_settings(address)
    return
  with pytest.raises(ValueError) as raised:
    ray_transport.check_settings(address)
  assert message in str(raised.value) and '\n' not in str(raised.value)


def test_an_address_without_a_cluster_is_told_at_once():
  with pytest.raises(OSError, match='engine_address=127.0.0.1:9 does not answer as the '
                     'head of a Ray cluster: UNAVAILABLE'):
    ray_transport.RayTransport(1, '127.0.0.1:9')


@pytest.mark.slow
def test_without_ray_everything_else_runs(tmp_path):
  code = '''
      import sys
      sys.path.insert(0, sys.argv[2])  # There it can't be imported.
      from tff_pipelines import train
      flags = ['--task=tabular', '--num_clients=10', '--cohort_size=2', '--rounds=1',
               '--output_dir=' + sys.argv[1]]
      print(train.main([*flags, '--engine=ray']))
      print(train.main(flags))
  '''
  (tmp_path / 'path').mkdir()
  (tmp_path / 'path' / 'ray.py').write_text('raise ImportError("not installed")')
  run = subprocess.run(
      [sys.executable, '-c', textwrap.dedent(code), tmp_path / 'run',
       tmp_path / 'path'], cwd=ROOT,
      env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'}, check=False,
      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
  lines = run.stdout.splitlines()
  assert lines[0] == '2' and lines[-1] == '0', run.stderr
  error, = [line for line in run.stderr.splitlines() if line.startswith('error: ')]
  assert error.startswith("error: engine=ray needs Ray, which can't be imported")
  assert error.endswith(
      'python -m pip install --no-deps --require-hashes -r requirements-ray.txt')
  assert (tmp_path / 'run' / 'summary.json').is_file()
