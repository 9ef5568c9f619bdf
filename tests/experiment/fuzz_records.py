"""Reads many damaged checkpoints and ledgers: each must be refused, or read right.

  python -m tests.experiment.fuzz_records [--inputs=100000] [--seed=0]
      [--reader=checkpoint|ledger ...]

An input is a valid file with some damage, or without, which follows from reader, seed and
number. A reader may return exactly what the file says, or raise ValueError with one short
line that names the file. Anything else is a finding.
"""

import argparse
import collections
from collections.abc import Callable, Sequence
import functools
import hashlib
import io
import json
import pathlib
import random
import sys
import tempfile
import time
from typing import Any

import numpy as np

from tests.tasks.sources import fuzz_damage
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.experiment import checkpoints

_LONGEST = 1000  # Characters of a message.


def parts(content: bytes) -> tuple[Any, bytes]:
  """Header and arrays of a checkpoint."""
  file = io.BytesIO(content)
  header = json.loads(np.lib.format.read_array(file).tobytes())
  return header, content[file.tell():-32]


def joined(header: Any, arrays: bytes) -> bytes:
  """A checkpoint whose digest is right, whatever its header says."""
  text = header if isinstance(header, bytes) else json.dumps(header).encode()
  file = io.BytesIO()
  np.save(file, np.frombuffer(text, np.uint8))
  content = file.getvalue() + arrays
  return content + hashlib.sha256(content).digest()


def _some_checkpoint(rng: random.Random) -> bytes:
  arrays = {}
  for number in range(rng.randrange(4)):
    shape = [rng.randrange(4) for _ in range(rng.randrange(3))]
    dtype = rng.choice(('<f4', '<f8', '<i8', '<i4', '|b1', '|u1', '<f2'))
    arrays[f'state/{number}'] = np.ones(shape, dtype)
  return checkpoints.to_bytes(checkpoints.Checkpoint(
      run='r', rounds=rng.randrange(9), arrays=arrays, table='t',
      line='{"round":1}' * rng.randrange(2), metrics={'epsilon': rng.random(), 'n': 3},
      repeats_due=rng.randrange(2), lost=(events.NoPrivacy().to_json(),) * rng.randrange(2)))


def _checkpoint(rng: random.Random) -> bytes:
  content, other = _some_checkpoint(rng), _some_checkpoint(rng)
  kind = rng.random()
  if kind < 0.02:
    return content
  if kind < 0.4:
    return fuzz_damage.damaged(rng, content, other)
  header, arrays = parts(content)
  others, more = parts(other)
  if kind < 0.5:
    return joined(others, arrays)
  if kind < 0.6:
    return joined(fuzz_damage.damaged(rng, *(
        json.dumps(one).encode() for one in (header, others))), arrays)
  if kind < 0.75:
    return joined(header, fuzz_damage.damaged(rng, arrays, more))
  for _ in range(rng.choice((1, 1, 2))):
    header = fuzz_damage.odd_json(rng, header)
  return joined(header, arrays)


def _read_checkpoint(path: pathlib.Path) -> None:
  result, content = checkpoints.read(path), path.read_bytes()
  header, arrays = parts(content)
  assert content == joined(header, arrays)
  assert header.pop('arrays') == list(result.arrays)
  saved = io.BytesIO()
  for array in result.arrays.values():
    np.save(saved, array)
  assert saved.getvalue() == arrays
  read = {'version': 1, **vars(result), 'lost': list(result.lost)}
  assert repr({name: read[name] for name in header}) == repr(header)


_EVENTS = (events.PoissonSampled(event=events.CentralGaussian(noise_multiplier=1.0),
                          sampling_rate=0.1, max_participations=3),
    events.Composed(events=(events.NoPrivacy(), events.SelfComposed(
        event=events.CentralGaussian(noise_multiplier=2.0), count=3))),
    events.EpochSampled(event=events.CentralGaussian(noise_multiplier=1.0),
                        cohort_size=3, population=9))


def _sealed(record: Any) -> bytes:
  """A line of a ledger whose hash is right, whatever it says."""
  text = functools.partial(json.dumps, sort_keys=True, separators=(',', ':'))
  if not isinstance(record, dict):
    return text(record).encode()
  return text(
      {**record, 'hash': hashlib.sha256(text(record).encode()).hexdigest()}).encode()


@functools.cache
def _some_ledger(number: int) -> bytes:
  with tempfile.TemporaryDirectory() as folder:
    ledger = ledger_lib.Ledger.create(
        pathlib.Path(folder) / 'ledger', population=9, delta=0.1, adjacency='zero-out',
        warnings=['one'], deviation_per_round=1e-12, certificates=[{'variance': 1.0}])
    for line in range(number % 5):
      ledger.append_line(ledger.next_line(
          _EVENTS[number % 3], outcome='released', starts=1 + line // 2,
          configuration_hash='c'))
    return ledger.path.read_bytes()


def _ledger(rng: random.Random) -> bytes:
  content, other = (_some_ledger(rng.randrange(15)) for _ in range(2))
  kind = rng.random()
  if kind < 0.02:
    return content
  if kind < 0.4:
    return fuzz_damage.damaged(rng, content, other)
  lines = content.splitlines()
  if kind < 0.5:
    lines.insert(rng.randrange(len(lines)), rng.choice(other.splitlines()))
    rng.shuffle(lines)
    return b'\n'.join(lines) + b'\n'
  # A chain whose hashes are right.
  records, at = [json.loads(line) for line in lines], rng.randrange(len(lines))
  previous, result = '0' * 64, []
  for number, record in enumerate(records):
    record.pop('hash')
    record['previous'] = previous
    if number == at:
      record = fuzz_damage.odd_json(rng, record)
    result.append(_sealed(record))
    previous = json.loads(result[-1])['hash'] if isinstance(record, dict) else ''
  return b'\n'.join(result) + b'\n'


def _read_ledger(path: pathlib.Path) -> None:
  ledger = ledger_lib.Ledger(path)
  header, lines = ledger.header(), ledger.lines()
  if lines:
    ledger.event()
    ledger.seen_event()
  text = path.read_text(encoding='utf-8')
  assert text.endswith('\n')
  records = [json.loads(line) for line in text.splitlines()]
  previous = '0' * 64
  for number, record in enumerate(records):
    assert _sealed({key: part for key, part in record.items() if key != 'hash'}
                   ).decode() == text.splitlines()[number]
    assert record['previous'] == previous
    previous = record['hash']
  assert records[1:] == lines and records[0].items() <= header.items()
  assert [line['round'] for line in lines] == list(range(1, len(lines) + 1))
  assert header['population'] is None or header['population'] >= 1
  assert header['delta'] is None or 0 < header['delta'] < 1
  assert isinstance(header['seeded'], bool)
  for texts in (header['warnings'], [header['time'], *(line['time'] for line in lines)]):
    assert isinstance(texts, list) and all(isinstance(one, str) for one in texts)


READERS: dict[str, tuple[Callable[[random.Random], bytes],
                         Callable[[pathlib.Path], None]]] = {
    'checkpoint': (_checkpoint, _read_checkpoint), 'ledger': (_ledger, _read_ledger)}


def run(reader: str, *, inputs: int, seed: int,
        folder: pathlib.Path) -> collections.Counter[str]:
  """Reads inputs 0 to `inputs` - 1 of a reader, each written into the folder.

  Returns how many were 'read' and 'refused'; AssertionError names a finding.
  """
  make, read = READERS[reader]
  path, outcomes = folder / 'input', collections.Counter()
  for number in range(inputs):
    path.write_bytes(make(random.Random(f'{reader} {seed} {number}')))
    try:
      read(path)
      outcomes['read'] += 1
    except ValueError as error:
      message = str(error)
      if not message.startswith(str(path)) or '\n' in message or (
          len(message) > len(str(path)) + _LONGEST):
        raise AssertionError(f'input {number}: {message[:2000]}') from error
      outcomes['refused'] += 1
    except Exception as error:  # pylint: disable=broad-exception-caught
      raise AssertionError(f'input {number}: {type(error).__name__}') from error
  return outcomes


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; 0 if there is no finding."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--inputs', type=int, default=100_000)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--reader', action='append', choices=sorted(READERS))
  flags = parser.parse_args(argv)
  for reader in flags.reader or READERS:
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
      outcomes = run(reader, inputs=flags.inputs, seed=flags.seed,
                     folder=pathlib.Path(folder))
    print(f'{reader}: {flags.inputs} inputs, {outcomes["read"]} read, '
          f'{outcomes["refused"]} refused, {time.monotonic() - start:.0f} s', flush=True)
  return 0


if __name__ == '__main__':
  sys.exit(main())
