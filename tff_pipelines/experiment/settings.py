"""Settings: each declared once, as a field of a frozen dataclass (`declarations`).

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class MySettings(Settings):
      rounds: int = setting(50, 'Rounds of training.', group='run', low=1)

The constructor (`MySettings(rounds=20)`, validated), the flag (`--rounds=20`), the
help and the entry in a run's configuration follow from it. No TensorFlow here: wrong
flags are refused at once.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import os
import textwrap
import typing
from typing import Any, ClassVar

from absl import flags

from tff_pipelines.common import declarations, files
from tff_pipelines.common.declarations import declared, Setting, setting

# The text that leaves a value to the program.
AUTO = 'auto'

_WIDTH = 80
# Where the text of a flag begins in the help.
_COLUMN = 29

_DEFINE = {bool: flags.DEFINE_bool, int: flags.DEFINE_integer,
           float: flags.DEFINE_float, str: flags.DEFINE_string}


def _parsed(field: Setting, value: Any) -> Any:
  """The value that a parsed flag stands for."""
  if field.auto:
    try:
      return None if value == AUTO else field.kind(value)
    except ValueError:
      raise ValueError(f'{field.name} must be a number or {AUTO}, found {value!r}'
                       ) from None
  if field.repeated or not field.is_tuple:
    return tuple(value) if field.repeated else value
  try:
    return tuple(field.kind(text.strip()) for text in value.split(',') if text.strip())
  except ValueError:
    kind = 'integers' if field.kind is int else 'numbers'
    raise ValueError(f'{field.name} must be a comma-separated list of {kind}, '
                     f'found {value!r}') from None


def _default_in_words(field: Setting) -> str:
  """The default for the help; empty if there is none."""
  if field.default is None:
    return field.otherwise
  elements = field.default if field.is_tuple else (field.default,)
  return ','.join(f'{element:.9g}' if isinstance(element, float) else f'{element}'
                  for element in elements)


def _field_lines(field: Setting, *, full: bool) -> list[str]:
  """The lines of the help, with the range if `full`."""
  flag, default, text = f'  --{field.name}', _default_in_words(field), field.help
  if field.by_task and field.default is None and not full:
    default = 'by task'
  if field.positional:
    flag = f'  {field.name.upper()} ...'
  if field.kind is bool and not field.is_tuple:
    default = ''
    if field.default:
      flag, text = f'  --no{field.name}', f'Turn this off: {text}'
  elif field.default is not None and default and (len(flag) + len(default) < _COLUMN + 6):
    flag, default = f'{flag}={default}', ''
  text += f' Default: {default}.' if default else ''
  text += f' [{field.details}]' if full and field.details else ''
  indent, is_wide = ' ' * _COLUMN, len(flag) >= _COLUMN - 1
  return [flag] * is_wide + textwrap.wrap(
      text, _WIDTH, initial_indent=indent if is_wide else flag.ljust(_COLUMN),
      subsequent_indent=indent, break_on_hyphens=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Base of all settings; a subclass declares fields by `setting`.

  A value that is out of range, that contradicts another, or that was given although
  the other settings leave it without effect, is a ValueError of the constructor.

  Attributes:
    given: Names of the fields that the caller gave; None does not count as given.
  """

  def __new__(cls, **values: Any):
    settings = super().__new__(cls)
    object.__setattr__(settings, 'given', frozenset(
        name for name, value in values.items() if value is not None))
    return settings

  def __post_init__(self):
    declarations.check(self)
    for name, why in self.unused():
      if name in self.given:
        raise ValueError(f'{name} is not used with {why}: leave it out, found '
                         f'{getattr(self, name)!r}')
    self.check()

  def check(self) -> None:
    """Raises ValueError for values that contradict each other."""

  def check_paths(self) -> None:
    """Raises ValueError for files that can't be written, before anything runs."""

  def prepare(self) -> None:
    """Starts background work that runs while the program's modules are imported."""

  @property
  def ended_by(self) -> str | None:
    """Name of a library that may end the process without a word; None for none."""
    return None

  def unused(self) -> Iterator[tuple[str, str]]:
    """Yields the fields that the others leave without effect, and why.

    The base class yields those whose `when` does not hold.
    """
    for name, field in declared(type(self)).items():
      for other, values in field.when.items():
        if (value := getattr(self, other)) not in values:
          shown = str(value).lower() if isinstance(value, bool) else value
          yield name, f'{other}={shown}'
          break

  def replace(self, **changes: Any) -> typing.Self:
    """A copy with these fields changed, which then count as given."""
    values = {name: getattr(self, name) for name in self.given}
    return type(self)(**{**values, **changes})

  def configuration(self) -> dict[str, Any]:
    """The fields that define a run, as JSON."""
    return {name: _json(getattr(self, name))
            for name, field in declared(type(self)).items() if not field.free}

  def paths(self) -> dict[str, str]:
    """The paths of the data, which do not define a run, by field; absolute."""
    return {name: ','.join(map(os.path.abspath, value.split(',')))
            for name, field in declared(type(self)).items()
            if field.free and field.group == 'data'
            and isinstance(value := getattr(self, name), str)}

  def differences(self, recorded: Mapping[str, Any]) -> list[str]:
    """Names of the fields that differ from a recorded `configuration`."""
    # The recorded value of a field that has no effect now is not compared.
    unused = {name for name, _ in self.unused()}
    fields, own = declared(type(self)), self.configuration()
    return sorted([
        *(name for name, value in own.items()
          if name not in unused and value != recorded.get(name)),
        *(name for name in recorded if name not in fields)])


def _json(value: Any) -> Any:
  return list(value) if isinstance(value, tuple) else getattr(value, 'name', value)


def of_configuration(cls: type[Settings], recorded: Mapping[str, Any],
                     **free: Any) -> Settings:
  """The settings whose `configuration` was recorded; ValueError for a wrong one."""
  fields = declared(cls)
  if unknown := [name for name in recorded if name not in fields]:
    raise ValueError(f'the configuration has the setting {unknown[0]}, which is unknown')
  values = {name: recorded.get(name, field.default) for name, field in fields.items()}
  values = {name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()}
  # Defaults that were filled in are recorded, too, whether they have an effect or not.
  trial = object.__new__(cls)
  for name, value in values.items():
    object.__setattr__(trial, name, value)
  unused = {name for name, _ in trial.unused()}
  return cls(**{name: value for name, value in values.items()
                if name not in unused and value != fields[name].default}, **free)


def define_flags(cls: type[Settings], values: flags.FlagValues) -> None:
  """Defines a flag for each field in `values`."""
  for name, field in declared(cls).items():
    if field.positional:
      continue
    define = (flags.DEFINE_multi_string if field.repeated else
              _DEFINE[str if field.is_tuple or field.auto else field.kind])
    define(name, None, field.help, flag_values=values)


def from_flags(cls: type[Settings], values: flags.FlagValues,
               rest: Sequence[str] = ()) -> Settings:
  """The settings that parsed flags, and the arguments that are none, stand for."""
  given = {}
  for name, field in declared(cls).items():
    if field.positional:
      given[name], rest = tuple(rest), ()
    elif values[name].present:
      given[name] = _parsed(field, values[name].value)
  if rest:
    raise ValueError(f'arguments must be --flag=value, found {rest[0]!r}')
  return cls(**given)


def help_lines(cls: type[Settings], *, full: bool) -> list[str]:
  """The essential flags by group, or all in full, in lines of up to 80 columns."""
  listed: dict[str, list[str]] = {}
  for field in declared(cls).values():
    if full or field.essential:
      listed.setdefault(field.group, []).extend(_field_lines(field, full=full))
  order = sorted(listed, key=lambda heading: heading == 'run')  # That one last.
  return [line for heading in order for line in ('', f'{heading}:', *listed[heading])]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSettings(Settings):
  """Settings with a `task`, which takes some of the others as its options.

  Attributes:
    options_by_task: Task -> names of its options.
    defaults_by_task: Task, or None for any other -> field -> its value where none is
      given; recorded like a value that was given.
  """

  options_by_task: ClassVar[Mapping[str, Sequence[str]]]
  defaults_by_task: ClassVar[Mapping[str | None, Mapping[str, Any]]] = {None: {}}

  def __post_init__(self):
    fields, defaults = declared(type(self)), self.defaults_by_task
    task = self.task if isinstance(self.task, str) else None
    for name, value in defaults.get(task, defaults[None]).items():
      if name in fields and getattr(self, name) is None:
        object.__setattr__(self, name, value)
    super().__post_init__()

  def unused(self) -> Iterator[tuple[str, str]]:
    yield from super().unused()
    if self.task is None:
      return
    # Only a task of another module knows its options, when it is built.
    options = self.options_by_task.get(self.task, self._options) if isinstance(
        self.task, str) else ()
    for name in self._options:
      if name not in options:
        yield name, f'task={_json(self.task)}'

  @property
  def task_options(self) -> dict[str, Any]:
    """The options that are not left to the task."""
    return {name: value for name in self._options
            if (value := getattr(self, name)) is not None}

  @property
  def _options(self) -> list[str]:
    known = set().union(*self.options_by_task.values())
    return [name for name in declared(type(self)) if name in known]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FolderSettings(Settings):
  """Settings of every run that keeps a folder."""

  seed: int | None = setting(
      None, 'Makes the run repeatable, and its noise predictable: voids the guarantee.',
      group='run', low=0, otherwise='randomness of the operating system')
  output_dir: str | None = setting(
      None, 'Folder for checkpoints, ledger, metrics, summary and report.',
      group='run', essential=True, free=True, otherwise='a new one below out/')
  resume: bool = setting(
      False, 'Continue the run in --output_dir; start it if there is none.',
      group='run', essential=True, free=True)
  unit_name: str | None = setting(
      None, 'Word for what one client is, in the privacy statement: patient.',
      group='run', free=True, otherwise='client')
  data_description: str | None = setting(
      None, 'Description of the data, a sentence for the privacy statement.',
      group='run', free=True)
  verbose: bool = setting(
      False, 'Print all that report.txt holds, instead of the short report.',
      group='run', free=True)

  def __post_init__(self):
    super().__post_init__()
    if self.resume and 'resume' in self.given and self.output_dir is None:
      raise ValueError('resume needs output_dir, the folder of the run to continue')

  def check_paths(self) -> None:
    """Raises ValueError where the output folder can't be used."""
    if self.output_dir is not None:
      files.check_folder(self.output_dir, resume=self.resume)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings(FolderSettings):
  """Settings of every run whose rounds are TFF computations."""

  local_workers: int = setting(
      0, 'Worker processes that share the clients of a round; with engine=ray, actors, '
      '0 for the cluster\'s cores.', group='run', low=0, high=1024, free=True,
      otherwise='0, this process')
  engine: str = setting(
      'local', 'What runs the workers: this machine, or a Ray cluster.', group='run',
      choices=('local', 'ray'), free=True)
  engine_address: str | None = setting(
      None, 'HOST:PORT of a Ray cluster.', group='run', free=True,
      when={'engine': ('ray',)}, otherwise='a Ray of its own on this machine')
  slice_deadline: float = setting(
      600.0, 'Time after which a worker that has not answered is replaced.',
      group='run', above=0, free=True, unit='seconds')

  def unused(self) -> Iterator[tuple[str, str]]:
    yield from super().unused()
    if not self.local_workers and self.engine == 'local':
      yield 'slice_deadline', 'local_workers=0'

  @property
  def ended_by(self) -> str | None:
    return 'Ray' if self.engine == 'ray' else None

  @property
  def where(self) -> dict[str, Any]:
    """Keyword arguments of `simulation.contexts.started`."""
    return {name: getattr(self, name)
            for name in declared(RunSettings) if name not in declared(FolderSettings)}
