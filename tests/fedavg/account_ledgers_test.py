"""Epsilon of several runs on the same clients, by their ledgers."""

import math
import re

import pytest

from tests import known_cohorts
from tests.fedavg import account_test
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import (
    accountant, ledger as ledger_lib, ledger_query)

DELTA = 1e-5
GAUSSIAN = events.CentralGaussian(noise_multiplier=2.0)


def _ledger(folder, name, event, rounds, **header):
  path = folder / f'{name}.jsonl'
  ledger = ledger_lib.Ledger.create(path, **{
      'population': 1000, 'delta': DELTA, 'trust_model': f'trust of {name}', **header})
  for index in range(rounds):
    ledger.append_line(ledger.next_line(
        event, outcome='released', configuration_hash=f'{name} {index}'))
  return path


def _answer(*paths, **how):
  return ledger_query.together(paths, **how)


def test_gaussian_runs_add_up_as_one_gaussian(tmp_path):
  paths = [_ledger(tmp_path, 'a', GAUSSIAN, 3),
           _ledger(tmp_path, 'b', GAUSSIAN, 3),  # The same settings, once more.
           _ledger(tmp_path, 'c', events.CentralGaussian(noise_multiplier=1.0), 2)]
  answer = _answer(*paths)
  # 6 / 4 + 2 / 1 of squared signal to noise.
  alone = events.CentralGaussian(noise_multiplier=1 / math.sqrt(6 / 4 + 2))
  assert answer.epsilon == pytest.approx(accountant.epsilon(alone, DELTA), rel=2e-3)
  assert (answer.delta, answer.rounds) == (DELTA, 8)
  assert answer.terms.trust_model == 'trust of a; trust of b; trust of c'
  assert _answer(paths[0]) == ledger_query.answer(paths[0])
  printed = account_test.as_json(f'--ledger={",".join(map(str, paths))}')
  assert printed['epsilon'] == answer.epsilon
  shown = account_test.run(f'--ledger={paths[0]},{paths[2]}').stdout
  assert f'ledger: {paths[0]}, chain intact' in shown
  assert f'ledger: {paths[2]}, chain intact' in shown


def test_limits_on_participations_are_those_of_each_run(tmp_path):
  event = events.PoissonSampled(event=GAUSSIAN, sampling_rate=0.1, max_participations=2)
  paths = [_ledger(tmp_path, name, event, 10) for name in 'ab']
  answer = _answer(*paths)
  # Two of each run, and not two of twenty rounds.
  exact = events.SelfComposed(event=GAUSSIAN, count=4)
  assert answer.server_any_cohorts.epsilon == pytest.approx(
      accountant.epsilon(exact, DELTA), rel=1e-6)
  assert answer.epsilon_server == pytest.approx(
      known_cohorts.epsilon(
          *known_cohorts.law(*[(10, 0.1, 2, 2.0)] * 2), DELTA), rel=1e-7)
  observers = events.SelfComposed(event=event, count=20)
  assert answer.epsilon == pytest.approx(accountant.epsilon(observers, DELTA), rel=2e-3)


def test_sampling_error_of_all_runs_is_taken_off_delta(tmp_path):
  paths = [_ledger(tmp_path, name, GAUSSIAN, rounds, deviation_per_round=1e-10)
           for name, rounds in (('a', 1), ('b', 4))]
  one, both = _answer(paths[1]).epsilon, _answer(*paths).epsilon
  ideal = accountant.epsilon(events.SelfComposed(event=GAUSSIAN, count=5), DELTA)
  assert both > ideal and both > one


def test_the_smallest_delta_counts_unless_one_is_given(tmp_path):
  paths = [_ledger(tmp_path, 'a', GAUSSIAN, 1, delta=1e-6),
           _ledger(tmp_path, 'b', GAUSSIAN, 1, delta=None, population=200)]
  assert _answer(*paths).delta == 1e-6
  assert _answer(paths[1]).delta == 0.0029
  assert _answer(*paths, delta=1e-4).delta == 1e-4


@pytest.mark.parametrize('what, message', [
    ('seeded', 'ledger must be of a run without a seed, found .*b.jsonl'),
    ('again', 'ledger must name different ones: .*a.jsonl and .*b.jsonl'),
    ('other', 'ledger must name runs of one adjacency, found zero-out in .*, local in '),
    ('missing', 'ledger must be the ledger.jsonl of a run, found .*b.jsonl')])
def test_ledgers_without_an_epsilon_together_are_refused_in_one_line(
    tmp_path, what, message):
  first = _ledger(tmp_path, 'a', GAUSSIAN, 2)
  second = tmp_path / 'b.jsonl'
  if what == 'again':
    second.write_bytes(first.read_bytes())
  elif what != 'missing':
    _ledger(tmp_path, 'b', events.LocalGaussian(noise_multiplier=1.0)
            if what == 'other' else GAUSSIAN, 2, seeded=what == 'seeded')
  done = account_test.run(f'--ledger={first},{second}', code=2)
  line, = done.stderr.strip().splitlines()
  assert re.search(message, line), line


def test_a_broken_chain_among_several_gives_no_number(tmp_path):
  first, second = (_ledger(tmp_path, name, GAUSSIAN, 2) for name in 'ab')
  second.write_text(second.read_text().replace('released', 'suppressed', 1))
  done = account_test.run(f'--ledger={first},{second}', code=1)
  assert f'{first}, chain intact' in done.stdout
  assert f'{second}, chain broken' in done.stdout
