"""Runs programs in the tree that is on the path, many in one process.

A script of its own, which imports nothing of tests: tests/recorder starts it with the
tree of any revision on the path. It imports TensorFlow once and forks itself; a child
runs cases of one program one after another, which spares them most of TensorFlow's
tracing.
"""

import contextlib
import gc
import hashlib
import importlib
import json
import os
import pathlib
import pkgutil
import re
import runpy
import signal
import sys
import time
import traceback
from typing import Any, Callable, Sequence
import warnings

import numpy as np

AT_ONCE = 2
PROBE = 'probe'  # Instead of a program: values that no program writes to a file.
_SECONDS = 300  # A case that takes longer is stopped, with its process.


# Cohorts and partitions, from the functions that sample them.


def _looked_up(name: str, modules: Sequence[str], also: str = '') -> Any:
  """Finds a function or class in the first of the modules that has it.

  Otherwise in the file that defines it and contains `also`, wherever it was moved.
  """
  for module in modules:
    with contextlib.suppress(ImportError, AttributeError):
      return getattr(importlib.import_module(module), name)
  for package in ('tasks', 'tff_pipelines'):
    (folder,) = importlib.import_module(package).__path__
    for path in sorted(pathlib.Path(folder).rglob('*.py')):
      code = path.read_text(encoding='utf-8')
      if re.search(rf'^(def|class) {name}\b', code, re.M) and also in code:
        parts = path.relative_to(folder).with_suffix('').parts
        return getattr(importlib.import_module('.'.join((package, *parts))), name)
  raise ImportError(f'{name} is in none of {", ".join(modules)}, nor elsewhere')


# Old name of an argument -> the name that it has in later revisions.
_RENAMED = {
    'num_agents': 'num_clients', 'classes_per_agent': 'labels_per_client',
    'records_per_agent': 'records_per_client', 'owners': 'num_clients',
    'records_per_owner': 'records_per_client', 'parties': 'num_clients'}


def _called(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
  """Calls a function with arguments by their old names, or else by their new ones."""
  try:
    return function(*args, **named)
  except (TypeError, ValueError):
    new = {_RENAMED.get(name, name): value for name, value in named.items()}
    if new == named:
      raise
    return function(*args, **new)


def _digest(*arrays: Any) -> str:
  digest = hashlib.sha256()
  for array in map(np.asarray, arrays):
    digest.update(f'{array.dtype} {array.shape}'.encode())
    digest.update(np.ascontiguousarray(array).tobytes() if array.dtype != object
                  else repr(array.tolist()).encode())
  return digest.hexdigest()[:16]


def _digest_of_lines(lines: Sequence[str]) -> str:
  return hashlib.sha256('\n'.join(lines).encode()).hexdigest()


def _sampler(sampling: str, **arguments: Any) -> Any:
  """Returns the sampler of the clients of rounds."""
  with contextlib.suppress(ImportError):
    from tff_pipelines.accounting.sampling import schemes  # pylint: disable=g-import-not-at-top
    return schemes.build(sampling, **arguments)
  sampler = _looked_up('CohortSampler', (
      'tff_pipelines.simulation.cohorts', 'tff_pipelines.experiment.cohorts'))
  return sampler(sampling=sampling, **arguments)


def _probe_cohorts() -> list[str]:
  key = _looked_up('client_key', (
      'tff_pipelines.simulation.contexts', 'tff_pipelines.simulation.cohorts',
      'tff_pipelines.experiment.cohorts'))
  lines = []
  for sampling, cohort in (('poisson', 6.5), ('fixed', 6), ('none', 20)):
    for seed in (0, 3):
      clients = _sampler(sampling, population=20, cohort_size=cohort,
                         simulation_seed=seed)
      for number in (1, 2, 3):
        lines.append(f'{sampling}, seed {seed}, round {number}: '
                     f'{clients.sample(number).tolist()}')
  large = _sampler('poisson', population=10**5, cohort_size=1000, simulation_seed=1)
  lines.append(f'large: {_digest(large.sample(7))}')
  lines += [f'key of {words}: {key(*words).tolist()}'
            for words in ((0, 1, 0), (3, 2, 19), (3, 2, 18))]
  return lines


def _probe_partitions() -> list[str]:
  modules = ('tasks.partition', 'tasks.sources.partition')
  split = _looked_up('split', modules, 'dirichlet')
  labels = np.random.default_rng(0).integers(10, size=600)
  lines = []
  for partition, options in (
      ('dirichlet', {}), ('dirichlet', {'dirichlet_alpha': 0.1}), ('iid', {}),
      ('labels', {}), ('labels', {'labels_per_client': 3}), ('size', {}),
      ('size', {'size_exponent': 0.5})):
    for seed in (0, 1):
      clients = split(labels, partition=partition, num_clients=15, seed=seed, **options)
      lines.append(f'{partition} {options}, seed {seed}: '
                   f'{np.bincount(clients).tolist()} {_digest(clients)}')
  modules = ('tasks.voting_partition', 'tasks.voting.partition',
             'tasks.sources.partition')
  for seed in (0, 1):
    deal = _called(_looked_up('few_classes', modules), labels, num_agents=8,
                   classes_per_agent=4, records_per_agent=50, seed=seed)
    lines.append(f'few classes, seed {seed}: {_digest(*deal)}')
    deal = _called(_looked_up('evenly', modules), 101, num_agents=7, seed=seed)
    lines.append(f'evenly, seed {seed}: {_digest(*deal)}')
  return lines


def _probe_vectors() -> list[str]:
  clients = _looked_up('clients', ('tasks.mean_estimation', 'tasks.mean'))
  return [f'{vectors} {repeat}: ' + _digest(clients(
      num_clients=5, dimension=7, radius=2.0, seed=3, repeat=repeat, vectors=vectors))
          for vectors in ('sphere', 'identical') for repeat in (0, 1)]


def _source_lines(source, but: tuple[str, ...] = ()) -> list[str]:
  lines = []
  for client in source.client_ids:
    examples = sorted(source.examples(client).items())
    lines.append(f'{client}: ' + _digest(
        *(array for name, array in examples if name not in but)))
  return lines


def _probe_voting() -> list[str]:
  build = _looked_up('build', ('tasks.voting', 'tasks.voting.task'), 'VotingTask')
  task = _called(build, 'embedded', num_agents=6, public_records=60, data_seed=1)
  return [*_source_lines(task.agents),
          f'public: {_digest(task.public, task.public_labels)}',
          f'test: {_digest(task.test["x"], task.test["y"])}']


def _probe_ldp() -> list[str]:
  build = _looked_up('build', ('tasks.ldp_distillation', 'tasks.ldp.task', 'tasks.ldp'),
                 'DistillationTask')
  lines = []
  for options in ({}, {'partition': 'dirichlet', 'dirichlet_alpha': 0.5},
                  {'stand_ins': 3, 'records_per_owner': 20, 'data_seed': 1}):
    task = _called(build, 'digits', owners=8, validation_records=60, **options)
    lines += [f'{options}, owner {i}: {_digest(held.x, held.y)}'
              for i, held in enumerate(task.holdings)]
    lines.append(f'{options}, pool and test: '
                 f'{_digest(task.public, task.validation.y, task.test.y)}')
  return lines


def _probe_fedmd() -> list[str]:
  build = _looked_up('build', ('tasks.fedmd', 'tasks.fedmd.task'), 'FedMdTask')
  lines = []
  for split in ('iid', 'noniid'):
    task = _called(build, 'digits', split=split, parties=4, data_seed=1,
                   architectures=('dense2', 'dense3'))
    lines += [f'{split}, party {i}, architecture {party.architecture}: '
              f'{_digest(party.private.x, party.private.y)}'
              for i, party in enumerate(task.parties)]
    lines.append(f'{split}, public: {_digest(task.public.x, task.public.y)}')
  return lines


def _probe_clients() -> list[str]:
  build = _looked_up('build', ('tasks.registry',), 'open_raw')
  lines = []
  for name, options in (
      ('emnist', {'num_clients': 12}),
      ('emnist', {'partition': 'size', 'data_seed': 2}),
      ('shakespeare', {'num_clients': 12, 'sequence_length': 20}),
      ('stackoverflow_tag', {'num_clients': 12, 'vocabulary_size': 30}),
      ('stackoverflow_word', {'num_clients': 12, 'vocabulary_size': 30})):
    task = build(name, **options)
    # Embedded digits are enlarged in floats, which CPUs round differently.
    but = ('x',) if name == 'emnist' else ()
    lines.append(
        f'{name} {options}: ' + _digest_of_lines(_source_lines(task.train, but)))
    lines += [f'{name} held out, {key}: '
              + _digest(*(array for feature, array in sorted(examples.items())
                          if feature not in but))
              for key, examples in task.held_out.items()]
  return lines


PROBES: dict[str, Callable[[], list[str]]] = {
    'cohorts': _probe_cohorts, 'partitions': _probe_partitions,
    'vectors of the mean': _probe_vectors, 'records of agents': _probe_voting,
    'records of owners': _probe_ldp, 'records of parties': _probe_fedmd,
    'examples of clients': _probe_clients}


# Runs.


class _Captured(BaseException):
  """Ends a module that hands its main function to absl."""


class _Program:
  """A program that can be run many times in a process, whose imports stay."""

  def __init__(self, name: str):
    """Initializes it; `name` is its module or PROBE."""
    self._name = name
    # The arguments of absl's run: main function, parser, and flags as defined.
    self._main = None

  def run(self, command: Sequence[str]) -> None:
    """Runs it with a command line; ends by SystemExit or returns."""
    sys.argv = list(command)
    if self._name == PROBE:
      pathlib.Path('probes.json').write_text(
          json.dumps({name: probe() for name, probe in PROBES.items()}))
      return
    if self._main is None:
      self._execute()
    if self._main is not None:
      self._start()

  def _execute(self) -> None:
    """Runs the module, except for a main function that absl would run."""
    # pylint: disable=g-import-not-at-top
    from absl import app
    from absl.testing import flagsaver
    original = app.run

    def capture(main, argv=None, flags_parser=None):
      del argv  # Unused.
      self._main = main, flags_parser, flagsaver.save_flag_values()
      raise _Captured()

    app.run = capture
    try:
      runpy.run_module(self._name, run_name='__main__', alter_sys=True)
    except _Captured:
      pass
    finally:
      app.run = original

  def _start(self) -> None:
    """Runs the main function; its flags could not be defined twice."""
    # pylint: disable=g-import-not-at-top
    from absl import app
    from absl import flags
    from absl.testing import flagsaver
    main, parser, saved = self._main
    flagsaver.restore_flag_values(saved)
    flags.FLAGS.unparse_flags()
    app.run(main, flags_parser=parser)


def _redirect(folder: pathlib.Path) -> None:
  """Redirects the output of the process to files of a folder."""
  for number, path, mode in (
      (0, os.devnull, os.O_RDONLY),
      (1, folder / 'stdout', os.O_WRONLY | os.O_CREAT),
      (2, folder / 'stderr', os.O_WRONLY | os.O_CREAT)):
    handle = os.open(path, mode, 0o644)
    os.dup2(handle, number)
    os.close(handle)
  sys.stdin = open(0, encoding='utf-8', closefd=False)
  sys.stdout = open(1, 'w', encoding='utf-8', closefd=False)
  sys.stderr = open(2, 'w', encoding='utf-8', buffering=1, closefd=False)


def _code_of(program: _Program, command: Sequence[str]) -> int:
  """Runs a program and returns its exit code; prints its traceback."""
  try:
    program.run(command)
  except SystemExit as ending:
    return ending.code if isinstance(ending.code, int) else int(bool(ending.code))
  except BaseException:  # pylint: disable=broad-except
    traceback.print_exc()
    return 1
  return 0


def _become(group: Sequence[dict[str, Any]], results: int) -> None:
  """Runs the cases of one program in this forked process; never returns.

  Args:
    group: The cases: name, folder and command.
    results: File descriptor; gets a line for each case that ended.
  """
  program = _Program(group[0]['command'][0])
  for case in group:
    signal.alarm(_SECONDS)
    start = time.monotonic()
    os.chdir(case['folder'])
    _redirect(pathlib.Path(case['folder']))
    code = _code_of(program, case['command'])
    sys.stdout.flush()
    sys.stderr.flush()
    line = json.dumps({'name': case['name'], 'code': code,
                       'seconds': time.monotonic() - start})
    os.write(results, line.encode() + b'\n')
  os._exit(0)  # Finalizing the inherited interpreter would take a second.


def _import() -> None:
  """Imports the modules that programs use, except for those that define flags."""
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    for name in ('tensorflow_federated', 'tensorboard.plugins.scalar.summary_v2',
                 'sklearn.datasets', 'sklearn.decomposition', 'scipy.stats',
                 'matplotlib.pyplot'):
      importlib.import_module(name)
    for package in ('aggregators', 'tff_pipelines.accounting'):
      path = importlib.import_module(package).__path__
      for module in pkgutil.iter_modules(path, f'{package}.'):
        importlib.import_module(module.name)
  gc.freeze()  # Children need not copy what they collect.


def main(groups: list[list[dict[str, Any]]]) -> None:
  """Runs groups of cases, two at a time; writes a JSON line for each case."""
  _import()
  results = os.dup(1)
  done, record = os.pipe()
  os.set_blocking(done, False)
  waiting, running, text = list(groups), {}, ''
  while waiting or running:
    while waiting and len(running) < AT_ONCE:
      group = waiting.pop(0)
      pid = os.fork()
      if pid == 0:
        _become(group, record)
      running[pid] = group
    time.sleep(0.05)
    pid, status = os.waitpid(-1, os.WNOHANG)
    with contextlib.suppress(BlockingIOError):
      text += os.read(done, 2**20).decode()
    *lines, text = text.split('\n')
    for line in lines:
      os.write(results, line.encode() + b'\n')
      name = json.loads(line)['name']
      for group in running.values():
        group[:] = [case for case in group if case['name'] != name]
    if not pid:
      continue
    left = running.pop(pid)
    if left:  # The first of them ended the process.
      failed = {'name': left[0]['name'], 'seconds': _SECONDS,
                'code': os.waitstatus_to_exitcode(status)}
      os.write(results, json.dumps(failed).encode() + b'\n')
      waiting.append(left[1:])
      waiting = [group for group in waiting if group]


if __name__ == '__main__':
  main(json.load(sys.stdin))
