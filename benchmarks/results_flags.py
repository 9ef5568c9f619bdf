"""The flags of the scripts that run experiments and fill tables with them."""

import os

from absl import flags


def define(output_dir: str, document: str, picture: str, of: str) -> None:
  """Defines them, once in a process.

  Args:
    output_dir: Where runs go by default.
    document: The page of the tables.
    picture: A file of the repository.
    of: What the picture shows.
  """
  flags.DEFINE_string(
      'data_dir', os.environ.get('DATA_DIR'), 'Folder of the data files.')
  flags.DEFINE_string(
      'output_dir', output_dir, 'Folder of the runs and of results.jsonl.')
  flags.DEFINE_string(
      'document', document, 'Where the tables go; empty for nowhere.')
  flags.DEFINE_string('picture', picture, f'Of {of}; empty for none.')
  flags.DEFINE_list('only', [], 'Only experiments whose names start so.')
  flags.DEFINE_bool('list', False, 'Print the commands and run nothing.')
  # None or empty, as DATA_DIR is where it is not set.
  flags.register_validator(
      'data_dir', bool, message='must name the folder of the data files')
