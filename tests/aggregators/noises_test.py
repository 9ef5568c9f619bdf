"""Mechanisms of noise are objects: what they leave unsaid is refused."""

import dataclasses
import json
import math

import numpy as np
import pytest
import tensorflow_federated as tff

from aggregators import distributed_sum, noises, params as params_lib, share_tables
from aggregators.native import marks
from tests import statistics_lib
from tests.aggregators import binomial
from tff_pipelines.accounting.events import base, kinds as events
from tff_pipelines.accounting.guarantees import mechanisms
from tff_pipelines.fedavg import plan as plan_lib

PARAMS = params_lib.DistributedSumParams(
    clip=1.0, noise_multiplier=1.0, bits=16, dimension=8, cohort_size=10)


def test_unknown_name_is_refused_wherever_it_arrives():
  rule = 'mechanism must be one of .*binomial'
  with pytest.raises(ValueError, match=rule):
    noises.named('binomial')
  with pytest.raises(ValueError, match=rule):
    PARAMS.replace(mechanism='binomial')
  mark = json.dumps({**json.loads(marks.text(PARAMS)), 'mechanism': 'binomial'})
  with pytest.raises(ValueError, match=rule):
    marks.parameters(mark.encode())
  # Parameters that were changed by force are refused too.
  forged = dataclasses.replace(PARAMS)
  object.__setattr__(forged, 'mechanism', 'binomial')
  for ask in (share_tables.most_shares, marks.is_supported,
              distributed_sum.DistributedSumFactory):
    with pytest.raises(ValueError, match=rule):
      ask(forged)
  with pytest.raises(ValueError, match=rule):
    distributed_sum.sample_noise([0, 1], [3], 1.0, forged)
  with pytest.raises(ValueError, match='mechanism must be one of'):
    mechanisms.build('binomial')


@pytest.mark.parametrize('name', [field.name for field in dataclasses.fields(
    noises.Noise)])
def test_mechanism_that_leaves_something_unsaid_cannot_be_built(name):
  with pytest.raises(TypeError, match=name):
    noises.Noise(**{key: value for key, value in binomial.NOISE.items() if key != name})


@pytest.mark.parametrize('changes, rule', [
    ({'sampler': 'binomial'}, 'sampler must be one of'),
    ({'tables': 'skellam'}, 'tables must be a family'),
    ({'has_shares': 'clients'}, 'has_shares must be True or False'),
    ({'in_kernels': None}, 'in_kernels must be True or False'),
    ({'smallest_share': math.nan}, 'smallest_share must be'),
    ({'sampler_total_variation': 2.0}, 'sampler_total_variation must be'),
    ({'is_divisible': False}, 'sampler_total_variation of binomial must be given')])
def test_mechanism_that_misstates_something_cannot_be_built(changes, rule):
  with pytest.raises(ValueError, match=rule):
    noises.Noise(**{**binomial.NOISE, **changes})


def test_new_mechanism_without_an_event_is_not_accounted(monkeypatch):
  monkeypatch.setitem(noises.NOISES, 'binomial', noises.Noise(**binomial.NOISE))
  assert PARAMS.replace(mechanism='binomial').noise.name == 'binomial'
  with pytest.raises(ValueError, match='mechanism must be one of'):
    mechanisms.build('binomial')


@pytest.fixture(name='kind')
def _kind(monkeypatch):
  return binomial.add(monkeypatch)


def test_new_mechanism_draws_from_its_own_tables_and_outside_the_kernels(
    kind, in_process):
  params = PARAMS.replace(mechanism='binomial', fixed_scale=4.0, dimension=4096,
                          rotation='none')
  assert params.noise.tables is binomial.NOISE['tables']
  assert not marks.is_supported(params)
  assert marks.is_supported(params.replace(mechanism='skellam'))
  process = distributed_sum.DistributedSumFactory(params).create(
      tff.TensorType(np.float32, [4096]))
  noise = 4 * np.asarray(process.next(
      process.initialize(), [np.zeros(4096, np.float32)] * 10).result)
  # Ten shares of whole coins: at least the variance that is counted on.
  coins = 10 * math.ceil(2 * params.noise_variance / 10)
  statistics_lib.check_variance(noise, coins / 2)
  assert np.array_equal(noise, np.round(noise)) and coins / 2 >= params.noise_variance


def test_new_mechanism_says_what_participants_see(kind):
  event = kind.from_params(PARAMS.replace(mechanism='binomial'))
  assert event.has_shares() and event.minimum_cohort() == PARAMS.cohort_size
  assert event.seen_by_participants().noise_variance == pytest.approx(
      0.9 * event.noise_variance)


@pytest.mark.parametrize('steps', [1, 3])
def test_the_bound_of_the_new_mechanism_is_above_the_exact_divergence(kind, steps):
  event = kind(l1_sensitivity=steps, l2_sensitivity=steps, noise_variance=200.0,
               dimension=1, min_honest_fraction=1.0)
  mass = np.array([math.comb(800, k) / 2**800 for k in range(801)])
  epsilon = event.pure_epsilon('none')
  left = np.append(np.zeros(steps), mass)
  right = np.append(mass, np.zeros(steps))
  for one, other in ((left, right), (right, left)):
    assert 0 < np.maximum(one - math.exp(epsilon) * other, 0).sum() <= 1e-12
    assert np.maximum(one - math.exp(epsilon / 3) * other, 0).sum() > 1e-12


def test_new_mechanism_reaches_plan_ledger_and_participants(kind):
  plan = plan_lib.FedAvgPlan.calibrate(mechanisms.SumMechanism(
      mechanism='binomial', clip=1.0, scale=8.0, dimension=2, cohort_size=100.0,
      population=100, noise_multiplier=60.0, rounds=3, beta=0.0, rotation='none'),
      delta=1e-5)
  released = plan.released(3)
  assert base.from_json(released.to_json()) == released
  one = plan.event(1).pure_epsilon('none')
  assert plan.bound(released, 3).epsilon == pytest.approx(3 * one, rel=1e-6)
  assert plan.bound(
      released, 3, observer='participant').epsilon > plan.bound(released, 3).epsilon
  # A bound that may fail is never amplified without a proof.
  with pytest.raises(ValueError, match='cannot be amplified: it may fail'):
    events.PoissonSampled(event=plan.event(1), sampling_rate=0.1)


def test_each_mechanism_has_an_event_that_agrees_on_who_adds_the_noise():
  for name, noise in noises.NOISES.items():
    params = PARAMS.replace(mechanism=name)
    event = mechanisms.build(
        name, clip=1.0, noise_multiplier=1.0, bits=16, dimension=8, cohort_size=10,
        population=10).release()
    assert event.has_shares() == noise.has_shares == params.has_shares
