"""Records of a run on disk, which survive its being killed at any moment.

`RunRecords` commits a round by one atomic rename: the checkpoint, which holds the
state together with the round's ledger line and metrics. The line is appended to the
ledger, and the metrics are released, only after that. A run that was killed before
the rename repeats the round; one that was killed after it completes ledger and metrics
from the checkpoint. So no round is lost and none is counted twice.

`ChargedRecords` is for answers that can't be taken back once they are drawn: the
ledger line is durable before anything is drawn, and what a crash loses stays charged.
"""

import asyncio
from collections.abc import Callable
import csv
import dataclasses
import datetime
import json
import os
import pathlib
import shutil
from typing import Any

import numpy as np
from tensorboard.compat.proto import event_pb2
from tensorboard.plugins.scalar import summary_v2
import tensorflow as tf
import tensorflow_federated as tff

from tff_pipelines.accounting import base
from tff_pipelines.accounting import ledger as ledger_lib
from tff_pipelines.accounting import preliminary
from tff_pipelines.experiment import files

_CHECKPOINTS = 'checkpoints'


class _Events:
  """A file of TensorBoard events whose times are the indices of the rounds.

  The writers of TensorFlow note when an event was written, and the duration of a round
  tells of how many clients participated.
  """

  def __init__(self, path: pathlib.Path):
    """Starts a new file; its folder is created if it does not exist."""
    path.parent.mkdir(exist_ok=True)
    self._writer = tf.io.TFRecordWriter(os.fspath(path))
    # TensorBoard reads the version from a file's first event.
    self._write(event_pb2.Event(wall_time=0.0, file_version='brain.Event:2'))

  def _write(self, event: event_pb2.Event) -> None:
    self._writer.write(event.SerializeToString())
    self._writer.flush()

  def add(self, metrics: dict[str, float], rounds: int) -> None:
    """Writes a round's metrics; they survive if the process is killed."""
    event = event_pb2.Event(wall_time=float(rounds), step=rounds)
    for name, value in metrics.items():
      event.summary.value.extend(summary_v2.scalar_pb(name, value).value)
    self._write(event)


class RunRecords:
  """The folder of a run.

  Attributes:
    folder: The output folder.
    configuration: Definition of the run, as it was recorded at its first start.
    configuration_hash: Hash of `configuration`.
    starts: Number of times that the run was started, this time included.
    ledger: The run's ledger.
  """

  def __init__(self, folder: str | os.PathLike[str], configuration: dict[str, Any],
               *, resume: bool, replace: bool = False):
    """Opens the folder of a new run, or of an earlier one to be resumed.

    Args:
      folder: Created if it does not exist.
      configuration: Everything that defines the run, as JSON; recorded if the run is
        new. The caller compares it with that of an earlier start.
      resume: Continue the run in the folder, if there is one.
      replace: Record this configuration in the place of an earlier one: the run gets
        more rounds.

    Raises:
      OSError: If the folder can't be written.
      ValueError: If it holds a run and `resume` is not set, or other files.
    """
    self.folder = pathlib.Path(folder)
    files.check_folder(folder, resume=resume)
    files.create_folder(self.folder)
    self.configuration = files.read_configuration(self.folder)
    if self.configuration is None or replace:
      self.configuration = configuration
      files.write_atomically(self.folder / files.CONFIGURATION, json.dumps(
          configuration, indent=2, sort_keys=True, allow_nan=False))
    self.configuration_hash = files.configuration_hash(self.configuration)
    with open(self.folder / 'starts.log', 'a+', encoding='utf-8') as file:
      now = datetime.datetime.now(datetime.timezone.utc)
      file.write(now.isoformat(timespec='seconds') + '\n')
      file.flush()
      os.fsync(file.fileno())
      file.seek(0)
      self.starts = len(file.readlines())
    self.ledger = ledger_lib.Ledger(self.folder / files.LEDGER)
    # They have what a sampling scheme knows of each client.
    checkpoints = files.private_path(self.folder, _CHECKPOINTS)
    self._states = tff.program.FileProgramStateManager(
        checkpoints, prefix='round_', keep_total=2)
    self._events = self._table = None
    # A crash left these rounds half committed: they were never released.
    for path in checkpoints.glob('*_temp*'):
      shutil.rmtree(path, ignore_errors=True)

  def has_checkpoint(self) -> bool:
    """Whether there is a state to continue from."""
    return asyncio.run(self._states.get_versions()) is not None

  def release_first(self, event: base.Event, header: dict[str, Any], name: str,
                    draw: Callable[[], str]) -> None:
    """Makes a release before the first round, unless it was made; keeps it in a file.

    It is charged before it is drawn: a run that is killed between charge and file
    loses what it may have drawn, which stays charged, and draws again for another
    charge.

    Args:
      event: Event of the release; see `accounting.preliminary`.
      header: Keyword arguments of the ledger's header, for a new run.
      name: Name of the file.
      draw: Draws the content of the file.

    Raises:
      ValueError: If rounds were committed and the file is missing, or the file is
        there and the ledger has no charge for it.
    """
    charges(self.folder, name, preliminary.PreliminaryRelease)
    path = self.folder / name
    if not self.ledger.path.exists():
      self.ledger.create(self.ledger.path, **header)
    if not path.exists() and self.has_checkpoint():
      raise ValueError(f'{path} is missing, and it is released once only: the run '
                       'can\'t be continued')
    self._release_once(event, path, draw)

  def release_last(self, event: base.Event, name: str,
                   draw: Callable[[], str]) -> None:
    """Makes a release after the last round; as `release_first`, with these arguments.

    Raises:
      ValueError: If the file is there and the ledger has no charge for it.
    """
    charges(self.folder, name, preliminary.EvaluationRelease)
    self._release_once(event, self.folder / name, draw)

  def _release_once(self, event: base.Event, path: pathlib.Path,
                    draw: Callable[[], str]) -> None:
    """Charges, draws and keeps, unless the file is there."""
    if not path.exists():
      self.ledger.drop_torn()
      # Starts are not counted: a repeated release has a line of its own.
      self.ledger.append_line(self.ledger.next_line(
          event, outcome='released', starts=1,
          configuration_hash=self.configuration_hash))
      files.write_atomically(path, draw())

  @property
  def beside(self) -> int:
    """Number of lines of the ledger that are of releases beside the rounds."""
    return preliminary.count(self.ledger.lines())

  def restore(self, initial_state: Any, header: dict[str, Any]) -> tuple[Any, int]:
    """The state to continue from and the number of rounds that are committed.

    Args:
      initial_state: The state of a new run; defines the structure, and is
        committed as round 0 if nothing was.
      header: Keyword arguments of the ledger's header, for a new run.

    Raises:
      ValueError: If checkpoint and ledger do not belong together.
    """
    initial = _program_state(initial_state, 0, '', {})
    versions = asyncio.run(self._states.get_versions())
    if versions is None:
      if not self.ledger.path.exists():
        self.ledger.create(self.ledger.path, **header)
      if len(self.ledger.lines()) != self.beside:
        raise ValueError(
            f'{self.ledger.path} has rounds but there is no checkpoint: the run '
            "can't be continued; account for it by the ledger and start another")
      asyncio.run(self._states.save(initial, 0))
      return initial_state, 0
    rounds = versions[-1]
    saved = asyncio.run(self._states.load(rounds, initial))
    line = saved['ledger_line'].decode()
    if line:
      if line in self.ledger.path.read_text(encoding='utf-8').split('\n'):
        self.ledger.drop_torn()  # Of a round that is charged, but was not run.
      self.ledger.reconcile(line)
    recorded = len(self.ledger.lines()) - self.beside - self.unused
    if recorded != rounds:
      raise ValueError(
          f'{self.ledger.path} has {recorded} rounds, the checkpoint {rounds}: '
          'they do not belong together')
    if rounds and rounds not in read_metrics(self.folder / files.METRICS, 'round'):
      self._release(json.loads(saved['metrics']), rounds)
    state = tf.nest.pack_sequence_as(initial_state, [
        np.asarray(leaf) for leaf in saved['leaves']])
    return state, rounds

  def commit(self, state: Any, rounds: int, event: base.Event, *, suppressed: bool,
             metrics: dict[str, float]) -> None:
    """Makes a round permanent: all of it in one file, then ledger and metrics.

    Args:
      state: State after the round.
      rounds: Index of this round, from 1.
      event: Event that the round released.
      suppressed: Whether the round was suppressed.
      metrics: Written to the CSV file and to TensorBoard.
    """
    line = self.ledger.next_line(
        event, outcome='suppressed' if suppressed else 'released',
        configuration_hash=self.configuration_hash, starts=self.starts)
    asyncio.run(self._states.save(
        _program_state(state, rounds, line, metrics), rounds))
    self.ledger.append_line(line)
    self._release(metrics, rounds)

  @property
  def unused(self) -> int:
    """Number of rounds that are charged, but were not run: the run was stopped."""
    return sum(line['outcome'] == ledger_lib.UNUSED for line in self.ledger.lines())

  def stop(self, event: Callable[[int], base.Event], rounds: int) -> None:
    """Charges all rounds up to the last that was planned, which are not run.

    Args:
      event: Index of a round -> its event.
      rounds: Number of planned rounds.
    """
    done = len(self.ledger.lines()) - self.beside
    for index in range(done + 1, rounds + 1):
      self.ledger.append_line(self.ledger.next_line(
          event(index), outcome=ledger_lib.UNUSED,
          configuration_hash=self.configuration_hash, starts=self.starts))

  def _release(self, metrics: dict[str, float], rounds: int) -> None:
    """Writes metrics to TensorBoard and then, atomically, to the CSV file."""
    if self._events is None:
      # TensorBoard reads files in the order of their names.
      self._events = _Events(
          self.folder / 'tensorboard' / f'events.out.tfevents.{self.starts:06d}')
      # Appending would leave part of a row if it were killed.
      self._table = tff.program.CSVFileReleaseManager(
          self.folder / files.METRICS, tff.program.CSVSaveMode.WRITE,
          key_fieldname='round')
    self._events.add(metrics, rounds)
    asyncio.run(self._table.release(metrics, rounds))


def charges(folder: pathlib.Path, name: str,
            kind: type[preliminary.PreliminaryRelease]) -> int:
  """Number of charges for a release beside the rounds once it is made.

  Args:
    folder: Folder of a run.
    name: Name of the file that keeps the release.
    kind: Class of its event.

  Raises:
    ValueError: If the file is there and the ledger has no charge for it, or the ledger
      can't be read.
  """
  path = folder / files.LEDGER
  # A line that a crash tore announced nothing that was drawn.
  text = path.read_text(encoding='utf-8') if path.exists() else ''
  try:
    charged = preliminary.count(map(json.loads, text.split('\n')[1:-1]), kind)
  except (ValueError, TypeError, KeyError, AttributeError):
    raise ValueError(f'{path} must have a release in each line after the first: it was '
                     'edited or damaged') from None
  total = charged + (not (folder / name).exists())
  if not total:
    raise ValueError(f'{path} has no charge for {folder / name}: what that cost is not '
                     'known, so the run can\'t be continued')
  return total


def was_stopped(folder: pathlib.Path) -> bool:
  """Whether the run in a folder was stopped before its last round."""
  ledger = ledger_lib.Ledger(folder / files.LEDGER)
  return ledger.path.exists() and any(
      line['outcome'] == ledger_lib.UNUSED for line in ledger.lines())


def _program_state(state: Any, rounds: int, line: str,
                   metrics: dict[str, float]) -> dict[str, Any]:
  return dict(leaves=[np.asarray(leaf) for leaf in tf.nest.flatten(state)],
              rounds=np.int64(rounds), ledger_line=line, metrics=json.dumps(metrics))


def read_metrics(path: pathlib.Path, key: str) -> dict[int, dict[str, str]]:
  """Rows of a CSV file by the integer in the column `key`, without it."""
  if not path.exists():
    return {}
  with open(path, encoding='utf-8', newline='') as file:
    return {int(float(row.pop(key))): row for row in csv.DictReader(file)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kept:
  """The answers that one charge paid for.

  Attributes:
    line: Ledger line of the charge, as JSON.
    arrays: Name -> drawn answers.
  """

  line: dict[str, Any]
  arrays: dict[str, np.ndarray]


class ChargedRecords:
  """A run whose releases are charged before they are drawn.

  A step first writes its line to the ledger, durably, then draws, then keeps the
  answers. A run that is killed between charge and keeping loses what it drew, or may
  have drawn: it stays charged. Nothing is ever drawn without a charge, and nothing
  that is kept is drawn a second time.

  Attributes:
    run: Configuration, ledger and number of starts.
    kept: Kept answers, in the order of the charges.
    metrics: Round of a charge -> its metrics.
  """

  def __init__(self, run: RunRecords, path_of: Callable[[int], str]):
    """Initializes the records.

    Args:
      run: Records of the folder.
      path_of: Round of a charge -> name of the .npz file that keeps its answers,
        relative to the folder.
    """
    self.run = run
    self.kept: list[Kept] = []
    self.metrics: dict[int, dict[str, float]] = {}
    self._path_of = path_of

  def _path(self, index: int) -> pathlib.Path:
    return self.run.folder / self._path_of(index)

  def restore(self, header: dict[str, Any]) -> None:
    """Reads the records that there are, or starts the ledger.

    Args:
      header: Keyword arguments of the ledger's header, for a new run.

    Raises:
      ValueError: If something is damaged or does not belong together.
    """
    ledger, folder = self.run.ledger, self._path(1).parent
    if not ledger.path.exists():
      if self._path(1).exists():
        raise ValueError(
            f'{ledger.path} is missing, but {self._path(1)} is there: what it cost is '
            'not known, so the run can\'t be continued')
      ledger.create(ledger.path, **header)
    # A torn line announced a step that had drawn nothing yet.
    ledger.drop_torn()
    folder.mkdir(exist_ok=True)
    known = {self._path(line['round']): line for line in ledger.lines()}
    if folder != self.run.folder:
      for path in sorted(folder.iterdir()):
        if path.name.startswith('.'):
          path.unlink()  # A crash left it while it was written.
        elif path not in known:
          raise ValueError(f'{path} belongs to no line of {ledger.path}')
    for path, line in known.items():
      arrays = files.read_arrays(path)
      if arrays is None:
        continue
      if 'line' in arrays and str(arrays.pop('line')) != line['hash']:
        raise ValueError(
            f'{path} must belong to round {line["round"]} of {ledger.path}')
      self.kept.append(Kept(line=line, arrays=arrays))
    rows = read_metrics(self.run.folder / files.METRICS, 'step')
    self.metrics = {step: {name: float(value) for name, value in row.items()}
                    for step, row in rows.items()}

  def charge(self, event: base.Event) -> dict[str, Any]:
    """Writes the line of a step that is about to be drawn, durably; returns it."""
    ledger = self.run.ledger
    # Starts are not counted: a repeated step has a line of its own.
    ledger.append_line(ledger.next_line(
        event, outcome='released', starts=1,
        configuration_hash=self.run.configuration_hash))
    return ledger.lines()[-1]

  def keep(self, line: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Keeps the answers that a charge paid for, durably."""
    files.write_arrays(
        self._path(line['round']), {'line': np.array(line['hash']), **arrays})
    self.kept.append(Kept(line=line, arrays=arrays))

  def measure(self, index: int, metrics: dict[str, float]) -> None:
    """Writes the metrics after the step of a charge's round."""
    self.metrics[index] = metrics
    files.write_table(self.run.folder / files.METRICS, [
        {'step': step, **self.metrics[step]} for step in sorted(self.metrics)])
