"""Distillation as a user runs it, and the steps of a run."""

import csv
import json
import re
import time

import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf

from tests.pipelines import launcher as launcher_lib
from tff_pipelines import distillation
from tff_pipelines.accounting import events
from tff_pipelines.accounting import ledger as ledger_lib
from tff_pipelines.distill_plan import DistillConfig

DISTILL = 'tff_pipelines.distill'
ACCOUNT = 'tff_pipelines.account'
ROUNDS, PARTIES = 2, 3
TINY = (f'--rounds={ROUNDS}', f'--parties={PARTIES}', '--public_per_round=40',
        '--pretrain_epochs=1', '--initial_epochs=2', '--architectures=dense3,dense2')
RUNS = {
    'nfdp': ['--subset_size=20'],
    'ldp': ['--mode=ldp', '--subset_size=20', '--knowledge=softmax'],
    'np': ['--mode=np', '--knowledge=logits', '--split=noniid',
           '--simulated_dropout_rate=0.4', '--num_workers=2',
           '--weighting=agreement'],
    'centralized': ['--mode=centralized', '--knowledge=argmax'],
    'seeded': ['--seed=5', '--subset_size=20'],
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def runs(launcher, tmp_path_factory):
  """Name -> (finished run, its output folder), two at a time."""
  base = tmp_path_factory.mktemp('runs')
  found, running = {}, []
  for name, arguments in RUNS.items():
    if len(running) == 2:
      running.pop(0).wait()
    run = launcher.start(DISTILL, *TINY, *arguments, f'--output_dir={base / name}')
    running.append(run)
    found[name] = (run, base / name)
  for run in running:
    run.wait()
  return found


def _folder(runs, name):
  run, folder = runs[name]
  assert run.code == 0, run.stderr
  return folder


def _summary(folder):
  return json.loads((folder / 'summary.json').read_text(),
                    parse_constant=lambda name: pytest.fail(name))


def _checkpoint(folder, number):
  """The flat leaves of a checkpoint's state."""
  path = folder / 'checkpoints' / f'round_{number}' / 'variables' / 'variables'
  reader = tf.train.load_checkpoint(str(path))
  names = sorted((name for name in reader.get_variable_to_shape_map()
                  if name.startswith('_value/leaves/')),
                 key=lambda name: int(name.split('/')[2]))
  return [reader.get_tensor(name) for name in names]


def _subsets(leaves):
  """The record numbers that parties train on: the last leaves of a state."""
  return leaves[-PARTIES:]


@pytest.mark.parametrize('name', list(RUNS))
def test_run_leaves_all_its_files(runs, name):
  folder = _folder(runs, name)
  assert sorted(path.name for path in folder.iterdir()) == [
      'checkpoints', 'configuration.json', 'ledger.jsonl', 'metrics.csv',
      'progress.png', 'starts.log', 'summary.json', 'tensorboard']
  picture = matplotlib.image.imread(folder / 'progress.png')
  assert picture.ndim == 3 and min(picture.shape[:2]) > 300 and picture.std() > 0.05
  with open(folder / 'metrics.csv', encoding='utf-8') as file:
    rows = list(csv.DictReader(file))
  assert [int(row['communication_round']) for row in rows] == [0, 1, 2]
  summary = _summary(folder)
  assert [float(rows[-1][f'party_{i}/accuracy'])
          for i in range(len(summary['parties']))] == [
              party['accuracy'] for party in summary['parties']]
  assert ledger_lib.Ledger(folder / 'ledger.jsonl').verify(expected_count=3) == []
  assert not launcher_lib.workers_of(runs[name][0].mark)


def test_guarantee_of_a_draw_is_reported_in_numbers_and_words(runs):
  summary = _summary(_folder(runs, 'nfdp'))
  event = events.Nfdp(records=286, subset_size=20)
  assert {party['records'] for party in summary['parties']} == {286}
  assert summary['epsilon'] == event.published_epsilon
  assert summary['delta'] == event.draw_probability
  assert summary['epsilon_tighter'] == 0
  assert summary['adjacency'] == 'record' and summary['rounds'] == ROUNDS
  printed = runs['nfdp'][0].stdout
  for words in ('chance that a given record is drawn',
                'may be exposed entirely', 'not a meaningful guarantee',
                'tighter, and true as well: epsilon 0', 'natural logarithm',
                'trust model: nobody is trusted', 'secure aggregation: simulated'):
    assert words in printed


def test_communication_is_printed_for_every_kind_of_knowledge(runs):
  summary = _summary(_folder(runs, 'nfdp'))
  found = summary['communication_bytes']
  assert found['logits']['sent'] == 40 * 6 * 20 / 8
  assert found['argmax']['sent'] == 40 * 6 * 2 / 8
  assert found['argmax']['sent_in_clear'] == 40 * 3 / 8
  lines = runs['nfdp'][0].stdout.splitlines()
  for kind in ('logits', 'softmax', 'argmax'):
    line, = [line for line in lines if f' {kind} ' in line and 'received' in line]
    assert line.startswith(' * ' if kind == 'argmax' else '   ')


@pytest.mark.parametrize('name, epsilon', [('nfdp', 0.0), ('ldp', None), ('np', None)])
def test_ledger_alone_gives_the_guarantee(runs, launcher, name, epsilon):
  folder = _folder(runs, name)
  extra = ['--delta=0.1'] if name == 'np' else []
  run = launcher.run(
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
  assert summary['noise'] == 'gaussian' and summary['noise_scale'] > 10
  assert summary['adjacency'] == 'local'


def test_parties_that_missed_rounds_are_counted(runs):
  folder = _folder(runs, 'np')
  with open(folder / 'metrics.csv', encoding='utf-8') as file:
    came = sum(int(row['parties']) for row in csv.DictReader(file))
  summary = _summary(folder)
  assert sum(party['rounds'] for party in summary['parties']) == came
  assert summary['epsilon'] is None and summary['delta'] is None


def test_centralized_run_has_a_party_of_each_architecture_with_everything(runs):
  summary = _summary(_folder(runs, 'centralized'))
  assert [p['architecture'] for p in summary['parties']] == ['dense3', 'dense2']
  assert {p['records'] for p in summary['parties']} == {286 * 3}
  assert summary['communication_bytes'] is None
  assert any('--knowledge is not used' in text for text in summary['warnings'])
  assert 'communication' not in runs['centralized'][0].stdout


def test_seeded_run_claims_nothing(runs):
  summary = _summary(_folder(runs, 'seeded'))
  assert summary['epsilon'] is None
  assert summary['epsilon_if_unseeded'] == pytest.approx(0.0698, abs=1e-3)
  assert any('no guarantee' in text for text in summary['warnings'])


def test_subsets_of_an_unseeded_run_are_drawn_once(runs, launcher, tmp_path):
  arguments = [*TINY, *RUNS['nfdp'], f'--output_dir={tmp_path / "a"}']
  killed = launcher.start(DISTILL, *arguments)
  first = tmp_path / 'a' / 'checkpoints' / 'round_1'
  deadline = time.monotonic() + 200
  while not first.exists() and killed.poll() is None:
    assert time.monotonic() < deadline, killed.stderr
    time.sleep(0.005)
  killed.kill()
  # Before the last round, or at the end if that was faster.
  names = [re.fullmatch(r'round_(\d+)', path.name) for path in first.parent.iterdir()]
  number = max(int(name[1]) for name in names if name)
  subsets = _subsets(_checkpoint(tmp_path / 'a', number))
  again = launcher.run(DISTILL, *arguments, '--resume')
  assert again.code == 0, again.stderr
  np.testing.assert_array_equal(
      _subsets(_checkpoint(tmp_path / 'a', ROUNDS + 1)), subsets)
  assert {len(subset) for subset in subsets} == {20}
  other = _subsets(_checkpoint(_folder(runs, 'nfdp'), ROUNDS + 1))
  assert all(np.any(a != b) for a, b in zip(other, subsets))


def test_run_on_a_worker_ends_where_one_in_this_process_does(
    runs, launcher, tmp_path):
  run = launcher.run(DISTILL, *TINY, *RUNS['seeded'], '--num_workers=1',
                     f'--output_dir={tmp_path / "a"}')
  assert run.code == 0, run.stderr
  found, wanted = (_checkpoint(folder, ROUNDS + 1)
                   for folder in (tmp_path / 'a', _folder(runs, 'seeded')))
  assert len(found) == len(wanted) > PARTIES
  # Sums of float32 are taken in another order.
  for a, b in zip(found, wanted):
    np.testing.assert_allclose(a, b, atol=1e-2)
  np.testing.assert_array_equal(_subsets(found), _subsets(wanted))
  start = _checkpoint(tmp_path / 'a', 0)
  assert max(np.abs(a - b).max() for a, b in zip(found, start)
             if a.dtype == np.float32 and a.shape == b.shape) > 0.02


@pytest.mark.parametrize('arguments, message', [
    (['--mode=dp'], '--mode=dp'),
    (['--knowledge=labels'], '--knowledge=labels'),
    (['--parties=0'], 'parties must be at least 1'),
    (['--parties=5000'], 'parties must be at most 1000'),
    (['--subset_size=0'], 'subset_size must be at least 1'),
    (['--noreplacement', '--subset_size=286'], 'without replacement takes every'),
    (['--rounds=0'], 'rounds must be at least 1'),
    (['--public_per_round=721'], 'public_per_round=721 is more than the 720'),
    (['--architectures=dense2,vgg'], "architectures must be of conv2"),
    (['--bits=4', '--knowledge=softmax'], 'bits=4 leave 5 steps'),
    (['--digest_learning_rate=nan'], 'digest_learning_rate must be a finite number'),
    (['--pair=cifar'], 'pair cifar needs data_dir'),
    (['--data_dir=x'], 'pair digits does not use data_dir'),
    (['--epsilon=1'], 'epsilon and delta must be given together'),
    (['--resume'], 'resume needs output_dir'),
    (['more'], "unexpected argument 'more'")])
def test_wrong_flag_is_named_and_nothing_is_written(
    launcher, arguments, message, tmp_path):
  where = [] if arguments == ['--resume'] else [f'--output_dir={tmp_path / "run"}']
  run = launcher.run(DISTILL, *TINY, *arguments, *where)
  assert run.code == 2, (run.stdout, run.stderr)
  assert run.stderr.startswith('error: ') and run.stderr.count('\n') == 1
  assert message in run.stderr
  assert not (tmp_path / 'run').exists()


def test_folder_of_another_configuration_is_refused(runs, launcher):
  folder = _folder(runs, 'nfdp')
  run = launcher.run(DISTILL, *TINY, '--subset_size=21', '--resume',
                     f'--output_dir={folder}')
  assert run.code == 2 and 'subset_size differ' in run.stderr


# In this process.


@pytest.mark.parametrize('seed', [None, 3])
def test_subset_is_a_uniform_draw(seed):
  seeds = [None if seed is None else seed + i for i in range(3000)]
  draws = np.array([distillation.draw_subset(10, 4, True, s) for s in seeds])
  assert draws.dtype == np.int64 and draws.min() == 0 and draws.max() == 9
  counts = np.bincount(draws.ravel(), minlength=10)
  assert np.all(np.abs(counts - 1200) < 6 * np.sqrt(1200))
  repeated = np.mean([len(set(row)) < 4 for row in draws])
  assert repeated == pytest.approx(1 - 0.9 * 0.8 * 0.7, abs=0.06)
  draws = np.array([distillation.draw_subset(10, 4, False, s) for s in seeds])
  assert all(len(set(row)) == 4 for row in draws)
  counts = np.bincount(draws.ravel(), minlength=10)
  assert np.all(np.abs(counts - 1200) < 6 * np.sqrt(1200))


def _config(**changes):
  return DistillConfig(**{
      'parties': 3, 'rounds': 2, 'public_per_round': 40, 'pretrain_epochs': 1,
      'initial_epochs': 2, 'architectures': ('dense3', 'dense2'), 'subset_size': 20,
      **changes})


@pytest.fixture(scope='module', name='start')
def _start():
  """A task, and weights to start from."""
  task = distillation.load_task(_config())
  return task, distillation.pretrain(task, _config())


@pytest.fixture(scope='module', name='default_run')
def _default_run(start):
  task, _ = start
  return distillation.Run(task, distillation.make_plan(task, _config()))


def test_centralized_training_misses_no_round(start):
  task = distillation.load_task(_config(mode='centralized', public_per_round=10**6))
  config = _config(mode='centralized', simulated_dropout_rate=0.9)
  run = distillation.Run(task, distillation.make_plan(task, config))
  for step in range(3):
    assert run._present(step) == list(range(len(task.parties)))  # pylint: disable=protected-access


def test_a_run_is_of_so_many_records_of_each_party(start):
  task, few = start[0], distillation.load_task(_config(records_per_party=30))
  configurations = [distillation._configuration(t, _config()) for t in (task, few)]  # pylint: disable=protected-access
  assert configurations[0]['records'] == [286] * 3
  assert configurations[1]['records'] == [30] * 3
  # Nothing else of private records is published.
  assert configurations[0]['data_fingerprint'] == configurations[1]['data_fingerprint']


def test_public_models_depend_on_public_records_and_their_seed_alone(start):
  task, pretrained = start
  again = distillation.pretrain(task, _config(seed=9, data_seed=0, mode='np'))
  for name, weights in pretrained.items():
    np.testing.assert_allclose(again[name], weights, atol=1e-4)
  other = distillation.pretrain(task, _config(initial_weights_seed=1))
  assert np.any(other['dense2'] != pretrained['dense2'])


def test_parties_start_from_the_public_model_of_their_architecture(
    start, default_run, in_process):
  task, pretrained = start
  del in_process
  state = default_run.initial_state(pretrained)
  for party, held in zip(state['parties'], task.parties):
    architecture = task.architectures[held.architecture]
    np.testing.assert_array_equal(
        party['weights'], architecture.transferred(pretrained[architecture.name], 0))
  keys = {tuple(party['key']) for party in state['parties']}
  assert len(keys) == 3


def test_round_digests_what_was_predicted_a_round_before(
    start, default_run, in_process, monkeypatch):
  del in_process
  run, state = default_run, default_run.initial_state(start[1])
  state, _ = run.step(state, 0)
  said = []
  process = run._process  # pylint: disable=protected-access

  class Spy:

    def next(self, server, said_, parties, data):
      said.append(said_)
      return process.next(server, said_, parties, data)

  monkeypatch.setattr(run, '_process', Spy())
  before = state['digest']
  state, _ = run.step(state, 1)
  public = start[0].public.x
  np.testing.assert_array_equal(said[0]['digest_images'], public[before])
  np.testing.assert_array_equal(said[0]['predict_images'], public[state['digest']])
  assert said[0]['share'] and np.any(before != state['digest'])
  state, _ = run.step(state, 2)  # The last one.
  assert not said[1]['share'] and not state['server']['known']


def test_absent_parties_keep_their_state_and_late_ones_join(
    start, default_run, in_process):
  del in_process
  run, state = default_run, default_run.initial_state(start[1])
  first, metrics = run.step(state, 0, present=[2, 0])
  assert metrics == {'parties': 2, 'rejected': 0}
  np.testing.assert_array_equal(
      first['parties'][1]['weights'], state['parties'][1]['weights'])
  assert [int(p['rounds']) for p in first['parties']] == [1, 0, 1]
  nobody, metrics = run.step(first, 1, present=[])
  assert metrics == {'parties': 0, 'rejected': 0} and not nobody['server']['known']
  for a, b in zip(nobody['parties'], first['parties']):
    np.testing.assert_array_equal(a['weights'], b['weights'])
  last, _ = run.step(nobody, 1, present=[0, 1, 2])
  assert [int(p['rounds']) for p in last['parties']] == [2, 1, 2]
  assert np.any(last['parties'][1]['weights'] != state['parties'][1]['weights'])


def test_party_that_is_not_finite_does_not_stop_the_others(
    start, default_run, in_process):
  del in_process
  run, state = default_run, default_run.initial_state(start[1])
  state['parties'][1]['weights'] = np.full_like(
      state['parties'][1]['weights'], np.nan)
  state, metrics = run.step(state, 0)
  assert metrics == {'parties': 2, 'rejected': 1}
  assert state['server']['known'] and np.all(np.isfinite(state['server']['consensus']))


def test_noisy_consensus_says_next_to_nothing(start, in_process):
  del in_process
  task, pretrained = start
  found = {}
  for mode in ('nfdp', 'ldp'):
    plan = distillation.make_plan(task, _config(mode=mode, seed=11))
    run = distillation.Run(task, plan)
    state, _ = run.step(run.initial_state(pretrained), 0)
    assert state['server']['known']
    own = task.architectures[0].logits(
        tf.constant(state['parties'][0]['weights']), task.public.x[state['digest']])
    consensus = np.asarray(state['server']['consensus'])
    found[mode] = np.mean(own.numpy().argmax(-1) == consensus.argmax(-1))
  assert found['nfdp'] > 0.5
  assert found['ldp'] < 0.3  # Chance is 1/6.
