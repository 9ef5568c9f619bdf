"""Tokens: from texts to rows of numbers, and the vocabularies in between.

The numbers are TFF's: 0 pads, 1 to `size` are the vocabulary proper, and the next
three stand for what is not in it, for the beginning and for the end of a sentence.
"""

import collections
import dataclasses
import functools
import json
import os
import pathlib
import re
from typing import Any, Iterable, Mapping, Sequence

import numpy as np

# The characters of TFF's next-character task, in its order.
CHARACTERS = (
    'dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#\'/37;?bfjnrvzBFJNRVZ"&*.26:\n'
    'aeimquyAEIMQUY]!%)-159\r')

# What vocabularies are made from. Whoever sees a run sees its vocabulary.
PUBLIC, TRAINING_CLIENTS = 'public', 'training clients'
_FORMAT = 'vocabulary 1'
_MOST_WORDS = 1_000_000

_SENTENCE_END = re.compile(r'(?<=[.!?])\s+|\n+')
# As in TFF's Stack Overflow: punctuation is a token, but for apostrophes and
# hyphens inside words; an address is one token.
_TOKEN = re.compile(r"https?://\S+|[a-z0-9_]+(?:['-][a-z0-9_]+)*|[!-~]")
_ADDRESS = '<URL>'


@dataclasses.dataclass(frozen=True)
class Special:
  """The numbers of special tokens around a vocabulary of `size`."""

  size: int

  padding = 0

  @property
  def out_of_vocabulary(self) -> int:
    return self.size + 1

  @property
  def begin(self) -> int:
    return self.size + 2

  @property
  def end(self) -> int:
    return self.size + 3

  @property
  def count(self) -> int:
    """All tokens, special ones included."""
    return self.size + 4

  def is_proper(self, tokens: Any) -> Any:
    """Where tokens (an array or a tensor) are of the vocabulary proper."""
    return (tokens >= 1) & (tokens <= self.size)

  def names(self, words: Sequence[str]) -> tuple[str, ...]:
    """Names of all tokens, from those of the vocabulary proper."""
    return ('<padding>', *words, '<unknown>', '<begin>', '<end>')


@functools.lru_cache(maxsize=1)
def character_table() -> np.ndarray:
  """uint8 [128], the token of each ASCII character."""
  table = np.full(128, Special(len(CHARACTERS)).out_of_vocabulary, np.uint8)
  for number, character in enumerate(CHARACTERS, 1):
    table[ord(character)] = number
  return table


def character_rows(text: str, length: int) -> np.ndarray:
  """A text as rows of characters, as TFF's preprocessing has it.

  The text between the tokens of its beginning and its end is padded to a multiple
  of a row and cut into rows, so that no character stands in two of them.

  Args:
    text: What is not ASCII is not in the vocabulary.
    length: Characters that are predicted in a row.

  Returns:
    uint8 [rows, length + 1].
  """
  special = Special(len(CHARACTERS))
  codes = np.frombuffer(text.encode('utf-32-le', 'surrogatepass'), np.uint32)
  known = codes < 128
  middle = np.where(known, character_table()[np.where(known, codes, 0)],
                    special.out_of_vocabulary)
  count = len(codes) + 2
  rows = np.zeros(-(-count // (length + 1)) * (length + 1), np.uint8)
  rows[0], rows[1:count - 1], rows[count - 1] = special.begin, middle, special.end
  return rows.reshape([-1, length + 1])


def sentences(text: str) -> list[str]:
  """A text's sentences, in lower case, their tokens separated by spaces."""
  found = []
  for sentence in _SENTENCE_END.split(text):
    tokens = [_ADDRESS if token.startswith(('http://', 'https://')) else token
              for token in _TOKEN.findall(sentence.lower())]
    if tokens:
      found.append(' '.join(tokens))
  return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vocabulary:
  """Words, and labels if the task has them, the most frequent first.

  Attributes:
    words: Without special tokens.
    labels: Such as tags; empty if the task has none.
    made_from: PUBLIC or TRAINING_CLIENTS.
  """

  words: tuple[str, ...]
  labels: tuple[str, ...] = ()
  made_from: str

  def __post_init__(self):
    if self.made_from not in (PUBLIC, TRAINING_CLIENTS):
      raise ValueError(
          f'made_from must be {PUBLIC!r} or {TRAINING_CLIENTS!r}, found '
          f'{self.made_from!r}')
    for name in ('words', 'labels'):
      found = getattr(self, name)
      bad = [word for word in found
             if not isinstance(word, str) or not word or word != word.strip()
             or len(word.split()) > 1]
      if bad:
        raise ValueError(
            f'{name} must be texts without spaces, found {bad[0]!r}')
      double = [word for word, count in collections.Counter(found).items()
                if count > 1]
      if double:
        raise ValueError(f'{name} must differ from each other, found '
                         f'{double[0]!r} twice')
    if not 1 <= len(self.words) <= _MOST_WORDS:
      raise ValueError(f'there must be 1 to {_MOST_WORDS} words, found '
                       f'{len(self.words)}')

  @property
  def special(self) -> Special:
    return Special(len(self.words))

  @functools.cached_property
  def _word_numbers(self) -> Mapping[str, int]:
    return {word: number for number, word in enumerate(self.words, 1)}

  @functools.cached_property
  def _label_numbers(self) -> Mapping[str, int]:
    return {label: number for number, label in enumerate(self.labels, 1)}

  def numbers(self, tokens: Iterable[str]) -> list[int]:
    """Tokens of words; out_of_vocabulary for the others."""
    unknown = self.special.out_of_vocabulary
    return [self._word_numbers.get(token, unknown) for token in tokens]

  def known_numbers(self, tokens: Iterable[str]) -> list[int]:
    """Tokens of those words that are in the vocabulary, from 1 on."""
    return [self._word_numbers[token] for token in tokens
            if token in self._word_numbers]

  def label_numbers(self, labels: Iterable[str]) -> list[int]:
    """Numbers of those labels that there are, from 1 on, each once."""
    return sorted({self._label_numbers[label] for label in labels
                   if label in self._label_numbers})

  def sentence_row(self, sentence: str, length: int) -> np.ndarray:
    """A sentence as a row of words, as TFF's preprocessing has it.

    Args:
      sentence: Tokens separated by spaces.
      length: What is longer is cut off, and then has no end token.

    Returns:
      int32 [length + 1], with the token of the beginning, padded.
    """
    row = np.zeros(length + 1, np.int32)
    words = self.numbers(sentence.split(' ')[:length])
    row[0] = self.special.begin
    row[1:len(words) + 1] = words
    if len(words) < length:
      row[len(words) + 1] = self.special.end
    return row

  def first(self, words: int, labels: int | None = None) -> 'Vocabulary':
    """At most so many of the most frequent words and labels."""
    return dataclasses.replace(
        self, words=self.words[:words], labels=self.labels[:labels])

  def dumps(self) -> str:
    """The text of a file that `read` reads."""
    return json.dumps(
        dict(format=_FORMAT, made_from=self.made_from, words=self.words,
             labels=self.labels), indent=0, ensure_ascii=False) + '\n'


def most_frequent(counts: Mapping[str, int], number: int) -> tuple[str, ...]:
  """The most frequent keys, ties in the order of the alphabet."""
  ranked = sorted(counts, key=lambda key: (-counts[key], key))
  return tuple(ranked[:number])


def read(path: str | os.PathLike[str]) -> Vocabulary:
  """Reads a vocabulary.

  Args:
    path: A JSON file as `Vocabulary.dumps` makes it, or with 'words' (and 'labels')
      alone; or a text file with a word at the beginning of each line, the most
      frequent first. One that does not say what it was made from is public.

  Raises:
    ValueError: If the file is missing or malformed; the message names it.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise ValueError(f'vocabulary {path} does not exist or is not a file')
  try:
    text = path.read_text(encoding='utf-8')
    if text.lstrip().startswith('{'):
      return _from_json(json.loads(text))
    return Vocabulary(
        words=tuple(line.split()[0] for line in text.splitlines() if line.strip()),
        made_from=PUBLIC)
  except (ValueError, RecursionError) as error:
    raise ValueError(f'vocabulary {path}: {error}') from error


def _from_json(found: Mapping[str, Any]) -> Vocabulary:
  unknown = sorted(set(found) - {'format', 'made_from', 'words', 'labels'})
  if unknown or found.get('format', _FORMAT) != _FORMAT:
    raise ValueError(
        f'must have words, and may have labels, made_from and the format '
        f'{_FORMAT!r}; found {", ".join(map(repr, found))}'[:300])
  lists = {}
  for name in ('words', 'labels'):
    value = found.get(name, [])
    if not isinstance(value, list):
      raise ValueError(f'{name} must be a list of texts')
    lists[name] = tuple(value)
  return Vocabulary(made_from=found.get('made_from', PUBLIC), **lists)
