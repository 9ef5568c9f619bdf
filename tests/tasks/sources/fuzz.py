"""Converts many damaged files of clients' data: each must be refused or copied.

  python -m tests.tasks.sources.fuzz [--quick] [--format=NAME ...] [--inputs=N]
      [--seed=N] [--first=N]

An input is a valid file with some damage, or without; it follows from seed, format and
number. Its conversion may succeed, and then the copy must agree with its own counts; or
fail with a ValueError of one short line that names the file. Anything else is a finding:
another exception, a process that dies, hangs or takes too much memory, files that are
left, text that is printed, code that is executed. Conversions run in child processes;
one that dies is followed by another.
"""

import argparse
import collections
import json
import multiprocessing
import os
import pathlib
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from typing import Sequence

import tqdm

if __name__ == '__main__':
  # TensorFlow prints much when it is imported, and has little to do in parallel.
  os.environ.update(TF_CPP_MIN_LOG_LEVEL='3', TF_NUM_INTRAOP_THREADS='1')

# pylint: disable=g-import-not-at-top, wrong-import-position
import tensorflow as tf

from tasks import task
from tasks.sources import open_source, rows, sqlite, store, tables
from tests.tasks.sources import fuzz_files, fuzz_inputs, populations

INPUTS, QUICK = 100_000, 500

_BATCH = 4000
_MESSAGE = 1000
# Seconds of an input, and of one that is repeated alone.
_SECONDS, _SECONDS_ALONE = 10, 60
_MEGABYTES, _TOO_MUCH_MEMORY = 1500, 77  # An exit status.
_FOLDERS = ('data', 'out', 'tmp')
_FINDING = 'finding: '


class _Wrong(Exception):
  """A finding: its kind, and details."""


class _Deleter:
  """Instead of rows.deleted_with_process, whose process takes a while to start."""

  def __init__(self, *paths):
    self._paths = paths

  def communicate(self):
    for path in self._paths:
      if os.path.isdir(path):
        shutil.rmtree(path)
      else:
        pathlib.Path(path).unlink(missing_ok=True)


def _check_message(text: str, given: fuzz_inputs.Input, paths: Sequence[str]) -> None:
  if len(text.splitlines()) > 1:
    of = ' with a path' if any('\n' in path for path in given.files) else ''
    raise _Wrong(f'message of several lines{of}', text[:2000])
  if len(text) >= _MESSAGE:
    raise _Wrong('long message',
                 f'{len(text)} characters: {text[:200]} ... {text[-100:]}')
  # A difference between two parts is named for both.
  if not any(path in text for path in paths) and ': fields must be ' not in text:
    raise _Wrong('message without the file', text)


def _check_copy(given: fuzz_inputs.Input, splits: Sequence[str],
                counts: tuple[int, int], skips: task.Skips) -> None:
  """Reads all that was written."""
  clients = examples = 0
  fields = given.options['fields']
  with sqlite.connected('out/copy.sqlite') as connection:
    stored = {(split, client): number for split, client, number in connection.execute(
        'SELECT split_name, client_id, num_examples FROM client_metadata')}
    skipped = connection.execute('SELECT count(*) FROM skipped').fetchone()[0]
  if skipped != len(skips.clients) + len(skips.records):
    raise _Wrong('wrong counts', f'{skipped} skipped, but {skips}')
  for split in splits:
    try:
      source = sqlite.SqliteSource('out/copy.sqlite', split, fields=fields,
                                   copy_of=given.options['data_path'])
      for client in source.client_ids:
        clients += 1
        examples += stored[split, client]
        arrays = source.examples(client)
        if given.expected is not None:
          populations.assert_same(arrays, populations.expected(given.expected[client]))
        if {len(array) for array in arrays.values()} - {stored[split, client]}:
          raise _Wrong('wrong counts', f'{stored} of {client!r}')
    except ValueError as error:
      raise _Wrong('copy that cannot be read', repr(error)) from error
    except AssertionError as error:
      raise _Wrong('wrong values', repr(error)) from error
  if (clients, examples) != counts or len(stored) != clients or (
      given.expected is not None and clients != len(given.expected)):
    raise _Wrong('wrong counts', f'{counts}, but {stored}')


def _converted(given: fuzz_inputs.Input) -> str:
  """Converts an input; returns the outcome."""
  skips = task.Skips(given.skip)
  paths = [path for name in ('data_path', 'test_path')
           for path in given.options.get(name, '').split(',') if path]
  try:
    parts = open_source.readers(**given.options)
    counts = store.write('out/copy.sqlite', parts, fields=given.options['fields'],
                         skips=skips, for_store=given.for_store)
  except ValueError as error:
    # yajl takes one integer, -2^63, for an overflow.
    if given.expected is not None and 'integer overflow' not in str(error):
      raise _Wrong('refused, but valid', repr(error)) from error
    _check_message(str(error), given, paths)
    return 'refused' if not isinstance(error, task.BadClientError) else (
        'refused for a client')
  for text in (*skips.clients.values(), *skips.records):
    _check_message(text, given, paths)
  if (skips.clients or skips.records) and (not given.skip or given.expected is not None):
    raise _Wrong('skipped what is not to be skipped', repr(skips))
  _check_copy(given, list(parts), counts, skips)
  return 'copied' + (', some skipped' if skips.clients or skips.records else '')


def _check_rest(copied: bool) -> None:
  """Checks that nothing was executed, and that only the copy is left."""
  if os.path.exists(fuzz_files.MARKER):
    raise _Wrong('executed', fuzz_files.MARKER)
  if os.path.lexists(fuzz_files.ESCAPED):
    raise _Wrong('executed', fuzz_files.ESCAPED)
  left = {*os.listdir('.')} - {*_FOLDERS} | {*os.listdir('tmp')} | {*os.listdir('out')}
  if left != ({'copy.sqlite'} if copied else set()):
    raise _Wrong('files left', repr(sorted(left)))


def _clear() -> None:
  for name in os.listdir('.'):
    if os.path.isdir(name) and not os.path.islink(name):
      shutil.rmtree(os.fsencode(name))
    else:
      os.unlink(name)
  for name in _FOLDERS:
    os.mkdir(name)


def _outcome(format_: str, number: int, seed: int, output: int) -> str:
  """Converts one input; returns the outcome, which may be a finding."""
  began, printed = time.monotonic(), os.fstat(output).st_size
  try:
    given = fuzz_inputs.build(format_, number, seed)
    given.write()
    outcome = _converted(given)
  except _Wrong as error:
    outcome = f'{_FINDING}{": ".join(error.args)}'
  except BaseException as error:  # pylint: disable=broad-exception-caught
    outcome = _FINDING + ' '.join(traceback.format_exception(error, limit=-3))[-1000:]
  # With the exception, the objects that it held are gone.
  try:
    _check_rest(outcome.startswith('copied'))
    # A progress bar may be there after a second.
    if os.fstat(output).st_size > printed and time.monotonic() - began < 0.8:
      raise _Wrong('printed', os.pread(output, 1000, printed).decode('utf-8', 'replace'))
  except _Wrong as error:
    if not outcome.startswith(_FINDING):
      outcome = f'{_FINDING}{": ".join(error.args)}'
  _clear()
  return outcome


def _child(folder: pathlib.Path, format_: str, seed: int, numbers: range,
           seconds: int) -> None:
  """Converts inputs; adds a line with the outcome of each to `results`."""
  output = os.open(folder / 'output', os.O_CREAT | os.O_RDWR | os.O_TRUNC)
  for descriptor in (1, 2):
    os.dup2(output, descriptor)
  # Code that lets Ghostscript run an image starts this program.
  os.environ['PATH'] = f'{folder / "bin"}:{os.environ["PATH"]}'
  os.chdir(folder / 'work')
  tempfile.tempdir = os.fspath(folder / 'work/tmp')
  # Neither semaphores nor threads of its own.
  tqdm.tqdm.set_lock(threading.RLock())
  tqdm.tqdm.monitor_interval = 0
  _clear()
  fuzz_inputs.warm_up()
  rows.deleted_with_process = _Deleter
  tables.say_windows = lambda _: None
  pages = int(pathlib.Path('/proc/self/statm').read_text(encoding='ascii').split()[0])
  limit = pages * resource.getpagesize() + 6 * 2**30
  resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  tf.constant(0)  # TensorFlow prints its messages now.
  with open(folder / 'results', 'a', encoding='utf-8') as results:
    for number in numbers:
      signal.alarm(seconds)  # Ends the process.
      outcome = _outcome(format_, number, seed, output)
      if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > _MEGABYTES * 1000:
        os._exit(_TOO_MUCH_MEMORY)
      print(json.dumps(outcome), file=results, flush=True)
    signal.alarm(0)


def run(format_: str, *, inputs: int, first: int = 0, seed: int = 0) -> list[str]:
  """The outcomes of inputs of a format, from the number `first` on."""
  context = multiprocessing.get_context('forkserver')
  # Children are forked from a process that has TensorFlow, but no threads of it.
  context.set_forkserver_preload(['tasks.sources.sqlite', 'pyarrow.parquet', 'ijson'])
  outcomes, repeated = [], None
  shared = '/dev/shm' if os.access('/dev/shm', os.W_OK) else None
  with tempfile.TemporaryDirectory(dir=shared, prefix='fuzz-') as name:
    folder = pathlib.Path(name)
    (folder / 'bin').mkdir()
    (folder / 'bin/gs').write_text(
        f'#!/bin/sh\nmkdir -p {folder}/work/{fuzz_files.MARKER}\n', encoding='utf-8')
    (folder / 'bin/gs').chmod(0o755)
    while (number := len(outcomes)) < inputs:
      shutil.rmtree(os.fsencode(folder / 'work'), ignore_errors=True)
      (folder / 'work').mkdir()
      (folder / 'results').write_bytes(b'')
      # An input that hung or took much memory on a busy machine or in a used process
      # gets another process, alone, and more time.
      alone = repeated == number
      numbers = range(first + number, first + (
          number + 1 if alone else min(inputs, number + _BATCH)))
      process = context.Process(target=_child, daemon=True, args=[
          folder, format_, seed, numbers, _SECONDS_ALONE if alone else _SECONDS])
      process.start()
      try:
        process.join()
      finally:
        process.kill()
      lines = (folder / 'results').read_text(encoding='utf-8').splitlines()
      outcomes += map(json.loads, lines)
      if len(lines) < len(numbers):
        status = process.exitcode
        if repeated == len(outcomes) or status not in (-signal.SIGALRM, _TOO_MUCH_MEMORY):
          output = (folder / 'output').read_bytes()[-300:]
          outcomes.append(f'{_FINDING}a process ended with status {status}: {output!r}')
        else:
          repeated = len(outcomes)
  return outcomes


def findings(outcomes: Sequence[str]) -> dict[int, str]:
  """Index of an outcome -> the finding."""
  return {i: outcome for i, outcome in enumerate(outcomes)
          if outcome.startswith(_FINDING)}


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the command; 1 if there are findings."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
  parser.add_argument('--quick', action='store_true', help=f'{QUICK} inputs per format')
  parser.add_argument('--format', action='append', choices=fuzz_inputs.FORMATS,
                      help='default: all')
  parser.add_argument('--inputs', type=int, help=f'per format; default: {INPUTS}')
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--first', type=int, default=0, help='number of the first input')
  given = parser.parse_args(arguments)
  inputs = given.inputs or (QUICK if given.quick else INPUTS)
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
  status = 0
  for format_ in given.format or fuzz_inputs.FORMATS:
    outcomes = run(format_, inputs=inputs, first=given.first, seed=given.seed)
    found = findings(outcomes)
    counts = collections.Counter(outcomes) - collections.Counter(found.values())
    print(f'{format_}: {inputs:,} inputs, {dict(counts)}')
    for index, finding in found.items():
      print(f'  --format={format_} --seed={given.seed} --first={given.first + index} '
            f'--inputs=1: {finding}', flush=True)
    status |= bool(found)
  return status


if __name__ == '__main__':
  sys.exit(main())
