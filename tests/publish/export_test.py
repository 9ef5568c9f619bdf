"""Parts of exports that no small run of a built-in task shows."""

import json
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from tasks import task as task_lib
from tff_pipelines.experiment import models
from tff_pipelines.publish import export


def _keras(weights):
  model = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2)])
  model.set_weights(weights)
  return model


def _serving(name='x', to_keras=None):
  """A linear model of one feature."""
  return task_lib.Serving(
      inputs={name: (np.dtype(np.float32), (3,))}, model=task_lib.Model(
          name='linear', loss=None, metrics=None, to_keras=to_keras,
          initial_weights=lambda seed: [np.ones([3, 2], np.float32),
                                        np.zeros(2, np.float32)],
          predict=lambda weights, batch: {
              'value': tf.matmul(batch[name], weights[0]) + weights[1]}))


def test_model_of_keras_is_kept_without_times(tmp_path):
  weights = [np.arange(6, dtype=np.float32).reshape(3, 2), np.float32([7, 8])]
  trained = models.Trained.of(_serving(to_keras=_keras), weights)
  trained.write(tmp_path / 'run')
  loaded = tf.keras.models.load_model(tmp_path / 'run' / models.KERAS)
  for mine, theirs in zip(weights, loaded.get_weights(), strict=True):
    np.testing.assert_array_equal(mine, theirs)
  with zipfile.ZipFile(tmp_path / 'run' / models.KERAS) as archive:
    assert {info.date_time[0] for info in archive.infolist()} == {1980}
    assert 'date_saved' not in json.loads(archive.read('metadata.json'))
  kept = models.read(tmp_path / 'run')
  assert list(kept.arrays) == ['weight_000', 'weight_001']
  assert kept.inputs == trained.inputs and kept.name == 'linear'


def test_weights_that_are_not_as_many_as_their_names_are_refused():
  model = task_lib.Model(name='m', initial_weights=None, loss=None, metrics=None,
                         weight_names=('a', 'a'))
  with pytest.raises(ValueError, match='weight_names must be 2 different names'):
    model.named([1, 2])


def test_names_that_tensorflow_would_change_are_refused_by_a_saved_model(tmp_path):
  serving = _serving('age of a person')
  trained = models.Trained.of(serving, serving.model.initial_weights(0))
  with pytest.raises(ValueError, match="found 'age of a person'"):
    export._write_saved_model(tmp_path / 'saved', serving, trained)
  # Predictions by name need no signature.
  predict = export.predict_function(serving, trained.weights)
  np.testing.assert_array_equal(predict(tf.ones([4, 3]))['value'], np.full([4, 2], 3.0))
