"""Clients' vectors for distributed mean estimation (arXiv 2110.04995, 5.1).

They follow from a seed; NumPy only. Nothing is learned, so this is not one of the
registry's tasks.
"""

import numpy as np

from tasks import checks

# sphere: each client's vector uniform on the sphere, as in the paper. identical: one
# such vector for all clients, the case for which the modulus is sized.
VECTORS = ('sphere', 'identical')


def clients(*, num_clients: int, dimension: int, radius: float, seed: int,
            repeat: int = 0, vectors: str = 'sphere') -> np.ndarray:
  """The vectors of all clients, float32 [num_clients, dimension].

  Their L2 norm is `radius`, model units, finite and > 0. `vectors` is one of VECTORS.
  The same `seed` >= 0 and arguments give the same vectors; another `repeat` >= 0 gives
  another, independent data set. Raises ValueError if an argument is out of range.
  """
  checks.integer('n', num_clients, 1)
  checks.integer('d', dimension, 1)
  checks.integer('data_seed', seed, 0)
  checks.integer('repeat', repeat, 0)
  checks.finite('radius', radius)
  checks.choice('vectors', vectors, VECTORS)
  rng = np.random.default_rng(
      [seed, num_clients, dimension, repeat, VECTORS.index(vectors)])
  result = rng.standard_normal([num_clients if vectors == 'sphere' else 1, dimension])
  result *= radius / np.linalg.norm(result, axis=1, keepdims=True)
  return np.broadcast_to(result.astype(np.float32), [num_clients, dimension])
