"""Rounds of federated averaging at the leader, over the two-server protocol."""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import pathlib
from typing import Any, Protocol

import numpy as np

from tff_pipelines.common import files
from tff_pipelines.deployment.engine import program as program_lib
from tff_pipelines.deployment import agreements, identities, leader, messages
from tff_pipelines.experiment import rounds as rounds_lib
from tff_pipelines.fedavg import loop

_BEGUN, _ASKED = 'begun', 'asked.npz'


class Carrier(Protocol):
  """Carries messages; it need not be trusted."""

  def uploads(self, message: bytes, clients: Sequence[str]) -> Iterable[bytes]:
    """Sends a round's message to clients; yields what they answer, until a deadline."""

  def opened(self, request: bytes) -> bytes | None:
    """The helper's answer to a request; None if it did not answer in time."""


class _Elsewhere(loop.ClientReader):
  """Reads no client: all are at their own sites."""

  def check_some(self) -> None:
    pass


@dataclasses.dataclass(eq=False, kw_only=True)
class DeployedRounds(loop.FedAvgRounds):
  """Rounds whose clients are elsewhere.

  A round that is not opened, as too few clients reported, or a server was not there, is
  suppressed as the plan accounts for: noise alone is released. So is one that was begun
  before the leader was killed, since clients answer no round twice.

  Attributes:
    agreement, identity: Those of the run, and of the leader.
    carrier: Reaches clients and helper.
    folder: The leader's own, for what it must remember.
    log: Takes a line about each upload, or request, that was refused.
  """

  agreement: agreements.Agreement
  identity: identities.Identity
  carrier: Carrier
  folder: pathlib.Path
  log: Callable[[str], None]

  def __post_init__(self):
    super().__post_init__()
    self._reader = _Elsewhere(self.task, self.scheme.simulation_seed)
    self._program = program_lib.Program(self.process, self.set_cohort_size)
    self._shares, self._known = np.zeros(0), 0

  def initial_state(self, resumed: bool) -> dict[str, Any]:
    params = self.agreement.params
    return {**super().initial_state(resumed), 'shares': np.zeros(
        (len(params.column) - 1, params.padded_dimension), np.uint32)}

  def step(self, state: dict[str, Any], index: int) -> rounds_lib.Step:
    self._shares = state['shares']
    step = super().step(state, index)
    return dataclasses.replace(step, state={**step.state, 'shares': self._shares})

  def _computed(self, state: Any, clients: Sequence[int], index: int) -> Any:
    params = self.agreement.params
    found = self._opened(state, [self.task.train.client_ids[i] for i in clients], index)
    total = np.zeros([1 + (len(params.column) > 1), params.padded_dimension], np.int32)
    if found is None:  # Its sum counts as zero in later rows.
      self._shares = self._after(1, self._shares)
    else:
      total[0], self._shares = found.total, found.history
    return self._program.updated(
        state, total.reshape(-1), 0 if found is None else len(clients))

  def _opened(self, state: Any, clients: Sequence[str], index: int
              ) -> leader.Opened | None:
    """The opened sum of a round; None if there is none."""
    begun = self.folder / _BEGUN
    last = int(begun.read_text()) if begun.exists() else 0
    if not clients or index <= last:
      return None
    if not self._reconciled(index):
      return None
    files.write_atomically(begun, str(index))
    own = leader.Round(
        self.agreement, self.identity, index, clients,
        self._program.model(state, self.agreement.run, index), self._shares)
    for upload in self.carrier.uploads(own.message, clients):
      own.take(upload)
      if own.reported == len(clients):
        break
    found = None
    try:
      while found is None and (request := own.request()) is not None:
        self._ask(index, request, own.own()[1])
        if (answer := self.carrier.opened(request)) is None:
          break
        found = own.finish(request, answer)
        self._known = index
    except messages.MessageError as error:
      own.refused.append(('', str(error)))
    for client, reason in own.refused:
      self.log(f'round {index}: refused {client or "a message"}: {reason}')
    return found

  def _after(self, rounds: int, shares: np.ndarray) -> np.ndarray:
    """The shares of the last sums after rounds that were not opened."""
    nothing = np.zeros((min(rounds, len(shares)), *shares.shape[1:]), np.uint32)
    return np.concatenate([nothing, shares])[:len(shares)]

  def _ask(self, index: int, request: bytes, history: np.ndarray) -> None:
    """Remembers what is asked, where later rows depend on whether it was opened."""
    if len(history):
      self._known = 0
      files.write_arrays(self.folder / _ASKED, {
          'round': np.int64(index), 'request': np.frombuffer(request, np.uint8),
          'history': history})

  def _reconciled(self, index: int) -> bool:
    """Whether it is known which set the helper opened last.

    It is not if the leader was killed, or did not get the answer. The helper gives the
    same answer to the same request, or opens it now: its row is of no use any more.
    """
    asked = files.read_arrays(self.folder / _ASKED)
    if asked is None or self._known == int(asked['round']):
      return True
    if (answer := self.carrier.opened(asked['request'].tobytes())) is None:
      self.log(f'round {index}: the helper did not answer')
      return False
    try:
      found = leader.opened(self.agreement, asked['request'].tobytes(), answer)
    except messages.MessageError as error:
      self.log(f'round {index}: {error}')
      return False
    self._known = int(asked['round'])
    if not isinstance(found, dict):
      self._shares = self._after(index - 1 - self._known, asked['history'])
    return True
