"""Tests of tasks.text.data and .classification, and of what the registry says."""

import json

import numpy as np
import pytest
import tensorflow as tf

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


TEXTS = [('good fine day', 'yes'), ('bad sad day', 'no')]


def _written(folder, rows=None, label='mood'):
  rows = rows or [(f'c{i % 6}', *TEXTS[i % 2]) for i in range(36)]
  path = folder / 'texts.jsonl'
  path.write_text(''.join(json.dumps({'client': client, 'text': text, label: value})
                          + '\n' for client, text, value in rows))
  return dict(data_source='jsonl', data_path=str(path), label_field=label)


@pytest.mark.parametrize('model', registry.MODELS['text_classification'])
def test_classes_are_learnt_from_words(tmp_path, model):
  task = registry.build('text_classification', **_written(tmp_path), model=model,
                        class_names=('no', 'yes'))
  examples = {k: tf.constant(v) for k, v in task.held_out['test_clients'].items()}
  weights = [tf.Variable(w) for w in task.model.initial_weights(0)]
  with tf.GradientTape() as tape:
    loss = tf.reduce_mean(task.model.loss(weights, examples, None))
  assert float(loss) == pytest.approx(np.log(2))
  for weight, gradient in zip(weights, tape.gradient(loss, weights)):
    weight.assign_sub(gradient)
  outputs = task.model.predict(weights, {'x': examples['x']})
  np.testing.assert_array_equal(outputs['class'], examples['y'])


def test_text_that_ships_is_divided_by_play():
  task = registry.build('text_classification', num_clients=30, vocabulary_size=50)
  assert 'hamlet' in task.model.breakdown.names
  assert task.model.parameter_count() == 51 * len(task.model.breakdown.names)
  assert 'simulated' in task.privacy_unit


@pytest.mark.parametrize('options, message', [
    ({}, 'task text_classification needs class_names, or num_classes: labels are'),
    ({'class_names': ('yes', 'maybe')}, "client 'c.': mood must be one of 'yes', "
     "'maybe', found 'no' in example 0"),
    ({'num_classes': 2}, "mood must be one of '0', '1', found 'no'"),
    ({'class_names': ('yes', 'no'), 'num_classes': 3}, 'class_names must be 3'),
    ({'class_names': ('yes', 'no'), 'label_field': 'tone'}, "there is no field 'tone'"),
    ({'class_names': ('yes', 'no'), 'data_source': 'official'},
     'data_source must be one of')])
def test_wrong_labels_are_one_line(tmp_path, options, message):
  rows = [(f'c{i % 6}', *TEXTS[1]) for i in range(36)]
  with pytest.raises(ValueError, match=message) as raised:
    registry.build('text_classification', **{**_written(tmp_path, rows), **options})
  assert '\n' not in str(raised.value)
