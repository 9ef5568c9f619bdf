"""What a distillation leaves on disk: answers are charged before they are given.

A step first writes its line to the ledger, durably, then asks, then keeps the
answers. A run that is killed between the two has lost answers that were given, or
may have been: they stay charged, and their owners' turns are over. No owner is ever
asked without a charge. Answers that are kept are never asked for again. Everything
else follows from answers and public data, and is computed anew.
"""

import csv
import dataclasses
import io
from typing import Any

import numpy as np

from tff_pipelines.accounting import base
from tff_pipelines.accounting import events
from tff_pipelines.simulation import records as records_lib
from tff_pipelines.vote_records import read_arrays
from tff_pipelines.vote_records import write_arrays

ANSWERS = 'answers'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
  """Queries that were asked together, and their answers.

  Attributes:
    number: Of the ledger's line that charged them.
    first_query: Number of the first query in the run; who answers follows from it.
    rows: int64 [Q], the images in the pool.
    means: float32 [Q, classes], mean answers.
    answers: int32 [Q], how many owners answered.
  """

  number: int
  first_query: int
  rows: np.ndarray
  means: np.ndarray
  answers: np.ndarray


class LdpRecords:
  """The folder of a distillation.

  Attributes:
    run: Configuration, ledger and number of starts.
    steps: The steps whose answers are kept, in their order.
    metrics: Number of a step -> its metrics.
  """

  def __init__(self, run: records_lib.RunRecords):
    self.run = run
    self.steps: list[Step] = []
    self.metrics: dict[int, dict[str, float]] = {}
    self._folder = run.folder / ANSWERS

  def restore(self, header: dict[str, Any]) -> None:
    """Reads what is there, or starts the ledger.

    Args:
      header: Keyword arguments of the ledger's header, for a new run.

    Raises:
      ValueError: If something is damaged or does not belong together.
    """
    ledger = self.run.ledger
    if not ledger.path.exists():
      if self._folder.exists():
        raise ValueError(
            f'{ledger.path} is missing, but {self._folder} has answers: what they '
            'cost is not known, so the run can\'t be continued')
      ledger.create(ledger.path, **header)
    # It announced a step in which nobody was asked yet.
    ledger.drop_torn()
    self._folder.mkdir(exist_ok=True)
    lines = ledger.lines()
    for path in sorted(self._folder.iterdir()):
      if path.name.startswith('.'):
        path.unlink()  # Left behind in the middle of writing.
        continue
      number = int(path.stem) if path.stem.isdigit() else 0
      if path.suffix != '.npz' or not 1 <= number <= len(lines):
        raise ValueError(f'{path} belongs to no line of {ledger.path}')
      self.steps.append(self._step(path, lines[number - 1]))
    self._read_metrics()

  def _step(self, path, line: dict[str, Any]) -> Step:
    """The step of a file, checked against the line that charged it."""
    found = read_arrays(path)
    try:
      step = Step(
          number=line['round'], first_query=int(found['first_query']),
          rows=found['rows'], means=found['means'], answers=found['answers'])
      charged = events.from_json(line['event'])
      belongs = str(found['line']) == line['hash'] and (
          step.first_query == charged.queries_before) and (
              len(step.rows) == charged.queries_after - charged.queries_before)
    except (KeyError, TypeError, ValueError) as error:
      raise ValueError(f'{path} is damaged: {error!r}') from error
    if not belongs:
      raise ValueError(
          f'{path} must belong to round {line["round"]} of {self.run.ledger.path}')
    return step

  @property
  def charged(self) -> int:
    """Queries that were charged, whether their answers are kept or lost."""
    lines = self.run.ledger.lines()
    return lines[-1]['event']['queries_after'] if lines else 0

  @property
  def answered(self) -> int:
    """Queries whose answers are kept."""
    return sum(len(step.rows) for step in self.steps)

  def charge(self, event: base.Event) -> dict[str, Any]:
    """Writes the line of a step that is about to be asked, durably.

    Returns:
      The line.
    """
    ledger = self.run.ledger
    # Starts are not counted: a repeated question has a line of its own.
    line = ledger.next_line(
        event, outcome='released', starts=1,
        configuration_hash=self.run.configuration_hash)
    ledger.append_line(line)
    return ledger.lines()[-1]

  def keep(self, line: dict[str, Any], rows: np.ndarray, means: np.ndarray,
           answers: np.ndarray) -> Step:
    """Keeps the answers to the queries that a line charged."""
    step = Step(
        number=line['round'], first_query=line['event']['queries_before'],
        rows=np.asarray(rows, np.int64), means=np.asarray(means, np.float32),
        answers=np.asarray(answers, np.int32))
    write_arrays(self._folder / f'{step.number:06}.npz', {
        'line': np.array(line['hash']), 'first_query': np.array(step.first_query),
        'rows': step.rows, 'means': step.means, 'answers': step.answers})
    self.steps.append(step)
    return step

  def _read_metrics(self) -> None:
    path = self.run.folder / records_lib.METRICS
    if not path.exists():
      return
    with open(path, encoding='utf-8', newline='') as file:
      for row in csv.DictReader(file):
        number = int(row.pop('step'))
        self.metrics[number] = {name: float(value) for name, value in row.items()}

  def measure(self, step: Step, metrics: dict[str, float]) -> None:
    """Writes the metrics after a step."""
    self.metrics[step.number] = metrics
    text = io.StringIO()
    writer = csv.DictWriter(text, ['step', *metrics], lineterminator='\n')
    writer.writeheader()
    for number in sorted(self.metrics):
      writer.writerow({'step': number, **self.metrics[number]})
    records_lib.write_atomically(
        self.run.folder / records_lib.METRICS, text.getvalue())
