"""A party's process, which an engine starts and whose messages it carries.

Standard library only: it runs in the engine's environment, and the party in its own.
Frames are those of `tff_pipelines.deployment.engine.pipes`.
"""

import contextlib
import json
import os
import queue
import subprocess
import threading
from typing import Any, NamedTuple

# Seconds between looks at whether the engine ends the run, and for an end.
_LOOK, _END = 0.2, 10.0


class Frame(NamedTuple):
  """A message of a party; `content` is opaque to the engine."""

  header: dict[str, Any]
  content: bytes

  @property
  def kind(self) -> str:
    return self.header['kind']


class Ended(Exception):
  """The process has ended, or the engine ends the run; the text says why."""


class Party:
  """A party's process."""

  def __init__(self, command: list[str], folder: str | None = None):
    """Starts it, in a folder; command and folder are the site's, never a job's."""
    # The engine's own packages are none of the party's.
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith('PYTHON')}
    self._process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE)
    self._frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
    self._said: list[str] = []
    self._threads = [threading.Thread(target=target, daemon=True)
                     for target in (self._read, self._listen)]
    for thread in self._threads:
      thread.start()

  def _read(self) -> None:
    stream = self._process.stdout
    try:
      while prefix := stream.read(4):
        header = json.loads(stream.read(int.from_bytes(prefix, 'big')))
        self._frames.put(Frame(header, stream.read(header['size'])))
    finally:
      self._frames.put(None)

  def _listen(self) -> None:
    for line in self._process.stderr:
      self._said.append(line.decode('utf-8', 'replace').rstrip())
      del self._said[:-50]

  def send(self, kind: str, content: bytes = b'', **header: Any) -> None:
    """Sends a frame; Ended if the process is gone."""
    text = json.dumps({'kind': kind, 'size': len(content), **header}).encode()
    try:
      self._process.stdin.write(len(text).to_bytes(4, 'big') + text + content)
      self._process.stdin.flush()
    except OSError:
      raise Ended(self.reason()) from None

  def receive(self, is_over=lambda: False) -> Frame:
    """Waits for a frame; Ended if the process ends, or `is_over` does."""
    while True:
      try:
        frame = self._frames.get(timeout=_LOOK)
      except queue.Empty:
        if is_over():
          raise Ended('the engine ends the run') from None
        continue
      if frame is None:
        raise Ended(self.reason())
      return frame

  def reason(self) -> str:
    """The last line that the process wrote, once it has ended."""
    self._process.wait(_END)
    self._threads[1].join(_END)
    return next((line for line in reversed(self._said) if line.startswith('error: ')),
                self._said[-1] if self._said else 'the process ended')

  @property
  def said(self) -> list[str]:
    """The last lines that the process wrote, for the site's own log."""
    return list(self._said)

  def end(self) -> int:
    """Ends the process, and waits for it; its exit code."""
    with contextlib.suppress(OSError):
      self._process.stdin.close()
    try:
      code = self._process.wait(_END)
    except subprocess.TimeoutExpired:
      self._process.kill()
      code = self._process.wait()
    for thread, stream in zip(self._threads, (self._process.stdout, self._process.stderr)):
      thread.join(_END)
      stream.close()
    return code
