"""A quick run of the benchmark of the distributed sum."""

import math

import pytest

from benchmarks import aggregation
from benchmarks import measure


@pytest.mark.slow
def test_a_quick_run_measures_every_kernel_and_both_factories(tmp_path, capsys):
  path = str(tmp_path / 'rows.json')
  rows = aggregation.main(['--quick', f'--json={path}'])
  assert measure.read(path) == rows
  params = aggregation.our_params(
      aggregation.QUICK_KERNEL_DIMENSION, aggregation.KERNEL_COHORT,
      aggregation.KERNEL_BITS)
  assert set(aggregation.kernel_pairs(params)) < {row.name for row in rows}
  whole = [row for row in rows if row.name == 'distributed sum, net']
  assert {row.unit for row in whole} == {'ms/client', 'cpu-ms/client'}
  printed = capsys.readouterr().out
  for row in rows:
    assert math.isfinite(row.ours) and row.name in printed
