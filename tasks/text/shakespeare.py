"""Task: predict the next character of what a role of a play says.

One client is one role. The vocabulary is TFF's list of 86 characters, which is
public and the same for all data. Unlike TFF's, the metric 'accuracy' leaves out the
characters that are not in it and the end of a speech; 'accuracy_all_tokens' is TFF's.
"""

import numpy as np
import tensorflow as tf

from tasks import checks, official, task
from tasks.models import text as text_models
from tasks.text import data as text_data

# The characters of TFF's next-character task, in its order.
CHARACTERS = (
    'dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#\'/37;?bfjnrvzBFJNRVZ"&*.26:\n'
    'aeimquyAEIMQUY]!%)-159\r')
_SPECIAL = text_models.Special(len(CHARACTERS))
# The token of each ASCII character.
_TABLE = np.full(128, _SPECIAL.out_of_vocabulary, np.uint8)
_TABLE[list(CHARACTERS.encode())] = np.arange(1, len(CHARACTERS) + 1)
# Name of a group of characters -> whether a character is in it, unless in an earlier one.
_GROUPS = {'lower case': str.islower, 'upper case': str.isupper, 'space': ' '.__eq__,
           'line end': '\n\r'.__contains__, 'digit': str.isdigit,
           'punctuation': lambda character: True}

# lstm_256 is the model of arXiv 2003.00295 and 1602.05629: 820,522 parameters.
# lstm_small, for quick runs under differential privacy, has 28,026, just below 2^15,
# the number to which a rotation pads.
MODELS = {'lstm_256': dict(embedding=8, units=(256, 256), he_normal=True),
          'lstm_small': dict(embedding=16, units=(64,), embedding_limit=1.0)}


def build_model(name: str) -> task.Model:
  """Builds one of MODELS."""
  groups = {name: [] for name in _GROUPS}
  for token, character in enumerate(CHARACTERS, 1):
    group = next(name for name, contains in _GROUPS.items() if contains(character))
    groups[group].append(token)
  names = [repr(c)[1:-1] if c in '\n\r' else c for c in CHARACTERS]
  return text_models.next_token_model(
      name, text_models.Network(tokens=_SPECIAL.count, **MODELS[name]), _SPECIAL,
      kind='character', names=_SPECIAL.names(names), confusion=True, groups=groups)


def character_rows(text: str, length: int, ended: bool = True) -> np.ndarray:
  """Tokens of a text's characters in rows, as TFF's preprocessing has them.

  The text between the tokens of its beginning and its end is padded to a multiple of a
  row and cut into rows, uint8 [rows, length + 1], so that no character stands in two of
  them. Not `ended`, its last row ends with its last character. What is not ASCII is not
  in the vocabulary.
  """
  codes = np.frombuffer(text.encode('utf-32-le', 'surrogatepass'), np.uint32)
  known = codes < 128
  middle = np.where(known, _TABLE[np.where(known, codes, 0)], _SPECIAL.out_of_vocabulary)
  count = len(codes) + 1 + ended
  rows = np.zeros(-(-count // (length + 1)) * (length + 1), np.uint8)
  rows[0], rows[1:1 + len(codes)] = _SPECIAL.begin, middle
  if ended:
    rows[count - 1] = _SPECIAL.end
  return rows.reshape([-1, length + 1])


def _rows_in_graph(texts: tf.Tensor, length: int) -> tf.Tensor:
  """Computes character_rows of texts in UTF-8, one after another."""
  codes = tf.strings.unicode_decode(texts, 'UTF-8', errors='strict')
  known = codes.flat_values < 128
  tokens = tf.where(
      known,
      tf.gather(tf.constant(_TABLE, tf.int32), tf.where(known, codes.flat_values, 0)),
      _SPECIAL.out_of_vocabulary)
  # The rows of a text also hold its beginning and its end.
  counts = tf.cast(codes.row_lengths(), tf.int32)
  rows = -(-(counts + 2) // (length + 1))
  starts = tf.cumsum(rows, exclusive=True) * (length + 1)
  text_of = tf.cast(codes.value_rowids(), tf.int32)
  first = tf.cumsum(counts, exclusive=True)
  positions = tf.gather(starts - first, text_of) + tf.range(tf.size(text_of)) + 1
  ends = starts + counts + 1
  total = tf.reduce_sum(rows) * (length + 1)
  flat = tf.scatter_nd(
      tf.concat([starts, positions, ends], 0)[:, tf.newaxis],
      tf.concat([tf.fill(tf.shape(starts), _SPECIAL.begin), tokens,
                 tf.fill(tf.shape(ends), _SPECIAL.end)], 0), [total])
  return tf.cast(tf.reshape(flat, [-1, length + 1]), tf.uint8)


def _learn(model: str, *, sequence_length: int = 80) -> text_data.Learned:
  """A model of rows of this length; a speech has as many rows as it needs."""
  checks.integer('sequence_length', sequence_length, 1)
  return text_data.Learned(
      model=build_model(model),
      element_spec={'tokens': (np.dtype(np.uint8), (sequence_length + 1,))},
      convert=lambda raw, _, ended: {'tokens': np.concatenate([
          np.zeros([0, sequence_length + 1], np.uint8),
          *(character_rows(text, sequence_length, ended) for text in raw['text'])])},
      convert_in_graph=lambda raw: {
          'tokens': _rows_in_graph(raw['text'], sequence_length)})


TASK = text_data.TextTask(
    name='shakespeare', models=MODELS, default_model='lstm_small', learn=_learn,
    official=official.File(name='shakespeare.sqlite', load='shakespeare.load_data'),
    official_field='snippets', privacy_unit='one role of a play')
build, serving, open_embedded = TASK.build, TASK.serving, text_data.open_embedded
