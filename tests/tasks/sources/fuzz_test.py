"""Damaged files are refused or copied."""

import pytest

from tests.tasks.sources import fuzz, fuzz_inputs


@pytest.mark.slow
@pytest.mark.parametrize('format_', fuzz_inputs.FORMATS)
def test_damaged_files_are_refused_or_copied(format_):
  report = fuzz.run(format_, inputs=fuzz.QUICK, batch=fuzz.QUICK)
  assert not report.findings, report.findings[0]
  assert sum(report.counts.values()) == fuzz.QUICK
  copied = sum(count for outcome, count in report.counts.items() if 'copied' in outcome)
  assert fuzz.QUICK // 10 < copied < fuzz.QUICK * 9 // 10
