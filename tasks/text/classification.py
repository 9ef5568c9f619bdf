"""Task: predict the class of a text from its words.

Softmax regression on the frequency of each word of the vocabulary, with the
preprocessing and the vocabulary of tasks.text.stackoverflow_tag. The text that ships
is divided by the play that a speech is from.
"""

from collections.abc import Sequence
import functools
from typing import Any

import numpy as np

from tasks import checks, task
from tasks.models import classifiers, layers
from tasks.sources import labelled, open_source, records
from tasks.text import (
    data as text_data, posts, stackoverflow_tag, vocabulary as vocabulary_lib)

SOURCES = tuple(sorted(('embedded', *open_source.FORMATS)))

_SPEC = {'x': (np.dtype(np.int32), (stackoverflow_tag.MAX_WORDS,)),
         'y': (np.dtype(np.int32), ())}

# Name -> words where their number is not given, and root_scale, as in
# stackoverflow_tag.MODELS.
MODELS = {'logistic': (10_000, None), 'logistic_small': (1_000, 4.0)}


def build_model(name: str, num_words: int, class_names: Sequence[str]) -> task.Model:
  """Builds one of MODELS.

  Batches have 'x', int32 [batch, MAX_WORDS] of stackoverflow_tag, words from 1 on,
  padded with 0; and 'y', int32 [batch] classes.
  """
  root_scale = MODELS[name][1]

  def initial_weights(seed):
    del seed  # Convex, so every start is as good as zero.
    return [np.zeros([num_words, len(class_names)], np.float32),
            layers.zeros(len(class_names))]

  def logits(weights, x, seed=None):
    del seed
    return layers.dense(
        stackoverflow_tag.frequencies(x, num_words, root_scale), *weights)

  return classifiers.model_of_logits(
      name, initial_weights, logits, evaluation_batch=256,
      weight_names=('output/kernel', 'output/bias'),
      breakdown=functools.partial(task.Breakdown, kind='class', names=class_names))


def _class_names(data_source: str, num_classes: int | None,
                 class_names: Sequence[str] | None) -> tuple[str, ...]:
  """The labels. Raises ValueError unless they are known."""
  if data_source == 'embedded':
    if num_classes is not None or class_names is not None:
      raise ValueError(
          'data_source embedded does not use num_classes and class_names')
    return tuple(sorted({tags.split('|')[0] for _, tags in text_data.speeches()}))
  if num_classes is None and class_names is None:
    raise ValueError('task text_classification needs class_names, or num_classes: '
                     'classes are not counted in labels, which are private')
  names = labelled.named_classes(num_classes, class_names)
  checks.names('class_names', names, 2)
  return names


def build(*, model: str | None = None, label_field: str | None = None,
          num_classes: int | None = None, class_names: Sequence[str] | None = None,
          data_source: str | None = None, **options: Any) -> task.Task:
  """Builds the task.

  Args:
    model: One of MODELS; None means 'logistic_small'.
    label_field: Field of the class; None means 'label'.
    num_classes: Labels are integers below.
    class_names: Labels are these texts, instead.
    data_source: One of SOURCES; None means 'embedded'.
    **options: See posts.Posts.build.

  Raises:
    ValueError: On an unknown model, an option out of range, and bad data.
  """
  data_source = checks.choice('data_source', data_source, SOURCES, 'embedded')
  task_of_posts = _posts(model, data_source, num_classes, class_names, label_field)
  if data_source == 'embedded' and label_field is not None:
    raise ValueError('data_source embedded does not use label_field')
  return task_of_posts.build(
      label_field=label_field, data_source=data_source, **options)


def serving(inputs: task.Spec, weights: task.Weights, *, vocabulary: str | None = None,
            model: str | None = None, num_classes: int | None = None,
            class_names: Sequence[str] | None = None, **options: Any) -> task.Serving:
  """The trained model, by the vocabulary that the run kept; see registry.serving."""
  del inputs, weights
  return _posts(model, options.get('data_source', 'embedded'), num_classes,
                class_names).serving(vocabulary, options)


def _posts(model: str | None, data_source: str, num_classes: int | None,
           class_names: Sequence[str] | None,
           label_field: str | None = None) -> posts.Posts:
  model = checks.choice('model', model, MODELS, 'logistic_small')
  names = _class_names(data_source, num_classes, class_names)
  return posts.Posts(
      name='text_classification', num_words=MODELS[model][0],
      privacy_unit='one client of the files', label_field=_label,
      learn=lambda words: posts.Learned(
          model=build_model(model, len(words.words), names), element_spec=_SPEC,
          convert=functools.partial(
              _examples, vocabulary=words, names=names, label=label_field or 'label')))


def _label(name: str | None) -> records.Field:
  return records.Field(name='label', source_name=name, kind=records.CATEGORY)


def _examples(raw: records.RawExamples, field: str, labelled: bool,
              vocabulary: vocabulary_lib.Vocabulary, names: Sequence[str],
              label: str) -> dict[str, np.ndarray]:
  """An example for each text."""
  x = stackoverflow_tag.known_words(raw['text'], field, vocabulary)
  if not labelled:
    return {'x': x}
  return {'x': x, 'y': checks.indices(label, raw['label'], names).astype(np.int32)}
