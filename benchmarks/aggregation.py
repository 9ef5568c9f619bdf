"""Speed of the distributed sum, against TFF's own.

  python -m benchmarks.aggregation [--quick] [--json=FILE] [--repeats=N] \
      [--tff_worker]

Whole: our DistributedSumFactory (conditional rounding) and TFF's
DistributedDpSumFactory (Hadamard, Skellam, beta = 0 as it recommends) in the same
process and context, alternately. The vectors are computed in the graph, and a plain
federated sum of the same vectors is subtracted. Kernels: nanoseconds a
coordinate on one thread, next to the time of a copy of a vector beyond the cache.
See benchmarks/README.md.
"""

import argparse
from collections.abc import Sequence
import functools
import statistics
import subprocess
import sys
import tempfile
import time

# TFF's factory makes computations deeper than the parser's default limit.
from google._upb import _message
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp
from tensorflow_federated.python.aggregators import discretization
from tensorflow_federated.python.aggregators import hadamard
from tensorflow_federated.python.aggregators import modular_clipping

from aggregators import alias_draw
from aggregators import chacha
from aggregators import distributed_sum
from aggregators import keys
from aggregators import noisy_rounding
from aggregators import rotation
from aggregators import share_tables
from aggregators.params import DistributedSumParams
from benchmarks import measure
from benchmarks import tff_worker
from tff_pipelines.simulation import contexts

CLIP = 1.0
NOISE_MULTIPLIER = 1.0
# (dimension, clients, bits)
SIZES = ((2**12, 1000, 16), (2**16, 100, 16), (1_018_174, 10, 18), (2**20, 10, 16))
QUICK_SIZES = ((2**10, 4, 16),)
KERNEL_DIMENSION, KERNEL_COHORT, KERNEL_BITS = 2**20, 10, 16
QUICK_KERNEL_DIMENSION = 2 * noisy_rounding.BLOCK
TARGET = 5.0


def our_params(dimension: int, clients: int, bits: int) -> DistributedSumParams:
  return DistributedSumParams(
      clip=CLIP, noise_multiplier=NOISE_MULTIPLIER, bits=bits,
      dimension=dimension, cohort_size=clients)


def their_factory(clients: int, bits: int):
  return tff.aggregators.distributed_dp.DistributedDpSumFactory(
      noise_multiplier=NOISE_MULTIPLIER, expected_clients_per_round=clients,
      bits=bits, l2_clip=CLIP, mechanism='distributed_skellam',
      rotation_type='hd')


def client_vector(seed, dimension: int) -> tf.Tensor:
  """A client's vector, in the worker: twice as long as the clip."""
  vector = keys.uniform(tf.stack([seed, 0]), [dimension]) - 0.5
  return vector * tf.constant(2 * CLIP * (12 / dimension)**0.5, tf.float32)


def round_of(factory, dimension: int, clients: int):
  """A function that runs one round of a factory from clients' seeds."""
  process = factory.create(tff.TensorType(np.float32, [dimension]))
  client = tff.tensorflow.computation(
      lambda seed: client_vector(seed, dimension), tff.TensorType(np.int64))
  state_type = process.initialize.type_signature.result

  @tff.federated_computation(
      state_type, tff.FederatedType(np.int64, tff.CLIENTS))
  def one_round(state, seeds):
    output = process.next(state, tff.federated_map(client, seeds))
    return output.state, output.result

  holder = [process.initialize()]
  seeds = np.arange(clients, dtype=np.int64)

  def run():
    holder[0], result = one_round(holder[0], list(seeds))
    return np.asarray(result)

  return run


def whole(dimension: int, clients: int, bits: int,
          repeats: int) -> list[measure.Row]:
  params = our_params(dimension, clients, bits)
  functions = dict(
      base=round_of(tff.aggregators.SumFactory(), dimension, clients),
      ours=round_of(distributed_sum.DistributedSumFactory(params), dimension, clients),
      theirs=round_of(their_factory(clients, bits), dimension, clients))
  exact = functions['base']()
  for name in ('ours', 'theirs'):
    # A round that computes something else is no measurement. Noise has a norm of
    # z * clip * sqrt(d); clipping halves the vectors.
    error = np.linalg.norm(functions[name]() - exact / 2)
    expected = NOISE_MULTIPLIER * CLIP * dimension**0.5
    if not 0.8 * expected < error < 1.3 * expected:
      raise ValueError(f'{name}: error {error:.4g}, noise {expected:.4g}')
  times = measure.in_turns(functions, repeats)
  ours, theirs = (
      times[name].net(times['base']) for name in ('ours', 'theirs'))
  sizes = f'd={dimension} n={clients} b={bits}'
  rows = []
  for i, unit in enumerate(('ms/client', 'cpu-ms/client')):
    rows.append(measure.Row(
        name='distributed sum, net', sizes=sizes, ours=ours[i] / clients * 1e3,
        peer=theirs[i] / clients * 1e3, unit=unit, target=TARGET))
    rows.append(measure.Row(
        name='plain federated sum', sizes=sizes,
        ours=times['base'].medians()[i] / clients * 1e3, peer=None, unit=unit))
  for row in rows:
    measure.show(row)
  return rows


def copy_floor(size: int) -> float:
  """Nanoseconds to read and write one float32 of a vector."""
  source = np.ones([size], np.float32)
  target = np.empty_like(source)
  times = []
  for _ in range(5):
    start = time.perf_counter()
    np.copyto(target, source)
    times.append(time.perf_counter() - start)
  return statistics.median(times) / source.size * 1e9


def their_noise(vector, stddev: float):
  query = tfp.DistributedSkellamSumQuery(
      l1_norm_bound=2**31 - 1, l2_norm_bound=1e12, local_stddev=stddev)
  params = query.derive_sample_params(query.initial_global_state())
  return query.add_noise_to_sample(params.local_stddev, vector)


def their_encoding(vector, params: DistributedSumParams):
  """The encoding of a client of TFF's factory, from the functions it consists of."""
  padded = 1 << (params.dimension - 1).bit_length()
  sign = tf.where(
      tf.random.stateless_uniform([padded], seed=[1, 2]) < 0.5, 1.0, -1.0)
  x = tf.pad(vector, [[0, padded - params.dimension]]) * sign
  x = hadamard.fast_walsh_hadamard_transform(x[tf.newaxis])[0]
  x, _ = tf.clip_by_global_norm([x], params.clip)
  x = discretization._discretize_struct(  # pylint: disable=protected-access
      x[0], tf.constant(params.scale, tf.float32), True, 0.0,
      tf.constant(params.clip, tf.float32))
  query = tfp.DistributedSkellamSumQuery(
      l1_norm_bound=2**31 - 1, l2_norm_bound=1e12,
      local_stddev=params.local_stddev_grid)
  sample_params = query.derive_sample_params(query.initial_global_state())
  x = query.preprocess_record(sample_params, x)
  half = 2**(params.bits - 1)
  for low, high in ((-half, half), (0, 2 * half)):
    x = modular_clipping.modular_clip_by_value(x, low, high)
  return x


def kernel_pairs(params: DistributedSumParams):
  """name -> (ours, theirs, argument): functions of one vector, or a key, each."""
  dimension = params.padded_dimension
  key = tf.constant([1, 2], tf.int64)
  table = share_tables.noise_table(params, round(params.cohort_size))
  table = {name: tf.constant(value) for name, value in table.items()}
  vector = client_vector(tf.constant(1, tf.int64), dimension)
  grid = vector * np.float32(0.45 * params.scale)
  integers = tf.zeros([dimension], tf.int32)

  @functools.partial(tf.function, jit_compile=True, autograph=False)
  def draw(values, random_bits):
    low, high = tf.unstack(tf.reshape(random_bits, [2, dimension]))
    high = tf.bitwise.bitwise_and(high, 255)
    return values + alias_draw.draw(low, high, key, table['packed'], table['tie'])

  def noise_only(values):
    return draw(values, noisy_rounding.random_bits(key, dimension, True, chacha))

  @functools.partial(tf.function, jit_compile=True, autograph=False)
  def conditional_round(values):
    return noisy_rounding.noisy_round(
        values, key, params.l2_sensitivity_squared,
        noisy_rounding.SampledNoise(sample=None), None, compiled=False).values

  central = params.replace(mechanism='skellam_central')

  def by_server(total):
    return distributed_sum.topped_up(total, 1, 1, key, central)[0]

  def encoded(x, params, table):
    return distributed_sum.encode(
        x, key, key, round(params.cohort_size), params, table).values

  return {
      'random bits, ChaCha20 (peer: Philox)': (
          lambda x: noisy_rounding.random_bits(x, dimension, True, chacha),
          lambda x: noisy_rounding.random_bits(x, dimension, True, keys), key),
      'Hadamard transform': (
          rotation.transformed,
          lambda x: hadamard.fast_walsh_hadamard_transform(x[tf.newaxis]), vector),
      'rounding (ours conditional)': (
          conditional_round,
          lambda x: discretization._discretize_struct(  # pylint: disable=protected-access
              x, tf.constant(1.0), True, 0.0, tf.constant(params.clip_grid)), grid),
      'Skellam noise': (
          noise_only,
          lambda x: their_noise(x, params.local_stddev_grid), integers),
      'Skellam noise (TF Poisson)': (
          noise_only,
          lambda x: x + tf.cast(_two_poissons(key, dimension, params), tf.int32),
          integers),
      'noise of a trusted server (TF Poisson)': (
          by_server, lambda x: distributed_sum.sample_noise(
              key, x.shape, central.total_noise_variance, central), integers),
      'whole encoding of a client': (
          lambda x: encoded(x, params, table),
          lambda x: their_encoding(x, params), vector[:params.dimension]),
  }


def _two_poissons(key, dimension, params):
  rate = tf.constant(params.local_stddev_grid**2 / 2, tf.float64)
  return (tf.random.stateless_poisson([dimension], key, rate, tf.int64) -
          tf.random.stateless_poisson([dimension], key + 1, rate, tf.int64))


def kernels(dimension: int, repeats: int) -> list[measure.Row]:
  params = our_params(dimension, KERNEL_COHORT, KERNEL_BITS)
  sizes = f'd={dimension} n={KERNEL_COHORT} b={KERNEL_BITS}'
  floor = copy_floor(64 * dimension)  # Beyond the caches.
  rows = [measure.Row(name='copy of a vector (floor)', sizes=f'd={64 * dimension}',
                      ours=floor, peer=None, unit='ns/coordinate')]
  measure.show(rows[0])
  for name, (ours, theirs, argument) in kernel_pairs(params).items():
    compiled = [
        tf.function(f, autograph=False).get_concrete_function(argument)
        for f in (ours, theirs)]
    times = measure.in_turns(
        dict(ours=lambda: compiled[0](argument),  # pylint: disable=cell-var-from-loop
             theirs=lambda: compiled[1](argument)), repeats)  # pylint: disable=cell-var-from-loop
    per_coordinate = {
        which: measured.medians()[0] / dimension * 1e9
        for which, measured in times.items()}
    rows.append(measure.Row(
        name=name, sizes=sizes, ours=per_coordinate['ours'],
        peer=per_coordinate['theirs'], unit='ns/coordinate'))
    measure.show(rows[-1])
  return rows


def _kernels_alone(repeats: int) -> list[measure.Row]:
  """`kernels` in a process of its own, as it may use one thread only."""
  with tempfile.NamedTemporaryFile('r', suffix='.json') as file:
    subprocess.run(
        [sys.executable, '-m', 'benchmarks.aggregation', '--only=kernels',
         f'--json={file.name}', f'--repeats={repeats}'], check=True)
    return measure.read(file.name)


def main(arguments: Sequence[str] | None = None) -> list[measure.Row]:
  """Runs the benchmark; returns the rows that it printed and wrote."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
  parser.add_argument('--quick', action='store_true',
                      help='smoke test in this process: its numbers mean nothing')
  parser.add_argument('--json', help='file for the rows')
  parser.add_argument('--repeats', type=int, default=15, help='turns, >= 1')
  parser.add_argument('--only', choices=('whole', 'kernels'))
  parser.add_argument('--tff_worker', action='store_true',
                      help='both factories in a worker of TFF')
  flags = parser.parse_args(arguments)
  repeats = 1 if flags.quick else flags.repeats
  _message.SetAllowOversizeProtos(True)
  tf.get_logger().setLevel('CRITICAL')  # Of what the peers leave unused.
  rows = []
  if flags.only is None and not flags.quick:
    rows = _kernels_alone(repeats)
  elif flags.only != 'whole':
    measure.heading()
    if not flags.quick:
      tf.config.threading.set_intra_op_parallelism_threads(1)
      tf.config.threading.set_inter_op_parallelism_threads(1)
    rows = kernels(
        QUICK_KERNEL_DIMENSION if flags.quick else KERNEL_DIMENSION, repeats)
  if flags.only != 'kernels':
    measure.heading()
    with (tff_worker if flags.tff_worker else contexts).started() as context, (
        contexts.installed(context)):
      for sizes in QUICK_SIZES if flags.quick else SIZES:
        rows += whole(*sizes, repeats)
  measure.write(rows, flags.json)
  return rows


if __name__ == '__main__':
  main()
