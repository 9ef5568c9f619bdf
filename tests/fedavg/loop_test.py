"""Rounds on a tiny task: what clients get, what is released, committed and resumed."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tqdm

from tests import interrupts, tiny_task
from tests.programs import in_process
from tff_pipelines.accounting.guarantees import mechanisms
from tff_pipelines.accounting.sampling import schemes
from tff_pipelines.common import files
from tff_pipelines.experiment import (
    checkpoints, records as records_lib, rounds as rounds_lib)
from tff_pipelines.fedavg import (
    local_training, loop, process as process_lib, run as run_lib)
from tff_pipelines.fedavg.plan import FedAvgPlan
from tff_pipelines.fedavg.server_optimizer import ServerConfig
from tff_pipelines.simulation import contexts

ROUNDS = 3
TASK = tiny_task.task()
POPULATION = len(TASK.train.client_ids)
# Suppresses rounds with many dropouts; without dropouts, none. Its first cohorts
# differ in size, and the third is not of the expected one.
SEEDED = {'mechanism': 'skellam', 'seed': 9, 'min_honest_fraction': 0.8}
SETS = [f'{name}/{key}' for name in ('test_clients', 'test_examples')
        for key in ('accuracy', 'loss')]

pytestmark = pytest.mark.usefixtures('in_process')


@functools.lru_cache(maxsize=None)
def _plan(mechanism='skellam', seed=None, diagnostics=False, **changes):
  return FedAvgPlan.calibrate(mechanisms.SumMechanism(**{
          'mechanism': mechanism, 'clip': 0.5, 'bits': 18, 'cohort_size': 4.0,
          'sampling': 'poisson', 'rounds': ROUNDS,
          'noise_multiplier': None if mechanism == 'none' else 1.0,
          'dimension': tiny_task.DIMENSION, 'population': POPULATION, **changes}),
      seed=seed, diagnostics=diagnostics)


@functools.lru_cache(maxsize=None)
def _process(plan, client_learning_rate=0.3, server_learning_rate=1.0):
  factory = run_lib.sum_factory(plan)
  process = process_lib.build_chunked(
      local_training.client_update(TASK.model.loss, local_training.LocalConfig(
          learning_rate=client_learning_rate, batch_size=3, epochs=1)),
      TASK.train.element_spec,
      initial_weights=tiny_task.initial_weights(0), sum_factory=factory,
      expected_cohort_size=plan.mechanism.cohort_size,
      server=ServerConfig(learning_rate=server_learning_rate, momentum=0.5))
  return process, lambda state, cohort: process_lib.set_cohort_size(
      state, cohort, factory)


class _Spied:
  """A process that notes what its rounds are given."""

  def __init__(self, process):
    self.initialize = process.initialize
    self._process = process
    self.cohort_sizes, self.reporting = [], []

  def next(self, state, clients):
    if 'cohort_size' in state['aggregator']:
      self.cohort_sizes.append(int(state['aggregator']['cohort_size']))
    self.reporting.append(len(clients))
    return self._process.next(state, clients)


def _rounds(plan, process=None, rates=(), **config):
  built, set_cohort_size = _process(plan, *rates)
  return loop.FedAvgRounds(
      process or built, task=TASK, scheme=plan.scheme, set_cohort_size=set_cohort_size,
      clients_per_call=1, **{'rounds': ROUNDS, **config})


def _run(plan, folder, *, resume=False, on_commit=None, **config):
  """Runs the remaining rounds; returns the records and the final results."""
  records = records_lib.RunRecords(
      folder, plan.configuration(), plan.header(ROUNDS), resume=resume)
  rounds, commit = _rounds(plan, **config), records.commit

  def commit_and_call(state, index, event, **how):
    commit(state, index, event, **how)
    if on_commit is not None:
      on_commit(index)

  records.commit = commit_and_call
  state = rounds_lib.run(rounds, plan, records)
  return records, rounds.results(state)


def _committed(folder, plan):
  """The last committed state and its round."""
  records = records_lib.RunRecords(folder, plan.configuration(), {}, resume=True)
  rounds = _rounds(plan)
  return records.restore(rounds.initial_state(True), derived=rounds.derived)


def _bits(state):
  return [np.asarray(leaf).tobytes() for leaf in tf.nest.flatten(state)]


def _rows(folder):
  return in_process.rows(folder / files.METRICS)


@pytest.mark.parametrize('mechanism, public', [('none', []), ('gaussian', []),
    ('skellam', ['public/estimated_wrapped_fraction', 'public/scale'])])
def test_released_metrics_tell_nothing_of_who_participated(tmp_path, mechanism, public):
  plan = _plan(mechanism)
  records, results = _run(plan, tmp_path / 'run')
  rows = _rows(tmp_path / 'run')
  assert sorted(rows[0]) == sorted(['round', 'epsilon', *public, *SETS])
  assert [int(row['round']) for row in rows] == [1, 2, 3]
  for row in rows:
    assert float(row['epsilon']) == plan.epsilon(int(row['round']))
  for name, values in results.items():
    for key, value in values.items():
      assert float(rows[-1][f'{name}/{key}']) == value
  assert records.ledger.verify(expected_count=ROUNDS) == []
  assert {line['outcome'] for line in records.ledger.lines()} == {'released'}


def test_progress_bar_never_shows_less_epsilon_than_there_is(tmp_path, monkeypatch):
  shown = []

  class Progress(tqdm.tqdm):

    def set_postfix(self, values, **kwargs):
      shown.append(float(values['epsilon']))
      assert 0 <= float(values['accuracy']) <= 1
      super().set_postfix(values, **kwargs)

  monkeypatch.setattr(rounds_lib.tqdm, 'tqdm', Progress)
  plan = _plan('gaussian')
  _run(plan, tmp_path / 'run')
  assert len(shown) == ROUNDS
  for rounds, epsilon in enumerate(shown, 1):
    assert plan.epsilon(rounds) <= epsilon <= plan.epsilon(rounds) + 1.01e-4


def test_cohorts_are_those_of_the_plan_and_checkpoints_do_not_tell_their_size(tmp_path):
  plan = _plan(**SEEDED)
  process = _Spied(_process(plan)[0])
  _run(plan, tmp_path / 'run', process=process)
  expected = [len(plan.scheme.sample(n)) for n in range(1, ROUNDS + 1)]
  assert process.cohort_sizes == process.reporting == expected
  assert len(set(expected)) > 1 and expected[-1] != 4
  state, rounds = _committed(tmp_path / 'run', plan)
  assert rounds == ROUNDS
  aggregator = state['process']['aggregator']
  fresh = _process(plan)[0].initialize()['aggregator']
  assert int(aggregator['cohort_size']) == 4
  # Nor do shares of the noise, which are sized by it; their table is in no file.
  kept = checkpoints.read(checkpoints.path_of(
      tmp_path / 'run/private/checkpoints', ROUNDS)).arrays
  assert 'process/aggregator/cohort_size' in kept
  assert 'noise_table' in aggregator and 'noise_table' not in ' '.join(kept)
  for name in set(aggregator) - {'rotation_key', 'server_key'}:
    assert _bits(aggregator[name]) == _bits(fresh[name])


@pytest.mark.slow
def test_seeded_runs_are_identical_and_others_are_not(tmp_path):
  states = []
  for name, seed in (('a', 5), ('b', 5), ('c', 6), ('d', None), ('e', None)):
    plan = _plan('gaussian', seed=seed)
    _run(plan, tmp_path / name, dropout_rate=0.3)
    states.append(_bits(_committed(tmp_path / name, plan)[0]['process']['weights']))
  assert states[0] == states[1]
  assert len({tuple(state) for state in states}) == 4
  assert _rows(tmp_path / 'a') == _rows(tmp_path / 'b')
  assert 'epsilon_if_unseeded' in _rows(tmp_path / 'a')[0]
  assert 'epsilon' not in _rows(tmp_path / 'a')[0]
  assert 'epsilon' in _rows(tmp_path / 'd')[0]


@pytest.fixture(name='whole', scope='module')
def _whole(_in_process_context, tmp_path_factory):
  """The folder and the results of a run that was never stopped."""
  folder = tmp_path_factory.mktemp('whole') / 'run'
  with contexts.installed(_in_process_context):
    return folder, _run(_plan(**SEEDED), folder)[1]


@pytest.mark.parametrize('window', ['before the rename', 'after the metrics'])
def test_run_stopped_anywhere_continues_to_the_same_bits(
    whole, tmp_path, monkeypatch, window):
  plan = _plan(**SEEDED)
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    _run(plan, tmp_path / 'run', on_commit=lambda index: (
        patch.setattr(files.os, 'replace', interrupts.interrupt)
        if window == 'before the rename' else
        interrupts.interrupt() if index == 2 else None))
  seen = []
  records, results = _run(plan, tmp_path / 'run', resume=True, on_commit=seen.append)
  assert seen == ([2, 3] if window == 'before the rename' else [3])
  assert records.starts == 2
  assert results == whole[1]
  assert records.ledger.verify(expected_count=ROUNDS) == []
  assert _rows(tmp_path / 'run') == _rows(whole[0])
  assert _bits(_committed(tmp_path / 'run', plan)) == _bits(_committed(whole[0], plan))


def test_rounds_with_too_many_dropouts_are_suppressed_and_accounted(tmp_path):
  plan = _plan(**SEEDED)
  process = _Spied(_process(plan)[0])
  records, _ = _run(plan, tmp_path / 'run', process=process, dropout_rate=0.3)
  rounds = list(zip(process.reporting, process.cohort_sizes))
  assert all(reporting <= selected for reporting, selected in rounds)
  expected = ['released' if reporting >= 0.8 * selected else 'suppressed'
              for reporting, selected in rounds]
  lines = records.ledger.lines()
  assert [line['outcome'] for line in lines] == expected
  assert set(expected) == {'released', 'suppressed'}
  assert len({str(line['event']) for line in lines}) == 1


def test_evaluation_happens_every_so_often_and_at_the_end(tmp_path):
  _run(_plan('none'), tmp_path / 'run', rounds=5, rounds_per_evaluation=2)
  evaluated = [row[SETS[0]] != '' for row in _rows(tmp_path / 'run')]
  assert evaluated == [False, True, False, True, True]


def test_model_that_is_not_finite_is_not_kept_but_its_round_counts(tmp_path):
  plan = _plan('none', seed=1, sampling='none', cohort_size=float(POPULATION))
  with pytest.raises(ValueError, match='not finite after round 1.*learning_rate'):
    _run(plan, tmp_path / 'run', rates=(30.0, 3e38))
  state, rounds = _committed(tmp_path / 'run', plan)
  # The failure itself is a release.
  assert rounds == 1
  for result, initial in zip(state['process']['weights'], tiny_task.initial_weights(0)):
    np.testing.assert_array_equal(result, initial)
  assert [sorted(row) for row in _rows(tmp_path / 'run')] == [
      ['epsilon_if_unseeded', 'round']]
  records, results = _run(plan, tmp_path / 'run', resume=True)
  assert len(records.ledger.lines()) == ROUNDS
  assert [row['round'] for row in _rows(tmp_path / 'run')] == ['1', '2', '3']
  assert results['test_clients']['accuracy'] > 0.5


def test_sums_of_a_round_whose_model_is_not_kept_stay_in_their_order(tmp_path):
  # Else the row of the next round would have an earlier sum with a weight that was
  # opened already: clients would be in more rows than are charged.
  plan = _plan(seed=1, sampling='turns', column=(2, 1), clip=50.0)
  states = []
  for name, rate in (('kept', 1.0), ('lost', 3e38)):
    try:
      _run(plan, tmp_path / name, rates=(0.3, rate), rounds=1)
    except ValueError as error:
      assert name == 'lost' and 'not finite after round 1' in str(error)
    states.append(_committed(tmp_path / name, plan)[0]['process'])
  kept, lost = states
  assert np.any(kept['aggregator']['closed_sums'][0])
  assert _bits(kept['aggregator']) == _bits(lost['aggregator'])
  assert _bits(kept['weights']) != _bits(lost['weights'])
  assert _bits(lost['weights']) == _bits(tiny_task.initial_weights(0))


class _Counting(schemes.Poisson):
  """A scheme that counts its rounds."""

  count = 0

  def sample(self, round_index):
    self.count += 1
    return super().sample(round_index)

  def state(self):
    return {'count': np.int64(self.count)}

  def restore(self, state):
    self.count = int(state['count'])


def test_state_of_the_sampling_scheme_is_committed_with_a_round(tmp_path):
  plan = _plan('none')
  states = []
  for resume, rounds in ((False, 2), (True, 3)):
    process, set_cohort_size = _process(plan)
    records = records_lib.RunRecords(tmp_path / 'run', {}, {}, resume=resume)
    states.append(rounds_lib.run(loop.FedAvgRounds(
        process, task=TASK, set_cohort_size=set_cohort_size,
        scheme=_Counting(population=POPULATION, cohort_size=4.0),
        clients_per_call=2, rounds=rounds), plan, records))
  assert [int(state['scheme']['count']) for state in states] == [2, 3]
