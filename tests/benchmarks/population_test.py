"""The benchmark of populations trains on each of them."""

import json

import pytest

from benchmarks import population
from tasks.sources import sqlite


@pytest.mark.slow
def test_the_quick_run_trains_on_every_population(tmp_path, capsys):
  path = tmp_path / 'rows.json'
  population.main(['--quick', f'--json={path}', f'--folder={tmp_path}'])
  rows = json.loads(path.read_text(encoding='utf-8'))['rows']
  assert [row['name'] for row in rows] == [
      'open', 'peak memory', 'round', 'round'] * 2
  assert all(row['ours'] > 0 for row in rows)
  assert rows[2]['ratio'] == 1 and rows[6]['peer'] == rows[2]['ours']
  assert len(capsys.readouterr().out.splitlines()) >= 2 + len(rows)
  assert list(tmp_path.iterdir()) == [path]  # The populations are gone.


def test_populations_are_whole(tmp_path):
  population.write(tmp_path / 'some.sqlite', 300)
  source = sqlite.SqliteSource(tmp_path / 'some.sqlite', 'train')
  assert source.client_ids == [f'{client:08}' for client in range(300)]
  assert source.read_in_graph is not None
  first, last = (source.examples(source.client_ids[i]) for i in (0, 299))
  assert first['x'].shape == last['x'].shape == (1, population.FEATURES)
  assert not (first['x'] == last['x']).all()
