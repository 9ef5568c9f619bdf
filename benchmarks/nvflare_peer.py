"""NVFlare's homomorphic sum of vectors, in its own environment, with TenSEAL.

  .venv-nvflare/bin/python -m pip install tenseal
  .venv-nvflare/bin/python benchmarks/nvflare_peer.py

Prints, for numbers of coordinates and four sites, the seconds in which a site encrypts,
the server adds and a site decrypts, and the bytes that a site sends, as NVFlare's
`HEModelEncryptor` and its aggregator do it with the parameters of its provisioning.
"""

import json
import time

import numpy as np
import tenseal

# The defaults of nvflare.lighter.impl.he.HEBuilder.
_DEGREE, _BITS, _SCALE, _SITES = 8192, [60, 40, 40], 40, 4


def measured(dimension: int) -> dict[str, float]:
  context = tenseal.context(
      tenseal.SCHEME_TYPE.CKKS, poly_modulus_degree=_DEGREE, coeff_mod_bit_sizes=_BITS)
  context.global_scale = 2**_SCALE
  vectors = np.random.default_rng(1).normal(0, 0.1, (_SITES, dimension))
  sent, seconds = [], []
  for vector in vectors:
    start = time.process_time()
    sent.append(tenseal.ckks_vector(context, vector).serialize())
    seconds.append(time.process_time() - start)
  start = time.process_time()
  total = tenseal.ckks_vector_from(context, sent[0])
  for content in sent[1:]:
    total += tenseal.ckks_vector_from(context, content)
  added = time.process_time() - start
  start = time.process_time()
  found = np.array(total.decrypt())
  opened = time.process_time() - start
  return {'coordinates': dimension, 'site encrypts, s': float(np.median(seconds)),
          'server adds, s': added, 'site decrypts, s': opened, 'bytes': len(sent[0]),
          'error': float(np.max(np.abs(found - vectors.sum(axis=0))))}


if __name__ == '__main__':
  for size in (22, 2**16, 2**20):
    print(json.dumps(measured(size)), flush=True)
