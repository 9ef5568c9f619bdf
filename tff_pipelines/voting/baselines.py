"""Baselines of voting on the same tasks: FedAvg, DP-FedAvg and DP-FedSGD."""

from typing import Any

from tasks import task as task_lib
from tasks.voting.task import VotingTask
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
from tff_pipelines.voting import report

_SHARED_NOISE = (
    'agents add shares of the noise and the server sees sums only; the agents sample '
    'their records in secret, and none of them subtracts its own share')
_ALL_SHARES = (
    '(the noise is that of all agents: one that subtracts its own share leaves less)')


class SgdPlan(NoisySgdPlan):
  """Rounds of DP-FedSGD, whose server does not know which records were sampled."""

  def bound(self, event, releases, *, server=False) -> guarantee.Bound:
    return super().bound(event, releases)

  def header(self, rounds, more=()) -> dict[str, Any]:
    return {**super().header(rounds, more), 'population': self.clients}


class _BaselineExperiment(preparation.VotingExperiment):
  """Rounds of a baseline on the agents' records, seen through the public map."""

  def planned_rounds(self, plan) -> int:
    return self.settings.rounds

  def _description(self, task: VotingTask, plan: guarantee.Plan,
                   mechanism: str) -> report_lib.Description:
    """The run that is about to start; `mechanism` is one line of the report."""
    model = self.network(task).as_model()
    return report.describe(task, [
        ('model', f'{model.name} with {model.parameter_count():,} parameters'),
        ('run', self.run_line(plan, self.settings.rounds)), ('mechanism', mechanism)])

  def federated(self, task: VotingTask) -> task_lib.Task:
    """The records through the public map, as a task of federated averaging."""
    seen = features_lib.map_records(task, self.public_map(task))
    return task_lib.Task(
        name=task.name, model=self.network(task).as_model(), train=seen.agents,
        held_out={'test': seen.test}, privacy_unit=task.privacy_unit)

  def _outcome(self, task: VotingTask, plan: guarantee.Plan,
               metrics: fedavg_report.Results, details: dict[str, Any],
               **fields: Any) -> report_lib.Outcome:
    settings = self.settings
    title = fedavg_report.title(
        plan, f'{task.name}, {settings.algorithm}', settings.rounds)
    kind = features_lib.read_map(self.folder, task.public).kind
    return report.outcome(
        task, settings, metrics['test'], files=(files.METRICS,),
        figures={files.FIGURE: lambda path: fedavg_report.draw_metrics(
            path, 'test', title)},
        fields={**fields, 'model': self.network(task).name,
                'details': {**details, 'features': kind}})


class AveragingExperiment(_BaselineExperiment):
  """FedAvg and DP-FedAvg."""

  def build_plan(self, task, recorded) -> FedAvgPlan:
    settings, agents = self.settings, len(task.agents.client_ids)
    mechanism, cohort = 'none', settings.cohort_size or float(agents)
    if settings.algorithm == 'dp_fedavg':
      mechanism = 'skellam' if settings.noise == 'skellam' else 'gaussian'
    return FedAvgPlan.calibrate(
        mechanisms.SumMechanism(
            mechanism=mechanism, noise_multiplier=settings.noise_multiplier,
            clip=settings.clip, bits=settings.bits,
            dimension=self.network(task).as_model().parameter_count(),
            cohort_size=cohort, population=agents, rounds=settings.rounds,
            sampling='none' if cohort == agents else 'poisson'),
        delta=settings.privacy_delta, target_epsilon=settings.target_epsilon,
        recorded_noise=recorded and recorded['noise_multiplier'], seed=settings.seed,
        privacy_unit=self.privacy_unit(task))

  def run_line(self, plan: FedAvgPlan, rounds: int) -> str:
    return f'{self.settings.algorithm}: {fedavg_report.run_line(plan, rounds)}'

  def describe(self, task, plan) -> report_lib.Description:
    return self._description(task, plan, fedavg_report.mechanism_line(plan))

  def build_rounds(self, task, plan) -> loop.FedAvgRounds:
    settings, task = self.settings, self.federated(task)
    return fedavg_run.build_rounds(
        task, plan, task.model.initial_weights(settings.initial_weights_seed),
        local=local_training.LocalConfig(**settings.client_training(task.model.name)),
        server_learning_rate=settings.server_learning_rate,
        server_momentum=settings.server_momentum,
        clients_per_call=settings.clients_per_call,
        rounds_per_evaluation=settings.rounds_per_evaluation)

  def outcome(self, task, plan, rounds, state) -> report_lib.Outcome:
    params, mechanism = plan.params, plan.mechanism
    sent = mechanism.dimension * 4.0
    if params is not None:
      sent = params.padded_dimension * params.bits / 8
    return self._outcome(task, plan, rounds.results(state), {
        'noise': self.settings.noise if plan.is_private else None,
        'uplink_bytes_per_agent': (
            sent * mechanism.rounds * mechanism.cohort_size / mechanism.population)},
                         **fedavg_report.fields(plan))


class FedSgdExperiment(_BaselineExperiment):
  """DP-FedSGD."""

  def build_plan(self, task, recorded) -> SgdPlan:
    settings, agents = self.settings, task.agents
    self.network(task)  # Raises what does not fit.
    kept = recorded and recorded['noise_multiplier']
    return SgdPlan.calibrate(
        target_epsilon=None if kept else settings.target_epsilon,
        noise_multiplier=kept or settings.noise_multiplier,
        delta=settings.privacy_delta, sampling_rate=settings.record_rate,
        clip=settings.clip, rounds=settings.rounds, clients=len(agents.client_ids),
        records=sum(len(agents.examples(agent)['y']) for agent in agents.client_ids),
        seed=settings.seed, terms=guarantee.Terms(
            privacy_unit=self.privacy_unit(task),
            observers='everyone who does not learn which records were sampled, and '
                      f'holds no share of the noise {_ALL_SHARES}',
            against='observers of the released models',
            observers_server=f'the server, which sees noisy sums {_ALL_SHARES}',
            against_server='the server, which sees noisy sums',
            sampling=f'poisson, of records, rate {settings.record_rate:g}',
            trust_model=_SHARED_NOISE, source=events.NoisyGradients.source,
            sampler=noise_budget.describe_sum(None, False), secure_aggregation=True))

  def run_line(self, plan: SgdPlan, rounds: int) -> str:
    return (f'dp_fedsgd: {rounds} rounds of all {plan.clients:,} agents, '
            f'{plan.expected_records:.6g} of {plan.records:,} records expected')

  def describe(self, task, plan) -> report_lib.Description:
    noise = report_lib.noise_in_words(
        plan.noise_multiplier, given=self.settings.noise_multiplier is not None)
    return self._description(
        task, plan, f'noisy_sgd, noise multiplier {noise}, clip {plan.clip:g}')

  def build_rounds(self, task, plan) -> loop.FedAvgRounds:
    settings, task = self.settings, self.federated(task)
    process = noisy_sgd.build(
        task.model, task.train.element_spec,
        initial_weights=task.model.initial_weights(settings.initial_weights_seed),
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
        rounds=plan.rounds, rounds_per_evaluation=settings.rounds_per_evaluation)

  def outcome(self, task, plan, rounds, state) -> report_lib.Outcome:
    size = self.network(task).as_model().parameter_count()
    return self._outcome(
        task, plan, rounds.results(state),
        {'noise': 'gaussian', 'uplink_bytes_per_agent': size * 4.0 * plan.rounds},
        mechanism='noisy_sgd', noise_multiplier=plan.noise_multiplier, clip=plan.clip,
        parameters=size, cohort_size=plan.clients)
