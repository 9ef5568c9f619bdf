"""Held-out metrics, against means in NumPy."""

import dataclasses

import numpy as np
import pytest

from tasks.models import layers
from tasks.task import Breakdown
from tests import tiny_task
from tff_pipelines.fedavg import evaluation

WEIGHTS = tiny_task.initial_weights(4)


def _expected(examples):
  logits = examples['x'].astype(np.float64) @ WEIGHTS[0] + WEIGHTS[1]
  logits -= logits.max(axis=1, keepdims=True)
  log_probabilities = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
  rows = np.arange(len(logits))
  return {'accuracy': np.mean(logits.argmax(axis=1) == examples['y']),
          'loss': -np.mean(log_probabilities[rows, examples['y']])}


@pytest.mark.parametrize('count', [1, 512, 1500])
def test_metrics_are_means_over_all_examples(count):
  examples = tiny_task.examples(count, 8)
  other = tiny_task.examples(20, 2)
  metrics = evaluation.Evaluator(
      tiny_task.MODEL, {'test': examples, 'other': other}).evaluate(WEIGHTS)
  assert list(metrics) == ['test', 'other']
  for name, those in (('test', examples), ('other', other)):
    assert metrics[name] == pytest.approx(_expected(those), rel=1e-4)
    assert all(isinstance(value, float) for value in metrics[name].values())


def test_weights_that_overflow_give_a_loss_that_is_not_finite():
  evaluator = evaluation.Evaluator(tiny_task.MODEL, {'test': tiny_task.examples(10, 1)})
  metrics = evaluator.evaluate([np.full_like(w, 3e38) for w in WEIGHTS])['test']
  assert not np.isfinite(metrics['loss'])
  assert 0 <= metrics['accuracy'] <= 1


def _count(confusion):
  def count(weights, batch, mask):
    logits = batch['x'] @ weights[0] + weights[1]
    return layers.class_counts(logits, batch['y'], mask, confusion=confusion)
  return count


def _guesses(examples):
  return (examples['x'] @ WEIGHTS[0] + WEIGHTS[1]).argmax(axis=1)


@pytest.mark.parametrize('confusion', [False, True])
@pytest.mark.parametrize('count', [1, 64, 700])
def test_breakdown_counts_every_example_once(count, confusion):
  model = dataclasses.replace(tiny_task.MODEL, evaluation_batch=64, breakdown=Breakdown(
          kind='class', names='abc', count=_count(confusion)))
  examples = tiny_task.examples(count, 8)
  evaluator = evaluation.Evaluator(model, {'test': examples})
  counts = evaluator.breakdown(WEIGHTS)['test']
  true, guesses = examples['y'], _guesses(examples)
  assert counts['occurred'].tolist() == np.bincount(true, minlength=3).tolist()
  assert counts['predicted'].tolist() == np.bincount(guesses, minlength=3).tolist()
  assert counts['right'].tolist() == np.bincount(
      true[true == guesses], minlength=3).tolist()
  assert ('confusion' in counts) == confusion
  if confusion:
    expected = np.zeros([3, 3])
    np.add.at(expected, (true, guesses), 1)
    np.testing.assert_array_equal(counts['confusion'], expected)
