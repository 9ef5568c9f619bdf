"""Names of the files in a run's folder, and how files are written to it.

Without TensorFlow, for those who only read what runs have left.
"""

import os
import pathlib
import tempfile

CONFIGURATION = 'configuration.json'
LEDGER = 'ledger.jsonl'
SUMMARY = 'summary.json'
METRICS = 'metrics.csv'


def write_atomically(path: pathlib.Path, text: str) -> None:
  """Writes a file so that it is seen complete or not at all."""
  handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f'.{path.name}.')
  try:
    with os.fdopen(handle, 'w', encoding='utf-8') as file:
      file.write(text)
      file.flush()
      os.fsync(file.fileno())
    os.chmod(partial, 0o644)
    os.replace(partial, path)
  except BaseException:
    os.unlink(partial)
    raise
