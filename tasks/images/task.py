"""Task: the class of an image of any size, grey or in colour.

Batches are those of tasks.images.data. EMNIST is the case of 28 x 28 grey characters,
with its own sources and models.
"""

import dataclasses
import functools
from typing import Any, Callable, Sequence

from tasks import checks
from tasks import task
from tasks.emnist import task as emnist
from tasks.images import data as data_lib
from tasks.models import classifiers

_sources = data_lib.Sources('images', embedded=emnist.embedded)
SOURCES, options_of = _sources.names, _sources.options
load, open_raw = _sources.load, _sources.open_raw

MODELS = classifiers.MODELS


def _breakdown(names: Sequence[str], count: Callable) -> task.Breakdown:
  return task.Breakdown(kind='class', names=names, count=count)


def build(*, model: str | None = None, **data_options: Any) -> task.Task:
  """Builds the task.

  Args:
    model: One of MODELS; None means 'cnn_small'.
    **data_options: See data.Sources.load.

  Returns:
    The task. Its model is for the images' shape and has as many classes as the data.

  Raises:
    ValueError: On an unknown model, images too small for it, options that the data
      source does not use, and data that are missing, corrupted or malformed.
  """
  model = checks.choice('model', model, MODELS, 'cnn_small')
  data = load(**data_options)
  names = data.class_names or [str(i) for i in range(data.num_classes)]
  network = MODELS[model](data.train.element_spec['x'][1], data.num_classes)
  return dataclasses.replace(
      data, model=network.as_model(functools.partial(_breakdown, names)))
