"""The loops of all runs: restore, step, commit, show progress.

A family returns states and never writes them: `Rounds` for runs whose rounds are
committed when they are over, `ChargedRounds` for those whose steps are charged before
they are drawn.
"""

import abc
from collections.abc import Collection, Mapping, Sequence
from concurrent import futures
import dataclasses
from typing import Any

import numpy as np
import tqdm

from tff_pipelines.accounting.events import base
from tff_pipelines.accounting.guarantees import plan as guarantee_lib
from tff_pipelines.common import decimals
from tff_pipelines.experiment import (
    callbacks as callbacks_lib, charged_records, endings, records as records_lib)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
  """The result of a round.

  Attributes:
    state: State after the round, to be committed.
    metrics: Metrics that are released with it.
    suppressed: Whether the round was suppressed.
    failure: Reason why the run can't continue; the round is committed first, since it
      was released. None if it can.
  """

  state: Any
  metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
  suppressed: bool = False
  failure: str | None = None


class Rounds(abc.ABC):
  """The rounds of a family; they write no file.

  Attributes:
    count: Number of rounds of the whole run.
    unit: Name of one in the progress bar.
    derived: Names of parts of the state that follow from the settings, as tables do:
      checkpoints leave them out, and a resumed run has those of its initial state.
  """

  count: int
  unit: str = 'round'
  derived: Collection[str] = ()

  @abc.abstractmethod
  def initial_state(self, resumed: bool) -> Any:
    """The state of a new run, a nested structure of arrays.

    If it is `resumed`, there is a checkpoint: then only the structure, shapes and
    dtypes matter, and the values of what is derived.
    """

  @abc.abstractmethod
  def step(self, state: Any, index: int) -> Step:
    """Runs the round of this index, from 1."""

  def shown(self) -> Mapping[str, str]:
    """Name -> value that the progress bar shows after the latest round."""
    return {}


class ChargedRounds(abc.ABC):
  """The charged steps of a family; they write no file."""

  unit: str = 'step'
  total: int

  @abc.abstractmethod
  def restore(self, lines: list[dict[str, Any]],
              kept: list[charged_records.Kept]) -> None:
    """Takes over all charges and what is kept of them; called before each step."""

  @abc.abstractmethod
  def next_event(self) -> base.Event | None:
    """Event that the next step will release; None if the run is over."""

  @abc.abstractmethod
  def draw(self, line: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Draws the answers that the charge of a ledger line paid for, by name."""

  def done(self) -> int:
    """Number of units of `total` that are charged."""
    return 0

  def metrics(self, kept: list[charged_records.Kept]) -> Mapping[str, float] | None:
    """Metrics after these steps; None if there are none to keep."""
    return None

  def shown(self) -> Mapping[str, str]:
    """Name -> value that the progress bar shows after the latest step."""
    return {}


def progress(total: int, done: int, unit: str, quiet: bool = False) -> tqdm.tqdm:
  """A progress bar on standard error, for a `with` block; none if `quiet`."""
  return tqdm.tqdm(total=total, initial=done, unit=unit, dynamic_ncols=True,
                   mininterval=1.0, disable=quiet)


def run(rounds: Rounds, plan: guarantee_lib.Plan, records: records_lib.RunRecords,
        callbacks: Sequence[callbacks_lib.Callback] = (), quiet: bool = False) -> Any:
  """Runs the rounds that are not committed yet, and commits each.

  A run that a callback stops is charged for all of its rounds: the decision may follow
  from what was released, and no epsilon of the rounds until then would cover that.

  Raises ValueError if a round fails, and endings.Interrupted if a signal asked to end;
  all rounds so far are committed.
  """
  state, done = records.restore(
      rounds.initial_state(records.has_checkpoint()), derived=rounds.derived,
      planned=rounds.count, event=plan.event)
  if records.unused:
    records.stop(plan.event, rounds.count)  # In case a crash interrupted that.
    return state
  with (progress(rounds.count, done, rounds.unit, quiet) as bar,
        futures.ThreadPoolExecutor(1) as beside,
        endings.deferred(records.folder) as may_end):
    for index in range(done + 1, rounds.count + 1):
      # Accounting takes a tenth of a second, and does not wait for the round.
      epsilon = beside.submit(plan.epsilon, index, records.starts - 1, records.lost)
      step = rounds.step(state, index)
      metrics = {plan.epsilon_name: epsilon.result(), **step.metrics}
      records.commit(step.state, index, plan.event(index),
                     suppressed=step.suppressed, metrics=metrics)
      if step.failure is not None:
        raise ValueError(step.failure)
      state = step.state
      shown = decimals.epsilon(metrics[plan.epsilon_name])
      bar.set_postfix({**rounds.shown(), plan.epsilon_name: shown}, refresh=False)
      bar.update()
      if callbacks_lib.ask_to_stop(callbacks, index, metrics) and index < rounds.count:
        records.stop(plan.event, rounds.count)
        break
      if index < rounds.count:
        may_end()
  return state


def run_charged(rounds: ChargedRounds,
                records: charged_records.ChargedRecords, quiet: bool = False) -> None:
  """Charges, draws and keeps the remaining steps, and measures the kept ones."""
  records.restore()
  _measure(rounds, records)
  with (progress(rounds.total, rounds.done(), rounds.unit, quiet) as bar,
        endings.deferred(records.run.folder) as may_end):
    while (event := rounds.next_event()) is not None:
      line = records.charge(event)
      records.keep(line, rounds.draw(line))
      _measure(rounds, records)
      bar.set_postfix(rounds.shown(), refresh=False)
      bar.update(rounds.done() - bar.n)
      may_end()


def _measure(rounds: ChargedRounds, records: charged_records.ChargedRecords) -> None:
  """Brings the rounds up to date, and the metrics of all steps that are kept."""
  lines = records.run.ledger.lines()
  for count, kept in enumerate(records.kept, start=1):
    if kept.line['round'] in records.metrics and count < len(records.kept):
      continue
    rounds.restore(lines, records.kept[:count])
    if kept.line['round'] not in records.metrics and (
        metrics := rounds.metrics(records.kept[:count])) is not None:
      records.measure(kept.line['round'], dict(metrics))
  if not records.kept:
    rounds.restore(lines, [])
