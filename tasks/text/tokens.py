"""Tokens: from texts to rows of token ids, and the vocabularies in between.

The ids are TFF's: 0 pads, 1 to `size` are the vocabulary proper, and the next three
stand for what is not in it, for the beginning and for the end of a sentence.
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

# What vocabularies are built from. Any observer of a run sees its vocabulary.
PUBLIC, TRAINING_CLIENTS = 'public', 'training clients'
_FORMAT = 'vocabulary 1'
_MAX_WORDS = 1_000_000

_SENTENCE_END = re.compile(r'(?<=[.!?])\s+|\n+')
# As in TFF's Stack Overflow: punctuation is a token, except for apostrophes and
# hyphens inside words; an address is one token.
_TOKEN = re.compile(r"https?://\S+|[a-z0-9_]+(?:['-][a-z0-9_]+)*|[!-~]")
_ADDRESS = '<URL>'


class Special:
  """The special tokens around a vocabulary proper.

  Attributes:
    size: Of the vocabulary proper.
    padding, out_of_vocabulary, begin, end: The special tokens.
    count: Number of all tokens, special ones included.
  """

  padding = 0

  def __init__(self, size: int):
    self.size = size
    self.out_of_vocabulary, self.begin, self.end, self.count = range(size + 1, size + 5)

  def is_proper(self, tokens: Any) -> Any:
    """Mask of the tokens (an array or a tensor) of the vocabulary proper."""
    return (tokens >= 1) & (tokens <= self.size)

  def names(self, words: Sequence[str]) -> tuple[str, ...]:
    """Names of all tokens; `words` are those of the vocabulary proper."""
    return ('<padding>', *words, '<unknown>', '<begin>', '<end>')


@functools.lru_cache(maxsize=1)
def character_table() -> np.ndarray:
  """uint8 [128], the token of each ASCII character."""
  table = np.full(128, Special(len(CHARACTERS)).out_of_vocabulary, np.uint8)
  table[list(CHARACTERS.encode())] = np.arange(1, len(CHARACTERS) + 1)
  return table


def character_rows(text: str, length: int) -> np.ndarray:
  """Tokens of a text's characters in rows, as TFF's preprocessing has them.

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
  """Sentences of a text, in lower case, their tokens separated by spaces."""
  result = []
  for sentence in _SENTENCE_END.split(text):
    tokens = [_ADDRESS if token.startswith(('http://', 'https://')) else token
              for token in _TOKEN.findall(sentence.lower())]
    if tokens:
      result.append(' '.join(tokens))
  return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vocabulary:
  """Words, and labels if the task has them, the most frequent first.

  Attributes:
    words: Without special tokens.
    labels: Such as tags; empty if the task has none.
    made_from: What it was built from, PUBLIC or TRAINING_CLIENTS.
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
      words = getattr(self, name)
      for word in words:
        if not isinstance(word, str) or word.split() != [word]:
          raise ValueError(f'{name} must be texts without spaces, found {word!r}')
      for word, count in collections.Counter(words).most_common(1):
        if count > 1:
          raise ValueError(f'{name} must differ from each other, found {word!r} twice')
    if not 1 <= len(self.words) <= _MAX_WORDS:
      raise ValueError(
          f'there must be 1 to {_MAX_WORDS} words, found {len(self.words)}')

  @property
  def special(self) -> Special:
    return Special(len(self.words))

  @functools.cached_property
  def _word_numbers(self) -> Mapping[str, int]:
    return {word: number for number, word in enumerate(self.words, 1)}

  @functools.cached_property
  def _label_numbers(self) -> Mapping[str, int]:
    return {label: number for number, label in enumerate(self.labels, 1)}

  def known_numbers(self, tokens: Iterable[str]) -> list[int]:
    """Numbers, from 1 on, of those words that are in the vocabulary."""
    return [self._word_numbers[token] for token in tokens
            if token in self._word_numbers]

  def label_numbers(self, labels: Iterable[str]) -> list[int]:
    """Numbers, from 1 on, of those labels that are in the vocabulary, each once."""
    return sorted({self._label_numbers[label] for label in labels
                   if label in self._label_numbers})

  def sentence_row(self, sentence: str, length: int) -> np.ndarray:
    """Tokens of a sentence's words in a row, as TFF's preprocessing has them.

    Args:
      sentence: Tokens separated by spaces.
      length: What is longer is cut off, and then has no end token.

    Returns:
      int32 [length + 1], with the token of the beginning, padded.
    """
    special = self.special
    words = [self._word_numbers.get(word, special.out_of_vocabulary)
             for word in sentence.split(' ')[:length]]
    row = np.zeros(length + 1, np.int32)
    tokens = [special.begin, *words, special.end][:length + 1]
    row[:len(tokens)] = tokens
    return row

  def first(self, words: int, labels: int | None = None) -> 'Vocabulary':
    """Keeps at most these numbers of the most frequent words and labels."""
    return dataclasses.replace(
        self, words=self.words[:words], labels=self.labels[:labels])

  def dumps(self) -> str:
    """Serializes for a file that `read` reads."""
    return json.dumps(
        dict(format=_FORMAT, made_from=self.made_from, words=self.words,
             labels=self.labels), indent=0, ensure_ascii=False) + '\n'


def most_frequent(counts: Mapping[str, int], number: int) -> tuple[str, ...]:
  """The most frequent keys, ties in alphabetical order."""
  return tuple(sorted(counts, key=lambda key: (-counts[key], key))[:number])


def read(path: str | os.PathLike[str]) -> Vocabulary:
  """Reads a vocabulary.

  Args:
    path: A JSON file as written by `Vocabulary.dumps`, or with 'words' (and 'labels')
      alone; or a text file with a word at the beginning of each line, the most
      frequent first. One that does not say what it was built from is public.

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


def _from_json(content: Mapping[str, Any]) -> Vocabulary:
  unknown = set(content) - {'format', 'made_from', 'words', 'labels'}
  if unknown or content.get('format', _FORMAT) != _FORMAT:
    raise ValueError(
        f'must have words, and may have labels, made_from and the format '
        f'{_FORMAT!r}; found {", ".join(map(repr, content))}'[:300])
  lists = {name: content.get(name, []) for name in ('words', 'labels')}
  for name, value in lists.items():
    if not isinstance(value, list):
      raise ValueError(f'{name} must be a list of texts')
  return Vocabulary(made_from=content.get('made_from', PUBLIC),
                    **{name: tuple(value) for name, value in lists.items()})
