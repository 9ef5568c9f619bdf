"""A run of FedMD: parties, their subsets, the rounds, one folder."""

import collections
from collections.abc import Callable, Mapping
import dataclasses
import functools
import hashlib
import secrets
from typing import Any

import numpy as np
import tensorflow as tf

from tasks.fedmd import task as fedmd_task
from tasks.fedmd.task import FedMdTask
from tasks.models import classifiers, fedmd as fedmd_models
from tasks.sources import further
from tasks.task import Serving
from tff_pipelines.accounting.sampling import schemes
from tff_pipelines.common import declarations, files
from tff_pipelines.experiment import (
    models, report as report_lib, rounds as rounds_lib, run as run_lib)
from tff_pipelines.fedmd import process as process_lib, report
from tff_pipelines.fedmd.plan import FedMdPlan
from tff_pipelines.fedmd.settings import FedMdSettings

# Folder of the parties' models, each of which is the party's own.
PARTIES = 'parties'


def _bits(*purpose: Any) -> bytes:
  return hashlib.sha256(' '.join(map(str, purpose)).encode()).digest()[:16]


def _fit_config(settings: FedMdSettings, prefix: str) -> process_lib.FitConfig:
  return process_lib.FitConfig(**declarations.shared(
      process_lib.FitConfig, settings, prefix, mirror=settings.mirrors))


def draw_subset(records: int, draws: int, replacement: bool,
                seed: int | None) -> np.ndarray:
  """Indices of the records that a party trains on, int64 [draws]."""
  # Only a draw without a seed, by the system's entropy, has a privacy guarantee.
  if seed is not None:
    indices = np.random.default_rng(seed).choice(records, draws, replace=replacement)
  elif replacement:
    indices = [secrets.randbelow(records) for _ in range(draws)]
  else:
    indices = secrets.SystemRandom().sample(range(records), draws)
  return np.array(indices, np.int64)


def pretrain(task: FedMdTask, settings: FedMdSettings) -> dict[str, np.ndarray]:
  """Weights by architecture, trained on public labels; ValueError if one diverges."""
  pretrained, seed = {}, settings.initial_weights_seed
  for architecture in task.public_architectures:
    train = tf.function(functools.partial(
        process_lib.fit, architecture, kind=process_lib.LABELS,
        config=_fit_config(settings, 'pretrain_')), autograph=False)
    weights = train(architecture.initial_weights(seed), task.public.x, task.public.y,
                    np.int32(settings.pretrain_epochs),
                    np.frombuffer(_bits('pretraining', seed), np.int64)).numpy()
    if not np.all(np.isfinite(weights)):
      raise ValueError(f'{architecture.name} has NaN or infinite weights after '
                       'pretraining: lower --pretrain_learning_rate')
    pretrained[architecture.name] = weights
  return pretrained


def _accuracy_of(architecture: fedmd_models.Architecture, test: Any) -> Callable:
  predict = tf.function(
      functools.partial(process_lib.predict, architecture), autograph=False)
  return lambda weights: float(np.mean(test.y == np.argmax(
      predict(weights, tf.constant(test.x)), axis=-1)))


class FedMdRounds(rounds_lib.Rounds):
  """The rounds of a run; the first one is the parties' own training.

  The checkpointed state is an OrderedDict of `server`; lists of the `parties`' states
  and `subsets`, indices of the records that they train on; and `digest`, indices of the
  public records that the consensus is about.
  """

  def __init__(self, task: FedMdTask, plan: FedMdPlan,
               pretrained: Mapping[str, np.ndarray] | None = None):
    self._task, self._plan, self._pretrained = task, plan, pretrained
    self._settings, self.count = plan.settings, plan.releases
    self._shown: dict[str, str] = {}
    self._accuracies = [_accuracy_of(a, task.test) for a in task.architectures]
    self._process = process_lib.build(
        task.architectures, image_shape=task.public.x.shape[1:], mean=plan.mean,
        initial_epochs=self._settings.initial_epochs,
        private=_fit_config(self._settings, 'client_'),
        digest=_fit_config(self._settings, 'digest_'),
        simulation_seed=self._settings.seed)

  def _seed(self, *purpose: Any) -> int | None:
    """Derives a seed for a purpose; None where the operating system decides."""
    seed = self._settings.seed
    return None if seed is None else int.from_bytes(_bits(*purpose, seed), 'big')

  def initial_state(self, resumed: bool) -> Any:
    settings = self._settings
    if resumed:
      initial_weights = [np.zeros(a.size) for a in self._task.architectures]
    else:
      pretrained = self._pretrained or pretrain(self._task, settings)
      initial_weights = [a.transferred(pretrained[a.name], settings.initial_weights_seed)
                         for a in self._task.architectures]
    parties, subsets = [], []
    for i, party in enumerate(self._task.parties):
      bits = (secrets.token_bytes(16) if settings.seed is None else
              _bits('party', i, settings.seed))
      parties.append(process_lib.new_party(
          i, party.architecture, initial_weights[party.architecture],
          np.frombuffer(bits, np.int64).copy()))
      subsets.append(draw_subset(
          len(party.private), self._plan.draw(i).subset_size, settings.replacement,
          self._seed('subset', i))
                     if self._plan.draws_subset else np.arange(len(party.private)))
    return collections.OrderedDict(
        digest=np.zeros([self._plan.public_per_round], np.int64), parties=parties,
        server=self._process.initialize(), subsets=subsets)

  def step(self, state: Any, index: int) -> rounds_lib.Step:
    number, count = index - 1, len(self._task.parties)
    present = schemes.Poisson(
        population=count, cohort_size=(1 - self._settings.simulated_dropout_rate) * count,
        simulation_seed=self._seed('dropout')).sample(number).tolist()
    metrics = {'parties': 0, 'rejected': 0}
    if present:
      state, metrics = self._round(state, number, present)
    else:
      # TFF returns no states of no clients. The next round has no consensus.
      state = collections.OrderedDict(state, server=collections.OrderedDict(
          state['server'], known=np.bool_(False)))
    metrics = {'communication_round': number, **metrics}
    if (accuracies := self.accuracies(state)) is not None:
      metrics |= {'mean/accuracy': float(np.mean(accuracies)), **{
          f'party_{i}/accuracy': value for i, value in enumerate(accuracies)}}
      self._shown = {'accuracy': f'{metrics["mean/accuracy"]:.4f}'}
    return rounds_lib.Step(state=state, metrics=metrics)

  def _round(self, state: Any, number: int,
             present: list[int]) -> tuple[Any, dict[str, int]]:
    """The state after a round of these parties, and the process's metrics."""
    settings, public = self._settings, self._task.public
    shares = number < settings.rounds and self._plan.has_consensus
    chosen = draw_subset(len(public), self._plan.public_per_round, False,
                         self._seed('public', number)) if shares else state['digest']
    known = len(chosen) if state['server']['known'] else 0
    announced = collections.OrderedDict(
        digest_images=public.x[state['digest'][:known]],
        digest_epochs=np.int32(settings.digest_epochs),
        revisit_epochs=np.int32(settings.revisit_epochs if number else 0),
        rate_factor=np.float32(settings.rate_factor(number)),
        predict_images=public.x[chosen], share=np.bool_(shares))
    records = [self._task.parties[i].private.rows(state['subsets'][i]) for i in present]
    output = self._process.next(
        state['server'], announced, [state['parties'][i] for i in present],
        [collections.OrderedDict(images=own.x, labels=own.y,
                                 weight=np.int32(self._plan.weight(i)))
         for i, own in zip(present, records)])
    # Several workers may change their order.
    new = {int(party['number']): party for party in output['parties']}
    if sorted(new) != sorted(present):
      raise RuntimeError(f'parties {present} participated, {sorted(new)} reported')
    # OrderedDicts instead of the containers of TFF's context.
    parties = [collections.OrderedDict((name, new.get(i, old)[name]) for name in old)
               for i, old in enumerate(state['parties'])]
    server = collections.OrderedDict(
        (name, output['state'][name]) for name in state['server'])
    return (collections.OrderedDict(state, digest=chosen, server=server, parties=parties),
            {name: int(output['metrics'][name]) for name in ('parties', 'rejected')})

  def shown(self) -> Mapping[str, str]:
    return self._shown

  def accuracies(self, state: Any) -> list[float] | None:
    """Accuracies of the parties' own models on the test records, if measured."""
    if not self._plan.measures_models:
      return None
    return [self._accuracies[int(party['architecture'])](party['weights'])
            for party in state['parties']]


def load_task(settings: FedMdSettings) -> FedMdTask:
  """The task of a run, with the parties that its mode has."""
  task = fedmd_task.build(settings.task, **{name: getattr(settings, name) for name in (
      'split', 'num_clients', 'architectures', 'records_per_client', 'data_seed',
      'data_path', 'cache_dir')})
  if settings.mode == 'centralized':
    return task.pooled()
  if settings.public_records > len(task.public):
    raise ValueError(f'public_per_round must be at most {len(task.public)} for '
                     f'task={settings.task}, found {settings.public_records}')
  return task


class FedMdExperiment(run_lib.Experiment):
  family = 'fedmd'
  settings: FedMdSettings
  describe = staticmethod(report.describe)

  def __init__(self, settings: FedMdSettings, *, task: FedMdTask | None = None,
               pretrained: Mapping[str, np.ndarray] | None = None):
    super().__init__(settings)
    self._task, self._pretrained = task, pretrained

  def folder_words(self) -> tuple[str, ...]:
    return self.settings.task, self.settings.mode

  def build_task(self) -> FedMdTask:
    return self._task or load_task(self.settings)

  def identity(self, task: FedMdTask) -> dict[str, Any]:
    # Numbers of records are printed, and subsets are indices of records.
    return {'data_fingerprint': task.fingerprint,
            'records': [len(party.private) for party in task.parties]}

  def build_plan(self, task, recorded) -> FedMdPlan:
    return FedMdPlan(settings=self.settings, classes=task.classes, party=task.party,
                     records=tuple(len(party.private) for party in task.parties),
                     recorded=recorded or {})

  def planned_rounds(self, plan: FedMdPlan) -> int:
    return plan.releases

  def run_line(self, plan: FedMdPlan, rounds: int) -> str:
    return (f'{rounds - 1} round{"" if rounds == 2 else "s"} of {len(plan.records)} '
            'parties after their first training')

  def build_rounds(self, task: FedMdTask, plan: FedMdPlan) -> FedMdRounds:
    return FedMdRounds(task, plan, self._pretrained)

  def outcome(self, task, plan, rounds, state) -> report_lib.Outcome:
    outcome = report.outcome(plan, task, state['parties'], rounds.accuracies(state))
    inputs, trained = {'x': (np.dtype(np.uint8), task.public.x.shape[1:])}, {}
    for i, party in enumerate(state['parties']):
      architecture = task.architectures[int(party['architecture'])]
      trained[f'{files.PRIVATE}/{PARTIES}/party_{i}'] = models.Trained(
          name=architecture.name, inputs=inputs, arrays=dict(zip(
              architecture.weight_names, architecture.arrays(party['weights']))))
    return dataclasses.replace(outcome, trained=trained)

  def serving(self, trained: models.Trained) -> Serving:
    dtype, shape = trained.inputs['x']
    classes = len(trained.weights[-1])
    architecture = fedmd_models.build(trained.name, shape, classes)
    return Serving(
        inputs=trained.inputs, reader=further.reader(shape, dtype, classes),
        model=classifiers.model_of_logits(
            trained.name, lambda seed: architecture.arrays(
                architecture.initial_weights(seed)),
            lambda weights, x, seed=None: architecture.logits_of_arrays(weights, x),
            weight_names=architecture.weight_names,
            breakdown=classifiers.numbered(classes)))

  def evaluate(self, task: FedMdTask, trained: models.Trained):
    architecture, = (a for a in task.architectures if a.name == trained.name)
    weights = np.concatenate([array.ravel() for array in trained.weights])
    return {'test': {'accuracy': _accuracy_of(architecture, task.test)(weights)}}


experiment = FedMdExperiment
