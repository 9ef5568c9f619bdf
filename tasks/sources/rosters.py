"""Rosters: SQLite files without the examples of the clients that train.

A driver whose workers have the complete file opens a roster under the same path. It has
the training clients' ids, the element spec, all of the other splits, and the SHA-256 of
the complete file, by which workers prove that they have it. Checksums of the other
splits' examples are those of the complete file, so its damage stays damage.
"""

import contextlib
import os
import pathlib
import sqlite3

from tasks.sources import checksums, sqlite

# Numbers of examples and checksums are private, too, and nobody needs them.
_COPY = f"""
PRAGMA main.journal_mode = OFF;
PRAGMA main.synchronous = OFF;
{sqlite.TABLES}
CREATE TABLE element_spec AS SELECT * FROM complete.element_spec;
CREATE TABLE roster (split_name TEXT NOT NULL, sha256 TEXT NOT NULL);
INSERT INTO examples SELECT split_name, client_id, serialized_example_proto
    FROM complete.examples WHERE split_name != {{0}} ORDER BY rowid;
INSERT INTO client_metadata
    SELECT client_id, split_name, iif(split_name = {{0}}, 0, num_examples), '',
        iif(split_name = {{0}}, 0, checksum)
    FROM complete.client_metadata ORDER BY rowid;
INSERT INTO roster VALUES ({{0}}, {{1}});
{sqlite.INDICES}"""


def write(data_path: str, output: str, split_name: str | None = None) -> int:
  """Writes a roster of a file that prepare_data wrote.

  Args:
    data_path: The complete file.
    output: The file to write, complete or absent.
    split_name: The split whose examples stay behind; None for 'train', or the only one.

  Returns the number of clients in that split.

  Raises ValueError if the complete file can't be read, or prepare_data did not write
  it, or the output exists; OSError if the output can't be written.
  """
  if os.path.exists(output):
    raise ValueError(f'output={output} exists already')
  names = sqlite.split_names(data_path)
  split_name = split_name or (names[0] if len(names) == 1 else 'train')
  source = sqlite.SqliteSource(data_path, split_name)
  if source.is_roster or not source.is_prepared:
    raise ValueError(f'data_path={data_path} must be a file that prepare_data wrote')
  for other in set(names) - {split_name}:
    sqlite.SqliteSource(data_path, other)  # Its clients must have their checksum.
  sha256, path = source.sha256, pathlib.Path(output)
  try:
    with sqlite.replacing(path) as partial:
      with contextlib.closing(sqlite3.connect(partial, uri=True)) as connection:
        connection.execute('ATTACH ? AS complete', [
            f'{pathlib.Path(data_path).resolve().as_uri()}?mode=ro'])
        quoted = [connection.execute('SELECT quote(?)', [text]).fetchone()[0]
                  for text in (split_name, sha256)]
        connection.executescript(_COPY.format(*quoted))
        checksums.seal(connection)
        connection.commit()
      if source.sha256 != sha256:
        raise ValueError(f'{data_path} has changed while it was read')
  except sqlite3.Error as error:
    if getattr(error, 'sqlite_errorcode', 0) & 0xff == sqlite3.SQLITE_CORRUPT:
      raise sqlite.damaged(data_path, error, sqlite.REMEDY) from error
    raise OSError(f'{output} cannot be written: {error}') from error
  return len(source.client_ids)
