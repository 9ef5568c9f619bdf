"""NumPy .npz files with an array that names the client of each example."""

import os
from typing import Sequence

import numpy as np

from tasks.sources import columns
from tasks.sources import npz_file
from tasks.sources import records
from tasks.sources import arrays as sources

_PARTS = ('train', 'test')


def open_file(
    path: str | os.PathLike[str], *, client_field: str,
    fields: Sequence[records.Field] | None
) -> tuple[sources.ArraysByClient, sources.ArraysByClient | None]:
  """Reads a file into memory.

  The array of a field F is F_train, and F_test for a test part; or, in a file
  without parts, F.

  Args:
    path: The file.
    client_field: F of the clients, integers or texts.
    fields: What to read; None reads all that have a value per example.

  Returns:
    The training population, and the test part or None.

  Raises:
    ValueError: If the file is missing, damaged or lacks an array, or an array is
      malformed. The message names the file and the array.
  """
  there = npz_file.names(path)
  suffixes = {'train': '_train', 'test': '_test'}
  if f'{client_field}_train' not in there and client_field in there:
    suffixes = {'train': ''}
  found = {}
  for part, suffix in suffixes.items():
    if part == 'test' and f'{client_field}_test' not in there:
      continue
    wanted = fields
    if wanted is None:
      names = (name for name in there if name.endswith(suffix))
      wanted = [records.Field(name=name.removesuffix(suffix)) for name in names]
    arrays = npz_file.read(
        path, [f'{name}{suffix}' for name in
               {client_field, *(field.column for field in wanted)}])
    try:
      found[part] = _source(arrays, suffix, client_field, wanted,
                            is_chosen=fields is not None)
    except ValueError as error:
      raise ValueError(f'{path}: {error}') from error
  return found['train'], found.get('test')


def _source(arrays: dict[str, np.ndarray], suffix: str, client_field: str,
            fields: Sequence[records.Field], *,
            is_chosen: bool) -> sources.ArraysByClient:
  clients = arrays.get(client_field + suffix)
  if clients is None:
    raise ValueError(f'there is no array {client_field + suffix!r} of the clients')
  examples = {}
  for field in fields:
    name = field.column + suffix
    array = arrays.get(name)
    if array is None:
      raise ValueError(f'there is no array {name!r}')
    if field.column == client_field and not is_chosen:
      continue
    if not is_chosen and array.shape[:1] != clients.shape:
      continue  # Names of classes and the like.
    examples[field.name] = columns.from_array(field, array)
  if not examples:
    raise ValueError(f'no array has as many rows as {client_field + suffix!r}')
  return sources.ArraysByClient(examples, clients)
