"""Parties enrol, agree and run by their commands."""

import contextlib
import dataclasses
import json
import threading

import numpy as np
import pytest

from benchmarks import federation as federation_lib
from tests.programs import in_process
from tff_pipelines import deploy
from tff_pipelines.common import files
from tff_pipelines.deployment.engine import commands, experiment, parties, settings
from tff_pipelines.experiment import cli
from tff_pipelines.fedavg.settings import TrainSettings

pytestmark = pytest.mark.usefixtures('shared_context')
CASE = federation_lib.CASES['quick']


@pytest.fixture(scope='module', name='arrays')
def _arrays(tmp_path_factory):
  return federation_lib.arrays_of(CASE, None, tmp_path_factory.mktemp('arrays'))


@pytest.fixture(scope='module', name='federation')
def _federation(tmp_path_factory, arrays):
  """Three sites and two servers, of a seeded run."""
  return federation_lib.Federation(
      CASE, arrays, tmp_path_factory.mktemp('parties') / 'all', federation_lib.Network([]),
      seed=3)


def _settings(cls, command):
  return cli.parsed(cls, command[1:])


def test_a_run_over_two_servers_is_that_of_the_simulation(federation, arrays, capfd):
  sites = [threading.Thread(target=commands.client, args=[_settings(
      settings.ClientSettings, federation.command(name))]) for name in federation.sites]
  with commands.helping(_settings(
      settings.HelperSettings, federation.command('helper'))) as helper:
    for site in sites:
      site.start()
    finished = in_process.run(
        'tff_pipelines.deploy', *federation.command('leader'), folder=federation.folder)
    for site in sites:
      site.join(60)
  assert finished.code == 0, finished.stderr
  assert helper.opened['round'] == 3 and not any(site.is_alive() for site in sites)
  path = federation.folder / 'all.npz'
  np.savez(path, **arrays)
  federation_lib.simulated(federation, path)
  ours, theirs = (federation_lib.model(federation.folder / name)
                  for name in ('run', 'simulated'))
  for name, array in theirs.items():
    np.testing.assert_array_equal(ours[name], array)
  summary = in_process.summary(federation.folder / 'run')
  assert summary['secure_aggregation'] == 'two servers, not audited'
  assert summary['about']['raw_rows'] == 'Each site its own; neither server'
  assert 'two servers, not audited' in summary['caveats']
  assert 'closed sums simulated' not in summary['caveats']
  # Keys are in files of their owners, and nowhere else.
  said, kept = capfd.readouterr(), {}
  for name in (*federation.sites, 'leader', 'helper'):
    keys = files.read_json(federation.folder / name / 'keys.json')
    kept[name] = [keys['sign'], *keys['seal']]
  for path in federation.folder.rglob('*'):
    if path.is_file() and path.name != 'keys.json':
      content = path.read_bytes()
      assert not any(key.encode() in content or bytes.fromhex(key) in content
                     for keys in kept.values() for key in keys), path
  printed = said.out + said.err + finished.stdout + finished.stderr
  assert 'participates in' in printed
  assert not any(key in printed for keys in kept.values() for key in keys)


def test_no_server_saw_the_sum_of_a_suppressed_round(federation):
  agreed = federation.agreement.configuration
  built = experiment.plan_of(TrainSettings(**{
      name: value for name, value in federation.flags.items() if name != 'seed'}),
      agreed, agreed['plan']['dimension'], agreed['plan'], None)
  assert 'the one against a server does not' in built.terms.trust_model
  found = built.guarantee(3, suppressed=True)
  assert found.epsilon_server == built.guarantee(3).epsilon_server > 0
  assert found.terms.against_server == 'either server alone'
  assert 'except both servers together' in found.terms.against


def _refused(federation, message, name='silo-0', *, drop=(), **changes):
  """Checks that a party's command, with these flags changed, ends by one line."""
  command, *flags = federation.command(name)
  flags = [flag for flag in flags if flag.split('=')[0].lstrip('-') not in (
      *drop, *changes)]
  in_process.check_refused(in_process.run(
      'tff_pipelines.deploy', command, *flags,
      *(f'--{key}={value}' for key, value in changes.items()),
      folder=federation.folder), message)


def _other(federation, tmp_path, **changes):
  """The file of an agreement that differs in these fields."""
  joint = parties.Joint.read(federation.folder / 'agreement.json')
  path = tmp_path / 'other.json'
  agreement = dataclasses.replace(joint.agreement, **{'run': 'other', **changes})
  files.write_json(path, dataclasses.replace(joint, agreement=agreement).to_json())
  return dict(agreement=path, approve=agreement.digest)


def test_a_party_starts_what_its_people_compared_and_nothing_else(federation, tmp_path):
  digest = federation.agreement.digest
  _refused(federation, 'approve must be given: the first 32', drop=['approve'])
  _refused(federation, 'approve must be the first 32 or more', approve=digest[:31])
  _refused(federation, 'approve must be', name='helper', approve='f' * 32)
  _refused(federation, 'must be the agreement\'s client', party=federation.folder / 'leader')
  _refused(federation, 'must be the agreement\'s helper', name='helper',
           party=federation.folder / 'silo-0')
  _refused(federation, 'that enrol made, found no enrolment.json', party=tmp_path)
  _refused(federation, 'agreement must be given', drop=['agreement'])
  _refused(federation, 'has other noise, rounds or events', **_other(
      federation, tmp_path, rounds=2))
  event = dict(federation.agreement.event, count=1)
  _refused(federation, 'has other noise, rounds or events', **_other(
      federation, tmp_path, event=event))
  _refused(federation, 'the run protects a client, and the policy', **_other(
      federation, tmp_path, unit='client'))
  _refused(federation, 'all parties must have the same version', **_other(
      federation, tmp_path, program='ab' * 32))
  settings_ = {**federation.agreement.configuration, 'population': 10}
  _refused(federation, 'all parties must have the same version', **_other(
      federation, tmp_path, configuration=settings_))


def test_forged_files_of_parties_are_refused(federation, tmp_path):
  path = federation.folder / 'agreement.json'
  value = files.read_json(path)
  value['endpoints']['leader']['address'] = 'elsewhere:1'
  files.write_json(tmp_path / 'forged.json', value)
  _refused(federation, 'the certificate of \'leader\' is not signed by it',
           agreement=tmp_path / 'forged.json')
  (tmp_path / 'none.json').write_text('{"agreement": {}}')
  _refused(federation, 'none.json is not a valid agreement: fields must be',
           agreement=tmp_path / 'none.json')
  enrolment = files.read_json(federation.folder / 'silo-0' / 'enrolment.json')
  other = files.read_json(federation.folder / 'silo-1' / 'enrolment.json')
  (tmp_path / 'party').mkdir()
  files.write_json(tmp_path / 'party' / 'enrolment.json', {
      **enrolment, 'keys': other['keys']})
  _refused(federation, 'is not a valid enrolment: the certificate', party=tmp_path / 'party')


def test_train_runs_the_agreement_with_its_own_flags_alone(federation):
  command = [flag for flag in federation.command('leader')[1:]
             if not flag.startswith(('--resume', '--output_dir'))]
  flags = [f'--{name}={value}' for name, value in federation.flags.items()]
  run = lambda *more: in_process.run(
      'tff_pipelines.train', '--engine=grpc', *command, *more, folder=federation.folder)
  in_process.check_refused(run(*flags, '--rounds=5'), 'rounds must be as in agreement=')
  in_process.check_refused(run(*flags, '--plan'), 'plan is not used with engine=grpc')
  in_process.check_refused(run(*flags, '--local_workers=2'), 'local_workers is not used')
  in_process.check_refused(in_process.run(
      'tff_pipelines.train', '--engine=grpc', folder=federation.folder),
      'party must be given with engine=grpc')


def test_status_tells_a_site_what_a_run_costs(federation, tmp_path):
  words = ['status', f'--party={federation.folder / "silo-1"}',
           f'--agreement={federation.folder / "agreement.json"}']
  run = lambda: in_process.run('tff_pipelines.deploy', *words, folder=tmp_path)
  allowed = run()
  assert allowed.code == 0 and 'the policy allows the run' in allowed.stdout
  assert f'digest: {federation.agreement.digest}' in allowed.stdout
  assert 'is seeded: not private' in allowed.stdout
  path = federation.folder / 'silo-1' / 'policy.json'
  policy = json.loads(path.read_text())
  for change, message in (({'seeded': False}, 'the run is seeded: its noise'),
                          ({'unit': 'person'}, 'protects a record, and the policy'),
                          ({'programs': []}, 'is not among those that the policy allows')):
    with contextlib.ExitStack() as stack:
      files.write_json(path, {**policy, **change})
      stack.callback(files.write_json, path, policy)
      ledger = federation.folder / 'silo-1' / 'ledger.jsonl'
      if ledger.exists():  # A run that was charged is not asked about again.
        content = ledger.read_bytes()
        ledger.unlink()
        stack.callback(ledger.write_bytes, content)
      found = run()
    assert found.code == 1 and message in found.stdout
  path.write_text('{}')
  in_process.check_refused(run(), 'policy.json must have the keys')
  files.write_json(path, policy)


@pytest.mark.parametrize('flags, message', [
    (['--diagnostics'], 'diagnostics is not used over two servers'),
    (['--plan'], 'plan is not used with agree'),
    (['--mechanism=gaussian'], 'noise that clients add in shares, found gaussian'),
    (['--units='], 'units'), (['--study='], 'study must be a non-empty text'),
    (['--parties=none.json'], 'none.json')])
def test_agree_refuses_what_two_servers_cannot_have(federation, tmp_path, flags, message):
  enrolments = ','.join(str(federation.folder / name / 'enrolment.json')
                        for name in ('leader', 'helper', *federation.sites))
  given = {**federation.flags, 'agreement': tmp_path / 'new.json', 'study': 'one',
           'parties': enrolments, 'units': 1497,
           'data_path': federation.folder / 'data' / 'leader.npz'}
  names = [flag.split('=')[0].lstrip('-') for flag in flags]
  if 'mechanism' in names:
    names.append('min_honest_fraction')  # The shares' alone.
  finished = in_process.run(
      'tff_pipelines.deploy', 'agree', *flags, *(
          f'--{name}={value}' for name, value in given.items() if name not in names),
      folder=tmp_path)
  in_process.check_refused(finished, message)
  assert not (tmp_path / 'new.json').exists()


def test_keys_are_made_once_and_no_command_is_unknown(federation, tmp_path):
  enrol = lambda *flags: in_process.run(
      'tff_pipelines.deploy', 'enrol', *flags, folder=tmp_path)
  in_process.check_refused(enrol(f'--party={federation.folder / "silo-0"}', '--name=lyon'),
                           'must be a new folder: keys are not overwritten')
  in_process.check_refused(enrol('--party=x', '--name=lyon', '--address=h:1'),
                           'address is not used with role=client')
  in_process.check_refused(enrol('--party=x', '--name=leader', '--role=leader'),
                           'address must be given with role=leader')
  in_process.check_refused(enrol('--party=x'), 'name must be given')
  assert deploy.main(['lead']) == 2 and deploy.main(['--help']) == 0
  for path in (federation.folder / 'silo-0').rglob('*'):
    assert not path.stat().st_mode & 0o077, path
