"""Runs a program: flags to settings, settings to a run, errors to one line.

Exit codes: 0; 2 for a mistake of the user (a wrong flag, bad data, a folder that can't be
used), as one line on standard error; 130 for Ctrl-C and 143 for SIGTERM, after the round
that was running. Anything else is a fault of the program and keeps its traceback.
"""

from collections.abc import Callable, Sequence
import difflib
import functools
import gc
import importlib
import os
import pathlib
import re
import shlex
import sys
import textwrap
import warnings

from absl import flags, logging

import tff_pipelines
# First: it decides where the others are found.
from tff_pipelines.experiment import search_path  # pylint: disable=unused-import
# pylint: disable=g-bad-import-order
from tff_pipelines.experiment import endings, guarded, settings as settings_lib

# Flag files that come with the project.
_CONFIGS = pathlib.Path(tff_pipelines.__file__).parent / 'configs'
_HELP = ('--help', '-h', '-help', '--helpshort', '--helpfull', '-helpfull')
_CODES = ('Exit codes: 0; 2 for a mistake of the user, in one line; 130 or 143 after '
          'the round in which a signal came.')

# Names of flags elsewhere -> those here.
_RATES, _BATCHES = ('client_learning_rate', 'server_learning_rate'), (
    'client_batch_size', 'student_batch_size', 'cohort_size')
_MEANT = {'lr': _RATES, 'learning_rate': _RATES, 'batch_size': _BATCHES,
          'epochs': ('client_epochs', 'rounds'), 'target': ('label_field',),
          'sigma': ('noise_multiplier', 'noise_stddev'), 'max_grad_norm': ('clip',)}


def quiet() -> None:
  """Silences the messages of TensorFlow and its dependencies at their import."""
  # They would hide the one line of an error. Their errors that matter are exceptions.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  warnings.filterwarnings('ignore', message='pkg_resources is deprecated')


def help_text(doc: str, cls: type[settings_lib.Settings], *, full: bool) -> str:
  """The text that --help or --helpfull prints.

  `doc` has a summary, examples, and more, which only the latter shows.
  """
  parts = [*re.split(r'\n\n+', doc.strip()), _CODES]
  if not full:
    # The first paragraph and the examples.
    parts = [part for i, part in enumerate(parts) if i == 0 or part.startswith('  ')]
  # Source code is wider than a terminal.
  parts = [part if '\n  ' in f'\n{part}' else textwrap.fill(part, 80) for part in parts]
  lines = ['\n\n'.join(parts), *settings_lib.help_lines(cls, full=full)]
  if not full:
    lines += ['', 'All flags: --helpfull. Flags from a file: --flagfile=FILE.']
  return '\n'.join(lines)


def _found(argument: str) -> str:
  """The argument, with the path of a flag file that comes with the project."""
  # `--flagfile=emnist` is that file, unless the current folder has one of the name; so
  # is `--flagfile=tff_pipelines/configs/emnist.flags`, wherever the project is.
  flag, equals, name = argument.partition('=')
  if flag.lstrip('-') != 'flagfile' or not equals or os.path.exists(name):
    return argument
  stem = name.removeprefix('tff_pipelines/configs/').removesuffix('.flags')
  path = _CONFIGS / f'{stem}.flags'
  return f'{flag}={path}' if path.parent == _CONFIGS and path.is_file() else argument


def parsed(cls: type[settings_lib.Settings],
           arguments: Sequence[str]) -> settings_lib.Settings:
  """The settings that the arguments of a program stand for; ValueError if wrong."""
  values = flags.FlagValues()
  values.set_gnu_getopt()  # Flags may follow other arguments.
  # With absl's own, --verbosity among them.
  values.append_flag_values(flags.FLAGS)
  for name in list(values):
    if name in settings_lib.declared(cls):
      delattr(values, name)
  settings_lib.define_flags(cls, values)
  try:
    rest = values(['', *map(_found, arguments)])
  except flags.UnrecognizedFlagError as error:
    raise ValueError(_unknown(error.flagname, cls)) from None
  except flags.Error as error:
    raise ValueError(str(error)) from None
  if not values['verbosity'].present:
    # TFF logs every checkpoint at the level of information.
    logging.set_verbosity(logging.WARNING)
  return settings_lib.from_flags(cls, values, rest[1:])


def _unknown(name: str, cls: type[settings_lib.Settings]) -> str:
  """The error of a flag that there is not, with those that may be meant."""
  known = [flag for flag, f in settings_lib.declared(cls).items() if not f.positional]
  if name in ('gpu', 'gpus', 'device', 'cuda', 'tpu'):
    return f'unknown flag --{name}: computations run on the processor\'s cores'
  meant = [flag for flag in _MEANT.get(name, ()) if flag in known] or (
      [flag for flag in known if name in flag.split('_')][:3] or
      difflib.get_close_matches(name, known, 2))
  return f'unknown flag --{name}' + (
      f': did you mean {" or ".join(f"--{flag}" for flag in meant)}?' if meant else
      '; --helpfull lists all')


def _imported(module: str):
  """Imports a module, whose objects the garbage collector then never visits."""
  # To visit half a million of TensorFlow and TFF takes a second, and another at the end.
  if module in sys.modules:
    return sys.modules[module]
  gc.disable()
  try:
    return importlib.import_module(module)
  finally:
    gc.freeze()
    gc.enable()


def start(doc: str, cls: type[settings_lib.Settings], run: str,
          arguments: Sequence[str] | None = None, *, is_guarded: bool = False) -> int:
  """Runs a program and returns its exit code.

  Args:
    doc: Docstring of the program.
    cls: Class of its settings.
    run: 'module:function' that takes the settings, imported only when they are known
      to be right. An experiment that it returns is run; an integer is the exit code.
    arguments: Arguments of the program; None for those of this process.
    is_guarded: Whether another process reports the end of this one (`guarded`).
  """
  arguments = sys.argv[1:] if arguments is None else arguments
  for argument in arguments:
    if argument in _HELP:
      print(help_text(doc, cls, full=argument.endswith('full')))
      return 0
    if argument == '--version':
      print(f'tff-pipelines {tff_pipelines.__version__}')
      return 0
  try:
    settings = parsed(cls, arguments)
    settings.check_paths()
    if settings.ended_by is not None and not is_guarded:
      return guarded.run(doc, cls, run, arguments, settings.ended_by)
    settings.prepare()
    quiet()
    module, _, name = run.partition(':')
    result = getattr(_imported(module), name)(settings)
    result = result.run() if hasattr(result, 'run') else result
    return result if isinstance(result, int) else 0
  except endings.Interrupted as ended:
    print(f'resume with:\n  {_resuming(doc, arguments, ended.folder)}', file=sys.stderr)
    return 128 + ended.signum
  except KeyboardInterrupt:
    return 130
  except (ValueError, OSError) as error:
    # Blanks stay as they are: a command in the message may name a folder with several.
    lines = map(str.strip, str(error).splitlines())
    print('error:', ' '.join(filter(None, lines)), file=sys.stderr)
    return 2


def _resuming(doc: str, arguments: Sequence[str], folder: pathlib.Path) -> str:
  """The command that resumes a program's run."""
  added = [flag for flag in (f'--output_dir={folder}', '--resume')
           if not any(argument.split('=')[0].lstrip('-') == flag.split('=')[0][2:]
                      for argument in arguments)]
  module = re.search(r'python -m (\S+( [a-z]+)?)', doc)
  program_words = ['-m', *module[1].split()] if module else sys.argv[:1]
  return shlex.join(['python', *program_words, *arguments, *added])


def program(module: str, cls: type[settings_lib.Settings],
            run: str) -> Callable[..., int]:
  """The `main` of a program's module, which takes its arguments; see `start`."""
  # Where Python started the module itself, by the name __main__, it runs at once.
  main = functools.partial(start, sys.modules[module].__doc__, cls, run)
  if module == '__main__':
    sys.exit(main())
  return main
