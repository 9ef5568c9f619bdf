"""Runs of local distillation: what is charged, kept, repeated and lost."""

import dataclasses
import json

import numpy as np
import pytest

from tasks import ldp_distillation as tasks_lib
from tests import statistics_lib
from tff_pipelines import ldp_flags
from tff_pipelines import ldp_records
from tff_pipelines import ldp_run
from tff_pipelines.accounting import accountant
from tff_pipelines.accounting import ledger as ledger_lib

# 8 groups of 5 owners, so 16 queries in 4 steps.
VALUES = dict(owners=40, owners_per_query=5, queries_per_step=4,
              epsilon_total=12.0, answers_per_owner=2)


class Killed(Exception):
  """In the place of a kill."""


@pytest.fixture(scope='module')
def setting():
  return ldp_run.prepared(ldp_flags.of(VALUES))


def _config(folder, **changes):
  return ldp_flags.of({**VALUES, 'output_dir': str(folder), **changes})


def _run(setting, folder, **changes):
  return ldp_run.run(_config(folder, **changes), setting)


def _answers(folder):
  found = []
  for path in sorted((folder / 'answers').iterdir()):
    with np.load(path) as arrays:
      found.append((arrays['rows'], arrays['means']))
  return found


def _ledger(folder):
  return ledger_lib.Ledger(folder / 'ledger.jsonl')


def test_a_run_spends_its_budget_and_reports_what_the_ledger_says(
    setting, tmp_path, capsys):
  found = _run(setting, tmp_path / 'run')
  assert found['queries'] == found['queries_charged'] == 16
  assert found['answers_of_an_owner'] == 2 and found['stopped'] == (
      'the budget is used up')
  assert found['epsilon'] == 12.0 and found['delta'] == 0
  ledger = _ledger(tmp_path / 'run')
  assert ledger.verify(expected_count=4) == []
  assert accountant.epsilon(ledger.event(), 0.0) == pytest.approx(12.0)
  assert found['adjacency'] == 'local' and 'nobody is trusted' in found['trust_model']
  assert found['warnings'] == []
  printed = capsys.readouterr().out
  assert 'epsilon 12.0000 at delta 0' in printed and 'any two inputs' in printed
  written = json.loads((tmp_path / 'run' / 'summary.json').read_text())
  assert written == found
  # No image is asked about twice.
  rows = np.concatenate([rows for rows, _ in _answers(tmp_path / 'run')])
  assert len(set(rows)) == 16


def test_epsilon_grows_with_the_turns_of_the_owners(setting, tmp_path):
  _run(setting, tmp_path / 'run')
  lines = (tmp_path / 'run' / 'metrics.csv').read_text().splitlines()
  names = lines[0].split(',')
  rows = [dict(zip(names, line.split(','))) for line in lines[1:]]
  assert [float(row['epsilon']) for row in rows] == [6, 6, 12, 12]
  assert [float(row['queries']) for row in rows] == [4, 8, 12, 16]


def test_seeded_runs_repeat_and_guarantee_nothing(setting, tmp_path):
  one, again, other = (
      _run(setting, tmp_path / name, seed=seed)
      for name, seed in (('one', 3), ('again', 3), ('other', 4)))
  assert one['epsilon'] is None and one['epsilon_if_unseeded'] == 12.0
  assert any('no guarantee' in text for text in one['warnings'])
  del one['configuration'], again['configuration']
  assert one == again
  for (rows, means), (rows2, means2) in zip(
      _answers(tmp_path / 'one'), _answers(tmp_path / 'again')):
    np.testing.assert_array_equal(rows, rows2)
    np.testing.assert_array_equal(means, means2)
  assert not np.array_equal(
      _answers(tmp_path / 'one')[0][1], _answers(tmp_path / 'other')[0][1])


def test_unseeded_runs_never_repeat(setting, tmp_path):
  for name in ('one', 'other'):
    _run(setting, tmp_path / name, max_queries=4)
  (rows, means), = _answers(tmp_path / 'one')
  (rows2, means2), = _answers(tmp_path / 'other')
  np.testing.assert_array_equal(rows, rows2)  # The public choice does.
  assert not np.array_equal(means, means2)


@pytest.mark.parametrize('name', ['charge', 'keep', 'measure'])
def test_a_run_stopped_between_steps_goes_on_as_if_nothing_had_been(
    setting, tmp_path, monkeypatch, name):
  whole = _run(setting, tmp_path / 'whole', seed=5)
  calls, original = [], getattr(ldp_records.LdpRecords, name)

  def third_is_the_last(self, *args):
    calls.append(1)
    if name == 'charge' and len(calls) == 3:
      raise Killed
    result = original(self, *args)
    if name != 'charge' and len(calls) == 3:
      raise Killed
    return result

  folder = tmp_path / 'run'
  monkeypatch.setattr(ldp_records.LdpRecords, name, third_is_the_last)
  with pytest.raises(Killed):
    _run(setting, folder, seed=5)
  monkeypatch.undo()
  found = _run(setting, folder, seed=5, resume=True)
  assert (found.pop('starts'), whole.pop('starts')) == (2, 1)
  assert found == whole
  for kept, expected in zip(_answers(folder), _answers(tmp_path / 'whole')):
    np.testing.assert_array_equal(kept[0], expected[0])
    np.testing.assert_array_equal(kept[1], expected[1])
  one, other = ((f / 'metrics.csv').read_text() for f in (folder, tmp_path / 'whole'))
  assert one == other
  with np.load(folder / 'student.npz') as one:
    with np.load(tmp_path / 'whole' / 'student.npz') as other:
      np.testing.assert_array_equal(one['weights'], other['weights'])


@pytest.mark.parametrize('lost_at', ['ask', 'keep'])
def test_answers_that_were_charged_and_lost_stay_charged(
    setting, tmp_path, monkeypatch, lost_at):
  folder, calls = tmp_path / 'run', []
  target = ldp_run.Run if lost_at == 'ask' else ldp_records.LdpRecords
  original = getattr(target, lost_at)

  def second_fails(self, *args):
    calls.append(1)
    if len(calls) == 2:
      raise Killed
    return original(self, *args)

  monkeypatch.setattr(target, lost_at, second_fails)
  with pytest.raises(Killed):
    _run(setting, folder)
  monkeypatch.undo()
  found = _run(setting, folder, resume=True)
  assert (found['queries'], found['queries_charged'], found['queries_lost']) == (
      12, 16, 4)
  assert found['epsilon'] == 12.0
  assert any('answers to 4 queries were lost' in text for text in found['warnings'])
  ledger = _ledger(folder)
  assert ledger.verify(expected_count=4) == []
  assert accountant.epsilon(ledger.event(), 0.0) == pytest.approx(12.0)
  # A loss moves the turns on: nobody answers more often than planned.
  assert found['answers_of_an_owner'] == 2


def test_a_finished_run_says_the_same_again(setting, tmp_path):
  first = _run(setting, tmp_path / 'run')
  again = _run(setting, tmp_path / 'run', resume=True)
  assert again.pop('starts') == 2 and first.pop('starts') == 1
  assert again == first


def test_a_run_is_not_overwritten_and_not_continued_as_another(setting, tmp_path):
  _run(setting, tmp_path / 'run', max_queries=4)
  with pytest.raises(ValueError, match='pass --resume'):
    _run(setting, tmp_path / 'run', max_queries=4)
  with pytest.raises(ValueError, match='sampling differ'):
    _run(setting, tmp_path / 'run', max_queries=4, sampling='random', resume=True)


def test_damaged_answers_are_named(setting, tmp_path):
  folder = tmp_path / 'run'
  _run(setting, folder, max_queries=8)
  path = folder / 'answers' / '000002.npz'
  content = path.read_bytes()
  path.write_bytes(content[:50])
  with pytest.raises(ValueError, match='000002.npz is damaged'):
    _run(setting, folder, max_queries=8, resume=True)
  # Answers of another step, or of another run.
  path.write_bytes((folder / 'answers' / '000001.npz').read_bytes())
  with pytest.raises(ValueError, match='must belong to round 2'):
    _run(setting, folder, max_queries=8, resume=True)
  path.rename(folder / 'answers' / '000007.npz')
  with pytest.raises(ValueError, match='belongs to no line'):
    _run(setting, folder, max_queries=8, resume=True)


def test_answers_without_a_ledger_are_not_built_upon(setting, tmp_path):
  _run(setting, tmp_path / 'run', max_queries=4)
  (tmp_path / 'run' / 'ledger.jsonl').unlink()
  with pytest.raises(ValueError, match='what they cost is not known'):
    _run(setting, tmp_path / 'run', max_queries=4, resume=True)


def test_a_run_stops_at_its_target_and_at_the_end_of_the_images(tmp_path):
  config = ldp_flags.of(dict(
      owners=5, owners_per_query=5, epsilon_per_query=30.0, answers_per_owner=200,
      queries_per_step=20, target_accuracy=0.5, output_dir=str(tmp_path / 'target')))
  setting = ldp_run.prepared(config)
  found = ldp_run.run(config, setting)
  assert 'on the 60 validation records' in found['stopped']
  assert found['validation_accuracy'] >= 0.5 and found['queries'] < 140
  assert found['test_examples'] == 300
  config = dataclasses.replace(
      config, target_accuracy=1.0, queries_per_step=100,
      output_dir=str(tmp_path / 'all'))
  found = ldp_run.run(config, setting)
  assert found['stopped'] == 'every public image has been asked about'
  assert found['queries'] == len(setting.public) == 143


def test_supposed_owners_cost_their_sets_of_records_more(tmp_path):
  found = ldp_run.run(ldp_flags.of(dict(
      owners=60, stand_ins=4, records_per_owner=300, owners_per_query=3,
      epsilon_total=2.0, queries_per_step=20, output_dir=str(tmp_path / 'run'))))
  assert found['epsilon'] == 2.0 and found['answers_of_an_owner'] == 1
  assert found['answers_of_a_holding'] == 15
  assert found['epsilon_of_a_holding'] == pytest.approx(30.0)
  assert any('60 owners are supposed' in text for text in found['warnings'])


@pytest.mark.parametrize('mechanism', ['duchi', 'laplace', 'gaussian'])
def test_every_mechanism_runs_and_its_answers_have_its_variance(
    setting, tmp_path, mechanism):
  # Seeded: Laplace's answers vary too much for so few of them.
  found = _run(setting, tmp_path / 'run', mechanism=mechanism, seed=6)
  assert 11.9 < found['epsilon_if_unseeded'] <= 12.0
  config = _config(tmp_path / 'run', mechanism=mechanism)
  plan = ldp_run.make_plan(config, setting.task)
  built = ldp_run.mechanism_of(plan, 10)
  means = np.concatenate([means for _, means in _answers(tmp_path / 'run')])
  # 160 coordinates; means of 5 owners around numbers in [0, 1].
  spread = built.worst_variance / 4 / 5
  square = np.mean((means - 0.1)**2)
  # Means of 5 are nearly Gaussian: an excess kurtosis of 3 / 5 at most.
  error = statistics_lib.Z * np.sqrt(2.6 / means.size)
  assert 0.8 * spread * (1 - error) < square < spread * (1 + error) + 0.1


def test_a_configuration_prepares_the_same_for_the_same_data():
  one, other = (ldp_flags.preparation_key(ldp_flags.of({**VALUES, **changes}))
                for changes in ({}, {'sampling': 'random', 'epsilon_total': 3.0}))
  assert one == other
  for changes in ({'data_seed': 1}, {'feature_seed': 1}, {'teacher_strength': 1.0},
                  {'owners': 41}, {'target_accuracy': 0.5}):
    assert ldp_flags.preparation_key(ldp_flags.of({**VALUES, **changes})) != one


def test_public_images_are_in_the_fingerprint():
  one, other = (ldp_run.fingerprint(tasks_lib.build('digits', data_seed=seed))
                for seed in (0, 1))
  assert one != other
  assert one == ldp_run.fingerprint(tasks_lib.build('digits'))
