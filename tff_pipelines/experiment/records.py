"""Records of a run on disk, which survive its being killed at any moment.

`RunRecords` commits a round by one atomic rename: the checkpoint, which holds the
state together with the round's ledger line and metrics. The line is appended to the
ledger, and the metrics are released, only after that. A run that was killed before
the rename repeats the round; one that was killed after it completes ledger and metrics
from the checkpoint. So no round is lost and none is counted twice.

The latest checkpoints are kept. Where the last one is damaged the run resumes from the
one before. Releases since then are in the ledger and stay charged; those rounds run
again, with fresh cohorts and fresh noise, and are charged again as
`Event.repeated` says: the participations that they counted are lost too.

`ChargedRecords` is for answers that can't be taken back once they are drawn: the
ledger line is durable before anything is drawn, and answers that a crash loses stay
charged.
"""

from collections.abc import Callable, Collection
from concurrent import futures
import dataclasses
import datetime
import json
import os
import pathlib
import shutil
import sys
from typing import Any

import numpy as np

from tff_pipelines.accounting import base
from tff_pipelines.accounting import events as events_lib
from tff_pipelines.accounting import ledger as ledger_lib
from tff_pipelines.accounting import preliminary
from tff_pipelines.experiment import checkpoints
from tff_pipelines.experiment import earlier_checkpoints
from tff_pipelines.experiment import files
from tff_pipelines.experiment import metrics as metrics_lib

_CHECKPOINTS = 'checkpoints'


class RunRecords:
  """The folder of a run.

  Attributes:
    folder: The output folder.
    configuration: Definition of the run, as it was recorded at its first start.
    configuration_hash: Hash of `configuration`.
    starts: Number of times that the run was started, this time included.
    ledger: The run's ledger.
    lost: Events that were charged for rounds whose checkpoints were damaged, as they
      were charged; set by `restore`.
  """

  def __init__(self, folder: str | os.PathLike[str], configuration: dict[str, Any],
               *, resume: bool, replace: bool = False):
    """Opens the folder of a new run, or of an earlier one to be resumed.

    Args:
      folder: Created if it does not exist.
      configuration: Everything that defines the run, as JSON; recorded if the run is
        new. The caller compares it with that of an earlier start.
      resume: Continue the run in the folder, if there is one.
      replace: Record this configuration instead of an earlier one: the run gets more
        rounds.

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
    now = datetime.datetime.now(datetime.timezone.utc)
    starts = self.folder / 'starts.log'
    files.append(starts, f'{now.isoformat(timespec="seconds")}\n'.encode(), durable=True)
    self.starts = starts.read_text(encoding='utf-8').count('\n')
    self.ledger = ledger_lib.Ledger(self.folder / files.LEDGER)
    self.lost: tuple[base.Event, ...] = ()
    self._owed, self._derived = 0, ()
    # They have the sampling scheme's state of each client.
    self._checkpoints = files.private_path(self.folder, _CHECKPOINTS)
    self._checkpoints.mkdir(mode=0o700, exist_ok=True)
    self._events = None
    self._table = metrics_lib.Table(self.folder / files.METRICS, 'round')
    # A crash left these rounds half committed: they were never released.
    for path in filter(checkpoints.is_partial, self._checkpoints.iterdir()):
      _remove(path)

  def has_checkpoint(self) -> bool:
    """Whether there is a checkpoint to continue from, damaged or not."""
    return bool(checkpoints.found(self._checkpoints))

  def release_first(self, event: base.Event, header: dict[str, Any], name: str,
                    draw: Callable[[], str]) -> None:
    """Releases a result before the first round, in a file, unless the file is there.

    It is charged before it is drawn: a run that is killed between charge and file
    loses the content that it may have drawn, which stays charged, and draws again for
    another charge.

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
    """Releases a result after the last round; see `release_first` for the arguments.

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
    """Number of lines of the ledger for releases that are not rounds."""
    return preliminary.count(self.ledger.lines())

  def restore(self, initial_state: Any, header: dict[str, Any], *,
              derived: Collection[str] = (), planned: int = 0,
              event: Callable[[int], base.Event] | None = None) -> tuple[Any, int]:
    """The state to continue from and the number of rounds that are committed.

    Args:
      initial_state: The state of a new run; defines the structure, and is
        committed as round 0 if nothing was.
      header: Keyword arguments of the ledger's header, for a new run.
      derived: Names of parts of the state that follow from the settings: checkpoints
        leave them out, and the restored state has those of `initial_state`.
      planned: Number of planned rounds.
      event: Index of a round -> its event; needed where rounds differ.

    Raises:
      OSError: If a file can't be read or written.
      ValueError: If no checkpoint is whole, or checkpoint and ledger do not belong
        together.
    """
    self._derived = derived
    if not self.has_checkpoint():
      if not self.ledger.path.exists():
        self.ledger.create(self.ledger.path, **header)
      if len(self.ledger.lines()) != self.beside:
        raise ValueError(
            f'{self.ledger.path} has rounds but there is no checkpoint: the run '
            "can't be continued; account for it by the ledger and start another")
      checkpoints.write(self._checkpoints, checkpoints.Checkpoint(
          rounds=0, arrays=checkpoints.arrays_of(initial_state, derived)))
      return initial_state, 0
    checkpoint, problems = self._latest(initial_state)
    rounds = checkpoint.rounds
    state = checkpoints.rebuilt(initial_state, checkpoint.arrays, derived)
    lost = self._reconcile(checkpoint)
    table = self.folder / files.METRICS
    if (latest := max(metrics_lib.read(table, 'round'), default=0)) > rounds + len(lost):
      raise ValueError(
          f'{self.ledger.path} has no line of round {latest}, which {table} has: what '
          "it cost is not known, so the run can't be continued")
    self.lost = tuple(events_lib.from_json(dict(one)) for one in checkpoint.lost)
    self.lost += tuple(one.repeated() for one in lost)
    self._owed = checkpoint.owed + sum(one.repeated() != one for one in lost)
    if lost and event is not None:
      # The next line is charged once more for each start since the last one, as what
      # such a start may have shown of its round. That was a round after the lost ones.
      last = min(rounds + len(lost) + 1, planned)
      for one in {event(i): None for i in range(rounds + 1, last + 1)}:
        if one != event(rounds + 1):
          self._charge(one.repeated())
    if problems or lost:
      what = problems[0] if problems else (
          f'{self.ledger.path} has {len(lost)} rounds more than the last checkpoint')
      print(f'warning: {what}; the run resumes after round {rounds}, and epsilon '
            f'counts what was released after it, too ({len(lost)} rounds)',
            file=sys.stderr)
    self._complete(checkpoint)
    return state, rounds

  def _latest(self, initial_state: Any) -> tuple[checkpoints.Checkpoint, list[str]]:
    """The latest checkpoint that is whole, and the errors of later ones."""
    problems = []
    for rounds, path in checkpoints.found(self._checkpoints):
      try:
        checkpoint = (earlier_checkpoints.read(path, initial_state, self._derived)
                      if path.is_dir() else checkpoints.read(path))
        if checkpoint.rounds != rounds:
          raise ValueError(f'{path} is damaged: it is of round {checkpoint.rounds}')
        return checkpoint, problems
      except ValueError as error:
        problems.append(str(error))
    raise ValueError(f'{problems[0]}; no other checkpoint is whole: the run can\'t be '
                     'continued; account for it by the ledger and start another')

  def _reconcile(self, checkpoint: checkpoints.Checkpoint) -> list[base.Event]:
    """Brings the ledger up to a checkpoint; returns events of later rounds."""
    line, position = checkpoint.line, 0
    if not line or line in self.ledger.path.read_text(encoding='utf-8').split('\n'):
      self.ledger.drop_torn()  # Of a round that is charged, but was not released.
    if line:
      self.ledger.reconcile(line)
      position = json.loads(line)['round']
    lines = self.ledger.lines()
    rounds = [number for number, line in enumerate(lines, start=1)
              if line['outcome'] != ledger_lib.UNUSED and not preliminary.count([line])]
    recorded = sum(number <= position for number in rounds)
    if recorded != checkpoint.rounds + len(checkpoint.lost):
      raise ValueError(
          f'{self.ledger.path} has {recorded} rounds, the checkpoint '
          f'{checkpoint.rounds}: they do not belong together')
    lost = [lines[number - 1] for number in rounds if number > position]
    if lost and preliminary.count(lines[position:], preliminary.EvaluationRelease):
      raise ValueError(
          f'{self.ledger.path} has an evaluation of a model whose checkpoint is lost: '
          "the run can't be continued; account for it by the ledger and start another")
    return [events_lib.from_json(line['event']) for line in lost]

  def _charge(self, event: base.Event) -> None:
    """Charges an event that a lost round, or an attempt at one, may have released."""
    self.ledger.append_line(self.ledger.next_line(
        event, outcome='released', configuration_hash=self.configuration_hash,
        starts=self.starts))
    self.lost += (event,)

  def _complete(self, checkpoint: checkpoints.Checkpoint) -> None:
    """Writes the metrics of kept rounds that a crash, or a power cut, left out."""
    rows = self._table.open(last=checkpoint.rounds)
    for rounds, path in reversed(checkpoints.found(self._checkpoints)):
      if 0 < rounds <= checkpoint.rounds and rounds not in rows:
        try:
          self._release((checkpoint if rounds == checkpoint.rounds else
                         checkpoints.read(path)).metrics, rounds)
        except (ValueError, IsADirectoryError):
          continue  # Damaged, or of an earlier version.
      elif rounds <= checkpoint.rounds - checkpoints.KEPT:
        _remove(path)

  def commit(self, state: Any, rounds: int, event: base.Event, *, suppressed: bool,
             metrics: dict[str, float]) -> None:
    """Commits a round: all of it in one file, then ledger and metrics.

    The checkpoint, its name and the ledger line are synced to the disk, in this order,
    before anything of the round is public.

    Args:
      state: State after the round.
      rounds: Index of this round, from 1.
      event: Event that the round released.
      suppressed: Whether the round was suppressed.
      metrics: Written to the CSV file and to TensorBoard.

    Raises:
      OSError: If a file can't be written; `restore` completes what was begun.
    """
    line = self.ledger.next_line(
        event.repeated() if self._owed else event,
        outcome='suppressed' if suppressed else 'released',
        configuration_hash=self.configuration_hash, starts=self.starts)
    self._owed = max(0, self._owed - 1)
    checkpoints.write(self._checkpoints, checkpoints.Checkpoint(
        rounds=rounds, line=line, metrics=metrics, owed=self._owed,
        lost=tuple(lost.to_json() for lost in self.lost),
        arrays=checkpoints.arrays_of(state, self._derived)))
    # To remove a large file takes as long as to sync the line.
    with futures.ThreadPoolExecutor(1) as thread:
      removed = thread.submit(
          lambda: [*map(_remove, checkpoints.superseded(self._checkpoints, rounds))])
      self.ledger.append_line(line)
      self._release(metrics, rounds)
      removed.result()

  @property
  def unused(self) -> int:
    """Number of rounds that are charged, but were not run: the run was stopped."""
    return sum(line['outcome'] == ledger_lib.UNUSED for line in self.ledger.lines())

  def stop(self, event: Callable[[int], base.Event], rounds: int) -> None:
    """Charges all rounds up to the last that was planned, which are not run.

    They cost what they would have cost: those that are owed, as repeated ones.

    Args:
      event: Index of a round -> its event.
      rounds: Number of planned rounds.
    """
    unused = self.unused  # Of a start that was killed meanwhile.
    done = len(self.ledger.lines()) - self.beside - len(self.lost)
    for number, index in enumerate(range(done + 1, rounds + 1), start=unused):
      one = event(index).repeated() if number < self._owed else event(index)
      self.ledger.append_line(self.ledger.next_line(
          one, outcome=ledger_lib.UNUSED,
          configuration_hash=self.configuration_hash, starts=self.starts))

  def _release(self, metrics: dict[str, float], rounds: int) -> None:
    """Writes metrics to TensorBoard and then to the CSV file."""
    if self._events is None:
      # TensorBoard reads files in the order of their names.
      self._events = metrics_lib.Events(
          self.folder / 'tensorboard' / f'events.out.tfevents.{self.starts:06d}')
    metrics = dict(sorted(metrics.items()))
    # Rows that are not on the disk are in the checkpoints that are kept.
    durable = rounds % checkpoints.KEPT == 0
    self._events.add(metrics, rounds, durable=durable)
    self._table.add(rounds, metrics, durable=durable)


def _remove(path: pathlib.Path) -> None:
  """Removes a checkpoint, or a part of one; those of earlier versions are folders."""
  if path.is_dir():
    shutil.rmtree(path, ignore_errors=True)
  else:
    path.unlink(missing_ok=True)


def charges(folder: pathlib.Path, name: str,
            kind: type[preliminary.PreliminaryRelease]) -> int:
  """Number of charges for a release that is no round, once its file is there.

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
    self._table = metrics_lib.Table(run.folder / files.METRICS, 'step')

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
    self.metrics = {step: {name: float(value) for name, value in row.items()}
                    for step, row in self._table.open().items()}

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
    self._table.add(index, metrics)
