"""Kills runs at many moments; each must end as if it had never been killed.

  python -m tests.kills [--family=NAME ...] [--kills=50] [--seed=0] [--quick]

A run is started again until it ends, and then its folder must hold what another run left
that was not killed: the same state to the last bit, metrics, summary and an intact
ledger; no worker may outlive its program. `--quick` kills each family's program once at
each of its chosen moments.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import json
import pathlib
import random
import sys
import tempfile
import time
from typing import Any

import numpy as np

from tests.programs import launcher as launcher_lib
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.experiment import checkpoints as checkpoints_lib
from tff_pipelines.voting import baselines as voting_baselines, features, student

WORKERS_END_SECONDS = 15
_TIMEOUT = 400

Condition = Callable[[pathlib.Path], bool]


def _exists(name: str) -> Condition:
  return lambda folder: (folder / name).exists()


def _lines(name: str, count: int) -> Condition:
  def condition(folder):
    path = folder / name
    return path.exists() and path.read_text(encoding='utf-8').count('\n') >= count
  return condition


def committed(rounds: int) -> Condition:
  def condition(folder):
    numbers = [path.name.removeprefix('round_')
               for path in (folder / 'private/checkpoints').glob('round_*')]
    return any(number.isdecimal() and int(number) >= rounds for number in numbers)
  return condition


def _saving_first_round(folder: pathlib.Path) -> bool:
  """Whether the first round is being saved, under whatever name."""
  checkpoints = folder / 'private/checkpoints'
  return checkpoints.exists() and any(
      path.name != 'round_000000' for path in checkpoints.iterdir())


def _checkpoint(folder: pathlib.Path, rounds: int) -> Mapping[str, bytes]:
  """The leaves of the last checkpoint's state, as bytes, by their names."""
  path = checkpoints_lib.path_of(folder / 'private/checkpoints', rounds)
  return {name: array.tobytes()
          for name, array in checkpoints_lib.read(path).arrays.items()}


def _rounds_left(folder: pathlib.Path, rounds: int) -> Any:
  metrics = (folder / 'metrics.csv').read_bytes()
  assert metrics.count(b'\n') == rounds + 1
  return _checkpoint(folder, rounds), metrics


def _fedmd_left(folder: pathlib.Path) -> Any:
  leaves = _checkpoint(folder, 4)
  # A party's weights, key and subset, of each party, and the consensus.
  assert len(leaves) > 6
  return leaves, (folder / 'metrics.csv').read_bytes()


def _vote_left(folder: pathlib.Path) -> Any:
  weights, curve = student.read(folder)
  assert len(curve) == 25
  return [array.tobytes() for array in weights], curve


def _ldp_left(folder: pathlib.Path) -> Any:
  with np.load(folder / 'student.npz') as student:
    return student['weights'].tobytes()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
  """A program that is killed."""

  module: str
  flags: Sequence[str]
  lines: int  # Of a finished run's ledger, after the header.
  moments: Sequence[Condition]  # Each is later than the one before.
  quick: Sequence[int]  # Indices of the moments of a quick run.
  left: Callable[[pathlib.Path], Any]  # Must be the same to the last bit.
  workers: Sequence[int] = ()  # --local_workers of one start after the other.

  def start(self, launcher: launcher_lib.Launcher, folder: pathlib.Path,
            number: int) -> launcher_lib.Run:
    """Starts the program for the `number`th time in its folder."""
    workers = ([f'--local_workers={self.workers[number % len(self.workers)]}']
               if self.workers else [])
    return launcher.start(
        self.module, *self.flags, f'--output_dir={folder}', '--resume', *workers)


_TRAIN = Family(
    module='tff_pipelines.train',
    flags=('--rounds=5', '--num_clients=20', '--cohort_size=5', '--seed=11'), lines=5,
    moments=(
        lambda folder: True,  # While data are read.
        _exists('configuration.json'), _exists('ledger.jsonl'), _saving_first_round,
        committed(2),  # The ledger does not have it yet.
        _lines('metrics.csv', 4), committed(4)),
    quick=(3,), left=functools.partial(_rounds_left, rounds=5))

FAMILIES = {
    'train': _TRAIN,
    # Each start has another number of workers.
    'train_workers': dataclasses.replace(_TRAIN, workers=(2, 0, 1), quick=(4,)),
    'vote': Family(
        module='tff_pipelines.vote',
        flags=('--num_clients=6', '--public_records=60', '--queries=12',
               '--features=pca', '--student_model=mlp', '--student_epochs=25',
               '--seed=5', '--allow_degenerate'),
        lines=1, moments=(
            _exists('configuration.json'), _exists(features.MAP),
            _exists(voting_baselines.QUERIES),  # While agents vote.
            # The checkpoint is there; ledger and metrics may not be.
            _exists('private/checkpoints/round_000001'),
            _lines(student.CURVE, 2), _lines(student.CURVE, 10)),
        quick=(2, 4), left=_vote_left),
    'fedmd': Family(
        module='tff_pipelines.fedmd',
        # Convolutions too: they sum up in an order that threads could change.
        flags=('--rounds=3', '--num_clients=2', '--public_per_round=40',
               '--pretrain_epochs=1', '--initial_epochs=2', '--subset_size=20',
               '--architectures=mixed3,dense3', '--knowledge=softmax',
               '--simulated_dropout_rate=0.2', '--seed=7'),
        lines=4, moments=(_exists('configuration.json'), committed(0), committed(1),
                 committed(3)),
        quick=(1, 3), left=_fedmd_left),
    'ldp': Family(
        module='tff_pipelines.ldp',
        flags=('--num_clients=40', '--clients_per_query=5', '--queries_per_step=2',
               '--epsilon=12', '--answers_per_client=2', '--seed=11'),
        lines=8, moments=(_exists('configuration.json'), _exists('answers'),
                 _exists('answers/000001.npz'), _exists('answers/000004.npz')),
        quick=(3,), left=_ldp_left)}


def wait_until(condition: Callable[[], bool]) -> None:
  """Waits for a condition, not for ever."""
  deadline = time.monotonic() + _TIMEOUT
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.002)


def assert_no_workers(mark: str) -> None:
  """Fails unless the workers of a marked process end in time."""
  deadline = time.monotonic() + WORKERS_END_SECONDS
  while launcher_lib.workers_of(mark):
    assert time.monotonic() < deadline, 'a worker outlived its program'
    time.sleep(0.05)


def starts(folder: pathlib.Path) -> int:
  """How many starts a run has noted."""
  path = folder / 'starts.log'
  return path.read_text(encoding='utf-8').count('\n') if path.exists() else 0


def _kill(family: Family, launcher, folder, number: int, moment: int | None,
          delay: float) -> bool:
  """Starts a run and kills it; whether it had not ended before.

  Without a moment it is not killed.
  """
  run = family.start(launcher, folder, number)
  # A run killed at the first moment may not have noted its start.
  minimum = starts(folder) + (moment != 0)
  wait_until(lambda: run.poll() is not None or (
      moment is not None and starts(folder) >= minimum
      and family.moments[moment](folder)))
  time.sleep(delay)
  run.kill()
  assert run.code in (0, -9), run.stderr
  assert_no_workers(run.mark)
  path = folder / 'ledger.jsonl'
  if path.exists():
    # The last line may be torn: that is what resuming mends.
    problems = ledger_lib.Ledger(path).verify()
    assert not [text for text in problems if 'torn' not in text], problems
  return run.code == -9


def _assert_alike(family: Family, folder: pathlib.Path, whole: pathlib.Path) -> None:
  """Fails unless a killed run left what the uninterrupted one did."""
  ledger = ledger_lib.Ledger(folder / 'ledger.jsonl')
  assert ledger.verify() == []
  old, new = (json.loads((f / 'summary.json').read_text(encoding='utf-8'))
              for f in (whole, folder))
  assert new['starts'] == starts(folder) and old['starts'] == 1
  if new['family'] == 'ldp' and new['details']['queries'] < old['details']['queries']:
    # Killed between a charge and its answers: they stay charged.
    assert any('were lost' in text for text in new['warnings'])
    assert new['epsilon_if_unseeded'] == old['epsilon_if_unseeded']
    return
  assert len(ledger.lines()) == family.lines
  # The fingerprint in a configuration is by a secret key of the run.
  assert new.pop('configuration') != old.pop('configuration')
  assert {**new, 'starts': 1} == old
  assert family.left(folder) == family.left(whole)


def prove(name: str, launcher: launcher_lib.Launcher, base: pathlib.Path, *,
          kills: int | None = None, seed: int = 0) -> int:
  """Kills a family's program; returns how many runs ended alike, and fails otherwise.

  Kills are at random moments, or one at each chosen moment. `base` is empty.
  """
  family, rng = FAMILIES[name], random.Random(seed)
  whole = base / 'whole'
  uninterrupted = family.start(launcher, whole, 0)  # Alongside the killed ones.
  plan = [(index, 0.0) for index in family.quick]
  finished, done, number = 0, 0, 0
  while done < (len(plan) if kills is None else kills):
    folder = base / f'run_{finished}'
    # Moments that are past would kill each start at its beginning.
    ahead = [i for i, moment in enumerate(family.moments)
             if not (folder.exists() and moment(folder))]
    moment, delay = (plan[done] if kills is None else
                     (rng.choice(ahead or [None]), rng.uniform(0, 0.5)))
    was_killed = _kill(family, launcher, folder, number, moment, delay)
    done += was_killed or kills is None  # Under load a run may end before its kill.
    number += 1
    if not was_killed and kills is not None:
      uninterrupted.wait()
      _assert_alike(family, folder, whole)
      finished, number = finished + 1, 0
  folder = base / f'run_{finished}'
  last = family.start(launcher, folder, len(family.workers) * number)
  assert last.wait() == 0, last.stderr
  assert uninterrupted.wait() == 0, uninterrupted.stderr
  for run in (last, uninterrupted):
    assert_no_workers(run.mark)
  _assert_alike(family, folder, whole)
  return finished + 1


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; 0 if all runs ended alike."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--family', action='append', choices=sorted(FAMILIES))
  parser.add_argument('--kills', type=int, default=50)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--quick', action='store_true', help='a kill at each chosen moment')
  flags = parser.parse_args(argv)
  with tempfile.TemporaryDirectory() as folder:
    base = pathlib.Path(folder)
    (base / 'launcher').mkdir()
    launcher = launcher_lib.Launcher(base / 'launcher')
    try:
      for name in flags.family or FAMILIES:
        ended = prove(name, launcher, base / name, seed=flags.seed,
                      kills=None if flags.quick else flags.kills)
        kills = len(FAMILIES[name].quick) if flags.quick else flags.kills
        print(f'{name}: {kills} kills, {ended} runs ended alike', flush=True)
    finally:
      launcher.stop()
  return 0


if __name__ == '__main__':
  sys.exit(main())
