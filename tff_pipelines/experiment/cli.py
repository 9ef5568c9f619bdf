"""Runs a binary's main so that a user's mistake is one line, not a traceback."""

import os
import sys
import warnings
from typing import Callable, NoReturn, Sequence

from absl import app
from absl import flags
from absl import logging

# Exit codes: 2 for a mistake of the user, 130 as shells report an interrupt.
USER_ERROR = 2
INTERRUPTED = 130


def quiet() -> None:
  """Silences what TensorFlow and its dependencies say while they are imported.

  It would stand around the one line of an error. Their errors that matter are
  exceptions.
  """
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  warnings.filterwarnings('ignore', message='pkg_resources is deprecated')


def fail(message: object) -> NoReturn:
  """Prints `error: message` as one line on standard error; exits with 2."""
  print('error:', ' '.join(str(message).split()), file=sys.stderr)
  sys.exit(USER_ERROR)


def _parsed(argv: Sequence[str]) -> list[str]:
  """Parses the flags; no other arguments are accepted."""
  try:
    rest = flags.FLAGS(list(argv))
  except flags.Error as error:
    fail(error)
  except SystemExit:
    sys.exit(0)  # Only the help flags exit here, after printing the help.
  if not flags.FLAGS['verbosity'].present:
    # TFF logs every checkpoint at the level of information.
    logging.set_verbosity(logging.WARNING)
  quiet()
  if len(rest) > 1:
    fail(f'unexpected argument {rest[1]!r}: every argument is a --flag=value')
  return rest


def run(main: Callable[[list[str]], int | None]) -> None:
  """Parses the flags, runs `main` and exits with its code, None being 0.

  ValueError, OSError and every error about flags (unknown, unparsable, out of
  range) become one line on standard error and exit code 2; an interrupt exits
  with 130. Anything else is a fault of the program and keeps its traceback.

  Args:
    main: Takes the program's name in a list.
  """
  try:
    app.run(main, flags_parser=_parsed)
  except KeyboardInterrupt:
    sys.exit(INTERRUPTED)
  except (ValueError, OSError) as error:
    fail(error)
