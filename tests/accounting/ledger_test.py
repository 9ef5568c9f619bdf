"""The ledger: every way of tampering is seen, every crash is repaired."""

import json
import math

import pytest

from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import accountant, ledger as ledger_lib

EVENT = events.PoissonSampled(event=events.DistributedSkellam(
        l1_sensitivity=900.0, l2_sensitivity=30.0, noise_variance=2500.0,
        cohort_size=100.0, min_honest_fraction=0.8), sampling_rate=0.03)
OTHER = events.CentralGaussian(noise_multiplier=3.0)


def new(tmp_path, rounds=0, event=EVENT, **header):
  ledger = ledger_lib.Ledger.create(tmp_path / 'ledger.jsonl', **header)
  for _ in range(rounds):
    ledger.append_line(following(ledger, event))
  return ledger


def following(ledger, event=EVENT, outcome='released', **more):
  return ledger.next_line(event, outcome=outcome, **{'configuration_hash': 'c0', **more})


def _with(line, **changes):
  """A line with other values, sealed again."""
  record = {**json.loads(line), **changes}
  del record['hash']
  return ledger_lib._sealed(record)  # pylint: disable=protected-access


def test_lines_hold_what_was_planned_and_are_chained(tmp_path):
  ledger = new(tmp_path, 3, population=3400, delta=1e-4, adjacency='zero-out',
               trust_model='secure aggregation', warnings=['simulated'])
  assert ledger.verify() == []
  header = ledger.header()
  assert (header['population'], header['delta'], header['warnings']) == (
      3400, 1e-4, ['simulated'])
  lines = ledger.lines()
  assert [line['round'] for line in lines] == [1, 2, 3]
  assert lines[0]['previous'] == header['hash']
  assert lines[2]['previous'] == lines[1]['hash']
  assert lines[0]['event']['event']['cohort_size'] == 100.0
  assert lines[0]['event']['event']['min_honest_fraction'] == 0.8
  assert set(lines[0]) == {'round', 'event', 'outcome', 'starts', 'time',
                           'configuration', 'previous', 'hash'}


def test_ledger_composes_its_releases_and_suppressed_ones_count_as_much(tmp_path):
  ledger = new(tmp_path, 2)
  for event, outcome in ((EVENT, 'suppressed'), (EVENT, 'unused'), (OTHER, 'released')):
    ledger.append_line(following(ledger, event, outcome))
  # Without a restart nothing is repeated.
  assert ledger.repeats == 0 and ledger.seen_event() == ledger.event()
  assert ledger.event() == events.Composed(events=(
      events.SelfComposed(event=EVENT, count=4),
      events.SelfComposed(event=OTHER, count=1)))


def test_forming_a_line_writes_nothing(tmp_path):
  ledger = new(tmp_path, 1)
  before = ledger.path.read_bytes()
  assert following(ledger) and following(ledger)
  assert ledger.path.read_bytes() == before


@pytest.mark.parametrize('line', [0, 1, 2, 3])
def test_every_edited_character_is_seen(tmp_path, line):
  ledger = new(tmp_path, 3, population=10)
  text = ledger.path.read_text().splitlines()
  for position in range(0, len(text[line]), 7):
    changed = list(text)
    old = changed[line][position]
    changed[line] = (changed[line][:position] + ('0' if old != '0' else '1') +
                     changed[line][position + 1:])
    ledger.path.write_text('\n'.join(changed) + '\n')
    problems = ledger.verify()
    assert problems and f'line {line + 1}' in problems[0]
    with pytest.raises(ValueError, match='chain'):
      ledger.event()


def test_an_edit_with_a_recomputed_hash_breaks_the_next_link(tmp_path):
  ledger = new(tmp_path, 3)
  text = ledger.path.read_text().splitlines()
  text[1] = _with(text[1], outcome='suppressed')
  ledger.path.write_text('\n'.join(text) + '\n')
  assert any('line 3' in problem for problem in ledger.verify())


@pytest.mark.parametrize('order', [(0, 1, 3), (0, 2, 1, 3), (0, 1, 1, 2, 3),
                                   (1, 2, 3), (0, 3, 2, 1), (0, 2, 3)])
def test_missing_repeated_and_reordered_lines_are_seen(tmp_path, order):
  ledger = new(tmp_path, 3)
  text = ledger.path.read_text().splitlines()
  ledger.path.write_text('\n'.join(text[i] for i in order) + '\n')
  assert ledger.verify()


def test_lines_cut_off_at_the_end_are_seen_against_the_count(tmp_path):
  ledger = new(tmp_path, 3)
  assert ledger.verify(expected_count=3) == []
  text = ledger.path.read_text().splitlines()
  ledger.path.write_text('\n'.join(text[:-1]) + '\n')
  assert ledger.verify() == []
  assert any('3 rounds' in p for p in ledger.verify(expected_count=3))


def test_a_torn_last_line_is_seen_wherever_it_is_torn(tmp_path):
  ledger = new(tmp_path, 2)
  whole = ledger.path.read_bytes()
  last = len(whole.splitlines(keepends=True)[-1])
  for cut in range(1, last):
    ledger.path.write_bytes(whole[:-cut])
    assert any('line 3' in problem for problem in ledger.verify())


def test_reconcile_completes_a_missing_and_a_torn_line_and_leaves_a_whole_one(tmp_path):
  ledger = new(tmp_path, 2)
  line = following(ledger)
  before = ledger.path.read_bytes()
  whole = before + line.encode() + b'\n'
  for kept in (0, 1, 10, len(line) - 1, len(line), len(line) + 1):
    ledger.path.write_bytes(whole[:len(before) + kept])
    ledger_lib.Ledger(ledger.path).reconcile(line)
    assert ledger.path.read_bytes() == whole


def test_reconcile_refuses_a_file_that_is_not_the_checkpoint_s(tmp_path):
  ledger = new(tmp_path, 2)
  first = following(ledger)
  ledger.append_line(first)
  second = following(ledger)
  third_file = ledger.path.read_text().splitlines()
  ledger.path.write_text('\n'.join(third_file[:2]) + '\n')
  with pytest.raises(ValueError, match='continue'):
    ledger_lib.Ledger(ledger.path).reconcile(second)
  ledger.path.write_text('\n'.join(third_file) + '\nnonsense')
  with pytest.raises(ValueError, match='part of the committed'):
    ledger_lib.Ledger(ledger.path).reconcile(second)
  (tmp_path / 'b').mkdir()
  another = new(tmp_path / 'b', 3, event=OTHER)
  with pytest.raises(ValueError, match='committed line'):
    another.reconcile(first)


def test_appending_checks_the_chain(tmp_path):
  ledger = new(tmp_path, 1)
  line = following(ledger)
  ledger.append_line(line)
  with pytest.raises(ValueError, match='continue'):
    ledger.append_line(line)
  with pytest.raises(ValueError, match='edited'):
    ledger.append_line(line.replace('released', 'suppressed'))
  assert len(ledger.lines()) == 2


def test_two_writers_cannot_fork_the_chain(tmp_path):
  first = new(tmp_path, 1)
  second = ledger_lib.Ledger(first.path)
  one, two = following(first), following(second, OTHER)
  first.append_line(one)
  with pytest.raises(ValueError, match='continue'):
    second.append_line(two)
  second.append_line(following(second, OTHER))
  assert second.verify(expected_count=3) == []


def test_nothing_is_created_or_overwritten_by_accident(tmp_path):
  ledger = new(tmp_path, 1)
  with pytest.raises(FileExistsError):
    ledger_lib.Ledger.create(ledger.path)
  assert len(ledger.lines()) == 1
  missing = ledger_lib.Ledger(tmp_path / 'none.jsonl')
  for action in (missing.verify, missing.event, lambda: following(missing),
                 lambda: missing.append_line(following(ledger))):
    with pytest.raises(OSError):
      action()
  assert sorted(p.name for p in tmp_path.iterdir()) == ['ledger.jsonl']


@pytest.mark.parametrize('arguments', [
    dict(population=0), dict(delta=0.0), dict(delta=float('nan')),
    dict(adjacency='friends'), dict(deviation_per_round=-1e-9),
    dict(deviation_per_round=1.5), dict(deviation_per_round=float('inf'))])
def test_impossible_headers_are_refused(tmp_path, arguments):
  with pytest.raises(ValueError, match='must'):
    ledger_lib.Ledger.create(tmp_path / 'x', **arguments)


def test_headers_of_other_versions_are_refused(tmp_path):
  certificates = [{'variance': 1e4, 'removed': 200.0, 'nodes': 6,
                   'total_variation': 1e-21, 'dimension': 8}]
  ledger = new(tmp_path, delta=1e-4, deviation_per_round=1e-12,
               certificates=certificates, configuration_hash='abc')
  header = ledger.header()
  assert header['deviation_per_round'] == 1e-12 and header['configuration'] == 'abc'
  assert header['certificates'] == certificates and header['version'] == 1
  lacking = {key: value for key, value in header.items() if key != 'certificates'}
  for changed, version, message in (
      (lacking, 1, 'must be a header'), (header, 2, 'format version 1, found 2')):
    ledger.path.write_text(_with(json.dumps(changed), version=version) + '\n')
    with pytest.raises(ValueError, match=message):
      ledger.header()


def test_impossible_lines_are_refused(tmp_path):
  ledger = new(tmp_path)
  with pytest.raises(ValueError, match='outcome'):
    following(ledger, outcome='lost')
  with pytest.raises(ValueError, match='configuration must be'):
    following(ledger, configuration_hash='')
  with pytest.raises(ValueError, match='event'):
    following(ledger, event={'kind': 'CentralGaussian'})
  for read in (ledger.event, ledger.seen_event):
    with pytest.raises(ValueError, match='at least one round'):
      read()


def test_ten_thousand_equal_lines_are_one_event_with_a_count(tmp_path):
  ledger = new(tmp_path)
  text = [ledger.path.read_text()]
  line = following(ledger)
  previous = json.loads(line)['previous']
  for index in range(1, 10_001):
    line = _with(line, round=index, previous=previous)
    previous = json.loads(line)['hash']
    text.append(line + '\n')
  ledger.path.write_text(''.join(text))
  event = ledger.event()
  assert isinstance(event, events.SelfComposed) and event.count == 10_000
  assert accountant.epsilon(event, 1e-5) > 0


def with_starts(tmp_path, *lines):
  """A ledger of (event, starts), one a round."""
  ledger = new(tmp_path)
  for event, starts in lines:
    ledger.append_line(following(ledger, event, starts=starts))
  return ledger


DEAR = events.CentralGaussian(noise_multiplier=0.5)
CHEAP = events.CentralGaussian(noise_multiplier=100.0)


def test_a_repeated_round_costs_what_its_own_event_costs(tmp_path):
  # The first round may have been repeated once, the third twice.
  ledger = with_starts(tmp_path, (DEAR, 2), (CHEAP, 2), (OTHER, 4), (CHEAP, 4))
  assert ledger.repeats == 3
  assert ledger.event() == events.Composed(events=(
      events.SelfComposed(event=DEAR, count=1), events.SelfComposed(event=CHEAP, count=2),
      events.SelfComposed(event=OTHER, count=1)))
  assert ledger.seen_event() == events.Composed(events=(
      events.SelfComposed(event=DEAR, count=2), events.SelfComposed(event=CHEAP, count=2),
      events.SelfComposed(event=OTHER, count=3)))


def test_the_sample_of_noise_free_training_is_never_repeated(tmp_path):
  draw = events.Nfdp(records=100, subset_size=10)
  ledger = with_starts(
      tmp_path, (draw, 3), (events.PostProcessing(), 3), (events.PostProcessing(), 5))
  assert ledger.repeats == 4
  assert ledger.seen_event() == events.Composed(events=(
      events.SelfComposed(event=draw, count=1),
      events.SelfComposed(event=events.PostProcessing(), count=6)))
  for delta in (draw.draw_probability, 0.5):
    assert accountant.epsilon(ledger.seen_event(), delta) == (
        accountant.epsilon(ledger.event(), delta)) == 0
  assert accountant.epsilon(
      ledger.seen_event(), draw.draw_probability * 0.999) == math.inf


def test_starts_that_are_counted_from_the_beginning_again_are_not_free(tmp_path):
  # The file that counts them was lost, and the run restarted once more.
  ledger = with_starts(tmp_path, (CHEAP, 3), (DEAR, 1), (DEAR, 2))
  assert ledger.repeats == 3
  assert ledger.seen_event() == events.Composed(events=(
      events.SelfComposed(event=CHEAP, count=3),
      events.SelfComposed(event=DEAR, count=3)))


@pytest.mark.parametrize('name, value, named', [
    ('event', {'kind': 'CentralGaussian', 'noise_multiplier': -1.0}, 'multiplier'),
    *(('starts', starts, 'starts') for starts in (0, -1, 1.5, '2', None, True))])
def test_impossible_values_in_an_intact_chain_are_a_problem(tmp_path, name, value, named):
  ledger = new(tmp_path)
  with ledger.path.open('a') as file:
    file.write(_with(following(ledger), **{name: value}) + '\n')
  assert any('line 2' in problem and named in problem for problem in ledger.verify())
  for read in (ledger.event, ledger.seen_event, lambda: ledger.repeats):
    with pytest.raises(ValueError, match=named):
      read()
