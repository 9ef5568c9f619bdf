"""Tests of tasks.checks."""

import math

import numpy as np
import pytest

from tasks import checks


@pytest.mark.parametrize('value', [1, 3, np.int8(2)])
def test_integers_in_range_pass(value):
  checks.integer('n', value, 1, 3)


@pytest.mark.parametrize('value, limits, message', [
    (0, (1,), 'n must be an integer from 1 on, found 0'),
    (4, (1, 3), 'n must be an integer from 1 to 3, found 4'),
    (4, (1, 3, 'labels'), 'n must be an integer from 1 to the 3 labels, found 4'),
    (True, (0,), 'found True'), (2.0, (0,), r'found 2\.0'), (None, (0,), 'found None')])
def test_other_integers_are_refused(value, limits, message):
  with pytest.raises(ValueError, match=message):
    checks.integer('n', value, *limits)


@pytest.mark.parametrize('value, or_zero, passes', [
    (1, False, True), (0.5, True, True), (0, True, True), (0, False, False),
    (-1.0, True, False), (math.nan, True, False), (math.inf, False, False),
    (True, False, False), ('1', False, False)])
def test_only_finite_numbers_pass(value, or_zero, passes):
  if passes:
    checks.finite('a', value, or_zero=or_zero)
    return
  rule = 'that is not negative' if or_zero else 'greater than 0'
  with pytest.raises(ValueError, match=f'a must be a finite number {rule}, found'):
    checks.finite('a', value, or_zero=or_zero)


def test_a_choice_may_have_a_default():
  assert checks.choice('kind', 'b', ('a', 'b')) == 'b'
  assert checks.choice('kind', None, {'a': 1}, 'a') == 'a'
  with pytest.raises(ValueError, match='kind must be one of a, b, found None'):
    checks.choice('kind', None, ('a', 'b'))


def test_options_are_those_given_and_known():
  def function(first, *, path, seed=0, **_):
    del first, path, seed

  assert checks.keywords(function) == (('path', 'seed'), ('path',))
  found = checks.options('task t', {'path': 'f', 'seed': None, 'odd': None},
                         *checks.keywords(function))
  assert found == {'path': 'f'}
  for given, message in (
      ({'path': 'f', 'z': 1, 'odd': 0},
       'task t does not use odd, z; its options are path, seed'),
      ({'path': None, 'seed': 3}, 'task t needs path')):
    with pytest.raises(ValueError, match=message):
      checks.options('task t', given, *checks.keywords(function))
  with pytest.raises(ValueError, match='its options are none'):
    checks.options('task t', {'a': 1}, ())
