"""A site's policy and ledger: what is charged, once, and what is refused."""

import dataclasses
import datetime
import json
import multiprocessing
import types

import numpy as np
import pytest

from tasks.sources import records
from tests.deployment.federation import Federation
from tff_pipelines.accounting.events import base, kinds as events
from tff_pipelines.accounting.guarantees import bounds, observers
from tff_pipelines.deployment import messages, site
from tff_pipelines.deployment.engine import experiment


@pytest.fixture(name='agreement')
def _agreement(tmp_path):
  return Federation(tmp_path / 'federation', rounds=10).agreement


def _policy(agreement, **changes):
  return site.Policy(**{
      'data_set': 'hearts', 'programs': (agreement.program,), 'least_cohort': 2,
      'helpers': (agreement.roster.helper.fingerprint,), 'epsilon': 50.0, 'delta': 1e-5,
      'unit': 'client', **changes})


def _study(agreement, number):
  return dataclasses.replace(agreement, run=f'run {number}', study=f'study {number}')


def _epsilon(agreement, delta=1e-5):
  return observers.bound(observers.View(base.from_json(agreement.event)), delta,
                         observers.Method(), bounds.SERVER_ANY_COHORTS).epsilon


def test_studies_add_up_and_the_one_above_the_limit_is_refused(agreement, tmp_path):
  ledger, one = site.SiteLedger(tmp_path / 'ledger.jsonl'), _epsilon(agreement)
  policy = _policy(agreement, epsilon=1.2 * one)
  for _ in range(2):  # A restarted client charges nothing more.
    ledger.allow(policy, agreement)
  assert ledger.epsilon(policy) == pytest.approx(one)
  with pytest.raises(ValueError, match=r"study 'study 2' would bring epsilon of hearts"):
    ledger.allow(policy, _study(agreement, 2))
  assert len(ledger.entries()) == 1
  both = ledger.epsilon(policy, agreement.event)
  assert one < both < 2 * one
  ledger.allow(dataclasses.replace(policy, epsilon=1.01 * both), _study(agreement, 2))
  # Another data set has a budget of its own.
  ledger.allow(dataclasses.replace(policy, data_set='lungs'), _study(agreement, 3))
  with pytest.raises(ValueError, match='charged under other terms'):
    ledger.allow(policy, dataclasses.replace(agreement, study='another'))


def test_the_limit_is_one_of_any_365_days(agreement, tmp_path, monkeypatch):
  ledger = site.SiteLedger(tmp_path / 'ledger.jsonl')
  policy = _policy(agreement, epsilon=1.2 * _epsilon(agreement))
  for days in (0, 365, 730):
    today = datetime.date(2030, 12, 31) + datetime.timedelta(days=days)
    for late in (0, 364):  # The limit is one of any 365 days, New Year or not.
      monkeypatch.setattr(site, '_today', lambda: today + datetime.timedelta(days=late))
      if not late:
        ledger.allow(policy, _study(agreement, days))
      with pytest.raises(ValueError, match='in 365 days'):
        ledger.allow(policy, _study(agreement, 1000 + days + late))


@pytest.mark.parametrize('changes, message', [
    ({'programs': ('cd' * 32,)}, 'program abab.* is not among those'),
    ({'helpers': ()}, 'helper .* is not among those that the policy trusts'),
    ({'unit': 'record'}, 'protects a client, and the policy a record'),
    ({'least_cohort': 3}, 'sums of 2 clients, besides 0 that may collude, may be')])
def test_what_the_policy_forbids_is_not_charged(agreement, tmp_path, changes, message):
  ledger = site.SiteLedger(tmp_path / 'ledger.jsonl')
  with pytest.raises(ValueError, match=message):
    ledger.allow(_policy(agreement, **changes), agreement)
  assert not ledger.entries()


def test_a_ledger_that_was_edited_refuses_all(agreement, tmp_path):
  path = tmp_path / 'ledger.jsonl'
  ledger, policy = site.SiteLedger(path), _policy(agreement)
  for number in range(3):
    ledger.allow(policy, _study(agreement, number))
  content = path.read_bytes()
  lines = content.splitlines(keepends=True)
  for changed in (content.replace(b'study 1', b'study 7'), b''.join(lines[1:]),
                  lines[0] + lines[2], content + b'{}\n'):
    path.write_bytes(changed)
    with pytest.raises(ValueError, match='is damaged'):
      ledger.allow(policy, _study(agreement, 9))
  path.write_bytes(content)
  assert [entry['run'] for entry in ledger.entries()] == ['run 0', 'run 1', 'run 2']


def test_a_killed_site_neither_loses_nor_doubles_a_charge(agreement, tmp_path):
  path = tmp_path / 'ledger.jsonl'
  ledger, policy = site.SiteLedger(path), _policy(agreement)
  ledger.allow(policy, agreement)
  first = path.read_bytes()
  ledger.allow(policy, _study(agreement, 2))
  for end in range(len(first), len(path.read_bytes())):  # Killed as it wrote.
    path.write_bytes((content := path.read_bytes())[:end])
    whole = end == len(content) - 1  # But for the end of its line.
    assert [entry['run'] for entry in ledger.entries()] == ['run 1', 'run 2'][:1 + whole]
    ledger.allow(policy, _study(agreement, 2))
    ledger.allow(policy, _study(agreement, 2))
    assert path.read_bytes() + b'\n' * whole == content
    path.write_bytes(content)
  context = multiprocessing.get_context('fork')
  sent = tmp_path / 'sent'
  for number in range(30):  # Killed at any moment.
    process = context.Process(target=_charge_all, args=(path, policy, agreement, sent))
    process.start()
    process.join(0.002 * number)
    process.kill()
    process.join()
    runs = [entry['run'] for entry in ledger.entries()]
    assert len(set(runs)) == len(runs)
    assert not sent.exists() or set(sent.read_text().split('\n')[:-1]) <= set(runs)
  assert len(runs) > 2


def _charge_all(path, policy, agreement, sent):
  for number in range(3, 12):
    site.SiteLedger(path).allow(policy, _study(agreement, number))
    with open(sent, 'a', encoding='utf-8') as file:
      file.write(f'run {number}\n')


def _charge(path, policy, agreement, number):
  site.SiteLedger(path).allow(policy, _study(agreement, number))


def test_runs_that_start_together_are_charged_one_by_one(agreement, tmp_path):
  path, policy = tmp_path / 'ledger.jsonl', _policy(agreement)
  context = multiprocessing.get_context('fork')
  workers = [context.Process(target=_charge, args=(path, policy, agreement, i % 4))
             for i in range(8)]
  for worker in workers:
    worker.start()
  for worker in workers:
    worker.join(60)
  assert sorted(entry['run'] for entry in site.SiteLedger(path).entries()) == [
      f'run {i}' for i in range(4)]


def test_a_client_charges_before_it_computes(agreement, tmp_path):
  federation = Federation(tmp_path / 'federation', rounds=10)
  ledger = site.SiteLedger(tmp_path / 'ledger.jsonl')
  policy = _policy(federation.agreement, epsilon=1e-3)
  allow = lambda agreement: ledger.allow(policy, agreement)
  with pytest.raises(messages.MessageError, match='the site refuses: study'):
    federation.client('site 0', allow=allow).answer(federation.round().message)
  assert not federation.vectors and not ledger.entries()
  policy = dataclasses.replace(policy, epsilon=50.0)
  federation.client('site 0', allow=allow).answer(federation.round().message)
  federation.client('site 0', allow=allow).answer(federation.round(2).message)
  assert len(ledger.entries()) == 1


def test_a_policy_is_read_strictly(agreement, tmp_path):
  path, policy = tmp_path / 'policy.json', _policy(agreement)
  path.write_text(json.dumps(dataclasses.asdict(policy)))
  assert site.Policy.read(path) == policy
  path.write_text(json.dumps({**dataclasses.asdict(policy), 'epsilonn': 3}))
  with pytest.raises(ValueError, match='must have the keys data_set'):
    site.Policy.read(path)
  with pytest.raises(ValueError, match='epsilon'):
    dataclasses.replace(policy, epsilon=float('nan'))


def test_a_run_counts_from_its_last_answer_on(agreement, tmp_path, monkeypatch):
  ledger = site.SiteLedger(tmp_path / 'ledger.jsonl')
  policy = _policy(agreement, epsilon=1.2 * _epsilon(agreement))
  on = lambda days: monkeypatch.setattr(site, '_today', lambda: (
      datetime.date(2030, 1, 1) + datetime.timedelta(days=days)))
  on(0)
  ledger.allow(policy, agreement)
  on(364)
  ledger.allow(policy, agreement)  # A round of the same run, a year later.
  assert ledger.epsilon(policy) == pytest.approx(_epsilon(agreement))
  on(366)
  with pytest.raises(ValueError, match='in 365 days'):
    ledger.allow(policy, _study(agreement, 2))
  on(364 + 366)  # Nothing counts any more: the first run comes too late, after another.
  ledger.allow(policy, _study(agreement, 2))
  with pytest.raises(ValueError, match='in 365 days'):
    ledger.allow(policy, agreement)


def test_a_policy_rules_runs_that_were_charged_too(agreement, tmp_path):
  ledger, policy = site.SiteLedger(tmp_path / 'ledger.jsonl'), _policy(agreement)
  ledger.allow(policy, agreement)
  # A limit that is lowered later does not end a run whose charge is paid.
  assert ledger.check(dataclasses.replace(policy, epsilon=1e-3), agreement)
  for change, message in ((dict(helpers=()), 'policy trusts'), (dict(
      programs=()), 'policy allows'), (dict(least_cohort=9), 'asks for 9'), (dict(
          data_set='lungs'), 'was charged to hearts, and the policy is of lungs')):
    with pytest.raises(ValueError, match=message):
      ledger.allow(dataclasses.replace(policy, **change), agreement)


def test_epsilons_of_different_units_are_not_added(agreement, tmp_path):
  ledger, policy = site.SiteLedger(tmp_path / 'ledger.jsonl'), _policy(agreement)
  ledger.allow(policy, agreement)
  with pytest.raises(ValueError, match="can't be added to that of a person"):
    ledger.allow(dataclasses.replace(policy, unit='person'), dataclasses.replace(
        _study(agreement, 2), unit='person'))
  with pytest.raises(ValueError, match='the run is seeded'):
    ledger.allow(policy, dataclasses.replace(_study(agreement, 2), seed=3))


def test_a_charge_without_its_end_of_line_counts(agreement, tmp_path):
  path = tmp_path / 'ledger.jsonl'
  ledger, policy = site.SiteLedger(path), _policy(agreement)
  ledger.allow(policy, agreement)
  path.write_bytes(path.read_bytes()[:-1])
  assert [entry['run'] for entry in ledger.entries()] == ['run 1']
  ledger.allow(policy, _study(agreement, 2))
  assert [entry['run'] for entry in ledger.entries()] == ['run 1', 'run 2']
  assert path.read_bytes().count(b'\n') == 2


@pytest.mark.parametrize('persons, most, records_each, message', [
    ([1, 2, 2], 3, None, "silo 'here' must have one record of each person"),
    ([1, 2, 3], 2, None, 'units_of_largest=2 .* found 3'),
    ([1, 2, 2], 1, 16, 'units_of_largest=1 .* found 2'),
    ([], 1, None, "silo 'here' must have records, found none")])
def test_a_sites_own_records_are_as_epsilon_counts_on(
    persons, most, records_each, message):
  source = types.SimpleNamespace(
      examples=lambda client_id: {records.PERSON: np.array(persons, np.int64)})
  with pytest.raises(ValueError, match=message):
    experiment.check_units('here', source, most, records_each)
  experiment.check_units('here', types.SimpleNamespace(examples=lambda client_id: {
      records.PERSON: np.array([1, 2], np.int64)}), 2, records_each)


def test_records_are_charged_against_a_silo_that_runs_a_server(agreement, tmp_path):
  event = events.SampledRecords(sampling_rate=0.1, event=events.DistributedSkellam(
      l1_sensitivity=900.0, l2_sensitivity=30.0, noise_variance=2500.0, cohort_size=4.0,
      min_honest_fraction=0.5))
  ledger, policy = site.SiteLedger(tmp_path / 'ledger.jsonl'), _policy(agreement)
  found = ledger.epsilon(policy, event.to_json())
  other, server = (observers.bound(
      observers.View(event), 1e-5, observers.Method(), observer).epsilon
                   for observer in (bounds.PARTICIPANT, bounds.SERVER))
  assert found == pytest.approx(other) and found > 1.2 * server
