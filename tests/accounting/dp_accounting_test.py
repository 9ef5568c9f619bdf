"""Epsilon against the accountants of dp_accounting, on the same events.

For every setting ours must not be below theirs beyond numerical error, and must equal
it within a stated tolerance: 0.1% with PLD, 1e-8 with Renyi divergences of the same
orders.
"""

from dp_accounting import (
    pld as dp_pld, privacy_accountant as dp_accountant, rdp as dp_rdp)
import pytest

from tff_pipelines.accounting.divergences import curves
from tff_pipelines.accounting.events import base, kinds as events
from tff_pipelines.accounting.guarantees import accountant

NEIGHBOURS = {base.ZERO_OUT: dp_accountant.NeighboringRelation.ADD_OR_REMOVE_ONE,
    base.RECORD_ZERO_OUT: dp_accountant.NeighboringRelation.ADD_OR_REMOVE_ONE,
    base.REPLACE_ONE: dp_accountant.NeighboringRelation.REPLACE_ONE,
    # Of any two inputs: the noise multiplier has their distance already.
    base.LOCAL: dp_accountant.NeighboringRelation.ADD_OR_REMOVE_ONE}


def gaussian(noise_multiplier):
  return events.CentralGaussian(noise_multiplier=noise_multiplier)


def sampled(event, rate):
  return events.PoissonSampled(event=event, sampling_rate=rate)


def composed(event, count):
  return events.SelfComposed(event=event, count=count)


def by_rdp(event, delta, max_order=256):
  """Epsilon by dp_accounting's Renyi accountant."""
  oracle = dp_rdp.RdpAccountant(curves.orders(max_order), NEIGHBOURS[event.adjacency])
  return oracle.compose(event.to_dp_accounting()).get_epsilon(delta)


def by_pld(event, delta):
  """Epsilon by dp_accounting's accountant of privacy loss distributions."""
  oracle = dp_pld.PLDAccountant(NEIGHBOURS[event.adjacency])
  return oracle.compose(event.to_dp_accounting()).get_epsilon(delta)


@pytest.mark.slow
@pytest.mark.parametrize('event, delta', [(gaussian(0.6), 1e-3), (gaussian(0.6), 1e-9),
    (composed(gaussian(4.0), 30), 1e-6),
    (composed(sampled(gaussian(0.848), 100 / 3400), 1500), 1 / 3400),
    (composed(sampled(gaussian(2.0), 0.3), 50), 1e-5),
    (sampled(gaussian(0.9), 1e-4), 1e-8),
    (composed(sampled(gaussian(3.0), 1.0), 10), 1e-6),
    (events.Composed(events=(
        sampled(gaussian(1.0), 0.01), sampled(gaussian(2.0), 0.2), gaussian(5.0))),
     1e-5),
    (composed(events.SampledRecords(
        event=events.CentralGaussian(noise_multiplier=1.1), sampling_rate=0.02), 200),
     1e-5),
    (composed(events.EpochSampled(event=gaussian(2.0), cohort_size=9, population=40), 50),
     1e-5),
    *((composed(events.TurnSampled(
        event=gaussian(1.5 * 31.7), column=(16, 15, 14, 13, 13), turn_size=9,
        population=47, sampling_rate=rate), 48), 1e-3) for rate in (1.0, 0.5, 0.05)),
    (events.Composed(events=(events.TurnSampled(
        event=gaussian(4.0), column=(2, 1), turn_size=3, population=8),) * 7), 1e-5)])
def test_epsilon_equals_that_of_dp_accounting(event, delta):
  ours = accountant.epsilon(event, delta, accountant='pld')
  theirs = by_pld(event, delta)
  # Theirs is rounded up on a grid of 1e-4 of the loss.
  assert (1 - 1e-4) * theirs <= ours <= (1 + 1e-3) * theirs
  ours = accountant.epsilon(event, delta, accountant='rdp')
  assert ours == pytest.approx(by_rdp(event, delta), rel=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize('items, threshold', [(0, None), (64, 110)])
def test_release_before_the_rounds_costs_what_gaussian_noise_and_a_leak_do(
    items, threshold):
  rounds, delta = composed(sampled(gaussian(0.8633), 100 / 539), 50), 1 / 539
  release = events.PreliminaryRelease(
      l2_sensitivity=8.0, noise_variance=(8 * 2.7245)**2, dimension=40_000,
      items=items, threshold=threshold)
  ours = accountant.epsilon(events.Composed(events=(release, rounds)), delta)
  failed = release.failure_probability()
  assert (failed > 0.01 * delta) == (items > 0)
  theirs = by_pld(events.Composed(events=(gaussian(2.7245), rounds)),
                  (delta - failed) / (1 - failed))
  assert (1 - 1e-4) * theirs <= ours <= (1 + 1e-3) * theirs
  # By Renyi divergences it were 9.7.
  assert ours < 8.3


def test_releases_from_one_sample_are_one_gaussian():
  event = composed(
      sampled(events.Together(events=(gaussian(3.0), gaussian(4.0))), 0.1), 50)
  assert accountant.epsilon(event, 1e-5, accountant='rdp') == pytest.approx(
      by_rdp(event, 1e-5), rel=1e-8)
  same = composed(sampled(gaussian(2.4), 0.1), 50)
  assert accountant.epsilon(event, 1e-5) == pytest.approx(by_pld(same, 1e-5), rel=1e-3)


@pytest.mark.parametrize('noise_multiplier, cohort_size, count', [
    (2.0, 10, 100), (4.0, 100, 20), (8.0, 500, 300)])
def test_cohorts_of_fixed_size_are_not_below_dp_accounting(
    noise_multiplier, cohort_size, count):
  event = composed(events.FixedSizeSampled(
      event=gaussian(noise_multiplier), cohort_size=cohort_size, population=1000), count)
  ours = accountant.bound(event, 1e-3, accountant='rdp')
  assert ours.order < 30
  theirs = by_rdp(event, 1e-3, max_order=30)
  # Theirs is for Gaussian noise alone, ours for any noise.
  assert (1 - 1e-9) * theirs <= ours.epsilon <= 2 * theirs
  whole = event.without_sampling()
  assert accountant.epsilon(whole, 1e-3, accountant='rdp') == pytest.approx(
      by_rdp(composed(gaussian(noise_multiplier / 2), count), 1e-3), rel=1e-8)


@pytest.mark.parametrize('event', [
    events.SkellamCount(noise_variance=9.0), composed(sampled(
        events.DistributedSkellam(l1_sensitivity=4.0, l2_sensitivity=2.0,
                                  noise_variance=9.0), 0.1), 5),
    events.PoissonSampled(event=gaussian(1.0), sampling_rate=0.1,
                          pivotal_probability=0.01),
    events.LocalDiscreteGaussian(noise_multiplier=1.0),
    events.Nfdp(records=10, subset_size=1)])
def test_events_without_an_equivalent_are_refused(event):
  with pytest.raises(NotImplementedError, match='has no equivalent in dp_accounting'):
    event.to_dp_accounting()


def test_local_gaussian_noise_and_post_processing_are_those_of_dp_accounting():
  event = events.Composed(events=(
      composed(events.LocalGaussian(noise_multiplier=2.0), 3), events.PostProcessing()))
  assert by_rdp(event, 1e-5) == pytest.approx(
      accountant.epsilon(event, 1e-5, accountant='rdp'), rel=1e-8)
