"""The single list of tasks.

A task's module is imported when the task is built, so that listing the names,
as --help does, costs no TensorFlow import.
"""

from typing import Any, Callable, Mapping

import numpy as np

from tasks.sources import open_source
from tasks.sources import records
from tasks import task


def _emnist(**options: Any) -> task.Task:
  from tasks.emnist import task as emnist  # pylint: disable=g-import-not-at-top
  return emnist.build(**options)


def _raw_emnist(**options: Any) -> tuple[records.RawData, np.ndarray | None]:
  from tasks.emnist import data as emnist_data  # pylint: disable=g-import-not-at-top
  return emnist_data.open_raw(**options)


def _shakespeare(**options: Any) -> task.Task:
  from tasks.text import shakespeare  # pylint: disable=g-import-not-at-top
  return shakespeare.build(**options)


def _stackoverflow_word(**options: Any) -> task.Task:
  from tasks.text import stackoverflow_word  # pylint: disable=g-import-not-at-top
  return stackoverflow_word.build(**options)


def _stackoverflow_tag(**options: Any) -> task.Task:
  from tasks.text import stackoverflow_tag  # pylint: disable=g-import-not-at-top
  return stackoverflow_tag.build(**options)


def _raw_texts(*, data_source: str = 'embedded', **options: Any
               ) -> tuple[records.RawData, None]:
  from tasks.text import data as text_data  # pylint: disable=g-import-not-at-top
  if data_source != 'embedded':
    raise ValueError('with a task for texts, data_source must be embedded: files are '
                     f'copied as they are, without a task; found {data_source!r}')
  unused = sorted(set(options) - {'num_clients'})
  if unused:
    raise ValueError(f'the copy of embedded texts does not use {", ".join(unused)}')
  return text_data.open_embedded(**options), None


_BUILDERS: Mapping[str, Callable[..., task.Task]] = {
    'emnist': _emnist, 'shakespeare': _shakespeare,
    'stackoverflow_tag': _stackoverflow_tag,
    'stackoverflow_word': _stackoverflow_word}

# What prepare_data writes of a task's data.
_RAW: Mapping[str, Callable[..., tuple[records.RawData, np.ndarray | None]]] = {
    'emnist': _raw_emnist, 'shakespeare': _raw_texts, 'stackoverflow_tag': _raw_texts,
    'stackoverflow_word': _raw_texts}

TASKS = tuple(sorted(_BUILDERS))

# What flags offer as choices, without importing the tasks.
MODELS = {
    'emnist': ('cnn_1m', 'cnn_small'),
    'shakespeare': ('lstm_256', 'lstm_small'),
    'stackoverflow_tag': ('logistic', 'logistic_small'),
    'stackoverflow_word': ('lstm_670', 'lstm_small'),
}
_SOURCES = tuple(sorted({'embedded', 'official', *open_source.FORMATS}))
DATA_SOURCES = {name: _SOURCES for name in TASKS}

# Of all tasks that learn from texts.
_TEXT = ('model', 'data_source', *open_source.OPTIONS, 'cache_dir',
         'held_out_fraction', 'num_clients', 'text_field', 'max_examples_per_client',
         'max_test_examples')

# The options of each task. An option that is None counts as not given.
OPTIONS = {
    'emnist': ('model', 'data_source', *open_source.OPTIONS, 'cache_dir',
               'only_digits', 'image_field', 'label_field', 'dark_ink', 'num_classes',
               'held_out_fraction', 'partition', 'num_clients', 'dirichlet_alpha',
               'labels_per_client', 'size_exponent', 'data_seed'),
    'shakespeare': (*_TEXT, 'sequence_length'),
    'stackoverflow_tag': (*_TEXT, 'vocabulary', 'vocabulary_size', 'num_labels'),
    'stackoverflow_word': (*_TEXT, 'vocabulary', 'vocabulary_size', 'sequence_length'),
}

# Options that name a file of which a run keeps its own copy, which takes the place
# of the option when the run is resumed -> the name in task.Task.files.
KEPT_FILES = {'vocabulary': 'vocabulary.json'}


def build(name: str, **options: Any) -> task.Task:
  """Builds a task.

  Args:
    name: One of TASKS.
    **options: Some of OPTIONS[name]; None leaves an option to its default. An
      option that the chosen data source does not use is an error, never
      silently dropped.

  Returns:
    The task.

  Raises:
    ValueError: On an unknown task, option or choice, or bad data. The message
      is one line and names what is wrong.
  """
  given = _given(name, options)
  return _BUILDERS[name](**given)


def open_raw(name: str, **options: Any) -> tuple[records.RawData, np.ndarray | None]:
  """What prepare_data writes of a task's data, and label_counts of task.Task.

  Arguments and errors are those of `build`; `model` is none of them.
  """
  return _RAW[name](**_given(name, options))


def _given(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
  """The options that are given. Raises ValueError on an unknown task or option."""
  if name not in _BUILDERS:
    raise ValueError(f'task must be one of {", ".join(TASKS)}, found {name!r}')
  given = {key: value for key, value in options.items() if value is not None}
  unknown = sorted(set(given) - set(OPTIONS[name]))
  if unknown:
    raise ValueError(
        f'task {name} has no option {", ".join(unknown)}; its options are '
        f'{", ".join(OPTIONS[name])}')
  return given
