"""A run of distillation: features, teachers, steps of queries, the student."""

import collections
import dataclasses
import functools
import hashlib
from typing import Any

import numpy as np
import tqdm

from aggregators import local_dp
from tasks import ldp_distillation as tasks_lib
from tasks import ldp_distillation_features as features_lib
from tff_pipelines import ldp_plan
from tff_pipelines import ldp_records
from tff_pipelines import ldp_report
from tff_pipelines.algorithms import ldp_distillation as algorithm
from tff_pipelines.algorithms import ldp_distillation_student as student_lib
from tff_pipelines.ldp_flags import LdpConfig
from tff_pipelines.simulation import cohorts
from tff_pipelines.simulation import contexts
from tff_pipelines.simulation import records as records_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """What a run works on, all of it derived from task and configuration.

  Attributes:
    task: Raw records.
    feature_map: The public map.
    public: float32 [P, dimension], features of the pool.
    teachers: A teacher's weights for every holding.
    validation: float32 [n, dimension], features.
    test: float32 [n, dimension], features.
  """

  task: tasks_lib.DistillationTask
  feature_map: features_lib.FeatureMap
  public: np.ndarray
  teachers: list[np.ndarray]
  validation: np.ndarray
  test: np.ndarray

  @functools.cached_property
  def records(self) -> np.ndarray:
    """float32 [n, dimension], features of all owners' records, owner by owner."""
    return self.feature_map.transform(
        np.concatenate([held.x for held in self.task.holdings]))


def mechanism_of(plan: ldp_plan.LdpPlan,
                 num_classes: int) -> local_dp.LocalMechanism:
  """The mechanism that executes a plan."""
  return local_dp.build(
      plan.mechanism, dimension=num_classes, epsilon=plan.epsilon_per_query,
      noise_multiplier=plan.noise_multiplier)


def make_plan(config: LdpConfig,
              task: tasks_lib.DistillationTask) -> ldp_plan.LdpPlan:
  """The calibrated plan."""
  return ldp_plan.calibrate(
      config.budget, dimension=task.num_classes, owners=task.owners,
      owners_per_query=config.owners_per_query, holdings=len(task.holdings),
      simulation_seed=config.seed)


def fingerprint(task: tasks_lib.DistillationTask) -> str:
  """Of the public images and of who the owners are."""
  digest = hashlib.sha256(np.ascontiguousarray(task.public).tobytes())
  digest.update(repr((task.owners, len(task.holdings), task.num_classes)).encode())
  return digest.hexdigest()


def prepared(config) -> Setting:
  """`prepare` of the configured task."""
  return prepare(tasks_lib.build(config.task, **config.data_options), config)


def prepare(task: tasks_lib.DistillationTask, config) -> Setting:
  """Fits the public features and lets every owner train.

  Args:
    task: Raw records.
    config: An LdpConfig, or that of a baseline.
  """
  feature_map = features_lib.fit(task.public, seed=config.feature_seed)
  teachers = [
      algorithm.teacher(feature_map.transform(held.x), held.y, task.num_classes,
                        config.teacher_strength) for held in task.holdings]
  return Setting(
      task=task, feature_map=feature_map,
      public=feature_map.transform(task.public), teachers=teachers,
      validation=feature_map.transform(task.validation.x),
      test=feature_map.transform(task.test.x))


def accuracy(student: student_lib.Student, features: np.ndarray,
             labels: np.ndarray) -> float:
  """Of a student on labelled images."""
  return float(np.mean(student.scores(features).argmax(axis=1) == labels))


class Run:
  """A run, from the state of its folder to its end."""

  def __init__(self, config: LdpConfig, setting: Setting,
               plan: ldp_plan.LdpPlan, records: ldp_records.LdpRecords):
    self._config = config
    self._setting = setting
    self._plan = plan
    self._records = records
    self._mechanism = mechanism_of(plan, setting.task.num_classes)
    self._trainer = student_lib.Trainer(setting.public, student_lib.StudentConfig(
        refine=config.refine, steps=config.refine_steps,
        strength=config.refine_strength, sharpness=config.sharpness,
        trust=config.trust))
    self._askings = {}

  def _asking(self, num_queries: int):
    """The computation that asks so many queries."""
    if num_queries not in self._askings:
      self._askings[num_queries] = algorithm.build_asking(
          self._mechanism, num_queries=num_queries,
          dimension=self._setting.public.shape[1],
          temperature=self._config.temperature,
          seeded=self._plan.simulation_seed is not None)
    return self._askings[num_queries]

  def ask(self, first_query: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Asks owners about images; mean answers, and how many there were.

    Args:
      first_query: Number of the first of them in the run: says whose turn it is.
      rows: int64 [Q], the images.
    """
    plan, asked = self._plan, collections.defaultdict(list)
    for place in range(len(rows)):
      for owner in algorithm.owners_of(
          first_query + place, groups=plan.groups,
          owners_per_query=plan.owners_per_query):
        asked[owner].append(place)
    owners = []
    for owner, places in asked.items():
      value = collections.OrderedDict(
          weights=self._setting.teachers[owner % len(self._setting.teachers)],
          queries=np.array(places, np.int32))
      if plan.simulation_seed is not None:
        value['key'] = cohorts.client_key(plan.simulation_seed, first_query, owner)
      owners.append(value)
    output = self._asking(len(rows))(self._setting.public[rows], owners)
    return np.asarray(output['means']), np.asarray(output['answers'])

  def student(self, steps) -> student_lib.Student:
    """The student of the answers of these steps."""
    return self._trainer.train(
        np.concatenate([step.rows for step in steps]),
        np.concatenate([step.means for step in steps]),
        self._mechanism.worst_variance / 4 / self._plan.owners_per_query)

  def _metrics(self, student: student_lib.Student, count: int) -> dict[str, float]:
    """After the first `count` steps."""
    steps, task = self._records.steps[:count], self._setting.task
    last = steps[-1]
    charged = last.first_query + len(last.rows)
    name = 'epsilon' if self._plan.simulation_seed is None else 'epsilon_if_unseeded'
    found = {
        'queries': float(sum(len(step.rows) for step in steps)),
        'queries_charged': float(charged),
        name: self._plan.epsilon(self._plan.most_answers(charged)),
        'test/accuracy': accuracy(student, self._setting.test, task.test.y),
        'refined': float(student.refined),
    }
    if len(task.validation):
      found['validation/accuracy'] = accuracy(
          student, self._setting.validation, task.validation.y)
    return found

  def measured_student(self) -> student_lib.Student | None:
    """The student of all answers; measures the steps that have not been yet."""
    steps, student = self._records.steps, None
    for count, step in enumerate(steps, start=1):
      is_last = count == len(steps)
      if step.number in self._records.metrics and not is_last:
        continue
      student = self.student(steps[:count])
      if step.number not in self._records.metrics:
        self._records.measure(step, self._metrics(student, count))
    return student

  def reason_to_stop(self) -> str | None:
    """In words; None if there is more to ask."""
    records, config = self._records, self._config
    if records.answered >= len(self._setting.public):
      return 'every public image has been asked about'
    if config.max_queries is not None and records.answered >= config.max_queries:
      return f'max_queries={config.max_queries} have been answered'
    if config.target_accuracy is not None and records.steps:
      found = records.metrics[records.steps[-1].number]['validation/accuracy']
      if found >= config.target_accuracy:
        return (f'the student has an accuracy of {found:.4f} on the '
                f'{len(self._setting.validation)} validation records')
    if records.charged >= self._plan.queries:
      return 'the budget is used up'
    return None

  def step(self, student: student_lib.Student | None) -> None:
    """Chooses queries, charges them, asks, keeps the answers."""
    records, config = self._records, self._config
    charged = records.charged
    count = min(config.queries_per_step, self._plan.queries - charged,
                len(self._setting.public) - records.answered)
    if config.max_queries is not None:
      count = min(count, config.max_queries - records.answered)
    seen = [step.rows for step in records.steps]
    candidates = np.setdiff1d(
        np.arange(len(self._setting.public)), np.concatenate(seen) if seen else [])
    probabilities = None
    if student is not None and config.sampling == 'active':
      probabilities = student.probabilities(self._setting.public[candidates])
    rows = algorithm.choose_queries(
        candidates, count, sampling=config.sampling, probabilities=probabilities,
        random=np.random.default_rng([config.sampling_seed, charged]))
    line = records.charge(self._plan.step_event(charged, charged + count))
    means, answers = self.ask(charged, rows)
    records.keep(line, rows, means, answers)

  def run(self) -> tuple[student_lib.Student | None, str]:
    """Runs to the end; the student and why it ended."""
    student = self.measured_student()
    progress = tqdm.tqdm(total=self._plan.queries, initial=self._records.charged,
                         unit='query', dynamic_ncols=True, mininterval=1.0)
    with progress:
      while (reason := self.reason_to_stop()) is None:
        self.step(student)
        student = self.measured_student()
        found = self._records.metrics[self._records.steps[-1].number]
        progress.set_postfix(
            accuracy=f"{found['test/accuracy']:.4f}", refresh=False)
        progress.update(self._records.charged - progress.n)
    return student, reason


def run(config: LdpConfig,
        setting: Setting | None = None) -> dict[str, Any]:
  """Asks and learns, or goes on, and reports.

  Args:
    config: Of the run.
    setting: As `prepare` made it of the same configuration, if it did already.

  Returns:
    The summary, as it is written to summary.json.
  """
  task = setting.task if setting else tasks_lib.build(
      config.task, **config.data_options)
  plan = make_plan(config, task)
  mechanism_of(plan, task.num_classes)  # Raises what can't be drawn.
  run_records = records_lib.RunRecords(
      ldp_report.folder_of(config),
      {**config.configuration(), 'plan': plan.configuration(),
       'data_fingerprint': fingerprint(task)}, resume=config.resume)
  ldp_report.print_plan(plan, task, config, run_records)
  records = ldp_records.LdpRecords(run_records)
  records.restore(dict(
      delta=plan.delta or None, adjacency=plan.answer_event.adjacency,
      deviation_per_round=plan.deviation_per_step(config.queries_per_step),
      trust_model=ldp_plan.TRUST_MODEL, seeded=plan.simulation_seed is not None,
      warnings=ldp_report.warnings(plan, task)))
  if setting is None:
    setting = prepare(task, config)
  with contexts.simulation(num_workers=config.num_workers):
    student, reason = Run(config, setting, plan, records).run()
  return ldp_report.finish(plan, task, config, records, student, reason)
