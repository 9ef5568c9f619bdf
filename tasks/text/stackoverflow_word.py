"""Task: predict the next word of posts of Stack Overflow.

The metric 'accuracy' leaves out padding, words that are not in the vocabulary, and
the beginning and end of sentences; 'accuracy_all_tokens' leaves out padding only.
"""

from collections.abc import Callable
import functools

import numpy as np

from tasks import checks, task
from tasks.models import text as text_models
from tasks.sources import records
from tasks.text import data as text_data, posts, vocabulary as vocabulary_lib

# Name -> words where --vocabulary_size is not given, and the network. lstm_670 is the
# model of arXiv 2003.00295: 4,050,748 parameters. lstm_small, for quick runs under
# differential privacy, uses the embedding twice: 60,044, just below 2^16, the number
# to which a rotation pads.
MODELS = {'lstm_670': (10_000, dict(embedding=96, units=(670,))),
          'lstm_small': (1_000, dict(embedding=32, units=(64,), tied=True))}


def build_model(name: str, vocabulary: vocabulary_lib.Vocabulary) -> task.Model:
  """Builds one of MODELS for a vocabulary."""
  special = vocabulary.special
  return text_models.next_token_model(
      name, text_models.Network(tokens=special.count, projected=True, **MODELS[name][1]),
      special, kind='word', names=special.names(vocabulary.words))


def _learn(model: str, *, sequence_length: int = 20
           ) -> Callable[[vocabulary_lib.Vocabulary], text_data.Learned]:
  """Vocabulary -> a model of sentences, one an example, cut off at this many words."""
  checks.integer('sequence_length', sequence_length, 1)
  return lambda words: text_data.Learned(
      model=build_model(model, words),
      element_spec={'tokens': (np.dtype(np.int32), (sequence_length + 1,))},
      convert=functools.partial(_examples, vocabulary=words, length=sequence_length))


def _examples(raw: records.RawExamples, field: str, ended: bool,
              vocabulary: vocabulary_lib.Vocabulary,
              length: int) -> dict[str, np.ndarray]:
  """An example for each sentence."""
  rows = [vocabulary.sentence_row(sentence, length, ended) for text in raw['text']
          for sentence in vocabulary_lib.sentences_of(field)(text)]
  # A client may have no sentence.
  return {'tokens': np.array(rows, np.int32).reshape([-1, length + 1])}


TASK = posts.Posts(name='stackoverflow_word', models=MODELS,
                   default_model='lstm_small', learn=_learn)
build, serving, open_embedded = TASK.build, TASK.serving, text_data.open_embedded
