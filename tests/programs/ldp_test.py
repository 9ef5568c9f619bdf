"""The binaries of local distillation as a user runs them, from flags to files."""

import json

import matplotlib.image
import numpy as np
import pytest

from tests.programs import in_process
from tests.publish import checked

LDP = 'tff_pipelines.ldp'
BASELINE = 'tff_pipelines.ldp_baselines'
FIGURE = 'benchmarks.ldp_mechanisms'
ACCOUNT = 'tff_pipelines.account'
SMALL = ('--num_clients=40', '--clients_per_query=5', '--queries_per_step=2',
         '--epsilon=12', '--answers_per_client=2')

pytestmark = pytest.mark.slow


def _check_figure(path):
  figure = matplotlib.image.imread(path)
  assert figure.ndim == 3 and figure.std() > 0.05


@pytest.fixture(scope='module')
def finished(programs, tmp_path_factory):
  """A finished run, and its folder."""
  folder = tmp_path_factory.mktemp('runs') / 'run'
  run = programs.done(LDP, *SMALL, f'--output_dir={folder}')
  return run, folder


def test_run_leaves_all_its_files(finished):
  run, folder = finished
  assert {path.name for path in folder.iterdir()} >= {
      'answers', 'configuration.json', 'ledger.jsonl', 'metrics.csv', 'progress.png',
      'report.html', 'report.txt', 'starts.log', 'student.npz', 'summary.json'}
  _check_figure(folder / 'progress.png')
  assert len(list((folder / 'answers').iterdir())) == 8
  assert 'Traceback' not in run.stderr and 'Warning' not in run.stderr


def test_nothing_on_disk_is_of_one_owner_alone(finished):
  _, folder = finished
  with np.load(folder / 'answers' / '000001.npz') as arrays:
    assert set(arrays.files) == {
        'line', 'table', 'first_query', 'rows', 'means', 'answers'}
    # Five owners a query: what is kept is their mean.
    np.testing.assert_array_equal(arrays['answers'], [5, 5])
    assert arrays['means'].shape == (2, 10)
  with np.load(folder / 'student.npz') as arrays:
    assert arrays.files == ['weights']


# Ranges of single settings: tests/ldp/settings_test.py.
@pytest.mark.parametrize('program, arguments, message', [
    (LDP, ['--epsilon=1', '--epsilon_per_query=2'], 'less than one answer costs'),
    (LDP, ['--clients_per_query=7'],
     'clients_per_query must divide num_clients=50, found 7'),
    (BASELINE, ['--stand_ins=2'], 'unknown flag --stand_ins')])
def test_mistakes_are_one_line_and_write_nothing(
    programs, tmp_path, program, arguments, message):
  run = programs.run(program, f'--output_dir={tmp_path / "run"}', *arguments)
  in_process.check_refused(run, message)
  assert not (tmp_path / 'run').exists()


# Baselines.

BASELINES = {'dp_sgd': ['--rounds=3'], 'dp_fl': ['--rounds=2'], 'pate': ['--answers=40']}


@pytest.fixture(scope='module')
def baselines(programs, tmp_path_factory):
  """Algorithm -> (finished run, its folder)."""
  base, finished = tmp_path_factory.mktemp('baselines'), {}
  for name, arguments in BASELINES.items():
    folder = base / name
    run = programs.done(BASELINE, f'--algorithm={name}', '--num_clients=20', *arguments,
                        f'--output_dir={folder}')
    finished[name] = (run, folder)
  return finished


@pytest.mark.parametrize('name, adjacency', [
    ('dp_sgd', 'record-zero-out'), ('dp_fl', 'zero-out'), ('pate', 'instance')])
def test_a_baseline_stays_just_below_its_epsilon_and_says_of_what(
    baselines, name, adjacency):
  run, folder = baselines[name]
  summary = in_process.summary(folder)
  assert 7.9 < summary['epsilon'] <= 8.0 and summary['adjacency'] == adjacency
  assert summary['trust_model'] and summary['privacy_unit'] and summary['source']
  assert f"epsilon     {summary['epsilon']:.2f}"[:-1] in run.stdout
  assert 0 < summary['accuracy'] <= 1 and summary['details']['test_examples'] == 360


@pytest.mark.parametrize('name', BASELINES)
def test_epsilon_of_a_baseline_is_that_of_its_ledger(baselines, programs, name):
  _, folder = baselines[name]
  accountant = ['--accountant=rdp'] if name == 'pate' else []
  run = programs.done(ACCOUNT, f'--ledger={folder / "ledger.jsonl"}', '--format=json',
                      '--delta=1e-5', *accountant)
  assert json.loads(run.stdout)['epsilon'] == pytest.approx(
      in_process.summary(folder)['epsilon'], rel=1e-3)


def test_labels_of_pate_are_limited_and_votes_are_not_kept(baselines):
  _, folder = baselines['pate']
  with np.load(folder / 'labels.npz') as arrays:
    assert set(arrays.files) == {'line', 'table', 'rows', 'labels'}
    assert 1 <= np.sum(arrays['labels'] >= 0) <= 40
  assert in_process.summary(folder)['details']['answered'] <= 40


# The figure of the mechanisms.


def test_the_figure_is_drawn(programs, tmp_path):
  path = tmp_path / 'figures' / 'mechanisms.png'
  programs.done(FIGURE, f'--output={path}', '--draws=2000', '--num_clients=500')
  _check_figure(path)


@pytest.mark.parametrize('arguments, message', [
    (['--draws=1'], 'draws must be at least 2'),
    (['--output=/dev/null/figure.png'], "can't be written")])
def test_a_figure_that_can_not_be_drawn_is_one_line(programs, arguments, message):
  in_process.check_refused(programs.run(FIGURE, *arguments), message)


def test_student_leaves_the_run_with_its_feature_map(finished, programs, tmp_path):
  _, folder = finished
  assert checked.own_figures(programs, folder) == in_process.summary(folder)['held_out']
  content = checked.images(programs, folder, (16, 16, 1), tmp_path)
  assert content['adjacency'] == 'local'
  assert 'at epsilon 12.0000 a test with 1% false alarms may detect everyone' in (
      content['reasons'])
