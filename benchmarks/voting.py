"""Voting compared with a plain loop over agents, in the same run.

  python -m benchmarks.voting [--repeats=5] [--json=voting.json]

Ours is a whole round as a user runs it, in TFF: agents' records are handed over,
every agent answers all queries, adds its share of the noise, ballots are summed
modulo 2^bits, and labels come back. The peers are loops over agents in NumPy (for
neighbours and ballots), and in TensorFlow called from Python (for agents that train
models, which NumPy can't).
"""

import collections
from typing import Sequence

from absl import app
from absl import flags
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from aggregators.voting import VotingFactory
from aggregators.voting_params import VotingParams
from benchmarks import measure
from tasks.models import classifiers
from tff_pipelines.learning import adam
from tff_pipelines.simulation import contexts
from tff_pipelines.voting import agents as agents_lib
from tff_pipelines.voting import knn as knn_lib
from tff_pipelines.voting import process as process_lib

_REPEATS = flags.DEFINE_integer('repeats', 5, 'Turns.', lower_bound=1)
_JSON = flags.DEFINE_string('json', None, 'Also write the rows to this file.')
_NUM_WORKERS = flags.DEFINE_integer('num_workers', 0, 'TFF worker processes.')

AGENTS, QUERIES, RECORDS, CLASSES = 100, 1000, 600, 10
DIMENSION, NEIGHBOURS = 800, 30
KNN_TARGET_SECONDS = 2.0


def _values(xs: np.ndarray, ys: np.ndarray) -> list:
  return [collections.OrderedDict(examples=collections.OrderedDict(x=x, y=y))
          for x, y in zip(xs, ys)]


def _noisy_winners(counts: np.ndarray, shares: list[np.ndarray]) -> np.ndarray:
  return (counts + sum(shares)).argmax(axis=1)


def _numpy_shares(rng: np.random.Generator, variance: float,
                  queries: int) -> list[np.ndarray]:
  shape = (queries, CLASSES)
  return [rng.poisson(variance / 2 / AGENTS, shape) -
          rng.poisson(variance / 2 / AGENTS, shape) for _ in range(AGENTS)]


def _neighbours() -> dict:
  """100 agents x 1,000 queries x 600 records of 800 features."""
  rng = np.random.default_rng(0)
  most = knn_lib.largest_feature(DIMENSION)
  xs = rng.integers(-most, most + 1, (AGENTS, RECORDS, DIMENSION)).astype(np.int8)
  ys = rng.integers(CLASSES, size=(AGENTS, RECORDS)).astype(np.int32)
  queries = rng.integers(-most, most + 1, (QUERIES, DIMENSION)).astype(np.int8)
  params = VotingParams(
      queries=QUERIES, classes=CLASSES, agents=AGENTS, votes=NEIGHBOURS,
      noise_stddev=1.0)
  process = process_lib.build(
      knn_lib.nearest_votes(NEIGHBOURS, CLASSES), VotingFactory(params),
      {'x': (np.dtype(np.int8), (DIMENSION,)), 'y': (np.dtype(np.int32), ())})
  state = process.initialize()
  agents, public = _values(xs, ys), process_lib.public_value(queries)

  def numpy_loop():
    total = np.zeros((QUERIES, CLASSES), np.int64)
    floats = queries.astype(np.float32)
    for x, y in zip(xs, ys):
      records = x.astype(np.float32)
      distances = (records**2).sum(axis=1) - 2 * (floats @ records.T)
      nearest = np.argpartition(distances, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
      for label in range(CLASSES):
        total[:, label] += (y[nearest] == label).sum(axis=1)
    return _noisy_winners(
        total, _numpy_shares(rng, params.noise_variance, QUERIES))

  return {'ours': lambda: process.next(state, public, agents)['labels'],
          'peer': numpy_loop}


def _ballots() -> dict:
  """Votes that are there already: noise, sum, argmax."""
  rng = np.random.default_rng(1)
  labels = rng.integers(CLASSES, size=(AGENTS, QUERIES))
  votes = np.eye(CLASSES, dtype=np.int32)[labels]
  params = VotingParams(
      queries=QUERIES, classes=CLASSES, agents=AGENTS, noise_stddev=25.0)
  factory = VotingFactory(params)
  process = factory.create(tff.TensorType(np.int32, [QUERIES, CLASSES]))
  state, ballots = process.initialize(), list(votes)

  def numpy_loop():
    return _noisy_winners(
        votes.sum(axis=0), _numpy_shares(rng, params.noise_variance, QUERIES))

  return {'ours': lambda: process.next(state, ballots).result,
          'peer': numpy_loop}


def _agents_of(network: classifiers.Network, shape: tuple[int, ...], dtype,
               config: agents_lib.AgentConfig, agents: int, queries: int) -> dict:
  """Agents that train models of their own and vote by them."""
  rng = np.random.default_rng(2)
  xs = rng.integers(0, 255, (agents, RECORDS, *shape)).astype(dtype)
  ys = rng.integers(CLASSES, size=(agents, RECORDS)).astype(np.int32)
  asked = rng.integers(0, 255, (queries, *shape)).astype(dtype)
  weights = network.initial_weights(0)
  answer = agents_lib.trained_votes(network, weights, config)
  params = VotingParams(
      queries=queries, classes=CLASSES, agents=agents, noise_stddev=5.0)
  process = process_lib.build(
      answer, VotingFactory(params),
      {'x': (np.dtype(dtype), shape), 'y': (np.dtype(np.int32), ())})
  state, public = process.initialize(), process_lib.public_value(asked)
  values = _values(xs, ys)
  one = tf.function(answer, autograph=False)
  asked_of_all = {name: tf.constant(value) for name, value in public.items()}

  def loop():
    total = np.zeros((queries, CLASSES), np.int64)
    for number, (x, y) in enumerate(zip(xs, ys)):
      total += one(asked_of_all, {'x': tf.constant(x), 'y': tf.constant(y)},
                   tf.constant([number, 1], tf.int64)).numpy()
    return total.argmax(axis=1)

  return {'ours': lambda: process.next(state, public, values)['labels'],
          'peer': loop}


def _row(name: str, sizes: str, functions: dict, repeats: int,
         warm_ups: int = 1) -> measure.Row:
  times = measure.in_turns(functions, repeats, warm_ups)
  row = measure.Row(
      name=name, sizes=sizes, ours=times['ours'].medians()[0],
      peer=times['peer'].medians()[0], unit='s')
  measure.show(row)
  return row


def main(argv: Sequence[str]) -> None:
  del argv  # Unused.
  repeats = _REPEATS.value
  measure.heading()
  rows = []
  with contexts.simulation(num_workers=_NUM_WORKERS.value):
    knn = _row(
        'neighbours, NumPy loop', f'{AGENTS} x {QUERIES} x {RECORDS}, d {DIMENSION}',
        _neighbours(), repeats)
    met = measure.Row(
        name='neighbours, time allowed', sizes=f'{AGENTS} agents', ours=knn.ours,
        peer=KNN_TARGET_SECONDS, unit='s', target=1.0)
    measure.show(met)
    rows += [knn, met, _row(
        'ballots, NumPy loop', f'{AGENTS} x {QUERIES} x {CLASSES}', _ballots(),
        repeats)]
    softmax = classifiers.softmax((64,), CLASSES)
    rows.append(_row(
        'agents of softmax, TF loop', f'{AGENTS} x {RECORDS}, 100 steps',
        _agents_of(softmax, (64,), np.float32, agents_lib.AgentConfig(
            training=adam.AdamConfig(
                learning_rate=0.1, batch_size=RECORDS, epochs=100)),
                   AGENTS, 50), repeats))
    cnn = classifiers.cnn_small((28, 28), CLASSES)
    rows.append(_row(
        'agents of cnn_small, TF loop', f'{AGENTS} x {RECORDS}, 1 epoch',
        _agents_of(cnn, (28, 28), np.uint8, agents_lib.AgentConfig(
            training=adam.AdamConfig(
                learning_rate=2e-3, batch_size=50, epochs=1)), AGENTS, 50),
        max(1, repeats // 2)))
  measure.write(rows, _JSON.value)


if __name__ == '__main__':
  app.run(main)
