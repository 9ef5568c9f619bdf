"""A run of `train` whose clients are the sites of an agreement."""

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import functools
import pathlib
import secrets
import types
from typing import Any

import numpy as np

from tasks import registry, task as task_lib
from tasks.task import Task
from tff_pipelines.accounting.guarantees import guarantee as guarantee_lib
from tff_pipelines.common import files
from tff_pipelines.deployment.engine import (
    parties, pipes as pipes_lib, rounds as rounds_lib, transport)
from tff_pipelines.deployment.engine.settings import (
    AgreedSettings, AgreeSettings, PIPES)
from tff_pipelines.experiment import report as report_lib
from tff_pipelines.fedavg import loop, plan as plan_lib, run as run_lib, silos
from tff_pipelines.fedavg.settings import TrainSettings

# Settings that no agreement has: what else they release, or who reads what, is not split
# between two servers.
_REFUSED = ('adaptive_clipping', 'canaries', 'diagnostics', 'private_evaluation',
            'simulated_dropout_rate', 'skip_bad_clients', 'statistics_epsilon',
            'validation_path', 'warm_start')
_TRUST = ('one of the two servers is honest, so that no sum of fewer shares than '
          'min_honest_fraction counts on is opened; the noise is that of the clients. The '
          'helper adds the noise of clients that are missing: the epsilon of observers '
          'counts on that, the one against a server does not')
# Seconds for which the leader tries to tell the helper that the run is over.
_END = 5.0


@dataclasses.dataclass(frozen=True)
class Roster:
  """Clients of an agreement, of whom a party has its own examples, or none.

  Attributes:
    client_ids: As of `task.ClientSource`.
    source: The party's data, by whose spec all examples are.
    own: Id of a client -> id of it in the source.
  """

  client_ids: Sequence[str]
  source: task_lib.ClientSource
  own: Mapping[str, str]

  @property
  def element_spec(self) -> task_lib.Spec:
    return self.source.element_spec

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    if client_id not in self.own:
      raise ValueError(f'client {client_id!r} has its data at its own site')
    return self.source.examples(self.own[client_id])


class Plan(plan_lib.FedAvgPlan):
  """A plan that two servers execute, so that closed sums are shared by them."""

  @property
  def terms(self) -> guarantee_lib.Terms:
    terms, but = super().terms, ', except both servers together'
    observers = terms.observers.removeprefix(terms.against)
    observers = terms.observers + but if observers == terms.observers else (
        terms.against + but + observers)
    return dataclasses.replace(
        terms, secure_aggregation=guarantee_lib.TWO_SERVERS,
        against_server='either server alone',
        observers_server='either of the two servers alone, and those who know the cohorts '
        'and no share of the noise', against=terms.against + but, observers=observers,
        everyone=terms.everyone and terms.everyone + but,
        trust_model=_TRUST + ('; sums stay closed: two servers share them, and open weighted '
                              'rows alone' if self.has_closed_sums else ''))

  def guarantee(self, rounds: int, repeats: int = 0, *, suppressed: bool = False,
                **released: Any) -> guarantee_lib.Guarantee:
    """As of `guarantee.Plan`; no server saw the sum of a round that was suppressed."""
    del suppressed  # The helper opens whole sets alone.
    return super().guarantee(rounds, repeats, **released)

  def notes(self) -> list[guarantee_lib.Caveat]:
    return [note for note in super().notes() if note != guarantee_lib.CLOSED]


class Experiment(run_lib.TrainExperiment):
  """The program of an agreement, at each party: the leader runs it."""

  takes_more_rounds = False
  raw_rows = 'Each site its own; neither server'
  where: dict[str, Any] = {}  # This process.
  _engine: str | None = None
  _is_over = False

  def __init__(self, settings: AgreedSettings):
    for name in ('party', 'agreement'):
      if getattr(settings, name) is None:
        raise ValueError(f'{name} must be given with engine={settings.engine}')
    for name in ('local_workers', 'plan'):
      if getattr(settings, name):
        raise ValueError(f'{name} is not used with engine={settings.engine}: leave it out')
    self.party = parties.Party(settings.party)
    self.joint = parties.Joint.read(settings.agreement)
    self.agreed = self.joint.agreement.configuration
    digest = parties.program_digest(self.agreed)
    if digest != self.joint.agreement.program:
      raise ValueError(f'agreement={settings.agreement} is of the program '
                       f'{self.joint.agreement.program[:16]}, and installed is '
                       f'{digest[:16]}: all parties must have the same version')
    if registry.source(settings.task) != self.agreed['task_source']:
      raise ValueError(f'task={settings.task} has another source than the agreement\'s')
    self.joint.check_approved(settings.approve)
    _check_settings(settings)
    super().__init__(settings)
    self._stack = contextlib.ExitStack()
    # Before anything is printed.
    self.pipes = pipes_lib.Pipes() if settings.engine == PIPES else None

  def _task_options(self) -> dict[str, Any]:
    options, folder = super()._task_options(), self.party.of_run(self.joint.agreement)
    for option, name in registry.KEPT_FILES.items():
      if name in self.agreed['files']:
        files.write_atomically(folder / name, self.agreed['files'][name])
        options[option] = str(folder / name)
    return options

  def build_task(self) -> Task:
    """The task, whose clients are those of the agreement; none of them is here."""
    task = super().build_task()
    return dataclasses.replace(
        task, privacy_unit=self.agreed['privacy_unit'], label_counts=None,
        held_out_of_clients=None, train=Roster(
            list(self.joint.agreement.roster.clients), task.train, {}))

  def identity(self, task: Task) -> dict[str, Any]:
    differ = self.settings.differences(self.agreed['settings'])
    if differ and self.party.enrolment.role == parties.LEADER:
      raise ValueError(f'{", ".join(differ)} must be as in agreement='
                       f'{self.settings.agreement}')
    return {'agreement': self.joint.agreement.digest}

  def build_plan(self, task: Task, recorded, **counts: int) -> plan_lib.FedAvgPlan:
    """The plan of the agreement; ValueError if its parameters are not those of it."""
    plan = plan_of(self.settings, self.agreed, task.model.parameter_count(),
                   self.agreed['plan'] if recorded is None else recorded, self.server)
    agreement = self.joint.agreement
    # Charges of sites, and the noise that they make, follow from the plan.
    followed = terms_of(plan, self.settings.protect)
    if any(getattr(agreement, name) != value for name, value in followed.items()) or (
        len(agreement.roster.clients) != (plan.mechanism.silos or plan.population)):
      raise ValueError(f'agreement={self.settings.agreement} has other noise, rounds or '
                       'events than follow from its settings')
    return plan

  @property
  def _most_units(self) -> int | None:
    return self.agreed['units_of_largest']

  def check_own(self, client_id: str, source) -> None:
    """Reads a site's own examples; ValueError if its units are not as accounted for."""
    if self.settings.protect == 'client':
      source.examples(client_id)  # Raises for bad data.
    else:
      check_units(client_id, source, self._most_units, self._most_records)

  def read_by_workers(self, task: Task):
    return ()

  def split(self, task: Task, plan: plan_lib.FedAvgPlan) -> loop.FedAvgRounds:
    """The rounds as they would be simulated, of single clients."""
    if plan.mechanism.silos is None:
      self.settings = self.settings.replace(clients_per_call=1)
    return super().build_rounds(task, plan)

  def build_rounds(self, task: Task, plan: plan_lib.FedAvgPlan) -> loop.FedAvgRounds:
    rounds, joint, party = self.split(task, plan), self.joint, self.party
    return rounds_lib.DeployedRounds(
        **{field.name: getattr(rounds, field.name)
           for field in dataclasses.fields(loop.FedAvgRounds)},
        agreement=joint.agreement, identity=party.identity, carrier=self._carrier(),
        folder=party.of_run(joint.agreement), log=self._print)

  def _carrier(self) -> rounds_lib.Carrier:
    settings, joint = self.settings, self.joint
    helper, own = joint.endpoints[parties.HELPER], dict(
        most=joint.most, **self.party.connection)
    asked = functools.partial(transport.opened, b'', helper, **own)
    found = asked(settings.round_deadline, method='Agreement')
    if found != joint.agreement.digest.encode('ascii'):
      raise OSError(f'the helper at {helper.address} ' + (
          'can\'t be reached' if found is None else 'serves another agreement: end it'))
    self._stack.callback(lambda: self._is_over and asked(_END, method='Over'))
    if self.pipes is not None:
      carrier = self._stack.enter_context(contextlib.closing(pipes_lib.LeaderPipes(
          self.pipes, lambda request: transport.opened(
              request, helper, settings.round_deadline, **own), joint.most)))
      self._engine = carrier.engine
      return carrier
    sites = {name: joint.endpoints[name].certificate
             for name in joint.agreement.roster.clients}
    carrier = transport.LeaderTransport(
        sites=sites, helper=helper, deadline=settings.round_deadline, log=self._print,
        **own)
    address = self._stack.enter_context(carrier.serving(
        settings.listen or joint.endpoints[parties.LEADER].address))
    self._print(f'listening at {address} for {len(sites)} sites')
    return carrier

  def outcome(self, task, plan, rounds, state) -> report_lib.Outcome:
    self._is_over = True
    outcome = super().outcome(task, plan, rounds, state)
    carried = [] if self._engine is None else [guarantee_lib.Caveat(
        'carried by another engine', f'{self._engine} carried the messages of sites: who '
        'runs it, or its authority, sees who participates and when, can keep sites out and '
        'can end the run, and sees no vector')]
    return dataclasses.replace(outcome, caveats=[*outcome.caveats, *carried])

  def run(self) -> dict[str, Any]:
    self.joint.role_of(self.party, parties.LEADER)
    with self._stack:
      return super().run()


def plan_of(settings: TrainSettings, agreed: Mapping[str, Any], dimension: int,
            recorded: Mapping[str, Any] | None, server: Any) -> plan_lib.FedAvgPlan:
  """The plan of settings and public counts; `recorded` as for `plan.build`."""
  plan = plan_lib.build(
      settings, dimension=dimension, population=agreed['population'], recorded=recorded,
      server=server, silos=agreed['silos'], privacy_unit=agreed['privacy_unit'])
  return Plan(**{field.name: getattr(plan, field.name)
                 for field in dataclasses.fields(plan)})


def _check_settings(settings: TrainSettings) -> None:
  """Raises ValueError for settings that no agreement has."""
  if refused := [name for name in _REFUSED if name in settings.given]:
    raise ValueError(f'{refused[0]} is not used over two servers: leave it out')
  if settings.vocabulary == registry.PRIVATE_COUNTS:
    raise ValueError(f'vocabulary={settings.vocabulary} is not used over two servers: '
                     'give a file of public words')


def terms_of(plan: plan_lib.FedAvgPlan, unit: str) -> dict[str, Any]:
  """The fields of an agreement that follow from its plan.

  Clients keep the limits on their participations that the event counts on: an honest
  leader's sampling keeps them, and another's does not.
  """
  mechanism, scheme, apart, most = plan.mechanism, plan.scheme, 1, None
  rounds, is_silos = mechanism.rounds, mechanism.silos is not None
  if mechanism.sampling == 'turns':
    apart = scheme.population // scheme.turn_size
    most = -(-rounds * scheme.turn_size // scheme.population)
  elif mechanism.sampling == 'epochs':
    most = -(-rounds * scheme.largest_cohort // scheme.population)
  elif mechanism.sampling == 'poisson':
    most = mechanism.max_participations
  is_fixed = is_silos or scheme.cohort_in_words == 'exactly'
  return dict(
      params=plan.params, rounds=rounds, event=plan.released(rounds).to_json(),
      unit=unit, seed=plan.seed, apart=apart, most_answers=most,
      cohort_size=int(scheme.expected_cohort) if is_fixed else None)


def check_units(client_id: str, source, most: int, most_records: int | None) -> None:
  """ValueError unless a site's own records are as epsilon, and time, count on.

  `most` is the agreed number of units of the largest site; `most_records` as of
  `silos.Units`. Sites can't compare people with each other.
  """
  count, = silos.unit_counts(types.SimpleNamespace(
      client_ids=[client_id], examples=source.examples), most_records)
  if count > most:
    raise ValueError(f'units_of_largest={most} of the agreement must be at least the '
                     f'number of records, or persons, of each site, found {count}')


def agreed_by(settings: AgreeSettings) -> tuple[parties.Joint, Plan]:
  """The agreement of a run and its plan; ValueError for what two servers can't have."""
  training = settings.training
  _check_settings(training)
  enrolments = [parties.Enrolment.read(pathlib.Path(path.strip()))
                for path in settings.parties.split(',')]
  count = sum(one.role == parties.CLIENT for one in enrolments)
  experiment = run_lib.TrainExperiment(training)
  task, is_silos = experiment.build_task(), training.protect != 'client'
  agreed = {
      'settings': training.configuration(), 'files': dict(task.files),
      'population': settings.units if is_silos else count,
      'silos': count if is_silos else None,
      'units_of_largest': settings.units_of_largest or settings.units,
      'privacy_unit': f'one {training.protect}' if is_silos else task.privacy_unit,
      'task_source': registry.source(training.task)}
  plan = plan_of(training, agreed, task.model.parameter_count(), None, experiment.server)
  if not plan.is_private or plan.params is None or not plan.params.has_shares:
    raise ValueError('mechanism must have noise that clients add in shares, found '
                     f'{training.mechanism}')
  agreed['plan'] = plan.configuration()
  joint = parties.Joint.of(
      enrolments, run=f'{training.task} {secrets.token_hex(8)}', study=settings.study,
      program=parties.program_digest(agreed), configuration=agreed,
      **terms_of(plan, training.protect))
  return joint, plan
