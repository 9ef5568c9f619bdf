"""What a distillation says of itself where its rounds did not go as planned."""

import numpy as np
import pytest

from tff_pipelines import distillation
from tff_pipelines import distillation_report
from tff_pipelines.distill_plan import DistillConfig
from tff_pipelines.simulation import records as records_lib


@pytest.fixture(scope='module', name='task')
def _task():
  return distillation.load_task(DistillConfig(parties=2, public_per_round=40))


def _summary(task, folder, *, starts, **changes):
  """Of a run with one round committed in each of so many starts."""
  plan = distillation.make_plan(task, DistillConfig(
      parties=2, public_per_round=40, rounds=2, **changes))
  for _ in range(starts):
    records = records_lib.RunRecords(folder, {'a': 1}, resume=True)
    state, done = records.restore({'x': np.zeros(1)}, dict(
        population=None, delta=plan.delta, adjacency=plan.round_event.adjacency,
        trust_model=plan.trust_model, seeded=False, warnings=plan.warnings()))
    event = plan.later_event() if done else plan.round_event
    records.commit(state, done + 1, event, withheld=False, metrics={'x': 0.0})
  parties = [{'rounds': np.int32(starts)} for _ in task.parties]
  return plan, distillation_report.summary(plan, task, records, parties, [0.5, 0.7])


def test_noisy_predictions_that_may_have_been_seen_twice_count_twice(task, tmp_path):
  plan, found = _summary(
      task, tmp_path / 'run', starts=2, mode='ldp', epsilon=3.0, delta=1e-3)
  assert found['starts'] == 2 and found['rounds'] == 1
  assert found['epsilon'] == plan.epsilon(3) > plan.epsilon(2)
  assert found['accuracy'] == pytest.approx(0.6)


def test_whether_a_partys_training_failed_is_not_told_under_noise(task, tmp_path):
  _, found = _summary(
      task, tmp_path / 'ldp', starts=1, mode='ldp', epsilon=3.0, delta=1e-3)
  assert [party['rounds'] for party in found['parties']] == [None, None]
  _, found = _summary(task, tmp_path / 'draw', starts=1, subset_size=9)
  assert [party['rounds'] for party in found['parties']] == [1, 1]


def test_seeded_run_promises_nothing_before_it_starts_nor_of_a_party(
    task, tmp_path, capsys):
  plan, found = _summary(task, tmp_path / 'run', starts=1, subset_size=9, seed=3)
  records = records_lib.RunRecords(tmp_path / 'run', {'a': 1}, resume=True)
  distillation_report.print_plan(plan, task, records)
  line, = [line for line in capsys.readouterr().out.splitlines() if 'epsilon' in line]
  assert line.startswith('epsilon: none, the run is seeded')
  for party in found['parties']:
    assert not {'epsilon', 'delta'} & party.keys()
    assert party['epsilon_if_unseeded'] == plan.epsilon(1)


def test_kind_that_the_settings_do_not_allow_is_told_and_stops_nothing(task, capsys):
  plan = distillation.make_plan(task, DistillConfig(
      parties=2, public_per_round=40, knowledge='argmax', bits=4))
  distillation_report.print_communication(plan)
  lines = capsys.readouterr().out.splitlines()
  assert lines[1].split()[:5] == ['logits', 'not', 'with', 'these', 'settings:']
  assert 'bits=4 leave' in lines[1] and 'bits are needed' in lines[1]
  assert lines[3].split()[:3] == ['*', 'argmax', 'sent']
  assert distillation_report.communication(plan)['softmax'] is None


def test_predictions_of_a_draw_may_be_seen_as_often_as_one_likes(task, tmp_path):
  plan, found = _summary(task, tmp_path / 'run', starts=2, subset_size=9)
  assert found['epsilon'] == plan.epsilon(1) == plan.draw_event.published_epsilon
  assert found['epsilon_tighter'] == 0 and found['delta'] == plan.delta
  assert 'may be exposed entirely' in found['delta_in_words']


def test_error_of_rounding_is_printed(task, capsys):
  plan = distillation.make_plan(task, DistillConfig(
      parties=2, public_per_round=40, knowledge='logits', logit_bound=30.0, bits=16))
  distillation_report.print_communication(plan)
  lines = capsys.readouterr().out.splitlines()
  # Half a step of a grid of 2^16 - 1 over two parties, from -30 to 30.
  assert f'at most {60 / 32767 / 2 + 30 * 2.0**-24:.3g}' in lines[1]
  assert ' logits ' in lines[1]
  assert lines[3].endswith('the mean is exact') and ' argmax ' in lines[3]
