"""The vote binary as a user runs it, from flags to files."""

import csv
import json

import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf

from tests.pipelines import launcher as launcher_lib
from tff_pipelines import vote_records
from tff_pipelines.accounting import ledger as ledger_lib

VOTE = 'tff_pipelines.vote'
ACCOUNT = 'tff_pipelines.account'
TINY = ('--num_agents=6', '--public_records=60', '--rounds=2')
TINY_VOTE = (*TINY, '--queries=12', '--feature_epochs=1', '--student_epochs=2',
             '--allow_degenerate')

# Every run of this file, so that they can run side by side.
RUNS = {
    'ae': [*TINY_VOTE, '--epsilon=4', '--noise_multiplier=2'],
    'knn': [*TINY_VOTE, '--algorithm=knn', '--neighbours=5', '--features=pca'],
    'adversarial': [*TINY_VOTE, '--adversarial_strength=0.5', '--model=cnn_small',
                    '--agent_epochs=1', '--features=pca', '--student=labels'],
    'gaussian': [*TINY_VOTE, '--noise=gaussian_central', '--features=pca',
                 '--student_model=softmax', '--threshold=0.5'],
    'seeded': [*TINY_VOTE, '--seed=3', '--features=pca', '--student_model=mlp'],
    'seeded again': [*TINY_VOTE, '--seed=3', '--features=pca',
                     '--student_model=mlp'],
    'fedavg': [*TINY, '--algorithm=fedavg', '--epsilon=2'],
    'dp_fedavg': [*TINY, '--algorithm=dp_fedavg', '--features=pca'],
    'dp_fedavg gaussian': [*TINY, '--algorithm=dp_fedavg', '--features=pca',
                           '--noise=gaussian_central', '--cohort_size=3'],
    'dp_fedsgd': [*TINY, '--algorithm=dp_fedsgd', '--features=pca'],
}
VOTES = ['ae', 'knn', 'adversarial', 'gaussian', 'seeded']
BASELINES = ['fedavg', 'dp_fedavg', 'dp_fedavg gaussian', 'dp_fedsgd']
AT_ONCE = 2
# Words for what is as private as the votes.
PRIVATE = ('margin', 'count', 'histogram', 'ballot', 'tally')

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def runs(launcher, tmp_path_factory):
  """Name -> (finished run, its output folder)."""
  base = tmp_path_factory.mktemp('runs')
  found, running = {}, []
  waiting = list(RUNS.items())
  while waiting or running:
    if waiting and len(running) < AT_ONCE:
      name, arguments = waiting.pop(0)
      folder = base / name.replace(' ', '_')
      run = launcher.start(VOTE, *arguments, f'--output_dir={folder}')
      running.append(run)
      found[name] = (run, folder)
    else:
      running.pop(0).wait()
  return found


def _folder(runs, name):
  run, folder = runs[name]
  assert run.code == 0, run.stderr
  return folder


def _summary(folder):
  return json.loads((folder / 'summary.json').read_text(),
                    parse_constant=lambda name: pytest.fail(name))


def _leaves(folder):
  """What the checkpoint of the vote holds of the state."""
  path = folder / 'checkpoints' / 'round_1' / 'variables' / 'variables'
  reader = tf.train.load_checkpoint(str(path))
  return [np.asarray(reader.get_tensor(name))
          for name in reader.get_variable_to_shape_map()
          if '_value' in name and 'leaves' in name]


def _tags(folder):
  """Names of what TensorBoard is told."""
  (path,) = (folder / 'tensorboard').iterdir()
  found = {value.tag for event in tf.compat.v1.train.summary_iterator(str(path))
           for value in event.summary.value}
  assert found
  return found


def _rows(path):
  with open(path, encoding='utf-8') as file:
    return list(csv.DictReader(file))


@pytest.mark.parametrize('name', [*VOTES, *BASELINES])
def test_run_leaves_all_its_files(runs, name):
  folder = _folder(runs, name)
  expected = {'checkpoints', 'configuration.json', 'features.npz', 'ledger.jsonl',
              'metrics.csv', 'progress.png', 'starts.log', 'summary.json',
              'tensorboard'}
  if name in VOTES:
    expected |= {'queries.npz', 'student.npz', 'student.csv'}
  assert {path.name for path in folder.iterdir()} == expected
  picture = matplotlib.image.imread(folder / 'progress.png')
  assert picture.ndim == 3 and picture.std() > 0.05
  assert not launcher_lib.workers_of(runs[name][0].mark)


def test_all_algorithms_report_the_same_fields(runs):
  summaries = {name: _summary(_folder(runs, name)) for name in RUNS}
  fields = {name: set(found) - {'epsilon_if_unseeded'}
            for name, found in summaries.items()}
  assert len({frozenset(names) for names in fields.values()}) == 1
  for name, found in summaries.items():
    assert 0 <= found['accuracy'] <= 1 and found['test_examples'] == 400
    assert found['uplink_bytes_per_agent'] > 0 and found['agents'] == 6
    assert (found['sampler'] is None) == (name == 'fedavg')


@pytest.mark.parametrize('name, epsilon, level, adjacency', [
    ('ae', 4, 'agent', 'zero-out'), ('knn', 4.3, 'instance', 'instance'),
    ('gaussian', 4.3, 'agent', 'zero-out'), ('dp_fedavg', 4.3, 'agent', 'zero-out'),
    ('dp_fedavg gaussian', 4.3, 'agent', 'zero-out'),
    ('dp_fedsgd', 4.3, 'instance', 'record-zero-out')])
def test_epsilon_is_just_below_the_target(runs, name, epsilon, level, adjacency):
  found = _summary(_folder(runs, name))
  assert 0.99 * epsilon < found['epsilon'] <= epsilon
  assert (found['level'], found['adjacency']) == (level, adjacency)
  for key in ('adjacency_in_words', 'trust_model', 'observers', 'source',
              'accountant'):
    assert found[key]
  assert f"epsilon {found['epsilon']:.2f}"[:-1] in runs[name][0].stdout


@pytest.mark.parametrize('name', ['ae', 'knn', 'dp_fedavg', 'dp_fedsgd'])
def test_epsilon_can_be_recomputed_from_the_ledger_alone(runs, launcher, name):
  folder = _folder(runs, name)
  found = _summary(folder)
  run = launcher.run(ACCOUNT, f'--ledger={folder / "ledger.jsonl"}',
                     '--format=json')
  assert run.code == 0, run.stderr
  assert json.loads(run.stdout)['epsilon'] == pytest.approx(
      found['epsilon'], rel=1e-4)


@pytest.mark.parametrize('name', VOTES)
def test_a_vote_is_one_release_of_all_queries(runs, name):
  ledger = ledger_lib.Ledger(_folder(runs, name) / 'ledger.jsonl')
  (line,) = ledger.lines()
  assert line['event']['count'] == 12 and line['outcome'] == 'released'
  assert line['event']['event']['kind'] == 'Vote'


@pytest.mark.parametrize('name', VOTES)
def test_nothing_of_the_votes_but_labels_is_told_or_kept(runs, name):
  run, folder = runs[name]
  found = _summary(folder)
  said = run.stdout.lower() + run.stderr.lower() + ' '.join(found).lower()
  said = said.replace('(counts', '').replace(' counts)', '').replace(
      'counts as a vote', '').replace('counts as a colluder', '').replace(
          'accountant', '')
  assert not [word for word in PRIVATE if word in said]
  assert set(_rows(folder / 'metrics.csv')[0]) == {
      'round', 'answered',
      'epsilon' if name != 'seeded' else 'epsilon_if_unseeded'}
  assert _tags(folder) <= {'answered', 'epsilon', 'epsilon_if_unseeded'}
  # The checkpoint's state is the labels and no more.
  kept = _leaves(folder)
  assert len(kept) == 1 and kept[0].shape == (12,) and kept[0].dtype == np.int32
  assert kept[0].min() >= -1 and kept[0].max() < 10
  student = vote_records.read_arrays(folder / 'student.npz')
  assert all(key == 'curve' or key.startswith('state_') for key in student)
  assert set(vote_records.read_arrays(folder / 'queries.npz')) == {'rows'}


@pytest.mark.parametrize('name', VOTES)
def test_summary_says_what_the_labels_are_worth(runs, name):
  folder = _folder(runs, name)
  found = _summary(folder)
  assert found['queries'] == 12 and 0 < found['answered'] <= 1
  assert 0 <= found['labels_right'] <= 1
  assert found['uplink_of_federated_averaging'] > found['uplink_bytes_per_agent']
  curve = _rows(folder / 'student.csv')
  assert [int(row['epoch']) for row in curve] == [1, 2]
  assert float(curve[-1]['accuracy']) == found['accuracy']
  out = runs[name][0].stdout
  assert 'uplink of an agent:' in out and 'times as much' in out


def test_uplink_is_that_of_what_is_sent(runs):
  found = _summary(_folder(runs, 'ae'))
  assert found['uplink_bytes_per_agent'] == 12 * 10 * found['bits'] / 8
  averaging = _summary(_folder(runs, 'dp_fedsgd'))
  assert averaging['uplink_bytes_per_agent'] == averaging['parameters'] * 4 * 2


def test_the_published_epsilon_stands_beside_the_proved_one(runs):
  for name in VOTES:
    found = _summary(_folder(runs, name))
    proved = found['epsilon'] or found['epsilon_if_unseeded']
    assert found['epsilon_published'] > proved
    assert 'published formula' in runs[name][0].stdout


def test_what_the_sampler_takes_of_delta_is_told(runs):
  for name in ('ae', 'knn'):
    found = _summary(_folder(runs, name))
    assert 0 < found['delta_sampler'] < 1e-15 * found['delta']
    assert 'sampler of the noise: exact tables' in runs[name][0].stdout
    header = ledger_lib.Ledger(runs[name][1] / 'ledger.jsonl').header()
    assert header['deviation_per_round'] == 12 * 10 * 6 * 2.0**-86
  for name in ('gaussian', 'dp_fedsgd'):
    assert _summary(_folder(runs, name))['delta_sampler'] is None
    assert 'no bound on its deviation is proved' in runs[name][0].stdout


def test_flags_without_effect_are_reported(runs):
  for name, flag in (('ae', 'noise_multiplier'), ('fedavg', 'epsilon')):
    text = f'--{flag} is not used by algorithm='
    assert any(text in line for line in _summary(_folder(runs, name))['warnings'])
    assert f'warning: {text}' in runs[name][0].stdout


def test_fedavg_guarantees_nothing(runs):
  found = _summary(_folder(runs, 'fedavg'))
  assert found['epsilon'] is found['adjacency'] is found['noise'] is None
  assert 'nothing is guaranteed' in runs['fedavg'][0].stdout


def test_a_trusted_server_has_no_epsilon_of_its_own(runs):
  for name in ('gaussian', 'dp_fedavg gaussian'):
    found = _summary(_folder(runs, name))
    assert found['epsilon_server'] is None
    assert 'server is trusted' in found['trust_model']


def test_seeded_runs_repeat_and_guarantee_nothing(runs):
  folders = [_folder(runs, name) for name in ('seeded', 'seeded again')]
  found = [_summary(folder) for folder in folders]
  assert found[0]['epsilon'] is None and found[0]['epsilon_if_unseeded'] > 0
  assert any('no guarantee' in text for text in found[0]['warnings'])
  assert found[0] == found[1]
  arrays = [vote_records.read_arrays(folder / 'student.npz') for folder in folders]
  for key, value in arrays[0].items():
    np.testing.assert_array_equal(value, arrays[1][key])


def test_a_finished_run_resumes_to_the_same_summary(runs, launcher):
  folder = _folder(runs, 'knn')
  before = _summary(folder)
  run = launcher.run(VOTE, *RUNS['knn'], f'--output_dir={folder}', '--resume')
  assert run.code == 0, run.stderr
  assert {**_summary(folder), 'starts': 1} == before
  assert ledger_lib.Ledger(folder / 'ledger.jsonl').verify(expected_count=1) == []


BAD = {
    'no queries': (['--public_records=0'], 'has no public queries'),
    'too many queries': (['--queries=61'], 'queries must be at most the 60 public'),
    'unreachable': (['--epsilon=0.1', '--noise_stddev=2'],
                    'the largest number of queries that fits is'),
    'drowned': (['--epsilon=0.05', '--noallow_degenerate'],
                'the largest number of queries that fits is'),
    'too few classes': (['--task=npz', '--data_path={npz}', '--num_classes=2'],
                        'labels must be in [0, 2), found 2 in row 1'),
    'impossible classes': (['--task=npz', '--data_path={npz}', '--num_classes=0'],
                           'num_classes must be an integer from 2 to 1000, found 0'),
    'label out of range': (['--task=npz', '--data_path={beyond}', '--queries=5'],
                           'labels must be in [0, 1000), found -1 in row 3'),
    'wrong model': (['--model=cnn', '--features=pca'], 'model cnn is for images'),
    'wrong student': (['--student_model=encoder', '--features=pca'],
                      'student_model=encoder needs features=contrastive'),
    'unused option': (['--target=dslr'], 'task embedded does not use target'),
    'no file': (['--task=mnist', '--data_dir=nowhere'], 'mnist.npz does not exist'),
    'degenerate sum': (['--algorithm=dp_fedavg', '--bits=2', '--features=pca'],
                       'bits'),
}


@pytest.mark.parametrize('name', BAD)
def test_bad_input_is_one_clear_line(launcher, tmp_path, name):
  paths = {'npz': tmp_path / 'unseen.npz', 'beyond': tmp_path / 'beyond.npz'}
  x = np.zeros((30, 4), np.float32)
  unseen = np.where(np.arange(30) % 2, 2, 0)
  beyond = np.where(np.arange(30) == 3, -1, unseen)
  for path, y in zip(paths.values(), (unseen, beyond)):
    np.savez(path, x_train=x, y_train=y, writer_train=np.arange(30) % 3, x_test=x,
             y_test=np.zeros(30, int))
  arguments, message = BAD[name]
  arguments = [text.format(**paths) for text in arguments]
  base = [] if '--task=npz' in arguments or '--task=mnist' in arguments else [
      *TINY_VOTE]
  run = launcher.run(VOTE, *base, *arguments, f'--output_dir={tmp_path / "out"}')
  assert run.code == 2, run.stderr
  lines = run.stderr.strip().splitlines()
  assert len(lines) == 1 and lines[0].startswith('error: ')
  assert message in lines[0]


def test_a_folder_of_another_run_is_refused(runs, launcher):
  folder = _folder(runs, 'knn')
  run = launcher.run(VOTE, *RUNS['ae'], f'--output_dir={folder}', '--resume')
  assert run.code == 2 and 'another configuration' in run.stderr
