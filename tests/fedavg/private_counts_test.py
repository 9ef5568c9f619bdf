"""Epsilon of private counts, against every neighbour of small populations.

The distribution of what `fedavg.preliminary.draw` releases is written out: a word that
nobody uses is never released, any other if its count with discrete Gaussian noise
reaches the threshold. Neighbours differ by one client: replaced by another where
cohorts have a fixed size, else removed or added. None of this uses the accountant.
"""

import functools
import itertools
import math

from dp_accounting.pld import privacy_loss_distribution as pld
import numpy as np
import pytest
from scipy import stats

from tasks import task as task_lib
from tff_pipelines.accounting.guarantees import accountant, release_noise
from tff_pipelines.fedavg import plan as plan_lib
from tff_pipelines.fedavg.settings import TrainSettings

ITEMS, DELTA, POPULATION, ROUNDS = 2, 0.01, 40, 3
# Standard deviations of the noise that are enumerated; beyond is less than 1e-30.
_REACH = 12


@functools.lru_cache(maxsize=None)
def _released(variance, threshold, count):
  """Probabilities of a word of this count: not released; threshold, threshold + 1..."""
  last = threshold + 6 + math.ceil(_REACH * math.sqrt(variance))
  if not count:
    return np.array([1.0] + [0.0] * (last - threshold + 1))
  k = np.arange(count - 2 * last, count + 2 * last + 1)
  mass = np.exp(-(k - count)**2 / (2 * variance))
  mass /= mass.sum()
  kept = (k >= threshold) & (k < last)
  return np.array([mass[k < threshold].sum(), *mass[kept], mass[k >= last].sum()])


def _merged(p, q):
  """Two distributions over outcomes, of which those with the same ratio are one."""
  p, q = p.ravel(), q.ravel()
  p, q = p[p + q > 0], q[p + q > 0]
  with np.errstate(divide='ignore'):
    ratio = np.round(np.log(p) - np.log(q), 9)
  _, index = np.unique(ratio, return_inverse=True)
  return np.bincount(index, p), np.bincount(index, q)


def _pair(release, words):
  """The releases of two inputs; words are (count in one, count in the other)."""
  p = q = np.ones(1)
  for one, other in words:
    p, q = _merged(*(np.multiply.outer(so_far, _released(
        release.noise_variance, release.threshold, count))
                     for so_far, count in ((p, one), (q, other))))
  return p, q


def _neighbours(release, replaced):
  """Counts in both inputs, of the words that only one of two clients uses.

  Words that both use, or neither, have the same distribution. `others` are the clients
  that stay: none, one, enough that the threshold is just missed, reached or passed.
  """
  t = release.threshold
  others = (0, 1, t - 2, t - 1, t, t + 4)
  of_client = [words for count in range(ITEMS + 1) for words in
               itertools.combinations_with_replacement(others, count)]
  for mine in of_client:
    for yours in of_client if replaced else [()]:
      yield (*((d + 1, d) for d in mine), *((d, d + 1) for d in yours))


def _exact_delta(pair, epsilon):
  p, q = pair
  return max(np.maximum(0, a - math.exp(epsilon) * b).sum() for a, b in ((p, q), (q, p)))


def _planned(replaced, epsilon, replace_one_of=POPULATION):
  event = release_noise.planned(
      l2_sensitivity=math.sqrt(ITEMS), dimension=POPULATION * ITEMS, items=ITEMS,
      epsilon=epsilon, delta=DELTA, replace_one_of=replace_one_of if replaced else None)
  return event, release_noise.release_of(event)


@pytest.mark.parametrize('replaced', [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize('epsilon', [1.5, 3.0])
def test_no_neighbour_of_a_release_is_beyond_its_epsilon(replaced, epsilon):
  event, release = _planned(replaced, epsilon)
  printed = accountant.epsilon(event, DELTA)
  assert 0.9 * epsilon < printed <= epsilon
  assert event.adjacency == ('replace-one' if replaced else 'zero-out')
  deltas = [_exact_delta(_pair(release, words), printed)
            for words in _neighbours(release, replaced)]
  assert len(deltas) == 28**(1 + replaced) and max(deltas) <= DELTA
  # Words of a single client are released with the probability that is stated.
  own = 1 - _released(release.noise_variance, release.threshold, 1)[0]
  assert 0 < 1 - (1 - own)**ITEMS <= event.failure_probability() <= 0.1 * DELTA


def test_noise_for_a_removed_client_is_too_little_for_a_replaced_one():
  epsilon = 2.0
  _, release = _planned(False, epsilon)
  assert max(_exact_delta(_pair(release, words), epsilon)
             for words in _neighbours(release, True)) > DELTA


def test_threshold_that_does_not_count_on_the_noise_reveals_words_of_one_client():
  _, release = _planned(True, 2.0)
  low = release.threshold - math.ceil(math.sqrt(release.noise_variance))
  p = 1 - _released(release.noise_variance, low, 1)[0]
  assert 1 - (1 - p)**ITEMS > release.failure_probability()


def _plan(sampling, mechanism='gaussian'):
  cohort = POPULATION if sampling == 'none' else 4
  settings = TrainSettings(
      task='text_classification', vocabulary='private_counts', mechanism=mechanism,
      sampling=sampling, cohort_size=float(cohort), rounds=ROUNDS, epsilon=4.0,
      vocabulary_epsilon=1.5, delta=DELTA)
  needed = task_lib.Preliminary(
      file='vocabulary.json', totals=dict, items=ITEMS, complete=lambda counts: None,
      l2_sensitivity=math.sqrt(ITEMS))
  return plan_lib.build(settings, dimension=5, population=POPULATION, needed=needed)


def _of_masses(p, q):
  """The privacy loss distribution of one list of probabilities against another."""
  masses = lambda values: {i: math.log(v) for i, v in enumerate(values) if v > 0}
  return pld.from_two_probability_mass_functions(
      masses(q), masses(p), value_discretization_interval=1e-3)


def _rounds(plan, observer):
  """The rounds of the worst client of a sum of numbers in [-clip, clip].

  Its update is the clip, and the other client's is minus the clip or nothing.

  Returns:
    For each number of them that an observer may see: its probability, and the rounds
    both ways.
  """
  stddev, sampling = plan.mechanism.noise_multiplier, plan.mechanism.sampling
  selected = plan.mechanism.cohort_size / POPULATION
  rate = selected if observer == 'outsiders' else 1.0
  x = np.linspace(-12 * stddev, 12 * stddev, 6001)
  of = lambda mean: np.diff(stats.norm.cdf(x, mean, stddev))
  mixed = lambda mean: (1 - rate) * of(0) + rate * of(mean)
  one, other = mixed(1), mixed(-1 if sampling == 'fixed' else 0)
  most = ROUNDS
  if observer != 'outsiders' and plan.mechanism.max_participations is not None:
    most = plan.mechanism.max_participations  # Of the rounds that it may be in.
  chances = {most: 1.0}
  if observer == 'server':  # It sees how many these are, which are drawn by the rule.
    chances = {k: stats.binom.pmf(k, ROUNDS, selected) for k in range(most)}
    chances[most] = stats.binom.sf(most - 1, ROUNDS, selected)
  return [(chance, [_of_masses(p, q).self_compose(count) if count else
      pld.identity(value_discretization_interval=1e-3)
      for p, q in ((one, other), (other, one))]) for count, chance in chances.items()]


@pytest.mark.parametrize('sampling', [
    'poisson', pytest.param('fixed', marks=pytest.mark.slow), 'none'])
@pytest.mark.parametrize('observer', ['outsiders', 'server', 'server_any_cohorts'])
def test_release_and_rounds_together_are_within_the_printed_epsilon(sampling, observer):
  plan = _plan(sampling)
  guarantee = plan.guarantee(ROUNDS)
  printed = getattr(guarantee, observer).epsilon
  if observer == 'outsiders':
    assert 3.9 < printed <= 4
  assert guarantee.adjacency == ('replace-one' if sampling == 'fixed' else 'zero-out')
  release, rounds = release_noise.release_of(plan.preliminary), _rounds(plan, observer)
  pairs = [_pair(release, words) for words in _neighbours(release, sampling == 'fixed')]
  # Those that are worst at some epsilon alone.
  worst = {max(range(len(pairs)), key=lambda i, e=e: _exact_delta(pairs[i], e))
           for e in (0.0, 0.5, 1.0, 1.5, 2.0)}
  deltas = [
      sum(chance * _of_masses(*pair).compose(each[way]).get_delta_for_epsilon(printed)
          for chance, each in rounds)
      for i in worst for way, pair in enumerate((pairs[i], pairs[i][::-1]))]
  assert max(deltas) <= DELTA
  # The release counts: the rounds alone take less of delta.
  assert max(sum(chance * each[way].get_delta_for_epsilon(printed)
                 for chance, each in rounds) for way in (0, 1)) < max(deltas)
  if observer == 'server':
    assert max(deltas) > 0.5 * DELTA  # The mean is nearly attained.
