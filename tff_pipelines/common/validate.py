"""Checks of arguments. Every message names the argument, its value and the rule.

No TensorFlow here: the accountant, the tasks' numbers and the aggregators use
the same checks. NaN, infinities and booleans are never numbers.
"""

from collections.abc import Callable, Collection, Mapping
import functools
import math
import numbers
import typing
from typing import Annotated, Any


def finite(**arguments: Any) -> None:
  """Raises ValueError unless every argument is a finite real number."""
  for name, value in arguments.items():
    if (not isinstance(value, numbers.Real) or isinstance(value, bool)
        or not math.isfinite(value)):
      raise ValueError(f'{name} must be a finite number, found {value!r}')


def _number(rule: str, holds: Callable[[Any], bool]) -> Callable[..., None]:
  """Raises ValueError unless every argument is a finite number that meets the rule."""
  def check(**arguments: Any) -> None:
    finite(**arguments)
    for name, value in arguments.items():
      if not holds(value):
        raise ValueError(f'{name} must {rule}, found {value!r}')
  return check


positive = _number('be greater than 0', lambda x: x > 0)
non_negative = _number('not be negative', lambda x: x >= 0)
open_unit_interval = _number('be strictly between 0 and 1', lambda x: 0 < x < 1)
unit_interval = _number('be in [0, 1]', lambda x: 0 <= x <= 1)
below_one = _number('be in [0, 1)', lambda x: 0 <= x < 1)
fraction = _number('be in (0, 1]', lambda x: 0 < x <= 1)


def integer(*, low: int | None = None, high: int | None = None, **arguments: Any) -> None:
  """Raises ValueError unless every argument is an integer in [low, high]."""
  for name, value in arguments.items():
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
      raise ValueError(f'{name} must be an integer, found {value!r}')
    if low is not None and value < low:
      raise ValueError(f'{name} must be at least {low}, found {value!r}')
    if high is not None and value > high:
      raise ValueError(f'{name} must be at most {high}, found {value!r}')


def one_of(choices: Collection[str], **arguments: Any) -> None:
  """Raises ValueError unless every argument is one of `choices`."""
  for name, value in arguments.items():
    if value not in choices:
      raise ValueError(
          f'{name} must be one of {", ".join(sorted(choices))}, found {value!r}')


# Types of a dataclass's fields that say what `fields` checks.
Finite = Annotated[float, finite]
Positive = Annotated[float, positive]
NonNegative = Annotated[float, non_negative]
OpenUnitInterval = Annotated[float, open_unit_interval]
UnitInterval = Annotated[float, unit_interval]
Fraction = Annotated[float, fraction]
Count = Annotated[int, functools.partial(integer, low=1)]


@functools.cache
def _checks(cls: type) -> Mapping[str, tuple[Callable[..., None], bool]]:
  """Name of a field -> its check, and whether it may be None."""
  return {name: (check, part is not hint)
          for name, hint in typing.get_type_hints(cls, include_extras=True).items()
          for part in (hint, *typing.get_args(hint))
          for check in getattr(part, '__metadata__', ())}


def check_fields_first(cls: type) -> None:
  """Makes a class check its fields, and those of its bases, before its own checks."""
  if (own := cls.__dict__.get('__post_init__')) is not None:
    def checked(self):
      fields(self)
      own(self)
    cls.__post_init__ = checked


def fields(instance: Any) -> None:
  """Raises ValueError unless fields are of their checked types; lists become tuples."""
  for name, (check, is_optional) in _checks(type(instance)).items():
    if isinstance(value := getattr(instance, name), list):
      object.__setattr__(instance, name, value := tuple(value))
    if not is_optional or value is not None:
      check(**{name: value})
