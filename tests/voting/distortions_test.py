"""Distortions leave an image what it is."""

import numpy as np
import pytest
import tensorflow as tf

from tff_pipelines.voting import distortions

SIZE = 20


def _images(count=40):
  """A blot in the middle of a frame."""
  images = np.zeros((count, SIZE, SIZE, 1), np.float32)
  images[:, 6:14, 8:12] = 1.0
  return tf.constant(images)


def _key(number):
  return tf.constant([number, 11], tf.int64)


def _centres(images):
  images = np.asarray(images)[..., 0].astype(np.float64)
  line = np.arange(SIZE)
  mass = images.sum(axis=(1, 2))
  return np.stack([(images.sum(axis=2) * line).sum(axis=1) / mass,
                   (images.sum(axis=1) * line).sum(axis=1) / mass], axis=1)


def test_nothing_asked_for_changes_nothing():
  images = _images()
  same = distortions.affine(
      images, _key(0), turn=0.0, log_scale=0.0, shear=0.0, shift=0.0)
  np.testing.assert_allclose(same, images, atol=1e-5)
  np.testing.assert_allclose(distortions.elastic(images, _key(0), 0.0), images, atol=2e-3)
  np.testing.assert_allclose(
      distortions.thickness(images, _key(0), 0.0), images, atol=1e-6)


def test_shifts_move_each_image_by_its_own_within_the_limit():
  distorted = distortions.affine(
      _images(200), _key(1), turn=0.0, log_scale=0.0, shear=0.0, shift=3.0)
  moved = _centres(distorted) - _centres(_images(1))
  assert np.abs(moved).max() <= 3.01 and np.abs(moved).max() > 2.7
  assert np.abs(moved.mean(axis=0)).max() < 0.5
  assert np.unique(np.round(moved, 3), axis=0).shape[0] == 200


def test_turns_and_scales_keep_the_centre():
  distorted = distortions.affine(
      _images(200), _key(2), turn=0.5, log_scale=0.2, shear=0.0, shift=0.0)
  assert np.abs(_centres(distorted) - _centres(_images(1))).max() < 0.1
  masses = np.asarray(distorted).sum(axis=(1, 2, 3)) / np.asarray(_images(1)).sum()
  # Each axis by up to e^0.2 either way.
  assert masses.min() > 0.6 and masses.max() < 1.6 and masses.std() > 0.1


def test_elastic_bends_and_keeps_most():
  images = _images(100)
  distorted = distortions.elastic(images, _key(3), 1.0).numpy()
  difference = np.abs(distorted - images).mean(axis=(1, 2, 3))
  assert (difference > 0.005).all() and difference.mean() < 0.1
  assert distorted.min() >= 0 and distorted.max() <= 1


def test_thickness_goes_both_ways():
  distorted = distortions.thickness(_images(200), _key(4), 1.0).numpy()
  masses = distorted.sum(axis=(1, 2, 3)) / np.asarray(_images(1)).sum()
  assert masses.min() < 0.85 and masses.max() > 1.2
  assert distorted.min() >= 0 and distorted.max() <= 1


@pytest.mark.parametrize('distort', [distortions.strong, distortions.weak])
def test_the_same_key_gives_the_same_views_and_another_does_not(distort):
  images = _images(4)
  first, again = distort(images, _key(5)), distort(images, _key(5))
  np.testing.assert_array_equal(first, again)
  assert np.abs(distort(images, _key(6)) - first).max() > 0.05
  assert np.isfinite(first).all() and first.shape == images.shape
