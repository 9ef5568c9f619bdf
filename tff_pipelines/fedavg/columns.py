"""Columns of correlated noise: the weights whose noise cancels best in the model.

A run opens rows Y = C X + Z of its rounds' sums X, with C the lower triangular Toeplitz
matrix of a column g, and Z independent noise of standard deviation |g| (times the clip
and the noise multiplier; `aggregators.params`). The server decodes X + C^-1 Z, and its
models are A X + A C^-1 Z, with A the map of its optimizer, which is known in advance.
Weights follow from the optimizer and the rounds alone, never from data, so that their
choice costs no privacy (arXiv 2306.08153). No TensorFlow here. See
docs/correlated_noise.md.
"""

import bisect
from collections.abc import Sequence
import dataclasses
import functools
import math

import numpy as np
from scipy import optimize, signal

from aggregators import params as params_lib
from tff_pipelines.common import validate

# Weights are multiples of 1 / _UNIT of the first.
_UNIT = 16
# More bands are worth it while they lower the error by more than this fraction.
_TOLERANCE = 0.02
# Most bands that are taken without being asked for: rows of more need more bits. And
# most numbers that a server then keeps for the rounds before, in two vectors for each.
MOST_AUTO, _MOST_KEPT = 64, 2**26


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
  """The map from the rounds' sums to the models: SGD with momentum and a schedule.

  A is lower triangular: A[t, r] = sum over s in r..t of rates[s] momentum^(s - r) is
  what the sum of round r adds to the model after round t.

  Attributes:
    rates: Learning rate of each round, not negative; a common factor has no effect.
    momentum: Decay of past updates, in [0, 1).
  """

  rates: tuple[float, ...]
  momentum: float = 0.0

  def __post_init__(self):
    validate.below_one(momentum=self.momentum)
    for index, rate in enumerate(self.rates):
      validate.non_negative(**{f'rates[{index}]': rate})
    if not any(self.rates):
      raise ValueError(f'rates must not all be 0, found {len(self.rates)} of them')

  @property
  def rounds(self) -> int:
    """The number of rounds T."""
    return len(self.rates)

  @functools.cached_property
  def is_constant(self) -> bool:
    """Whether all rounds have the same learning rate; then A is a Toeplitz matrix."""
    return len(set(self.rates)) == 1

  @functools.cached_property
  def _form(self) -> np.ndarray:
    """The quadratic form Q of `squares`, [T, T].

    The sum of squares of A C^-1 is u Q u, for u the column of momentum and C^-1
    together: row t and column r have the sum over k <= t - r of rates[r + k] u_k. So
    Q[k, l], k <= l, is the sum over s >= l of (T - s) rates[s] rates[s - l + k].
    """
    rates, rounds = np.asarray(self.rates), self.rounds
    weighted = rates * np.arange(rounds, 0, -1)
    form = np.empty((rounds, rounds))
    for lag in range(rounds):
      sums = np.cumsum((weighted[lag:] * rates[:rounds - lag])[::-1])[::-1]
      np.fill_diagonal(form[:, lag:], sums)
      np.fill_diagonal(form[lag:], sums)
    return form

  def squares(self, response: np.ndarray) -> tuple[float, np.ndarray]:
    """The sum of squares of A C^-1, and half of its gradient.

    Args:
      response: float64 [T], the first column of C^-1 after momentum.
    """
    if not self.is_constant:
      product = self._form @ response
    else:
      summed = self.rates[0]**2 * np.arange(self.rounds, 0, -1) * np.cumsum(response)
      product = np.cumsum(summed[::-1])[::-1]
    return float(response @ product), product


def workload(config, rounds: int) -> Workload:
  """The workload of a server's optimizer over this many rounds.

  Adam and Yogi count as SGD with the decay of their first moment, and Adagrad as SGD
  without momentum: what their second moment does depends on the updates.

  Args:
    config: A `server_optimizer.ServerConfig`.
    rounds: Number of rounds T.
  """
  validate.integer(rounds=rounds, low=1)
  momentum = {'sgdm': config.momentum, 'adagrad': 0.0}.get(
      config.optimizer, config.beta_1)
  rates = (np.ones(rounds) if config.schedule == 'constant' else
           config.rate(np.arange(rounds)) / config.learning_rate)
  return Workload(rates=tuple(rates.tolist()), momentum=momentum)


def prefix_sum(rounds: int) -> Workload:
  """The workload of plain SGD at a constant rate: all sums so far."""
  return Workload(rates=(1.0,) * rounds)


def _log_error(work: Workload, weights: np.ndarray) -> tuple[float, np.ndarray]:
  """The logarithm of `error`, and its gradient [b]; O(T b), or O(T^2) by a schedule."""
  impulse = np.zeros(work.rounds)
  impulse[0] = 1.0
  response = signal.lfilter([1.0], [1.0, -work.momentum],
                            signal.lfilter([1.0], weights, impulse))
  with np.errstate(over='ignore', invalid='ignore'):
    total, product = work.squares(response)
  if not math.isfinite(total):  # The noise that is left grows without limit.
    return math.inf, np.zeros(len(weights))
  # 1 / g has the derivative -x^j / g^2 by the weight of x^j.
  slope = signal.lfilter([1.0], weights, response)
  lags = range(min(len(weights), work.rounds))
  gradient = np.zeros(len(weights))
  gradient[:len(lags)] = [-(product[lag:] @ slope[:work.rounds - lag]) for lag in lags]
  norm = weights @ weights
  return (0.5 * math.log(total / work.rounds * norm), gradient / total + weights / norm)


def error(work: Workload, column: Sequence[float]) -> float:
  """The noise of a run's models: root mean square of the rows of A C^-1, times |g|.

  It is the standard deviation of a coordinate of the model, averaged in squares over
  the models after each round, in units of noise multiplier times clip. What rounding
  adds to the closed sums is independent over rounds: its standard deviation in a sum
  times `error(work, (1,))`, whatever the column.

  Args:
    work: The server's optimizer.
    column: Weights g of a row, the first positive, the others not negative.
  """
  for index, weight in enumerate(column):
    validate.non_negative(**{f'column[{index}]': weight})
  if not len(column) or column[0] == 0:
    raise ValueError(f'column must begin with a positive weight, found {column!r}')
  return math.exp(_log_error(work, np.asarray(column, np.float64))[0])


def gain(work: Workload, column: Sequence[float]) -> float:
  """The error of independent noise over that of the column, at the same epsilon."""
  return error(work, (1,)) / error(work, column)


def _optimum(work: Workload, bands: int) -> np.ndarray:
  """The real column with the smallest error, [bands]; the first weight is 1."""
  # From the optimum of prefix sums without a limit of bands: 1, 1/2, 3/8, 5/16, ...
  lags = np.arange(1, bands)
  start = np.cumprod((lags - 0.5) / lags)
  def function(tail):
    value, gradient = _log_error(work, np.concatenate([[1.0], tail]))
    return min(value, 1e3), gradient[1:]  # Line searches take no infinity.

  highest = params_lib.MAX_WEIGHT / _UNIT
  return np.append(1.0, optimize.minimize(
      function, start, jac=True, method='L-BFGS-B', bounds=[(0.0, highest)] * len(lags),
      options=dict(maxiter=1000, ftol=1e-12, gtol=1e-8)).x)


@functools.lru_cache(maxsize=64)
def best(work: Workload, bands: int) -> tuple[int, ...]:
  """The column of at most this many bands with the smallest error.

  The optimum is rounded to sixteenths of its first weight, then each weight in turn
  moves by a sixteenth if that is better. That costs less than 1% up to 64 bands.
  """
  validate.integer(bands=bands, low=1, high=params_lib.MAX_BANDS)
  bands = min(bands, work.rounds)
  if bands == 1:
    return (1,)
  column = np.rint(_UNIT * _optimum(work, bands))
  for index in range(1, bands):
    column = min((column + step * (np.arange(bands) == index) for step in (0, -1, 1)
                  if column[index] + step >= 0),
                 key=lambda weights: _log_error(work, weights)[0])
  column = np.trim_zeros(column.astype(int), 'b')
  return tuple((column // np.gcd.reduce(column)).tolist())


def most_auto(most: int, dimension: int) -> int:
  """The largest number of bands of `auto`.

  Args:
    most: Rounds between two turns of a client.
    dimension: Coordinates of an update.
  """
  return min(most, MOST_AUTO, 1 + _MOST_KEPT // (2 * dimension))


def auto(work: Workload, most: int) -> tuple[int, ...]:
  """The best column of the fewest bands that lose at most 2% to `most` of them.

  Args:
    work: The server's optimizer.
    most: Bands that the schedule of clients and the server's memory allow.
  """
  limit = (1 + _TOLERANCE) * error(work, best(work, most))
  fewer = range(1, min(most, work.rounds))
  return best(work, 1 + bisect.bisect_left(
      fewer, True, key=lambda bands: error(work, best(work, bands)) <= limit))
