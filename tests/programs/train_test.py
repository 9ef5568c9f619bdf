"""The trainer as a user runs it, from flags to files."""

import csv
import json
import pathlib

import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf

from tests import data_dir
from tests.pipelines import launcher as launcher_lib
from tff_pipelines.accounting import ledger as ledger_lib

TRAIN = 'tff_pipelines.train'
ACCOUNT = 'tff_pipelines.account'
TINY = ('--rounds=2', '--num_clients=20', '--cohort_size=5')
ROUNDS = 2
# Words for what must not be told unless it was asked for.
OUTSIDE = ('diagnostics', 'survivors', 'clipped', 'not_finite', 'rounding',
           'training', 'examples')

# Every run of this file, so that they can run side by side.
RUNS = {
    'none': ['--mechanism=none'],
    'gaussian': ['--mechanism=gaussian', '--epsilon=4'],
    'skellam': [],
    'skellam again': [],
    'diagnostics': ['--diagnostics', '--noise_multiplier=1.5', '--delta=0.01'],
    'seeded': ['--seed=3'],
    'seeded again': ['--seed=3'],
    'exploding client': ['--client_learning_rate=1e30'],
    'exploding server': ['--server_learning_rate=3e38', '--mechanism=none',
                         '--client_learning_rate=100',
                         # A round of nobody would leave the model as it is.
                         '--sampling=fixed'],
}
AT_ONCE = 2

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def runs(launcher, tmp_path_factory):
  """Name -> (finished run, its output folder)."""
  base = tmp_path_factory.mktemp('runs')
  found = {}
  waiting = list(RUNS.items())
  running = []
  while waiting or running:
    if waiting and len(running) < AT_ONCE:
      name, arguments = waiting.pop(0)
      folder = base / name.replace(' ', '_')
      where = [f'--output_dir={folder}']
      if name == 'none':
        where = []  # A folder of its own choice.
      run = launcher.start(TRAIN, *TINY, *arguments, *where)
      running.append(run)
      found[name] = (run, folder)
    else:
      running.pop(0).wait()
  run, _ = found['none']
  made = list((run.folder / 'out').iterdir())
  assert len(made) == 1, run.stderr
  found['none'] = (run, made[0])
  return found


def _folder(runs, name) -> pathlib.Path:
  run, folder = runs[name]
  assert run.code == 0, run.stderr
  return folder


def _summary(folder):
  return json.loads((folder / 'summary.json').read_text(),
                    parse_constant=lambda name: pytest.fail(name))


def _rows(folder):
  with open(folder / 'metrics.csv', encoding='utf-8') as file:
    return list(csv.DictReader(file))


def checkpoint(folder, rounds=ROUNDS):
  """Name -> array, of all that a checkpoint holds."""
  path = folder / 'checkpoints' / f'round_{rounds}' / 'variables' / 'variables'
  reader = tf.train.load_checkpoint(str(path))
  return {name: reader.get_tensor(name)
          for name in reader.get_variable_to_shape_map() if '_value' in name}


def _leaves(folder):
  return {name: np.asarray(value).tobytes()
          for name, value in checkpoint(folder).items() if 'leaves' in name}


PRIVATE = ['gaussian', 'skellam', 'diagnostics']
FINISHED = ['none', *PRIVATE, 'seeded']


@pytest.mark.parametrize('name', FINISHED)
def test_run_leaves_all_its_files(runs, name):
  folder = _folder(runs, name)
  assert sorted(path.name for path in folder.iterdir()) == [
      'checkpoints', 'clients.png', 'configuration.json', 'ledger.jsonl', 'metrics.csv',
      'progress.png', 'starts.log', 'summary.json', 'tensorboard']
  assert sorted(path.name for path in (folder / 'checkpoints').iterdir()) == [
      'round_0', 'round_2']
  for name_ in ('progress.png', 'clients.png'):
    picture = matplotlib.image.imread(folder / name_)
    assert picture.ndim == 3 and min(picture.shape[:2]) > 300 and picture.std() > 0.05
  assert not launcher_lib.workers_of(runs[name][0].mark)


@pytest.mark.parametrize('name', FINISHED)
def test_metrics_have_a_row_a_round_in_csv_and_tensorboard(runs, name):
  folder = _folder(runs, name)
  rows = _rows(folder)
  assert [int(row['round']) for row in rows] == [1, 2]
  events = {}
  for path in (folder / 'tensorboard').iterdir():
    for event in tf.compat.v1.train.summary_iterator(str(path)):
      for value in event.summary.value:
        events[event.step, value.tag] = float(tf.make_ndarray(value.tensor))
  expected = {(int(row['round']), tag): float(value)
              for row in rows for tag, value in row.items() if tag != 'round'}
  # Of a round to which nobody came.
  unknown = {tag for (_, tag), value in expected.items() if np.isnan(value)}
  assert unknown <= {'diagnostics/training_loss'}
  assert events == pytest.approx(expected, nan_ok=True)
  final = _summary(folder)
  assert float(rows[-1]['test/accuracy']) == final['accuracy']
  assert float(rows[-1]['test/loss']) == final['held_out']['test']['loss']
  assert 0 <= final['accuracy'] <= 1


@pytest.mark.parametrize('name, target, multiplier, delta', [
    ('gaussian', 4.0, None, 0.05), ('skellam', 8.0, None, 0.05),
    ('diagnostics', None, 1.5, 0.01)])
def test_summary_states_the_guarantee(runs, name, target, multiplier, delta):
  folder = _folder(runs, name)
  found = _summary(folder)
  if target is not None:
    assert 0.999 * target < found['epsilon'] <= target
  if multiplier is not None:
    assert found['noise_multiplier'] == multiplier
  assert found['delta'] == delta
  assert found['epsilon_unamplified'] > found['epsilon'] > 0
  assert (found['task'], found['model'], found['parameters']) == (
      'emnist', 'cnn_small', 7346)
  assert (found['population'], found['cohort_size'], found['rounds']) == (20, 5, 2)
  assert (found['sampling'], found['adjacency']) == ('poisson', 'zero-out')
  assert 'simulated clients' in found['privacy_unit']
  expected = None if name == 'gaussian' else 'simulated'
  assert found['secure_aggregation'] == expected
  assert float(_rows(folder)[-1]['epsilon']) == found['epsilon']
  printed = runs[name][0].stdout
  assert f'at delta {delta:.3g}, against' in printed
  assert f"secure aggregation: {expected}" in printed or expected is None
  assert f'trust model: {found["trust_model"]}' in printed


@pytest.mark.parametrize('name', PRIVATE)
def test_ledger_alone_gives_the_epsilon_of_the_summary(runs, launcher, name):
  folder = _folder(runs, name)
  found = _summary(folder)
  ledger = ledger_lib.Ledger(folder / 'ledger.jsonl')
  assert ledger.verify(expected_count=ROUNDS) == []
  assert [line['round'] for line in ledger.lines()] == [1, 2]
  assert {line['configuration'] for line in ledger.lines()} == {
      found['configuration']}
  run = launcher.run(ACCOUNT, f'--ledger={ledger.path}', '--format=json')
  assert run.code == 0, run.stderr
  accounted = json.loads(run.stdout)
  for name in ('delta', 'rounds', 'adjacency', 'accountant', 'order', 'trust_model'):
    assert accounted[name] == found[name]
  # The summary keeps a part of delta, here 1e-15 of it, for the noise's sampler.
  for name in ('epsilon', 'epsilon_unamplified'):
    assert accounted[name] == pytest.approx(found[name], rel=1e-9)


def test_run_without_privacy_claims_none(runs):
  found = _summary(_folder(runs, 'none'))
  assert found['epsilon'] is found['epsilon_unamplified'] is None
  assert 'epsilon: none, nothing is guaranteed' in runs['none'][0].stdout
  assert runs['none'][1].name.startswith('emnist-none-')
  lines = ledger_lib.Ledger(runs['none'][1] / 'ledger.jsonl').lines()
  assert [line['event'] for line in lines] == [{'kind': 'NoPrivacy'}] * 2


@pytest.mark.parametrize('name', ['none', 'gaussian', 'skellam'])
def test_nothing_tells_who_came_unless_asked_for(runs, name):
  run, folder = runs[name][0], _folder(runs, name)
  public = {'none': [], 'gaussian': []}.get(
      name, ['public/estimated_wrapped_fraction', 'public/scale'])
  columns = ['round', 'epsilon', *public, 'test/accuracy', 'test/loss']
  assert list(_rows(folder)[0]) == columns
  saved = checkpoint(folder)
  metrics = next(v for key, v in saved.items() if 'metrics' in key)
  assert sorted(json.loads(metrics)) == sorted(columns[1:])
  ledger = (folder / 'ledger.jsonl').read_text()
  assert {key for line in ledger.splitlines()[1:] for key in json.loads(line)} == {
      'round', 'event', 'outcome', 'starts', 'time', 'configuration', 'previous',
      'hash'}
  # Of what is told once for all rounds, only what is configured is a number.
  assert len({json.dumps(json.loads(line)['event'])
              for line in ledger.splitlines()[1:]}) == 1
  summary = {key: value for key, value in _summary(folder).items()
             if key != 'trust_model'}
  for text in (ledger, json.dumps(summary), run.stdout, run.stderr):
    assert not [word for word in OUTSIDE if word in text]


def test_diagnostics_are_there_when_asked_for_and_warned_of(runs):
  run, folder = runs['diagnostics'][0], _folder(runs, 'diagnostics')
  rows = _rows(folder)
  assert {'diagnostics/survivors', 'diagnostics/training_loss',
          'diagnostics/clipped', 'diagnostics/not_finite',
          'diagnostics/rounding_retries', 'diagnostics/rounding_fallbacks'
          } <= set(rows[0])
  for row in rows:
    survivors = float(row['diagnostics/survivors'])
    assert 0 <= float(row['diagnostics/clipped']) <= survivors <= 20
  warnings = [text for text in _summary(folder)['warnings']
              if text.startswith('diagnostics are on')]
  assert len(warnings) == 1 and 'outside the guarantee' in warnings[0]
  assert f'warning: {warnings[0]}' in run.stdout
  header = ledger_lib.Ledger(folder / 'ledger.jsonl').header()
  assert warnings[0] in header['warnings']


def test_seeded_runs_are_bit_identical_and_void(runs):
  one, two = (_folder(runs, name) for name in ('seeded', 'seeded again'))
  assert _leaves(one) == _leaves(two)
  assert (one / 'metrics.csv').read_bytes() == (two / 'metrics.csv').read_bytes()
  found = _summary(one)
  assert found['epsilon'] is found['epsilon_unamplified'] is None
  assert any('seeded run: no guarantee' in text for text in found['warnings'])
  assert 'epsilon' not in _rows(one)[0]
  printed = runs['seeded'][0].stdout
  assert 'epsilon: none, nothing is guaranteed' in printed
  assert 'warning: seeded run: no guarantee' in printed
  header = ledger_lib.Ledger(one / 'ledger.jsonl').header()
  assert header['seeded'] and any(
      'seeded run' in text for text in header['warnings'])


def test_unseeded_runs_differ(runs):
  one, two = (_folder(runs, name) for name in ('skellam', 'skellam again'))
  first, second = _leaves(one), _leaves(two)
  assert first.keys() == second.keys()
  assert (one / 'metrics.csv').read_bytes() != (two / 'metrics.csv').read_bytes()
  same = [name for name in first if first[name] == second[name]]
  # What remains are constants of the run: the expected cohort and its tables.
  assert len(first) - len(same) >= 8


@pytest.mark.parametrize('name', ['exploding client', 'exploding server'])
def test_run_that_explodes_stays_finite_or_says_so(runs, name):
  run, folder = runs[name]
  if run.code:
    assert run.code == 2
    assert 'Traceback' not in run.stderr
    last = run.stderr.splitlines()[-1]
    assert last.startswith('error: the model is not finite after round')
    assert '--client_learning_rate' in last
  else:
    _summary(folder)  # Is JSON without NaN.
  saved = sorted((folder / 'checkpoints').iterdir())
  assert saved
  for path in saved:
    for value in checkpoint(folder, int(path.name.split('_')[1])).values():
      if np.asarray(value).dtype.kind == 'f':
        assert np.all(np.isfinite(value))
  ledger = ledger_lib.Ledger(folder / 'ledger.jsonl')
  assert ledger.verify(expected_count=int(saved[-1].name.split('_')[1])) == []


def test_clients_that_explode_contribute_nothing(runs):
  folder = _folder(runs, 'exploding client')
  assert len(_rows(folder)) == ROUNDS
  assert runs['exploding server'][0].code == 2


def test_interpreter_of_its_own_trains(tmp_path):
  folder = tmp_path / 'run'
  process = launcher_lib.python(
      TRAIN, *TINY, f'--output_dir={folder}', '--simulated_dropout_rate=0.2',
      '--min_honest_fraction=0.5', mark='own')
  stdout, stderr = process.communicate(timeout=400)
  assert process.returncode == 0, stderr
  assert _summary(folder)['epsilon'] <= 8
  assert str(folder) in stdout
  # Standard error has the progress bar, and nothing else.
  assert not [line for line in stderr.replace('\r', '\n').split('\n')
              if line and 'round/s' not in line and 's/round' not in line]
  assert '2/2' in stderr and 'accuracy=' in stderr and 'epsilon=' in stderr
  assert not launcher_lib.workers_of('own')


def test_real_digits_are_learnt_under_privacy(launcher, tmp_path):
  path = data_dir.require('mnist.npz')
  run = launcher.run(
      TRAIN, '--data_source=npz', f'--data_path={path}', '--rounds=5',
      '--epsilon=8', '--cohort_size=100', '--server_learning_rate=0.5',
      '--client_learning_rate=0.1', f'--output_dir={tmp_path / "run"}',
      '--rounds_per_evaluation=5')
  assert run.code == 0, run.stderr
  found = _summary(tmp_path / 'run')
  assert 7.99 < found['epsilon'] <= 8 and found['delta'] == 1 / 539
  # Chance is 0.1; three runs reached 0.73, 0.73 and 0.74.
  assert found['accuracy'] > 0.6
  assert found['accuracy_of'] == 'test_clients'
  assert found['outside_guarantee'] == ['test_clients']
  assert 'held-out clients are not part of the population' in run.stdout
