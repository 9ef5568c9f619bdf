"""Nanoseconds per coordinate of the encoding and decoding kernels, on one thread.

  python -m benchmarks.kernels [--quick] [--json=FILE] [--repeats=N]

Each step of `aggregators.native`, the whole encoding of a client and the server's
decoding of a sum are compared with the graph form, compiled by XLA if the graph form
is. A copy of the vector and NumPy's own generator are there for scale. Times are minima
of processor time over many turns, which other programs hardly change.
"""

import argparse
from collections.abc import Callable, Sequence
import contextlib
import time

import numba
import numpy as np
import tensorflow as tf

from aggregators import (
    chacha, distributed_sum, keys, noisy_rounding, rotation, rounding, share_tables)
from aggregators.native import decoding, encoding, noising, random_bits, transform
from aggregators.params import DistributedSumParams
from benchmarks import measure

LOG_DIMS = (13, 20)
QUICK_LOG_DIMS = (9,)
# Maximum ns per coordinate of a whole encoding, by log2 of the dimension; and minimum
# ratio of the graph form's time to the kernels'.
TARGETS = {13: 6.0, 20: 8.0}
TARGET_GRAPH = 2.2
# Minimum number of coordinates in one measurement.
_LEAST = 2**20
KEY = np.array([3, -4], np.int64)


@numba.njit
def _repeat_fill(key, out, memory):
  """Draws 32-bit numbers in strips, as many as `out` has."""
  total = out.size
  for start in range(0, total, noising.STRIP):
    strip = out[:min(noising.STRIP, total)]
    random_bits.fill(key, total, start, strip, memory)


@numba.njit
def _repeat_round(values, factor, thresholds, out):
  norm = 0
  for start in range(0, values.size, noising.STRIP):
    norm += noising._round(  # pylint: disable=protected-access
        values[start:start + noising.STRIP], factor, thresholds, out)
  return norm


@numba.njit
def _repeat_draw(count, low, high, packed, tie, indices, out, key, memory):
  for start in range(0, count, noising.STRIP):
    noising._add_draw(  # pylint: disable=protected-access
        low, high, packed, tie, indices, out, key, count, start, memory)


def params_of(dim: int) -> DistributedSumParams:
  """The parameters of `benchmarks.round`, for a cohort of 100."""
  return DistributedSumParams(
      clip=0.1, noise_multiplier=0.5, bits=16, dimension=dim, cohort_size=100)


def _graph(function: Callable, *arguments) -> Callable:
  arguments = [tf.constant(x) for x in arguments]
  traced = tf.function(function, autograph=False).get_concrete_function(*arguments)
  return lambda: traced(*arguments)


def pairs(dim: int) -> dict[str, tuple[Callable, Callable | None]]:
  """Name of a step -> (kernel, peer) on float32 [dim]; the peer is None for a copy."""
  rng = np.random.default_rng(0)
  vector = (rng.normal(size=dim) / dim**0.5).astype(np.float32)
  out = np.empty(dim, np.float32)
  memory = random_bits.scratch()
  pair = tuple(KEY.view(np.uint64))
  signs = transform.sign_bits(pair, dim)
  params = params_of(dim)
  table = share_tables.noise_table(params, 100)
  packed, tie = (encoding.read_only(table[name]) for name in ('packed', 'tie'))
  size = min(dim, noising.STRIP)
  low, high, thresholds, indices, strip = rng.integers(
      -2**31, 2**31, size=(5, size)).astype(np.int32)
  thresholds &= 2**24 - 1
  random = np.resize(low, 2 * dim)
  compiled = dim >= 2**14
  xla = lambda f: tf.function(f, jit_compile=compiled, autograph=False)
  steps = {
      'copy of the vector': (lambda: np.copyto(out, vector), None),
      'norm': (lambda: transform.squared_norm(vector),
               _graph(rounding.squared_norm, vector)),
      'factors, signs and padding': (
          lambda: transform.scaled_and_flipped(
              vector, np.float32(0.5), np.float32(0.5), signs, out),
          _graph(xla(lambda x: rotation.flip(x * 0.5, signs.view(np.int32))), vector)),
      'Hadamard': (lambda: transform.transform(out),
                   _graph(rotation.transformed, vector)),
      'rounding and its norm': (
          lambda: _repeat_round(vector, np.float32(300.0), thresholds, strip),
          _graph(xla(lambda x, t: rounding.squared_norm_if_sure(
              rounding.round_by(x * 300.0, t))), vector, random[:dim] & (2**24 - 1))),
      'draw from a table': (
          lambda: _repeat_draw(
              dim, low, high, packed, tie, indices, strip, pair, memory),
          _graph(lambda bits: noisy_rounding._add_draw(  # pylint: disable=protected-access
              tf.zeros([dim], tf.int32), bits, tf.constant(KEY), tf.constant(packed),
              tf.constant(tie), chacha), random)),
      'ChaCha20, 64 bits': (
          lambda: _repeat_fill(pair, random.view(np.uint32), memory),
          _graph(lambda key: noisy_rounding.random_bits(key, dim, compiled, chacha), KEY)),
      'Philox, 64 bits': (
          lambda: random_bits.philox(pair, random.view(np.uint32)),
          _graph(lambda key: noisy_rounding.random_bits(key, dim, compiled, keys), KEY)),
  }
  numpy_bits = np.random.Generator(np.random.Philox(1))
  steps['Philox, 64 bits, against NumPy'] = (
      steps['Philox, 64 bits'][0],
      lambda: numpy_bits.integers(2**64 - 1, size=dim, dtype=np.uint64))
  total = random[:dim] & (params.modulus - 1)
  steps['decoding'] = (
      lambda: decoding.decoded(params, total, np.float32(1 / params.scale), KEY),
      _graph(lambda total, factor: distributed_sum.in_model_units(
          total, factor, tf.constant(KEY), params), total,
             np.float32(1 / params.scale)))
  steps['encoding'] = _encodings(params, vector)
  return steps


def _encodings(params: DistributedSumParams, vector: np.ndarray):
  """(kernel, graph form) of a client's encoding and its addition to a running sum."""
  table = share_tables.noise_table(params, 100)
  state = dict({f'noise_table/{name}': value for name, value in table.items()},
               rotation_key=KEY, cohort_size=np.int32(100))
  total = encoding.EncodedSum.of(params, state)
  running = tf.zeros([params.padded_dimension], tf.int32)
  table = {name: tf.constant(value) for name, value in table.items()}

  def in_graph(vector, key, running):
    encoded = distributed_sum.encode(
        vector, key, tf.constant(KEY), tf.constant(100), params, table)
    return (running + encoded.values) & (params.modulus - 1)

  return (lambda: total.add(vector[np.newaxis], KEY[np.newaxis]),
          _graph(in_graph, vector, KEY, running))


def rows(log_dim: int, repeats: int) -> list[measure.Row]:
  """The rows of dimension 2^log_dim, minima over `repeats` turns."""
  dim = 2**log_dim
  calls = max(1, _LEAST // dim)
  result = []
  for name, (kernel, peer) in pairs(dim).items():
    functions = {'kernel': kernel} if peer is None else {'kernel': kernel, 'peer': peer}
    seconds: dict[str, list[float]] = {which: [] for which in functions}
    for _ in range(repeats + 2):  # Two of them to warm up.
      for which, function in functions.items():
        # Processor time of this process alone.
        start = time.process_time()
        for _ in range(calls):
          function()
        seconds[which].append(time.process_time() - start)
    ns = {which: min(of[2:]) / calls / dim * 1e9 for which, of in seconds.items()}
    whole = name.startswith('encoding')
    result.append(measure.Row(
        name=name, sizes=f'2^{log_dim}', ours=ns['kernel'], peer=ns.get('peer'),
        unit='cpu-ns/coordinate', target=TARGET_GRAPH if whole else None))
    measure.show(result[-1])
    if whole and log_dim in TARGETS:
      result.append(measure.Row(
          name=f'{name}, at most {TARGETS[log_dim]:g}', sizes=f'2^{log_dim}',
          ours=ns['kernel'], peer=TARGETS[log_dim], unit='cpu-ns/coordinate',
          target=1.0))
      measure.show(result[-1])
  return result


def main(arguments: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
  parser.add_argument('--quick', action='store_true', help='small, to see it run')
  parser.add_argument('--json', help='file for the rows')
  parser.add_argument('--repeats', type=int, default=15, help='turns, >= 1')
  args = parser.parse_args(arguments)
  if args.repeats < 1:
    parser.error(f'--repeats must be at least 1, found {args.repeats}')
  with contextlib.suppress(RuntimeError):  # TensorFlow runs already, in tests.
    tf.config.threading.set_intra_op_parallelism_threads(1)
  measure.heading()
  result = []
  for log_dim in QUICK_LOG_DIMS if args.quick else LOG_DIMS:
    result += rows(log_dim, 1 if args.quick else args.repeats)
  if args.json:
    measure.write(result, args.json)


if __name__ == '__main__':
  main()
