"""Callbacks: functions of one's own that are called after each commit of a round."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

# (index of a round, its metrics) -> True to stop the run there.
Callback = Callable[[int, Mapping[str, float]], Any]


class StopTraining(Exception):
  """Raised by a callback to stop the run after the round that it was called for."""


def ask_to_stop(callbacks: Iterable[Callback], index: int,
                metrics: Mapping[str, float]) -> bool:
  stop = False
  for callback in callbacks:
    try:
      stop |= callback(index, dict(metrics)) is True
    except StopTraining:
      stop = True
  return stop
