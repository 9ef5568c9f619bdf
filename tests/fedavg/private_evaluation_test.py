"""Metrics of training clients' held-out examples, released once with noise."""

import collections
import dataclasses
import json
import math
import re
import shutil

from dp_accounting import dp_event, pld, rdp
import numpy as np
import pytest

from tasks import task as task_lib
from tests import interrupts, tiny_task
from tests.fedavg import tiny_run
from tests.programs import in_process
from tff_pipelines.accounting.events import (
    kinds as events, preliminary as preliminary_lib)
from tff_pipelines.accounting.guarantees import (
    accountant, ledger as ledger_lib, ledger_query, release_noise)
from tff_pipelines.fedavg import (
    evaluation, preliminary, private_evaluation)
from tff_pipelines.experiment import pages, statement
from tff_pipelines.simulation import failures as computations

pytestmark = pytest.mark.usefixtures('shared_context')

CLIENTS = 40
# How many held-out examples each client has.
COUNTS = [0 if client % 8 == 7 else 1 + client % 5 for client in range(CLIENTS)]


class _Source:
  """Held-out examples of clients, of whom one may have none, bad or other ones."""

  def __init__(self, of_client):
    self._of_client = of_client
    self.client_ids = tuple(map(str, range(CLIENTS)))
    self.element_spec = tiny_task.task().train.element_spec

  def examples(self, client_id):
    if self._of_client[client_id] is None:
      raise task_lib.BadClientError('bad')
    return self._of_client[client_id]


def _of_clients(**changes):
  every, start = {}, 0
  rows = tiny_task.examples(sum(COUNTS), 5)
  for client, count in enumerate(COUNTS):
    every[str(client)] = {name: a[start:start + count] for name, a in rows.items()}
    start += count
  return _Source({**every, **changes})


def _task(**changes):
  task, source = tiny_task.task(CLIENTS), _of_clients(**changes)
  parts = [source.examples(client) for client in source.client_ids
           if source._of_client[client] is not None]
  sets = {'test_clients': task.held_out['test_clients'], 'test_examples': {
      name: np.concatenate([part[name] for part in parts]) for name in ('x', 'y')}}
  return dataclasses.replace(task, held_out=sets, held_out_of_clients=source)


class _Experiment(tiny_run.TinyExperiment):

  def build_task(self):
    return self._with_sets(_task(), {})


def _experiment(folder, **changes):
  return _Experiment(tiny_run.settings(folder, **{
      'private_evaluation': 2.0, 'mechanism': 'gaussian', 'delta': 1e-3,
      'cohort_size': 10.0, **changes}))


def _run(folder, **changes):
  return _experiment(folder, **changes).run()


def _lines(folder):
  return ledger_lib.Ledger(folder / 'ledger.jsonl').lines()


def _kinds(folder):
  return [line['event']['kind'] for line in _lines(folder)]


def _totals(weights, task, **reading):
  return private_evaluation.totals(task, weights, ['accuracy'], **reading)


def _exact(weights):
  """Exact metrics: over the examples, and the mean over clients of their accuracy."""
  task = _task()
  results = evaluation.Evaluator(task.model, {**task.held_out, **{
      client: task.held_out_of_clients.examples(client)
      for client in task.train.client_ids}}).evaluate(weights)
  of_clients = [results[client].get('accuracy', np.nan)
                for client in task.train.client_ids]
  return results['test_examples'], float(np.nanmean(of_clients)), of_clients


@pytest.fixture(name='whole', scope='module')
def _whole(shared_context, tmp_path_factory):
  """(summary, folder, weights) of a finished run."""
  del shared_context
  folder = tmp_path_factory.mktemp('whole') / 'run'
  summary = _run(folder)
  with np.load(folder / 'model.npz') as arrays:
    return summary, folder, [arrays['output/kernel'], arrays['output/bias']]


def test_client_is_evaluated_as_if_it_were_alone(whole):
  exact, _, of_clients = _exact(whole[2])
  assert [np.isnan(value) for value in of_clients] == [count == 0 for count in COUNTS]
  right = np.nansum(np.multiply(of_clients, COUNTS))
  assert right / sum(COUNTS) == pytest.approx(exact['accuracy'])


def test_no_removed_or_replaced_client_moves_the_sums_beyond_the_sensitivity(whole):
  weights = whole[2]
  task = _task()
  spec = task.train.element_spec
  empty = {name: np.zeros((0, *shape), dtype) for name, (dtype, shape) in spec.items()}
  right = tiny_task.examples(400, 9)
  logits = right['x'] @ weights[0] + weights[1]
  is_right = logits.argmax(axis=1) == right['y']
  others = {'right': is_right, 'wrong': ~is_right, 'some': slice(None)}
  others = {name: {key: a[rows] for key, a in right.items()}
            for name, rows in others.items()}
  whole_sums = _totals(weights, task)
  l2 = release_noise.planned_evaluation(1, epsilon=1.0, delta=1e-3).l2_sensitivity
  largest = 0.0
  for client in task.train.client_ids[:16]:
    without = _totals(weights, _task(**{client: empty}))
    bad = []
    np.testing.assert_array_equal(without, _totals(
        weights, _task(**{client: None}), on_bad=lambda *found: bad.append(found[0])))
    assert bad == [client]
    assert np.linalg.norm(whole_sums - without) <= l2
    for examples in others.values() if int(client) in (0, 3, 7) else ():
      replaced = _totals(weights, _task(**{client: examples}))
      assert np.linalg.norm(replaced - without) <= l2
      assert np.linalg.norm(replaced - whole_sums) <= 2 * l2
      largest = max(largest, np.linalg.norm(replaced - without))
  assert largest == pytest.approx(l2)  # The bound is attained.


def test_a_client_that_can_not_be_evaluated_adds_zeros(whole):
  weights, bad = whole[2], {}
  examples = _of_clients().examples('3')
  failing = {**examples, 'y': np.full_like(examples['y'], 1038)}
  empty = {name: value[:0] for name, value in examples.items()}
  np.testing.assert_array_equal(
      _totals(weights, _task(**{'3': failing}), on_bad=bad.__setitem__),
      _totals(weights, _task(**{'3': empty})))
  assert bad.keys() == {'3'}
  with pytest.raises(computations.ComputationError) as raised:
    _totals(weights, _task(**{str(c): failing for c in range(CLIENTS)}))
  assert '1038' in raised.value.detail and '1038' not in str(raised.value)


@pytest.mark.parametrize('values, expected', [
    ([0.0], [-1, 1]), ([1.0], [1, 1]), ([0.5], [0, 1]), ([7.0], [1, 1]),
    ([-3.0], [-1, 1]), ([math.nan], [0, 0]), ([math.inf, 0.0], [0, 0, 0]),
    ([0.25, 1.0], [-0.5, 1, 1])])
def test_contribution_is_bounded_whatever_the_metrics_are(values, expected):
  found = private_evaluation.contribution(np.array(values))
  assert found.dtype == np.int64
  np.testing.assert_array_equal(found, preliminary_lib.UNITS * np.array(expected))


@pytest.mark.parametrize('mean', [0.1, 0.5, 0.93])
def test_stated_deviation_is_that_of_the_released_values(mean):
  event = release_noise.planned_evaluation(1, epsilon=1.0, delta=1e-5)
  units, clients = preliminary_lib.UNITS, 400
  noise = preliminary.noise(3, 3, 4000, event.noise_variance).reshape([-1, 2])
  sums = noise + [round(units * clients * (2 * mean - 1)), units * clients]
  found = [private_evaluation.read(json.dumps(
      {'units': units, 'unit': 'client', 'clients': int(n), 'sums': {'accuracy': int(total)}}), event)
           for total, n in sums]
  entries = [one['metrics']['accuracy'] for one in found]
  values = np.array([entry['value'] for entry in entries])
  stated = np.array([entry['stddev'] for entry in entries])
  errors = (values - mean) / stated
  # Of 2,000: within 5 standard deviations of the mean, and of the variance.
  assert abs(errors.mean()) < 5 / math.sqrt(2000) + 0.03
  assert abs(errors.var() - 1) < 5 * math.sqrt(2 / 2000) + 0.03
  counts = np.array([one['clients']['value'] for one in found])
  assert counts.std() == pytest.approx(found[0]['clients']['stddev'], rel=0.1)


def test_too_few_clients_for_the_noise_have_no_value():
  event = release_noise.planned_evaluation(1, epsilon=0.1, delta=1e-5)
  stddev = math.sqrt(event.noise_variance)
  kept = {'units': preliminary_lib.UNITS, 'unit': 'client', 'sums': {'accuracy': 5}}
  for clients, known in ((-3 * stddev, False), (2.9 * stddev, False),
                         (3.1 * stddev, True)):
    text = json.dumps({**kept, 'clients': int(clients)})
    found = private_evaluation.read(text, event)
    assert (found['metrics']['accuracy']['value'] is not None) == known
    assert ('hidden by the noise' in private_evaluation.in_words(found)) != known


def test_release_stands_in_the_summary_with_its_deviation_near_the_exact_value(whole):
  summary, folder, weights = whole
  released = summary['private_evaluation']
  accuracy, clients = released['metrics']['accuracy'], released['clients']
  assert released['of'] == 'test_examples' and list(released['metrics']) == ['accuracy']
  assert abs(accuracy['value'] - _exact(weights)[1]) < 5 * accuracy['stddev'] < 0.5
  assert abs(clients['value'] - sum(map(bool, COUNTS))) < 5 * clients['stddev']
  assert summary['held_out']['test_examples'] == {'accuracy': accuracy['value']}
  assert summary['headline_of'] == 'test_clients'
  assert summary['outside_guarantee'] == ['test_clients']
  report = (folder / 'report.txt').read_text()
  assert f'test_examples: accuracy {accuracy["value"]:.4f} (noise ' in report
  assert 'clients (noise' in report and 'epsilon private evaluation: ' in report
  assert 'after the last round a trusted party adds up' in summary['trust_model']
  assert 'the server and' not in (summary['observers_server'] or '')
  assert 'evaluation of clients is central' in summary['caveats']
  page = (folder / 'report.html').read_text()
  assert 'test_examples: means over clients, with noise that is in ε' in page


def _files_with(folder, values):
  """Files with the first six decimals of a value."""
  texts = [f'{math.floor(value * 1e6) / 1e6:.6f}'.encode() for value in values]
  return {path.relative_to(folder).as_posix() for path in folder.rglob('*')
          if path.is_file() and any(text in path.read_bytes() for text in texts)}


def test_exact_metrics_are_in_no_file(whole, tmp_path):
  _, folder, weights = whole
  of_examples, of_clients, _ = _exact(weights)
  # A third is the balanced accuracy of a constant, which a summary has in any case.
  assert _files_with(folder, [value for value in (*of_examples.values(), of_clients)
      if not math.isclose(value, 1 / 3, rel_tol=1e-5)]) == set()
  kept = json.loads((folder / private_evaluation.FILE).read_text())
  assert [kept['sums']['accuracy'], kept['clients']] != _totals(weights, _task()).tolist()
  assert set(in_process.rows(folder / 'metrics.csv')[0]) == {
      'round', 'epsilon', 'test_clients/accuracy', 'test_clients/loss'}
  in_report = 'test_examples: accuracy [0-9.]+.*, loss '
  assert not re.search(in_report, (folder / 'report.txt').read_text())
  # The power of the search: without the setting they are there.
  exact = tmp_path / 'run'
  _run(exact, private_evaluation=0.0)
  with np.load(exact / 'model.npz') as arrays:
    results = _exact([arrays['output/kernel'], arrays['output/bias']])[0]
  assert _files_with(exact, results.values()) >= {'summary.json', 'metrics.csv'}
  assert re.search(in_report, (exact / 'report.txt').read_text())


def _oracle(oracle, summary, folder):
  """Epsilon by dp_accounting, of Gaussian rounds and a Gaussian evaluation."""
  for event, count in collections.Counter(
      events.from_json(line['event']) for line in _lines(folder)).items():
    if isinstance(event, events.TurnSampled):
      # All rows with the weights of one client: turns are `period` rounds apart.
      period = event.population // event.turn_size
      squares = max(sum(weight**2 for turn in range(first, count, period)
                        for weight in event.column[:count - turn])
                    for first in range(period))
      oracle.compose(dp_event.GaussianDpEvent(
          event.event.noise_multiplier / math.sqrt(squares)))
      continue
    oracle.compose(dp_event.GaussianDpEvent(event.noise_multiplier)
                   if isinstance(event, events.EvaluationRelease) else
                   event.to_dp_accounting(), count)
  return oracle.get_epsilon(summary['delta'])


def _check_ledger(folder, summary):
  """Checks that the ledger alone gives the numbers of the summary."""
  answer = ledger_query.answer(folder / 'ledger.jsonl')
  found = answer.epsilon, answer.epsilon_server, answer.server_any_cohorts.epsilon
  assert found == pytest.approx([summary[name] for name in (
      'epsilon', 'epsilon_server', 'epsilon_server_any_cohorts')], rel=1e-9)


@pytest.mark.parametrize('kind, changes', [
    ('TurnSampled', {}), ('PoissonSampled', {'sampling': 'poisson'})])
def test_epsilon_is_that_of_the_rounds_and_the_evaluation(tmp_path, whole, kind, changes):
  summary, folder, _ = whole
  if changes:
    folder = tmp_path / 'run'
    summary = _run(folder, **changes)
  assert _kinds(folder) == [kind] * 3 + ['EvaluationRelease']
  assert summary['rounds'] == 3
  assert summary['accountant'] == 'pld'
  oracle = _oracle(pld.PLDAccountant(), summary, folder)
  assert summary['epsilon'] == pytest.approx(oracle, rel=1e-3)
  assert 1.02 * summary['epsilon'] < _oracle(
      rdp.RdpAccountant(list(range(2, 65))), summary, folder)
  _check_ledger(folder, summary)
  assert summary['details']['epsilon_private_evaluation'] == pytest.approx(2, rel=1e-4)
  last = in_process.rows(folder / 'metrics.csv')[-1]
  assert float(last['epsilon']) == pytest.approx(summary['epsilon'], rel=1e-9)
  found = pages.verdict_on(folder)
  assert not found.problems and found.proves(summary)


@pytest.mark.slow
def test_calibrated_noise_leaves_room_for_the_evaluation(tmp_path):
  folder = tmp_path / 'run'
  summary = _run(folder, noise_multiplier=None, epsilon=4.0, sampling='none',
                 cohort_size=float(CLIENTS))
  assert 3.99 < summary['epsilon'] <= 4
  assert summary['epsilon'] == pytest.approx(
      _oracle(pld.PLDAccountant(), summary, folder), rel=1e-3)
  without = events.SelfComposed(count=3, event=events.CentralGaussian(
      noise_multiplier=summary['noise_multiplier']))
  assert accountant.epsilon(without, 1e-3) < 3.9
  content = statement.statement(summary)
  assert content['epsilon'] == summary['epsilon']
  assert any('after the last round' in caveat['text'] for caveat in content['caveats'])


@pytest.mark.slow
@pytest.mark.parametrize('changes', [dict(sampling='fixed'), dict(mechanism='skellam'),
    dict(sampling='poisson', max_participations=2, mechanism='skellam')])
def test_ledger_has_the_same_epsilon_by_every_sampling(tmp_path, changes):
  folder = tmp_path / 'run'
  summary = _run(folder, **changes)
  _check_ledger(folder, summary)
  assert pages.verdict_on(folder).proves(summary)
  *_, last = _lines(folder)
  event = events.from_json(last['event'])
  release = release_noise.release_of(event)
  assert event.adjacency == summary['adjacency']
  plain = release_noise.planned_evaluation(1, epsilon=2.0, delta=1e-3)
  # One of two clients is counted in place of the other.
  factor = 2 if summary['adjacency'] == 'replace-one' else 1
  assert math.sqrt(release.noise_variance) == pytest.approx(
      factor * math.sqrt(plain.noise_variance), rel=1e-3)
  assert summary['details']['epsilon_private_evaluation'] == pytest.approx(2, rel=1e-4)


def test_release_that_a_crash_lost_stays_charged(tmp_path, whole):
  folder = tmp_path / 'run'
  with interrupts.interrupted(private_evaluation, 'draw'):
    _run(folder)
  assert _kinds(folder)[3:] == ['EvaluationRelease']
  assert not (folder / private_evaluation.FILE).exists()
  summary = _run(folder, resume=True)
  assert _kinds(folder)[3:] == ['EvaluationRelease'] * 2
  assert summary['rounds'] == 3 and summary['epsilon'] > whole[0]['epsilon']
  _check_ledger(folder, summary)
  assert summary['details']['epsilon_private_evaluation'] > 2.5
  assert 'charged 2 times' in (folder / 'report.txt').read_text()


@pytest.mark.parametrize('changes, message', [
    (dict(rounds=5), 'rounds=5 can\'t be more than the 3 that were planned: private_e'),
    (dict(private_evaluation=3.0), r'private_evaluation \(2.0 then, 3.0 now\) differ')])
def test_finished_run_is_not_extended(whole, changes, message):
  with pytest.raises(ValueError, match=message):
    _run(whole[1], resume=True, **changes)


def test_release_without_its_charge_is_not_used(tmp_path, whole):
  folder = tmp_path / 'run'
  shutil.copytree(whole[1], folder)
  *kept, _ = (folder / 'ledger.jsonl').read_text().splitlines(keepends=True)
  (folder / 'ledger.jsonl').write_text(''.join(kept))
  with pytest.raises(ValueError, match='has no charge for .*private_evaluation.json'):
    _run(folder, resume=True)


@pytest.mark.slow
def test_run_that_was_stopped_is_evaluated_once_after_its_charges(tmp_path):
  experiment = _experiment(tmp_path / 'run')
  seen = []
  experiment.callbacks = [lambda index, metrics: seen.append(metrics) or index == 1]
  summary = experiment.run()
  assert [line['outcome'] for line in _lines(tmp_path / 'run')] == [
      'released', 'unused', 'unused', 'released']
  assert summary['rounds'] == 1 and 'stopped early' in summary['caveats']
  assert not any(name.startswith('test_examples') for name in seen[0])
  again = _run(tmp_path / 'run', resume=True)
  assert again == {**summary, 'starts': 2} and len(_lines(tmp_path / 'run')) == 4
  _check_ledger(tmp_path / 'run', again)


def test_noise_is_fresh_unless_it_is_seeded(whole):
  event = release_noise.planned_evaluation(1, epsilon=1.0, delta=1e-3)
  first, again, other, *fresh = (private_evaluation.draw(_task(), whole[2], event, seed)
      for seed in (1, 1, 2, None, None))
  assert first == again and len({first, other, *fresh}) == 4
  with pytest.raises(ValueError, match='not the one that was charged'):
    private_evaluation.draw(
        _task(), whole[2], dataclasses.replace(event, l2_sensitivity=1.0), 1)


@pytest.mark.parametrize('changes, message', [(dict(mechanism='none', delta=None),
     'private_evaluation is not used with mechanism=none'),
    (dict(noise_multiplier=None, epsilon=2.0),
     'must be less than the target epsilon=2, found 2.0'),
    (dict(noise_multiplier=None, epsilon_server=1.0, epsilon=8.0),
     'must be less than the target epsilon=1'),
    (dict(private_evaluation=-1.0), 'private_evaluation must be at least 0, found -1'),
    (dict(private_evaluation=math.nan), 'private_evaluation must be .*finite.*nan'),
    (dict(private_evaluation=5e-5, delta=1e-9),
     'private_evaluation=5e-05 is too small for the sampler')])
def test_settings_that_can_not_be_are_one_line(tmp_path, changes, message):
  with pytest.raises(ValueError, match=message) as raised:
    _run(tmp_path / 'run', **changes)
  assert '\n' not in str(raised.value) and not (tmp_path / 'run').exists()


@pytest.mark.parametrize('changes, message', [(dict(held_out_of_clients=None),
     'needs held-out examples by training client, task=tiny has'),
    (dict(model=dataclasses.replace(tiny_task.MODEL, fractions=('recall',))),
     r'needs a metric in \[0, 1\] among the fractions of the model softmax')])
def test_task_without_such_metrics_is_one_line(changes, message):
  with pytest.raises(ValueError, match=message):
    private_evaluation.metric_names(dataclasses.replace(_task(), **changes))
