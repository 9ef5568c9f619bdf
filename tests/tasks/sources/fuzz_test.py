"""Damaged files are refused or copied."""

import pytest

from tests.tasks.sources import fuzz, fuzz_inputs


@pytest.mark.slow
@pytest.mark.parametrize('format_', fuzz_inputs.FORMATS)
def test_damaged_files_are_refused_or_copied(format_):
  outcomes = fuzz.run(format_, inputs=fuzz.QUICK)
  assert len(outcomes) == fuzz.QUICK and not fuzz.findings(outcomes)
  assert fuzz.QUICK // 10 < sum('copied' in outcome for outcome in outcomes) < (
      fuzz.QUICK * 9 // 10)
