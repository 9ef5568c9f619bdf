"""A party's folder, and the file in which all parties have one agreement.

A folder has the private keys, the site's policy and ledger, and what each run must
remember. `enrolment.json` alone leaves it: name, role, public keys and certificate.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import hashlib
import pathlib
from typing import Any

import tff_pipelines
from tff_pipelines.common import files
from tff_pipelines.deployment import identities, locks, messages, site
from tff_pipelines.deployment.agreements import Agreement
from tff_pipelines.deployment.engine import tls

LEADER, HELPER, CLIENT = ROLES = 'leader', 'helper', 'client'
ENROLMENT, POLICY, LEDGER = 'enrolment.json', 'policy.json', 'ledger.jsonl'
_KEYS, _TLS_KEY, _RUNS, _BEGUN = 'keys.json', 'tls.key', 'runs', 'begun'
_PACKAGES = ('aggregators', 'tasks', 'tff_pipelines')
# Digits of an agreement's digest that a person compares, at least.
LEAST_DIGITS = 32
# Bytes of a model's message in addition to its weights.
_MORE = 2**20


@dataclasses.dataclass(frozen=True)
class Enrolment:
  """A party as the others know it: its public keys, and signed endpoint."""

  keys: identities.Public
  endpoint: tls.Endpoint

  @property
  def name(self) -> str:
    return self.endpoint.name

  @property
  def role(self) -> str:
    return self.endpoint.role

  def to_json(self) -> dict[str, Any]:
    return {'keys': self.keys.to_json(),
            'endpoint': dataclasses.asdict(self.endpoint)}

  @classmethod
  def read(cls, path: pathlib.Path) -> 'Enrolment':
    """Reads an enrolment; ValueError if it is damaged or not signed by its keys."""
    value = files.read_json(path)
    try:
      messages.check_fields(value, {'keys': dict, 'endpoint': dict})
      result = cls(identities.Public.from_json(value['keys']), tls.Endpoint.from_json(
          value['endpoint']))
      result.endpoint.check(result.keys)
      if result.role not in ROLES:
        raise ValueError(f'role must be one of {", ".join(ROLES)}, found {result.role!r}')
    except ValueError as error:
      raise ValueError(f'{path} is not a valid enrolment: {error}') from None
    return result


class Party:
  """A party's folder."""

  def __init__(self, folder: str | pathlib.Path):
    self.folder = pathlib.Path(folder)
    if not (self.folder / ENROLMENT).exists():
      raise ValueError(f'party={folder} must be a folder that enrol made, found no '
                       f'{ENROLMENT}')
    self.enrolment = Enrolment.read(self.folder / ENROLMENT)

  @classmethod
  def new(cls, folder: str | pathlib.Path, name: str, role: str, address: str) -> 'Party':
    """Makes a folder with new keys; ValueError if it has some."""
    folder = pathlib.Path(folder)
    if folder.exists() and any(folder.iterdir()):
      raise ValueError(f'party={folder} must be a new folder: keys are not overwritten')
    files.make_folder(folder)
    identity = identities.Identity.new(seals=role == HELPER)
    key, certificate = tls.new(name)
    identity.write(folder / _KEYS)
    files.write_bytes(folder / _TLS_KEY, key)
    if role == CLIENT:
      # It refuses all runs until the site's administrator fills it in.
      files.write_json(folder / POLICY, dataclasses.asdict(site.Policy(
          data_set=name, programs=(), helpers=(), unit='record', least_cohort=2,
          epsilon=1.0, delta=1e-6)))
    files.write_json(folder / ENROLMENT, Enrolment(
        identity.public, tls.Endpoint.signed(
            name, role, certificate, address, identity)).to_json())
    return cls(folder)

  @property
  def name(self) -> str:
    return self.enrolment.name

  @functools.cached_property
  def identity(self) -> identities.Identity:
    return identities.Identity.read(self.folder / _KEYS)

  @property
  def connection(self) -> dict[str, bytes]:
    """Keyword arguments of its connections: `key` and `certificate`, PEM."""
    identities.check_mode(self.folder / _TLS_KEY)
    return {'key': (self.folder / _TLS_KEY).read_bytes(),
            'certificate': self.enrolment.endpoint.certificate.encode('ascii')}

  @property
  def ledger(self) -> site.SiteLedger:
    return site.SiteLedger(self.folder / LEDGER)

  def policy(self) -> site.Policy:
    """The site's policy, as it is now."""
    return site.Policy.read(self.folder / POLICY)

  def of_run(self, agreement: Agreement) -> pathlib.Path:
    """The folder of what it must remember of a run; ValueError if it was lost.

    A party that has forgotten what it answered, or opened, takes no part any more.
    """
    folder, begun = self.folder / _RUNS / agreement.digest, self.folder / _BEGUN
    known = begun.read_text(encoding='ascii').split() if begun.exists() else []
    if not folder.exists() and agreement.digest in known:
      raise ValueError(f'{folder} is lost, and with it what was answered or opened: agree '
                       'on a new run')
    files.make_folder(folder)
    files.sync_folder(folder.parent)
    if agreement.digest not in known:
      locks.append(begun, f'{agreement.digest}\n'.encode('ascii'))
    return folder


@dataclasses.dataclass(frozen=True)
class Joint:
  """An agreement, and where its parties are.

  Attributes:
    agreement: The agreement; its digest is what people compare.
    endpoints: Role of a server, or id of a client -> endpoint, signed by its keys.
  """

  agreement: Agreement
  endpoints: Mapping[str, tls.Endpoint]

  @classmethod
  def of(cls, enrolments: Sequence[Enrolment], **terms: Any) -> 'Joint':
    """An agreement of these parties; `terms` are the other fields of `Agreement`."""
    by_role = {role: [one for one in enrolments if one.role == role] for role in ROLES}
    for role in (LEADER, HELPER):
      if len(by_role[role]) != 1:
        raise ValueError(f'parties must have one {role}, found {len(by_role[role])}')
    clients = {one.name: one for one in by_role[CLIENT]}
    if len(clients) != len(by_role[CLIENT]) or {LEADER, HELPER} & clients.keys():
      raise ValueError('parties must have clients of different names, none of them '
                       f'{LEADER} or {HELPER}, found {[one.name for one in by_role[CLIENT]]}')
    servers = {role: by_role[role][0] for role in (LEADER, HELPER)}
    return cls(Agreement(roster=identities.Roster(
        *(one.keys for one in servers.values()),
        {name: clients[name].keys for name in sorted(clients)}), **terms), {
            name: one.endpoint for name, one in {**servers, **clients}.items()})

  def to_json(self) -> dict[str, Any]:
    return {'agreement': self.agreement.to_json(), 'endpoints': {
        name: dataclasses.asdict(one) for name, one in self.endpoints.items()}}

  @classmethod
  def read(cls, path: str | pathlib.Path) -> 'Joint':
    """Reads a file of `to_json`; ValueError if it is damaged, or an endpoint forged."""
    value = files.read_json(pathlib.Path(path))
    try:
      messages.check_fields(value, {'agreement': dict, 'endpoints': dict})
      agreement = Agreement.from_json(value['agreement'])
      endpoints = {name: tls.Endpoint.from_json(one)
                   for name, one in value['endpoints'].items()}
      roster = agreement.roster
      keys = {LEADER: roster.leader, HELPER: roster.helper, **roster.clients}
      if endpoints.keys() != keys.keys():
        raise ValueError('it must have an endpoint of each party')
      for name, endpoint in endpoints.items():
        endpoint.check(keys[name])
        expected = (name, CLIENT) if name in roster.clients else (endpoint.name, name)
        if (endpoint.name, endpoint.role) != expected:
          raise ValueError(f'the endpoint of {name!r} must be its own')
    except (TypeError, ValueError, KeyError, AttributeError) as error:
      raise ValueError(f'agreement={path} is not a valid agreement: {error}') from None
    return cls(agreement, endpoints)

  @property
  def most(self) -> int:
    """The largest number of bytes of a vector or a model."""
    params = self.agreement.params
    return 4 * max(self.agreement.length, params.dimension) + _MORE

  def check_approved(self, approved: str | None) -> None:
    """Raises ValueError unless digits of the agreement's digest are among those given."""
    digest = self.agreement.digest
    if approved is None:
      raise ValueError(f'approve must be given: the first {LEAST_DIGITS} or more digits of '
                       'the agreement\'s digest, which status shows, and which people '
                       'compare over another channel')
    if not any(len(one) >= LEAST_DIGITS and digest.startswith(one)
               for one in approved.split(',')):
      raise ValueError(f'approve must be the first {LEAST_DIGITS} or more digits of the '
                       f'agreement\'s digest, found {approved!r}')

  def role_of(self, party: Party, role: str) -> None:
    """Raises ValueError unless a party has a role in the agreement, with its keys."""
    roster = self.agreement.roster
    keys = {LEADER: roster.leader, HELPER: roster.helper}.get(
        role, roster.clients.get(party.name))
    if party.enrolment.role != role or keys != party.enrolment.keys:
      raise ValueError(f'party={party.folder} must be the agreement\'s {role}, with the '
                       f'keys that are in it; it is {party.enrolment.role} {party.name!r}')


def program_digest(configuration: Mapping[str, Any]) -> str:
  """The digest of what is installed here, sources and lock, and of a configuration.

  Parties whose digests are the same compute the same.
  """
  root, digest = pathlib.Path(tff_pipelines.__file__).parent.parent, hashlib.sha256()
  sources = [path for package in _PACKAGES for path in (root / package).rglob('*.py')]
  for path in sorted([*sources, root / 'tff_pipelines' / 'requirements.txt']):
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    digest.update(f'{path.relative_to(root)} {content}\n'.encode())
  return messages.digest({'sources': digest.hexdigest(),
                          'configuration': dict(configuration)})
