"""Trains without a trusted server: the parties of a federation, over two servers.

  python -m tff_pipelines.deploy enrol --party=lyon --name=lyon
  python -m tff_pipelines.deploy agree --parties=lyon/enrolment.json,... --agreement=run.json ...
  python -m tff_pipelines.deploy status --party=lyon --agreement=run.json
  python -m tff_pipelines.deploy client --party=lyon --agreement=run.json ...
  python -m tff_pipelines.deploy helper --party=helper --agreement=run.json ...
  python -m tff_pipelines.deploy leader --party=leader --agreement=run.json ...

Each party enrols once. Whoever plans a run gathers the enrolments and writes the
agreement; sites see by status what it costs. Then helper, leader and clients start.
"""

from collections.abc import Sequence
import sys

from tff_pipelines.experiment import cli  # First: the search path follows from it.
from tff_pipelines.deployment.engine import settings  # pylint: disable=g-bad-import-order


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the command that the first argument names; returns its exit code."""
  name, *rest = (sys.argv[1:] if arguments is None else arguments) or ['--help']
  if name not in settings.COMMANDS:
    if name.startswith('-'):
      return cli.start(__doc__, cli.settings_lib.Settings, '', [name, *rest])
    print(f'error: command must be one of {", ".join(settings.COMMANDS)}, found {name!r}',
          file=sys.stderr)
    return 2
  cls, summary = settings.COMMANDS[name]
  first = '--agreement=FILE FLAGS OF TRAIN' if name == 'agree' else '--party=FOLDER'
  doc = f'{summary}\n\n  python -m tff_pipelines.deploy {name} {first} ...'
  return cli.start(doc, cls, f'tff_pipelines.deployment.engine.commands:{name}', rest)
