"""The page: what it has of one run and of several, and that nothing gets out of it.

Also its charts, and what it takes from the folder of a run.
"""

import json
import math
import re

import hypothesis
from hypothesis import strategies
import pytest

from tests.experiment import page_example_run as example_run, page_parsed as parsed
from tff_pipelines.common import files
from tff_pipelines.experiment import (
    configurations, page_document as document, page_elements as charts, pages)
from tff_pipelines.experiment.page_document import Curve, Verdict


def _page(*runs):
  return parsed.Page(document.document(runs))


def test_page_of_one_run_has_all_sections_and_figures():
  page = _page(example_run.run())
  assert page.count['section'] == page.count['h2'] == 7
  assert page.count['figure'] == page.count['svg'] == page.count['desc'] == 2
  assert page.count['title'] == 1 + 2  # The page's and each figure's.
  # Results, confusion, classes, settings, ledger.
  assert page.count['table'] == page.count['caption'] == 5
  ids = [attributes['id'] for attributes in page.attributes['h2']]
  assert [link['href'] for link in page.attributes['a']] == [f'#{i}' for i in ids]


def test_page_is_accessible_and_fits_a_phone():
  text = document.document([example_run.run()])
  page = parsed.Page(text)
  assert page.attributes['html'] == [{'lang': 'en'}]
  assert {'name': 'viewport', 'content': 'width=device-width, initial-scale=1'} in (
      page.attributes['meta'])
  assert all(svg['role'] == 'img' for svg in page.attributes['svg'])
  assert all(cell['scope'] in ('row', 'col') for cell in page.attributes['th'])
  boxes = [box for box in page.attributes['div'] if box.get('class') == 'scroll']
  assert len(boxes) == page.count['table']
  assert all(box['tabindex'] == '0' and box['aria-label'] for box in boxes)
  assert 'prefers-color-scheme: dark' in text


def test_page_loads_nothing_and_runs_nothing():
  text = document.document([example_run.run()])
  page = parsed.Page(text)
  assert not {'script', 'link', 'img', 'iframe', 'object'} & page.count.keys()
  names = {name for group in page.attributes.values() for one in group for name in one}
  assert not [name for name in names if name.startswith('on') or name == 'src']
  assert not re.search(r'https?:|url\(|@import', text)


EVIL = '<script>alert("x")</script>&\'\x00\udc80'


def test_texts_are_escaped_wherever_they_come_from():
  breakdown = example_run.summary()['breakdown']['test']
  breakdown = {**breakdown, 'kind': EVIL, 'classes': [
      {**one, 'name': EVIL + one['name']} for one in breakdown['classes']],
               'confusions': [{'true': EVIL, 'predicted': EVIL, 'count': 1}],
               'groups': [{'name': EVIL, 'count': 1, 'right': 1, 'predicted': 1,
                           'taken_for': {EVIL: 1}}]}
  run = example_run.run(
      EVIL, task=EVIL, algorithm=EVIL, warnings=[EVIL], privacy_unit=EVIL,
      observers=EVIL, observers_server=EVIL, adjacency_in_words=EVIL, trust_model=EVIL,
      source=EVIL, held_out={EVIL: {EVIL: 0.5}}, outside_guarantee=[EVIL],
      breakdown={EVIL: breakdown}, settings={EVIL: EVIL},
      verdict=Verdict(rounds=1, problems=[EVIL]),
      curves=(Curve(metric=EVIL, over=EVIL, label=EVIL, x=(1, 2), y=(3, 4)),))
  for runs in ([run], [run, example_run.run()]):
    text = document.document(runs)
    page = parsed.Page(text)
    assert not page.count['script'] and '<script' not in text
    assert page.text.count('<script>alert("x")</script>&\'') > 20
    text.encode('utf-8')
    assert '\x00' not in text


def _words(run):
  """The text of a run's page, with single blanks."""
  return ' '.join(_page(run).text.split())


def test_statement_has_both_numbers_and_whom_they_hold_against():
  text = _words(example_run.run())
  for words in ('epsilon 2.0000, delta 1e-05 against those who see the models: a test',
                'epsilon 6.5000, delta 1e-05 against the server: a test',
                'Each patient: one client.', 'Data: heartbeats', 'Begun on: 2026-11-24',
                'one contribution is replaced by zero', 'Trust: the server sees sums',
                'simulated : '):
    assert words in text, words


def test_statement_says_what_holds_whatever_cohorts_the_server_chooses():
  text = _words(example_run.run(epsilon_server_any_cohorts=9.87654))
  assert 'That is for cohorts drawn by the rule' in text
  assert '; epsilon is 9.8766 whatever cohorts the server chooses' in text
  # One number holds where both are the same, or no one chooses.
  for chosen in (6.5, None):
    assert 'whatever cohorts' not in _words(example_run.run(epsilon_server_any_cohorts=chosen))


def test_published_caveats_do_not_tell_of_data():
  text = _words(example_run.run(
      caveats=['simulated', 'answers lost'], warnings=['1', 'of ann']))
  assert 'simulated : ' in text and 'they count as given' in text


@pytest.mark.parametrize('changes, words', [
    ({'epsilon': None, 'epsilon_server': None, 'epsilon_if_unseeded': 3.25},
     ['This model is not private', 'no finite epsilon is guaranteed']),
    ({'epsilon': None, 'epsilon_server': None, 'adjacency': None},
     ['This model is not private', 'without a mechanism that protects']),
    ({'epsilon_server': None}, ['no epsilon against the server']),
    ({'observers_participant': 'a participant'}, ['no epsilon against a participant']),
    ({'observers_participant': 'a participant', 'epsilon_participant': 4.56789},
     ['epsilon 4.5679, delta 1e-05 against a participant']),
    ({'clients_per_person': 3, 'epsilon_person': 7.12345},
     ['a person who owns 3 clients the first epsilon is 7.1235']),
    ({'epsilon_server': None, 'observers_server': None},
     ['no other number is stated for the server'])])
def test_missing_numbers_are_said_to_be_missing(changes, words):
  text = _words(example_run.run(**changes))
  for word in words:
    assert word in text


@pytest.mark.parametrize('epsilon, delta, share', [
    # Gaussian noise has less; randomized response meets the bounds.
    (0.0, 0.0, '1%'), (1.0, 0.0, '2.72%'), (2.0, 1e-5, '7.4%'),
    (8.0, 0.005, '99.97%'), (math.log(99), 0.0, '99%'), (20.0, 1e-5, '100%'),
    pytest.param(800.0, 0.0, '100%', marks=pytest.mark.slow), (3.0, 0.995, '100%')])
def test_attack_is_bounded_from_above(epsilon, delta, share):
  text = _words(example_run.run(epsilon=epsilon, delta=delta, epsilon_server=None))
  assert f'a test with 1% false alarms detects at most {share}' in text
  assert ('may detect everyone' in text) == (share == '100%')


def test_several_runs_are_compared_by_what_differs():
  other = example_run.run('second', settings={'rounds': 3, 'bits': 16, 'seed': 4})
  page = _page(example_run.run(), other)
  assert page.count['article'] == 2 and page.count['figure'] == 2
  assert page.count['polyline'] == 4
  keys = [span['class'] for span in page.attributes['span']
          if span.get('class', '').startswith('key')]
  assert keys == ['key s0', 'key s1'] * 2
  text = ' '.join(page.text.split())
  assert 'Settings that differ setting first second bits 18 16 seed – 4' in text
  assert '1 settings that are the same' in text
  assert 'All settings are the same.' in _page(
      example_run.run(), example_run.run('second')).text


def test_results_stand_beside_what_they_cost():
  text = ' '.join(_page(example_run.run(), example_run.run(
      'second', epsilon=None, epsilon_server=None, observers_server=None)).text.split())
  assert 'ε, observers ε, server first 0.7500 – 2.0000 6.5000' in text
  assert 'second 0.7500 – none –' in text
  assert text.count('Epsilon in the charts') == 1


def test_only_what_the_guarantee_covers_may_be_published():
  def tags(**changes):
    return _page(example_run.run(**changes)).text.count('may be published') - 1

  assert tags() == 4
  assert tags(outside_guarantee=['test']) == 1
  assert tags(curves=(Curve(metric='error', over='rounds', label='clients', x=(1, 2),
                            y=(3, 4), covered=False),)) == 3
  assert tags(epsilon=None, epsilon_server=None) == 1


@pytest.mark.parametrize('verdict, words', [
    (example_run.verdict_of(2.0, 6.5), 'holds 2.0000 6.5000 yes'),
    (example_run.verdict_of(1.5, 6.5), 'holds 1.5000 6.5000 yes'),
    (example_run.verdict_of(2.1, 6.5), 'holds 2.1000 6.5000 no'),
    (example_run.verdict_of(2.0, 6.5, participant=9.0),
     'holds 2.0000 6.5000 yes'),  # Nothing was stated for a participant.
    (example_run.verdict_of(2.0), 'holds 2.0000 none no'),
    (Verdict(rounds=3, problems=['line 2 is torn']), 'line 2 is torn none none no')])
def test_ledger_must_prove_what_the_summary_states(verdict, words):
  text = ' '.join(_page(example_run.run(verdict=verdict)).text.split())
  assert words in text
  assert verdict.proves(example_run.summary()) == words.endswith('yes')


def test_many_classes_have_a_list_of_mistakes_instead_of_a_matrix():
  classes = [{'name': f'w{i}', 'count': 3, 'right': 1, 'predicted': 2} for i in range(40)]
  breakdown = {**example_run.summary()['breakdown']['test'], 'classes': classes,
               'confusions': [{'true': 'w1', 'predicted': 'w2', 'count': 2}]}
  text = _page(example_run.run(breakdown={'test': breakdown})).text
  assert 'Most frequent mistakes' in text and 'Confusion of' not in text
  assert '40 digits, the most frequent first' in text


_NUMBERS = strategies.floats(
    min_value=-1e9, max_value=1e9, allow_nan=False, allow_subnormal=False)
_POSITIVE = strategies.floats(min_value=1e-9, max_value=1e9)


def _drawn(*lines, log=False):
  return charts.chart('loss over rounds', 'rounds', [
      (i, f'run {i}', charts.Curve(label='', x=x, y=y))
      for i, (x, y) in enumerate(lines)], log=log)


def _points(figure):
  return [tuple(map(float, point.split(',')))
          for line in figure.iter('polyline') for point in line.get('points').split()]


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    points=strategies.lists(strategies.tuples(_NUMBERS, _NUMBERS), min_size=1),
    heights=strategies.lists(_POSITIVE, min_size=1))
def test_points_lie_inside_between_a_few_ticks(points, heights):
  for figure in (_drawn(tuple(zip(*points))),
                 _drawn((range(len(heights)), heights), log=True)):
    assert len(_points(figure)) == len(points) or len(_points(figure)) == len(heights)
    assert all(52 <= x <= 390 and 10 <= y <= 220 for x, y in _points(figure))
    across = [line for line in figure.iter('line') if line.get('x1') == line.get('x2')]
    up = [line for line in figure.iter('line') if line.get('y1') == line.get('y2')]
    assert len(across) <= 6 and 2 <= len(up) <= 7


def test_logarithmic_axis_has_powers_of_ten():
  figure = _drawn(([1, 2, 3], [1e-4, 1e-3, 1e-1]), log=True)
  texts = [text.text for text in figure.iter('text')]
  assert {'0.0001', '0.001', '0.01', '0.1'} <= set(texts)
  heights = [y for _, y in _points(figure)]
  assert heights[0] - heights[1] == pytest.approx((heights[1] - heights[2]) / 2, abs=0.2)


def test_figure_is_described_in_words():
  figure = _drawn(([1, 50], [2.5, 0.5]))
  assert figure.find('svg/title').text == 'loss over rounds'
  assert figure.find('svg/desc').text == 'run 0: from 2.5 at 1 to 0.5 at 50'


def test_equal_values_make_a_flat_line():
  heights = {y for _, y in _points(_drawn(([1, 2, 3], [4.0, 4.0, 4.0])))}
  assert len(heights) == 1 and math.isfinite(heights.pop())


VERDICT = Verdict(rounds=3)


def _curves(folder, tables, **changes):
  """(metric, over, label) -> curve of a run with these tables."""
  files.write_json(folder / files.SUMMARY, example_run.summary(**changes))
  configurations.write(folder, configurations.sealed({'settings': {'bits': 18}}))
  for name, table in tables.items():
    (folder / name).write_text(table)
  run = pages.read(folder, VERDICT)
  assert run.name == folder.name and run.settings == {'bits': 18}
  return {(curve.metric, curve.over, curve.label): curve for curve in run.curves}


def test_curves_are_over_rounds_and_over_epsilon(tmp_path):
  curves = _curves(tmp_path, {files.METRICS: (
      'round,epsilon,others/accuracy,others/loss,test/accuracy,test/loss\n'
      '1,0.5,0.1,3,0.2,4\n2,inf,,,,\n3,1.5,0.3,2,0.4,nan\n')})
  assert list(curves) == [('accuracy', 'rounds', 'others'), ('loss', 'rounds', 'others'),
      ('accuracy', 'rounds', 'test'), ('accuracy', 'epsilon', 'others'),
      ('accuracy', 'epsilon', 'test'), ('epsilon', 'rounds', 'observers')]
  main = curves['accuracy', 'epsilon', 'test']
  assert (main.x, main.y, main.main) == ((0.5, 1.5), (0.2, 0.4), True)
  other = curves['accuracy', 'rounds', 'others']
  # What is measured on no held-out set may come from raw values.
  assert main.covered and not other.main and not other.covered


def test_cohorts_and_diagnostics_are_left_out_and_an_adaptive_clip_is_not(tmp_path):
  curves = _curves(tmp_path, {files.METRICS: (
      'round,parties,diagnostics/num_reporting,public/clip,public/scale\n'
      '1,4,7,0.3,100\n2,5,8,0.2,100\n')})
  assert list(curves) == [('clip', 'rounds', 'clip')]


def test_epsilon_of_a_seeded_run_says_so(tmp_path):
  curves = _curves(tmp_path, {files.METRICS: (
      'step,epsilon_if_unseeded,test/accuracy\n1,1,0.5\n2,2,0.75\n')})
  assert list(curves) == [
      ('accuracy', 'steps', 'test'), ('accuracy', 'epsilon', 'test, without the seed'),
      ('epsilon', 'steps', 'observers, without the seed')]


def test_errors_are_over_epsilon_and_a_student_over_its_epochs(tmp_path):
  curves = _curves(tmp_path, {
      'results.csv': 'mechanism,n,d,bits,epsilon,mse\nskellam,9,5,18,1,0.5\n'
                     'gaussian,9,5,,1,0.25\nskellam,9,5,18,2,0.125\n'
                     'gaussian,9,5,,2,0.0625\n',
      'student.csv': 'epoch,accuracy\n1,0.1\n2,0.2\n'})
  label = 'skellam, 9 n, 5 d, 18 bits'
  error = curves['squared error of a coordinate', 'epsilon', label]
  assert error.log and not error.covered and (error.x, error.y) == ((1.0, 2.0), (0.5, 0.125))
  assert ('accuracy', 'epochs', 'test') in curves and len(curves) == 3


def test_single_points_are_no_curve(tmp_path):
  assert not _curves(tmp_path, {files.METRICS: 'round,test/accuracy\n1,0.5\n'})


@pytest.mark.parametrize('text, message', [
    (None, 'must be the folder of a finished run, found no summary.json'),
    ('{', 'summary.json is damaged'), ('[]', 'summary.json is damaged'),
    (json.dumps({'version': 2}), 'summary.json is damaged'),
    (json.dumps({'family': 'train'}),
     'is damaged: summary must have the keys .* --resume writes it again')])
def test_folder_without_a_summary_is_refused(tmp_path, text, message):
  if text is not None:
    (tmp_path / files.SUMMARY).write_text(text)
  with pytest.raises(ValueError, match=message):
    pages.read(tmp_path, VERDICT)
