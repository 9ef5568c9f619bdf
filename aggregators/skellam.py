"""The symmetric Skellam distribution: Sk(v) = Poisson(v/2) - Poisson(v/2), variance v.

Sums of independent Skellam draws are Skellam with the variances added, exactly,
which is why clients can each add a share (arXiv 2110.04995, section 3).
"""

import tensorflow as tf

from aggregators import keys

# TensorFlow's Poisson sampler decides by an expression in double precision whose
# error grows with the rate: 6e-6 at 10^9, 6e-5 at 10^10, 5e-3 at 10^12, and from
# 10^13 on its mean and tails are visibly wrong. Larger rates are sums of draws at
# smaller ones: the distribution is infinitely divisible, so that step is exact.
_MAX_POISSON_RATE = 1e10
_MAX_DRAWS = 1024

# Variances up to this can be sampled.
MAX_VARIANCE = 2 * _MAX_POISSON_RATE * _MAX_DRAWS


def check_variance(variance: float, bits: int, what: str, *,
                   noise='Skellam', most: float = MAX_VARIANCE) -> None:
  """Raises ValueError for a variance (grid units squared) beyond the sampler."""
  if not variance <= most:  # NaN is refused too.
    raise ValueError(f'{what} has a variance of {variance:.3g} at bits={bits}; {noise} '
                     f'noise is available up to {most:.3g} grid units squared')


def sample(key: tf.Tensor, shape, variance, *,
           max_variance: float | None = None) -> tf.Tensor:
  """Samples the symmetric Skellam distribution; int64 of `shape`, grid units.

  Args:
    key: int64[2].
    shape: Static.
    variance: Scalar >= 0, grid units squared; float64 or convertible. 0 gives
      zeros exactly.
    max_variance: The largest value of a `variance` that is a tensor; sizes the
      number of Poisson draws that the sum is made of.
  """
  if max_variance is None:
    max_variance = float(variance)
  if not 0 <= max_variance <= MAX_VARIANCE:
    raise ValueError(
        f'variance must be in [0, {MAX_VARIANCE:.3g}], found {max_variance!r}')
  draws = max(1, int(-(-max_variance // (2 * _MAX_POISSON_RATE))))
  # tf.cast alone would take a Python number through float32.
  variance = tf.convert_to_tensor(variance, dtype_hint=tf.float64)
  rate = tf.cast(variance, tf.float64) / (2 * draws)

  def difference(index):
    up = tf.random.stateless_poisson(
        shape, keys.derive(key, 2 * index), rate, dtype=tf.int64)
    return up - tf.random.stateless_poisson(shape, keys.derive(key, 2 * index + 1), rate,
                                            dtype=tf.int64)

  return difference(0) if draws == 1 else tf.while_loop(
      lambda i, _: i < draws, lambda i, total: (i + 1, total + difference(i)),
      (tf.constant(0), tf.zeros(shape, tf.int64)), parallel_iterations=1)[1]
