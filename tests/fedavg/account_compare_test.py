"""Tests of the comparison of Poisson sampling with turns."""

import collections
import csv
import io
import itertools
import json
import math

import dp_accounting
from dp_accounting import pld
import numpy as np
import pytest

from tests import known_cohorts
from tests.fedavg import account_test
from tff_pipelines.accounting.guarantees import answers, mechanisms
from tff_pipelines.fedavg import columns

N, COHORT, ROUNDS, DELTA, MOMENTUM = 60, 7, 20, 1e-3, 0.8
SIZES = [f'--population={N}', f'--cohort_size={COHORT}', f'--rounds={ROUNDS}',
         f'--delta={DELTA}', f'--server_momentum={MOMENTUM}', '--compare']
GAUSSIAN = ['--mechanism=gaussian', *SIZES]
SKELLAM = ['--mechanism=skellam', *SIZES, '--clip=0.5', '--dimension=1000']


def run(*flags, code=0):
  """What the program prints; of an error the line."""
  done = account_test.run(*flags, code=code)
  return done.stderr if code else done.stdout


def rows_of(*flags):
  return json.loads(run(*flags, '--format=json'))['rows']


def column_of(row):
  work = columns.Workload(rates=(1.0,) * ROUNDS, momentum=MOMENTUM)
  return columns.best(work, row['bands'])


def models_error(column, stddev):
  """Noise of models whose rows have this standard deviation over |column|."""
  mixing, steps = (sum(weight * np.eye(ROUNDS, k=-lag) for lag, weight in enumerate(
      weights)) for weights in (column, MOMENTUM**np.arange(ROUNDS)))
  models = np.tril(np.ones((ROUNDS, ROUNDS))) @ steps @ np.linalg.inv(mixing)
  return stddev * np.linalg.norm(column) * np.linalg.norm(models) / math.sqrt(ROUNDS)


def windows(row):
  """Noise multipliers of a client's turns, counted from the schedule itself."""
  column, size = column_of(row), math.ceil(COHORT / row['turn_rate'])
  starts = [t for t in range(ROUNDS)  # The client at position 0.
            if 0 in {(t * size + i) % N for i in range(size)}]
  assert all(b - a >= len(column) for a, b in itertools.pairwise(starts))
  return [row['noise_multiplier'] * np.linalg.norm(column) / np.linalg.norm(
      column[:ROUNDS - start]) for start in starts]


def sampled_epsilon(rate, noises):
  accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
  for noise, count in collections.Counter(noises).items():
    accountant.compose(dp_accounting.PoissonSampledDpEvent(
        rate, dp_accounting.GaussianDpEvent(noise)), count)
  return accountant.get_epsilon(DELTA)


@pytest.mark.parametrize('flag', ['--epsilon=4', '--noise_multiplier=1.3'])
def test_rows_are_those_of_independent_computations(flag):
  rows = rows_of(*GAUSSIAN, flag)
  assert [(row['sampling'], row['max_participations'], row['turn_rate'], row['bands'])
          for row in rows] == [
      ('poisson', None, None, 1), ('poisson', 4, None, 1), ('turns', None, 1.0, 1),
      ('turns', None, 1.0, 8), ('turns', None, 0.5, 4), ('turns', None, 0.25, 2),
      ('turns', None, 0.125, 1)]
  poisson, limited, *turns = rows
  if 'epsilon' in flag:
    assert 3.99 < poisson['epsilon'] <= 4
  else:
    assert poisson['noise_multiplier'] == 1.3
  rate, noise = COHORT / N, poisson['noise_multiplier']
  assert poisson['gain'] == 1 and limited['noise_multiplier'] == noise
  for row in (poisson, limited):
    assert row['epsilon'] == pytest.approx(
        sampled_epsilon(rate, [noise] * ROUNDS), rel=1e-3)
    assert row['epsilon_server'] == pytest.approx(known_cohorts.epsilon(
        *known_cohorts.law((ROUNDS, rate, row['max_participations'], noise)), DELTA),
                                                  rel=1e-6)
  for row in turns:
    noises, chance = windows(row), COHORT / math.ceil(COHORT / row['turn_rate'])
    known = known_cohorts.epsilon(*known_cohorts.law(
        *((1, chance, None, one) for one in noises)), DELTA)
    assert known <= row['epsilon_server'] <= known * (1 + 1e-6)
    assert row['epsilon'] == pytest.approx(
        known if chance == 1 else sampled_epsilon(chance, noises), rel=1e-3)
  assert any(len({*windows(row)}) > 1 for row in turns)


def test_all_rows_have_the_error_of_the_reference():
  rows = rows_of(*GAUSSIAN, '--epsilon=4')
  error = models_error((1,), rows[0]['noise_multiplier'])
  for row in rows:
    found = models_error(column_of(row), row['noise_multiplier'])
    assert [row['error'], found] == pytest.approx([error] * 2, rel=1e-9)
    assert row['noise_multiplier'] == pytest.approx(
        row['gain'] * rows[0]['noise_multiplier'], rel=1e-8)
  assert max(row['gain'] for row in rows) > 2


@pytest.mark.parametrize('flags', [
    ['--mechanism=skellam_central'], ['--mechanism=discrete_gaussian'],
    ['--mechanism=skellam', '--min_honest_fraction=0.5']])
def test_rounding_counts_in_the_error_on_a_grid(flags):
  rows = rows_of(*SKELLAM[1:], *flags, '--noise_multiplier=1', '--bits=13',
                 '--allow_degenerate')
  fraction = 0.5 if len(flags) > 1 else 1.0
  errors, roundings = [], []
  for row in rows:
    roundings.append(models_error((1,), math.sqrt(COHORT / 4) / (0.5 * row['scale'])))
    errors.append(math.hypot(roundings[-1], models_error(
        column_of(row), row['noise_multiplier'] / math.sqrt(fraction))))
  assert errors == pytest.approx([errors[0]] * len(rows), rel=1e-9)
  assert errors == pytest.approx([row['error'] for row in rows], rel=1e-9)
  # Bands leave less of the error for noise: their rows are on a coarser grid.
  assert roundings[3] > 10 * roundings[0] > 0 and roundings[3] > 0.02 * errors[0]
  assert rows[3]['noise_multiplier'] < 0.999 * rows[3]['gain']


def test_epsilon_on_a_grid_is_that_of_the_sum_itself():
  for row in rows_of(*SKELLAM, '--epsilon=4', '--bits=16')[2:]:
    mechanism = mechanisms.SumMechanism(
        mechanism='skellam', population=N, cohort_size=COHORT, rounds=ROUNDS, clip=0.5,
        dimension=1000, bits=16, sampling='turns', turn_rate=row['turn_rate'],
        column=column_of(row), noise_multiplier=row['noise_multiplier'])
    answer = answers.answer(answers.Query(delta=DELTA), mechanism).to_json()
    for key in ('epsilon', 'epsilon_server', 'epsilon_participant', 'scale'):
      assert row[key] == answer[key]
    assert row['epsilon_participant'] is None or (
        row['epsilon_participant'] > row['epsilon_server'])
    assert any('closed sums' in text for text in row['warnings']) == (row['bands'] > 1)


def test_text_and_csv_have_the_numbers_of_json():
  flags = *SKELLAM, '--epsilon=4', '--bits=16'
  text, rows = run(*flags), rows_of(*flags)
  head, *lines = text.splitlines()
  assert max(map(len, text.splitlines())) <= 80
  assert head.split() == 'sampling bands noise gain epsilon server participant'.split()
  for row, line in zip(rows, lines):
    cells = line.split()
    assert cells[0].strip(',') == row['sampling']
    for cell, key in zip(reversed(cells), (
        'epsilon_participant', 'epsilon_server', 'epsilon')):
      assert (cell, row[key]) == ('-', None) or (
          row[key] <= float(cell) <= row[key] * 1.00001)
  for observer, key in (('observers of the models', 'epsilon'),
                        ('the server', 'epsilon_server'),
                        ('a participant', 'epsilon_participant')):
    line, = (line for line in lines if line.startswith(f'smallest against {observer}:'))
    best = min((row for row in rows if row[key] is not None), key=lambda row: row[key])
    number = float(line.split(': ')[1].split(',')[0])
    assert number == pytest.approx(best[key], rel=1e-5)
    assert line.endswith(f', bands {best["bands"]}') and best['sampling'] in line
  table = list(csv.DictReader(io.StringIO(run(*flags, '--format=csv'))))
  assert list(table[0]) == list(rows[0])
  for cells, row in zip(table, rows, strict=True):
    assert float(cells['epsilon']) == row['epsilon']
    assert cells['turn_rate'] == f'{row["turn_rate"] or ""}'


def test_delta_is_that_of_a_run_by_default():
  rows = rows_of('--mechanism=gaussian', '--compare', '--population=1000',
                 '--cohort_size=500', '--noise_multiplier=1')
  assert {row['delta'] for row in rows if row['bands']} == {5e-4}


@pytest.mark.parametrize('population, cohort, count, reason', [
    (13, 7, 4, 'bands need a population of at least 14'),
    (60, 7.5, 2, 'cohort_size must be an integer'),
    (20, 7, 2, 'turn_rate must be at least')])
def test_an_impossible_row_gives_its_reason(population, cohort, count, reason):
  flags = [*GAUSSIAN, '--epsilon=4', '--rounds=10', f'--population={population}',
           f'--cohort_size={cohort}']
  rows = rows_of(*flags)
  impossible = [row for row in rows if row['bands'] is None]
  assert len(impossible) == count
  assert reason in ' '.join(' '.join(row['warnings']) for row in impossible)
  assert all(row['epsilon'] is None for row in impossible)
  text = run(*flags)
  assert reason in ' '.join(text.split()) and max(map(len, text.splitlines())) <= 80


def test_a_grid_too_coarse_for_bands_says_which_bits_would_do():
  rows = rows_of(*SKELLAM, '--noise_multiplier=1', '--bits=12')
  assert rows[2]['epsilon'] is not None
  assert 'degenerate setting' in rows[3]['warnings'][0]
  assert 'bits=' in rows[3]['warnings'][0]


@pytest.mark.parametrize('flags, message', [
    ([*GAUSSIAN], 'epsilon (or noise_multiplier) must be given for compare'),
    ([*GAUSSIAN, '--epsilon=3', '--noise_multiplier=1'], 'must not both be given'),
    *((['--compare', '--mechanism=gaussian', f'--{given}=5', '--epsilon=3'],
       f'{missing} must be given for compare') for given, missing in (
           ('cohort_size', 'population'), ('population', 'cohort_size'))),
    ([*GAUSSIAN, '--epsilon=3', '--cohort_size=61'],
     'cohort_size must be at most population=60, found 61'),
    (['--mechanism=skellam', *SIZES, '--epsilon=3'], 'clip must be given'),
    (['--compare'], 'mechanism must be given'), *(([*GAUSSIAN, '--epsilon=3', flag],
       f'{flag[2:].partition("=")[0]} is not used with compare: leave it out')
      for flag in ('--query=rounds', '--query=epsilon', '--sampling=turns', '--explain')),
    ([*SKELLAM, '--bits=16', '--epsilon=3', '--adaptive_clipping'],
     'adaptive_clipping is not used with compare'),
    ([*GAUSSIAN, '--epsilon=3', '--column=2,1'], 'column is not used with sampling'),
    (['--compare', '--mechanism=none'], 'compare is not used with mechanism=none'),
    (['--compare', '--mechanism=ae_vote'], 'compare is not used with mechanism=ae_'),
    (['--compare', '--ledger=x'], 'compare is not used with ledger'),
    (['--mechanism=gaussian', '--noise_multiplier=1', '--delta=0.1',
      '--server_momentum=0.5'], 'server_momentum is not used with compare=false'),
    ([*GAUSSIAN, '--epsilon=3', '--server_momentum=1'],
     'server_momentum must be at least 0 and less than 1')])
def test_errors_are_one_line(flags, message):
  error = run(*flags, code=2)
  assert message in error and len(error.splitlines()) == 1
