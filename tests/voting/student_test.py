"""The student: trained on released labels, resumable, semi-supervised."""

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import classifiers as voting_models
from tasks.sources import labelled
from tff_pipelines.fedavg import adam
from tff_pipelines.voting import encoder, student as student_lib

C, D = 4, 8


def _records(count, seed):
  rng = np.random.default_rng(seed)
  y = rng.integers(C, size=count).astype(np.int32)
  x = rng.normal(size=(count, D)) + 4.5 * np.eye(C, D)[y]
  return x.astype(np.float32), y


PUBLIC, TRUTH = _records(200, 0)
X_TEST, Y_TEST = _records(600, 1)
ROWS = np.concatenate([np.flatnonzero(TRUTH == c)[:2] for c in range(C)])


def _training(**changes):
  return adam.AdamConfig(
      **{**dict(learning_rate=0.02, batch_size=50, epochs=12), **changes})


def _student(public=PUBLIC, rows=ROWS, labels=TRUTH[ROWS], **changes):
  architecture = student_lib.of_network(voting_models.mlp((D,), C), 0)
  return student_lib.Student(
      architecture, public, public, rows, labels, C, **{**dict(
          method='spread', training=_training(), test={'x': X_TEST, 'y': Y_TEST}),
                                                        **changes})


def _trained(student):
  while student.epochs_done < student.epochs:
    student.run_epoch()
  return student


def test_unlabelled_records_help():
  few = _trained(_student(method='labels', training=_training(batch_size=8, epochs=48)))
  all_ = _trained(_student())
  accuracies = [s.test_metrics()['accuracy'] for s in (few, all_)]
  assert accuracies[1] > 0.95 and accuracies[1] > accuracies[0]


def test_method_labels_sees_answered_queries_alone():
  others = PUBLIC + np.isin(np.arange(200), ROWS, invert=True)[:, None]
  states = {method: [tf.nest.flatten(_trained(_student(
      public.astype(np.float32), method=method, training=_training(epochs=2))).state)
                     for public in (PUBLIC, others)] for method in ('labels', 'spread')}
  for first, second in zip(*states['labels']):
    np.testing.assert_array_equal(first, second)
  assert np.any(states['spread'][0][0] != states['spread'][1][0])


def test_own_labels_of_few_records_keep_to_the_released_ones():
  student = _trained(_student(own_labels_after=0.0))
  assert student.test_metrics()['accuracy'] > 0.95


@pytest.fixture(scope='module')
def digits():
  records = labelled.resized_digits()
  return records.rows(np.random.default_rng(5).permutation(len(records))[:200])


@pytest.mark.parametrize('kind', ['encoder', 'network'])
def test_students_of_images_train_and_predict(digits, kind):
  if kind == 'encoder':
    architecture = student_lib.of_encoder(encoder.initial_weights(16, 0), 10, 0)
  else:
    architecture = student_lib.of_network(voting_models.cnn((16, 16), 10), 0)
  student = student_lib.Student(
      architecture, digits.x[:150], digits.x[:150].reshape(150, -1),
      np.arange(150), digits.y[:150], 10, method='labels',
      training=_training(learning_rate=3e-3, epochs=10),
      test={'x': digits.x[150:], 'y': digits.y[150:]})
  before = student.test_metrics()
  after = _trained(student).test_metrics()
  assert after['accuracy'] > 0.5 and after['loss'] < before['loss']


def test_predictions_of_an_encoder_do_not_depend_on_the_batch(digits):
  student = student_lib.Student(
      student_lib.of_encoder(encoder.initial_weights(16, 0), 10, 0),
      digits.x, digits.x.reshape(200, -1), np.arange(20), digits.y[:20], 10,
      method='labels', training=_training(), test={'x': digits.x, 'y': digits.y})
  together = student.predict(digits.x[:9])
  np.testing.assert_allclose(
      together, np.concatenate([student.predict(digits.x[i:i + 1])
                                for i in range(9)]), atol=1e-5)


def test_no_answers_or_a_single_record_leave_nothing_to_learn():
  for method in ('labels', 'spread'):
    with pytest.raises(ValueError, match='no query was answered'):
      _student(rows=ROWS[:0], labels=TRUTH[:0], method=method)
  with pytest.raises(ValueError, match='public records must be 2 or more'):
    student_lib.spread_labels(np.eye(1), np.array([0]), np.array([0]), 4)


@pytest.mark.filterwarnings('ignore:overflow', 'ignore:invalid')
def test_weights_that_are_not_finite_are_an_error():
  student = _student(training=_training(learning_rate=1e38, epochs=3))
  with pytest.raises(ValueError, match='lower --student_learning_rate'):
    _trained(student)


def _blobs(each=30):
  rng = np.random.default_rng(0)
  directions = np.eye(4, 8)
  x = np.repeat(directions, each, axis=0) + 0.15 * rng.normal(size=(4 * each, 8))
  return x * rng.uniform(0.5, 3.0, size=(4 * each, 1))


def test_one_label_speaks_for_its_cluster():
  soft = student_lib.spread_labels(
      _blobs(), np.array([3, 35, 70, 100]), np.array([2, 0, 1, 2]), 3)
  assert soft.shape == (120, 3) and soft.dtype == np.float32
  np.testing.assert_allclose(soft.sum(axis=1), 1, rtol=1e-5)
  np.testing.assert_array_equal(soft.argmax(axis=1), np.repeat([2, 0, 1, 2], 30))


def test_a_wrong_label_is_outvoted_by_its_neighbours():
  rows = np.array([0, 5, 10, 15, 35, 70, 100])
  labels = np.array([0, 0, 1, 0, 1, 2, 3])
  soft = student_lib.spread_labels(_blobs(), rows, labels, 4)
  assert np.mean(soft[:30].argmax(axis=1) == 0) > 0.8


def test_classes_weigh_the_same_however_many_labels_they_have():
  x = _blobs()
  rows = np.concatenate([np.arange(20), [35]])
  labels = np.concatenate([np.zeros(20, int), [1]])
  soft = student_lib.spread_labels(x, rows, labels, 2)
  assert np.mean(soft[30:60].argmax(axis=1) == 1) > 0.95


def test_records_that_no_label_reaches_have_all_classes_alike():
  x = np.concatenate([np.eye(2)[:1] + np.zeros((12, 1)),
                      np.eye(2)[1:] + np.zeros((12, 1))])
  soft = student_lib.spread_labels(x, np.array([0]), np.array([1]), 3)
  np.testing.assert_allclose(soft[12:], 1 / 3)
  assert soft[5].argmax() == 1
