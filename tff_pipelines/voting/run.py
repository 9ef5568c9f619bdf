"""A run of AE-DPFL or kNN-DPFL: public features, the vote, the student."""

import collections
import dataclasses
import pathlib
from typing import Any

import numpy as np
import tqdm

from aggregators.voting import VotingFactory
from aggregators.voting_params import VotingParams
from tasks import voting as voting_tasks
from tasks import voting_models
from tasks.voting import VotingTask
from tff_pipelines import vote_features
from tff_pipelines import vote_plan
from tff_pipelines import vote_records
from tff_pipelines import vote_report
from tff_pipelines.algorithms import student as student_lib
from tff_pipelines.algorithms import voting
from tff_pipelines.algorithms import voting_agents
from tff_pipelines.algorithms import voting_encoder
from tff_pipelines.algorithms import voting_knn
from tff_pipelines.algorithms import voting_queries
from tff_pipelines.algorithms import voting_training
from tff_pipelines.simulation import cohorts
from tff_pipelines.simulation import contexts
from tff_pipelines.simulation import records as records_lib
from tff_pipelines.vote_flags import VoteConfig

# What stands for a label before the vote.
_NOT_YET = -2

# Steps that public networks take, unless their epochs are given.
_FEATURE_STEPS, _STUDENT_STEPS = 240, 180

# Adam on an agent, by its model.
_AGENT_DEFAULTS = {
    'softmax': dict(learning_rate=0.1, batch_size=500, epochs=150,
                    weight_decay=1e-3),
    'mlp': dict(learning_rate=5e-3, batch_size=100, epochs=30, weight_decay=1e-3),
    'cnn_small': dict(learning_rate=5e-3, batch_size=50, epochs=15,
                      weight_decay=1e-3),
    'cnn': dict(learning_rate=2e-3, batch_size=50, epochs=10, weight_decay=1e-3),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """Attributes: task, of the records as they are; features, its public feature map;
  public, the public records through it, [P, d]; rows, of the queries among them."""

  task: VotingTask
  features: vote_features.PublicFeatures
  public: np.ndarray
  rows: np.ndarray


def feature_kind(config: VoteConfig, task: VotingTask) -> str:
  """The feature map that is asked for, or the one that suits the records."""
  if config.features is not None:
    return config.features
  if len(task.record_shape) == 1:
    return 'standard'
  if not config.is_vote:
    return 'none'
  height, width = task.record_shape
  return 'contrastive' if height == width else 'pca'


def epochs_of(given: int | None, count: int, batch_size: int, steps: int) -> int:
  """Epochs that were asked for, or what gives so many steps, from 20 to 60."""
  if given is not None:
    return given
  return min(60, max(20, -(-steps // -(-count // batch_size))))


def feature_config(config: VoteConfig,
                   task: VotingTask) -> vote_features.FeatureConfig:
  """How the feature map is fitted."""
  training = voting_encoder.DEFAULT_TRAINING
  epochs = epochs_of(config.feature_epochs, len(task.public), training.batch_size,
                     _FEATURE_STEPS)
  return vote_features.FeatureConfig(
      kind=feature_kind(config, task), dimensions=config.pca_dimensions,
      seed=config.feature_seed, training=dataclasses.replace(
          training, epochs=epochs, learning_rate=config.feature_learning_rate))


def check_task(task: VotingTask, config: VoteConfig) -> None:
  """Raises ValueError for what can't be asked of this task.

  It goes by public numbers alone: whether a run starts must not depend on a record
  of an agent. How many records an agent has, and of which classes, is not looked at.
  """
  if config.is_vote and config.queries > len(task.public):
    raise ValueError(f'queries must be at most the {len(task.public)} public '
                     f'records, found {config.queries}')


def make_plan(config: VoteConfig, task: VotingTask) -> vote_plan.VotePlan:
  """The calibrated plan of a vote."""
  params = VotingParams(
      queries=config.queries, classes=task.num_classes,
      agents=len(task.agents.client_ids), noise_stddev=1.0,
      votes=config.neighbours if config.algorithm == 'knn' else 1,
      noise=config.noise, threshold=config.threshold,
      min_honest_fraction=config.min_honest_fraction,
      assumed_colluders=config.assumed_colluders)
  return vote_plan.calibrate(
      params, scheme=config.algorithm, level=config.privacy_level,
      epsilon=config.target_epsilon, noise_stddev=config.noise_stddev,
      delta=config.delta, bound=config.bound, simulation_seed=config.seed,
      allow_degenerate=config.allow_degenerate)


def _given_map(task: VotingTask,
               config: VoteConfig) -> vote_features.PublicFeatures | None:
  """The map of the folder features_from, None if none is given."""
  if config.features_from is None:
    return None
  features = vote_records.read_map(
      pathlib.Path(config.features_from), task.public)
  if features is None:
    raise ValueError(
        f'features_from={config.features_from} holds no feature map')
  return features


def seen_shape(task: VotingTask, config: VoteConfig) -> tuple[int, ...]:
  """The shape of a record through the feature map, which need not be made yet.

  Raises:
    ValueError: If the map can't be made.
  """
  given = _given_map(task, config)
  if given is not None:
    return given(task.public[:1]).shape[1:]
  return vote_features.check(task.public, feature_config(config, task))


def public_map(task: VotingTask, config: VoteConfig,
               folder: pathlib.Path) -> vote_features.PublicFeatures:
  """The feature map: that of the folder, of another run's folder, or a new one."""
  features = vote_records.read_map(folder, task.public)
  if features is not None:
    return features
  features = _given_map(task, config)
  if features is None:
    wanted = feature_config(config, task)
    if wanted.kind == 'contrastive':
      print(f'{wanted.training.epochs} epochs of the public feature map on '
            f'{len(task.public)} unlabelled records', flush=True)
    features = vote_features.fit(task.public, wanted)
  vote_records.write_map(folder, features, task.public)
  return features


def prepare(task: VotingTask, config: VoteConfig,
            folder: pathlib.Path) -> Setting:
  """The feature map and the queries: of the folder, or new ones."""
  features = public_map(task, config, folder)
  public = vote_features.flat(features(task.public))
  rows = vote_records.read_queries(folder)
  if rows is None:
    rows = voting_queries.choose(
        public, config.queries, config.query_choice, config.feature_seed)
    vote_records.write_queries(folder, rows)
  return Setting(task=task, features=features, public=public, rows=rows)


def agent_network(config: VoteConfig, record_shape: tuple[int, ...],
                  num_classes: int) -> voting_models.Network:
  """The model of an agent of algorithm ae."""
  name = config.model
  if name is None:
    name = 'cnn' if len(record_shape) == 2 else 'softmax'
  return voting_models.build(name, record_shape, num_classes)


def agent_config(config: VoteConfig,
                 network: voting_models.Network) -> voting_agents.AgentConfig:
  """How an agent of algorithm ae trains and votes."""
  training = dict(_AGENT_DEFAULTS[network.name])
  for name in training:
    given = getattr(config, f'agent_{name}')
    if given is not None:
      training[name] = given
  return voting_agents.AgentConfig(
      training=voting_training.AdamConfig(**training),
      confidence=config.agent_confidence, shift=config.agent_shift,
      adversarial=config.adversarial_strength)


def agents_values(task: VotingTask, simulation_seed: int | None) -> list:
  """What the agents bring, values of `fedavg.client_type`."""
  values = []
  for number, agent in enumerate(task.agents.client_ids):
    value = collections.OrderedDict(examples=collections.OrderedDict(
        sorted(task.agents.examples(agent).items())))
    if simulation_seed is not None:
      value['key'] = cohorts.client_key(simulation_seed, 1, number)
    values.append(value)
  return values


def cast_votes(setting: Setting, plan: vote_plan.VotePlan, config: VoteConfig):
  """Runs the vote once; its labels, int32 [Q], and whether it was withheld."""
  seen = setting.task
  if config.agents_see_features:
    # One record more or less must not move the others' features, not by a bit.
    seen = vote_features.through(
        seen, setting.features, alone=config.algorithm == 'knn')
  unlabelled = None
  if config.algorithm == 'knn':
    seen = vote_features.as_grid(seen)
    answer = voting_knn.nearest_votes(config.neighbours, seen.num_classes)
  else:
    network = agent_network(config, seen.record_shape, seen.num_classes)
    agent = agent_config(config, network)
    answer = voting_agents.trained_votes(
        network, network.initial_weights(config.initial_weights_seed), agent)
    if agent.adversarial > 0:
      unlabelled = seen.public
  factory = VotingFactory(plan.params, simulation_seed=plan.simulation_seed)
  process = voting.build(answer, factory, seen.agents.element_spec)
  output = process.next(
      process.initialize(),
      voting.public_value(seen.public[setting.rows], unlabelled),
      agents_values(seen, plan.simulation_seed))
  return (np.asarray(output['labels']),
          bool(output['measurements']['withheld']))


def _released_labels(setting: Setting, plan: vote_plan.VotePlan,
                     config: VoteConfig,
                     records: records_lib.RunRecords) -> np.ndarray:
  """The labels of the vote: of an earlier start, or of a vote that is held now."""
  initial = collections.OrderedDict(
      labels=np.full([plan.params.queries], _NOT_YET, np.int32))
  state, done = records.restore(initial, dict(
      population=plan.params.agents, delta=plan.delta,
      adjacency=plan.guarantee.adjacency, trust_model=plan.trust_model,
      seeded=plan.simulation_seed is not None,
      deviation_per_round=plan.params.sampler_deviation, warnings=plan.warnings()))
  if done:
    return np.asarray(state['labels'])
  print(f'{plan.params.agents} agents answer', flush=True)
  with contexts.simulation(num_workers=config.num_workers):
    labels, withheld = cast_votes(setting, plan, config)
  name = 'epsilon' if plan.simulation_seed is None else 'epsilon_if_unseeded'
  records.commit(
      collections.OrderedDict(labels=labels), 1, plan.event, withheld=withheld,
      metrics={name: plan.epsilon, 'answered': float((labels >= 0).mean())})
  return labels


def make_student(setting: Setting, labels: np.ndarray,
                 config: VoteConfig) -> student_lib.Student:
  """The student of a setting and its released labels."""
  task = setting.task
  name = config.student_model
  images = len(task.record_shape) == 2
  if name is None:
    if setting.features.encoder_weights is not None:
      name = 'encoder'
    else:
      name = 'cnn' if images else 'softmax'
  public, test = task.public, task.test
  if name == 'encoder':
    if setting.features.encoder_weights is None:
      raise ValueError('student_model=encoder needs features=contrastive, found '
                       f'features={setting.features.kind}')
    architecture = student_lib.of_encoder(
        setting.features.encoder_weights, task.record_shape[0],
        task.num_classes, config.student_seed)
  elif images and name in ('cnn', 'cnn_small'):
    architecture = student_lib.of_image_network(
        voting_models.build(name, task.record_shape, task.num_classes),
        config.student_seed)
  else:
    architecture = student_lib.of_network(
        voting_models.build(name, setting.public.shape[1:], task.num_classes),
        config.student_seed)
    public = setting.public
    test = {'x': vote_features.flat(setting.features(task.test['x'])),
            'y': task.test['y']}
  answered = labels >= 0
  count = len(public) if config.student == 'spread' else answered.sum()
  epochs = epochs_of(config.student_epochs, max(1, int(count)),
                     config.student_batch_size, _STUDENT_STEPS)
  return student_lib.Student(
      architecture, public, setting.public, setting.rows[answered],
      labels[answered], task.num_classes,
      student_lib.StudentConfig(
          method=config.student, own_labels_after=config.own_labels_after,
          training=voting_training.AdamConfig(
              learning_rate=config.student_learning_rate,
              batch_size=config.student_batch_size,
              epochs=epochs, weight_decay=1e-3)),
      config.student_seed, test)


def train_student(student: student_lib.Student,
                  folder: pathlib.Path) -> list[dict[str, float]]:
  """Trains a student, or goes on with it; its test metrics after each epoch."""
  curve: list[dict[str, float]] = []
  kept = vote_records.read_student(folder)
  if kept is not None:
    state, curve = kept
    student.restore(state, len(curve))
  progress = tqdm.tqdm(total=student.epochs, initial=len(curve),
                       unit='epoch', dynamic_ncols=True, mininterval=1.0)
  with progress:
    while student.epochs_done < student.epochs:
      student.run_epoch()
      curve.append({'epoch': student.epochs_done, **student.test_metrics()})
      vote_records.write_student(
          folder, voting_training.state_arrays(student.state), curve)
      progress.set_postfix(accuracy=f"{curve[-1]['accuracy']:.4f}", refresh=False)
      progress.update()
  return curve


def run(config: VoteConfig) -> dict[str, Any]:
  """Votes, trains the student, or goes on with either, and reports.

  Args:
    config: With algorithm ae or knn.

  Returns:
    The summary, as it is written to summary.json.
  """
  task = voting_tasks.build(config.task, **config.task_options)
  check_task(task, config)
  plan = make_plan(config, task)
  network = _compared_network(config, task)  # Raises for what does not fit.
  folder = vote_report.folder_of(config)
  records = records_lib.RunRecords(
      folder, {**config.configuration(), 'plan': plan.configuration(),
               'data_fingerprint': vote_report.fingerprint(task)},
      resume=config.resume)
  vote_report.print_plan(plan, task, config, records)
  setting = prepare(task, config, folder)
  labels = _released_labels(setting, plan, config, records)
  student = make_student(setting, labels, config)
  curve = train_student(student, folder)
  return vote_report.finish(
      plan, task, config, records,
      vote_report.Outcome(
          labels=labels, truth=task.public_labels[setting.rows], curve=curve,
          features=setting.features.kind, student=student.name,
          model=network.name if config.algorithm == 'ae' else None,
          model_parameters=network.as_model().parameter_count()))


def _compared_network(config: VoteConfig, task: VotingTask) -> voting_models.Network:
  """The model that federated averaging would send of these records."""
  shape = task.record_shape
  if config.agents_see_features:
    shape = seen_shape(task, config)
  if config.algorithm == 'ae':
    return agent_network(config, shape, task.num_classes)
  return voting_models.build(None, shape, task.num_classes)
