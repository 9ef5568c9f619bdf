"""Tasks that learn from the words of posts: their data, vocabulary and what is served.

One client is one user. Records are posts as people wrote them ('text'), or, as in
TFF's file, sentences whose tokens are separated by spaces already ('tokens').
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import json
import math
from typing import Any

import numpy as np

from tasks import checks, official, task
from tasks.sources import records
from tasks.text import data as text_data, vocabulary as vocabulary_lib
from tasks.text.vocabulary import Vocabulary

OFFICIAL = official.File(
    what='federated Stack Overflow', name='stackoverflow.sqlite',
    load='stackoverflow.load_data', others_split='heldout')
_WORD_COUNT, _TAG_COUNT = (
    official.File(
        what='the vocabulary of federated Stack Overflow',
        name=f'stackoverflow.{kind}_count', load=f'stackoverflow.load_{kind}_counts')
    for kind in ('word', 'tag'))

# The value of `vocabulary` for counts with noise, and the words that a client adds
# to them where their number is not given.
PRIVATE_COUNTS, WORDS_PER_CLIENT = 'private_counts', 64
# A client adds to the counts of at most this many labels.
_LABELS_PER_CLIENT = 8
# Posts with tags have these in addition to their text.
_TAG_FIELDS = [records.Field(name=name, kind=records.TEXT, optional=True)
               for name in ('tags', 'title')]


def _text_field(data_source: str | None, text_field: str | None) -> str:
  """The field of the text: the one given, or 'text', and 'tokens' in TFF's file."""
  return text_field or ('tokens' if data_source == 'official' else 'text')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learned:
  """A model of the words of a vocabulary.

  Attributes:
    model: The model.
    element_spec: Element spec of labelled examples.
    convert: (raw records, name of the text's field, whether the examples are labelled)
      -> examples.
  """

  model: task.Model
  element_spec: records.ElementSpec
  convert: Callable[[records.RawExamples, str, bool], Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Posts:
  """A task of the words of posts.

  Attributes:
    name: Name of the task.
    learn: Vocabulary -> model and examples.
    num_words: Maximum number of words where `vocabulary_size` is not given.
    num_labels: Maximum number of tags, likewise; 0 if tags are not read.
    label_field: Name that is given, or None -> field of the label; None if there is
      none.
    privacy_unit: See text_data.load.
  """

  name: str
  learn: Callable[[Vocabulary], Learned]
  num_words: int
  num_labels: int = 0
  label_field: Callable[[str | None], records.Field] | None = None
  privacy_unit: str = 'one user'

  def build(self, *, vocabulary: str | None = None, words_per_client: int | None = None,
            vocabulary_size: int | None = None, num_labels: int | None = None,
            max_examples_per_client: int | None = None, max_test_examples: int = 2000,
            text_field: str | None = None, label_field: str | None = None,
            data_source: str | None = None, **data_options: Any) -> task.Task:
    """Builds the task of a vocabulary, or one that needs it released first.

    Args:
      vocabulary: A file that vocabulary.read reads; PRIVATE_COUNTS; or None for TFF's
        counts for TFF's file, else the words of the training clients.
      words_per_client: With PRIVATE_COUNTS, maximum number of words that a client adds
        to the counts: those that it uses most.
      vocabulary_size: Maximum number of words; None leaves it to the model. With
        PRIVATE_COUNTS it is filled up to this number, so that the size of the model
        says nothing.
      num_labels: Maximum number of tags, likewise. A tag of every record that has any
        is left out when clients are counted: there is nothing to predict.
      max_examples_per_client: See text_data.build_task.
      max_test_examples: See text_data.build_task.
      text_field: The field of the text; None means 'text', and 'tokens' in TFF's
        file. One of the name 'tokens' is taken as it is.
      label_field: Name of the field of the label.
      data_source: See text_data.load.
      **data_options: See text_data.load.

    Raises:
      ValueError: If a file is bad or can't be downloaded, if an option is out of range,
        if there are no words or lacking labels, or on bad data.
    """
    field = _text_field(data_source, text_field)
    fields = [records.Field(name='text', source_name=field, kind=records.TEXT),
              *self._more_fields]
    if self.label_field:
      fields.append(self.label_field(label_field))
    data = text_data.load(OFFICIAL, fields=fields, privacy_unit=self.privacy_unit,
                          data_source=data_source, **data_options)
    recorded = {**data_options, 'data_source': data_source, 'text_field': text_field,
                'label_field': label_field}

    def finish(words: Vocabulary) -> task.Task:
      learned = self.learn(words)
      served = self._served(words, learned, recorded)
      noised = words.made_from == vocabulary_lib.NOISED_COUNTS
      return text_data.build_task(
          self.name, served.model, data,
          lambda raw: learned.convert(raw, field, True), learned.element_spec,
          files=served.files, warnings=served.not_private, reader=served.reader,
          not_private=served.not_private,
          noised_files=(vocabulary_lib.FILE,) if noised else (),
          max_examples_per_client=max_examples_per_client,
          max_test_examples=max_test_examples)

    sizes = [default if given is None else given for given, default in (
        (vocabulary_size, self.num_words), (num_labels, self.num_labels))]
    checks.integer('vocabulary_size', sizes[0], 1)
    if self.num_labels:
      checks.integer('num_labels', sizes[1], 1)
    counting = _Counting(data, vocabulary_lib.sentences_of(field))
    if vocabulary == PRIVATE_COUNTS:
      return self._released(finish, counting, *sizes, words_per_client)
    if vocabulary is not None:
      words = vocabulary_lib.read(vocabulary)
    elif data_source == 'official':
      words = self._official_vocabulary(data_options.get('cache_dir'))
    else:
      words = counting.vocabulary(*sizes)
    if self.num_labels and not words.labels:
      raise ValueError('there are no labels: ' + (
          'the training clients have none' if vocabulary is None else
          f'vocabulary {vocabulary} has none'))
    return finish(dataclasses.replace(
        words, words=words.words[:sizes[0]], labels=words.labels[:sizes[1]]))

  def serving(self, vocabulary: str | None, recorded: Mapping[str, Any]
              ) -> task.Serving:
    """The trained model, by the vocabulary that the run kept; see registry.serving."""
    if vocabulary is None:
      raise ValueError(
          f'the run has no {vocabulary_lib.FILE}, which its model needs')
    words = vocabulary_lib.read(vocabulary)
    return self._served(words, self.learn(words), recorded)

  @property
  def _more_fields(self) -> Sequence[records.Field]:
    return _TAG_FIELDS if self.num_labels else []

  def _served(self, words: Vocabulary, learned: Learned,
              recorded: Mapping[str, Any]) -> task.Serving:
    """The trained model of a vocabulary, which goes wherever the model goes."""
    outside = words.made_from == vocabulary_lib.TRAINING_CLIENTS
    return task.Serving(
        model=learned.model, files={vocabulary_lib.FILE: words.dumps()},
        inputs={name: spec for name, spec in learned.element_spec.items()
                if name != 'y'},
        not_private=(vocabulary_lib.OUTSIDE,) if outside else (),
        reader=text_data.reader(
            OFFICIAL, _text_field, learned.convert, learned.element_spec, recorded,
            self._more_fields, self.label_field))

  def _released(self, finish: Callable[[Vocabulary], task.Task], counting: '_Counting',
                num_words: int, num_labels: int,
                words_per_client: int | None) -> task.Task:
    """The task that needs its vocabulary released with noise."""
    most = {'word': WORDS_PER_CLIENT if words_per_client is None else words_per_client,
            'label': _LABELS_PER_CLIENT if self.num_labels else 0}
    checks.integer('words_per_client', most['word'], 1)

    def of_counts(words: Mapping[str, int], labels: Mapping[str, int]) -> task.Task:
      return finish(Vocabulary(
          words=vocabulary_lib.filled(words, num_words),
          labels=vocabulary_lib.filled(labels, num_labels),
          made_from=vocabulary_lib.NOISED_COUNTS))

    def complete(counts: Mapping[tuple[str, str], int]) -> task.Task:
      words, labels = ({key: count for (kind, key), count in counts.items()
                        if kind == wanted} for wanted in ('word', 'label'))
      if not words or self.num_labels and not labels:
        raise ValueError(
            f'the noised counts have {len(words)} words and {len(labels)} labels that '
            'enough clients use: raise vocabulary_epsilon, or give a public list')
      return of_counts(words, labels)

    items = sum(most.values())
    return dataclasses.replace(
        of_counts({}, {}), files={}, preliminary=task.Preliminary(
            file=vocabulary_lib.FILE, totals=lambda: counting.bounded(most),
            l2_sensitivity=math.sqrt(items), items=items, complete=complete))

  def _official_vocabulary(self, cache_dir: str | None) -> Vocabulary:
    """TFF's published counts, by training users; downloaded once."""
    words = vocabulary_lib.read(_WORD_COUNT.find_or_download(cache_dir)).words
    labels = ()
    if self.num_labels:
      path = _TAG_COUNT.find_or_download(cache_dir)
      try:
        counts = json.loads(path.read_text(encoding='utf-8'))
        labels = vocabulary_lib.most_frequent(counts, len(counts))
      except (ValueError, TypeError) as error:
        raise ValueError(f'{path} is damaged: {error}') from error
    return Vocabulary(words=words, labels=labels,
                      made_from=vocabulary_lib.TRAINING_CLIENTS)


@dataclasses.dataclass(frozen=True)
class _Counting:
  """Counts of the training clients' words and labels.

  Attributes:
    data: Raw sources.
    sentences: Text of a record -> its sentences, tokens separated by spaces.
  """

  data: text_data.TextData
  sentences: Callable[[str], list[str]]

  def _records(self) -> Iterator[records.RawExamples]:
    """Yields the records that each training client trains on; skips bad clients."""
    for client in self.data.population.client_ids:
      try:
        raw, _ = self.data.split(self.data.population.examples(client))
      except task.BadClientError as error:
        self.data.skips.client(client, error)
        continue
      yield raw

  def _words(self, raw: records.RawExamples) -> Iterator[str]:
    return (word for text in (*raw['text'], *raw.get('title', ()))
            for sentence in self.sentences(text) for word in sentence.split(' '))

  def bounded(self, most: Mapping[str, int]) -> collections.Counter[tuple[str, str]]:
    """The number of clients that add to each word and label.

    Args:
      most: Kind -> maximum number of keys of that kind that one client adds to.
    """
    totals = collections.Counter()
    for raw in self._records():
      labels = (label for text in raw.get('tags', ())
                for label in set(text.split('|')) if label.split() == [label])
      for kind, keys in (('word', self._words(raw)), ('label', labels)):
        chosen = vocabulary_lib.most_frequent(collections.Counter(keys), most[kind])
        totals.update((kind, key) for key in chosen)
    return totals

  def vocabulary(self, num_words: int, num_labels: int) -> Vocabulary:
    """Words and labels by the number of training clients that have them."""
    # Not by occurrences: one client adds at most 1 to each count.
    words, labels = collections.Counter(), collections.Counter()
    labelled, with_label = 0, collections.Counter()  # Records.
    for raw in self._records():
      words.update(set(self._words(raw)))
      of_records = [set(filter(None, text.split('|')))
                    for text in raw.get('tags', ())]
      labels.update(set().union(*of_records))
      labelled += sum(map(bool, of_records))
      with_label.update(label for record in of_records for label in record)
    if not words:
      raise ValueError('the training clients have no words')
    labels = {label: count for label, count in labels.items()
              if with_label[label] < labelled}
    return Vocabulary(words=vocabulary_lib.most_frequent(words, num_words),
                      labels=vocabulary_lib.most_frequent(labels, num_labels),
                      made_from=vocabulary_lib.TRAINING_CLIENTS)
