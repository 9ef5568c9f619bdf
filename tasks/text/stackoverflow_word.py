"""Task: predict the next word of posts of Stack Overflow.

The metric 'accuracy' leaves out padding, words that are not in the vocabulary, and
the beginning and end of sentences; 'accuracy_all_tokens' leaves out padding only.
"""

from typing import Any

import numpy as np

from tasks import checks
from tasks import task
from tasks.models import text as text_models
from tasks.sources import records
from tasks.text import stackoverflow_data
from tasks.text import tokens as text_tokens


# Name -> words where --vocabulary_size is not given, and the network. lstm_670 is the
# model of arXiv 2003.00295: 4,050,748 parameters. lstm_small, for quick runs under
# differential privacy, uses the embedding twice: 60,044, just below 2^16, the number
# to which a rotation pads.
MODELS = {
    'lstm_670': (10_000, dict(embedding=96, units=(670,))),
    'lstm_small': (1_000, dict(embedding=32, units=(64,), tied=True)),
}


def build_model(name: str, vocabulary: text_tokens.Vocabulary) -> task.Model:
  """Builds one of MODELS for a vocabulary."""
  special = vocabulary.special
  return text_models.next_token_model(
      name, text_models.Network(
          tokens=special.count, projected=True, **MODELS[name][1]),
      special, kind='word', names=special.names(vocabulary.words))


def build(*, model: str | None = None, vocabulary: str | None = None,
          vocabulary_size: int | None = None, sequence_length: int = 20,
          max_examples_per_client: int | None = None,
          max_test_examples: int = 2000, text_field: str | None = None,
          **data_options: Any) -> task.Task:
  """Builds the task.

  Args:
    model: One of MODELS; None means 'lstm_small'.
    vocabulary: File of a vocabulary; see stackoverflow_data.Posts.vocabulary.
    vocabulary_size: Maximum number of words; None leaves it to the model.
    sequence_length: Words that are predicted in a sentence, which is one example;
      what is longer is cut off.
    max_examples_per_client: See text_data.build_task.
    max_test_examples: See text_data.build_task.
    text_field: See stackoverflow_data.Posts.
    **data_options: See text_data.load.

  Raises:
    ValueError: On an unknown model, an option out of range, and bad data.
  """
  model = checks.choice('model', model, MODELS, 'lstm_small')
  checks.integer('sequence_length', sequence_length, 1)
  posts = stackoverflow_data.Posts(
      text_field=text_field, with_tags=False, **data_options)
  words = posts.vocabulary(
      vocabulary, MODELS[model][0] if vocabulary_size is None else vocabulary_size)

  def convert(raw: records.RawExamples) -> dict[str, np.ndarray]:
    rows = [words.sentence_row(sentence, sequence_length)
            for text in raw['text'] for sentence in posts.sentences(text)]
    # A client may have no sentence.
    return {'tokens': np.array(rows, np.int32).reshape([-1, sequence_length + 1])}

  return posts.build_task(
      'stackoverflow_word', build_model(model, words), words, convert,
      {'tokens': (np.dtype(np.int32), (sequence_length + 1,))},
      max_examples_per_client=max_examples_per_client,
      max_test_examples=max_test_examples)
