"""Checkpoints of one file: read as they were written, or damaged."""

import collections
import dataclasses
import io
import math

import numpy as np
import pytest

from tests.experiment import fuzz_records
from tff_pipelines.experiment import checkpoints

STATE = collections.OrderedDict(
    weights=[np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros([0, 4])],
    aggregator={'table': np.ones(1000), 'key': np.array([1, -2], np.int64),
                'known': np.bool_(True)}, count=np.int32(4))
WHOLE = checkpoints.Checkpoint(run='r1', rounds=7, line='{"round":7}', table='ab',
    metrics={'epsilon': 0.1, 'loss': math.nan, 'n': 3}, lost=({'kind': 'NoPrivacy'},), repeats_due=1,
    arrays=checkpoints.arrays_of(STATE, ['table']))


def _assert_equal(one, other):
  assert list(one.arrays) == list(other.arrays)
  for path, array in one.arrays.items():
    assert array.dtype == other.arrays[path].dtype
    np.testing.assert_array_equal(array, other.arrays[path], strict=True)
  rest = [dataclasses.replace(each, arrays={}, metrics={}) for each in (one, other)]
  assert rest[0] == rest[1] and repr(one.metrics) == repr(other.metrics)


@pytest.mark.parametrize('more', [{}, {'large': np.arange(2.0**18)}])
def test_what_is_written_is_read(tmp_path, more):
  written = dataclasses.replace(WHOLE, arrays={**WHOLE.arrays, **more})
  checkpoints.write(tmp_path, written)
  (path,) = tmp_path.iterdir()
  assert path.name == 'round_000007' and path.stat().st_mode & 0o777 == 0o600
  found = checkpoints.read(path)
  _assert_equal(found, written)
  assert path.read_bytes() == checkpoints.to_bytes(found)
  for array in found.arrays.values():
    assert array.flags.writeable and array.flags.aligned


def test_state_gets_back_its_form_and_what_is_derived():
  zeros = collections.OrderedDict(
      weights=[np.zeros([2, 3], np.float32), np.zeros([0, 4])],
      aggregator={'table': np.full(1000, 2.0), 'key': np.zeros(2, np.int64),
                  'known': np.bool_(False)}, count=np.int32(0))
  state = checkpoints.rebuilt(zeros, WHOLE.arrays, ['table'])
  assert list(state) == list(STATE) and isinstance(state, collections.OrderedDict)
  assert list(state['aggregator']) == ['table', 'key', 'known']
  np.testing.assert_array_equal(state['weights'][0], STATE['weights'][0])
  assert state['aggregator']['table'] is zeros['aggregator']['table']
  del zeros['count']
  with pytest.raises(ValueError, match='of another form: count$'):
    checkpoints.rebuilt(zeros, WHOLE.arrays, ['table'])


@pytest.mark.parametrize('array', [np.array('text'), np.array([1j]), np.array([None])])
def test_neither_texts_nor_objects_are_written(array):
  with pytest.raises(ValueError, match='a must be of numbers, booleans or bytes'):
    checkpoints.to_bytes(checkpoints.Checkpoint(run='', rounds=1, arrays={'a': array}))


def test_every_flipped_bit_and_every_cut_is_seen():
  content = checkpoints.to_bytes(dataclasses.replace(
      WHOLE, arrays={'a': WHOLE.arrays['weights/0']}))
  for position in range(len(content)):
    for bit in range(8):
      damaged = bytearray(content)
      damaged[position] ^= 1 << bit
      with pytest.raises(ValueError):
        checkpoints.from_bytes(bytes(damaged))
    with pytest.raises(ValueError):
      checkpoints.from_bytes(content[:position])


def _forged(**changes):
  header, arrays = fuzz_records.parts(checkpoints.to_bytes(dataclasses.replace(
      WHOLE, arrays={'a': WHOLE.arrays['weights/0']})))
  return {**header, **changes}, arrays


@pytest.mark.parametrize('change', [
    {'arrays': ['a', 'a']}, {'arrays': []}, {'arrays': [3]}, {'rounds': -1},
    {'line': 3}, {'lost': 'x'}, {'more': 1}], ids=repr)
def test_header_that_lies_is_refused_though_its_digest_is_right(change):
  with pytest.raises(ValueError, match='content is not in the form'):
    checkpoints.from_bytes(fuzz_records.joined(*_forged(**change)))
  with pytest.raises(ValueError, match='its format has version 2, not 1'):
    checkpoints.from_bytes(fuzz_records.joined(*_forged(version=2)))


@pytest.mark.parametrize('dtype, shape', [
    ('<f4', (2, 4)), ('<f4', (2**40, 2**40)), ('<f4', (2**50,)), ('<f4', (-1, 6)),
    ('<f4', (6.0,)), ('<f4', (1,) * 33), ('|O', (2, 3)), ('|V4', (2, 3)),
    ('|S4', (2, 4)), ('|S0', (10**12,)), ('|b1', (24,)), ([('x', '<f4')], (2, 3)), ('x', (2, 3))], ids=repr)
def test_array_that_lies_is_refused_though_its_digest_is_right(dtype, shape):
  header, arrays = _forged()
  start = io.BytesIO()
  np.lib.format.write_array_header_1_0(
      start, {'descr': dtype, 'fortran_order': False, 'shape': shape})
  with pytest.raises(ValueError, match='content is not in the form'):
    checkpoints.from_bytes(fuzz_records.joined(
        header, start.getvalue() + np.arange(6, dtype=np.float32).tobytes()))
  assert arrays[128:] == np.arange(6, dtype=np.float32).tobytes()


def test_error_names_the_file_and_a_lost_permission_is_no_damage(tmp_path):
  path = checkpoints.path_of(tmp_path, 1)
  path.write_bytes(b'something else, as long as the start of a file and a digest')
  with pytest.raises(ValueError, match=f'^{path} is damaged: its SHA-256 is not'):
    checkpoints.read(path)
  with pytest.raises(FileNotFoundError):
    checkpoints.read(tmp_path / 'round_000002')


def test_kept_are_the_last_ones_whatever_the_order(tmp_path):
  for number in (0, 3, 4, 5, 9):
    checkpoints.path_of(tmp_path, number).write_bytes(b'')
  (tmp_path / 'round_2').mkdir()
  (tmp_path / 'notes').write_text('x')
  assert [rounds for rounds, _ in checkpoints.list_all(tmp_path)] == [9, 5, 4, 3, 2, 0]
  assert sorted(path.name for path in checkpoints.superseded(tmp_path, 5)) == [
      'round_000000', 'round_000009', 'round_2']


@pytest.mark.parametrize('reader', fuzz_records.READERS)
def test_fuzzed_readers_give_the_right_value_or_one_line(reader, tmp_path):
  outcomes = fuzz_records.run(reader, inputs=1000, seed=0, folder=tmp_path)
  assert sum(outcomes.values()) == 1000
  assert outcomes['refused'] > 500 and outcomes['read'] > 5
