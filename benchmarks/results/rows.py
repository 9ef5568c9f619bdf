"""The rows of all tables: what is run, what is tried first, and on which data.

A row is a method in a setting. Its settings are tried on a split that is in no table
(`splits`), each once; the best is run with every seed on the data of the table.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import importlib
from typing import Any

Flags = Mapping[str, Any]
SEEDS = (0, 1, 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """One row.

  Attributes:
    name: 'section/row'.
    label: Name of the row in its table.
    program: Module of tff_pipelines that runs it.
    data: Name in `splits.DATA`; None for data that ship.
    flags: Flags of every run, without data, seeds and folders.
    grid: Flags of the settings that are tried, each together with `flags`.
    tuned_as: Row of the same data whose best setting is taken instead of trying any, so
      that rows of one table differ in the mechanism alone; '' for none.
    trial: Flags of a trial in place of those in `flags`, such as fewer rounds.
    seeds: A run each.
    seeded: Flags that take the seed: of weights, partitions and queries; never of noise,
      unless 'seed' is among them, and then the run has no guarantee.
    map_of: Row whose public feature map is taken, of the same seed; itself for one
      map of all trials; '' for none.
    curve: Columns of the run's metrics that are kept, for figures.
    keep: A JSON file of the run and a key of it that is kept; () for none.
    metric: Name of the details of a summary that is the value; '' for its headline.
  """

  name: str
  label: str
  program: str = 'train'
  data: str | None = None
  flags: Flags = dataclasses.field(default_factory=dict)
  grid: Sequence[Flags] = ()
  tuned_as: str = ''
  trial: Flags = dataclasses.field(default_factory=dict)
  seeds: Sequence[int] = SEEDS
  seeded: Sequence[str] = ('initial_weights_seed',)
  map_of: str = ''
  curve: Sequence[str] = ()
  keep: Sequence[str] = ()
  metric: str = ''

  @property
  def section(self) -> str:
    return self.name.partition('/')[0]

  def arguments(self, chosen: Flags, seed: int, more: Flags) -> list[str]:
    """Arguments of the program; what the row is about comes before what is chosen."""
    values = {**chosen, **self.flags, **dict.fromkeys(self.seeded, seed), **more}
    return [f'--{name}' if value is True else f'--no{name}' if value is False else
            f'--{name}={value}' for name, value in values.items() if value is not None]

  def identity(self) -> dict[str, Any]:
    """What a record must have been made with."""
    return {'program': self.program, 'data': self.data, 'flags': dict(self.flags),
            'grid': [dict(flags) for flags in self.grid], 'tuned_as': self.tuned_as,
            'trial': dict(self.trial), 'seeded': list(self.seeded),
            'map_of': self.map_of, 'curve': list(self.curve), 'keep': list(self.keep),
            **({'metric': self.metric} if self.metric else {})}


def main_of(program: str) -> Callable[[Sequence[str]], int]:
  """The `main` of a program of tff_pipelines."""
  module = importlib.import_module(f'tff_pipelines.{program}')
  if hasattr(module, '__path__'):
    module = importlib.import_module(f'{module.__name__}.__main__')
  return module.main


def product(**values: Sequence[Any]) -> tuple[dict[str, Any], ...]:
  """All combinations of the values of flags."""
  result = [{}]
  for name, column in values.items():
    result = [{**flags, name: value} for flags in result for value in column]
  return tuple(result)


def by_name(rows: Iterable[Row]) -> dict[str, Row]:
  """The rows by name, those that others are tuned as first."""
  rows = list(rows)
  found = {row.name: row for row in sorted(rows, key=lambda row: bool(row.tuned_as))}
  if len(found) != len(rows):
    raise ValueError('names of rows must differ')
  for row in rows:
    if row.tuned_as and (
        row.tuned_as not in found or found[row.tuned_as].tuned_as or row.grid):
      raise ValueError(f'{row.name}: tuned_as={row.tuned_as} must be a row with a grid')
  return found
