"""Bytes of a client's upload by its dimension, and tails of rotated coordinates.

  python -m benchmarks.upload [--quick] [--figure=docs/figures/upload.png]

First: an upload of 16-bit coordinates for 10^3 to 10^7 parameters, over one that is not
padded: ours, by Hadamard orders of 12, 20 and 28 times powers of two and products of two,
and TFF's, by powers of two alone.

Then, for an order of each kind near the same power of two: the fraction of rotated
coordinates beyond t standard deviations, over many keys, of vectors that are hard to
flatten; the maximum over them. Rounding, clipping to the modulus and the bound of the
norm rest on that tail, whose bound 2 exp(-t^2 / 2) is the same for all orders.
"""

import argparse
from collections.abc import Sequence
import math

import numpy as np
import tensorflow as tf

from aggregators import hadamard, rotation

# Orders of one, of two and of no factor, between 2^13 and 2^15.
ORDERS = (2**14, 12 * 2**10, 20 * 2**9, 28 * 2**9, 144 * 2**6, 240 * 2**6, 400 * 2**5,
          560 * 2**4, 784 * 2**4)
TAILS = (2.0, 3.0, 4.0, 4.5)


def lengths(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Dimensions, padded lengths of ours, and of TFF's; int64 each."""
  dimensions = np.unique(np.geomspace(1e3, 1e7, count).astype(np.int64))
  return (dimensions, np.array([hadamard.padded(int(d)) for d in dimensions]),
          1 << np.ceil(np.log2(dimensions)).astype(np.int64))


def hard(dim: int) -> dict[str, np.ndarray]:
  """Vectors that are far from flat, or rows of the transform; float32 [dim]."""
  basis = np.zeros(dim, np.float32)
  basis[5] = 1
  few = np.zeros(dim, np.float32)
  few[::dim // 7] = np.arange(1, len(few[::dim // 7]) + 1)
  return {'one coordinate': basis, 'some coordinates': few,
          'all equal': np.ones(dim, np.float32),
          'decaying': (0.999**np.arange(dim)).astype(np.float32),
          'a row': rotation.transformed(tf.constant(basis)).numpy()}


def tails(dim: int, keys: int) -> dict[float, float]:
  """Maximum over the vectors of the fraction of coordinates beyond each t."""
  beyond = {t: 0.0 for t in TAILS}
  rotate = tf.function(rotation.rotate, autograph=False)
  for vector in hard(dim).values():
    unit = tf.constant(vector / np.linalg.norm(vector))
    sizes = np.abs([rotate(unit, tf.constant([i, 3], tf.int64), 'hadamard').numpy()
                    for i in range(keys)])
    for t in TAILS:
      beyond[t] = max(beyond[t], float(np.mean(sizes * math.sqrt(dim) > t)))
  return beyond


def draw(path: str, count: int) -> None:
  """Draws the sizes of uploads."""
  import matplotlib  # pylint: disable=g-import-not-at-top
  matplotlib.use('agg')
  from matplotlib import pyplot  # pylint: disable=g-import-not-at-top
  dimensions, ours, theirs = lengths(count)
  figure, axes = pyplot.subplots(figsize=(7, 3.5), layout='constrained')
  axes.plot(dimensions, theirs / dimensions, label='TFF: powers of two', color='0.6')
  axes.plot(dimensions, ours / dimensions, label='ours: also 12, 20 and 28 times them')
  axes.set(xscale='log', ylim=(1.0, 2.4), xlabel='parameters', ylabel='upload over one without padding')
  axes.legend()
  figure.savefig(path, dpi=120)
  pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
  parser.add_argument('--quick', action='store_true', help='small, to see it run')
  parser.add_argument('--figure', help='PNG file to be written')
  args = parser.parse_args(arguments)
  count, keys = (50, 4) if args.quick else (4000, 400)
  dimensions, ours, theirs = lengths(count)
  for name, padded in (('ours', ours), ('TFF', theirs)):
    ratios = padded / dimensions
    print(f'{name}: at most {ratios.max():.3f}, on average {ratios.mean():.3f} times the '
          'upload without padding')
  print('\nparameters     ours, kB at 16 bits      TFF')
  for dimension in (1_000, 7_346, 10_000, 27_366, 820_522, 1_018_174, 5_000_500):
    length = hadamard.padded(dimension)
    print(f'{dimension:>10,} {length / 500:>12,.1f} = {hadamard.name(length):<12}'
          f'{2**math.ceil(math.log2(dimension)) / 500:>9,.1f}')
  print('\norder            ' + ''.join(f'beyond {t:g}  ' for t in TAILS))
  print('bound            ' + ''.join(f'{2 * math.exp(-t * t / 2):<10.2g}' for t in TAILS))
  for dim in ORDERS:
    found = tails(dim, keys)
    print(f'{hadamard.name(dim):<17}' + ''.join(f'{found[t]:<10.2g}' for t in TAILS),
          flush=True)
  if args.figure:
    draw(args.figure, count)


if __name__ == '__main__':
  main()
