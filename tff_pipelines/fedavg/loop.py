"""Rounds of a federated process: sample, read, run, evaluate."""

import collections
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import hashlib
import itertools
import math
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tasks import task as task_lib
from tasks.task import Task
from tff_pipelines.accounting.sampling import schemes
from tff_pipelines.audit import training as audit_lib
from tff_pipelines.experiment import failures, rounds as rounds_lib
from tff_pipelines.fedavg import evaluation, process as process_lib
from tff_pipelines.simulation import (
    contexts, failures as computations, values as values_lib)


# Ids travel behind a mark, so that no id is the text that stands for a bad client.
_GOOD, _BAD = '=', ''
# So many clients, the first of the population and not of a cohort, are read before the
# first round, and trained after a failure: what is broken for everyone is an error.
_TRIED = 3


def reads_by_id(task: Task) -> bool:
  """Whether clients of a task travel as ids and are read where they train.

  Not if bad clients are to be skipped: the driver finds them sooner.
  """
  return task_lib.reader_in_graph(task.train) is not None and not task.skips.enabled


def reader_in_graph(task: Task) -> Callable[[tf.Tensor], Mapping[str, tf.Tensor]]:
  """The function by which graphs read clients; of a bad one it returns no examples."""
  read = task_lib.reader_in_graph(task.train)
  return lambda sent: _or_nothing(
      task, tf.equal(sent, _BAD), lambda: read(tf.strings.substr(sent, len(_GOOD), -1)))


def converter_in_graph(task: Task) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
  """The function by which graphs convert what is stored; of nothing no examples."""
  convert = task_lib.reader_in_graph(task.train).convert
  return lambda stored: _or_nothing(
      task, tf.equal(tf.shape(next(iter(stored.values())))[0], 0),
      lambda: convert(stored))


def _or_nothing(task: Task, is_bad: tf.Tensor, examples: Callable) -> Mapping[str, Any]:
  return tf.cond(
      is_bad, lambda: {name: tf.zeros((0, *shape), dtype)
                       for name, (dtype, shape) in task.train.element_spec.items()},
      lambda: tf.nest.map_structure(tf.convert_to_tensor, dict(examples())))


@dataclasses.dataclass(frozen=True)
class ClientReader:
  """Reads the values of clients in a round.

  A client whose data are bad participates without examples: its update is zero, and
  its share of the noise is there. An error would tell everyone that it was sampled, and
  were it missing the round could be suppressed, which would tell of its data. So it is
  whatever the reader raises, or the training, which may be of a task of the user's own;
  what all of the population's first clients raise too, as of a file that is gone, ends
  the run. A client that was found bad is not read again.

  Attributes:
    simulation_seed: Seed of the clients' keys; None for none.
    by_id: Whether clients travel as ids, and are read by `reader_in_graph`.
    on_bad: Called once with each client that is found bad, for the operator.
    skips: Whether those that can't be read have no examples, and do not end the run.
    in_turn: (id, examples, round) -> the examples that have a turn in it.
    bad: Ids of the clients that were found bad.
  """

  task: Task
  simulation_seed: int | None
  by_id: bool = False
  on_bad: failures.OnBad = lambda client_id, error: None
  skips: bool = True
  in_turn: Callable[[str, task_lib.Examples, int], task_lib.Examples] = (
      lambda client_id, examples, index: examples)
  bad: set[str] = dataclasses.field(default_factory=set)

  @property
  def _only_workers_read(self) -> bool:
    return self.by_id and task_lib.is_roster(self.task.train)

  def check_some(self) -> None:
    """Raises the first error if none of the population's first clients can be read.

    Of a roster whose clients travel as ids, workers have proved that they can.
    """
    if self._only_workers_read:
      return
    tried = [self._tried(client) for client in self.task.train.client_ids[:_TRIED]]
    if tried and all(isinstance(result, Exception) for result in tried):
      raise tried[0]

  def read(self, client: int, round_index: int):
    """A client's value, of `process.client_type` if its examples fit their spec.

    The client is an index; rounds count from 1.
    """
    client_id = self.task.train.client_ids[client]
    value = collections.OrderedDict()
    if self.by_id:
      value['client_id'] = _BAD if client_id in self.bad else _GOOD + client_id
    else:
      value['examples'] = collections.OrderedDict(sorted(self.in_turn(
          client_id, self._examples(client), round_index).items()))
    if self.simulation_seed is not None:
      value['key'] = contexts.client_key(self.simulation_seed, round_index, client)
    return value

  def stored(self, chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    """A chunk with what is stored of its clients in place of their ids."""
    chunk = dict(chunk)
    ids = chunk.pop('client_ids')
    arrays, found = task_lib.reader_in_graph(self.task.train).stored(
        [client_id[len(_GOOD):] for client_id in ids if client_id != _BAD])
    lengths = np.zeros(len(ids), np.int32)
    lengths[ids != _BAD] = found
    return collections.OrderedDict(
        examples=collections.OrderedDict(sorted(arrays.items())), lengths=lengths, **chunk)

  def first(self) -> list[int]:
    """Indices of the population's first clients, without those that are bad."""
    good = (i for i, client_id in enumerate(self.task.train.client_ids)
            if client_id not in self.bad)
    return list(itertools.islice(good, _TRIED))

  def mark(self, client: int, error: Exception) -> None:
    """Marks a client, by its index, as bad."""
    client_id = self.task.train.client_ids[client]
    if client_id not in self.bad:
      self.bad.add(client_id)
      self.on_bad(client_id, error)

  def find_bad(self, clients: Sequence[int]) -> None:
    """Marks clients that can't be read, where graphs read them and say less of why."""
    if self.by_id and not self._only_workers_read:
      for client in clients:
        self._examples(client)

  def _examples(self, client: int) -> task_lib.Examples:
    """The examples of a client; of one whose data are bad, none."""
    source = self.task.train
    client_id = source.client_ids[client]
    if client_id not in self.bad:
      result = self._tried(client_id)
      if isinstance(result, MemoryError):  # Which may have been short for a moment.
        result = self._tried(client_id)
      if not isinstance(result, Exception):
        return result
      if not self.skips:
        raise result
      if not isinstance(result, task_lib.BadClientError):
        self.check_some()  # Here no traceback has the error of this client.
      self.mark(client, result)
    return {name: np.zeros((0, *shape), dtype)
            for name, (dtype, shape) in source.element_spec.items()}

  def _tried(self, client_id: str) -> task_lib.Examples | Exception:
    """The examples of a client, or what reading it raised."""
    try:
      examples = self.task.train.examples(client_id)
      if len(set(map(len, examples.values()))) != 1:
        # In a chunk they would shift those of other clients.
        raise task_lib.BadClientError('features differ in their number of examples')
      return examples
    except Exception as error:  # pylint: disable=broad-exception-caught
      return error


def _reporting(selected: np.ndarray, dropout_rate: float, round_index: int,
               simulation_seed: int | None) -> np.ndarray:
  """The selected clients that report; each drops out independently."""
  if dropout_rate == 0 or not len(selected):
    return selected
  if simulation_seed is not None:
    # A seed of its own: who drops out must not follow from who was selected.
    digest = hashlib.sha256(f'dropout {simulation_seed}'.encode()).digest()
    simulation_seed = int.from_bytes(digest[:8], 'big')
  return selected[schemes.Poisson(
      population=len(selected), cohort_size=(1 - dropout_rate) * len(selected),
      simulation_seed=simulation_seed).sample(round_index)]


@dataclasses.dataclass(eq=False)
class FedAvgRounds(rounds_lib.Rounds):
  """The rounds of a federated process.

  The state is a dictionary of the process's own and of the sampling scheme's; with a
  validation set also of the best of the evaluated models, by the loss on that set.

  Attributes:
    process: Built by `fedavg.process`, or with the same state and results.
    task: Clients, and held-out examples to evaluate the released weights on.
    scheme: Samples the clients; its seed is that of the run.
    rounds: Number of rounds of the whole run, >= 1.
    rounds_per_evaluation: Rounds between evaluations, >= 1.
    dropout_rate: Fraction of the selected clients that do not report, in [0, 1).
    clients_per_call: Clients in a chunk, >= 1; None only for processes of tests.
    by_id, on_bad: As of `ClientReader`.
    stored: Whether ids become what is stored, which the process converts by
      `converter_in_graph`, on the threads that compute in this process.
    unit_is_client: Whether the privacy unit is a client. Then one whose data make
      the training fail participates without examples. Else it ends the run: a client
      that lacks all of its records would tell more of one of them than its clip.
    in_turn: As of `ClientReader`.
    set_cohort_size: (state of the process, number of selected clients) -> state.
    audit: The audit of the task's canaries, whose process shows its sums; None
      without canaries.
  """

  process: tff.templates.IterativeProcess
  _: dataclasses.KW_ONLY
  task: Task
  scheme: schemes.SamplingScheme
  rounds: int
  rounds_per_evaluation: int = 1
  dropout_rate: float = 0.0
  clients_per_call: int | None = None
  by_id: bool = False
  stored: bool = False
  on_bad: failures.OnBad = lambda client_id, error: None
  unit_is_client: bool = True
  in_turn: Callable[[str, task_lib.Examples, int], task_lib.Examples] = (
      lambda client_id, examples, index: examples)
  set_cohort_size: Callable[[Any, int], Any] = lambda state, _: state
  audit: audit_lib.Audit | None = None

  # `set_cohort_size` sets it before each round.
  derived = ('noise_table',)

  def __post_init__(self):
    self.count = self.rounds
    self._reader = ClientReader(
        self.task, self.scheme.simulation_seed, self.by_id, self.on_bad,
        self.unit_is_client, self.in_turn)
    self._evaluator = evaluation.Evaluator(self.task.model, self.task.held_out)
    self._validates = task_lib.VALIDATION in self.task.held_out
    self._results: dict[str, dict[str, float]] = {}
    self._results_are_latest = False

  def initial_state(self, resumed: bool) -> dict[str, Any]:
    self._reader.check_some()
    state = {'process': self.process.initialize(), 'scheme': self.scheme.state()}
    if self._validates:
      state['best'] = {'weights': list(state['process']['weights']),
                       'loss': np.float64(np.inf), 'round': np.int64(0)}
    if self.audit is not None:
      state['canaries'] = self.audit.initial_state(state['process']['weights'])
    return state

  def step(self, state: dict[str, Any], index: int) -> rounds_lib.Step:
    scheme = self.scheme
    scheme.restore(state['scheme'])
    selected = scheme.sample(index)
    reporting = _reporting(selected, self.dropout_rate, index, scheme.simulation_seed)
    output = self._computed(
        self.set_cohort_size(state['process'], len(selected)), reporting.tolist(),
        index)
    metrics, suppressed = _measured(output['metrics'])
    after = {**state, 'scheme': scheme.state()}
    if self.audit is not None:
      after['canaries'] = self.audit.observed(
          state['canaries'], output['metrics']['sum'], reporting)
    # Checkpoints must not tell how many clients participated.
    new = self.set_cohort_size(output['state'], round(scheme.expected_cohort))
    if not all(np.all(np.isfinite(w)) for w in new['weights']):
      # The failure reveals the release, so the round counts. Its model is of no use,
      # and stays as it was; what sums keep of the rounds before moves on: rows in which
      # an earlier round counted with its next weight must not have it again.
      after['process'] = collections.OrderedDict(
          state['process'], aggregator=new['aggregator'])
      return rounds_lib.Step(state=after, suppressed=suppressed, failure=(
          f'the model is not finite after round {index}, which counts but was not '
          'kept: lower --server_learning_rate or --client_learning_rate'))
    after['process'] = new
    self._results_are_latest = (
        index % self.rounds_per_evaluation == 0 or index == self.count)
    if self._results_are_latest:
      self._results = self._evaluator.evaluate(new['weights'])
      metrics.update({f'{name}/{key}': value for name, values in self._results.items()
                      for key, value in values.items()})
      if self._validates:
        loss = self._results[task_lib.VALIDATION]['loss']
        if loss < state['best']['loss']:
          after['best'] = {'weights': list(new['weights']), 'loss': np.float64(loss),
                           'round': np.int64(index)}
    return rounds_lib.Step(state=after, metrics=metrics, suppressed=suppressed)

  def _computed(self, state: Any, clients: Sequence[int], index: int) -> Any:
    """The process's output for these clients, and for what is bad of their data none.

    Raises ComputationError if an error is of no single client.
    """
    def compute(clients: Sequence[int]) -> Any:
      values = [self._reader.read(client, index) for client in clients]

      def output():
        chunks = process_lib.grouped(values, self.clients_per_call)
        if self.stored:  # Read on the threads that compute.
          chunks = [values_lib.Deferred(functools.partial(self._reader.stored, chunk))
                    for chunk in chunks]
        return self.process.next(state, chunks)

      return computations.called(output)

    try:
      return compute(clients)
    except computations.ComputationError:
      # Nothing was released. Errors of graphs name neither the file nor the client.
      if not self.unit_is_client:
        raise
    self._reader.find_bad(clients)
    try:
      return failures.without_bad(
          compute, clients, first=self._reader.first, mark=self._reader.mark)
    except computations.ComputationError:
      self._reader.check_some()  # Names a file that is gone.
      raise

  def shown(self) -> Mapping[str, str]:
    if not self._results:
      return {}
    headline = self.task.model.headline
    return {headline: f'{next(iter(self._results.values()))[headline]:.4f}'}

  def model(self, state: dict[str, Any]) -> list[np.ndarray]:
    """Weights of the model that a run ends with: the best, else the last."""
    return list(state.get('best', state['process'])['weights'])

  def results(self, state: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Metrics of `model` in a state that `step` returned last, or that was restored."""
    if self._validates or not self._results_are_latest:
      return self._evaluator.evaluate(self.model(state))
    return self._results

  def breakdown(self, state: dict[str, Any]) -> dict[str, dict[str, np.ndarray]]:
    """The counts of `evaluation.Evaluator.breakdown` for `model` in a state."""
    return self._evaluator.breakdown(self.model(state))


def _measured(metrics) -> tuple[dict[str, float], bool]:
  """Public measurements and diagnostics, and whether the round was suppressed."""
  public, raw = metrics['aggregator'], {}
  if 'diagnostics' in public:
    raw = {'num_reporting': public['diagnostics']['num_reporting'],
           **public['diagnostics']['totals']}
    public = public.get('public', {})
  if 'training' in metrics:
    loss, seen = (float(metrics['training'][name]) for name in ('loss', 'examples'))
    raw['training_loss'] = loss / seen if seen else math.nan
  measured = {f'{kind}/{name}': float(value) for kind, values in (
      ('public', dict(public)), ('diagnostics', raw)) for name, value in values.items()}
  if 'measured' in metrics:
    for path, value in tree.flatten_with_path(metrics['measured']):
      if np.ndim(value) == 0:
        measured['/'.join(['diagnostics', *map(str, path)])] = float(value)
  return measured, bool(measured.pop('public/suppressed', False))
