"""The run report, common to all families."""

import dataclasses
import json
import math
import os
import pathlib
import re

import matplotlib.image
import numpy as np
import pytest

from tests import shells
from tests.experiment.example_plan import ExamplePlan
from tff_pipelines.accounting.guarantees import guarantee, plan as guarantee_lib
from tff_pipelines.common import caveats as caveats_lib
from tff_pipelines.experiment import report

GRID = caveats_lib.Caveat('coarse grid', 'the grid is coarse')
HELD_OUT = caveats_lib.Caveat('held out', 'held-out metrics are not protected')
DESCRIPTION = report.Description(
    lines=[('task', 'digits, 5 clients'), ('run', '3 rounds')],
    details=['a scale of 17'], caveats=[HELD_OUT])
FIELDS = {'task': 'digits', 'algorithm': 'fedavg', 'mechanism': 'gaussian',
          'accuracy': 0.75, 'held_out': {'test': {'loss': None}},
          'details': {'scale': 17.0}}


def _outcome(**changes):
  return report.Outcome(**{
      'result': 'test: accuracy 0.7500', 'fields': FIELDS, 'files': ['metrics.csv'],
      'details': ['digit 7: 0.2'], **changes})


def _summary(guarantee=None, outcome=None, caveats=()):
  return report.summary_of(
      'train', guarantee or ExamplePlan().guarantee(3), outcome or _outcome(), caveats,
      rounds=3, starts=1, configuration='abc')


def test_summary_has_the_keys_of_the_schema_and_the_numbers_of_the_guarantee():
  guarantee = ExamplePlan(total_variation=1e-9).guarantee(3)
  summary = _summary(guarantee, caveats=[GRID])
  assert list(summary) == list(report.SCHEMA)
  report.validate_summary(summary)
  assert summary['version'] == report.VERSION == 1
  assert {**summary, **guarantee.to_json()} == summary
  assert summary['epsilon'] == guarantee.outsiders.epsilon
  assert summary['epsilon_server'] == guarantee.server.epsilon
  assert summary['epsilon_server_any_cohorts'] == guarantee.server_any_cohorts.epsilon
  assert (summary['rounds'], summary['starts']) == (3, 1)
  assert summary['configuration'] == 'abc'
  assert (summary['caveats'], summary['warnings']) == (['coarse grid'], [str(GRID)])
  assert (summary['accuracy'], summary['model']) == (0.75, None)
  assert summary['breakdown'] == {}
  assert json.loads(json.dumps(summary)) == summary
  assert type(summary['warnings'][0]) is str


def test_further_numbers_of_guarantee_and_family_are_details():
  guarantee = ExamplePlan().guarantee(3)
  guarantee = dataclasses.replace(guarantee, further={'epsilon_published': 3.0})
  assert _summary(guarantee)['details'] == {'epsilon_published': 3.0, 'scale': 17.0}


@pytest.mark.parametrize('changes, message', [
    ({'unknown': 1}, r"summary has no keys \['unknown'\]"),
    ({'accuracy': 'high'}, "accuracy must be of type number or null, found 'high'"),
    ({'task': None}, 'task must be of type text, found None'),
    ({'held_out': []}, 'held_out must be of type object'),
    ({'bits': 17.5}, 'bits must be of type integer or null'),
    ({'accuracy': True}, 'accuracy must be of type'),
    ({'accuracy': math.nan}, 'JSON compliant')])
def test_fields_that_the_schema_does_not_allow_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    _summary(outcome=_outcome(fields={**FIELDS, **changes}))


def test_summary_with_missing_or_unknown_keys_is_invalid():
  summary = _summary()
  missing = {name: value for name, value in summary.items() if name != 'delta'}
  with pytest.raises(ValueError, match=r"missing: \['delta'\], unknown: \['more'\]"):
    report.validate_summary({**missing, 'more': 1})


def test_present_summary_is_read_as_it_is(tmp_path):
  path = tmp_path / 'summary.json'
  summary = _summary()
  path.write_text(json.dumps(summary))
  assert report.read_summary(path) == summary


def test_caveats_come_once_and_the_gravest_first():
  assert report.ordered(
      [GRID, guarantee.SIMULATED, HELD_OUT, GRID, guarantee_lib.SUPPRESSED,
       guarantee_lib.SEEDED]) == [
           guarantee_lib.SEEDED, guarantee_lib.SUPPRESSED, guarantee.SIMULATED,
           GRID, HELD_OUT]


def test_lines_are_labelled_and_wrapped_at_blanks():
  lines = report.lines_of([('task', 'one two ' * 12), ('', 'three'), ('end', '')], 10)
  assert lines[0].startswith('task        one two one')
  assert lines[1].startswith(' ' * 12 + 'one') or lines[1].startswith(' ' * 12 + 'two')
  assert lines[2:] == [' ' * 12 + 'three', 'end         ']
  assert ''.join(line[12:] + ' ' for line in lines[:2]).split() == ['one', 'two'] * 12
  # Names of flags stay whole.
  line, = report.lines_of([('x', 'a-b --flag=a-b')], 1)
  assert line == 'x           a-b --flag=a-b'


@pytest.mark.parametrize('most', [3, 4, 6, 10])
@pytest.mark.parametrize('seed', range(5))
def test_lines_never_exceed_what_a_terminal_shows(most, seed):
  rng = np.random.default_rng(seed)
  entries = [(f'label {i}', ' '.join('w' * n for n in rng.integers(1, 120, size=12)))
             for i in range(3)]
  lines = report.lines_of(entries, most)
  assert len(lines) <= most and max(map(len, lines)) <= 80
  # Every entry keeps a line.
  assert [line[:7] for line in lines if line.startswith('label')] == [
      'label 0', 'label 1', 'label 2']
  whole = report.lines_of(entries, 1000)
  if len(lines) < len(whole):
    assert any(line.endswith(' ...') for line in lines)


def test_the_last_of_the_longest_entries_is_cut_first():
  entries = [('notes', 'caveat ' * 12), ('files', 'file ' * 18), ('next', 'it')]
  assert len(report.lines_of(entries, 9)) == 5
  lines = report.lines_of(entries, 4)
  assert [line[:7].strip() for line in lines] == ['notes', '', 'files', 'next']
  assert lines[2].endswith(' file ...') and not lines[1].endswith('...')


def test_caveats_are_never_cut():
  entries = [('result', 'fine ' * 40), ('caveats', 'caveat ' * 60), ('next', 'it')]
  lines = report.lines_of(entries, 4)
  assert ''.join(lines).count('caveat ') + lines[-2].endswith('caveat') >= 60
  assert lines[0].endswith(' ...') and lines[1].startswith('caveats')


def test_a_command_is_not_cut_and_goes_on_as_in_a_shell():
  entries = [('files', 'file ' * 18), ('next', f'python -m program --x={"y" * 60}')]
  lines = report.lines_of(entries, 3)
  assert lines[0].endswith(' file ...') and lines[1:] == [
      'next        python -m program \\', f'            --x={"y" * 60}']


@pytest.mark.parametrize('name', shells.HOSTILE)
def test_the_printed_command_names_the_folder_whatever_it_is_called(name, tmp_path,
                                                                    monkeypatch):
  monkeypatch.chdir(tmp_path)
  command = report.account_command(pathlib.Path(name), '--delta=0')
  lines = report.lines_of([('result', 'x'), ('next', command)], 10)
  printed = '\n'.join(lines[1:]).removeprefix('next')
  assert shells.arguments(printed) == [
      'python', '-m', 'tff_pipelines.account', '--delta=0',
      f'--ledger={name}/ledger.jsonl']


def test_more_entries_than_lines_keep_the_first():
  assert report.lines_of([('a', 'x'), ('b', 'y'), ('c', 'z')], 2) == [
      'a           x', 'b           y']


def test_path_that_is_too_wide_loses_its_middle():
  line, = report.lines_of([('folder', '/start/' + 'x' * 100 + '/end')], 1)
  assert len(line) == 80
  assert line.startswith('folder      /start/') and line.endswith('xx/end')
  assert '...' in line


def test_folder_is_written_the_short_way(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert report.folder_name(tmp_path / 'run') == 'run'
  assert report.folder_name(pathlib.Path('/x')) == '/x'


def test_plan_on_the_terminal_has_epsilon_caveats_and_folder(tmp_path):
  guarantee = ExamplePlan(caveats=(GRID,)).guarantee(3)
  lines = report.plan_lines(DESCRIPTION, guarantee, tmp_path)
  assert lines[:2] == ['task        digits, 5 clients', 'run         3 rounds']
  assert lines[2] == f'epsilon     {guarantee.lines()[0]}'
  assert ' '.join(lines[3:-1]).split(None, 1)[0] == 'caveats'
  text = ' '.join(' '.join(lines).split())
  assert 'coarse grid; cohorts assumed to be hidden; held out folder' in text
  assert lines[-1].startswith('folder      ')


@pytest.mark.parametrize('suppressed', [False, True])
def test_report_on_the_terminal_is_short_and_complete(tmp_path, suppressed):
  guarantee = ExamplePlan().guarantee(3, suppressed=suppressed)
  caveats = report.ordered([*guarantee.caveats, GRID, HELD_OUT])
  outcome = _outcome(weakest="digit '7' 0%", figures={'progress.png': None})
  lines = report.report_lines(guarantee, outcome, caveats, tmp_path, '3 rounds')
  # Caveats are never cut.
  assert len(lines) <= 10 + suppressed and shells.width(lines) <= 80
  labels = [line[:12].strip() for line in lines if line[:12].strip()]
  assert labels == ['result', 'weakest', 'epsilon', 'neighbours', 'run', 'caveats',
                    'files', 'next']
  text = ' '.join(line[12:] for line in lines)
  epsilon, server = guarantee.lines()
  assert epsilon in text and server in text
  assert "one client's contribution is replaced by zero" in text
  assert ('suppressed rounds; ' in text) == suppressed
  assert 'report.html, report.txt, summary.json, ledger.jsonl' in text
  assert re.search(r'python -m tff_pipelines.account (\\ )?--ledger=\S*', text)
  other = report.report_lines(
      guarantee, _outcome(next='python -m tff_pipelines.train'), [], tmp_path, '')
  assert other[-1] == 'next        python -m tff_pipelines.train'
  assert not any(line.startswith(('weakest', 'caveats')) for line in other)


def test_full_report_has_all_sentences(tmp_path):
  guarantee = ExamplePlan(caveats=(GRID,)).guarantee(3)
  outcome = _outcome()
  text = report.full_report(
      DESCRIPTION, guarantee, outcome, [HELD_OUT, *guarantee.caveats], tmp_path, 'thrice')
  for expected in (
      'task: digits, 5 clients', 'a scale of 17', 'result: test: accuracy 0.7500',
      'run: thrice', 'digit 7: 0.2', f'warning: {HELD_OUT}', f'warning: {GRID}',
      *guarantee.details(), f'folder: {os.fspath(tmp_path)}'):
    assert f'{expected}\n' in text, expected


def test_noise_is_as_it_was_given_or_rounded_up():
  assert report.noise_in_words(1.23456789, given=True) == '1.23456789'
  assert report.noise_in_words(0.1, given=True) == '0.1'
  for noise in 10**np.random.default_rng(0).uniform(-3, 3, size=100):
    shown = float(report.noise_in_words(noise, given=False))
    assert noise <= shown <= 1.0002 * noise


@pytest.mark.parametrize('curves, right', [
    ([report.Curve(label='a', x=[1, 2], y=[0.1, 0.5])],
     report.Curve(label='epsilon', x=[1, 2], y=[1.0, 2.0])),
    ([report.Curve(label='a', x=[1, 2], y=[0.1, 0.5]),
      report.Curve(label='b', x=[1, 2], y=[0.3, 0.4], main=False)], None),
    ([report.Curve(label='a', x=[], y=[])], report.Curve(label='epsilon', x=[], y=[])),
    ([report.Curve(label='a', x=[1, 2], y=[0.1, math.nan])], None)])
def test_curves_are_drawn(tmp_path, curves, right):
  path = tmp_path / 'figure.png'
  report.draw(path, curves, title='t', xlabel='round', ylabel='accuracy', right=right)
  figure = matplotlib.image.imread(path)
  assert figure.ndim == 3 and min(figure.shape[:2]) > 300 and figure.std() > 0.03
