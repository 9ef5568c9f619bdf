"""Votes keep the contract of all experiments; rounds of baselines in tests/fedavg."""

import numpy as np
import pytest

from tasks.voting import task as voting_tasks
from tests.experiment import contract
from tff_pipelines.voting import baselines, run, student
from tff_pipelines.voting.settings import VoteSettings

AGENTS, CLASSES, FEATURES = 5, 3, 4


def _examples(count, seed):
  """Records of classes that the features tell apart."""
  rng = np.random.default_rng(seed)
  y = rng.integers(CLASSES, size=count).astype(np.int32)
  x = rng.normal(size=(count, FEATURES)) + 3 * np.eye(CLASSES, FEATURES)[y]
  return {'x': x.astype(np.float32), 'y': y}


def _task():
  public = _examples(30, 90)
  return voting_tasks.VotingTask(
      name='tiny', num_classes=CLASSES, agents=voting_tasks.AgentRecords(
          {f'agent{i}': _examples(12, i) for i in range(AGENTS)}),
      public=public['x'], public_labels=public['y'], test=_examples(40, 91),
      privacy_unit='one agent')


class _TinyVote(run.VoteExperiment):

  def build_task(self):
    return _task()


def _vote(folder, **changes):
  return _TinyVote(VoteSettings(**{
      'queries': 10, 'features': 'standard', 'noise_stddev': 1.0, 'client_epochs': 2,
      'student_epochs': 2, 'student_model': 'softmax', 'seed': 8,
      'output_dir': str(folder), **changes}))


class TestVote(contract.ExperimentContract):

  commits = 1
  in_vain = (
      ('clip', 0.1, {}), ('noise_multiplier', 1.0, {}), ('neighbours', 4, {}),
      ('target', 'dslr', {}), ('pca_dimensions', 3, {}), ('client_shift', 1, {}),
      ('assumed_colluders', 1, {'noise': 'gaussian_central'}))

  def settings_class(self):
    return VoteSettings

  def experiment(self, folder, **changes):
    return _vote(folder, **changes)


class _TinyAveraging(baselines.AveragingExperiment):

  def build_task(self):
    return _task()


def _taught(folder, **changes):
  """DP-FedAvg whose model labels the queries of the same student."""
  return _TinyAveraging(VoteSettings(**{
      'algorithm': 'dp_fedavg', 'queries': 10, 'features': 'standard', 'student': 'spread',
      'noise_multiplier': 0.5, 'clip': 1.0, 'client_epochs': 2, 'rounds': 2,
      'student_epochs': 2, 'student_model': 'softmax', 'seed': 8,
      'output_dir': str(folder), **changes}))


class TestTaughtBaseline(contract.ExperimentContract):

  in_vain = (('noise_stddev', 1.0, {}), ('threshold', 1.0, {}))

  def settings_class(self):
    return VoteSettings

  def experiment(self, folder, **changes):
    return _taught(folder, **changes)


@pytest.mark.slow
@pytest.mark.parametrize('changes', [
    {}, {'student': 'labels', 'client_confidence': 0.4},
    {'model': 'mlp', 'adversarial_strength': 0.3, 'clients_see': 'records'}])
def test_a_baselines_student_is_that_of_the_same_labels(tmp_path, changes, monkeypatch):
  given, original = [], student.Student

  def spied(*arguments, **keywords):
    given.append((arguments, keywords))
    return original(*arguments, **keywords)

  monkeypatch.setattr(student, 'Student', spied)
  taught = _taught(tmp_path / 'taught', **changes)
  summary = taught.run()
  vote = _vote(tmp_path / 'vote', **{
      name: value for name, value in changes.items() if name != 'model'} | (
          {'model': 'mlp'} if 'model' in changes else {}))
  vote.run()
  (arguments, keywords), (of_vote, same) = given
  # The same queries, features and settings; only the labels are the model's own.
  np.testing.assert_array_equal(arguments[1], of_vote[1])
  np.testing.assert_array_equal(arguments[2], of_vote[2])
  asked = np.load(tmp_path / 'taught' / 'queries.npz')['rows']
  np.testing.assert_array_equal(asked, np.load(tmp_path / 'vote' / 'queries.npz')['rows'])
  assert set(arguments[3]) <= set(asked)
  assert all(keywords[name] == same[name] for name in keywords if name != 'test')
  # Labels are those of the released model, and the student is theirs.
  again = original(*arguments, **keywords)
  while again.epochs_done < again.epochs:
    again.run_epoch()
  for name, weights in zip(taught.weights, again.state[0], strict=False):
    if not name.startswith('features/'):
      np.testing.assert_array_equal(taught.weights[name], weights)
  details = summary['details']
  right = np.mean(np.array(arguments[4]) == _task().public_labels[arguments[3]])
  assert details['labels_right'] == right and details['queries'] == 10
  assert details['answered'] == len(arguments[3]) / 10
  assert details['student_model'] == 'softmax'
  # Post-processing costs nothing.
  without = {name: value for name, value in changes.items()
             if name in ('model', 'adversarial_strength')}
  alone = _TinyAveraging(VoteSettings(
      algorithm='dp_fedavg', noise_multiplier=0.5, clip=1.0, client_epochs=2, rounds=2,
      features='standard', seed=8, output_dir=str(tmp_path / 'alone'), **without)).run()
  assert alone['epsilon'] == summary['epsilon']
  assert alone['details']['student'] is None and alone['details']['queries'] is None


@pytest.mark.slow
def test_a_student_that_was_stopped_continues_where_it_was(tmp_path, monkeypatch):
  whole = _vote(tmp_path / 'whole', student_epochs=4).run()
  original, written = student.write, []

  def stops_at_the_second(*arguments):
    original(*arguments)
    written.append(1)
    if len(written) == 2:
      raise KeyboardInterrupt

  monkeypatch.setattr(student, 'write', stops_at_the_second)
  with pytest.raises(KeyboardInterrupt):
    _vote(tmp_path / 'run', student_epochs=4).run()
  resumed = _vote(tmp_path / 'run', student_epochs=4, resume=True).run()
  assert len(written) == 4 and resumed == {
      **whole, 'starts': 2, 'configuration': resumed['configuration']}
  states = [student.read(tmp_path / name) for name in ('whole', 'run')]
  assert states[0][1] == states[1][1]
  for left, right in zip(states[0][0], states[1][0]):
    np.testing.assert_array_equal(left, right)
