"""Runs a program of the project by its name.

  tff-pipelines train --epsilon=4 --output_dir=run
  python -m tff_pipelines train --epsilon=4 --output_dir=run
"""

from collections.abc import Sequence
import importlib
import sys
import textwrap

import tff_pipelines

# Name of a program -> its module, in tff_pipelines.
PROGRAMS = {
    'train': 'train', 'vote': 'vote', 'fedmd': 'fedmd.__main__', 'ldp': 'ldp.__main__',
    'ldp_baselines': 'ldp_baselines', 'estimate_mean': 'estimate_mean', 'sweep': 'sweep',
    'account': 'account', 'deploy': 'deploy', 'audit': 'audit.__main__',
    'prepare_data': 'prepare_data', 'report': 'report', 'export': 'export',
    'evaluate': 'evaluate', 'predict': 'predict'}


def _module(name: str):
  return importlib.import_module(f'tff_pipelines.{PROGRAMS[name]}')


def _help() -> str:
  lines = ['Differentially private federated learning. Programs:', '']
  width = max(map(len, PROGRAMS)) + 2
  for name in PROGRAMS:
    # The first sentence, or its beginning.
    summary = ' '.join(_module(name).__doc__.split('\n\n')[0].split())
    lines.append('  {:<{}}{}'.format(
        name, width, textwrap.shorten(summary, 76 - width, placeholder=' ...')))
  return '\n'.join([*lines, '', 'tff-pipelines PROGRAM --help shows its flags.'])


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the program that the first argument names; returns its exit code, or 2."""
  name, *rest = (sys.argv[1:] if arguments is None else arguments) or ['--help']
  if name in ('--help', '-h', 'help'):
    print(_help())
    return 0
  if name in ('--version', 'version'):
    print(f'tff-pipelines {tff_pipelines.__version__}')
    return 0
  if name not in PROGRAMS:
    print(f'error: program must be one of {", ".join(PROGRAMS)}, found {name!r}',
          file=sys.stderr)
    return 2
  return _module(name).main(rest)


if __name__ == '__main__':
  sys.exit(main())
