"""The public validation set, by which a run chooses among its models.

The models are released, so the choice costs no privacy as long as the set is public. A
part of the clients' own data is not offered: each use of it would be another release.
"""

from collections.abc import Mapping
import hashlib
import pathlib
import tempfile
from typing import Any

import numpy as np

from tasks import registry
from tasks.sources import open_source
from tasks.task import Examples, Task, VALIDATION


def examples(task: Task, path: str, options: Mapping[str, Any]) -> Examples:
  """Examples of public files, read as the task reads a test part.

  Raises ValueError for bad data, and for a source without files of a test part.
  """
  source = options.get('data_source', 'embedded')
  if source not in open_source.FORMATS or (
      'test_path' not in open_source.options(source)):
    raise ValueError('validation_path needs a data_source with files of a test part, '
                     f'found data_source={source}')
  open_source.check_public('validation_path', path, options)
  with tempfile.TemporaryDirectory() as folder:
    given = {**options, 'test_path': path, 'held_out_fraction': None}
    for option, name in registry.KEPT_FILES.items():
      if name in task.files and option in registry.OPTIONS[task.name]:
        kept = pathlib.Path(folder) / name
        kept.write_text(task.files[name], encoding='utf-8')
        given[option] = str(kept)
    sets = registry.build(task.name, **given).held_out
  if 'test_examples' in sets:
    raise ValueError(f'validation_path={path} must not have clients of the population')
  public, = sets.values()
  return public


def fingerprint(task: Task) -> str:
  """SHA-256 of the names, types and values of a task's validation examples."""
  digest = hashlib.sha256()
  for name, values in sorted(task.held_out[VALIDATION].items()):
    values = np.ascontiguousarray(values)
    digest.update(f'{name} {values.dtype} {values.shape}\0'.encode() + values.tobytes())
  return digest.hexdigest()
