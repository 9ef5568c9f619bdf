"""Reads and compares the folders of runs without the project's modules.

Files are read by name alone, so that revisions whose modules differ can be compared.
See tests/recorder.
"""

import contextlib
import csv
import dataclasses
import fnmatch
import hashlib
import json
import math
import os
import pathlib
import re
import sqlite3
from typing import Any, Iterator, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recording:
  """The contents of a case's folder.

  Attributes:
    arrays: Name -> array, compared bit by bit.
    texts: Name -> lines, compared exactly.
    numbers: Name -> path -> number. A missing path is no difference if its value
      is present under another.
  """

  arrays: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  texts: dict[str, list[str]] = dataclasses.field(default_factory=dict)
  numbers: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)

  def without(self, patterns: Sequence[str]) -> 'Recording':
    """Leaves out what matches one of the patterns; a number's name is name.path."""
    def kept(name):
      return not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    return Recording(
        arrays={name: array for name, array in self.arrays.items() if kept(name)},
        texts={name: lines for name, lines in self.texts.items() if kept(name)},
        numbers={name: {path: value for path, value in numbers.items()
                        if kept(f'{name}.{path}')}
                 for name, numbers in self.numbers.items()})

  def size(self) -> str:
    """Describes the numbers of entries."""
    entries = sum(array.size for array in self.arrays.values())
    lines = sum(map(len, self.texts.values()))
    numbers = sum(map(len, self.numbers.values()))
    return (f'{len(self.arrays)} arrays of {entries} entries, {lines} lines, '
            f'{numbers} numbers')


# Fields of a ledger that depend on the time or on the form of the settings, and prose.
_UNCOMPARED = frozenset({'time', 'previous', 'hash', 'warnings', 'trust_model',
                         'format', 'version', 'starts', 'configuration'})
# Values that no program writes to a file, see recorder_runs.
_PROBES = 'probes: '


def natural(text: str) -> list:
  return [int(part) if part.isdigit() else part for part in re.split(r'(\d+)', text)]


def _compact(value: Any) -> str:
  return json.dumps(value, sort_keys=True)


def _read_ledger(path: pathlib.Path) -> dict[str, list[str]]:
  header, *rounds = [json.loads(line) for line in path.read_text().splitlines()]

  def compared(record):
    return _compact({k: v for k, v in record.items() if k not in _UNCOMPARED})

  return {'': [compared(line) for line in rounds], ':header': [compared(header)],
          ':starts': [_compact(line['starts']) for line in rounds]}


def _read_table(path: pathlib.Path) -> dict[str, np.ndarray]:
  with open(path, encoding='utf-8', newline='') as file:
    rows = list(csv.DictReader(file))
  result = {}
  for name in rows[0] if rows else ():
    if name == 'seconds':
      continue
    column = [row[name] for row in rows]
    try:
      result[name] = np.array([float(value or 'nan') for value in column])
    except ValueError:
      result[name] = np.array(column)
  return result


def _numbers(value: Any, path: str = '') -> Iterator[tuple[str, float]]:
  """Yields all numbers of a JSON value, except for booleans and times."""
  if isinstance(value, dict):
    for name, part in value.items():
      if name != 'seconds':
        yield from _numbers(part, f'{path}.{name}' if path else name)
  elif isinstance(value, list):
    for index, part in enumerate(value):
      yield from _numbers(part, f'{path}[{index}]')
  elif isinstance(value, (int, float)) and not isinstance(value, bool):
    yield path, value


def _read_state(folder: pathlib.Path) -> list[np.ndarray]:
  """Reads the arrays of a SavedModel, in the natural order of their names."""
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  reader = tf.train.load_checkpoint(str(folder / 'variables' / 'variables'))
  result = [np.asarray(reader.get_tensor(name)) for name in sorted(
      reader.get_variable_to_shape_map(), key=natural)]
  return [array for array in result if array.dtype.kind in 'biuf']


def _read_file(path: pathlib.Path) -> list[np.ndarray]:
  """Reads the arrays of a checkpoint of one file, in the order of their paths."""
  content = path.read_bytes()
  start = 16 + int.from_bytes(content[12:16], 'little')
  return [np.frombuffer(
      content, spec['dtype'], math.prod(spec['shape']), start + spec['offset']
  ).reshape(spec['shape']) for spec in json.loads(content[16:start])['arrays']]


def _read_checkpoints(folder: pathlib.Path) -> dict[str, np.ndarray]:
  """Reads the first and the last state, 'initial/i' and 'state/i'."""
  states = sorted(folder.iterdir(), key=lambda path: natural(path.name))
  if states and states[0].is_file():
    return {f'state/{index:03}': array
            for index, array in enumerate(_read_file(states[-1]))}
  result = {}
  for kind, path in zip(('initial', 'state'), states[:1] + states[-1:]):
    for index, array in enumerate(_read_state(path)):
      result[f'{kind}/{index:03}'] = array
  return result


def _read_database(path: pathlib.Path) -> list[str]:
  with contextlib.closing(sqlite3.connect(path)) as database:
    lines = list(database.iterdump())
  digest = hashlib.sha256('\n'.join(lines).encode()).hexdigest()
  return [f'{len(lines)} statements', digest]


def read(folder: pathlib.Path, reads_stdout: bool = False) -> Recording:
  """Reads everything in a folder that is compared."""
  result = Recording()
  for path in sorted(folder.rglob('*')):
    name = path.relative_to(folder).as_posix()
    if path.name == 'checkpoints':
      for key, array in _read_checkpoints(path).items():
        result.arrays[f'{name.removesuffix("checkpoints")}{key}'] = array
    elif not path.is_file() or '/checkpoints/' in name:
      continue
    elif path.name == 'ledger.jsonl':
      for key, lines in _read_ledger(path).items():
        result.texts[f'{name}{key}'] = lines
    elif path.suffix == '.csv':
      for key, array in _read_table(path).items():
        result.arrays[f'{name}/{key}'] = array
    elif path.suffix == '.npz':
      with np.load(path, allow_pickle=False) as arrays:
        for key in arrays.files:
          # The hash of the line of the ledger follows from the time.
          if key != 'line':
            result.arrays[f'{name}/{key}'] = arrays[key]
    elif path.suffix == '.sqlite':
      result.texts[name] = _read_database(path)
    elif path.name == 'probes.json':
      for key, lines in json.loads(path.read_text()).items():
        result.texts[f'{_PROBES}{key}'] = lines
    elif path.name in ('summary.json', 'results.json'):
      result.numbers[name] = dict(_numbers(json.loads(path.read_text())))
    elif path.suffix == '.json' and path.name != 'configuration.json':
      result.texts[name] = path.read_text().splitlines()
  if reads_stdout:
    text = (folder / 'stdout').read_text()
    result.numbers['stdout'] = dict(_numbers(json.loads(text)))
  return result


# Comparison.


def _array_difference(old: np.ndarray, new: np.ndarray) -> str | None:
  if old.shape != new.shape or (old.dtype != new.dtype and old.dtype.kind != 'U'):
    return (f'{old.dtype} {list(old.shape)} became {new.dtype} {list(new.shape)}')
  is_number = old.dtype.kind in 'biuf'
  same = np.equal(old, new)
  if old.dtype.kind == 'f':
    same |= np.isnan(old) & np.isnan(new)
  if np.all(same):
    return None
  text = f'{np.size(same) - np.sum(same)} of {np.size(same)} entries differ'
  if is_number:
    gap = np.abs(np.asarray(old, np.float64) - np.asarray(new, np.float64))
    text += f', by at most {np.max(gap[~same]):.3g}'
  return text


def _text_difference(old: list[str], new: list[str]) -> str | None:
  for index, (before, now) in enumerate(zip(old, new)):
    if before != now:
      start = max(0, len(os.path.commonprefix([before, now])) - 30)
      return (f'line {index + 1}: ...{before[start:start + 90]} became '
              f'...{now[start:start + 90]}')
  if len(old) != len(new):
    return f'{len(old)} lines became {len(new)}'
  return None


def _number_difference(old: dict[str, float], new: dict[str, float]) -> str | None:
  texts, values = [], {repr(float(value)) for value in new.values()}
  for path, value in old.items():
    if path not in new:
      if repr(float(value)) not in values:
        texts.append(f'{path}={value!r} is gone')
    elif repr(float(value)) != repr(float(new[path])):
      texts.append(f'{path}={value!r} became {new[path]!r}')
  return ', '.join(texts[:3]) + (' ...' if len(texts) > 3 else '') if texts else None


def differences(old: Recording, new: Recording) -> list[str]:
  """Returns the differences, a line each; empty if the recordings are equal."""
  result = []
  for kind, compare in (('arrays', _array_difference), ('texts', _text_difference),
                        ('numbers', _number_difference)):
    before, now = getattr(old, kind), getattr(new, kind)
    for name in sorted(before.keys() | now.keys()):
      if name not in now:
        result.append(f'{name}: is missing')
      elif name not in before:
        result.append(f'{name}: was not there')
      elif text := compare(before[name], now[name]):
        result.append(f'{name}: {text}')
  return result


def lines_digest(lines: Sequence[str]) -> str:
  return hashlib.sha256('\n'.join(lines).encode()).hexdigest()


def digests(recording: Recording) -> dict[str, str]:
  """Digests what no float of a model affects: ledgers, cohorts, partitions."""
  return {name: lines_digest(lines) for name, lines in recording.texts.items()
          if name.endswith('ledger.jsonl') or name.startswith(_PROBES)}
