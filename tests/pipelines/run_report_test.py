"""What a run says of itself."""

import json
import math

import matplotlib.image
import numpy as np
import pytest

from tests import tiny_task
from tff_pipelines import run_report
from tff_pipelines.accounting import request as request_lib
from tff_pipelines.privacy_plan import PrivacyPlan
from tff_pipelines.simulation import records as records_lib

ROUNDS = 3
RESULTS = {'test_clients': {'accuracy': 0.75, 'loss': 0.5},
           'test_examples': {'accuracy': 0.5, 'loss': math.nan}}
TASK = tiny_task.task(num_clients=50)


def _plan(mechanism='skellam', seed=None, diagnostics=False, **changes):
  request = request_lib.Request(**{
      'query': 'epsilon', 'mechanism': mechanism, 'epsilon': 6.0, 'clip': 0.5,
      'bits': 18, 'cohort_size': 10.0, 'sampling': 'poisson', 'rounds': ROUNDS,
      'dimension': tiny_task.DIMENSION, 'population': 50, **changes})
  return PrivacyPlan.calibrate(
      request, simulation_seed=seed, diagnostics=diagnostics)


def _records(plan, folder, starts=1, rounds=ROUNDS):
  """The folder of a run that was started so many times."""
  state = {'weights': np.zeros(3, np.float32)}
  for number in range(starts):
    records = records_lib.RunRecords(
        folder, plan.configuration(), resume=number > 0)
  records.restore(state, {'population': 50, 'delta': 0.02})
  for number in range(1, rounds + 1):
    records.commit(
        state, number, plan.round_event, withheld=False,
        metrics={'epsilon': plan.epsilon(number),
                 'test_clients/accuracy': number / 10})
  return records


def _summary(plan, folder, **options):
  return run_report.summary(
      plan, TASK, _records(plan, folder, **options), RESULTS, 0)


def test_summary_states_what_was_guaranteed_to_whom(tmp_path):
  plan = _plan()
  found = _summary(plan, tmp_path / 'run')
  assert 5.99 < found['epsilon'] <= 6.0
  assert found['epsilon_unamplified'] > found['epsilon']
  assert (found['delta'], found['rounds'], found['starts']) == (1 / 50, 3, 1)
  assert (found['adjacency'], found['sampling']) == ('zero-out', 'poisson')
  assert found['secure_aggregation'] == 'simulated'
  assert found['scale'] == plan.params.scale and found['bits'] == 18
  assert found['dimension_padded'] == 16
  assert found['accuracy'] == 0.75 and found['accuracy_of'] == 'test_clients'
  assert found['trust_model'] and '2110.04995' in found['source']
  assert found['configuration']
  assert found['privacy_unit'] == 'one client'


def test_every_start_may_have_shown_the_server_a_round_more(tmp_path):
  plan = _plan()
  once = _summary(plan, tmp_path / 'once')
  thrice = _summary(plan, tmp_path / 'thrice', starts=3)
  assert once['epsilon'] == thrice['epsilon'] == plan.epsilon(ROUNDS)
  assert once['epsilon_unamplified'] == plan.epsilon_unamplified(ROUNDS)
  assert thrice['epsilon_unamplified'] == plan.epsilon_unamplified(ROUNDS + 2)
  assert thrice['epsilon_unamplified'] > once['epsilon_unamplified']
  assert thrice['starts'] == 3


def test_start_after_the_last_round_has_shown_nothing(tmp_path):
  plan = _plan()
  before = _summary(plan, tmp_path / 'run')
  records = records_lib.RunRecords(
      tmp_path / 'run', plan.configuration(), resume=True)
  after = run_report.summary(plan, TASK, records, RESULTS, 0)
  assert after['starts'] == 2
  assert after['epsilon_unamplified'] == before['epsilon_unamplified']


def test_unfinished_run_is_accounted_for_the_rounds_that_it_released(tmp_path):
  plan = _plan()
  found = _summary(plan, tmp_path / 'run', rounds=2)
  assert found['rounds'] == 2
  assert found['epsilon'] == plan.epsilon(2) < plan.epsilon(3)


def test_seeded_run_has_no_epsilon(tmp_path):
  found = _summary(_plan(seed=3), tmp_path / 'run')
  assert found['epsilon'] is found['epsilon_unamplified'] is None
  assert 5.99 < found['epsilon_if_unseeded'] <= 6.0
  assert found['warnings'][0].startswith('seeded run: no guarantee')


def test_run_without_privacy_has_no_epsilon(tmp_path):
  found = _summary(_plan('none'), tmp_path / 'run')
  assert found['epsilon'] is found['epsilon_unamplified'] is None
  assert found['adjacency'] is found['noise_multiplier'] is found['clip'] is None
  assert found['secure_aggregation'] is found['scale'] is None


def test_central_baseline_claims_no_secure_aggregation(tmp_path):
  found = _summary(_plan('gaussian'), tmp_path / 'run')
  assert found['secure_aggregation'] is found['bits'] is None
  assert found['clip'] == 0.5 and 5.99 < found['epsilon'] <= 6.0
  assert found['accountant'] == 'pld'
  assert 'trusted' in found['trust_model']


def test_diagnostics_are_warned_of(tmp_path):
  found = _summary(_plan(diagnostics=True), tmp_path / 'run')
  assert any('outside the guarantee' in text for text in found['warnings'])


@pytest.mark.parametrize('mechanism', ['none', 'gaussian', 'skellam'])
@pytest.mark.parametrize('seed', [None, 1])
def test_end_of_a_run_writes_json_and_a_picture(tmp_path, capsys, mechanism, seed):
  plan = _plan(mechanism, seed=seed)
  records = _records(plan, tmp_path / 'run')
  returned = run_report.finish(plan, TASK, records, RESULTS, 0)
  text = (records.folder / 'summary.json').read_text()
  found = json.loads(text, parse_constant=lambda name: pytest.fail(name))
  assert found == returned
  assert found['held_out']['test_examples'] == {'accuracy': 0.5, 'loss': None}
  picture = matplotlib.image.imread(records.folder / 'progress.png')
  assert picture.ndim == 3 and min(picture.shape[:2]) > 300
  assert picture.std() > 0.05
  printed = capsys.readouterr().out
  assert 'test_clients: accuracy 0.7500, loss 0.5000' in printed
  assert 'loss not finite' in printed
  if found['epsilon'] is None:
    assert 'epsilon: none, nothing is guaranteed' in printed
  else:
    assert 'epsilon 6.0000 at delta 0.02' in printed
    assert 'adjacency zero-out' in printed and 'trust model: ' in printed
  for warning in found['warnings']:
    assert f'warning: {warning}' in printed


def test_plan_is_printed_before_the_first_round(tmp_path, capsys):
  plan = _plan()
  records = _records(plan, tmp_path / 'run')
  run_report.print_plan(plan, TASK, records)
  printed = capsys.readouterr().out
  assert 'task tiny, model softmax (15 parameters), 50 clients' in printed
  assert 'epsilon 6.0000 at delta 0.02 after all rounds' in printed
  assert 'secure aggregation: simulated' in printed
  assert str(records.folder) in printed


def test_seeded_plan_is_not_printed_as_a_guarantee(tmp_path, capsys):
  plan = _plan(seed=1)
  run_report.print_plan(plan, TASK, _records(plan, tmp_path / 'run'))
  assert 'epsilon if unseeded 6.0000' in capsys.readouterr().out
