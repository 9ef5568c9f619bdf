"""Tests of the public feature map."""

import numpy as np
import pytest

from tasks.ldp import features, task as tasks_lib


def _images(count, seed=0, channels=1):
  return np.random.default_rng(seed).integers(
      256, size=[count, 12, 10, channels], dtype=np.uint8)


def test_energies_have_length_one_and_do_not_depend_on_the_batch():
  images = _images(7)
  actual = features.energies(images)
  np.testing.assert_allclose(np.linalg.norm(actual, axis=1), 1, rtol=1e-5)
  np.testing.assert_allclose(
      np.concatenate([features.energies(images[:3]), features.energies(images[3:])]),
      actual, atol=1e-6)


def test_channels_are_features_of_their_own():
  images = _images(4, channels=3)
  assert features.energies(images).shape[1] == 3 * features.energies(
      images[..., :1]).shape[1]
  # A flat image has no waves but still a direction.
  flat = features.energies(np.zeros([2, 12, 10, 1], np.uint8))
  assert np.isfinite(flat).all()


def test_inner_products_on_the_landmarks_are_the_kernel():
  public = _images(30)
  fitted = features.FeatureMap(public)
  x = fitted.transform(public)
  assert x.shape == (30, fitted.dimension) == (30, 30) and x.dtype == np.float32
  projected = fitted._projected(public)
  distances = np.sum((projected[:, np.newaxis] - projected)**2, axis=-1)
  np.testing.assert_allclose(x @ x.T, np.exp(-distances / fitted.bandwidth), atol=5e-3)


def test_features_of_a_record_follow_from_it_and_public_images_alone():
  fitted = features.FeatureMap(_images(30))
  others = _images(20, seed=5)
  whole = fitted.transform(others)
  np.testing.assert_allclose(fitted.transform(others[7:8]), whole[7:8], atol=1e-5)
  assert fitted.transform(others[:0]).shape == (0, 30)
  again = features.FeatureMap(_images(30)).transform(others)
  np.testing.assert_array_equal(whole, again)


def test_an_image_more_changes_no_bit_of_the_others():
  fitted = features.FeatureMap(_images(30))
  others = _images(41, seed=5)
  whole = fitted.transform(others, alone=True)
  for missing in (0, 17, 40):
    left = np.delete(np.arange(41), missing)
    np.testing.assert_array_equal(fitted.transform(others[left], alone=True), whole[left])
  np.testing.assert_array_equal(fitted.transform(others[::-1], alone=True), whole[::-1])
  np.testing.assert_allclose(fitted.transform(others), whole, atol=1e-4)
  assert fitted.transform(others[:0], alone=True).shape == (0, 30)


def test_the_seed_chooses_the_landmarks(monkeypatch):
  monkeypatch.setattr(features, '_LANDMARKS', 8)
  one, again, other = (
      features.FeatureMap(_images(30), seed=seed).landmarks for seed in (0, 0, 1))
  np.testing.assert_array_equal(one, again)
  assert one.shape[0] == 8 and not np.array_equal(one, other)


def test_a_linear_classifier_of_them_reads_digits():
  task = tasks_lib.build('digits')
  fitted = features.FeatureMap(task.public)
  records = np.concatenate([held.x for held in task.holdings])
  labels = np.concatenate([held.y for held in task.holdings])
  x = fitted.transform(records).astype(np.float64)
  weights = np.linalg.solve(
      x.T @ x + 0.03 * np.eye(x.shape[1]), x.T @ (np.eye(10)[labels] - 0.1))
  predicted = (fitted.transform(task.test.x) @ weights).argmax(axis=1)
  assert np.mean(predicted == task.test.y) > 0.95


@pytest.mark.parametrize('images', [
    np.zeros([3, 12, 10], np.uint8), np.zeros([3, 12, 10, 1]),
    np.zeros([3, 7, 10, 1], np.uint8)])
def test_bad_images_are_named(images):
  with pytest.raises(ValueError, match='images must be uint8'):
    features.energies(images)


def test_one_public_image_is_too_few():
  with pytest.raises(ValueError, match='at least 2, found 1'):
    features.FeatureMap(_images(1))
