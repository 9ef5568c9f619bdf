"""The loops of all runs: restore, step, commit, show progress.

A family yields states and never writes them: `Rounds` for runs whose rounds are
committed when they are over, `ChargedRounds` for those whose steps are charged before
they are drawn.
"""

import abc
from collections.abc import Callable, Iterable, Mapping
import contextlib
import dataclasses
from typing import Any

import numpy as np
import tqdm

from tff_pipelines.accounting import base
from tff_pipelines.accounting import decimals
from tff_pipelines.experiment import guarantee as guarantee_lib
from tff_pipelines.experiment import records as records_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
  """What a round came to.

  Attributes:
    state: After the round, to be committed.
    metrics: Released with it.
    suppressed: Whether its result was suppressed.
    failure: Why the run can't continue, in words; the round is committed first, since
      it was released. None if it can.
  """

  state: Any
  metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
  suppressed: bool = False
  failure: str | None = None


class Rounds(abc.ABC):
  """What a family does in its rounds; it writes no file.

  Attributes:
    count: Rounds of the whole run.
    unit: What one is called.
  """

  count: int
  unit: str = 'round'

  @abc.abstractmethod
  def initial_state(self, resumed: bool) -> Any:
    """The state of a new run, a nested structure of arrays.

    Args:
      resumed: Whether there is a checkpoint: then only the structure, shapes and
        dtypes matter.
    """

  @abc.abstractmethod
  def step(self, state: Any, index: int) -> Step:
    """Runs the round of this index, from 1."""

  def shown(self) -> Mapping[str, str]:
    """What the progress bar says after the latest round, by name."""
    return {}


class ChargedRounds(abc.ABC):
  """What a family draws in its charged steps; it writes no file.

  Attributes:
    unit: What progress counts.
    total: Of those, at most.
    header_rounds: Steps that the caveats of the ledger's header are computed for.
  """

  unit: str = 'step'
  total: int
  header_rounds: int = 1

  @abc.abstractmethod
  def restore(self, lines: list[dict[str, Any]],
              kept: list[records_lib.Kept]) -> None:
    """Takes over all charges and what is kept of them; called before each step."""

  @abc.abstractmethod
  def next_event(self) -> base.Event | None:
    """What the next step will release; None if the run is over."""

  @abc.abstractmethod
  def draw(self, line: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Draws what the charge of a ledger line paid for, by name."""

  def done(self) -> int:
    """How much of `total` is charged."""
    return 0

  def metrics(self, kept: list[records_lib.Kept]) -> Mapping[str, float] | None:
    """Metrics after these steps; None if there are none to keep."""
    del kept
    return None

  def shown(self) -> Mapping[str, str]:
    """What the progress bar says after the latest step, by name."""
    return {}


@contextlib.contextmanager
def progress(total: int, done: int, unit: str):
  """A progress bar on standard error."""
  with tqdm.tqdm(total=total, initial=done, unit=unit, dynamic_ncols=True,
                 mininterval=1.0) as bar:
    yield bar


def run(rounds: Rounds, plan: guarantee_lib.Plan, records: records_lib.RunRecords,
        caveats: Iterable[str] = (),
        on_commit: Callable[[int, Mapping[str, float]], None] | None = None) -> Any:
  """Runs the rounds that are not committed yet, and commits each.

  Args:
    rounds: Of the family.
    plan: Says what each round releases, and what that costs.
    records: The folder of the run.
    caveats: For the ledger's header, besides those of the plan.
    on_commit: Called with the index of a round and its metrics after its commit.

  Returns:
    The last state.

  Raises:
    ValueError: If a round fails; it was committed.
  """
  state, done = records.restore(
      rounds.initial_state(records.has_checkpoint()),
      plan.header(rounds.count, caveats))
  with progress(rounds.count, done, rounds.unit) as bar:
    for index in range(done + 1, rounds.count + 1):
      step = rounds.step(state, index)
      metrics = {plan.epsilon_name: plan.epsilon(index, records.starts - 1),
                 **step.metrics}
      records.commit(step.state, index, plan.event(index),
                     suppressed=step.suppressed, metrics=metrics)
      if step.failure is not None:
        raise ValueError(step.failure)
      state = step.state
      bar.set_postfix(
          {**rounds.shown(),
           plan.epsilon_name: decimals.epsilon(metrics[plan.epsilon_name])},
          refresh=False)
      bar.update()
      if on_commit is not None:
        on_commit(index, metrics)
  return state


def run_charged(rounds: ChargedRounds, plan: guarantee_lib.Plan,
                records: records_lib.ChargedRecords,
                caveats: Iterable[str] = ()) -> None:
  """Charges, draws and keeps the steps that are left, and measures those kept.

  Args:
    rounds: Of the family.
    plan: Of the run.
    records: The folder of the run.
    caveats: For the ledger's header, besides those of the plan.
  """
  records.restore(plan.header(rounds.header_rounds, caveats))
  _measure(rounds, records)
  with progress(rounds.total, rounds.done(), rounds.unit) as bar:
    while (event := rounds.next_event()) is not None:
      line = records.charge(event)
      records.keep(line, rounds.draw(line))
      _measure(rounds, records)
      bar.set_postfix(rounds.shown(), refresh=False)
      bar.update(rounds.done() - bar.n)


def _measure(rounds: ChargedRounds, records: records_lib.ChargedRecords) -> None:
  """Brings the rounds up to date, and the metrics of all steps that are kept."""
  lines = records.run.ledger.lines()
  for count, kept in enumerate(records.kept, start=1):
    if kept.line['round'] in records.metrics and count < len(records.kept):
      continue
    rounds.restore(lines, records.kept[:count])
    if kept.line['round'] not in records.metrics:
      metrics = rounds.metrics(records.kept[:count])
      if metrics is not None:
        records.measure(kept.line['round'], dict(metrics))
  if not records.kept:
    rounds.restore(lines, [])
