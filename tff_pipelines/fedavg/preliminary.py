"""Draws a release before the first round, such as a vocabulary.

The sums of all clients get exact discrete Gaussian noise from a key of the operating
system. **The noise of that release is added here.**
"""

import numpy as np
import tensorflow as tf

from aggregators import discrete_gaussian, structures
from tasks.task import Preliminary, Task
from tff_pipelines.accounting.events import base
from tff_pipelines.accounting.guarantees import release_noise

# A purpose of the simulation seed; the aggregator's is 0.
_PURPOSE = 2


@tf.function(autograph=False)
def _noise(key: tf.Tensor, size: int, variance: float) -> tf.Tensor:
  return discrete_gaussian.sample(key, [size], variance)


def noise(seed: int | None, purpose: int, size: int, variance: float) -> np.ndarray:
  """Discrete Gaussian noise, int64 [size], of a variance in [0, 2^52].

  Each release has a purpose of the simulation seed; without a seed the operating
  system's randomness is used.
  """
  return _noise(structures.initial_key(seed, purpose), size, variance).numpy()


def draw(needed: Preliminary, event: base.Event, seed: int | None) -> Task:
  """Draws the release that a task needs and completes the task.

  Args:
    needed: Sums of the clients' integers; keys of `event.items` per client.
    event: Event of the release, which was charged: ValueError for another one.
    seed: As for `noise`.
  """
  release = release_noise.release_of(event)
  totals = needed.totals()
  if (needed.items != release.items or needed.l2_sensitivity > release.l2_sensitivity
      or len(totals) > release.dimension):
    raise ValueError('the release is not the one that was charged')
  names = sorted(totals)
  noisy = np.array([totals[name] for name in names], np.int64) + noise(
      seed, _PURPOSE, len(names), release.noise_variance)
  least = -np.inf if release.threshold is None else release.threshold
  return needed.complete({
      name: int(value) for name, value in zip(names, noisy) if value >= least})
