"""The tables of FedMD: the runs that they need, and their contents."""

import math

import pytest

from benchmarks import documents, fedmd_cases, results_fedmd
from tests import modules


def test_epsilons_of_the_paper_are_decimal_logarithms():
  cases = [case for case in fedmd_cases.cases() if case.printed_epsilon is not None]
  assert {case.changes['subset_size'] for case in cases} == {16, 60, 120, 300, None}
  for case in cases:
    decimal = case.paper_epsilon / math.log(10)
    if case.changes['subset_size'] == 16:
      # Its rows have the values of k = 18.
      decimal *= 18 / 16
    assert case.printed_epsilon == pytest.approx(decimal, abs=1.01e-4)


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
