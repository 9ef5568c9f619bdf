"""One record of Poisson-sampled sums is replaced: against quadrature and dp_accounting."""

import math

from dp_accounting.pld import privacy_loss_distribution as dp_pld
import numpy as np
import pytest
from scipy import stats

from tff_pipelines.accounting.events import base, kinds as events
from tff_pipelines.accounting.guarantees import accountant


def _event(noise, rate, count=1, neighbours=base.INSTANCE):
  return events.SelfComposed(count=count, event=events.SampledRecords(
      event=events.CentralGaussian(noise_multiplier=noise), sampling_rate=rate,
      neighbours=neighbours))


def _masses(edges, mean):
  """Normal masses of cells, accurate in both tails."""
  at = edges - mean
  return np.where(at[1:] < 0, np.diff(stats.norm.cdf(at)), -np.diff(stats.norm.sf(at)))


def _mixture(edges, rate, mean):
  return (1 - rate) * _masses(edges, 0.0) + rate * _masses(edges, mean)


@pytest.mark.parametrize('noise, rate', [(0.7, 0.3), (1.5, 0.05), (1.0, 0.9), (2.0, 1.0)])
def test_no_two_records_are_farther_apart_than_the_worst_pair(noise, rate):
  rng = np.random.default_rng(7)
  # In the plane of both gradients, in standard deviations of the noise.
  axis = np.linspace(-9, 9, 361)
  area = (axis[1] - axis[0])**2
  def density(x):
    return np.multiply.outer(*(stats.norm.pdf(axis - part) for part in x)) * area
  records = [np.array([1.0, 0.0]), np.array([-1.0, 0.0]), np.array([0.0, 1.0]),
             np.zeros(2), *(r / np.linalg.norm(r) * rng.uniform() for r in
                            rng.normal(size=(6, 2)))]
  released = [(1 - rate) * density(np.zeros(2)) + rate * density(r / noise)
              for r in records]
  for epsilon in (0.0, 0.2, 0.5, 1.0, 2.0):
    stated = accountant.delta(_event(noise, rate), epsilon)
    found = max(np.maximum(p - math.exp(epsilon) * q, 0).sum()
                for p in released for q in released)
    # Opposite records are among these, and attain it.
    assert found == pytest.approx(stated, rel=2e-3, abs=1e-7)


@pytest.mark.parametrize('noise, rate, count, delta', [
    (1.1, 0.02, 200, 1e-5), (2.5, 0.2, 50, 1e-4), (4.0, 0.5, 20, 1e-4)])
def test_epsilon_is_that_of_dp_accounting_for_the_same_pair(noise, rate, count, delta):
  edges = np.arange(-40 - 3 / noise, 40 + 3 / noise, 0.01)
  with np.errstate(divide='ignore'):
    upper, lower = (dict(enumerate(np.log(_mixture(edges, rate, side / noise))))
                    for side in (1, -1))
  theirs = dp_pld.from_two_probability_mass_functions(
      lower, upper, value_discretization_interval=1e-4).self_compose(
          count).get_epsilon_for_delta(delta)
  ours = accountant.epsilon(_event(noise, rate, count), delta)
  assert 0.99 * theirs <= ours <= 1.001 * theirs
  assert ours <= accountant.epsilon(_event(noise, rate, count), delta, accountant='rdp')


@pytest.mark.parametrize('noise, rate, count', [(1.1, 0.02, 200), (3.0, 0.4, 30)])
def test_a_replaced_record_costs_more_than_one_that_is_added(noise, rate, count):
  added = accountant.epsilon(_event(noise, rate, count, base.RECORD_ZERO_OUT), 1e-5)
  replaced = accountant.epsilon(_event(noise, rate, count), 1e-5)
  assert 1.2 * added < replaced < 3 * added
  # Whoever knows the samples sees a sum that moves twice as far.
  known = _event(noise, rate, count).without_sampling()
  assert accountant.epsilon(known, 1e-5, amplification='none') == pytest.approx(
      accountant.epsilon(events.SelfComposed(
          count=count, event=events.CentralGaussian(noise_multiplier=noise / 2)), 1e-5),
      rel=1e-9)
