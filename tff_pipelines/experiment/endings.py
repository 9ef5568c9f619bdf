"""Endings by a signal: what a run began is finished and kept first."""

from collections.abc import Callable, Iterator
import contextlib
import pathlib
import signal
import sys

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
  """Signal `signum` asked a run to end: all is committed, `folder` can be resumed."""

  def __init__(self, signum: int, folder: pathlib.Path):
    super().__init__(f'ended by {signal.Signals(signum).name}; {folder} can be resumed')
    self.signum, self.folder = signum, folder


@contextlib.contextmanager
def deferred(folder: pathlib.Path) -> Iterator[Callable[[], None]]:
  """Lets the first SIGINT or SIGTERM wait; a second one ends the process at once.

  Signals reach the main thread alone: in another one nothing is deferred. Nor is a
  signal whose handler was not installed from Python, which could not be given back.

  Yields a function to be called where the run may end: raises Interrupted if asked.
  """
  asked, former = [], {}

  def first(signum, frame):
    del frame
    asked.append(signum)
    for other in former:
      signal.signal(other, signal.SIG_DFL)
    print(f'\n{signal.Signals(signum).name}: ends after this round; again to end now',
          file=sys.stderr, flush=True)

  def check() -> None:
    if asked:
      raise Interrupted(asked[0], folder)

  with contextlib.suppress(ValueError):  # Not the main thread.
    for signum in _SIGNALS:
      if signal.getsignal(signum) is not None:
        former[signum] = signal.signal(signum, first)
  try:
    yield check
  finally:
    for signum, handler in former.items():
      signal.signal(signum, handler)
