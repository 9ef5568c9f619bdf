"""The leader of the two-server protocol: collects uploads, has one set opened, adds."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_pipelines.deployment import agreements, helper, identities, messages, vectors
from tff_pipelines.deployment.agreements import Agreement


class Opened(NamedTuple):
  """An opened sum: its integers, int32 [padded_dimension], and who is in it.

  Attributes:
    total: The sum mod 2^bits with all the noise; with bands the row of the round.
    clients: Ids of those in it.
    history: The leader's shares of the last sums, uint32 [bands - 1, padded_dimension].
  """

  total: np.ndarray
  clients: Sequence[str]
  history: np.ndarray


class Round:
  """One round at the leader.

  Attributes:
    message: What is sent to the clients that are selected.
    refused: Client, or '' where it is not known, and why its upload was refused.
  """

  def __init__(self, agreement: Agreement, identity: identities.Identity, index: int,
               selected: Collection[str], model: bytes, history: np.ndarray):
    """Begins a round.

    Args:
      agreement, identity: Those of the run, and of the leader.
      index: Number of the round, from 1.
      selected: Ids of the clients that are selected.
      model: What they are sent.
      history: `Opened.history` of the round before, zeros before the first.
    """
    if not set(selected) <= agreement.roster.clients.keys():
      raise ValueError('selected clients must be in the roster')
    described = agreements.described(
        agreement, index, len(selected), model, identity)
    self._agreement, self._identity, self._history = agreement, identity, history
    self._selected, self._fields = frozenset(selected), described.fields
    self._digest = agreements.round_digest(described.fields)
    self._uploads: dict[str, tuple[dict[str, Any], bytes]] = {}
    self.message, self.refused = described.to_bytes(), []

  @property
  def reported(self) -> int:
    return len(self._uploads)

  def take(self, content: bytes) -> bool:
    """Takes an upload; False, and an entry of `refused`, if it is none of this round."""
    agreement, client = self._agreement, ''
    size = vectors.packed_size(agreement.length, agreement.params.bits)
    try:
      message = messages.read(content, 'upload', most_payload=size)
      agreements.check_upload(agreement, message.fields, self._digest)
      client = message.fields['client']
      if client not in self._selected:
        raise messages.MessageError(f'client {client!r} was not selected')
      if client in self._uploads:
        raise messages.MessageError(f'client {client!r} reported before')
      if message.fields['share'] != messages.digest(message.payload):
        raise messages.MessageError(f'the share of {client!r} is not the one it signed')
      vectors.unpacked(message.payload, agreement.length, agreement.params.bits)
    except messages.MessageError as error:
      self.refused.append((client, str(error)))
      return False
    self._uploads[client] = message.fields, message.payload
    return True

  def request(self) -> bytes | None:
    """The request to open the set of all uploads; None if they are too few."""
    if self.reported < self._agreement.least(len(self._selected)):
      return None
    fields = {'round': self._fields, 'uploads': [
        self._uploads[name][0] for name in sorted(self._uploads)]}
    return messages.Message('open', {**fields, 'signature': self._identity.sign(
        'open', helper.signed_request(fields))}).to_bytes()

  def finish(self, request: bytes, answer: bytes) -> Opened | None:
    """The opened sum; None if the helper names clients, who are left out from now on.

    Raises MessageError if the answer is no one's, or refuses for another reason.
    """
    found, params = opened(self._agreement, request, answer), self._agreement.params
    if isinstance(found, dict):
      named = {name for name in found['clients']
               if isinstance(name, str) and name in self._uploads}
      if not named:
        raise messages.MessageError(f'the helper refuses: {found["reason"]!a}')
      for name in named:
        del self._uploads[name]
        self.refused.append((name, ascii(found['reason'])))
      return None
    row, history = self.own()
    total = vectors.added([row, found], params.padded_dimension, params.bits)
    return Opened(total.view(np.int32), sorted(self._uploads), history)

  def own(self) -> tuple[np.ndarray, np.ndarray]:
    """The leader's share of the row of all uploads, and `Opened.history`."""
    agreement, params = self._agreement, self._agreement.params
    total = vectors.added((vectors.unpacked(payload, agreement.length, params.bits)
                           for _, payload in self._uploads.values()),
                          agreement.length, params.bits)
    return vectors.row_of(total, self._history, params)


def opened(agreement: Agreement, request: bytes,
           answer: bytes) -> np.ndarray | dict[str, Any]:
  """The helper's vector, uint32 [padded_dimension]; the fields of a refusal if it is one.

  Raises MessageError if the answer is not the helper's to this request.
  """
  params = agreement.params
  message = messages.read(
      answer, 'opened', 'refused',
      most_payload=vectors.packed_size(params.padded_dimension, params.bits))
  fields = message.fields
  if message.kind == 'refused':
    return dict(fields)
  signed = {name: fields[name] for name in ('request', 'vector')}
  if fields['request'] != messages.digest(request) or (
      fields['vector'] != messages.digest(message.payload)) or not (
          agreement.roster.helper.verifies(
              'opened', messages.canonical(signed),
              messages.unhexed(fields['signature'], 'signature', 64))):
    raise messages.MessageError('the answer is not the helper\'s to this request')
  return vectors.unpacked(message.payload, params.padded_dimension, params.bits)
