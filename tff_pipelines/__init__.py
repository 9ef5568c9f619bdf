"""Programs for differentially private federated learning.

One that can't run here ends where this is imported, by one line and exit code 2. That
takes the standard library alone, of any Python 3.
"""

import importlib.util
import os
import platform
import sys

__version__ = '0.1.0'

# TensorFlow reads it at its import, and leaves oneDNN out on CPUs without AVX512-VNNI: there
# a step of a small CNN takes 2.3 times as long without it.
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')

_FOLDER = os.path.dirname(os.path.realpath(__file__))


def unfit() -> str:
  """Says which system and Python are needed; empty where these will do."""
  found = '%s on %s, Python %d.%d' % (
      platform.system(), platform.machine(), *sys.version_info[:2])
  needed = 'Linux on x86_64, Python 3.11'
  return '' if found == needed else 'system must be %s, found %s' % (needed, found)


def _check(started: str) -> None:
  # Python has '-m' there while it looks for the module to run.
  if started != '-m' and not os.path.basename(started).startswith('tff-pipelines') and (
      not (os.path.realpath(started) + os.sep).startswith(_FOLDER + os.sep)):
    return
  missing = [name for name in ('absl', 'dp_accounting', 'numba', 'tensorflow_federated')
             if importlib.util.find_spec(name) is None]
  problem = unfit() or missing and (
      'packages must be those of requirements.txt, found no ' + missing[0])
  if problem:
    remedy = 'cd %s && make setup && source .venv/bin/activate' % os.path.dirname(_FOLDER)
    if not os.path.exists(os.path.join(_FOLDER, os.pardir, 'Makefile')):
      remedy = '%s -m pip install --no-deps --require-hashes -r %s/requirements.txt' % (
          sys.executable, _FOLDER)
    print('error: %s; set up by: %s' % (problem, remedy), file=sys.stderr)
    sys.exit(2)


_check(sys.argv[0] if sys.argv else '')
