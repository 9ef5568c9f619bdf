"""Rows of measurements, and the peer that runs in a process of its own."""

import pathlib
import sys

import pytest

from benchmarks import measure
from benchmarks import round as round_lib

SETTING = round_lib.Setting(model='softmax', clients=6, examples=3, target_tff=20)


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


@pytest.mark.slow
def test_functions_are_called_alternately_after_warming_up():
  calls = []
  times = measure.in_turns(
      {'a': lambda: calls.append('a'), 'b': lambda: calls.append('b')}, 2, warm_ups=1)
  assert calls == ['a', 'b'] * 3
  assert {len(of.wall) for of in times.values()} == {2}
  assert all(t >= 0 for of in times.values() for t in of.wall + of.cpu)
  slow = measure.Times(wall=[3.0, 5.0, 4.0], cpu=[1.0, 1.0, 2.0])
  fast = measure.Times(wall=[1.0, 1.0, 3.0], cpu=[0.5, 1.0, 0.5])
  assert slow.medians() == (4.0, 1.0) and slow.net(fast) == (2.0, 0.5)


_PEER = """
import sys

def run():
  if len(setting['model']) > 7:
    sys.exit('no such model')

def build(found):
  global setting
  setting = found
  return setting['clients'] * setting['batch'], run

pfl_peer.main(build=build)
"""


def test_rounds_of_the_peer_are_run_in_its_process(tmp_path, monkeypatch):
  (tmp_path / 'peer.py').write_text(_PEER)
  python = tmp_path / 'python'
  python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path / "peer.py"}\n')
  python.chmod(0o755)
  monkeypatch.setenv(
      'PYTHONPATH', str(pathlib.Path(round_lib.__file__).parents[1]))
  peer = round_lib.fastest_pfl(str(python), SETTING)
  assert peer.parameters == 6 * round_lib.BATCH
  peer()
  peer()
  peer.stop()
  peer = round_lib.PflRound(str(python), round_lib.Setting(
      model='softmaxes', clients=2, examples=3), threads=1)
  with pytest.raises(OSError, match='pfl ended'):
    peer()
  peer.stop()
