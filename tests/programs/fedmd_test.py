"""FedMD as a user runs it, and the steps of a run."""

import numpy as np
import pytest
import tensorflow as tf

from tests import interrupts, shells
from tests.programs import in_process
from tests.publish import checked
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.experiment import checkpoints
from tff_pipelines.fedmd import run as fedmd_run
from tff_pipelines.fedmd.settings import FedMdSettings

FEDMD = 'tff_pipelines.fedmd'
ROUNDS, PARTIES = 2, 3
SMALL = (f'--rounds={ROUNDS}', f'--num_clients={PARTIES}', '--pretrain_epochs=1',
         '--initial_epochs=2', '--architectures=dense3,dense2')
TINY = (*SMALL, '--public_per_round=40')
RUNS = {
    'nfdp': [*TINY, '--subset_size=20'],
    'np': [*TINY, '--mode=np', '--knowledge=logits', '--split=noniid',
           '--simulated_dropout_rate=0.4', '--weighting=records']}

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def runs(programs, tmp_path_factory):
  """Name -> (finished run, its output folder)."""
  base = tmp_path_factory.mktemp('runs')
  return {name: (programs.run(FEDMD, *arguments, f'--output_dir={base / name}'),
                 base / name) for name, arguments in RUNS.items()}


def _checkpoint(folder, number):
  """The flat leaves of a checkpoint's state."""
  path = checkpoints.path_of(folder / 'private/checkpoints', number)
  return list(checkpoints.read(path).arrays.values())


def _subsets(leaves):
  """The indices of the records that parties train on: the last leaves of a state."""
  return leaves[-PARTIES:]


@pytest.mark.parametrize('name', list(RUNS))
def test_run_leaves_all_its_files(runs, name):
  folder = in_process.folder_of(runs, name)
  assert sorted(path.name for path in folder.iterdir()) == [
      'configuration.json', 'ledger.jsonl', 'metrics.csv', 'paths.json', 'private',
      'progress.png', 'report.html', 'report.txt',
      'starts.log', 'summary.json', 'tensorboard']
  rows = in_process.rows(folder / 'metrics.csv')
  assert [int(row['communication_round']) for row in rows] == [0, 1, 2]
  parties = in_process.summary(folder)['details']['parties']
  assert [float(rows[-1][f'party_{i}/accuracy']) for i in range(len(parties))] == [
      party['accuracy'] for party in parties]


def test_guarantee_of_a_draw_is_reported_in_numbers_and_words(runs):
  folder = in_process.folder_of(runs, 'nfdp')
  summary = in_process.summary(folder)
  event = events.Nfdp(records=286, subset_size=20)
  assert {party['records'] for party in summary['details']['parties']} == {286}
  assert summary['epsilon'] == event.published_epsilon
  assert summary['delta'] == event.draw_probability
  assert summary['details']['epsilon_tighter'] == 0
  assert summary['adjacency'] == 'record' and summary['rounds'] == ROUNDS + 1
  assert summary['details']['communication_rounds'] == ROUNDS
  report = (folder / 'report.txt').read_text(encoding='utf-8')
  for words in ('chance that a given record is drawn', 'may be exposed entirely',
                'not a meaningful guarantee', 'with the same delta epsilon 0 holds',
                'epsilon tighter: 0', 'natural logarithm',
                'trust model: no one is trusted', 'secure aggregation: simulated',
                'party 2: dense3, 286 records, 20 draws'):
    assert words in report
  printed = runs['nfdp'][0].stdout.splitlines()
  assert len(printed) <= 20 and shells.width(printed) <= 80
  assert 'drawn records are not protected' in ' '.join(
      line[12:] for line in printed if line)


def test_parties_that_missed_rounds_are_counted(runs):
  folder = in_process.folder_of(runs, 'np')
  reporting = sum(int(row['parties']) for row in in_process.rows(folder / 'metrics.csv'))
  summary = in_process.summary(folder)
  parties = summary['details']['parties']
  assert sum(party['rounds'] for party in parties) == reporting
  assert summary['epsilon'] is None and summary['delta'] is None


def test_subsets_of_an_unseeded_run_are_drawn_once(runs, programs, tmp_path):
  arguments = [*RUNS['nfdp'], f'--output_dir={tmp_path / "a"}']
  with interrupts.after_commit(1):
    assert programs.run(FEDMD, *arguments).code == 130
  subsets = _subsets(_checkpoint(tmp_path / 'a', 1))
  programs.done(FEDMD, *arguments, '--resume')
  np.testing.assert_array_equal(
      _subsets(_checkpoint(tmp_path / 'a', ROUNDS + 1)), subsets)
  assert {len(subset) for subset in subsets} == {20}
  other = _subsets(_checkpoint(in_process.folder_of(runs, 'nfdp'), ROUNDS + 1))
  assert all(np.any(a != b) for a, b in zip(other, subsets))


# Ranges of single settings: tests/fedmd/settings_test.py.
@pytest.mark.parametrize('arguments, message', [
    (['--noreplacement', '--subset_size=287'], 'subset_size must be at most 286'),
    (['--public_per_round=721'], 'public_per_round must be at most 720'),
    (['--task=cifar'], 'task=cifar needs data_path')])
def test_wrong_flag_is_named_and_nothing_is_written(
    programs, arguments, message, tmp_path):
  run = programs.run(FEDMD, *TINY, *arguments, f'--output_dir={tmp_path / "run"}')
  in_process.check_refused(run, message)
  assert run.stdout == '' and not (tmp_path / 'run').exists()


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
  np.testing.assert_array_equal(announced[0]['predict_images'], public[state['digest']])
  assert announced[0]['share'] and np.any(before != state['digest'])
  state = rounds.step(state, 3).state  # The last one.
  assert not announced[1]['share'] and not state['server']['known']


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
  folder = in_process.folder_of(runs, 'nfdp')
  summary = in_process.summary(folder)
  assert checked.own_figures(programs, folder) == summary['held_out']
  own = checked.own_figures(programs, folder, '--party=party_1')
  assert own['test']['accuracy'] == summary['details']['parties'][1]['accuracy']
  content = checked.images(programs, folder, (8, 8, 1), tmp_path, '--party=party_1')
  assert not content['private'] and ('own model of one party' in content['reasons'][-1])
  assert content['model'] == 'dense2'
  for party, message in (
      ([], 'party must be given'), (['--party=party_9'], 'party must be one of party_0'),
      (['--party=../parties/party_0'], 'party must be one of party_0')):
    done = programs.run('tff_pipelines.export', f'--run={folder}', *party,
                        '--output_dir=export')
    assert done.code == 2 and message in done.stderr
