"""The benchmark of clients' files measures every format and population."""

import json
import math

import pytest

from benchmarks import sources


@pytest.mark.slow
def test_the_quick_run_measures_everything_in_this_process(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(sources, '_measured', None)  # Would be an error if called.
  path = tmp_path / 'rows.json'
  sources.main(['--quick', f'--json={path}'])
  rows = json.loads(path.read_text(encoding='utf-8'))['rows']
  names = [row['name'] for row in rows]
  for format_ in sources.FORMATS:
    assert sum(name.startswith(f'{format_}: ') for name in names) == 5
  assert sum(name.startswith('checksums: ') for name in names) == 4
  assert names.count('open') == len(sources.QUICK_SIZES)
  assert sum(name.startswith('growth of ') for name in names) == 3
  assert all(math.isfinite(row['ours']) for row in rows)
  assert all(row['ours'] > 0 for row in rows if 'memory' not in row['name'])
  assert len(capsys.readouterr().out.splitlines()) > len(rows)


def test_clients_are_read_once_in_all_repeats():
  read = []
  sources._median_ms(read.append, list(range(1000)), 3)
  assert len(read) == len(set(read)) == 3 * sources.READS
  read.clear()
  sources._median_ms(read.append, list(range(7)), 2)
  assert sorted(read) == list(range(7))
