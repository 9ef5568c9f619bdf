"""How predictions divide over classes, for JSON and for people."""

import json

import numpy as np
import pytest

from tasks.task import Breakdown
from tff_pipelines.fedavg import report

# Rows are true: 'a' 4, 'b' 6, 'c' never, 'd' 2.
CONFUSION = np.array([[3, 1, 0, 0], [2, 4, 0, 0], [0, 0, 0, 0], [0, 0, 2, 0]], float)
COUNTS = dict(confusion=CONFUSION, occurred=CONFUSION.sum(1), right=np.diag(CONFUSION),
              predicted=CONFUSION.sum(0))


def _breakdown(names='abcd', **changes):
  return Breakdown(**{'kind': 'letter', 'names': names, 'count': lambda *_: {},
      'groups': {'early': [0, 1], 'late': [2, 3], 'never': []}, **changes})


def _described(counts=COUNTS, outside=False, **changes):
  result = report.describe_breakdown(
      _breakdown(**changes), counts, outside_guarantee=outside)
  return json.loads(json.dumps(result, allow_nan=False))


def test_classes_come_by_how_often_they_occur():
  assert _described()['classes'] == [
      {'name': 'b', 'count': 6, 'right': 4, 'predicted': 5},
      {'name': 'a', 'count': 4, 'right': 3, 'predicted': 5},
      {'name': 'd', 'count': 2, 'right': 0, 'predicted': 0}]
  assert _described()['count'] == 12


def test_groups_say_for_which_other_group_they_are_taken():
  assert _described()['groups'] == [
      {'name': 'early', 'count': 10, 'right': 7, 'predicted': 10,
       'taken_for': {'early': 10, 'late': 0, 'never': 0}},
      {'name': 'late', 'count': 2, 'right': 0, 'predicted': 2,
       'taken_for': {'early': 0, 'late': 2, 'never': 0}}]


def test_mistakes_come_by_how_often_they_are_made():
  assert _described()['confusions'] == [{'true': 'b', 'predicted': 'a', 'count': 2},
      {'true': 'd', 'predicted': 'c', 'count': 2},
      {'true': 'a', 'predicted': 'b', 'count': 1}]


@pytest.mark.parametrize('guesses, constant', [(1, 6 / 12), (2, 10 / 12), (9, 1.0)])
def test_constant_is_what_the_best_constant_guesses_would_get(guesses, constant):
  assert _described(guesses=guesses)['constant'] == pytest.approx(constant)


def test_set_without_examples_has_nothing_to_say():
  counts = {name: np.zeros(4) for name in ('occurred', 'right', 'predicted')}
  described = _described(counts)
  assert (described['count'], described['constant']) == (0, None)
  assert described['classes'] == []
  assert report.breakdown_lines('test', described) == []


def test_lines_for_people_name_the_set_and_what_is_outside_the_guarantee():
  lines = report.breakdown_lines('test_examples', _described(outside=True))
  assert len(lines) == 3
  assert all(line.startswith('test_examples, outside the guarantee, ') for line in lines)
  assert "'early' 70% of 10; 'late' 0% of 2" in lines[0]
  assert "'b' 67% of 6; 'a' 75% of 4; 'd' 0% of 2" in lines[1]
  assert 'the same for all would be 50.0%' in lines[1]
  assert "'b' taken for 'a' 2" in lines[2]
  inside = report.breakdown_lines('test_clients', _described())
  assert not any('outside' in line for line in inside)


def test_weakest_classes_are_named_in_one_line():
  assert report.weakest(_described()) == (
      "letter 'd' 0% of 2, 'b' 67% of 6, 'a' 75% of 4")
  # Classes that never occurred have no accuracy.
  unseen = {name: np.array([0.0, 2.0, 5.0, 9.0]) for name in ('occurred', 'right')}
  described = _described({**unseen, 'predicted': np.ones(4)})
  assert "'a'" not in report.weakest(described)
  nothing = {name: np.zeros(4) for name in ('occurred', 'right', 'predicted')}
  assert report.weakest(_described(nothing)) is None
