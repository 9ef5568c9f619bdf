"""Task: the class of an image of any size, grey or in colour.

Batches are those of tasks.images.data. EMNIST is the case of 28 x 28 grey characters,
with its own sources and models.
"""

import dataclasses
import functools
from typing import Any, Mapping

import numpy as np

from tasks import checks
from tasks import task
from tasks.images import data as data_lib
from tasks.models import classifiers

_sources = data_lib.Sources('images', embedded=data_lib.embedded)
SOURCES, options_of = _sources.names, _sources.options
load, open_raw = _sources.load, _sources.open_raw

MODELS = classifiers.MODELS


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
  served = _serving(data.train.element_spec['x'][1], data.num_classes, model,
                    {**data_options, 'class_names': data.class_names})
  return dataclasses.replace(data, model=served.model, reader=served.reader)


def serving(inputs: task.Spec, weights: task.Weights, *, model: str | None = None,
            **options: Any) -> task.Serving:
  """The trained model of these weights; see registry.serving."""
  model = checks.choice('model', model, MODELS, 'cnn_small')
  return _serving(inputs['x'][1], len(weights[-1]), model, options)


def _serving(shape: tuple[int, ...], num_classes: int, model: str,
             recorded: Mapping[str, Any]) -> task.Serving:
  names = recorded.get('class_names') or [str(i) for i in range(num_classes)]
  return task.Serving(
      inputs={'x': (np.dtype(np.uint8), shape)},
      model=MODELS[model](shape, num_classes).as_model(
          functools.partial(task.Breakdown, kind='class', names=names)),
      reader=_sources.reader(shape, num_classes, recorded))
