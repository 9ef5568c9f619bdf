"""Sums of which only rows are opened: noise that cancels over rounds.

With public weights g_0 > 0, g_1, ..., g_{b-1} >= 0 (`params.column`) round t opens the
row Y_t = sum_j g_j X_{t-j} + Z_t of its own sum X_t and those of the b - 1 rounds before
it, which stay closed, with fresh noise Z_t. Dividing the series Y by the series g gives
every sum with noise that is correlated over rounds, and cancels in a model that adds the
sums up (arXiv 2306.08153; docs/correlated_noise.md).
"""

import collections

import tensorflow as tf

from aggregators import (
    central_sum, distributed_sum, modular_sum, normal, params as params_lib)
from tff_pipelines.common import validate


def shifted(history: tf.Tensor, latest: tf.Tensor) -> tf.Tensor:
  """The history of the next round: [b - 1, D], the latest first."""
  return tf.concat([latest[tf.newaxis], history[:-1]], axis=0)


def divided(row: tf.Tensor, history: tf.Tensor, column: tuple[int, ...]) -> tf.Tensor:
  """The next term of the quotient of two series, of rows and of a column.

  Products of 24-bit floats with weights are exact in float64, so every order of
  operations within a term gives the same result.

  Args:
    row: float64 [D], the next row.
    history: float32 [b - 1, D], the quotient's terms before, the latest first.
    column: g, b integers.

  Returns float32 [D], (row - sum_j g_j history_j) / g_0.
  """
  for index, weight in enumerate(column[1:]):
    row -= weight * tf.cast(history[index], tf.float64)
  return tf.cast(row / column[0], tf.float32)


class BandedSumFactory(distributed_sum.DistributedSumFactory):
  """Sums structures of float tensors by rows of sums with integer noise.

  A client sends the integers of `DistributedSumFactory` twice, with its share of the
  noise and without it. Whoever holds the sums X opens the row of weighted sums and no
  sum alone: two servers that share them, silos that add their own past, or, as
  simulated here, the operator.

  Formal guarantees. Let Delta_2 and mu be `params.l2_sensitivity` and
  `params.noise_variance`, and let every client contribute to rounds that are at least b
  apart, by a schedule that depends on no data.

  * Given the rows before it, a row is a mechanism of `DistributedSumFactory` of L2
    sensitivity g_j Delta_2, for a client that contributed j < b rounds before, and of
    none for others. All rows with one contribution compose to at most |g|^2 Delta_2^2 of
    squared L2 sensitivity at noise mu. So k contributions cost k releases of a sum with
    that, whoever knows the cohorts, under zero-out adjacency
    (docs/correlated_noise.md; `accounting.events.turns`).
  * It holds against those who hold neither the closed sums nor a share of the noise.
  * The row of a round with too few reporting clients, or with none, is not opened, to
    the server either, and its sum counts as zero in later rows. Its clients spent a
    contribution. That a cohort is empty tells of a client if cohorts are random, as
    `sampling.schemes.Turns` accounts for.
  * A row that is opened again, with other noise, costs g_j^2 Delta_2^2 again.
  * With `simulation_seed` there is no guarantee.

  The rotation is the same in all rounds: noise cancels in rotated coordinates. It serves
  accuracy only.

  The state is that of `DistributedSumFactory`, and `closed_sums` (int32 [b - 1, D], mod
  2^bits), which clients never receive, and `released_sums` (float32 [b - 1, D], grid
  units), the latest first.
  """

  has_bands = True
  closed = ('closed_sums', 'released_sums')

  def initial_state(self):
    shape = [len(self._params.column) - 1, self._params.padded_dimension]
    return collections.OrderedDict(
        super().initial_state(), closed_sums=tf.zeros(shape, tf.int32),
        released_sums=tf.zeros(shape, tf.float32))

  def release(self, state, total, num_reporting, key):
    params, (first, *others) = self._params, self._params.column
    noisy, latest = tf.unstack(tf.reshape(total, [2, params.padded_dimension]))
    # Products wrap around at 2^32, which 2^bits divides.
    row = noisy + (first - 1) * latest
    for index, weight in enumerate(others):
      row += weight * state['closed_sums'][index]
    row, opened = distributed_sum.topped_up(
        modular_sum.wrap(row, params.bits), num_reporting, state['cohort_size'],
        self.generator.derive(key, distributed_sum.SUM_AT_SERVER), params,
        state.get('noise_table'))
    if params.has_shares:
      # Without a client there is no noise that hides the earlier sums in the row.
      opened &= num_reporting > 0
    unless_closed = lambda x: tf.where(opened, x, tf.zeros_like(x))
    row = unless_closed(tf.cast(modular_sum.unwrap(row, params.bits), tf.float64))
    released = unless_closed(divided(row, state['released_sums'], params.column))
    vector, _, scale = distributed_sum.unscaled(released, state['rotation_key'], params)
    state = collections.OrderedDict(
        state, closed_sums=shifted(state['closed_sums'], unless_closed(latest)),
        released_sums=shifted(state['released_sums'], released))
    return state, vector, distributed_sum.measurements(
        scale, tf.reduce_sum(tf.square(row)), opened, params)


class BandedCentralSumFactory(central_sum.CentralSumFactory):
  """Sums structures of float tensors, with correlated Gaussian noise of a server.

  The baseline that `BandedSumFactory` is compared with: a trusted server adds to every
  sum the noise that the rows of `BandedSumFactory` leave in it, so it opens the sums
  alone with noise W_t = (Z_t - sum_j g_j W_{t-j}) / g_0.

  Formal guarantees: as of `BandedSumFactory`, with Gaussian noise Z of standard
  deviation `noise_multiplier` * `clip` * |g|, of ideal arithmetic, against those who see
  results; the server is trusted.

  One band, (1,), is `CentralSumFactory`. The state has `closed_noise` (float32 [b - 1,
  dimension]), the latest first.
  """

  closed = ('closed_noise',)

  def __init__(self, *, column: tuple[int, ...], dimension: int, **arguments):
    """Initializes the factory.

    Args:
      column: g, as in `DistributedSumParams`.
      dimension: Coordinates of an update, >= 1.
      **arguments: As for `CentralSumFactory`.
    """
    super().__init__(**arguments)
    validate.integer(dimension=dimension, low=1)
    self._column, self.dimension = params_lib.check_column(column), dimension
    self._stddev *= params_lib.squared_norm(self._column)**0.5

  def initial_state(self):
    return collections.OrderedDict(super().initial_state(), closed_noise=tf.zeros(
        [len(self._column) - 1, self.dimension], tf.float32))

  def release(self, state, total, num_reporting, key):
    fresh = self._stddev * normal.sample(key, total.shape)
    noise = divided(fresh, state['closed_noise'], self._column)
    if len(self._column) > 1:
      state = collections.OrderedDict(
          state, closed_noise=shifted(state['closed_noise'], noise))
    return state, total + noise, collections.OrderedDict()
