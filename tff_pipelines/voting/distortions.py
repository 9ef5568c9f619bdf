"""Random distortions of images, under which a digit stays a digit. Pure, by keys.

Images are float32 [batch, size, size, 1], ink near 1 on 0.
"""

import tensorflow as tf

from aggregators import keys

# Nodes a side of the grid of elastic displacements.
_NODES = 5


def _between(key: tf.Tensor, shape, most: float) -> tf.Tensor:
  """Uniform in [-most, most)."""
  return (2.0 * keys.uniform(key, shape) - 1.0) * most


def affine(images: tf.Tensor, key: tf.Tensor, *, turn: float, log_scale: float,
           shear: float, shift: float) -> tf.Tensor:
  """Each image turned (radians), scaled by axis, sheared and shifted (pixels).

  By random amounts up to these, about the centre.
  """
  batch, size = tf.shape(images)[0], images.shape[1]

  def draw(index, most):
    return _between(keys.derive(key, index), [batch], most)

  angle, lean = draw(0, turn), draw(1, shear)
  across, along = tf.exp(draw(2, log_scale)), tf.exp(draw(3, log_scale))
  cos, sin = tf.cos(angle), tf.sin(angle)
  a, b = across * (cos - lean * sin), -across * sin
  c, d = along * (sin + lean * cos), along * cos
  centre = (size - 1) / 2
  x = centre - (a + b) * centre + draw(4, shift)
  y = centre - (c + d) * centre + draw(5, shift)
  zero = tf.zeros_like(a)
  return tf.raw_ops.ImageProjectiveTransformV3(
      images=images, transforms=tf.stack([a, b, x, c, d, y, zero, zero], axis=1),
      output_shape=[size, size], fill_value=0.0, interpolation='BILINEAR',
      fill_mode='CONSTANT')


def elastic(images: tf.Tensor, key: tf.Tensor, stddev: float) -> tf.Tensor:
  """Each image bent by smooth random displacements of `stddev` pixels."""
  batch, size = tf.shape(images)[0], images.shape[1]
  coarse = stddev * tf.random.stateless_normal(
      [batch, _NODES, _NODES, 2], seed=key, alg='philox')
  moved = tf.image.resize(coarse, [size, size], 'bicubic')
  line = tf.range(size, dtype=tf.float32)
  grid = tf.stack(tf.meshgrid(line, line, indexing='ij'), axis=-1)
  positions = tf.clip_by_value(grid + moved, 0.0, size - 1.001)
  corner = tf.floor(positions)
  rest = tf.reshape(positions - corner, [batch, size * size, 2])
  corner = tf.cast(corner, tf.int32)
  index = tf.reshape(corner[..., 0] * size + corner[..., 1], [batch, -1])
  flat = tf.reshape(images, [batch, size * size])
  down, right = rest[..., 0], rest[..., 1]

  def at(offset):
    return tf.gather(flat, index + offset, batch_dims=1)

  upper = at(0) * (1 - right) + at(1) * right
  lower = at(size) * (1 - right) + at(size + 1) * right
  return tf.reshape(upper * (1 - down) + lower * down, [batch, size, size, 1])


def thickness(images: tf.Tensor, key: tf.Tensor, most: float) -> tf.Tensor:
  """Each image blended with its dilation, or its erosion, by up to most / 2."""
  amount = _between(key, [tf.shape(images)[0], 1, 1, 1], most) / 2
  wide = tf.nn.max_pool2d(images, 3, 1, 'SAME')
  thin = -tf.nn.max_pool2d(-images, 3, 1, 'SAME')
  return tf.where(amount > 0, images + amount * (wide - images),
                  images - amount * (thin - images))


def strong(images: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
  """All distortions, to the edge of what stays recognisable."""
  pixel = images.shape[1] / 28
  images = affine(images, keys.derive(key, 0), turn=0.35, log_scale=0.2,
                  shear=0.3, shift=2.0 * pixel)
  images = elastic(images, keys.derive(key, 1), 1.2 * pixel)
  return thickness(images, keys.derive(key, 2), 1.0)


def weak(images: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
  pixel = images.shape[1] / 28
  return affine(images, key, turn=0.12, log_scale=0.06, shear=0.1, shift=1.0 * pixel)
