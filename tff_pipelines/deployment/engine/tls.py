"""Certificates of the connections, each its party's own, which others pin.

A certificate is as good as the signature of its party under it: `Endpoint.check`. No
authority is trusted, so none can let anyone in.
"""

from collections.abc import Mapping
import dataclasses
import datetime
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tff_pipelines.deployment import identities, messages

_LIFETIME = datetime.timedelta(days=3 * 365)


@dataclasses.dataclass(frozen=True)
class Endpoint:
  """A party's role, certificate (PEM) and address, host:port or '' of clients.

  Its signature is of them and of its public keys: a key for seals is no one else's.
  """

  name: str
  role: str
  certificate: str
  address: str
  signature: str

  @classmethod
  def signed(cls, name: str, role: str, certificate: bytes, address: str,
             identity: identities.Identity) -> 'Endpoint':
    """An endpoint with its party's signature."""
    unsigned = cls(name, role, certificate.decode('ascii'), address, '')
    return dataclasses.replace(unsigned, signature=identity.sign(
        'endpoint', unsigned._content(identity.public)))

  def _content(self, keys: identities.Public) -> bytes:
    return messages.canonical([
        self.name, self.role, self.certificate, self.address, keys.to_json()])

  @classmethod
  def from_json(cls, value: Mapping[str, Any]) -> 'Endpoint':
    """Parses an endpoint; MessageError for any other value."""
    messages.check_fields(value, {field.name: str for field in dataclasses.fields(cls)})
    return cls(**value)

  def check(self, keys: identities.Public) -> None:
    """Raises MessageError unless a party with these keys signed it."""
    if not keys.verifies('endpoint', self._content(keys), messages.unhexed(
        self.signature, 'signature', 64)):
      raise messages.MessageError(f'the certificate of {self.name!r} is not signed by it')


def new(name: str) -> tuple[bytes, bytes]:
  """A private key and its certificate, PEM, for connections of a party."""
  key = ec.generate_private_key(ec.SECP256R1())
  subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
  now = datetime.datetime.now(datetime.timezone.utc)
  certificate = (
      x509.CertificateBuilder().subject_name(subject).issuer_name(subject)
      .public_key(key.public_key()).serial_number(x509.random_serial_number())
      .not_valid_before(now - datetime.timedelta(hours=1))
      .not_valid_after(now + _LIFETIME)
      .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), False)
      .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
      .sign(key, hashes.SHA256()))
  return (key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                            serialization.NoEncryption()),
          certificate.public_bytes(serialization.Encoding.PEM))


# Name that every certificate is for: parties are told apart by the certificate itself.
SERVER_NAME = 'tff-pipelines'
