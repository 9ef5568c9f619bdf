"""Conditional rounding, noise and wrapping, block by block.

A vector is rounded, noised and wrapped in blocks that stay in the processor's
caches, so that nothing but its result is as long as the vector. With noise from a
table one 64-bit word a coordinate serves all: 23 bits decide the rounding, up to 19
the table's cell, 22 between the cell's value and its alias. Integers only from the
floor on, so that compiled and uncompiled graphs, and every machine, give the same
result.
"""

import collections
import dataclasses
import functools
from typing import Callable

import tensorflow as tf

from aggregators import alias_draw
from aggregators import branch
from aggregators import chacha
from aggregators import keys
from aggregators import modular_sum
from aggregators import rounding

# Coordinates of a block: as many as make the start of a compiled program cheap.
BLOCK = 2**17

# A try fails with probability at most beta, so 64 tries all fail with
# probability below 2e-14 for the usual beta = exp(-1/2).
_MAX_TRIES = 64
# Fractions are compared in units of 2^-24, so that rounding is unbiased but for
# 2^-24: the words are the odd numbers below 2^24.
_ROUNDING_BITS = 23
# What a block's key is derived for, besides ties in the comparisons of a table's
# draws, which come after the first.
_RETRIES, _MORE_DRAWS = 0, 2
# In place of a number of a try.
_TOWARDS_ZERO, _ALL_ZERO = -1, -2

Rounded = collections.namedtuple('Rounded', ['values', 'retries', 'fell_back'])


def random_bits(key: tf.Tensor, dim: int, draws: int = 1, compiled: bool = True,
          generator=keys) -> tf.Tensor:
  """What a rounding draws under a key: int32 [2 * draws * dim], uniform."""
  if compiled:
    drawn = _compiled_bits(key, draws * dim, generator)
  else:
    drawn = generator.random_bits(key, [draws * dim], tf.int64)
  # The same bytes seen as two halves.
  return tf.reshape(tf.bitcast(drawn, tf.int32), [2 * draws * dim])


# Twice as fast as the uncompiled operation. A program of its own, because in one
# with its consumers XLA draws the words anew for each of them.
@functools.partial(tf.function, jit_compile=True, autograph=False)
def _compiled_bits(key: tf.Tensor, dim: int, generator) -> tf.Tensor:
  draw = chacha.random_bits_in_pieces if generator is chacha else generator.random_bits
  return draw(key, [dim], tf.int64)


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _add_draw(total: tf.Tensor, drawn: tf.Tensor, tie_key: tf.Tensor,
              packed: tf.Tensor, tie: tf.Tensor, generator) -> tf.Tensor:
  """One more draw from a table on int32 [D], from `random_bits(key, D)`."""
  high, low = tf.unstack(tf.reshape(drawn, [2, -1]))
  return total + alias_draw.draw(
      low, tf.bitwise.right_shift(high, _ROUNDING_BITS), tie_key, packed, tie,
      generator)


def add_draws(values: tf.Tensor, key: tf.Tensor, draws: tf.Tensor,
              packed: tf.Tensor, tie: tf.Tensor, bits: int, compiled: bool = True,
              generator=keys) -> tf.Tensor:
  """Adds draws from a table, of a number known only at run time.

  Args:
    values: int32 [D] in [0, 2^bits).
    key: int64[2]; the draw number i has the key number i below it.
    draws: int32 scalar >= 0, how many draws a coordinate gets.
    packed: As in `TableNoise`.
    tie: As in `TableNoise`.
    bits: The result is modulo 2^bits.
    compiled: As in `words`.
    generator: As in `TableNoise`.

  Returns:
    int32 [D] in [0, 2^bits).
  """
  dim = values.shape[0]
  add = _add_draw if compiled else _add_draw.python_function

  def one_more(i, total):
    own = generator.derive(key, i)
    total = add(
        total, random_bits(own, dim, 1, compiled, generator), generator.derive(own, 0),
        packed, tie, generator)
    return i + 1, total

  # Wraps around at 2^32, which 2^bits divides.
  _, total = tf.while_loop(
      lambda i, _: i < draws, one_more, (tf.constant(0), values),
      parallel_iterations=1)
  return modular_sum.wrap(total, bits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableNoise:
  """Noise that is the sum of draws from a table.

  Attributes:
    packed: int64 [N], of an `alias_table.AliasTable`.
    tie: int64 [N], likewise.
    draws: How many draws share the words of the rounding.
    more_draws: int32 scalar, how many there are besides; None for none.
    generator: `aggregators.keys` or `aggregators.chacha`: where words come from.
  """

  packed: tf.Tensor
  tie: tf.Tensor
  draws: int = 1
  more_draws: tf.Tensor | None = None
  generator: object = keys

  def drawn(self, key: tf.Tensor, dim: int, compiled: bool) -> tf.Tensor:
    """All words of a block: int32 [2 * draws * dim]."""
    return random_bits(key, dim, self.draws, compiled, self.generator)

  def rounding_bits(self, drawn: tf.Tensor, dim: int) -> tf.Tensor:
    """int32 [dim], the odd numbers below 2^24."""
    return tf.bitwise.bitwise_or(
        tf.bitwise.bitwise_and(
            tf.bitwise.left_shift(drawn[:dim], 1), 2**(_ROUNDING_BITS + 1) - 1), 1)

  def first(self, block, factor, drawn, key, bits, compiled):
    """`_first_by_table`, compiled or not."""
    function = _first_by_table if compiled else _first_by_table.python_function
    return function(block, factor, drawn, key, self.packed, self.tie, bits,
                    self.draws, self.generator)

  def add(self, rounded: tf.Tensor, drawn: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """int32 [dim], the rounded values and the draws that share words."""
    return _with_table_noise(
        rounded, drawn, key, self.packed, self.tie, self.draws, self.generator)

  def add_more(self, values, key, bits, compiled):
    """int32 [dim] in [0, 2^bits) with the draws beside them."""
    if self.more_draws is None:
      return values
    return add_draws(
        values, self.generator.derive(key, _MORE_DRAWS), self.more_draws,
        self.packed, self.tie, bits, compiled, self.generator)


def _with_table_noise(rounded, drawn, key, packed, tie, draws, generator):
  both = tf.reshape(drawn, [2, draws, -1])
  high, low = both[0], both[1]
  _, *tie_keys = generator.split(key, 1 + draws)
  return rounded + sum(
      alias_draw.draw(
          low[i], tf.bitwise.right_shift(high[i], _ROUNDING_BITS),
          tie_keys[i], packed, tie, generator)
      for i in range(draws))


# XLA fuses these steps, which is worth a factor of two.
@functools.partial(tf.function, jit_compile=True, autograph=False)
def _first_by_table(block, factor, drawn, key, packed, tie, bits, draws, generator):
  """A block's first try: what is sent, and `rounding.squared_norm_if_sure`."""
  noise = TableNoise(packed=packed, tie=tie, draws=draws, generator=generator)
  rounded = rounding.round_by(
      block * factor, noise.rounding_bits(drawn, block.shape[0]))
  values = modular_sum.wrap(noise.add(rounded, drawn, key), bits)
  return (values, *rounding.squared_norm_if_sure(rounded))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledNoise:
  """Noise from a sampler.

  Attributes:
    sample: (key, dim) -> int64 [dim]; None for no noise.
  """

  sample: Callable[[tf.Tensor, int], tf.Tensor] | None
  generator = keys

  def drawn(self, key, dim, compiled):
    del compiled  # Samplers are not compiled.
    return tf.bitwise.bitwise_and(keys.random_bits(key, [dim], tf.int32), 2**24 - 1)

  def rounding_bits(self, drawn, dim):
    del dim  # Unused.
    return drawn

  def first(self, block, factor, drawn, key, bits, compiled):
    del compiled  # Unused.
    rounded = rounding.round_by(block * factor, drawn)
    values = _wrap(self.add(rounded, drawn, key), bits)
    return (values, *rounding.squared_norm_if_sure(rounded))

  def add(self, rounded, drawn, key):
    del drawn  # Unused.
    if self.sample is None:
      return rounded
    noise = self.sample(keys.derive(key, 1), rounded.shape[0])
    return tf.cast(rounded, tf.int64) + noise

  def add_more(self, values, key, bits, compiled):
    del key, bits, compiled  # Unused.
    return values


def _wrap(values: tf.Tensor, bits: int | None) -> tf.Tensor:
  return values if bits is None else modular_sum.wrap(values, bits)


def _bits_of_try(key: tf.Tensor, number, shape, generator) -> tf.Tensor:
  """int32 in [0, 2^24), for a try beyond the first."""
  drawn = generator.random_bits(generator.derive(key, number), shape, tf.int32)
  return tf.bitwise.bitwise_and(drawn, 2**24 - 1)


def conditional_round(vector: tf.Tensor, key: tf.Tensor,
                      l2_bound_squared: int) -> Rounded:
  """`noisy_round` of a vector in grid units without noise, and not wrapped."""
  return noisy_round(
      vector, key, l2_bound_squared, SampledNoise(sample=None), None, compiled=False)


def _in_blocks(vector: tf.Tensor, key: tf.Tensor, generator, function):
  """Runs a function on blocks of BLOCK coordinates, the last may be shorter.

  Args:
    vector: float32 [D].
    key: int64[2]; the block number i has the key number i below it.
    generator: Of the keys.
    function: (block, its key) -> (int32 of the block's shape, integer scalars).

  Returns:
    int32 [D], all blocks' values, and the sums of their scalars.
  """
  dim = vector.shape[0]
  whole = dim // BLOCK

  def of(number, size):
    start = number * BLOCK
    block = tf.ensure_shape(vector[start:start + size], [size])
    return function(block, generator.derive(key, number))

  if whole > 1:
    found = tf.TensorArray(tf.int32, size=whole, element_shape=[BLOCK])
    scalars = tf.nest.map_structure(
        lambda spec: tf.zeros([], spec.dtype),
        tf.function(lambda: of(0, BLOCK), autograph=False)
        .get_concrete_function().structured_outputs[1])

    def step(number, found, scalars):
      values, more = of(number, BLOCK)
      return (number + 1, found.write(number, values),
              tf.nest.map_structure(tf.add, scalars, more))

    _, found, scalars = tf.while_loop(
        lambda number, *_: number < whole, step, (tf.constant(0), found, scalars),
        parallel_iterations=1)
    parts = [tf.reshape(found.stack(), [whole * BLOCK])]
  else:
    values, scalars = of(0, min(dim, BLOCK))
    parts = [values]
  if dim > BLOCK and dim % BLOCK:
    values, more = of(whole, dim % BLOCK)
    parts.append(values)
    scalars = tf.nest.map_structure(tf.add, scalars, more)
  return tf.concat(parts, axis=0) if len(parts) > 1 else parts[0], scalars


def noisy_round(vector: tf.Tensor, key: tf.Tensor, l2_bound_squared: int,
                noise: TableNoise | SampledNoise, bits: int | None, *, factor=1.0,
                squared_norm: tf.Tensor | None = None,
                compiled: bool = True) -> Rounded:
  """Rounds to integers of a bounded norm, adds noise, wraps.

  The rounding is that of arXiv 2102.06387, Def. 21. Each coordinate is rounded up
  with the probability of its fractional part (to 2^-24); all are rounded again
  until the squared norm is within the bound. After 64 tries the vector is rounded
  towards zero instead, which no longer is unbiased, and if even that exceeds the
  bound (only for input outside the documented range, NaN included) zero is sent in
  its place. So the call ends and the bound holds always.

  Args:
    vector: float32 [D]; times `factor` in grid units, of norm at most 2^30.
    key: int64[2]; derived from.
    l2_bound_squared: Integer below 2^62 that the squared norm must not exceed.
    noise: What is added to the integers.
    bits: The result is modulo 2^bits; None for the integers themselves.
    factor: float32 scalar, grid units in a unit of `vector`.
    squared_norm: float64 scalar, of `vector`, where it is known already.
    compiled: Whether the first try is compiled, where there is XLA.

  Returns:
    values: int32 [D], in [0, 2^bits) if there are bits; retries: int32, tries of
    the rounding beyond the first; fell_back: bool.
  """
  factor = tf.convert_to_tensor(factor, tf.float32)
  bound = tf.constant(l2_bound_squared, tf.int64)
  if squared_norm is None:
    squared_norm = rounding.squared_norm(vector)
  # Without this integers could wrap around.
  in_range = rounding.is_in_range(squared_norm, factor)

  def each(function):
    return _in_blocks(vector, key, noise.generator, function)

  def first_try(block, own_key):
    drawn = noise.drawn(own_key, block.shape[0], compiled)
    values, unsure, norm = noise.first(
        block, factor, drawn, own_key, bits, compiled)
    return noise.add_more(values, own_key, bits, compiled), (unsure, norm)

  first, (unsure, norm) = each(first_try)

  def rounded(block, own_key, drawn, number):
    """A block by the try of this number."""
    grid = tf.where(in_range, block * factor, tf.zeros_like(block))
    retry_key = noise.generator.derive(own_key, _RETRIES)

    def by_words(found):
      return rounding.round_by(grid, found)

    return tf.case([
        (number > 0, lambda: by_words(_bits_of_try(  # pylint: disable=g-long-lambda
            retry_key, number, block.shape, noise.generator))),
        (tf.equal(number, _TOWARDS_ZERO), lambda: tf.cast(grid, tf.int32)),
        (tf.equal(number, _ALL_ZERO), lambda: tf.zeros(block.shape, tf.int32)),
    ], default=lambda: by_words(noise.rounding_bits(drawn, block.shape[0])))

  def fits(number):
    def norm_of(block, own_key):
      drawn = noise.drawn(own_key, block.shape[0], compiled)
      values = rounded(block, own_key, drawn, number)
      return values, rounding.integer_squared_norm(values)
    return each(norm_of)[1] <= bound

  def until_found():
    """The first try again, exactly, and then others; in memory of blocks too."""
    tries, found = tf.while_loop(
        lambda tries, found: ~found & (tries < _MAX_TRIES),
        lambda tries, found: (tries + 1, fits(tries)),
        (tf.constant(0), tf.constant(False)), parallel_iterations=1)
    number = tf.case([
        (found, lambda: tries - 1),
        (fits(tf.constant(_TOWARDS_ZERO)), lambda: tf.constant(_TOWARDS_ZERO)),
    ], default=lambda: tf.constant(_ALL_ZERO))

    def sent(block, own_key):
      drawn = noise.drawn(own_key, block.shape[0], compiled)
      values = noise.add(
          rounded(block, own_key, drawn, number), drawn, own_key)
      return noise.add_more(
          _wrap(values, bits), own_key, bits, compiled), ()

    return each(sent)[0], tries - 1, ~(found & in_range)

  return Rounded(*branch.either(
      in_range & tf.equal(unsure, 0) & (norm <= bound),
      lambda: (tf.identity(first), tf.constant(0), tf.constant(False)),
      until_found))
