"""Tests of tasks.sources.json_stream."""

import io
import json

import hypothesis
from hypothesis import strategies as st
import pytest

from tasks.sources import json_stream

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(
        allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.text(), inner, max_size=4), max_leaves=12)


def _walk(content, piece, monkeypatch_module=json_stream):
  """The members of an object, walked through with pieces of so many bytes."""
  before = monkeypatch_module._PIECE
  monkeypatch_module._PIECE = piece
  try:
    stream = json_stream.JsonStream(io.BytesIO(content), 10**6)
    found = {}
    for quoted in stream.keys():
      stream.expect(b':')
      offset, value = stream.value()
      assert content[offset:offset + len(value)] == value
      found[json.loads(quoted)] = json.loads(value)
    stream.expect_end()
    return found
  finally:
    monkeypatch_module._PIECE = before


@hypothesis.settings(deadline=None, max_examples=150)
@hypothesis.given(
    members=st.dictionaries(st.text(), _VALUES, max_size=5),
    piece=st.sampled_from([1, 2, 3, 7, 64, 10**6]),
    indent=st.sampled_from([None, 0, 3]), is_ascii=st.booleans())
def test_values_are_those_of_the_json(members, piece, indent, is_ascii):
  text = json.dumps(members, indent=indent, ensure_ascii=is_ascii)
  content = text.encode('utf-8', 'surrogatepass')
  hypothesis.assume(is_ascii or _is_unicode(text))
  assert _walk(content + b' \n', piece) == members


def _is_unicode(text):
  try:
    return bool(text.encode())
  except UnicodeEncodeError:
    return False


@hypothesis.settings(deadline=None, max_examples=100)
@hypothesis.given(
    members=st.dictionaries(st.text(), _VALUES, min_size=1, max_size=4),
    part=st.floats(0, 1, exclude_max=True))
def test_json_that_is_cut_off_is_an_error(members, part):
  content = json.dumps(members).encode()
  with pytest.raises(ValueError):
    _walk(content[:int(part * len(content))], 5)


def test_only_one_value_is_in_memory():
  class Endless(io.RawIOBase):
    """An object with a million members of a kilobyte, made as it is read."""

    def __init__(self):
      super().__init__()
      self.made = 0

    def read(self, size=-1):
      self.made += 1
      if self.made == 1:
        return b'{"first": 1'
      return b''.join(b', "k%d": "%s"' % (self.made * 100 + i, b'x' * 1000)
                      for i in range(100))

  stream = json_stream.JsonStream(Endless(), 10**6)
  largest = 0
  for number, _ in enumerate(stream.keys()):
    stream.expect(b':')
    stream.value()
    largest = max(largest, len(stream._buffer))
    if number == 20_000:
      break
  assert stream.offset > 20 * 10**6
  assert largest < 3 * 2**20
