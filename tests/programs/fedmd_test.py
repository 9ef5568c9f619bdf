"""FedMD as a user runs it, and the steps of a run."""

import csv
import json
import re
import time

import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf

from tests import shells
from tests.publish import checked
from tests.programs import launcher as launcher_lib
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.experiment import checkpoints
from tff_pipelines.fedmd import __main__ as program
from tff_pipelines.fedmd import run as fedmd_run
from tff_pipelines.fedmd.settings import FedMdSettings

FEDMD = 'tff_pipelines.fedmd'
ACCOUNT = 'tff_pipelines.account'
ROUNDS, PARTIES = 2, 3
SMALL = (f'--rounds={ROUNDS}', f'--num_clients={PARTIES}', '--pretrain_epochs=1',
         '--initial_epochs=2', '--architectures=dense3,dense2')
TINY = (*SMALL, '--public_per_round=40')
RUNS = {
    'nfdp': [*TINY, '--subset_size=20'],
    'ldp': [*TINY, '--mode=ldp', '--subset_size=20', '--knowledge=softmax',
            '--diagnostics'],
    'np': [*TINY, '--mode=np', '--knowledge=logits', '--split=noniid',
           '--simulated_dropout_rate=0.4', '--num_workers=2',
           '--weighting=agreement'],
    'centralized': [*SMALL, '--mode=centralized'],
    'seeded': [*TINY, '--seed=5', '--subset_size=20'],
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def runs(programs, launcher, tmp_path_factory):
  """Name -> (finished run, its output folder); the one with workers is a process."""
  base = tmp_path_factory.mktemp('runs')
  return {name: ((launcher if '--num_workers=2' in arguments else programs).run(
      FEDMD, *arguments, f'--output_dir={base / name}'), base / name)
          for name, arguments in RUNS.items()}


def _folder(runs, name):
  run, folder = runs[name]
  assert run.code == 0, run.stderr
  return folder


def _summary(folder):
  return json.loads((folder / 'summary.json').read_text(),
                    parse_constant=lambda name: pytest.fail(name))


def _checkpoint(folder, number):
  """The flat leaves of a checkpoint's state."""
  path = checkpoints.path_of(folder / 'private/checkpoints', number)
  return list(checkpoints.read(path).arrays.values())


def _subsets(leaves):
  """The indices of the records that parties train on: the last leaves of a state."""
  return leaves[-PARTIES:]


@pytest.mark.parametrize('name', list(RUNS))
def test_run_leaves_all_its_files(runs, name):
  folder = _folder(runs, name)
  assert sorted(path.name for path in folder.iterdir()) == [
      'configuration.json', 'ledger.jsonl', 'metrics.csv', 'paths.json', 'private',
      'progress.png', 'report.html', 'report.txt',
      'starts.log', 'summary.json', 'tensorboard']
  image = matplotlib.image.imread(folder / 'progress.png')
  assert image.ndim == 3 and min(image.shape[:2]) > 300 and image.std() > 0.05
  with open(folder / 'metrics.csv', encoding='utf-8') as file:
    rows = list(csv.DictReader(file))
  assert [int(row['communication_round']) for row in rows] == [0, 1, 2]
  summary = _summary(folder)
  assert [float(rows[-1][f'party_{i}/accuracy'])
          for i in range(len(summary['details']['parties']))] == [
              party['accuracy'] for party in summary['details']['parties']]
  assert ledger_lib.Ledger(folder / 'ledger.jsonl').verify(expected_count=3) == []
  if name == 'np':
    assert not launcher_lib.workers_of(runs[name][0].mark)


def test_guarantee_of_a_draw_is_reported_in_numbers_and_words(runs):
  folder = _folder(runs, 'nfdp')
  summary = _summary(folder)
  event = events.Nfdp(records=286, subset_size=20)
  assert {party['records'] for party in summary['details']['parties']} == {286}
  assert summary['epsilon'] == event.published_epsilon
  assert summary['delta'] == event.draw_probability
  assert summary['details']['epsilon_tighter'] == 0
  assert summary['adjacency'] == 'record' and summary['rounds'] == ROUNDS + 1
  assert summary['details']['communication_rounds'] == ROUNDS
  report = (folder / 'report.txt').read_text(encoding='utf-8')
  for words in ('chance that a given record is drawn',
                'may be exposed entirely', 'not a meaningful guarantee',
                'with the same delta epsilon 0 holds', 'epsilon tighter: 0',
                'natural logarithm', 'trust model: no one is trusted',
                'secure aggregation: simulated',
                'party 2: dense3, 286 records, 20 draws'):
    assert words in report
  printed = runs['nfdp'][0].stdout.splitlines()
  assert len(printed) <= 20 and shells.width(printed) <= 80
  assert 'drawn records are not protected' in ' '.join(
      line[12:] for line in printed if line)


def test_communication_is_reported_for_every_kind_of_knowledge(runs):
  folder = _folder(runs, 'nfdp')
  by_kind = _summary(folder)['details']['communication_bytes']
  assert by_kind['logits']['sent'] == 40 * 6 * 20 / 8
  assert by_kind['argmax']['sent'] == 40 * 6 * 2 / 8
  assert by_kind['argmax']['sent_in_clear'] == 40 * 3 / 8
  lines = (folder / 'report.txt').read_text(encoding='utf-8').splitlines()
  for kind in ('logits', 'softmax', 'argmax'):
    line, = [line for line in lines if f' {kind} ' in line and 'received' in line]
    assert line.startswith(' * ' if kind == 'argmax' else '   ')


@pytest.mark.parametrize('name, epsilon', [('nfdp', 0.0), ('ldp', None), ('np', None)])
def test_ledger_alone_gives_the_guarantee(runs, programs, name, epsilon):
  folder = _folder(runs, name)
  extra = ['--delta=0.1'] if name == 'np' else []
  run = programs.run(
      ACCOUNT, f'--ledger={folder / "ledger.jsonl"}', '--format=json', *extra)
  assert run.code == 0, run.stderr
  answer = json.loads(run.stdout)
  summary = _summary(folder)
  if name == 'np':
    assert answer['epsilon'] is None and summary['epsilon'] is None
    return
  wanted = summary['epsilon'] if epsilon is None else epsilon
  assert answer['epsilon'] == pytest.approx(wanted, rel=1e-9, abs=1e-12)
  assert answer['delta'] == summary['delta']
  assert answer['adjacency'] == summary['adjacency']


def test_ldp_run_keeps_to_the_epsilon_of_the_draw(runs):
  summary = _summary(_folder(runs, 'ldp'))
  draw = events.Nfdp(records=286, subset_size=20)
  assert 0.99 * draw.published_epsilon < summary['epsilon'] <= draw.published_epsilon
  assert summary['delta'] == draw.draw_probability
  details = summary['details']
  assert details['noise'] == 'gaussian' and details['noise_scale'] > 10
  assert summary['adjacency'] == 'local'


def test_parties_that_missed_rounds_are_counted(runs):
  folder = _folder(runs, 'np')
  assert 'as many local workers run instead' in runs['np'][0].stderr
  with open(folder / 'metrics.csv', encoding='utf-8') as file:
    reporting = sum(int(row['parties']) for row in csv.DictReader(file))
  summary = _summary(folder)
  parties = summary['details']['parties']
  assert sum(party['rounds'] for party in parties) == reporting
  assert summary['epsilon'] is None and summary['delta'] is None


def test_centralized_run_has_a_party_of_each_architecture_with_everything(runs):
  folder = _folder(runs, 'centralized')
  summary = _summary(folder)
  parties = summary['details']['parties']
  assert [p['architecture'] for p in parties] == ['dense3', 'dense2']
  assert {p['records'] for p in parties} == {286 * 3}
  assert summary['details']['communication_bytes'] is None
  assert summary['secure_aggregation'] is None
  assert 'communication' not in (folder / 'report.txt').read_text(encoding='utf-8')


def test_seeded_run_claims_nothing(runs):
  summary = _summary(_folder(runs, 'seeded'))
  assert summary['epsilon'] is None
  assert summary['epsilon_if_unseeded'] == pytest.approx(0.0698, abs=1e-3)
  assert any('no privacy guarantee' in text for text in summary['warnings'])


def test_subsets_of_an_unseeded_run_are_drawn_once(runs, launcher, tmp_path):
  arguments = [*RUNS['nfdp'], f'--output_dir={tmp_path / "a"}']
  killed = launcher.start(FEDMD, *arguments)
  first = tmp_path / 'a' / 'private/checkpoints' / 'round_000001'
  deadline = time.monotonic() + 200
  while not first.exists() and killed.poll() is None:
    assert time.monotonic() < deadline, killed.stderr
    time.sleep(0.005)
  killed.kill()
  # Before the last round, or at the end if that was faster.
  names = [re.fullmatch(r'round_(\d+)', path.name) for path in first.parent.iterdir()]
  number = max(int(name[1]) for name in names if name)
  subsets = _subsets(_checkpoint(tmp_path / 'a', number))
  again = launcher.run(FEDMD, *arguments, '--resume')
  assert again.code == 0, again.stderr
  np.testing.assert_array_equal(
      _subsets(_checkpoint(tmp_path / 'a', ROUNDS + 1)), subsets)
  assert {len(subset) for subset in subsets} == {20}
  other = _subsets(_checkpoint(_folder(runs, 'nfdp'), ROUNDS + 1))
  assert all(np.any(a != b) for a, b in zip(other, subsets))


def test_run_on_a_worker_ends_where_one_in_this_process_does(
    runs, programs, tmp_path):
  run = programs.run(FEDMD, *RUNS['seeded'], '--num_workers=1',
                     f'--output_dir={tmp_path / "a"}')
  assert run.code == 0, run.stderr
  arrays, wanted = (_checkpoint(folder, ROUNDS + 1)
                   for folder in (tmp_path / 'a', _folder(runs, 'seeded')))
  assert len(arrays) == len(wanted) > PARTIES
  # Sums of float32 are taken in another order.
  for a, b in zip(arrays, wanted):
    np.testing.assert_allclose(a, b, atol=1e-2)
  np.testing.assert_array_equal(_subsets(arrays), _subsets(wanted))
  start = _checkpoint(tmp_path / 'a', 1)
  assert max(np.abs(a - b).max() for a, b in zip(arrays, start)
             if a.dtype == np.float32 and a.shape == b.shape) > 0.02


@pytest.mark.parametrize('arguments, message', [
    (['--mode=dp'], "mode must be one of"),
    (['--knowledge=labels'], "knowledge must be one of"),
    (['--num_clients=0'], 'num_clients must be from 1 to 1000'),
    (['--num_clients=5000'], 'num_clients must be from 1 to 1000'),
    (['--subset_size=0'], 'subset_size must be at least 1'),
    (['--noreplacement', '--subset_size=286'], 'for certain, so delta is 1'),
    (['--noreplacement', '--subset_size=287'], 'subset_size must be at most 286'),
    (['--rounds=0'], 'rounds must be at least 1'),
    (['--public_per_round=721'], 'public_per_round=721 is more than the 720'),
    (['--architectures=dense2,vgg'], 'architectures must be one of conv2'),
    (['--bits=4', '--knowledge=softmax'], 'bits=4 leave 5 steps'),
    (['--bits=4'], 'bits is not used with knowledge=argmax'),
    (['--digest_learning_rate=nan'], 'digest_learning_rate must be a finite number'),
    (['--task=cifar'], 'task=cifar needs data_path'),
    (['--data_path=x'], 'data_path is not used with task=digits'),
    (['--mode=ldp', '--epsilon=1'], 'epsilon and delta must be given together'),
    (['--resume'], 'resume needs output_dir'),
    (['more'], "unexpected argument 'more'")])
def test_wrong_flag_is_named_and_nothing_is_written(
    arguments, message, tmp_path, capsys):
  where = [] if arguments == ['--resume'] else [f'--output_dir={tmp_path / "run"}']
  assert program.main([*TINY, *arguments, *where]) == 2
  printed = capsys.readouterr()
  assert printed.out == '' and printed.err.count('\n') == 1
  assert printed.err.startswith('error: ') and message in printed.err
  assert not (tmp_path / 'run').exists()


def test_folder_of_another_configuration_is_refused(runs, capsys):
  folder = _folder(runs, 'nfdp')
  assert program.main([*TINY, '--subset_size=21', '--resume',
                       f'--output_dir={folder}']) == 2
  assert 'subset_size (20 then, 21 now) differ' in capsys.readouterr().err


# In this process.


@pytest.mark.parametrize('seed', [None, 3])
def test_subset_is_a_uniform_draw(seed):
  seeds = [None if seed is None else seed + i for i in range(3000)]
  draws = np.array([fedmd_run.draw_subset(10, 4, True, s) for s in seeds])
  assert draws.dtype == np.int64 and draws.min() == 0 and draws.max() == 9
  counts = np.bincount(draws.ravel(), minlength=10)
  assert np.all(np.abs(counts - 1200) < 6 * np.sqrt(1200))
  repeated = np.mean([len(set(row)) < 4 for row in draws])
  assert repeated == pytest.approx(1 - 0.9 * 0.8 * 0.7, abs=0.06)
  draws = np.array([fedmd_run.draw_subset(10, 4, False, s) for s in seeds])
  assert all(len(set(row)) == 4 for row in draws)
  counts = np.bincount(draws.ravel(), minlength=10)
  assert np.all(np.abs(counts - 1200) < 6 * np.sqrt(1200))


def _settings(**changes):
  return FedMdSettings(**{
      'num_clients': 3, 'rounds': 2, 'public_per_round': 40, 'pretrain_epochs': 1,
      'initial_epochs': 2, 'architectures': ('dense3', 'dense2'), 'subset_size': 20,
      **changes})


@pytest.fixture(scope='module', name='start')
def _start():
  """A task, and weights to start from."""
  task = fedmd_run.load_task(_settings())
  return task, fedmd_run.pretrain(task, _settings())


def _plan(task, **changes):
  return fedmd_run.FedMdExperiment(_settings(**changes)).build_plan(task, None)


def _rounds(start, **changes):
  task, pretrained = start
  return fedmd_run.FedMdRounds(task, _plan(task, **changes), pretrained)


@pytest.fixture(scope='module', name='default_rounds')
def _default_rounds(start):
  return _rounds(start)


def test_a_run_is_identified_by_the_number_of_records_of_each_party(start):
  experiment = fedmd_run.FedMdExperiment(_settings())
  identities = [experiment.identity(task) for task in (
      start[0], fedmd_run.load_task(_settings(records_per_client=30)))]
  assert identities[0]['records'] == [286] * 3
  assert identities[1]['records'] == [30] * 3
  # Nothing else of private records is published.
  assert identities[0]['data_fingerprint'] == identities[1]['data_fingerprint']


def test_public_models_depend_on_public_records_and_their_seed_alone(start):
  task, pretrained = start
  again = fedmd_run.pretrain(task, _settings(seed=9, data_seed=0, mode='nfdp'))
  for name, weights in pretrained.items():
    np.testing.assert_allclose(again[name], weights, atol=1e-4)
  other = fedmd_run.pretrain(task, _settings(initial_weights_seed=1))
  assert np.any(other['dense2'] != pretrained['dense2'])


def test_parties_start_from_the_public_model_of_their_architecture(
    start, default_rounds, in_process):
  task, pretrained = start
  del in_process
  state = default_rounds.initial_state(resumed=False)
  for party, held in zip(state['parties'], task.parties):
    architecture = task.architectures[held.architecture]
    np.testing.assert_array_equal(
        party['weights'], architecture.transferred(pretrained[architecture.name], 0))
  keys = {tuple(party['key']) for party in state['parties']}
  assert len(keys) == 3


def test_resumed_run_trains_no_public_models(start, in_process):
  del in_process
  task, _ = start
  rounds = fedmd_run.FedMdRounds(task, _plan(task, pretrain_learning_rate=1e30))
  state = rounds.initial_state(resumed=True)
  assert [party['weights'].shape for party in state['parties']] == [
      (task.architectures[party.architecture].size,) for party in task.parties]
  with pytest.raises(ValueError, match='lower --pretrain_learning_rate'):
    rounds.initial_state(resumed=False)


def test_round_digests_what_was_predicted_a_round_before(
    start, default_rounds, in_process, monkeypatch):
  del in_process
  rounds, state = default_rounds, default_rounds.initial_state(resumed=False)
  state = rounds.step(state, 1).state
  announced = []
  process = rounds._process  # pylint: disable=protected-access

  class Spy:

    def next(self, server, announced_, parties, data):
      announced.append(announced_)
      return process.next(server, announced_, parties, data)

  monkeypatch.setattr(rounds, '_process', Spy())
  before = state['digest']
  state = rounds.step(state, 2).state
  public = start[0].public.x
  np.testing.assert_array_equal(announced[0]['digest_images'], public[before])
  np.testing.assert_array_equal(
      announced[0]['predict_images'], public[state['digest']])
  assert announced[0]['share'] and np.any(before != state['digest'])
  state = rounds.step(state, 3).state  # The last one.
  assert not announced[1]['share'] and not state['server']['known']


def _counts(step):
  return {name: step.metrics[name] for name in ('parties', 'rejected')}


def test_absent_parties_keep_their_state_and_late_ones_join(
    default_rounds, in_process):
  del in_process
  rounds, state = default_rounds, default_rounds.initial_state(resumed=False)
  step = rounds.step(state, 1, present=[2, 0])
  assert _counts(step) == {'parties': 2, 'rejected': 0}
  first = step.state
  np.testing.assert_array_equal(
      first['parties'][1]['weights'], state['parties'][1]['weights'])
  assert [int(p['rounds']) for p in first['parties']] == [1, 0, 1]
  step = rounds.step(first, 2, present=[])
  assert _counts(step) == {'parties': 0, 'rejected': 0}
  assert not step.state['server']['known']
  for a, b in zip(step.state['parties'], first['parties']):
    np.testing.assert_array_equal(a['weights'], b['weights'])
  last = rounds.step(step.state, 2, present=[0, 1, 2]).state
  assert [int(p['rounds']) for p in last['parties']] == [2, 1, 2]
  assert np.any(last['parties'][1]['weights'] != state['parties'][1]['weights'])


def test_party_with_nan_weights_does_not_stop_the_others(
    default_rounds, in_process):
  del in_process
  rounds, state = default_rounds, default_rounds.initial_state(resumed=False)
  state['parties'][1]['weights'] = np.full_like(
      state['parties'][1]['weights'], np.nan)
  step = rounds.step(state, 1)
  assert _counts(step) == {'parties': 2, 'rejected': 1}
  server = step.state['server']
  assert server['known'] and np.all(np.isfinite(server['consensus']))


def test_step_measures_the_models_of_all_parties(start, default_rounds, in_process):
  del in_process
  step = default_rounds.step(default_rounds.initial_state(resumed=False), 1)
  accuracies = default_rounds.accuracies(step.state)
  assert accuracies == [step.metrics[f'party_{i}/accuracy'] for i in range(3)]
  assert step.metrics['mean/accuracy'] == pytest.approx(sum(accuracies) / 3)
  assert step.metrics['communication_round'] == 0
  task = start[0]
  party = step.state['parties'][2]
  logits = task.architectures[int(party['architecture'])].logits(
      tf.constant(party['weights']), task.test.x)
  assert accuracies[2] == np.mean(logits.numpy().argmax(-1) == task.test.y)


def test_noisy_consensus_reveals_almost_nothing(start, in_process):
  del in_process
  task, _ = start
  agreement = {}
  for mode in ('nfdp', 'ldp'):
    rounds = _rounds(start, mode=mode, seed=11)
    state = rounds.step(rounds.initial_state(resumed=False), 1).state
    assert state['server']['known']
    own = task.architectures[0].logits(
        tf.constant(state['parties'][0]['weights']), task.public.x[state['digest']])
    consensus = np.asarray(state['server']['consensus'])
    agreement[mode] = np.mean(own.numpy().argmax(-1) == consensus.argmax(-1))
  assert agreement['nfdp'] > 0.5
  assert agreement['ldp'] < 0.3  # Chance is 1/6.


def test_model_of_a_party_leaves_the_run_as_its_own(runs, programs, tmp_path):
  folder = _folder(runs, 'nfdp')
  summary = _summary(folder)
  assert checked.own_figures(programs, folder) == summary['held_out']
  own = checked.own_figures(programs, folder, '--party=party_1')
  assert own['test']['accuracy'] == summary['details']['parties'][1]['accuracy']
  content = checked.images(programs, folder, (8, 8, 1), tmp_path, '--party=party_1')
  assert not content['private'] and 'own model of one party' in content['reasons'][0]
  assert content['model'] == 'dense2'
  for party, message in (
      ([], 'party must be given'), (['--party=party_9'], 'party must be one of party_0'),
      (['--party=../parties/party_0'], 'party must be one of party_0')):
    done = programs.run('tff_pipelines.export', f'--run={folder}', *party,
                        '--output_dir=export')
    assert done.code == 2 and message in done.stderr
