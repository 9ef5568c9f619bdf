"""Keys of the parties: signatures, and seals that the helper alone opens.

Signatures are Ed25519. Seals are HPKE (RFC 9180) with the hybrid of ML-KEM-768 and X25519:
what is recorded today stays closed to a computer that breaks X25519 later.
"""

from collections.abc import Mapping
import dataclasses
import functools
import pathlib
from typing import Any

from cryptography import exceptions
from cryptography.hazmat.primitives import hpke, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, mlkem, x25519

from tff_pipelines.common import files
from tff_pipelines.deployment import messages

_SUITE = hpke.Suite(hpke.KEM.MLKEM768_X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM)
# Raw bytes of a signing key, and of the two parts of a sealing key.
_SIGN, _SEAL = 32, (1184, 32)
_PREFIX = b'tff_pipelines deployment 1: '


@dataclasses.dataclass(frozen=True)
class Public:
  """Public keys of a party: raw bytes of `sign`, and of `seal` for a helper."""

  sign: bytes
  seal: bytes = b''

  def to_json(self) -> dict[str, str]:
    return {'sign': self.sign.hex(), 'seal': self.seal.hex()}

  @classmethod
  def from_json(cls, value: Mapping[str, str]) -> 'Public':
    """Parses keys; MessageError for any other value."""
    messages.check_fields(value, {'sign': str, 'seal': str})
    seal = messages.unhexed(value['seal'], 'seal') if value['seal'] else b''
    if len(seal) not in (0, sum(_SEAL)):
      raise messages.MessageError(f'seal must have {sum(_SEAL)} bytes, or none, found '
                                  f'{len(seal)}')
    return cls(messages.unhexed(value['sign'], 'sign', _SIGN), seal)

  @property
  def fingerprint(self) -> str:
    """The digest by which people compare keys."""
    return messages.digest(self.to_json())

  def verifies(self, context: str, content: bytes, signature: bytes) -> bool:
    """Whether a signature is this party's, of a content in a context."""
    try:
      ed25519.Ed25519PublicKey.from_public_bytes(self.sign).verify(
          signature, _signed(context, content))
    except (exceptions.InvalidSignature, ValueError):
      return False
    return True

  def sealed(self, content: bytes, info: bytes) -> bytes:
    """Seals a content, for an opening with the same `info`."""
    split = _SEAL[0]
    return _SUITE.encrypt(content, hpke.MLKEM768X25519PublicKey(
        mlkem.MLKEM768PublicKey.from_public_bytes(self.seal[:split]),
        x25519.X25519PublicKey.from_public_bytes(self.seal[split:])), info)


class Identity:
  """Private keys of a party; `seals` of a helper."""

  def __init__(self, sign: bytes, seal: tuple[bytes, bytes] | None = None):
    """Loads keys: the seed of `sign`, and those of ML-KEM-768 and X25519 of `seal`."""
    self._raw = sign, seal
    self._sign = ed25519.Ed25519PrivateKey.from_private_bytes(sign)
    self._seal = seal and (mlkem.MLKEM768PrivateKey.from_seed_bytes(seal[0]),
                           x25519.X25519PrivateKey.from_private_bytes(seal[1]))

  @classmethod
  def new(cls, *, seals: bool = False) -> 'Identity':
    """Draws keys."""
    return cls(ed25519.Ed25519PrivateKey.generate().private_bytes_raw(), (
        mlkem.MLKEM768PrivateKey.generate().private_bytes_raw(),
        x25519.X25519PrivateKey.generate().private_bytes_raw()) if seals else None)

  @functools.cached_property
  def public(self) -> Public:
    parts = [key.public_key().public_bytes_raw() for key in self._seal or ()]
    return Public(self._sign.public_key().public_bytes_raw(), b''.join(parts))

  def sign(self, context: str, content: bytes) -> str:
    """A signature in hexadecimal, of a content in a context."""
    return self._sign.sign(_signed(context, content)).hex()

  def opened(self, sealed: bytes, info: bytes) -> bytes | None:
    """The content of a seal; None if it is not one, for another key or `info`."""
    try:
      return _SUITE.decrypt(sealed, hpke.MLKEM768X25519PrivateKey(*self._seal), info)
    except (exceptions.InvalidTag, ValueError):
      return None

  def write(self, path: pathlib.Path) -> None:
    """Writes the keys into a new file for its owner alone."""
    if path.exists():
      raise ValueError(f'{path} exists: keys are not overwritten')
    sign, seal = self._raw
    files.write_json(path, {'sign': sign.hex(), 'seal': [x.hex() for x in seal or ()]})

  @classmethod
  def read(cls, path: pathlib.Path) -> 'Identity':
    """Reads the keys of a file; ValueError if it is damaged, or others may read it."""
    check_mode(path)
    value = files.read_json(path)
    try:
      return cls(bytes.fromhex(value['sign']),
                 tuple(map(bytes.fromhex, value['seal'])) or None)
    except (KeyError, TypeError, ValueError):
      raise ValueError(f'{path} is damaged: it has no keys') from None


def check_mode(path: pathlib.Path) -> None:
  """Raises ValueError if others than its owner may read a file."""
  if path.stat().st_mode & 0o077:
    raise ValueError(f'{path} must be for its owner alone (mode 0600), found '
                     f'{path.stat().st_mode & 0o777:04o}')


def _signed(context: str, content: bytes) -> bytes:
  return _PREFIX + context.encode() + b'\0' + content


@dataclasses.dataclass(frozen=True)
class Roster:
  """Parties of a federation: keys of leader, helper and clients by id."""

  leader: Public
  helper: Public
  clients: Mapping[str, Public]

  def __post_init__(self):
    every = [self.leader.sign, self.helper.sign, *(c.sign for c in self.clients.values())]
    if len(set(every)) != len(every):
      raise ValueError('roster must have a key of its own for each party')
    if not self.helper.seal:
      raise ValueError('the helper of a roster must have a key for seals, found none')

  def to_json(self) -> dict[str, Any]:
    return {'leader': self.leader.to_json(), 'helper': self.helper.to_json(),
            'clients': {name: keys.to_json() for name, keys in self.clients.items()}}

  @classmethod
  def from_json(cls, value: Mapping[str, Any]) -> 'Roster':
    """Parses a roster; ValueError for any other value."""
    messages.check_fields(value, {'leader': dict, 'helper': dict, 'clients': dict})
    return cls(Public.from_json(value['leader']), Public.from_json(value['helper']),
               {name: Public.from_json(keys) for name, keys in value['clients'].items()})

  def without(self, *clients: str) -> 'Roster':
    """The roster after these clients were revoked."""
    return dataclasses.replace(self, clients={
        name: keys for name, keys in self.clients.items() if name not in clients})
