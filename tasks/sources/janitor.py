"""Files that must not outlive this process, however it ends."""

import os
import subprocess


def deleted_with_process(*paths: str | os.PathLike[str]) -> subprocess.Popen:
  """Deletes files and folders when this process ends.

  Returns:
    The process that waits for the end; its `communicate` deletes at once.
  """
  return subprocess.Popen(
      ['/bin/sh', '-c', 'cat > /dev/null; rm -rf -- "$@"', 'sh',
       *map(os.fspath, paths)],
      stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
      start_new_session=True)
