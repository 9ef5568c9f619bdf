"""Records of a run whose answers can't be taken back once they are drawn."""

import dataclasses
import pathlib
from typing import Any

import numpy as np

from tff_pipelines.accounting.events import base
from tff_pipelines.common import files
from tff_pipelines.experiment import metrics as metrics_lib, records as records_lib

# Entries of files of answers: hash of the ledger line, digest of earlier metrics.
_LINE, _TABLE = 'line', 'table'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kept:
  """The ledger line of a charge, as JSON, and the answers that it paid for, by name."""

  line: dict[str, Any]
  arrays: dict[str, np.ndarray]


class ChargedRecords:
  """A run whose releases are charged before they are drawn.

  A step first writes its line to the ledger, durably, then draws, then keeps the
  answers. What a run that is killed between charge and keeping drew, or may have drawn,
  stays charged. Nothing is ever drawn without a charge, and nothing that is kept is
  drawn a second time.

  Attributes:
    run: Configuration, ledger and number of starts.
    kept: Kept answers, in the order of the charges.
    metrics: Round of a charge -> its metrics.
  """

  def __init__(self, run: records_lib.RunRecords, kept_as: str):
    """Keeps answers in .npz files `kept_as`, the round of the charge in braces."""
    self.run = run
    self.kept: list[Kept] = []
    self.metrics: dict[int, dict[str, float]] = {}
    self._kept_as = kept_as
    self._table = metrics_lib.Table(run.folder / files.METRICS, 'step')

  def _path(self, index: int) -> pathlib.Path:
    return self.run.folder / self._kept_as.format(index)

  def restore(self) -> None:
    """Reads the records; ValueError if damaged, or if they do not belong together."""
    ledger, folder = self.run.ledger, self._path(1).parent
    # A torn line announced a step that had drawn nothing yet.
    ledger.drop_torn()
    files.make_folder(folder)
    known = {self._path(line['round']): line for line in ledger.lines()}
    for path in sorted(folder.iterdir()) if folder != self.run.folder else (
        filter(pathlib.Path.exists, [self._path(1)])):
      if path.name.startswith('.'):
        path.unlink()  # A crash left it while it was written.
      elif path not in known:
        raise ValueError(f'{path} belongs to no line of {ledger.path}: '
                         f'{metrics_lib.UNKNOWN_COST}')
    table = ''
    for path, line in known.items():
      if (arrays := kept_arrays(path)) is None:
        continue
      try:
        owner, table = (str(arrays.pop(name)) for name in (_LINE, _TABLE))
      except KeyError as error:
        raise ValueError(f'{path} is damaged: it has no {error}') from None
      if owner != line['hash']:
        raise ValueError(f'{path} must belong to round {line["round"]} of {ledger.path}')
      self.kept.append(Kept(line=line, arrays=arrays))
    # Metrics of the last step are measured again.
    last = self.kept[-1].line['round'] if self.kept else 0
    rows, _ = self._table.restore(last - 1, table, len(ledger.lines()))
    self.metrics = {step: {name: float(value) for name, value in row.items()}
                    for step, row in rows.items()}

  def charge(self, event: base.Event) -> dict[str, Any]:
    """Writes the line of a step that is about to be drawn, durably; returns it."""
    # Starts are not counted: a repeated step has a line of its own.
    self.run.charge(event, starts=1)
    line = self.run.ledger.lines()[-1]
    # Without answers as yet: were the line lost, this would tell.
    files.write_bytes(self._path(line['round']), b'')
    return line

  def keep(self, line: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Keeps the answers that a charge paid for, durably."""
    files.write_arrays(self._path(line['round']), {
        _LINE: np.array(line['hash']), _TABLE: np.array(self._table.digest), **arrays})
    self.kept.append(Kept(line=line, arrays=arrays))

  def measure(self, index: int, metrics: dict[str, float]) -> None:
    """Writes the metrics after the step of a charge's round."""
    self.metrics[index] = metrics
    self._table.add(index, metrics, durable=True)


def kept_arrays(path: pathlib.Path) -> dict[str, np.ndarray] | None:
  """The answers in a file of `ChargedRecords`, None without; ValueError if damaged."""
  return None if path.exists() and not path.stat().st_size else files.read_arrays(path)
