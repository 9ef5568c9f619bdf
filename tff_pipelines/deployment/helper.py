"""The helper of the two-server protocol, of another organisation than the leader.

It checks who is in a set, opens the sealed seeds of one set a round, and answers with one
vector: minus the sum of the masks, and the noise that clients who left did not add.
"""

from collections.abc import Sequence
import pathlib
from typing import Any

import numpy as np

from tff_pipelines.common import files
from tff_pipelines.deployment import (
    agreements, identities, locks, messages, top_up, vectors)
from tff_pipelines.deployment.agreements import Agreement

_OPENED = 'opened.json'


class Helper:
  """The helper's part of one run.

  It opens one set a round, of at least `Agreement.least` clients, and persists that before
  it answers; the same request gets the same answer. With bands it keeps its share of the
  last sums. All is in the folder, for its owner alone.
  """

  def __init__(self, agreement: Agreement, identity: identities.Identity,
               folder: pathlib.Path):
    if agreement.roster.helper != identity.public:
      raise ValueError('the helper must be in the roster with its own key')
    self._agreement, self._identity, self._folder = agreement, identity, folder

  @property
  def opened(self) -> dict[str, Any]:
    """The latest opening: round, digest of the request, clients and name of its file."""
    path = self._folder / _OPENED
    if not path.exists():
      return {'round': 0, 'request': '', 'clients': [], 'answer': ''}
    return files.read_json(path)

  def answer(self, content: bytes) -> bytes:
    """The answer to a request to open; one that is refused says why, and opens nothing."""
    try:
      with locks.exclusive(self._folder / _OPENED):
        return self._answered(content)
    except _Refused as error:
      return messages.Message('refused', {
          'reason': str(error), 'clients': list(error.clients)}).to_bytes()
    except messages.MessageError as error:
      return messages.Message('refused', {
          'reason': str(error), 'clients': []}).to_bytes()

  def _answered(self, content: bytes) -> bytes:
    agreement = self._agreement
    message = messages.read(content, 'open')
    fields, request = message.fields, messages.digest(content)
    digest = agreement.check_round(fields['round'])
    if not agreement.roster.leader.verifies(
        'open', signed_request(fields),
        messages.unhexed(fields['signature'], 'signature', 64)):
      raise messages.MessageError('the request is not signed by the leader')
    last, index = self.opened, fields['round']['round']
    if last['request'] == request:
      return self._read(last['answer'])
    if index <= last['round']:
      raise messages.MessageError(
          f'round {index} must be after {last["round"]}, which was opened: one set a '
          'round is opened')
    for upload in fields['uploads']:
      agreements.check_upload(agreement, upload, digest)
    uploads = agreements.ordered(fields['uploads'])
    size = fields['round']['cohort_size']
    if not agreement.least(size) <= len(uploads) <= size:
      raise messages.MessageError(
          f'a set must have {agreement.least(size)} to {size} clients, found '
          f'{len(uploads)}')
    total = self._masks(uploads, digest)
    return self._opened(index, request, uploads, size, total)

  def _masks(self, uploads: Sequence[dict[str, Any]], digest: str) -> np.ndarray:
    """Minus the sum of masks; raises if a seed is not the client's of this round."""
    agreement, seeds, bad = self._agreement, [], []
    for upload in uploads:
      seed = self._identity.opened(
          messages.unhexed(upload['sealed'], 'sealed'),
          agreements.sealing_info(agreement, digest, upload['client']))
      if seed is None or len(seed) != vectors.SEED_BYTES:
        bad.append(upload['client'])
      seeds.append(seed)
    if bad:
      raise _Refused('seeds can\'t be opened', bad)
    # A loop that keeps one mask at a time.
    total = vectors.added((vectors.expanded(seed, agreement.length) for seed in seeds),
                          agreement.length, agreement.params.bits)
    return (np.uint32(0) - total) & np.uint32(2**agreement.params.bits - 1)

  def _opened(self, index: int, request: str, uploads: Sequence[dict[str, Any]],
              size: int, total: np.ndarray) -> bytes:
    """Persists an opening, and answers."""
    params, bits = self._agreement.params, self._agreement.params.bits
    row, kept = vectors.row_of(total, self._history(index), params)
    row = vectors.added([row, top_up.missing_noise(self._agreement, len(uploads), size)],
                        len(row), bits)
    content = vectors.packed(row, bits)
    fields = {'request': request, 'vector': messages.digest(content)}
    answer = messages.Message('opened', {**fields, 'signature': self._identity.sign(
        'opened', messages.canonical(fields))}, content).to_bytes()
    names = {'answer': f'answer-{index}', 'history': f'history-{index}'}
    files.write_bytes(self._folder / names['answer'], answer)
    if len(kept):
      files.write_bytes(self._folder / names['history'], kept.astype('<u4').tobytes())
    before = self.opened
    # From here on the set is opened, and no other is.
    files.write_json(self._folder / _OPENED, {
        'round': index, 'request': request,
        'clients': [upload['client'] for upload in uploads], 'answer': names['answer']})
    if before['round']:
      for kind in ('answer', 'history'):
        (self._folder / f'{kind}-{before["round"]}').unlink(missing_ok=True)
    return answer

  def _history(self, index: int) -> np.ndarray:
    """Its shares of the sums of the last rounds, the latest first; zero of none."""
    params, last = self._agreement.params, self.opened['round']
    shape = len(params.column) - 1, params.padded_dimension
    if not last or not shape[0]:
      return np.zeros(shape, np.uint32)
    history = np.frombuffer(self._read(f'history-{last}'), '<u4').reshape(shape)
    # Rounds that were not opened count as zero.
    return np.concatenate([np.zeros((min(index - last - 1, shape[0]), shape[1]), np.uint32),
                           history])[:shape[0]]

  def _read(self, name: str) -> bytes:
    return (self._folder / name).read_bytes()


class _Refused(messages.MessageError):
  """A refusal that names clients without whom a set would be opened."""

  def __init__(self, reason: str, clients: Sequence[str]):
    super().__init__(f'{reason}: {", ".join(clients)}')
    self.clients = clients


def signed_request(fields: dict[str, Any]) -> bytes:
  """The content of the leader's signature of a request to open."""
  return messages.canonical([fields['round'], fields['uploads']])
