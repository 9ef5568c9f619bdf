"""Baselines of local distillation in this process: plans, charges, interruptions."""

import math
import types

import numpy as np
import pytest

from tests.ldp import run_test
from tff_pipelines.accounting.guarantees import accountant, ledger as ledger_lib
from tff_pipelines.baselines import pate
from tff_pipelines.common import files
from tff_pipelines.ldp import baselines, run as ldp_run
from tff_pipelines.ldp.settings import BaselineSettings

NUM_CLIENTS = 20


@pytest.fixture(scope='module')
def prepared():
  return ldp_run.Prepared(BaselineSettings(num_clients=NUM_CLIENTS))


def _run(prepared, folder, algorithm='pate', **changes):
  own = {'answers': 40} if algorithm == 'pate' else {}
  return baselines.experiment(BaselineSettings(
      num_clients=NUM_CLIENTS, algorithm=algorithm, output_dir=str(folder),
      **own, **changes), prepared).run()


def _pate(num_clients, pool, recorded=None, **settings):
  task = types.SimpleNamespace(
      num_clients=num_clients, public=range(pool), num_classes=10,
      privacy_unit='one owner')
  return baselines.PateExperiment(BaselineSettings(**settings)).build_plan(
      types.SimpleNamespace(task=task), recorded)


def test_votes_are_counted_one_a_teacher():
  x = np.eye(3, dtype=np.float32)
  votes = baselines.count_votes(x, [x] * 4 + [np.roll(x, 1, axis=1)])
  np.testing.assert_array_equal(votes, [[4, 1, 0], [0, 4, 1], [1, 0, 4]])


def test_votes_are_charged_for_all_queries_and_the_most_answers():
  plan = _pate(1000, 800, epsilon=5.0, answers=300)
  assert plan.threshold == 500 and plan.answers == 300
  assert plan.threshold_stddev == 2 * plan.stddev
  assert 4.99 < accountant.epsilon(plan.event(1), 1e-5, accountant='rdp') <= 5.0
  # By hand: Gaussian releases add up to one, of this many squared sensitivities.
  z = 1 / np.sqrt(2 * (300 + 800 / 4) / plan.stddev**2)
  orders = np.linspace(1.1, 300, 3000)
  by_hand = np.min(orders / (2 * z**2) + np.log(1e5) / (orders - 1))
  assert 5.0 <= by_hand < 6.0  # The weaker conversion, as a bound.


def test_no_more_answers_than_queries_are_paid_for():
  assert _pate(50, 20, answers=300).answers == 20


def test_noise_that_has_no_table_is_refused():
  with pytest.raises(ValueError, match='stddev=.* is too large'):
    _pate(50, 20, recorded={'noise_stddev': 1e9})


@pytest.mark.parametrize('algorithm, name', [
    ('pate', 'noise_stddev'), ('dp_sgd', 'noise_multiplier'),
    ('dp_fl', 'noise_multiplier')])
def test_what_an_earlier_start_calibrated_is_taken_over(prepared, algorithm, name):
  experiment = baselines.EXPERIMENTS[algorithm](
      BaselineSettings(num_clients=NUM_CLIENTS, algorithm=algorithm))
  first = experiment.build_plan(prepared, None)
  assert 7.99 < first.epsilon(experiment.planned_rounds(first)) <= 8.0
  recorded = first.configuration()
  assert experiment.build_plan(prepared, recorded) == first
  recorded[name] = 2 * first.configuration()[name]
  assert experiment.build_plan(prepared, recorded).configuration()[name] == recorded[name]


def test_an_interrupted_vote_is_charged_again_and_counts_twice(prepared, tmp_path):
  folder = tmp_path / 'run'
  with run_test.killed_at(1, files, 'write_arrays'):
    _run(prepared, folder)
  summary = _run(prepared, folder, resume=True)
  assert len(ledger_lib.Ledger(folder / 'ledger.jsonl').lines()) == 2
  assert 1.3 * 8 < summary['epsilon'] < 2 * 8
  assert 'vote repeated' in summary['caveats']
  assert any('begun 2 times' in text for text in summary['warnings'])


def test_what_the_draws_of_a_vote_deviate_comes_out_of_delta(prepared, tmp_path):
  summary = _run(prepared, tmp_path / 'run')
  ledger = ledger_lib.Ledger(tmp_path / 'run' / 'ledger.jsonl')
  drift = ledger.header()['deviation_per_round']
  assert drift == summary['details']['queries'] * 11 * 2.0**-86
  # (1 + e^epsilon) t, of an epsilon that is no less than the one found.
  assert summary['delta'] > 1e9 * summary['consumed_delta']
  assert summary['consumed_delta'] >= (1 + math.exp(summary['epsilon'])) * drift
  with pytest.raises(ValueError, match='epsilon=50 at delta=1e-05 is beyond'):
    _run(prepared, tmp_path / 'large', epsilon=50.0)


def test_no_answer_at_all_says_what_to_change(prepared, tmp_path, monkeypatch):
  monkeypatch.setattr(pate, 'answer', lambda votes, *_: np.full(len(votes), -1))
  with pytest.raises(ValueError, match='lower --threshold'):
    _run(prepared, tmp_path / 'run')


def test_defaults_of_dp_fl_learn(tmp_path):
  # Noise is seeded, so that the accuracy is that of this seed.
  summary = baselines.experiment(BaselineSettings(
      algorithm='dp_fl', seed=1, output_dir=str(tmp_path / 'run'))).run()
  assert summary['accuracy'] >= 0.9 and summary['epsilon_if_unseeded'] <= 8.0
