"""A vote that is killed before its labels are kept may be held, and charged, twice."""

import json

import pytest

from tests import kills
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.voting import run as vote_run

VOTE = kills.FAMILIES['vote']


@pytest.mark.slow
def test_votes_that_the_server_may_have_seen_twice_count_twice(launcher, tmp_path):
  folder = tmp_path / 'run'
  flags = [*(flag for flag in VOTE.flags if not flag.startswith('--seed')),
           f'--output_dir={folder}']
  run = launcher.start(VOTE.module, *flags)
  kills.wait_until(
      lambda: (folder / vote_run.QUERIES).exists() or run.poll() is not None)
  run.kill()
  assert run.code in (0, -9), run.stderr  # On a busy machine it may have ended.
  assert launcher.run(VOTE.module, *flags, '--resume').code == 0
  summary = json.loads((folder / 'summary.json').read_text())
  (line,) = ledger_lib.Ledger(folder / 'ledger.jsonl').lines()
  if line['starts'] == 2:  # Killed before the vote was kept.
    assert summary['epsilon_server'] > 1.3 * summary['epsilon']
  else:
    assert summary['epsilon_server'] == summary['epsilon']
