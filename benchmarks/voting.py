"""Voting compared with a plain loop over agents, in the same run.

  python -m benchmarks.voting [--quick] [--json=FILE] [--repeats=N]

Ours is a whole round as a user runs it, in TFF: agents' records are handed over,
every agent answers all queries, adds its share of the noise, ballots are summed
modulo 2^bits, and labels come back. The peers are loops over agents in NumPy (for
neighbours and ballots), and in TensorFlow called from Python (for agents that train
models, which NumPy can't).
"""

import argparse
import collections
from collections.abc import Sequence
import dataclasses

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from aggregators.voting import VotingFactory
from aggregators.voting_params import VotingParams
from benchmarks import measure
from tasks.models import classifiers
from tff_pipelines.fedavg import adam
from tff_pipelines.simulation import contexts
from tff_pipelines.voting import (
    agents as agents_lib, features as features_lib, process as process_lib)

CLASSES = 10
KNN_TARGET_SECONDS = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
  """Sizes of all comparisons.

  Attributes:
    agents: Number of agents.
    queries: Number of queries of neighbours and ballots.
    records: Number of records of an agent.
    dimension: Dimension of a record, for neighbours.
    neighbours: Number of them.
    asked: Queries of agents that train models.
    steps: Training steps of an agent of softmax.
    image: Side of an image, pixels, of an agent of cnn_small.
  """

  agents: int = 100
  queries: int = 1000
  records: int = 600
  dimension: int = 800
  neighbours: int = 30
  asked: int = 50
  steps: int = 100
  image: int = 28


QUICK = Sizes(agents=2, queries=5, records=8, dimension=6, neighbours=3, asked=4,
              steps=2, image=12)


def _values(xs: np.ndarray, ys: np.ndarray) -> list:
  return [collections.OrderedDict(examples=collections.OrderedDict(x=x, y=y))
          for x, y in zip(xs, ys)]


def _noisy_winners(counts: np.ndarray, shares: list[np.ndarray]) -> np.ndarray:
  return (counts + sum(shares)).argmax(axis=1)


def _numpy_shares(rng: np.random.Generator, params: VotingParams) -> list[np.ndarray]:
  shape, rate = (params.queries, CLASSES), params.noise_variance / 2 / params.agents
  return [rng.poisson(rate, shape) - rng.poisson(rate, shape)
          for _ in range(params.agents)]


def _neighbours(sizes: Sizes) -> dict:
  """Votes by the nearest records."""
  rng = np.random.default_rng(0)
  dimension, k = sizes.dimension, sizes.neighbours
  most = features_lib.largest_feature(dimension)
  xs = rng.integers(-most, most + 1, (
      sizes.agents, sizes.records, dimension)).astype(np.int8)
  ys = rng.integers(CLASSES, size=(sizes.agents, sizes.records)).astype(np.int32)
  queries = rng.integers(-most, most + 1, (sizes.queries, dimension)).astype(np.int8)
  params = VotingParams(
      queries=sizes.queries, classes=CLASSES, agents=sizes.agents, votes=k,
      noise_stddev=1.0)
  process = process_lib.build(
      features_lib.nearest_votes(k, CLASSES), VotingFactory(params),
      {'x': (np.dtype(np.int8), (dimension,)), 'y': (np.dtype(np.int32), ())})
  state = process.initialize()
  agents, public = _values(xs, ys), process_lib.public_value(queries)

  def numpy_loop():
    total = np.zeros((sizes.queries, CLASSES), np.int64)
    floats = queries.astype(np.float32)
    for x, y in zip(xs, ys):
      records = x.astype(np.float32)
      distances = (records**2).sum(axis=1) - 2 * (floats @ records.T)
      nearest = np.argpartition(distances, k, axis=1)[:, :k]
      for label in range(CLASSES):
        total[:, label] += (y[nearest] == label).sum(axis=1)
    return _noisy_winners(total, _numpy_shares(rng, params))

  return {'ours': lambda: process.next(state, public, agents)['labels'],
          'peer': numpy_loop}


def _ballots(sizes: Sizes) -> dict:
  """Noise, sum and argmax of given votes."""
  rng = np.random.default_rng(1)
  labels = rng.integers(CLASSES, size=(sizes.agents, sizes.queries))
  votes = np.eye(CLASSES, dtype=np.int32)[labels]
  params = VotingParams(
      queries=sizes.queries, classes=CLASSES, agents=sizes.agents, noise_stddev=25.0)
  process = VotingFactory(params).create(
      tff.TensorType(np.int32, [sizes.queries, CLASSES]))
  state, ballots = process.initialize(), list(votes)
  return {'ours': lambda: process.next(state, ballots).result,
          'peer': lambda: _noisy_winners(
              votes.sum(axis=0), _numpy_shares(rng, params))}


def _agents_of(network: classifiers.Network, shape: tuple[int, ...], dtype,
               training: adam.AdamConfig, sizes: Sizes) -> dict:
  """Agents that train models of their own and vote by them."""
  rng = np.random.default_rng(2)
  xs = rng.integers(0, 255, (sizes.agents, sizes.records, *shape)).astype(dtype)
  ys = rng.integers(CLASSES, size=(sizes.agents, sizes.records)).astype(np.int32)
  asked = rng.integers(0, 255, (sizes.asked, *shape)).astype(dtype)
  answer = agents_lib.trained_votes(
      network, network.initial_weights(0), agents_lib.AgentConfig(training=training))
  params = VotingParams(
      queries=sizes.asked, classes=CLASSES, agents=sizes.agents, noise_stddev=5.0)
  process = process_lib.build(
      answer, VotingFactory(params),
      {'x': (np.dtype(dtype), shape), 'y': (np.dtype(np.int32), ())})
  state, public = process.initialize(), process_lib.public_value(asked)
  values = _values(xs, ys)
  one = tf.function(answer, autograph=False)
  asked_of_all = {name: tf.constant(value) for name, value in public.items()}

  def loop():
    total = np.zeros((sizes.asked, CLASSES), np.int64)
    for number, (x, y) in enumerate(zip(xs, ys)):
      total += one(asked_of_all, {'x': tf.constant(x), 'y': tf.constant(y)},
                   tf.constant([number, 1], tf.int64)).numpy()
    return total.argmax(axis=1)

  return {'ours': lambda: process.next(state, public, values)['labels'],
          'peer': loop}


def _row(name: str, described: str, functions: dict, repeats: int) -> measure.Row:
  times = measure.in_turns(functions, repeats, warm_ups=1)
  row = measure.Row(
      name=name, sizes=described, ours=times['ours'].medians()[0],
      peer=times['peer'].medians()[0], unit='s')
  measure.show(row)
  return row


def main(arguments: Sequence[str] | None = None) -> None:
  """Runs the script with these flags, those of the command line by default."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--quick', action='store_true', help='small, to see it run')
  parser.add_argument('--json', help='also write the rows to this file')
  parser.add_argument('--repeats', type=int, default=5, help='turns')
  flags = parser.parse_args(arguments)
  sizes, repeats = (QUICK, 1) if flags.quick else (Sizes(), flags.repeats)
  each = f'{sizes.agents} x {sizes.records}'
  measure.heading()
  with contexts.simulation():
    knn = _row('neighbours, NumPy loop', f'{sizes.agents} x {sizes.queries} x '
               f'{sizes.records}, d {sizes.dimension}', _neighbours(sizes), repeats)
    allowed = measure.Row(
        name='neighbours, time allowed', sizes=f'{sizes.agents} agents', ours=knn.ours,
        peer=KNN_TARGET_SECONDS, unit='s', target=1.0)
    measure.show(allowed)
    rows = [knn, allowed, _row(
        'ballots, NumPy loop', f'{sizes.agents} x {sizes.queries} x {CLASSES}',
        _ballots(sizes), repeats)]
    rows.append(_row(
        'agents of softmax, TF loop', f'{each}, {sizes.steps} steps',
        _agents_of(classifiers.softmax((64,), CLASSES), (64,), np.float32,
                   adam.AdamConfig(learning_rate=0.1, batch_size=sizes.records,
                                   epochs=sizes.steps), sizes), repeats))
    shape = (sizes.image,) * 2
    rows.append(_row(
        'agents of cnn_small, TF loop', f'{each}, 1 epoch',
        _agents_of(classifiers.cnn_small(shape, CLASSES), shape, np.uint8,
                   adam.AdamConfig(learning_rate=2e-3, batch_size=50, epochs=1), sizes),
        max(1, repeats // 2)))
  measure.write(rows, flags.json)


if __name__ == '__main__':
  main()
