"""Types of models and of what they take; without TensorFlow."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

# A structure of arrays or tensors that share their first dimension, the number
# of examples. Keys are feature names; 'y' is the label.
Examples = Mapping[str, Any]
Weights = Sequence[Any]
# Feature name -> (NumPy dtype, shape of one example).
Spec = Mapping[str, tuple[np.dtype, tuple[int, ...]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Breakdown:
  """The counts of a model's predictions by class, for the report.

  Attributes:
    kind: A class, in the singular: 'digit', 'word'.
    names: The names of the classes.
    count: (weights, batch, mask) -> mapping of float32 counts over the rows that
      count; either 'confusion' [classes, classes], a row for each true class and a
      column for each predicted one, or the vectors [classes] of 'occurred',
      'right' and 'predicted'.
    groups: Name of a group -> indices of its classes; may be empty.
    guesses: Classes that are predicted at a time: one of them must be the true one.
  """

  kind: str
  names: Sequence[str]
  count: Callable[[Weights, Examples, Any], Mapping[str, Any]]
  groups: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
  guesses: int = 1
