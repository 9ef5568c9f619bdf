"""Checks of arguments. Every message names the argument, its value and the rule.

No TensorFlow here: the accountant, the tasks' numbers and the aggregators use
the same checks. NaN, infinities and booleans are never numbers.
"""

from collections.abc import Callable, Collection
import math
import numbers
from typing import Any


def finite(**arguments: Any) -> None:
  """Raises ValueError unless every argument is a finite real number."""
  for name, value in arguments.items():
    if (not isinstance(value, numbers.Real) or isinstance(value, bool)
        or not math.isfinite(value)):
      raise ValueError(f'{name} must be a finite number, found {value!r}')


def _finite_and(holds: Callable[[Any], bool], rule: str, arguments: dict) -> None:
  finite(**arguments)
  for name, value in arguments.items():
    if not holds(value):
      raise ValueError(f'{name} must {rule}, found {value!r}')


def positive(**arguments: Any) -> None:
  """Raises ValueError unless every argument is a finite number above 0."""
  _finite_and(lambda x: x > 0, 'be greater than 0', arguments)


def non_negative(**arguments: Any) -> None:
  """Raises ValueError unless every argument is a finite number from 0 on."""
  _finite_and(lambda x: x >= 0, 'not be negative', arguments)


def integer(*, low: int | None = None, high: int | None = None,
            **arguments: Any) -> None:
  """Raises ValueError unless every argument is an integer in [low, high]."""
  for name, value in arguments.items():
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
      raise ValueError(f'{name} must be an integer, found {value!r}')
    if low is not None and value < low:
      raise ValueError(f'{name} must be at least {low}, found {value!r}')
    if high is not None and value > high:
      raise ValueError(f'{name} must be at most {high}, found {value!r}')


def open_unit_interval(**arguments: Any) -> None:
  """Raises ValueError unless every argument is strictly between 0 and 1."""
  _finite_and(lambda x: 0 < x < 1, 'be strictly between 0 and 1', arguments)


def unit_interval(**arguments: Any) -> None:
  """Raises ValueError unless every argument is in [0, 1]."""
  _finite_and(lambda x: 0 <= x <= 1, 'be in [0, 1]', arguments)


def below_one(**arguments: Any) -> None:
  """Raises ValueError unless every argument is in [0, 1)."""
  _finite_and(lambda x: 0 <= x < 1, 'be in [0, 1)', arguments)


def fraction(**arguments: Any) -> None:
  """Raises ValueError unless every argument is in (0, 1]."""
  _finite_and(lambda x: 0 < x <= 1, 'be in (0, 1]', arguments)


def one_of(choices: Collection[str], **arguments: Any) -> None:
  """Raises ValueError unless every argument is one of `choices`."""
  for name, value in arguments.items():
    if value not in choices:
      raise ValueError(
          f'{name} must be one of {", ".join(sorted(choices))}, found {value!r}')
