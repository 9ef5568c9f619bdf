"""Reads many damaged checkpoints and ledgers: each must be refused, or read right.

  python -m tests.experiment.fuzz_records [--inputs=100000] [--seed=0]
      [--reader=checkpoint|ledger ...]

An input is a valid file with some damage, or without: changed and cut bytes, parts of
another file, values of any kind in its JSON, with the digests computed again or not. It
follows from reader, seed and number. A reader may return exactly what the file says, or
raise ValueError with one short line that names the file. Anything else is a finding.
"""

import argparse
import collections
from collections.abc import Callable, Sequence
import functools
import hashlib
import json
import pathlib
import random
import struct
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
_START = struct.Struct('<8sII')
_LEAVES = (
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 2**31, 2**40, 2**63, 2**64, 10**400, -0.0,
    0.5, 1e-300, 1e308, float('inf'), float('nan'), '', 'x', 'a/b', '\n', '\0',
    '\ud800', 'x' * 5000, '<f4', '<f8', '|O', '|b1', '|V1', 'released', 'unused',
    'zero-out', 'NoPrivacy', 'PoissonSampled', 'SelfComposed', 'Composed', [], {})


def value(rng: random.Random, depth: int = 3) -> Any:
  """A JSON value of any kind."""
  kind = rng.random()
  if depth and kind < 0.15:
    return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
  if depth and kind < 0.3:
    return {str(rng.choice(_LEAVES)): value(rng, depth - 1)
            for _ in range(rng.randrange(4))}
  if kind < 0.305:
    return functools.reduce(lambda inner, _: [inner], range(3000), [])
  return rng.choice(_LEAVES)


def changed(rng: random.Random, part: Any) -> Any:
  """A JSON value with one value in it replaced, removed or moved."""
  if not isinstance(part, (list, dict)) or not part or rng.random() < 0.1:
    if type(part) is int and rng.random() < 0.5:  # pylint: disable=unidiomatic-typecheck
      return part + rng.choice((-64, -1, 1, 64, 2**32))
    return value(rng)
  keys = range(len(part)) if isinstance(part, list) else list(part)
  key, other, result = rng.choice(keys), rng.choice(keys), part.copy()
  kind = rng.random()
  if kind < 0.1:
    result.pop(key)
  elif kind < 0.2:
    result[key] = part[other]
  elif kind < 0.3 and isinstance(part, list):
    result.insert(key, part[other])
  else:
    result[key] = changed(rng, part[key])
  return result


def _json(part: Any) -> bytes:
  """JSON of any depth."""
  depth = 0
  while isinstance(part, list) and len(part) == 1:
    part, depth = part[0], depth + 1
  try:
    text = json.dumps(part)
  except RecursionError:
    text = '[' * 50_000
  return ('[' * depth + text + ']' * depth).encode()


def parts(content: bytes) -> tuple[Any, bytes]:
  """Header and arrays of a checkpoint."""
  _, _, length = _START.unpack_from(content)
  start = _START.size + length
  return json.loads(content[_START.size:start]), content[start:-32]


def joined(header: Any, arrays: bytes) -> bytes:
  """A checkpoint whose digest is right, whatever its header says."""
  text = header if isinstance(header, bytes) else _json(header)
  text += b' ' * (-(_START.size + len(text)) % 64)
  content = _START.pack(checkpoints.MAGIC, checkpoints.VERSION, len(text)) + text + arrays
  return content + hashlib.sha256(content).digest()


def _some_checkpoint(rng: random.Random) -> bytes:
  arrays = {}
  for number in range(rng.randrange(4)):
    shape = [rng.randrange(4) for _ in range(rng.randrange(3))]
    dtype = rng.choice(('<f4', '<f8', '<i8', '<i4', '|b1', '|u1', '<f2'))
    arrays[f'state/{number}'] = np.ones(shape, dtype)
  return checkpoints.to_bytes(checkpoints.Checkpoint(
      run='r', rounds=rng.randrange(9), arrays=arrays, table='t', line='{"round":1}' * rng.randrange(2),
      metrics={'epsilon': rng.random(), 'n': 3}, repeats_due=rng.randrange(2),
      lost=(events.NoPrivacy().to_json(),) * rng.randrange(2)))


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
    return joined(fuzz_damage.damaged(rng, _json(header), _json(others)), arrays)
  if kind < 0.7:
    return joined(header, fuzz_damage.damaged(rng, arrays, more))
  if kind < 0.75:
    return joined(value(rng), arrays)
  for _ in range(rng.choice((1, 1, 2))):
    header = changed(rng, header)
  return joined(header, arrays)


def _read_checkpoint(path: pathlib.Path) -> None:
  found, content = checkpoints.read(path), path.read_bytes()
  header, arrays = parts(content)
  assert content == joined(header, arrays)
  assert len(found.arrays) == len(header['arrays'])
  for spec, (name, array) in zip(header['arrays'], found.arrays.items()):
    raw = arrays[spec['offset']:spec['offset'] + array.nbytes]
    assert (spec['path'], spec['dtype'], spec['shape'], raw) == (
        name, array.dtype.str, list(array.shape), array.tobytes())
  read = (found.rounds, found.line, found.repeats_due, list(found.lost), found.metrics)
  assert repr(read) == repr(tuple(header[name] for name in (
      'round', 'ledger_line', 'repeats_due', 'lost', 'metrics')))


_EVENTS = (
    events.PoissonSampled(event=events.CentralGaussian(noise_multiplier=1.0),
                          sampling_rate=0.1, max_participations=3),
    events.Composed(events=(events.NoPrivacy(), events.SelfComposed(
        event=events.CentralGaussian(noise_multiplier=2.0), count=3))),
    events.EpochSampled(event=events.CentralGaussian(noise_multiplier=1.0),
                        cohort_size=3, population=9))


def _sealed(record: Any) -> bytes:
  """A line of a ledger whose hash is right, whatever it says."""
  if isinstance(record, dict):
    try:
      text = json.dumps(record, sort_keys=True, separators=(',', ':'))
    except RecursionError:
      return _json(value(random.Random(0)))
    digest = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps({**record, 'hash': digest}, sort_keys=True,
                      separators=(',', ':')).encode()
  return _json(record)


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
  if kind < 0.55:
    lines[rng.randrange(len(lines))] = _json(value(rng))
    return b'\n'.join(lines) + b'\n'
  # A chain whose hashes are right.
  records, at = [json.loads(line) for line in lines], rng.randrange(len(lines))
  previous, result = '0' * 64, []
  for number, record in enumerate(records):
    record.pop('hash')
    record['previous'] = previous
    if number == at:
      record = changed(rng, record)
    result.append(_sealed(record))
    previous = hashlib.sha256(b'').hexdigest()
    if isinstance(record, dict):
      try:
        previous = json.loads(result[-1])['hash']
      except (RecursionError, TypeError, KeyError):
        pass
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
  """Reads inputs 0 to `inputs` - 1 of a reader.

  Args:
    reader: A key of READERS.
    inputs: Number of inputs.
    seed: Of the inputs.
    folder: Where each is written.

  Returns:
    How many were 'read' and 'refused'.

  Raises:
    AssertionError: For a finding; names the input.
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
