"""A long short-term memory layer as a pure function, with its own gradient.

Equal to tf.keras.layers.LSTM without a mask. TensorFlow's own gradient of a loop
over time adds a matrix as large as the weights at every step; here the parts of all
steps are one product after the loop, and so is the input's projection before it. On a
client's few rows those additions take most of the time.
"""

from typing import Any

import numpy as np
import tensorflow as tf

# Maximum number of steps in the body of a loop: enough that the loop itself costs
# little, and few enough that the graph stays small and is built fast.
_MAX_UNROLLED = 10


def initial_weights(kernel: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
  """Initial weights of a layer as in Keras, from its input kernel.

  Args:
    kernel: float32 [inputs, 4 * units].
    rng: Consumed by the recurrent kernel, which is orthogonal.

  Returns:
    Kernel, recurrent kernel [units, 4 * units] and bias [4 * units], which is 1 for
    the forget gate; in the order of Keras: input, forget, cell, output.
  """
  units = kernel.shape[1] // 4
  square, triangle = np.linalg.qr(rng.standard_normal([4 * units, units]))
  # With these signs the distribution does not depend on the library's choice of them.
  recurrent = (square * np.sign(np.diag(triangle))).T
  bias = np.repeat(np.array([0, 1, 0, 0], np.float32), units)
  return [kernel, recurrent.astype(np.float32), bias]


def lstm(x: tf.Tensor, kernel: Any, recurrent: Any, bias: Any) -> tf.Tensor:
  """Computes the layer's outputs at all steps, from a state of zeros.

  Args:
    x: float32 [batch, steps, inputs]; steps and inputs are known.
    kernel: float32 [inputs, 4 * units].
    recurrent: float32 [units, 4 * units].
    bias: float32 [4 * units].

  Returns:
    float32 [batch, steps, units]. Differentiable once, in all arguments.
  """
  steps, inputs = x.shape[1], x.shape[2]
  units = recurrent.shape[0]
  unrolled = max(n for n in range(1, _MAX_UNROLLED + 1) if steps % n == 0)

  @tf.custom_gradient
  def layer(x, kernel, recurrent, bias):
    rows = tf.reshape(tf.transpose(x, [1, 0, 2]), [-1, inputs])
    projected = _by_step(tf.matmul(rows, kernel) + bias, steps)
    start = tf.zeros([tf.shape(x)[0], units])

    def forward(t, h, c, gates, cells, outputs):
      for step in range(unrolled):
        z = projected[t + step] + tf.matmul(h, recurrent)
        i, f, g, o = tf.split(z, 4, axis=1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        h = tf.sigmoid(o) * tf.tanh(c)
        gates = gates.write(t + step, z)
        cells = cells.write(t + step, c)
        outputs = outputs.write(t + step, h)
      return t + unrolled, h, c, gates, cells, outputs

    *_, gates, cells, outputs = tf.while_loop(
        lambda t, *_: t < steps, forward,
        (tf.constant(0), start, start, _array(steps, 4 * units),
         _array(steps, units), _array(steps, units)), parallel_iterations=1)
    gates, cells, outputs = gates.stack(), cells.stack(), outputs.stack()

    def gradient(upstream):
      upstream = tf.transpose(upstream, [1, 0, 2])
      before = lambda states: tf.concat([start[tf.newaxis], states[:-1]], axis=0)
      i, f, g, o = tf.split(gates, 4, axis=2)
      i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
      tanh_c = tf.tanh(cells)
      # Factors of the chain rule, for all steps at once.
      h_to_c = o * (1.0 - tanh_c * tanh_c)
      to_gates = tf.concat(
          [g * i * (1.0 - i), before(cells) * f * (1.0 - f), i * (1.0 - g * g),
           tanh_c * o * (1.0 - o)], axis=2)
      recurrent_transposed = tf.transpose(recurrent)

      def backward(t, dh, dc, d_gates):
        for step in range(unrolled):
          now = t - step
          dh += upstream[now]
          dc += dh * h_to_c[now]
          dz = tf.concat([dc, dc, dc, dh], axis=1) * to_gates[now]
          d_gates = d_gates.write(now, dz)
          dh = tf.matmul(dz, recurrent_transposed)
          dc *= f[now]
        return t - unrolled, dh, dc, d_gates

      *_, d_gates = tf.while_loop(
          lambda t, *_: t >= 0, backward,
          (tf.constant(steps - 1), start, start, _array(steps, 4 * units)),
          parallel_iterations=1)
      dz = tf.reshape(d_gates.stack(), [-1, 4 * units])
      dx = _by_step(tf.matmul(dz, kernel, transpose_b=True), steps)
      return (tf.transpose(dx, [1, 0, 2]),
              tf.matmul(rows, dz, transpose_a=True),
              tf.matmul(tf.reshape(before(outputs), [-1, units]), dz,
                        transpose_a=True),
              tf.reduce_sum(dz, axis=0))

    return tf.transpose(outputs, [1, 0, 2]), gradient

  return layer(*map(tf.convert_to_tensor, (x, kernel, recurrent, bias)))


def _array(steps: int, width: int) -> tf.TensorArray:
  return tf.TensorArray(tf.float32, steps, element_shape=[None, width])


def _by_step(rows: tf.Tensor, steps: int) -> tf.Tensor:
  """[steps * batch, width] to [steps, batch, width]."""
  return tf.reshape(rows, [steps, -1, rows.shape[1]])
