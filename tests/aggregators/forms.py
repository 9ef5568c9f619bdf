"""The kernels in place of the graph form, for tests that both must pass."""

import collections
import sys

import numpy as np
import tensorflow as tf

from aggregators import distributed_sum, noisy_rounding
from aggregators.native import encoding, noising

_ALL_BITS = 32  # int32 as they are.
# Functions that serialized graphs call: TensorFlow does not keep them alive.
_called = []


def _in_graph(run, arguments, types):
  _called.append(run)
  return tf.numpy_function(run, arguments, types)


def noisy_round(vector, key, l2_bound_squared, noise, bits, *, factor=1.0,
                squared_norm=None, closed=False, compiled=True):
  """`noisy_rounding.noisy_round` by the kernels, in graphs too."""
  assert not closed, 'rows are compared as whole encodings'
  del compiled  # They always are.
  tables = isinstance(noise, noisy_rounding.TableNoise)
  if not tables:
    assert noise.sample is None, 'kernels draw from tables'
  none = np.zeros(0, np.int64)

  def run(vector, key, packed, tie, more_draws, factor):
    out = np.zeros(vector.size, np.int32)
    norm = float(np.sum(vector.astype(np.float64)**2)) if (
        squared_norm is None) else float(squared_norm)
    retries, fell_back = noising.add_noisy_round(
        vector.copy(), np.float32(factor), norm, tuple(key.view(np.uint64)),
        int(l2_bound_squared),
        (int(tables and more_draws + 1), encoding.read_only(packed),
         encoding.read_only(tie)),
        _ALL_BITS if bits is None else bits, out, out[:0])
    return out, np.int32(retries), bool(fell_back)

  values, retries, fell_back = _in_graph(
      run, [tf.cast(vector, tf.float32), tf.cast(key, tf.int64),
            noise.packed if tables else none, noise.tie if tables else none,
            noise.more_draws if tables else 0, factor],
      [tf.int32, tf.int32, tf.bool])
  return noisy_rounding.Rounded(
      tf.ensure_shape(values, [vector.shape[0]]), tf.ensure_shape(retries, []),
      tf.ensure_shape(fell_back, []))


def encode(vector, key, rotation_key, cohort_size, params, table=None, clip=None):
  """`distributed_sum.encode` by the kernels, in graphs too."""
  assert clip is None, 'kernels take the clip of the parameters'
  names = list(table or {})

  def run(vector, key, rotation_key, cohort_size, *leaves):
    state = dict(zip([f'noise_table/{name}' for name in names], leaves),
                 rotation_key=rotation_key, cohort_size=cohort_size)
    total = encoding.EncodedSum.of(params, state)
    assert total is not None, 'kernels draw from tables'
    total.add(vector[np.newaxis], key[np.newaxis])
    return total.total, *map(np.int32, total.diagnostics)

  values, *diagnostics = _in_graph(
      run, [tf.cast(vector, tf.float32), tf.cast(key, tf.int64),
            tf.cast(rotation_key, tf.int64), cohort_size,
            *(table[name] for name in names)],
      [tf.int32] * (1 + len(encoding.DIAGNOSTICS)))
  return distributed_sum.Encoded(
      tf.ensure_shape(values, [params.sent_dimension]), collections.OrderedDict(
          (name, tf.ensure_shape(value, []))
          for name, value in zip(encoding.DIAGNOSTICS, diagnostics)))


def use_kernels(monkeypatch) -> None:
  """Replaces the graph form by the kernels until the test ends."""
  monkeypatch.setattr(sys.modules[__name__], '_called', [])
  monkeypatch.setattr(noisy_rounding, 'noisy_round', noisy_round)
  monkeypatch.setattr(distributed_sum, 'encode', encode)
