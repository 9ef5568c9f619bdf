"""Labels spread along neighbours."""

import numpy as np
import pytest

from tff_pipelines.voting import student


def _blobs(each=30):
  rng = np.random.default_rng(0)
  directions = np.eye(4, 8)
  x = np.repeat(directions, each, axis=0) + 0.15 * rng.normal(size=(4 * each, 8))
  return x * rng.uniform(0.5, 3.0, size=(4 * each, 1))


def test_one_label_speaks_for_its_cluster():
  soft = student.spread_labels(
      _blobs(), np.array([3, 35, 70, 100]), np.array([2, 0, 1, 2]), 3)
  assert soft.shape == (120, 3) and soft.dtype == np.float32
  np.testing.assert_allclose(soft.sum(axis=1), 1, rtol=1e-5)
  np.testing.assert_array_equal(
      soft.argmax(axis=1), np.repeat([2, 0, 1, 2], 30))


def test_a_wrong_label_is_outvoted_by_its_neighbours():
  rows = np.array([0, 5, 10, 15, 35, 70, 100])
  labels = np.array([0, 0, 1, 0, 1, 2, 3])
  soft = student.spread_labels(_blobs(), rows, labels, 4)
  assert np.mean(soft[:30].argmax(axis=1) == 0) > 0.8


def test_classes_weigh_the_same_however_many_labels_they_have():
  x = _blobs()
  rows = np.concatenate([np.arange(20), [35]])
  labels = np.concatenate([np.zeros(20, int), [1]])
  soft = student.spread_labels(x, rows, labels, 2)
  assert np.mean(soft[30:60].argmax(axis=1) == 1) > 0.95


def test_records_that_no_label_reaches_have_all_classes_alike():
  x = np.concatenate([np.eye(2)[:1] + np.zeros((12, 1)),
                      np.eye(2)[1:] + np.zeros((12, 1))])
  soft = student.spread_labels(x, np.array([0]), np.array([1]), 3)
  np.testing.assert_allclose(soft[12:], 1 / 3)
  assert soft[5].argmax() == 1


def test_two_records_are_enough():
  soft = student.spread_labels(np.eye(2), np.array([0]), np.array([1]), 2)
  assert soft[0].argmax() == 1


def test_labels_of_a_single_record_cannot_be_spread():
  with pytest.raises(ValueError, match='public records must be 2 or more'):
    student.spread_labels(np.eye(1), np.array([0]), np.array([0]), 4)
