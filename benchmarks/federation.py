"""Federations of processes over two servers: heart disease, and digits in 20 sites.

  python -m benchmarks.federation --case=hearts --data_dir=DATA --folder=out/hearts
  python -m benchmarks.federation --case=digits --data_dir=DATA --folder=out/digits
  python -m benchmarks.federation --quick --folder=out/quick

Every party is a process in a network namespace of its own, where the user may make one:
leader, helper and sites, mutual TLS, outbound connections of the sites. The helper is
killed and started again twice. First a seeded run, whose model must be that of the
simulation to the last bit. Then a private one, in which a third of the sites are killed
at random moments, and stay away. Printed: accuracies next to those of the simulation, wall time, bytes that
left and reached each party, and the leader's memory over the rounds.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np

from tff_pipelines.experiment import cli  # First: TensorFlow's messages.
cli.quiet()
# pylint: disable=wrong-import-position
from benchmarks.results import splits
from tff_pipelines import deploy
from tff_pipelines.common import files
from tff_pipelines.deployment.engine import parties
from tff_pipelines.experiment import settings as settings_lib
from tff_pipelines.fedavg import evaluation, report, run as run_lib
from tff_pipelines.fedavg.settings import TrainSettings

_BOUNDS = os.path.join('benchmarks', 'results', 'heart_bounds.json')
_PORTS = {parties.LEADER: 7001, parties.HELPER: 7002}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """A federation.

  Attributes:
    data: Key of `splits.DATA`; '' for embedded data.
    field: Array that names the silo of an example.
    flags: Flags of the run.
    silos: Number of silos, of embedded data.
  """

  data: str
  field: str
  flags: Mapping[str, object]
  silos: int = 0


_RECORDS = dict(data_source='npz', protect='record', min_honest_fraction=0.5)
CASES = {
    'hearts': Case(data='heart', field='center', flags=dict(
        _RECORDS, task='tabular', client_field='center', label_field='disease',
        num_classes=2, public_bounds=_BOUNDS, batch_size=120, clip=0.5, epsilon=1.0,
        delta=1e-3, rounds=80, server_learning_rate=0.25)),
    'digits': Case(data='digits_20', field='silo', flags=dict(
        _RECORDS, task='emnist', client_field='silo', model='cnn_small', batch_size=600,
        epsilon=8.0, delta=1e-5, rounds=200, server_learning_rate=2.0)),
    'quick': Case(data='', field='silo', silos=3, flags=dict(
        _RECORDS, task='images', client_field='silo', model='softmax', num_classes=10,
        batch_size=60, epsilon=8.0, delta=1e-3, rounds=3, clip=1.0))}


def arrays_of(case: Case, data_dir: pathlib.Path | None,
            folder: pathlib.Path) -> dict[str, np.ndarray]:
  """The arrays of a case, train and test."""
  if case.data:
    path = splits.DATA[case.data].paths(data_dir, folder / 'data', is_trial=False)
    with np.load(path, allow_pickle=False) as file:
      return {name: file[name] for name in file.files}
  from sklearn import datasets  # pylint: disable=g-import-not-at-top
  x, y = datasets.load_digits(return_X_y=True)
  x = (x.reshape(-1, 8, 8) * 15).astype(np.uint8)
  silo = np.char.add('silo-', (np.arange(len(x)) % case.silos).astype(str))
  return {'x_train': x[300:], 'y_train': y[300:], 'silo_train': silo[300:],
          'x_test': x[:300], 'y_test': y[:300], 'silo_test': silo[:300]}


def _of_site(arrays: Mapping[str, np.ndarray], field: str, name: str | None):
  """The arrays of a site; of the leader the test part and three training rows."""
  rows = arrays[f'{field}_train'] == name if name else np.arange(3)
  return {key: (value[rows] if key.endswith('_train') else value)
          for key, value in arrays.items()}


class Network:
  """A network namespace for each party, joined by a bridge; or this machine's loopback."""

  is_separate = False

  def __init__(self, names: Sequence[str]):
    self._names, self._made = list(names), []

  def __enter__(self) -> 'Network':
    try:
      self._ip('link', 'add', 'fed', 'type', 'bridge')
      self._made.append(('link', 'del', 'fed'))
      self._ip('link', 'set', 'fed', 'up')
      for index, name in enumerate(self._names):
        space = f'fed{index}'
        self._ip('netns', 'add', space)
        self._made.append(('netns', 'del', space))
        self._ip('link', 'add', f'fedv{index}', 'type', 'veth', 'peer', 'name', 'eth0',
                 'netns', space)
        self._ip('link', 'set', f'fedv{index}', 'master', 'fed', 'up')
        for words in (('addr', 'add', f'10.77.0.{index + 1}/24', 'dev', 'eth0'),
                      ('link', 'set', 'eth0', 'up'), ('link', 'set', 'lo', 'up')):
          self._ip('-n', space, *words)
      self.is_separate = True
    except (OSError, subprocess.CalledProcessError):
      self.__exit__()
      self.is_separate = False
    return self

  def __exit__(self, *error) -> None:
    for words in reversed(self._made):
      subprocess.run(['ip', *words], check=False, capture_output=True)
    self._made.clear()

  def _ip(self, *words: str) -> None:
    subprocess.run(['ip', *words], check=True, capture_output=True)

  def address(self, name: str) -> str:
    """HOST:PORT of a server."""
    if self.is_separate:
      return f'10.77.0.{self._names.index(name) + 1}:{_PORTS[name]}'
    with socket.create_server(('localhost', 0)) as free:
      return f'localhost:{free.getsockname()[1]}'

  def prefix(self, name: str) -> list[str]:
    """The words before a command that runs as a party."""
    return ['ip', 'netns', 'exec', f'fed{self._names.index(name)}'] if (
        self.is_separate) else []

  def traffic(self, name: str) -> tuple[int, int]:
    """Bytes that a party has sent and received."""
    if not self.is_separate:
      return 0, 0
    found = json.loads(subprocess.run(
        ['ip', '-n', f'fed{self._names.index(name)}', '-s', '-j', 'link', 'show', 'eth0'],
        check=True, capture_output=True).stdout)[0]['stats64']
    return found['tx']['bytes'], found['rx']['bytes']


class Federation:
  """The folders of all parties, an agreement, and their processes."""

  def __init__(self, case: Case, arrays: Mapping[str, np.ndarray], folder: pathlib.Path,
               network: Network, **more: object):
    self.sites = sorted(set(map(str, arrays[f'{case.field}_train'])))
    self.folder, self.network, self.processes = folder, network, {}
    folder.mkdir(parents=True)
    for name in (parties.LEADER, parties.HELPER, *self.sites):
      is_server = name in _PORTS
      self._deploy('enrol', party=folder / name, name=name, **(
          dict(role=name, address=network.address(name)) if is_server else {}))
      (folder / 'data').mkdir(exist_ok=True)
      if name != parties.HELPER:
        np.savez(folder / 'data' / f'{name}.npz', **_of_site(
            arrays, case.field, None if is_server else name))
    counts = [np.sum(arrays[f'{case.field}_train'] == name) for name in self.sites]
    self.flags = {**case.flags, **more}
    self._deploy(
        'agree', agreement=folder / 'agreement.json', study='a benchmark',
        parties=','.join(str(folder / name / parties.ENROLMENT)
                         for name in (*_PORTS, *self.sites)),
        data_path=folder / 'data' / 'leader.npz', units=sum(counts),
        units_of_largest=max(counts), **self.flags)
    self.agreement = parties.Joint.read(folder / 'agreement.json').agreement
    for name in self.sites:
      policy = files.read_json(folder / name / parties.POLICY)
      files.write_json(folder / name / parties.POLICY, {
          **policy, 'programs': [self.agreement.program], 'unit': 'record',
          'helpers': [self.agreement.roster.helper.fingerprint], 'epsilon': 100.0,
          'delta': 1e-5, 'seeded': self.agreement.seed is not None})

  def _deploy(self, command: str, **flags: object) -> None:
    words = [f'--{name}={value}' for name, value in flags.items()]
    with open(self.folder / 'setup.txt', 'a', encoding='utf-8') as file, (
        contextlib.redirect_stdout(file)):
      if deploy.main([command, *words]):
        raise SystemExit(f'{command} failed: see above')

  def command(self, name: str) -> list[str]:
    """The words of a party's command."""
    words = [name if name in _PORTS else parties.CLIENT, f'--party={self.folder / name}',
             f'--agreement={self.folder / "agreement.json"}',
             f'--approve={self.agreement.digest}']
    if name != parties.HELPER:
      words.append(f'--data_path={self.folder / "data" / f"{name}.npz"}')
    if name == parties.LEADER:
      words += [f'--output_dir={self.folder / "run"}', '--resume', '--round_deadline=90']
    return words

  def start(self, name: str) -> None:
    """Starts, or starts again, a party's process."""
    log = open(self.folder / f'{name}.txt', 'ab')  # pylint: disable=consider-using-with
    self.processes[name] = subprocess.Popen(
        [*self.network.prefix(name), sys.executable, '-m', 'tff_pipelines.deploy',
         *self.command(name)], stdout=log, stderr=log, env=dict(os.environ, OMP_NUM_THREADS='1'))

  def kill(self, name: str) -> None:
    process = self.processes[name]
    process.kill()
    process.wait()

  @contextlib.contextmanager
  def running(self) -> Iterator[None]:
    """All parties, of which none outlives the block."""
    try:
      for name in (*_PORTS, *self.sites):
        self.start(name)
      yield
    finally:
      for process in self.processes.values():
        process.terminate()
      for process in self.processes.values():
        try:
          process.wait(30)
        except subprocess.TimeoutExpired:
          process.kill()

  def rounds(self) -> int:
    path = self.folder / 'run' / files.LEDGER
    return max(0, len(path.read_text(encoding='utf-8').splitlines()) - 1) if (
        path.exists()) else 0

  def memory(self) -> int:
    """Bytes of the leader's resident memory."""
    status = pathlib.Path(f'/proc/{self.processes[parties.LEADER].pid}/status').read_text(
        encoding='ascii')
    return int(re.search(r'VmRSS:\s+(\d+)', status)[1]) * 1024


def _disturb(federation: Federation, rng: np.random.Generator,
             ended: threading.Event, leave: int) -> list[str]:
  """Kills a number of sites, and twice the helper, in random rounds; says when."""
  rounds = federation.agreement.rounds
  leaving = rng.choice(federation.sites, leave, replace=False)
  moments = sorted([
      *((int(rng.integers(1, rounds)), name) for name in leaving.tolist()),
      *((int(at), parties.HELPER) for at in rng.integers(1, rounds, 2))])
  said = []
  for at, name in moments:
    while federation.rounds() < at and not ended.wait(0.1):
      pass
    time.sleep(rng.uniform(0, 0.5))
    federation.kill(name)
    said.append(f'{name} after round {federation.rounds()}')
    if name == parties.HELPER:
      federation.start(name)
  return said


def model(folder: pathlib.Path) -> dict[str, np.ndarray]:
  with np.load(folder / 'model.npz', allow_pickle=False) as file:
    return {name: file[name] for name in file.files}


def simulated(federation: Federation, path: pathlib.Path) -> dict[str, float]:
  """Accuracies of the run and of the same plan in one process, on held-out examples.

  With such examples of the silos, their mean over silos.
  """
  settings = settings_lib.of_configuration(
      TrainSettings, federation.agreement.configuration['settings'],
      data_path=str(path), output_dir=str(federation.folder / 'simulated'), **{
          name: federation.flags[name] for name in ('public_bounds',)
          if name in federation.flags})
  experiment = run_lib.TrainExperiment(settings)
  experiment.quiet = True
  experiment.run()
  task, found = experiment.build_task(), {}
  for name in ('run', 'simulated'):
    arrays = model(federation.folder / name)
    weights = [arrays[key] for key in task.model.named(task.model.initial_weights(0))]
    of_silos = report.by_silo(task, weights) if task.held_out_of_clients else {}
    found[name] = float(np.mean(list(of_silos.values()))) if of_silos else (
        evaluation.Evaluator(task.model, task.held_out).evaluate(weights)[
            next(iter(task.held_out))]['accuracy'])
  return found


def run(case: Case, arrays: Mapping[str, np.ndarray], folder: pathlib.Path, *,
        leave: int, **more: object) -> dict:
  """Runs a federation and its simulation; returns what was measured."""
  names = [*_PORTS, *sorted(set(map(str, arrays[f'{case.field}_train'])))]
  with Network(names) as network:
    federation = Federation(case, arrays, folder, network, **more)
    ended, said, memory = threading.Event(), [], []
    start = time.monotonic()
    with federation.running():
      thread = threading.Thread(target=lambda: said.extend(_disturb(
          federation, np.random.default_rng(7), ended, leave)), daemon=True)
      thread.start()
      leader, before = federation.processes[parties.LEADER], 0
      while leader.poll() is None:
        time.sleep(0.2)
        if (done := federation.rounds()) > before:
          before = done
          memory.append(federation.memory())
      seconds = time.monotonic() - start
      ended.set()
      thread.join()
      traffic = {name: network.traffic(name) for name in names}
    if leader.returncode:
      raise SystemExit((folder / 'leader.txt').read_text(encoding='utf-8')[-2000:])
  path = folder / 'data' / 'all.npz'
  np.savez(path, **arrays)
  accuracies = simulated(federation, path)
  summary = files.read_json(folder / 'run' / files.SUMMARY)
  ours, theirs = model(folder / 'run'), model(folder / 'simulated')
  rounds = federation.agreement.rounds
  of_sites = [traffic[name] for name in federation.sites]
  return {
      'accuracy': accuracies['run'], 'simulated': accuracies['simulated'],
      'same to the last bit': all(
          np.array_equal(ours[name], theirs[name]) for name in theirs),
      'epsilon': summary['epsilon'], 'epsilon_server': summary['epsilon_server'],
      'secure aggregation': summary['secure_aggregation'], 'killed': said,
      'namespaces': network.is_separate, 'seconds a round': seconds / rounds,
      'bytes that a site sends a round': float(np.median([x[0] for x in of_sites])) / rounds,
      'bytes that the helper sends a round': traffic[parties.HELPER][0] / rounds,
      'least bytes of a vector': federation.agreement.params.bits
                                 * federation.agreement.length / 8,
      'leader, MiB after each tenth of the rounds': [
          round(x / 2**20) for x in memory[::max(1, len(memory) // 10)]]}


def main(arguments: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--case', choices=sorted(CASES), default='hearts')
  parser.add_argument('--data_dir', type=pathlib.Path, help='folder of the data files')
  parser.add_argument('--folder', type=pathlib.Path, required=True,
                      help='new folder of all files')
  parser.add_argument('--quick', action='store_true', help='a seeded run of three sites, '
                      'with embedded digits')
  given = parser.parse_args(arguments)
  case = CASES['quick' if given.quick else given.case]
  arrays = arrays_of(case, given.data_dir, given.folder)
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  third = max(1, len(set(arrays[f'{case.field}_train'])) // 3)
  for name, leave, more in (('seeded', 0, {'seed': 3}), ('private', third, {}))[
      :1 if given.quick else 2]:
    shutil.rmtree(given.folder / name, ignore_errors=True)
    found = run(case, arrays, given.folder / name, leave=leave, **more)
    print(json.dumps({'run': name, **found}, indent=2), flush=True)
    if name == 'seeded' and not found['same to the last bit']:
      return 1
  return 0


if __name__ == '__main__':
  sys.exit(main())
