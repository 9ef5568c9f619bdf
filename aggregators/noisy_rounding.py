"""Conditional rounding, noise and wrapping, block by block.

Blocks stay in the processor's caches, so that nothing but the result is as long as the
vector. With noise from a table 64 random bits a coordinate serve all: 23 decide the
rounding, up to 19 the table's cell, 22 between the cell's value and its alias. Integers
only from the floor on, so that every machine and graph gives the same result.
"""

import collections
import dataclasses
import functools
from typing import Callable

import tensorflow as tf

from aggregators import alias_draw, branch, chacha, modular_sum, rounding

# Coordinates of a block: enough to make the start of a compiled program cheap.
BLOCK = 2**17

# A try fails with probability at most beta, so 64 tries all fail with
# probability below 2e-14 for the usual beta = exp(-1/2).
_MAX_TRIES = 64
# Fractions are compared in units of 2^-24, with the odd numbers below 2^24, so that
# rounding is unbiased up to 2^-24.
_ROUNDING_BITS = 23
# Purposes of the keys derived from a block's key.
_RETRIES, _TIES, _MORE_DRAWS = 0, 1, 2
# In place of the index of a try.
_TOWARDS_ZERO, _ALL_ZERO = -1, -2

Rounded = collections.namedtuple('Rounded', ['values', 'retries', 'fell_back'])


def random_bits(key: tf.Tensor, dim: int, compiled: bool, generator) -> tf.Tensor:
  """The random bits of a rounding: int32 [2 * dim], uniform."""
  pairs = (_compiled_bits(key, dim, generator) if compiled else
           generator.random_bits(key, [dim], tf.int64))
  # The same bytes seen as two halves.
  return tf.reshape(tf.bitcast(pairs, tf.int32), [2 * dim])


def _draw(low, high, *rest) -> tf.Tensor:
  """`alias_draw.draw`, of what the rounding leaves of the high random bits."""
  return alias_draw.draw(low, tf.bitwise.right_shift(high, _ROUNDING_BITS), *rest)


# Twice as fast as the uncompiled operation. A program of its own, because in one
# with its consumers XLA draws the bits again for each of them.
@functools.partial(tf.function, jit_compile=True, autograph=False)
def _compiled_bits(key: tf.Tensor, dim: int, generator) -> tf.Tensor:
  return generator.random_bits_in_pieces(key, [dim], tf.int64)


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _add_draw(total: tf.Tensor, bits_of_draw: tf.Tensor, tie_key: tf.Tensor,
              packed: tf.Tensor, tie: tf.Tensor, generator) -> tf.Tensor:
  """One more draw from a table on int32 [D], from `random_bits(key, D)`."""
  high, low = tf.unstack(tf.reshape(bits_of_draw, [2, -1]))
  return total + _draw(low, high, tie_key, packed, tie, generator)


def _wrap(values: tf.Tensor, bits: int | None) -> tf.Tensor:
  return values if bits is None else modular_sum.wrap(values, bits)


def _sent(noise, rounded, random, key, bits, closed):
  """A block as it is sent: with noise and, if `closed`, without it; [2, dim] then."""
  values = _wrap(noise.add(rounded, random, key), bits)
  return tf.stack([values, _wrap(rounded, bits)]) if closed else values


def _first_try(noise, block, factor, random, key, bits, closed):
  """A block's first try: what is sent, and `rounding.squared_norm_if_sure`."""
  rounded = rounding.round_by(block * factor, noise.rounding_bits(random, block.shape[0]))
  return (_sent(noise, rounded, random, key, bits, closed),
          *rounding.squared_norm_if_sure(rounded))


# XLA fuses these steps, which is worth a factor of two.
@functools.partial(tf.function, jit_compile=True, autograph=False)
def _compiled_first_try(block, factor, random, key, packed, tie, bits, closed, generator):
  noise = TableNoise(packed=packed, tie=tie, generator=generator)
  return _first_try(noise, block, factor, random, key, bits, closed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableNoise:
  """Noise that is the sum of draws from a table.

  Attributes:
    packed: int64 [N], of an `alias_table.AliasTable`.
    tie: int64 [N], of the same.
    more_draws: int32 scalar, the draws beyond the one that shares its random bits with
      the rounding.
    generator: `aggregators.keys` or `aggregators.chacha`: source of random bits.
  """

  packed: tf.Tensor
  tie: tf.Tensor
  more_draws: tf.Tensor | int = 0
  generator: object = chacha

  def random_bits(self, key: tf.Tensor, dim: int, compiled: bool) -> tf.Tensor:
    """All random bits of a block: int32 [2 * dim]."""
    return random_bits(key, dim, compiled, self.generator)

  def rounding_bits(self, random: tf.Tensor, dim: int) -> tf.Tensor:
    """int32 [dim], the odd numbers below 2^24."""
    return tf.bitwise.left_shift(random[:dim], 1) & (2**(_ROUNDING_BITS + 1) - 1) | 1

  def first_try(self, block, factor, random, key, bits, closed, compiled):
    """`_first_try`, compiled or not."""
    if not compiled:
      return _first_try(self, block, factor, random, key, bits, closed)
    return _compiled_first_try(block, factor, random, key, self.packed, self.tie, bits,
                               closed, self.generator)

  def add(self, rounded: tf.Tensor, random: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """int32 [dim], the rounded values and the draw that shares their random bits."""
    return _add_draw.python_function(rounded, random, self.generator.derive(key, _TIES),
                                     self.packed, self.tie, self.generator)

  def add_more(self, values, key, bits, compiled):
    """int32 [dim] in [0, 2^bits), with the further draws, each of a child of `key`."""
    add = _add_draw if compiled else _add_draw.python_function

    def one_more(i, total):
      own = self.generator.derive(key, i)
      return i + 1, add(
          total, random_bits(own, values.shape[0], compiled, self.generator),
          self.generator.derive(own, 0), self.packed, self.tie, self.generator)

    # Wraps around at 2^32, which 2^bits divides.
    _, total = tf.while_loop(lambda i, _: i < self.more_draws, one_more,
                             (tf.constant(0), values), parallel_iterations=1)
    return modular_sum.wrap(total, bits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledNoise:
  """Noise from a sampler. Samplers are not compiled.

  Attributes:
    sample: (key, dim) -> int64 [dim]; None for no noise. Rounding is by ChaCha20.
  """

  sample: Callable[[tf.Tensor, int], tf.Tensor] | None
  generator = chacha

  def random_bits(self, key, dim, _):
    return chacha.random_bits(key, [dim], tf.int32) & (2**24 - 1)

  def rounding_bits(self, random, _):
    return random

  def first_try(self, block, factor, random, key, bits, closed, _):
    return _first_try(self, block, factor, random, key, bits, closed)

  def add(self, rounded, _, key):
    if self.sample is None:
      return rounded
    noise = self.sample(chacha.derive(key, _TIES), rounded.shape[0])
    return tf.cast(rounded, tf.int64) + noise

  def add_more(self, values, *_):
    return values


def _in_blocks(vector: tf.Tensor, key: tf.Tensor, generator, function):
  """Runs (block, its key) -> (values, scalars) on blocks of BLOCK.

  Block i has the child i of the key; the last may be shorter. Returns int32 [..., D],
  all blocks' values, and the sums of their integer scalars.
  """
  dim = vector.shape[0]
  whole = dim // BLOCK

  def run(index, size):
    # A slice of static size, which XLA can compile in a loop.
    return function(tf.slice(vector, [index * BLOCK], [size]),
                    generator.derive(key, index))

  values, scalars = run(0, min(dim, BLOCK))
  if whole > 1:
    def step(index, blocks, scalars):
      values, more = run(index, BLOCK)
      return (index + 1, blocks.write(index, values),
              tf.nest.map_structure(tf.add, scalars, more))

    blocks = tf.TensorArray(tf.int32, size=whole, element_shape=values.shape)
    _, blocks, scalars = tf.while_loop(
        lambda index, *_: index < whole, step,
        (tf.constant(1), blocks.write(0, values), scalars), parallel_iterations=1)
    blocks = blocks.stack()
    if len(blocks.shape) > 2:
      blocks = tf.transpose(blocks, [1, 0, 2])
    values = tf.reshape(blocks, [*values.shape[:-1], whole * BLOCK])
  if dim > BLOCK and dim % BLOCK:
    rest, more = run(whole, dim % BLOCK)
    values = tf.concat([values, rest], axis=-1)
    scalars = tf.nest.map_structure(tf.add, scalars, more)
  return values, scalars


def add_draws(total: tf.Tensor, key: tf.Tensor, noise: TableNoise, bits: int,
              compiled: bool) -> tf.Tensor:
  """int32 [D] in [0, 2^bits), with the noise's `more_draws`, by keys of blocks."""
  def of_block(block, own_key):
    return noise.add_more(block, own_key, bits, compiled), ()

  return _in_blocks(total, key, noise.generator, of_block)[0]


def noisy_round(vector: tf.Tensor, key: tf.Tensor, l2_bound_squared: int,
                noise: TableNoise | SampledNoise, bits: int | None, *, factor=1.0,
                squared_norm: tf.Tensor | None = None,
                closed: bool = False, compiled: bool = True) -> Rounded:
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
    noise: The noise added to the integers.
    bits: The result is modulo 2^bits; None for the integers themselves.
    factor: float32 scalar, grid units in a unit of `vector`.
    squared_norm: float64 scalar, of `vector`, where it is known already.
    closed: Whether the integers are returned without noise, too.
    compiled: Whether the first try is compiled, where there is XLA.

  Returns values: int32 [D], or [2, D] with the integers without noise, modulo 2^bits, in
  the second row; retries: int32, tries beyond the first; fell_back: bool.
  """
  factor = tf.convert_to_tensor(factor, tf.float32)
  bound = tf.constant(l2_bound_squared, tf.int64)
  if squared_norm is None:
    squared_norm = rounding.squared_norm(vector)
  # Squares of such a vector, rounded up, stay far inside an int64. False for NaN.
  in_range = squared_norm * tf.square(tf.cast(factor, tf.float64)) <= 2.0**61

  each = functools.partial(_in_blocks, vector, key, noise.generator)
  random_of = lambda block, own_key: noise.random_bits(
      own_key, block.shape[0], compiled)

  def more(values, own_key):
    add = lambda sent: noise.add_more(
        sent, noise.generator.derive(own_key, _MORE_DRAWS), bits, compiled)
    return tf.stack([add(values[0]), values[1]]) if closed else add(values)

  def first_try(block, own_key):
    values, unsure, norm = noise.first_try(
        block, factor, random_of(block, own_key), own_key, bits, closed, compiled)
    return more(values, own_key), (unsure, norm)

  first, (unsure, norm) = each(first_try)

  def rounded(block, own_key, random, index):
    """A block by the try of this index."""
    grid = tf.where(in_range & tf.not_equal(index, _ALL_ZERO), block * factor,
                    tf.zeros_like(block))
    # Whole numbers are rounded to themselves.
    grid = tf.where(tf.equal(index, _TOWARDS_ZERO),
                    tf.cast(tf.cast(grid, tf.int32), tf.float32), grid)

    def fresh():
      retry_key = noise.generator.derive(own_key, _RETRIES)
      return noise.generator.random_bits(
          noise.generator.derive(retry_key, index), block.shape, tf.int32) & (2**24 - 1)

    return rounding.round_by(grid, branch.either(
        index > 0, fresh, lambda: noise.rounding_bits(random, block.shape[0])))

  def fits(index):
    def with_norm(block, own_key):
      values = rounded(block, own_key, random_of(block, own_key), index)
      return values, rounding.integer_squared_norm(values)
    return each(with_norm)[1] <= bound

  def retried():
    """The first try again, exactly, and then others; in memory of blocks too."""
    # After the random tries: rounding towards zero, then all zero, which always fits.
    index_of = lambda tries: tf.where(
        tries < _MAX_TRIES, tries, _MAX_TRIES + _TOWARDS_ZERO - tries)
    tries, _ = tf.while_loop(lambda _, success: ~success,
                             lambda tries, _: (tries + 1, fits(index_of(tries + 1))),
                             (tf.constant(-1), tf.constant(False)), parallel_iterations=1)
    index = index_of(tries)

    def sent(block, own_key):
      random = random_of(block, own_key)
      values = rounded(block, own_key, random, index)
      return more(_sent(noise, values, random, own_key, bits, closed), own_key), ()

    return (each(sent)[0], tf.minimum(tries, _MAX_TRIES - 1),
            ~(in_range & (tries < _MAX_TRIES)))

  return Rounded(*branch.either(
      in_range & tf.equal(unsure, 0) & (norm <= bound),
      lambda: (tf.identity(first), tf.constant(0), tf.constant(False)), retried))
