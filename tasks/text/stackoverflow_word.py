"""Task: predict the next word of posts of Stack Overflow; data of both of its tasks.

The metric 'accuracy' leaves out padding, words that are not in the vocabulary, and
the beginning and end of sentences; 'accuracy_all_tokens' leaves out padding only.

One client is one user. Records are posts as people wrote them ('text'), or, as in
TFF's file, sentences whose tokens are separated by spaces already ('tokens').

A vocabulary built from clients' texts reveals something about them, and no noise is
added to it. So it is outside the guarantee, and a run that uses one says so; a public
list of words is the way out.
"""

import collections
import dataclasses
import functools
import json
import math
import os
import pathlib
import re
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from tasks import checks
from tasks import official
from tasks import task
from tasks.models import text as text_models
from tasks.sources import records
from tasks.text import data as text_data

OFFICIAL = official.File(
    what='federated Stack Overflow', name='stackoverflow.sqlite',
    load='stackoverflow.load_data', others_split='heldout')
_WORD_COUNT, _TAG_COUNT = (
    official.File(
        what='the vocabulary of federated Stack Overflow',
        name=f'stackoverflow.{kind}_count', load=f'stackoverflow.load_{kind}_counts')
    for kind in ('word', 'tag'))

# The file in which a run keeps its vocabulary.
VOCABULARY_FILE = 'vocabulary.json'

OUTSIDE = task.Note(
    'vocabulary outside the guarantee',
    'the vocabulary was built from the training clients\' own texts: which words and '
    'labels are in it is outside the guarantee; --vocabulary takes a public list')

# What vocabularies are built from. Any observer of a run sees its vocabulary.
PUBLIC, TRAINING_CLIENTS = 'public', 'training clients'
NOISED_COUNTS = 'noised counts of training clients'
_MADE_FROM = (PUBLIC, TRAINING_CLIENTS, NOISED_COUNTS)
# The value of `vocabulary` for counts with noise, and the words that a client adds
# to them where their number is not given.
PRIVATE_COUNTS, WORDS_PER_CLIENT = 'private_counts', 64
# A client adds to the counts of at most this many labels.
_LABELS_PER_CLIENT = 8
# Fills the places of words that were not released; no text has it as a token.
_UNUSED = '<unused-{}>'
_FORMAT = 'vocabulary 1'
_MAX_WORDS = 1_000_000

_SENTENCE_END = re.compile(r'(?<=[.!?])\s+|\n+')
# As in TFF's Stack Overflow: punctuation is a token, except for apostrophes and
# hyphens inside words; an address is one token.
_TOKEN = re.compile(r"https?://\S+|[a-z0-9_]+(?:['-][a-z0-9_]+)*|[!-~]")
_ADDRESS = '<URL>'

# Name -> words where --vocabulary_size is not given, and the network. lstm_670 is the
# model of arXiv 2003.00295: 4,050,748 parameters. lstm_small, for quick runs under
# differential privacy, uses the embedding twice: 60,044, just below 2^16, the number
# to which a rotation pads.
MODELS = {
    'lstm_670': (10_000, dict(embedding=96, units=(670,))),
    'lstm_small': (1_000, dict(embedding=32, units=(64,), tied=True)),
}


# What posts with tags have besides their text.
TAG_FIELDS = [records.Field(name=name, kind=records.TEXT, optional=True)
              for name in ('tags', 'title')]


def field_of_text(data_source: str | None, text_field: str | None) -> str:
  """The field of the text: the one given, or 'text', and 'tokens' in TFF's file."""
  return text_field or ('tokens' if data_source == 'official' else 'text')


def sentences_of(field: str) -> Callable[[str], list[str]]:
  """Text of a field -> its sentences; that of the field 'tokens' is one as it is."""
  return sentences if field != 'tokens' else lambda text: [text] if text else []


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
    made_from: Origin: PUBLIC, TRAINING_CLIENTS or NOISED_COUNTS.
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
      raise ValueError(
          f'there must be 1 to {_MAX_WORDS} words, found {len(self.words)}')

  @property
  def special(self) -> text_models.Special:
    return text_models.Special(len(self.words))

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

  def sentence_row(self, sentence: str, length: int,
                   ended: bool = True) -> np.ndarray:
    """Tokens of a sentence's words in a row, as TFF's preprocessing has them.

    Args:
      sentence: Tokens separated by spaces.
      length: What is longer is cut off, and then has no end token.
      ended: Whether the sentence ends. Else it has no end token, and of what is longer
        the last words stay.

    Returns:
      int32 [length + 1], with the token of the beginning, padded.
    """
    special, words = self.special, sentence.split(' ')
    words = [self._word_numbers.get(word, special.out_of_vocabulary)
             for word in (words[:length] if ended else words[-length:])]
    row = np.zeros(length + 1, np.int32)
    tokens = [special.begin, *words, *[special.end] * ended][:length + 1]
    row[:len(tokens)] = tokens
    return row

  def dumps(self) -> str:
    """Serializes for a file that `read_vocabulary` reads."""
    return json.dumps(
        dict(format=_FORMAT, made_from=self.made_from, words=self.words,
             labels=self.labels), indent=0, ensure_ascii=False) + '\n'


def most_frequent(counts: Mapping[str, int], number: int) -> tuple[str, ...]:
  """The most frequent keys, ties in alphabetical order."""
  return tuple(sorted(counts, key=lambda key: (-counts[key], key))[:number])


def _built(finish: Callable[[Vocabulary], task.Task],
           vocabulary: Vocabulary) -> task.Task:
  """The task of a vocabulary, which says whether that was released with noise."""
  built = finish(vocabulary)
  if vocabulary.made_from != NOISED_COUNTS:
    return built
  return dataclasses.replace(built, noised_files=(VOCABULARY_FILE,))


def _filled(words: Sequence[str], number: int) -> tuple[str, ...]:
  """The words, and names for unused places up to a number."""
  return (*words, *map(_UNUSED.format, range(len(words), number)))


def read_vocabulary(path: str | os.PathLike[str]) -> Vocabulary:
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
    if not text.lstrip().startswith('{'):
      return Vocabulary(
          words=tuple(line.split()[0] for line in text.splitlines() if line.strip()),
          made_from=PUBLIC)
    content = json.loads(text)
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
  except (ValueError, RecursionError) as error:
    raise ValueError(f'vocabulary {path}: {error}') from error


class Posts:
  """The data of a task, opened.

  Attributes:
    data: Raw sources; see text_data.TextData.
    sentences: Text of a record -> its sentences, tokens separated by spaces.
  """

  def __init__(self, *, text_field: str | None, with_tags: bool = False,
               more_fields: Sequence[records.Field] = (),
               privacy_unit: str = 'one user', data_source: str | None = None,
               **data_options: Any):
    """Opens the data.

    Args:
      text_field: The field of the text; None means 'text', and 'tokens' in TFF's
        file. One of the name 'tokens' is taken as it is.
      with_tags: Whether to read 'tags', between '|' or as a list, and 'title'.
      more_fields: Further fields to read.
      privacy_unit: See text_data.load.
      data_source: See text_data.load.
      **data_options: See text_data.load.
    """
    self._is_official = data_source == 'official'
    self._cache_dir = data_options.get('cache_dir')
    self._with_tags = with_tags
    name = field_of_text(data_source, text_field)
    self.sentences = sentences_of(name)
    fields = [records.Field(name='text', source_name=name, kind=records.TEXT)]
    if with_tags:
      fields += TAG_FIELDS
    self.data = text_data.load(
        OFFICIAL, fields=[*fields, *more_fields], privacy_unit=privacy_unit,
        data_source=data_source, **data_options)

  def vocabulary(self, path: str | None, num_words: int,
                 num_labels: int = 0) -> Vocabulary:
    """The given vocabulary, TFF's for TFF's file, or one of the training clients.

    Args:
      path: A file that read_vocabulary reads, or None.
      num_words: Maximum number of words, >= 1.
      num_labels: Maximum number of labels, >= 1 if there are tags. A label of every
        record that has any is left out when clients are counted: there is nothing to
        predict.

    Raises:
      ValueError: If a file is bad or can't be downloaded, if a number is out of range,
        or if there are no words or lacking labels.
    """
    self._check_numbers(num_words, num_labels)
    if path is not None:
      vocabulary = read_vocabulary(path)
    elif self._is_official:
      vocabulary = self._official_vocabulary()
    else:
      vocabulary = self._counted_vocabulary(num_words, num_labels)
    if self._with_tags and not vocabulary.labels:
      raise ValueError('there are no labels: ' + (
          'the training clients have none' if path is None else
          f'vocabulary {path} has none'))
    return dataclasses.replace(
        vocabulary, words=vocabulary.words[:num_words],
        labels=vocabulary.labels[:num_labels])

  def build(self, finish: Callable[[Vocabulary], task.Task], path: str | None,
            num_words: int, num_labels: int = 0,
            words_per_client: int | None = None) -> task.Task:
    """Builds the task of a vocabulary, or one that needs it released first.

    Args:
      finish: Builds the task of a vocabulary.
      path: A file that read_vocabulary reads, PRIVATE_COUNTS or None.
      num_words: Maximum number of words; with PRIVATE_COUNTS it is filled up to this
        number, so that the size of the model says nothing.
      num_labels: Maximum number of labels, likewise.
      words_per_client: With PRIVATE_COUNTS, maximum number of words that a client adds
        to the counts: those that it uses most.

    Raises:
      ValueError: See `vocabulary`.
    """
    if path != PRIVATE_COUNTS:
      return _built(finish, self.vocabulary(path, num_words, num_labels))
    self._check_numbers(num_words, num_labels)
    most = {'word': WORDS_PER_CLIENT if words_per_client is None else words_per_client,
            'label': _LABELS_PER_CLIENT if self._with_tags else 0}
    checks.integer('words_per_client', most['word'], 1)

    def complete(counts: Mapping[tuple[str, str], int]) -> task.Task:
      words, labels = ({key: count for (kind, key), count in counts.items()
                        if kind == wanted} for wanted in ('word', 'label'))
      if not words or self._with_tags and not labels:
        raise ValueError(
            f'the noised counts have {len(words)} words and {len(labels)} labels that '
            'enough clients use: raise vocabulary_epsilon, or give a public list')
      return _built(finish, Vocabulary(
          words=_filled(most_frequent(words, num_words), num_words),
          labels=_filled(most_frequent(labels, num_labels), num_labels),
          made_from=NOISED_COUNTS))

    items = sum(most.values())
    placeholder = finish(Vocabulary(
        words=_filled((), num_words), labels=_filled((), num_labels),
        made_from=NOISED_COUNTS))
    return dataclasses.replace(
        placeholder, files={}, preliminary=task.Preliminary(
            file=VOCABULARY_FILE, totals=lambda: self._bounded_counts(most),
            l2_sensitivity=math.sqrt(items), items=items, complete=complete))

  def _bounded_counts(self, most: Mapping[str, int]
                      ) -> collections.Counter[tuple[str, str]]:
    """The number of clients that add to each word and label.

    Args:
      most: Kind -> maximum number of keys of that kind that one client adds to.
    """
    totals = collections.Counter()
    for of_kind in self._by_client():
      for kind, counts in of_kind.items():
        totals.update((kind, key) for key in most_frequent(counts, most[kind]))
    return totals

  def _training_records(self) -> Iterator[records.RawExamples]:
    """Yields the records that each training client trains on; skips bad clients."""
    for client in self.data.population.client_ids:
      try:
        raw, _ = self.data.split(self.data.population.examples(client))
      except task.BadClientError as error:
        self.data.skips.client(client, error)
        continue
      yield raw

  def _by_client(self) -> Iterator[dict[str, collections.Counter[str]]]:
    """Yields how often each training client has each of its words and labels."""
    for raw in self._training_records():
      yield {
          'word': collections.Counter(
              word for text in (*raw['text'], *raw.get('title', ()))
              for sentence in self.sentences(text) for word in sentence.split(' ')),
          'label': collections.Counter(
              label for text in raw.get('tags', ())
              for label in set(text.split('|')) if label.split() == [label])}

  def _check_numbers(self, num_words: int, num_labels: int) -> None:
    checks.integer('vocabulary_size', num_words, 1)
    if self._with_tags:
      checks.integer('num_labels', num_labels, 1)

  def _official_vocabulary(self) -> Vocabulary:
    """TFF's published counts, by training users; downloaded once."""
    words = read_vocabulary(_WORD_COUNT.find_or_download(self._cache_dir)).words
    labels = ()
    if self._with_tags:
      path = _TAG_COUNT.find_or_download(self._cache_dir)
      try:
        counts = json.loads(path.read_text(encoding='utf-8'))
        labels = most_frequent(counts, len(counts))
      except (ValueError, TypeError) as error:
        raise ValueError(f'{path} is damaged: {error}') from error
    return Vocabulary(
        words=words, labels=labels, made_from=TRAINING_CLIENTS)

  def _counted_vocabulary(self, num_words: int,
                          num_labels: int) -> Vocabulary:
    """Words and labels by the number of training clients that have them."""
    # Not by occurrences: one client adds at most 1 to each count.
    words, labels = collections.Counter(), collections.Counter()
    labelled, with_label = 0, collections.Counter()  # Records.
    for raw in self._training_records():
      words.update({
          word for text in (*raw['text'], *raw.get('title', ()))
          for sentence in self.sentences(text) for word in sentence.split(' ')})
      of_records = [set(filter(None, text.split('|')))
                    for text in raw.get('tags', ())]
      labels.update(set().union(*of_records))
      labelled += sum(map(bool, of_records))
      with_label.update(label for record in of_records for label in record)
    if not words:
      raise ValueError('the training clients have no words')
    labels = {label: count for label, count in labels.items()
              if with_label[label] < labelled}
    return Vocabulary(
        words=most_frequent(words, num_words),
        labels=most_frequent(labels, num_labels),
        made_from=TRAINING_CLIENTS)

  def build_task(self, name: str, served: task.Serving,
                 convert: text_data.Convert, element_spec: records.ElementSpec,
                 **limits: int | None) -> task.Task:
    """Builds the task of a vocabulary; see text_data.build_task."""
    return text_data.build_task(
        name, served.model, self.data, convert, element_spec, files=served.files,
        warnings=served.not_private, not_private=served.not_private,
        reader=served.reader, **limits)


def serving_of(vocabulary: Vocabulary, model: task.Model,
               element_spec: records.ElementSpec, reader: task.Reader) -> task.Serving:
  """The trained model of a vocabulary, which goes wherever the model goes."""
  return task.Serving(
      model=model, reader=reader, files={VOCABULARY_FILE: vocabulary.dumps()},
      inputs={name: spec for name, spec in element_spec.items() if name != 'y'},
      not_private=(OUTSIDE,) if vocabulary.made_from == TRAINING_CLIENTS else ())


def kept_vocabulary(path: str | None) -> Vocabulary:
  """The vocabulary that a run kept. Raises ValueError."""
  if path is None:
    raise ValueError(f'the run has no {VOCABULARY_FILE}, which its model needs')
  return read_vocabulary(path)


def build_model(name: str, vocabulary: Vocabulary) -> task.Model:
  """Builds one of MODELS for a vocabulary."""
  special = vocabulary.special
  return text_models.next_token_model(
      name, text_models.Network(
          tokens=special.count, projected=True, **MODELS[name][1]),
      special, kind='word', names=special.names(vocabulary.words))


def build(*, model: str | None = None, vocabulary: str | None = None,
          words_per_client: int | None = None, vocabulary_size: int | None = None,
          sequence_length: int = 20,
          max_examples_per_client: int | None = None,
          max_test_examples: int = 2000, text_field: str | None = None,
          **data_options: Any) -> task.Task:
  """Builds the task.

  Args:
    model: One of MODELS; None means 'lstm_small'.
    vocabulary: File of a vocabulary, or PRIVATE_COUNTS; see Posts.build.
    words_per_client: See Posts.build.
    vocabulary_size: Maximum number of words; None leaves it to the model.
    sequence_length: Words that are predicted in a sentence, which is one example;
      what is longer is cut off.
    max_examples_per_client: See text_data.build_task.
    max_test_examples: See text_data.build_task.
    text_field: See Posts.
    **data_options: See text_data.load.

  Raises:
    ValueError: On an unknown model, an option out of range, and bad data.
  """
  model = checks.choice('model', model, MODELS, 'lstm_small')
  checks.integer('sequence_length', sequence_length, 1)
  posts = Posts(
      text_field=text_field, with_tags=False, **data_options)

  recorded = {**data_options, 'text_field': text_field}
  field = field_of_text(data_options.get('data_source'), text_field)

  def finish(words: Vocabulary) -> task.Task:
    served = _serving(words, model, sequence_length, recorded)
    return posts.build_task(
        'stackoverflow_word', served,
        lambda raw: _examples(raw, field, True, words, sequence_length), served.inputs,
        max_examples_per_client=max_examples_per_client,
        max_test_examples=max_test_examples)

  return posts.build(
      finish, vocabulary, MODELS[model][0] if vocabulary_size is None else
      vocabulary_size, words_per_client=words_per_client)


def _examples(raw: records.RawExamples, field: str, ended: bool,
              vocabulary: Vocabulary, length: int) -> dict[str, np.ndarray]:
  """An example for each sentence."""
  rows = [vocabulary.sentence_row(sentence, length, ended)
          for text in raw['text'] for sentence in sentences_of(field)(text)]
  # A client may have no sentence.
  return {'tokens': np.array(rows, np.int32).reshape([-1, length + 1])}


def _serving(vocabulary: Vocabulary, model: str, length: int,
             recorded: Mapping[str, Any]) -> task.Serving:
  spec = {'tokens': (np.dtype(np.int32), (length + 1,))}
  convert = functools.partial(_examples, vocabulary=vocabulary, length=length)
  return serving_of(vocabulary, build_model(model, vocabulary), spec, text_data.reader(
      OFFICIAL, field_of_text, convert, spec, recorded))


def serving(inputs: task.Spec, weights: task.Weights, *, vocabulary: str | None = None,
            model: str | None = None, sequence_length: int = 20,
            **options: Any) -> task.Serving:
  """The trained model, by the vocabulary that the run kept; see registry.serving.

  Sentences that are read without labels go on: they have no token of their end.
  """
  del inputs, weights
  model = checks.choice('model', model, MODELS, 'lstm_small')
  return _serving(kept_vocabulary(vocabulary), model, sequence_length, options)
