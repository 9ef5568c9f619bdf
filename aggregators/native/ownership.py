"""Files that no other user can have written: code is read from no others.

The rule is that of ssh for its keys. A file, its folder and all folders above it belong
to the user or to root, and only their owners can write to them. So between a check and
a read only these two can exchange anything.
"""

from collections.abc import Callable
import contextlib
import os
import pathlib
import stat


def check(folder: pathlib.Path, *, create: bool = False) -> None:
  """Checks that the user and root alone can change a folder and all above it.

  A folder above it may be open to others if it is sticky, as that of temporary files
  is: there, an entry stays with its owner. An access list shows in the group's bits.

  Args:
    folder: Absolute. A symbolic link in it is refused.
    create: Create what is missing, with mode 0700, below folders that were checked.

  Raises OSError if it is missing, can't be created, or others could change it.
  """
  for path in (*reversed(folder.parents), folder):
    if create:
      with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    is_shared = path != folder and status.st_mode & stat.S_ISVTX
    _check(path, status, stat.S_ISDIR, 0 if is_shared else 0o022)


def private_folder(path: str | os.PathLike[str]) -> pathlib.Path:
  """Resolves links, creates what is missing, and checks the folder; see `check`."""
  resolved = pathlib.Path(os.path.realpath(path))
  check(resolved, create=True)
  return resolved


def read(path: pathlib.Path) -> bytes:
  """Reads a file that the user or root has written, at an absolute path without links.

  Raises OSError if it can't be read, is no regular file, or others could have written it.
  """
  check(path.parent)
  # An open pipe without a writer would wait for one.
  flags = os.O_NOFOLLOW | os.O_NONBLOCK
  with open(path, 'rb', opener=lambda name, mode: os.open(name, mode | flags)) as file:
    _check(path, os.fstat(file.fileno()), stat.S_ISREG, 0o022)
    return file.read()


def _check(path: pathlib.Path, status: os.stat_result, is_kind: Callable[[int], bool],
           forbidden: int) -> None:
  user, mode = os.geteuid(), status.st_mode
  if not is_kind(mode):
    kind = 'folder' if is_kind is stat.S_ISDIR else 'regular file'
    raise PermissionError(f'{path} must be a {kind}, found {stat.filemode(mode)}')
  if status.st_uid not in (0, user):
    raise PermissionError(f'{path} must belong to user {user} or to root, found user '
                          f'{status.st_uid}')
  if mode & forbidden:
    raise PermissionError(f'{path} must be writable by its owner alone (chmod go-w), '
                          f'found mode {stat.S_IMODE(mode):04o}')
