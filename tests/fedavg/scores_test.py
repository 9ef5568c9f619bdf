"""Scores of held-out predictions, against their definitions."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import tabular
from tests import tiny_task
from tests.programs import in_process
from tff_pipelines.fedavg import report, run as run_lib, scores
from tff_pipelines.fedavg.settings import TrainSettings
from tff_pipelines.publish import run as finished

X = np.array([[0.1], [0.4], [0.35], [0.8], [0.7]], np.float32)


def _scores(predict, y, **attributes):
  model = dataclasses.replace(
      tiny_task.MODEL, predict=predict, evaluation_batch=2, **attributes)
  return scores.scores_of(model, [], {'x': X, 'y': np.asarray(y)})


def _binary(weights, batch):
  del weights
  chances = tf.concat([1 - batch['x'], batch['x']], axis=1)
  return {'class': tf.argmax(chances, axis=1, output_type=tf.int32),
          'probabilities': chances}


def test_two_classes_have_the_scores_of_the_definitions():
  # Predicted classes are 0, 0, 0, 1, 1; the rarer class is 1.
  assert _scores(_binary, [0, 0, 1, 1, 0]) == pytest.approx({
      'constant_accuracy': 3 / 5, 'constant_balanced_accuracy': 1 / 2,
      'balanced_accuracy': (2 / 3 + 1 / 2) / 2, 'f1': 1 / 2,
      # Of the pairs of 0.35 and 0.8 with 0.1, 0.4 and 0.7, four are in order.
      'auc': 4 / 6, 'sensitivity': 1 / 2, 'specificity': 2 / 3, 'threshold': 0.5,
      # Each probability of 0.9, 0.6, 0.65, 0.8, 0.7 is in a bin with none but itself,
      # except for 0.65 and 0.6, in [0.6, 0.667).
      'calibration_error': (0.1 + abs(1 - 1.25) + 0.2 + 0.7) / 5}, rel=1e-5)
  # From 0.8 on: 1 of 2 and 3 of 3.
  of_set = {'x': X, 'y': np.array([0, 0, 1, 1, 0])}
  found = scores.with_scores({'test': {}}, dataclasses.replace(
      tiny_task.MODEL, predict=_binary), [], {'test': of_set, 'validation': of_set})
  assert [found['test'][name] for name in (
      'sensitivity', 'specificity', 'threshold')] == pytest.approx([0.5, 1.0, 0.8])
  assert set(_scores(_binary, [0] * 5)) == {'constant_accuracy', 'calibration_error'}
  # A class is named by its place where both are as frequent: 0.35 is the one mistake.
  tie = scores.scores_of(dataclasses.replace(tiny_task.MODEL, predict=_binary), [], {
      'x': X[:4], 'y': np.array([0, 0, 1, 1])})
  assert tie['f1'] == pytest.approx(2 / 3)


def test_several_classes_are_averaged():
  def predict(weights, batch):
    x = batch['x']
    chances = tf.nn.softmax(tf.concat([x, 1 - x, 0.5 + 0 * x], axis=1))
    return {**_binary(weights, batch), 'class': tf.constant([1, 1])[
        :tf.shape(batch['x'])[0]], 'probabilities': chances}
  found = _scores(predict, [1, 1, 0, 2, 0])
  assert found['balanced_accuracy'] == pytest.approx(1 / 3)
  assert found['f1'] == pytest.approx(4 / 7 / 3)
  assert found['constant_balanced_accuracy'] == pytest.approx(1 / 3)
  assert 0 < found['auc'] < 1


def test_numbers_are_compared_in_the_units_of_the_label():
  found = _scores(lambda _, batch: {'value': 100 * batch['x']},
                  np.float32([0, 1, 2, 3, 9]), in_units=lambda y: 10 * y)
  y, predicted = np.array([0, 10, 20, 30, 90]), 100 * X[:, 0].astype(float)
  assert found == pytest.approx({
      'mae': np.mean(np.abs(y - predicted)), 'constant_mae': (20 + 10 + 10 + 70) / 5,
      'rmse': np.mean((y - predicted)**2)**0.5, 'constant_rmse': np.std(y),
      'r2': 1 - np.sum((y - predicted)**2) / np.sum((y - 30)**2)}, rel=1e-5)
  assert np.isnan(_scores(lambda _, batch: {'value': np.inf * batch['x']},
                          np.float32(range(5)))['r2'])


@pytest.mark.parametrize('predict, y', [(None, [0] * 5), (_binary, np.zeros([5, 2], int)),
    (lambda _, batch: {'class': tf.zeros([tf.shape(batch['x'])[0], 3]),
                       'probabilities': tf.zeros([tf.shape(batch['x'])[0], 3, 2])},
     [0] * 5),
    (lambda _, batch: {'value': tf.zeros([tf.shape(batch['x'])[0], 3])},
     np.zeros(5, np.float32))])
def test_other_outputs_and_labels_have_no_scores(predict, y):
  assert _scores(predict, y) == {}


VALUES = {'accuracy': 0.9, 'constant_accuracy': 0.92, 'balanced_accuracy': 0.7,
          'constant_balanced_accuracy': 0.5}


@pytest.mark.parametrize('changes, name', [({}, 'no better than a constant by accuracy'),
    ({'accuracy': 0.93}, None),
    ({'accuracy': 0.92, 'balanced_accuracy': 0.5}, 'no better than a constant'),
    ({'accuracy': None, 'balanced_accuracy': float('nan')},
     'no better than a constant'),
    ({'accuracy': 0.93, 'balanced_accuracy': 0.4},
     'no better than a constant by accuracy')])
def test_caveat_names_what_is_no_better_than_a_constant(changes, name):
  found = report.constant_caveats('test', {**VALUES, **changes})
  assert [caveat.name for caveat in found] == ([name] if name else [])
  assert all('no better than a constant (0.' in caveat for caveat in found)


def _trained(folder, *, label, people=300, columns=12, **settings):
  options = tabular.write_synthetic(folder, people, columns)
  return run_lib.train(TrainSettings(
      task='tabular', output_dir=str(folder / 'run'), label_field=label,
      **{**options, **settings}))


@pytest.mark.slow
@pytest.mark.parametrize('label, model', [
    ('charges', 'linear'), ('charges', 'mlp'), ('ill', 'logistic'), ('ill', 'mlp')])
def test_default_rates_neither_oscillate_nor_diverge(
    shared_context, tmp_path, label, model):
  del shared_context
  summary = _trained(tmp_path, label=label, model=model, columns=60,
                     mechanism='none', rounds=30)
  rows = in_process.rows(tmp_path / 'run' / 'metrics.csv')
  assert tabular.rise([float(row['test_clients/loss']) for row in rows]) < 1.1
  values = summary['held_out']['test_clients']
  assert values['r2'] > 0.1 if label == 'charges' else values['auc'] > 0.65


def test_reports_of_a_regression_and_of_rare_positives_are_truthful(
    shared_context, tmp_path):
  """Each is compared with the predictions of the model that the run kept."""
  del shared_context
  for label, noise in (('charges', 100.0), ('ill', 1.0)):
    folder = tmp_path / label
    folder.mkdir()
    summary = _trained(folder, label=label, people=500, rounds=2, mechanism='gaussian',
                       noise_multiplier=noise)
    values = summary['held_out']['test_clients']
    text = (folder / 'run' / 'report.txt').read_text()
    assert 'no better than a constant' in summary['caveats']
    constant = values[f'constant_{summary["headline"]}']
    assert f'no better than a constant ({constant:.4f})' in text
    run = finished.read_finished(str(folder / 'run'))
    assert run.own_figures() == summary['held_out']
    task = run.experiment.build_task()
    examples = task.held_out['test_clients']
    outputs = task.model.predict(run.trained().weights, {'x': examples['x']})
    if label == 'charges':
      truth = task.model.in_units(examples['y'])
      error = truth - outputs['value'].numpy()
      assert 1 <= truth.min() and truth.max() <= 40_000 and truth.std() > 1000
      assert values['r2'] == pytest.approx(
          1 - np.sum(error**2) / np.sum((truth - truth.mean())**2), rel=1e-3)
      assert values['r2'] < 0 and f'r2 {values["r2"]:.4f}' in text
    else:
      assert 0.04 < np.mean(examples['y']) < 0.13
      assert values['accuracy'] == pytest.approx(1 - np.mean(examples['y']))
      assert values['balanced_accuracy'] == 0.5 and values['f1'] == 0
      assert "f1 is of 'yes', the rarer class" in text
