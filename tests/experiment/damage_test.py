"""Damaged checkpoints: the run resumes from the one before, and epsilon counts all."""

import json
import shutil

import numpy as np
import pytest

from tests import known_cohorts
from tests.experiment import smallest_family
from tests.fedavg import still_run
from tff_pipelines.accounting.events import kinds as events, preliminary
from tff_pipelines.accounting.guarantees import accountant, bounds, ledger as ledger_lib
from tff_pipelines.common import caveats, decimals, files
from tff_pipelines.experiment import checkpoints, configurations, records as records_lib
from tff_pipelines.fedavg import run as run_lib
from tff_pipelines.simulation import ray_transport

pytestmark = pytest.mark.usefixtures('shared_context')

LIMITED = events.PoissonSampled(
    event=events.CentralGaussian(noise_multiplier=1.0), sampling_rate=0.1,
    max_participations=2)
EPOCHS = events.EpochSampled(
    event=events.CentralGaussian(noise_multiplier=1.0), cohort_size=2, population=10)
PLAIN = events.CentralGaussian(noise_multiplier=1.0)
HEADER = {'population': 20, 'delta': 0.05, 'adjacency': 'zero-out'}


def _flip(folder, rounds, position=1000, bit=3):
  path = checkpoints.path_of(folder / 'private/checkpoints', rounds)
  content = bytearray(path.read_bytes())
  content[position % len(content)] ^= 1 << bit
  path.write_bytes(content)


def _state(number):
  return {'weights': np.full(300, number, np.float32)}


def _opened(folder, resume=True, event=None, planned=6):
  records = records_lib.RunRecords(folder, {'rounds': planned}, HEADER, resume=resume)
  return records, *records.restore(_state(0), event=event, planned=planned)


def _commit(records, event, numbers):
  for number in numbers:
    records.commit(_state(number), number, event(number), suppressed=False,
                   metrics={'epsilon': number / 2, 'starts': float(records.starts)})


def _counts(ledger):
  """(event as JSON, how often) of the lines of a ledger."""
  texts = [json.dumps(line['event'], sort_keys=True) for line in ledger.lines()]
  return {text: texts.count(text) for text in texts}


def _key(event):
  return json.dumps(event.to_json(), sort_keys=True)


@pytest.mark.parametrize('event', [LIMITED, EPOCHS, PLAIN])
@pytest.mark.parametrize('damaged', [1, 2])
def test_lost_rounds_stay_charged_and_are_charged_again_without_their_limit(
    tmp_path, capsys, event, damaged):
  of_round = lambda index: event
  records, _, _ = _opened(tmp_path, resume=False, event=of_round)
  _commit(records, of_round, range(1, 5))
  for number in range(damaged):
    _flip(tmp_path, 4 - number)
  records, state, done = _opened(tmp_path, event=of_round)
  assert done == 4 - damaged and np.all(state['weights'] == done)
  assert len(records.ledger.lines()) == 4 and len(records.lost) == damaged
  shown = capsys.readouterr().err
  assert shown.count('\n') == 1 and shown.startswith('warning: ')
  assert 'round_000004 is damaged: its SHA-256 is not' in shown
  assert f'resumes after round {done}' in shown
  _commit(records, of_round, [done + 1])
  # Another start, in the middle of what is run again.
  records, _, again = _opened(tmp_path, event=of_round)
  assert again == done + 1 and not capsys.readouterr().err
  _commit(records, of_round, range(again + 1, 7))
  ledger = records.ledger
  assert ledger.verify(expected_count=6 + damaged) == []
  expected = {_key(event): 6}
  expected[_key(event.repeated())] = expected.get(_key(event.repeated()), 0) + damaged
  assert _counts(ledger) == expected
  # Two starts may each have shown the server a round that was not committed.
  assert ledger.repeats == 2
  epsilon = lambda event, amplification: accountant.epsilon(
      event, 1e-5, amplification=amplification)
  released = events.Composed(events=(events.SelfComposed(event=event, count=6),
      events.SelfComposed(event=event.repeated(), count=damaged)))
  seen = events.Composed(events=(
      released, events.SelfComposed(event=event.repeated(), count=2)))
  assert epsilon(ledger.event(), 'tight') == pytest.approx(epsilon(released, 'tight'))
  server = epsilon(ledger.seen_event().without_sampling(), 'none')
  assert server == pytest.approx(epsilon(seen.without_sampling(), 'none'))
  # A client may be in every version of a round, whatever the limit says.
  releases = {LIMITED: 2, EPOCHS: 2, PLAIN: 6}[event] + damaged + 2
  assert server == pytest.approx(epsilon(
      events.SelfComposed(event=event.repeated().without_sampling(), count=releases),
      'none'))
  table = (tmp_path / files.METRICS).read_text().splitlines()
  assert [row.split(',')[0] for row in table] == ['round', *'123456']


def test_rounds_of_other_costs_that_a_start_may_have_shown_are_charged(tmp_path):
  dear = events.CentralGaussian(noise_multiplier=0.3)
  of_round = lambda index: dear if index == 5 else PLAIN
  records, _, _ = _opened(tmp_path, resume=False, event=of_round)
  _commit(records, of_round, range(1, 5))
  # It began round 5, was killed, and then the checkpoint of round 4 was damaged.
  _flip(tmp_path, 4)
  records, _, _ = _opened(tmp_path, event=of_round)
  _commit(records, of_round, [4])
  records, _, done = _opened(tmp_path, event=of_round)
  assert done == 4 and len(records.lost) == 2
  _commit(records, of_round, [5, 6])
  counts = _counts(records.ledger)
  assert counts == {_key(PLAIN): 6, _key(dear): 2}
  assert records.ledger.verify() == []


def test_checkpoint_that_comes_back_after_the_run_went_on_is_refused(tmp_path):
  of_round = lambda index: LIMITED
  records, _, _ = _opened(tmp_path, resume=False, event=of_round)
  _commit(records, of_round, range(1, 5))
  whole = checkpoints.path_of(tmp_path / 'private/checkpoints', 4)
  content = whole.read_bytes()
  _flip(tmp_path, 3)
  _flip(tmp_path, 4)
  records, _, done = _opened(tmp_path, event=of_round)
  assert done == 2
  _commit(records, of_round, [3])
  assert not whole.exists()
  whole.write_bytes(content)
  with pytest.raises(ValueError, match='metrics.csv is damaged: its rows up to round 4'):
    _opened(tmp_path, event=of_round)
  whole.unlink()
  assert _opened(tmp_path, event=of_round)[2] == 3


@pytest.mark.parametrize('synced', [2, 3])
def test_what_a_power_cut_takes_comes_back_from_the_checkpoints(tmp_path, synced):
  of_round = lambda index: LIMITED
  records, _, _ = _opened(tmp_path, resume=False, event=of_round)
  _commit(records, of_round, range(1, 5))
  table, ledger = tmp_path / files.METRICS, tmp_path / files.LEDGER
  before = table.read_bytes(), ledger.read_bytes()
  # Rows after the last sync, the end of the ledger, and all of TensorBoard.
  table.write_bytes(b''.join(before[0].splitlines(keepends=True)[:1 + synced]) + b'4,1')
  ledger.write_bytes(before[1][:-300])
  shutil.rmtree(tmp_path / 'tensorboard')
  records, _, done = _opened(tmp_path, event=of_round)
  assert done == 4 and records.lost == ()
  assert (table.read_bytes(), ledger.read_bytes()) == before
  assert (tmp_path / 'tensorboard').exists()


def test_without_a_whole_checkpoint_there_is_one_line(tmp_path, capsys):
  folder = tmp_path / 'run'
  arguments = ['--rounds=4', '--num_clients=6', f'--output_dir={folder}']
  assert smallest_family.main(arguments) == 0
  capsys.readouterr()
  for number in (2, 3, 4):
    _flip(folder, number, position=-1)
  before = (folder / files.LEDGER).read_bytes()
  assert smallest_family.main([*arguments, '--resume']) == 2
  shown = capsys.readouterr().err
  assert shown.count('\n') == 1 and shown.startswith('error: ')
  assert 'round_000004 is damaged' in shown and 'no other checkpoint is whole' in shown
  assert (folder / files.LEDGER).read_bytes() == before


@pytest.mark.parametrize('position', [9, 200, None])
def test_seeded_run_with_one_flipped_bit_ends_with_the_same_model(
    tmp_path, capsys, position):
  folder = tmp_path / 'run'
  arguments = ['--rounds=4', '--num_clients=6', '--seed=1', f'--output_dir={folder}']
  assert smallest_family.main(arguments) == 0
  mean = json.loads((folder / files.SUMMARY).read_text())['details']['mean']
  rows = (folder / files.METRICS).read_text().splitlines()
  (folder / files.SUMMARY).unlink()
  if position is None:
    checkpoints.path_of(folder / 'private/checkpoints', 4).unlink()
  else:
    _flip(folder, 4, position)
  capsys.readouterr()
  assert smallest_family.main([*arguments, '--resume']) == 0
  assert capsys.readouterr().err.startswith('warning: ')
  summary = json.loads((folder / files.SUMMARY).read_text())
  assert summary['details']['mean'] == mean
  assert summary['rounds'] == 5 and 'rounds run again' in summary['caveats']
  # Epsilon so far, in the last row, has the lost round too; errors are the same.
  again = (folder / files.METRICS).read_text().splitlines()
  assert again[:-1] == rows[:-1]
  one, other = ({name: float(value) for name, value in zip(
      rows[0].split(','), last.split(','))} for last in (again[-1], rows[-1]))
  assert one.pop('epsilon_if_unseeded') > other.pop('epsilon_if_unseeded')
  assert one == other


def test_printed_epsilon_has_both_versions_of_a_round(tmp_path, capsys):
  settings = {'rounds': 4, 'mechanism': 'skellam', 'sampling': 'poisson',
              'max_participations': 1, 'noise_multiplier': 2.0}
  folder = tmp_path / 'run'
  whole = still_run.experiment(folder, **settings).run()
  _flip(folder, 4)
  experiment = still_run.experiment(folder, resume=True, **settings)
  summary = experiment.run()
  shown = capsys.readouterr()
  assert 'round_000004 is damaged' in shown.err
  plan = experiment.build_plan(
      experiment.build_task(), configurations.read(folder)['plan'])
  again = plan.event(1).repeated()
  assert again.max_participations is None and plan.event(1).max_participations == 1
  released = events.Composed(events=(plan.released(4), again))
  outsiders, server = plan.bound(released, 5), plan.bound(
      events.Composed(events=(released, again)), 6, observer=bounds.SERVER)
  assert summary['epsilon'] == pytest.approx(outsiders.epsilon, rel=1e-7)
  assert summary['epsilon'] > whole['epsilon']
  # One participation, the lost one, and one that the second start may have shown.
  assert summary['epsilon_server'] == pytest.approx(server.epsilon, rel=1e-7)
  thrice = events.SelfComposed(event=again.without_sampling(), count=3)
  assert summary['epsilon_server_any_cohorts'] >= (
      accountant.epsilon(thrice, plan.delta) * (1 - 1e-9))
  # Cohorts are half of all clients, of which one round at most counts before the damage.
  known = known_cohorts.epsilon(*known_cohorts.law(
      (4, 0.5, 1, 2.0), (2, 0.5, None, 2.0)), plan.delta)
  assert known < summary['epsilon_server'] < 1.001 * known
  report = (folder / files.REPORT).read_text(encoding='utf-8')
  for name in ('epsilon', 'epsilon_server', 'epsilon_server_any_cohorts'):
    assert decimals.epsilon(summary[name]) in shown.out
    assert f'epsilon {decimals.epsilon(summary[name])}' in report
  rows = (folder / files.METRICS).read_text().splitlines()
  column = rows[0].split(',').index('epsilon')
  assert float(rows[-1].split(',')[column]) == pytest.approx(summary['epsilon'])
  assert ledger_lib.Ledger(folder / files.LEDGER).verify(expected_count=5) == []


def test_digests_of_data_are_recorded_by_a_key(tmp_path):
  folder = tmp_path / 'run'
  still_run.experiment(folder, rounds=2).run()
  identity = configurations.read(folder)['identity']
  assert identity['examples_fingerprint']
  task = still_run.experiment(folder).build_task()
  assert identity['data_fingerprint'] != run_lib.fingerprint(task)
  (folder / files.PRIVATE / files.KEY).unlink()
  with pytest.raises(ValueError, match='fingerprint.key is missing'):
    still_run.experiment(folder, rounds=2, resume=True).run()


def test_run_that_was_ever_on_a_cluster_says_so(tmp_path, monkeypatch):
  folder = tmp_path / 'run'
  with monkeypatch.context() as patch:
    # Without workers: still rounds compute nothing.
    patch.setattr(still_run.StillExperiment, '_on_ray', True)
    patch.setattr(ray_transport, 'check', lambda address: None)
    summary = still_run.experiment(folder, rounds=2).run()
  assert caveats.PARTIAL_SUMS.name in summary['caveats']
  header = ledger_lib.Ledger(folder / files.LEDGER).header()
  assert str(caveats.PARTIAL_SUMS) in header['warnings']
  summary = still_run.experiment(folder, rounds=3, resume=True).run()
  assert summary['caveats'].count(caveats.PARTIAL_SUMS.name) == 1
  summary = still_run.experiment(tmp_path / 'other', rounds=2).run()
  assert caveats.PARTIAL_SUMS.name not in summary['caveats']


@pytest.mark.parametrize('event', [LIMITED, EPOCHS])
def test_stopped_run_is_charged_what_all_of_its_rounds_would_have_cost(tmp_path, event):
  of_round = lambda index: event
  records, _, _ = _opened(tmp_path, resume=False, event=of_round)
  _commit(records, of_round, range(1, 5))
  for number in (3, 4):
    _flip(tmp_path, number)
  records, _, done = _opened(tmp_path, event=of_round)
  assert done == 2
  _commit(records, of_round, [3])
  records.stop(of_round, 4)  # As if it was killed in the middle.
  records, _, done = _opened(tmp_path, event=of_round)
  records.stop(of_round, 6)
  assert done == 3 and records.unused == 3
  # Rounds 1 to 6; the two that were lost were run again, or would have been.
  assert _counts(records.ledger) == {_key(event): 6, _key(event.repeated()): 2}


def test_evaluated_run_whose_last_checkpoint_is_damaged_is_refused(tmp_path):
  of_round = lambda index: PLAIN
  records, _, _ = _opened(tmp_path, resume=False, event=of_round)
  _commit(records, of_round, [1, 2])
  evaluation = preliminary.EvaluationRelease(
      l2_sensitivity=1.0, noise_variance=4.0, dimension=2)
  records.release_once(evaluation, 'evaluation.json', lambda: '{}', is_last=True)
  assert _opened(tmp_path, event=of_round)[2] == 2
  _flip(tmp_path, 2)
  with pytest.raises(ValueError, match='an evaluation of a model whose checkpoint is'):
    _opened(tmp_path, event=of_round)
