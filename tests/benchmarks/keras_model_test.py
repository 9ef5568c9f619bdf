"""The benchmark of models from Keras runs, and compares the same network."""

import pytest

from benchmarks import keras_model
from benchmarks import measure


@pytest.mark.slow
def test_quick_run_compares_wall_and_processor_time(tmp_path, capsys):
  path = str(tmp_path / 'rows.json')
  keras_model.main(['--quick', f'--json={path}'])
  rows = measure.read(path)
  assert [row.unit for row in rows] == ['ms/client', 'cpu-ms/client']
  assert all(row.ours > 0 and row.peer > 0 and row.target == 1.3 for row in rows)
  assert 'cnn_small, from Keras' in capsys.readouterr().out
