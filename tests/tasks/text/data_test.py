"""Tests of tasks.text.data, and of what the registry says of the text tasks."""

import numpy as np
import pytest

from tasks import checks, registry
from tasks.sources import open_source, records
from tasks.text import (
    data as text_data, shakespeare, stackoverflow_tag, stackoverflow_word)

TASKS = {'shakespeare': shakespeare, 'stackoverflow_tag': stackoverflow_tag,
         'stackoverflow_word': stackoverflow_word}


@pytest.mark.parametrize('name', TASKS)
def test_registry_lists_what_the_task_has(name):
  assert registry.MODELS[name] == tuple(sorted(TASKS[name].MODELS))
  assert registry.DATA_SOURCES == text_data.SOURCES
  own = {name for function in (TASKS[name].build, TASKS[name].TASK.learn)
         for name in checks.keywords(function)[0]}
  own -= {'num_labels'} if name == 'stackoverflow_word' else set()
  assert set(registry.OPTIONS[name]) == own | {
      'model', 'text_field', 'max_examples_per_client', 'max_test_examples',
      'data_source', 'cache_dir', 'num_clients', 'held_out_fraction',
      *open_source.OPTIONS}


class _Counting(records.ArraysByClient):
  """Counts how often clients are read."""

  reads = 0

  def examples(self, client_id):
    self.reads += 1
    return super().examples(client_id)


def _source(clients=4, rows=10):
  values = np.arange(clients * rows, dtype=np.int32)
  return _Counting({'x': values}, np.repeat(np.arange(clients), rows))


def test_few_examples_are_kept_and_many_are_not():
  source = _source()
  # Two clients' 40 bytes, and not three's.
  cached = text_data.CachedSource(source, max_bytes=100)
  for _ in range(3):
    for client in cached.client_ids:
      np.testing.assert_array_equal(
          cached.examples(client)['x'], np.arange(10) + 10 * int(client))
  assert source.reads == 4 + 2 + 2
  assert cached.element_spec == source.element_spec
  with pytest.raises(ValueError, match="no client '9'"):
    cached.examples('9')


def test_embedded_speeches_have_texts_and_three_tags():
  speeches = text_data.speeches()
  assert len(speeches) == 375 and len(set(speeches)) == 375
  for text, tags in speeches:
    assert text.isascii() and len(text) > 20 and '\n' not in text
    assert len(tags.split('|')) == 3 and ' ' not in tags
  raw = text_data.open_embedded(50)
  parts = {client: source.examples(client) for source in (raw.train, raw.test)
           for client in source.client_ids}
  assert set(parts) == {str(i) for i in range(50)}
  for name, expected in zip(('text', 'tags', 'title'), (*zip(*speeches), ('',) * 375)):
    assert [value for i in range(50) for value in parts[str(i)][name]] == list(expected)


def test_a_reader_may_change_the_returned_examples():
  cached = text_data.CachedSource(_source())
  del cached.examples('1')['x']
  assert 'x' in cached.examples('1')
