"""Records of a run on disk, which survive its being killed at any moment.

`RunRecords` commits a round by one atomic rename: the checkpoint, which holds the
state together with the round's ledger line and metrics. These are written only after
that. A run that was killed before the rename repeats the round; one that was killed
after it completes ledger and metrics from the checkpoint.

Where the last checkpoint is damaged the run resumes from the one before. Releases since
then stay charged; those rounds run again, with fresh cohorts and fresh noise, and are
charged again as `Event.repeated` says: the participations that they counted are lost.

`charged_records` is for answers that can't be taken back once they are drawn.
"""

from collections.abc import Callable, Collection, Mapping
from concurrent import futures
import contextlib
import json
import os
import pathlib
import sys
from typing import Any

from tff_pipelines.accounting.events import base, kinds as events_lib, preliminary
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.common import files
from tff_pipelines.experiment import (
    checkpoints, configurations, metrics as metrics_lib, models)

_CHECKPOINTS = 'checkpoints'
_TENSORBOARD = 'tensorboard'
# Files that are written only after a round, where rounds are committed.
_OF_ROUNDS = (files.METRICS, _TENSORBOARD, files.SUMMARY, files.REPORT, models.ARRAYS)
_OVER = "the run can't be continued; account for it by the ledger"


class RunRecords:
  """The folder of a run.

  Attributes:
    folder: The output folder.
    configuration: Definition of the run, as it was recorded.
    starts: Number of times that the run was started, this time included.
    engines: What ran the workers at these starts, as far as it is known.
    ledger: The run's ledger.
    lost: Events that were charged for rounds whose checkpoints were damaged, as they
      were charged; set by `restore`.
  """

  def __init__(self, folder: str | os.PathLike[str], configuration: dict[str, Any],
               header: Mapping[str, Any], *, resume: bool, replace: bool = False,
               engine: str = 'local'):
    """Opens the folder of a new run, or of an earlier one to be resumed.

    A new run has its ledger and the record of its start before its configuration:
    where that is, they are.

    Args:
      folder: Created if it does not exist.
      configuration: Everything that defines the run, as JSON; recorded if the run is
        new, or `replace`: it gets more rounds. Else the caller compares the two.
      header: Keyword arguments of the ledger's header, for a new run.
      resume: Continue the run in the folder, if there is one.
      engine: What runs the workers, one of `configurations.ENGINES`.

    Raises OSError if the folder can't be written; ValueError if it holds a run and
    `resume` is not set, other files, or a run whose records are damaged, missing or do
    not belong together.
    """
    self.folder = pathlib.Path(folder)
    files.check_folder(folder, resume=resume)
    files.create_folder(self.folder)
    self.ledger, counted = ledger_lib.Ledger(self.folder / files.LEDGER), 0
    if (recorded := configurations.read(self.folder)) is not None:
      counted = configurations.check_ledger(self.folder, recorded)
    self.starts, self.engines = configurations.record_start(self.folder, engine, counted)
    self.configuration = recorded
    if recorded is None or replace:
      self.configuration = configurations.sealed(configuration, recorded)
    if recorded is None:
      self.ledger.create(
          self.ledger.path, **header, configuration_hash=self.configuration['hash'])
    if self.configuration is not recorded:
      configurations.write(self.folder, self.configuration)
    self.lost: tuple[base.Event, ...] = ()
    self._repeats_due, self._derived = 0, ()
    # They have the sampling scheme's state of each client.
    self._checkpoints = self.folder / files.PRIVATE / _CHECKPOINTS
    files.make_folder(self._checkpoints)
    self._events = None
    self._table = metrics_lib.Table(self.folder / files.METRICS, 'round')
    # A crash left these rounds half committed: they were never released.
    for path in self._checkpoints.glob(checkpoints.PARTIAL):
      path.unlink()

  def has_checkpoint(self) -> bool:
    """Whether there is a checkpoint to continue from, damaged or not."""
    return bool(checkpoints.list_all(self._checkpoints))

  def release_once(self, event: base.Event, name: str, draw: Callable[[], str], *,
                   is_last: bool = False) -> None:
    """Releases a result before the first round, or after the last, in a file, once.

    It is charged before it is drawn: a run that is killed between charge and file
    loses the content that it may have drawn, which stays charged, and draws again for
    another charge.

    Raises ValueError if rounds were committed and the file of a first release is
    missing, or the file is there and has no charge, or is not what was released.
    """
    charges(self.folder, name, preliminary.EvaluationRelease if is_last else
            preliminary.PreliminaryRelease)
    path = self.folder / name
    if not (is_last or path.exists()) and self.has_checkpoint():
      raise ValueError(f'{path} is missing, and it is released once only')
    if files.read_checked(self.folder, name) is None:
      self.ledger.drop_torn()
      # Starts are not counted: a repeated release has a line of its own.
      self.charge(event, starts=1)
      files.write_checked(self.folder, name, draw().encode('utf-8'))

  @property
  def outside_rounds(self) -> int:
    """Number of lines of the ledger for releases that are not rounds."""
    return preliminary.count(self.ledger.lines())

  def restore(self, initial_state: Any, *, derived: Collection[str] = (),
              planned: int = 0, event: Callable[[int], base.Event] | None = None
              ) -> tuple[Any, int]:
    """The state to continue from and the number of rounds that are committed.

    `initial_state`, that of a new run, defines the structure, and is committed as round
    0 if nothing was; `derived` is as in `rounds.Rounds`. `planned` is the number of
    planned rounds; `event`, of a round's index, is needed where rounds differ.

    Raises OSError if a file can't be read or written; ValueError if no checkpoint is
    whole, or checkpoint, ledger and what was released do not belong together.
    """
    self._derived = derived
    if not self.has_checkpoint():
      if len(self.ledger.lines()) != self.outside_rounds:
        raise ValueError(
            f'{self.ledger.path} has rounds but there is no checkpoint: {_OVER}')
      self._check_nothing_was_released()
      checkpoints.write(self._checkpoints, checkpoints.Checkpoint(
          run=self.configuration['run'], rounds=0,
          arrays=checkpoints.arrays_of(initial_state, derived)))
      return initial_state, 0
    checkpoint, problems = self._latest()
    rounds = checkpoint.rounds
    state = checkpoints.rebuilt(initial_state, checkpoint.arrays, derived)
    lost = self._reconcile(checkpoint)
    if not rounds + len(lost):
      self._check_nothing_was_released()
    _, missing = self._table.restore(
        rounds, checkpoint.table, rounds + len(lost), self._metrics_of)
    self.lost = (*map(events_lib.from_json, checkpoint.lost),
                 *(one.repeated() for one in lost))
    self._repeats_due = checkpoint.repeats_due + sum(
        one.repeated() != one for one in lost)
    if lost and event is not None:
      # The next line is charged once more for each start since the last one, as what
      # such a start may have shown of its round. That was a round after the lost ones.
      last = min(rounds + len(lost) + 1, planned)
      for one in {event(i): None for i in range(rounds + 1, last + 1)}:
        if one != event(rounds + 1):
          self.charge(one.repeated())
          self.lost += (one.repeated(),)
    if lost and not problems:
      problems = [f'{self.ledger.path} has rounds after the last checkpoint']
    if problems:
      print(f'warning: {problems[0]}; the run resumes after round {rounds}, and '
            f'epsilon counts {len(lost)} rounds after it, too', file=sys.stderr)
    # A crash, or a power cut, left them out.
    for number, metrics in missing.items():
      self._release(metrics, number)
    for number, path in checkpoints.list_all(self._checkpoints):
      if number <= rounds - checkpoints.KEPT:
        path.unlink()
    return state, rounds

  def _metrics_of(self, rounds: int) -> Mapping[str, float] | None:
    """Metrics in the checkpoint of a round; None if it is gone or damaged."""
    with contextlib.suppress(ValueError, FileNotFoundError):
      return checkpoints.read(checkpoints.path_of(self._checkpoints, rounds)).metrics
    return None

  def _check_nothing_was_released(self) -> None:
    """Raises ValueError if there is something that only rounds write."""
    for name in _OF_ROUNDS:
      if (path := self.folder / name).exists():
        raise ValueError(f'{self.ledger.path} has no round, but {path} is there: '
                         f'{metrics_lib.UNKNOWN_COST}')

  def _latest(self) -> tuple[checkpoints.Checkpoint, list[str]]:
    """The latest checkpoint that is whole, and the errors of later ones."""
    problems = []
    for rounds, path in checkpoints.list_all(self._checkpoints):
      try:
        checkpoint = checkpoints.read(path)
        if checkpoint.run != self.configuration['run']:
          raise ValueError(f'{path} is damaged: it is of another run')
        if checkpoint.rounds != rounds:
          raise ValueError(f'{path} is damaged: it is of round {checkpoint.rounds}')
        return checkpoint, problems
      except ValueError as error:
        problems.append(str(error))
    raise ValueError(f'{problems[0]}; no other checkpoint is whole: {_OVER}')

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
      raise ValueError(f'{self.ledger.path} must have the rounds of the checkpoint, '
                       f'{checkpoint.rounds}, found {recorded}')
    lost = [lines[number - 1] for number in rounds if number > position]
    if lost and preliminary.count(lines[position:], preliminary.EvaluationRelease):
      raise ValueError(f'{self.ledger.path} has an evaluation of a model whose '
                       f'checkpoint is lost: {_OVER}')
    return [events_lib.from_json(line['event']) for line in lost]

  def charge(self, event: base.Event, *, outcome: str = 'released',
             starts: int | None = None) -> None:
    """Writes a line of the ledger durably, with the run's number of starts or another."""
    self.ledger.append_line(self._line(event, outcome, starts))

  def _line(self, event: base.Event, outcome: str, starts: int | None = None) -> str:
    return self.ledger.next_line(
        event, outcome=outcome, configuration_hash=self.configuration['hash'],
        starts=starts or self.starts)

  def commit(self, state: Any, rounds: int, event: base.Event, *, suppressed: bool,
             metrics: dict[str, float]) -> None:
    """Commits the round of an index, from 1: all of it in one file, then the rest.

    The checkpoint, its name and the ledger line are synced to the disk, in this order,
    before the metrics, and so anything of the round, are public. If a file can't be
    written, an OSError, `restore` completes what was begun.
    """
    line = self._line(event.repeated() if self._repeats_due else event,
                      'suppressed' if suppressed else 'released')
    self._repeats_due = max(0, self._repeats_due - 1)
    checkpoints.write(self._checkpoints, checkpoints.Checkpoint(
        run=self.configuration['run'], rounds=rounds, line=line, metrics=metrics,
        table=metrics_lib.digest_with(self._table.digest, rounds, metrics),
        repeats_due=self._repeats_due, lost=tuple(lost.to_json() for lost in self.lost),
        arrays=checkpoints.arrays_of(state, self._derived)))
    # To remove a large file takes as long as to sync the line.
    with futures.ThreadPoolExecutor(1) as thread:
      removed = thread.submit(lambda: [
          path.unlink() for path in checkpoints.superseded(self._checkpoints, rounds)])
      self.ledger.append_line(line)
      self._release(metrics, rounds)
      removed.result()

  @property
  def unused(self) -> int:
    """Number of rounds that are charged, but were not run: the run was stopped."""
    return ledger_lib.unused(self.ledger.lines())

  def stop(self, event: Callable[[int], base.Event], rounds: int) -> None:
    """Charges all rounds up to the last that was planned, which are not run."""
    # They cost what they would have cost: those whose repeats are due, as repeated ones.
    done = len(self.ledger.lines()) - self.outside_rounds - len(self.lost)
    # A start that was killed meanwhile has charged some.
    for number, index in enumerate(range(done + 1, rounds + 1), start=self.unused):
      one = event(index)
      self.charge(one.repeated() if number < self._repeats_due else one,
                  outcome=ledger_lib.UNUSED)

  def _release(self, metrics: dict[str, float], rounds: int) -> None:
    """Writes metrics to TensorBoard and then to the CSV file."""
    if self._events is None:
      # TensorBoard reads files in the order of their names.
      self._events = metrics_lib.Events(
          self.folder / _TENSORBOARD / f'events.out.tfevents.{self.starts:06d}')
    metrics = dict(sorted(metrics.items()))
    # Rows that are not on the disk are in the checkpoints that are kept.
    durable = rounds % checkpoints.KEPT == 0
    self._events.add(metrics, rounds, durable=durable)
    self._table.add(rounds, metrics, durable=durable)


def charges(folder: pathlib.Path, name: str,
            kind: type[preliminary.PreliminaryRelease]) -> int:
  """Number of charges for a release that is no round, once its file is there.

  Raises ValueError if the file is there and the ledger has no charge for it, or the
  ledger can't be read.
  """
  path = folder / files.LEDGER
  # A line that a crash tore announced nothing that was drawn.
  text = path.read_text(encoding='utf-8') if path.exists() else ''
  try:
    charged = preliminary.count(map(json.loads, text.split('\n')[1:-1]), kind)
  except (ValueError, TypeError, KeyError, AttributeError):
    raise ValueError(f'{path} must have a release in each line after the first') from None
  total = charged + (not (folder / name).exists())
  if not total:
    raise ValueError(f'{path} has no charge for {folder / name}: '
                     f'{metrics_lib.UNKNOWN_COST}')
  return total
