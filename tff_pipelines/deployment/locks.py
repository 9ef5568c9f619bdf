"""One process at a time for a file that state is in."""

from collections.abc import Iterator
import contextlib
import fcntl
import os
import pathlib

from tff_pipelines.common import files


@contextlib.contextmanager
def exclusive(path: pathlib.Path) -> Iterator[None]:
  """Waits until no other process, or object, is within such a block for this path."""
  handle = files.opener(path.with_name(f'{path.name}.lock'), os.O_RDWR | os.O_CREAT)
  try:
    fcntl.flock(handle, fcntl.LOCK_EX)
    yield
  finally:
    os.close(handle)


def append(path: pathlib.Path, content: bytes) -> None:
  """Appends durably, and makes a new file's name survive a power cut."""
  is_new = not path.exists()
  files.append(path, content, durable=True)
  if is_new:
    files.sync_folder(path.parent)
