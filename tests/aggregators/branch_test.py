"""Tests of aggregators.branch: `tf.cond`, except for the branch that is not taken."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import branch


def _both(predicate, x):
  """A structure whose branches use what is around them."""
  outer = x + 1
  return branch.either(
      predicate, lambda: collections.OrderedDict(a=outer, b=(2 * x, tf.constant(1))),
      lambda: collections.OrderedDict(a=-outer, b=(x, tf.constant(0))))


def _flat(structure):
  return [np.asarray(leaf).tolist() for leaf in tf.nest.flatten(structure)]


TAKEN, NOT_TAKEN = [[4.0], [6.0], 1], [[-4.0], [3.0], 0]


@pytest.mark.parametrize('wrapper', [
    lambda f: f, tf.function, lambda f: tf.function(f, jit_compile=True)],
    ids=['eager', 'graph', 'compiled'])
def test_the_branch_that_the_predicate_names_is_taken(wrapper):
  both = wrapper(_both)
  for predicate, expected in ((True, TAKEN), (False, NOT_TAKEN)):
    result = both(tf.constant(predicate), tf.constant([3.0]))
    assert isinstance(result, collections.OrderedDict)
    assert _flat(result) == expected


def test_it_runs_in_every_context(anywhere):
  @tff.tensorflow.computation(np.bool_, tff.TensorType(np.float32, [1]))
  def both(predicate, x):
    return _both(predicate, x)

  assert _flat(both(True, [3.0])) == TAKEN
  assert _flat(both(False, [3.0])) == NOT_TAKEN


def test_the_other_branch_does_not_run():
  variable = tf.Variable(0)

  @tf.function
  def count(predicate, divisor):
    return branch.either(predicate, lambda: variable.assign_add(1), lambda: 7 // divisor)

  # Would fail, or count, if both ran.
  assert int(count(tf.constant(True), tf.constant(0))) == 1
  assert int(count(tf.constant(False), tf.constant(2))) == 3
  assert int(variable) == 1
  with pytest.raises(tf.errors.InvalidArgumentError):
    count(tf.constant(False), tf.constant(0))
