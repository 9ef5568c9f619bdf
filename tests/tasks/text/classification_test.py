"""The task of the class of a text."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tasks import registry

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
