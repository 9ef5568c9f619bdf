"""Messages over standard input and output, for an engine that sites run already.

The engine starts a party as a process and carries its messages; it need not be trusted
with more than that. A frame is the length of its header (uint32, big endian), the
header, a JSON object with `kind` and the `size` of the content, and the content.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import json
import os
import sys
from typing import Any, BinaryIO

from tff_pipelines.deployment import client as client_lib, messages

_MOST_HEADER = 2**16


class Pipes:
  """The two ends of a party; what programs print goes to standard error from then on."""

  def __init__(self, reads: BinaryIO | None = None, writes: BinaryIO | None = None):
    """Takes this process's own, where none are given."""
    if writes is None:
      writes = os.fdopen(os.dup(sys.stdout.fileno()), 'wb')
      os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    self._reads, self._writes = reads or sys.stdin.buffer, writes

  def send(self, kind: str, content: bytes = b'', **header: Any) -> None:
    text = json.dumps({'kind': kind, 'size': len(content), **header}).encode()
    self._writes.write(len(text).to_bytes(4, 'big') + text + content)
    self._writes.flush()

  def read(self, most: int) -> tuple[dict[str, Any], bytes] | None:
    """Header and content of the next frame, of `most` bytes; None at the end.

    Raises ValueError for what is no frame.
    """
    if not (prefix := self._reads.read(4)):
      return None
    length = int.from_bytes(prefix, 'big')
    try:
      header = json.loads(self._reads.read(length)) if length <= _MOST_HEADER else None
    except ValueError:
      header = None
    if not isinstance(header, dict) or type(header.get('size')) is not int or not (
        0 <= header['size'] <= most):
      raise ValueError(f'the engine must send frames of at most {most} bytes')
    content = self._reads.read(header['size'])
    if len(content) != header['size']:
      return None
    return header, content


class LeaderPipes:
  """The leader's: a `rounds.Carrier` whose sites an engine reaches.

  Attributes:
    engine: Name and version of the engine, as it says.
  """

  def __init__(self, pipes: Pipes, opened: Callable[[bytes], bytes | None], most: int):
    """Waits for the engine; `opened` as of `rounds.Carrier`, past the engine."""
    self._pipes, self.opened, self._most = pipes, opened, most
    self._is_open = False
    pipes.send('ready')
    frame = pipes.read(0)
    if frame is None or frame[0]['kind'] != 'engine' or not isinstance(
        frame[0].get('name'), str):
      raise ValueError('the engine must say what it is')
    self.engine = frame[0]['name'][:80]

  def uploads(self, message: bytes, clients: Sequence[str]) -> Iterator[bytes]:
    """As of `rounds.Carrier`; the engine says when there are no more."""
    self._finish()
    self._pipes.send('round', message, clients=list(clients))
    self._is_open = True
    while (frame := self._answer())[0]['kind'] != 'end':
      yield frame[1]

  def close(self) -> None:
    """Tells the engine that the run is over."""
    with contextlib.suppress(OSError):  # Which may have ended it.
      self._finish()
      self._pipes.send('over')

  def _answer(self) -> tuple[dict[str, Any], bytes]:
    if (frame := self._pipes.read(self._most)) is None:
      raise OSError('the engine ended the run')
    self._is_open = frame[0]['kind'] != 'end'
    return frame

  def _finish(self) -> None:
    """Leaves out what else comes in a round that the leader ended."""
    while self._is_open:
      self._answer()


def take_part(client: client_lib.Client, pipes: Pipes, *, most: int,
              log: Callable[[str], None]) -> None:
  """Answers the rounds of a run until the engine ends it; as of `transport.take_part`."""
  pipes.send('ready')
  while (frame := pipes.read(most)) is not None:
    try:
      upload = client.answer(frame[1])
    except messages.MessageError as error:
      log(f'refused: {error}')  # At the site: why is none of the engine's business.
      pipes.send('refused')
    else:
      pipes.send('upload', upload)
