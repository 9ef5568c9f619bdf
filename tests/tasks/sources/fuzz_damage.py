"""Damage to bytes and to JSON values, as a random.Random decides."""

import random
import re
from typing import Any

_TOKENS = tuple(t if isinstance(t, bytes) else t.encode('utf-8') for t in (
    'NaN', '-Infinity', 'nan', 'inf', '1e999', '-1e999', '1e-999', '-0.0', '-0', '00',
    '007', '1_000', '0x10', '+5', '.5', '5.', '1e5', '1E+2', '9007199254740993',
    '9223372036854775807', '9223372036854775808', '-9223372036854775808',
    '-9223372036854775809', '18446744073709551615', '9' * 400, '9' * 5000,
    '0.' + '1' * 5000, '1e' + '9' * 30, '1' + '0' * 308 + '.0', '-', '--', '1 2',
    '1  2', '1 2 3', ' 1', '1 x', '1 nan', '\u0663', '1\u0662', '\u00b2', '\u00a0',
    '"', '""', "'", '\\', '\\u0000', '\\ud800', '\\udc00\\ud800', '\\ud83d\\ude00',
    '\\x', '\0', '\ufeff', b'\xff\xfe', b'\xc0\x80', b'\xed\xa0\x80',
    b'\xf4\x90\x80\x80', '\u2028', '\x85', '\x1c', '\x0b', '\r', '\r\n', '\n',
    '\n\n', ',', ',,', ';', '|', '"a|b"',
    '\t', ' ', '[', ']', '{', '}', '}{', ':', 'null', 'true', 'false', 'None', '[]',
    '{}', '[[]]', '[null]', '[1,"a"]', '["a","b"]', '[1,[2]]', '[true,2]', '[1.5,2]',
    '[[1,2],[3,4]]', '{"a":1}', '"client"', '"client":', '"client":"x",', '"":1,',
    '"text":"x",', '"users"', '"num_samples":[1],', '"user_data":{},', 'client,text\n',
    '"' + 'x' * 3000 + '"', '\u00e9' * 2000, '"' + '\\n' * 600 + '"', '[' * 50,
    '[' * 2000, '{"a":' * 2000, "'; DROP TABLE examples; --", '../', '#', '%s', '{0}',
    '\\N', 'PAR1', b'PK\x03\x04', b'PK\x01\x02', b'\x1f\x8b', b'\x93NUMPY',
    b'\x89PNG\r\n\x1a\n'))
_PIECE = re.compile(rb'"[^"\n]*"|[-+.0-9eE]+|[a-z_A-Z]+|[^\w\s]|\s+')
_BOUNDS = tuple(
    value.to_bytes(size, 'little') for size in (1, 2, 4, 8)
    for value in (0, 1, 2**(8 * size - 1) - 1, 2**(8 * size - 1), 2**(8 * size) - 1,
                  2**(8 * size) - 2, 2**(4 * size)))


def token(rng: random.Random) -> bytes:
  """Something that a reader may take for something else."""
  if rng.random() < 0.01:
    return rng.choice((b'[', b'{"a":', b'"', b'9', b',', b'\n', b'\0')) * 50_000
  return rng.choice(_TOKENS)


def _slice(rng: random.Random, content: bytes) -> tuple[int, int]:
  """Two positions; often near the end, where archives and tables have their index."""
  start = rng.randint(0, len(content))
  if rng.random() < 0.3:
    start = rng.randint(len(content) * 2 // 3, len(content))
  return start, min(len(content), start + rng.choice((1, 2, 4, 8, 30, 200, 5000)))


def _flip(rng, content, *_):
  result = bytearray(content or b'\0')
  for _ in range(rng.choice((1, 1, 2, 8))):
    result[min(_slice(rng, content)[0], len(result) - 1)] ^= 1 << rng.randrange(8)
  return bytes(result)


def _set(rng, content, *_):
  start, _ = _slice(rng, content)
  value = rng.choice(_BOUNDS) if rng.random() < 0.7 else bytes([rng.randrange(256)])
  return content[:start] + value + content[start + len(value):]


def _truncate(rng, content, *_):
  start, end = _slice(rng, content)
  return content[:start] if rng.random() < 0.7 else content[end:]


def _delete(rng, content, *_):
  start, end = _slice(rng, content)
  return content[:start] + content[end:]


def _duplicate(rng, content, *_):
  start, end = _slice(rng, content)
  return content[:end] + content[start:end] * rng.choice((1, 1, 2, 20)) + content[end:]


def _swap(rng, content, *_):
  a, b, c = sorted(rng.randint(0, len(content)) for _ in range(3))
  return content[:a] + content[b:c] + content[a:b] + content[c:]


def _splice(rng, content, other):
  start, end = _slice(rng, other)
  at, until = _slice(rng, content)
  if rng.random() < 0.3:
    return content[:at] + other[start:]
  return content[:at] + other[start:end] + content[until:]


def _append(rng, content, other):
  return rng.choice((content + other, other + content, content + b'\n' + other))


def _insert(rng, content, *_):
  start, _ = _slice(rng, content)
  return content[:start] + token(rng) + content[start:]


def _replace(rng, content, other):
  """A number, a word, a text or a sign becomes another."""
  start, _ = _slice(rng, content)
  piece = _PIECE.search(content, max(0, start - 1)) or _PIECE.search(content)
  if piece is None:
    return _insert(rng, content, other)
  return content[:piece.start()] + token(rng) + content[piece.end():]


def _move(rng, content, *_):
  """Swaps, repeats or deletes lines or fields."""
  sign = rng.choice((b'\n', b'\n', b',', b', '))
  parts = content.split(sign)
  for _ in range(rng.choice((1, 1, 3))):
    part = rng.choice(parts) if parts else b''
    action = rng.randrange(3)
    if action and parts:
      parts.remove(part)
    if action < 2:
      parts.insert(rng.randint(0, len(parts)), part)
  return sign.join(parts)


_DAMAGES = (_flip, _flip, _set, _set, _truncate, _delete, _duplicate, _swap, _splice,
            _append, _insert, _insert, _replace, _replace, _replace, _move)


def damaged(rng: random.Random, content: bytes, other: bytes) -> bytes:
  """Some bytes with damage, maybe with a part of the others."""
  for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
    content = rng.choice(_DAMAGES)(rng, content, other)
  return content


_VALUES = (
    None, True, False, 0, 1, -1, 5, 2**53 + 1, 2**63 - 1, -2**63, 2**63, -2**63 - 1,
    2**64, 10**400, 10**4299, 0.0, -0.0, 1.5, 1e308, 5e-324, float('nan'), float('inf'),
    -float('inf'), '', 'x', '7', 'a|b', '\0', 'a\0b', '\ud800', 'x\udfff', '\u2028\r\n',
    'x' * 3000, '\u20ac' * 400, ['y' * 900, 'z|' * 300], [], [[]], [[], []], [1, 2],
    [3, 4, 5], [1.5, 2.5], [1, 2.5], [1, 2**63], [2**64, 1.5], [True, False], [1, True],
    [None], [1, None], ['a'], ['a', 'b'], ['a', 1], ['a|b', 'c'], [[1, 2], [3, 4]],
    [[1], [2, 3]], [[[[1]]]], [['a', 'b']], [1e308, -1e308], [float('nan')], {}, [{}],
    {'a': 1}, {'a': {'b': []}}, [10**400], [10**400, 0.5], [1, [2]], [[1], 2],
    ['\ud800', 'a'], ['', ''], list(range(300)), [[0.5] * 40] * 40)
NAMES = ('client', 'text', 'number', 'real', 'vector', 'extra', '', 'a b', '\0',
         '\ud800', 'n' * 1500, '\u20ac', '../x', "'; --", 'users', 'x\ny', '{', '7')


def odd_json(rng: random.Random, value: Any) -> Any:
  """A JSON value with one part replaced, renamed, repeated or left out."""
  if isinstance(value, dict) and value and rng.random() < 0.93:
    name = rng.choice(list(value))
    action = rng.random()
    if action < 0.8:
      return {**value, name: odd_json(rng, value[name])}
    changed = {key: item for key, item in value.items() if key != name}
    if action < 0.9:
      changed[rng.choice(NAMES)] = value[name]
    elif action < 0.95:
      changed = {**value, rng.choice(NAMES): rng.choice(_VALUES)}
    return changed
  if isinstance(value, list) and value and rng.random() < 0.85:
    at = rng.randrange(len(value))
    return rng.choice((
        [*value[:at], odd_json(rng, value[at]), *value[at + 1:]],
        [*value[:at], odd_json(rng, value[at]), *value[at + 1:]],
        [*value[:at], value[at], *value[at:]], [*value[:at], *value[at + 1:]]))
  return rng.choice(_VALUES)
