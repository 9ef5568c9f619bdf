"""The program `account`: its worked example, its keys, its errors."""

import contextlib
import csv
import dataclasses
import io
import json
import math
import os
import re
import subprocess
import sys
import types

import hypothesis
from hypothesis import strategies
import pytest

from tests import known_cohorts
from tests.programs import launcher
from tff_pipelines import account
from tff_pipelines.accounting.events import preliminary
from tff_pipelines.accounting.guarantees import answers, bounds, mechanisms
from tff_pipelines.common import decimals
from tff_pipelines.experiment import settings as settings_lib
from tff_pipelines.fedavg import account as run_lib, account_settings as settings

KEYS = ['epsilon', 'epsilon_server', 'epsilon_server_any_cohorts',
        'epsilon_participant', 'clients_per_person', 'epsilon_person',
        'epsilon_server_person', 'delta', 'noise_multiplier', 'rounds', 'scale',
        'local_stddev_grid', 'bits', 'dimension_padded', 'order', 'accountant',
        'amplification', 'adjacency', 'sampling', 'trust_model', 'warnings']

RUN = ['--delta=0.000294117647', '--cohort_size=100', '--population=3400',
       '--rounds=1500', '--sampling=poisson']
GRID = ['--clip=0.03', '--beta=0.60653066', '--k_stddevs=4', '--dimension=1018174']
SKELLAM = ['--mechanism=skellam', *RUN, *GRID]


def run(*flags, code=0):
  """Runs the program in this process."""
  out, error = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
    result = account.main(flags)
  assert result == code, error.getvalue()
  return types.SimpleNamespace(stdout=out.getvalue(), stderr=error.getvalue())


def as_json(*flags):
  done = run(*flags, '--format=json')
  return json.loads(done.stdout, parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize('flags,expected', [
    (['--amplification=tight'], 0.7914), (['--amplification=generic'], 0.8924),
    (['--accountant=rdp'], 0.8480)])
def test_worked_example(flags, expected):
  result = as_json('--query=noise_multiplier', '--epsilon=10', '--bits=18',
                   *SKELLAM, *flags)
  assert list(result) == KEYS
  assert result['noise_multiplier'] == pytest.approx(expected, abs=5e-5)
  assert 9.999 < result['epsilon'] <= 10
  assert result['epsilon_server_any_cohorts'] > 1000
  # Of 1,500 rounds a client is in 44 on average.
  mean = known_cohorts.renyi_epsilon if '--accountant=rdp' in flags else (
      known_cohorts.epsilon)
  known = mean(*known_cohorts.law(
      (1500, 100 / 3400, None, result['noise_multiplier'])), 0.000294117647)
  assert known < result['epsilon_server'] < 1.001 * known
  assert result['dimension_padded'] == 2**20
  assert result['local_stddev_grid'] == pytest.approx(
      result['scale'] * result['noise_multiplier'] * 0.03 / 10)
  by_pld = expected == 0.7914
  assert (result['accountant'], result['adjacency'], result['sampling']) == (
      'pld' if by_pld else 'rdp', 'zero-out', 'poisson')
  assert any('cohort' in text for text in result['warnings'])
  assert any('collude' in text for text in result['warnings'])


def test_a_person_with_several_clients():
  flags = ['--mechanism=gaussian', '--noise_multiplier=3', *RUN, '--rounds=20',
           '--clients_per_person=3', '--max_participations=4']
  result = as_json(*flags)
  assert result['clients_per_person'] == 3
  assert result['epsilon'] < result['epsilon_person'] < 8 * result['epsilon']
  rate, delta = 100 / 3400, 0.000294117647
  for key, law in (('epsilon_server', known_cohorts.law((20, rate, 4, 3.0))),
      # Next to nobody's three clients are stopped by the limit.
      ('epsilon_server_person', known_cohorts.of_person(20, rate, 3, 3.0))):
    assert result[key] == pytest.approx(known_cohorts.epsilon(*law, delta), rel=1e-6)
  assert 'epsilon_person: ' in run(*flags).stdout
  for flag, rule in (('=0', 'at least 1'), ('=2.5', ''), ('=3401', 'at most 3400')):
    error = run(*flags, f'--clients_per_person{flag}', code=2).stderr
    assert 'clients_per_person' in error and rule in error
    assert len(error.splitlines()) == 1
  error = run('--mechanism=ae_vote', '--noise_stddev=9', '--delta=1e-5',
              '--clients_per_person=2', code=2).stderr
  assert 'clients_per_person' in error


@pytest.mark.parametrize('flags, message', [
    *((['--mechanism=gaussian', '--noise_multiplier=1', *RUN, flag],
       f'{flag[2:].partition("=")[0]} is not used with mechanism=gaussian')
      for flag in ('--bits=18', *GRID, '--adaptive_clipping', '--queries=3')),
    (['--mechanism=gaussian', '--noise_multiplier=1', '--delta=0.1', '--epsilon=3'],
     'epsilon is not used with query=epsilon, which finds it'),
    (['--query=noise_multiplier', '--epsilon=3', '--mechanism=gaussian', '--delta=0.1',
      '--noise_multiplier=1'],
     'noise_multiplier is not used with query=noise_multiplier, which finds it'),
    (['--query=noise_multiplier', '--epsilon=3', '--mechanism=ae_vote', '--delta=0.1',
      '--noise_stddev=1'],
     'noise_stddev is not used with query=noise_multiplier, which finds it'),
    (['--query=rounds', '--epsilon=3', '--mechanism=ae_vote', '--delta=0.1',
      '--noise_stddev=1', '--queries=9'],
     'queries is not used with query=rounds, which finds it'),
    (['--query=table', *SKELLAM, '--bits=18'],
     'bits is not used with query=table, which finds it'),
    (['--mechanism=nfdp', '--records=9', '--subset_size=1', '--delta=0.1'],
     'delta is not used with mechanism=nfdp')])
def test_unused_flags_are_refused(flags, message):
  done = run(*flags, code=2)
  assert done.stdout == ''
  assert message in done.stderr and done.stderr.count('\n') == 1


def test_epsilon_of_a_local_query_is_a_parameter_that_nothing_finds():
  result = as_json('--mechanism=laplace', '--epsilon=0.5', '--queries=2')
  assert result['epsilon'] == 1.0


def test_fixed_size_sampling_is_for_replaced_clients_and_costs_more():
  flags = ['--bits=18', '--noise_multiplier=1.5', *SKELLAM]
  poisson = as_json(*flags)
  fixed = as_json(*[f for f in flags if '--sampling' not in f], '--sampling=fixed')
  assert fixed['adjacency'] == 'replace-one' and fixed['sampling'] == 'fixed'
  assert poisson['epsilon'] < fixed['epsilon'] <= fixed['epsilon_server'] < (
      fixed['epsilon_server_any_cohorts'])


@pytest.mark.slow
def test_queries_are_consistent_with_each_other():
  sized = [*SKELLAM, '--bits=16']
  result = as_json('--query=epsilon', '--noise_multiplier=0.9', *sized)
  back = as_json('--query=delta', '--noise_multiplier=0.9',
                 f'--epsilon={result["epsilon"]!r}',
                 *[flag for flag in sized if '--delta' not in flag])
  assert back['delta'] == pytest.approx(0.000294117647, rel=1e-2)
  rounds = as_json('--query=rounds', '--noise_multiplier=0.9',
                   f'--epsilon={result["epsilon"] * 1.00001!r}',
                   *[flag for flag in sized if '--rounds' not in flag])
  assert rounds['rounds'] == 1500


@pytest.mark.slow
def test_bits_are_suggested_and_dropouts_and_honesty_count():
  result = as_json('--query=bits', '--epsilon=10', *SKELLAM)
  assert result['noise_multiplier'] <= 1.01 * 0.8480
  fixed = ['--bits=18', '--noise_multiplier=1.2', *SKELLAM]
  whole = as_json(*fixed)
  fewer = as_json(*fixed, '--surviving_fraction=0.7')
  assert fewer['epsilon'] > whole['epsilon']
  honest = as_json(*fixed, '--min_honest_fraction=0.5')
  # Shares are sized so that half of them carry the guarantee's noise.
  assert honest['local_stddev_grid'] / honest['scale'] == pytest.approx(
      math.sqrt(2) * whole['local_stddev_grid'] / whole['scale'])


def test_csv_has_the_keys_as_columns():
  done = run('--mechanism=gaussian', '--noise_multiplier=1', '--delta=1e-5',
             '--format=csv')
  (row,) = csv.DictReader(io.StringIO(done.stdout))
  assert list(row) == KEYS
  assert float(row['epsilon']) == pytest.approx(4.377, abs=5e-3)
  assert row['bits'] == ''


def test_text_explains_the_guarantee_in_three_sentences():
  done = run('--noise_multiplier=0.9', '--bits=18', *SKELLAM)
  lines = done.stdout.splitlines()
  assert len(lines) <= 21 and max(map(len, lines)) <= 80
  assert 'cohorts assumed to be hidden' in ' '.join(lines)  # By name.
  paragraph, = [' '.join(part.split('\ncaveats: ')[0].splitlines())
                for part in done.stdout.split('\n\n')
                if part.startswith('Whatever is computed')]
  assert paragraph.count('. ') == 2
  for word in ('replaced by zero', 'who or how many', 'against the server it is',
               'plus 0.', 'trust: the server sees sums only'):
    assert word in paragraph


@pytest.mark.slow
def test_table_has_a_row_for_each_number_of_bits():
  flags = ('--query=table', '--epsilon=10', *SKELLAM)
  result = as_json(*flags)
  assert list(result) == ['rows']
  rows, lines = result['rows'], run(*flags).stdout.splitlines()
  assert [row['bits'] for row in rows] == [12, 14, 16, 18, 20]
  noises = [row['noise_multiplier'] for row in rows]
  assert noises == sorted(noises, reverse=True)
  assert all(list(row) == KEYS for row in rows)
  assert len(lines) == 1 + len(rows) <= 20 and max(map(len, lines)) <= 80
  for line, row in zip(lines[1:], rows):
    assert line.split()[0] == str(row['bits'])
    assert float(line.split()[2]) >= row['noise_multiplier']


def _near(value):
  """A value and its neighbouring floats."""
  return (value, math.nextafter(value, math.inf), math.nextafter(value, 0.0))


@pytest.mark.slow
@hypothesis.settings(max_examples=300, deadline=None, derandomize=True)
@hypothesis.given(
    strategies.floats(0, 1e300), strategies.integers(1, 15), strategies.integers(1, 6))
def test_rounding_up_is_never_below_and_at_most_a_digit_above(value, digits, known):
  for wanted in (*_near(value), *_near(float(f'{value:.{known}g}'))):
    result = float(decimals.rounded_up(wanted, digits))
    assert result >= wanted
    assert result <= wanted * (1 + 1.001 * 10.0**(1 - digits)) or wanted < 1e-300


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
      terms=answers.terms('the noise is that of the clients', 'poisson'),
      outsiders=bounds.Bound(epsilon=epsilon), server=bounds.Bound(epsilon=server),
      delta=delta, rounds=3, noise_multiplier=noise, local_stddev_grid=noise,
      adjacency='zero-out')
  text = run_lib.as_text(answer)
  numbers = dict(re.findall(r'(\w+): (\S+)', text))
  text = ' '.join(text.split())
  for key, value in (('epsilon', epsilon), ('epsilon_server', server), ('delta', delta),
                     ('noise_multiplier', noise), ('local_stddev_grid', noise)):
    assert value <= float(numbers[key]) <= 1.000002 * value
  sentences = re.search(r'at most (.+) times .* plus (\S+)\. ', text)
  odds = sentences[1].replace(',', '').replace('more than a million', 'inf')
  assert float(odds) >= math.exp(min(epsilon, 700)) and float(sentences[2]) >= delta
  known = re.search(r' it is ([\d.e+-]+)[,;]', text)
  # Said once if it is the same number.
  assert float(known[1]) >= server if known else server == epsilon


@pytest.mark.parametrize('trust, against', [
    ('the noise is that of the clients', 'the server'),
    (f'the noise is that of the clients; {preliminary.TRUST}',
     'those who know the cohorts'),
    ('a trusted server adds the noise', 'those who know the cohorts')])
def test_number_of_those_who_know_the_cohorts_is_not_against_who_is_trusted(
    trust, against):
  words = answers.Answer(
      terms=answers.terms(trust, 'poisson'), outsiders=bounds.Bound(epsilon=2.0),
      server=bounds.Bound(epsilon=3.0), delta=1e-5, adjacency='zero-out').sentences()
  assert f'participated, and against {against} it is 3' in words


def test_caveats_show_large_epsilons_rounded_up():
  result = answers.answer(
      answers.Query(kind='epsilon', delta=1e-5), mechanisms.SumMechanism(
          mechanism='gaussian', noise_multiplier=0.05, rounds=10,
          sampling='poisson', cohort_size=10.0, population=1000))
  (warning,) = [text for text in result.caveats if text.startswith('against the server')]
  shown = float(re.search(r'epsilon=(\S+) ', warning)[1])
  assert result.epsilon_server <= shown <= result.epsilon_server + 1


def test_votes_and_their_published_form():
  vote = ['--mechanism=ae_vote', '--queries=500', '--noise_stddev=25', '--delta=1e-3']
  assert as_json(*vote)['epsilon'] == pytest.approx(2.736, rel=1e-3)
  assert as_json(*vote, '--bound=paper')['epsilon'] == pytest.approx(3.72, abs=5e-3)
  assert as_json('--mechanism=knn_vote', '--queries=2', '--noise_stddev=15',
                 '--neighbours=50', '--level=instance', '--delta=1e-4')[
                     'adjacency'] == 'instance'


def test_noise_free_and_local_mechanisms_need_no_delta():
  nfdp = as_json('--mechanism=nfdp', '--records=2880', '--subset_size=16')
  assert nfdp['epsilon'] == pytest.approx(0.0056, abs=5e-5)
  assert nfdp['delta'] == pytest.approx(0.0055, abs=5e-5)
  assert any('epsilon 0' in text for text in nfdp['warnings'])
  assert any('not a meaningful guarantee' in text for text in nfdp['warnings'])
  local = as_json('--mechanism=piecewise', '--epsilon=0.5', '--queries=4')
  assert (local['epsilon'], local['delta']) == (2.0, 0.0)
  assert local['adjacency'] == 'local'


def test_degenerate_settings_are_refused_unless_allowed():
  coarse = ['--mechanism=skellam', '--noise_multiplier=1', '--clip=10',
            '--bits=8', '--dimension=250', '--cohort_size=100', '--delta=1e-5']
  refused = run(*coarse, code=2)
  assert 'bits=' in refused.stderr and 'would do' in refused.stderr
  allowed = as_json(*coarse, '--allow_degenerate')
  assert any('degenerate' in text for text in allowed['warnings'])


@pytest.mark.parametrize('flags,word', [(['--nonsense=1'], 'nonsense'),
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
    (['--mechanism=nfdp', '--query=rounds', '--records=9', '--subset_size=1'], 'query'),
    (['--ledger=missing.jsonl'], 'missing.jsonl'),
    (['surplus'], 'surplus'),
    ([], 'mechanism')])
def test_mistakes_are_one_line_and_exit_code_2(flags, word):
  done = run(*flags, code=2)
  assert done.stdout == ''
  lines = done.stderr.strip().splitlines()
  assert len(lines) == 1 and lines[0].startswith('error: ')
  assert word in lines[0]


def test_every_setting_of_a_mechanism_and_a_query_is_a_flag_with_its_default():
  flags = settings_lib.declared(settings.AccountSettings)
  kinds = [answers.Query, *(family.kind for family in mechanisms.MECHANISMS.values())]
  for kind in kinds:
    for field in dataclasses.fields(kind):
      if field.name not in ('kind', 'mechanism'):
        assert flags[field.name].default == field.default


def test_program_is_started_as_a_module():
  done = subprocess.run(
      [sys.executable, '-m', 'tff_pipelines.account', '--mechanism=gaussian',
       '--noise_multiplier=1', '--delta=1e-5', '--format=json'],
      capture_output=True, text=True, cwd=launcher.ROOT, timeout=120, check=True,
      env={**os.environ, 'MPLBACKEND': 'Agg'})
  assert json.loads(done.stdout)['epsilon'] == pytest.approx(4.377, abs=5e-3)
