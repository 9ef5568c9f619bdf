"""Baselines of voting on the same tasks: FedAvg, DP-FedAvg and DP-FedSGD."""

from collections.abc import Iterable, Mapping
from typing import Any

from tasks import task as task_lib
from tasks.models import classifiers
from tasks.voting.task import VotingTask
from tff_pipelines.accounting import base
from tff_pipelines.accounting import events
from tff_pipelines.accounting import mechanisms
from tff_pipelines.accounting import noise_budget
from tff_pipelines.accounting import schemes
from tff_pipelines.experiment import files
from tff_pipelines.experiment import guarantee
from tff_pipelines.experiment import report as report_lib
from tff_pipelines.fedavg import evaluation
from tff_pipelines.fedavg import local_training
from tff_pipelines.fedavg import loop
from tff_pipelines.fedavg import report as fedavg_report
from tff_pipelines.fedavg import run as fedavg_run
from tff_pipelines.fedavg.plan import FedAvgPlan
from tff_pipelines.learning import noisy_sgd
from tff_pipelines.learning.noisy_sgd_plan import NoisySgdPlan
from tff_pipelines.voting import features as features_lib
from tff_pipelines.voting import preparation
from tff_pipelines.voting import records
from tff_pipelines.voting import report
from tff_pipelines.voting.settings import VoteSettings

_SHARED_NOISE = (
    'agents add shares of the noise and the server sees sums only; the agents sample '
    'their records in secret, and none of them subtracts its own share')
_ALL_SHARES = (
    '(the noise is that of all agents: one that subtracts its own share leaves less)')


class SgdPlan(NoisySgdPlan):
  """Rounds of DP-FedSGD, whose server does not know which records were sampled."""

  def bound(self, event: base.Event, releases: int, *,
            server: bool = False) -> guarantee.Bound:
    del server
    return super().bound(event, releases)

  def header(self, rounds: int, more: Iterable[str] = ()) -> dict[str, Any]:
    return {**super().header(rounds, more), 'population': self.clients}


def averaging_plan(
    settings: VoteSettings, *, agents: int, dimension: int, privacy_unit: str,
    recorded_noise: float | None = None) -> FedAvgPlan:
  """The calibrated plan of FedAvg or DP-FedAvg."""
  cohort = float(agents) if settings.cohort_size is None else settings.cohort_size
  mechanism = 'none'
  if settings.algorithm == 'dp_fedavg':
    mechanism = 'skellam' if settings.noise == 'skellam' else 'gaussian'
  return FedAvgPlan.calibrate(
      mechanisms.SumMechanism(
          mechanism=mechanism, noise_multiplier=settings.noise_multiplier,
          clip=settings.clip, bits=settings.bits, dimension=dimension,
          cohort_size=cohort, population=agents, rounds=settings.rounds,
          sampling='none' if cohort == agents else 'poisson'),
      delta=settings.privacy_delta, target_epsilon=settings.target_epsilon,
      recorded_noise=recorded_noise, seed=settings.seed, privacy_unit=privacy_unit)


def sgd_plan(
    settings: VoteSettings, *, agents: int, num_records: int, privacy_unit: str,
    recorded_noise: float | None = None) -> SgdPlan:
  """The calibrated plan of DP-FedSGD."""
  terms = guarantee.Terms(
      privacy_unit=privacy_unit,
      observers='everyone who does not learn which records were sampled, and holds no '
                f'share of the noise {_ALL_SHARES}',
      against='observers of the released models',
      observers_server=f'the server, which sees noisy sums {_ALL_SHARES}',
      against_server='the server, which sees noisy sums',
      sampling=f'poisson, of records, rate {settings.record_rate:g}',
      trust_model=_SHARED_NOISE, source=events.NoisyGradients.source,
      sampler=noise_budget.describe_sum(None, False), secure_aggregation=True)
  return SgdPlan.calibrate(
      terms=terms, target_epsilon=None if recorded_noise else settings.target_epsilon,
      noise_multiplier=recorded_noise or settings.noise_multiplier,
      delta=settings.privacy_delta, sampling_rate=settings.record_rate,
      clip=settings.clip, rounds=settings.rounds, clients=agents, records=num_records,
      seed=settings.seed)


def as_task(task: VotingTask, network: classifiers.Network) -> task_lib.Task:
  """A voting task as one of federated averaging."""
  return task_lib.Task(
      name=task.name, model=network.as_model(), train=task.agents,
      held_out={'test': task.test}, privacy_unit=task.privacy_unit)


class _BaselineExperiment(preparation.VotingExperiment):
  """Rounds of a baseline on the agents' records, seen through the public map."""

  def network(self, task: VotingTask) -> classifiers.Network:
    """The model that is trained: one of few parameters, if none is given."""
    shape = preparation.seen_shape(task, self.settings)
    name = self.settings.model
    if name is None:
      name = 'cnn_small' if len(shape) == 2 else 'softmax'
    return classifiers.build(name, shape, task.num_classes)

  def plan_arguments(self, task: VotingTask,
                     recorded: Mapping[str, Any] | None) -> dict[str, Any]:
    """Arguments that the plans of all baselines have in common."""
    calibrated = recorded and self.settings.noise_multiplier is None
    return dict(
        agents=len(task.agents.client_ids),
        privacy_unit=preparation.privacy_unit(task, self.settings),
        recorded_noise=recorded['noise_multiplier'] if calibrated else None)

  def fields(self, plan: guarantee.Plan, parameters: int) -> dict[str, Any]:
    """Fields of the summary that follow from plan and model."""
    raise NotImplementedError

  def details(self, plan: guarantee.Plan, parameters: int) -> dict[str, Any]:
    """Kind of noise, and bytes that an agent sends in all."""
    raise NotImplementedError

  def describe(self, task: VotingTask,
               plan: guarantee.Plan) -> report_lib.Description:
    settings, network = self.settings, self.network(task)
    parameters = network.as_model().parameter_count()
    mechanism = 'none: no clipping, no noise, no guarantee'
    if plan.is_private:
      fields = self.fields(plan, parameters)
      noise = report_lib.noise_in_words(
          fields['noise_multiplier'], given=settings.noise_multiplier is not None)
      bits = f', {fields["bits"]} bits' if fields.get('bits') else ''
      mechanism = (f'{fields["mechanism"]}, noise multiplier {noise}, clip '
                   f'{settings.clip:g}{bits}')
    return report.describe(task, [
        ('model', f'{network.name} with {parameters:,} parameters'),
        ('run', self.run_line(plan, settings.rounds)), ('mechanism', mechanism)])

  def planned_rounds(self, plan: guarantee.Plan) -> int:
    return self.settings.rounds

  def build_rounds(self, task: VotingTask, plan: guarantee.Plan) -> loop.FedAvgRounds:
    features = preparation.public_map(task, self.settings, self.folder)
    network = self.network(task)
    return self.federated_rounds(
        as_task(features_lib.map_records(task, features), network), plan,
        network.initial_weights(self.settings.initial_weights_seed))

  def federated_rounds(self, task: task_lib.Task, plan: guarantee.Plan,
                       initial_weights: list) -> loop.FedAvgRounds:
    """The rounds on a task of federated averaging."""
    raise NotImplementedError

  def outcome(self, task: VotingTask, plan: guarantee.Plan,
              rounds: loop.FedAvgRounds, state: Any) -> report_lib.Outcome:
    settings, network = self.settings, self.network(task)
    parameters = network.as_model().parameter_count()
    title = fedavg_report.title(
        plan, f'{task.name}, {settings.algorithm}', settings.rounds)
    return report.outcome(
        task, settings, rounds.results(state)['test'], files=(files.METRICS,),
        fields={**self.fields(plan, parameters), 'model': network.name},
        figures={files.FIGURE: lambda path: fedavg_report.draw_metrics(
            path, 'test', title)},
        details={'features': records.read_map(self.folder, task.public).kind,
                 **self.details(plan, parameters)})


class AveragingExperiment(_BaselineExperiment):
  """FedAvg and DP-FedAvg."""

  def build_plan(self, task: VotingTask,
                 recorded: Mapping[str, Any] | None) -> FedAvgPlan:
    return averaging_plan(
        self.settings, dimension=self.network(task).as_model().parameter_count(),
        **self.plan_arguments(task, recorded))

  def run_line(self, plan: FedAvgPlan, rounds: int) -> str:
    return f'{self.settings.algorithm}: {fedavg_report.run_line(plan, rounds)}'

  def federated_rounds(self, task: task_lib.Task, plan: FedAvgPlan,
                       initial_weights: list) -> loop.FedAvgRounds:
    settings = self.settings
    return fedavg_run.build_rounds(
        task, plan, initial_weights, local=local_training.LocalConfig(
            **settings.client_training(task.model.name)),
        server_learning_rate=settings.server_learning_rate,
        server_momentum=settings.server_momentum,
        clients_per_call=settings.clients_per_call,
        rounds_per_evaluation=settings.rounds_per_evaluation)

  def fields(self, plan: FedAvgPlan, parameters: int) -> dict[str, Any]:
    return fedavg_report.fields(plan)

  def details(self, plan: FedAvgPlan, parameters: int) -> dict[str, Any]:
    params, mechanism = plan.params, plan.mechanism
    sent, noise = parameters * 4.0, 'gaussian_central' if plan.is_private else None
    if params is not None:
      sent, noise = params.padded_dimension * params.bits / 8, 'skellam'
    return {'noise': noise, 'uplink_bytes_per_agent': (
        sent * mechanism.rounds * mechanism.cohort_size / mechanism.population)}


class FedSgdExperiment(_BaselineExperiment):
  """DP-FedSGD."""

  def build_plan(self, task: VotingTask,
                 recorded: Mapping[str, Any] | None) -> SgdPlan:
    self.network(task)  # Raises what does not fit.
    return sgd_plan(
        self.settings, num_records=sum(len(task.agents.examples(agent)['y'])
                                   for agent in task.agents.client_ids),
        **self.plan_arguments(task, recorded))

  def run_line(self, plan: SgdPlan, rounds: int) -> str:
    return (f'dp_fedsgd: {rounds} rounds of all {plan.clients:,} agents, '
            f'{plan.expected_records:.6g} of {plan.records:,} records expected')

  def federated_rounds(self, task: task_lib.Task, plan: SgdPlan,
                       initial_weights: list) -> loop.FedAvgRounds:
    settings = self.settings
    process = noisy_sgd.build(
        task.model, task.train.element_spec, initial_weights=initial_weights,
        config=noisy_sgd.NoisySgdConfig(
            clip=plan.clip, noise_multiplier=plan.noise_multiplier,
            sampling_rate=plan.sampling_rate, agents=plan.clients,
            expected_records=plan.expected_records),
        learning_rate=settings.server_learning_rate,
        momentum=settings.server_momentum, seeded=plan.seed is not None)
    return loop.FedAvgRounds(
        process, task=task, headline=task.model.headline,
        evaluator=evaluation.Evaluator(task.model, task.held_out),
        scheme=schemes.Everyone(
            population=plan.clients, cohort_size=plan.clients,
            simulation_seed=plan.seed),
        config=loop.LoopConfig(rounds=plan.rounds,
                               rounds_per_evaluation=settings.rounds_per_evaluation))

  def fields(self, plan: SgdPlan, parameters: int) -> dict[str, Any]:
    return {'mechanism': 'noisy_sgd', 'noise_multiplier': plan.noise_multiplier,
            'clip': plan.clip, 'parameters': parameters, 'cohort_size': plan.clients}

  def details(self, plan: SgdPlan, parameters: int) -> dict[str, Any]:
    return {'noise': 'gaussian',
            'uplink_bytes_per_agent': parameters * 4.0 * plan.rounds}
