"""What a learning task is: a model, clients' data, held-out data, metrics.

Everything that a client computes is a pure TensorFlow function of explicit
arguments, randomness included, so that the same client can be mapped by TFF or
trained inside one graph call with many others, and gives the same numbers.
"""

import dataclasses
from typing import Any, Callable, Mapping, Protocol, Sequence

import numpy as np

# A structure of arrays or tensors that share their first dimension, the number
# of examples. Keys are feature names; 'y' is the label.
Examples = Mapping[str, Any]
Weights = Sequence[Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
  """A model as pure functions of a flat list of float32 weights.

  Attributes:
    name: As given to --model.
    initial_weights: seed (int) -> list of float32 NumPy arrays.
    loss: (weights, batch, seed) -> float32 [batch], one loss per example.
      `batch` is an Examples of tensors; `seed` an int64[2] tensor that all
      randomness (dropout) derives from, or None for inference.
    metrics: (weights, batch, mask) -> mapping of metric name to a pair of
      float32 scalars (sum, weight); the metric over a set is the ratio of the
      totals. `mask` is float32 [batch], 0 for padding that must not count.
      'accuracy' and 'loss' are always there.
  """

  name: str
  initial_weights: Callable[[int], list[np.ndarray]]
  loss: Callable[[Weights, Examples, Any], Any]
  metrics: Callable[[Weights, Examples, Any], Mapping[str, tuple[Any, Any]]]

  def parameter_count(self) -> int:
    return sum(int(w.size) for w in self.initial_weights(0))


class ClientSource(Protocol):
  """Examples by client, each client read lazily.

  Attributes:
    client_ids: The population, in a fixed order.
    element_spec: feature name -> (NumPy dtype, shape of one example).
  """

  client_ids: Sequence[str]
  element_spec: Mapping[str, tuple[np.dtype, tuple[int, ...]]]

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    """All examples of a client; arrays share their first dimension."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
  """A learning task.

  Attributes:
    name: As given to --task.
    model: The model.
    train: The training population.
    held_out: name of a held-out set -> its examples. The first one is the set
      whose accuracy heads the report. 'test_clients' are clients that are not
      in the population, 'test_examples' further examples of clients that are,
      'test' examples of clients that are not known or only simulated.
    privacy_unit: What one client is, for the report.
  """

  name: str
  model: Model
  train: ClientSource
  held_out: Mapping[str, Examples]
  privacy_unit: str
