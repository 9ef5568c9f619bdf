"""Flags and loop of the scripts that run experiments and fill tables with them."""

import argparse
from collections.abc import Callable, Iterable, Sequence
import os
import pathlib
import shlex
from typing import Any

from benchmarks import documents


def parse(doc: str, arguments: Sequence[str] | None, *, output_dir: str, document: str,
          picture: str | None = None) -> argparse.Namespace:
  """Parses the flags of a script.

  Args:
    doc: Docstring of the script.
    arguments: Arguments of its command line; None for those of this process.
    output_dir: Folder of the runs by default.
    document: Page of the tables.
    picture: File of the figure; None for scripts without one.
  """
  parser = argparse.ArgumentParser(
      description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data_dir', default=os.environ.get('DATA_DIR') or None,
                      help='folder of the data files')
  parser.add_argument('--output_dir', help='folder of the runs and of results.jsonl, '
                      f'{output_dir} if none is given')
  parser.add_argument('--document', help='page of the tables, empty for none; '
                      f'{document} if none is given')
  if picture is not None:
    parser.add_argument('--picture', help='file of the figure, empty for none; '
                        f'{picture} if none is given')
  parser.add_argument('--only', default=(), type=lambda text: text.split(','),
                      help='only experiments whose names start so')
  parser.add_argument('--list', action='store_true',
                      help='print the commands and run nothing')
  parser.add_argument('--quick', action='store_true', help='tiny experiments, to see '
                      'it run; no page is rewritten unless --document names it')
  flags = parser.parse_args(arguments)
  if flags.data_dir is None and not flags.quick:
    parser.error('--data_dir must name the folder of the data files')
  defaults = ((f'{output_dir}_quick', '', '') if flags.quick else
              (output_dir, document, picture))
  for name, value in zip(('output_dir', 'document', 'picture'), defaults):
    if getattr(flags, name, '') is None:
      setattr(flags, name, value)
  return flags


def results(flags: argparse.Namespace, experiments: Iterable[Any],
            run: Callable[[Any, pathlib.Path], dict[str, Any]]
            ) -> dict[str, dict[str, Any]] | None:
  """Runs the experiments that have no line in results.jsonl yet.

  Args:
    flags: Result of `parse`.
    experiments: With `name`, `row`, `seed`, `flags` and `command`.
    run: (experiment, folder) -> fields of its line.

  Returns:
    All lines by name; None if the commands were printed instead.
  """
  folder = pathlib.Path(flags.output_dir)
  wanted = [e for e in experiments
            if not flags.only or e.name.startswith(tuple(flags.only))]
  if flags.list:
    for experiment in wanted:
      print(shlex.join(experiment.command(folder, flags.data_dir)))
    return None
  (folder / 'logs').mkdir(parents=True, exist_ok=True)
  lines = documents.read(folder)
  for number, experiment in enumerate(wanted, start=1):
    line = lines.get(experiment.name)
    if line is not None and line.get('flags', experiment.flags) == experiment.flags:
      continue
    line = {'name': experiment.name, 'row': experiment.row, 'seed': experiment.seed,
            **run(experiment, folder)}
    documents.append(folder, line)
    lines[experiment.name] = line
    print(f"{number}/{len(wanted)} {line['name']}: accuracy "
          f"{100 * line['accuracy']:.2f}, epsilon {line['epsilon']}, "
          f"{line['seconds']:.0f} s", flush=True)
  return lines
