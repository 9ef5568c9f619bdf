"""Tests of tokens and vocabularies, against TFF's preprocessing."""

import collections
import json

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.simulation.baselines.shakespeare import (
    char_prediction_preprocessing)
from tensorflow_federated.python.simulation.baselines.stackoverflow import (
    word_prediction_preprocessing)

from tasks.models import text as text_models
from tasks.text import shakespeare, vocabulary as vocabulary_lib


WORDS = ('the', 'to', '.', 'code', 'is')
_PLAIN = tff.simulation.baselines.ClientSpec(
    num_epochs=1, batch_size=1000, shuffle_buffer_size=1)


def _tff(preprocess, **columns):
  """Rows of TFF's inputs and targets, put together again."""
  dataset = tf.data.Dataset.from_tensor_slices(collections.OrderedDict(columns))
  x, y = next(iter(preprocess(dataset)))
  return np.concatenate([x.numpy(), y.numpy()[:, -1:]], axis=1)


def test_characters_are_those_of_tff():
  assert list(shakespeare.CHARACTERS) == char_prediction_preprocessing.CHAR_VOCAB
  special = text_models.Special(len(shakespeare.CHARACTERS))
  assert (special.padding, special.out_of_vocabulary, special.begin,
          special.end) == char_prediction_preprocessing.get_special_tokens()
  assert special.count == 90


@pytest.mark.parametrize('length', [5, 80])
def test_character_rows_are_those_of_tff(length):
  snippets = ['', 'A', 'Yon light~ is not day-light;\nI know it, I:', 'x' * 200,
              'To be, or not'.ljust(length - 1, '!')]
  expected = _tff(
      char_prediction_preprocessing.create_preprocess_fn(_PLAIN, length),
      snippets=snippets)
  actual = np.concatenate([shakespeare.character_rows(text, length) for text in snippets])
  assert actual.dtype == np.uint8
  np.testing.assert_array_equal(actual, expected)


def test_characters_outside_ascii_are_each_out_of_vocabulary():
  actual = shakespeare.character_rows('é\U0001f600a\x00', 7)[0]
  special = text_models.Special(len(shakespeare.CHARACTERS))
  unknown = special.out_of_vocabulary
  assert actual.tolist() == [
      special.begin, unknown, unknown, shakespeare.CHARACTERS.index('a') + 1, unknown,
      special.end, 0, 0]


@pytest.mark.parametrize('length', [3, 20])
def test_sentence_rows_are_those_of_tff(length):
  sentences = ['the code is here .', 'the', 'to the code', 'a b c d e f']
  expected = _tff(
      word_prediction_preprocessing.create_preprocess_fn(
          _PLAIN, list(WORDS), sequence_length=length), tokens=sentences)
  vocabulary = vocabulary_lib.Vocabulary(words=WORDS, made_from=vocabulary_lib.PUBLIC)
  actual = np.stack([vocabulary.sentence_row(s, length) for s in sentences])
  assert actual.dtype == np.int32
  np.testing.assert_array_equal(actual, expected)
  special = word_prediction_preprocessing.get_special_tokens(len(WORDS))
  assert vocabulary.special.out_of_vocabulary == special.out_of_vocab[0]
  assert vocabulary.special.begin == special.beginning_of_sentence
  assert vocabulary.special.end == special.end_of_sentence


def test_only_the_vocabulary_proper_is_proper():
  special = text_models.Special(3)
  for tokens in (np.arange(7), tf.range(7)):
    assert np.asarray(special.is_proper(tokens)).tolist() == [
        False, True, True, True, False, False, False]
  assert special.names('abc') == (
      '<padding>', 'a', 'b', 'c', '<unknown>', '<begin>', '<end>')


@pytest.mark.parametrize('text, expected', [
    ('Use a List. Then (maybe) sort it!', ['use a list .', 'then ( maybe ) sort it !']),
    ("Don't use list.get(0)?", ["don't use list . get ( 0 ) ?"]),
    ('See https://example.com/a?b=1 now', ['see <URL> now']),
    ('one\n\ntwo  ', ['one', 'two']),
    ('C++ and spring-boot, naïve…', ['c + + and spring-boot , na ve']),
    ('…  \n', []),
    ('', [])])
def test_sentences_are_lower_case_tokens(text, expected):
  assert vocabulary_lib.sentences(text) == expected


def test_vocabulary_numbers_words_from_one_and_labels_once_each():
  vocabulary = vocabulary_lib.Vocabulary(
      words=WORDS, labels=('java', 'list'), made_from=vocabulary_lib.PUBLIC)
  assert vocabulary.sentence_row('to be the', 3).tolist() == [7, 2, 6, 1]
  assert vocabulary.known_numbers(['to', 'be', 'the', 'to']) == [2, 1, 2]
  assert vocabulary.label_numbers(['list', 'x', 'list', 'java']) == [1, 2]


def test_most_frequent_first_and_ties_by_the_alphabet():
  assert vocabulary_lib.most_frequent({'b': 2, 'c': 5, 'a': 2, 'd': 1}, 3) == (
      'c', 'a', 'b')


def test_vocabulary_file_keeps_what_it_was_made_from(tmp_path):
  path = tmp_path / 'vocabulary.json'
  vocabulary = vocabulary_lib.Vocabulary(
      words=('naïve', '"'), labels=('c#',), made_from=vocabulary_lib.TRAINING_CLIENTS)
  path.write_text(vocabulary.dumps(), encoding='utf-8')
  assert vocabulary_lib.read(path) == vocabulary


def test_plain_lists_are_public(tmp_path):
  path = tmp_path / 'words'
  path.write_text('the 2300\n\nto 17\ncode\n', encoding='utf-8')
  assert vocabulary_lib.read(path) == vocabulary_lib.Vocabulary(
      words=('the', 'to', 'code'), made_from=vocabulary_lib.PUBLIC)
  path.write_text(json.dumps({'words': ['a'], 'labels': ['b']}), encoding='utf-8')
  assert vocabulary_lib.read(path).made_from == vocabulary_lib.PUBLIC


@pytest.mark.parametrize('content, message', [
    (None, 'does not exist or is not a file'),
    (b'', 'words must be 1 to 1000000, found 0'),
    (b'the\nto\nthe\n', "words must differ from each other, found 'the' twice"),
    (b'\xff\xfe', "codec can't decode"),
    (b'{"words": ["a"', 'Expecting'),
    (b'{"words": "abc"}', 'words must be a list of texts'),
    (b'{"words": [1]}', 'words must be texts without spaces, found 1'),
    (b'{"words": ["a b"]}', "words must be texts without spaces, found 'a b'"),
    (b'{"words": ["a"], "labels": [""]}', 'labels must be texts without spaces'),
    (b'{"words": ["a"], "tags": []}', "found .'words', 'tags'"),
    (b'{"words": ["a"], "made_from": "me"}', "made_from must be one of public"),
    (b'{"words": ["a"], "format": "vocabulary 2"}', 'must have words')])
def test_bad_vocabulary_files_are_one_clear_line(tmp_path, content, message):
  path = tmp_path / 'words'
  if content is not None:
    path.write_bytes(content)
  with pytest.raises(ValueError, match=message) as raised:
    vocabulary_lib.read(path)
  assert str(path) in str(raised.value)
