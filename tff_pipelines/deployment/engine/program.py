"""The computations of a run, split between its server and a client.

A federated process whose clients send one secure sum and their number is split where
their messages pass: `model` is what the server sends, `contribution` what a client makes
of it, and `updated` what the server makes of the opened sum, for the very numbers of the
process itself.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow_federated as tff
import tree

from tff_pipelines.experiment import checkpoints

# Parts of the server's state that a client makes itself, and takes from no message: they
# decide on its noise.
_OWN = frozenset({'cohort_size', 'noise_table'})


class Program:
  """A process, split at its messages; a context must be installed."""

  def __init__(self, process: tff.templates.IterativeProcess,
               set_cohort_size: Callable[[Any, int], Any]):
    """Splits a process.

    Args:
      process: As `loop.FedAvgRounds` has it.
      set_cohort_size: (state, number of selected clients) -> state.

    Raises ValueError if clients send more than one secure sum and a count.
    """
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(process.next)
    plain, *others, sums = form.work.type_signature.result
    if len(plain) != 1 or plain[0] != tff.TensorType(np.int32) or any(
        map(len, others)) or len(sums) != 1:
      raise ValueError('clients must send one secure sum and their number alone: found '
                       f'{form.work.type_signature.result}; leave out diagnostics')
    self._form, self._set_cohort_size = form, set_cohort_size
    self._initial = process.initialize()

  def model(self, state: Any, run: str, index: int) -> bytes:
    """The message of a round; state as for the process."""
    arrays = checkpoints.arrays_of(self._form.prepare(state), derived=_OWN)
    return checkpoints.to_bytes(checkpoints.Checkpoint(
        run=run, rounds=index, arrays=arrays))

  def contribution(self, value: Any, model: bytes, run: str, index: int,
                   cohort_size: int) -> np.ndarray:
    """A client's vector, with its share of the noise; int32 [length] in [0, 2^bits).

    Args:
      value: Its value, as the process takes it.
      model: What the server sent.
      run, index: Name of the run, and number of the round, which it must be of.
      cohort_size: Selected clients, by which its share and its table are made.

    Raises ValueError if `model` is of another run or round, or has other arrays.
    """
    sent = checkpoints.from_bytes(model)
    if (sent.run, sent.rounds) != (run, index):
      raise ValueError(f'model must be of round {index} of {run!r}, found round '
                       f'{sent.rounds} of {sent.run!r}')
    own = self._form.prepare(self._set_cohort_size(self._initial, cohort_size))
    expected = checkpoints.arrays_of(own, derived=_OWN)
    shapes = lambda arrays: {path: (x.dtype, x.shape) for path, x in arrays.items()}
    if shapes(expected) != shapes(sent.arrays):
      raise ValueError('model must have the arrays of the program that is installed')
    prepared = tree.map_structure_with_path(
        lambda path, leaf: sent.arrays.get('/'.join(map(str, path)), leaf), own)
    _, _, _, (vector,) = self._form.work(value, prepared)
    return np.asarray(vector)

  def updated(self, state: Any, total: np.ndarray, num_reporting: int) -> Any:
    """The output of the process for an opened sum.

    Args:
      state: That of the round.
      total: int32, as a client's vector; with bands the row, and zeros.
      num_reporting: Clients whose shares of the noise it has: the cohort, as the helper
        makes up for those who left. 0 for a round that was not opened.
    """
    return self._form.update(
        state, ((np.int32(num_reporting),), (), (), (total,)))
