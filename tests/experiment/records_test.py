"""Records of a run on disk, and how a run resumes from them."""

import collections
import shutil
import time

import numpy as np
import pytest
import tensorflow as tf

from tests import interrupts
from tests.programs import in_process
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.common import files
from tff_pipelines.experiment import (
    charged_records, configurations, metrics as metrics_lib, records as records_lib)

EVENT = events.PoissonSampled(
    event=events.CentralGaussian(noise_multiplier=1.0), sampling_rate=0.1)
CONFIGURATION = {'rounds': 3, 'clip': 0.5, 'seed': None}
HEADER = {'population': 20, 'delta': 0.05, 'adjacency': 'zero-out',
          'trust_model': 'all', 'warnings': ['one']}


def _state(number: float):
  return collections.OrderedDict(
      weights=[np.full([2, 3], number, np.float32), np.array([number], np.float32)],
      aggregator=collections.OrderedDict(cohort_size=np.int32(4)))


def _open(folder, resume=False, **changes):
  return records_lib.RunRecords(
      folder, {**CONFIGURATION, **changes}, HEADER, resume=resume)


def _started(folder, resume=False):
  records = _open(folder, resume)
  records.restore(_state(0))
  return records


def _commit(records, number, metrics=None, suppressed=False):
  records.commit(_state(number), number, EVENT, suppressed=suppressed,
      metrics=metrics or {'epsilon': number / 2, 'test/accuracy': number / 10})


def _rows(folder):
  return [{key: float(value) for key, value in row.items()}
          for row in in_process.rows(folder / files.METRICS)]


@pytest.fixture
def folder(tmp_path):
  return tmp_path / 'run'


@pytest.fixture(scope='module')
def _committed(tmp_path_factory):
  """A folder with two committed rounds, which no test may touch."""
  folder = tmp_path_factory.mktemp('committed') / 'run'
  records = _started(folder)
  _commit(records, 1)
  _commit(records, 2)
  return folder


@pytest.fixture
def two_rounds(_committed, folder):
  """A folder with two committed rounds."""
  return shutil.copytree(_committed, folder)


def test_new_run_starts_from_its_initial_state(folder):
  records = _open(folder)
  state, rounds = records.restore(_state(7))
  assert rounds == 0 and records.starts == 1
  np.testing.assert_array_equal(state['weights'][0], np.full([2, 3], 7))
  assert records.ledger.header()['warnings'] == ['one']
  assert records.ledger.lines() == []
  loaded = configurations.read(folder)
  assert loaded == records.configuration and CONFIGURATION.items() <= loaded.items()


def test_initial_state_of_a_run_survives_a_stop_before_the_first_round(folder):
  _open(folder).restore(_state(7))
  state, rounds = _open(folder, resume=True).restore(_state(8))
  assert rounds == 0
  assert np.all(state['weights'][0] == 7)


def test_metrics_have_a_row_a_round_and_events_are_flushed(folder):
  records = _started(folder)
  _commit(records, 1)
  _commit(records, 2)
  assert _rows(folder) == [{'round': 1, 'epsilon': 0.5, 'test/accuracy': 0.1},
      {'round': 2, 'epsilon': 1.0, 'test/accuracy': 0.2}]
  # The writer is still open: a run that is killed must not lose its events.
  result = {(tag, step): value for step, _, values in _events(folder)
           for tag, value in values.items()}
  assert result == pytest.approx({('epsilon', 1): 0.5, ('test/accuracy', 1): 0.1,
      ('epsilon', 2): 1.0, ('test/accuracy', 2): 0.2})
  assert records.starts == 1  # Also keeps the writer from being closed.


def _events(folder):
  """(step, time of the event, tag -> value), file by file."""
  return [(event.step, event.wall_time, {value.tag: float(tf.make_ndarray(value.tensor))
          for value in event.summary.value})
      for path in sorted((folder / 'tensorboard').iterdir())
      for event in tf.compat.v1.train.summary_iterator(str(path))]


def test_times_of_events_do_not_tell_how_long_rounds_took(tmp_path):
  written = []
  for pause in (0.0, 0.05):
    folder = tmp_path / str(pause)
    records = _started(folder)
    for number in (1, 2, 3):
      if number == 3:
        records = _started(folder, resume=True)
      time.sleep(number * pause)
      _commit(records, number)
    written.append({path.name: path.read_bytes()
                    for path in (folder / 'tensorboard').iterdir()})
  assert written[0] == written[1] and len(written[0]) == 2
  result = [(step, wall_time) for step, wall_time, _ in _events(folder)]
  # Each file begins with its version.
  assert result == [(0, 0), (1, 1), (2, 2), (0, 0), (3, 3)]


def test_metric_that_comes_later_gets_a_column(two_rounds):
  records = _started(two_rounds, resume=True)
  _commit(records, 3, {'epsilon': float('inf'), 'new': 4.0})
  rows = in_process.rows(two_rounds / files.METRICS)
  assert [row['new'] for row in rows] == ['', '', '4.0']
  assert [row['epsilon'] for row in rows] == ['0.5', '1.0', 'inf']


def test_suppressed_round_is_recorded_as_such_and_costs_the_same(two_rounds):
  records = _started(two_rounds, resume=True)
  _commit(records, 3, suppressed=True)
  lines = records.ledger.lines()
  assert [line['outcome'] for line in lines] == ['released', 'released', 'suppressed']
  assert lines[2]['event'] == lines[1]['event'] == EVENT.to_json()
  assert lines[2]['configuration'] == records.configuration['hash']
  assert [line['starts'] for line in lines] == [1, 1, 2]


@pytest.mark.parametrize('before, name, happened', [
    (files.os, 'replace', False), (records_lib.ledger_lib.Ledger, 'append_line', True),
    (records_lib.RunRecords, '_release', True), (metrics_lib.Table, 'add', True)])
def test_run_that_stops_inside_a_commit_is_completed(two_rounds, before, name, happened):
  records = _started(two_rounds, resume=True)
  with interrupts.interrupted(before, name):
    _commit(records, 3)
  records = _open(two_rounds, resume=True)
  state, rounds = records.restore(_state(0))
  assert rounds == 2 + happened
  assert np.all(state['weights'][0] == rounds)
  assert len(records.ledger.lines()) == rounds
  assert [row['round'] for row in _rows(two_rounds)] == list(range(1, rounds + 1))
  for number in range(rounds + 1, 5):
    _commit(records, number)
  assert records.ledger.verify(expected_count=4) == []
  assert _rows(two_rounds) == [
      {'round': n, 'epsilon': n / 2, 'test/accuracy': n / 10} for n in (1, 2, 3, 4)]


def test_leftovers_of_a_killed_save_are_no_checkpoint(two_rounds):
  folder = two_rounds / 'private/checkpoints'
  (folder / '.round_000003.abc').write_bytes(b'abc')
  records = _open(two_rounds, resume=True)
  assert records.restore(_state(0))[1] == 2
  assert sorted(path.name for path in folder.iterdir()) == [
      'round_000000', 'round_000001', 'round_000002']
  _commit(records, 3)
  assert _open(two_rounds, resume=True).restore(_state(0))[1] == 3


def test_the_last_three_checkpoints_are_kept_for_the_operator(two_rounds):
  records = _started(two_rounds, resume=True)
  for number in (3, 4, 5):
    _commit(records, number)
  paths = sorted((two_rounds / 'private/checkpoints').iterdir())
  assert [path.name for path in paths] == ['round_000003', 'round_000004', 'round_000005']
  assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
  assert paths[0].parent.stat().st_mode & 0o777 == 0o700


def test_run_killed_before_its_configuration_can_be_resumed(folder):
  folder.mkdir()
  (folder / f'.{files.CONFIGURATION}.abc').write_text('{"rou')
  records = _open(folder, resume=True)
  assert records.restore(_state(1))[1] == 0
  assert not list(folder.glob('.*'))


def test_run_killed_between_its_key_and_its_configuration_can_be_started(folder):
  folder.mkdir()
  (folder / files.PRIVATE).mkdir()
  (folder / files.PRIVATE / f'.{files.KEY}.abc').write_bytes(b'abc')
  files.check_folder(folder, resume=False)
  (folder / files.PRIVATE / 'other').write_text('x')
  with pytest.raises(ValueError, match='holds no run'):
    files.check_folder(folder, resume=False)


def test_run_killed_between_ledger_and_checkpoint_can_be_resumed(folder):
  _open(folder)
  assert not _open(folder, resume=True).has_checkpoint()
  assert _open(folder, resume=True).restore(_state(1))[1] == 0


def test_configuration_of_a_resumed_run_is_the_recorded_one(two_rounds):
  before = (two_rounds / files.CONFIGURATION).read_bytes()
  records = _open(two_rounds, resume=True, clip=0.6)
  assert records.configuration['clip'] == 0.5
  assert records.configuration['hash'] == configurations.hash_of(records.configuration)
  assert (two_rounds / files.CONFIGURATION).read_bytes() == before


@pytest.mark.parametrize('resume', [False, True])
def test_folder_with_other_files_is_left_alone(folder, resume):
  folder.mkdir()
  (folder / 'thesis.txt').write_text('important')
  with pytest.raises(ValueError, match='not empty and holds no run'):
    _open(folder, resume=resume)
  assert [path.name for path in folder.iterdir()] == ['thesis.txt']


@pytest.mark.parametrize('damage', [
    lambda lines: lines[:1] + lines[2:], lambda lines: lines[:1] + [''],
    lambda lines: [line.replace('released', 'suppressed') for line in lines]])
def test_ledger_that_lost_or_changed_a_round_is_refused(two_rounds, damage):
  path = two_rounds / files.LEDGER
  path.write_text('\n'.join(damage(path.read_text().split('\n'))))
  with pytest.raises(ValueError, match='ledger'):
    _open(two_rounds, resume=True).restore(_state(0))


def test_atomic_write_leaves_the_old_file_or_the_new_one(tmp_path):
  path = tmp_path / 'file.json'
  files.write_atomically(path, 'old')
  with interrupts.interrupted(files.os, 'replace'):
    files.write_atomically(path, 'new')
  assert path.read_text() == 'old'
  files.write_atomically(path, 'new')
  assert path.read_text() == 'new'
  assert [p.name for p in tmp_path.iterdir()] == ['file.json']


def _charged(folder, resume=False):
  result = charged_records.ChargedRecords(
      _open(folder, resume=resume), 'answers/{:06}.npz')
  result.restore()
  return result


@pytest.fixture
def two_steps(folder):
  """A folder of two steps that were charged and kept, and measured."""
  records = _charged(folder)
  for number in (1, 2):
    line = records.charge(EVENT)
    records.keep(line, {'labels': np.full(3, number), 'count': np.int64(number)})
    records.measure(number, {'accuracy': number / 10})
  return folder


def test_charge_is_in_the_ledger_before_anything_is_kept(folder):
  records = _charged(folder)
  line = records.charge(EVENT)
  assert (line['round'], line['event'], line['starts']) == (1, EVENT.to_json(), 1)
  assert records.run.ledger.lines() == [line]
  # Where the line is lost, a file without answers tells that there was one.
  assert records.kept == [] and [
      path.stat().st_size for path in (folder / 'answers').iterdir()] == [0]
  # What was charged and not kept stays charged.
  again = _charged(folder, resume=True)
  assert again.kept == [] and again.run.ledger.lines() == [line]
  assert again.charge(EVENT)['round'] == 2


def test_kept_steps_and_their_metrics_are_read_again(two_steps):
  records = _charged(two_steps, resume=True)
  assert [kept.line['round'] for kept in records.kept] == [1, 2]
  for number, kept in enumerate(records.kept, start=1):
    assert kept.arrays.keys() == {'labels', 'count'}
    np.testing.assert_array_equal(kept.arrays['labels'], np.full(3, number))
  # Those of the last step are measured again.
  assert records.metrics == {1: {'accuracy': 0.1}}
  assert [line['starts'] for line in records.run.ledger.lines()] == [1, 1]


def test_step_that_was_lost_leaves_a_gap(two_steps):
  (two_steps / 'answers' / '000001.npz').unlink()
  records = _charged(two_steps, resume=True)
  assert [kept.line['round'] for kept in records.kept] == [2]
  assert len(records.run.ledger.lines()) == 2


def test_line_that_was_torn_off_announced_nothing(two_steps):
  path = two_steps / files.LEDGER
  whole = path.read_bytes()
  line = records_lib.ledger_lib.Ledger(path).next_line(
      EVENT, outcome='released', configuration_hash='abc')
  path.write_bytes(whole + line.encode()[:50])
  assert len(_charged(two_steps, resume=True).kept) == 2
  assert path.read_bytes() == whole


def test_file_in_the_middle_of_being_written_is_removed(two_steps):
  partial = two_steps / 'answers' / '.000003.npz.abc'
  partial.write_bytes(b'PK')
  _charged(two_steps, resume=True)
  assert not partial.exists()


@pytest.mark.parametrize('damage, message', [
    (lambda folder: (folder / 'answers' / '000001.npz').write_bytes(b'PK'),
     '000001.npz is damaged'),
    (lambda folder: (folder / 'answers' / '000001.npz').rename(
        folder / 'answers' / '000003.npz'), '000003.npz belongs to no line of'),
    (lambda folder: shutil.copy(folder / 'answers' / '000001.npz',
                                folder / 'answers' / '000002.npz'),
     '000002.npz must belong to round 2'),
    (lambda folder: (folder / files.LEDGER).unlink(), 'ledger.jsonl is missing: what was released')])
def test_steps_that_do_not_belong_together_are_refused(two_steps, damage, message):
  damage(two_steps)
  with pytest.raises(ValueError, match=message):
    _charged(two_steps, resume=True)


def test_kept_file_is_what_was_written_whenever_the_process_ends(tmp_path, monkeypatch):
  files.write_checked(tmp_path, 'queries', b'one')
  assert files.read_checked(tmp_path, 'queries') == b'one'
  assert files.read_checked(tmp_path, 'x') is None
  for replaced in (1, 0, 1):  # Of the files that a call replaces: digests, and itself.
    done = []

    def replace(*arguments, original=files.os.replace, done=done, count=replaced):
      if len(done) == count:
        raise KeyboardInterrupt
      done.append(original(*arguments))

    with monkeypatch.context() as patch:
      patch.setattr(files.os, 'replace', replace)
      with pytest.raises(KeyboardInterrupt):
        files.write_checked(tmp_path, 'queries', f'not written {replaced}'.encode())
    assert files.read_checked(tmp_path, 'queries') == b'one'
  files.write_checked(tmp_path, 'queries', b'two')
  assert files.read_checked(tmp_path, 'queries') == b'two'
  for content in (b'one', b'twp', b''):
    (tmp_path / 'queries').write_bytes(content)
    if content != b'one':  # It is that of before the last `keep`.
      with pytest.raises(ValueError, match='queries is damaged'):
        files.read_checked(tmp_path, 'queries')
