"""The single list of tasks.

A task's module is imported when the task is built, so that listing the names,
as --help does, costs no TensorFlow import. A task of one's own has a name of the form
'module:function', or the one under which it was registered; docs/models.md.
"""

from collections.abc import Callable, Mapping
import importlib
from typing import Any

import numpy as np

from tasks import checks, custom, task
from tasks.sources import open_source, records

# Options of all tasks that learn from texts, of a list of words, of tasks of images.
_TEXT = ('held_out_fraction', 'num_clients', 'text_field', 'max_examples_per_client',
         'max_test_examples')
_WORDS = (*_TEXT, 'vocabulary', 'words_per_client', 'vocabulary_size')
_IMAGES = ('image_field', 'label_field', 'dark_ink', 'num_classes', 'class_names',
           'held_out_fraction', 'partition', 'num_clients', 'dirichlet_alpha',
           'labels_per_client', 'size_exponent', 'data_seed')
_RATES = ('clip', 'client_learning_rate', 'client_batch_size', 'server_learning_rate',
          'server_momentum')
# Task -> its module, models, _RATES where none are given, and options. Rates are those
# of the default model; they were found for cohorts of a hundred or two at epsilon 8.
_TASKS = {
    'emnist': ('tasks.emnist.task', ('cnn_1m', 'cnn_small'), (0.3, 0.2, 5, 0.7, 0.9),
               ('only_digits', *_IMAGES)),
    'images': ('tasks.images.task', ('cnn', 'cnn_small', 'mlp', 'softmax'),
               (0.3, 0.1, 10, 0.7, 0.9), _IMAGES),
    'shakespeare': ('tasks.text.shakespeare', ('lstm_256', 'lstm_small'),
                    (0.3, 2.0, 4, 1.0, 0.9), (*_TEXT, 'sequence_length')),
    'stackoverflow_tag': (
        'tasks.text.stackoverflow_tag', ('logistic', 'logistic_small'),
        (1.0, 0.5, 4, 1.0, 0.9), (*_WORDS, 'num_labels')),
    'stackoverflow_word': (
        'tasks.text.stackoverflow_word', ('lstm_670', 'lstm_small'),
        (0.3, 2.0, 4, 1.0, 0.9), (*_WORDS, 'sequence_length')),
    'tabular': ('tasks.tabular.task', ('linear', 'logistic', 'mlp'),
                (0.6, 0.6, 8, 1.0, 0.6),
                ('label_field', 'feature_fields', 'num_classes', 'class_names',
                 'held_out_fraction', 'num_clients', 'public_bounds', 'public_sample',
                 'statistics_epsilon', 'class_weights', 'missing')),
    'text_classification': (
        'tasks.text.classification', ('logistic', 'logistic_small'),
        (1.0, 0.5, 4, 1.0, 0.9), (*_WORDS, 'label_field', 'num_classes', 'class_names'))}
TASKS = tuple(_TASKS)
# The choices of flags, without importing the tasks.
MODELS = {name: models for name, (_, models, _, _) in _TASKS.items()}
DEFAULTS = {name: dict(zip(_RATES, rates)) for name, (_, _, rates, _) in _TASKS.items()}
# Options of any other task.
DEFAULTS[None] = DEFAULTS['emnist']
DATA_SOURCES = tuple(sorted({'embedded', 'official', *open_source.FORMATS}))
# The options of each task. An option that is None counts as not given.
OPTIONS = {name: ('model', 'data_source', *open_source.OPTIONS, *options)
           for name, (*_, options) in _TASKS.items()}

# Value of the option `vocabulary` for one of noised counts.
PRIVATE_COUNTS = 'private_counts'

# Option that names a file of which a run keeps its own copy, to be used instead when
# the run is resumed -> the name in task.Task.files.
KEPT_FILES = {'vocabulary': 'vocabulary.json', 'public_bounds': 'columns.json'}


# Tasks that were registered -> the function that builds them.
_REGISTERED: dict[str, Callable[..., task.Task]] = {}


def register(name: str, build_task: Callable[..., task.Task]) -> None:
  """Gives a task of one's own a new name, by which settings then know it.

  The keyword-only arguments of `build_task` that have names of settings of the data
  receive these where they are given. Raises ValueError if the name is taken.
  """
  if not isinstance(name, str) or not name.isidentifier():
    raise ValueError(f'name must be an identifier, found {name!r}')
  if name in TASKS or _REGISTERED.get(name, build_task) is not build_task:
    raise ValueError(f'name must be new: there is a task {name!r} already')
  _REGISTERED[name] = build_task


def is_own(name: str) -> bool:
  """Whether a name is that of a task that is none of TASKS. ValueError if of none."""
  if name in _REGISTERED or custom.is_name(name):
    return True
  if name not in TASKS:
    raise ValueError(f'task must be one of {", ".join((*TASKS, *_REGISTERED))}, or '
                     f'module:function, found {name!r}')
  return False


def source(name: str) -> dict[str, str] | None:
  """The source of a task of one's own, as `custom.source_of`; None for one of TASKS."""
  return custom.source_of(name, _function(name)) if is_own(name) else None


def _function(name: str) -> Callable[..., task.Task]:
  return _REGISTERED.get(name) or custom.find(name)


def build(name: str, **options: Any) -> task.Task:
  """Builds one of TASKS, a task that was registered, or that of 'module:function'.

  Options are some of OPTIONS[name], or of the function's arguments; None stands for the
  default. One that the chosen data source does not use is an error, never silently
  dropped.

  Raises ValueError on an unknown task, option or choice, or bad data: one line, which
  names what is wrong.
  """
  if is_own(name):
    known = frozenset().union(*OPTIONS.values())
    return custom.build(name, _function(name), options, known)
  module, given = _built_in(name, options)
  return module.build(**given)


def serving(name: str, inputs: task.Spec, weights: task.Weights,
            **options: Any) -> task.Serving:
  """The trained model of a task, built without its data where the task can do that.

  Raises ValueError as `build` does, if the task is built with its data.
  """
  if is_own(name):
    return build(name, **options).serving
  module, given = _built_in(name, options)
  return module.serving(inputs, weights, **given)


def open_raw(name: str, **options: Any) -> tuple[records.RawData, np.ndarray | None]:
  """The data of a task that prepare_data writes, and label_counts of task.Task.

  Arguments and errors are those of `build`; `model` is none of them.
  """
  module, given = _built_in(name, options)
  if hasattr(module, 'open_raw'):
    return module.open_raw(**given)
  if (source := given.pop('data_source', 'embedded')) != 'embedded':
    raise ValueError(f'data_source must be embedded with {name}, found {source!r}')
  return module.open_embedded(**checks.options(
      'the copy of embedded data', given, ['num_clients'])), None


def _built_in(name: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
  """A module of one of TASKS, and the options that are given. Raises ValueError."""
  checks.choice('task', name, TASKS)
  given = checks.options(f'task {name}', options, OPTIONS[name])
  return importlib.import_module(_TASKS[name][0]), given
