"""Task: predict the tags of posts of Stack Overflow from their words.

Logistic regression on the frequency of each word of the vocabulary in a post and its
title, as in TFF's task. The metric 'recall_at_5' is the fraction of all tags that are
among the five to which the model gives the highest scores for their post; 'accuracy'
is the fraction of posts whose highest-scoring tag is right. A tag that all tagged
posts have ('java', in posts about Java) is left out.
"""

from collections.abc import Callable, Sequence
import functools

import numpy as np
import tensorflow as tf

from tasks import task
from tasks.models import layers
from tasks.sources import records
from tasks.text import data as text_data, posts, vocabulary as vocabulary_lib

# A post is cut to this many words of the vocabulary. No post has more than 5 tags.
MAX_WORDS = 128
MAX_TAGS = 5
_TOP = 5
_SPEC = {'x': (np.dtype(np.int32), (MAX_WORDS,)), 'y': (np.dtype(np.int32), (MAX_TAGS,))}

# Name -> words and tags where their numbers are not given, root_scale and first_bias.
# logistic is the model of arXiv 2003.00295: 5,000,500 parameters. Its gradient is
# nearly all in the biases, as frequencies are small; it needs thousands of rounds.
# logistic_small, for quick runs under differential privacy: 50,050. Square roots of
# frequencies have norm 1, so words learn as fast as biases do, or here faster; and
# biases start where few tags are likely.
MODELS = {'logistic': (10_000, 500, None, 0.0), 'logistic_small': (1_000, 50, 4.0, -4.0)}


def build_model(name: str, vocabulary: vocabulary_lib.Vocabulary) -> task.Model:
  """Builds one of MODELS for a vocabulary with labels.

  Batches have 'x', int32 [batch, MAX_WORDS], words from 1 on, padded with 0; and
  'y', int32 [batch, MAX_TAGS], tags from 1 on, padded with 0. The loss is the sum
  over the tags of their binary cross entropies.

  `root_scale` multiplies the square roots of the words' frequencies, which are used
  instead of them; None uses the frequencies. `first_bias` is the initial bias.
  'probabilities' of `predict` are those of each tag alone; 'class' is the likeliest.
  """
  *_, root_scale, first_bias = MODELS[name]
  num_words, num_tags = len(vocabulary.words), len(vocabulary.labels)

  def initial_weights(seed):
    return [layers.glorot_uniform(np.random.default_rng(seed), num_words, num_tags),
            np.full(num_tags, first_bias, np.float32)]

  def score(weights, batch):
    """Logits, float32 [batch, tags]."""
    return layers.dense(frequencies(batch['x'], num_words, root_scale), *weights)

  def read(weights, batch):
    """Logits, truth, and ones where a tag is among the first: float32 [batch, tags]."""
    logits = score(weights, batch)
    first = tf.math.top_k(logits, k=min(_TOP, num_tags)).indices
    return (logits, _counts(batch['y'], num_tags),
            tf.reduce_sum(tf.one_hot(first, num_tags), axis=1))

  def losses(logits, truth):
    return tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(
        labels=truth, logits=logits), axis=1)

  def loss(weights, batch, seed):
    del seed
    return losses(score(weights, batch), _counts(batch['y'], num_tags))

  def metrics(weights, batch, mask):
    logits, truth, first = read(weights, batch)
    best = tf.one_hot(tf.argmax(logits, axis=1), num_tags)
    true_tags = truth * mask[:, tf.newaxis]
    return {
        'recall_at_5': (tf.reduce_sum(first * true_tags), tf.reduce_sum(true_tags)),
        'accuracy': (tf.reduce_sum(best * true_tags),
                     tf.reduce_sum(mask * tf.reduce_max(truth, axis=1))),
        'loss': layers.masked_total(losses(logits, truth), mask)}

  def count(weights, batch, mask):
    _, truth, first = read(weights, batch)
    true_tags = truth * mask[:, tf.newaxis]
    # Only posts with a tag of the vocabulary count, as in recall_at_5.
    tagged = tf.reduce_max(true_tags, axis=1, keepdims=True)
    return {'occurred': tf.reduce_sum(true_tags, axis=0),
            'right': tf.reduce_sum(first * true_tags, axis=0),
            'predicted': tf.reduce_sum(first * tagged, axis=0)}

  def predict(weights, batch):
    logits = score(weights, batch)
    return {'class': tf.argmax(logits, axis=1, output_type=tf.int32),
            'probabilities': tf.sigmoid(logits)}

  return task.Model(
      name=name, initial_weights=initial_weights, loss=loss, metrics=metrics,
      headline='recall_at_5', fractions=('recall_at_5',), evaluation_batch=256,
      predict=predict, weight_names=('output/kernel', 'output/bias'),
      breakdown=task.Breakdown(
          kind='tag', names=vocabulary.labels, count=count, guesses=_TOP))


def known_words(texts: Sequence[str], field: str,
                vocabulary: vocabulary_lib.Vocabulary) -> np.ndarray:
  """Words of texts of a field, int32 [texts, MAX_WORDS], from 1 on, padded with 0."""
  sentences = vocabulary_lib.sentences_of(field)
  return _padded([[
      number for sentence in sentences(text)
      for number in vocabulary.known_numbers(sentence.split(' '))]
      for text in texts], MAX_WORDS)


def _padded(rows: Sequence[Sequence[int]], width: int) -> np.ndarray:
  """Numbers in rows of one width, int32, cut off or padded with 0."""
  return tf.keras.utils.pad_sequences(rows, width, padding='post', truncating='post')


def frequencies(ids: tf.Tensor, num_words: int, root_scale: float | None) -> tf.Tensor:
  """Computes the frequency of each word in a post, float32 [batch, num_words].

  From int32 [batch, MAX_WORDS], words from 1 on, padded with 0; `root_scale` as for
  `build_model`.
  """
  counts = _counts(ids, num_words)
  words = tf.math.divide_no_nan(counts, tf.reduce_sum(counts, axis=1, keepdims=True))
  return words if root_scale is None else root_scale * tf.sqrt(words)


def _counts(ids: tf.Tensor, size: int) -> tf.Tensor:
  """Counts each number from 1 to size in a row: float32 [batch, size]."""
  rows = tf.shape(ids)[0]
  columns = tf.range(rows)[:, tf.newaxis] * (size + 1) + ids
  counts = tf.math.unsorted_segment_sum(
      tf.ones_like(columns, tf.float32), columns, rows * (size + 1))
  return tf.reshape(counts, [rows, size + 1])[:, 1:]


def _learn(model: str) -> Callable[[vocabulary_lib.Vocabulary], text_data.Learned]:
  """Vocabulary, whose labels are the tags -> a model of posts.

  Posts without tags in the vocabulary are examples too: they have none of them.
  """
  return lambda words: text_data.Learned(
      model=build_model(model, words), element_spec=_SPEC,
      convert=functools.partial(_examples, vocabulary=words))


def _examples(raw: records.RawExamples, field: str, labelled: bool,
              vocabulary: vocabulary_lib.Vocabulary) -> dict[str, np.ndarray]:
  """An example for each post; posts whose tags are unknown have no labels."""
  chosen = [(f'{title} {text}' if title else text, tags.split('|'))
            for text, title, tags in zip(raw['text'], raw['title'], raw['tags'])
            if tags or not labelled]
  examples = {'x': known_words([text for text, _ in chosen], field, vocabulary)}
  if labelled:
    examples['y'] = _padded(
        [vocabulary.label_numbers(tags) for _, tags in chosen], MAX_TAGS)
  return examples


TASK = posts.Posts(name='stackoverflow_tag', models=MODELS, learn=_learn,
                   default_model='logistic_small', more_fields=posts.TAG_FIELDS)
build, serving, open_embedded = TASK.build, TASK.serving, text_data.open_embedded
