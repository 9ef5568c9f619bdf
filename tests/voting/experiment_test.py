"""Votes keep the contract of all experiments; rounds of baselines in tests/fedavg."""

import numpy as np
import pytest

from tasks.voting import task as voting_tasks
from tests.experiment import contract
from tff_pipelines.voting import run, student
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
      ('clip', 0.1, {}),
      ('noise_multiplier', 1.0, {}),
      ('neighbours', 3, {}),
      ('target', 'dslr', {}),
      ('pca_dimensions', 3, {}),
      ('client_shift', 1, {}),
      ('assumed_colluders', 1, {'noise': 'gaussian_central'}))

  def settings_class(self):
    return VoteSettings

  def experiment(self, folder, **changes):
    return _vote(folder, **changes)


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
