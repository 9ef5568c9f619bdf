"""Runs programs in this process, for tests that read what they print and write."""

from collections.abc import Callable
import contextlib
import csv
import dataclasses
import importlib
import io
import json
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
  """Runs the `main` of a program or package as if it had been started in a folder."""
  program = importlib.import_module(module)
  if hasattr(program, '__path__'):
    program = importlib.import_module(f'{module}.__main__')
  stdout, stderr = io.StringIO(), io.StringIO()
  with (contextlib.chdir(folder), contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr)):
    code = program.main(arguments)
  return Finished(code, stdout.getvalue(), stderr.getvalue(), pathlib.Path(folder))


def summary(folder: pathlib.Path) -> dict:
  """The summary of a run, which must be JSON without NaN or infinities."""
  def refuse(name):
    raise AssertionError(name)

  return json.loads((folder / 'summary.json').read_text(), parse_constant=refuse)


def rows(path: pathlib.Path) -> list[dict[str, str]]:
  """The rows of a CSV file."""
  with open(path, encoding='utf-8') as file:
    return list(csv.DictReader(file))


def check_refused(finished: Finished, message: str) -> None:
  """Checks that a program ended by one line with this message, and exit code 2."""
  assert finished.code == 2, (finished.stdout, finished.stderr)
  error = finished.stderr
  assert error.startswith('error: ') and message in error, error
  assert error.count('\n') == 1 and error.endswith('\n'), error
  assert 'Traceback' not in error


def folder_of(runs, name: str) -> pathlib.Path:
  """The folder of one of several finished runs, which must have succeeded."""
  finished, folder = runs[name]
  assert finished.code == 0, finished.stderr
  return folder


class Programs:
  """Runs programs one after the other, each in a new folder."""

  def __init__(self, make_folder: Callable[[str], pathlib.Path]):
    self._make_folder = make_folder

  def run(self, module: str, *arguments: str) -> Finished:
    """As `run`, in a folder of its own."""
    return run(module, *arguments, folder=self._make_folder('started'))

  def done(self, module: str, *arguments: str) -> Finished:
    """As `run`, of a program that must end with exit code 0."""
    finished = self.run(module, *arguments)
    assert finished.code == 0, finished.stderr
    return finished
