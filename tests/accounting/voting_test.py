"""Votes: published numbers, corrections, data-dependent bounds."""

import functools
import itertools
import math

import numpy as np
import pytest
from scipy import special

from tff_pipelines.accounting.divergences import curves, skellam_distribution
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import accountant, votes as votes_lib

Vote = events.Vote


def queries(event, count):
  return events.SelfComposed(event=event, count=count)


@pytest.mark.parametrize('level,stddev,published,rdp,exact', [
    ('agent', 25.0, 3.72, 3.11, 2.736), ('agent', 30.0, 3.05, 2.49, 2.189),
    ('instance', 25.0, 5.50, None, 4.208)])
def test_epsilon_of_500_queries(level, stddev, published, rdp, exact):
  gaussian = Vote(scheme='ae', level=level, noise='gaussian', noise_stddev=stddev)
  skellam = Vote(scheme='ae', level=level, noise_stddev=stddev)
  assert votes_lib.published_epsilon(gaussian, 500, 1e-3) == pytest.approx(
      published, abs=5e-3)
  if rdp is not None:
    assert accountant.epsilon(queries(skellam, 500), 1e-3,
                              accountant='rdp') == pytest.approx(rdp, abs=5e-3)
  assert accountant.epsilon(queries(skellam, 500), 1e-3) == pytest.approx(exact, rel=1e-3)


def test_epsilon_of_neighbour_votes():
  def vote(**changes):
    return Vote(scheme='knn', level='instance', noise_stddev=15.0, neighbours=50,
                **changes)
  paper = vote(noise='gaussian', bound='paper')
  tight = vote(noise='gaussian')
  assert votes_lib.published_epsilon(paper, 206, 1e-4) == pytest.approx(0.840, abs=5e-4)
  assert votes_lib.published_epsilon(tight, 206, 1e-4) == pytest.approx(0.117, abs=6e-4)
  assert accountant.epsilon(queries(vote(), 206), 1e-4,
                            accountant='rdp') == pytest.approx(0.073, abs=6e-4)
  assert accountant.epsilon(queries(vote(), 206), 1e-4) == pytest.approx(0.0625, abs=1e-4)


def test_neighbour_votes_of_an_agent_are_accounted_by_rdp_alone():
  event = Vote(scheme='knn', noise_stddev=15.0, neighbours=50)
  assert event.factors('tight') is None
  # All k votes on one label is the worst that one agent can do to the curve.
  np.testing.assert_array_equal(event.curve(32, 'tight'),
      curves.skellam(l1=50, l2=50, variance=(50 * 15.0)**2, max_order=32))


@pytest.mark.parametrize('noise', ['gaussian', 'skellam'])
def test_wrong_probability_bounds_what_is_sampled(noise):
  event = Vote(scheme='ae', noise=noise, noise_stddev=3.0)
  votes = np.array([20, 12, 9, 2])
  rng = np.random.default_rng(3)
  shape = (400_000, votes.size)
  if noise == 'gaussian':
    noisy = votes + 3.0 * rng.standard_normal(shape)
  else:
    noisy = votes + rng.poisson(4.5, shape) - rng.poisson(4.5, shape)
  # Ties count against the winner.
  # One agent of the winner's, at most, is missing among neighbours.
  wrong = (noisy[:, 1:].max(1) >= noisy[:, 0] - 1).mean()
  bound = math.exp(votes_lib.log_wrong_probability(event, votes))
  assert wrong <= bound * 1.03 and wrong > bound * 0.7


def _label_chances(event, votes):
  """log of the exact probability of each label of a noisy argmax, ties at random."""
  votes, stddev = np.asarray(votes, np.float64), event.count_stddev
  u, weight = np.array([0.5 - 12**-0.5, 0.5 + 12**-0.5]), np.array([0.5, 0.5])
  if event.noise == 'gaussian':
    u, weight = np.zeros(1), np.ones(1)  # No ties.
    x = np.linspace(votes.min() - 14 * stddev, votes.max() + 14 * stddev, 4001)
    z = (x - votes[:, np.newaxis]) / stddev
    own = -z**2 / 2 + math.log((x[1] - x[0]) / stddev / math.sqrt(2 * math.pi))
    below, tie = special.log_ndtr(z), np.full_like(z, -np.inf)
  else:
    reach = skellam_distribution.reach(stddev**2)
    x = np.arange(-reach, reach + votes.max() + 1)
    own = np.array([skellam_distribution.log_pmf(x - v, stddev**2) for v in votes])
    below = np.logaddexp.accumulate(own, axis=1)
    below = np.concatenate([np.full((len(votes), 1), -np.inf), below[:, :-1]], axis=1)
    tie = own
  # Of t others that tie the label wins 1 / (1 + t) = the integral of u^t over [0, 1].
  chances = []
  for i in range(len(votes)):
    others = np.delete(np.arange(len(votes)), i)
    parts = [own[i] + math.log(w) + sum(np.logaddexp(below[j], tie[j] + (
        math.log(part) if part else -np.inf)) for j in others)
             for part, w in zip(u, weight)]
    chances.append(special.logsumexp(parts))
  assert special.logsumexp(chances) == pytest.approx(0, abs=1e-9)
  return np.array(chances)


def _renyi(first, second, alpha):
  """Renyi divergences of two distributions by their logs; wide margins exactly."""
  moments = alpha[:, np.newaxis] * first + (1 - alpha[:, np.newaxis]) * second
  likely = int(first.argmax())
  wrong = [-np.exp(special.logsumexp(np.delete(p, likely))) for p in (first, second)]
  with np.errstate(divide='ignore'):
    moments[:, likely] = alpha * np.log1p(wrong[0]) + (1 - alpha) * np.log1p(wrong[1])
  return special.logsumexp(moments, axis=1) / (alpha - 1)


def _neighbours(level, votes):
  """Vote counts of all neighbours of counts with one vote of each agent."""
  for giver in range(len(votes)):
    for taker in range(len(votes)):
      for down, up in ((1, 1),) if level == 'instance' else ((1, 0), (0, 1)):
        moved = np.array(votes)
        moved[giver] -= down
        moved[taker] += up
        if moved.min() >= 0 and giver != taker:
          yield tuple(moved.tolist())


@pytest.mark.parametrize('noise', [
    'gaussian', pytest.param('skellam', marks=pytest.mark.slow)])
@pytest.mark.parametrize('level', ['agent', 'instance'])
def test_data_dependent_curves_hold_in_both_directions_for_all_small_votes(noise, level):
  alpha, agents, cases, improved, beyond = np.arange(2.0, 25.0), 11, 0, 0, 0
  for stddev in (0.6, 1.1):
    event = Vote(scheme='ae', level=level, noise=noise, noise_stddev=stddev)
    curve = event.curve(24, 'tight')
    chances = functools.cache(functools.partial(_label_chances, event))
    for labels in (2, 3):
      for votes in itertools.product(range(agents + 1), repeat=labels):
        # Labels are interchangeable.
        if sum(votes) > agents or list(votes) != sorted(votes, reverse=True):
          continue
        bounds = [votes_lib.data_dependent_curve(
            votes_lib.log_wrong_probability(event, votes), curve)]
        if noise == 'gaussian':
          bounds.append(votes_lib.published_curve(event, votes, 24))
        improved += sum(bool((bound < 0.9 * curve).any()) for bound in bounds)
        for other in _neighbours(level, votes):
          here, there = chances(votes), chances(other)
          cases += 1
          for divergence in (_renyi(here, there, alpha), _renyi(there, here, alpha)):
            for bound in bounds:
              assert (divergence <= bound * (1 + 1e-9) + 1e-13).all(), (votes, other)
          # What holds in one direction only, for the power of the test.
          own = votes_lib.data_dependent_curve(special.logsumexp(
              np.delete(here, here.argmax())), curve)
          beyond += bool((_renyi(there, here, alpha) > own * (1 + 1e-9) + 1e-13).any())
  assert cases > 900 and improved > 20
  assert beyond or noise == 'skellam'  # Whose tails are heavier.


def test_data_dependent_curve_falls_back_where_its_condition_fails():
  curve = curves.gaussian(2.0)
  for log_q in (0.0, -0.01, -0.5):
    np.testing.assert_array_equal(votes_lib.data_dependent_curve(log_q, curve), curve)
  small = votes_lib.data_dependent_curve(-200.0, curve)
  assert small[0] < 1e-30 and (small <= curve).all()
  certain = votes_lib.data_dependent_curve(-math.inf, curve)
  # The largest order that the theorem is used for keeps its own divergence.
  assert (certain <= curve).all() and certain[-1] > 0.9 * curve[-1]
  with pytest.raises(ValueError, match='log_q'):
    votes_lib.data_dependent_curve(float('nan'), curve)


@pytest.mark.parametrize('bound', ['tight', 'paper'])
def test_data_dependent_epsilon_is_smaller_where_margins_are_wide(bound):
  event = Vote(scheme='ae', noise='gaussian' if bound == 'paper' else 'skellam',
               noise_stddev=11.0, bound=bound)
  wide = votes_lib.data_dependent_epsilon(event, [np.array([240, 5, 5])] * 40, 1e-3)
  independent = accountant.epsilon(queries(event, 40), 1e-3, accountant='rdp')
  assert wide < 0.1 * independent
  close = votes_lib.data_dependent_epsilon(event, [np.array([100, 99, 51])] * 40, 1e-3)
  assert close == pytest.approx(independent)


def test_data_dependent_epsilon_adds_queries_of_several_margins():
  event = Vote(scheme='ae', noise_stddev=11.0)
  votes = [[240, 5, 5], [100, 99, 51], [5, 240, 5], [180, 40, 30], [51, 99, 100]]
  total = sum(votes_lib.data_dependent_curve(
          votes_lib.log_wrong_probability(event, counts), event.curve(1024, 'tight'))
      for counts in votes)
  expected = (total + np.log1p(-1 / np.arange(2, 1025)) - (
      math.log(1e-3) + np.log(np.arange(2, 1025))) / np.arange(1, 1024)).min()
  assert votes_lib.data_dependent_epsilon(event, votes, 1e-3) == pytest.approx(expected)
  with pytest.raises(ValueError, match='at least one query'):
    votes_lib.data_dependent_epsilon(event, [], 1e-3)


@pytest.mark.parametrize('level', ['agent', 'instance'])
def test_published_formula_is_corrected(level):
  event = Vote(scheme='ae', level=level, noise='gaussian', noise_stddev=10.0)
  alpha, labels = 8, 3
  margin = 150 - (1 if level == 'agent' else 2)
  exponent = (margin / 10.0)**2
  squared = 1 if level == 'agent' else 2
  expected = 2 * labels * math.exp(-exponent / 8) + math.log1p(math.exp(
      (2 * alpha - 1) * alpha * squared / 200 - exponent / 16 +
      math.log(labels) / 2)) / (alpha - 1)
  curve = votes_lib.published_curve(event, [160, 10, 3], 16)
  assert curve[alpha - 2] == pytest.approx(expected, rel=1e-9)
  assert (curve <= event.curve(16, 'tight')).all()


@pytest.mark.parametrize('votes', [[1], [1.5, 2], [-1, 4], 3, [[1, 2]]])
def test_impossible_votes_are_refused(votes):
  with pytest.raises(ValueError, match='votes'):
    votes_lib.log_wrong_probability(Vote(scheme='ae', noise_stddev=1.0), votes)
