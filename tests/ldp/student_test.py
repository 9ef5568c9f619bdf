"""Tests of the student that learns from noisy answers and unlabelled images."""

import numpy as np

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
  return trainer.train(rows, _answers(labels, rows, stddev), stddev**2)


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
  assert not student.refined and student.strength == 1.0


def test_more_noise_asks_for_a_larger_penalty():
  x, labels = _pool(spread=0.2)
  strengths = [
      np.mean([student_lib.Trainer(x, LdpSettings(refine='never')).train(
          np.arange(200), _answers(labels, np.arange(200), stddev, seed),
          stddev**2).strength for seed in range(12)]) for stddev in (0.3, 4.0)]
  assert strengths[0] < strengths[1]
