"""Public features by contrast, from unlabelled images."""

import numpy as np
import pytest
import tensorflow as tf

from tasks.sources import labelled
from tff_pipelines.fedavg import adam as voting_training
from tff_pipelines.voting import encoder as voting_encoder

SHORT = voting_training.AdamConfig(learning_rate=2e-3, batch_size=64, epochs=8)


@pytest.fixture(scope='module')
def digits():
  records = labelled.resized_digits()
  return records.rows(np.random.default_rng(0).permutation(len(records))[:320])


@pytest.fixture(scope='module')
def trained(digits):
  done = []
  weights = voting_encoder.train(
      digits.x[:256], seed=3, config=SHORT, on_epoch=done.append)
  assert done == list(range(1, 9))
  return weights


def _purity(features, labels):
  """How often the nearest other record has the same label."""
  near = features @ features.T
  np.fill_diagonal(near, -9)
  return np.mean(labels[near.argmax(axis=1)] == labels)


def test_training_makes_records_of_a_class_neighbours(digits, trained):
  images, labels = digits.x[:256], digits.y[:256]
  untrained = voting_encoder.FeatureMap(
      voting_encoder.initial_weights(16, 3), images)(images)
  learnt = voting_encoder.FeatureMap(trained, images)(images)
  assert _purity(learnt, labels) > max(0.9, _purity(untrained, labels))
  np.testing.assert_allclose(np.linalg.norm(learnt, axis=1), 1, rtol=1e-4)


def test_features_of_a_record_depend_on_no_other(digits, trained):
  features = voting_encoder.FeatureMap(trained, digits.x[:256])
  together = features(digits.x[256:])
  apart = np.concatenate([features(digits.x[i:i + 1]) for i in range(256, 320)])
  np.testing.assert_allclose(together, apart, atol=1e-5)
  assert features(digits.x[:0]).shape == (0, voting_encoder.FEATURES)


def test_contrast_is_low_for_views_that_agree_and_high_for_others():
  rng = np.random.default_rng(0)
  views = tf.constant(rng.normal(size=(20, 8)).astype(np.float32))
  same = float(voting_encoder.contrast(views, views))
  mixed = float(voting_encoder.contrast(views, tf.roll(views, 1, axis=0)))
  alike = float(voting_encoder.contrast(views * 0 + 1, views * 0 + 1))
  assert same < 1.0 < 2.5 < mixed
  # All views the same: a guess among the 39 others.
  assert alike == pytest.approx(np.log(39), rel=1e-4)


@pytest.mark.filterwarnings('ignore:overflow')
def test_what_cannot_be_learnt_from_is_refused(digits):
  with pytest.raises(ValueError, match='2 or more to learn features from, found 1'):
    voting_encoder.train(digits.x[:1], seed=0)
  wild = voting_training.AdamConfig(learning_rate=1e30, batch_size=16, epochs=2)
  with pytest.raises(ValueError, match='lower --feature_learning_rate'):
    voting_encoder.train(digits.x[:32], seed=0, config=wild)
