"""Trains a Keras model with `tff.learning` under the distributed Skellam mechanism.

  python -m examples.aggregator_in_tff
"""

import numpy as np
from sklearn import datasets
import tensorflow as tf
import tensorflow_federated as tff

from aggregators.distributed_sum import DistributedSumFactory
from aggregators.expected_mean import ExpectedMeanFactory
from aggregators.params import DistributedSumParams
from tff_pipelines.simulation import contexts

CLIENTS, ROUNDS = 50, 5


def clients() -> list[tf.data.Dataset]:
  """The digits that come with scikit-learn, dealt to clients."""
  x, y = datasets.load_digits(return_X_y=True)
  return [tf.data.Dataset.from_tensor_slices(
      ((x[rows] / 16).astype(np.float32), y[rows].astype(np.int32))).batch(10)
          for rows in np.array_split(np.arange(len(x)), CLIENTS)]


def model_fn() -> tff.learning.models.VariableModel:
  return tff.learning.models.from_keras_model(
      tf.keras.Sequential([tf.keras.layers.InputLayer([64]), tf.keras.layers.Dense(10)]),
      input_spec=(tf.TensorSpec([None, 64]), tf.TensorSpec([None], tf.int32)),
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def main() -> list[float]:
  """Trains, prints and returns the loss of each round."""
  params = DistributedSumParams(
      clip=0.5, noise_multiplier=0.5, bits=18, dimension=650, cohort_size=CLIENTS)
  mean = ExpectedMeanFactory(DistributedSumFactory(params), params.cohort_size)
  process = tff.learning.algorithms.build_unweighted_fed_avg(
      model_fn, tff.learning.optimizers.build_sgdm(0.2), model_aggregator=mean)
  losses, data = [], clients()
  with contexts.simulation():
    state = process.initialize()
    for _ in range(ROUNDS):
      output = process.next(state, data)
      state = output.state
      losses.append(float(output.metrics['client_work']['train']['loss']))
      print(f'loss {losses[-1]:.3f}')
  return losses


if __name__ == '__main__':
  main()
