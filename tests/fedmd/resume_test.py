"""A run that is killed, again and again, ends as if it never was."""

import csv
import json
import time

import pytest
import tensorflow as tf

from tff_pipelines.accounting import ledger as ledger_lib

FEDMD = 'tff_pipelines.fedmd'
ROUNDS, PARTIES = 3, 2
# Convolutions too: they sum up in an order that threads could change.
FLAGS = (f'--rounds={ROUNDS}', f'--num_clients={PARTIES}', '--public_per_round=40',
         '--pretrain_epochs=1', '--initial_epochs=2', '--subset_size=20',
         '--architectures=mixed3,dense3', '--knowledge=softmax',
         '--simulated_dropout_rate=0.2', '--seed=7')


def _starts(folder):
  """How many times the run was started."""
  path = folder / 'starts.log'
  return path.read_text().count('\n') if path.exists() else 0


def _wait_for(condition, run, timeout=400):
  deadline = time.monotonic() + timeout
  while not condition() and run.poll() is None:
    assert time.monotonic() < deadline, run.stderr
    time.sleep(0.002)


def _checkpoint(folder):
  """The leaves of the last checkpoint's state, as bytes, by their names."""
  path = (folder / 'checkpoints' / f'round_{ROUNDS + 1}' / 'variables' / 'variables')
  reader = tf.train.load_checkpoint(str(path))
  return {name: reader.get_tensor(name).tobytes()
          for name in reader.get_variable_to_shape_map()
          if name.startswith('_value/leaves/')}


def _metrics(folder):
  with open(folder / 'metrics.csv', encoding='utf-8') as file:
    return list(csv.DictReader(file))


def _moments(folder):
  """When to kill, one after the other."""
  checkpoints = folder / 'checkpoints'
  return [(folder / 'configuration.json').exists,
          *((checkpoints / f'round_{number}').exists
            for number in (0, 1, ROUNDS))]


@pytest.mark.slow
def test_run_killed_at_many_moments_ends_bit_for_bit_the_same(launcher, tmp_path):
  whole, folder = tmp_path / 'whole', tmp_path / 'run'
  # Alongside the killed ones, to use both cores.
  uninterrupted = launcher.start(FEDMD, *FLAGS, f'--output_dir={whole}')
  killed = 0
  for number, condition in enumerate(_moments(folder), 1):
    run = launcher.start(FEDMD, *FLAGS, f'--output_dir={folder}', '--resume')
    _wait_for(lambda: _starts(folder) >= number and condition(), run)  # pylint: disable=cell-var-from-loop
    run.kill()
    assert run.code in (0, -9), run.stderr
    killed += run.code == -9
  assert killed >= 3
  last = launcher.run(FEDMD, *FLAGS, f'--output_dir={folder}', '--resume')
  assert last.code == 0, last.stderr
  assert uninterrupted.wait() == 0, uninterrupted.stderr
  found, wanted = _checkpoint(folder), _checkpoint(whole)
  # A party's weights, key and subset, of each party, and the consensus.
  assert len(wanted) > 3 * PARTIES
  assert found == wanted
  assert _metrics(folder) == _metrics(whole)
  for path in (folder, whole):
    ledger = ledger_lib.Ledger(path / 'ledger.jsonl')
    assert ledger.verify(expected_count=ROUNDS + 1) == []
  old, new = (json.loads((f / 'summary.json').read_text()) for f in (whole, folder))
  assert new.pop('starts') == 5 > killed and old.pop('starts') == 1
  assert new == old
