"""Baselines of local distillation in this process: plans, charges, interruptions."""

import dataclasses
import math

import numpy as np
import pytest

from tff_pipelines import ldp_baseline_flags
from tff_pipelines import ldp_baseline_run
from tff_pipelines import ldp_run
from tff_pipelines import vote_records
from tff_pipelines.accounting import accountant
from tff_pipelines.accounting import ledger as ledger_lib

VALUES = dict(owners=20, answers=40)


class Killed(Exception):
  """In the place of a kill."""


@pytest.fixture(scope='module')
def setting():
  return ldp_run.prepared(ldp_baseline_flags.of(VALUES))


def _run(setting, folder, **changes):
  return ldp_baseline_run.run(ldp_baseline_flags.of(
      {**VALUES, 'output_dir': str(folder), **changes}), setting)


def test_votes_are_charged_for_all_queries_and_the_most_answers():
  aggregator, event = ldp_baseline_run.pate_aggregator(
      ldp_baseline_flags.of(dict(epsilon=5.0, answers=300)), 1000, 800)
  assert aggregator.threshold == 500 and aggregator.most_answers == 300
  assert aggregator.threshold_stddev == 2 * aggregator.stddev
  assert 4.99 < accountant.epsilon(event, 1e-5, accountant='rdp') <= 5.0
  # By hand: Gaussian releases add up to one, of this many squared sensitivities.
  z = 1 / np.sqrt(2 * (300 + 800 / 4) / aggregator.stddev**2)
  orders = np.linspace(1.1, 300, 3000)
  by_hand = np.min(orders / (2 * z**2) + np.log(1e5) / (orders - 1))
  assert 5.0 <= by_hand < 6.0  # The weaker conversion, as a bound.


def test_no_more_answers_than_queries_are_paid_for():
  aggregator, _ = ldp_baseline_run.pate_aggregator(
      ldp_baseline_flags.of(dict(answers=300)), 50, 20)
  assert aggregator.most_answers == 20


def test_an_interrupted_vote_is_charged_again_and_counts_twice(
    setting, tmp_path, monkeypatch):
  folder = tmp_path / 'run'

  def fails(*_):
    raise Killed

  monkeypatch.setattr(vote_records, 'write_arrays', fails)
  with pytest.raises(Killed):
    _run(setting, folder)
  monkeypatch.undo()
  found = _run(setting, folder, resume=True)
  assert len(ledger_lib.Ledger(folder / 'ledger.jsonl').lines()) == 2
  assert 1.3 * 8 < found['epsilon'] < 2 * 8
  assert any('begun 2 times' in text for text in found['warnings'])


def test_what_the_draws_of_a_vote_deviate_comes_out_of_delta(setting, tmp_path):
  found = _run(setting, tmp_path / 'run')
  ledger = ledger_lib.Ledger(tmp_path / 'run' / 'ledger.jsonl')
  drift = ledger.header()['deviation_per_round']
  assert drift == found['queries'] * 11 * 2.0**-86
  # (1 + e^epsilon) t, of an epsilon that is no less than the one found.
  assert found['delta'] > 1e9 * found['delta_sampler']
  assert found['delta_sampler'] >= (1 + math.exp(found['epsilon'])) * drift
  with pytest.raises(ValueError, match='epsilon=50 at delta=1e-05 can not be had'):
    _run(setting, tmp_path / 'large', epsilon=50.0)


def test_notes_on_the_data_are_among_the_warnings(setting, tmp_path):
  noted = dataclasses.replace(
      setting, task=dataclasses.replace(setting.task, notes=('classes counted',)))
  found = _run(noted, tmp_path / 'run')
  assert found['warnings'][0] == 'classes counted' and len(found['warnings']) > 1


def test_noisy_gradients_go_on_where_they_were_stopped(
    setting, tmp_path, monkeypatch):
  changes = dict(algorithm='dp_sgd', rounds=4, seed=3, answers=None)
  whole = _run(setting, tmp_path / 'whole', **changes)
  calls, original = [], ldp_baseline_run._accuracy

  def third_fails(*args):
    calls.append(1)
    if len(calls) == 3:
      raise Killed
    return original(*args)

  monkeypatch.setattr(ldp_baseline_run, '_accuracy', third_fails)
  with pytest.raises(Killed):
    _run(setting, tmp_path / 'run', **changes)
  monkeypatch.undo()
  found = _run(setting, tmp_path / 'run', **changes, resume=True)
  assert (found.pop('starts'), whole.pop('starts')) == (2, 1)
  assert found == whole
  assert (tmp_path / 'run' / 'metrics.csv').read_text() == (
      tmp_path / 'whole' / 'metrics.csv').read_text()


def test_no_answer_at_all_says_what_to_change(setting, tmp_path, monkeypatch):
  monkeypatch.setattr(
      ldp_baseline_run.pate, 'answer', lambda votes, *_: np.full(len(votes), -1))
  with pytest.raises(ValueError, match='lower --threshold'):
    _run(setting, tmp_path / 'run')


def test_baselines_do_not_share_a_folder(setting, tmp_path):
  _run(setting, tmp_path / 'run')
  with pytest.raises(ValueError, match='algorithm, '):
    _run(setting, tmp_path / 'run', algorithm='dp_sgd', answers=None, resume=True)
