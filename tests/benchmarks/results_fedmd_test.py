"""The tables of FedMD: the runs that they need, and their contents."""

import math

import pytest

from benchmarks import documents, fedmd_cases, results_fedmd
from tests import modules


def _result(key, accuracy, seed=0, epsilon=0.19971):
  return dict(
      run=f'{key}-{seed}', case=key, seed=seed, task='cifar', rounds=20,
      public_per_round=5000, accuracy=accuracy, epsilon=epsilon, delta=0.18154,
      noise_scale=None, records=[300] * 10, history=[[accuracy] * 10], starts=1,
      seconds=60.0, cpu_seconds=60.0, warnings=[])


def _results(*results):
  return {result['run']: result for result in results}


def test_epsilons_of_the_paper_are_decimal_logarithms():
  cases = [case for case in fedmd_cases.cases() if case.printed_epsilon is not None]
  assert {case.changes['subset_size'] for case in cases} == {16, 60, 120, 300, None}
  for case in cases:
    decimal = case.paper_epsilon / math.log(10)
    if case.changes['subset_size'] == 16:
      # Its rows have the values of k = 18.
      decimal *= 18 / 16
    assert case.printed_epsilon == pytest.approx(decimal, abs=1.01e-4)


def test_table_has_the_numbers_of_the_paper_and_ours_side_by_side():
  done = _results(*(_result('cifar-k60-with', a, seed) for seed, a in enumerate(
      (0.70, 0.71, 0.72))), _result('cifar-np', 0.8, epsilon=None))
  lines = results_fedmd.table(done, '5').splitlines()
  assert lines[2] == (
      '| CIFAR | k = 60, with replacement | 81.58 | 71.00 (70.00, 71.00, 72.00) | '
      '0.0867 | 0.1997 | 300 | 0.1998, 0.1816 |')
  assert len(lines) == 3  # What was not run has no row.
  assert '| FedMD-NP | 86.88 | 80.00 | – | – | 300 | – |' in results_fedmd.table(
      done, '2')
  assert results_fedmd.table(done, '4') is None
  assert results_fedmd.table({}, '2') is None and results_fedmd.sizes({}) is None


def test_page_of_the_project_has_all_marks():
  page = modules.ROOT / 'docs' / 'fedmd.md'
  text = page.read_text(encoding='utf-8')
  for name in ('sizes', 'claims', *fedmd_cases.TABLES):
    assert f'<!-- fedmd {name}: begin -->' in text


def _tiny(key='tiny', **changes):
  return fedmd_cases.Case(
      key=key, table='2', name='tiny', task='digits', changes={
          'num_clients': 2, 'pretrain_epochs': 1, 'initial_epochs': 1,
          'architectures': ('dense2',), **changes})


@pytest.mark.slow
def test_script_fills_the_page_and_continues_its_runs(
    tmp_path, capsys, monkeypatch, shared_context):
  del shared_context
  case = _tiny(mode='np')
  monkeypatch.setattr(fedmd_cases, 'cases', lambda: [case])
  monkeypatch.setattr(fedmd_cases, 'runs', lambda: [(case, 0)])
  monkeypatch.setitem(fedmd_cases.TASK_NAMES, 'digits', 'digits')
  page = tmp_path / 'page.md'
  page.write_text(''.join(
      f'<!-- fedmd {name}: begin -->\n<!-- fedmd {name}: end -->\n'
      for name in ('sizes', '2')), encoding='utf-8')
  flags = ['--rounds=1', '--public_per_round=40', '--data_path=.',
           f'--document={page}', f'--output_dir={tmp_path}']
  results_fedmd.main(flags)
  assert 'mean accuracy' in capsys.readouterr().out
  assert '| digits | tiny |' in page.read_text(encoding='utf-8')
  folder = tmp_path / 'r1-p40'
  first = documents.read(folder, 'run')['tiny-0']
  assert first['starts'] == first['rounds'] == 1 and len(first['history']) == 2
  assert first['accuracy'] == pytest.approx(sum(first['history'][-1]) / 2)
  # What is done is not run again.
  results_fedmd.main(flags)
  assert 'mean accuracy' not in capsys.readouterr().out
  second = results_fedmd.Runner(folder, None, 1, 40).run(case, 0)
  assert second['starts'] == 2 and second['history'] == first['history']
