"""The binary: its worked example, its keys, its errors."""

import csv
import io
import json
import math
import os
import pathlib
import re
import subprocess
import sys

import hypothesis
from hypothesis import strategies
import pytest

from tff_pipelines.accounting import accountant
from tff_pipelines.accounting import answers
from tff_pipelines.accounting import decimals
from tff_pipelines.accounting import events
from tff_pipelines.accounting import ledger as ledger_lib
from tff_pipelines.accounting import report
from tff_pipelines.accounting import request as request_lib

ROOT = pathlib.Path(__file__).parents[2]

KEYS = ['epsilon', 'epsilon_unamplified', 'delta', 'noise_multiplier', 'rounds',
        'scale', 'local_stddev_grid', 'bits', 'dimension_padded', 'order',
        'accountant', 'amplification', 'adjacency', 'sampling', 'trust_model',
        'warnings']

RUN = ['--delta=0.000294117647', '--cohort_size=100', '--population=3400',
       '--rounds=1500', '--sampling=poisson']
GRID = ['--clip=0.03', '--beta=0.60653066', '--k_stddevs=4',
        '--dimension=1018174']
SKELLAM = ['--mechanism=skellam', *RUN, *GRID]


def run(*flags, code=0):
  done = subprocess.run(
      [sys.executable, '-m', 'tff_pipelines.account', *flags],
      capture_output=True, text=True, cwd=ROOT, timeout=120, check=False,
      env={**os.environ, 'MPLBACKEND': 'Agg'})
  assert done.returncode == code, done.stderr
  return done


def as_json(*flags):
  done = run(*flags, '--format=json')
  return json.loads(done.stdout, parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize('flags,expected', [
    (['--amplification=tight'], 0.8480), (['--amplification=generic'], 0.8924)])
def test_worked_example(flags, expected):
  found = as_json('--query=noise_multiplier', '--epsilon=10', '--bits=18',
                  *SKELLAM, *flags)
  assert list(found) == KEYS
  assert found['noise_multiplier'] == pytest.approx(expected, abs=5e-5)
  assert 9.999 < found['epsilon'] <= 10
  assert found['epsilon_unamplified'] > 1000
  assert found['dimension_padded'] == 2**20
  assert found['local_stddev_grid'] == pytest.approx(
      found['scale'] * found['noise_multiplier'] * 0.03 / 10)
  assert (found['accountant'], found['adjacency'], found['sampling']) == (
      'rdp', 'zero-out', 'poisson')
  assert any('cohort' in text for text in found['warnings'])
  assert any('collude' in text for text in found['warnings'])


def test_worked_example_for_the_gaussian_ignores_the_grid_and_says_so():
  found = as_json('--query=noise_multiplier', '--epsilon=10',
                  '--mechanism=gaussian', '--accountant=rdp', '--bits=18', *RUN,
                  *GRID)
  assert found['noise_multiplier'] == pytest.approx(0.8479, abs=5e-5)
  assert found['bits'] is None and found['scale'] is None
  for name in ('bits', 'clip', 'beta', 'k_stddevs', 'dimension'):
    assert any(f'--{name} ' in text for text in found['warnings'])


@pytest.mark.parametrize('bits,tight,generic', [
    (14, 0.8683, 0.9161), (16, 0.8492, 0.8938), (18, 0.8480, 0.8924)])
def test_federated_emnist_setting_by_the_answers_behind_the_binary(
    bits, tight, generic):
  setting = request_lib.Request(
      query='noise_multiplier', mechanism='skellam', epsilon=10.0,
      delta=1 / 3400, clip=0.03, bits=bits, dimension=1018174, cohort_size=100.0,
      population=3400, rounds=1500, sampling='poisson')
  for amplification, expected in (('tight', tight), ('generic', generic)):
    found = answers.answer(setting.replace(amplification=amplification))
    assert found.noise_multiplier == pytest.approx(expected, abs=5e-5)


def test_fixed_size_sampling_is_for_replaced_clients_and_costs_more():
  flags = ['--bits=18', '--noise_multiplier=1.5', *SKELLAM]
  poisson = as_json(*flags)
  fixed = as_json(*[f for f in flags if '--sampling' not in f],
                  '--sampling=fixed')
  assert fixed['adjacency'] == 'replace-one' and fixed['sampling'] == 'fixed'
  assert poisson['epsilon'] < fixed['epsilon'] <= fixed['epsilon_unamplified']


def test_queries_are_consistent_with_each_other():
  sized = [*SKELLAM, '--bits=16']
  found = as_json('--query=epsilon', '--noise_multiplier=0.9', *sized)
  back = as_json('--query=delta', '--noise_multiplier=0.9',
                 f'--epsilon={found["epsilon"]!r}',
                 *[flag for flag in sized if '--delta' not in flag])
  assert back['delta'] == pytest.approx(0.000294117647, rel=1e-6)
  rounds = as_json('--query=rounds', '--noise_multiplier=0.9',
                   f'--epsilon={found["epsilon"] * 1.00001!r}',
                   *[flag for flag in sized if '--rounds' not in flag])
  assert rounds['rounds'] == 1500


def test_bits_are_suggested_and_dropouts_and_honesty_count():
  found = as_json('--query=bits', '--epsilon=10', *SKELLAM)
  assert found['noise_multiplier'] <= 1.01 * 0.8480
  fixed = ['--bits=18', '--noise_multiplier=1.2', *SKELLAM]
  whole = as_json(*fixed)
  fewer = as_json(*fixed, '--surviving_fraction=0.7')
  assert fewer['epsilon'] > whole['epsilon']
  honest = as_json(*fixed, '--min_honest_fraction=0.5')
  # Shares are sized so that half of them carry the guarantee's noise.
  assert honest['local_stddev_grid'] / honest['scale'] == pytest.approx(
      math.sqrt(2) * whole['local_stddev_grid'] / whole['scale'])


def test_table_has_a_row_for_each_number_of_bits():
  found = as_json('--query=table', '--epsilon=10', *SKELLAM)
  assert list(found) == ['rows']
  assert [row['bits'] for row in found['rows']] == [12, 14, 16, 18, 20]
  noises = [row['noise_multiplier'] for row in found['rows']]
  assert noises == sorted(noises, reverse=True)
  assert all(list(row) == KEYS for row in found['rows'])


def test_csv_has_the_keys_as_columns():
  done = run('--mechanism=gaussian', '--noise_multiplier=1', '--delta=1e-5',
             '--format=csv')
  (row,) = csv.DictReader(io.StringIO(done.stdout))
  assert list(row) == KEYS
  assert float(row['epsilon']) == pytest.approx(4.377, abs=5e-3)
  assert row['bits'] == ''


def test_text_explains_the_guarantee_in_three_sentences():
  done = run('--noise_multiplier=0.9', '--bits=18', *SKELLAM)
  paragraph = [line for line in done.stdout.splitlines()
               if line.startswith('Nothing that can be released')]
  assert len(paragraph) == 1
  assert paragraph[0].replace('e^8.', 'e^8,').count('. ') == 2
  for word in ('replaced by zero', 'who or how many', 'server'):
    assert word in paragraph[0]


def _near(value):
  """A value and the floats beside it."""
  return (value, math.nextafter(value, math.inf), math.nextafter(value, 0.0))


@hypothesis.settings(max_examples=300, deadline=None, derandomize=True)
@hypothesis.given(
    strategies.floats(0, 1e300), strategies.integers(1, 15), strategies.integers(1, 6))
def test_rounding_up_is_never_below_and_at_most_a_digit_above(value, digits, known):
  for wanted in (*_near(value), *_near(float(f'{value:.{known}g}'))):
    found = float(decimals.rounded_up(wanted, digits))
    assert found >= wanted
    assert found <= wanted * (1 + 1.001 * 10.0**(1 - digits)) or wanted < 1e-300


@pytest.mark.parametrize('value, digits, text', [
    (1 / 3400, 3, '0.000295'), (0.29194392561, 7, '0.291944'), (0.1, 5, '0.1'),
    (0.11902, 3, '0.12'), (0.02, 5, '0.02'), (1e-5, 3, '1e-05'), (1.0, 3, '1'),
    (0.0, 3, '0'), (9.9999999, 5, '10'), (math.inf, 5, 'inf')])
def test_rounding_up_by_hand(value, digits, text):
  assert decimals.rounded_up(value, digits) == text


_EPSILONS = strategies.floats(1e-6, 1e4)
_DELTAS = strategies.floats(1e-300, 1, exclude_max=True)


@hypothesis.settings(max_examples=200, deadline=None, derandomize=True)
@hypothesis.given(_EPSILONS, _EPSILONS, _DELTAS, _EPSILONS)
def test_text_never_shows_less_than_what_was_computed(epsilon, server, delta, noise):
  answer = answers.Answer(
      epsilon=epsilon, epsilon_unamplified=server, delta=delta, rounds=3,
      noise_multiplier=noise, local_stddev_grid=noise, adjacency='zero-out',
      sampling='poisson', trust_model='the noise is that of the clients')
  text = report.as_text([answer])
  numbers = dict(line.split(': ') for line in text.splitlines()[:6])
  for key, value in (('epsilon', epsilon), ('epsilon_unamplified', server),
                     ('delta', delta), ('noise_multiplier', noise),
                     ('local_stddev_grid', noise)):
    assert value <= float(numbers[key]) <= 1.000002 * value
  sentences = re.search(r'e\^(\S+) = .* probability (\S+)\. ', text)
  assert float(sentences[1]) >= epsilon and float(sentences[2]) >= delta
  known = re.search(r' it is (\S+) \(', text)
  # Said once if it is the same number.
  assert float(known[1]) >= server if known else server == epsilon


def test_delta_and_noise_that_were_asked_for_are_shown_rounded_up():
  gaussian = request_lib.Request(
      query='delta', mechanism='gaussian', epsilon=0.5, noise_multiplier=0.987654321)
  found = answers.answer(gaussian)
  shown = dict(line.split(': ') for line in report.as_text([found]).splitlines()[:3])
  assert found.delta <= float(shown['delta']) <= found.delta * 1.000001
  solved = answers.answer(gaussian.replace(
      query='noise_multiplier', noise_multiplier=None, epsilon=3.0, delta=1 / 3400))
  shown = dict(line.split(': ') for line in report.as_text([solved]).splitlines()[:4])
  assert float(shown['noise_multiplier']) >= solved.noise_multiplier
  # So what is shown keeps the target.
  again = answers.answer(gaussian.replace(
      query='epsilon', epsilon=None, delta=1 / 3400,
      noise_multiplier=float(shown['noise_multiplier'])))
  assert again.epsilon <= 3.0


def test_large_epsilons_are_warned_of_rounded_up():
  found = answers.answer(request_lib.Request(
      query='epsilon', mechanism='gaussian', noise_multiplier=0.05, delta=1e-5,
      rounds=10, sampling='poisson', cohort_size=10.0, population=1000))
  (warning,) = [text for text in found.warnings
                if text.startswith('against the server')]
  shown = float(re.search(r'epsilon=(\S+) ', warning)[1])
  assert found.epsilon_unamplified <= shown <= found.epsilon_unamplified + 1


def test_votes_and_their_published_form():
  vote = ['--mechanism=ae_vote', '--queries=500', '--noise_stddev=25',
          '--delta=1e-3']
  assert as_json(*vote)['epsilon'] == pytest.approx(2.736, rel=1e-3)
  paper = as_json(*vote, '--bound=paper')
  assert paper['epsilon'] == pytest.approx(3.72, abs=5e-3)
  knn = as_json('--mechanism=knn_vote', '--queries=206', '--noise_stddev=15',
                '--neighbours=50', '--level=instance', '--delta=1e-4')
  assert knn['epsilon'] == pytest.approx(0.0625, abs=1e-4)
  assert knn['adjacency'] == 'instance'


def test_noise_free_and_local_mechanisms_need_no_delta():
  nfdp = as_json('--mechanism=nfdp', '--records=2880', '--subset_size=16')
  assert nfdp['epsilon'] == pytest.approx(0.0056, abs=5e-5)
  assert nfdp['delta'] == pytest.approx(0.0055, abs=5e-5)
  assert any('epsilon 0' in text for text in nfdp['warnings'])
  assert any('not a meaningful guarantee' in text for text in nfdp['warnings'])
  local = as_json('--mechanism=piecewise', '--epsilon=0.5', '--queries=4')
  assert (local['epsilon'], local['delta']) == (2.0, 0.0)
  assert local['adjacency'] == 'local'


def test_no_mechanism_has_no_finite_epsilon():
  found = as_json('--mechanism=none')
  assert found['epsilon'] is None
  assert any('infinite' in text for text in found['warnings'])


def test_degenerate_settings_are_refused_unless_allowed():
  coarse = ['--mechanism=skellam', '--noise_multiplier=1', '--clip=10',
            '--bits=8', '--dimension=250', '--cohort_size=100', '--delta=1e-5']
  refused = run(*coarse, code=2)
  assert 'bits=' in refused.stderr and 'would do' in refused.stderr
  allowed = as_json(*coarse, '--allow_degenerate')
  assert any('degenerate' in text for text in allowed['warnings'])


@pytest.mark.parametrize('flags,word', [
    (['--nonsense=1'], 'nonsense'),
    (['--mechanism=magic'], 'mechanism'),
    (['--mechanism=gaussian', '--noise_multiplier=much'], 'noise_multiplier'),
    (['--mechanism=gaussian', '--delta=1e-5'], 'noise_multiplier'),
    (['--mechanism=gaussian', '--noise_multiplier=1'], 'delta'),
    (['--mechanism=gaussian', '--noise_multiplier=1', '--delta=0'], 'delta'),
    (['--mechanism=gaussian', '--noise_multiplier=nan', '--delta=0.1'],
     'noise_multiplier'),
    (['--mechanism=gaussian', '--noise_multiplier=1', '--delta=0.1',
      '--sampling=poisson', '--cohort_size=0', '--population=9'], 'cohort_size'),
    (['--mechanism=gaussian', '--noise_multiplier=1', '--delta=0.1',
      '--sampling=poisson', '--cohort_size=10', '--population=9'],
     'cohort_size'),
    (['--mechanism=skellam', '--noise_multiplier=1', '--delta=0.1', '--clip=1',
      '--bits=3', '--cohort_size=100', '--dimension=8'], 'bits'),
    (['--mechanism=nfdp', '--query=rounds', '--records=9', '--subset_size=1'],
     'query'),
    (['--ledger=missing.jsonl'], 'missing.jsonl'),
    (['surplus'], 'surplus'),
    ([], 'mechanism'),
])
def test_mistakes_are_one_line_and_exit_code_2(flags, word):
  done = run(*flags, code=2)
  assert done.stdout == ''
  lines = done.stderr.strip().splitlines()
  assert len(lines) == 1 and lines[0].startswith('error: ')
  assert word in lines[0]


def test_help_reads_well_and_is_no_error():
  done = run('--help')
  assert 'Exit codes' in done.stdout and '--surviving_fraction' in done.stdout


def test_ledger_alone_gives_epsilon_and_says_whether_its_chain_holds(tmp_path):
  path = tmp_path / 'ledger.jsonl'
  event = events.PoissonSampled(
      event=events.CentralGaussian(noise_multiplier=0.848),
      sampling_rate=100 / 3400)
  ledger = ledger_lib.Ledger.create(
      path, population=3400, trust_model='a trusted server', warnings=['mock'])
  for _ in range(20):
    ledger.append_line(ledger.next_line(
        event, outcome='released', configuration_hash='x'))
  found = as_json(f'--ledger={path}')
  expected = as_json(
      '--mechanism=gaussian', '--noise_multiplier=0.848', '--rounds=20',
      f'--delta={1 / 3400!r}', '--cohort_size=100', '--population=3400',
      '--sampling=poisson')
  assert list(found) == KEYS
  assert found['epsilon'] == pytest.approx(expected['epsilon'], rel=1e-9)
  assert found['epsilon_unamplified'] == pytest.approx(
      expected['epsilon_unamplified'], rel=1e-9)
  assert (found['delta'], found['rounds']) == (1 / 3400, 20)
  assert found['trust_model'] == 'a trusted server'
  assert 'mock' in found['warnings']
  assert 'chain intact' in run(f'--ledger={path}').stdout
  text = path.read_text().splitlines()
  path.write_text('\n'.join(text[:5] + text[6:]) + '\n')
  broken = run(f'--ledger={path}', '--format=json', code=1)
  answer = json.loads(broken.stdout)
  assert answer['epsilon'] is None
  assert any('line 6' in text for text in answer['warnings'])
  assert 'chain broken' in run(f'--ledger={path}', code=1).stdout
  path.write_text('no ledger\n' * 50)
  warnings = json.loads(
      run(f'--ledger={path}', '--format=json', code=1).stdout)['warnings']
  assert len(warnings) < 10 and 'problems more' in warnings[-1]


@pytest.mark.parametrize('name', ['', 'nowhere.jsonl'])
def test_a_ledger_that_is_no_file_is_named(tmp_path, name):
  done = run(f'--ledger={tmp_path / name}', code=2)
  assert f"--ledger must be the ledger.jsonl of a run, found '{tmp_path}" in done.stderr


def test_a_ledger_of_a_draw_speaks_of_no_shares_and_no_sampling(tmp_path):
  path = tmp_path / 'ledger.jsonl'
  ledger = ledger_lib.Ledger.create(path, delta=0.1, trust_model='nobody')
  for event in (events.Nfdp(records=100, subset_size=10), events.PostProcessing()):
    ledger.append_line(ledger.next_line(
        event, outcome='released', configuration_hash='x'))
  found = run(f'--ledger={path}').stdout
  assert 'epsilon: 0' in found and 'Trust: nobody.' in found
  for words in ('colluder', 'took part', 'never ended', 'amplification'):
    assert words not in found


@pytest.mark.parametrize('share, exact', [(0.2, False), (1e3, True)])
def test_what_the_sampler_deviates_is_taken_from_delta(tmp_path, share, exact):
  path, delta = tmp_path / 'ledger.jsonl', 1e-5
  event = events.CentralGaussian(noise_multiplier=5.0)
  all_rounds = events.SelfComposed(event=event, count=20)
  at_half = accountant.epsilon(all_rounds, delta / 2)
  per_round = share * delta / (1 + math.exp(at_half)) / 20
  ledger = ledger_lib.Ledger.create(
      path, delta=delta, deviation_per_round=per_round)
  for _ in range(20):
    ledger.append_line(ledger.next_line(
        event, outcome='released', configuration_hash='x'))
  found = as_json(f'--ledger={path}')
  left = delta if exact else delta * (1 - share)
  assert found['epsilon'] == pytest.approx(
      accountant.epsilon(all_rounds, left), rel=1e-9)
  assert found['epsilon_unamplified'] == found['epsilon']
  assert found['delta'] == delta
  assert any('exact laws' in text for text in found['warnings']) == exact


def test_noisy_predictions_that_a_restart_repeated_count_for_everybody(tmp_path):
  event = events.SelfComposed(event=events.LocalGaussian(noise_multiplier=20.0),
                              count=50)
  found = {}
  for starts in (1, 3):
    path = tmp_path / f'{starts}.jsonl'
    ledger = ledger_lib.Ledger.create(path, delta=1e-5)
    for start in (1, 1, starts):
      ledger.append_line(ledger.next_line(
          event, outcome='released', configuration_hash='x', starts=start))
    found[starts] = as_json(f'--ledger={path}')
    assert any('never ended' in text for text in found[starts]['warnings'])
  for starts, rounds in ((1, 3), (3, 5)):
    assert found[starts]['epsilon'] == found[starts]['epsilon_unamplified']
    assert found[starts]['epsilon'] == pytest.approx(accountant.epsilon(
        events.SelfComposed(event=event, count=rounds), 1e-5), rel=1e-9)


def test_answers_that_are_charged_before_they_are_given_can_not_be_missing(tmp_path):
  path = tmp_path / 'ledger.jsonl'
  ledger = ledger_lib.Ledger.create(path)
  ledger.append_line(ledger.next_line(
      events.LocalAnswers(event=events.Duchi(epsilon=0.5), groups=2,
                          queries_before=0, queries_after=6),
      outcome='released', configuration_hash='x'))
  found = as_json(f'--ledger={path}', '--delta=1e-9')
  assert 0 < found['epsilon'] <= 1.5
  assert not any('never ended' in text for text in found['warnings'])


def test_a_withheld_round_leaves_no_epsilon_against_the_server(tmp_path):
  path = tmp_path / 'ledger.jsonl'
  ledger = ledger_lib.Ledger.create(path, delta=1e-5)
  for outcome in ('released', 'withheld', 'released'):
    ledger.append_line(ledger.next_line(
        events.DistributedSkellam(
            l1_sensitivity=900.0, l2_sensitivity=30.0, noise_variance=2500.0,
            cohort_size=100.0), outcome=outcome, configuration_hash='x'))
  found = as_json(f'--ledger={path}')
  assert found['epsilon'] > 0 and found['epsilon_unamplified'] is None
  assert any('no epsilon holds against it' in text for text in found['warnings'])


def test_plot_draws_a_png(tmp_path):
  path = tmp_path / 'figures.png'
  run(f'--plot={path}')
  assert path.read_bytes().startswith(b'\x89PNG') and path.stat().st_size > 10_000
  wrong = run(f'--plot={tmp_path / "figures.jpg"}', code=2)
  assert '.png' in wrong.stderr
