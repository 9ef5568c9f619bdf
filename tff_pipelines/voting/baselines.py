"""Baselines of voting on the same tasks: FedAvg, DP-FedAvg and DP-FedSGD."""

import math
import os
import types
from typing import Any

from tasks import task as task_lib
from tasks import voting as voting_tasks
from tasks import voting_models
from tasks.voting import VotingTask
from tff_pipelines import noise_sampler
from tff_pipelines import run_report
from tff_pipelines import training
from tff_pipelines import vote_features
from tff_pipelines import vote_report
from tff_pipelines import vote_run
from tff_pipelines.accounting import base
from tff_pipelines.accounting import report as accounting_report
from tff_pipelines.accounting import request as request_lib
from tff_pipelines.algorithms import fedavg
from tff_pipelines.algorithms import local_training
from tff_pipelines.algorithms import voting_noisy_sgd
from tff_pipelines.privacy_plan import PrivacyPlan, describe_epsilon
from tff_pipelines.simulation import chunked
from tff_pipelines.simulation import cohorts
from tff_pipelines.simulation import contexts
from tff_pipelines.simulation import loop
from tff_pipelines.simulation import records as records_lib
from tff_pipelines.vote_flags import VoteConfig
from tff_pipelines.vote_plan import DEFAULT_DELTA, SgdPlan


_SHARED_NOISE = (
    'agents add shares of the noise and the server sees sums only; the agents draw '
    'their records in secret, and none of them subtracts its own share')
_ALL_SHARES = '(the noise is that of all agents: one that subtracts its own leaves less)'


class _Rounds:
  """An SgdPlan as `simulation.loop` takes plans: all agents, every round."""

  is_private = True
  # No bound is known for Gaussian numbers in floating point.
  deviation_per_round = None

  def __init__(self, plan: SgdPlan, agents: int):
    self._plan = plan
    self.simulation_seed = plan.simulation_seed
    self.round_event = plan.round_event
    self.guarantee = plan.guarantee
    self.epsilon = plan.epsilon
    self.warnings = plan.warnings
    self.sampler = cohorts.CohortSampler(
        sampling='none', population=agents, cohort_size=agents)
    # What the ledger's header says of the run.
    self.request = types.SimpleNamespace(
        population=agents, cohort_size=float(agents), delta=plan.delta,
        family=types.SimpleNamespace(trust_model=_SHARED_NOISE))


def network_of(config: VoteConfig, record_shape: tuple[int, ...],
               num_classes: int) -> voting_models.Network:
  """The model that is averaged: few parameters, if none is asked for."""
  name = config.model
  if name is None:
    name = 'cnn_small' if len(record_shape) == 2 else 'softmax'
  return voting_models.build(name, record_shape, num_classes)


def as_task(task: VotingTask, network: voting_models.Network) -> task_lib.Task:
  """A voting task as one of federated averaging."""
  return task_lib.Task(
      name=task.name, model=network.as_model(), train=task.agents,
      held_out={'test': task.test}, privacy_unit=task.privacy_unit)


def privacy_plan(config: VoteConfig, agents: int, dimension: int) -> PrivacyPlan:
  """The calibrated plan of FedAvg or DP-FedAvg."""
  cohort = config.cohort_size if config.cohort_size is not None else float(agents)
  private = config.algorithm == 'dp_fedavg'
  mechanism = 'none'
  if private:
    mechanism = 'skellam' if config.noise == 'skellam' else 'gaussian'
  delta = DEFAULT_DELTA['agent'] if config.delta is None else config.delta
  return PrivacyPlan.calibrate(
      request_lib.Request(
          query='epsilon', mechanism=mechanism,
          epsilon=config.target_epsilon if private else None,
          noise_multiplier=config.noise_multiplier if private else None,
          delta=delta, clip=config.clip, bits=config.bits, dimension=dimension,
          cohort_size=cohort, population=agents, rounds=config.rounds,
          sampling='none' if cohort == agents else 'poisson'),
      simulation_seed=config.seed)


def sgd_plan(config: VoteConfig, task: VotingTask) -> SgdPlan:
  """The calibrated plan of DP-FedSGD."""
  records = sum(len(task.agents.examples(agent)['y'])
                for agent in task.agents.client_ids)
  return SgdPlan.calibrate(
      epsilon=config.target_epsilon, noise_multiplier=config.noise_multiplier,
      delta=config.delta, sampling_rate=config.record_rate, clip=config.clip,
      rounds=config.rounds, agents=len(task.agents.client_ids), records=records,
      simulation_seed=config.seed)


def _loop_config(config: VoteConfig, clients_per_call: int) -> loop.LoopConfig:
  return loop.LoopConfig(
      rounds=config.rounds, rounds_per_evaluation=config.rounds_per_evaluation,
      clients_per_call=clients_per_call)


def _averaged(seen: VotingTask, config: VoteConfig, plan: PrivacyPlan,
              network: voting_models.Network, records: records_lib.RunRecords):
  """Runs federated averaging; test metrics of the last model."""
  factory = training.sum_factory(plan)
  process = chunked.build(
      network.as_model(), seen.agents.element_spec,
      initial_weights=network.initial_weights(config.initial_weights_seed),
      sum_factory=factory, expected_cohort_size=plan.request.cohort_size,
      local=local_training.LocalConfig(
          learning_rate=config.client_learning_rate,
          batch_size=config.client_batch_size, epochs=config.client_epochs),
      server_learning_rate=config.server_learning_rate,
      server_momentum=config.server_momentum)
  # The process is of chunks, so of at least two agents a call.
  per_call = max(2, config.clients_per_call or
                 training.default_clients_per_call(plan))
  return loop.run(
      process,
      lambda state, cohort: fedavg.tell_cohort_size(state, cohort, factory),
      as_task(seen, network), plan, records, _loop_config(config, per_call))


def _noisy_sgd(seen: VotingTask, config: VoteConfig, plan: SgdPlan,
               network: voting_models.Network, records: records_lib.RunRecords):
  """Runs DP-FedSGD; test metrics of the last model."""
  process = voting_noisy_sgd.build(
      network.as_model(), seen.agents.element_spec,
      initial_weights=network.initial_weights(config.initial_weights_seed),
      config=voting_noisy_sgd.NoisySgdConfig(
          clip=plan.clip, noise_multiplier=plan.noise_multiplier,
          sampling_rate=plan.sampling_rate, agents=plan.agents,
          expected_records=plan.expected_records),
      learning_rate=config.server_learning_rate,
      momentum=config.server_momentum, seeded=plan.simulation_seed is not None)
  return loop.run(
      process, lambda state, cohort: state, as_task(seen, network),
      _Rounds(plan, plan.agents), records, _loop_config(config, 1))


def _of_averaging(plan: PrivacyPlan, rounds: int,
                  repeated: int) -> dict[str, Any]:
  """Fields of a summary that follow from a PrivacyPlan."""
  request = plan.request
  sent = request.dimension * 4.0
  if plan.params is not None:
    sent = plan.params.padded_dimension * plan.params.bits / 8
  found = {
      'sampling': request.sampling, 'delta': request.delta,
      'trust_model': request.family.trust_model,
      'uplink_bytes_per_agent': sent * rounds * request.cohort_size /
                                request.population}
  if not plan.is_private:
    return {**found, 'delta': None}
  guarantee = plan.guarantee(rounds)
  found.update({
      'epsilon': guarantee.epsilon, 'level': 'agent',
      'sampler': plan.sampler_in_words, 'delta_sampler': plan.delta_sampler,
      'epsilon_server': (
          plan.epsilon_unamplified(rounds + repeated)
          if plan.params is not None else None),
      'adjacency': guarantee.adjacency, 'accountant': guarantee.accountant,
      'order': guarantee.order, 'amplification': guarantee.amplification,
      'noise': 'skellam' if plan.params is not None else 'gaussian_central',
      'noise_multiplier': request.noise_multiplier, 'clip': request.clip,
      'bits': plan.params.bits if plan.params is not None else None,
      'source': plan.round_event.source if not hasattr(
          plan.round_event, 'event') else plan.round_event.event.source})
  return found


def _of_sgd(plan: SgdPlan, rounds: int, repeated: int,
            dimension: int) -> dict[str, Any]:
  """Fields of a summary that follow from an SgdPlan."""
  guarantee = plan.guarantee(rounds)
  return {
      'epsilon': guarantee.epsilon,
      'epsilon_server': plan.epsilon(rounds + repeated),
      'sampler': noise_sampler.describe(None, False), 'delta': plan.delta,
      'level': 'instance', 'adjacency': guarantee.adjacency,
      'accountant': guarantee.accountant, 'order': guarantee.order,
      'amplification': guarantee.amplification, 'noise': 'gaussian',
      'noise_multiplier': plan.noise_multiplier, 'clip': plan.clip,
      'sampling': f'poisson, of records, rate {plan.sampling_rate:g}',
      'trust_model': _SHARED_NOISE,
      'source': plan.round_event.source,
      'uplink_bytes_per_agent': dimension * 4.0 * rounds}


def summary(task: VotingTask, config: VoteConfig,
            records: records_lib.RunRecords, results: dict, plan,
            network: voting_models.Network, kind: str) -> dict[str, Any]:
  """The summary of a baseline as JSON, with the fields of a vote's."""
  lines = records.ledger.lines()
  rounds = len(lines)
  # Rounds that a crash interrupted: the server may have seen them twice.
  repeated = lines[-1]['starts'] - 1
  dimension = network.as_model().parameter_count()
  if isinstance(plan, SgdPlan):
    fields = _of_sgd(plan, rounds, repeated, dimension)
  else:
    fields = _of_averaging(plan, rounds, repeated)
  found = vote_report.common(task, config, records)
  found.update({
      **fields, 'accuracy': results['test']['accuracy'],
      'loss': vote_report.finite(results['test']['loss']), 'rounds': rounds,
      'features': kind, 'model': network.name, 'parameters': dimension,
      'observers': 'those who see the released models and learn neither who nor '
                   'how many took part',
      'observers_server': 'the server and the participants, not amplified '
                          f'({accounting_report.OWN_SHARE})'})
  if isinstance(plan, SgdPlan):
    found['observers'] = ('everyone who does not learn which records were drawn, and '
                          f'holds no share of the noise {_ALL_SHARES}')
    found['observers_server'] = f'the server, which sees noisy sums {_ALL_SHARES}'
  if found['noise'] is not None and found['noise'] != 'gaussian_central':
    found['secure_aggregation'] = contexts.SECURE_AGGREGATION
  if found['adjacency'] is not None:
    found['adjacency_in_words'] = base.ADJACENCY_IN_WORDS[found['adjacency']]
  for name in ('epsilon', 'epsilon_server', 'order'):
    found[name] = vote_report.finite(found[name])
  if plan.simulation_seed is not None:
    found['epsilon_if_unseeded'] = found['epsilon']
    found['epsilon'] = found['epsilon_server'] = None
  if any(line['outcome'] == 'withheld' for line in lines):
    found['epsilon_server'] = None
    found['warnings'].append('rounds were withheld: no epsilon holds against the '
                             'server')
  found['warnings'] += plan.warnings(rounds)
  return found


def run(config: VoteConfig) -> dict[str, Any]:
  """Runs a baseline, or goes on with it, and reports as a vote does.

  Args:
    config: With algorithm fedavg, dp_fedavg or dp_fedsgd.

  Returns:
    The summary, as it is written to summary.json.
  """
  task = voting_tasks.build(config.task, **config.task_options)
  vote_run.check_task(task, config)
  network = network_of(
      config, vote_run.seen_shape(task, config), task.num_classes)
  dimension = network.as_model().parameter_count()
  if config.algorithm == 'dp_fedsgd':
    plan, execute = sgd_plan(config, task), _noisy_sgd
  else:
    plan = privacy_plan(config, len(task.agents.client_ids), dimension)
    execute = _averaged
  folder = vote_report.folder_of(config)
  records = records_lib.RunRecords(
      folder, {**config.configuration(), 'plan': plan.configuration(),
               'data_fingerprint': vote_report.fingerprint(task)},
      resume=config.resume)
  _print_plan(task, config, plan, network, dimension, records)
  features = vote_run.public_map(task, config, folder)
  seen = vote_features.through(task, features)
  with contexts.simulation(num_workers=config.num_workers):
    results = execute(seen, config, plan, network, records)
  found = summary(
      task, config, records, results, plan, network, features.kind)
  vote_report.write_summary(folder, found)
  run_report.draw(records, 'test', vote_report.title_of(found))
  vote_report.print_summary(found)
  print(f'written to {os.fspath(folder)}: {records_lib.SUMMARY}, '
        f'{records_lib.METRICS}, {records_lib.LEDGER}, {vote_report.PICTURE}')
  return found


def _print_plan(task: VotingTask, config: VoteConfig, plan, network,
                dimension: int, records: records_lib.RunRecords) -> None:
  print(f'task {task.name}, {len(task.agents.client_ids)} agents, algorithm '
        f'{config.algorithm}, model {network.name} ({dimension:,} parameters), '
        f'{config.rounds} rounds')
  if getattr(plan, 'is_private', True):
    epsilon = plan.epsilon(config.rounds)
    multiplier = getattr(plan, 'noise_multiplier', None)
    if multiplier is None:
      multiplier = plan.request.noise_multiplier
    name = 'epsilon' if plan.simulation_seed is None else 'epsilon if unseeded'
    shown = describe_epsilon(epsilon) if math.isfinite(epsilon) else 'infinite'
    print(f'noise multiplier {multiplier:.4f}, clip {config.clip:g}, {name} {shown} '
          'after all rounds')
  else:
    print('no clipping, no noise, no guarantee')
  print(f'output folder {os.fspath(records.folder)}', flush=True)
