"""Damaged files are refused or copied, and the fuzzer reports anything else."""

import contextlib
import dataclasses
import os
import pathlib
import sqlite3
import sys
import time

import pytest

from tasks.sources import open_source
from tasks.sources import store
from tests.tasks.sources import fuzz
from tests.tasks.sources import fuzz_files
from tests.tasks.sources import fuzz_inputs


@pytest.mark.slow
@pytest.mark.parametrize('format_', fuzz_inputs.FORMATS)
def test_damaged_files_are_refused_or_copied(format_):
  report = fuzz.run(format_, inputs=fuzz.QUICK, batch=fuzz.QUICK)
  assert not report.findings, report.findings[0]
  assert sum(report.counts.values()) == fuzz.QUICK
  copied = sum(count for outcome, count in report.counts.items() if 'copied' in outcome)
  assert fuzz.QUICK // 10 < copied < fuzz.QUICK * 9 // 10


def test_inputs_follow_from_seed_and_number():
  for format_ in fuzz_inputs.FORMATS:
    inputs = [fuzz_inputs.build(format_, number) for number in range(100)]
    fuzz_files.corpus.cache_clear()
    assert inputs == [fuzz_inputs.build(format_, number) for number in range(100)]
    assert inputs != [fuzz_inputs.build(format_, number, 1) for number in range(100)]
    assert {given.options['fields'] is None for given in inputs} == {True, False}
    assert {given.skip for given in inputs} == {True, False}
    assert any(given.expected for given in inputs)


def _read_by(rows):
  """Replaces the rows by a function of the true ones."""
  readers = open_source.readers

  def changed(*args, **kwargs):
    return {split: dataclasses.replace(
        reader, rows=lambda progress, read=reader.rows: rows(read(progress)))
            for split, reader in readers(*args, **kwargs).items()}

  open_source.readers = changed


def _instead(act):
  """Calls a function before the first row."""
  def rows(true):
    act()
    yield from true

  _read_by(rows)


def _raises(error):
  def act():
    raise error
  return act


def _wrong_type():
  _instead(_raises(KeyError('client')))


def _exits():
  _instead(lambda: sys.exit(0))


def _hangs():
  _instead(lambda: time.sleep(60))


def _aborts():
  _instead(os.abort)


def _fills_memory():
  _instead(lambda: b'x' * 1_500_000_000)


def _executes():
  _instead(lambda: os.mkdir(fuzz_files.MARKER))


def _leaves_a_file():
  _instead(lambda: pathlib.Path('tmp/left').write_bytes(b''))


def _prints():
  _instead(lambda: os.write(2, b'something'))


def _says_two_lines():
  _instead(_raises(ValueError('data/data.csv:\nline 1')))


def _says_much():
  _instead(_raises(ValueError('data/data.csv: ' + 'x' * 1000)))


def _does_not_name_the_file():
  _instead(_raises(ValueError('something is wrong')))


def _refuses_what_is_good():
  _instead(_raises(ValueError('data/data.csv: is wrong')))


def _skips_what_is_good():
  def rows(true):
    first = next(true)
    yield first._replace(record=ValueError('bad'), client=None)
    yield first
    yield from true

  _read_by(rows)


def _changes_values():
  def rows(true):
    for row in true:
      if isinstance(row.record, dict) and 'text' in row.record:
        row.record['text'] += 'x'
      yield row

  _read_by(rows)


def _miscounts():
  write = store.write

  def miscounted(*args, **kwargs):
    clients, examples = write(*args, **kwargs)
    return clients, examples + 1

  store.write = miscounted


def _damages_the_copy():
  write = store.write

  def damaged(path, *args, **kwargs):
    counts = write(path, *args, **kwargs)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
      connection.execute("UPDATE examples SET serialized_example_proto = x'ff'")
    return counts

  store.write = damaged


@pytest.mark.parametrize('prepare, kind', [
    (_wrong_type, 'exception KeyError'), (_exits, 'exception SystemExit'),
    (_aborts, 'crash'), (_hangs, 'hang'), (_fills_memory, 'memory'),
    (_executes, 'executed'), (_leaves_a_file, 'files left'), (_prints, 'printed'),
    (_says_two_lines, 'message of several lines'), (_says_much, 'long message'),
    (_does_not_name_the_file, 'message without the file'),
    (_refuses_what_is_good, 'refused, but valid'),
    (_skips_what_is_good, 'skipped what is not to be skipped'),
    (_changes_values, 'wrong values'), (_miscounts, 'wrong counts'),
    (_damages_the_copy, 'copy that cannot be read')])
@pytest.mark.slow
def test_findings_are_reported_and_the_run_continues(prepare, kind):
  rare = any(word in kind for word in ('valid', 'skip', 'values'))
  inputs = 40 if rare else 1 if kind in ('hang', 'memory') else 3
  report = fuzz.run('csv', inputs=inputs, prepare=prepare,
                    seconds=0.5 if kind == 'hang' else 10.0)
  findings = [finding for finding in report.findings if finding.kind == kind]
  assert findings and sum(report.counts.values()) == inputs
  assert report.counts[f'finding: {kind}'] == len(findings)
