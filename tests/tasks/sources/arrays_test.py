"""Tests of tasks.sources.arrays."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from tasks.sources import arrays as sources

@hypothesis.settings(deadline=None, max_examples=100)
@hypothesis.given(st.lists(st.integers(-3, 3), min_size=1, max_size=40))
def test_arrays_by_client_gives_back_every_example_in_order(clients):
  clients = np.array(clients)
  values = np.arange(clients.size)
  source = sources.ArraysByClient({'v': values, 'w': -values}, clients)
  assert list(source.client_ids) == [str(c) for c in np.unique(clients)]
  for client in source.client_ids:
    examples = source.examples(client)
    np.testing.assert_array_equal(
        examples['v'], values[clients == int(client)])
    np.testing.assert_array_equal(examples['w'], -examples['v'])


def test_arrays_by_client_takes_names_as_clients():
  source = sources.ArraysByClient(
      {'v': np.arange(3, dtype=np.int32)}, np.array(['b', 'a', 'b']))
  assert source.client_ids == ('a', 'b')
  assert source.examples('b')['v'].tolist() == [0, 2]
  assert dict(source.element_spec) == {'v': (np.dtype(np.int32), ())}


@pytest.mark.parametrize('clients', [[0, 0, 1], [1, 0, 1]])
def test_examples_of_a_client_cannot_be_written_to(clients):
  values = np.arange(3)
  source = sources.ArraysByClient({'v': values}, np.array(clients))
  with pytest.raises(ValueError, match='read-only'):
    source.examples('1')['v'][0] = 9
  values[0] = 0  # The caller's own array stays writable.


@pytest.mark.parametrize('values, clients, message', [
    (np.arange(3), np.array([0, 1]), 'v has shape .3. but there are 2 clients'),
    (np.zeros([0]), np.zeros([0], int), 'at least one example'),
    (np.arange(2), np.array([0.0, np.nan]), 'integer or string per example'),
    (np.arange(2), np.array([[0], [1]]), 'integer or string per example'),
])
def test_arrays_by_client_rejects(values, clients, message):
  with pytest.raises(ValueError, match=message):
    sources.ArraysByClient({'v': values}, clients)


def test_unknown_client_is_named():
  source = sources.ArraysByClient({'v': np.arange(1)}, np.array([5]))
  with pytest.raises(ValueError, match="no client 'x'"):
    source.examples('x')
