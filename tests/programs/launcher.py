"""Starts programs as processes of their own, without paying for imports.

A server, `python -m tests.programs.launcher`, imports TensorFlow once and forks itself
for every request, one JSON object a line. Tests that need no process of its own run a
program by `tests.programs.in_process`.
"""

import atexit
import gc
import importlib
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import time
import traceback

import psutil

from tff_pipelines.experiment import cli

ROOT = pathlib.Path(__file__).absolute().parents[2]
# Set in the environment of each started process; its workers inherit it.
MARK = 'TFF_PIPELINES_TEST_MARK'


def environment(mark: str) -> dict[str, str]:
  """The environment of a user who set nothing."""
  environment = {**os.environ, 'PYTHONPATH': str(ROOT), MARK: mark}
  environment.pop('TF_CPP_MIN_LOG_LEVEL', None)
  return environment


def python(module: str, *arguments: str, mark: str = '',
           folder: pathlib.Path = ROOT) -> subprocess.Popen:
  """Starts `python -m module arguments` in an interpreter of its own, in a folder."""
  return subprocess.Popen(
      [sys.executable, '-m', module, *arguments], cwd=folder,
      env=environment(mark), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
      stderr=subprocess.PIPE, text=True)


def workers_of(mark: str) -> list[psutil.Process]:
  """The workers of a marked process that still live."""
  processes = []
  for process in psutil.process_iter(['name', 'cmdline']):
    try:
      is_worker = any('local_processes.serve' in text for text in process.cmdline())
      if is_worker and process.environ().get(MARK) == mark:
        processes.append(process)
    except psutil.Error:
      continue  # It ended, or belongs to someone else.
  return processes


class Run:
  """A process in the folder that holds what it prints.

  `code` is its exit code, minus the signal that ended it; None while it runs.
  """

  def __init__(self, server: 'Launcher', pid: int, folder: pathlib.Path, mark: str):
    self._server = server
    self.folder = folder
    self.pid = pid
    self.mark = mark
    self.code: int | None = None

  @property
  def stdout(self) -> str:
    return (self.folder / 'stdout').read_text(encoding='utf-8')

  @property
  def stderr(self) -> str:
    return (self.folder / 'stderr').read_text(encoding='utf-8')

  def poll(self) -> int | None:
    """The exit code, minus the signal that ended it, None while it runs."""
    if self.code is None:
      self.code = self._server.ask(poll=self.pid)['code']
    return self.code

  def wait(self, timeout: float = 300.0) -> int:
    """Waits for the end and returns the exit code."""
    deadline = time.monotonic() + timeout
    while self.poll() is None:
      if time.monotonic() > deadline:
        self.kill()
        raise TimeoutError(f'still running: {self.stdout}\n{self.stderr}')
      time.sleep(0.01)
    return self.code

  def kill(self) -> None:
    """SIGKILL."""
    if self.poll() is None:
      os.kill(self.pid, signal.SIGKILL)
      self.wait()


class Launcher:
  """The client's side of the server."""

  def __init__(self, folder: pathlib.Path):
    """Starts the server; what processes print goes to files in `folder`."""
    self._folder = folder
    self._count = 0
    self._process = subprocess.Popen(
        [sys.executable, '-m', 'tests.programs.launcher'], cwd=ROOT,
        env=environment('server'), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True)

  def ask(self, **request):
    """Sends a request and returns its answer."""
    self._process.stdin.write(json.dumps(request) + '\n')
    self._process.stdin.flush()
    return json.loads(self._process.stdout.readline())

  def start(self, module: str, *arguments: str) -> Run:
    """Starts `python -m module arguments`."""
    self._count += 1
    folder = self._folder / f'process_{self._count}'
    folder.mkdir()
    mark = f'{os.getpid()}.{id(self)}.{self._count}'
    answer = self.ask(start=module, arguments=list(arguments), mark=mark,
                      folder=str(folder))
    return Run(self, answer['pid'], folder, mark)

  def run(self, module: str, *arguments: str) -> Run:
    """Starts it and waits for its end."""
    run = self.start(module, *arguments)
    run.wait()
    return run

  def stop(self) -> None:
    self._process.stdin.close()
    self._process.wait(timeout=60)
    self._process.stdout.close()


def _become(request) -> None:
  """Turns this forked process into the program; never returns."""
  os.setsid()
  os.environ[MARK] = request['mark']
  folder = pathlib.Path(request['folder'])
  os.chdir(folder)
  for number, path in ((0, '/dev/null'), (1, folder / 'stdout'),
                       (2, folder / 'stderr')):
    flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
    handle = os.open(path, flags, 0o644)
    os.dup2(handle, number)
    os.close(handle)
  sys.stdin = open(0, encoding='utf-8')
  sys.stdout = open(1, 'w', encoding='utf-8')
  sys.stderr = open(2, 'w', encoding='utf-8', buffering=1)
  sys.argv = [request['start'], *request['arguments']]
  code = 0
  try:
    runpy.run_module(request['start'], run_name='__main__', alter_sys=True)
  except SystemExit as ending:
    code = ending.code or 0
  except BaseException:  # pylint: disable=broad-except
    traceback.print_exc()
    code = 1
  atexit._run_exitfuncs()  # pylint: disable=protected-access
  sys.stdout.flush()
  sys.stderr.flush()
  # Taking the inherited interpreter apart would last a second.
  os._exit(code)


def _serve() -> None:
  cli.quiet()
  # What takes longest of all that the programs import.
  for name in ('tff_pipelines.fedavg.run', 'tasks.emnist.task', 'sklearn.datasets',
               'tff_pipelines.fedavg.account', 'matplotlib.pyplot'):
    importlib.import_module(name)
  gc.freeze()  # Children need not copy what they collect.
  for line in sys.stdin:
    request = json.loads(line)
    if 'poll' in request:
      pid, status = os.waitpid(request['poll'], os.WNOHANG)
      code = os.waitstatus_to_exitcode(status) if pid else None
      print(json.dumps({'code': code}), flush=True)
      continue
    pid = os.fork()
    if pid == 0:
      _become(request)
    print(json.dumps({'pid': pid}), flush=True)
  os._exit(0)


if __name__ == '__main__':
  _serve()
