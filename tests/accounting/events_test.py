"""The contract of every event: validation, JSON, composition, monotonicity."""

import dataclasses
import json
import math

import numpy as np
import pytest

from aggregators import params as params_lib
from tests.aggregators import binomial
from tff_pipelines.accounting.divergences import curves
from tff_pipelines.accounting.events import base, kinds as events
from tff_pipelines.accounting.guarantees import accountant

PARAMS = params_lib.DistributedSumParams(
    clip=0.03, noise_multiplier=1.0, bits=18, dimension=1000, cohort_size=100.0)

SKELLAM = events.DistributedSkellam.from_params(PARAMS)
GAUSSIAN = events.CentralGaussian(noise_multiplier=1.2)
COUNT = events.SkellamCount(noise_variance=30.0)

LEAVES = [SKELLAM, events.DistributedDiscreteGaussian.from_params(PARAMS),
    events.CentralSkellam.from_params(PARAMS), GAUSSIAN,
    COUNT, events.Vote(scheme='ae', noise_stddev=5.0),
    events.Vote(scheme='ae', noise_stddev=5.0, level='instance'),
    events.Vote(scheme='ae', noise_stddev=5.0, level='instance', noise='gaussian'),
    events.Vote(scheme='knn', noise_stddev=5.0, neighbours=8),
    events.Vote(scheme='knn', noise_stddev=5.0, neighbours=8, level='instance'),
    events.Vote(scheme='knn', noise_stddev=5.0, neighbours=8, level='instance',
                noise='gaussian', bound='paper'),
    events.Vote(scheme='ae', noise_stddev=9.0, attributes=3, max_weight=2),
    events.Vote(scheme='knn', noise_stddev=5.0, neighbours=8, level='instance',
                max_weight=2),
    events.Nfdp(records=1000, subset_size=10),
    events.Nfdp(records=1000, subset_size=10, replacement=False),
    events.Piecewise(epsilon=0.3), events.Duchi(epsilon=0.3),
    events.SubsetSelection(epsilon=0.3, classes=10, size=4),
    events.LocalLaplace(epsilon=0.3), events.LocalGaussian(noise_multiplier=2.0),
    events.LocalDiscreteGaussian(noise_multiplier=2.0), events.LocalAnswers(
        event=events.Piecewise(epsilon=0.3), groups=5, queries_before=3,
        queries_after=14),
    events.PostProcessing(), events.NoPrivacy(), events.PreliminaryRelease(
        l2_sensitivity=4.0, noise_variance=900.0, dimension=50, items=16, threshold=200),
    events.PreliminaryRelease(l2_sensitivity=4.0, noise_variance=900.0, dimension=50),
    events.EvaluationRelease(l2_sensitivity=4.0, noise_variance=900.0, dimension=2)]
COMBINED = [events.PoissonSampled(event=SKELLAM, sampling_rate=0.05),
    events.PoissonSampled(event=GAUSSIAN, sampling_rate=0.05),
    events.PoissonSampled(event=COUNT, sampling_rate=0.05),
    events.FixedSizeSampled(event=SKELLAM, cohort_size=5, population=100),
    events.FixedSizeSampled(event=GAUSSIAN, cohort_size=5, population=100),
    events.EpochSampled(event=SKELLAM, cohort_size=5, population=100),
    events.Together(events=(SKELLAM, COUNT)), events.PoissonSampled(
        event=events.Together(events=(SKELLAM, COUNT)), sampling_rate=0.05),
    events.PoissonSampled(
        event=events.Together(events=(GAUSSIAN, GAUSSIAN)), sampling_rate=0.05),
    events.Composed(events=(
        events.PoissonSampled(event=SKELLAM, sampling_rate=0.05), GAUSSIAN)),
    events.PoissonGroup(event=GAUSSIAN, sampling_rate=0.05, clients=2),
    events.FixedSizeSampled(event=SKELLAM, cohort_size=5, population=1000, clients=2),
    events.Attended(event=COUNT, rounds=9, probability=0.2, most=3, at_most=1e-3,
                    failure=1e-8),
    events.Attended(rounds=9, probability=0.2, depends=True, event=events.Coin(
        events=(GAUSSIAN, events.NoPrivacy()), weights=(1 - 1e-9, 1e-9))),
    events.Coin(events=(GAUSSIAN, COUNT), weights=(0.75, 0.25)),
    events.TurnSampled(event=SKELLAM, column=(3, 2, 2), turn_size=20, population=61),
    events.TurnSampled(event=GAUSSIAN, column=(2, 1), turn_size=50, population=100,
                       sampling_rate=0.3, pivotal_probability=0.01),
    events.OneRowKnown(events=(events.CentralGaussian(noise_multiplier=0.5), GAUSSIAN),
                       column=(2, 1)),
    events.SampledRecords(event=SKELLAM, sampling_rate=0.05),
    events.SampledRecords(event=GAUSSIAN, sampling_rate=0.05),
    events.SampledRecords(event=SKELLAM, sampling_rate=0.05, neighbours='instance'),
    events.SampledRecords(event=SKELLAM, sampling_rate=0.05, column=(3, 2))]
ALL = LEAVES + COMBINED
BY_NAME = pytest.mark.parametrize('event', ALL, ids=lambda e: f'{type(e).__name__}')


def test_every_kind_of_event_is_under_the_contract():
  public = {value for value in vars(events).values()
            if isinstance(value, type) and issubclass(value, base.Event)}
  concrete = {kind for kind in public if dataclasses.is_dataclass(kind)}
  assert concrete == {type(event) for event in ALL} | {events.SelfComposed}


@BY_NAME
def test_json_round_trip_gives_an_equal_event(event):
  text = json.dumps(event.to_json(), allow_nan=False)
  assert events.from_json(json.loads(text)) == event


@pytest.mark.slow
@pytest.mark.parametrize('event', {type(event): event for event in ALL}.values())
def test_composing_n_times_equals_n_compositions(event):
  times = 5
  once = events.SelfComposed(event=event, count=times)
  many = events.Composed(events=(event,) * times)
  nested = events.Composed(events=(
      event, events.SelfComposed(event=event, count=times - 1)))
  for delta in (1e-2, 1e-6):
    expected = accountant.epsilon(once, delta)
    assert accountant.epsilon(many, delta) == pytest.approx(expected, rel=1e-9)
    assert accountant.epsilon(nested, delta) >= expected * (1 - 1e-9)
    if event.is_ordered():  # Parts of a pass count whole.
      continue
    assert accountant.epsilon(nested, delta) == pytest.approx(expected, rel=1e-9)
    rdp = accountant.epsilon(once, delta, accountant='rdp')
    assert accountant.epsilon(
        many, delta, accountant='rdp') == pytest.approx(rdp, rel=1e-9)


@BY_NAME
def test_epsilon_falls_with_delta_and_rises_with_composition(event):
  epsilons = [accountant.epsilon(event, delta) for delta in (1e-9, 1e-5, 1e-2)]
  assert epsilons[0] >= epsilons[1] >= epsilons[2] >= 0
  twice = events.SelfComposed(event=event, count=2)
  assert accountant.epsilon(twice, 1e-5) >= epsilons[1]


@BY_NAME
def test_delta_undoes_epsilon(event):
  for kind in ('auto', 'rdp'):
    epsilon = accountant.epsilon(event, 1e-4, accountant=kind)
    if math.isfinite(epsilon):
      assert accountant.delta(event, epsilon, accountant=kind) <= 1e-4 * (1 + 1e-2)


@BY_NAME
def test_a_repetition_is_an_event_of_the_same_neighbours(event):
  repeated = event.repeated()
  assert repeated.adjacency in (event.adjacency, base.ANY)
  assert events.from_json(repeated.to_json()) == repeated
  free = isinstance(event, (events.Nfdp, events.PostProcessing))
  for delta in (1e-2, 1e-6):
    once = accountant.epsilon(event, delta)
    again = accountant.epsilon(events.Composed(events=(event, repeated)), delta)
    if free or math.isinf(once):
      assert again == once
    else:
      assert again > once or again == once == 0


def test_an_event_of_a_new_mechanism_is_under_the_contract(monkeypatch):
  event = binomial.add(monkeypatch).from_params(PARAMS.replace(mechanism='binomial'))
  for test in (test_json_round_trip_gives_an_equal_event,
               test_epsilon_falls_with_delta_and_rises_with_composition,
               test_delta_undoes_epsilon, test_composing_n_times_equals_n_compositions,
               test_a_repetition_is_an_event_of_the_same_neighbours,
               test_curves_are_prefixes_of_each_other_and_do_not_decrease):
    test(event)


def test_repetitions_of_wrapped_events_are_those_of_what_they_wrap():
  subset, free = events.Nfdp(records=100, subset_size=10), events.PostProcessing()
  assert subset.repeated() == free and free.repeated() == free
  assert events.SelfComposed(event=subset, count=3).repeated() == (
      events.SelfComposed(event=free, count=3))
  assert events.Composed(events=(subset, free)).repeated() == (
      events.Composed(events=(free, free)))
  assert COMBINED[0].repeated() == COMBINED[0]


@pytest.mark.parametrize('before, after, answers', [
    (0, 1, 1), (1, 4, 1), (4, 5, 1), (3, 14, 3), (0, 10, 2), (2, 13, 3)])
def test_a_repeated_step_of_local_answers_counts_all_of_its_queries(
    before, after, answers):
  one = events.Piecewise(epsilon=0.3)
  step = events.LocalAnswers(
      event=one, groups=5, queries_before=before, queries_after=after)
  assert step.repeated() == events.SelfComposed(event=one, count=answers)
  assert step.count <= answers


@BY_NAME
def test_curves_are_prefixes_of_each_other_and_do_not_decrease(event):
  long = event.curve(300, 'tight')
  np.testing.assert_array_equal(event.curve(100, 'tight'), long[:99])
  finite = long[np.isfinite(long)]
  assert (np.diff(finite) >= -1e-9 * np.abs(finite[1:])).all()


@pytest.mark.parametrize('event', COMBINED[:5])
def test_amplification_orders_tight_generic_none(event):
  whole = events.SelfComposed(event=event, count=100)
  tight, generic, none = (
      accountant.epsilon(whole, 1e-5, accountant='rdp', amplification=kind)
      for kind in ('tight', 'generic', 'none'))
  assert tight <= generic <= none


def test_without_sampling_is_the_release_that_participants_see():
  sampled = events.SelfComposed(event=COMBINED[0], count=10)
  assert sampled.without_sampling() == events.SelfComposed(event=SKELLAM, count=10)
  assert accountant.epsilon(sampled.without_sampling(), 1e-5) == (
      accountant.epsilon(sampled, 1e-5, amplification='none'))


def test_fixed_size_sampling_doubles_the_rounded_sensitivities():
  event = events.FixedSizeSampled(event=SKELLAM, cohort_size=10, population=10)
  expected = curves.skellam(l1=2 * SKELLAM.l1_sensitivity, l2=2 * SKELLAM.l2_sensitivity,
      variance=SKELLAM.noise_variance)
  np.testing.assert_array_equal(event.curve(curves.MAX_ORDER, 'tight'), expected)
  assert event.adjacency == base.REPLACE_ONE


def test_fixed_size_is_never_accounted_by_the_poisson_bound():
  poisson = events.PoissonSampled(event=SKELLAM, sampling_rate=0.05)
  fixed = events.FixedSizeSampled(event=SKELLAM, cohort_size=5, population=100)
  assert accountant.epsilon(fixed, 1e-5) > accountant.epsilon(poisson, 1e-5)
  assert accountant.epsilon(fixed.without_sampling(), 1e-5) >= (
      accountant.epsilon(fixed, 1e-5))


def test_together_adds_before_subsampling():
  together = COMBINED[6]
  curve = SKELLAM.curve(64, 'tight') + COUNT.curve(64, 'tight')
  joint = together.curve(64, 'tight')
  apart = sum(events.PoissonSampled(event=part, sampling_rate=0.05).curve(
      64, 'tight') for part in (SKELLAM, COUNT))
  assert (joint <= curve).all()
  # One sample for both is worse than a sample for each.
  assert (joint >= apart * (1 - 1e-9)).all() and (joint > apart * 1.01).any()


def test_surviving_fraction_scales_the_noise_and_nothing_else():
  half = events.DistributedSkellam.from_params(PARAMS, surviving_fraction=0.5)
  assert half.noise_variance == SKELLAM.noise_variance / 2
  assert (half.l1_sensitivity, half.l2_sensitivity) == (
      SKELLAM.l1_sensitivity, SKELLAM.l2_sensitivity)
  none = events.DistributedSkellam.from_params(PARAMS, surviving_fraction=0.0)
  assert accountant.epsilon(none, 1e-5) == math.inf


def test_no_privacy_is_infinite_wherever_it_is():
  for event in (events.NoPrivacy(),
                events.Composed(events=(GAUSSIAN, events.NoPrivacy())),
                events.PoissonSampled(event=events.NoPrivacy(), sampling_rate=0.01),
                events.PoissonSampled(event=events.CentralGaussian(noise_multiplier=0),
                    sampling_rate=1e-6)):
    for kind in ('auto', 'rdp', 'pld'):
      assert accountant.epsilon(event, 1e-3, accountant=kind) == math.inf
  assert accountant.delta(events.NoPrivacy(), 10.0) == 1.0


@pytest.mark.parametrize('build', [
    lambda: events.CentralGaussian(noise_multiplier=float('nan')),
    lambda: events.CentralGaussian(noise_multiplier=-1.0),
    lambda: events.CentralGaussian(noise_multiplier=math.inf),
    lambda: events.CentralGaussian(noise_multiplier=True),
    lambda: events.CentralGaussian(noise_multiplier=None),
    lambda: events.SkellamCount(noise_variance=-1.0),
    lambda: events.SkellamCount(l1_sensitivity=0, noise_variance=1.0),
    lambda: events.SkellamCount(l1_sensitivity=1.5, noise_variance=1.0),
    lambda: events.DistributedSkellam(
        l1_sensitivity=0.0, l2_sensitivity=0.0, noise_variance=1.0),
    lambda: events.DistributedSkellam(
        l1_sensitivity=1.0, l2_sensitivity=2.0, noise_variance=1.0),
    lambda: events.DistributedSkellam.from_params(PARAMS, 1.1),
    lambda: events.DistributedSkellam.from_params(PARAMS, float('nan')),
    lambda: events.PoissonSampled(event=GAUSSIAN, sampling_rate=0.0),
    lambda: events.PoissonSampled(event=GAUSSIAN, sampling_rate=1.0001),
    lambda: events.PoissonSampled(
        event=GAUSSIAN, sampling_rate=0.1, max_participations=0),
    lambda: events.PoissonSampled(
        event=GAUSSIAN, sampling_rate=0.1, pivotal_probability=1.1),
    lambda: events.PoissonSampled(event=COMBINED[0], sampling_rate=0.1),
    lambda: events.PoissonSampled(event=LEAVES[5].__class__(
        scheme='ae', noise_stddev=1.0, level='instance'), sampling_rate=0.1),
    lambda: events.PoissonSampled(event='gaussian', sampling_rate=0.1),
    lambda: events.FixedSizeSampled(event=GAUSSIAN, cohort_size=0, population=9),
    lambda: events.FixedSizeSampled(event=GAUSSIAN, cohort_size=10, population=9),
    lambda: events.SelfComposed(event=GAUSSIAN, count=2.0),
    lambda: events.Composed(events=()),
    lambda: events.Composed(events=(GAUSSIAN, events.Nfdp(records=10, subset_size=1))),
    lambda: events.Composed(events=(
        GAUSSIAN, events.SampledRecords(event=GAUSSIAN, sampling_rate=0.1))),
    lambda: events.SampledRecords(event=GAUSSIAN, sampling_rate=0.0),
    lambda: events.SampledRecords(event=GAUSSIAN, sampling_rate=0.1,
                                  neighbours='zero-out'),
    lambda: events.Vote(scheme='ae', noise_stddev=1.0, max_weight=1.5),
    lambda: events.Vote(scheme='knn', noise_stddev=1.0, neighbours=3, attributes=2),
    lambda: events.Together(events=(GAUSSIAN, COMBINED[0])),
    lambda: events.Vote(scheme='knn', noise_stddev=1.0),
    lambda: events.Vote(scheme='ae', noise_stddev=1.0, neighbours=3),
    lambda: events.Vote(scheme='ae', noise_stddev=1.0, bound='paper'),
    lambda: events.Nfdp(records=10, subset_size=11, replacement=False),
    lambda: events.Piecewise(epsilon=0.0), lambda: events.from_json({'kind': 'Nonsense'}),
    lambda: events.from_json({'kind': 'CentralGaussian'}),
    lambda: events.from_json({'kind': 'CentralGaussian', 'noise_multiplier': 1.0,
                              'extra': 2}),
    lambda: events.from_json({'kind': 'Event'}),
    lambda: events.from_json({**SKELLAM.to_json(), 'kind': '_Shares'}),
    lambda: events.from_json([1])])
def test_impossible_events_are_refused(build):
  with pytest.raises(ValueError, match='found|must|cannot'):
    build()
