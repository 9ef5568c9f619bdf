"""Commands of the parties of a federation, and `train` with their engine."""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import pathlib
import threading

import grpc

from tff_pipelines.common import decimals, files
from tff_pipelines.deployment import client as client_lib, helper as helper_lib
from tff_pipelines.deployment.engine import (
    experiment as experiment_lib, parties, pipes, program as program_lib,
    settings as settings_lib, transport)
from tff_pipelines.fedavg import loop, process
from tff_pipelines.simulation import contexts


def _say(text: str) -> None:
  print(text, flush=True)


def enrol(settings: settings_lib.EnrolSettings) -> None:
  """Makes a party's folder, and says what the others need of it."""
  party = parties.Party.new(
      settings.party, settings.name, settings.role, settings.address or '')
  _say(f'{settings.role} {party.name!r}: fingerprint {party.enrolment.keys.fingerprint}\n'
       f'give {party.folder / parties.ENROLMENT} to who makes the agreement; nothing else '
       'of the folder leaves it')
  if settings.role == parties.CLIENT:
    _say(f'fill in {party.folder / parties.POLICY}: as it is, it refuses every run')


def agree(settings: settings_lib.AgreeSettings) -> None:
  """Writes the agreement of a run, and prints its plan."""
  joint, plan = experiment_lib.agreed_by(settings)
  path = pathlib.Path(settings.agreement)
  if path.exists():
    raise ValueError(f'agreement={path} exists: an agreement is not overwritten')
  files.write_json(path, joint.to_json())
  files.publish(path)
  _say('\n'.join([
      *_terms(joint), *(f'epsilon: {line}' for line in plan.guarantee(
          joint.agreement.rounds).lines()), f'agreement: {path}, for all parties']))


def _terms(joint: parties.Joint) -> list[str]:
  """The terms of an agreement, in lines for its parties."""
  agreement = joint.agreement
  params, roster = agreement.params, agreement.roster
  size = agreement.cohort_size or round(agreement.believed)
  return [
      f'digest: {agreement.digest}', f'run: {agreement.run}',
      f'study: {agreement.study}', f'program: {agreement.program}',
      f'protects: one {agreement.unit}' + ', and is seeded: not private' * (
          agreement.seed is not None),
      f'rounds: {agreement.rounds}, of {"" if agreement.cohort_size else "up to "}{size} '
      f'clients; a sum has {agreement.least(size)} or more'
      + ('' if agreement.most_answers is None else
         f'; a client answers {agreement.most_answers}, {agreement.apart} or more apart'),
      f'noise: {params.mechanism}, {params.noise_multiplier:g} of the clip '
      f'{params.clip:g}, which {params.min_honest_fraction:.0%} honest clients add; '
      f'{params.bits} bits',
      *(f'{name}: fingerprint {keys.fingerprint}' for name, keys in (
          (parties.LEADER, roster.leader), (parties.HELPER, roster.helper),
          *roster.clients.items()))]


def status(settings: settings_lib.StatusSettings) -> int:
  """Says what a site has spent, and whether it would take part in a run.

  Returns 1 if it would not.
  """
  party = parties.Party(settings.party)
  _say(f'{party.enrolment.role} {party.name!r}: fingerprint '
       f'{party.enrolment.keys.fingerprint}')
  joint = settings.agreement and parties.Joint.read(settings.agreement)
  code = 0
  if party.enrolment.role == parties.CLIENT:
    policy, ledger = party.policy(), party.ledger
    for entry in ledger.entries():
      _say(f'{entry["date"]}: {entry["run"]} on {entry["data_set"]}, for {entry["study"]}')
    spent = ledger.epsilon(policy)
    _say(f'{policy.data_set} in 365 days: epsilon {decimals.epsilon(spent)} of '
         f'{policy.epsilon:g} spent for a {policy.unit}, at delta {policy.delta:g}')
    if joint:
      if joint.agreement.digest not in {
          entry['agreement'] for entry in ledger.entries()}:
        total = ledger.epsilon(policy, joint.agreement.event)
        _say(f'with the run: {decimals.epsilon(total)}')
      problems = ledger.problems(policy, joint.agreement)
      _say('\n'.join(f'the policy refuses the run: {problem}' for problem in problems) or
           'the policy allows the run')
      code = int(bool(problems))
  if joint:
    digest = parties.program_digest(joint.agreement.configuration)
    fits = digest == joint.agreement.program
    _say('\n'.join(['agreement:', *(f'  {line}' for line in _terms(joint)),
                    '  installed: ' + ('the same program' if fits else
                                       f'another version, {digest}')]))
    code = code or int(not fits)
  return code


def leader(settings: settings_lib.LeaderSettings) -> None:
  """Runs the leader's part, with the settings of the agreement."""
  recorded = parties.Joint.read(settings.agreement).agreement.configuration['settings']
  experiment_lib.Experiment(settings.training(recorded)).run()


def client(settings: settings_lib.ClientSettings) -> None:
  """Takes part in a run until it is over."""
  joint = parties.Joint.read(settings.agreement)
  experiment = experiment_lib.Experiment(settings.training(
      joint.agreement.configuration['settings']))
  joint.role_of(experiment.party, parties.CLIENT)
  with files.locked(experiment.party.of_run(joint.agreement)):
    _take_part(settings, joint, experiment)


def _take_part(settings: settings_lib.ClientSettings, joint: parties.Joint,
               experiment: experiment_lib.Experiment) -> None:
  party, agreement = experiment.party, joint.agreement
  # Before data are read: a run that is refused need not know of them.
  charged = party.ledger.check(party.policy(), agreement)
  experiment.folder = party.of_run(agreement)
  source = (task := experiment.build_task()).train
  own_id = _own_client(source.source.client_ids, party)
  task = dataclasses.replace(task, train=dataclasses.replace(
      source, own={party.name: own_id}))
  experiment.check_own(own_id, source.source)  # Before anyone waits for bad data.
  plan = experiment.build_plan(task, None)
  with contexts.simulation():
    rounds = experiment.split(task, plan)
    reader = loop.ClientReader(
        task, rounds.scheme.simulation_seed, False, rounds.on_bad, rounds.unit_is_client,
        rounds.in_turn)
    program = program_lib.Program(rounds.process, rounds.set_cohort_size)
    number = list(agreement.roster.clients).index(party.name)

    def work(model: bytes, index: int, cohort_size: int):
      value = reader.read(number, index)
      if plan.mechanism.silos is None:
        value, = process.grouped([value], 1)
      return program.contribution(value, model, agreement.run, index, cohort_size)

    own = client_lib.Client(
        party.name, agreement, party.identity, work, party.of_run(agreement),
        most_model=joint.most, allow=lambda _: party.ledger.allow(
            party.policy(), agreement))
    if own.answered and not charged:
      raise ValueError(f'{party.folder / parties.LEDGER} has no charge for the run, of '
                       'which rounds were answered: it was lost or edited')
    _say(f'{party.name!r} participates in {agreement.run} for {agreement.study}')
    if experiment.pipes is not None:
      pipes.take_part(own, experiment.pipes, most=joint.most, log=_say)
      return
    try:
      transport.take_part(
          own, joint.endpoints[parties.LEADER], most=joint.most,
          patience=settings.patience, log=_say, **party.connection)
    except grpc.RpcError as error:
      raise OSError(f'the leader at {joint.endpoints[parties.LEADER].address} can\'t be '
                    f'reached: {error.code().name.lower()}') from None
  _say(f'{agreement.run} is over: answered {len(own.answered)} rounds')


@contextlib.contextmanager
def helping(settings: settings_lib.HelperSettings, over: Callable[[], None] = lambda: None
            ) -> Iterator[helper_lib.Helper]:
  """Serves the leader of a run within the block, who calls `over` at its end."""
  joint, party = parties.Joint.read(settings.agreement), parties.Party(settings.party)
  joint.role_of(party, parties.HELPER)
  joint.check_approved(settings.approve)
  agreement = joint.agreement
  if parties.program_digest(agreement.configuration) != agreement.program:
    raise ValueError('another version is installed than the agreement\'s: all parties must '
                     'have the same')
  folder = party.of_run(agreement)
  own = helper_lib.Helper(agreement, party.identity, folder)
  with files.locked(folder), transport.helper_serving(
      own.answer, settings.listen or joint.endpoints[parties.HELPER].address,
      leader=joint.endpoints[parties.LEADER].certificate, most=joint.most,
      digest=agreement.digest, over=over, **party.connection) as address:
    _say(f'listening at {address}, for the leader of {agreement.run}')
    yield own


def helper(settings: settings_lib.HelperSettings) -> None:
  """Serves the leader until the run is over; all is on disk before it answers."""
  over = threading.Event()
  with helping(settings, over.set), contextlib.suppress(KeyboardInterrupt):
    over.wait()
    _say('the run is over')


def _own_client(ids, party: parties.Party) -> str:
  """The client of a site's data that is the site."""
  if party.name in ids:
    return party.name
  if len(ids) != 1:
    raise ValueError(f'data_path must have one client, or a client named '
                     f'{party.name!r}, found {len(ids)}, none of that name')
  return ids[0]
