"""Checkpoints of earlier versions, which were written by TFF as SavedModels."""

import asyncio
from collections.abc import Collection
import json
import pathlib
from typing import Any

import numpy as np

from tff_pipelines.experiment import checkpoints


def read(folder: pathlib.Path, initial_state: Any,
         derived: Collection[str] = ()) -> checkpoints.Checkpoint:
  """Reads the checkpoint that an earlier version of the project wrote.

  Args:
    folder: Folder of the SavedModel, `round_` and the index of the round.
    initial_state: A state of the same structure.
    derived: See `checkpoints.rebuilt`.

  Raises:
    ValueError: If it is damaged; one line that names it.
  """
  # Seconds to import, for these alone.
  import tensorflow_federated as tff  # pylint: disable=g-import-not-at-top
  states = tff.program.FileProgramStateManager(folder.parent, prefix='round_')
  leaves = dict(checkpoints.leaves(initial_state))
  try:
    saved = asyncio.run(states.load(
        int(folder.name.removeprefix('round_')),
        {'leaves': [np.asarray(leaf) for leaf in leaves.values()],
         'rounds': np.int64(0), 'ledger_line': '', 'metrics': ''}))
    arrays = dict(zip(leaves, map(np.asarray, saved['leaves']), strict=True))
    kept = {path for path, _ in checkpoints.leaves(initial_state, derived)}
    return checkpoints.Checkpoint(
        rounds=int(saved['rounds']), line=saved['ledger_line'].decode(),
        metrics=json.loads(saved['metrics']),
        arrays={path: arrays[path] for path in arrays if path in kept})
  except Exception as error:  # TensorFlow's are of many kinds.
    raise ValueError(
        f'{folder} is damaged: {" ".join(str(error).split())}') from error
