"""Trains without a trusted server: the parties of a federation, over two servers.

  python -m tff_pipelines.deploy enrol --party=lyon --name=lyon
  python -m tff_pipelines.deploy agree --parties='*.json' --agreement=run.json ...
  python -m tff_pipelines.deploy status --party=lyon --agreement=run.json
  python -m tff_pipelines.deploy client --party=lyon --agreement=run.json ...
  python -m tff_pipelines.deploy helper --party=helper --agreement=run.json ...
  python -m tff_pipelines.deploy leader --party=leader --agreement=run.json ...

Each party enrols once, and keeps its keys. Whoever plans a run gathers the enrolments
and writes the agreement; sites see by status what it costs. Then helper, leader and
clients start, in any order. `deploy COMMAND --help` shows a command's flags.
"""

from collections.abc import Sequence
import functools
import sys

from tff_pipelines.deployment.engine import settings
from tff_pipelines.experiment import cli

# Name of a command -> its settings, and a sentence.
COMMANDS = {
    'enrol': (settings.EnrolSettings, 'Makes keys, and a folder of this party.'),
    'agree': (settings.AgreeSettings, 'Plans a run, and writes its agreement for all '
              'parties. Flags are those of train, too.'),
    'status': (settings.StatusSettings, 'Shows what a site has spent, and what an '
               'agreement would cost.'),
    'client': (settings.ClientSettings, 'Takes part in a run, with the data of a site.'),
    'helper': (settings.HelperSettings, 'Serves as the second server of a run.'),
    'leader': (settings.LeaderSettings, 'Leads a run, and reports as train does.')}


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the command that the first argument names; returns its exit code."""
  name, *rest = (sys.argv[1:] if arguments is None else arguments) or ['--help']
  if name not in COMMANDS:
    if name.startswith('-'):
      return cli.start(__doc__, cli.settings_lib.Settings, '', [name, *rest])
    print(f'error: command must be one of {", ".join(COMMANDS)}, found {name!r}',
          file=sys.stderr)
    return 2
  cls, summary = COMMANDS[name]
  doc = f'{summary}\n\n  python -m tff_pipelines.deploy {name} --party=FOLDER ...'
  return cli.start(doc, cls, f'tff_pipelines.deployment.engine.commands:{name}', rest)


if __name__ == '__main__':
  sys.exit(main())
