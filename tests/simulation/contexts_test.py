"""Tests of tff_pipelines.simulation.contexts."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_pipelines.simulation import contexts


def _current():
  return tff.framework.get_context_stack().current


_modular_total = tff.federated_computation(
    lambda x: tff.backends.mapreduce.federated_secure_modular_sum(x, 2**30),
    tff.FederatedType(np.int32, tff.CLIENTS))
VALUES = [2**30 - 1] * 9  # Beyond an int32 before it is reduced.


def test_this_process_runs_secure_sums(in_process):
  assert _modular_total(VALUES) == 9 * (2**30 - 1) % 2**30


@pytest.mark.parametrize('clients', [9, 1, 0])
def test_several_workers_run_secure_sums_of_any_number(two_workers, clients):
  assert _modular_total(VALUES[:clients]) == clients * (2**30 - 1) % 2**30


def test_the_context_lives_as_long_as_the_block():
  before, double = _current(), tff.tensorflow.computation(lambda x: 2 * x, np.int32)
  with contexts.simulation():
    outer = _current()
    assert outer is not before
    assert double(21) == 42
    with contexts.simulation(local_workers=2):
      assert _current() not in (before, outer)
      assert _modular_total(VALUES) == 9 * (2**30 - 1) % 2**30
    assert _current() is outer
    assert double(4) == 8
    with pytest.raises(RuntimeError, match='by the test'):
      with contexts.installed(before):
        raise RuntimeError('by the test')
    assert _current() is outer
  assert _current() is before


def test_a_negative_number_of_workers_is_refused():
  with pytest.raises(ValueError, match='local_workers .* found -1'):
    with contexts.simulation(local_workers=-1):
      pass


def test_no_workers_are_started_unless_they_are_asked_for(monkeypatch):
  monkeypatch.setattr(contexts.local_processes, 'LocalProcesses', None)
  with contexts.simulation():
    assert _modular_total(VALUES) == 9 * (2**30 - 1) % 2**30
  with pytest.raises(TypeError):
    with contexts.simulation(local_workers=1):
      pass


def test_client_keys_differ_by_seed_round_and_client_and_repeat():
  names = [(s, r, c) for s in range(10) for r in range(10) for c in range(20)]
  drawn = {tuple(contexts.client_key(*name)) for name in names}
  assert len(drawn) == len(names)
  key = contexts.client_key(1, 2, 3)
  np.testing.assert_array_equal(key, contexts.client_key(1, 2, 3))
  assert key.dtype == np.int64 and key.shape == (2,)
  # Numbers do not run together: 1, 23 is not 12, 3.
  assert tuple(contexts.client_key(0, 1, 23)) != tuple(contexts.client_key(0, 12, 3))
