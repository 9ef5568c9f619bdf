"""The inventory of the papers: complete entries, commands that parse, a page."""

import collections
import math
import shlex

import pytest
from scipy import stats

from benchmarks.results import papers, rows as rows_lib
from tff_pipelines.experiment import cli

COMMANDS = sorted({claim.command for claim in papers.CLAIMS if claim.command})


def test_every_claim_has_rows_or_a_reason_or_describes():
  for claim in papers.CLAIMS:
    answered = bool(claim.rows) or claim.reason is not None
    assert answered != claim.describes, claim
    assert claim.command is None or claim.reason is not None, claim
    assert claim.paper in papers.PAPERS and len(claim.what.split()) <= 10, claim


def test_names_are_unique():
  names = collections.Counter(
      (claim.paper, claim.place, claim.what) for claim in papers.CLAIMS)
  assert max(names.values()) == 1
  for claim in papers.CLAIMS:
    assert len(set(claim.rows)) == len(claim.rows)
    for row in claim.rows:
      section, _, name = row.partition('/')
      assert section in papers.SECTIONS and name


def test_every_table_of_the_papers_is_complete():
  found = collections.Counter(
      (claim.paper, claim.place) for claim in papers.CLAIMS if claim.printed)
  # Rows of results that the papers print.
  assert {key: count for key, count in found.items() if 'Table' in key[1]} == {
      ('voting', 'Table 1'): 12, ('voting', 'Table 2'): 16, ('voting', 'Table 3'): 12,
      ('fedmd', 'Table 2'): 12, ('fedmd', 'Table 3'): 12, ('fedmd', 'Table 4'): 4,
      ('fedmd', 'Table 5'): 4, ('ldp', 'Table 1'): 20}


@pytest.mark.parametrize('command', COMMANDS)
def test_a_command_is_accepted_by_its_program(command):
  python, dash_m, module, *arguments = shlex.split(command)
  assert (python, dash_m) == ('python', '-m')
  main = rows_lib.main_of(module.removeprefix('tff_pipelines.'))
  settings = cli.parsed(main.args[1], arguments)
  # No flag makes noise predictable.
  assert getattr(settings, 'seed', None) is None


def test_stated_mistakes_are_those_of_the_formulas():
  """Numbers of the notes, by formulas written out here."""
  def converted(rdp_slope, delta):  # The best order of Mironov's conversion.
    return rdp_slope + 2 * math.sqrt(rdp_slope * math.log(1 / delta))

  texts = ' '.join(claim.mistake or '' for claim in papers.CLAIMS)
  for slope, delta, printed in (
      (500 / (2 * 25**2), 1e-3, '3.73'), (500 / (2 * 30**2), 1e-3, '3.05'),
      (600 * 4 / (2 * 50**2), 1e-3, '4.13'), (206 / (50 * 15**2), 1e-4, '0.84')):
    assert f'{converted(slope, delta):.2f}' in (printed, f'{float(printed) - 0.01:.2f}')
    assert f'an epsilon of {printed}' in texts
  # One sampled round of Gaussian noise, sigma = 0.06, at an epsilon of 160.
  epsilon = 160 - math.log(0.05)
  delta = 0.05 * (stats.norm.cdf(0.5 / 0.06 - 0.06 * epsilon) - math.exp(
      epsilon + stats.norm.logcdf(-0.5 / 0.06 - 0.06 * epsilon)))
  assert delta > 1e-3
  # The values of k = 18 in decimal logarithms.
  for records, epsilon in ((2880, '0.0027'), (300, '0.0260')):
    assert f'{18 * math.log10((records + 1) / records):.4f}' == epsilon


def test_the_page_shows_every_claim_once():
  row = 'voting/mnist-ae'
  text = papers.page({row: ('97.6 ± 0.5', 'met')})
  assert f'| `{row}` | 97.6 ± 0.5 | met |' in text
  assert '| `ldp/mnist-krr-5` | – | not run yet |' in text
  assert text.count('| not run yet |') == sum(
      len([one for one in claim.rows if one != row]) for claim in papers.CLAIMS)
  for paper in papers.PAPERS.values():
    assert f'arXiv {paper["arxiv"]}.' in text
  for claim in papers.CLAIMS:
    assert claim.what in text and (claim.command or '') in text
  for line in text.splitlines():
    if line.startswith('|'):
      assert line.count('|') in (6, 8), line
