"""Parts of clients' records: those that are held out, and all others."""

from collections.abc import Mapping

import numpy as np

from tasks import checks, task
from tasks.sources import records


def digests(examples: Mapping[str, np.ndarray]) -> np.ndarray:
  """Digests of the person of each example, else of its contents; int64 [examples].

  A rule that looks at a digest alone depends on no other example.
  """
  deciding = [examples[records.PERSON]] if records.PERSON in examples else [
      examples[name] for name in sorted(examples)]
  # The type of a text or a number in an array of objects does not matter.
  return np.array([records.digest(b'\0'.join(
      str(x).encode('utf-8', 'replace') if array.dtype.hasobject else
      np.ascontiguousarray(x).tobytes() for array, x in zip(deciding, row)))
                   for row in zip(*deciding)], np.int64)


class PartOfRecords(records.Wrapping):
  """The records of each client that are held out, or all others.

  Those of a person go together. Where one goes depends on itself alone, by `digests`.
  """

  read_in_graph = None

  def __init__(self, source: task.ClientSource, fraction: float, *, held_out: bool):
    """Wraps a raw source; `fraction`, in (0, 1), is that held out on average."""
    super().__init__(source)
    if not 0 < fraction < 1:
      raise checks.wrong('held_out_records', 'in (0, 1)', fraction)
    self._limit, self._held_out = int((fraction - 0.5) * 2**64), held_out

  def examples(self, client_id: str) -> dict[str, np.ndarray]:
    raw = self._source.examples(client_id)
    rows = (digests(raw) < self._limit) == self._held_out
    return {name: array[rows] for name, array in raw.items()}


def with_part(
    train: task.ClientSource, test: task.ClientSource | None, fraction: float | None
) -> tuple[task.ClientSource, task.ClientSource | None]:
  """Both parts: a test part of that fraction of records where there is none."""
  return (train, test) if test is not None or fraction is None else tuple(
      PartOfRecords(train, fraction, held_out=held_out) for held_out in (False, True))
