"""A training run: one task, one plan, federated averaging, one folder."""

from collections.abc import Mapping
import dataclasses
import functools
import hashlib
import shlex
from typing import Any

import numpy as np

from aggregators.adaptive_clip import AdaptiveClipSumFactory
from aggregators.banded_sum import BandedCentralSumFactory, BandedSumFactory
from aggregators.central_sum import CentralSumFactory
from aggregators.client_sum import ClientSumFactory
from aggregators.distributed_sum import DistributedSumFactory
from aggregators.plain_sum import PlainSumFactory
from aggregators.record_sum import RecordSumFactory
from tasks import custom, registry
from tasks.sources import ids, open_source
from tasks.task import (
    DamagedDataError, data_proof, is_roster, reader_in_graph, Serving, Task, VALIDATION)
from tff_pipelines.accounting.events import preliminary as preliminary_lib
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.audit import guesses, training as audit_lib
from tff_pipelines.common import declarations, files
from tff_pipelines.experiment import (
    models, records as records_lib, report as report_lib, run as run_lib)
from tff_pipelines.fedavg import (
    aggregation, columns, local_training, loop, plan as plan_lib, planning, preliminary,
    private_evaluation, process as process_lib, report, scores, silos, validation,
    warm_start)
from tff_pipelines.fedavg.server_optimizer import ServerConfig
from tff_pipelines.fedavg.settings import TrainSettings
from tff_pipelines.simulation import native_chunks


# Clients whose examples tell that the data of a resumed run are the same.
_COMPARED = 16


def sum_factory(plan: plan_lib.FedAvgPlan) -> ClientSumFactory:
  """The factory that executes a plan."""
  common = dict(diagnostics=plan.diagnostics, simulation_seed=plan.seed)
  mechanism = plan.mechanism
  if plan.adaptive is not None:
    return AdaptiveClipSumFactory(plan.params, plan.adaptive, **common)
  if plan.params is not None:
    return (BandedSumFactory if mechanism.has_bands else DistributedSumFactory)(
        plan.params, **common)
  if plan.is_private:
    common |= dict(clip=mechanism.clip, noise_multiplier=mechanism.noise_multiplier)
    if mechanism.mechanism == 'silo_noise':
      return CentralSumFactory(by_each=True, **common)
    return CentralSumFactory(**common) if not mechanism.has_bands else (
        BandedCentralSumFactory(
            column=mechanism.column, dimension=mechanism.dimension, **common))
  return PlainSumFactory(**common)


def fingerprint(task: Task) -> str:
  """SHA-256 of clients' ids, element spec and the files that examples depend on."""
  digest = ids.digest_of(task.train)
  for name, text in sorted(task.files.items()):
    if name not in task.noised_files:
      digest.update(f'{name}\0{text}\0'.encode())
  return digest.hexdigest()


def examples_fingerprint(task: Task) -> str:
  """SHA-256 of the examples of a few clients, from all over the population.

  A file that was replaced has other examples of the same clients, or of some. Of a
  roster it is the digest of the complete file, of which nothing else is known.
  """
  if is_roster(task.train):
    return data_proof(task.train).digest(in_worker=False).hex()
  digest, count = hashlib.sha256(), len(task.train.client_ids)
  for index in range(0, count, max(1, -(-count // _COMPARED))):
    client = task.train.client_ids[index]
    try:
      examples = {name: np.asarray(values)
                  for name, values in task.train.examples(client).items()}
    except DamagedDataError:
      raise  # Of these clients, whoever will be sampled.
    except Exception:  # Bad data, which are found where they are used.
      examples = {}
    for name, values in sorted(examples.items()):
      content = repr(values.tolist()).encode() if values.dtype.hasobject else (
          values.tobytes())
      digest.update(f'{client}\0{name}\0{values.shape}\0'.encode() + content)
  return digest.hexdigest()


def build_rounds(task: Task, plan: plan_lib.FedAvgPlan, initial_weights, *,
                 local: local_training.LocalConfig, server: ServerConfig,
                 clients_per_call: int | None = None,
                 own: aggregation.Aggregation | None = None,
                 audit: audit_lib.Audit | None = None,
                 **config: Any) -> loop.FedAvgRounds:
  """Federated averaging of a task under a plan, ready to run.

  `initial_weights` are float32 arrays; without `clients_per_call` the cohort decides;
  `own` is the aggregation of mechanism=own; `audit` that of canaries among the task's
  clients; `config` are further arguments of FedAvgRounds.
  """
  update = local_training.client_update(task.model.loss, local)
  if audit is not None:
    update = audit.client_update(update)
  common = dict(initial_weights=initial_weights, server=server)
  if own is not None:
    factory, clients_per_call = own.factory, None
    process = process_lib.build_composed(
        update, task.train.element_spec, factory=factory, seeded=plan.seed is not None,
        diagnostics=plan.diagnostics, **common)
  else:
    factory, cohort_size = sum_factory(plan), plan.mechanism.cohort_size
    if clients_per_call is None:
      clients_per_call = process_lib.clients_per_call(cohort_size)
    reading, spec = {}, task.train.element_spec
    if config.get('stored'):
      spec = reader_in_graph(task.train).spec
      reading['convert'] = loop.converter_in_graph(task)
    elif config.get('by_id'):
      reading['read_in_graph'] = loop.reader_in_graph(task)
    process = process_lib.build_chunked(
        update, spec, sum_factory=factory, expected_cohort_size=cohort_size,
        shows_sum=audit is not None, **reading, **common)
  return loop.FedAvgRounds(
      process, task=task, scheme=plan.scheme,
      set_cohort_size=functools.partial(
          process_lib.set_cohort_size, factory=factory),
      rounds=plan.mechanism.rounds, clients_per_call=clients_per_call, audit=audit,
      **config)


def build_steps(task: Task, plan: plan_lib.FedAvgPlan, initial_weights, *,
                server: ServerConfig, most_records: int | None = None,
                most_units: int | None = None,
                audit: audit_lib.Audit | None = None, **config: Any) -> loop.FedAvgRounds:
  """Steps of silos under a plan, ready to run; arguments as for `build_rounds`.

  `most_units` is the largest number of units of a silo; None for that of the task.
  """
  factory, scheme = RecordSumFactory(sum_factory(plan)), plan.scheme
  turns, mechanism = silos.Turns(len(scheme.column)), plan.mechanism
  most_units = most_units or max(silos.unit_counts(task.train, most_records))
  process = silos.build(
      task.model.loss, task.train.element_spec, initial_weights=initial_weights,
      factory=factory, server=server, audit=audit, units=silos.Units(
          sampling_rate=scheme.sampling_rate, expected=mechanism.cohort_size,
          # Time tells of a sample in a thousandth of delta's cases at most.
          room=silos.room(most_units, scheme.sampling_rate, turns.period, (
              plan.delta or 1e-6) / 1000 / mechanism.rounds / mechanism.silos),
          most_records=most_records))
  return loop.FedAvgRounds(
      process, task=task, scheme=scheme, audit=audit, unit_is_client=False, in_turn=turns.of,
      set_cohort_size=functools.partial(process_lib.set_cohort_size, factory=factory),
      rounds=mechanism.rounds, **config)


def _released_file(task: Task) -> str:
  """The file of the release before the first round, drawn or to be drawn."""
  return task.preliminary.file if task.preliminary else task.noised_files[0]


class TrainExperiment(run_lib.Experiment):
  """Federated averaging of one of the registered tasks."""

  family = 'train'
  takes_more_rounds = True
  settings: TrainSettings
  _start: warm_start.WarmStart | None = None
  _evaluated: dict[str, Any] | None = None
  _own: aggregation.Aggregation | None = None
  _audit: audit_lib.Audit | None = None
  _most_units: int | None = None
  run_line = staticmethod(report.run_line)

  def folder_words(self) -> tuple[str, ...]:
    task = self.settings.task
    name = task.rpartition(':')[2] if isinstance(task, str) else task.name
    return name, self.settings.mechanism

  def _task_options(self) -> dict[str, Any]:
    options, task = self.settings.task_options, self.settings.task
    if self.settings.resume and isinstance(task, str):
      # The files that the run kept take the place of its first start's.
      options |= {option: str(self.folder / name)
                  for option, name in registry.KEPT_FILES.items()
                  if option in registry.OPTIONS.get(task, ())
                  and files.read_checked(self.folder, name) is not None}
    return options

  def build_task(self) -> Task:
    own = not isinstance(self.settings.task, str)
    if self.settings.validation_path is not None and (
        own or registry.is_own(self.settings.task)):
      raise ValueError('validation_path is not used with a task of your own: give it '
                       f'a public held-out set named {VALIDATION!r}')
    options = {} if own else self._task_options()
    if self.settings.protect != 'client' and options.get('data_path') and (
        'image_field' in registry.OPTIONS.get(self.settings.task, ())):
      source = options.get('data_source') or open_source.format_of(options['data_path'])
      if source in (*open_source.OF_ROWS, 'leaf'):
        # A fraction among integers would change how all others are read.
        raise ValueError(f'protect={self.settings.protect} needs images of folders, '
                         f'npz or sqlite files, found data_source={source}')
    return self._with_sets(
        custom.checked(self.settings.task.name, self.settings.task) if own else
        registry.build(self.settings.task, **options), options)

  def _with_sets(self, task: Task, options: Mapping[str, Any]) -> Task:
    """The task with the public validation set, without what is released with noise."""
    sets = dict(task.held_out)
    if self.settings.private_evaluation:
      sets.pop(private_evaluation.SET, None)
    if self.settings.validation_path is not None:
      sets[VALIDATION] = validation.examples(task, self.settings.validation_path, options)
    return dataclasses.replace(task, held_out=sets)

  def serving(self, trained: models.Trained) -> Serving:
    return registry.serving(
        self.settings.task, trained.inputs, trained.weights, **self._task_options())

  def evaluate(self, task: Task, trained: models.Trained):
    if not task.held_out:
      raise ValueError(
          f'private_evaluation={self.settings.private_evaluation:g} leaves no exact '
          'metrics of this run: summary.json has noised ones')
    return report.scored(task.model, trained.weights, task.held_out)

  def identity(self, task: Task) -> dict[str, Any]:
    identity = {'data_fingerprint': fingerprint(task)}
    # The release with noise encodes examples, and is not known at first.
    if not (task.preliminary or task.noised_files):
      identity['examples_fingerprint'] = examples_fingerprint(task)
      if VALIDATION in task.held_out:
        identity['validation_fingerprint'] = validation.fingerprint(task)
    if isinstance(self.settings.task, str) and (
        source := registry.source(self.settings.task)):
      identity['task_source'] = source
    if self.settings.aggregation is not None:
      identity['aggregation_source'] = aggregation.source(self.settings.aggregation)
    if self.settings.warm_start is not None:
      self._start = warm_start.read(self.settings.warm_start, task.model)
    return {**identity, 'warm_start': self._start and self._start.digest,
            'agreement': None}  # Of a run whose clients are elsewhere.

  def targets(self) -> dict[str, float]:
    targets = super().targets()
    if self.settings.target_epsilon is not None:  # The default has no flag.
      targets['epsilon'] = self.settings.target_epsilon
    return targets

  def build_plan(self, task: Task | None, recorded,
                 **counts: int) -> plan_lib.FedAvgPlan:
    """The plan; without a task, that of `counts`: population and dimension."""
    if task is None:
      unplanned = [name for name in (
          'statistics_epsilon', 'private_evaluation', 'vocabulary')
                if name in self.settings.given]
      if unplanned:
        raise ValueError(f'{unplanned[0]} can\'t be planned without data: leave out '
                         'population and dimension')
    sizes, of_silos = counts, {}
    if not sizes:
      sizes = dict(dimension=task.model.parameter_count(),
                   population=len(task.train.client_ids) + self.settings.canaries)
    if self.settings.protect != 'client' and task is not None:
      unit, is_of_texts = self.settings.protect, 'sequence_length' in (
          registry.OPTIONS.get(self.settings.task, ()))
      if unit == 'record' and is_of_texts:
        unit = 'sequence that the task makes of a text'
      of_silos = dict(silos=len(task.train.client_ids), privacy_unit=f'one {unit}')
      sizes['population'] = sum(silos.unit_counts(
          task.train, self._most_records, task.held_out_of_clients)) + (
              self.settings.canaries)
      if not 1 <= (self.settings.batch_size or 1) <= sizes['population']:
        raise ValueError(f'batch_size must be in [1, {sizes["population"]}], the number of '
                         f'{self.settings.protect}s, found {self.settings.batch_size!r}')
    if self.settings.aggregation is not None:
      self._own = aggregation.build(
          self.settings.aggregation, cohort_size=self.settings.cohort_size,
          rounds=self.settings.rounds, **sizes)
    plan = plan_lib.build(
        self.settings, **sizes, aggregation=self._own, recorded=recorded,
        server=self.server, **({} if task is None else {
            'privacy_unit': task.privacy_unit, 'needed': task.preliminary, **of_silos}),
        metrics=len(private_evaluation.metric_names(task))
        if self.settings.private_evaluation else 0)
    if recorded is not None:
      plan = self._with_charges(task, plan)
    if self.earlier_rounds:
      planning.check_more_rounds(plan, self.earlier_rounds[-1])
      if self.settings.server_schedule != 'constant':
        raise ValueError(
            f'rounds={self.settings.rounds} can\'t be more than were planned: '
            f'server_schedule={self.settings.server_schedule} depends on them')
      if ledger_lib.unused(ledger_lib.Ledger(self.folder / files.LEDGER).lines()):
        raise ValueError(f'output_dir={self.folder} holds a run that was stopped: no '
                         'rounds can be added')
    return plan

  def _with_charges(self, task: Task, plan: plan_lib.FedAvgPlan) -> plan_lib.FedAvgPlan:
    """The plan with what earlier starts charged for releases beside the rounds."""
    charges = {}
    if plan.preliminary is not None:
      charges['preliminary_charges'] = records_lib.charges(
          self.folder, _released_file(task), preliminary_lib.PreliminaryRelease)
    if plan.evaluation is not None:
      charges['evaluation_charges'] = records_lib.charges(
          self.folder, private_evaluation.FILE, preliminary_lib.EvaluationRelease)
    return dataclasses.replace(plan, **charges)

  @property
  def _most_records(self) -> int | None:
    """Records of a person that are used; None where persons are not protected."""
    is_person = self.settings.protect == 'person'
    return self.settings.records_per_person if is_person else None

  def describe(self, task: Task, plan) -> report_lib.Description:
    description, notes = report.describe(task, plan), []
    if self._start is not None:
      notes = [self._start.caveat(self.settings.warm_start_is_public)]
    work = columns.workload(self.server, plan.mechanism.rounds)
    return dataclasses.replace(
        description, caveats=[*description.caveats, *notes],
        lines=[*description.lines, *report.bands_lines(plan, work)],
        details=[report.rates_line(self.settings), *description.details])

  def released(self, task: Task, plan, records) -> Task:
    if plan.preliminary is None:
      return task
    completed = []

    def draw() -> str:
      completed.append(preliminary.draw(task.preliminary, plan.preliminary, plan.seed))
      return completed[0].files[task.preliminary.file]

    records.release_once(plan.preliminary, _released_file(task), draw)
    if not completed and task.preliminary is not None:
      raise ValueError(f'{records.folder / task.preliminary.file} was released before: '
                       'the task must be built from it')
    return self._with_sets(completed[0], self._task_options()) if completed else task

  def release_last(self, task: Task, plan, records, rounds: loop.FedAvgRounds,
                   last) -> None:
    if plan.evaluation is None:
      return
    records.release_once(plan.evaluation, private_evaluation.FILE, lambda: (
        private_evaluation.draw(task, rounds.model(last), plan.evaluation, plan.seed,
                                unit=self.settings.protect, on_bad=self.write_bad()
                                )), is_last=True)
    text = files.read_checked(self.folder, private_evaluation.FILE).decode('utf-8')
    self._evaluated = private_evaluation.read(text, plan.evaluation)

  def keep(self, task: Task) -> None:
    for name, text in task.files.items():
      content = text.encode('utf-8')
      if files.read_checked(self.folder, name) != content:
        files.write_checked(self.folder, name, content)

  def planned_rounds(self, plan: plan_lib.FedAvgPlan) -> int:
    return plan.mechanism.rounds

  def _by_id(self, task: Task) -> bool:
    # Clients of TFF, which those of an aggregation of one's own are, have examples.
    return (self.settings.clients_by_id and self.settings.aggregation is None
            and not self.settings.canaries and loop.reads_by_id(task))

  def read_by_workers(self, task: Task):
    by_id, proof = self._by_id(task), data_proof(task.train)
    if is_roster(task.train) and not (self._on_ray and by_id):
      raise ValueError(f'data_path={self.settings.data_path} is a roster: its clients '
                       'must travel as ids (clients_by_id, without skip_bad_clients or '
                       'canaries), with engine=ray')
    if not (self._on_ray and by_id):
      return ()
    if proof is None:
      raise ValueError('clients_by_id can\'t be used with engine=ray and this task: '
                       'its source has no data_proof')
    return (proof,)

  @property
  def server(self) -> ServerConfig:
    """Parameters of the server's optimizer."""
    settings, warmup = self.settings, self.settings.server_warmup_rounds
    rounds = settings.rounds
    return ServerConfig(**declarations.shared(
        ServerConfig, settings, 'server_', rounds=rounds,
        warmup_rounds=rounds // 10 if warmup is None else warmup))

  def build_rounds(self, task: Task, plan) -> loop.FedAvgRounds:
    settings = self.settings
    native_chunks.encoders.clear()  # Of an earlier run in this process.
    initial = (task.model.initial_weights(settings.initial_weights_seed)
               if self._start is None else self._start.weights)
    common = dict(
        server=self.server, rounds_per_evaluation=settings.rounds_per_evaluation,
        dropout_rate=settings.simulated_dropout_rate, on_bad=self.write_bad())
    if settings.canaries:
      self._audit = audit_lib.Audit.of_run(
          self.folder, plan, len(task.train.client_ids), settings.canaries,
          is_planned=settings.plan)
      task, common['audit'] = self._audit.with_canaries(task), self._audit
    if plan.mechanism.silos is not None:
      return build_steps(task, plan, initial, most_records=self._most_records,
                         most_units=self._most_units, **common)
    return build_rounds(
        task, plan, initial, local=local_training.LocalConfig(**declarations.shared(
            local_training.LocalConfig, settings, 'client_')),
        own=self._own, clients_per_call=settings.clients_per_call,
        by_id=self._by_id(task), stored=self._by_id(task) and
        settings.engine == 'local' and not settings.local_workers, **common)

  def outcome(self, task, plan, rounds, state) -> report_lib.Outcome:
    write_bad = self.write_bad()
    for client, message in task.skips.items():
      write_bad(client, ValueError(message))
    results = scores.with_scores(
        rounds.results(state), task.model, rounds.model(state), task.held_out)
    found = self._audit and [one.to_json() for one in guesses.of_folder(self.folder)]
    outcome = report.outcome(
        plan, task, results, rounds.breakdown(state),
        self.settings.initial_weights_seed, state.get('best'), self._evaluated,
        plan.params and native_chunks.encoder(sum_factory(plan)),
        report.by_silo(task, rounds.model(state)) if (
            plan.mechanism.silos and plan.diagnostics and task.held_out_of_clients) else (
                None), found)
    audit = 'python -m tff_pipelines.audit ' + shlex.quote(
        f'--run={report_lib.folder_name(self.folder)}')
    return dataclasses.replace(outcome, next=audit if found else None, trained={
        '': models.Trained.of(task.serving, rounds.model(state))})


experiment = TrainExperiment


def plan(experiment: TrainExperiment) -> planning.Planned:
  """The plan of a run that is not started; raises as the run would."""
  settings, counts, task = experiment.settings, {}, None
  if settings.resume:
    raise ValueError('plan is of a new run: leave resume out')
  experiment.write_bad = lambda: lambda client, error: None
  if settings.population is not None:
    counts = dict(population=settings.population, dimension=settings.dimension)
  else:
    task = experiment.build_task()
    experiment.identity(task)  # Raises what does not fit the task.
  planned = experiment.build_plan(task, None, **counts)
  work = columns.workload(experiment.server, settings.rounds)
  noise = planning.error(planned, experiment.server, work)
  if task is None:
    description, seconds = report.of_counts(planned, work), None
  else:
    description = experiment.describe(task, planned)
    seconds = planning.seconds_of_round(experiment, task, planned)
  description = dataclasses.replace(description, lines=[
      *description.lines, *planning.lines(planned, noise, seconds)])
  guarantee = planned.guarantee(settings.rounds)
  return planning.Planned(
      guarantee=guarantee, error=noise, seconds=seconds,
      lines=report_lib.planned_lines(description, guarantee), **{
          name: getattr(planned.mechanism, name)
          for name in ('noise_multiplier', 'bits', 'column')})


def train(settings: TrainSettings) -> dict[str, Any] | None:
  """Trains, or resumes training, and reports; returns the summary.

  With `plan` it prints the plan alone.
  """
  experiment = TrainExperiment(settings)
  if settings.plan:
    print('\n'.join(plan(experiment).lines))
    return None
  return experiment.run()
