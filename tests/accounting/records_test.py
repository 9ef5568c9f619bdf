"""Records that silos sample in secret: exact distributions, and every observer's number."""

import itertools
import math

import dp_accounting
from dp_accounting import pld
import numpy as np
import pytest
from scipy import stats

from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import accountant, bounds, mechanisms, observers

RATE, BOUND, VARIANCE = 0.3, 3, 20.0
GRID = np.arange(-400, 401)


def _released(silos, rate=RATE, variance=VARIANCE):
  records = list(itertools.chain(*silos))
  result = np.zeros(GRID.size)
  for chosen in itertools.product((0, 1), repeat=len(records)):
    count = sum(chosen)
    total = int(np.dot(chosen, records)) if records else 0
    result += (rate**count * (1 - rate)**(len(records) - count)
               * stats.skellam.pmf(GRID - total, variance / 2, variance / 2))
  return result


def _delta(p, q, epsilon):
  return np.maximum(p - math.exp(epsilon) * q, 0).sum()


def _event(variance=VARIANCE, honest=None):
  return events.SampledRecords(sampling_rate=RATE, event=events.DistributedSkellam(
      l1_sensitivity=BOUND, l2_sensitivity=BOUND, noise_variance=variance, cohort_size=2,
      dimension=1, min_honest_fraction=honest))


@pytest.mark.parametrize('steps', [1, 2])
@pytest.mark.parametrize('silos, other', [
    ([[3, -3, 1], [3, 2]], [[-3, 1], [3, 2]]), ([[3], []], [[], []]),
    ([[2, 2, 2], [-3, -3, -3]], [[2, 2, 2], [-3, -3]]), ([[-3], [3, 3, 3]], [[], [3, 3, 3]])])
def test_no_sample_of_two_silos_reveals_more_than_is_stated(silos, other, steps):
  p, q = _released(silos), _released(other)
  if steps == 2:  # Both sums are released.
    p, q = (np.multiply.outer(x[300:501], x[300:501]) for x in (p, q))
  event = events.SelfComposed(event=_event(), count=steps)
  for epsilon in (0.0, 0.1, 0.5, 1.0):
    stated = accountant.delta(event, epsilon)
    assert max(_delta(p, q, epsilon), _delta(q, p, epsilon)) <= stated * (1 + 1e-6) + 1e-9
  if silos == [[3], []] and steps == 1:  # Nobody else blurs the worst record.
    assert _delta(p, q, 0.1) == pytest.approx(accountant.delta(event, 0.1), rel=0.02)


def test_a_silo_that_colludes_subtracts_its_share_and_its_sample():
  # Half of the noise is its own: what is left hides the other silo's record.
  seen = _event().seen_by_participants()
  p, q = (_released([records, []], variance=VARIANCE / 2) for records in ([3, 1], [1]))
  for epsilon in (0.0, 0.2, 1.0):
    assert _delta(p, q, epsilon) <= accountant.delta(seen, epsilon) * (1 + 1e-6) + 1e-9
  assert accountant.delta(seen, 0.2) > accountant.delta(_event(), 0.2)


def _mechanism(**changes):
  return mechanisms.build('skellam', **{**dict(
      noise_multiplier=0.8, rounds=60, cohort_size=92, population=920, silos=10, clip=1.0,
      sampling='records', bits=24, dimension=15, min_honest_fraction=0.8), **changes})


@pytest.mark.parametrize('observer, colluders, silos, honest, noise', [
    # Of the variance mu = 0.64 that is counted on, mu / 0.8 is there; the server may
    # know what it topped up.
    (bounds.OUTSIDERS, 1, 10, 0.8, (0.64 / 0.8)**0.5), (bounds.SERVER, 1, 10, 0.8, 0.8),
    (bounds.SERVER_ANY_COHORTS, 1, 10, 0.8, 0.8),
    # c of ten silos know a tenth each, and if one runs the server, the missing too.
    (bounds.PARTICIPANT, 1, 10, 0.8, (0.8 * 0.7)**0.5),
    (bounds.PARTICIPANT, 2, 10, 0.8, (0.8 * 0.6)**0.5),
    (bounds.PARTICIPANT, 2, 10, 1.0, (0.64 * 0.8)**0.5),
    (bounds.PARTICIPANT, 1, 4, 0.5, (0.64 / 2)**0.5),
    # Two of three have to answer.
    (bounds.PARTICIPANT, 1, 3, 0.5, (0.64 * 2 / 3)**0.5)])
def test_every_number_is_that_of_dp_accounting(observer, colluders, silos, honest, noise):
  event = _mechanism(silos=silos, min_honest_fraction=honest).event()
  found = observers.bound(observers.View(event, 0.0), 1e-3, observers.Method(
      colluders=colluders, population=920), observer).epsilon
  theirs = pld.PLDAccountant()
  theirs.compose(dp_accounting.PoissonSampledDpEvent(
      0.1, dp_accounting.GaussianDpEvent(noise)), 60)
  assert theirs.get_epsilon(1e-3) * (1 - 1e-4) <= found <= theirs.get_epsilon(1e-3) * 1.003


@pytest.mark.parametrize('observer, noise', [
    (bounds.OUTSIDERS, 0.8), (bounds.SERVER, 0.8),
    (bounds.PARTICIPANT, (0.64 * 0.9)**0.5)])
def test_rows_of_secret_turns_are_those_of_dp_accounting(observer, noise):
  column, rounds = (4, 2, 1), 11
  mechanism = _mechanism(column=column, rounds=rounds, min_honest_fraction=1.0)
  found = observers.bound(
      observers.View(mechanism.event()), 1e-3, observers.Method(population=920), observer)
  # z is that over the norm of a record's rows. It is in all of three turns, and in the
  # first two rows of the fourth, which begins in the tenth round.
  expected = pld.PLDAccountant()
  for rows, times in ((column, 3), (column[:2], 1)):
    norm = math.hypot(*rows) / math.hypot(*column)
    expected.compose(dp_accounting.PoissonSampledDpEvent(
        3 * 92 / 920, dp_accounting.GaussianDpEvent(noise / norm)), times)
  assert found.epsilon == pytest.approx(expected.get_epsilon(1e-3), rel=2e-3)
  if observer == bounds.OUTSIDERS:
    once = events.SampledRecords(event=_event().event, sampling_rate=RATE, column=column)
    turns = events.TurnSampled(event=_event().event, sampling_rate=RATE, column=column,
                               turn_size=1, population=3)
    assert accountant.delta(once, 0.3) == accountant.delta(turns, 0.3)
    assert once.repeated() == events.SampledRecords(
        event=_event().event.rows((4,)), sampling_rate=1.0)


def test_nothing_holds_where_all_that_is_counted_on_is_known():
  view = observers.View(_mechanism().event(), 0.0)
  for colluders, is_finite in ((7, True), (8, False)):
    assert observers.bound(view, 1e-3, observers.Method(colluders=colluders),
                           bounds.PARTICIPANT).is_finite == is_finite


@pytest.mark.parametrize('changes, message', [
    (dict(silos=None), 'silos must be given for sampling=records'),
    (dict(silos=0), 'silos must be at least 1'), (dict(silos=1000), 'silos must be'),
    (dict(sampling='poisson'), 'silos must not be given for poisson'),
    (dict(cohort_size=1000), 'cohort_size must be at most population')])
def test_impossible_silos_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    _mechanism(**changes).event()
