"""Canaries: clients that a run gets for its audit, each in or out by a private coin.

The update of a canary that is in is a direction of its own, at the norm of the clip. One
that is out is selected like it, and contributes zero and its share of the noise. Whether a
canary is in is guessed from what the run released (`tff_pipelines.audit.guesses`).
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import math
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

from aggregators import keys, rotation
from tff_pipelines.common import files

# Feature of the examples that tells a canary: its number from 1, 0 of a client.
FEATURE = 'canary_number'
FILE = f'{files.PRIVATE}/canaries.npz'


@dataclasses.dataclass(frozen=True, eq=False)
class Canaries:
  """The canaries of a run.

  Their directions are rows of Hadamard matrices, of which each coordinate takes a column in
  a random order, with random signs: all coordinates have one size, and inner products are
  about those of random directions or, in a matrix of an update's size, zero. So fast
  transforms compare a vector with all of them.

  Attributes:
    key: int64 [2], of the signs and the order of the columns.
    rows: int64 [count], different rows of the matrices, one below the other.
    is_in: bool [count], the coins.
    dimension: Length of an update.
  """

  key: np.ndarray
  rows: np.ndarray
  is_in: np.ndarray
  dimension: int

  @classmethod
  def draw(cls, count: int, dimension: int, seed: int | None = None) -> 'Canaries':
    """Draws canaries, by the operating system's entropy without a seed."""
    padded = _padded(dimension)
    rng = np.random.default_rng(None if seed is None else [seed, count, dimension])
    return cls(rng.integers(2**63, size=2),
               rng.choice(-(-count // padded) * padded, count, replace=False),
               rng.random(count) < 0.5, dimension)

  @classmethod
  def of_run(cls, folder: pathlib.Path, *, resumed: bool, **drawn: Any) -> 'Canaries':
    """The canaries of the run in a folder, which are kept there, or drawn for it."""
    if (arrays := files.read_checked_arrays(folder, FILE)) is None:
      if resumed:
        raise ValueError(f'{folder / FILE} is missing: the run can\'t be resumed')
      canaries = cls.draw(**drawn)
      arrays = {name: getattr(canaries, name) for name in ('key', 'rows', 'is_in')}
      files.write_checked_arrays(folder, FILE, arrays)
    return cls(**arrays, dimension=drawn['dimension'])

  @property
  def count(self) -> int:
    return len(self.rows)

  @functools.cached_property
  def _signs(self) -> np.ndarray:
    """float32 [matrices, padded], 1 and -1, or 0 of a column that is not used."""
    padded = _padded(self.dimension)
    matrices = int(self.rows.max()) // padded + 1
    signs = np.zeros([matrices, padded], np.float32)
    for matrix in range(matrices):
      signs[matrix, self._columns] = 1 - 2 * self._flips(
          tf.constant(matrix), self.dimension).numpy()
    return signs

  @functools.cached_property
  def _polynomial(self) -> tuple[int, int, int]:
    """Coefficients of a permutation modulo powers of two: constant, odd, even."""
    constant, odd, even = np.random.default_rng(self.key.tolist()).integers(2**20, size=3)
    return int(constant), 2 * int(odd) + 1, 2 * int(even)

  @functools.cached_property
  def _columns(self) -> np.ndarray:
    """The columns of the coordinates, int64 [dimension]."""
    return self._ordered(np.arange(self.dimension))

  def _ordered(self, places):
    """The columns of coordinates, int64; also in graph."""
    constant, odd, even = self._polynomial
    # Products wrap around at 2^64, which the padded length divides.
    return (constant + places * (odd + even * places)) % _padded(self.dimension)

  def _flips(self, matrix: tf.Tensor, count: int) -> tf.Tensor:
    """In graph: whether signs of a matrix's first columns are flipped; int32 0 or 1."""
    key = keys.derive(tf.constant(self.key), matrix)
    return tf.bitwise.bitwise_and(keys.random_bits(key, [count]), 1)

  def direction(self, index: tf.Tensor) -> tf.Tensor:
    """In graph: the direction of a canary; float32 [dimension] of norm 1."""
    places = tf.cast(self._ordered(tf.range(self.dimension, dtype=tf.int64)), tf.int32)
    row = tf.gather(tf.constant(self.rows.astype(np.int32)), index)
    # Columns are below the padded length: only their bits of the row count.
    ones = tf.raw_ops.PopulationCount(x=tf.bitwise.bitwise_and(row, places))
    flips = tf.bitwise.bitwise_xor(
        tf.bitwise.bitwise_and(tf.cast(ones, tf.int32), 1),
        self._flips(row // _padded(self.dimension), self.dimension))
    return tf.cast(1 - 2 * flips, tf.float32) * self.dimension**-0.5

  def transformed(self, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Inner products with all rows of the matrices; float32 [matrices * padded].

    `parts` are the arrays of an update, in their order.
    """
    flat = np.concatenate([np.ravel(part) for part in parts])
    vector = np.zeros(self._signs.shape[1], np.float32)
    vector[self._columns] = flat
    return np.concatenate([rotation.transformed(
        tf.constant(vector * signs), self.dimension**-0.5).numpy()
                           for signs in self._signs])

  def client_update(self, train: Callable, clip: float) -> Callable:
    """A `local_training.ClientUpdate` that trains clients by `train`."""
    def update(weights, examples, key):
      own = {name: x for name, x in examples.items() if name != FEATURE}
      number = tf.reduce_max(tf.concat([[0], examples[FEATURE]], axis=0))

      def canary():
        sizes = [math.prod(w.shape) for w in weights]
        parts = tf.split(clip * self.direction(number - 1), sizes)
        delta = [tf.reshape(part, w.shape) for part, w in zip(parts, weights)]
        return delta, tf.nest.map_structure(
            lambda spec: tf.zeros(spec.shape, spec.dtype), trained.structured_outputs[1])

      one = tf.function(lambda: train(weights, own, key), autograph=False)
      trained = one.get_concrete_function()
      return tf.cond(number > 0, canary, trained)

    return update

  def initial_state(self, weights: Sequence[np.ndarray], bands: int) -> dict[str, Any]:
    """The state that a run keeps about its canaries, before its first round.

    Returns a dictionary of `initial`, float32 [rows], the initial
    weights transformed; log likelihood ratios of being in, float64 [count], by what is
    `released` and by what the `server` knows; `largest`, float64 [count], inner products
    of a round; and of the rounds before, the latest first, transformed sums `past`,
    float32 [bands - 1, rows], and selections `past_there`, bool [bands - 1, count].
    """
    zeros = np.zeros(self.count)
    return dict(
        initial=self.transformed(weights), released=zeros, server=zeros.copy(),
        largest=np.full(self.count, np.finfo(np.float64).min),
        past=np.zeros((bands - 1, self._signs.size), np.float32),
        past_there=np.zeros((bands - 1, self.count), bool))

  def observed(self, state: Mapping[str, Any], result: Sequence[np.ndarray], *,
               is_there: np.ndarray, clip: float, column: Sequence[int],
               rate: float) -> dict[str, Any]:
    """The state after a round.

    Args:
      state: That before it.
      result: Arrays of the released sum, model units.
      is_there: bool [count], the canaries that reported.
      clip: Norm of a canary.
      column: Weights of the rows of which noise is fresh; (1,) without such rows.
      rate: Probability with which a client is selected; 1 if its rounds are known.
    """
    latest = self.transformed(result) / np.float32(clip)
    history, theres = [latest, *state['past']], [is_there, *state['past_there']]
    row = sum(weight * one.astype(np.float64) for weight, one in zip(column, history))
    # Noise, and whatever other clients contribute along a random direction.
    variance = np.mean(np.square(row)) or np.inf
    own, mean = row[self.rows], sum(
        weight * one for weight, one in zip(column, map(np.asarray, theres)))
    server = (own * mean - np.square(mean) / 2) / variance
    released = server if rate == 1 else np.logaddexp(
        np.log1p(-rate), np.log(rate) + (own * column[0] - column[0]**2 / 2) / variance)
    bands = len(column) - 1
    return dict(
        state, released=state['released'] + released, server=state['server'] + server,
        largest=np.maximum(state['largest'], latest[self.rows]),
        past=np.reshape(history[:bands], np.shape(state['past'])).astype(np.float32),
        past_there=np.reshape(theres[:bands], np.shape(state['past_there'])))


def _padded(dimension: int) -> int:
  return 1 << (dimension - 1).bit_length()


class OfClients:
  """Clients, and behind them canaries; an example of a canary has no content."""

  def __init__(self, source: Any, is_in: np.ndarray):
    self._source, self._is_in = source, is_in
    if FEATURE in source.element_spec:
      raise ValueError(f'canaries can\'t be had with a feature {FEATURE!r}')
    self._first = len(source.client_ids)
    own = frozenset(source.client_ids)
    prefix = 'canary' + '_' * max([0, *(len(name) for name in own if name.startswith(
        'canary'))])
    self._numbers = {f'{prefix}{i}': i for i in range(len(is_in))}
    self.client_ids = (*source.client_ids, *self._numbers)
    self.element_spec = {**source.element_spec, FEATURE: (np.dtype(np.int32), ())}

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    if (number := self._numbers.get(client_id)) is None:
      examples = self._source.examples(client_id)
      count = len(next(iter(examples.values())))
      return {**examples, FEATURE: np.zeros(count, np.int32)}
    count = int(self._is_in[number])
    return {name: np.full((count, *shape), number + 1, dtype) if name == FEATURE else
                  np.zeros((count, *shape), dtype)
            for name, (dtype, shape) in self.element_spec.items()}


class OfRecords:
  """Silos with canaries among their records; a canary has no content."""

  def __init__(self, source: Any, is_in: np.ndarray):
    self._source, self.client_ids = source, source.client_ids
    if FEATURE in source.element_spec:
      raise ValueError(f'canaries can\'t be had with a feature {FEATURE!r}')
    numbers = np.arange(1, len(is_in) + 1) * np.where(is_in, 1, -1)
    self._numbers = {silo: numbers[i::len(self.client_ids)].astype(np.int32)
                     for i, silo in enumerate(self.client_ids)}
    self.element_spec = {**source.element_spec, FEATURE: (np.dtype(np.int32), ())}

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    own, numbers = self._source.examples(client_id), self._numbers[client_id]
    count = len(next(iter(own.values())))
    return {**{name: np.concatenate([values, np.zeros(
        (len(numbers), *values.shape[1:]), values.dtype)]) for name, values in own.items()},
            FEATURE: np.concatenate([np.zeros(count, np.int32), numbers])}
