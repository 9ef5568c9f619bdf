"""The vote program as a user runs it, from flags to files."""

import csv
import json

import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf

from tests import shells
from tests.publish import checked
from tests.programs import launcher as launcher_lib
from tff_pipelines.common import decimals
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.experiment import checkpoints
from tff_pipelines.common import files
from tff_pipelines.experiment import report

VOTE = 'tff_pipelines.vote'
ACCOUNT = 'tff_pipelines.account'
TINY = ('--num_clients=6', '--public_records=60', '--rounds=2')
TINY_VOTE = (*TINY, '--queries=12', '--student_epochs=2', '--allow_degenerate')

# Every run of this file.
RUNS = {
    'ae': [*TINY_VOTE, '--feature_epochs=1', '--epsilon=4'],
    'knn': [*TINY_VOTE, '--algorithm=knn', '--neighbours=5', '--features=pca'],
    'adversarial': [*TINY_VOTE, '--adversarial_strength=0.5', '--model=cnn_small',
                    '--client_epochs=1', '--features=pca', '--student=labels'],
    'gaussian': [*TINY_VOTE, '--noise=gaussian_central', '--features=pca',
                 '--student_model=softmax', '--threshold=0.5'],
    'seeded': [*TINY_VOTE, '--seed=3', '--features=pca', '--student_model=mlp'],
    'fedavg': [*TINY, '--algorithm=fedavg'],
    'dp_fedavg': [*TINY, '--algorithm=dp_fedavg', '--features=pca'],
    'dp_fedavg gaussian': [*TINY, '--algorithm=dp_fedavg', '--features=pca',
                           '--noise=gaussian_central', '--cohort_size=3'],
    'dp_fedsgd': [*TINY, '--algorithm=dp_fedsgd', '--features=pca'],
}
VOTES = ['ae', 'knn', 'adversarial', 'gaussian', 'seeded']
BASELINES = ['fedavg', 'dp_fedavg', 'dp_fedavg gaussian', 'dp_fedsgd']
# Words for what is as private as the votes.
PRIVATE = ('margin', 'count', 'histogram', 'ballot', 'tally')

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def runs(programs, tmp_path_factory):
  """Name -> (finished run, its output folder)."""
  base = tmp_path_factory.mktemp('runs')
  folders = {name: base / name.replace(' ', '_') for name in RUNS}
  return {name: (programs.run(VOTE, *arguments, f'--output_dir={folders[name]}'),
                 folders[name]) for name, arguments in RUNS.items()}


def _folder(runs, name):
  run, folder = runs[name]
  assert run.code == 0, run.stderr
  return folder


def _summary(folder):
  return json.loads((folder / 'summary.json').read_text(),
                    parse_constant=lambda name: pytest.fail(name))


def _report(folder):
  return (folder / files.REPORT).read_text(encoding='utf-8')


def _leaves(folder):
  """The leaves of the state in the checkpoint of the vote."""
  path = checkpoints.path_of(folder / 'private/checkpoints', 1)
  return list(checkpoints.read(path).arrays.values())


def _tags(folder):
  """Names of what TensorBoard has."""
  (path,) = (folder / 'tensorboard').iterdir()
  tags = {value.tag for event in tf.compat.v1.train.summary_iterator(str(path))
           for value in event.summary.value}
  assert tags
  return tags


def _rows(path):
  with open(path, encoding='utf-8') as file:
    return list(csv.DictReader(file))


@pytest.mark.parametrize('name', [*VOTES, *BASELINES])
def test_run_leaves_all_its_files(runs, name):
  folder = _folder(runs, name)
  expected = {'configuration.json', 'features.npz', 'ledger.jsonl', 'metrics.csv',
              'model.json', 'model.npz', 'paths.json', 'private', 'progress.png',
              'report.html', 'report.txt', 'starts.log',
              'summary.json', 'tensorboard'}
  if name in VOTES:
    expected |= {'queries.npz', 'student.npz', 'student.csv'}
  assert {path.name for path in folder.iterdir()} == expected
  figure = matplotlib.image.imread(folder / 'progress.png')
  assert figure.ndim == 3 and figure.std() > 0.05


def test_all_algorithms_report_the_same_fields(runs):
  summaries = {name: _summary(_folder(runs, name)) for name in RUNS}
  assert len({frozenset(summary['details']) for summary in summaries.values()}) == 1
  for name, summary in summaries.items():
    report.validate_summary(summary)
    details = summary['details']
    assert 0 <= summary['accuracy'] <= 1 and details['test_examples'] == 400
    assert details['uplink_bytes_per_agent'] > 0 and summary['population'] == 6
    assert (summary['sampler'] is None) == (name == 'fedavg')


@pytest.mark.parametrize('name', RUNS)
def test_what_is_printed_is_short_and_the_rest_is_in_the_report(runs, name):
  run, folder = runs[name]
  lines = run.stdout.splitlines()
  assert len(lines) <= 20 and shells.width(lines) <= 80
  assert 'epochs of' not in run.stdout  # The feature map's bar is on stderr.
  text = _report(folder)
  summary = _summary(folder)
  assert all(f'warning: {warning}' in text for warning in summary['warnings'])
  assert any('classes are taken as public' in w for w in summary['warnings'])
  assert 'uplink of an agent:' in text
  assert ('privacy unit:' in text) == (name != 'fedavg')


@pytest.mark.parametrize('name, epsilon, level, adjacency', [
    ('ae', 4, 'agent', 'zero-out'), ('knn', 4.3, 'instance', 'instance'),
    ('gaussian', 4.3, 'agent', 'zero-out'), ('dp_fedavg', 4.3, 'agent', 'zero-out'),
    ('dp_fedavg gaussian', 4.3, 'agent', 'zero-out'),
    ('dp_fedsgd', 4.3, 'instance', 'record-zero-out')])
def test_epsilon_is_just_below_the_target(runs, name, epsilon, level, adjacency):
  summary = _summary(_folder(runs, name))
  assert 0.99 * epsilon < summary['epsilon'] <= epsilon
  assert (summary['details']['level'], summary['adjacency']) == (level, adjacency)
  for key in ('adjacency_in_words', 'trust_model', 'observers', 'source',
              'accountant'):
    assert summary[key]
  shown = f"epsilon     {decimals.epsilon(summary['epsilon'])} at delta"
  assert runs[name][0].stdout.count(shown) == 2


@pytest.mark.parametrize('name', ['ae', 'knn', 'dp_fedavg', 'dp_fedsgd'])
def test_epsilon_can_be_recomputed_from_the_ledger_alone(runs, programs, name):
  folder = _folder(runs, name)
  summary = _summary(folder)
  run = programs.run(ACCOUNT, f'--ledger={folder / "ledger.jsonl"}',
                     '--format=json')
  assert run.code == 0, run.stderr
  assert json.loads(run.stdout)['epsilon'] == pytest.approx(
      summary['epsilon'], rel=1e-4)


@pytest.mark.parametrize('name', VOTES)
def test_a_vote_is_one_release_of_all_queries(runs, name):
  ledger = ledger_lib.Ledger(_folder(runs, name) / 'ledger.jsonl')
  (line,) = ledger.lines()
  assert line['event']['count'] == 12 and line['outcome'] == 'released'
  assert line['event']['event']['kind'] == 'Vote'


@pytest.mark.parametrize('name', VOTES)
def test_nothing_of_the_votes_but_labels_is_printed_or_kept(runs, name):
  run, folder = runs[name]
  summary = _summary(folder)
  said = ' '.join((run.stdout, run.stderr, *summary, *summary['details'])).lower()
  said = said.replace(' counts)', '').replace('account', '')
  assert not [word for word in PRIVATE if word in said]
  assert set(_rows(folder / 'metrics.csv')[0]) == {
      'round', 'answered',
      'epsilon' if name != 'seeded' else 'epsilon_if_unseeded'}
  assert _tags(folder) <= {'answered', 'epsilon', 'epsilon_if_unseeded'}
  # The checkpoint's state is the labels and no more.
  kept = _leaves(folder)
  assert len(kept) == 1 and kept[0].shape == (12,) and kept[0].dtype == np.int32
  assert kept[0].min() >= -1 and kept[0].max() < 10
  student = files.read_arrays(folder / 'student.npz')
  assert all(key == 'curve' or key.startswith('state_') for key in student)
  assert set(files.read_arrays(folder / 'queries.npz')) == {'rows'}


@pytest.mark.parametrize('name', VOTES)
def test_summary_says_what_the_labels_are_worth(runs, name):
  folder = _folder(runs, name)
  summary = _summary(folder)
  details = summary['details']
  assert details['queries'] == 12 and 0 < details['answered'] <= 1
  assert 0 <= details['labels_right'] <= 1
  assert details['uplink_of_federated_averaging'] > details['uplink_bytes_per_agent']
  curve = _rows(folder / 'student.csv')
  assert [int(row['epoch']) for row in curve] == [1, 2]
  assert float(curve[-1]['accuracy']) == summary['accuracy']
  text = _report(folder)
  assert 'released labels:' in text and 'times as much' in text


def test_uplink_is_that_of_what_is_sent(runs):
  summary = _summary(_folder(runs, 'ae'))
  assert summary['details']['uplink_bytes_per_agent'] == 12 * 10 * summary['bits'] / 8
  averaging = _summary(_folder(runs, 'dp_fedsgd'))
  assert averaging['details']['uplink_bytes_per_agent'] == (
      averaging['parameters'] * 4 * 2)


def test_the_published_epsilon_is_reported_alongside_the_proved_one(runs):
  for name in VOTES:
    summary = _summary(_folder(runs, name))
    proved = summary['epsilon'] or summary['epsilon_if_unseeded']
    published = summary['details']['epsilon_published']
    assert published > proved
    assert f'epsilon {decimals.epsilon(published)} by the formula of the paper' in (
        runs[name][0].stdout)


def test_the_part_of_delta_that_sampling_error_consumes_is_reported(runs):
  for name in ('ae', 'knn'):
    folder = _folder(runs, name)
    summary = _summary(folder)
    assert 0 < summary['consumed_delta'] < 1e-15 * summary['delta']
    assert 'noise: exact tables' in _report(folder)
    assert 'sampling error consumes' in _report(folder)
    header = ledger_lib.Ledger(folder / 'ledger.jsonl').header()
    assert header['deviation_per_round'] == 12 * 10 * 6 * 2.0**-86
  for name in ('gaussian', 'dp_fedsgd'):
    folder = _folder(runs, name)
    assert _summary(folder)['consumed_delta'] is None
    assert 'no bound on its deviation is proved' in _report(folder)


def test_fedavg_guarantees_nothing(runs):
  summary = _summary(_folder(runs, 'fedavg'))
  assert summary['epsilon'] is summary['adjacency'] is None
  assert summary['details']['noise'] is None
  assert 'nothing is guaranteed' in runs['fedavg'][0].stdout


def test_a_trusted_server_has_no_epsilon_of_its_own(runs):
  summary = _summary(_folder(runs, 'gaussian'))
  assert summary['epsilon_server'] is None
  assert 'server is trusted' in summary['trust_model']
  # That of the participants, who know the cohorts.
  summary = _summary(_folder(runs, 'dp_fedavg gaussian'))
  assert 'server is trusted' in summary['trust_model']
  assert summary['epsilon_server'] > summary['epsilon']
  assert 'participants' in summary['observers_server']


def test_the_server_of_dp_fedsgd_does_not_know_the_sampled_records(runs):
  summary = _summary(_folder(runs, 'dp_fedsgd'))
  assert summary['epsilon_server'] == summary['epsilon']
  assert summary['sampling'] == 'poisson, of records, rate 0.05'


def test_seeded_run_guarantees_nothing(runs):
  summary = _summary(_folder(runs, 'seeded'))
  assert summary['epsilon'] is None and summary['epsilon_if_unseeded'] > 0
  assert any('no privacy guarantee' in text for text in summary['warnings'])


def test_a_finished_run_resumes_to_the_same_summary(runs, programs):
  folder = _folder(runs, 'knn')
  before = _summary(folder)
  run = programs.run(VOTE, *RUNS['knn'], f'--output_dir={folder}', '--resume')
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
                           'num_classes must be from 2 to 1000, found 0'),
    'label out of range': (['--task=npz', '--data_path={beyond}', '--queries=5'],
                           'labels must be in [0, 1000), found -1 in row 3'),
    'wrong model': (['--model=cnn', '--features=pca'], 'model cnn is for images'),
    'wrong student': (['--student_model=encoder', '--features=pca'],
                      'student_model=encoder needs features=contrastive'),
    'unused option': (['--target=dslr'], 'target is not used with task=embedded'),
    'unused noise': (['--noise_multiplier=2'],
                     'noise_multiplier is not used with algorithm=ae'),
    'unused by fedavg': (['--algorithm=fedavg', '--epsilon=2'],
                         'epsilon is not used with algorithm=fedavg'),
    'no file': (['--task=mnist', '--data_path=nowhere'], 'mnist.npz does not exist'),
    'no path': (['--task=mnist'], 'data_path must be given for task=mnist'),
    'degenerate sum': (['--algorithm=dp_fedavg', '--bits=2', '--features=pca'],
                       'bits'),
}


@pytest.mark.parametrize('name', BAD)
def test_bad_input_is_one_clear_line(programs, tmp_path, name):
  paths = {'npz': tmp_path / 'unseen.npz', 'beyond': tmp_path / 'beyond.npz'}
  x = np.zeros((30, 4), np.float32)
  unseen = np.where(np.arange(30) % 2, 2, 0)
  beyond = np.where(np.arange(30) == 3, -1, unseen)
  for path, y in zip(paths.values(), (unseen, beyond)):
    np.savez(path, x_train=x, y_train=y, writer_train=np.arange(30) % 3, x_test=x,
             y_test=np.zeros(30, int))
  arguments, message = BAD[name]
  arguments = [text.format(**paths) for text in arguments]
  base = () if any(a.startswith('--task=') for a in arguments) else (
      TINY if any(a.startswith('--algorithm=') for a in arguments) else TINY_VOTE)
  run = programs.run(VOTE, *base, *arguments, f'--output_dir={tmp_path / "out"}')
  assert run.code == 2, run.stderr
  lines = run.stderr.strip().splitlines()
  assert len(lines) == 1 and lines[0].startswith('error: ')
  assert message in lines[0]


def test_a_folder_of_another_run_is_refused(runs, programs):
  folder = _folder(runs, 'knn')
  run = programs.run(VOTE, *RUNS['ae'], f'--output_dir={folder}', '--resume')
  assert run.code == 2 and 'another configuration' in run.stderr


@pytest.mark.parametrize('name', [
    'ae', 'knn', 'gaussian', 'seeded', 'fedavg', 'dp_fedavg gaussian', 'dp_fedsgd'])
def test_model_leaves_the_run_with_its_feature_map(runs, name, programs, tmp_path):
  folder = _folder(runs, name)
  assert checked.own_figures(programs, folder) == _summary(folder)['held_out']
  content = checked.images(programs, folder, (16, 16), tmp_path)
  assert content['private'] == (name not in ('seeded', 'fedavg'))
  details = _summary(folder)['details']
  assert content['model'] == (details['student_model'] or _summary(folder)['model'])


def test_a_process_of_its_own_prints_nothing_when_it_ends(tmp_path):
  process = launcher_lib.python(
      VOTE, *TINY_VOTE, '--features=pca', '--student_model=softmax',
      f'--output_dir={tmp_path / "run"}')
  _, stderr = process.communicate(timeout=400)
  assert process.returncode == 0, stderr
  # Standard error has the progress bars, and nothing else.
  assert not [line for line in stderr.replace('\r', '\n').split('\n')
              if line and '%|' not in line]
