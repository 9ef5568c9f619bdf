"""Runs of votes in this process: what a record decides, and what it must not."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tasks.voting import task as voting
from tff_pipelines.simulation import contexts
from tff_pipelines.voting import (
    baselines, features as vote_features, run as vote_run)
from tff_pipelines.voting.settings import VoteSettings

C, D = 3, 4
# Neighbours asked for: more than some agents have records.
K = 6


def _records(count, seed, label=None):
  rng = np.random.default_rng(seed)
  y = rng.integers(C, size=count) if label is None else np.full(count, label)
  return {'x': rng.normal(size=(count, D)).astype(np.float32), 'y': y.astype(np.int32)}


def _without_last(records):
  return {name: array[:-1] for name, array in records.items()}


def _task(*agents):
  rng = np.random.default_rng(99)
  return voting.VotingTask(
      name='tiny', num_classes=C, agents=voting.AgentRecords({
          f'agent{i}': records for i, records in enumerate(agents)}),
      public=rng.normal(size=(30, D)).astype(np.float32),
      public_labels=np.zeros(30, np.int32),
      test={'x': rng.normal(size=(9, D)).astype(np.float32),
            'y': np.arange(9, dtype=np.int32) % C}, privacy_unit='one agent')


def _settings(algorithm='knn', **changes):
  common = dict(task='npz', algorithm=algorithm, features='standard')
  if algorithm != 'dp_fedsgd':
    common.update(queries=20, noise_stddev=2.0, allow_degenerate=True)
  if algorithm == 'knn':
    common['neighbours'] = K
  return VoteSettings(**{**common, **changes})


_experiment = vote_run.experiment


@pytest.fixture
def check_task(monkeypatch):
  """Has an experiment start with a task, which raises where they do not fit."""
  def check(task, settings):
    with monkeypatch.context() as patch:
      patch.setattr(baselines.voting_tasks, 'build', lambda *_, **__: task)
      assert _experiment(settings).build_task() is task

  return check


# Pairs of tasks that differ by the last record of the last agent.
OTHERS = (_records(9, 1), _records(K, 2))
NEIGHBOURS = {
    'k records or one less': _records(K, 3), 'less than k': _records(2, 4),
    'the only record': _records(1, 5), 'more than k': _records(K + 1, 7)}


def _pair(name):
  records = NEIGHBOURS[name]
  return _task(*OTHERS, records), _task(*OTHERS, _without_last(records))


@pytest.mark.parametrize('algorithm', ['knn', 'ae', 'dp_fedsgd'])
@pytest.mark.parametrize('name', NEIGHBOURS)
def test_no_record_decides_if_a_run_starts_and_what_is_public(
    name, algorithm, check_task):
  settings = _settings(algorithm)
  run, public = _experiment(settings), []
  for task in _pair(name):
    check_task(task, settings)
    public.append((
        run.build_plan(task, None) if settings.is_vote else None,
        task.num_classes, task.notes, run.network(task).shapes, run.identity(task)))
  assert public[0] == public[1]


def test_a_class_that_no_agent_has_does_not_matter(check_task):
  for label in (0, 2):
    last = {**_records(1, 5), 'y': np.array([label], np.int32)}
    task = _task(_records(9, 1, label=0), _records(2, 2, label=1), last)
    check_task(task, _settings())


def _seen(task):
  """The task as agents of algorithm knn see it."""
  features = vote_features.fit(task.public, vote_features.FeatureConfig(kind='standard'))
  return vote_features.as_grid(vote_features.map_records(task, features, alone=True))


def _sum_of_votes(task):
  """int [queries, C]: what all agents say, without noise."""
  seen = _seen(task)
  return sum(
      vote_features.nearest_votes(K, C)(
          {'queries': tf.constant(seen.public)}, {
              name: tf.constant(array)
              for name, array in seen.agents.examples(agent).items()},
          None).numpy() for agent in seen.agents.client_ids)


@pytest.mark.parametrize('name', NEIGHBOURS)
def test_a_record_more_moves_one_vote_up_and_one_down_at_most(name):
  difference = np.subtract(*map(_sum_of_votes, _pair(name)))
  assert difference.max() <= 1 and difference.min() >= -1
  assert np.abs(difference).sum(axis=1).max() <= 2
  assert (difference != 0).any()
  if name != 'more than k':  # It replaces no other neighbour.
    assert (difference.sum(axis=1) == 1).all()


@pytest.mark.parametrize('name', ['less than k', 'the only record'])
def test_a_replaced_record_of_few_moves_one_vote_up_and_one_down(name):
  records = NEIGHBOURS[name]
  other = {**records, 'y': records['y'].copy()}
  other['y'][-1] = (other['y'][-1] + 1) % C
  difference = _sum_of_votes(_task(*OTHERS, other)) - _sum_of_votes(
      _task(*OTHERS, records))
  assert (np.sort(difference, axis=1) == [-1, 0, 1]).all()


def test_agents_without_records_stay_agents_through_features():
  task = _pair('the only record')[1]
  seen = _seen(task)
  assert seen.agents.client_ids == task.agents.client_ids
  assert len(seen.agents.examples('agent2')['y']) == 0
  assert seen.agents.element_spec == {'x': (np.int8, (D,)), 'y': (np.int32, ())}


@pytest.mark.parametrize('algorithm', ['knn', 'ae'])
def test_agents_vote_with_what_they_have(algorithm, tmp_path):
  # The fewest agree on class 1; who has nothing says nothing, but adds its noise.
  task = _task(_records(2, 1, label=1), _records(1, 2, label=1), _records(0, 3),
               _records(3, 4, label=1), _records(2, 5, label=1))
  run = _experiment(_settings(
      algorithm, noise_stddev=0.05, client_epochs=1 if algorithm == 'ae' else None,
      output_dir=str(tmp_path)))
  plan = run.build_plan(task, None)
  assert plan.params.agents == 5
  with contexts.simulation():
    step = run.build_rounds(task, plan).step(None, 1)
  assert not step.suppressed and step.metrics == {'answered': 1.0}
  np.testing.assert_array_equal(step.state['labels'], np.ones(20))


def test_what_can_be_asked_goes_by_public_records(check_task):
  task = _task(_records(2, 1))
  with pytest.raises(ValueError, match='queries must be at most 30, found 31'):
    check_task(task, _settings(queries=31))
  with pytest.raises(ValueError, match='client_shift must be 0 without images'):
    check_task(task, _settings('ae', client_shift=1, clients_see='records'))
  empty = dataclasses.replace(
      task, agents=voting.AgentRecords({'agent0': _records(0, 1)}))
  check_task(empty, _settings())


@pytest.mark.parametrize('algorithm', ['ae', 'fedavg', 'dp_fedavg'])
def test_a_model_without_features_of_its_own_has_no_domains_to_bring_together(
    algorithm, check_task):
  settings = VoteSettings(algorithm=algorithm, adversarial_strength=0.5, **(
      {'queries': 9} if algorithm == 'ae' else {}))
  with pytest.raises(ValueError, match='=0.5 needs a model that learns features, found '
                     'model=softmax'):
    check_task(_task(*OTHERS), settings)
  check_task(_task(*OTHERS), settings.replace(model='mlp'))


def test_an_encoder_needs_features_of_its_kind(check_task):
  settings = VoteSettings(queries=5, student_model='encoder')
  with pytest.raises(ValueError, match='needs features=contrastive, found .*standard'):
    check_task(_task(*OTHERS), settings)
