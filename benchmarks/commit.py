"""Time of a round's commit: one file of ours against SavedModels.

  python -m benchmarks.commit [--quick] [--json=FILE] [--repeats=N] [--folder=DIR]

Milliseconds of a whole commit (checkpoint, ledger line, metrics, TensorBoard) of a
state of so many megabytes: ours, and with TFF's
`FileProgramStateManager` and `CSVFileReleaseManager`, alternately; and of nothing but
the bytes of the state, written and synced, which is what the disk takes.
"""

import argparse
import asyncio
from collections.abc import Callable, Sequence
import os
import pathlib
import statistics
import tempfile
import time

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks import measure
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.common import files
from tff_pipelines.experiment import records as records_lib

# Megabytes of a state -> milliseconds that a commit may take at the median.
TARGETS = {0.03: 3.0, 8.0: 15.0}
_WARM_UPS = 3
_HEADER = {'population': 100, 'delta': 1e-5, 'adjacency': 'zero-out'}
_METRICS = {'epsilon': 1.0, 'test/accuracy': 0.9, 'test/loss': 0.3,
            'public/num_reporting': 100.0}
_EVENT = events.PoissonSampled(
    event=events.CentralGaussian(noise_multiplier=1.0), sampling_rate=0.1)


def state_of(megabytes: float) -> dict[str, list[np.ndarray]]:
  """Weights of six layers, float32, of this size in all."""
  rng, size = np.random.default_rng(0), round(megabytes * 1e6 / 4 / 6)
  return {'weights': [rng.normal(size=size).astype(np.float32) for _ in range(6)]}


def ours(folder: pathlib.Path, state) -> Callable[[int], None]:
  """Commits a round as runs do."""
  records = records_lib.RunRecords(folder, {'rounds': 1}, _HEADER, resume=False)
  records.restore(state)
  return lambda rounds: records.commit(
      state, rounds, _EVENT, suppressed=False, metrics=_METRICS)


def saved_models(folder: pathlib.Path, state) -> Callable[[int], None]:
  """Commits a round with TFF's program managers."""
  folder.mkdir()
  ledger = ledger_lib.Ledger.create(folder / files.LEDGER, **_HEADER)
  states = tff.program.FileProgramStateManager(
      folder / 'checkpoints', prefix='round_', keep_total=2)
  table = tff.program.CSVFileReleaseManager(
      folder / files.METRICS, tff.program.CSVSaveMode.WRITE, key_fieldname='round')
  writer = tf.summary.create_file_writer(str(folder / 'tensorboard'))

  def commit(rounds):
    line = ledger.next_line(_EVENT, outcome='released', configuration_hash='c')
    asyncio.run(states.save({'leaves': state['weights'], 'ledger_line': line}, rounds))
    ledger.append_line(line)
    with writer.as_default():
      for name, value in _METRICS.items():
        tf.summary.scalar(name, value, step=rounds)
    writer.flush()
    asyncio.run(table.release(_METRICS, rounds))

  return commit


def bytes_alone(folder: pathlib.Path, state) -> Callable[[int], None]:
  """Writes and syncs the bytes of the state."""
  folder.mkdir()
  content = b''.join(array.tobytes() for array in state['weights'])

  def write(rounds):
    del rounds
    with open(folder / 'bytes', 'wb') as file:
      file.write(content)
      file.flush()
      os.fsync(file.fileno())

  return write


def medians(functions: dict[str, Callable[[int], None]], repeats: int
            ) -> dict[str, float]:
  """Milliseconds of each function, called in turns with the rounds from 1."""
  times = {name: [] for name in functions}
  for rounds in range(1, _WARM_UPS + repeats + 1):
    for name, function in functions.items():
      os.sync()  # Else one pays for what another left to be written.
      start = time.perf_counter()
      function(rounds)
      times[name].append((time.perf_counter() - start) * 1e3)
  return {name: statistics.median(each[_WARM_UPS:]) for name, each in times.items()}


def rows_of(megabytes: float, repeats: int, base: pathlib.Path) -> list[measure.Row]:
  """The rows of one size of state, measured in new folders."""
  state = state_of(megabytes)
  of = medians({function.__name__: function(base / function.__name__, state)
                for function in (ours, saved_models, bytes_alone)}, repeats)
  common = dict(sizes=f'{megabytes:g} MB', ours=of['ours'], unit='ms')
  return [
      measure.Row(name='commit, SavedModel', peer=of['saved_models'], **common),
      measure.Row(name='commit, synced bytes alone', peer=of['bytes_alone'], **common),
      measure.Row(
          name='commit, allowed', peer=TARGETS[megabytes], target=1.0, **common)]


def main(arguments: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
  parser.add_argument('--quick', action='store_true', help='small, to see it run')
  parser.add_argument('--json', help='file for the rows')
  parser.add_argument('--repeats', type=int, default=30, help='turns, >= 1')
  parser.add_argument('--folder', help='where to write; None for the temporary folder')
  flags = parser.parse_args(arguments)
  measure.heading()
  rows = []
  for megabytes in TARGETS:
    with tempfile.TemporaryDirectory(dir=flags.folder) as folder:
      rows += rows_of(megabytes, 1 if flags.quick else flags.repeats,
                      pathlib.Path(folder))
    for row in rows[-3:]:
      measure.show(row)
  measure.write(rows, flags.json)


if __name__ == '__main__':
  main()
