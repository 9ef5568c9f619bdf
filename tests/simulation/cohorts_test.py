"""Tests of tff_pipelines.simulation.cohorts."""

import numpy as np

from tff_pipelines.simulation import cohorts


def test_client_keys_differ_by_seed_round_and_client_and_repeat():
  names = [(s, r, c) for s in range(10) for r in range(10) for c in range(20)]
  drawn = {tuple(cohorts.client_key(*name)) for name in names}
  assert len(drawn) == len(names)
  key = cohorts.client_key(1, 2, 3)
  np.testing.assert_array_equal(key, cohorts.client_key(1, 2, 3))
  assert key.dtype == np.int64 and key.shape == (2,)
  # Numbers do not run together: 1, 23 is not 12, 3.
  assert tuple(cohorts.client_key(0, 1, 23)) != tuple(cohorts.client_key(0, 12, 3))
