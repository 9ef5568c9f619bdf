"""A trainer that is killed, again and again, loses nothing and leaves no worker."""

import csv
import json
import random
import re
import time

import pytest
import tensorflow as tf

from tests.programs import launcher as launcher_lib
from tff_pipelines.accounting import ledger as ledger_lib

TRAIN = 'tff_pipelines.train'
ROUNDS = 5
FLAGS = (f'--rounds={ROUNDS}', '--num_clients=20', '--cohort_size=5', '--seed=11')
WORKERS_END_SECONDS = 15
# Fixed, so that a failure can be repeated; what it hits still varies.
DELAYS = random.Random(4)


def _wait_for(condition, run, timeout=400):
  """Waits until the condition holds or the run ends."""
  deadline = time.monotonic() + timeout
  while not condition() and run.poll() is None:
    assert time.monotonic() < deadline, run.stderr
    time.sleep(0.002)


def _committed(folder, rounds):
  def found():  # The last one is kept, and round 0.
    names = [path.name for path in (folder / 'checkpoints').glob('round_*')]
    return any(re.fullmatch(r'round_\d+', name) and int(name[6:]) >= rounds
               for name in names)
  return found


def _starts(folder):
  """How many starts the run has noted."""
  path = folder / 'starts.log'
  return path.read_text().count('\n') if path.exists() else 0


def _has_metrics(folder, rounds):
  def found():
    path = folder / 'metrics.csv'
    return path.exists() and f'\n{rounds},' in path.read_text()
  return found


def _moments(folder):
  """When to kill, one after the other: (condition, seconds after it)."""
  checkpoints = folder / 'checkpoints'
  return [
      (lambda: True, 0.05),  # While the data is read.
      ((folder / 'configuration.json').exists, 0.0),
      ((folder / 'ledger.jsonl').exists, 0.0),
      # While the first round is saved, under whatever name.
      (lambda: checkpoints.exists() and any(
          not path.name.startswith('round_0')
          for path in checkpoints.iterdir()), 0.0),
      (_committed(folder, 2), 0.0),  # The ledger does not know it yet.
      (_has_metrics(folder, 3), DELAYS.uniform(0, 0.3)),  # Within a round.
      (_committed(folder, 4), DELAYS.uniform(0, 0.3)),
  ]


def _assert_no_workers(mark):
  deadline = time.monotonic() + WORKERS_END_SECONDS
  while launcher_lib.workers_of(mark):
    assert time.monotonic() < deadline, 'a worker outlived its trainer'
    time.sleep(0.05)


def _leaves(folder):
  path = folder / 'checkpoints' / f'round_{ROUNDS}' / 'variables' / 'variables'
  reader = tf.train.load_checkpoint(str(path))
  return {name: reader.get_tensor(name).tobytes()
          for name in reader.get_variable_to_shape_map() if 'leaves' in name}


# Bits are those of one kind of executor: TFF's worker has a TensorFlow of its own.
@pytest.mark.slow
@pytest.mark.parametrize('workers', [[0], [1, 1, 1, 2]])
def test_run_killed_at_many_moments_ends_as_if_never_killed(
    launcher, tmp_path, workers):
  whole, folder = tmp_path / 'whole', tmp_path / 'run'
  # Beside the killed ones, to use both cores.
  uninterrupted = launcher.start(
      TRAIN, *FLAGS, f'--output_dir={whole}', f'--num_workers={workers[0]}')
  killed, moments = 0, _moments(folder)
  for number, (condition, delay) in enumerate(moments):
    run = launcher.start(
        TRAIN, *FLAGS, f'--output_dir={folder}', '--resume',
        f'--num_workers={workers[number % len(workers)]}')
    # The first two may be killed before they are noted.
    least = _starts(folder) + (number >= 2)
    _wait_for(lambda: _starts(folder) >= least and condition(), run)  # pylint: disable=cell-var-from-loop
    time.sleep(delay)
    run.kill()
    assert run.code in (0, -9), run.stderr
    killed += run.code == -9
    _assert_no_workers(run.mark)
    if (folder / 'ledger.jsonl').exists():
      problems = ledger_lib.Ledger(folder / 'ledger.jsonl').verify()
      # The last line may be torn: that is what resuming mends.
      assert not [text for text in problems if 'torn' not in text]
  assert killed >= 6
  # Each start has a line, except for those that were killed before it was written.
  noted = _starts(folder)
  assert killed - 2 <= noted <= len(moments)
  last = launcher.run(TRAIN, *FLAGS, f'--output_dir={folder}', '--resume',
                      f'--num_workers={workers[0]}')
  assert last.code == 0, last.stderr
  assert uninterrupted.wait() == 0, uninterrupted.stderr

  ledger = ledger_lib.Ledger(folder / 'ledger.jsonl')
  assert ledger.verify(expected_count=ROUNDS) == []
  with open(folder / 'metrics.csv', encoding='utf-8') as file:
    assert [int(row['round']) for row in csv.DictReader(file)] == list(
        range(1, ROUNDS + 1))
  metrics = [(f / 'metrics.csv').read_bytes() for f in (whole, folder)]
  assert metrics[0] == metrics[1]
  assert _leaves(folder) == _leaves(whole)
  old, new = (json.loads((f / 'summary.json').read_text()) for f in (whole, folder))
  assert new['starts'] == noted + 1
  assert {**new, 'starts': 1} == {**old, 'starts': 1}
  _assert_no_workers(last.mark)
  _assert_no_workers(uninterrupted.mark)


@pytest.mark.slow
def test_interpreter_of_its_own_takes_its_workers_along(tmp_path):
  folder = tmp_path / 'run'
  mark = f'killed {tmp_path}'
  process = launcher_lib.python(
      TRAIN, *FLAGS, '--rounds=1000', f'--output_dir={folder}', '--num_workers=2',
      mark=mark)
  deadline = time.monotonic() + 400
  while not _committed(folder, 1)():
    assert process.poll() is None and time.monotonic() < deadline
    time.sleep(0.01)
  # Two workers, each with its supervisor.
  assert len(launcher_lib.workers_of(mark)) == 4
  process.kill()
  # Reading to the end also shows that no process keeps the trainer's pipes open.
  process.communicate(timeout=WORKERS_END_SECONDS)
  _assert_no_workers(mark)
