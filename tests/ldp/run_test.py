"""Runs of local distillation: what is charged, kept, repeated and lost."""

import contextlib
from unittest import mock

import numpy as np
import pytest

from tests import statistics_lib
from tff_pipelines.accounting.guarantees import accountant, ledger as ledger_lib
from tff_pipelines.experiment import charged_records
from tff_pipelines.ldp import run as ldp_run
from tff_pipelines.ldp.settings import LdpSettings

# 8 groups of 5 owners, so 16 queries in 4 steps.
VALUES = dict(num_clients=40, clients_per_query=5, queries_per_step=4,
              epsilon=12.0, answers_per_client=2)


@contextlib.contextmanager
def killed_at(number, target, name):
  """The call of a function of the target with this number, from 1 on, ends a run."""
  fates = [getattr(target, name)] * (number - 1) + [
      mock.Mock(side_effect=RuntimeError('killed by the test'))]
  with mock.patch.object(target, name, lambda *arguments: fates.pop(0)(*arguments)):
    with pytest.raises(RuntimeError, match='^killed by the test$'):
      yield


@pytest.fixture(scope='module')
def prepared():
  return ldp_run.Prepared(LdpSettings(**VALUES))


def _settings(folder, **changes):
  return LdpSettings(**{**VALUES, 'output_dir': str(folder), **changes})


def _run(prepared, folder, **changes):
  return ldp_run.experiment(_settings(folder, **changes), prepared).run()


def _answers(folder):
  answers = []
  for path in sorted((folder / 'answers').iterdir()):
    with np.load(path) as arrays:
      answers.append((arrays['rows'], arrays['means']))
  return answers


def _ledger(folder):
  return ledger_lib.Ledger(folder / 'ledger.jsonl')


def test_a_run_spends_its_budget_and_reports_what_the_ledger_says(
    prepared, tmp_path, capsys):
  summary = _run(prepared, tmp_path / 'run')
  details = summary['details']
  assert details['queries'] == details['queries_charged'] == 16
  assert details['answers_of_a_client'] == 2 and details['stopped'] == (
      'the budget is used up')
  assert summary['epsilon'] == 12.0 and summary['delta'] == 0
  ledger = _ledger(tmp_path / 'run')
  assert ledger.verify(expected_count=4) == []
  assert accountant.epsilon(ledger.event(), 0.0) == pytest.approx(12.0)
  assert summary['adjacency'] == 'local'
  assert 'no one is trusted' in summary['trust_model']
  assert summary['warnings'] == [] and summary['amplification'] is None
  assert (summary['population'], summary['cohort_size']) == (40, 5)
  printed = capsys.readouterr().out
  assert 'epsilon     12.0000 at delta 0 against any observer' in printed
  assert 'any two inputs' in printed and '--delta=0' in printed
  text = (tmp_path / 'run' / 'report.txt').read_text()
  assert 'answers of a client: 2' in text and 'data user who asks' in text
  # No image is asked about twice.
  rows = np.concatenate([rows for rows, _ in _answers(tmp_path / 'run')])
  assert len(set(rows)) == 16
  # Epsilon grows with the answers of the owners.
  lines = (tmp_path / 'run' / 'metrics.csv').read_text().splitlines()
  names = lines[0].split(',')
  rows = [dict(zip(names, line.split(','))) for line in lines[1:]]
  assert [float(row['epsilon']) for row in rows] == [6, 6, 12, 12]
  assert [float(row['queries']) for row in rows] == [4, 8, 12, 16]


def test_unseeded_runs_never_repeat(prepared, tmp_path):
  for name in ('one', 'other'):
    _run(prepared, tmp_path / name, max_queries=4, mechanism='laplace')
  (rows, means), = _answers(tmp_path / 'one')
  (rows2, means2), = _answers(tmp_path / 'other')
  np.testing.assert_array_equal(rows, rows2)  # The public choice does.
  assert not np.array_equal(means, means2)


@pytest.mark.parametrize('target, lost_at', [
    (ldp_run.LdpRounds, 'draw'), (charged_records.ChargedRecords, 'keep')])
def test_answers_that_were_charged_and_lost_stay_charged(
    prepared, tmp_path, target, lost_at):
  folder = tmp_path / 'run'
  with killed_at(2, target, lost_at):
    _run(prepared, folder)
  summary = _run(prepared, folder, resume=True)
  details = summary['details']
  assert [details[name] for name in ('queries', 'queries_charged', 'queries_lost')] == [
      12, 16, 4]
  assert summary['epsilon'] == 12.0 and summary['caveats'] == ['answers lost']
  assert any('answers to 4 queries were lost' in text for text in summary['warnings'])
  ledger = _ledger(folder)
  assert ledger.verify(expected_count=4) == []
  assert accountant.epsilon(ledger.event(), 0.0) == pytest.approx(12.0)
  # After a loss the next groups answer: no owner answers more often than planned.
  assert details['answers_of_a_client'] == 2


def test_a_run_that_lost_all_its_answers_says_so(prepared, tmp_path):
  for resume in (False, True):
    with killed_at(1, ldp_run.LdpRounds, 'draw'):
      _run(prepared, tmp_path / 'run', queries_per_step=8, resume=resume)
  summary = _run(prepared, tmp_path / 'run', queries_per_step=8, resume=True)
  assert summary['accuracy'] is None and summary['epsilon'] == 12.0
  assert summary['details']['queries_lost'] == 16
  assert not (tmp_path / 'run' / 'student.npz').exists()


@pytest.mark.slow
def test_a_run_stops_at_its_target_and_at_the_end_of_the_images(tmp_path):
  settings = LdpSettings(
      num_clients=5, clients_per_query=5, epsilon_per_query=30.0,
      answers_per_client=200, queries_per_step=20, target_accuracy=0.5,
      output_dir=str(tmp_path / 'target'))
  prepared = ldp_run.Prepared(settings)
  summary = ldp_run.experiment(settings, prepared).run()
  assert 'on the 60 validation records' in summary['details']['stopped']
  assert summary['held_out']['validation']['accuracy'] >= 0.5
  assert summary['details']['queries'] < 140
  assert summary['details']['test_examples'] == 300
  summary = ldp_run.experiment(settings.replace(
      target_accuracy=1.0, queries_per_step=100, output_dir=str(tmp_path / 'all')),
                               prepared).run()
  assert summary['details']['stopped'] == 'every public image has been asked about'
  assert summary['details']['queries'] == len(prepared.public) == 143


def test_supposed_owners_cost_their_sets_of_records_more(tmp_path):
  summary = ldp_run.experiment(LdpSettings(
      num_clients=60, stand_ins=4, records_per_client=300, clients_per_query=3,
      epsilon=2.0, queries_per_step=20, output_dir=str(tmp_path / 'run'))).run()
  details = summary['details']
  assert summary['epsilon'] == 2.0 and details['answers_of_a_client'] == 1
  assert details['answers_of_a_holding'] == 15
  assert details['epsilon_of_a_holding'] == pytest.approx(30.0)
  assert 'stand-ins for clients' in summary['caveats']
  assert any('60 owners are supposed' in text for text in summary['warnings'])
  text = (tmp_path / 'run' / 'report.txt').read_text()
  assert 'epsilon of a holding: 30' in text


@pytest.mark.parametrize(
    'mechanism', ['krr', 'piecewise', 'duchi', 'laplace', 'gaussian'])
def test_every_mechanism_runs_and_its_answers_have_its_variance(
    prepared, tmp_path, mechanism):
  # Seeded: Laplace's answers vary too much for so few of them.
  settings = _settings(tmp_path / 'run', mechanism=mechanism, seed=6)
  experiment = ldp_run.LdpExperiment(settings, prepared)
  summary = experiment.run()
  assert 11.9 < summary['epsilon_if_unseeded'] <= 12.0
  built = ldp_run.mechanism_of(experiment.build_plan(prepared, None))
  means = np.concatenate([means for _, means in _answers(tmp_path / 'run')])
  # 160 coordinates; means of 5 owners around numbers in [0, 1].
  spread = built.worst_variance / 4 / 5
  square = np.mean((means - 0.1)**2)
  # Means of 5 are nearly Gaussian: an excess kurtosis of 3 / 5 at most.
  error = statistics_lib.Z * np.sqrt(2.6 / means.size)
  assert 0.8 * spread * (1 - error) < square < spread * (1 + error) + 0.1


def test_without_flags_digits_are_learned(tmp_path):
  # Noise is seeded, so that the accuracy is that of this seed.
  summary = ldp_run.experiment(
      LdpSettings(output_dir=str(tmp_path / 'run'), seed=1)).run()
  assert summary['mechanism'] == 'subset' and summary['accuracy'] >= 0.8
  assert summary['epsilon_if_unseeded'] == 8.0


@pytest.mark.parametrize('mechanism', ['krr', 'subset', 'laplace'])
def test_a_resumed_run_is_the_same_and_its_ledger_has_the_summarys_epsilon(
    prepared, tmp_path, mechanism):
  # At this epsilon sets have several classes.
  values = dict(mechanism=mechanism, epsilon=4.0, answers_per_client=4, delta=1e-5,
                max_queries=32)
  whole = _run(prepared, tmp_path / 'whole', seed=3, **values)
  with killed_at(3, ldp_run.LdpRounds, 'next_event'):
    _run(prepared, tmp_path / 'run', seed=3, **values)
  resumed = _run(prepared, tmp_path / 'run', seed=3, resume=True, **values)
  for (rows, means), (other_rows, other_means) in zip(
      _answers(tmp_path / 'whole'), _answers(tmp_path / 'run'), strict=True):
    np.testing.assert_array_equal(rows, other_rows)
    np.testing.assert_array_equal(means, other_means)
  assert resumed['accuracy'] == whole['accuracy']
  found = accountant.epsilon(_ledger(tmp_path / 'run').event(), 1e-5)
  assert found == pytest.approx(resumed['epsilon_if_unseeded'], rel=1e-6)
  assert 3.9 < found <= 4.0


def test_public_images_are_in_the_fingerprint():
  one, other, again = (
      ldp_run.LdpExperiment(settings).identity(ldp_run.Prepared(settings))
      for settings in (LdpSettings(data_seed=0), LdpSettings(data_seed=1), LdpSettings()))
  assert one['data_fingerprint'] != other['data_fingerprint']
  assert one == again
