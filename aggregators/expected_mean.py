"""The mean over the expected cohort: a sum divided by a constant."""

import tensorflow as tf
import tensorflow_federated as tff

from tff_pipelines.common import validate


def divide(total, divisor: float):
  """In graph: divides float tensors by a constant, in float64: it may exceed them."""
  return tf.nest.map_structure(
      lambda x: tf.cast(tf.cast(x, tf.float64) / divisor, x.dtype), total)


class ExpectedMeanFactory(tff.aggregators.UnweightedAggregationFactory):
  """Divides the result of a sum factory by the expected number of clients.

  Dividing by the number of reporting clients would break amplification by sampling: a
  release that depends on it lets an observer tell how many clients participated (in a
  federated EMNIST setting, a claimed epsilon of 10 becomes 32). The constant is an
  argument, not a measurement.

  Formal guarantees: those of the inner factory, as dividing its result by a constant is
  post-processing.
  """

  def __init__(self, sum_factory: tff.aggregators.UnweightedAggregationFactory,
               expected_cohort_size: float):
    """Initializes the factory.

    Args:
      sum_factory: Its result is a structure of float tensors.
      expected_cohort_size: n > 0; under Poisson sampling q times the population.
    """
    validate.positive(expected_cohort_size=expected_cohort_size)
    self._sum_factory = sum_factory
    self._divisor = float(expected_cohort_size)

  def set_cohort_size(self, state, cohort_size: int):
    """The inner factory's state for a round of this many selected clients."""
    inner = getattr(self._sum_factory, 'set_cohort_size', None)
    return state if inner is None else inner(state, cohort_size)

  def create(self, value_type) -> tff.templates.AggregationProcess:
    inner = self._sum_factory.create(value_type)
    state_type = inner.initialize.type_signature.result
    result_type = inner.next.type_signature.result.result.member

    divide_total = tff.tensorflow.computation(
        lambda total: divide(total, self._divisor), result_type)

    @tff.federated_computation(state_type, tff.FederatedType(value_type, tff.CLIENTS))
    def next_fn(state, value):
      output = inner.next(state, value)
      return tff.templates.MeasuredProcessOutput(
          output.state, tff.federated_map(divide_total, output.result),
          output.measurements)

    return tff.templates.AggregationProcess(inner.initialize, next_fn)
