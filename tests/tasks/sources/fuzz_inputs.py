"""Inputs of a format, each from a seed and its number."""

import dataclasses
import functools
import gzip
import io
import os
import pathlib
import random
from typing import Any, Mapping
import warnings

import numpy as np
from PIL import Image

from tests.tasks.sources import fuzz_damage, fuzz_files, populations

FORMATS = ('csv', 'folder', 'jsonl', 'leaf', 'npz', 'parquet')

_SUFFIXES = ('.jsonl', '.jsonl.gz', '.csv', '.csv.gz', '.npz', '.txt', '.png', '.jpg',
             '.JPEG', '.bmp', '.dat', '', '.gz', '.png.gz')
_EPS = (b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 5\n%%EndComments\n'
        b'0 0 moveto\nshowpage\n%%EOF\n')


@functools.cache
def _images() -> tuple[bytes, ...]:
  """Small images of many kinds."""
  result = [_EPS]
  gray = Image.fromarray(np.arange(20, dtype=np.uint8).reshape(4, 5))
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    for kind, modes in (
        ('PNG', ('1', 'L', 'LA', 'P', 'RGB', 'RGBA', 'I', 'I;16')),
        ('JPEG', ('L', 'RGB', 'CMYK')), ('BMP', ('1', 'L', 'P', 'RGB')),
        ('GIF', ('L', 'P')), ('TIFF', ('L', 'F')), ('PPM', ('RGB',)),
        ('ICO', ('RGBA',)), ('PCX', ('L',)), ('SGI', ('RGB',)), ('TGA', ('RGB',)),
        ('DDS', ('RGB',)), ('WEBP', ('RGB',)), ('JPEG2000', ('RGB',)),
        ('ICNS', ('RGBA',)), ('IM', ('L',))):
      for mode in modes:
        file = io.BytesIO()
        try:
          gray.convert(mode).save(file, kind)
        except (ValueError, OSError, KeyError):  # Not built with it.
          continue
        result.append(file.getvalue())
  return tuple(result)


def _file_of(rng: random.Random, suffix: str) -> bytes:
  """Of a kind that a folder may have, with damage or without."""
  suffix = suffix.lower().removesuffix('.gz')
  other = b''
  if suffix in ('.png', '.jpg', '.jpeg', '.bmp'):
    content, other = rng.sample(_images(), 2)
  elif suffix == '.npz':
    valid = fuzz_files.small(rng, 'npz')
    if rng.random() < 0.003:
      return fuzz_files.zeros(2**23)
    content = fuzz_files.odd_npz(rng, valid, '') if rng.random() < 0.5 else (
        fuzz_files.zipped(rng, [
            (name.replace('_train', ''), content)
            for name, content in fuzz_files.archived(valid.content)
            if not name.startswith('client')]))
  elif suffix in ('.jsonl', '.csv'):
    valid = fuzz_files.small(rng, suffix[1:])
    content = valid.content if rng.random() < 0.3 else (
        fuzz_files.ODD[suffix[1:]](rng, valid))
    other = fuzz_files.small(rng, suffix[1:]).content
  else:
    content = rng.choice((b'', b'x', '\u20ac'.encode(), b'\xff', fuzz_damage.token(rng)))
  if rng.random() < 0.4:
    content = fuzz_damage.damaged(rng, content, other or content)
  return content


# Path -> the content of a file, or 'link TARGET', 'fifo', 'folder'.
_Files = dict[str, bytes | str]


def _odd_folder(rng: random.Random, valid: fuzz_files.Valid) -> _Files:
  files: _Files = dict(valid.files)
  clients = sorted({path.split('/')[1] for path in files})
  if rng.random() < 0.3:  # Files of one kind only.
    files.clear()
  for _ in range(rng.choice((1, 1, 2, 4))):
    path = rng.choice([*files, 'clients/a/1.jsonl'])
    client = rng.choice((*clients, *clients, 'new', '\udcff', 'x' * 250, 'a\nb', '.no'))
    parent = f'clients/{client}/' + rng.choice((
        '', '', '3/', 'cat/', '\u0663/', '.h/', 'a/b/', '\udcfe/', '9' * 20 + '/'))
    suffix = rng.choice(_SUFFIXES)
    name = rng.choice(('1', '2', '.hidden', 'x\ny', '\udcff', 'x' * 240, '\u20ac'))
    action = rng.random()
    if action < 0.4:
      files[parent + name + suffix] = _file_of(rng, suffix)
    elif action < 0.6:
      other = fuzz_files.small(rng, 'jsonl').content
      content = files.get(path)
      files[path] = fuzz_damage.damaged(
          rng, content if isinstance(content, bytes) else other, other)
    elif action < 0.7:
      files[path] = _file_of(rng, pathlib.PurePath(path).suffix)
    elif action < 0.8:
      files[path + rng.choice(_SUFFIXES)] = files.pop(path, b'')
    elif action < 0.9:
      files[parent + name + rng.choice(('', '.jsonl', '.png'))] = rng.choice(
          ('folder', 'fifo', 'link .', 'link nowhere', 'link ..', 'link 1.jsonl'))
    elif action < 0.93:
      files['clients/' + name + suffix] = b'x'
    else:
      files.pop(path, None)
  return files


def _write(path: str, content: bytes | str) -> None:
  """Writes a file, unless another file is in its way."""
  try:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if isinstance(content, bytes):
      with open(path, 'wb') as file:
        file.write(content)
    elif content == 'fifo':
      os.mkfifo(path)
    elif content == 'folder':
      os.mkdir(path)
    else:
      os.symlink(content.removeprefix('link '), path)
  except OSError:
    pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class Input:
  """Files to convert, and the options.

  Attributes:
    files: Path -> content.
    options: Arguments of open_source.readers.
    skip: Whether to skip bad clients.
    for_store: See store.write.
    expected: The expected records of the training part; None if they are open.
  """

  files: Mapping[str, bytes | str]
  options: Mapping[str, Any]
  skip: bool
  for_store: bool
  expected: Mapping[str, list[dict]] | None

  def write(self) -> None:
    """Writes the files, below the working directory."""
    for path, content in self.files.items():
      _write(path, content)


def _compressed(rng: random.Random, content: bytes, share: float) -> bytes:
  if rng.random() >= share:
    return content
  half = rng.randint(0, len(content))
  parts = [content] if rng.random() < 0.7 else [content[:half], content[half:]]
  return b''.join(gzip.compress(part, rng.choice((0, 1, 6)), mtime=0) for part in parts)


def _content(rng: random.Random, format_: str, valid: fuzz_files.Valid) -> bytes:
  """One file that is most probably damaged."""
  other = fuzz_files.small(rng, format_).content
  kind, is_text = rng.random(), format_ not in ('npz', 'parquet')
  if kind < 0.0007:
    return _compressed(rng, fuzz_files.bomb(rng, format_), 0.5 * is_text)
  content = valid.content if kind < 0.35 or format_ not in fuzz_files.ODD else (
      fuzz_files.ODD[format_](rng, valid))
  if kind < 0.35 or kind > 0.75:
    content = fuzz_damage.damaged(rng, content, other)
  if not is_text:
    return content
  content = _compressed(rng, content, 0.3)
  if content[:2] == b'\x1f\x8b' and rng.random() < 0.3:
    content = fuzz_damage.damaged(rng, content, _compressed(rng, other, 1.0))
  return content


def build(format_: str, number: int, seed: int = 0) -> Input:
  """Builds the input of a number."""
  rng = random.Random(f'{seed} {format_} {number}')
  valid = fuzz_files.corpus(format_)[-1] if rng.random() < 0.003 else (
      fuzz_files.small(rng, format_))
  path = next(iter(valid.files))
  options: dict[str, Any] = dict(
      data_source=format_, fields=rng.choice((None, populations.FIELDS)),
      data_path='data/clients' if format_ == 'folder' else f'data/{path}')
  expected, files = None, dict(valid.files)
  if rng.random() < 0.1:
    expected = valid.population
    if format_ in populations.CELLS:  # Texts that look like numbers would be taken for those.
      options['fields'] = populations.FIELDS
    if format_ not in ('folder', 'npz', 'parquet'):
      files[path] = _compressed(rng, files[path], 0.3)
  elif format_ == 'folder':
    files = _odd_folder(rng, valid)
  else:
    files[path] = _content(rng, format_, valid)
    second = rng.random()
    if second < 0.2 and format_ != 'npz':
      other = fuzz_files.small(rng, format_)
      files['second'] = other.content if rng.random() < 0.5 else (
          _content(rng, format_, other))
      if second < 0.1:
        options['data_path'] += ',data/second'
      else:
        options['test_path'] = 'data/second'
  return Input(files={f'data/{name}': content for name, content in files.items()},
               options=options, skip=rng.random() < 0.5, for_store=rng.random() < 0.5,
               expected=expected)


def warm_up() -> None:
  """Builds the parts of inputs, which takes a while."""
  _images()
  for format_ in FORMATS:
    fuzz_files.corpus(format_)
