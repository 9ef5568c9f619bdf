"""Fields of frozen dataclasses that say what they are, each declared once.

    @declarations.documented
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class MyParams:
      bits: int = setting(18, 'Bits of a coordinate.', low=2, high=30)

      def __post_init__(self):
        declarations.check(self)

A field carries its default, help, unit, range and choices. The check of its values, the
documentation of the class, and flags (`experiment.settings`) follow from that; another
class has the same field by `like`, which says the difference only. No TensorFlow here.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
import dataclasses
import functools
import operator
import textwrap
import types
import typing
from typing import Any

from tff_pipelines.common import validate

_METADATA = 'setting'
_ORIGIN = 'like'  # Name of the field that it takes its declaration from.
REQUIRED = dataclasses.MISSING


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """A declared field; the first five attributes follow from its declaration.

  Attributes:
    name: Name of the field and its flag.
    default: Python value; REQUIRED where it must be given.
    kind: str, int, float or bool, of a tuple's elements where it `is_tuple`.
    optional: Whether None is a value.
    help: A sentence or two that a reader understands without the others.
    group: Heading under which the help lists it.
    choices: Allowed values; None for any.
    low, high, above, below: Bounds of a number, the first two included.
    unit: Unit of a number: 'model units', 'clients'.
    essential: Whether --help lists it; --helpfull lists all.
    when: Name of another field -> its values with which this one is used. Given
      with other values, it is an error.
    free: Whether it may differ between a run and its resumption.
    otherwise: Meaning of None, in words.
    by_task: Whether the task decides what None means: only the full help has the values.
    repeated: Whether the flag may be given several times; else values of a tuple
      are separated by commas.
    instead_of: Name of another field. Given both, it is an error.
    positional: Whether the arguments that are no flags are its values, a tuple.
    named: Whether an object with a `name` may stand in the place of a text, from
      Python. The configuration records the name.
    auto: Whether a flag of the text 'auto' stands for None.
  """

  name: str = ''
  default: Any = None
  kind: type = str
  is_tuple: bool = False
  optional: bool = False
  help: str
  group: str = ''
  choices: Collection[str] | None = None
  low: float | None = None
  high: float | None = None
  above: float | None = None
  below: float | None = None
  unit: str = ''
  essential: bool = False
  when: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
  free: bool = False
  otherwise: str = ''
  by_task: bool = False
  repeated: bool = False
  instead_of: str | None = None
  positional: bool = False
  named: bool = False
  auto: bool = False

  def check(self, value: Any) -> None:
    """Raises ValueError, naming the setting, its value and the rule."""
    if value is None and self.optional:
      return
    elements = value if self.is_tuple else (value,)
    if not isinstance(elements, tuple):
      raise ValueError(f'{self.name} must be a tuple, found {value!r}')
    if not elements and not self.repeated:
      raise ValueError(f'{self.name} must name at least one value, found none')
    for element in elements:
      self._check_element(element)

  def _check_element(self, value: Any) -> None:
    name = self.name
    if self.kind is bool:
      if not isinstance(value, bool):
        raise ValueError(f'{name} must be true or false, found {value!r}')
    elif self.named and hasattr(value, 'name'):
      pass
    elif self.kind is str:
      if not isinstance(value, str) or not value:
        raise ValueError(f'{name} must be a non-empty text, found {value!r}')
      if self.choices is not None:
        validate.one_of(self.choices, **{name: value})
    else:
      (validate.integer if self.kind is int else validate.finite)(**{name: value})
      if not all(holds(value, bound) for bound, _, holds in self._bounds()):
        raise ValueError(f'{name} must be {self.range}, found {value!r}')

  def _bounds(self) -> list[tuple[float, str, Callable[[Any, Any], bool]]]:
    """Each bound that there is, its rule in words and as a function."""
    return [(bound, words, holds) for bound, words, holds in (
        (self.low, 'at least', operator.ge), (self.above, 'greater than', operator.gt),
        (self.high, 'at most', operator.le), (self.below, 'less than', operator.lt))
            if bound is not None]

  @property
  def details(self) -> str:
    """Choices, unit and range in words; empty if there are none."""
    return '; '.join(filter(None, (', '.join(self.choices or ()), self.unit, self.range)))

  @property
  def range(self) -> str:
    """The bounds in words; empty if there are none."""
    if None not in (self.low, self.high):
      return f'from {self.low:.10g} to {self.high:.10g}'
    if None not in (self.above, self.below):
      return f'strictly between {self.above:g} and {self.below:g}'
    return ' and '.join(f'{words} {bound:g}' for bound, words, _ in self._bounds())


def setting(default: Any, help: str, **rest: Any) -> Any:  # pylint: disable=redefined-builtin
  """A declared field; see the attributes of `Setting`."""
  return dataclasses.field(
      default=default, metadata={_METADATA: Setting(help=help, **rest)})


def group(name: str, **when: tuple[Any, ...]) -> Callable[..., Any]:
  """A `setting` under this heading; see `when` of `Setting`."""
  return functools.partial(setting, group=name, when=when)


def groups(*names: str) -> list[Callable[..., Any]]:
  """A `setting` under each of these headings."""
  return [group(name) for name in names]


def like(cls: type, name: str, *default: Any, **changes: Any) -> Any:
  """The field `name` of another class, with another default or other attributes."""
  field = declared(cls)[name]
  return dataclasses.field(
      default=default[0] if default else field.default,
      metadata={_METADATA: dataclasses.replace(field, **changes), _ORIGIN: name})


@functools.lru_cache(maxsize=None)
def declared(cls: type) -> Mapping[str, Setting]:
  """All fields of a class by name, in the order of their declaration."""
  hints, fields = typing.get_type_hints(cls), {}
  for field in dataclasses.fields(cls):
    hint = hints[field.name]
    if optional := isinstance(hint, types.UnionType):
      hint, = (part for part in typing.get_args(hint) if part is not type(None))
    is_tuple = typing.get_origin(hint) is tuple
    fields[field.name] = dataclasses.replace(
        field.metadata[_METADATA], name=field.name, default=field.default,
        kind=typing.get_args(hint)[0] if is_tuple else hint, is_tuple=is_tuple,
        optional=optional)
  return fields


def check(declaring: Any) -> None:
  """Raises ValueError unless each value of an object is what its field declares."""
  fields = declared(type(declaring))
  for name, field in fields.items():
    field.check(getattr(declaring, name))
  for name, field in fields.items():
    value, other = getattr(declaring, name), field.instead_of
    rival = other and getattr(declaring, other)
    if value is not None and rival is not None:
      raise ValueError(f'{other} and {name} must not both be given, found '
                       f'{other}={rival!r} and {name}={value!r}')


def documented(cls: type) -> type:
  """Class decorator: adds the declared fields to the docstring."""
  lines = ['\n\n  Attributes:']
  for field in declared(cls).values():
    details = field.details and f' [{field.details}]'
    lines += textwrap.wrap(
        f'{field.name}: {field.help}{details}', 84, initial_indent=' ' * 4,
        subsequent_indent=' ' * 6, break_on_hyphens=False)
  cls.__doc__ = (cls.__doc__ or '').rstrip() + '\n'.join(lines)
  return cls


def fields_of(*classes: type, leave: Sequence[str] = ()) -> Callable[[type], type]:
  """Class decorator, below `dataclass`: adds the declared fields of other classes.

  They follow the class's own, which come first where names are the same.
  """
  def add(cls: type) -> type:
    for other in classes:
      for name in declared(other):
        if name not in cls.__annotations__ and name not in leave:
          cls.__annotations__[name] = typing.get_type_hints(other)[name]
          setattr(cls, name, like(other, name))
    return cls
  return add


def shared(cls: type, source: Any, prefix: str = '', **values: Any) -> dict[str, Any]:
  """The fields of a class that `source` has, by names with a prefix, and others.

  Raises TypeError if one is `like` a field of the source, by another name.
  """
  for field in dataclasses.fields(cls):
    origin = field.metadata.get(_ORIGIN, prefix + field.name)
    if hasattr(source, origin) and field.name not in values and (
        origin != prefix + field.name):
      raise TypeError(f'{cls.__name__}.{field.name} is like {origin} and must be '
                      f'called {origin.removeprefix(prefix)}')
  return {**{field.name: getattr(source, prefix + field.name)
             for field in dataclasses.fields(cls)
             if hasattr(source, prefix + field.name)}, **values}
