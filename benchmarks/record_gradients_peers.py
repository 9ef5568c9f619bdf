"""Steps of DP-SGD by Opacus and jax_privacy, as peers of benchmarks/record_gradients.py.

  python benchmarks/record_gradients_peers.py opacus|jax

Runs in the peer's own Python. Reads lines from standard input. The first is JSON: model
(a key of LAYERS), batch, threads, steps, and the peer's own form: `mode` of Opacus,
`microbatch` of jax_privacy, None for none. Every further line asks for so many steps,
which are answered by their seconds. A step clips the gradient of each record to 1, adds
them up, adds Gaussian noise and moves the weights.
"""

from collections.abc import Callable, Mapping
from importlib import metadata
import json
import os
import sys
import time
from typing import Any

import numpy as np

# Hidden layers: kernel side, filters, pool of a convolution; or units of a dense layer.
LAYERS = {'softmax': (), 'cnn_small': ((7, 8, 2), (4, 24, 2)),
          'cnn': ((3, 32, 2), (3, 64, 1), 128)}
CLASSES = {'softmax': 10, 'cnn_small': 10, 'cnn': 62}
SIDE, CLIP, NOISE_MULTIPLIER, LEARNING_RATE = 28, 1.0, 1.0, 1e-3


def examples(setting: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
  """Images float32 [batch, 28, 28] and classes int64 [batch]."""
  rng, batch = np.random.default_rng(0), setting['batch']
  return (rng.random((batch, SIDE, SIDE), np.float32),
          rng.integers(0, CLASSES[setting['model']], batch))


def opacus(setting: Mapping[str, Any]) -> tuple[int, Callable[[], None]]:
  """The number of parameters, and a function that takes a step.

  Per-record gradients by hooks, functorch or ExpandedWeights (ew); `ghost` clips by norms
  alone and backpropagates twice.
  """
  # pylint: disable=g-import-not-at-top
  from opacus import grad_sample, optimizers
  from opacus.utils import fast_gradient_clipping_utils as fast
  import torch
  from torch import nn
  # pylint: enable=g-import-not-at-top
  torch.set_num_threads(setting['threads'])
  modules, shape = [], (1, SIDE)
  for layer in (*LAYERS[setting['model']], CLASSES[setting['model']]):
    if isinstance(layer, tuple):
      size, filters, pool = layer
      modules += [nn.Conv2d(shape[0], filters, size),
                  *[nn.MaxPool2d(pool)] * (pool > 1), nn.ReLU()]
      shape = filters, (shape[1] - size + 1) // pool
      continue
    modules += [*[nn.Flatten()] * (len(shape) > 1),
                nn.Linear(shape[0] * (shape[1]**2 if len(shape) > 1 else 1), layer),
                nn.ReLU()]
    shape = (layer,)
  mode, batch = setting['mode'], setting['batch']
  ghost, sizes = mode == 'ghost', dict(max_grad_norm=CLIP) if mode == 'ghost' else {}
  network = grad_sample.wrap_model(
      nn.Sequential(*modules[:-1]), grad_sample_mode=mode, **sizes)
  optimizer = (optimizers.DPOptimizerFastGradientClipping if ghost else
               optimizers.DPOptimizer)(
                   torch.optim.SGD(network.parameters(), lr=LEARNING_RATE),
                   noise_multiplier=NOISE_MULTIPLIER, max_grad_norm=CLIP,
                   expected_batch_size=batch)
  loss = nn.CrossEntropyLoss()
  if ghost:
    loss = fast.DPLossFastGradientClipping(network, optimizer, loss)
  x, y = map(torch.from_numpy, examples(setting))
  x = x[:, None]

  def run():
    optimizer.zero_grad()
    loss(network(x), y).backward()
    optimizer.step()

  return sum(p.numel() for p in network.parameters()), run


def jax(setting: Mapping[str, Any]) -> tuple[int, Callable[[], None]]:
  """The number of parameters, and a function that takes a compiled step."""
  # pylint: disable=g-import-not-at-top, redefined-outer-name
  if setting['threads'] == 1:  # Read when the first computation starts.
    os.environ |= {'NPROC': '1', 'XLA_FLAGS': '--xla_cpu_multi_thread_eigen=false'}
  import jax
  import jax.numpy as jnp
  import jax_privacy
  from jax_privacy import noise_addition
  # pylint: enable=g-import-not-at-top, redefined-outer-name
  rng, weights, shape = np.random.default_rng(0), [], (SIDE, SIDE, 1)
  hidden = LAYERS[setting['model']]
  for layer in (*hidden, CLASSES[setting['model']]):
    if isinstance(layer, tuple):
      size, filters, pool = layer
      kernel = (size, size, shape[-1], filters)
      shape = (*((side - size + 1) // pool for side in shape[:2]), filters)
    else:
      kernel = (int(np.prod(shape)), layer)
      shape = (layer,)
    limit = (6 / (np.prod(kernel[:-2]) * sum(kernel[-2:])))**0.5
    weights += [(jnp.asarray(rng.uniform(-limit, limit, kernel), jnp.float32),
                 jnp.zeros(kernel[-1]))]

  def loss(weights, x, y):
    x = x[None, ..., None]
    for layer, (kernel, bias) in zip(hidden, weights):
      if isinstance(layer, tuple):
        x = bias + jax.lax.conv_general_dilated(
            x, kernel, (1, 1), 'VALID', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))
        if (pool := layer[2]) > 1:  # Faster than `lax.reduce_window` and its gradient.
          batch, height, width, channels = x.shape
          height, width = height // pool, width // pool
          x = x[:, :height * pool, :width * pool].reshape(
              batch, height, pool, width, pool, channels).max((2, 4))
      else:  # Of a vector: the gradient is an outer product.
        x = x.reshape(-1) @ kernel + bias
      x = jax.nn.relu(x)
    kernel, bias = weights[-1]
    return -jax.nn.log_softmax(x.reshape(-1) @ kernel + bias)[y]

  gradient = jax_privacy.clipped_grad(
      loss, l2_clip_norm=CLIP, batch_argnums=(1, 2), keep_batch_dim=False,
      normalize_by=setting['batch'], microbatch_size=setting['microbatch'])
  noise = noise_addition.gaussian_privatizer(
      stddev=NOISE_MULTIPLIER * CLIP / setting['batch'], prng_key=jax.random.key(0))
  x, y = map(jnp.asarray, examples(setting))

  @jax.jit
  def step(weights, state, x, y):
    mean, state = noise.update(gradient(weights, x, y), state)
    return jax.tree.map(lambda w, g: w - LEARNING_RATE * g, weights, mean), state

  state = noise.init(weights)

  def run():
    nonlocal weights, state
    weights, state = jax.block_until_ready(step(weights, state, x, y))

  return sum(w.size for w in jax.tree.leaves(weights)), run


# Functions that build a step, and the packages whose versions count.
PEERS = {'opacus': (opacus, ('opacus', 'torch')), 'jax': (jax, ('jax_privacy', 'jax'))}


def main() -> None:
  build, packages = PEERS[sys.argv[1]]
  parameters, run = build(json.loads(next(sys.stdin)))
  print(json.dumps(dict(parameters=parameters, versions={
      name: metadata.version(name) for name in packages})), flush=True)
  for line in sys.stdin:
    start = time.perf_counter()
    for _ in range(int(line)):
      run()
    print(time.perf_counter() - start, flush=True)


if __name__ == '__main__':
  main()
