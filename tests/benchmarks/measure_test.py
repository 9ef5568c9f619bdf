"""Rows of measurements, and the peer that runs in a process of its own."""

import pytest

from benchmarks import measure


def _row(**changes):
  return measure.Row(**{
      'name': 'sum', 'sizes': 'd=4', 'ours': 2.0, 'peer': 5.0, 'unit': 'ms', **changes})


@pytest.mark.parametrize('changes, ratio, met, target', [
    ({}, 2.5, None, ''), ({'target': 2.5}, 2.5, True, 'at least 2.5: met'),
    ({'target': 2.6}, 2.5, False, 'at least 2.6: not met'),
    ({'target': 2.5, 'smaller_is_met': True}, 2.5, True, 'at most 2.5: met'),
    ({'target': 2.4, 'smaller_is_met': True}, 2.5, False, 'at most 2.4: not met'),
    ({'peer': None, 'target': 3.0}, None, None, 'at least 3: not met'),
    ({'ours': 0.0}, None, None, '')])
def test_ratio_is_that_of_peer_over_ours(changes, ratio, met, target):
  row = _row(**changes)
  assert (row.ratio, row.met, row.describe_target()) == (ratio, met, target)


def test_rows_are_written_read_and_printed(tmp_path, capsys):
  path = str(tmp_path / 'rows.json')
  rows = [_row(target=3.0), _row(name='floor', peer=None)]
  measure.write(rows, path)
  assert measure.read(path) == rows
  measure.main([path])
  lines = capsys.readouterr().out.splitlines()
  assert lines[0].startswith('cpu ') and 'commit ' in lines[0]
  assert lines[2:] == [
      '| what | sizes | ours | peer | ratio | unit | target |',
      '|---|---|---|---|---|---|---|',
      '| sum | d=4 | 2 | 5 | 2.5 | ms | at least 3: not met |',
      '| floor | d=4 | 2 |  |  | ms |  |', '']
  measure.write(rows, None)  # To nowhere.
