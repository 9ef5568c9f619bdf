"""Quick runs of the benchmarks in this process: every row is measured and printed."""

import json
import math

import pytest

from benchmarks import (accounting, commit, kernels, measure, memory, native_integers,
    population, round as round_lib, sources)
from benchmarks.results import __main__ as results

pytestmark = pytest.mark.usefixtures('shared_context')


@pytest.fixture(name='small', autouse=True)
def _small(monkeypatch):
  """Sizes at which next to all the time is that of compiling."""
  monkeypatch.setattr(kernels, '_LEAST', 2**9)
  monkeypatch.setattr(round_lib, 'QUICK_SETTINGS', (
      round_lib.Setting(model='softmax', clients=6, examples=3, target_tff=20),))
  monkeypatch.setattr(sources, '_measured', None)  # Would be an error if called.


@pytest.mark.slow
@pytest.mark.parametrize('script, flags, names', [(commit, [], []),
    (kernels, [], ['encoding', 'decoding']),
    (population, [], ['open', 'peak memory', 'round']),
    (round_lib, ['--no_memory', '--no_pfl'],
     ['plain mean, TFF', 'Skellam, TFF ddp', 'Skellam over our plain mean']),
    (round_lib, ['--reading'], ['read by the chunk over one by one, median']),
    (sources, [], ['open']),], ids=lambda value: getattr(value, '__name__', ''))
def test_a_quick_run_measures_every_row(script, flags, names, tmp_path, capsys):
  path = str(tmp_path / 'rows.json')
  script.main(['--quick', f'--json={path}', *flags])
  rows = measure.read(path)
  assert set(names) <= {row.name for row in rows}
  printed = capsys.readouterr().out
  for row in rows:
    assert math.isfinite(row.ours) and row.name in printed
    # Small runs take less than a tick of the processor's clock, and differences of
    # their times may have any sign.
    assert (row.ours > 0 or 'memory' in row.name or row.peer is None
            or row.unit.startswith('cpu') or row.name in (
                'distributed sum, net', 'fixed cost'))


def test_memory_of_a_run_is_measured(tmp_path):
  path = str(tmp_path / 'rows.json')
  memory.main(['--rounds=5', '--workers=0', f'--json={path}'])
  row, = measure.read(path)
  assert row.ours > 100
  assert measure.peak_bytes(worker=False) > 50e6


def test_both_methods_of_accounting_find_the_same_noise(capsys):
  accounting.main(['--json'])
  result = json.loads(capsys.readouterr().out)
  assert result['noise_multiplier'] == pytest.approx(
      result['noise_multiplier_nested_minimisation'], rel=1e-3)


def test_integers_of_one_mechanism_are_compared(capsys):
  native_integers.main(['--quick', '--mechanism=none'])
  assert capsys.readouterr().out == ('none: 24576 coordinates, 0 differ\n'
      'decoded: 24576 coordinates, 0 differ\n')


def test_a_full_run_needs_the_data(capsys, monkeypatch):
  monkeypatch.delenv('DATA_DIR', raising=False)
  with pytest.raises(SystemExit):
    results.main([])
  assert '--data_dir must name the folder' in capsys.readouterr().err
