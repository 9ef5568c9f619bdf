"""Messages of the parties: bytes of a known kind, version and size, strictly read.

A message is four bytes that name the format, the length of its header (uint32, big
endian), the header, and a payload. The header is canonical JSON, so that there is one
text of it, of which signatures and digests are.
"""

from collections.abc import Mapping
import dataclasses
import hashlib
import json
from typing import Any

_FORMAT = b'TFP1'
_MOST_HEADER = 2**22

# Kind -> names and types of its fields. Digests, keys and signatures are hexadecimal.
KINDS: Mapping[str, Mapping[str, type]] = {
    'round': {'agreement': str, 'round': int, 'cohort_size': int, 'model': str,
              'signature': str},
    'upload': {'round': str, 'client': str, 'sealed': str, 'share': str,
               'signature': str},
    'open': {'round': dict, 'uploads': list, 'signature': str},
    'opened': {'request': str, 'vector': str, 'signature': str},
    'refused': {'reason': str, 'clients': list}}


class MessageError(ValueError):
  """A message that is refused; the text says which part of it, and why."""


@dataclasses.dataclass(frozen=True)
class Message:
  """A message: its kind, one of KINDS, fields and payload."""

  kind: str
  fields: Mapping[str, Any]
  payload: bytes = b''

  def to_bytes(self) -> bytes:
    header = canonical({'kind': self.kind, **self.fields})
    return b''.join((_FORMAT, len(header).to_bytes(4, 'big'), header, self.payload))


def canonical(value: Any) -> bytes:
  """The one text of a JSON value."""
  return json.dumps(value, sort_keys=True, separators=(',', ':'), allow_nan=False,
                    ensure_ascii=True).encode('ascii')


def digest(content: bytes | Mapping[str, Any]) -> str:
  """SHA-256 in hexadecimal, of bytes or of canonical JSON."""
  return hashlib.sha256(
      content if isinstance(content, bytes) else canonical(content)).hexdigest()


def read(content: bytes, *kinds: str, most_payload: int = 0) -> Message:
  """Reads a message; MessageError unless it is of these kinds, whole and canonical.

  `most_payload` is the largest number of bytes of its payload.
  """
  if content[:4] != _FORMAT or len(content) < 8:
    raise MessageError(f'message must begin with {_FORMAT!r}, found {content[:4]!r}')
  length = int.from_bytes(content[4:8], 'big')
  if length > min(_MOST_HEADER, len(content) - 8):
    raise MessageError(f'header must have at most {_MOST_HEADER} bytes and be whole, '
                       f'found {length} of {len(content) - 8} bytes')
  header, payload = content[8:8 + length], content[8 + length:]
  if len(payload) > most_payload:
    raise MessageError(f'payload must have at most {most_payload} bytes, found '
                       f'{len(payload)}')
  try:
    fields = json.loads(header)
    is_canonical = isinstance(fields, dict) and canonical(fields) == header
  except (ValueError, RecursionError):
    is_canonical = False
  if not is_canonical:
    raise MessageError('header must be canonical JSON')
  kind = fields.pop('kind', None)
  if kind not in kinds:
    raise MessageError(f'kind must be one of {", ".join(kinds)}, found {kind!r}')
  check_fields(fields, KINDS[kind])
  return Message(kind, fields, payload)


def check_fields(fields: Mapping[str, Any], types: Mapping[str, type]) -> None:
  """Raises MessageError unless fields have these names and types."""
  if not isinstance(fields, dict) or fields.keys() != types.keys():
    raise MessageError(f'fields must be {sorted(types)}, found '
                       f'{sorted(fields) if isinstance(fields, dict) else fields!r}')
  for name, kind in types.items():
    if type(fields[name]) is not kind:
      raise MessageError(f'{name} must be of type {kind.__name__}, found '
                         f'{type(fields[name]).__name__}')


def unhexed(text: str, name: str, length: int | None = None) -> bytes:
  """The bytes of a hexadecimal field; MessageError for another text or length."""
  try:
    content = bytes.fromhex(text) if text == text.lower() and text.isalnum() else None
  except ValueError:
    content = None
  if content is None or length not in (None, len(content)):
    raise MessageError(f'{name} must be hexadecimal' + (
        '' if length is None else f', of {length} bytes'))
  return content
