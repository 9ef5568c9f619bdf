"""What a run says of itself."""

import dataclasses
import json
import math
import re

import matplotlib.image
import numpy as np
import pytest

from tasks.task import Breakdown
from tests import tiny_task
from tff_pipelines import ldp_baseline_run
from tff_pipelines import ldp_report
from tff_pipelines import partition_figure
from tff_pipelines import run_report
from tff_pipelines import vote_report
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
  assert ('test_clients, outside the guarantee: accuracy 0.7500, loss 0.5000'
          in printed)
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


def _of(name, **changes):
  """The task with one held-out set, and results of it."""
  task = dataclasses.replace(
      TASK, held_out={name: TASK.held_out['test_clients']}, **changes)
  return task, {name: RESULTS['test_clients']}


@pytest.mark.parametrize('name, of_files, words', [
    ('test_clients', False, 'not part of the population, so no epsilon protects them'),
    ('test_examples', False, 'further examples of the clients themselves'),
    ('test', True, 'no epsilon protects those whose examples'),
    ('test', False, None)])
def test_metrics_of_people_whom_no_epsilon_protects_are_said_to_be(
    tmp_path, capsys, name, of_files, words):
  plan = _plan()
  task, results = _of(name, test_of_files=of_files)
  found = run_report.finish(
      plan, task, _records(plan, tmp_path / 'run'), results, 0)
  assert found['epsilon'] is not None
  assert found['outside_guarantee'] == ([name] if words else [])
  warnings = [text for text in found['warnings'] if f'metrics on {name} ' in text]
  printed = capsys.readouterr().out
  if words is None:
    assert not warnings and 'test: accuracy' in printed
    return
  warning, = warnings
  assert 'outside the guarantee' in warning and words in warning
  assert f'warning: {warning}' in printed
  assert f'{name}, outside the guarantee: accuracy' in printed


@pytest.mark.parametrize('name, of_files, outside', [
    ('test_clients', False, True), ('test', True, True), ('test', False, False)])
def test_counts_of_people_whom_no_epsilon_protects_are_marked(
    tmp_path, name, of_files, outside):
  plan = _plan()
  task, results = _of(name, test_of_files=of_files)
  model = dataclasses.replace(task.model, breakdown=Breakdown(
      kind='class', names='abc', count=lambda *_: {}))
  counts = {key: np.ones(3) for key in ('occurred', 'right', 'predicted')}
  found = run_report.summary(
      plan, dataclasses.replace(task, model=model),
      _records(plan, tmp_path / 'run'), results, 0, {name: counts})
  assert found['breakdown'][name]['outside_guarantee'] is outside


@pytest.mark.parametrize('of_files, diagnostics, drawn', [
    (False, False, True), (False, True, True), (True, False, False),
    (True, True, True)])
def test_labels_of_a_users_clients_are_drawn_under_diagnostics_only(
    tmp_path, capsys, of_files, diagnostics, drawn):
  plan = _plan(diagnostics=diagnostics)
  task, results = _of(
      'test', test_of_files=of_files, label_counts=np.array([[1, 2, 3], [3, 2, 1]]))
  found = run_report.finish(
      plan, task, _records(plan, tmp_path / 'run'), results, 0)
  picture = partition_figure.PICTURE
  assert (tmp_path / 'run' / picture).exists() == drawn
  assert (picture in capsys.readouterr().out) == drawn
  warned = any(
      picture in text and 'diagnostics' in text and 'outside the guarantee' in text
      for text in found['warnings'])
  assert warned == (of_files and drawn)


# What reports of the other algorithms read of a summary besides its numbers.
_WORDS = {
    'accuracy': 0.5, 'loss': 0.5, 'test_examples': 9, 'queries': 9, 'answered': 0.5,
    'labels_right': 0.5, 'uplink_bytes_per_agent': 1, 'parameters': 1,
    'uplink_of_federated_averaging': None, 'secure_aggregation': None,
    'sampler': 'tables', 'queries_charged': 9, 'queries_of_budget': 9,
    'stopped': 'now', 'answers_of_an_owner': 9, 'answers_of_a_holding': 9,
    'observers': 'all', 'observers_server': 'the server', 'accountant': 'pld',
    'adjacency': 'agent', 'adjacency_in_words': 'one', 'trust_model': 'nobody',
    'privacy_unit': 'one', 'warnings': []}


@pytest.mark.parametrize('show', [
    vote_report.print_summary, ldp_report.print_summary,
    ldp_baseline_run._print])  # pylint: disable=protected-access
def test_no_algorithm_prints_less_than_what_it_guarantees(capsys, show):
  rng = np.random.default_rng(0)
  for _ in range(100):
    values = 10**rng.uniform(-6, 5, size=4)
    names = ('epsilon', 'epsilon_published', 'epsilon_server', 'epsilon_of_a_holding')
    delta, taken = 10**rng.uniform(-12, 0, size=2)
    found = {**_WORDS, **dict(zip(names, values)), 'delta': delta,
             'delta_sampler': taken}
    show(found)
    printed = capsys.readouterr().out
    shown = re.search(r'^epsilon (\S+) at delta ([^\s,]+)', printed, re.M)
    assert found['epsilon'] <= float(shown[1]) <= found['epsilon'] + 1.01e-4
    assert delta <= float(shown[2]) <= 1.0002 * delta
    for number, words in (('epsilon_server', r', against the server'),
                          ('epsilon_of_a_holding', ' for a set'),
                          ('epsilon_published', None)):
      text = (r'by the published formula (\S+)' if words is None else
              rf'^epsilon ([^\s,]+){words}')
      shown = re.search(text, printed, re.M)
      assert shown is None or float(shown[1]) >= found[number]
    shown = re.search(r'takes (\S+) of delta', printed)
    assert shown is None or float(shown[1]) >= taken


@pytest.mark.parametrize('seed', range(3))
def test_nothing_that_is_guaranteed_is_printed_below_what_it_is(
    tmp_path, capsys, seed):
  plan = _plan()
  summary = _summary(plan, tmp_path / 'run')
  rng = np.random.default_rng(seed)
  for _ in range(50):
    epsilon, unamplified = 10**rng.uniform(-6, 5, size=2)
    delta, taken = 10**rng.uniform(-12, 0, size=2)
    run_report.print_summary({
        **summary, 'epsilon': epsilon, 'epsilon_unamplified': unamplified,
        'delta': delta, 'delta_sampler': taken})
    printed = capsys.readouterr().out
    found = re.search(r'^epsilon (\S+) at delta (\S+), against', printed, re.M)
    assert epsilon <= float(found[1]) <= epsilon + 1.01e-4
    assert delta <= float(found[2]) <= 1.0002 * delta
    found = re.search(r'^epsilon (\S+), not amplified', printed, re.M)
    assert float(found[1]) >= unamplified
    assert taken <= float(re.search(r'takes (\S+) of delta', printed)[1])


def test_delta_of_the_plan_is_printed_rounded_up_and_noise_as_it_was_given(
    tmp_path, capsys):
  plan = _plan(population=3400, epsilon=None, noise_multiplier=1.23456789,
               cohort_size=100.0)
  run_report.print_plan(plan, TASK, _records(plan, tmp_path / 'run'))
  printed = capsys.readouterr().out
  assert 'noise multiplier 1.23456789, ' in printed and '3,400 clients' in printed
  delta = re.search(r'at delta (\S+) after', printed)[1]
  assert delta == '0.00029412' and float(delta) >= plan.request.delta


def test_noise_that_was_calibrated_is_printed_rounded_up(tmp_path, capsys):
  plan = _plan()
  run_report.print_plan(plan, TASK, _records(plan, tmp_path / 'run'))
  noise = float(re.search(r'noise multiplier (\S+),', capsys.readouterr().out)[1])
  wanted = plan.request.noise_multiplier
  assert wanted <= noise <= 1.0002 * wanted
