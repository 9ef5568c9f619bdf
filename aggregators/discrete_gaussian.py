"""The discrete Gaussian N_Z(0, v): P[X = k] proportional to exp(-k^2 / (2 v)).

An exact sampler for any variance, in the graph, in integers. `noisy_rounding`
with a table of `alias_table.DISCRETE_GAUSSIAN` is faster where a table fits.

Sums of independent draws are not discrete Gaussian, only close to it; what that
costs is in the accountant's bound (arXiv 2102.06387, Theorem 1), which is stated
for shares of a standard deviation of at least half a grid unit.
"""

import functools

import tensorflow as tf

from aggregators import alias_draw, alias_table, keys, skellam

# Variances up to this can be sampled: all integers below fit an int64.
MAX_VARIANCE = 2.0**52
# A try succeeds with probability above 0.28 for any variance.
_MAX_TRIES = 512
# 1/k! is negligible against any delta.
_MAX_TERMS = 64
# An integer of 62 bits is outside the largest multiple of a bound of up to 2^53
# with probability below 2^-9.
_UNIFORM_BITS = 62
_MAX_REDRAWS = 32
# Bits of the standard deviation, as a fraction.
_SIGMA_BITS = 24

# exp(-k^2 / 2) beyond this k is below 2^-140.
_MOST_WHOLE = 13
# Shapes of loop variables: a counter, and a vector whose length may change.
_COUNTER, _VECTOR = tf.TensorShape([]), tf.TensorShape([None])

check_variance = functools.partial(
    skellam.check_variance, noise='exact discrete Gaussian', most=MAX_VARIANCE)


def _below(key: tf.Tensor, count, bound) -> tf.Tensor:
  """int64 [count], uniform in [0, bound) for an int64 scalar bound <= 2^53."""
  bound = tf.cast(bound, tf.int64)
  limit = 2**_UNIFORM_BITS - 2**_UNIFORM_BITS % bound

  def draw(index):
    random_bits = keys.random_bits(keys.derive(key, index), [count], tf.int64)
    return random_bits & (2**_UNIFORM_BITS - 1)

  _, uniform = tf.while_loop(
      lambda tries, uniform: (tries < _MAX_REDRAWS) & tf.reduce_any(uniform >= limit),
      lambda tries, uniform: (tries + 1, tf.where(uniform < limit, uniform, draw(tries))),
      (tf.constant(1), draw(0)), shape_invariants=(_COUNTER, _VECTOR),
      parallel_iterations=1)
  return uniform % bound


def _bernoulli_exp(key: tf.Tensor, numerator: tf.Tensor, denominator) -> tf.Tensor:
  """bool [n], true with probability exp(-numerator / denominator), exactly.

  arXiv 2004.00010, Algorithm 1: with x = numerator / denominator in [0, 1], both int64,
  the first term k at which Bernoulli(x / k) fails is odd with probability exp(-x).
  """
  def step(term, active, result):
    step_key = keys.derive(key, term)
    count = tf.size(active)
    # Bernoulli(x / k) as one of x and one of 1 / k, so that integers stay small.
    is_x = _below(keys.derive(step_key, 0), count, denominator) < tf.gather(
        numerator, active)
    resumes = is_x & tf.equal(_below(keys.derive(step_key, 1), count, term), 0)
    ended = tf.boolean_mask(active, ~resumes)
    is_odd = tf.fill([tf.size(ended)], tf.equal(term % 2, 1))
    result = tf.tensor_scatter_nd_update(result, ended[:, tf.newaxis], is_odd)
    return term + 1, tf.boolean_mask(active, resumes), result

  # Where x is 0 the first term fails for sure.
  active = tf.where(numerator > 0)[:, 0]
  _, _, result = tf.while_loop(
      lambda term, active, _: (term < _MAX_TERMS) & (tf.size(active) > 0),
      step, (tf.constant(1), active, numerator >= 0),
      shape_invariants=(_COUNTER, _VECTOR, _VECTOR), parallel_iterations=1)
  return result


def _proposals(key: tf.Tensor, count, top, bottom, table):
  """Tries for a standard deviation of top / bottom: int64 [count], and if accepted."""
  random_bits = keys.random_bits(keys.derive(key, 0), [2, count], tf.int32)
  whole = tf.cast(alias_draw.draw(
      random_bits[0], None, keys.derive(key, 1), table.packed, table.tie), tf.int64)
  negative = random_bits[1] < 0
  # The magnitude is one of the integers from whole * sigma on; x / top is how
  # far it is beyond, in standard deviations, and must be below 1.
  start = -(-whole * top // bottom)
  magnitude = start + _below(keys.derive(key, 2), count, -(-top // bottom))
  x = magnitude * bottom - whole * top
  accepted = (x < top) & ~(negative & tf.equal(magnitude, 0))

  def wanted(index, accepted):
    return accepted & (tf.cast(index, tf.int64) <= whole)

  def once_more(index, accepted):
    # exp(-whole * x / top) as a product of `whole` equal factors.
    factor = tf.where(wanted(index, accepted), x, tf.constant(0, tf.int64))
    return index + 1, accepted & _bernoulli_exp(
        keys.derive(keys.derive(key, 3), index), factor, top)

  _, accepted = tf.while_loop(
      lambda *state: tf.reduce_any(wanted(*state)), once_more, (tf.constant(1), accepted),
      maximum_iterations=_MOST_WHOLE + 2, shape_invariants=(_COUNTER, _VECTOR),
      parallel_iterations=1)
  last = tf.where(accepted, x, tf.constant(0, tf.int64))
  accepted &= _bernoulli_exp(keys.derive(key, 4), last * last, 2 * top * top)
  return tf.where(negative, -magnitude, magnitude), accepted


def sample(key: tf.Tensor, shape, variance, *,
           max_variance: float | None = None) -> tf.Tensor:
  """Samples the discrete Gaussian; int64 of `shape`, grid units.

  Rejection as in arXiv 1303.6257, Algorithm D: a magnitude i is proposed as (k + x)
  standard deviations, with k a whole number of probability proportional to exp(-k^2/2)
  and 0 <= x < 1, and accepted with probability exp(-k x - x^2/2). All in integers, with
  exponentials of rational numbers as in arXiv 2004.00010, Algorithm 1.

  The distribution is that of a standard deviation rounded up to a multiple of 2^-24, or
  of 2^-23 of itself where that is more; within a total variation of 2^-80 of it.

  Args:
    key: int64[2].
    shape: Static.
    variance: v, scalar in [0, 2^52], grid units squared; float64 or convertible.
      0 gives zeros exactly. Beyond the range no draw ends: zeros would be missing
      noise, so the call fails.
    max_variance: Not needed; an argument of all samplers.
  """
  # tf.cast alone would take a Python number through float32.
  variance = tf.cast(tf.convert_to_tensor(variance, dtype_hint=tf.float64), tf.float64)
  in_range = tf.debugging.Assert((variance >= 0) & (variance <= MAX_VARIANCE),
                                 ['variance must be in [0, 2^52], found', variance])
  # k = 0, 1, ... with probability proportional to exp(-k^2 / 2).
  table = alias_table.build(
      alias_table.DISCRETE_GAUSSIAN.weights(1.0)[:_MOST_WHOLE + 1], symmetric=False)
  size = tf.TensorShape(shape).num_elements()
  with tf.control_dependencies([in_range]):
    sigma = tf.sqrt(variance) * (1 + 2.0**-50)
  # sigma = top / bottom, the latter a power of two.
  log_sigma = tf.math.log(tf.maximum(sigma, 1.0)) / tf.math.log(
      tf.constant(2.0, tf.float64))
  shift = tf.maximum(_SIGMA_BITS - tf.cast(tf.math.ceil(log_sigma), tf.int64), 0)
  bottom = tf.bitwise.left_shift(tf.constant(1, tf.int64), shift)
  top = tf.cast(tf.math.ceil(sigma * tf.cast(bottom, tf.float64)), tf.int64)

  def again(tries, pending, result):
    values, accepted = _proposals(
        keys.derive(key, tries), tf.size(pending), top, bottom, table)
    done = tf.boolean_mask(pending, accepted)
    result = tf.tensor_scatter_nd_update(
        result, done[:, tf.newaxis], tf.boolean_mask(values, accepted))
    return tries + 1, tf.boolean_mask(pending, ~accepted), result

  # The graph optimiser does not know its length, which changes in the loop.
  pending = tf.cast(tf.where(tf.fill([size], variance > 0))[:, 0], tf.int32)
  _, _, result = tf.while_loop(
      lambda tries, pending, _: (tries < _MAX_TRIES) & (tf.size(pending) > 0), again,
      (tf.constant(0), pending, tf.zeros([size], tf.int64)),
      shape_invariants=(_COUNTER, _VECTOR, tf.TensorShape([size])), parallel_iterations=1)
  return tf.reshape(result, shape)
