"""The quick run of the script about tables, which needs no network."""

import pytest

from benchmarks import tabular


@pytest.mark.slow
@pytest.mark.usefixtures('shared_context')
def test_tables_are_compared_with_central_training(capsys):
  assert tabular.main(['--quick']) == 0
  header, rule, row = capsys.readouterr().out.splitlines()
  assert header.count('|') == row.count('|') == rule.count('|') == 9
  name, model, metric, constant, central, *ours = row.strip('| ').split(' | ')
  assert name.startswith('breast_cancer')
  assert (model, metric) == ('logistic', 'accuracy')
  assert 0.5 < float(constant) < 0.7 and float(central) > 0.9
  assert all(0 <= float(value) <= 1 for value in ours)
