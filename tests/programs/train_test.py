"""The trainer as a user runs it, from flags to files."""

import json

import matplotlib.image
import pytest

from tests import data_dir
from tests.programs import in_process, launcher as launcher_lib
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.experiment import checkpoints

TRAIN = 'tff_pipelines.train'
TINY = ('--rounds=2', '--num_clients=20', '--cohort_size=5')
ROUNDS = 2
# Words for what must not be printed unless it was asked for.
OUTSIDE = ('diagnostics', 'num_reporting', 'clipped', 'not_finite', 'rounding',
           'training', 'examples')

RUNS = {'none': ['--mechanism=none'], 'skellam': [], 'seeded': ['--seed=3']}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('shared_context')]


@pytest.fixture(scope='module')
def runs(shared_context, tmp_path_factory):
  """Name -> (finished run, its output folder)."""
  base, finished = tmp_path_factory.mktemp('runs'), {}
  for name, arguments in RUNS.items():
    folder = base / name.replace(' ', '_')
    # One has a folder of its own choice.
    where = [] if name == 'none' else [f'--output_dir={folder}']
    finished[name] = (in_process.run(
        TRAIN, *TINY, *arguments, *where, folder=base), folder)
  run, _ = finished['none']
  built, = (base / 'out').iterdir()
  finished['none'] = (run, built)
  return finished


def _checkpoint(folder):
  return checkpoints.read(checkpoints.path_of(folder / 'private/checkpoints', ROUNDS))


def _leaves(folder):
  return {name: value.tobytes() for name, value in _checkpoint(folder).arrays.items()}


@pytest.mark.parametrize('name', RUNS)
def test_run_leaves_all_its_files(runs, name):
  folder = in_process.folder_of(runs, name)
  assert sorted(path.name for path in folder.iterdir()) == [
      'clients.png', 'configuration.json', 'ledger.jsonl', 'metrics.csv',
      'model.json', 'model.npz', 'paths.json', 'private', 'progress.png', 'report.html',
      'report.txt', 'starts.log', 'summary.json', 'tensorboard']
  assert sorted(path.name for path in (folder / 'private/checkpoints').iterdir()) == [
      'round_000000', 'round_000001', 'round_000002']
  for file in ('progress.png', 'clients.png'):
    figure = matplotlib.image.imread(folder / file)
    assert figure.ndim == 3 and min(figure.shape[:2]) > 300 and figure.std() > 0.05


@pytest.mark.parametrize('name', RUNS)
def test_metrics_have_a_row_a_round(runs, name):
  folder = in_process.folder_of(runs, name)
  rows = in_process.rows(folder / 'metrics.csv')
  assert [int(row['round']) for row in rows] == [1, 2]
  final = in_process.summary(folder)
  assert float(rows[-1]['test/accuracy']) == final['accuracy']
  assert float(rows[-1]['test/loss']) == final['held_out']['test']['loss']
  assert 0 <= final['accuracy'] <= 1


def test_run_without_privacy_claims_none(runs):
  summary = in_process.summary(in_process.folder_of(runs, 'none'))
  assert summary['epsilon'] is summary['epsilon_server'] is None
  assert summary['epsilon_server_any_cohorts'] is None
  assert 'epsilon     none: nothing is guaranteed' in runs['none'][0].stdout
  assert runs['none'][1].name.startswith('emnist-none-')
  lines = ledger_lib.Ledger(runs['none'][1] / 'ledger.jsonl').lines()
  assert [line['event'] for line in lines] == [{'kind': 'NoPrivacy'}] * 2


@pytest.mark.parametrize('name', ['none', 'skellam'])
def test_nothing_tells_who_participated_unless_asked_for(runs, name):
  run, folder = runs[name][0], in_process.folder_of(runs, name)
  public = [] if name == 'none' else ['public/estimated_wrapped_fraction', 'public/scale']
  columns = ['round', 'epsilon', *public, 'test/accuracy', 'test/loss']
  assert list(in_process.rows(folder / 'metrics.csv')[0]) == columns
  assert sorted(_checkpoint(folder).metrics) == sorted(columns[1:])
  ledger = (folder / 'ledger.jsonl').read_text()
  assert {key for line in ledger.splitlines()[1:] for key in json.loads(line)} == {
      'round', 'event', 'outcome', 'starts', 'time', 'configuration', 'previous', 'hash'}
  # Of what is written once for all rounds, only what is configured is a number.
  assert len({json.dumps(json.loads(line)['event'])
              for line in ledger.splitlines()[1:]}) == 1
  summary = in_process.summary(folder)
  trust_model = summary.pop('trust_model')
  report = (folder / 'report.txt').read_text().replace(trust_model, '')
  for text in (ledger, json.dumps(summary), run.stdout, run.stderr, report):
    assert not [word for word in OUTSIDE if word in text]


def test_seeded_run_of_another_interpreter_is_the_same_to_the_last_bit(runs, tmp_path):
  one, two = in_process.folder_of(runs, 'seeded'), tmp_path / 'run'
  process = launcher_lib.python(
      TRAIN, *TINY, *RUNS['seeded'], f'--output_dir={two}', mark='own')
  stdout, stderr = process.communicate(timeout=400)
  assert process.returncode == 0, stderr
  assert _leaves(one) == _leaves(two)
  assert (one / 'metrics.csv').read_bytes() == (two / 'metrics.csv').read_bytes()
  assert str(two.name) in stdout
  # Standard error has the progress bar, and nothing else.
  assert not [line for line in stderr.replace('\r', '\n').split('\n')
              if line and 'round/s' not in line and 's/round' not in line]
  assert '2/2' in stderr and 'accuracy=' in stderr
  assert 'epsilon_if_unseeded=' in stderr
  assert not launcher_lib.workers_of('own')


def test_real_digits_are_learnt_under_privacy(tmp_path):
  path = data_dir.require('mnist.npz')
  run = in_process.run(
      TRAIN, '--data_source=npz', f'--data_path={path}', '--rounds=5', '--epsilon=8',
      '--cohort_size=100', '--server_learning_rate=0.5', '--client_learning_rate=0.1',
      '--output_dir=run', '--rounds_per_evaluation=5', folder=tmp_path)
  assert run.code == 0, run.stderr
  summary = in_process.summary(tmp_path / 'run')
  # 539^-1.1 = 0.000989...
  assert 7.99 < summary['epsilon'] <= 8 and summary['delta'] == 0.00098
  # Chance is 0.1; three runs reached 0.73, 0.73 and 0.74.
  assert summary['accuracy'] > 0.6
  assert summary['headline_of'] == 'test_clients'
  assert summary['outside_guarantee'] == ['test_clients']
  assert 'held-out metrics not protected' in ' '.join(run.stdout.split())
  assert 'clients that are not in the population' in (
      tmp_path / 'run' / 'report.txt').read_text()
