"""Checks of arguments; each raises a ValueError that names the argument."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import contextlib
import inspect
import math
import numbers
import os
from typing import Any

import numpy as np


def integer(name: str, value: Any, low: int, high: float = math.inf,
            of: str = '') -> None:
  """Raises ValueError unless a value is an integer in [low, high], and no bool."""
  if isinstance(value, bool) or not isinstance(
      value, numbers.Integral) or not low <= value <= high:
    limit = 'on' if high == math.inf else f'to the {high} {of}' if of else f'to {high}'
    raise ValueError(f'{name} must be an integer from {low} {limit}, found {value!r}')


def finite(name: str, value: Any, *, or_zero: bool = False) -> None:
  """Raises ValueError unless a value is a finite number above 0, or 0 if allowed."""
  if isinstance(value, bool) or not isinstance(value, numbers.Real) or not (
      0 < value < math.inf or or_zero and value == 0):
    rule = 'that is not negative' if or_zero else 'greater than 0'
    raise ValueError(f'{name} must be a finite number {rule}, found {value!r}')


def file(path: str | os.PathLike[str]) -> None:
  """Raises ValueError unless there is such a file."""
  if not os.path.isfile(path):
    raise ValueError(f'{os.fspath(path)} does not exist or is not a file')


def form(array: np.ndarray) -> str:
  """The type and the shape of an array, for messages."""
  return f'{array.dtype} {list(array.shape)}'


def wrong(name: str, rule: str, value: Any) -> ValueError:
  """The error of a value, which is shown as a text, or as the form of an array."""
  shown = form(value) if isinstance(value, np.ndarray) else value
  return ValueError(f'{name} must be {rule}, found {shown}'[:500])


def one_line(error: Exception, length: int = 300) -> str:
  """The message of an error, or its class if it has none, in one line."""
  return ' '.join(str(error).split())[:length] or type(error).__name__


@contextlib.contextmanager
def located(location: str | os.PathLike[str], *kinds: type[Exception]) -> Iterator[None]:
  """Turns ValueErrors in the block, and other kinds, into ones with the location."""
  try:
    yield
  except (ValueError, *kinds) as error:
    detail = one_line(error)
    raise ValueError(detail if os.fspath(location) in detail else
                     f'{os.fspath(location)}: {detail}') from error


def choice(name: str, value: Any, choices: Collection[str],
           otherwise: str | None = None) -> str:
  """The value, or `otherwise` for None. Raises ValueError unless it is a choice."""
  if value is None:
    value = otherwise
  if value not in choices:
    raise ValueError(f'{name} must be one of {", ".join(choices)}, found {value!r}')
  return value


def names(name: str, value: Any, low: int = 1) -> None:
  """Raises ValueError unless a value is at least `low` texts, all different."""
  if isinstance(value, str) or not all(isinstance(v, str) and v for v in value) or (
      len(set(value)) < max(low, len(value))):
    raise ValueError(f'{name} must be at least {low} texts that differ, found '
                     f'{", ".join(map(str, value))[:100] or "none"}')


def indices(name: str, values: np.ndarray, known: Sequence[str]) -> np.ndarray:
  """The index of each text [n] among the known ones, int64 [n].

  Raises ValueError if a text is none of them; the message has the field's name and the
  first one.
  """
  index = {text: i for i, text in enumerate(known)}
  result = np.array([index.get(text, -1) for text in values], np.int64)
  if np.any(result < 0):
    row = int(np.argmin(result))
    found = f'{repr(values[row])[:100] if values[row] else "nothing"} in example {row}'
    choices = ', '.join(map(repr, known))[:200]
    raise ValueError(f'{name} must be one of {choices}, found {found}')
  return result


def options(what: str, given: Mapping[str, Any], known: Collection[str],
            required: Collection[str] = ()) -> dict[str, Any]:
  """Selects the options of `what` that are given; None counts as not given.

  Raises ValueError if an option is given that is not known, or a required one is missing.
  """
  result = {name: value for name, value in given.items() if value is not None}
  if unused := sorted(set(result) - set(known)):
    raise ValueError(f'{what} does not use {", ".join(unused)}; its options are '
                     f'{", ".join(known) or "none"}')
  if missing := [name for name in required if name not in result]:
    raise ValueError(f'{what} needs {", ".join(missing)}')
  return result


def keywords(function: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
  """The keyword-only arguments of a function, and those that have no default."""
  parameters = inspect.getfullargspec(function)
  return tuple(parameters.kwonlyargs), tuple(
      name for name in parameters.kwonlyargs
      if name not in (parameters.kwonlydefaults or {}))


def call(what: str, name: Any, functions: Mapping[str, Callable[..., Any]],
         given: Mapping[str, Any], *arguments: Any) -> Any:
  """Calls the function of a name with those of its options that are given.

  Raises ValueError if there is no such function or option, or one is missing.
  """
  choice(what, name, functions)
  return functions[name](*arguments, **options(
      f'{what} {name}', given, *keywords(functions[name])))
