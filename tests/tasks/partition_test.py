"""Tests of tasks.partition."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from tasks import partition


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    data=st.data(), alpha=st.sampled_from([1e-3, 0.1, 1.0, 100.0]),
    seed=st.integers(0, 2**40))
def test_every_client_gets_its_share_of_examples(labels, data, alpha, seed):
  num_clients = data.draw(st.integers(1, len(labels)))
  clients = partition.dirichlet(
      np.array(labels), num_clients=num_clients, alpha=alpha, seed=seed)
  sizes = np.bincount(clients, minlength=num_clients)
  assert sizes.size == num_clients
  assert sizes.sum() == len(labels)
  assert sizes.min() >= 1
  assert sizes.max() - sizes.min() <= 1


def test_the_split_repeats_with_its_seed_and_differs_with_another():
  labels = np.arange(500) % 10
  split = lambda seed: partition.dirichlet(
      labels, num_clients=50, alpha=1.0, seed=seed)
  np.testing.assert_array_equal(split(3), split(3))
  assert np.mean(split(3) != split(4)) > 0.9


def _mean_labels_per_client(alpha):
  labels = np.arange(10_000) % 10
  clients = partition.dirichlet(labels, num_clients=100, alpha=alpha, seed=0)
  return np.mean([np.unique(labels[clients == c]).size for c in range(100)])


def test_alpha_sets_how_mixed_the_clients_are():
  # Of 10 labels, 100 examples a client. The last clients get what is left.
  assert _mean_labels_per_client(0.05) < 3.5
  assert 5 < _mean_labels_per_client(0.5) < 9
  assert _mean_labels_per_client(1000.0) > 9.8


@pytest.mark.parametrize('arguments, message', [
    ({'num_clients': 0}, 'num_clients must be an integer from 1 to the 20'),
    ({'num_clients': 21}, 'num_clients .* found 21'),
    ({'num_clients': 2.0}, 'num_clients'),
    ({'num_clients': True}, 'num_clients'),
    ({'alpha': 0.0}, 'dirichlet_alpha must be a finite number greater than 0'),
    ({'alpha': -1.0}, 'dirichlet_alpha .* found -1.0'),
    ({'alpha': float('nan')}, 'dirichlet_alpha'),
    ({'alpha': float('inf')}, 'dirichlet_alpha'),
    ({'seed': -1}, 'data_seed must be an integer from 0 on'),
    ({'seed': 1.5}, 'data_seed'),
])
def test_bad_arguments_are_named(arguments, message):
  good = {'num_clients': 4, 'alpha': 1.0, 'seed': 0}
  with pytest.raises(ValueError, match=message):
    partition.dirichlet(np.arange(20) % 3, **{**good, **arguments})
