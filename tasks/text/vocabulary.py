"""Vocabularies: words and labels, and the texts that they are words of.

A vocabulary built from clients' texts reveals something about them, and no noise is
added to it. So it is outside the guarantee, and a run that uses one says so; a public
list of words is the way out.
"""

import collections
from collections.abc import Callable, Iterable, Mapping
import dataclasses
import functools
import json
import os
import pathlib
import re

import numpy as np

from tasks import checks, task
from tasks.models import text as text_models

# The file in which a run keeps its vocabulary.
FILE = 'vocabulary.json'

OUTSIDE = task.Note('vocabulary outside the guarantee', 'the vocabulary was built from '
                    'the training clients\' own texts: which words and labels are in it '
                    'is outside the guarantee; --vocabulary takes a public list')

# Sources of vocabularies. Any observer of a run sees its vocabulary.
PUBLIC, TRAINING_CLIENTS = 'public', 'training clients'
NOISED_COUNTS = 'noised counts of training clients'
_MADE_FROM = (PUBLIC, TRAINING_CLIENTS, NOISED_COUNTS)
# Fills the places of words that were not released; no text has it as a token.
_UNUSED = '<unused-{}>'
_FORMAT = 'vocabulary 1'
_MAX_WORDS = 1_000_000

_SENTENCE_END = re.compile(r'(?<=[.!?])\s+|\n+')
# Same as TFF's Stack Overflow: punctuation is a token, except for apostrophes and
# hyphens inside words; an address is one token.
_TOKEN = re.compile(r"https?://\S+|[a-z0-9_]+(?:['-][a-z0-9_]+)*|[!-~]")
_ADDRESS = '<URL>'


def sentences_of(field: str) -> Callable[[str], list[str]]:
  """Text of a field -> its sentences; that of the field 'tokens' is one as it is."""
  return sentences if field != 'tokens' else lambda text: [text] if text else []


def sentences(text: str) -> list[str]:
  """Sentences of a text, in lower case, their tokens separated by spaces."""
  return list(filter(None, (
      ' '.join(_ADDRESS if token.startswith(('http://', 'https://')) else token
               for token in _TOKEN.findall(sentence.lower()))
      for sentence in _SENTENCE_END.split(text))))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vocabulary:
  """Words, and labels (such as tags) if the task has them, the most frequent first.

  Words are without special tokens; `made_from` is PUBLIC, TRAINING_CLIENTS or
  NOISED_COUNTS.
  """

  words: tuple[str, ...]
  labels: tuple[str, ...] = ()
  made_from: str

  def __post_init__(self):
    checks.choice('made_from', self.made_from, _MADE_FROM)
    for name in ('words', 'labels'):
      words = getattr(self, name)
      for word in words:
        if not isinstance(word, str) or word.split() != [word]:
          raise ValueError(f'{name} must be texts without spaces, found {word!r}')
      for word, count in collections.Counter(words).most_common(1):
        if count > 1:
          raise ValueError(f'{name} must differ from each other, found {word!r} twice')
    if not 1 <= len(self.words) <= _MAX_WORDS:
      raise ValueError(f'words must be 1 to {_MAX_WORDS}, found {len(self.words)}')

  @property
  def special(self) -> text_models.Special:
    return text_models.Special(len(self.words))

  @functools.cached_property
  def _numbers(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Word -> its number, from 1 on, and label -> its number."""
    return tuple({text: number for number, text in enumerate(texts, 1)}
                 for texts in (self.words, self.labels))

  def known_numbers(self, tokens: Iterable[str]) -> list[int]:
    """Numbers, from 1 on, of those words that are in the vocabulary."""
    return list(filter(None, map(self._numbers[0].get, tokens)))

  def label_numbers(self, labels: Iterable[str]) -> list[int]:
    """Numbers, from 1 on, of those labels that are in the vocabulary, each once."""
    return sorted(set(filter(None, map(self._numbers[1].get, labels))))

  def sentence_row(self, sentence: str, length: int, ended: bool = True) -> np.ndarray:
    """Tokens of a sentence's words in a row, as TFF's preprocessing has them.

    int32 [length + 1], with the token of the beginning, padded. Of a sentence, tokens
    separated by spaces, what is longer is cut off, and then has no end token. One that
    is not `ended` has no end token either, and of what is longer the last words stay.
    """
    special, words = self.special, sentence.split(' ')
    words = [self._numbers[0].get(word, special.out_of_vocabulary)
             for word in (words[:length] if ended else words[-length:])]
    row = np.zeros(length + 1, np.int32)
    tokens = [special.begin, *words, *[special.end] * ended][:length + 1]
    row[:len(tokens)] = tokens
    return row

  def dumps(self) -> str:
    """Serializes for a file that `read` reads."""
    return json.dumps(
        dict(format=_FORMAT, made_from=self.made_from, words=self.words,
             labels=self.labels), indent=0, ensure_ascii=False) + '\n'


def most_frequent(counts: Mapping[str, int], number: int) -> tuple[str, ...]:
  """The most frequent keys, ties in alphabetical order."""
  return tuple(sorted(counts, key=lambda key: (-counts[key], key))[:number])


def filled(counts: Mapping[str, int], number: int) -> tuple[str, ...]:
  """The most frequent keys, and names for unused places up to a number."""
  words = most_frequent(counts, number)
  return (*words, *map(_UNUSED.format, range(len(words), number)))


def read(path: str | os.PathLike[str]) -> Vocabulary:
  """Reads a vocabulary.

  From a JSON file as written by `Vocabulary.dumps`, or with 'words' (and 'labels')
  alone; or a text file with a word at the beginning of each line, the most frequent
  first. One that does not say what it was built from is public. Raises ValueError if it
  is missing or malformed; the message names it.
  """
  with checks.located(f'vocabulary {path}', RecursionError):
    checks.file(path)
    text = pathlib.Path(path).read_text(encoding='utf-8')
    if not text.lstrip().startswith('{'):
      return Vocabulary(
          words=tuple(line.split()[0] for line in text.splitlines() if line.strip()),
          made_from=PUBLIC)
    content = json.loads(text)
    if set(content) - {'format', 'made_from', 'words', 'labels'} or (
        content.get('format', _FORMAT) != _FORMAT):
      raise ValueError(f'must have words, labels, made_from and format {_FORMAT!r}, '
                       f'found {list(content)}'[:300])
    for name in ('words', 'labels'):
      if not isinstance(content.setdefault(name, []), list):
        raise ValueError(f'{name} must be a list of texts')
    return Vocabulary(words=tuple(content['words']), labels=tuple(content['labels']),
                      made_from=content.get('made_from', PUBLIC))
