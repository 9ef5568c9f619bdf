"""The search path of modules: those of a user's folder come after all others.

Importing this module, before any of `tasks` and `aggregators`, moves the current folder
to the end of `sys.path`, or adds it there. So a `tasks.py` in it hides none of our
packages, and modules of one's own are found, however a program was started.
"""

import os
import pathlib
import sys

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def current_folder_last() -> None:
  """Moves what could hide our packages to the end, and the current folder with it."""
  here = os.getcwd()
  if _ROOT.samefile(here):
    return
  hiding = [entry for entry in sys.path if _hides(entry or here)]
  sys.path[:] = [*(entry for entry in sys.path if entry not in hiding), *hiding]
  if here not in sys.path:
    sys.path.append(here)


def _hides(entry: str) -> bool:
  """Whether it is the current folder, or has a module of a name of ours."""
  folder = pathlib.Path(entry)
  return folder.is_dir() and not folder.samefile(_ROOT) and (
      folder.samefile(os.getcwd()) or any((folder / name).exists() for name in (
          'aggregators.py', 'aggregators', 'tasks.py', 'tasks')))


current_folder_last()
