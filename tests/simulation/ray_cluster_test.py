"""A cluster of two nodes of Ray, each in a network namespace of its own.

The driver runs beside the head and has a roster; the complete file is mounted on the
workers' side only. Nodes speak TLS, with certificates of deploy/certificates.sh.
"""

import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time

import numpy as np
import pytest

from tasks.sources import rosters
from tests.programs import in_process
from tests.simulation import cluster_ports
from tests.tasks.sources import populations

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec('ray') is None,
    reason='Ray is not installed: requirements-ray.txt, which `make test` installs')
ROOT = pathlib.Path(__file__).absolute().parents[2]
HEAD, NODE, PORT = '10.77.0.1', '10.77.0.2', cluster_ports.HEAD
TOKEN = 'the-token-of-this-cluster'
TRAIN = 'tff_pipelines.train'


def _clients(count, seed):
  rng = np.random.default_rng(seed)
  return populations.Clients({
      f'{seed}-{i}': {'pixels': rng.integers(0, 256, (4, 6, 6)),
                      'label': rng.integers(0, 3, 4)} for i in range(count)})


def _flags(data, output):
  return ['--task=images', '--model=softmax', '--num_classes=3', '--data_source=sqlite',
          f'--data_path={data / "x.sqlite"}', '--cohort_size=6', '--sampling=fixed',
          '--rounds=3', '--seed=5', '--noise_multiplier=0.5', f'--output_dir={output}']


def _ip(*arguments):
  return subprocess.run(['ip', *arguments], check=True, stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout


class _Namespaces:
  """Two network namespaces with a cable between them; mounts are of each process."""

  def __init__(self):
    self.names = [f'ray{os.getpid()}{side}' for side in 'ab']
    self._started = []
    for name in self.names:
      _ip('netns', 'add', name)
    _ip('link', 'add', 'cable', 'netns', self.names[0], 'type', 'veth',
        'peer', 'name', 'cable', 'netns', self.names[1])
    for name, address in zip(self.names, (HEAD, NODE)):
      _ip('-n', name, 'address', 'add', f'{address}/24', 'dev', 'cable')
      for device in ('cable', 'lo'):
        _ip('-n', name, 'link', 'set', device, 'up')

  def start(self, side, mounts, *command, **options):
    """Starts a command after shell commands that mount something for it alone."""
    self._started.append(subprocess.Popen(
        ['ip', 'netns', 'exec', self.names[side], 'sh', '-ec',
         '; '.join([*mounts, 'exec "$@"']), 'sh', *map(str, command)],
        cwd=ROOT, stdin=subprocess.DEVNULL, text=True, **options))
    return self._started[-1]

  def listening(self):
    """(side, port) of all that listen."""
    return {(side, int(line.split()[3].rpartition(':')[2]))
            for side, name in enumerate(self.names)
            for line in _ip('netns', 'exec', name, 'ss', '-ltnH').splitlines()}

  def close(self):
    for name in self.names:
      for pid in _ip('netns', 'pids', name).split():
        os.kill(int(pid), signal.SIGKILL)
    for process in self._started:
      process.wait()
    for name in self.names:
      _ip('netns', 'delete', name)


@pytest.fixture(name='namespaces')
def _namespaces():
  try:
    namespaces = _Namespaces()
  except (OSError, subprocess.CalledProcessError) as error:
    pytest.skip('network namespaces can\'t be made here: '
                f'{getattr(error, "stderr", "") or error}')
  yield namespaces
  namespaces.close()


@pytest.fixture(name='folder')
def _folder():
  # Sockets of Ray must have short paths.
  folder = pathlib.Path(tempfile.mkdtemp(prefix='ray'))
  yield folder
  shutil.rmtree(folder)


# A server that answers whoever asks stands for a cluster without authentication.
_DRIVER = '''
import concurrent.futures, json, os, sys
import grpc
from tff_pipelines import train
from tff_pipelines.simulation import ray_transport

class Anyone(grpc.GenericRpcHandler):
  def service(self, call):
    return grpc.unary_unary_rpc_method_handler(lambda request, context: b'')

token, head, other, *flags = sys.argv[1:]
codes = []
def start(address):
  codes.append(train.main([
      *flags, '--engine=ray', '--local_workers=2', f'--engine_address={address}']))
start(head)
os.environ.update(RAY_AUTH_MODE='token', RAY_AUTH_TOKEN='wrong')
start(head)
os.environ['RAY_AUTH_TOKEN'] = token
tls = os.environ.pop('RAY_USE_TLS')
server = grpc.server(concurrent.futures.ThreadPoolExecutor(1), handlers=[Anyone()])
server.add_insecure_port(other)
server.start()
start(other)
server.stop(None)
start(head)  # Without TLS.
os.environ['RAY_USE_TLS'] = tls
start(head)
print(json.dumps(codes))
'''


@pytest.mark.slow
def test_two_nodes_train_with_the_right_token_on_data_that_only_workers_have(
    namespaces, folder, tmp_path):
  data, complete, ray = (folder / name for name in ('data', 'complete', 'r'))
  for path in (data, complete, ray):
    path.mkdir()
  populations.prepared(complete / 'x.sqlite', _clients(12, 1), _clients(2, 2))
  subprocess.run([ROOT / 'deploy' / 'certificates.sh', folder / 'tls', HEAD, NODE],
                 check=True, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  environment = {name: value for name, value in os.environ.items()
                 if not name.startswith('RAY_')}
  environment.update(
      PYTHONPATH=str(ROOT), TF_CPP_MIN_LOG_LEVEL='3', HOME=str(tmp_path),
      RAY_USAGE_STATS_ENABLED='0', RAY_enable_metrics_collection='0', RAY_USE_TLS='1',
      RAY_TLS_CA_CERT=str(folder / 'tls' / 'ca.crt'),
      RAY_TLS_SERVER_CERT=str(folder / 'tls' / 'node.crt'),
      RAY_TLS_SERVER_KEY=str(folder / 'tls' / 'node.key'))
  nodes = {**environment, 'RAY_AUTH_MODE': 'token', 'RAY_AUTH_TOKEN': TOKEN}
  start = [sys.executable, '-m', 'ray.scripts.scripts', 'start', '--block']
  hidden = [f'mount -t tmpfs none {complete}']
  with open(folder / 'log', 'w', encoding='utf-8') as log:
    logged = dict(stdout=log, stderr=log)
    namespaces.start(
        0, hidden, *start, '--head', f'--node-ip-address={HEAD}', f'--port={PORT}',
        '--num-cpus=0', '--include-dashboard=false', f'--temp-dir={ray}', *cluster_ports.FLAGS,
        env=nodes, **logged)
    deadline = time.monotonic() + 60
    while (0, PORT) not in namespaces.listening():
      assert time.monotonic() < deadline, (folder / 'log').read_text()
      time.sleep(0.1)
    namespaces.start(
        1, [f'mount --bind {complete} {data}', f'mount -t tmpfs none {ray}'], *start,
        f'--address={HEAD}:{PORT}', f'--node-ip-address={NODE}', '--num-cpus=2',
        *cluster_ports.FLAGS, env=nodes, **logged)
    rosters.write(complete / 'x.sqlite', data / 'x.sqlite')
    driver = namespaces.start(
        0, hidden, sys.executable, '-c', textwrap.dedent(_DRIVER), TOKEN,
        f'{HEAD}:{PORT}', f'{HEAD}:7000', *_flags(data, folder / 'far'), env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    # Meanwhile in this process, which has the examples.
    alone = in_process.run(TRAIN, *_flags(complete, folder / 'here'), folder=tmp_path)
    roster = in_process.run(TRAIN, *_flags(data, folder / 'none'), folder=tmp_path)
    opened = set()
    while driver.poll() is None:
      opened |= namespaces.listening()
      time.sleep(0.1)
    output, errors = driver.communicate()
  assert alone.code == 0, alone.stderr
  assert roster.code == 2 and 'x.sqlite is a roster: its clients must travel' in (
      roster.stderr)
  assert output and json.loads(output.splitlines()[-1]) == [2, 2, 2, 2, 0], errors
  # The driver's own server of the other address is in it, too.
  assert {port for _, port in opened} <= (
      cluster_ports.BETWEEN_NODES | cluster_ports.OTHERS | {7000})
  assert {(0, PORT), (0, 6380), (1, 6381)} <= opened
  assert sum(port > 10001 for side, port in opened if side == 1) >= 2  # Two actors.
  told = [line for line in errors.splitlines() if line.startswith('error: ')]
  address = f'error: engine_address={HEAD}'
  assert told[0].startswith(
      f'{address}:{PORT} is not of the loopback, so its cluster must demand a token')
  assert told[1] == f'{address}:{PORT} refuses the token'
  assert told[2].startswith(f'{address}:7000 takes requests without a token')
  assert told[3].startswith(f'{address}:{PORT} does not answer as the head of a Ray')
  far, here = (hashlib.sha256((folder / name / 'model.npz').read_bytes()).hexdigest()
               for name in ('far', 'here'))
  assert far == here
  report = (folder / 'far' / 'report.txt').read_text(encoding='utf-8')
  assert 'workers and object store of Ray have updates' in report
