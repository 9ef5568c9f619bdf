"""Runs a program in a process of its own, where a library may end the process.

Ray's C++ part ends the process of a driver, with exit code 1 and without a word, when
its raylet or the cluster's head is gone. What was committed is whole, as after a kill;
but the user must hear of it, and scripts must see the exit code of a fault.
"""

from collections.abc import Sequence
import ctypes
import json
import os
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Its argument is JSON: the search path, a file descriptor, and arguments of `cli.start`
# with the module and the name of the class of settings.
_START = '''
import importlib, json, os, sys
sys.path[:], writing, doc, module, name, run, arguments = json.loads(sys.argv[1])
from tff_pipelines.experiment import cli
cls = getattr(importlib.import_module(module), name)
try:
  sys.exit(cli.start(doc, cls, run, arguments, is_guarded=True))
finally:
  os.write(writing, b".")
'''


def run(doc: str, cls: type, program: str, arguments: Sequence[str], library: str) -> int:
  """Runs a program in a process, which ends with this one; see `cli.start`.

  Returns its exit code; 2, after one line on standard error, if the library that is
  named ended it; 128 and the number of the signal that ended it.
  """
  reading, writing = os.pipe()
  process = subprocess.Popen(
      [sys.executable, *(f'-W{option}' for option in sys.warnoptions), '-c', _START,
       json.dumps([sys.path, writing, doc, cls.__module__, cls.__qualname__, program,
                   list(arguments)])],
      pass_fds=[writing],
      # A terminal's Ctrl-C is for this process, which passes it on once.
      process_group=0,
      preexec_fn=lambda: ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))
  os.close(writing)
  before = {signum: signal.signal(signum, lambda number, _: process.send_signal(number))
            for signum in _FORWARDED}
  try:
    code = process.wait()
    with os.fdopen(reading, 'rb') as end:
      is_own = bool(end.read(1))
  finally:
    for signum, handler in before.items():
      signal.signal(signum, handler)
  if is_own:
    return code
  if code < 0 and -code not in (signal.SIGABRT, signal.SIGSEGV):
    return 128 - code
  print(f'\nerror: {library} ended this program (exit code {code}), since a server of '
        'its own is gone; what was committed is whole: --resume', file=sys.stderr)
  return 2
