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
class Breakdown:
  """How a model's predictions divide over classes, for the report.

  Attributes:
    kind: What a class is, in the singular: 'digit', 'word'.
    names: Of the classes.
    count: (weights, batch, mask) -> mapping of float32 counts over the rows that
      count; either 'confusion' [classes, classes], a row for what is true and a
      column for what was predicted, or the vectors [classes] of 'occurred',
      'right' and 'predicted'.
    groups: Name of a group -> numbers of its classes; may be empty.
    guesses: Classes that are guessed at a time: what is 'right' is among them.
  """

  kind: str
  names: Sequence[str]
  count: Callable[[Weights, Examples, Any], Mapping[str, Any]]
  groups: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
  guesses: int = 1


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
    headline: The metric that heads the report and is drawn.
    breakdown: How predictions divide over classes; None if they don't.
    evaluation_batch: Examples that one evaluation call may hold in memory.
  """

  name: str
  initial_weights: Callable[[int], list[np.ndarray]]
  loss: Callable[[Weights, Examples, Any], Any]
  metrics: Callable[[Weights, Examples, Any], Mapping[str, tuple[Any, Any]]]
  headline: str = 'accuracy'
  breakdown: Breakdown | None = None
  evaluation_batch: int = 512

  def parameter_count(self) -> int:
    return sum(int(w.size) for w in self.initial_weights(0))


class Note(str):
  """A sentence that a reader of results must know about the data.

  Attributes:
    name: The same in a few words, at most 40 characters.
  """

  name: str

  def __new__(cls, name: str, text: str) -> 'Note':
    note = super().__new__(cls, text)
    note.name = name
    return note


class BadClientError(ValueError):
  """One client's data are bad; the message says where, which field and why."""


class Skips:
  """What to do about bad clients: raise at the first, or skip and count them.

  Attributes:
    enabled: Whether to skip.
    clients: Client id -> why it was skipped.
    records: Why records were skipped that can't be said to be any client's.
  """

  def __init__(self, enabled: bool = False):
    self.enabled = enabled
    self.clients: dict[str, str] = {}
    self.records: list[str] = []

  def client(self, client_id: str, error: Exception) -> None:
    """Notes a bad client, or raises the error where nothing is skipped."""
    if not self.enabled:
      raise error
    self.clients.setdefault(client_id, str(error))

  def record(self, error: Exception) -> None:
    """Notes a record of nobody, or raises the error where nothing is skipped."""
    if not self.enabled:
      raise error
    self.records.append(str(error))

  def describe(self) -> str | None:
    """One line that counts what was skipped; None if nothing was."""
    if not self.clients and not self.records:
      return None
    first = next(iter(self.clients.values()), None) or self.records[0]
    return (f'skipped {len(self.clients)} bad clients and {len(self.records)} bad '
            'records of no known client, which is outside the guarantee; the first: '
            f'{first}')


class ClientSource(Protocol):
  """Examples by client, each client read lazily.

  A source may also have `where(client_id)`, a str that names file and client in
  messages, and `read_in_graph`; see `reader_in_graph`.

  Attributes:
    client_ids: The population, in a fixed order.
    element_spec: feature name -> (NumPy dtype, shape of one example).
  """

  client_ids: Sequence[str]
  element_spec: Mapping[str, tuple[np.dtype, tuple[int, ...]]]

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    """All examples of a client; arrays share their first dimension.

    Raises:
      BadClientError: If the client's data are bad.
      ValueError: If there is no such client.
    """


def reader_in_graph(
    source: ClientSource) -> Callable[[Any], Mapping[str, Any]] | None:
  """How a graph reads a client of this source by itself, if it can.

  Returns:
    A pure TensorFlow function of a client id, a scalar string tensor, to the
    tensors of what `examples` returns (texts as UTF-8 strings), wherever the
    graph runs, as long as the source's file is there. None if the examples must
    be sent.
  """
  return getattr(source, 'read_in_graph', None)


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
    test_of_files: Whether 'test' and label_counts are of the user's files; else
      they are of data that ship, which are public.
    skips: What to do about clients whose data are bad, and their count so far.
    label_counts: int64 [clients, classes], how often each client has each label.
      Of simulated clients only, because it may be drawn: of real ones it is
      private.
    files: Name -> text of what the task was made with and a run must keep, such
      as a vocabulary; part of what identifies the data.
    warnings: Notes about the data.
  """

  name: str
  model: Model
  train: ClientSource
  held_out: Mapping[str, Examples]
  privacy_unit: str
  test_of_files: bool = False
  skips: Skips = dataclasses.field(default_factory=Skips)
  label_counts: np.ndarray | None = None
  files: Mapping[str, str] = dataclasses.field(default_factory=dict)
  warnings: Sequence[Note] = ()
