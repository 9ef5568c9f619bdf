"""The single list of tasks.

A task's module is imported when the task is built, so that listing the names,
as --help does, costs no TensorFlow import.
"""

from typing import Any, Callable, Mapping

from tasks import task


def _emnist(**options: Any) -> task.Task:
  from tasks import emnist  # pylint: disable=g-import-not-at-top
  return emnist.build(**options)


_BUILDERS: Mapping[str, Callable[..., task.Task]] = {'emnist': _emnist}

TASKS = tuple(sorted(_BUILDERS))

# What flags offer as choices, without importing the tasks.
MODELS = {'emnist': ('cnn_1m', 'cnn_small')}
DATA_SOURCES = {'emnist': ('embedded', 'npz', 'official')}

# The options of each task. An option that is None counts as not given.
OPTIONS = {
    'emnist': ('model', 'data_source', 'data_path', 'cache_dir', 'only_digits',
               'num_clients', 'dirichlet_alpha', 'data_seed'),
}


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
  if name not in _BUILDERS:
    raise ValueError(f'task must be one of {", ".join(TASKS)}, found {name!r}')
  given = {key: value for key, value in options.items() if value is not None}
  unknown = sorted(set(given) - set(OPTIONS[name]))
  if unknown:
    raise ValueError(
        f'task {name} has no option {", ".join(unknown)}; its options are '
        f'{", ".join(OPTIONS[name])}')
  return _BUILDERS[name](**given)
