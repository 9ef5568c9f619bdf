"""A run of AE-DPFL or kNN-DPFL: public features, the vote, the student."""

import collections
from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any

import numpy as np

from aggregators.voting import VotingFactory
from tasks.models import classifiers
from tasks.voting.task import VotingTask
from tff_pipelines.experiment import report as report_lib
from tff_pipelines.experiment import rounds as rounds_lib
from tff_pipelines.learning import adam
from tff_pipelines.simulation import cohorts
from tff_pipelines.voting import agents
from tff_pipelines.voting import baselines
from tff_pipelines.voting import features as features_lib
from tff_pipelines.voting import knn
from tff_pipelines.voting import plan as plan_lib
from tff_pipelines.voting import preparation
from tff_pipelines.voting import process
from tff_pipelines.voting import queries
from tff_pipelines.voting import records
from tff_pipelines.voting import report
from tff_pipelines.voting import student as student_lib
from tff_pipelines.voting.settings import VoteSettings

# Stands for a label before the vote.
_NOT_YET = -2
# Steps that the student takes, unless its epochs are given.
_STUDENT_STEPS = 180
_STUDENT_DECAY = 1e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
  """Public data that agents vote on.

  Attributes:
    task: Of the records as they are.
    features: Public feature map.
    public: float32 [P, d], the public records through it.
    rows: int64 [Q], the queries among them.
  """

  task: VotingTask
  features: features_lib.PublicFeatures
  public: np.ndarray
  rows: np.ndarray


def prepare(task: VotingTask, settings: VoteSettings,
            folder: pathlib.Path) -> Prepared:
  """The feature map and the queries: those of the folder, or new ones."""
  features = preparation.public_map(task, settings, folder)
  public = features_lib.flat(features(task.public))
  rows = records.read_queries(folder)
  if rows is None:
    rows = queries.choose(
        public, settings.queries, settings.query_choice, settings.feature_seed)
    records.write_queries(folder, rows)
  return Prepared(task=task, features=features, public=public, rows=rows)


def agent_network(settings: VoteSettings, record_shape: tuple[int, ...],
                  num_classes: int) -> classifiers.Network:
  """The model of an agent of algorithm ae."""
  name = settings.model
  if name is None:
    name = 'cnn' if len(record_shape) == 2 else 'softmax'
  return classifiers.build(name, record_shape, num_classes)


def compared_network(task: VotingTask, settings: VoteSettings) -> classifiers.Network:
  """The model that federated averaging would send of these records."""
  shape = task.record_shape
  if settings.clients_see_features:
    shape = preparation.seen_shape(task, settings)
  if settings.algorithm == 'ae':
    return agent_network(settings, shape, task.num_classes)
  return classifiers.build(None, shape, task.num_classes)


def agent_config(settings: VoteSettings,
                 network: classifiers.Network) -> agents.AgentConfig:
  """How an agent of algorithm ae trains and votes."""
  return agents.AgentConfig(
      training=adam.AdamConfig(weight_decay=settings.client_weight_decay,
                               **settings.client_training(network.name)),
      confidence=settings.client_confidence, shift=settings.client_shift,
      adversarial=settings.adversarial_strength)


def agents_values(task: VotingTask, seed: int | None) -> list:
  """The agents as values of `fedavg.process.client_type`."""
  values = []
  for number, agent in enumerate(task.agents.client_ids):
    value = collections.OrderedDict(examples=collections.OrderedDict(
        sorted(task.agents.examples(agent).items())))
    if seed is not None:
      value['key'] = cohorts.client_key(seed, 1, number)
    values.append(value)
  return values


def cast_votes(prepared: Prepared, plan: plan_lib.VotePlan,
               settings: VoteSettings) -> tuple[np.ndarray, bool]:
  """Runs the vote once.

  Returns:
    Labels, int32 [Q], -1 where a query was not answered; and whether the vote was
    suppressed.
  """
  seen = prepared.task
  if settings.clients_see_features:
    # One record more or less must not move the others' features, not by a bit.
    seen = features_lib.map_records(
        seen, prepared.features, alone=settings.algorithm == 'knn')
  unlabelled = None
  if settings.algorithm == 'knn':
    seen = features_lib.as_grid(seen)
    answer = knn.nearest_votes(settings.neighbours, seen.num_classes)
  else:
    network = agent_network(settings, seen.record_shape, seen.num_classes)
    config = agent_config(settings, network)
    answer = agents.trained_votes(
        network, network.initial_weights(settings.initial_weights_seed), config)
    if config.adversarial > 0:
      unlabelled = seen.public
  voting = process.build(answer, VotingFactory(plan.params, simulation_seed=plan.seed),
                         seen.agents.element_spec)
  output = voting.next(
      voting.initialize(), process.public_value(seen.public[prepared.rows], unlabelled),
      agents_values(seen, plan.seed))
  return (np.asarray(output['labels']), bool(output['measurements']['withheld']))


class VoteRounds(rounds_lib.Rounds):
  """The one round of a vote; its state is the labels and no more.

  Attributes:
    prepared: Data that agents vote on.
  """

  count = 1
  unit = 'vote'

  def __init__(self, prepared: Prepared, plan: plan_lib.VotePlan,
               settings: VoteSettings):
    self.prepared = prepared
    self._plan, self._settings = plan, settings

  def initial_state(self, resumed: bool) -> Any:
    del resumed
    return collections.OrderedDict(
        labels=np.full([self._plan.params.queries], _NOT_YET, np.int32))

  def step(self, state: Any, index: int) -> rounds_lib.Step:
    del state, index
    labels, suppressed = cast_votes(self.prepared, self._plan, self._settings)
    return rounds_lib.Step(
        state=collections.OrderedDict(labels=labels), suppressed=suppressed,
        metrics={'answered': float((labels >= 0).mean())})


def build_student(prepared: Prepared, labels: np.ndarray,
                  settings: VoteSettings) -> student_lib.Student:
  """The student of released labels, int [Q]."""
  task, features, seed = prepared.task, prepared.features, settings.student_seed
  name, images = settings.student_model, len(task.record_shape) == 2
  if name is None:
    name = 'cnn' if images else 'softmax'
    if features.encoder_weights is not None:
      name = 'encoder'
  public, test = task.public, task.test
  if name == 'encoder':
    architecture = student_lib.encoder_architecture(
        features.encoder_weights, task.record_shape[0], task.num_classes, seed)
  elif images and name in ('cnn', 'cnn_small'):
    architecture = student_lib.image_architecture(
        classifiers.build(name, task.record_shape, task.num_classes), seed)
  else:
    architecture = student_lib.network_architecture(
        classifiers.build(name, prepared.public.shape[1:], task.num_classes), seed)
    public = prepared.public
    test = {'x': features_lib.flat(features(task.test['x'])), 'y': task.test['y']}
  answered = labels >= 0
  count = len(public) if settings.student == 'spread' else answered.sum()
  epochs = preparation.number_of_epochs(
      settings.student_epochs, max(1, int(count)), settings.student_batch_size,
      _STUDENT_STEPS)
  return student_lib.Student(
      architecture, public, prepared.public, prepared.rows[answered],
      labels[answered], task.num_classes,
      student_lib.StudentConfig(
          method=settings.student, own_labels_after=settings.own_labels_after,
          training=adam.AdamConfig(
              learning_rate=settings.student_learning_rate, epochs=epochs,
              batch_size=settings.student_batch_size, weight_decay=_STUDENT_DECAY)),
      seed, test)


def train_student(student: student_lib.Student,
                  folder: pathlib.Path) -> list[dict[str, float]]:
  """Trains a student, or continues with it; its test metrics after each epoch."""
  curve: list[dict[str, float]] = []
  kept = records.read_student(folder)
  if kept is not None:
    state, curve = kept
    student.restore(state, len(curve))
  with rounds_lib.progress(student.epochs, len(curve), 'epoch') as bar:
    while student.epochs_done < student.epochs:
      student.run_epoch()
      curve.append({'epoch': student.epochs_done, **student.test_metrics()})
      records.write_student(folder, adam.state_arrays(student.state), curve)
      bar.set_postfix(accuracy=f"{curve[-1]['accuracy']:.4f}", refresh=False)
      bar.update()
  return curve


class VoteExperiment(preparation.VotingExperiment):
  """One vote, and a student of its labels."""

  def build_task(self) -> VotingTask:
    task, settings = super().build_task(), self.settings
    compared_network(task, settings)  # Raises what does not fit.
    if settings.student_model == 'encoder':
      given = preparation.given_map(task, settings)
      kind = (given or preparation.feature_config(settings, task)).kind
      if kind != 'contrastive':
        raise ValueError('student_model=encoder needs features=contrastive, found '
                         f'features={kind}')
    return task

  def build_plan(self, task: VotingTask,
                 recorded: Mapping[str, Any] | None) -> plan_lib.VotePlan:
    return plan_lib.build(
        self.settings, agents=len(task.agents.client_ids), classes=task.num_classes,
        privacy_unit=preparation.privacy_unit(task, self.settings), recorded=recorded)

  def describe(self, task: VotingTask,
               plan: plan_lib.VotePlan) -> report_lib.Description:
    return report.describe(task, [
        ('run', report.vote_line(plan)), *report.vote_mechanism(plan)])

  def run_line(self, plan: plan_lib.VotePlan, rounds: int) -> str:
    return report.vote_line(plan)

  def build_rounds(self, task: VotingTask, plan: plan_lib.VotePlan) -> VoteRounds:
    return VoteRounds(prepare(task, self.settings, self.folder), plan, self.settings)

  def outcome(self, task: VotingTask, plan: plan_lib.VotePlan, rounds: VoteRounds,
              state: Any) -> report_lib.Outcome:
    labels, prepared = np.asarray(state['labels']), rounds.prepared
    student = build_student(prepared, labels, self.settings)
    curve = train_student(student, self.folder)
    return report.vote_outcome(
        plan, task, self.settings, labels=labels,
        truth=task.public_labels[prepared.rows], curve=curve,
        features=prepared.features.kind, student=student.name,
        network=compared_network(task, self.settings))


def vote(settings: VoteSettings) -> dict[str, Any]:
  """Votes and trains the student, or runs a baseline; or resumes either.

  Args:
    settings: Of the run.

  Returns:
    The summary, as it is written to summary.json.
  """
  if settings.is_vote:
    return VoteExperiment(settings).run()
  if settings.algorithm == 'dp_fedsgd':
    return baselines.FedSgdExperiment(settings).run()
  return baselines.AveragingExperiment(settings).run()
