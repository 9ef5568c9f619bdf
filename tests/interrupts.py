"""Ends what a test runs in the middle, as Ctrl-C would."""

from collections.abc import Callable, Iterator
import contextlib
from typing import Any

import pytest

from tff_pipelines.experiment import records as records_lib


def interrupt(*_, **__) -> None:
  raise KeyboardInterrupt


@contextlib.contextmanager
def interrupted(target: Any, name: str) -> Iterator[None]:
  """Ends the block where it calls this attribute, which it must."""
  with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(target, name, interrupt)
    yield


@contextlib.contextmanager
def after_commit(rounds: int, act: Callable[[], None] = interrupt) -> Iterator[None]:
  """Acts after the commit of this round in the block."""
  commit = records_lib.RunRecords.commit

  def commit_and_act(self, state, index, *arguments, **named):
    commit(self, state, index, *arguments, **named)
    if index == rounds:
      act()

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(records_lib.RunRecords, 'commit', commit_and_act)
    yield
