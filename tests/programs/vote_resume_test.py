"""A vote that is killed, again and again, is held once and loses nothing."""

import json
import time

import numpy as np
import pytest

from tff_pipelines.accounting import ledger as ledger_lib
from tff_pipelines.voting import records

VOTE = 'tff_pipelines.vote'
EPOCHS = 25
FLAGS = ('--num_clients=6', '--public_records=60', '--queries=12', '--features=pca',
         '--student_model=mlp', f'--student_epochs={EPOCHS}', '--seed=5',
         '--allow_degenerate')


def _starts(folder):
  """How many times the run was started."""
  path = folder / 'starts.log'
  return path.read_text().count('\n') if path.exists() else 0


def _kill_when(condition, run, folder, start, timeout=400):
  """Kills a run's start of this number once a condition holds, or it has ended."""
  deadline = time.monotonic() + timeout
  while run.poll() is None and not (_starts(folder) >= start and condition()):
    assert time.monotonic() < deadline, run.stderr
    time.sleep(0.002)
  run.kill()
  # On a machine that is busy it may have ended meanwhile.
  assert run.code in (0, -9), run.stderr


def _epochs(folder):
  """Epochs of the student that are kept."""
  path = folder / records.CURVE
  return path.read_text().count('\n') - 1 if path.exists() else 0


def _moments(folder):
  """When to kill, one after the other."""
  return [
      (folder / 'configuration.json').exists,
      (folder / records.MAP).exists,
      (folder / records.QUERIES).exists,  # While agents vote.
      # The checkpoint is there; ledger and metrics may not be.
      (folder / 'checkpoints' / 'round_1').exists,
      lambda: _epochs(folder) >= 1,
      lambda: _epochs(folder) >= 9,
  ]


@pytest.mark.slow
def test_vote_killed_at_many_moments_ends_as_if_never_killed(launcher, tmp_path):
  whole, folder = tmp_path / 'whole', tmp_path / 'run'
  # Alongside the killed ones, to use both cores.
  uninterrupted = launcher.start(VOTE, *FLAGS, f'--output_dir={whole}')
  moments = _moments(folder)
  for start, condition in enumerate(moments, start=1):
    run = launcher.start(VOTE, *FLAGS, f'--output_dir={folder}', '--resume')
    _kill_when(condition, run, folder, start)
  last = launcher.run(VOTE, *FLAGS, f'--output_dir={folder}', '--resume')
  assert last.code == 0, last.stderr
  assert uninterrupted.wait() == 0, uninterrupted.stderr
  # One vote, however often it was begun.
  ledgers = [ledger_lib.Ledger(f / 'ledger.jsonl') for f in (whole, folder)]
  for ledger in ledgers:
    assert ledger.verify(expected_count=1) == []
  old, new = (json.loads((f / 'summary.json').read_text()) for f in (whole, folder))
  assert new.pop('starts') == len(moments) + 1 and old.pop('starts') == 1
  assert new == old
  states = [records.read_student(f) for f in (whole, folder)]
  assert states[0][1] == states[1][1] and len(states[0][1]) == EPOCHS
  for left, right in zip(states[0][0], states[1][0]):
    np.testing.assert_array_equal(left, right)


@pytest.mark.slow
def test_votes_that_the_server_may_have_seen_twice_count_twice(launcher, tmp_path):
  folder = tmp_path / 'run'
  flags = [flag for flag in FLAGS if not flag.startswith('--seed')]
  run = launcher.start(VOTE, *flags, f'--output_dir={folder}')
  _kill_when((folder / records.QUERIES).exists, run, folder, 1)
  assert launcher.run(
      VOTE, *flags, f'--output_dir={folder}', '--resume').code == 0
  found = json.loads((folder / 'summary.json').read_text())
  (line,) = ledger_lib.Ledger(folder / 'ledger.jsonl').lines()
  if line['starts'] == 2:  # Killed before the vote was kept.
    assert found['epsilon_server'] > 1.3 * found['epsilon']
  else:
    assert found['epsilon_server'] == found['epsilon']
