"""Tasks that learn from the words of posts: their vocabulary and what is served.

One client is one user. Records are posts as people wrote them ('text'), or, as in
TFF's file, sentences whose tokens are separated by spaces already ('tokens').
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import json
import math
from typing import Any

from tasks import checks, official as official_files, task
from tasks.sources import records
from tasks.text import data as text_data, vocabulary as vocabulary_lib
from tasks.text.vocabulary import Vocabulary

OFFICIAL = official_files.File(
    name='stackoverflow.sqlite', load='stackoverflow.load_data', others_split='heldout')
_WORD_COUNT, _TAG_COUNT = (official_files.File(
    name=f'stackoverflow.{kind}_count', load=f'stackoverflow.load_{kind}_counts')
                           for kind in ('word', 'tag'))

# The value of `vocabulary` for counts with noise, and the words that a client adds
# to them where their number is not given.
PRIVATE_COUNTS, WORDS_PER_CLIENT = 'private_counts', 64
# A client adds to the counts of at most this many labels.
_LABELS_PER_CLIENT = 8
# Posts with tags have these in addition to their text.
TAG_FIELDS = tuple(records.Field(name=name, kind=records.TEXT, optional=True)
                   for name in ('tags', 'title'))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Posts(text_data.TextTask):
  """A task of the words of posts; `learn` gives Vocabulary -> Learned.

  `models` are the maximum numbers of words and, if tags are read, of tags, where none
  are given, and more, by name.
  """

  models: Mapping[str, Sequence[Any]]
  official: official_files.File = OFFICIAL
  official_field: str = 'tokens'
  privacy_unit: str = 'one user'

  def build(self, *, vocabulary: str | None = None, words_per_client: int | None = None,
            vocabulary_size: int | None = None, num_labels: int | None = None,
            **options: Any) -> task.Task:
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
      **options: As in TextTask. A field of the name 'tokens', the default in TFF's
        file, is taken as it is.

    Raises ValueError if a file is bad or can't be downloaded, if an option is out of
    range, if there are no words or lacking labels, or on bad data.
    """
    learn = self.learn_by(options)
    num_words, *of_tags = self.models[options.get('model') or self.default_model]
    data = self.open(options)

    def finish(words: Vocabulary) -> task.Task:
      noised = words.made_from == vocabulary_lib.NOISED_COUNTS
      return self.build_learned(learn(words), data, options, **_of_serving(words),
                                noised_files=(vocabulary_lib.FILE,) if noised else ())

    num_words = num_words if vocabulary_size is None else vocabulary_size
    checks.integer('vocabulary_size', num_words, 1)
    if self.more_fields:
      num_labels = of_tags[0] if num_labels is None else num_labels
      checks.integer('num_labels', num_labels, 1)
    else:
      num_labels = 0
    sentences = vocabulary_lib.sentences_of(self.fields(options)[0].column)
    if vocabulary == PRIVATE_COUNTS:
      if words_per_client is None:
        words_per_client = WORDS_PER_CLIENT
      most = {'word': words_per_client,
              'label': _LABELS_PER_CLIENT if self.more_fields else 0}
      checks.integer('words_per_client', most['word'], 1)
      return _released(finish, lambda: _bounded(data, sentences, most), num_words,
                       num_labels, sum(most.values()))
    if vocabulary is not None:
      words = vocabulary_lib.read(vocabulary)
    elif options.get('data_source') == 'official':
      words = self._official_vocabulary(options.get('cache_dir'))
    else:
      words = _counted(data, sentences, num_words, num_labels)
    if self.more_fields and not words.labels:
      raise ValueError(f'there are no labels in {vocabulary or "the training clients"}')
    return finish(dataclasses.replace(
        words, words=words.words[:num_words], labels=words.labels[:num_labels]))

  def serving(self, inputs: task.Spec, weights: task.Weights, *,
              vocabulary: str | None = None, **options: Any) -> task.Serving:
    """The trained model, by the vocabulary that the run kept; see registry.serving."""
    del inputs, weights
    if vocabulary is None:
      raise ValueError(f'the run has no {vocabulary_lib.FILE}, which its model needs')
    words = vocabulary_lib.read(vocabulary)
    return self.served(self.learn_by(options)(words), options, **_of_serving(words))

  def _official_vocabulary(self, cache_dir: str | None) -> Vocabulary:
    """TFF's published counts, by training users; downloaded once."""
    words = vocabulary_lib.read(_WORD_COUNT.find_or_download(cache_dir)).words
    labels = ()
    if self.more_fields:
      path = _TAG_COUNT.find_or_download(cache_dir)
      with checks.located(path, TypeError):
        counts = json.loads(path.read_text(encoding='utf-8'))
        labels = vocabulary_lib.most_frequent(counts, len(counts))
    return Vocabulary(words=words, labels=labels,
                      made_from=vocabulary_lib.TRAINING_CLIENTS)


def _of_serving(words: Vocabulary) -> dict[str, Any]:
  """Attributes of task.Serving: the vocabulary goes wherever the model goes."""
  outside = words.made_from == vocabulary_lib.TRAINING_CLIENTS
  return {'files': {vocabulary_lib.FILE: words.dumps()},
          'not_private': (vocabulary_lib.OUTSIDE,) if outside else ()}


def _released(finish: Callable[[Vocabulary], task.Task],
              totals: Callable[[], Mapping[tuple[str, str], int]],
              num_words: int, num_labels: int, items: int) -> task.Task:
  """The task that needs its vocabulary released with noise."""

  def of_counts(words: Mapping[str, int], labels: Mapping[str, int]) -> task.Task:
    return finish(Vocabulary(words=vocabulary_lib.filled(words, num_words),
                             labels=vocabulary_lib.filled(labels, num_labels),
                             made_from=vocabulary_lib.NOISED_COUNTS))

  def complete(counts: Mapping[tuple[str, str], int]) -> task.Task:
    words, labels = ({key: count for (kind, key), count in counts.items()
                      if kind == wanted} for wanted in ('word', 'label'))
    if not words or num_labels and not labels:
      raise ValueError(f'the noised counts have {len(words)} words and {len(labels)} '
                       'labels: raise vocabulary_epsilon, or give a public list')
    return of_counts(words, labels)

  return dataclasses.replace(of_counts({}, {}), files={}, preliminary=task.Preliminary(
      file=vocabulary_lib.FILE, totals=totals, l2_sensitivity=math.sqrt(items),
      items=items, complete=complete))


def _words_and_labels(data: text_data.TextData, sentences: Callable[[str], list[str]]
                      ) -> Iterator[tuple[Iterator[str], list[set[str]]]]:
  """Words, and labels of each record, that a training client trains on.

  Yields them for each client; skips bad ones.
  """
  for _, examples in data.skips.examples(data.population):
    raw, _ = data.split(examples)
    yield ((word for text in (*raw['text'], *raw.get('title', ()))
            for sentence in sentences(text) for word in sentence.split(' ')),
           [set(filter(None, text.split('|'))) for text in raw.get('tags', ())])


def _bounded(data: text_data.TextData, sentences: Callable[[str], list[str]],
             most: Mapping[str, int]) -> collections.Counter[tuple[str, str]]:
  """The number of clients that add to each word and label.

  `most` is the maximum number of keys of each kind that one client adds to.
  """
  totals = collections.Counter()
  for words, of_records in _words_and_labels(data, sentences):
    labels = (label for record in of_records for label in record
              if label.split() == [label])
    for kind, keys in (('word', words), ('label', labels)):
      chosen = vocabulary_lib.most_frequent(collections.Counter(keys), most[kind])
      totals.update((kind, key) for key in chosen)
  return totals


def _counted(data: text_data.TextData, sentences: Callable[[str], list[str]],
             num_words: int, num_labels: int) -> Vocabulary:
  """Words and labels by the number of training clients that have them."""
  # Not by occurrences: one client adds at most 1 to each count.
  words, labels = collections.Counter(), collections.Counter()
  labelled, with_label = 0, collections.Counter()  # Records.
  for of_client, of_records in _words_and_labels(data, sentences):
    words.update(set(of_client))
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
