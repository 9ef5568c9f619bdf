"""Agreements: all that the parties of a run agree to before it, by its digest."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import math
from typing import Any

import numpy as np

from aggregators import share_tables
from aggregators.params import DistributedSumParams
from tff_pipelines.accounting.events import base
from tff_pipelines.deployment import identities, messages

_SIGNED_ROUND = 'round'
# Units that epsilon may protect.
UNITS = ('client', 'record', 'person')


@dataclasses.dataclass(frozen=True)
class Agreement:
  """A run of the protocol.

  Every party has a copy; a round names its digest. What a client needs for its noise is
  here, and in no message but the number of clients of a cohort, which the helper counts
  against the set that it opens.

  Attributes:
    run: Name of the run; no other has it.
    study: What the run is for, in words for the administrators of sites.
    program: Digest of what is installed: sources, lock and settings.
    params: The sum, its noise and its clip; clients add the noise in shares.
    rounds: Number of rounds, from 1.
    cohort_size: Clients that are selected in a round; None if it varies up to
      `params.believed_cohort`.
    roster: The parties.
    event: Event of the whole run, as JSON, against either server: what a site's ledger
      is charged with.
    unit: Unit that it protects: client, record or person.
    seed: Seed of the run, which makes noise predictable: for tests. None for none.
    configuration: Further settings, by which each party builds the same program.
    most_answers: Rounds that a client answers at most, which `event` counts on; None for
      all.
    apart: Minimum number of rounds from one answer of a client to the next, which rows
      of several sums count on.
  """

  run: str
  study: str
  program: str
  params: DistributedSumParams
  rounds: int
  cohort_size: int | None
  roster: identities.Roster
  event: Mapping[str, Any]
  unit: str = 'client'
  seed: int | None = None
  configuration: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  most_answers: int | None = None
  apart: int = 1

  def __post_init__(self):
    if not self.params.has_shares or self.params.noise_multiplier <= 0:
      raise ValueError('params must have shares of noise that clients add, found '
                       f'mechanism={self.params.mechanism}, noise_multiplier='
                       f'{self.params.noise_multiplier:g}')
    if self.rounds < 1 or (self.cohort_size is not None and not (
        1 <= self.cohort_size <= min(len(self.roster.clients), self.believed))):
      raise ValueError('rounds must be at least 1, and cohort_size one that clients '
                       f'believe, found {self.rounds} and {self.cohort_size}')
    base.from_json(self.event)  # Raises if it is none.
    for text in (self.run, self.study, self.program, *self.roster.clients):
      if not (isinstance(text, str) and text and text.isprintable()):
        raise ValueError('run, study and names of clients must be printable texts, found '
                         f'{text!r}')
    if taken := {'leader', 'helper'} & self.roster.clients.keys():
      raise ValueError(f'names of clients must be none of a server, found {min(taken)}')
    if self.unit not in UNITS or self.apart < 1 or not (
        self.most_answers is None or self.most_answers >= 1):
      raise ValueError(f'unit must be one of {", ".join(UNITS)}, apart and most_answers '
                       f'at least 1, found {self.unit!r}, {self.apart} and '
                       f'{self.most_answers}')

  def to_json(self) -> dict[str, Any]:
    return {**{field.name: getattr(self, field.name)
               for field in dataclasses.fields(self)},
            'params': dataclasses.asdict(self.params) | {
                'column': list(self.params.column)},
            'roster': self.roster.to_json(), 'event': dict(self.event),
            'configuration': dict(self.configuration)}

  @classmethod
  def from_json(cls, value: Mapping[str, Any]) -> 'Agreement':
    """Parses an agreement; TypeError or ValueError for any other value."""
    return cls(**{**value, 'params': DistributedSumParams(**{
        **value['params'], 'column': tuple(value['params']['column'])}),
                  'roster': identities.Roster.from_json(value['roster'])})

  @functools.cached_property
  def digest(self) -> str:
    return messages.digest(self.to_json())

  @property
  def believed(self) -> float:
    """The largest cohort that clients believe."""
    return self.params.believed_cohort

  @property
  def length(self) -> int:
    """Integers of a client's vector: with bands the one with noise, and the one without."""
    return self.params.sent_dimension

  def least(self, cohort_size: int) -> int:
    """The minimum number of clients of a sum that is opened."""
    params = self.params
    least = max(1, math.floor(params.min_honest_fraction * cohort_size
                              + params.assumed_colluders) - 1)
    while not params.has_enough(least, cohort_size):
      least += 1
    return least

  def noise_table(self, cohort_size: int) -> Mapping[str, np.ndarray] | None:
    """The table that a client makes itself; None where noise is not drawn from one."""
    return None if share_tables.table_log_size(self.params) is None else (
        share_tables.noise_table(self.params, cohort_size))

  def check_round(self, fields: Mapping[str, Any]) -> str:
    """The digest of a round's description; MessageError if it is not one of this run."""
    messages.check_fields(fields, messages.KINDS['round'])
    if fields['agreement'] != self.digest:
      raise messages.MessageError('the round is of another agreement')
    digest, described = round_digest(fields), {
        name: value for name, value in fields.items() if name != 'signature'}
    if not self.roster.leader.verifies(
        _SIGNED_ROUND, messages.canonical(described),
        messages.unhexed(fields['signature'], 'signature', 64)):
      raise messages.MessageError('the round is not signed by the leader')
    if not 1 <= fields['round'] <= self.rounds:
      raise messages.MessageError(f'round must be in [1, {self.rounds}], found '
                                  f'{fields["round"]}')
    size = fields['cohort_size']
    if self.cohort_size not in (None, size) or not 1 <= size <= min(
        self.believed, len(self.roster.clients)):
      expected = (f'at most {self.believed:g} of {len(self.roster.clients)} clients'
                  if self.cohort_size is None else self.cohort_size)
      raise messages.MessageError(f'cohort_size must be {expected}, as was agreed, found '
                                  f'{size}')
    messages.unhexed(fields['model'], 'model', 32)
    return digest


def round_digest(fields: Mapping[str, Any]) -> str:
  """The digest by which all other messages name a round, without its signature."""
  return messages.digest({name: value for name, value in fields.items()
                          if name != 'signature'})


def described(agreement: Agreement, index: int, cohort_size: int, model: bytes,
              leader: identities.Identity) -> messages.Message:
  """The leader's message of a round, with what clients train as its payload."""
  fields = {'agreement': agreement.digest, 'round': index, 'cohort_size': cohort_size,
            'model': messages.digest(model)}
  return messages.Message('round', {**fields, 'signature': leader.sign(
      _SIGNED_ROUND, messages.canonical(fields))}, model)


def sealing_info(agreement: Agreement, round_: str, client: str) -> bytes:
  """The context of the seal of a client's seed: round, parties and their keys."""
  roster = agreement.roster
  return messages.canonical([round_, client, roster.leader.fingerprint,
                             roster.helper.fingerprint,
                             roster.clients[client].fingerprint])


def signed_upload(fields: Mapping[str, Any]) -> bytes:
  """The content of a client's signature."""
  return messages.canonical([fields[name] for name in (
      'round', 'client', 'sealed', 'share')])


def check_upload(agreement: Agreement, fields: Mapping[str, Any], round_: str) -> None:
  """Raises MessageError unless an upload is a client's of the roster, in this round."""
  messages.check_fields(fields, messages.KINDS['upload'])
  client = fields['client']
  if client not in agreement.roster.clients:
    raise messages.MessageError(f'client {client!r} is not in the roster')
  if fields['round'] != round_:
    raise messages.MessageError(f'client {client!r} answers another round')
  if not agreement.roster.clients[client].verifies(
      'upload', signed_upload(fields),
      messages.unhexed(fields['signature'], 'signature', 64)):
    raise messages.MessageError(f'the upload of {client!r} is not signed by it')


def ordered(uploads: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
  """Uploads in the order of clients; MessageError if one is there twice."""
  names = [fields['client'] for fields in uploads]
  if len(set(names)) != len(names):
    raise messages.MessageError('a client must be in a set once')
  return sorted(uploads, key=lambda fields: fields['client'])
