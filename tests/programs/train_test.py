"""The trainer as a user runs it, from flags to files."""

import csv
import json
import pathlib

import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf

from tests import data_dir
from tests import shells
from tests.programs import in_process
from tests.programs import launcher as launcher_lib
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.experiment import checkpoints

TRAIN = 'tff_pipelines.train'
ACCOUNT = 'tff_pipelines.account'
TINY = ('--rounds=2', '--num_clients=20', '--cohort_size=5')
ROUNDS = 2
# Words for what must not be printed unless it was asked for.
OUTSIDE = ('diagnostics', 'num_reporting', 'clipped', 'not_finite', 'rounding',
           'training', 'examples')

RUNS = {
    'none': ['--mechanism=none'],
    'gaussian': ['--mechanism=gaussian', '--epsilon=4'],
    'skellam': [],
    'skellam again': [],
    'diagnostics': ['--diagnostics', '--noise_multiplier=1.5', '--delta=0.01'],
    'seeded': ['--seed=3'],
    'exploding client': ['--client_learning_rate=1e30'],
    'exploding server': ['--server_learning_rate=3e38', '--mechanism=none',
                         '--client_learning_rate=100',
                         # A round without clients would leave the model as it is.
                         '--sampling=fixed'],
}

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
  path = checkpoints.path_of(folder / 'private/checkpoints', rounds)
  return checkpoints.read(path).arrays


def _leaves(folder):
  return {name: value.tobytes() for name, value in checkpoint(folder).items()}


PRIVATE = ['gaussian', 'skellam', 'diagnostics']
FINISHED = ['none', *PRIVATE, 'seeded']


@pytest.mark.parametrize('name', FINISHED)
def test_run_leaves_all_its_files(runs, name):
  folder = _folder(runs, name)
  assert sorted(path.name for path in folder.iterdir()) == [
      'clients.png', 'configuration.json', 'ledger.jsonl', 'metrics.csv',
      'model.json', 'model.npz', 'paths.json', 'private', 'progress.png', 'report.html',
      'report.txt', 'starts.log', 'summary.json', 'tensorboard']
  assert sorted(path.name for path in (folder / 'private/checkpoints').iterdir()) == [
      'round_000000', 'round_000001', 'round_000002']
  for file in ('progress.png', 'clients.png'):
    figure = matplotlib.image.imread(folder / file)
    assert figure.ndim == 3 and min(figure.shape[:2]) > 300 and figure.std() > 0.05


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
  # Of a round without clients.
  unknown = {tag for (_, tag), value in expected.items() if np.isnan(value)}
  assert unknown <= {'diagnostics/training_loss'}
  assert events == pytest.approx(expected, nan_ok=True)
  final = _summary(folder)
  assert float(rows[-1]['test/accuracy']) == final['accuracy']
  assert float(rows[-1]['test/loss']) == final['held_out']['test']['loss']
  assert 0 <= final['accuracy'] <= 1


@pytest.mark.parametrize('name, target, multiplier, delta', [
    ('gaussian', 4.0, None, 0.037), ('skellam', 8.0, None, 0.037),
    ('diagnostics', None, 1.5, 0.01)])
def test_summary_states_the_guarantee(runs, name, target, multiplier, delta):
  folder = _folder(runs, name)
  summary = _summary(folder)
  if target is not None:
    assert 0.999 * target < summary['epsilon'] <= target
  if multiplier is not None:
    assert summary['noise_multiplier'] == multiplier
  assert summary['delta'] == delta
  assert summary['epsilon_server'] > summary['epsilon'] > 0
  assert (summary['task'], summary['model'], summary['parameters']) == (
      'emnist', 'cnn_small', 7346)
  assert (summary['population'], summary['cohort_size'], summary['rounds']) == (
      20, 5, 2)
  assert (summary['sampling'], summary['adjacency']) == ('poisson', 'zero-out')
  assert 'simulated clients' in summary['privacy_unit']
  expected = None if name == 'gaussian' else 'simulated'
  assert summary['secure_aggregation'] == expected
  assert float(_rows(folder)[-1]['epsilon']) == summary['epsilon']
  assert f'at delta {delta:.3g} against observers' in runs[name][0].stdout
  text = (folder / 'report.txt').read_text()
  assert ('secure aggregation: simulated' in text) == (expected is not None)
  assert f'trust model: {summary["trust_model"]}' in text
  for warning in summary['warnings']:
    assert f'warning: {warning}' in text


@pytest.mark.parametrize('name', FINISHED)
def test_terminal_gets_a_short_plan_and_a_short_report(runs, name):
  run, folder = runs[name]
  lines = run.stdout.splitlines()
  assert len(lines) <= 20 and shells.width(lines) <= 80
  plan, report = run.stdout.split('\n\n')
  assert plan.startswith(
      'task        emnist, cnn_small with 7,346 parameters, 20 clients')
  summary = _summary(folder)
  assert report.startswith(f'result      test: accuracy {summary["accuracy"]:.4f}, ')
  assert "\nweakest     digit '" in report
  if summary['epsilon'] is not None:
    for text in (plan, report):
      shown = float(text.split('\nepsilon     ')[1].split()[0])
      assert summary['epsilon'] <= shown <= summary['epsilon'] + 1.01e-4
  command = ' '.join(report.split('\nnext        ')[1].replace(' \\\n', '').split())
  assert command.startswith('python -m tff_pipelines.account --ledger=')
  for file in ('report.html', 'report.txt', 'summary.json', 'ledger.jsonl'):
    assert file in report and (folder / file).exists()


def test_verbose_run_prints_the_whole_report(runs):
  folder = _folder(runs, 'none')
  run = in_process.run(TRAIN, *TINY, '--mechanism=none', f'--output_dir={folder}',
                       '--resume', '--verbose', folder=folder.parent)
  assert run.code == 0, run.stderr
  assert run.stdout.endswith('\n' + (folder / 'report.txt').read_text())


@pytest.mark.parametrize('name', PRIVATE)
def test_ledger_alone_gives_the_epsilon_of_the_summary(runs, name):
  folder = _folder(runs, name)
  summary = _summary(folder)
  ledger = ledger_lib.Ledger(folder / 'ledger.jsonl')
  assert ledger.verify(expected_count=ROUNDS) == []
  assert [line['round'] for line in ledger.lines()] == [1, 2]
  assert {line['configuration'] for line in ledger.lines()} == {
      summary['configuration']}
  run = in_process.run(
      ACCOUNT, f'--ledger={ledger.path}', '--format=json', folder=folder)
  assert run.code == 0, run.stderr
  accounted = json.loads(run.stdout)
  for name in ('delta', 'rounds', 'adjacency', 'accountant', 'order', 'trust_model'):
    assert accounted[name] == summary[name]
  # The summary keeps a part of delta, here 1e-15 of it, for the noise's sampler.
  for name in ('epsilon', 'epsilon_server'):
    assert accounted[name] == pytest.approx(summary[name], rel=1e-9)


def test_run_without_privacy_claims_none(runs):
  summary = _summary(_folder(runs, 'none'))
  assert summary['epsilon'] is summary['epsilon_server'] is None
  assert 'epsilon     none: nothing is guaranteed' in runs['none'][0].stdout
  assert runs['none'][1].name.startswith('emnist-none-')
  lines = ledger_lib.Ledger(runs['none'][1] / 'ledger.jsonl').lines()
  assert [line['event'] for line in lines] == [{'kind': 'NoPrivacy'}] * 2


@pytest.mark.parametrize('name', ['none', 'gaussian', 'skellam'])
def test_nothing_tells_who_participated_unless_asked_for(runs, name):
  run, folder = runs[name][0], _folder(runs, name)
  public = {'none': [], 'gaussian': []}.get(
      name, ['public/estimated_wrapped_fraction', 'public/scale'])
  columns = ['round', 'epsilon', *public, 'test/accuracy', 'test/loss']
  assert list(_rows(folder)[0]) == columns
  saved = checkpoints.read(checkpoints.path_of(folder / 'private/checkpoints', ROUNDS))
  assert sorted(saved.metrics) == sorted(columns[1:])
  ledger = (folder / 'ledger.jsonl').read_text()
  assert {key for line in ledger.splitlines()[1:] for key in json.loads(line)} == {
      'round', 'event', 'outcome', 'starts', 'time', 'configuration', 'previous',
      'hash'}
  # Of what is written once for all rounds, only what is configured is a number.
  assert len({json.dumps(json.loads(line)['event'])
              for line in ledger.splitlines()[1:]}) == 1
  summary = _summary(folder)
  trust_model = summary.pop('trust_model')
  report = (folder / 'report.txt').read_text().replace(trust_model, '')
  for text in (ledger, json.dumps(summary), run.stdout, run.stderr, report):
    assert not [word for word in OUTSIDE if word in text]


def test_diagnostics_are_there_when_asked_for_and_warned_of(runs):
  run, folder = runs['diagnostics'][0], _folder(runs, 'diagnostics')
  rows = _rows(folder)
  assert {'diagnostics/num_reporting', 'diagnostics/training_loss',
          'diagnostics/clipped', 'diagnostics/not_finite',
          'diagnostics/rounding_retries', 'diagnostics/rounding_fallbacks'
          } <= set(rows[0])
  for row in rows:
    reporting = float(row['diagnostics/num_reporting'])
    assert 0 <= float(row['diagnostics/clipped']) <= reporting <= 20
  warnings = [text for text in _summary(folder)['warnings']
              if text.startswith('diagnostics are on')]
  assert len(warnings) == 1 and 'outside the guarantee' in warnings[0]
  assert f'warning: {warnings[0]}' in (folder / 'report.txt').read_text()
  assert run.stdout.count('diagnostics outside the guarantee') == 2
  header = ledger_lib.Ledger(folder / 'ledger.jsonl').header()
  assert warnings[0] in header['warnings']


def test_seeded_run_is_void(runs):
  folder = _folder(runs, 'seeded')
  summary = _summary(folder)
  assert summary['epsilon'] is summary['epsilon_server'] is None
  assert any('seeded run: no privacy guarantee' in text for text in summary['warnings'])
  assert 'epsilon' not in _rows(folder)[0]
  printed = runs['seeded'][0].stdout
  assert printed.count('epsilon     none, the run is seeded') == 2
  assert printed.count('seeded: not private') == 2
  header = ledger_lib.Ledger(folder / 'ledger.jsonl').header()
  assert header['seeded'] and any(
      'seeded run' in text for text in header['warnings'])


def test_seeded_run_of_another_interpreter_is_the_same_to_the_last_bit(runs, tmp_path):
  one, two = _folder(runs, 'seeded'), tmp_path / 'run'
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
  saved = sorted((folder / 'private/checkpoints').iterdir())
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


def test_run_with_dropouts_keeps_its_target(tmp_path):
  run = in_process.run(
      TRAIN, *TINY, '--output_dir=run', '--simulated_dropout_rate=0.2',
      '--min_honest_fraction=0.5', folder=tmp_path)
  assert run.code == 0, run.stderr
  summary = _summary(tmp_path / 'run')
  assert 7.99 < summary['epsilon'] <= 8
  assert 'suppression depends on single clients' in summary['caveats']
  assert 'epsilon=' in run.stderr


def test_real_digits_are_learnt_under_privacy(tmp_path):
  path = data_dir.require('mnist.npz')
  run = in_process.run(
      TRAIN, '--data_source=npz', f'--data_path={path}', '--rounds=5',
      '--epsilon=8', '--cohort_size=100', '--server_learning_rate=0.5',
      '--client_learning_rate=0.1', '--output_dir=run',
      '--rounds_per_evaluation=5', folder=tmp_path)
  assert run.code == 0, run.stderr
  summary = _summary(tmp_path / 'run')
  # 539^-1.1 = 0.000989...
  assert 7.99 < summary['epsilon'] <= 8 and summary['delta'] == 0.00098
  # Chance is 0.1; three runs reached 0.73, 0.73 and 0.74.
  assert summary['accuracy'] > 0.6
  assert summary['headline_of'] == 'test_clients'
  assert summary['outside_guarantee'] == ['test_clients']
  assert 'held-out metrics not protected' in run.stdout
  assert 'held-out clients are not part of the population' in (
      tmp_path / 'run' / 'report.txt').read_text()
