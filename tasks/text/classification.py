"""Task: predict the class of a text from its words.

Softmax regression on the frequency of each word of the vocabulary, with the
preprocessing and the vocabulary of tasks.text.stackoverflow_tag. The text that ships
is divided by the play that a speech is from.
"""

from collections.abc import Callable, Sequence
import functools

import numpy as np

from tasks import checks, task
from tasks.models import classifiers, layers
from tasks.sources import labelled, open_source, records, values as values_lib
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
    return layers.dense(stackoverflow_tag.frequencies(x, num_words, root_scale), *weights)

  return classifiers.model_of_logits(name, initial_weights, logits, evaluation_batch=256,
                                     weight_names=('output/kernel', 'output/bias'),
                                     breakdown={'kind': 'class', 'names': class_names})


def _learn(model: str, *, data_source: str | None = None, num_classes: int | None = None,
           class_names: Sequence[str] | None = None, label_field: str | None = None
           ) -> Callable[[vocabulary_lib.Vocabulary], text_data.Learned]:
  """Vocabulary -> a model of texts.

  Labels, of the field `label_field` or 'label', are integers below `num_classes`, or
  these texts, `class_names`. Raises ValueError unless the classes are known.
  """
  if checks.choice('data_source', data_source, SOURCES, 'embedded') == 'embedded':
    checks.options('data_source embedded', {
        'num_classes': num_classes, 'class_names': class_names,
        'label_field': label_field}, ['num_clients'])
    names = tuple(sorted({tags.split('|')[0] for _, tags in text_data.speeches()}))
  else:
    if not (names := labelled.named_classes(num_classes, class_names)):
      raise ValueError('task text_classification needs class_names, or num_classes: '
                       'labels are private, and not counted')
    checks.names('class_names', names, 2)
  return lambda words: text_data.Learned(
      model=build_model(model, len(words.words), names), element_spec=_SPEC,
      convert=functools.partial(
          _examples, vocabulary=words, names=names, label=label_field or 'label'))


def _examples(raw: records.RawExamples, field: str, has_labels: bool,
              vocabulary: vocabulary_lib.Vocabulary, names: Sequence[str],
              label: str) -> dict[str, np.ndarray]:
  """An example for each text."""
  examples = {'x': stackoverflow_tag.known_words(raw['text'], field, vocabulary)}
  if has_labels:
    known = list(map(values_lib.category, names))  # As labels are read.
    examples['y'] = checks.indices(label, raw['label'], known).astype(np.int32)
  return examples


TASK = posts.Posts(
    name='text_classification', models=MODELS, default_model='logistic_small',
    learn=_learn, has_label=True, privacy_unit='one client of the files')
build, serving, open_embedded = TASK.build, TASK.serving, text_data.open_embedded
