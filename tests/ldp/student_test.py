"""Tests of the student that learns from noisy answers and unlabelled images."""

import math

import numpy as np
import pytest
import tensorflow as tf

from aggregators import local_dp
from tff_pipelines.ldp import student as student_lib
from tff_pipelines.ldp.settings import LdpSettings

K, D, POOL = 4, 12, 600


def _pool(seed=0, spread=0.45):
  """Clusters on the sphere: features of length 1 and classes."""
  rng = np.random.default_rng(seed)
  centres = np.linalg.qr(rng.normal(size=[D, K]))[0].T
  labels = rng.integers(K, size=POOL)
  x = centres[labels] + spread * rng.normal(size=[POOL, D]) / np.sqrt(D) * 2
  x /= np.linalg.norm(x, axis=1, keepdims=True)
  return x.astype(np.float32), labels


def _answers(labels, rows, stddev, seed=1):
  noise = np.random.default_rng(seed).normal(size=[len(rows), K])
  return np.eye(K)[labels[rows]] + stddev * noise


def _accuracy(student, x, labels):
  return np.mean(student.scores(x).argmax(axis=1) == labels)


def _trained(x, labels, count, stddev, **config):
  rows = np.random.default_rng(2).permutation(POOL)[:count]
  trainer = student_lib.Trainer(x, LdpSettings(**config))
  return trainer.train(
      rows, _answers(labels, rows, stddev), student_lib.Noise(variance=stddev**2))


def test_student_learns_what_no_single_answer_tells():
  x, labels = _pool()
  rows = np.arange(300)
  answers = _answers(labels, rows, 2.0)
  assert np.mean(answers.argmax(axis=1) == labels[rows]) < 0.5
  student = _trained(x, labels, 300, 2.0, refine='never')
  assert _accuracy(student, x, labels) > 0.75


def test_refinement_learns_from_images_that_no_owner_was_asked_about():
  x, labels = _pool()
  first, second = (
      _accuracy(_trained(x, labels, 120, 1.2, refine=refine), x, labels)
      for refine in ('never', 'always'))
  assert second > first + 0.02


def test_auto_refines_where_held_out_answers_say_that_it_helps():
  x, labels = _pool()
  assert _trained(x, labels, 300, 1.2).refined
  # Without clusters a student's own labels mislead it.
  rng = np.random.default_rng(3)
  flat = rng.normal(size=[POOL, D]).astype(np.float32) / np.sqrt(D)
  linear = (flat @ rng.normal(size=[D, K])).argmax(axis=1)
  unsure = _trained(flat, linear, 400, 0.5)
  accuracies = [_accuracy(_trained(flat, linear, 400, 0.5, refine=refine), flat,
                          linear) for refine in ('never', 'always')]
  assert unsure.refined == (accuracies[1] > accuracies[0])


def test_few_answers_are_not_divided():
  x, labels = _pool()
  student = _trained(x, labels, 20, 1.0)
  assert student.refined and student.strength == 1.0


def _sets(labels, rows, mechanism, wrong):
  """Estimates from sets, of owners of whom a part answers with any class."""
  rng = np.random.default_rng(1)
  told = np.where(
      rng.random(len(rows)) < wrong, rng.integers(K, size=len(rows)), labels[rows])
  perturbed = mechanism.perturb(
      tf.constant(2 * np.eye(K)[told] - 1), tf.constant([2022, 5], tf.int64))
  return local_dp.unscaled_probabilities(perturbed.numpy().astype(np.float64))


@pytest.mark.parametrize('size', [1, 2])
def test_evidence_of_sets_is_the_likelihood_ratio_of_their_channel(size):
  _, labels = _pool()
  rows, one_hot = np.arange(POOL), np.eye(K)[labels]
  mechanism = local_dp.SubsetSelection(epsilon=2.0, dimension=K, size=size)
  noise = student_lib.Noise.of(mechanism, 1)
  for wrong in (0.0, 0.4):
    answers = _sets(labels, rows, mechanism, wrong)
    # log P[set | class in it] - log P[set | class not in it], by counting.
    held = np.mean(mechanism.inside * (1 - wrong) + wrong * size / K)
    expected = np.log(held / math.comb(K - 1, size - 1)
                      / ((1 - held) / math.comb(K - 1, size)))
    weight = noise.weight(answers, one_hot)
    assert weight * np.ptp(answers) == pytest.approx(expected, abs=0.3)
  assert student_lib.Noise.of(mechanism, 3).weight(answers, one_hot) == (
      pytest.approx(3 * weight))
  # Labels that have nothing to do with the answers are no evidence.
  assert 0 <= noise.weight(answers, one_hot[::-1]) < 0.3 * weight
  # And no sets are surer than the mechanism is.
  sure = noise.weight(np.eye(K), np.eye(K))
  assert sure * np.ptp(answers) == pytest.approx(2.0, rel=1e-6)


def test_refinement_that_misleads_on_held_out_answers_is_rejected():
  # Two classes a cluster: opinions that follow the clusters are half wrong.
  x, clusters = _pool(spread=0.3)
  labels = (clusters // 2) + 2 * (x @ np.linalg.svd(x)[2][-1] > 0)
  trainer = student_lib.Trainer(x, LdpSettings(refine_strength=300.0, trust=0.01))
  rows = np.arange(500)
  assert not trainer.train(rows, _answers(labels, rows, 0.3),
                           student_lib.Noise(variance=0.09)).refined


def test_more_noise_asks_for_a_larger_penalty():
  x, labels = _pool(spread=0.2)
  strengths = [
      np.mean([student_lib.Trainer(x, LdpSettings(refine='never')).train(
          np.arange(200), _answers(labels, np.arange(200), stddev, seed),
          student_lib.Noise(variance=stddev**2)).strength for seed in range(12)])
      for stddev in (0.3, 4.0)]
  assert strengths[0] < strengths[1]
