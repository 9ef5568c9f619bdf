"""Lower bounds of epsilon from outputs of a mechanism on two neighbouring inputs.

A test on the outputs has true and false positive rates with TPR <= e^epsilon FPR + delta
under any (epsilon, delta) that holds. Intervals of Clopper and Pearson turn counts into a
lower bound of epsilon. The test is chosen on one half of the trials, and counted on the
other, so that one hypothesis is tested at the level.
"""

from typing import NamedTuple

import numpy as np
from scipy import optimize, special, stats

# Thresholds of each statistic that are compared on the first half of the trials.
_THRESHOLDS = 400
# Level of the limits by which a test is chosen: few outputs beyond a threshold must not win
# by luck, as the second half would not repeat it.
_LEVEL_OF_CHOICE = 0.9999
# Epsilons at which a bound of guesses is looked for, by so many blocks.
_STEP, _BLOCKS = 0.02, 300
# Share of the error that is set aside for delta where the number of guesses is chosen.
_OF_DELTA = 0.4


def least_rate(count, trials: int, level: float):
  """One-sided lower limit of the probability of what was counted, at a level."""
  count = np.asarray(count, np.float64)
  return np.where(count > 0, stats.beta.ppf(1 - level, np.maximum(count, 1),
                                            trials - count + 1), 0.0)


def most_rate(count, trials: int, level: float):
  """One-sided upper limit of the probability of what was counted, at a level."""
  count = np.asarray(count, np.float64)
  return np.where(count < trials, stats.beta.ppf(
      level, count + 1, np.maximum(trials - count, 1)), 1.0)


def epsilon_of(true, false, trials: int, delta: float, level: float):
  """The lower bound of epsilon that counts of positives prove at a level; >= 0.

  Args:
    true, false: Positives among `trials` outputs with the client, and without it.
    trials: Outputs of each kind.
    delta: In [0, 1).
    level: Confidence of both limits together, for example 0.95.
  """
  each = 1 - (1 - level) / 2
  gained = least_rate(true, trials, each) - delta
  with np.errstate(divide='ignore'):
    return np.log(np.maximum(gained, 1e-300) / most_rate(false, trials, each)).clip(0)


def _tails(epsilon, canaries: int, guesses: int, right: int, delta: float,
           last: np.ndarray):
  """Two parts of a bound on the probability of `right` guesses, at (epsilon, delta).

  The binomial tail of the guesses, and what delta adds to it. Over i the maximum of
  P[right > B >= right - i] / i is taken from above: in a block of i, whose ends are in
  `last`, it is that of its last over its first.
  """
  q = special.expit(np.asarray(epsilon, np.float64))[..., np.newaxis]
  above = lambda count: np.where(count < 0, 1.0, special.bdtrc(
      np.maximum(count, 0), guesses, q))
  tail = above(np.array([right - 1.0]))
  first = np.concatenate([[1], last[:-1] + 1])
  between = (above(right - last - 1.0) - tail) / first
  return tail[..., 0], 2 * canaries * delta * between.max(axis=-1)


def epsilon_of_guesses(canaries: int, guesses: int, right: int, delta: float,
                       level: float = 0.95, *, is_fixed: bool = True) -> float:
  """The lower bound of epsilon by one run with canaries (arXiv 2305.08846, Theorem 5.2).

  Every canary is in the run with probability 1/2, independently. Of some of them it is
  guessed from what was released whether they were; of others nothing is.

  Args:
    canaries: All of them, those without a guess included.
    guesses, right: Number of guesses, and of right ones.
    delta: In [0, 1).
    level: Probability with which the true epsilon is at least the bound.
    is_fixed: Whether the number of guesses was, before anything was released. Else it may
      follow from that, though not from who is in: then each part of the bound has a share
      of the error of its own, as delta may act on outputs of one number of guesses alone.
  """
  if not 0 <= right <= guesses <= canaries:
    raise ValueError('right, guesses and canaries must be 0 <= right <= guesses <= '
                     f'canaries, found {right}, {guesses} and {canaries}')
  every = np.arange(1, right + 1)

  def excess(epsilon, last=every):
    tail, more = _tails(epsilon, canaries, guesses, right, delta, last)
    if is_fixed or not delta:
      return tail + more - 1 + level
    return np.maximum(tail / (1 - _OF_DELTA), more / _OF_DELTA) - 1 + level

  # At delta 0 the bound is this, where a rate is not refuted.
  most = special.logit(float(least_rate(right, guesses, level))) if right else 0.0
  if most <= 0 or excess(0.0) > 0:
    return 0.0
  # The smallest that is not refuted: the bound may fall again where delta is large.
  steps = np.append(np.arange(0.0, most, _STEP), most + 1e-9)
  above = int(np.argmax(excess(steps, np.unique(
      np.geomspace(1, right, _BLOCKS).astype(int))) > 0))
  while excess(steps[above]) <= 0:
    above += 1
  return float(optimize.brentq(excess, steps[above - 1], steps[above], xtol=1e-9))


class Bound(NamedTuple):
  """A lower bound, and the test that proves it.

  Attributes:
    epsilon: It is at least this, at the level.
    true_positives, false_positives: Rates of the test, on the second half.
    statistic: Index of the statistic.
    threshold: The test is positive above it, or if `below` up to it.
    below: Whether it is positive up to the threshold.
    swapped: Whether positives stand for the absence of the client.
    trials: Outputs of each kind in the second half.
  """

  epsilon: float
  true_positives: float
  false_positives: float
  statistic: int
  threshold: float
  below: bool
  swapped: bool
  trials: int


def _positives(ordered: np.ndarray, thresholds: np.ndarray, below: bool) -> np.ndarray:
  upto = np.searchsorted(ordered, thresholds, side='right')
  return upto if below else len(ordered) - upto


def lower_bound(present: np.ndarray, absent: np.ndarray, delta: float,
                level: float = 0.95) -> Bound:
  """The lower bound of epsilon that outputs prove.

  Args:
    present, absent: float [trials] or [trials, statistics], of outputs with the client
      and without it, of independent trials; the larger a statistic, the more it speaks
      for the client, or for its absence.
    delta: In [0, 1).
    level: Probability with which the true epsilon is at least the bound.
  """
  present, absent = (np.reshape(x, [len(x), -1]).astype(np.float64)
                     for x in (present, absent))
  half = min(len(present), len(absent)) // 2
  if half < 1:
    raise ValueError(f'trials must be at least 2, found {len(present)} and {len(absent)}')
  best = None
  for statistic in range(present.shape[1]):
    first = [np.sort(x[:half, statistic]) for x in (present, absent)]
    places = np.unique(np.concatenate([
        np.linspace(0, half - 1, _THRESHOLDS // 2),
        np.geomspace(1, half, _THRESHOLDS // 4) - 1,
        half - np.geomspace(1, half, _THRESHOLDS // 4)]).astype(int))
    thresholds = np.unique(np.concatenate([x[places] for x in first]))
    for below in (False, True):
      counts = [_positives(x, thresholds, below) for x in first]
      for swapped in (False, True):
        found = epsilon_of(
            *counts[::-1 if swapped else 1], half, delta, _LEVEL_OF_CHOICE)
        index = int(np.argmax(found))
        if best is None or found[index] > best[0]:
          best = found[index], statistic, thresholds[index], below, swapped
  _, statistic, threshold, below, swapped = best
  counts = [int(_positives(np.sort(x[half:2 * half, statistic]), np.array([threshold]),
                           below)[0]) for x in (present, absent)]
  true, false = counts[::-1] if swapped else counts
  return Bound(float(epsilon_of(true, false, half, delta, level)), true / half,
               false / half, statistic, float(threshold), below, swapped, half)


def variance_interval(values: np.ndarray, level: float = 0.99) -> tuple[float, float]:
  """Interval of the variance of independent values, by their fourth moment.

  Of values that are about normal; two-sided, at the level.
  """
  values = np.asarray(values, np.float64)
  squares = np.square(values - values.mean())
  error = stats.norm.ppf((1 + level) / 2) * squares.std() / np.sqrt(len(values))
  return float(squares.mean() - error), float(squares.mean() + error)
