"""Tests of tasks.sources.partition."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from tasks.sources import partition


def _dirichlet(labels, num_clients, alpha, seed):
  return partition.split(labels, partition='dirichlet', num_clients=num_clients,
                         dirichlet_alpha=alpha, seed=seed)


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=60), data=st.data(),
    alpha=st.sampled_from([1e-3, 0.1, 1.0, 100.0]), seed=st.integers(0, 2**40))
def test_every_client_gets_equally_many_examples(labels, data, alpha, seed):
  num_clients = data.draw(st.integers(1, len(labels)))
  clients = _dirichlet(np.array(labels), num_clients, alpha, seed)
  sizes = np.bincount(clients, minlength=num_clients)
  assert sizes.size == num_clients
  assert sizes.sum() == len(labels)
  assert sizes.min() >= 1
  assert sizes.max() - sizes.min() <= 1


def _mean_labels_per_client(alpha):
  labels = np.arange(10_000) % 10
  clients = _dirichlet(labels, 100, alpha, 0)
  return np.mean([np.unique(labels[clients == c]).size for c in range(100)])


def test_alpha_sets_how_mixed_the_clients_are():
  # Of 10 labels, 100 examples a client. The last clients get the rest.
  assert _mean_labels_per_client(0.05) < 3.5
  assert 5 < _mean_labels_per_client(0.5) < 9
  assert _mean_labels_per_client(1000.0) > 9.8


_LABELS = np.random.default_rng(0).integers(10, size=1000)


@pytest.mark.parametrize('partition_name', partition.PARTITIONS)
@pytest.mark.parametrize('num_clients', [5, 60, 1000])
def test_every_partition_assigns_every_example_and_leaves_no_client_empty(
    partition_name, num_clients):
  # A thousand clients with two labels each would need two thousand examples.
  options = {'labels_per_client': 1} if (
      partition_name == 'labels' and num_clients == 1000) else {}
  if options and np.bincount(_LABELS).min() < 100:
    num_clients = 10 * int(np.bincount(_LABELS).min())
  first, again, other = (
      partition.split(_LABELS, partition=partition_name, num_clients=num_clients,
                      seed=seed, **options) for seed in (1, 1, 2))
  assert first.shape == _LABELS.shape and first.dtype == np.int64
  assert np.array_equal(np.unique(first), np.arange(num_clients))
  assert np.array_equal(first, again)
  assert not np.array_equal(first, other)


def test_iid_clients_are_alike():
  labels = np.arange(20_000) % 10
  counts = partition.label_counts(labels, partition.split(
      labels, partition='iid', num_clients=10, seed=0))
  assert counts.sum(axis=1).tolist() == [2000] * 10
  # 200 of each label, standard deviation 13: five of them.
  assert np.all(np.abs(counts - 200) < 65)


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(each=st.integers(1, 10), num_clients=st.integers(1, 60),
                  seed=st.integers(0, 2**40))
def test_clients_have_the_given_number_of_labels(each, num_clients, seed):
  hypothesis.assume(each * num_clients >= 10)
  counts = partition.label_counts(_LABELS, partition.split(
      _LABELS, partition='labels', num_clients=num_clients, labels_per_client=each,
      seed=seed))
  assert np.all(np.count_nonzero(counts, axis=1) == each)
  clients_of_label = np.count_nonzero(counts, axis=0)
  assert clients_of_label.max() - clients_of_label.min() <= 1
  for column in counts.T:
    sizes = column[column > 0]
    assert sizes.max() - sizes.min() <= 1  # Divided evenly.
  assert counts.sum() == _LABELS.size


@pytest.mark.parametrize('exponent', [0.0, 0.5, 1.0, 2.0, 30.0])
def test_sizes_follow_the_power_law(exponent):
  labels = np.zeros(100_000, int)
  clients = partition.split(labels, partition='size', num_clients=50,
                            size_exponent=exponent, seed=3)
  sizes = np.sort(np.bincount(clients))[::-1]
  weights = np.arange(1, 51) ** -exponent
  expected = 1 + (100_000 - 50) * weights / weights.sum()
  assert np.all(np.abs(sizes - expected) <= 1.0)
  if exponent:
    assert int(np.argmax(np.bincount(clients))) != 0  # Ranks are random.


def test_iid_and_size_ignore_the_labels():
  for name in ('iid', 'size'):
    splits = [partition.split(labels, partition=name, num_clients=7, seed=0)
              for labels in (_LABELS, np.zeros_like(_LABELS))]
    assert np.array_equal(*splits)


@pytest.mark.parametrize('arguments, message', [
    ({'num_clients': 0}, 'num_clients must be an integer from 1 to the 1000'),
    ({'num_clients': 2.0}, 'num_clients'),
    ({'num_clients': True}, 'num_clients'),
    ({'partition': 'dirichlet', 'dirichlet_alpha': 0.0},
     'dirichlet_alpha must be a finite number greater than 0'),
    ({'partition': 'dirichlet', 'dirichlet_alpha': float('nan')}, 'dirichlet_alpha'),
    ({'partition': 'dirichlet', 'dirichlet_alpha': float('inf')}, 'dirichlet_alpha'),
    ({'seed': 1.5}, 'data_seed'),
    ({'partition': 'random'}, 'partition must be one of dirichlet, iid, labels, size'),
    ({'partition': 'iid', 'dirichlet_alpha': 1.0}, 'iid does not use dirichlet_alpha'),
    ({'partition': 'size', 'labels_per_client': 1}, 'size does not use labels_per'),
    ({'partition': 'size', 'size_exponent': -1.0}, 'size_exponent must be a finite'),
    ({'partition': 'size', 'size_exponent': float('nan')}, 'size_exponent'),
    ({'partition': 'size', 'num_clients': 1001}, 'num_clients .* found 1001'),
    ({'partition': 'iid', 'seed': -1}, 'data_seed must be an integer from 0 on'),
    ({'partition': 'labels', 'labels_per_client': 0}, 'labels_per_client must be an'),
    ({'partition': 'labels', 'labels_per_client': 11}, 'from 1 to the 10 labels'),
    ({'partition': 'labels', 'labels_per_client': 1, 'num_clients': 9},
     'leave some of the 10 labels to no client'),
    ({'partition': 'labels', 'labels_per_client': 10, 'num_clients': 200},
     'need 200 examples of label')])
def test_bad_arguments_of_split_are_named(arguments, message):
  with pytest.raises(ValueError, match=message):
    partition.split(_LABELS, **{
        'partition': 'iid', 'num_clients': 5, 'seed': 0, **arguments})


def test_label_counts_count():
  counts = partition.label_counts(np.array([0, 2, 2, 1]), np.array([1, 1, 1, 0]))
  assert counts.tolist() == [[0, 1, 0], [1, 0, 2]]
