"""Speed of a round of federated averaging, against TFF and pfl.

  python -m benchmarks.round [--quick] [--json=FILE] [--repeats=N] [--no_pfl]
  python -m benchmarks.round --bands=5        # ours alone: rows of sums against sums
  python -m benchmarks.round --reading        # ours alone: SQLite, by chunk and by client
  python -m benchmarks.round --memory_of=process --only=tags_large   # 50,000,500

Milliseconds per client of a plain federated mean and of a mean under distributed
Skellam noise: ours (rounds of the trainer, with its own defaults, without commit and
evaluation), TFF's `build_unweighted_fed_avg` (plain, and with
`tff.learning.ddp_secure_aggregator`) and pfl 0.6 with its central Gaussian mechanism
and the number of threads that it is fastest with, alternately, with the same synthetic
clients; and the peak memory. See benchmarks/README.md.
"""

import argparse
from collections.abc import Sequence
import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

# TFF's factory builds computations deeper than the parser's default limit.
from google._upb import _message
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks import measure
from benchmarks import tff_worker
from benchmarks.round_networks import NETWORKS
from tasks import task as task_lib
from tasks.sources import records, rows as rows_lib, sqlite, store
from tff_pipelines.accounting.guarantees import mechanisms
from tff_pipelines.fedavg import columns
from tff_pipelines.fedavg import local_training
from tff_pipelines.fedavg import plan as plan_lib
from tff_pipelines.fedavg import run as run_lib
from tff_pipelines.fedavg.server_optimizer import ServerConfig
from tff_pipelines.simulation import contexts

BATCH = 20
CLIP, NOISE_MULTIPLIER, BITS, ROW_BITS = 0.1, 0.5, 16, 20
LEARNING_RATE = 0.05
PFL = ('pfl==0.6.0', 'torch==2.13.0')
PFL_FOLDER = '.venv-pfl'
PFL_MODELS = ('cnn', 'softmax')
# Rounds between two turns of a client, where clients take turns.
MOST_BANDS = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """A model and its clients.

  Attributes:
    model: A key of NETWORKS.
    clients: Number of clients.
    examples: Examples of each client.
    target_tff: Ratio to be met against TFF; None for none.
    target_plain: Maximum ratio of Skellam over our plain mean; None for none.
    by_processor: Whether the ratios against TFF and pfl are those of TARGETS.
  """

  model: str
  clients: int
  examples: int
  target_tff: float | None = None
  target_plain: float | None = None
  by_processor: bool = False

  @property
  def sizes(self) -> str:
    return f'{self.model} {self.clients} x {self.examples}'

  @property
  def targets(self) -> tuple[float | None, float | None]:
    """Ratios to be met against TFF and against pfl; None for none."""
    if not self.by_processor:
      return self.target_tff, None
    cpu = measure.machine()['cpu']
    return next((targets for maker, targets in TARGETS.items() if maker in cpu),
                (None, None))


# Minimum ratios against TFF and against pfl, by the maker of the processor: its vector
# instructions speed up the peers differently.
TARGETS = {'Intel': (4.0, 1.3), 'AMD': (3.8, 1.5)}
SETTINGS = (
    Setting(model='cnn', clients=100, examples=100, target_plain=1.35,
            by_processor=True),
    Setting(model='softmax', clients=1000, examples=20, target_tff=90,
            target_plain=1.8),
    Setting(model='lstm', clients=20, examples=20),
    Setting(model='tags', clients=20, examples=50),
)
LARGE_SETTINGS = (Setting(model='tags_large', clients=20, examples=50),)
QUICK_SETTINGS = (Setting(model='softmax', clients=6, examples=20),)
# Maximum ratio of a round's time with clients that are read by the chunk.
READING_TARGET = 0.7
# Maximum ratio of a round's time by rows of sums to that without bands.
BANDS_TARGET = 1.15


def build_clients(setting: Setting) -> list[dict[str, np.ndarray]]:
  rng = np.random.default_rng(0)
  examples = NETWORKS[setting.model].examples
  return [examples(rng, setting.examples) for _ in range(setting.clients)]


def our_round(setting: Setting, clients, private: bool,
              column: tuple[int, ...] | None = None,
              path: pathlib.Path | None = None, stored: bool = False):
  """One round of the trainer: sampling, reading and the federated computation.

  With a `column` the clients take turns, MOST_BANDS rounds apart. With a `path` they are
  read from this file: those of a chunk together (`stored`), or each by the graph.
  """
  model = NETWORKS[setting.model].model()
  groups = 1 if column is None else MOST_BANDS
  clients = clients * groups
  examples = {name: np.concatenate([c[name] for c in clients]) for name in clients[0]}
  source = records.ArraysByClient(
      examples, np.repeat(np.arange(len(clients)), setting.examples))
  if path is not None:
    if not path.exists():
      store.write(path, {'train': rows_lib.of_source(source)}, fields=None,
                  skips=task_lib.Skips())
    source = sqlite.SqliteSource(path, 'train')
  task = task_lib.Task(name=setting.model, model=model, held_out={},
                       privacy_unit='one client', train=source)
  mechanism = mechanisms.SumMechanism(
      mechanism='skellam' if private else 'none', dimension=model.parameter_count(),
      cohort_size=setting.clients, population=len(clients), rounds=10**6, **(
          dict(clip=CLIP, noise_multiplier=NOISE_MULTIPLIER,
               bits=BITS if column is None else ROW_BITS)
          if private else {}), **(
              {} if column is None else dict(sampling='turns', column=column)))
  rounds = run_lib.build_rounds(
      task, plan_lib.FedAvgPlan.calibrate(mechanism),
      model.initial_weights(0), server=ServerConfig(learning_rate=1.0),
      local=local_training.LocalConfig(
          learning_rate=LEARNING_RATE, batch_size=BATCH, epochs=1),
      rounds_per_evaluation=10**6, by_id=path is not None, stored=stored)
  state = rounds.initial_state(resumed=False)
  index = 0

  def run():
    nonlocal state, index
    index += 1
    state = rounds.step(state, index).state

  return run


def their_round(setting: Setting, clients, private: bool):
  """One round of TFF's own federated averaging."""
  network = NETWORKS[setting.model]
  pairs = [network.pairs(c) for c in clients]
  spec = tuple(tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in pairs[0])
  aggregator = None
  if private:
    aggregator = tff.learning.ddp_secure_aggregator(
        noise_multiplier=NOISE_MULTIPLIER,
        expected_clients_per_round=setting.clients, bits=BITS,
        rotation_type='hd')
  process = tff.learning.algorithms.build_unweighted_fed_avg(
      lambda: tff.learning.models.from_keras_model(
          network.keras(), input_spec=spec, loss=network.loss()),
      client_optimizer_fn=tff.learning.optimizers.build_sgdm(LEARNING_RATE),
      model_aggregator=aggregator)
  data = [tf.data.Dataset.from_tensor_slices(pair).batch(BATCH) for pair in pairs]
  holder = [process.initialize()]

  def run():
    holder[0] = process.next(holder[0], data).state

  return run


class PflRound:
  """One round of pfl in a process of its own."""

  def __init__(self, python: str, setting: Setting, threads: int):
    self._process = subprocess.Popen(
        [python, str(pathlib.Path(__file__).with_name('pfl_peer.py'))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True)
    self._send(json.dumps(dict(
        model=setting.model, clients=setting.clients, examples=setting.examples,
        batch=BATCH, threads=threads)))
    self.parameters = json.loads(self._process.stdout.readline())['parameters']

  def _send(self, line: str) -> None:
    self._process.stdin.write(line + '\n')
    self._process.stdin.flush()

  def __call__(self) -> None:
    self._send('go')
    for line in self._process.stdout:
      if line == 'done\n':
        return
    raise OSError('pfl ended')

  def stop(self) -> None:
    self._process.stdin.close()
    self._process.stdout.close()
    self._process.wait(timeout=30)


def fastest_pfl(python: str, setting: Setting) -> PflRound:
  """Starts pfl with the number of threads with which it is fastest.

  PyTorch divides even the smallest operations between its threads, which wait for each
  other: with few cores, or on a busy machine, one thread is faster.
  """
  rounds = {threads: PflRound(python, setting, threads)
            for threads in sorted({1, os.cpu_count() or 1})}
  times = measure.in_turns(rounds, repeats=2, warm_ups=1)
  best = min(rounds, key=lambda threads: times[threads].medians()[0])
  for threads, other in rounds.items():
    print(f'pfl, {threads} thread{"s" * (threads > 1)}: '
          f'{times[threads].medians()[0] / setting.clients * 1e3:.3f} ms/client',
          flush=True)
    if threads != best:
      other.stop()
  return rounds[best]


def pfl_python(given: str | None, *, install: bool = True) -> str | None:
  """The Python with pfl; None if there is none.

  Args:
    given: Path of one; None for an environment of the project's own.
    install: Whether to create that environment if it does not exist.
  """
  if given:
    return given
  folder = pathlib.Path(__file__).absolute().parents[1] / PFL_FOLDER
  python = folder / 'bin' / 'python'
  if not (folder / 'ready').exists():
    if not install:
      print('pfl is left out, as it is not installed', flush=True)
      return None
    print(f'installing {" ".join(PFL)} into {PFL_FOLDER}', flush=True)
    try:
      subprocess.run([sys.executable, '-m', 'venv', str(folder)], check=True)
      subprocess.run([str(python), '-m', 'pip', 'install', '--quiet', *PFL],
                     check=True)
    except subprocess.CalledProcessError as error:
      print(f'pfl is left out, as it could not be installed: {error}', flush=True)
      return None
    (folder / 'ready').touch()
  return str(python)


def rows_of(setting: Setting, times: dict[str, measure.Times]) -> list[measure.Row]:
  """The table of one setting, in wall and in processor time."""
  rows = []
  for i, unit in enumerate(('ms/client', 'cpu-ms/client')):
    of = {name: of_name.medians()[i] / setting.clients * 1e3
          for name, of_name in times.items()}

    def row(name, ours, peer, **target):
      rows.append(measure.Row(
          name=name, sizes=setting.sizes, ours=of[ours],  # pylint: disable=cell-var-from-loop
          peer=of[peer], unit=unit, **target))  # pylint: disable=cell-var-from-loop

    row('plain mean, TFF', 'plain', 'tff plain')
    target_tff, target_pfl = setting.targets
    row('Skellam, TFF ddp', 'skellam', 'tff skellam', target=target_tff)
    if 'pfl' in times:
      row('Skellam, pfl central Gaussian', 'skellam', 'pfl', target=target_pfl)
    # Inverted: the ratio is to be small.
    row('Skellam over our plain mean', 'plain', 'skellam',
        target=setting.target_plain, smaller_is_met=True)
  return rows


def _within(context, build, *arguments, **keywords):
  """The function that `build` returns; both are called in a context."""
  with contexts.installed(context):
    run = build(*arguments, **keywords)

  def run_within():
    with contexts.installed(context):
      run()

  return run_within


def rounds(setting: Setting, repeats: int, python: str | None) -> list[measure.Row]:
  """The rows of one setting, with pfl if there is a Python for it."""
  clients = build_clients(setting)
  with contextlib.ExitStack() as stack:
    # Each as its users run it: ours in this process, TFF's in TFF's worker.
    ours, theirs = (stack.enter_context(module.started())
                    for module in (contexts, tff_worker))
    functions = {
        'plain': _within(ours, our_round, setting, clients, private=False),
        'tff plain': _within(theirs, their_round, setting, clients, private=False),
        'skellam': _within(ours, our_round, setting, clients, private=True),
        'tff skellam': _within(theirs, their_round, setting, clients, private=True),
    }
    if python and setting.model in PFL_MODELS:
      functions['pfl'] = fastest_pfl(python, setting)
      stack.callback(functions['pfl'].stop)
    rows = rows_of(setting, measure.in_turns(
        functions, repeats, warm_ups=min(repeats, 2)))
  for row in rows:
    measure.show(row)
  return rows


def bands(setting: Setting, repeats: int, count: int) -> list[measure.Row]:
  """A round of ours by rows of `count` sums against one of sums alone."""
  column = columns.best(columns.prefix_sum(50), count)
  return _compared(setting, repeats, f'rows of {count} over sums', BANDS_TARGET,
                   dict(column=(1,)), dict(column=column))


def readings(setting: Setting, repeats: int) -> list[measure.Row]:
  """A round of clients of a file that are read by the chunk against each alone."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'clients.sqlite')
    return _compared(setting, repeats, 'read by the chunk over one by one',
                     READING_TARGET, dict(path=path), dict(path=path, stored=True))


def _compared(setting: Setting, repeats: int, name: str, target: float,
              first: dict[str, Any], second: dict[str, Any]) -> list[measure.Row]:
  """Rounds of ours with the second arguments over those with the first."""
  clients = build_clients(setting)
  with contexts.started() as ours:
    times = measure.in_turns({
        number: _within(ours, our_round, setting, clients, private=True, **arguments)
        for number, arguments in enumerate((first, second))},
                             repeats, warm_ups=min(repeats, 2))
  rows = []
  for which, summarise in (('median', statistics.median), ('minimum', min)):
    for unit, of in (('ms/client', lambda t: t.wall),
                     ('cpu-ms/client', lambda t: t.cpu)):
      of_first, of_second = (summarise(of(times[number])) / setting.clients * 1e3
                             for number in range(2))
      # Inverted: the ratio is to be small.
      rows.append(measure.Row(
          name=f'{name}, {which}', sizes=setting.sizes, ours=of_first,
          peer=of_second, unit=unit, target=target, smaller_is_met=True))
  for row in rows:
    measure.show(row)
  return rows


def memory_of(whose: str, setting: Setting, repeats: int) -> float:
  """Peak GB of a process that runs private rounds and nothing else.

  'ours' and 'tff' are of the worker alone; 'process' is ours without a worker, with
  Python, TensorFlow and the clients' data.
  """
  clients = build_clients(setting)
  worker = whose != 'process'
  with (tff_worker if worker else contexts).started() as context, (
      contexts.installed(context)):
    build = their_round if whose == 'tff' else our_round
    run = build(setting, clients, private=True)
    for _ in range(repeats):
      run()
    return measure.peak_bytes(worker) / 1e9


def memory(setting: Setting, repeats: int, quick: bool) -> list[measure.Row]:
  """The rows of `memory_of`, each in a process of its own."""
  of = {}
  for whose in ('ours', 'tff', 'process'):
    command = [sys.executable, '-m', 'benchmarks.round', f'--memory_of={whose}',
               f'--repeats={repeats}'] + ['--quick'] * quick
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    of[whose] = float(done.stdout.split()[-1])
  rows = [
      measure.Row(name='peak memory of the worker', sizes=setting.sizes,
                  ours=of['ours'], peer=of['tff'], unit='GB'),
      measure.Row(name='peak memory without a worker', sizes=setting.sizes,
                  ours=of['process'], peer=None, unit='GB')]
  for row in rows:
    measure.show(row)
  return rows


def main(arguments: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
  parser.add_argument('--quick', action='store_true', help='small, to see it run; '
                      'with pfl only if it is installed')
  parser.add_argument('--json', help='file for the rows')
  parser.add_argument('--repeats', type=int, default=7, help='turns, >= 1')
  parser.add_argument('--pfl_python', help='a Python that has pfl installed')
  parser.add_argument('--no_pfl', action='store_true', help='leave pfl out')
  parser.add_argument('--no_memory', action='store_true', help='no peak memory')
  parser.add_argument('--memory_of', choices=('ours', 'tff', 'process'),
                      help='print this alone')
  parser.add_argument('--bands', type=int, help='rows of this many sums against sums '
                      f'alone, at most {MOST_BANDS}, and nothing else')
  parser.add_argument('--reading', action='store_true', help='clients of a file read by '
                      'the chunk against each alone, and nothing else')
  parser.add_argument('--only', help='settings whose sizes start like this')
  flags = parser.parse_args(arguments)
  _message.SetAllowOversizeProtos(True)
  tf.get_logger().setLevel('CRITICAL')  # Of what the peers leave unused.
  of_memory = QUICK_SETTINGS[0] if flags.quick else SETTINGS[0]
  if flags.memory_of:
    of_memory = next((setting for setting in SETTINGS + LARGE_SETTINGS
                      if flags.only and setting.sizes.startswith(flags.only)), of_memory)
    print(memory_of(flags.memory_of, of_memory, flags.repeats))
    return
  alone = flags.bands or flags.reading
  python = None if flags.no_pfl or alone else pfl_python(
      flags.pfl_python, install=not flags.quick)
  repeats = 1 if flags.quick else flags.repeats
  measure.heading()
  rows = []
  for setting in QUICK_SETTINGS if flags.quick else SETTINGS:
    if setting.sizes.startswith(flags.only or ''):
      rows += (bands(setting, repeats, flags.bands) if flags.bands else
               readings(setting, repeats) if flags.reading else
               rounds(setting, repeats, python))
  if not (flags.no_memory or alone):
    rows += memory(of_memory, 2 if flags.quick else 3, flags.quick)
  measure.write(rows, flags.json)


if __name__ == '__main__':
  main()
