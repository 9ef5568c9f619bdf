"""Tasks of one's own: found by 'module:function', and checked before they are run."""

from collections.abc import Callable, Mapping
import dataclasses
import hashlib
import importlib
import inspect
import math
import pathlib
import re
from typing import Any

import numpy as np

from tasks import checks, task as task_lib
from tasks.sources import further, ids as ids_lib, records

_NAME = re.compile(r'[A-Za-z_][\w.]*:[A-Za-z_]\w*', re.ASCII)


def is_name(name: str) -> bool:
  """Whether a name has the form 'module:function'."""
  return _NAME.fullmatch(name) is not None


def find(name: str, what: str = 'task') -> Callable[..., Any]:
  """The function that 'module:function' names. Raises ValueError if there is none."""
  module_name, _, function_name = name.partition(':')
  try:
    function = getattr(importlib.import_module(module_name), function_name, None)
  except (ImportError, SyntaxError) as error:
    raise ValueError(f'{what}={name}: {module_name} can\'t be imported: '
                     f'{type(error).__name__}: {error}') from error
  if not callable(function):
    raise ValueError(f'{what}={name}: {module_name} has no function {function_name}')
  return function


def source_of(name: str, function: Callable[..., Any]) -> dict[str, str]:
  """The module of a function and the SHA-256 of its source, for a record.

  Raises ValueError if the source is not in a file.
  """
  try:
    content = pathlib.Path(inspect.getsourcefile(inspect.unwrap(function))).read_bytes()
  except (OSError, TypeError):
    raise ValueError(f'{name}: the function must be in a source file') from None
  return {'module': function.__module__, 'function': function.__qualname__,
          'sha256': hashlib.sha256(content).hexdigest()}


def build(name: str, function: Callable[..., Any], options: Mapping[str, Any],
          known: frozenset[str]) -> task_lib.Task:
  """Builds a task by a function of one's own, and checks it.

  The function's keyword-only arguments of names in `known`, all options of all tasks,
  are its options. Raises ValueError for other options, or if the task is wrong.
  """
  try:
    parameters = inspect.signature(function).parameters.values()
  except (TypeError, ValueError):
    parameters = ()
  options_of, required = [], []
  for parameter in parameters:
    is_required = parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    if parameter.kind == parameter.KEYWORD_ONLY and parameter.name in known:
      options_of.append(parameter.name)
      required += [parameter.name] * is_required
    elif is_required:
      raise ValueError(f'task={name}: the argument {parameter.name} must have a '
                       'default, or be keyword-only and a setting of the data')
  given = checks.options(f'task {name}', options, options_of, required)
  return checked(name, function(**given))


def checked(name: str, built: Any) -> task_lib.Task:
  """The task, whose clients are checked when they are read.

  Raises ValueError, one line that names what is wrong.
  """
  with checks.located(f'task={name}'):
    return _checked(built)


def _checked(built: Any) -> task_lib.Task:
  if not isinstance(built, task_lib.Task):
    raise ValueError(f'its function must return a Task, found {type(built).__name__}')
  if not isinstance(built.model, task_lib.Model):
    raise ValueError(f'model must be a Model, found {type(built.model).__name__}')
  if not isinstance(built.privacy_unit, str) or not built.privacy_unit:
    raise ValueError(f'privacy_unit must be a text, found {built.privacy_unit!r}')
  spec = _spec(built.train)
  ids = built.train.client_ids
  if isinstance(ids, ids_lib.Ids) and ids.is_increasing:
    ids = ids[:1]  # All others are texts, not empty, and differ.
  else:
    ids = list(ids)
  checks.names('train.client_ids', ids)
  train = _checked_source(built.train, spec)
  train.examples(ids[0])
  if (of_clients := built.held_out_of_clients) is not None:
    if _spec(of_clients) != spec:
      raise ValueError('held_out_of_clients must have the element_spec of train')
    of_clients = _checked_source(of_clients, spec)
  if not built.held_out:
    raise ValueError('held_out must have a set of examples, found none')
  for name, examples in built.held_out.items():
    check_examples(f'held_out {name!r}', examples, spec)
    if not len(next(iter(examples.values()))):
      raise ValueError(f'held_out {name!r} must have examples, found none')
  _check_model(built.model, next(iter(built.held_out.values())))
  return dataclasses.replace(built, train=train, held_out_of_clients=of_clients,
                             reader=built.reader or reader(spec))


def reader(spec: records.ElementSpec) -> task_lib.Reader:
  """The reader of files whose fields are the features, under their names.

  A feature is a number or a list of numbers, of all numbers in row-major order or as
  nested lists. Integers are accepted as floats.
  """
  def read(*, labelled: bool, in_order: bool | None = None,
           data_source: str | None = None, **given: Any) -> task_lib.ClientSource:
    wanted = {name: spec[name] for name in spec if labelled or name != 'y'}
    fields = [records.Field(name=name, kind=records.NUMBER) for name in wanted]
    source = further.open_files(data_source, fields, in_order=in_order, **given)

    def convert(raw: records.RawExamples) -> dict[str, np.ndarray]:
      examples = {name: _feature(name, raw[name], *wanted[name]) for name in wanted}
      check_examples('examples', examples, wanted)
      return examples

    return records.MappedSource(source, convert, wanted)

  return read


def _feature(name: str, values: np.ndarray, dtype: np.dtype,
             shape: tuple[int, ...]) -> np.ndarray:
  """A feature as a spec says. Raises ValueError."""
  if values.shape[1:] in (shape, (math.prod(shape),)) or (
      not values.shape[1:] and math.prod(shape) == 1):
    # A value that its type can't hold is another one then, or infinite.
    with np.errstate(all='ignore'):
      result = values.reshape(-1, *shape).astype(dtype)
    if dtype.kind == 'f' or values.dtype.kind in 'biu' and np.array_equal(
        result.astype(values.dtype), values.reshape(result.shape)):
      return result
  sizes = ', '.join(map(str, ('examples', *shape)))
  raise checks.wrong(f'feature {name!r}', f'{dtype} [{sizes}]', values)


def _checked_source(source: task_lib.ClientSource,
                    spec: records.ElementSpec) -> records.MappedSource:
  """The source, whose clients are checked when they are read.

  Clients that graphs read are not: the source with such a reader answers for them.
  """
  def convert(examples):
    check_examples('examples', examples, spec)
    return examples
  return records.MappedSource(
      source, convert, spec, convert_in_graph=lambda examples: examples)


def _spec(source: Any) -> records.ElementSpec:
  """The element spec of a source, in its usual form."""
  for name in ('client_ids', 'element_spec', 'examples'):
    if not hasattr(source, name):
      raise ValueError(f'train must have {name}, found {type(source).__name__}')
  spec = source.element_spec
  try:
    result = {name: (np.dtype(dtype), tuple(map(int, shape)))
              for name, (dtype, shape) in spec.items()}
    if not result or not all(isinstance(name, str) for name in result):
      raise TypeError
  except (AttributeError, TypeError, ValueError):
    raise ValueError('train.element_spec must map names to (dtype, shape), found '
                     f'{spec!r}') from None
  for name, (dtype, _) in result.items():
    if dtype.kind not in 'biuf':
      raise ValueError(f'train.element_spec: {name} must be of numbers, found {dtype}')
  return result


def check_examples(what: str, examples: Any, spec: records.ElementSpec) -> None:
  """Raises ValueError unless examples are as a spec says, and finite."""
  records.check_examples(what, examples, spec)
  for name, array in examples.items():
    if array.dtype.kind == 'f' and not np.all(np.isfinite(array)):
      raise ValueError(f'{what}: {name} must be finite, found NaN or infinity')


def _check_model(model: task_lib.Model, held_out: task_lib.Examples) -> None:
  """Raises ValueError unless a model's functions give what their docstrings say."""
  import tensorflow as tf  # pylint: disable=g-import-not-at-top
  weights, again = model.initial_weights(0), model.initial_weights(0)
  kinds = type(weights).__name__ if not isinstance(weights, list) else sorted({
      str(weight.dtype) if isinstance(weight, np.ndarray) else type(weight).__name__
      for weight in weights})
  if kinds != ['float32']:
    raise ValueError(f'model.initial_weights must list float32 arrays, found {kinds}')
  if not all(np.all(np.isfinite(weight)) for weight in weights):
    raise ValueError('model.initial_weights must be finite')
  if len(again) != len(weights) or not all(map(np.array_equal, weights, again)):
    raise ValueError('model.initial_weights must be the same for the same seed')
  rows = np.zeros(2, np.int64)  # The first example, twice.
  batch = {name: tf.constant(array[rows]) for name, array in held_out.items()}
  tensors = [tf.constant(weight) for weight in weights]
  loss = tf.convert_to_tensor(model.loss(tensors, batch, tf.constant([0, 1], tf.int64)))
  if loss.dtype != tf.float32 or loss.shape != [2]:
    raise ValueError('model.loss must be float32 [batch], found '
                     f'{loss.dtype.name} {loss.shape.as_list()} of 2 examples')
  metrics = model.metrics(tensors, batch, tf.ones([2]))
  for name in ('loss', model.headline):
    if not isinstance(metrics, Mapping) or name not in metrics:
      raise ValueError(f'model.metrics must have {name!r}, found {sorted(metrics)}')
  for name, pair in metrics.items():
    if not isinstance(pair, tuple) or len(pair) != 2 or any(
        tf.convert_to_tensor(x).shape.rank for x in pair):
      raise ValueError(f'model.metrics: {name} must be a pair of scalars')
