"""Programs for differentially private federated learning.

A program that can't run here ends where the package is imported, by one line and exit
code 2. That takes the standard library alone, of any Python 3.
"""

import importlib.util
import os
import platform
import sys

__version__ = '0.1.0'

_FOLDER = os.path.dirname(os.path.realpath(__file__))
# Packages of requirements.txt; environments of others lack at least one of them.
_NEEDED = ('absl', 'dp_accounting', 'ijson', 'numba', 'pandas', 'tensorflow_federated')


def unfit() -> str:
  """Says which system or Python is needed; empty where this one will do."""
  machine = '%s on %s' % (platform.system(), platform.machine())
  if machine != 'Linux on x86_64':
    return 'system must be Linux on x86_64, found ' + machine
  found = '%d.%d.%d' % tuple(sys.version_info[:3])
  return '' if found.startswith('3.11.') else 'Python must be 3.11, found ' + found


def _remedy() -> str:
  root = os.path.dirname(_FOLDER)
  activate = os.path.join(root, '.venv', 'bin', 'activate')
  if os.path.exists(activate) and sys.prefix != os.path.join(root, '.venv'):
    return 'source ' + os.path.relpath(activate)
  if os.path.exists(os.path.join(root, 'Makefile')):
    return 'make setup && source .venv/bin/activate'
  return ('%s -m pip install --no-deps --require-hashes --only-binary :all: -r %s'
          % (sys.executable, os.path.join(_FOLDER, 'requirements.txt')))


_started = sys.argv[0] if sys.argv else ''  # '-m' while Python looks for the module.
if _started == '-m' or os.path.basename(_started).startswith('tff-pipelines') or (
    os.path.realpath(_started) + os.sep).startswith(_FOLDER + os.sep):
  _missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
  _problem = unfit() or _missing and (
      'packages must be those of requirements.txt, found no ' + _missing[0])
  if _problem:
    _end = '' if _problem.startswith('system') else '; run: ' + _remedy()
    print('error: ' + _problem + _end, file=sys.stderr)
    sys.exit(2)
