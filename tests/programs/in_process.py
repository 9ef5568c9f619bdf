"""Runs programs in this process, for tests that read what they print and write."""

import contextlib
import dataclasses
import importlib
import io
import os
import pathlib


@dataclasses.dataclass(frozen=True)
class Finished:
  """Attributes: exit code; all that was printed; the folder it was started in."""

  code: int
  stdout: str
  stderr: str
  folder: pathlib.Path


def run(module: str, *arguments: str, folder: str | os.PathLike[str]) -> Finished:
  """Runs the `main` of a program as if it had been started in a folder."""
  main = importlib.import_module(module).main
  stdout, stderr = io.StringIO(), io.StringIO()
  with (contextlib.chdir(folder), contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr)):
    code = main(arguments)
  return Finished(code, stdout.getvalue(), stderr.getvalue(), pathlib.Path(folder))
