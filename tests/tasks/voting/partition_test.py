"""Records dealt to agents that hold few classes."""

import numpy as np
import pytest

from tasks.sources import partition

# As uneven as MNIST's classes.
SIZES = (592, 674, 596, 613, 584, 542, 592, 626, 585, 596)
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), SIZES))


def _deal(**changes):
  return partition.few_classes(LABELS, **{**dict(
      num_clients=100, labels_per_client=6, records_per_client=60, seed=0), **changes})


@pytest.mark.parametrize('num_clients, classes, records', [
    (100, 6, 60), (100, 6, 7), (50, 6, 60), (100, 10, 60), (10, 1, 50), (3, 4, 100),
    (200, 6, 60), (7, 5, 999)])
def test_every_agent_has_the_given_numbers_of_records_and_classes(
    num_clients, classes, records):
  deal = _deal(num_clients=num_clients, labels_per_client=classes,
               records_per_client=records)
  assert [len(rows) for rows in deal] == [records] * num_clients
  for rows in deal:
    assert len(np.unique(LABELS[rows])) == classes
  holders = np.array([[c in LABELS[rows] for c in range(10)] for rows in deal])
  assert holders.any(axis=0).all()


def test_no_record_is_dealt_twice_while_there_are_enough():
  for records in (7, 60):
    rows = np.concatenate(_deal(records_per_client=records))
    assert len(np.unique(rows)) == len(rows)


def test_records_are_repeated_where_there_are_too_few():
  rows = np.concatenate(_deal(num_clients=250))
  counts = np.bincount(rows, minlength=len(LABELS))
  # Classes with few records repeat them more often.
  assert counts.min() == 2 and counts.max() <= 3


def test_classes_have_holders_in_proportion_and_are_split_evenly():
  deal = _deal()
  counts = np.array([np.bincount(LABELS[rows], minlength=10) for rows in deal])
  holders = (counts > 0).sum(axis=0)
  np.testing.assert_allclose(holders, np.array(SIZES) / 10, atol=1)
  assert counts[counts > 0].min() >= 8 and counts.max() <= 12


def test_deal_follows_from_the_seed():
  first, again, other = (_deal(seed=seed) for seed in (1, 1, 2))
  for left, right in zip(first, again):
    np.testing.assert_array_equal(left, right)
  assert any(not np.array_equal(a, b) for a, b in zip(first, other))


@pytest.mark.parametrize('changes, message', [
    ({'num_clients': 0}, 'num_clients must be an integer from 1 on, found 0'),
    ({'labels_per_client': 11}, 'labels_per_client must be .* 1 to the 10 labels, fou'),
    ({'records_per_client': 5}, 'records_per_client must be an integer from 6 on'),
    ({'seed': -1}, 'data_seed must be an integer from 0 on, found -1'),
    ({'num_clients': True}, 'num_clients must be an integer'),
    ({'num_clients': 2, 'labels_per_client': 3}, 'labels to no client')])
def test_impossible_deals_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    _deal(**changes)


@pytest.mark.parametrize('num_clients', [1, 7, 20])
def test_even_deal_gives_every_agent_equally_many(num_clients):
  deal = partition.evenly(20, num_clients=num_clients, seed=3)
  sizes = [len(rows) for rows in deal]
  assert max(sizes) - min(sizes) <= 1
  np.testing.assert_array_equal(np.sort(np.concatenate(deal)), np.arange(20))
  again = partition.evenly(20, num_clients=num_clients, seed=3)
  np.testing.assert_array_equal(deal[0], again[0])


@pytest.mark.parametrize('changes, message', [
    ({'num_clients': 21}, 'num_clients must be an integer from 1 to 20, found 21'),
    ({'seed': 0.5}, 'data_seed must be an integer')])
def test_impossible_even_deals_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    partition.evenly(20, **{**dict(num_clients=2, seed=0), **changes})
