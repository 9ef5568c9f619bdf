"""What a run leaves on disk, and how it survives being killed at any moment.

A round is committed by one atomic rename: the checkpoint, which holds the
model's state together with the round's ledger line and metrics. The line is
appended to the ledger, and the metrics are released, only after that. A run that
was killed before the rename does the round anew, as if it had not been; one that
was killed after it completes ledger and metrics from the checkpoint. So no round
is lost and none is counted twice.
"""

import asyncio
import csv
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

from tff_pipelines import privacy_plan
from tff_pipelines.accounting import ledger as ledger_lib
from tff_pipelines.simulation.run_files import CONFIGURATION
from tff_pipelines.simulation.run_files import LEDGER
from tff_pipelines.simulation.run_files import METRICS
from tff_pipelines.simulation.run_files import SUMMARY
from tff_pipelines.simulation.run_files import write_atomically

_CHECKPOINTS = 'checkpoints'
_TENSORBOARD = 'tensorboard'
_STARTS = 'starts.log'

# What TensorBoard expects to find in a file's first event.
_FILE_VERSION = 'brain.Event:2'


class _Events:
  """A file of TensorBoard events whose times are the numbers of the rounds.

  The writers of TensorFlow note when an event was written, and how long a round took
  tells of how many took part.
  """

  def __init__(self, path: pathlib.Path):
    """Starts a new file; its folder is made if it does not exist."""
    path.parent.mkdir(exist_ok=True)
    self._writer = tf.io.TFRecordWriter(os.fspath(path))
    self._write(event_pb2.Event(wall_time=0.0, file_version=_FILE_VERSION))

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
    configuration_hash: Of the configuration that the run was started with.
    starts: How many times the run was started, this time included.
    ledger: The run's ledger.
  """

  def __init__(self, folder: str | os.PathLike, configuration: dict[str, Any], *,
               resume: bool):
    """Opens the folder of a new run, or of an earlier one to be resumed.

    Args:
      folder: Made if it does not exist.
      configuration: Everything that defines the run, as JSON.
      resume: Continue the run that is there, if one is.

    Raises:
      OSError: If the folder can't be written.
      ValueError: If it holds a run and `resume` is not set, or a run of another
        configuration.
    """
    self.folder = pathlib.Path(folder)
    self.configuration_hash = privacy_plan.configuration_hash(configuration)
    path = self.folder / CONFIGURATION
    if path.exists():
      if not resume:
        raise ValueError(
            f'output_dir={os.fspath(folder)} holds a run already: pass --resume to '
            'continue it, or choose another folder')
      self._check_configuration(path, configuration)
    else:
      self._make_folder()
      write_atomically(path, json.dumps(configuration, indent=2, sort_keys=True))
    with open(self.folder / _STARTS, 'a+', encoding='utf-8') as file:
      now = datetime.datetime.now(datetime.timezone.utc)
      file.write(now.isoformat(timespec='seconds') + '\n')
      file.flush()
      os.fsync(file.fileno())
      file.seek(0)
      self.starts = len(file.readlines())
    self.ledger = ledger_lib.Ledger(self.folder / LEDGER)
    self._states = tff.program.FileProgramStateManager(
        self.folder / _CHECKPOINTS, prefix='round_', keep_total=2)
    self._events = self._table = None

  def _make_folder(self) -> None:
    self.folder.mkdir(parents=True, exist_ok=True)
    for path in self.folder.iterdir():
      # What a run that was killed in its first moments left behind.
      if path.name.startswith(f'.{CONFIGURATION}.'):
        path.unlink()
    if any(self.folder.iterdir()):
      raise ValueError(
          f'output_dir={os.fspath(self.folder)} is not empty and holds no run: '
          'choose another folder')

  def _check_configuration(self, path: pathlib.Path,
                           configuration: dict[str, Any]) -> None:
    try:
      found = json.loads(path.read_text(encoding='utf-8'))
    except ValueError as error:
      raise ValueError(f'{path} is damaged: {error}') from error
    if found == json.loads(json.dumps(configuration)):
      return
    differing = sorted(
        key for key in found.keys() | configuration.keys()
        if found.get(key) != json.loads(json.dumps(configuration.get(key))))
    raise ValueError(
        f'output_dir={os.fspath(self.folder)} holds a checkpoint of another '
        f'configuration: {", ".join(differing)} differ')

  def has_checkpoint(self) -> bool:
    """Whether there is a state to continue from."""
    self._remove_uncommitted()
    return asyncio.run(self._states.get_versions()) is not None

  def restore(self, initial_state, header: dict[str, Any]):
    """The state to continue from and the number of rounds that are committed.

    Args:
      initial_state: The state of a new run; gives the structure, and is
        committed as round 0 if nothing was.
      header: Keyword arguments of the ledger's header, for a new run.

    Raises:
      ValueError: If checkpoint and ledger do not belong together.
    """
    self._remove_uncommitted()
    versions = asyncio.run(self._states.get_versions())
    if versions is None:
      if not self.ledger.path.exists():
        self.ledger.create(self.ledger.path, **header)
      if self.ledger.lines():
        raise ValueError(
            f'{self.ledger.path} has rounds but there is no checkpoint: the run '
            "can't be continued; account for it by the ledger and start another")
      self._save(initial_state, 0, '', {})
      return initial_state, 0
    rounds = versions[-1]
    saved = asyncio.run(self._states.load(
        rounds, self._program_state(initial_state, 0, '', {})))
    line = saved['ledger_line'].decode()
    if line:
      self.ledger.reconcile(line)
    recorded = len(self.ledger.lines())
    if recorded != rounds:
      raise ValueError(
          f'{self.ledger.path} has {recorded} rounds, the checkpoint {rounds}: '
          'they do not belong together')
    if rounds and rounds not in self._released():
      self._release(json.loads(saved['metrics']), rounds)
    state = tf.nest.pack_sequence_as(initial_state, [
        np.asarray(leaf) for leaf in saved['leaves']])
    return state, rounds

  def _remove_uncommitted(self) -> None:
    """Removes rounds that a crash left half committed: they were never released."""
    for path in (self.folder / _CHECKPOINTS).glob('*_temp*'):
      shutil.rmtree(path, ignore_errors=True)

  def _program_state(self, state, rounds: int, line: str,
                     metrics: dict[str, float]):
    leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(state)]
    return dict(leaves=leaves, rounds=np.int64(rounds), ledger_line=line,
                metrics=json.dumps(metrics))

  def _save(self, state, rounds: int, line: str,
            metrics: dict[str, float]) -> None:
    asyncio.run(self._states.save(
        self._program_state(state, rounds, line, metrics), rounds))

  def commit(self, state, rounds: int, event, *, withheld: bool,
             metrics: dict[str, float]) -> None:
    """Makes a round permanent: all of it in one file, then ledger and metrics.

    Args:
      state: After the round.
      rounds: Number of this round, from 1.
      event: What the round released.
      withheld: Whether its result was withheld.
      metrics: Written to the CSV file and to TensorBoard.
    """
    line = self.ledger.next_line(
        event, outcome='withheld' if withheld else 'released',
        configuration_hash=self.configuration_hash, starts=self.starts)
    self._save(state, rounds, line, metrics)
    self.ledger.append_line(line)
    self._release(metrics, rounds)

  def _released(self) -> set[int]:
    """The rounds whose metrics are in the CSV file."""
    path = self.folder / METRICS
    if not path.exists():
      return set()
    with open(path, encoding='utf-8', newline='') as file:
      return {int(row['round']) for row in csv.DictReader(file)}

  def _release(self, metrics: dict[str, float], rounds: int) -> None:
    """Writes metrics to TensorBoard and then, atomically, to the CSV file."""
    if self._events is None:
      # TensorBoard reads files in the order of their names.
      self._events = _Events(
          self.folder / _TENSORBOARD / f'events.out.tfevents.{self.starts:06d}')
      # Appending would leave part of a row if it were killed.
      self._table = tff.program.CSVFileReleaseManager(
          self.folder / METRICS, tff.program.CSVSaveMode.WRITE,
          key_fieldname='round')
    self._events.add(metrics, rounds)
    asyncio.run(self._table.release(metrics, rounds))
