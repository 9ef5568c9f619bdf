"""The vote program as a user runs it, from flags to files."""

import math

import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf

from tests.programs import in_process
from tests.publish import checked
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.common import decimals, files
from tff_pipelines.experiment import checkpoints, report

VOTE = 'tff_pipelines.vote'
TINY = ('--num_clients=6', '--public_records=60', '--rounds=2')
TINY_VOTE = (*TINY, '--queries=12', '--student_epochs=2', '--allow_degenerate')

# Every run of this file.
RUNS = {
    'ae': [*TINY_VOTE, '--feature_epochs=1', '--epsilon=4'],
    'knn': [*TINY_VOTE, '--algorithm=knn', '--neighbours=5', '--features=pca'],
    'gaussian': [*TINY_VOTE, '--noise=gaussian_central', '--features=pca',
                 '--student_model=softmax', '--threshold=0.5'],
    'fedavg': [*TINY, '--algorithm=fedavg'],
    'dp_fedavg': [*TINY, '--algorithm=dp_fedavg', '--features=pca', '--student=labels',
                  '--queries=12', '--student_epochs=2'],
    'dp_fedsgd': [*TINY, '--algorithm=dp_fedsgd', '--features=pca']}
VOTES = ['ae', 'knn', 'gaussian']
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


@pytest.mark.parametrize('name', RUNS)
def test_run_leaves_all_its_files(runs, name):
  folder = in_process.folder_of(runs, name)
  expected = {'configuration.json', 'features.npz', 'ledger.jsonl', 'metrics.csv',
              'model.json', 'model.npz', 'paths.json', 'private', 'progress.png',
              'report.html', 'report.txt', 'starts.log', 'summary.json', 'tensorboard'}
  if '--student' in ' '.join(RUNS[name]) or name in VOTES:
    expected |= {'queries.npz', 'student.npz', 'student.csv'}
  assert {path.name for path in folder.iterdir()} == expected
  figure = matplotlib.image.imread(folder / 'progress.png')
  assert figure.ndim == 3 and figure.std() > 0.05


def test_all_algorithms_report_the_same_fields(runs):
  summaries = {name: in_process.summary(in_process.folder_of(runs, name))
               for name in RUNS}
  assert len({frozenset(summary['details']) for summary in summaries.values()}) == 1
  for name, summary in summaries.items():
    report.validate_summary(summary)
    details = summary['details']
    assert 0 <= summary['accuracy'] <= 1 and details['test_examples'] == 400
    assert details['uplink_bytes_per_agent'] > 0
    assert summary['population'] == (1337 if name == 'dp_fedsgd' else 6)
    assert (summary['sampler'] is None) == (name == 'fedavg')


@pytest.mark.parametrize('name, epsilon, level, adjacency', [
    ('ae', 4, 'agent', 'zero-out'), ('knn', 4.3, 'instance', 'instance'),
    ('gaussian', 4.3, 'agent', 'zero-out'), ('dp_fedavg', 4.3, 'agent', 'zero-out'),
    ('dp_fedsgd', 4.3, 'instance', 'instance')])
def test_epsilon_is_just_below_the_target(runs, name, epsilon, level, adjacency):
  summary = in_process.summary(in_process.folder_of(runs, name))
  assert 0.99 * epsilon < summary['epsilon'] <= epsilon
  assert (summary['details']['level'], summary['adjacency']) == (level, adjacency)
  for key in ('adjacency_in_words', 'trust_model', 'observers', 'source', 'accountant'):
    assert summary[key]
  shown = f"epsilon     {decimals.epsilon(summary['epsilon'])} at delta"
  assert runs[name][0].stdout.count(shown) == 2


@pytest.mark.parametrize('name', VOTES)
def test_nothing_of_the_votes_but_labels_is_printed_or_kept(runs, name):
  run, folder = runs[name]
  summary = in_process.summary(folder)
  said = ' '.join((run.stdout, run.stderr, *summary, *summary['details'])).lower()
  said = said.replace(' counts)', '').replace('account', '')
  assert not [word for word in PRIVATE if word in said]
  assert set(in_process.rows(folder / 'metrics.csv')[0]) == {
      'round', 'answered', 'epsilon'}
  assert _tags(folder) == {'answered', 'epsilon'}
  # The checkpoint's state is the labels and no more.
  kept = _leaves(folder)
  assert len(kept) == 1 and kept[0].shape == (12,) and kept[0].dtype == np.int32
  assert kept[0].min() >= -1 and kept[0].max() < 10
  student = files.read_arrays(folder / 'student.npz')
  assert all(key == 'curve' or key.startswith('state_') for key in student)
  assert set(files.read_arrays(folder / 'queries.npz')) == {'rows'}


@pytest.mark.parametrize('name', VOTES)
def test_summary_says_what_the_labels_are_worth(runs, name):
  run, folder = runs[name]
  summary = in_process.summary(folder)
  details = summary['details']
  assert details['queries'] == 12 and 0 < details['answered'] <= 1
  assert 0 <= details['labels_right'] <= 1
  curve = in_process.rows(folder / 'student.csv')
  assert [int(row['epoch']) for row in curve] == [1, 2]
  assert float(curve[-1]['accuracy']) == summary['accuracy']
  published = details['epsilon_published']
  assert published > summary['epsilon']
  assert (f'epsilon {decimals.epsilon(published)} by the formula of the paper'
          in run.stdout)
  text = _report(folder)
  assert 'released labels:' in text and 'times as much' in text
  assert any('classes are taken as public' in w for w in summary['warnings'])


def test_uplink_is_that_of_what_is_sent(runs):
  summary = in_process.summary(in_process.folder_of(runs, 'ae'))
  assert summary['details']['uplink_bytes_per_agent'] == 12 * 10 * summary['bits'] / 8
  averaging = in_process.summary(in_process.folder_of(runs, 'dp_fedsgd'))
  assert averaging['details']['uplink_bytes_per_agent'] == (
      2 ** math.ceil(math.log2(averaging['parameters'])) * 18 / 8 * 2)


def test_the_part_of_delta_that_sampling_error_consumes_is_reported(runs):
  for name in ('ae', 'knn'):
    folder = in_process.folder_of(runs, name)
    summary = in_process.summary(folder)
    assert 0 < summary['consumed_delta'] < 1e-15 * summary['delta']
    assert 'noise: exact tables' in _report(folder)
    assert 'sampling error consumes' in _report(folder)
    header = ledger_lib.Ledger(folder / 'ledger.jsonl').header()
    assert header['deviation_per_round'] == 12 * 10 * 6 * 2.0**-86
  folder = in_process.folder_of(runs, 'gaussian')
  assert in_process.summary(folder)['consumed_delta'] is None
  assert 'no bound on its deviation is proved' in _report(folder)


def test_a_trusted_server_has_no_epsilon_of_its_own(runs):
  summary = in_process.summary(in_process.folder_of(runs, 'gaussian'))
  assert summary['epsilon_server'] is None
  assert 'server is trusted' in summary['trust_model']


def test_the_server_of_dp_fedsgd_does_not_know_the_sampled_records(runs):
  summary = in_process.summary(in_process.folder_of(runs, 'dp_fedsgd'))
  assert summary['epsilon_server'] == summary['epsilon']
  assert summary['sampling'] == 'records'
  assert summary['epsilon'] < summary['epsilon_participant']


@pytest.mark.parametrize('arguments, message', [
    (['--public_records=0'], 'has no public queries'),
    (['--epsilon=0.1', '--noise_stddev=2'],
     'the largest number of queries that fits is')])
def test_bad_input_is_one_clear_line(programs, tmp_path, arguments, message):
  run = programs.run(VOTE, *TINY_VOTE, *arguments, f'--output_dir={tmp_path / "out"}')
  in_process.check_refused(run, message)


@pytest.mark.parametrize('name', list(RUNS))
def test_model_leaves_the_run_with_its_feature_map(runs, name, programs, tmp_path):
  folder = in_process.folder_of(runs, name)
  assert checked.own_figures(programs, folder) == in_process.summary(folder)['held_out']
  content = checked.images(programs, folder, (16, 16), tmp_path)
  # Of knn the number of records is not public, so its delta of 1e-4 is not judged.
  assert content['private'] == (name not in ('fedavg', 'knn'))
  summary = in_process.summary(folder)
  assert content['model'] == (summary['details']['student_model'] or summary['model'])
