"""Rounds of a federated process: sample, run, commit, evaluate."""

import collections
import dataclasses
import hashlib
import math
from typing import Callable

import numpy as np
import tensorflow_federated as tff
import tqdm

from tasks import task as task_lib
from tasks.task import Task
from tff_pipelines.privacy_plan import PrivacyPlan, describe_epsilon
from tff_pipelines.simulation import chunked
from tff_pipelines.simulation import cohorts
from tff_pipelines.simulation import evaluation
from tff_pipelines.simulation import records as records_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopConfig:
  """Attributes: rounds >= 1; rounds_per_evaluation >= 1; dropout_rate in [0, 1),
  the part of the clients that were told to take part and do not answer;
  clients_per_call >= 1, more than 1 for a process of `simulation.chunked`; by_id,
  whether the process reads the clients itself."""

  rounds: int
  rounds_per_evaluation: int = 1
  dropout_rate: float = 0.0
  clients_per_call: int = 1
  by_id: bool = False


def reads_by_id(task: Task) -> bool:
  """Whether clients of a task travel as ids and are read where they train.

  Not if bad clients are to be skipped: the driver must find them first.
  """
  return (task_lib.reader_in_graph(task.train) is not None
          and not task.skips.enabled)


class ClientReader:
  """Makes what a client brings into a round."""

  def __init__(self, task: Task, simulation_seed: int | None, by_id: bool = False):
    """Initializes the reader; see LoopConfig for by_id."""
    self._task = task
    self._seed = simulation_seed
    self._by_id = by_id

  def read(self, client: int, round_number: int):
    """An OrderedDict of type `algorithms.fedavg.client_type` for a client's index.

    Raises:
      tasks.task.BadClientError: If its data are bad.
    """
    source = self._task.train
    client_id = source.client_ids[client]
    if self._by_id:
      return self._value(client, round_number, client_id)
    return self._value(client, round_number, source.examples(client_id))

  def _value(self, client: int, round_number: int, data: str | task_lib.Examples):
    value = collections.OrderedDict()
    if self._by_id:
      value['client_id'] = data
    else:
      value['examples'] = collections.OrderedDict(sorted(data.items()))
    if self._seed is not None:
      value['key'] = cohorts.client_key(self._seed, round_number, client)
    return value

  def _nothing(self) -> task_lib.Examples:
    """What a source returns for a client without examples."""
    return {name: np.zeros((0, *shape), dtype)
            for name, (dtype, shape) in self._task.train.element_spec.items()}

  def read_all(self, clients: np.ndarray, round_number: int,
               clients_per_call: int) -> list:
    """What the process takes: clients, or chunks of them of nearly equal size.

    A client whose data are bad, and to be skipped, takes part without examples: its
    update is zero, and its share of the noise is there. Were it missing, the round
    could be withheld, and that would tell of its data.
    """
    values = []
    for client in clients:
      try:
        values.append(self.read(int(client), round_number))
      except task_lib.BadClientError as error:
        self._task.skips.client(self._task.train.client_ids[client], error)
        values.append(self._value(int(client), round_number, self._nothing()))
    if clients_per_call == 1:
      return values
    chunks = -(-len(values) // clients_per_call)
    starts = [len(values) * i // max(1, chunks) for i in range(chunks + 1)]
    return [chunked.make_chunk(values[start:end])
            for start, end in zip(starts, starts[1:])]

  def check(self, clients: np.ndarray) -> None:
    """Raises BadClientError if one of the clients is bad, where graphs read them.

    Their errors have neither the file nor the client.
    """
    if self._by_id:
      for client in clients:
        self._task.train.examples(self._task.train.client_ids[client])


def _survivors(told: np.ndarray, dropout_rate: float, round_number: int,
               simulation_seed: int | None) -> np.ndarray:
  """The told clients that answer; each drops out by itself."""
  if dropout_rate == 0 or not len(told):
    return told
  if simulation_seed is not None:
    # A seed of its own: who drops out must not follow from who was drawn.
    digest = hashlib.sha256(f'dropout {simulation_seed}'.encode()).digest()
    simulation_seed = int.from_bytes(digest[:8], 'big')
  sampler = cohorts.CohortSampler(
      sampling='poisson', population=len(told),
      cohort_size=(1 - dropout_rate) * len(told),
      simulation_seed=simulation_seed)
  return told[sampler.sample(round_number)]


def run(process: tff.templates.IterativeProcess,
        tell_cohort_size: Callable, task: Task, plan: PrivacyPlan,
        records: records_lib.RunRecords, config: LoopConfig,
        on_round: Callable[[int, dict], None] | None = None,
        on_end: Callable[[evaluation.Evaluator, list], None] | None = None) -> dict:
  """Runs the rounds that are not yet committed.

  Args:
    process: Built by `algorithms.fedavg`.
    tell_cohort_size: (state, clients that are told to take part) -> state.
    task: Clients and held-out examples.
    plan: Sampler and accounting.
    records: The folder of the run.
    config: Number of rounds and evaluation.
    on_round: Called with the round and its metrics after it is committed.
    on_end: Called with the evaluator and the last round's weights.

  Returns:
    Metrics of the last round's model: held-out set -> metric -> value.

  Raises:
    ValueError: If the model stops being finite, or a client's data are bad and not
      to be skipped.
  """
  evaluator = evaluation.Evaluator(task.model, task.held_out)
  request = plan.request
  reader = ClientReader(task, plan.simulation_seed, config.by_id)
  guarantee = plan.guarantee(config.rounds) if plan.is_private else None
  state, done = records.restore(
      process.initialize(),
      dict(population=request.population, delta=request.delta,
           adjacency=guarantee.adjacency if guarantee else None,
           trust_model=request.family.trust_model,
           seeded=plan.simulation_seed is not None,
           deviation_per_round=plan.deviation_per_round,
           warnings=plan.warnings(config.rounds) + list(task.warnings)))
  headline = evaluator.sets[0]
  results = evaluator.evaluate(state['weights'])
  epsilon_name = epsilon_key(plan)
  progress = tqdm.tqdm(
      total=config.rounds, initial=done, unit='round', dynamic_ncols=True,
      mininterval=1.0)
  with progress:
    for rounds in range(done + 1, config.rounds + 1):
      told = plan.sampler.sample(rounds)
      present = _survivors(
          told, config.dropout_rate, rounds, plan.simulation_seed)
      clients = reader.read_all(present, rounds, config.clients_per_call)
      try:
        output = process.next(tell_cohort_size(state, len(told)), clients)
      except Exception:
        reader.check(present)
        raise
      # Checkpoints must not tell how many took part.
      previous, state = state, tell_cohort_size(
          output['state'], round(request.cohort_size))
      public, diagnostics, withheld = _split_metrics(output['metrics'])
      if not _is_finite(state['weights']):
        # The failure tells of the release, so the round counts; its model is
        # of no use, so the state stays as it was.
        records.commit(previous, rounds, plan.round_event, withheld=withheld,
                       metrics={epsilon_name: plan.epsilon(rounds)})
        raise ValueError(
            f'the model is not finite after round {rounds}, which counts but was '
            'not kept: lower --server_learning_rate or --client_learning_rate')
      metrics = {epsilon_name: plan.epsilon(rounds), **public, **diagnostics}
      if (rounds % config.rounds_per_evaluation == 0 or
          rounds == config.rounds):
        results = evaluator.evaluate(state['weights'])
        for name, values in results.items():
          metrics.update({f'{name}/{key}': value for key, value in values.items()})
      records.commit(
          state, rounds, plan.round_event, withheld=withheld, metrics=metrics)
      progress.set_postfix(
          {task.model.headline: f'{results[headline][task.model.headline]:.4f}'},
          **{epsilon_name: describe_epsilon(metrics[epsilon_name])}, refresh=False)
      progress.update()
      if on_round is not None:
        on_round(rounds, metrics)
  if on_end is not None:
    on_end(evaluator, list(state['weights']))
  return results


def epsilon_key(plan: PrivacyPlan) -> str:
  """The name of epsilon in a run's metrics; a seeded run has none."""
  return 'epsilon' if plan.simulation_seed is None else 'epsilon_if_unseeded'


def _is_finite(weights) -> bool:
  return all(np.all(np.isfinite(w)) for w in weights)


def _split_metrics(metrics) -> tuple[dict, dict, bool]:
  """Public measurements, diagnostics, and whether the round was withheld."""
  measured = metrics['aggregator']
  raw = {}
  if 'diagnostics' in measured:
    raw['survivors'] = float(measured['diagnostics']['survivors'])
    raw.update({k: float(v) for k, v in measured['diagnostics']['totals'].items()})
    measured = measured.get('public', {})
  if 'training' in metrics:
    seen = float(metrics['training']['examples'])
    raw['training_loss'] = (
        float(metrics['training']['loss']) / seen if seen else math.nan)
  public = dict(measured) if measured else {}
  withheld = bool(public.pop('withheld', False))
  return ({f'public/{k}': float(v) for k, v in public.items()},
          {f'diagnostics/{k}': v for k, v in raw.items()}, withheld)
