"""Records a second of steps on gradients that are clipped one by one, as in DP-SGD.

  python -m benchmarks.record_gradients [--quick] [--json=FILE] [--repeats=N]
      [--only=MODEL] [--threads 1 2] [--opacus_python=PYTHON] [--jax_python=PYTHON]

Ours are steps of silos (`fedavg.silos`): with the server's Gaussian noise, and with
Skellam noise, for which each record's gradient is encoded by kernels; alternately with
Opacus and jax_privacy, in Pythons of their own (`record_gradients_peers`). Batch, layers
and clip are the same, in float32. Each is given the form and the number of threads that
it is fastest with; a silo of ours is a thread.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import functools
import json
import os
import pathlib
import subprocess
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.round_networks import NETWORKS
from tasks import task as task_lib
from tasks.sources import records
from tff_pipelines.accounting.guarantees import mechanisms
from tff_pipelines.fedavg import plan as plan_lib
from tff_pipelines.fedavg import run as run_lib
from tff_pipelines.fedavg.server_optimizer import ServerConfig
from tff_pipelines.simulation import contexts

BITS = 18
# Model -> records of a step, and steps of a turn.
SETTINGS = {'softmax': (512, 20), 'cnn_small': (128, 4), 'cnn': (128, 1)}
QUICK = {'softmax': (16, 2)}
# Peer -> its program and forms. Opacus' ghost clipping has no gradients of records.
# Other sizes of jax_privacy's microbatches take from 2 to 500 times as long.
PEERS = {
    'Opacus': ('opacus', lambda model: [dict(mode='hooks'), dict(mode='ew')]),
    'Opacus, ghost': ('opacus', lambda model: [dict(mode='ghost')]),
    'jax_privacy': ('jax', lambda model: [dict(microbatch=size) for size in {
        'softmax': (1, 16), 'cnn_small': (None,), 'cnn': (1, 16)}[model]])}
KINDS = 'wall', 'cpu'
OURS = {'gaussian': 'ours', 'skellam': f'ours, Skellam {BITS} bits'}


def our_steps(model_name: str, batch: int, steps: int, mechanism: str, silos: int):
  """A function that takes steps of silos that sample all of their records."""
  network = NETWORKS[model_name]
  model = network.model()
  task = task_lib.Task(
      name=model_name, model=model, held_out={}, privacy_unit='one record',
      train=records.ArraysByClient(
          network.examples(np.random.default_rng(0), batch), np.arange(batch) % silos))
  plan = plan_lib.FedAvgPlan.calibrate(mechanisms.SumMechanism(
      mechanism=mechanism, dimension=model.parameter_count(), cohort_size=batch,
      population=batch, rounds=10**6, sampling='records', silos=silos, clip=1.0,
      noise_multiplier=1.0, **dict(bits=BITS) if mechanism == 'skellam' else {}),
                                       delta=1e-5)
  rounds = run_lib.build_steps(
      task, plan, model.initial_weights(0), rounds_per_evaluation=10**9,
      server=ServerConfig(learning_rate=1e-3))
  state, index = rounds.initial_state(resumed=False), 0

  def run():
    nonlocal state, index
    for _ in range(steps):
      index += 1
      state = rounds.step(state, index).state

  return run


class Peer:
  """Steps of a peer in a process of its own, with its `parameters` and `versions`."""

  def __init__(self, python: str, program: str, steps: int, setting: Mapping[str, Any]):
    self._process = subprocess.Popen(
        [python, str(pathlib.Path(__file__).with_name('record_gradients_peers.py')),
         program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL)
    self._steps = steps
    answer = json.loads(self._ask(json.dumps(setting)))
    self.parameters, self.versions = answer['parameters'], answer['versions']

  def _ask(self, line: str) -> str:
    self._process.stdin.write(line + '\n')
    self._process.stdin.flush()
    if answer := self._process.stdout.readline():
      return answer
    raise OSError('the peer ended')

  def __call__(self) -> None:
    self._ask(str(self._steps))

  def stop(self) -> None:
    self._process.communicate()


@contextlib.contextmanager
def fastest(forms: Mapping[str, Callable[[], Any]]) -> Iterator[tuple[str, Any]]:
  """The name and function of the fastest form, of functions that build them."""
  best, stops = None, contextlib.ExitStack()
  with stops:
    for name, build in forms.items():
      run = build()
      stops.callback(getattr(run, 'stop', lambda: None))
      seconds = min(measure.in_turns({name: run}, repeats=2, warm_ups=1)[name].wall)
      best = min(best or (seconds, name, run), (seconds, name, run), key=lambda x: x[0])
    yield best[1:]


def measured(model: str, batch: int, steps: int, pythons: Mapping[str, str | None],
             repeats: int, threads: Sequence[int]) -> list[dict[str, Any]]:
  """Rows of one model, of each that is compared."""
  found = {name: {f'silos {count}': functools.partial(
      our_steps, model, batch, steps, mechanism, count) for count in threads}
           for mechanism, name in OURS.items()}
  for name, (program, forms) in PEERS.items():
    if pythons[program]:
      found[name] = {
          ', '.join(f'{k} {v}' for k, v in form.items()): functools.partial(
              Peer, pythons[program], program, steps, dict(
                  model=model, batch=batch, **form))
          for form in (dict(form, threads=count) for form in forms(model)
                       for count in threads)}
  with contextlib.ExitStack() as stack:
    found = {name: stack.enter_context(fastest(forms)) for name, forms in found.items()}
    functions = {name: run for name, (_, run) in found.items()}
    times = measure.in_turns(functions, repeats, warm_ups=1)
  size = NETWORKS[model].model().parameter_count()
  if {getattr(run, 'parameters', size) for run in functions.values()} != {size}:
    raise ValueError(f'peers of {model} must have the {size} parameters of ours')
  return [dict(model=model, batch=batch, name=name, form=form,
               versions=getattr(run, 'versions', {}), **dict(zip(KINDS, (
                   batch * steps / max(seconds, 1e-9)
                   for seconds in times[name].medians()))))
          for name, (form, run) in found.items()]


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
  """The table, whose ratios and shares are of elapsed time, and of processor time."""
  lines = [', '.join(f'{k} {v}' for k, v in measure.machine().items()), '',
           '| model | records | what | form | records/s | ours over it | records/cpu-s | '
           'ours over it | share of encoding |', f'|{"---|" * 9}']
  for row in rows:
    ours = next(r for r in rows if r['model'] == row['model'])
    cells = [f'{row[kind]:,.0f} | {ours[kind] / row[kind]:.2f}' for kind in KINDS]
    share = ', '.join(f'{1 - row[kind] / ours[kind]:.0%}' for kind in KINDS)
    lines.append(' | '.join((
        f'| {row["model"]}', str(row['batch']), row['name'], row['form'], *cells,
        share if row['name'] == OURS['skellam'] else '')) + ' |')
  return '\n'.join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
  parser.add_argument('--quick', action='store_true', help='small, to see it run')
  parser.add_argument('--json', help='file for the rows')
  parser.add_argument('--repeats', type=int, default=7, help='turns, >= 1')
  parser.add_argument('--only', help='this model alone', choices=SETTINGS)
  parser.add_argument(
      '--threads', help='numbers of threads to try', type=int, nargs='+',
      default=sorted({1, os.cpu_count() or 1}))
  for peer in ('opacus', 'jax'):
    parser.add_argument(f'--{peer}_python', help='a Python that has this peer installed')
  flags = parser.parse_args(arguments)
  pythons = dict(opacus=flags.opacus_python, jax=flags.jax_python)
  rows = []
  with contexts.simulation():
    for model, sizes in (QUICK if flags.quick else SETTINGS).items():
      if flags.only in (None, model):
        rows += measured(model, *sizes, pythons, 1 if flags.quick else flags.repeats,
                         flags.threads[:1] if flags.quick else flags.threads)
  print(markdown(rows), flush=True)
  if flags.json:
    with open(flags.json, 'w', encoding='utf-8') as file:
      json.dump(dict(machine=measure.machine(), rows=rows), file, indent=1)
      file.write('\n')


if __name__ == '__main__':
  main()
