"""The breakdown of the EMNIST task's models over characters."""

import string

import numpy as np
import pytest
import tensorflow as tf

from tasks.emnist import task as emnist


@pytest.mark.parametrize('num_classes, kind, names, groups', [
    (10, 'digit', string.digits, []),
    (62, 'character', string.digits + string.ascii_uppercase + string.ascii_lowercase,
     ['digits', 'upper case', 'lower case']),
    (3, 'class', ['0', '1', '2'], []),
])
def test_classes_have_the_names_of_their_characters(num_classes, kind, names, groups):
  breakdown = emnist.cnn_small(num_classes).breakdown
  assert breakdown.kind == kind and list(breakdown.names) == list(names)
  assert list(breakdown.groups) == groups
  members = [i for group in breakdown.groups.values() for i in group]
  assert members == (list(range(num_classes)) if groups else [])
  for group, fits in zip(breakdown.groups.values(), (
      str.isdigit, str.isupper, str.islower)):
    assert all(fits(breakdown.names[i]) for i in group)


def test_confusion_has_a_row_for_what_is_true():
  model = emnist.cnn_small(10)
  rng = np.random.default_rng(3)
  weights = model.initial_weights(0)
  batch = {'x': tf.constant(rng.integers(0, 256, [40, 28, 28]), tf.uint8),
           'y': tf.constant(rng.integers(0, 10, 40), tf.int32)}
  mask = tf.constant([1.0] * 30 + [0.0] * 10)
  found = model.breakdown.count(weights, batch, mask)['confusion'].numpy()
  total, weight = model.metrics(weights, batch, mask)['accuracy']
  assert found.shape == (10, 10)
  assert found.sum() == float(weight) == 30 and np.trace(found) == float(total)
  np.testing.assert_array_equal(
      found.sum(axis=1), np.bincount(batch['y'].numpy()[:30], minlength=10))
