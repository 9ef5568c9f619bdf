"""The configuration that a run records at its first start, and its starts."""

from collections.abc import Mapping
import datetime
import hashlib
import json
import pathlib
import secrets
import sys
from typing import Any

from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.common import files, validate

VERSION = 1
# Settings of the workers.
ENGINES = ('local', 'ray', 'grpc', 'pipes')
# Stands for the engine of a start that only the ledger counts.
_UNKNOWN = 'unknown'


def read(folder: pathlib.Path) -> dict[str, Any] | None:
  """The configuration that a run recorded; None without one, ValueError if damaged."""
  path = folder / files.CONFIGURATION
  if not path.exists():
    return None
  configuration = files.read_json(path)
  if (version := configuration.get('version')) != VERSION:
    raise ValueError(f'{path} has version {version!r}, and known is {VERSION}')
  try:
    digest = hash_of(configuration)
  except (ValueError, RecursionError):  # NaN, infinite, or too deep.
    digest = None
  if digest is None or configuration.get('hash') != digest:
    raise ValueError(f'{path} is damaged or was edited: it does not match its own hash')
  return configuration


def hash_of(configuration: Mapping[str, Any]) -> str:
  """SHA-256 of a configuration's canonical JSON without its own hash, hexadecimal."""
  return hashlib.sha256(json.dumps(
      {name: value for name, value in configuration.items() if name != 'hash'},
      sort_keys=True, separators=(',', ':'), allow_nan=False).encode()).hexdigest()


def write(folder: pathlib.Path, configuration: Mapping[str, Any]) -> None:
  """Writes a configuration, which has its hash."""
  files.write_atomically(folder / files.CONFIGURATION, json.dumps(
      configuration, indent=2, sort_keys=True, allow_nan=False))


def record_start(folder: pathlib.Path, engine: str,
                 at_least: int = 0) -> tuple[int, frozenset[str]]:
  """Records a start of a run, twice, so that neither copy is needed.

  The folder has that of `files.PRIVATE`; `at_least` is the number of earlier starts that
  are known from elsewhere. Returns the number of starts, this one included, and the
  engines, of `ENGINES`, of those that are known; ValueError if both records of earlier
  starts are missing or damaged.
  """
  paths = folder / files.STARTS, folder / files.PRIVATE / files.STARTS
  records, problems = [], []
  for path in paths:
    try:
      records.append(_starts(path))
    except ValueError as error:
      problems.append(str(error))
  if problems and (folder / files.CONFIGURATION).exists():
    if not records:
      raise ValueError(f'{" and ".join(problems)}: its starts are not known')
    print(f'warning: {problems[0]}; the other copy has the starts', file=sys.stderr)
  now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds')
  lines = max(records, key=len, default=[])
  missing = [f'{now} {_UNKNOWN}'] * (at_least - len(lines))
  lines = [*lines, *missing, f'{now} {engine}']
  for path in paths:
    files.write_atomically(path, '\n'.join(lines) + '\n')
  return len(lines), frozenset(
      line.partition(' ')[2] for record in (*records, lines) for line in record)


def begun_on(folder: pathlib.Path) -> str:
  """The day of the first start of the run in a folder, in UTC: YYYY-MM-DD."""
  return _starts(folder / files.STARTS)[0].partition('T')[0]


def _starts(path: pathlib.Path) -> list[str]:
  """The lines of a record of starts; ValueError if it is missing or damaged."""
  if not path.exists():
    raise ValueError(f'{path} is missing')
  *lines, rest = path.read_bytes().decode('utf-8', errors='replace').split('\n')
  for number, line in enumerate(lines, start=1):
    time, _, engine = line.partition(' ')
    try:
      datetime.datetime.fromisoformat(time)
      validate.one_of((*ENGINES, _UNKNOWN), engine=engine)
    except ValueError:
      raise ValueError(f'{path} is damaged: line {number} must be a time and an engine'
                       ) from None
  if rest or not lines:
    raise ValueError(f'{path} is damaged: its last line has no end')
  return lines


def sealed(configuration: Mapping[str, Any],
           earlier: Mapping[str, Any] | None = None) -> dict[str, Any]:
  """A configuration as it is recorded, with version, name of the run, and hash."""
  # It replaces the earlier one of the same run, if there is one.
  # No other run has this name, which checkpoints have too.
  run = secrets.token_hex(16) if earlier is None else earlier['run']
  before = [] if earlier is None else [*earlier['earlier'], earlier['hash']]
  result = {**configuration, 'version': VERSION, 'run': run, 'earlier': before}
  return {**result, 'hash': hash_of(result)}


def check_ledger(folder: pathlib.Path, configuration: Mapping[str, Any]) -> int:
  """Starts in the ledger; ValueError if missing, damaged or of another configuration."""
  ledger = ledger_lib.Ledger(folder / files.LEDGER)
  recorded, starts = ledger.configuration_and_starts()
  # Rounds that were added have no line at first.
  if recorded not in (configuration['hash'], *configuration['earlier']):
    raise ValueError(f'{folder / files.CONFIGURATION} is not the configuration whose '
                     f'hash {ledger.path} has')
  return starts
