"""A learning task: a model, clients' data, held-out data, metrics.

Everything that a client computes is a pure TensorFlow function of explicit
arguments, randomness included, so that the same client can be mapped by TFF or
trained inside one graph call with many others, with the same numbers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
from typing import Any, Protocol

import numpy as np

from tasks.models.types import Breakdown, Examples, Spec, Weights
from tff_pipelines.common import caveats

# Name of the held-out set that chooses among the models of a run: public.
VALIDATION = 'validation'
# Raw field that names the person of a record, and feature that tells persons apart.
PERSON = 'person'


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
      'loss' is always there, and so is 'accuracy' where there are classes.
    headline: The metric that heads the report and is plotted.
    fractions: Names of metrics in [0, 1] of any examples, for --private_evaluation;
      those that the model has not are left out.
    breakdown: The counts of predictions by class; None without classes.
    evaluation_batch: Examples that one evaluation call may hold in memory.
    predict: (weights, batch without the label 'y') -> mapping of the name of an output
      to a tensor whose first dimension is the batch: 'class' and 'probabilities' of a
      classifier, 'value' of a regression. None if the model can't be exported.
    in_units: Labels 'y' of a regression [n], as the model is trained on them -> in the
      units of 'value'.
    weight_names: Name of each array of the weights, in their order: 'layer/kernel'.
      Empty for 'weight_000', 'weight_001' and so on.
    to_keras: weights -> a Keras model with these weights; None if there is none.
  """

  name: str
  initial_weights: Callable[[int], list[np.ndarray]]
  loss: Callable[[Weights, Examples, Any], Any]
  metrics: Callable[[Weights, Examples, Any], Mapping[str, tuple[Any, Any]]]
  headline: str = 'accuracy'
  fractions: Sequence[str] = ('accuracy',)
  breakdown: Breakdown | None = None
  evaluation_batch: int = 512
  predict: Callable[[Weights, Examples], Mapping[str, Any]] | None = None
  in_units: Callable[[np.ndarray], np.ndarray] = lambda y: y
  weight_names: Sequence[str] = ()
  to_keras: Callable[[Weights], Any] | None = None

  def parameter_count(self) -> int:
    return sum(int(w.size) for w in self.initial_weights(0))

  def named(self, weights: Weights) -> dict[str, np.ndarray]:
    """Name -> array of the weights, in their order.

    Raises ValueError if `weight_names` has another number of names.
    """
    names = self.weight_names or [f'weight_{i:03}' for i in range(len(weights))]
    if len(set(names)) != len(weights):
      raise ValueError(f'model {self.name}: weight_names must be {len(weights)} '
                       f'different names, found {len(set(names))}')
    return {name: np.asarray(array) for name, array in zip(names, weights)}

  @classmethod
  def from_keras(cls, build_fn: Callable[[], Any], loss: Any,
                 metrics: Sequence[Any] = (), **attributes: Any) -> 'Model':
    """Builds a model from a Keras network.

    Args:
      build_fn: () -> a new tf.keras.Model that begins with tf.keras.Input and has one
        output. It trains on the feature of the examples that is not 'y', or, with
        several inputs, on those of their names. Layers that keep something between
        batches are refused; weights that are not trainable stay as they are. Random
        layers, such as dropout, draw from the client's key.
      loss: A Keras loss, its name, or a function of labels 'y' and outputs with a
        value for each example, or for each of its positions, which are averaged.
      metrics: Names of Keras' functions, or functions like the loss, in addition to
        the loss and, where that is a cross-entropy, the accuracy. A function that
        gives a pair of such values is the ratio of their totals.
      **attributes: `name`, 'keras' by default; `headline`, the metric that heads the
        report; `class_names`, of which the report then counts mistakes.

    Raises ValueError if the network can't be trained so; it names the layer and says
    what to use instead.
    """
    # It imports TensorFlow, as below.
    from tasks.models import keras  # pylint: disable=g-import-not-at-top
    return cls(**keras.attributes(build_fn, loss, metrics, **attributes))

  @classmethod
  def from_functional(cls, functional: Any, metrics: Sequence[Any] = (),
                      **attributes: Any) -> 'Model':
    """Builds a model from a tff.learning.models.FunctionalModel.

    Args:
      functional: Its loss of a batch of one example is that example's loss. Its own
        metrics, which have state, are not used; weights that are not trainable stay
        as they are.
      metrics: As in `from_keras`.
      **attributes: As in `from_keras`; and `classes`, whether the outputs are logits
        of classes, of which labels are the indices.

    Raises ValueError if it keeps state, or draws random numbers, when it is called.
    """
    # pylint: disable-next=g-import-not-at-top
    from tasks.models import functional as functional_lib
    return cls(**functional_lib.attributes(functional, metrics, **attributes))


# A caveat about the data, for readers of results.
Note = caveats.Caveat


class BadClientError(ValueError):
  """One client's data are bad; the message says where, which field and why."""


class DamagedDataError(ValueError):
  """A file of the data set itself is damaged; the message names it, and no client.

  It is a fault of the operator's machine, and of no client's data: `skip_bad_clients`
  does not skip it. Found where a data set is opened, or where all clients are read, it
  ends the program: that is the same whoever would be sampled. Found where one client of
  a cohort is read, it must not: the end would tell that a client with damaged examples
  was sampled, with probability 0 if that client were not in the population. Then the
  client participates without examples, as one with bad data does, and the error is for
  the operator alone.
  """


class Skips:
  """The treatment of bad clients: raise the first, or, if `enabled`, skip and count.

  `clients` maps a client id to why it was skipped; `records` are the reasons why
  records of unknown clients were: the first 1000 different ones, and one for the rest.
  """

  _MAX_REASONS = 1000
  _ANOTHER = 'another bad record'

  def __init__(self, enabled: bool = False):
    self.enabled = enabled
    self.clients: dict[str, str] = {}
    self.records: list[str] = []

  def client(self, client_id: str | None, error: Exception) -> None:
    """Skips a bad client, or a record of an unknown one (None), or raises the error."""
    if not self.enabled:
      raise error
    if client_id is None:
      self.records.append(str(error) if len(self.records) < self._MAX_REASONS else
                          self._ANOTHER)
    else:
      self.clients.setdefault(client_id, str(error))

  def examples(self, source: 'ClientSource') -> Iterator[tuple[str, dict]]:
    """Yields the clients of a source that are not bad, and their examples."""
    for client_id in source.client_ids:
      try:
        examples = source.examples(client_id)
      except BadClientError as error:
        self.client(client_id, error)
      else:
        yield client_id, examples

  def items(self) -> list[tuple[str | None, str]]:
    """(client, message) of all that were skipped; None for an unknown client."""
    return [*self.clients.items(), *((None, message) for message in self.records)]

  def describe(self) -> str | None:
    """One line that counts what was skipped; None if nothing was."""
    if not self.items():
      return None
    return (f'skipped {len(self.clients)} bad clients and {len(self.records)} bad '
            'records of no known client, which is outside the guarantee; the first: '
            f'{self.items()[0][1]}')


class ClientSource(Protocol):
  """Examples by client, each client read lazily.

  A source may also have `where(client_id)`, a str that names file and client in
  messages, `read_in_graph`, see `reader_in_graph`, `skips`, how bad clients of it
  are treated, and, if other processes read it, `data_proof` and `is_roster`.

  Attributes:
    client_ids: The population, in a fixed order.
    element_spec: feature name -> (NumPy dtype, shape of one example).
  """

  client_ids: Sequence[str]
  element_spec: Mapping[str, tuple[np.dtype, tuple[int, ...]]]

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    """All examples of a client; arrays share their first dimension.

    Raises BadClientError if its data are bad, DamagedDataError if the file in which
    they are is damaged, ValueError if there is no such client.
    """


@dataclasses.dataclass(frozen=True, eq=False)
class ReaderInGraph:
  """Reads a client in a graph.

  A call is a pure TensorFlow function of a client id, a scalar string tensor, to the
  tensors of the result of `examples` (texts as UTF-8 strings), wherever the graph runs,
  as long as the source's file is there.

  Attributes:
    read: The same function, to what is stored.
    spec: feature name -> (NumPy dtype, shape of one), of what is stored.
    stored: Outside graphs: client ids -> (arrays of what is stored of all of them, one
      after the other; their numbers of examples). Raises ValueError or TensorFlow's
      errors if any can't be read; `examples` says which.
    convert: In a graph: what is stored of a client -> its examples.
  """

  read: Callable[[Any], Mapping[str, Any]]
  spec: Mapping[str, tuple[np.dtype, tuple[int, ...]]]
  stored: Callable[[Sequence[str]], tuple[Mapping[str, np.ndarray], list[int]]]
  convert: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda stored: stored

  def __call__(self, client_id: Any) -> Mapping[str, Any]:
    return self.convert(self.read(client_id))


def reader_in_graph(source: ClientSource) -> ReaderInGraph | None:
  """The reader of this source; None if the examples must be sent."""
  return getattr(source, 'read_in_graph', None)


def data_proof(source: ClientSource) -> Any | None:
  """A description of the source's file, by which a worker proves that it has the same.

  An object with `name` and `digest`, as sqlite.FileProof, that can be pickled; None if
  the source has none.
  """
  return getattr(source, 'data_proof', None)


def is_roster(source: ClientSource) -> bool:
  """Whether a source has ids only, and examples are read where clients train."""
  return getattr(source, 'is_roster', False)


# Opens files for a model that is trained already: (labelled, **options) -> all clients
# of these files, whose examples are converted as those of the training were. With
# `labelled`, the examples have the label 'y'; without, they have none, and the files
# need none. The options are data_source, data_path and further ones of that source;
# what is not given is as it was in the training, if the source is the same. A reader
# may have the keyword `in_order`: whether the source is to be a further.RowsInOrder,
# where a record of a file is one example, and no copy of the files is to be kept.
Reader = Callable[..., ClientSource]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawColumns:
  """The encoding of a table's columns as a part of the model.

  Attributes:
    dtypes: Name of a column -> 'float64', NaN where missing, or 'string', '' where
      missing.
    encode: Name of a column -> tensor [batch] -> the features of the model, by name. A
      pure TensorFlow function; calls with what the run refuses fail.
    scales: Factors of the features before the first layer and of the outputs after the
      last one.
  """

  dtypes: Mapping[str, str]
  encode: Callable[[Mapping[str, Any]], Examples]
  scales: tuple[float, float] = (1.0, 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Serving:
  """Everything that the use of a trained model takes, except the training data.

  `inputs` are the features of examples without the label 'y', `raw` the columns that
  they are encoded from, if they are those of a table; see Task for the others.
  """

  model: Model
  inputs: Spec
  raw: RawColumns | None = None
  reader: Reader | None = None
  files: Mapping[str, str] = dataclasses.field(default_factory=dict)
  not_private: Sequence[Note] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preliminary:
  """A release with noise that a task needs before the first round.

  The task that has it is complete except for what is released: its model, clients and
  held-out sets have the right sizes.

  Attributes:
    file: Name of the file in which the run keeps the release.
    totals: () -> key -> the sum of all clients' integers, without noise: private. Keys
      are texts or tuples of texts.
    l2_sensitivity: L2 norm of the integers that one client adds, at most.
    items: Maximum number of keys to which a client adds, each by 1, where keys are
      private, too; 0 where they are public.
    dimension: Number of keys; None where they are private.
    complete: Key -> noisy sum, of all keys or, where they are private, of those at or
      above a threshold -> the complete task, which has the file among its `files`.
  """

  file: str
  totals: Callable[[], Mapping[Any, int]]
  l2_sensitivity: float
  items: int = 0
  dimension: int | None = None
  complete: Callable[[Mapping[Any, int]], 'Task']


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
      'test' examples of clients that are not known or only simulated, and
      'validation' public examples of a file of their own.
    held_out_of_clients: Held-out examples of clients of the population, by client, as
      'test_examples' has them but all of them: what a client has must not depend on
      others. None if there are none, or it is not known whose they are.
    privacy_unit: The meaning of one client, for the report.
    test_of_files: Whether 'test' and label_counts are of the user's files; else
      they are of data that ship, which are public.
    skips: The treatment of clients whose data are bad, and their count so far.
    label_counts: int64 [clients, classes], how often each client has each label.
      Of simulated clients only, because a figure may show it: of real ones it is private.
    files: Name -> text of the files that the task was built with and a run must
      keep, such as a vocabulary; they identify the data, too.
    noised_files: Names of those files that were released with noise. They do not
      identify the data: a run draws them itself.
    preliminary: Release that the task needs before the first round; None for none.
    warnings: Notes about the data.
    plan_lines: Label, of at most ten characters, and text of lines about the data in
      the plan; what is public only.
    reader: Opens further files for the trained model; None if there are none to open.
    not_private: Reasons why the trained model reveals more than its guarantee says,
      such as a vocabulary that was counted in private texts.
  """

  name: str
  model: Model
  train: ClientSource
  held_out: Mapping[str, Examples]
  held_out_of_clients: ClientSource | None = None
  privacy_unit: str
  test_of_files: bool = False
  skips: Skips = dataclasses.field(default_factory=Skips)
  label_counts: np.ndarray | None = None
  files: Mapping[str, str] = dataclasses.field(default_factory=dict)
  noised_files: Sequence[str] = ()
  preliminary: Preliminary | None = None
  warnings: Sequence[Note] = ()
  plan_lines: Sequence[tuple[str, str]] = ()
  reader: Reader | None = None
  not_private: Sequence[Note] = ()

  @property
  def serving(self) -> Serving:
    """Everything that the use of the trained model takes."""
    return Serving(
        model=self.model, reader=self.reader, files=self.files,
        not_private=self.not_private, inputs={
            name: spec for name, spec in self.train.element_spec.items()
            if name not in ('y', PERSON)})
