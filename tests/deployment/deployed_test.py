"""Runs over the protocol have the numbers of the simulation."""

import dataclasses

import numpy as np
import pytest
import tree

from tasks import task as task_lib
from tests import tiny_task
from tests.deployment.federation import Federation
from tff_pipelines.deployment.engine import program as program_lib, rounds as rounds_lib
from tff_pipelines.deployment import agreements, client as client_lib, messages
from tff_pipelines.experiment import checkpoints
from tff_pipelines.fedavg import (
    local_training, plan as plan_lib, process as process_lib, run as run_lib,
    settings as settings_lib)
from tff_pipelines.fedavg.server_optimizer import ServerConfig

pytestmark = pytest.mark.usefixtures('in_process')
CLIENTS = 6
_COLUMNS = {'none': {}, 'turns': dict(sampling='turns', cohort_size=3, bands=2)}


class Sites:
  """A carrier to clients in this process, some of which leave."""

  def __init__(self, clients, helper, gone=()):
    self.clients, self.helper, self.gone, self.sent = clients, helper, set(gone), 0

  def uploads(self, message, clients):
    index = messages.read(message, 'round', most_payload=10**7).fields['round']
    for name in clients:
      if (index, name) not in self.gone:
        self.sent += len(upload := self.clients[name].answer(message))
        yield upload

  def opened(self, request):
    return self.helper().answer(request)


def _built(tmp_path, seed, gone=(), **changes):
  """A run's rounds over the protocol, and the same as a simulation."""
  task = tiny_task.task(CLIENTS)
  settings = settings_lib.TrainSettings(
      task=task, rounds=4, mechanism='skellam', noise_multiplier=1.0, seed=seed,
      client_learning_rate=0.1, min_honest_fraction=0.3, **{
          'cohort_size': CLIENTS, 'sampling': 'none', **changes})
  plan = plan_lib.build(settings, dimension=task.model.parameter_count(),
                        population=CLIENTS)
  build = lambda: run_lib.build_rounds(
      task, plan, task.model.initial_weights(0), clients_per_call=1,
      local=local_training.LocalConfig(learning_rate=0.1, batch_size=4, epochs=1),
      server=ServerConfig(learning_rate=1.0))
  simulated = build()
  federation = Federation(tmp_path, CLIENTS)
  names = dict(zip(task.train.client_ids, federation.identities.values()))
  roster = dataclasses.replace(federation.agreement.roster, clients={
      name: keys.public for name, keys in names.items()})
  federation.agreement = agreement = agreements.Agreement(
      run='run 1', study='a study', program='ab' * 32, params=plan.params, rounds=4,
      cohort_size=int(settings.cohort_size), roster=roster,
      event=plan.released(4).to_json())
  program = program_lib.Program(simulated.process, simulated.set_cohort_size)

  def client(number, name):
    def work(model, index, cohort_size):
      value, = process_lib.grouped([simulated._reader.read(number, index)], 1)
      return program.contribution(value, model, 'run 1', index, cohort_size)

    (tmp_path / name).mkdir(exist_ok=True)
    return client_lib.Client(name, agreement, names[name], work, tmp_path / name,
                             most_model=10**6, allow=lambda agreement: None)

  sites = Sites({name: client(i, name) for i, name in enumerate(names)},
                federation.helper, gone)
  deployed = rounds_lib.DeployedRounds(
      simulated.process, task=task, scheme=plan.scheme, rounds=4, clients_per_call=1,
      set_cohort_size=simulated.set_cohort_size, agreement=agreement,
      identity=federation.leader_keys, carrier=sites, folder=tmp_path,
      log=pytest.fail)
  return deployed, simulated


def _trained(rounds):
  states = [rounds.initial_state(False)]
  steps = []
  for index in range(1, 5):
    steps.append(rounds.step(states[-1], index))
    states.append(steps[-1].state)
  return states, steps


def _same(one, other, but=()):
  pairs = zip(*(tree.flatten_with_path(x['process']) for x in (one, other)))
  return all(np.array_equal(a, b) for (path, a), (_, b) in pairs
             if not set(but).intersection(path))


@pytest.mark.parametrize('kind', list(_COLUMNS))
def test_a_seeded_run_is_that_of_the_simulation_to_the_last_bit(tmp_path, kind):
  deployed, simulated = _built(tmp_path, seed=5, **_COLUMNS[kind])
  found, expected = _trained(deployed)[0], _trained(simulated)[0]
  for one, other in zip(found, expected):
    # The leader has shares of the closed sums, and no closed sum.
    assert _same(one, other, but=['closed_sums'])
  if kind == 'turns':
    assert not np.any(found[-1]['process']['aggregator']['closed_sums'])
    assert np.any(expected[-1]['process']['aggregator']['closed_sums'])
    assert not np.array_equal(
        found[-1]['shares'], expected[-1]['process']['aggregator']['closed_sums'])


def test_rounds_of_too_few_and_rounds_of_a_killed_leader_release_noise(tmp_path):
  names = tiny_task.task(CLIENTS).train.client_ids
  deployed, _ = _built(tmp_path, seed=None, gone=[(2, name) for name in names[:-1]])
  states, steps = _trained(deployed)
  assert [step.suppressed for step in steps] == [False, True, False, False]
  assert not _same(states[1], states[2])
  # A leader that begins a round again finds that clients answered it.
  again = deployed.step(states[3], 4)
  assert again.suppressed


def test_a_client_takes_its_noise_from_no_message(tmp_path):
  deployed, simulated = _built(tmp_path, seed=None)
  program = program_lib.Program(simulated.process, simulated.set_cohort_size)
  state = simulated.set_cohort_size(simulated.initial_state(False)['process'], CLIENTS)
  model = program.model(state, 'run 1', 1)
  sent = checkpoints.from_bytes(model)
  assert not any('noise' in path or 'cohort' in path for path in sent.arrays)
  value, = process_lib.grouped([simulated._reader.read(0, 1)], 1)
  contribution = lambda model, **changes: program.contribution(
      value, model, **{'run': 'run 1', 'index': 1, 'cohort_size': CLIENTS, **changes})
  assert contribution(model).shape == (deployed.agreement.length,)
  lying = dataclasses.replace(sent, arrays={
      **sent.arrays, '1/cohort_size': np.int32(10**6)})
  with pytest.raises(ValueError, match='arrays of the program'):
    contribution(checkpoints.to_bytes(lying))
  for changes in (dict(index=2), dict(run='run 2')):
    with pytest.raises(ValueError, match='model must be of round'):
      contribution(model, **changes)
  with pytest.raises(ValueError, match='damaged|checkpoint|SHA'):
    contribution(model[:-1])


def test_steps_of_silos_are_split_to_the_last_bit():
  task = tiny_task.task(4, examples_per_client=20)
  settings = settings_lib.TrainSettings(
      task=task, rounds=2, protect='record', batch_size=20, mechanism='skellam',
      noise_multiplier=1.0, seed=5, clip=0.5)
  plan = plan_lib.build(settings, dimension=task.model.parameter_count(), population=80,
                        silos=4, privacy_unit='one record')
  steps = run_lib.build_steps(task, plan, task.model.initial_weights(0),
                              server=ServerConfig(learning_rate=1.0))
  program = program_lib.Program(steps.process, steps.set_cohort_size)
  state = steps.set_cohort_size(steps.initial_state(False)['process'], 4)
  model, values = program.model(state, 'run', 1), [
      steps._reader.read(i, 1) for i in range(4)]
  total = sum(program.contribution(value, model, 'run', 1, 4).astype(np.int64)
              for value in values) % plan.params.modulus
  found, expected = (program.updated(state, total.astype(np.int32), 4),
                     steps.process.next(state, values))
  assert all(map(np.array_equal, *(tree.flatten(x['state']) for x in (found, expected))))


@pytest.mark.parametrize('fault', ['no answer', 'killed', 'no request'])
def test_rows_stay_whole_when_an_answer_is_lost(tmp_path, fault):
  deployed, _ = _built(tmp_path, seed=5, **_COLUMNS['turns'])
  sites, opened = deployed.carrier, deployed.carrier.opened
  bits, sent, closed = deployed.agreement.params.bits, {}, []

  def recorded(work):
    def wrapped(model, index, cohort_size):
      vector = work(model, index, cohort_size)
      sent.setdefault(index, []).append(np.split(vector, 2)[1].astype(np.int64))
      return vector
    return wrapped

  for client in sites.clients.values():
    client._work = recorded(client._work)

  def lost(request):
    if fault != 'no request':
      opened(request)  # The helper has opened it.
    if fault == 'killed':
      raise KeyboardInterrupt

  def watched(request):
    if messages.read(request, 'open').fields['round']['round'] == 3:
      theirs = sites.helper()._history(3)
      closed.append((deployed._shares[0] + theirs[0]) % np.uint32(2**bits))
    return opened(request)

  state = deployed.initial_state(False)
  for index in range(1, 5):
    sites.opened = lost if index == 2 else watched
    try:
      state = deployed.step(state, index).state
    except KeyboardInterrupt:
      deployed.__post_init__()  # A new process, which begins the round again.
      sites.opened = watched
      state = deployed.step(state, index).state
  assert sites.helper().opened['round'] == 4
  np.testing.assert_array_equal(closed[-1], sum(sent[2]) % 2**bits)


def test_a_public_validation_set_of_the_leader_chooses_the_model(tmp_path):
  deployed, _ = _built(tmp_path, seed=5)
  examples = next(iter(deployed.task.held_out.values()))
  deployed.task = dataclasses.replace(
      deployed.task, held_out={task_lib.VALIDATION: examples})
  deployed.__post_init__()
  state = deployed.step(deployed.initial_state(False), 1).state
  assert state['best']['round'] == 1 and np.isfinite(state['best']['loss'])
