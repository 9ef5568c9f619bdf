"""The client of the two-server protocol: one upload a round, masked or none.

Bytes in, bytes out; whoever carries them need not be trusted.
"""

from collections.abc import Callable
import os
import pathlib
import secrets

import numpy as np

from tff_pipelines.deployment import agreements, identities, locks, messages, vectors
from tff_pipelines.deployment.agreements import Agreement

# (what the leader sent, round, cohort size) -> int32 [length], with the client's share of
# the noise, made from its own table.
Work = Callable[[bytes, int, int], np.ndarray]
_ANSWERED = 'answered'


class Client:
  """A client's part of one run.

  Formal guarantee. If one of the servers is honest, the other learns of the client's
  vectors no more than the opened sums, each with the noise of at least h m honest clients
  (docs/deployment.md). The client answers each round once, whatever crashes: it records
  the round before it computes, and leaves out one that it can't remember. It answers
  `most_answers` rounds of the agreement, `apart` rounds from one another: a leader that
  selects it more often gets nothing.
  """

  def __init__(self, name: str, agreement: Agreement, identity: identities.Identity,
               work: Work, folder: pathlib.Path, *, most_model: int,
               allow: Callable[[Agreement], None]):
    """Initializes the client.

    Args:
      name: Its id in the roster.
      agreement: What its site agreed to.
      identity: Its keys.
      work: What it computes, which is installed and not received.
      folder: Its own, for what it must remember.
      most_model: The largest number of bytes that a leader may send.
      allow: Charges the site's ledger for the run, unless it was; raises ValueError
        if the site's policy forbids it.
    """
    if agreement.roster.clients.get(name) != identity.public:
      raise ValueError(f'client {name!r} must be in the roster with its own key')
    self._name, self._agreement, self._identity = name, agreement, identity
    self._work, self._path, self._most = work, folder / _ANSWERED, most_model
    self._allow = allow

  @property
  def answered(self) -> list[int]:
    """The rounds that were answered, or begun."""
    content = self._path.read_bytes() if self._path.exists() else b''
    # An interrupted append leaves a round that was not begun.
    return [int.from_bytes(content[i:i + 4], 'big')
            for i in range(0, len(content) - 3, 4)]

  def answer(self, content: bytes) -> bytes:
    """The upload for a round's message; MessageError, and nothing is sent, if it is bad."""
    agreement = self._agreement
    message = messages.read(content, 'round', most_payload=self._most)
    digest, index = agreement.check_round(message.fields), message.fields['round']
    if message.fields['model'] != messages.digest(message.payload):
      raise messages.MessageError('the model is not the one of the round')
    with locks.exclusive(self._path):
      self._begin(index)
    size = message.fields['cohort_size']
    try:
      vector = np.asarray(self._work(message.payload, index, size))
    except ValueError as error:
      raise messages.MessageError(f'round {index} can\'t be computed: {error}') from error
    bits = agreement.params.bits
    if vector.shape != (agreement.length,) or vector.dtype != np.int32 or (
        vector.min() < 0 or int(vector.max()) >> bits):
      raise ValueError(f'work must give int32 [{agreement.length}] in [0, 2^{bits})')
    seed = secrets.token_bytes(vectors.SEED_BYTES)
    share = vectors.shared(vector, seed, bits)
    sealed = agreement.roster.helper.sealed(
        seed, agreements.sealing_info(agreement, digest, self._name))
    fields = {'round': digest, 'client': self._name, 'sealed': sealed.hex(),
              'share': messages.digest(share)}
    return messages.Message('upload', {**fields, 'signature': self._identity.sign(
        'upload', agreements.signed_upload(fields))}, share).to_bytes()

  def _begin(self, index: int) -> None:
    """Remembers a round; MessageError if it is not to be answered."""
    answered, agreement = self.answered, self._agreement
    if answered and index <= answered[-1]:
      raise messages.MessageError(f'round {index} must be after {answered[-1]}, which was '
                                  'answered: no round is answered twice')
    if answered and index < answered[-1] + agreement.apart:
      raise messages.MessageError(
          f'round {index} must be {agreement.apart} rounds after {answered[-1]}, which was '
          'answered, as was agreed')
    if agreement.most_answers is not None and len(answered) >= agreement.most_answers:
      raise messages.MessageError(f'{agreement.most_answers} rounds are answered, which is '
                                  'all that was agreed')
    try:
      self._allow(agreement)
    except ValueError as error:
      raise messages.MessageError(f'the site refuses: {error}') from error
    if self._path.exists():  # Less a round that was not begun.
      os.truncate(self._path, 4 * len(answered))
    locks.append(self._path, index.to_bytes(4, 'big'))
