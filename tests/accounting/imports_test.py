"""The accountant is numbers only."""

import subprocess
import sys

_CHECK = '''
import importlib, pkgutil, sys
import tff_pipelines.accounting as package
for module in pkgutil.iter_modules(package.__path__):
  if module.name != 'figures':
    importlib.import_module('tff_pipelines.accounting.' + module.name)
importlib.import_module('tff_pipelines.account')
importlib.import_module('tff_pipelines.fedavg.account')
imported = {name.split('.')[0] for name in sys.modules}
print(sorted(imported & {'tensorflow', 'tensorflow_federated', 'matplotlib',
                      'tasks'}))
print(sorted(name for name in sys.modules if name.startswith('aggregators.')))
'''


def test_no_tensorflow_and_of_the_aggregators_only_numbers():
  lines = subprocess.run(
      [sys.executable, '-c', _CHECK], capture_output=True, text=True, check=True,
      timeout=60).stdout.splitlines()
  # Of the aggregators the parameters, and the tables of noise.
  names = ('alias_table', 'params', 'share_tables', 'validate')
  assert lines == ['[]', str([f'aggregators.{name}' for name in names])]
