"""The recorder reports differences; cohorts and partitions are those recorded."""

import copy
import json

import numpy as np
import pytest

from tests import recorder
from tests import recorder_runs
from tests import recording

EVENT = {'type': 'gaussian', 'noise_multiplier': 0.5}


def _ledger(events, time='2026-01-01', starts=1, population=20):
  header = {'population': population, 'time': time, 'hash': time, 'warnings': []}
  lines = [{'round': i + 1, 'event': event, 'outcome': 'released', 'starts': starts,
            'time': time, 'configuration': 'c', 'previous': time, 'hash': time}
           for i, event in enumerate(events)]
  return '\n'.join(map(json.dumps, [header, *lines])) + '\n'


def _fill(folder, *, labels=(1, 0, 2), events=(EVENT, EVENT), accuracy=0.5,
          cohort='[1, 3]', **ledger):
  """Writes the files of a run, and reads them."""
  folder.mkdir()
  (folder / 'ledger.jsonl').write_text(_ledger(events, **ledger))
  np.savez(folder / 'labels.npz', labels=np.array(labels), line=np.array('any hash'))
  (folder / 'metrics.csv').write_text(f'round,accuracy,seconds\n1,{accuracy},7\n2,,8\n')
  (folder / 'probes.json').write_text(json.dumps({'cohorts': [f'round 1: {cohort}']}))
  (folder / 'summary.json').write_text(
      json.dumps({'accuracy': accuracy, 'words': 'any', 'starts': 1, 'seconds': 3.0}))
  (folder / 'progress.png').write_bytes(b'any figure')
  return recording.read(folder)


def test_folders_of_equal_runs_have_no_difference(tmp_path):
  one = _fill(tmp_path / 'one')
  assert one.arrays.keys() == {
      'labels.npz/labels', 'metrics.csv/round', 'metrics.csv/accuracy'}
  assert not recording.differences(
      one, _fill(tmp_path / 'other', time='2027-12-31'))


@pytest.mark.parametrize('change, expected', [
    (dict(labels=(1, 0, 3)),
     ['labels.npz/labels: 1 of 3 entries differ, by at most 1']),
    (dict(labels=(1, 0)), ['labels.npz/labels: int64 [3] became int64 [2]']),
    (dict(events=(EVENT, {**EVENT, 'noise_multiplier': 0.25})),
     ['ledger.jsonl: line 2: ']),
    (dict(events=(EVENT,)), ['ledger.jsonl: 2 lines became 1',
                             'ledger.jsonl:starts: 2 lines became 1']),
    (dict(starts=2), ['ledger.jsonl:starts: line 1: ...1 became ...2']),
    (dict(cohort='[1, 4]'), ['probes: cohorts: line 1: ']),
    (dict(population=21), ['ledger.jsonl:header: line 1: ']),
    (dict(accuracy=0.25), ['metrics.csv/accuracy: 1 of 2 entries differ, by at most '
                           '0.25', 'summary.json: accuracy=0.5 became 0.25']),
])
def test_a_single_difference_is_reported_and_nothing_else(tmp_path, change, expected):
  result = recording.differences(
      _fill(tmp_path / 'one'), _fill(tmp_path / 'other', **change))
  assert len(result) == len(expected)
  for line, start in zip(result, expected):
    assert line.startswith(start)


def test_missing_and_new_entries_are_reported(tmp_path):
  one = _fill(tmp_path / 'one')
  other = copy.deepcopy(one)
  other.arrays['state/000'] = other.arrays.pop('labels.npz/labels')
  assert recording.differences(one, other) == [
      'labels.npz/labels: is missing', 'state/000: was not there']


def test_arrays_are_compared_bit_by_bit():
  def of(*values, dtype=np.float32):
    return recording.Recording(arrays={'w': np.array(values, dtype)})

  assert not recording.differences(of(1, np.nan), of(1, np.nan))
  next_after_2 = np.nextafter(np.float32(2), np.float32(3))
  assert recording.differences(of(1, 2), of(1, next_after_2))
  assert recording.differences(of(1, 2), of(1, np.nan))
  assert recording.differences(of(1, 2), of(1, 2, dtype=np.float64))


def test_a_number_may_move_to_another_path_but_not_change():
  def of(**numbers):
    return recording.Recording(numbers={'summary.json': numbers})

  assert not recording.differences(
      of(epsilon_server=2.5), of(epsilon_unamplified=2.5, other=1))
  assert recording.differences(of(epsilon=2.5), of(epsilon=2.0, other=2.5)) == [
      'summary.json: epsilon=2.5 became 2.0']
  assert recording.differences(of(epsilon=2.5), of(other=2)) == [
      'summary.json: epsilon=2.5 is gone']


def test_patterns_and_starts_are_left_out(tmp_path):
  one = _fill(tmp_path / 'one')
  other = _fill(tmp_path / 'other', labels=(0, 0, 0), starts=2)
  patterns = ['*labels*', '*:starts', '*summary.json.starts']
  one, other = (result.without(patterns) for result in (one, other))
  assert not recording.differences(one, other)
  assert one.texts and 'starts' not in one.numbers['summary.json']


def test_a_run_is_rolled_back_to_its_start(tmp_path):
  _fill(tmp_path / 'run')
  folder = tmp_path / 'run'
  for number in (0, 2, 10):
    (folder / 'checkpoints' / f'round_{number}').mkdir(parents=True)
  recorder.roll_back(folder)
  assert [path.name for path in (folder / 'checkpoints').iterdir()] == ['round_0']
  assert len((folder / 'ledger.jsonl').read_text().splitlines()) == 1
  assert not (folder / 'summary.json').exists()
  assert (folder / 'labels.npz').exists()


def test_answers_are_rolled_back_to_the_first_step(tmp_path):
  _fill(tmp_path / 'run')
  folder = tmp_path / 'run'
  (folder / 'answers').mkdir()
  (folder / 'checkpoints').mkdir()
  for number in (1, 2):
    (folder / 'answers' / f'{number:06}.npz').touch()
  recorder.roll_back(folder)
  assert [path.name for path in (folder / 'answers').iterdir()] == ['000001.npz']
  assert len((folder / 'ledger.jsonl').read_text().splitlines()) == 2
  assert len((folder / 'metrics.csv').read_text().splitlines()) == 2


def test_cases_are_seeded_and_read_from_cases_that_exist():
  cases = recorder.cases()
  for name, case in cases.items():
    assert case.needs <= cases.keys()
    is_run = any(word.startswith('--output_dir') for word in case.command)
    seeded = any(word.startswith('--seed') for word in case.command)
    assert seeded or not is_run or name == 'train-unseeded'


def test_every_recorded_digest_is_of_a_case():
  recorded = json.loads(recorder.DIGESTS.read_text())
  assert recorded.keys() <= recorder.cases().keys()
  assert {f'probes: {name}' for name in recorder_runs.PROBES} == (
      recorded['probes'].keys())


@pytest.mark.parametrize('name', recorder_runs.PROBES)
def test_cohorts_and_partitions_of_a_seed_are_those_recorded(name):
  recorded = json.loads(recorder.DIGESTS.read_text())['probes'][f'probes: {name}']
  lines = recorder_runs.PROBES[name]()
  assert recording.lines_digest(lines) == recorded, '\n'.join(lines)
