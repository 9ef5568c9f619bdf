"""The flags of the scripts that run experiments and fill tables with them."""

import os

from absl import flags


def define(output_dir: str, document: str, picture: str, of: str) -> None:
  """Defines the flags, once in a process.

  Args:
    output_dir: Folder of the runs by default.
    document: The page of the tables.
    picture: A file of the repository, the figure.
    of: What the figure shows.
  """
  flags.DEFINE_string(
      'data_dir', os.environ.get('DATA_DIR'), 'Folder of the data files.')
  flags.DEFINE_string(
      'output_dir', output_dir, 'Folder of the runs and of results.jsonl.')
  flags.DEFINE_string(
      'document', document, 'Page of the tables; empty for none.')
  flags.DEFINE_string(
      'picture', picture, f'File of the figure of {of}; empty for none.')
  flags.DEFINE_list('only', [], 'Only experiments whose names start so.')
  flags.DEFINE_bool('list', False, 'Print the commands and run nothing.')
  # None or empty, as DATA_DIR is where it is not set.
  flags.register_validator(
      'data_dir', bool, message='must name the folder of the data files')
