"""A training run: one task, one plan, federated averaging, one folder."""

import dataclasses
import datetime
import hashlib
import math
import os
import pathlib

from aggregators.adaptive_clip import AdaptiveClipSumFactory
from aggregators.central_sum import CentralSumFactory
from aggregators.client_sum import ClientSumFactory
from aggregators.distributed_sum import DistributedSumFactory
from aggregators.expected_mean import ExpectedMeanFactory
from tasks import registry
from tasks.task import reader_in_graph
from tasks.task import Task
from tff_pipelines import run_report
from tff_pipelines.accounting import request as request_lib
from tff_pipelines.algorithms import fedavg
from tff_pipelines.algorithms import local_training
from tff_pipelines.flags import TrainConfig
from tff_pipelines.privacy_plan import PrivacyPlan
from tff_pipelines.simulation import chunked
from tff_pipelines.simulation import contexts
from tff_pipelines.simulation import loop
from tff_pipelines.simulation import records as records_lib

# Fields of a configuration that may differ between a run and its resumption.
_FREE = ('output_dir', 'resume', 'rounds_per_evaluation', 'num_workers',
         'clients_per_call', 'clients_by_id')
# Where the data lie may change; what they are is in the fingerprint.
_PATHS = ('data_path', 'test_path', 'cache_dir', *registry.KEPT_FILES)

# What one call holds of clients' data stays bounded.
_MOST_CLIENTS_PER_CALL = 64


def sum_factory(plan: PrivacyPlan) -> ClientSumFactory:
  """The factory that executes a plan."""
  common = dict(diagnostics=plan.diagnostics, simulation_seed=plan.simulation_seed)
  if plan.adaptive is not None:
    return AdaptiveClipSumFactory(plan.params, plan.adaptive, **common)
  if plan.params is not None:
    return DistributedSumFactory(plan.params, **common)
  if plan.is_private:
    return CentralSumFactory(
        clip=plan.request.clip, noise_multiplier=plan.request.noise_multiplier,
        **common)
  return CentralSumFactory(clip=None, noise_multiplier=0.0, **common)


def _fingerprint(task: Task) -> str:
  """Of the data: which clients there are, what an example looks like, and files
  that examples are made with."""
  digest = hashlib.sha256(repr(sorted(
      (name, str(dtype), tuple(shape))
      for name, (dtype, shape) in task.train.element_spec.items())).encode())
  for client in task.train.client_ids:
    digest.update(client.encode() + b'\0')
  for name, text in sorted(task.files.items()):
    digest.update(f'{name}\0{text}\0'.encode())
  return digest.hexdigest()


def _task_options(config: TrainConfig) -> dict:
  """The task's options; of a run that is resumed, with the files that it kept."""
  options = dict(config.task_options)
  if config.resume:
    for option, name in registry.KEPT_FILES.items():
      path = pathlib.Path(config.output_dir) / name
      if path.is_file() and option in registry.OPTIONS[config.task]:
        options[option] = str(path)
  return options


def _configuration(plan: PrivacyPlan, config: TrainConfig, task: Task) -> dict:
  fields = dataclasses.asdict(config)
  for name in _FREE:
    del fields[name]
  fields['task_options'] = {
      key: value for key, value in fields['task_options'].items()
      if key not in _PATHS}
  fields['data_fingerprint'] = _fingerprint(task)
  return {**fields, **plan.configuration()}


def _default_folder(config: TrainConfig, mechanism: str) -> pathlib.Path:
  now = datetime.datetime.now().strftime('%Y%m%d-%H%M%S')
  return pathlib.Path('out') / f'{config.task}-{mechanism}-{now}'


def default_clients_per_call(plan: PrivacyPlan) -> int:
  """Enough calls a round to keep all cores busy, and calls of bounded size."""
  cores = os.cpu_count() or 1
  per_core = math.ceil(plan.request.cohort_size / cores)
  return max(2, min(per_core, _MOST_CLIENTS_PER_CALL))


def _by_id(task: Task, config: TrainConfig) -> bool:
  return config.clients_by_id and loop.reads_by_id(task)


def _process(task: Task, plan: PrivacyPlan, config: TrainConfig,
             factory: ClientSumFactory, initial_weights):
  """Federated averaging, in the plain form or with many clients in a call."""
  common = dict(
      initial_weights=initial_weights,
      local=local_training.LocalConfig(
          learning_rate=config.client_learning_rate,
          batch_size=config.client_batch_size, epochs=config.client_epochs),
      server_learning_rate=config.server_learning_rate,
      server_momentum=config.server_momentum,
      read_in_graph=reader_in_graph(task.train) if _by_id(task, config) else None)
  expected = plan.request.cohort_size
  if config.clients_per_call == 1:
    return fedavg.build(
        task.model, task.train.element_spec,
        mean_factory=ExpectedMeanFactory(factory, expected),
        seeded=factory.seeded, diagnostics=factory.diagnostics, **common)
  return chunked.build(
      task.model, task.train.element_spec, sum_factory=factory,
      expected_cohort_size=expected, **common)


def train(request: request_lib.Request, given: frozenset[str],
          config: TrainConfig) -> dict:
  """Trains, or goes on training, and reports.

  Args:
    request: What is asked of privacy; dimension and population are filled in.
    given: Names of the privacy flags that the user gave.
    config: Everything else.

  Returns:
    The summary, as it is written to summary.json.
  """
  task = registry.build(config.task, **_task_options(config))
  initial_weights = task.model.initial_weights(config.initial_weights_seed)
  population = len(task.train.client_ids)
  dimension = sum(w.size for w in initial_weights)
  plan = PrivacyPlan.calibrate(
      request.replace(dimension=int(dimension), population=population,
                      dropout_rate=config.simulated_dropout_rate),
      given=given, simulation_seed=config.seed, diagnostics=config.diagnostics,
      target_quantile=config.target_quantile,
      clip_learning_rate=config.clip_learning_rate,
      noise_generator=config.noise_generator)
  folder = config.output_dir or _default_folder(config, request.mechanism)
  factory = sum_factory(plan)
  records = records_lib.RunRecords(
      folder, _configuration(plan, config, task), resume=config.resume)
  for name, text in task.files.items():
    records_lib.write_atomically(records.folder / name, text)
  breakdown = {}
  run_report.print_plan(plan, task, records)
  with contexts.simulation(num_workers=config.num_workers):
    process = _process(task, plan, config, factory, initial_weights)
    results = loop.run(
        process,
        lambda state, cohort: fedavg.tell_cohort_size(state, cohort, factory),
        task, plan, records,
        loop.LoopConfig(
            rounds=request.rounds,
            rounds_per_evaluation=config.rounds_per_evaluation,
            dropout_rate=config.simulated_dropout_rate,
            by_id=_by_id(task, config),
            clients_per_call=config.clients_per_call or default_clients_per_call(plan)),
        on_end=lambda evaluator, weights: breakdown.update(
            evaluator.breakdown(weights)))
  return run_report.finish(
      plan, task, records, results, config.initial_weights_seed, breakdown)
