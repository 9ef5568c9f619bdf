"""Sums over silos that protect a record, and not the silo.

A silo holds many vectors, such as the gradients of its records. It clips and encodes
each by itself, as `distributed_sum` encodes a client's vector, adds the integers up, adds
one share of the noise, and sends one vector. Rounding the silo's sum instead would break
the bound on a record: a record moves a rounded sum by up to the root of the dimension
more than itself.
"""

import tensorflow as tf
import tensorflow_federated as tff

from aggregators import client_sum, structures
from aggregators.params import DistributedSumParams

# Purposes of the keys of a silo: its share, and its vectors.
_SHARE, _VECTORS = 0, 1


class VectorsLayout(structures.FlatLayout):
  """How structures with a first axis of records lie in rows of one matrix."""

  def __init__(self, value_type: tff.Type):
    """As for `FlatLayout`, of tensors with a first axis of any length."""
    super().__init__(tff.to_type(tff.types.structure_from_tensor_type_tree(
        lambda one: tff.TensorType(one.dtype, one.shape[1:]), value_type)))

  def flatten(self, value) -> tf.Tensor:
    """Concatenates tensors with a first axis of records to rows; float32 [records, size]."""
    leaves = tf.nest.flatten(value)
    return tf.concat([tf.reshape(tf.cast(x, tf.float32), [tf.shape(x)[0], size])
                      for x, size in zip(leaves, self._sizes)], axis=1)


class RecordSumFactory(client_sum.ClientSumFactory):
  """Sums structures whose tensors have a first axis of records, over silos.

  Formal guarantees. Neighbouring inputs differ in one record of one silo, which is added
  or removed; let each record be in the value of its silo with probability q,
  independently and known to the silo alone.

  * One call of `next` is a Poisson sample at rate q of the mechanism of the inner factory
    (its L1 and L2 sensitivities, its noise): an integer vector of a bounded norm is
    there, or is not. So it holds against whoever sees results, the server and other
    silos included, at the amplified number, with the noise that their own shares leave:
    of the variance mu / h of all shares c silos of S leave mu / h - c mu / (h S).
  * Nothing is guaranteed against the silo that holds the record.
  * How many records a silo sends must not be told by other means, such as time.
  * Otherwise as of the inner factory, whose cohort is the silos.

  Attributes:
    inner: Of a sum over silos (`DistributedSumParams.over_silos`), with clip and noise.
  """

  of_one_vector = False

  def __init__(self, inner: client_sum.ClientSumFactory):
    super().__init__(bits=inner.bits, diagnostics=inner.diagnostics,
                     simulation_seed=inner.simulation_seed)
    self.inner, self.closed, self.dimension = inner, inner.closed, inner.dimension

  @property
  def generator(self):
    return self.inner.generator

  def layout(self, value_type: tff.Type) -> VectorsLayout:
    layout = VectorsLayout(value_type)
    self.check_dimension(layout.size)
    return layout

  def initial_state(self):
    return self.inner.initial_state()

  def set_cohort_size(self, state, cohort_size: int):
    return self.inner.set_cohort_size(state, cohort_size)

  def zero(self, dimension: int) -> tf.Tensor:
    return self.inner.zero(dimension)

  @property
  def native_params(self) -> DistributedSumParams | None:
    """Parameters with which kernels compute `bare_sum`; None if they can't."""
    return self.inner.native_bare_params

  def vector_keys(self, key: tf.Tensor, first, end) -> tf.Tensor:
    """In graph: the keys of vectors, int64[end - first, 2], from that of their silo."""
    return tf.ensure_shape(self.generator.children(
        self.generator.derive(key, _VECTORS), first, end), [None, 2])

  def bare_sum(self, vectors, own_keys, state):
    return self.inner.bare_sum(vectors, own_keys, state)

  def with_share(self, total: tf.Tensor, key: tf.Tensor, state) -> tf.Tensor:
    """In graph: what a silo sends, from the result of `bare_sum` and its key."""
    share, _ = self.inner.contribute(
        tf.zeros([self.dimension or total.shape[0]]),
        self.generator.derive(key, _SHARE), state)
    return self.add(share, tf.tile(total, [share.shape[0] // total.shape[0]]))

  def contribute(self, vectors, key, state):
    """In graph: what a silo sends, and the sums of its vectors' diagnostics.

    Args:
      vectors: float32 [records, dimension], model units.
      key: int64[2], of this silo and round alone.
      state: The state of the sum, as `shared`.
    """
    total, measured = self.bare_sum(
        vectors, self.vector_keys(key, 0, tf.shape(vectors)[0]), state)
    return self.with_share(total, key, state), measured

  def release(self, state, total, num_reporting, key):
    return self.inner.release(state, total, num_reporting, key)
