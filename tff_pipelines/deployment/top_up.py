"""Noise in place of clients that left, which the helper adds."""

import numpy as np
import tensorflow as tf

from aggregators import chacha, distributed_sum, keys
from tff_pipelines.deployment.agreements import Agreement


def missing_noise(agreement: Agreement, num_reporting: int,
                  cohort_size: int) -> np.ndarray:
  """The noise that brings that of so many clients to the whole of a cohort.

  uint32 [padded_dimension] in [0, 2^bits). So the distribution of what is opened does
  not tell how many participated.
  """
  params = agreement.params
  if num_reporting == cohort_size:
    return np.zeros(params.padded_dimension, np.uint32)
  table = agreement.noise_table(cohort_size)
  noise, _ = distributed_sum.topped_up(
      tf.zeros([params.padded_dimension], tf.int32), num_reporting, cohort_size,
      chacha.derive(keys.fresh(), distributed_sum.SUM_AT_SERVER), params,
      table and tf.nest.map_structure(tf.constant, table))
  return noise.numpy().view(np.uint32)
