"""The benchmark of commits measures a whole commit of each size."""

import json

from benchmarks import commit
from tff_pipelines.experiment import checkpoints


def test_the_quick_run_measures_both_sizes(tmp_path):
  path = tmp_path / 'rows.json'
  commit.main(['--quick', f'--json={path}', f'--folder={tmp_path}'])
  rows = json.loads(path.read_text(encoding='utf-8'))['rows']
  assert [row['sizes'] for row in rows] == ['0.03 MB'] * 3 + ['8 MB'] * 3
  assert all(row['ours'] > 0 and row['peer'] > 0 for row in rows)
  assert [row['peer'] for row in rows if row['target']] == [3.0, 15.0]
  assert [child.name for child in tmp_path.iterdir()] == ['rows.json']


def test_what_is_measured_commits_the_state(tmp_path):
  state = commit.state_of(0.03)
  commit.ours(tmp_path / 'run', state)(1)
  path = checkpoints.path_of(tmp_path / 'run/private/checkpoints', 1)
  assert 30_000 < path.stat().st_size < 34_000
  assert list(checkpoints.read(path).arrays) == [f'weights/{i}' for i in range(6)]
