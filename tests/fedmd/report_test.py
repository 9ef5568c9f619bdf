"""The report of a run, also where its rounds did not go as planned."""

import numpy as np
import pytest

from tff_pipelines.experiment import records as records_lib, report as report_lib
from tff_pipelines.fedmd import report, run
from tff_pipelines.fedmd.plan import FedMdPlan
from tff_pipelines.fedmd.settings import FedMdSettings


def _settings(**changes):
  return FedMdSettings(**{'num_clients': 2, 'public_per_round': 40, **changes})


def _plan(task, **changes):
  return run.FedMdExperiment(_settings(**changes)).build_plan(task, None)


@pytest.fixture(scope='module', name='task')
def _task():
  return run.load_task(_settings())


def _summary(task, folder, *, starts, **changes):
  """The summary of a run with one round committed in each of `starts` starts."""
  plan = _plan(task, rounds=2, **changes)
  for _ in range(starts):
    records = records_lib.RunRecords(
        folder, {'a': 1}, plan.header(plan.releases), resume=True)
    state, done = records.restore({'x': np.zeros(1)})
    records.commit(state, done + 1, plan.event(done + 1), suppressed=False,
                   metrics={'x': 0.0})
  states = [{'rounds': np.int32(starts)} for _ in task.parties]
  outcome = report.outcome(plan, task, states, [0.5, 0.7])
  guarantee = plan.guarantee_of(records.ledger)
  return plan, report_lib.summary_of(
      'fedmd', guarantee, outcome, guarantee.caveats, rounds=starts,
      starts=records.starts, configuration=records.configuration['hash'])


def test_noisy_predictions_that_may_have_been_seen_twice_count_twice(task, tmp_path):
  plan, summary = _summary(
      task, tmp_path / 'run', starts=2, mode='ldp', epsilon=3.0, delta=1e-3)
  assert summary['starts'] == summary['rounds'] == 2
  assert summary['epsilon'] == plan.epsilon(3) > plan.epsilon(2)
  assert summary['accuracy'] == pytest.approx(0.6)


def test_failed_training_of_a_party_is_not_reported_under_noise(task, tmp_path):
  _, summary = _summary(
      task, tmp_path / 'ldp', starts=1, mode='ldp', epsilon=3.0, delta=1e-3)
  assert [party['rounds'] for party in summary['details']['parties']] == [None, None]
  _, summary = _summary(task, tmp_path / 'draw', starts=1, subset_size=9)
  assert [party['rounds'] for party in summary['details']['parties']] == [1, 1]


def test_seeded_run_guarantees_nothing_in_the_plan_nor_for_a_party(task, tmp_path):
  plan, summary = _summary(task, tmp_path / 'run', starts=1, subset_size=9, seed=3)
  lines = report_lib.plan_lines(
      report.describe(task, plan), plan.guarantee(plan.releases), tmp_path)
  line, = [line for line in lines if line.startswith('epsilon')]
  assert line.split(maxsplit=1)[1].startswith('none, the run is seeded')
  assert summary['epsilon'] is None
  assert 'epsilon_tighter' not in summary['details']
  for party in summary['details']['parties']:
    assert not {'epsilon', 'delta'} & party.keys()
    assert party['epsilon_if_unseeded'] == plan.epsilon(1)


def test_restarts_cost_nothing_after_a_draw(task, tmp_path):
  plan, summary = _summary(task, tmp_path / 'run', starts=2, subset_size=9)
  assert summary['epsilon'] == plan.epsilon(1) == plan.draw_event.published_epsilon
  assert summary['details']['epsilon_tighter'] == 0 and summary['delta'] == plan.delta
  assert 'may be exposed entirely' in summary['details']['delta_in_words']


def test_weakest_party_is_named_where_there_are_several(task):
  plan = _plan(task)
  states = [{'rounds': np.int32(1)} for _ in task.parties]
  assert report.outcome(plan, task, states, [0.5, 0.25]).weakest == (
      'party 1: conv3, accuracy 0.2500')
  assert report.outcome(plan, task, states[:1], [0.5]).weakest is None


def test_kind_of_knowledge_that_the_settings_do_not_allow_is_reported_only():
  plan = FedMdPlan(settings=_settings(weighting='records'), records=(9,) * 700, classes=6)
  lines = report.communication_lines(plan)
  assert lines[1].split()[:5] == ['logits', 'not', 'with', 'these', 'settings:']
  assert 'bits must be at least 21' in lines[1] and 'found 20' in lines[1]
  assert lines[3].split()[:3] == ['*', 'argmax', 'sent']
  assert report.communication(plan)['softmax'] is None


def test_error_of_rounding_is_reported(task):
  plan = _plan(task, knowledge='logits', logit_bound=30.0, bits=16)
  lines = report.communication_lines(plan)
  # Half a step of a grid of 2^16 - 1 over two parties, from -30 to 30.
  assert f'at most {60 / 32767 / 2 + 30 * 2.0**-24:.3g}' in lines[1]
  assert ' logits ' in lines[1]
  assert lines[3].endswith('the mean is exact') and ' argmax ' in lines[3]


def test_figure_has_every_party_and_the_epsilon_that_was_spent(tmp_path, monkeypatch):
  (tmp_path / 'metrics.csv').write_text(
      'round,communication_round,epsilon,mean/accuracy,party_0/accuracy,'
      'party_1/accuracy\n1,0,0.25,0.3,0.2,0.4\n2,1,0.50001,0.5,0.4,0.6\n')
  drawn = {}
  monkeypatch.setattr(report_lib, 'draw', lambda path, curves, **texts: drawn.update(
      texts, curves=curves))
  report.draw(tmp_path / 'progress.png', ['0: a', '1: b'], 'x', 0.01)
  assert drawn['title'] == 'x, epsilon 0.5001, delta 0.01'
  assert [(c.label, list(c.x), c.y, c.main) for c in drawn['curves']] == [
      ('0: a', [0, 1], [0.2, 0.4], False), ('1: b', [0, 1], [0.4, 0.6], False),
      ('mean', [0, 1], [0.3, 0.5], True)]
