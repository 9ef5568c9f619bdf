"""A run as the page shows it: what its folder says, and what its ledger proves."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from tff_pipelines.accounting.guarantees import bounds
from tff_pipelines.accounting.guarantees.guarantee import Guarantee


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
  """A curve of a run.

  Attributes:
    metric: Name of the vertical axis; curves of one name share a chart.
    over: Name of the horizontal axis: 'round' or 'epsilon'.
    label: Text that distinguishes it from others of the run.
    x, y: Finite coordinates of its points, of equal length, at least one.
    main: Whether several runs are compared by it.
    log: Whether the vertical axis is logarithmic.
    covered: Whether it is made of what was released and of held-out sets alone.
  """

  metric: str
  over: str
  label: str
  x: Sequence[float]
  y: Sequence[float]
  main: bool = True
  log: bool = False
  covered: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
  """Result of checking the ledger of a run.

  Attributes:
    rounds: Number of its releases.
    problems: Problems of its chain; empty if it holds.
    guarantee: Its numbers by the ledger alone; None for none.
  """

  rounds: int
  problems: Sequence[str] = ()
  guarantee: Guarantee | None = None

  def proves(self, summary: Mapping[str, Any]) -> bool:
    """Whether the chain holds and no epsilon is above the one that a summary states."""
    mine = {} if self.guarantee is None else self.guarantee.numbers()
    return not self.problems and all(
        summary[key] is None or (
            mine.get(key) is not None and mine[key] <= summary[key] * (1 + 1e-6))
        for key in bounds.KEYS.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """A finished run.

  Attributes:
    name: Name of its folder.
    summary: Its summary (docs/summary.md).
    settings: Name of a setting -> its value.
    curves: Its curves.
    verdict: Verdict on its ledger.
  """

  name: str
  summary: Mapping[str, Any]
  settings: Mapping[str, Any]
  curves: Sequence[Curve]
  verdict: Verdict
