"""Aggregations of one's own in the trainer: accounting, resuming, mistakes."""

import sys

import numpy as np
import pytest
import tensorflow_federated as tff

from aggregators.central_sum import CentralSumFactory
from aggregators.expected_mean import ExpectedMeanFactory
from tests import tiny_task
from tff_pipelines import api
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import accountant, ledger as ledger_lib

TASK = tiny_task.task()
GAUSSIAN = events.CentralGaussian(noise_multiplier=1.0)
MODULE = '''
import tensorflow_federated as tff
from tff_pipelines.accounting.events import kinds as events

def mean(*, population, cohort_size=None):
  assert population == 8 and cohort_size == 4
  return tff.aggregators.MeanFactory(), events.CentralGaussian(noise_multiplier=1.0)

def needs(clip):
  return clip

def wants(*, color):
  return color
'''


def _settings(folder, **changes):
  return api.TrainSettings(**{**dict(
      task=TASK, rounds=4, cohort_size=4.0, delta=0.01, client_batch_size=3,
      output_dir=str(folder)), **changes})


def _robust():
  return tff.learning.robust_aggregator(zeroing=True, clipping=True)


def test_resumed_with_two_workers_it_ends_with_the_weights_and_epsilon_of_one_run(
    tmp_path):
  whole = api.train(_settings(tmp_path / 'whole', seed=1), aggregation=_robust(),
                    event=GAUSSIAN)
  api.train(_settings(tmp_path / 'parts', seed=1, rounds=2), aggregation=_robust(),
            event=GAUSSIAN)
  parts = api.train(
      _settings(tmp_path / 'parts', seed=1, resume=True, local_workers=2),
      aggregation=_robust(), event=GAUSSIAN)
  for name, array in whole.weights.items():
    np.testing.assert_array_equal(parts.weights[name], array)
  spent = whole.metrics['epsilon_if_unseeded']
  np.testing.assert_array_equal(parts.metrics['epsilon_if_unseeded'], spent)
  assert 0 < spent.iloc[0] < spent.iloc[-1]
  # Values that a factory measures may be computed from raw updates.
  assert not any('diagnostics' in name for name in whole.metrics)


@pytest.mark.parametrize('sampling', ['turns', 'poisson'])
def test_stated_event_costs_what_the_same_mechanism_of_this_project_costs(
    tmp_path, sampling):
  common = dict(sampling=sampling, rounds=2, **(
      {'max_participations': 0} if sampling == 'poisson' else {}))
  factory = ExpectedMeanFactory(CentralSumFactory(clip=0.5, noise_multiplier=1.0), 4)
  own = api.train(_settings(tmp_path / 'own', **common), aggregation=factory,
                  event=GAUSSIAN)
  known = api.train(_settings(
      tmp_path / 'known', mechanism='gaussian', clip=0.5, noise_multiplier=1.0,
      **common, **({'bands': 1} if sampling == 'turns' else {})))
  for observer in ('outsiders', 'server'):
    assert getattr(own.guarantee, observer).epsilon == pytest.approx(
        getattr(known.guarantee, observer).epsilon, rel=1e-9)
  assert 'aggregation as stated' in own.summary['caveats']
  report = (own.folder / 'report.txt').read_text()
  assert 'own: ExpectedMeanFactory, accounted as CentralGaussian' in report
  ledger = ledger_lib.Ledger(own.folder / 'ledger.jsonl')
  assert accountant.epsilon(ledger.event(), 0.01) == own.summary['epsilon']


def test_without_an_event_nothing_is_guaranteed(tmp_path):
  result = api.train(_settings(tmp_path / 'run', rounds=1, diagnostics=True),
                     aggregation=tff.aggregators.MeanFactory())
  assert result.guarantee.outsiders is None and result.summary['epsilon'] is None
  assert 'mechanism not accounted' in result.summary['caveats']
  assert 'diagnostics/training_loss' in result.metrics


def test_flag_names_a_function_whose_source_identifies_the_run(tmp_path, monkeypatch):
  (tmp_path / 'mine.py').write_text(MODULE)
  monkeypatch.syspath_prepend(str(tmp_path))
  monkeypatch.delitem(sys.modules, 'mine', raising=False)
  settings = _settings(tmp_path / 'run', mechanism='own', aggregation='mine:mean')
  result = api.train(settings)
  assert result.summary['epsilon'] > 0
  (tmp_path / 'mine.py').write_text(MODULE + '\n')
  with pytest.raises(ValueError, match='aggregation_source differ'):
    api.train(settings.replace(resume=True))
  for name, message in (('mine:needs', 'clip'), ('mine:wants', 'color'),
                        ('mine:none', 'no function none'), ('mine', 'module:function')):
    with pytest.raises(ValueError, match=message):
      api.train(settings.replace(aggregation=name, output_dir=str(tmp_path / 'new')))
  assert not (tmp_path / 'new').exists()


@pytest.mark.parametrize('changes, given, message', [
    ({}, {'event': GAUSSIAN}, 'event is not used without an aggregation'),
    ({}, {'aggregation': 'mean'}, 'must be a factory of tff.aggregators, found str'),
    ({}, {'aggregation': _robust(), 'event': 1.0}, 'event must be an event, found 1.0'),
    ({}, {'aggregation': _robust(), 'event': events.Piecewise(epsilon=1.0)},
     'cannot be amplified by sampling'),
    ({}, {'aggregation': _robust(), 'event': events.DistributedSkellam(
        l1_sensitivity=1.0, l2_sensitivity=1.0, noise_variance=4.0, cohort_size=4)},
     'event must have no shares'),
    ({'epsilon': 2.0}, {'aggregation': _robust()},
     'epsilon is not used with mechanism=own'),
    ({'noise_multiplier': 1.0}, {'aggregation': _robust()},
     'noise_multiplier is not used with mechanism=own'),
    ({'mechanism': 'own'}, {}, 'mechanism=own needs aggregation')])
def test_mistakes_are_one_line_and_nothing_is_written(tmp_path, changes, given, message):
  with pytest.raises(ValueError, match=message) as raised:
    api.train(_settings(tmp_path / 'run', **changes), **given)
  assert '\n' not in str(raised.value) and not (tmp_path / 'run').exists()


def test_another_event_does_not_continue_a_run(tmp_path):
  api.train(_settings(tmp_path / 'run', rounds=1), aggregation=_robust(), event=GAUSSIAN)
  other = events.CentralGaussian(noise_multiplier=2.0)
  with pytest.raises(ValueError, match='aggregation must be that of the run'):
    api.train(_settings(tmp_path / 'run', rounds=1, resume=True),
              aggregation=_robust(), event=other)
