"""Task: predict the class of a text from its words.

Softmax regression on the frequency of each word of the vocabulary, with the
preprocessing and the vocabulary of tasks.text.stackoverflow_tag. The text that ships
is divided by the play that a speech is from.
"""

from collections.abc import Mapping, Sequence
import functools
from typing import Any

import numpy as np

from tasks import checks
from tasks import task
from tasks.models import layers
from tasks.sources import labelled
from tasks.sources import open_source
from tasks.sources import records
from tasks.text import data as text_data
from tasks.text import stackoverflow_tag
from tasks.text import stackoverflow_word

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

  def logits(weights, batch):
    words = stackoverflow_tag.frequencies(batch['x'], num_words, root_scale)
    return layers.dense(words, *weights)

  def loss(weights, batch, seed):
    del seed
    return layers.softmax_cross_entropy(logits(weights, batch), batch['y'])

  def metrics(weights, batch, mask):
    return layers.classification_metrics(logits(weights, batch), batch['y'], mask)

  def count(weights, batch, mask):
    return layers.class_counts(
        logits(weights, batch), batch['y'], mask, confusion=True)

  return task.Model(
      name=name, initial_weights=initial_weights, loss=loss, metrics=metrics,
      evaluation_batch=256, weight_names=('output/kernel', 'output/bias'),
      breakdown=task.Breakdown(kind='class', names=class_names, count=count),
      predict=lambda weights, batch: layers.classification_outputs(
          logits(weights, batch)))


def _class_names(data_source: str, num_classes: int | None,
                 class_names: Sequence[str] | None) -> tuple[str, ...]:
  """The labels. Raises ValueError unless they are known."""
  if data_source == 'embedded':
    if num_classes is not None or class_names is not None:
      raise ValueError(
          'data_source embedded does not use num_classes and class_names')
    return tuple(sorted({tags.split('|')[0] for _, tags in text_data.speeches()}))
  if num_classes is not None:
    checks.integer('num_classes', num_classes, 2, labelled.MAX_CLASSES)
    class_names = class_names or tuple(map(str, range(num_classes)))
    if len(class_names) != num_classes:
      raise ValueError(f'num_classes must be the number of class_names, '
                       f'{len(class_names)}, found {num_classes}')
  if class_names is None:
    raise ValueError('task text_classification needs class_names, or num_classes: '
                     'classes are not counted in labels, which are private')
  checks.names('class_names', class_names, 2)
  return tuple(class_names)


def build(*, model: str | None = None, label_field: str | None = None,
          num_classes: int | None = None, class_names: Sequence[str] | None = None,
          vocabulary: str | None = None, words_per_client: int | None = None,
          vocabulary_size: int | None = None,
          max_examples_per_client: int | None = None, max_test_examples: int = 2000,
          text_field: str | None = None, data_source: str | None = None,
          **data_options: Any) -> task.Task:
  """Builds the task.

  Args:
    model: One of MODELS; None means 'logistic_small'.
    label_field: Field of the class; None means 'label'.
    num_classes: Labels are integers below.
    class_names: Labels are these texts, instead.
    vocabulary: File of a vocabulary, or PRIVATE_COUNTS; see
      stackoverflow_word.Posts.build.
    words_per_client: As there.
    vocabulary_size: Maximum number of words; None leaves it to the model.
    max_examples_per_client: See text_data.build_task.
    max_test_examples: See text_data.build_task.
    text_field: See stackoverflow_word.Posts.
    data_source: One of SOURCES; None means 'embedded'.
    **data_options: See text_data.load.

  Raises:
    ValueError: On an unknown model, an option out of range, and bad data.
  """
  model = checks.choice('model', model, MODELS, 'logistic_small')
  data_source = checks.choice('data_source', data_source, SOURCES, 'embedded')
  names = _class_names(data_source, num_classes, class_names)
  if data_source == 'embedded' and label_field is not None:
    raise ValueError('data_source embedded does not use label_field')
  posts = stackoverflow_word.Posts(
      text_field=text_field, privacy_unit='one client of the files',
      more_fields=[_label(label_field)],
      data_source=data_source, **data_options)

  recorded = {**data_options, 'data_source': data_source, 'text_field': text_field,
              'label_field': label_field}
  field = stackoverflow_word.field_of_text(data_source, text_field)

  def finish(words: stackoverflow_word.Vocabulary) -> task.Task:
    return posts.build_task(
        'text_classification', _serving(words, model, names, recorded),
        lambda raw: _examples(raw, field, True, words, names, label_field or 'label'),
        _SPEC,
        max_examples_per_client=max_examples_per_client,
        max_test_examples=max_test_examples)

  return posts.build(
      finish, vocabulary, MODELS[model][0] if vocabulary_size is None else
      vocabulary_size, words_per_client=words_per_client)


def _label(name: str | None) -> records.Field:
  return records.Field(name='label', source_name=name, kind=records.CATEGORY)


def _examples(raw: records.RawExamples, field: str, labelled: bool,
              vocabulary: stackoverflow_word.Vocabulary,
              names: Sequence[str], label: str = 'label') -> dict[str, np.ndarray]:
  """An example for each text."""
  x = np.zeros([len(raw['text']), stackoverflow_tag.MAX_WORDS], np.int32)
  sentences = stackoverflow_word.sentences_of(field)
  for row, text in enumerate(raw['text']):
    known = vocabulary.known_numbers(
        word for sentence in sentences(text) for word in sentence.split(' '))
    known = known[:stackoverflow_tag.MAX_WORDS]
    x[row, :len(known)] = known
  if not labelled:
    return {'x': x}
  return {'x': x, 'y': checks.indices(label, raw['label'], names).astype(np.int32)}


def _serving(vocabulary: stackoverflow_word.Vocabulary, model: str,
             names: Sequence[str], recorded: Mapping[str, Any]) -> task.Serving:
  return stackoverflow_word.serving_of(
      vocabulary, build_model(model, len(vocabulary.words), names), _SPEC,
      text_data.reader(
          stackoverflow_word.OFFICIAL, stackoverflow_word.field_of_text,
          functools.partial(_examples, vocabulary=vocabulary, names=names), _SPEC,
          recorded, label_field=_label))


def serving(inputs: task.Spec, weights: task.Weights, *, vocabulary: str | None = None,
            model: str | None = None, num_classes: int | None = None,
            class_names: Sequence[str] | None = None, **options: Any) -> task.Serving:
  """The trained model, by the vocabulary that the run kept; see registry.serving."""
  del inputs, weights
  model = checks.choice('model', model, MODELS, 'logistic_small')
  names = _class_names(options.get('data_source', 'embedded'), num_classes, class_names)
  return _serving(stackoverflow_word.kept_vocabulary(vocabulary), model, names, options)
