"""A run of AE-DPFL or kNN-DPFL."""

import collections
import dataclasses
from typing import Any

import numpy as np

from aggregators.voting import VotingFactory
from aggregators.voting_params import VotingParams
from tasks.models import classifiers
from tasks.voting.task import VotingTask
from tff_pipelines.common import declarations, decimals, files
from tff_pipelines.experiment import report as report_lib, rounds as rounds_lib
from tff_pipelines.fedavg import adam, report as fedavg_report
from tff_pipelines.simulation import contexts
from tff_pipelines.voting import (
    agents, baselines, features as features_lib, process, report)
from tff_pipelines.voting.plan import VotePlan
from tff_pipelines.voting.settings import VoteSettings


@dataclasses.dataclass(kw_only=True, eq=False)
class VoteRounds(rounds_lib.Rounds):
  """The one round of a vote; its state is the labels and no more."""

  task: VotingTask
  plan: VotePlan
  settings: VoteSettings
  network: classifiers.Network
  asked: baselines.Asked

  count = 1
  unit = 'vote'

  def initial_state(self, resumed: bool) -> Any:
    # -2 stands for a label before the vote.
    return collections.OrderedDict(labels=np.full(len(self.asked.rows), -2, np.int32))

  def step(self, state: Any, index: int) -> rounds_lib.Step:
    settings, seen, seed = self.settings, self.task, self.plan.seed
    if settings.clients_see_features:
      # One record more or less must not move the others' features, not by a bit.
      seen = features_lib.map_records(
          seen, self.asked.features, alone=settings.algorithm == 'knn')
    if settings.algorithm == 'knn':
      seen = features_lib.as_grid(seen)
      answer = features_lib.nearest_votes(settings.neighbours, seen.num_classes)
    else:
      answer = agents.trained_votes(
          self.network, self.network.initial_weights(settings.initial_weights_seed),
          agents.AgentConfig(**declarations.shared(
              agents.AgentConfig, settings, 'client_',
              adversarial=settings.adversarial_strength, training=adam.AdamConfig(
                  weight_decay=settings.client_weight_decay,
                  **settings.client_training(self.network.name)))))
    voting = process.build(answer, VotingFactory(self.plan.params, simulation_seed=seed),
                           seen.agents.element_spec)
    # Values of `fedavg.process.client_type`.
    values = [collections.OrderedDict(
        examples=collections.OrderedDict(sorted(seen.agents.examples(agent).items())),
        **({} if seed is None else {'key': contexts.client_key(seed, 1, number)}))
              for number, agent in enumerate(seen.agents.client_ids)]
    output = voting.next(voting.initialize(), process.public_value(
        seen.public[self.asked.rows],
        seen.public if settings.adversarial_strength > 0 else None), values)
    labels = np.asarray(output['labels'])
    return rounds_lib.Step(state=collections.OrderedDict(labels=labels),
                           suppressed=bool(output['measurements']['suppressed']),
                           metrics={'answered': float((labels >= 0).mean())})


class VoteExperiment(baselines.VotingExperiment):
  def targets(self) -> dict[str, float]:
    # The published formula is no bound.
    return {} if self.settings.bound == 'paper' else super().targets()

  def build_plan(self, task, recorded) -> VotePlan:
    settings = self.settings
    agents = len(task.agents.client_ids)
    # How many records there are is no one's to know: one may be added or removed.
    units = agents if settings.privacy_level == 'agent' else None
    return VotePlan.calibrate(
        VotingParams(**declarations.shared(
            VotingParams, settings, classes=task.num_classes, noise_stddev=1.0,
            agents=agents, votes=settings.neighbours if settings.algorithm == 'knn' else 1)),
        target_epsilon=None if recorded else settings.target_epsilon,
        noise_stddev=settings.noise_stddev or (recorded and recorded['noise_stddev']),
        allow_degenerate=settings.allow_degenerate, scheme=settings.algorithm,
        level=settings.privacy_level, delta=settings.privacy_delta(units, recorded),
        calibrated_by=settings.bound, seed=settings.seed,
        privacy_unit=self.privacy_unit(task))

  def describe(self, task, plan) -> report_lib.Description:
    params = plan.params
    stddev, counts = (decimals.rounded_up(value) for value in (
        params.noise_stddev, params.votes * params.noise_stddev))
    return report.describe(task, [
        ('run', self.run_line(plan, 1)), ('mechanism', (
            f'{params.noise}, standard deviation {stddev} agents'
            + f' ({counts} counts)' * (params.votes > 1)
            + f', sum modulo 2^{params.bits}' * params.is_integer)),
        ('published', f'epsilon {decimals.epsilon(plan.epsilon_published)} by the '
                      'formula of the paper')])

  def run_line(self, plan: VotePlan, rounds: int) -> str:
    params = plan.params
    by = ('models of their own' if plan.scheme == 'ae' else
          f'their {params.votes} nearest records')
    return f'{params.agents} agents vote on {params.queries} queries by {by}'

  def build_rounds(self, task, plan) -> VoteRounds:
    return VoteRounds(task=task, plan=plan, settings=self.settings,
                      network=self.network(task), asked=self.asked(task))

  def outcome(self, task, plan, rounds, state) -> report_lib.Outcome:
    settings, params, is_ae = self.settings, plan.params, plan.scheme == 'ae'
    own = self.taught(task, rounds.asked, np.asarray(state['labels']),
                      fedavg_report.title(plan, f'{task.name}, {plan.scheme}', 1))
    parameters = rounds.network.as_model().parameter_count()
    return report.outcome(
        task, settings, fields={
            'mechanism': f'{plan.scheme}_vote', 'cohort_size': params.agents,
            'noise_stddev': params.noise_stddev,
            'bits': params.bits if params.is_integer else None,
            'model': rounds.network.name if is_ae else None,
            'parameters': parameters if is_ae else None, 'details': {
                **{name: getattr(settings, name) for name in (
                    'noise', 'bound', 'threshold')},
                'neighbours': None if is_ae else settings.neighbours,
                **own.pop('details'), 'features': rounds.asked.features.kind,
                'epsilon_published': files.finite(plan.epsilon_published),
                'uplink_bytes_per_agent': params.uplink_bytes,
                'uplink_of_federated_averaging': 4.0 * parameters * settings.rounds,
                'parameters_of_federated_averaging': parameters}}, **own)


def experiment(settings: VoteSettings) -> baselines.VotingExperiment:
  """The vote, or the baseline, of these settings."""
  return {'ae': VoteExperiment, 'knn': VoteExperiment,
          'dp_fedsgd': baselines.FedSgdExperiment}.get(
              settings.algorithm, baselines.AveragingExperiment)(settings)
