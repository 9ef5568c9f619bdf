"""The binaries of local distillation as a user runs them, from flags to files."""

import json

import matplotlib.image
import numpy as np
import pytest

from tests.publish import checked
from tests.programs import launcher as launcher_lib

LDP = 'tff_pipelines.ldp'
BASELINE = 'tff_pipelines.ldp_baselines'
FIGURE = 'tff_pipelines.ldp_figure'
ACCOUNT = 'tff_pipelines.account'
SMALL = ('--num_clients=40', '--clients_per_query=5', '--queries_per_step=2',
         '--epsilon=12', '--answers_per_client=2')

pytestmark = pytest.mark.slow


def _summary(folder):
  return json.loads((folder / 'summary.json').read_text(),
                    parse_constant=lambda name: pytest.fail(name))


def _check_figure(path):
  figure = matplotlib.image.imread(path)
  assert figure.ndim == 3 and figure.std() > 0.05


@pytest.fixture(scope='module')
def finished(programs, tmp_path_factory):
  """A finished run, and its folder."""
  folder = tmp_path_factory.mktemp('runs') / 'run'
  run = programs.run(LDP, *SMALL, f'--output_dir={folder}')
  assert run.code == 0, run.stderr
  return run, folder


def test_run_leaves_all_its_files(finished):
  run, folder = finished
  assert {path.name for path in folder.iterdir()} >= {
      'answers', 'configuration.json', 'ledger.jsonl', 'metrics.csv',
      'progress.png', 'report.html', 'report.txt', 'starts.log', 'student.npz',
      'summary.json'}
  _check_figure(folder / 'progress.png')
  assert len(list((folder / 'answers').iterdir())) == 8
  assert 'Traceback' not in run.stderr and 'Warning' not in run.stderr


def test_epsilon_can_be_recomputed_from_the_ledger_alone(finished, programs):
  _, folder = finished
  run = programs.run(ACCOUNT, f'--ledger={folder / "ledger.jsonl"}', '--delta=0',
                     '--format=json')
  assert run.code == 0, run.stderr
  assert json.loads(run.stdout)['epsilon'] == pytest.approx(12.0)
  assert _summary(folder)['epsilon'] == 12.0


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


def test_a_worker_process_gives_the_same_run(launcher, finished, tmp_path):
  runs = [launcher.start(
      LDP, *SMALL, '--seed=11', '--max_queries=4', f'--num_workers={workers}',
      f'--output_dir={tmp_path / str(workers)}') for workers in (0, 1)]
  assert [run.wait() for run in runs] == [0, 0], runs[1].stderr
  one, other = (_summary(tmp_path / name) for name in ('0', '1'))
  # The fingerprint in a configuration is by a secret key of the run.
  assert one.pop('configuration') != other.pop('configuration')
  assert one == other
  assert not launcher_lib.workers_of(runs[1].mark)


@pytest.mark.parametrize('arguments, message', [
    (['--mechanism=coin'], 'mechanism'), (['--epsilon=nan'], 'epsilon'),
    (['--epsilon=-1'], 'epsilon must be greater than 0, found -1.0'),
    (['--epsilon_per_query=99'], 'epsilon_per_query must be from 0.0001 to 36'),
    (['--epsilon=1', '--epsilon_per_query=2'], 'less than one answer costs'),
    (['--clients_per_query=7'],
     'clients_per_query must divide num_clients=50, found 7'),
    (['--num_clients=0'], 'num_clients must be at least 1'),
    (['--num_clients=five'], 'flag --num_clients=five'),
    (['--task=mnist', '--data_path=absent.npz'], 'absent.npz does not exist'),
    (['--task=npz'], 'task npz needs data_path'),
    (['--target_accuracy=2'], 'target_accuracy must be'),
    (['--sampling=best'], 'sampling'), (['--resume'], 'resume needs output_dir'),
    (['--epsilom=3'], "Unknown command line flag 'epsilom'"),
    (['now'], "unexpected argument 'now'")])
def test_mistakes_are_one_line_and_write_nothing(
    programs, tmp_path, arguments, message):
  folder = tmp_path / 'run'
  run = programs.run(LDP, f'--output_dir={folder}', *arguments) if (
      '--resume' not in arguments) else programs.run(LDP, *arguments)
  assert run.code == 2
  assert run.stderr.startswith('error: ') and run.stderr.count('\n') == 1
  assert message in run.stderr
  assert not folder.exists()


def test_a_folder_that_holds_a_run_is_not_overwritten(programs, finished):
  _, folder = finished
  before = (folder / 'ledger.jsonl').read_bytes()
  run = programs.run(LDP, *SMALL, f'--output_dir={folder}')
  assert run.code == 2 and 'pass --resume' in run.stderr
  run = programs.run(
      LDP, *SMALL[:-1], '--answers_per_client=3', f'--output_dir={folder}', '--resume')
  assert run.code == 2 and 'answers_per_client (2 then, 3 now) differ' in run.stderr
  assert (folder / 'ledger.jsonl').read_bytes() == before


def test_help_is_one_screen_in_a_fresh_interpreter():
  for module, flag in ((LDP, '--epsilon_per_query'), (BASELINE, '--answers')):
    process = launcher_lib.python(module, '--help')
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    assert flag in out and '--num_clients' in out
    assert len(out.splitlines()) <= 45 and max(map(len, out.splitlines())) <= 80


# Baselines.

BASELINES = {
    'dp_sgd': ['--rounds=3'],
    'dp_fl': ['--rounds=2'],
    'pate': ['--answers=40'],
}


@pytest.fixture(scope='module')
def baselines(programs, tmp_path_factory):
  """Algorithm -> (finished run, its folder)."""
  base, finished = tmp_path_factory.mktemp('baselines'), {}
  for name, arguments in BASELINES.items():
    folder = base / name
    run = programs.run(BASELINE, f'--algorithm={name}', '--num_clients=20', *arguments,
                       f'--output_dir={folder}')
    assert run.code == 0, run.stderr
    finished[name] = (run, folder)
  return finished


@pytest.mark.parametrize('name, adjacency', [
    ('dp_sgd', 'record-zero-out'), ('dp_fl', 'zero-out'), ('pate', 'instance')])
def test_a_baseline_stays_just_below_its_epsilon_and_says_of_what(
    baselines, name, adjacency):
  run, folder = baselines[name]
  summary = _summary(folder)
  assert 7.9 < summary['epsilon'] <= 8.0 and summary['adjacency'] == adjacency
  assert summary['trust_model'] and summary['privacy_unit'] and summary['source']
  assert f"epsilon     {summary['epsilon']:.2f}"[:-1] in run.stdout
  assert 0 < summary['accuracy'] <= 1 and summary['details']['test_examples'] == 360


@pytest.mark.parametrize('name', BASELINES)
def test_epsilon_of_a_baseline_is_that_of_its_ledger(baselines, programs, name):
  _, folder = baselines[name]
  accountant = ['--accountant=rdp'] if name == 'pate' else []
  run = programs.run(ACCOUNT, f'--ledger={folder / "ledger.jsonl"}', '--format=json',
                     '--delta=1e-5', *accountant)
  assert run.code == 0, run.stderr
  assert json.loads(run.stdout)['epsilon'] == pytest.approx(
      _summary(folder)['epsilon'], rel=1e-3)


@pytest.mark.parametrize('name', ['dp_sgd', 'pate'])
def test_a_finished_baseline_says_the_same_again(baselines, programs, name):
  _, folder = baselines[name]
  first = _summary(folder)
  run = programs.run(BASELINE, f'--algorithm={name}', '--num_clients=20', '--resume',
                     *BASELINES[name], f'--output_dir={folder}')
  assert run.code == 0, run.stderr
  again = _summary(folder)
  assert again.pop('starts') > first.pop('starts')
  assert again == first  # Labels are not drawn again, and nothing is charged.


def test_labels_of_pate_are_limited_and_votes_are_not_kept(baselines):
  _, folder = baselines['pate']
  with np.load(folder / 'labels.npz') as arrays:
    assert set(arrays.files) == {'line', 'table', 'rows', 'labels'}
    assert 1 <= np.sum(arrays['labels'] >= 0) <= 40
  assert _summary(folder)['details']['answered'] <= 40


def test_a_seeded_baseline_guarantees_nothing(programs, tmp_path):
  run = programs.run(BASELINE, '--num_clients=20', '--seed=1', '--answers=40',
                     f'--output_dir={tmp_path / "run"}')
  assert run.code == 0, run.stderr
  summary = _summary(tmp_path / 'run')
  assert summary['epsilon'] is None and summary['epsilon_if_unseeded'] > 7.9
  assert any('no privacy guarantee' in text for text in summary['warnings'])
  assert 'none, the run is seeded' in run.stdout


@pytest.mark.parametrize('arguments, message', [
    (['--epsilon=0'], 'epsilon must be greater than 0'),
    (['--algorithm=dp_sgd', '--answers=3'],
     'answers is not used with algorithm=dp_sgd'),
    (['--threshold=0'], 'threshold must be greater than 0'),
    (['--stand_ins=2'], "Unknown command line flag 'stand_ins'")])
def test_mistakes_about_baselines_are_one_line(programs, tmp_path, arguments, message):
  run = programs.run(BASELINE, f'--output_dir={tmp_path / "run"}', *arguments)
  assert run.code == 2 and run.stderr.count('\n') == 1
  assert message in run.stderr and not (tmp_path / 'run').exists()


# The figure of the mechanisms.


def test_the_figure_is_drawn(programs, tmp_path):
  path = tmp_path / 'figures' / 'mechanisms.png'
  run = programs.run(FIGURE, f'--output={path}', '--draws=2000', '--num_clients=500')
  assert run.code == 0, run.stderr
  _check_figure(path)


@pytest.mark.parametrize('arguments, message', [
    (['--num_clients=0'], 'num_clients must be at least 1'),
    (['--output='], 'output must be'),
    (['--draws=1'], 'draws must be at least 2'),
    (['--output=/dev/null/figure.png'], "can't be written")])
def test_a_figure_that_can_not_be_drawn_is_one_line(programs, arguments, message):
  run = programs.run(FIGURE, *arguments)
  assert run.code == 2 and message in run.stderr and run.stderr.count('\n') == 1


def test_student_leaves_the_run_with_its_feature_map(finished, programs, tmp_path):
  _, folder = finished
  assert checked.own_figures(programs, folder) == _summary(folder)['held_out']
  content = checked.images(programs, folder, (16, 16, 1), tmp_path)
  assert content['private'] and content['adjacency'] == 'local'
