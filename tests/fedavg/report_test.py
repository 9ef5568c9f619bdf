"""The run report of training."""

import dataclasses
import json
import math
import re

import matplotlib.image
import numpy as np
import pytest

from tasks.task import Note
from tests import known_cohorts, tiny_task
from tff_pipelines.accounting.guarantees import ledger_query as ledger, mechanisms
from tff_pipelines.common import decimals, files
from tff_pipelines.experiment import (
    pages, records as records_lib, report as report_lib)
from tff_pipelines.fedavg import report
from tff_pipelines.fedavg.plan import FedAvgPlan

ROUNDS = 3
RESULTS = {'test_clients': {'accuracy': 0.75, 'loss': 0.5},
           'test_examples': {'accuracy': 0.5, 'loss': math.nan}}
TASK = tiny_task.task(num_clients=50)


def _plan(mechanism='skellam', epsilon=6.0, seed=None, diagnostics=False,
          clients_per_person=1, **changes):
  target = None if mechanism == 'none' or 'noise_multiplier' in changes else epsilon
  return FedAvgPlan.calibrate(mechanisms.SumMechanism(**{
          'mechanism': mechanism, 'clip': 0.5, 'bits': 18, 'cohort_size': 10.0,
          'sampling': 'poisson', 'rounds': ROUNDS, 'dimension': tiny_task.DIMENSION,
          'population': 50, **changes}),
      target_epsilon=target, seed=seed, diagnostics=diagnostics,
      clients_per_person=clients_per_person)


def _records(plan, folder, starts=1, rounds=ROUNDS):
  """The folder of a run after this many starts."""
  state = {'weights': np.zeros(3, np.float32)}
  for number in range(starts):
    records = records_lib.RunRecords(
        folder, plan.configuration(), plan.header(ROUNDS), resume=number > 0)
  records.restore(state)
  for number in range(1, rounds + 1):
    records.commit(state, number, plan.event(number), suppressed=False,
        metrics={plan.epsilon_name: plan.epsilon(number),
                 'test_clients/accuracy': number / 10})
  return records


def _reported(plan, records, task=TASK, results=RESULTS, counts=None):
  """The summary, the outcome and the full report of a run."""
  description = report.describe(task, plan)
  outcome = report.outcome(plan, task, results, counts or {}, 0)
  guarantee = plan.guarantee_of(records.ledger)
  caveats = [*guarantee.caveats, *description.caveats, *outcome.caveats]
  rounds = len(records.ledger.lines())
  summary = report_lib.summary_of(
      'train', guarantee, outcome, caveats, rounds=rounds, starts=records.starts,
      configuration=records.configuration['hash'])
  return summary, outcome, report_lib.full_report(
      description, guarantee, outcome, caveats, records.folder,
      report.run_line(plan, rounds))


def _summary(plan, folder, **options):
  return _reported(plan, _records(plan, folder, **options))[0]


def _shown(plan):
  """Epsilon of the rounds as it is printed; calibration stays just below 6."""
  assert 5.99 < plan.epsilon(ROUNDS) <= 6.0
  return decimals.epsilon(plan.epsilon(ROUNDS))


def _server(plan, rounds):
  return plan.guarantee(rounds).server.epsilon


def test_summary_states_what_was_guaranteed_to_whom(tmp_path):
  plan = _plan()
  summary = _summary(plan, tmp_path / 'run')
  assert 5.99 < summary['epsilon'] <= 6.0
  assert summary['epsilon_server'] > summary['epsilon']
  assert (summary['delta'], summary['rounds'], summary['starts']) == (0.013, 3, 1)
  assert (summary['adjacency'], summary['sampling']) == ('zero-out', 'poisson')
  assert summary['secure_aggregation'] == 'simulated'
  assert summary['details']['scale'] == plan.params.scale and summary['bits'] == 18
  assert summary['details']['dimension_padded'] == 16
  assert summary['accuracy'] == 0.75 and summary['headline_of'] == 'test_clients'
  assert summary['trust_model'] and '2110.04995' in summary['source']
  assert summary['configuration']
  assert summary['privacy_unit'] == 'one client'
  assert (summary['family'], summary['algorithm']) == ('train', 'fedavg')
  assert (summary['task'], summary['model']) == ('tiny', 'softmax')
  assert summary['parameters'] == 15
  assert (summary['population'], summary['cohort_size']) == (50, 10)
  assert summary['clip'] == 0.5
  assert summary['noise_multiplier'] == plan.mechanism.noise_multiplier


@pytest.mark.slow
def test_numbers_of_a_person_stand_beside_those_of_one_client(tmp_path):
  of_one, of_two = (_plan(noise_multiplier=4.0, clients_per_person=g) for g in (1, 2))
  before = of_one.guarantee(ROUNDS).to_json()
  keys = ('clients_per_person', 'epsilon_person', 'epsilon_server_person')
  assert [before[key] for key in keys] == [None] * 3
  records = _records(of_two, tmp_path / 'two', starts=2)
  summary, _, text = _reported(of_two, records)
  assert before['epsilon'] == summary['epsilon'] < summary['epsilon_person']
  assert before['epsilon_server'] < summary['epsilon_server']  # A second start.
  assert summary['clients_per_person'] == 2
  # The ledger proves both, restart and sampling error included.
  answer = ledger.together([records.ledger.path], clients_per_person=2)
  for key in keys:
    assert answer.to_json()[key] == pytest.approx(summary[key], rel=1e-9)
  server = known_cohorts.epsilon(
      *known_cohorts.of_person(ROUNDS + 1, 0.2, 2, 4.0), of_two.delta)
  assert server < summary['epsilon_server_person'] < 1.001 * server
  person, known = (decimals.epsilon(summary[key]) for key in keys[1:])
  assert f'of a person who owns 2 clients: epsilon {known} at delta' in text
  suppressed = of_two.guarantee(ROUNDS, suppressed=True)
  assert suppressed.person_server is None
  assert suppressed.lines()[-1] == f'of a person with 2 clients: {person}'
  both = dataclasses.replace(suppressed, person_server=suppressed.person)
  assert both.lines()[-1] == (
      f'of a person with 2 clients: {person}, {person} against the server')
  seeded = _plan(noise_multiplier=4.0, clients_per_person=2, seed=1).guarantee(ROUNDS)
  assert seeded.person is seeded.person_server is None


@pytest.mark.parametrize('changes', [
    dict(sampling='epochs'), dict(min_honest_fraction=0.6, dropout_rate=0.2),
    dict(min_honest_fraction=0.6, dropout_rate=0.2, max_participations=1),
    dict(sampling='fixed', clients_per_person=2)])
def test_ledger_proves_all_numbers_whatever_proof_each_is_by(tmp_path, changes):
  plan = _plan(noise_multiplier=1.0, **changes)
  summary = _summary(plan, tmp_path / 'run')
  files.write_json(tmp_path / 'run' / files.SUMMARY, summary)
  assert {None if bound is None else (bound.accountant, bound.amplification)
          for bound in plan.guarantee(ROUNDS).by_observer.values()} > {
              (summary['accountant'], summary['amplification'])}
  verdict = pages.verdict_on(tmp_path / 'run')
  assert verdict.proves(summary)
  for key, value in verdict.guarantee.numbers().items():
    assert value == summary[key] or value == pytest.approx(summary[key], rel=1e-9)
    if value is not None:
      assert not verdict.proves({**summary, key: 0.999 * value})


def test_a_person_owns_no_more_clients_than_there_are():
  for clients, rule in ((0, 'at least 1'), (51, 'at most 50'), (1.5, 'an integer')):
    with pytest.raises(ValueError, match=f'clients_per_person must be {rule}'):
      _plan(noise_multiplier=4.0, clients_per_person=clients)


def test_every_start_may_have_shown_the_server_a_round_more(tmp_path):
  plan = _plan()
  once = _summary(plan, tmp_path / 'once')
  thrice = _summary(plan, tmp_path / 'thrice', starts=3)
  assert once['epsilon'] == thrice['epsilon'] == plan.epsilon(ROUNDS)
  assert once['epsilon_server'] == _server(plan, ROUNDS)
  assert thrice['epsilon_server'] == _server(plan, ROUNDS + 2)
  assert thrice['epsilon_server'] > once['epsilon_server']
  assert thrice['starts'] == 3
  # A start after the last round has shown nothing.
  records = records_lib.RunRecords(
      tmp_path / 'once', plan.configuration(), {}, resume=True)
  after, _, _ = _reported(plan, records)
  assert (after['starts'], after['epsilon_server']) == (2, once['epsilon_server'])


@pytest.mark.parametrize('mechanism, seed', [
    ('none', None), ('gaussian', None), ('skellam', None), ('skellam', 1)])
def test_end_of_a_run_is_json_text_and_a_figure(tmp_path, mechanism, seed):
  plan = _plan(mechanism, seed=seed)
  records = _records(plan, tmp_path / 'run')
  result, outcome, text = _reported(plan, records)
  assert result == json.loads(json.dumps(result, allow_nan=False))
  assert result['held_out']['test_examples'] == {'accuracy': 0.5, 'loss': None}
  assert set(outcome.figures) == {files.FIGURE}
  outcome.figures[files.FIGURE](records.folder / files.FIGURE)
  figure = matplotlib.image.imread(records.folder / files.FIGURE)
  assert figure.ndim == 3 and min(figure.shape[:2]) > 300
  assert figure.std() > 0.05
  assert outcome.result == 'test_clients: accuracy 0.7500, loss 0.5000'
  assert ('test_clients: accuracy 0.7500, loss 0.5000, outside the guarantee\n' in text)
  assert 'loss not finite' in text
  if mechanism == 'none':
    assert 'epsilon: none, nothing is guaranteed' in text
  elif seed is not None:
    assert ('epsilon: none, the run is seeded; without the seed epsilon '
            f'{_shown(plan)} at') in text
  else:
    assert f'epsilon {_shown(plan)} at delta 0.013' in text
    assert 'adjacency zero-out' in text and 'trust model: ' in text
  for warning in result['warnings']:
    assert f'warning: {warning}' in text


def _plan_lines(plan, folder, task=TASK):
  return '\n'.join(report_lib.plan_lines(
      report.describe(task, plan), plan.guarantee(ROUNDS), folder))


def test_plan_is_described_before_the_first_round(tmp_path):
  plan = _plan()
  text = _plan_lines(plan, tmp_path / 'run')
  assert 'task        tiny, softmax with 15 parameters, 50 clients\n' in text
  assert ('run         3 rounds, 10 of 50 clients expected, poisson sampling\n' in text)
  assert f'epsilon     {_shown(plan)} at delta 0.013 against observers' in text
  assert 'secure aggregation simulated' in text
  assert str((tmp_path / 'run').name) in text
  details = '\n'.join(report.describe(TASK, plan).details)
  assert 'sum modulo 2^18, scale ' in details and '16 coordinates' in details


@pytest.mark.parametrize('changes, expected', [
    ({'sampling': 'fixed'}, '3 rounds, 10 of 50 clients exactly, fixed sampling'),
    ({'sampling': 'none', 'cohort_size': 50.0}, '3 rounds of all 50 clients')])
def test_rounds_are_described_in_one_line(changes, expected):
  assert report.run_line(_plan(**changes), ROUNDS) == expected


def _of(name, **changes):
  """The task with one held-out set, and results of it."""
  task = dataclasses.replace(
      TASK, held_out={name: TASK.held_out['test_clients']}, **changes)
  return task, {name: RESULTS['test_clients']}


@pytest.mark.parametrize('name, of_files, words', [
    ('test_clients', False, 'no epsilon protects clients that are not in the population'),
    ('test_examples', False, 'further examples of the clients'),
    ('test', True, 'no epsilon protects those whose examples'),
    ('test', False, None)])
def test_metrics_of_people_whom_no_epsilon_protects_are_said_to_be(
    tmp_path, name, of_files, words):
  plan = _plan()
  task, results = _of(name, test_of_files=of_files)
  result, _, text = _reported(plan, _records(plan, tmp_path / 'run'), task, results)
  assert result['epsilon'] is not None
  assert result['outside_guarantee'] == ([name] if words else [])
  warnings = [note for note in result['warnings'] if f'metrics on {name} ' in note]
  if words is None:
    assert not warnings and 'test: accuracy' in text
    assert 'held-out metrics not protected' not in result['caveats']
    return
  warning, = warnings
  assert 'outside the guarantee' in warning and words in warning
  assert f'warning: {warning}' in text
  assert 'held-out metrics not protected' in result['caveats']
  assert f'{name}: accuracy 0.7500, loss 0.5000, outside the guarantee' in text


@pytest.mark.parametrize('of_files, diagnostics, drawn', [
    (False, False, True), (False, True, True), (True, False, False),
    (True, True, True)])
def test_labels_of_a_users_clients_are_drawn_under_diagnostics_only(
    tmp_path, of_files, diagnostics, drawn):
  plan = _plan(diagnostics=diagnostics)
  task, results = _of(
      'test', test_of_files=of_files, label_counts=np.array([[1, 2, 3], [3, 2, 1]]))
  result, outcome, _ = _reported(plan, _records(plan, tmp_path / 'run'), task, results)
  name = report_lib.LABELS_FIGURE
  assert (name in outcome.figures) == drawn
  if drawn:
    outcome.figures[name](tmp_path / name)
    assert matplotlib.image.imread(tmp_path / name).std() > 0.05
  warned = any(name in text and 'diagnostics' in text and 'outside the guarantee' in text
      for text in result['warnings'])
  assert warned == (of_files and drawn)


def test_skipped_clients_and_notes_of_the_task_are_said(tmp_path):
  plan = _plan()
  task = dataclasses.replace(
      tiny_task.task(num_clients=50), warnings=(Note('words', 'words are counted'),))
  task.skips.enabled = True
  task.skips.client('7', ValueError('bad'))
  result, _, text = _reported(plan, _records(plan, tmp_path / 'run'), task)
  assert 'words' in result['caveats'] and 'words are counted' in result['warnings']
  assert 'warning: words are counted' in text
  assert result['details']['skipped_clients'] == 1
  assert result['details']['skipped_records'] == 0
  assert 'bad clients skipped' in result['caveats']


def test_delta_of_the_plan_is_shown_rounded_up_and_noise_as_it_was_given(tmp_path):
  plan = _plan(population=3400, epsilon=None, noise_multiplier=1.23456789,
               cohort_size=100.0)
  text = _plan_lines(plan, tmp_path / 'run')
  assert 'noise multiplier 1.23456789, ' in text and '3,400 clients' in text
  delta = re.search(r'at delta (\S+) against', text)[1]
  assert delta == '0.00013' and float(delta) >= plan.delta
