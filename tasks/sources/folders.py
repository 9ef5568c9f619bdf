"""A folder per client: the files in it are the client's examples."""

import os
import pathlib
from typing import Callable, Iterator, Mapping

import numpy as np

from tasks.sources import labelled
from tasks.sources import rows


def listed(path: rows.Path) -> dict[str, list[pathlib.Path]]:
  """The clients of a folder of folders, sorted, and the files of each."""
  path = pathlib.Path(path)
  if not path.is_dir():
    raise ValueError(f'{path} does not exist or is not a folder')
  with os.scandir(path) as entries:
    ids = sorted(entry.name for entry in entries
                 if entry.is_dir() and not entry.name.startswith('.'))
  if not ids:
    raise ValueError(f'{path} has no folder: each client must have its own')
  seen: dict[str, str] = {}
  for client in ids:
    try:
      client.encode('utf-8')
    except UnicodeEncodeError as error:
      raise ValueError(
          f'{path}: the name of the folder {client!r} is not UTF-8') from error
    other = seen.setdefault(os.path.realpath(path / client), client)
    if other != client:
      raise ValueError(f'{path}: {other!r} and {client!r} are one folder, by a link: '
                       'each client must have its own')
  return {client: _files(path / client) for client in ids}


def _files(client: pathlib.Path) -> list[pathlib.Path]:
  """All files below a client's folder, in the order of their paths."""
  files = []
  for parent, folders, names in os.walk(client):
    folders[:] = [name for name in folders if not name.startswith('.')]
    files += [pathlib.Path(parent) / name for name in names
              if not name.startswith('.')]
  return sorted(files)


def read(path: rows.Path, clients: Mapping[str, list[pathlib.Path]],
         progress: rows.Progress) -> Iterator[rows.Row]:
  """The rows of all clients of a folder of folders.

  Files are read in the order of their paths below the client's folder:
    .jsonl, .jsonl.gz   a record a line
    .csv, .csv.gz       a row a line, with a header
    .npz                arrays that share their first dimension
    .txt                one example with the one field 'text'
    .png, .jpg, .jpeg, .bmp   one example with the fields 'image', uint8 [height,
                        width] or [height, width, 3], and, if the file is in a folder
                        of its own below the client's, 'label', that folder's name
  Names with a dot in front are ignored.
  """
  for client, files in clients.items():
    folder, is_empty = pathlib.Path(path) / client, True
    try:
      for file in files:
        for row in _rows(file, folder, progress):
          is_empty = False
          yield row._replace(client=client)
      if is_empty:
        raise ValueError('there are no examples')
    except (ValueError, OSError) as error:
      yield rows.Row(os.fspath(folder), client, ValueError(error))


def _rows(path: pathlib.Path, client: pathlib.Path,
          progress: rows.Progress) -> Iterator[rows.Row]:
  if not path.is_file():  # Reading a pipe would not end.
    raise ValueError(f'{path} does not exist or is not a file')
  name = path.name.lower().removesuffix('.gz')
  for suffix, read_file in _READERS.items():
    if name.endswith(suffix):
      return read_file(path, client, progress)
  raise ValueError(f'{path} is of no known kind: {", ".join(_READERS)}')


def _arrays(path: pathlib.Path, _: pathlib.Path,
            progress: rows.Progress) -> Iterator[rows.Row]:
  progress(path.stat().st_size)
  arrays = labelled.arrays(path, labelled.array_names(path))
  try:
    for name, array in arrays.items():
      if not array.ndim:
        raise ValueError(
            f'field {name!r} must have one value per example, found a scalar')
    count = rows.common_length(arrays)
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error
  for row in range(count):
    yield rows.Row(f'{path}, row {row}', None,
                   {name: array[row] for name, array in arrays.items()})


def _text(path: pathlib.Path, _: pathlib.Path,
          progress: rows.Progress) -> Iterator[rows.Row]:
  with rows.opened(path, progress) as file:
    content = file.read(rows.MAX_BYTES + 1)
  if len(content) > rows.MAX_BYTES:
    raise ValueError(f'{path}: longer than {rows.MAX_BYTES // 2**20} MiB')
  try:
    yield rows.Row(os.fspath(path), None, {'text': rows.decoded(content)})
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error


def _image(path: pathlib.Path, client: pathlib.Path,
           progress: rows.Progress) -> Iterator[rows.Row]:
  # Not needed for other files.
  from PIL import Image  # pylint: disable=g-import-not-at-top
  progress(path.stat().st_size)
  try:
    # Despite its name, a file may be of a format that starts programs.
    with Image.open(path, formats=('PNG', 'JPEG', 'BMP')) as image:
      pixels = np.asarray(image.convert('L' if image.mode in ('1', 'L') else 'RGB'))
  # Damage shows as OSError, SyntaxError, ValueError and DecompressionBombError.
  except Exception as error:
    raise ValueError(f'{path} is no image that can be read: {error}') from error
  record = {'image': pixels}
  if path.parent != client:
    label = path.parent.name
    record['label'] = int(label) if label.isdecimal() else label
  yield rows.Row(os.fspath(path), None, record)


_READERS: Mapping[str, Callable[..., Iterator[rows.Row]]] = {
    '.jsonl': lambda path, client, progress: rows.jsonl([path], progress),
    '.csv': lambda path, client, progress: rows.csv([path], progress),
    '.npz': _arrays, '.txt': _text, '.png': _image, '.jpg': _image, '.jpeg': _image,
    '.bmp': _image}
