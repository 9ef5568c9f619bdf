"""Intervals and words of comparisons, from runs whose seeds were planned in advance.

An interval is Student's, of 95%, over the seeds of a row; a difference has Welch's. A row
is better or worse if the interval of the difference is on one side of 0, equal if it has
0 and is within the stated margin, and undecided otherwise.
"""

from collections.abc import Sequence
import dataclasses
import statistics

from scipy import stats

LEVEL = 0.95
MARGIN = 1.0


@dataclasses.dataclass(frozen=True)
class Interval:
  """A mean, and its interval; None if there is one value."""

  mean: float
  low: float | None
  high: float | None

  def __str__(self) -> str:
    if self.low is None:
      return f'{self.mean:.2f} (one run)'
    return f'{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]'


def interval(values: Sequence[float]) -> Interval:
  """The mean of values and its interval."""
  mean = statistics.fmean(values)
  if len(values) < 2:
    return Interval(mean, None, None)
  half = (stats.t.ppf((1 + LEVEL) / 2, len(values) - 1)
          * statistics.stdev(values) / len(values)**0.5)
  return Interval(mean, mean - half, mean + half)


def difference(one: Sequence[float], other: Sequence[float]) -> Interval:
  """The mean of `one` minus that of `other`, and its interval."""
  mean = statistics.fmean(one) - statistics.fmean(other)
  if min(len(one), len(other)) < 2:
    return Interval(mean, None, None)
  errors = [statistics.variance(each) / len(each) for each in (one, other)]
  if not sum(errors):
    return Interval(mean, mean, mean)
  freedom = sum(errors)**2 / sum(
      error**2 / (len(each) - 1) for error, each in zip(errors, (one, other)))
  half = stats.t.ppf((1 + LEVEL) / 2, freedom) * sum(errors)**0.5
  return Interval(mean, mean - half, mean + half)


def word(found: Interval, margin: float = MARGIN) -> str:
  """'better', 'worse', 'equal within 1 point' or 'undecided', of a difference."""
  if found.low is None:
    return 'undecided'
  points = f'{margin:g} point' + 's' * (margin != 1)
  is_small = -margin < found.low and found.high < margin
  if found.low > 0 or found.high < 0:
    return ('better' if found.low > 0 else 'worse') + is_small * f' by less than {points}'
  return f'equal within {points}' if is_small else 'undecided'
