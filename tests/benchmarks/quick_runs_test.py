"""Quick runs of the scripts about voting and local distillation, in this process."""

import json

import pytest

from benchmarks import documents
from benchmarks import kernels
from benchmarks import machines
from benchmarks import memory
from benchmarks import native_integers
from benchmarks import results_ldp
from benchmarks import results_voting
from benchmarks import voting


@pytest.mark.slow
def test_voting_is_compared_in_every_row(tmp_path, capsys):
  path = tmp_path / 'rows.json'
  voting.main(['--quick', f'--json={path}'])
  rows = json.loads(path.read_text(encoding='utf-8'))['rows']
  assert [row['name'].partition(',')[0] for row in rows] == [
      'neighbours', 'neighbours', 'ballots', 'agents of softmax',
      'agents of cnn_small']
  assert all(row['ours'] > 0 and row['peer'] > 0 for row in rows)
  printed = capsys.readouterr().out
  assert all(row['name'] in printed for row in rows)


@pytest.mark.slow
def test_every_kernel_is_timed_against_the_graph(tmp_path):
  path = tmp_path / 'rows.json'
  kernels.main(['--quick', f'--json={path}'])
  rows = json.loads(path.read_text(encoding='utf-8'))['rows']
  assert len(rows) == 13 and all(row['ours'] > 0 for row in rows)
  assert [row['name'] for row in rows if row['peer'] is None] == ['copy of the vector']


def test_integers_of_one_mechanism_are_compared(capsys):
  native_integers.main(['--quick', '--mechanism=none'])
  assert capsys.readouterr().out == (
      'none philox: 24576 coordinates, 0 differ\n'
      'decoded: 24576 coordinates, 0 differ\n')


@pytest.mark.slow
@pytest.mark.parametrize('script, runs, rows', [
    (results_voting, 3, ('AE-DPFL, agents on public features', 'FedAvg, no privacy')),
    (results_ldp, 4, ('LDP-DL, ε of the one answer', 'DP-SGD, ε of a record'))])
def test_results_are_kept_and_fill_a_page_and_a_figure(
    script, runs, rows, tmp_path, capsys):
  page, picture = tmp_path / 'page.md', tmp_path / 'a.png'
  names = ('mnist', 'sampling')
  page.write_text(''.join(f'<!-- {name}: begin -->\n<!-- {name}: end -->\n'
                          for name in names), encoding='utf-8')
  flags = ['--quick', f'--output_dir={tmp_path}', f'--document={page}',
           f'--picture={picture}']
  script.main(flags)
  first = capsys.readouterr().out
  assert f'{runs}/{runs} ' in first
  text = page.read_text(encoding='utf-8')
  assert all(f'| {row}' in text for row in rows)
  assert picture.stat().st_size > 1000
  lines = documents.read(tmp_path)
  assert len(lines) == runs and all(0 <= line['accuracy'] <= 1
                                    for line in lines.values())
  # What is done is not run again, and gives the same page.
  script.main(flags)
  assert f'{runs}/{runs} ' not in capsys.readouterr().out
  assert page.read_text(encoding='utf-8') == text
  script.main([*flags, '--list', '--only=mnist'])
  commands = capsys.readouterr().out.splitlines()
  assert len(commands) == 2 and all(' -m tff_pipelines.' in line for line in commands)


@pytest.mark.parametrize('script', [results_voting, results_ldp])
def test_a_full_run_needs_the_data(script, capsys, monkeypatch):
  monkeypatch.delenv('DATA_DIR', raising=False)
  with pytest.raises(SystemExit):
    script.main([])
  assert '--data_dir must name the folder' in capsys.readouterr().err


@pytest.mark.slow
def test_machines_and_memory_are_measured(tmp_path, capsys):
  path = tmp_path / 'rows.json'
  machines.main(['--quick', f'--json={path}'])
  rows = json.loads(path.read_text(encoding='utf-8'))['rows']
  assert [row['unit'] for row in rows] == 2 * ['ms/client', 'MB/round'] + ['ms/round']
  assert all(row['ours'] > 0 for row in rows[:4])
  # Clients travel as ids: their images alone are 0.3 MB.
  assert rows[3]['ours'] < 0.2
  memory.main(['--rounds=5', '--workers=0', f'--json={path}'])
  row, = json.loads(path.read_text(encoding='utf-8'))['rows']
  assert row['ours'] > 100 and '5: ' in capsys.readouterr().out
