"""FedMD as a TFF process (arXiv 2009.05537, algorithm 1; arXiv 1910.03581).

Parties keep their models, which may be of different architectures, and share
what these predict on public records. In a round a party *digests* the consensus
on the public records of the round before, *revisits* its own records, and
predicts on new public records, those that the next round digests. All of that
is one graph; the number of a party's architecture chooses within it.

A party's state goes in and comes out placed at clients. Everything random that
leads to it derives from a key in it, because contexts of several workers run the
clients' part twice, once for the sums and once for the state.
"""

import collections
import dataclasses
from typing import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import keys
from aggregators import structures
from aggregators import validate
from aggregators.prediction_mean import PredictionMeanFactory
from aggregators.prediction_params import PredictionMeanParams
from tasks.fedmd_models import Architecture
from tff_pipelines.algorithms import fedmd_training
from tff_pipelines.algorithms.fedmd_training import FitConfig

# What a party's key of a round is derived for.
_INITIAL, _DIGEST, _REVISIT, _NOISE = range(4)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartyConfig:
  """What parties do, the same for all of them.

  Attributes:
    initial_epochs: Over a party's own records, when it first takes part; >= 0.
    private: How a party fits its own records.
    digest: How it fits the consensus.
  """

  initial_epochs: int
  private: FitConfig
  digest: FitConfig

  def __post_init__(self):
    validate.integer(initial_epochs=self.initial_epochs, low=0)


def party_type() -> tff.StructType:
  """The state of a party: see `new_party`."""
  return tff.StructWithPythonType([
      ('architecture', tff.TensorType(np.int32)),
      ('key', tff.TensorType(np.int64, [2])),
      ('number', tff.TensorType(np.int32)),
      ('rounds', tff.TensorType(np.int32)),
      ('weights', tff.TensorType(np.float32, [None])),
  ], collections.OrderedDict)


def new_party(number: int, architecture: int, weights: np.ndarray,
              key: np.ndarray):
  """The state of a party that has not taken part yet.

  Args:
    number: Of the party, to tell its new state from others'.
    architecture: Its number in the list that the process is built for.
    weights: float32 vector, of a model trained on public data alone.
    key: int64[2], from the operating system, or of a simulation seed.
  """
  return collections.OrderedDict(
      architecture=np.int32(architecture), key=np.asarray(key, np.int64),
      number=np.int32(number), rounds=np.int32(0), weights=np.asarray(weights, np.float32))


def data_type(image_shape: Sequence[int]) -> tff.StructType:
  """What a party brings beside its state: its records and its weight.

  A negative weight -w stands for w times the part of the public records of the
  last round on which the party's model, before it digests, agrees with the
  consensus, rounded; or for w where there is no consensus yet.
  """
  return tff.StructWithPythonType([
      ('images', tff.TensorType(np.uint8, [None, *image_shape])),
      ('labels', tff.TensorType(np.int32, [None])),
      ('weight', tff.TensorType(np.int32)),
  ], collections.OrderedDict)


def round_type(image_shape: Sequence[int], records: int) -> tff.StructType:
  """What the server says of a round.

  `digest_images` are the public records that the consensus is about,
  `predict_images` those to predict on. `rate_factor` is what the learning rates of
  digest and revisit are multiplied by; that of a party's first training is not.
  Without `share` parties send nothing of their predictions, as in the last round.
  """
  return tff.StructWithPythonType([
      ('digest_images', tff.TensorType(np.uint8, [None, *image_shape])),
      ('digest_epochs', tff.TensorType(np.int32)),
      ('revisit_epochs', tff.TensorType(np.int32)),
      ('rate_factor', tff.TensorType(np.float32)),
      ('predict_images', tff.TensorType(np.uint8, [records, *image_shape])),
      ('share', tff.TensorType(np.bool_)),
  ], collections.OrderedDict)


def take_part(state, data, server, round_, *,
              architectures: Sequence[Architecture], config: PartyConfig,
              knowledge: str, records: int):
  """In graph: a round of one party.

  A party that takes part for the first time, in whatever round, first fits its
  own records. If its weights or predictions come out not finite, it keeps the
  weights that it had, and its predictions are NaN.

  Args:
    state: Of `party_type`.
    data: Of `data_type`.
    server: The server's state.
    round_: Of `round_type`.
    architectures: That `state` chooses from.
    config: What parties do.
    knowledge: What the consensus is a mean of.
    records: Public records that are predicted on.

  Returns:
    The new state; logits, float32 [records, classes]; the weight, int32; and an
    int64[2] key for the noise.
  """
  key = keys.derive(state['key'], 0)
  is_new = tf.equal(state['rounds'], 0)
  initial_epochs = tf.where(is_new, config.initial_epochs, 0)
  digest_epochs = tf.where(server['known'], round_['digest_epochs'], 0)
  shape = [records, architectures[0].classes]

  def branch(architecture):

    @tf.function(autograph=False)
    def fit_own(weights, epochs, key, rate_factor):
      return fedmd_training.fit(
          architecture, weights, data['images'], data['labels'], epochs, key,
          kind=fedmd_training.LABELS, config=config.private,
          rate_factor=rate_factor)

    def run():
      weights = tf.ensure_shape(state['weights'], [architecture.size])
      weights = fit_own(
          weights, initial_epochs, keys.derive(key, _INITIAL), tf.constant(1.0))
      agreed = tf.cond(
          server['known'] & (data['weight'] < 0),
          lambda: fedmd_training.agreement(
              architecture, weights, round_['digest_images'],
              server['consensus']),
          lambda: tf.constant(1.0))
      weights = fedmd_training.fit(
          architecture, weights, round_['digest_images'], server['consensus'],
          digest_epochs, keys.derive(key, _DIGEST), kind=knowledge,
          config=config.digest, rate_factor=round_['rate_factor'])
      weights = fit_own(
          weights, round_['revisit_epochs'], keys.derive(key, _REVISIT),
          round_['rate_factor'])
      logits = tf.cond(
          round_['share'],
          lambda: fedmd_training.predict(
              architecture, weights, round_['predict_images']),
          lambda: tf.zeros(shape))
      # Branches of different sizes must look alike.
      return (tf.gather(weights, tf.range(tf.size(weights))),
              tf.ensure_shape(logits, shape), agreed)

    return run

  weights, logits, agreed = tf.switch_case(
      state['architecture'], [branch(a) for a in architectures])
  is_good = (tf.reduce_all(tf.math.is_finite(weights)) &
             tf.reduce_all(tf.math.is_finite(logits)))
  new_state = collections.OrderedDict(
      architecture=state['architecture'], key=keys.derive(state['key'], 1),
      number=state['number'],
      rounds=state['rounds'] + tf.cast(is_good, tf.int32),
      weights=tf.where(is_good, weights, state['weights']))
  logits = tf.where(is_good, logits, tf.fill(shape, np.float32(np.nan)))
  by_agreement = tf.cast(
      tf.round(agreed * tf.cast(-data['weight'], tf.float32)), tf.int32)
  weight = tf.where(data['weight'] < 0, by_agreement, data['weight'])
  return new_state, logits, weight, keys.derive(key, _NOISE)


def build(architectures: Sequence[Architecture], *,
          image_shape: Sequence[int], mean: PredictionMeanParams,
          config: PartyConfig, simulation_seed: int | None = None
          ) -> tff.templates.IterativeProcess:
  """Builds the process.

  Args:
    architectures: All that parties may have; they agree in the classes.
    image_shape: Height, width, channels of every image.
    mean: How predictions are averaged; `records` of them a round.
    config: What parties do.
    simulation_seed: Given for seeded runs, whose noise derives from the parties'
      keys; unseeded noise is drawn anew whenever it is computed.

  Returns:
    A process with the server's state, an OrderedDict of `consensus` (float32
    [records, classes]) and `known` (bool, whether there is one). `next` takes
    it, what the server says of the round (`round_type`), and the states
    (`party_type`) and data (`data_type`) of the parties that take part; it
    returns an OrderedDict of `state`, `parties` (their new states; several
    workers may change the order) and `metrics` (`parties`, how many's predictions
    are in the consensus, `rejected`, how many's were not finite, and
    `total_weight`).
  """
  for architecture in architectures:
    if architecture.classes != mean.classes:
      raise ValueError(
          f'classes must be {mean.classes} as in the mean, found '
          f'{architecture.classes} in architecture {architecture.name}')
  seeded = simulation_seed is not None and mean.has_noise
  shape = [mean.records, mean.classes]
  value_type = tff.TensorType(np.float32, shape)
  if seeded:
    value_type = structures.keyed_type(value_type)
  aggregator = PredictionMeanFactory(
      mean, simulation_seed=simulation_seed).create(
          value_type, tff.TensorType(np.int32))

  @tff.tensorflow.computation
  def nothing_known():
    return collections.OrderedDict(
        consensus=tf.zeros(shape), known=tf.constant(False))

  server_type = nothing_known.type_signature.result
  said_type = round_type(image_shape, mean.records)

  @tff.tensorflow.computation(
      party_type(), data_type(image_shape), server_type, said_type)
  def party_round(state, data, server, said):
    new_state, logits, weight, noise_key = take_part(
        state, data, server, said, architectures=architectures, config=config,
        knowledge=mean.knowledge, records=mean.records)
    value = logits
    if seeded:
      value = collections.OrderedDict(value=logits, key=noise_key)
    return collections.OrderedDict(state=new_state, value=value, weight=weight)

  @tff.tensorflow.computation(
      tff.TensorType(np.float32, shape), tf.int32, tf.bool)
  def know(consensus, total_weight, share):
    return collections.OrderedDict(
        consensus=consensus, known=share & (total_weight > 0))

  @tff.federated_computation
  def initialize():
    return tff.federated_eval(nothing_known, tff.SERVER)

  @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(said_type, tff.SERVER),
      # TFF's context for several workers divides the clients over them by the last
      # argument, which must be one that is placed at clients.
      tff.FederatedType(party_type(), tff.CLIENTS),
      tff.FederatedType(data_type(image_shape), tff.CLIENTS))
  def next_fn(server, said, parties, data):
    done = tff.federated_map(
        party_round, (parties, data, tff.federated_broadcast(server),
                      tff.federated_broadcast(said)))
    averaged = aggregator.next(
        tff.federated_value((), tff.SERVER), done['value'], done['weight'])
    new_server = tff.federated_map(
        know, (averaged.result, averaged.measurements['total_weight'],
               said['share']))
    return collections.OrderedDict(
        state=new_server, parties=done['state'], metrics=averaged.measurements)

  return tff.templates.IterativeProcess(initialize, next_fn)
