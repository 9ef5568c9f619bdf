"""Ids of a population are those of a tuple, in a fraction of its memory."""

import hashlib
import tracemalloc

import numpy as np
import pytest

from tasks.sources import ids as ids_lib

TEXTS = ('', 'a', 'a\0b', 'b', 'ba', 'z' * 300, 'ö', '日本', '🙂')


@pytest.mark.parametrize('batches', [
    [TEXTS], [TEXTS[:4], (), TEXTS[4:]], [[text] for text in TEXTS]])
def test_ids_are_those_of_all_batches(batches):
  ids = ids_lib.Ids(iter(batches))
  assert ids.is_increasing and len(ids) == len(TEXTS)
  assert ids == TEXTS and TEXTS == ids and ids == list(TEXTS) and tuple(ids) == TEXTS
  assert ids != TEXTS[:-1] and ids != (*TEXTS[:-1], 'x') and ids != 'abc'
  assert [ids[i] for i in range(-9, 9)] == [TEXTS[i] for i in range(-9, 9)]
  assert ids[np.int64(3)] == 'b' and ids[1:4] == TEXTS[1:4] and ids[::-2] == TEXTS[::-2]
  for index in (9, -10):
    with pytest.raises(IndexError):
      ids[index]
  assert all(text in ids for text in TEXTS)
  assert not any(text in ids for text in ('A', 'a\0', 'zz', '🙃', None, 3))
  digests = [hashlib.sha256() for _ in range(2)]
  for digest, texts in zip(digests, (ids, TEXTS)):
    ids_lib.update(digest, texts)
  assert {digest.digest() for digest in digests} == {hashlib.sha256(
      b''.join(text.encode() + b'\0' for text in TEXTS)).digest()}


def test_blocks_meet_where_they_end(monkeypatch):
  monkeypatch.setattr(ids_lib, '_BLOCK', 2)
  ids = ids_lib.Ids([TEXTS])
  assert tuple(ids) == TEXTS
  assert b''.join(ids.terminated()) == b''.join(t.encode() + b'\0' for t in TEXTS)


def test_order_is_kept_and_known():
  mixed = ids_lib.Ids([('b', 'a'), ('c',)])
  assert not mixed.is_increasing and mixed == ('b', 'a', 'c')
  assert 'a' in mixed and 'd' not in mixed
  assert ids_lib.membership(mixed) == {'a', 'b', 'c'}
  for repeated in ([('a', 'a')], [('a',), ('a',)], [('b',), ('a',)]):
    assert not ids_lib.Ids(repeated).is_increasing
  assert ids_lib.membership(ids_lib.Ids([TEXTS])) == TEXTS
  assert len(ids_lib.Ids([])) == 0 and ids_lib.Ids([]) == ()


def test_some_are_chosen_by_flags():
  ids = ids_lib.Ids([TEXTS])
  for flags in ([True] * 9, [False] * 9, [i % 2 == 0 for i in range(9)]):
    chosen = ids.where(np.array(flags))
    assert chosen == [t for t, flag in zip(TEXTS, flags) if flag]
    assert chosen.is_increasing
  assert not ids_lib.Ids([('b', 'a')]).where(np.array([True, True])).is_increasing


@pytest.mark.parametrize('wrong', [b'a', 3, None])
def test_ids_are_texts(wrong):
  with pytest.raises(ValueError, match='every client_id must be a text'):
    ids_lib.Ids([('a', wrong)])


def test_ids_take_their_bytes_and_four_more_each():
  count = 10**5
  batches = ([f'{i:08}' for i in range(start, start + 1000)]
             for start in range(0, count, 1000))
  tracemalloc.start()
  ids = ids_lib.Ids(batches)
  size, _ = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert ids[12_345] == '00012345' and '00099999' in ids and '00100000' not in ids
  assert size < 13 * count
