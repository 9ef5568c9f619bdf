"""Data and vocabularies of the two Stack Overflow tasks.

One client is one user. Records are posts as people wrote them ('text'), or, as in
TFF's file, sentences whose tokens are separated by spaces already ('tokens').

A vocabulary built from clients' texts reveals something about them, and no noise is
added to it. So it is outside the guarantee, and a run that uses one says so; a public
list of words is the way out.
"""

import collections
import json
from typing import Any

from tasks import checks
from tasks import official
from tasks import task
from tasks.sources import records
from tasks.text import data as text_data
from tasks.text import tokens as text_tokens

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

_TOKENS = 'tokens'


class Posts:
  """The data of a task, opened.

  Attributes:
    data: Raw sources; see text_data.TextData.
  """

  def __init__(self, *, text_field: str | None, with_tags: bool,
               data_source: str | None = None, **data_options: Any):
    """Opens the data.

    Args:
      text_field: The field of the text; None means 'text', and 'tokens' in TFF's
        file. One of the name 'tokens' is taken as it is.
      with_tags: Whether to read 'tags', between '|' or as a list, and 'title'.
      data_source: See text_data.load.
      **data_options: See text_data.load.
    """
    self._is_official = data_source == 'official'
    self._cache_dir = data_options.get('cache_dir')
    self._with_tags = with_tags
    if text_field is None:
      text_field = _TOKENS if self._is_official else 'text'
    self._is_split = text_field == _TOKENS
    fields = [records.Field(
        name='text', source_name=text_field, kind=records.TEXT)]
    if with_tags:
      fields += [records.Field(name=name, kind=records.TEXT, optional=True)
                 for name in ('tags', 'title')]
    self.data = text_data.load(
        OFFICIAL, fields=fields, privacy_unit='one user', data_source=data_source,
        **data_options)

  def sentences(self, text: str) -> list[str]:
    """Sentences of a record's text, tokens separated by spaces."""
    if self._is_split:
      return [text] if text else []
    return text_tokens.sentences(text)

  @staticmethod
  def tags(text: str) -> list[str]:
    """Tags of a record."""
    return [tag for tag in text.split('|') if tag]

  def vocabulary(self, path: str | None, num_words: int,
                 num_labels: int = 0) -> text_tokens.Vocabulary:
    """The given vocabulary, TFF's for TFF's file, or one of the training clients.

    Args:
      path: A file that text_tokens.read reads, or None.
      num_words: Maximum number of words, >= 1.
      num_labels: Maximum number of labels, >= 1 if there are tags. A label of every
        record that has any is left out when clients are counted: there is nothing to
        predict.

    Raises:
      ValueError: If a file is bad or can't be downloaded, if a number is out of range,
        or if there are no words or lacking labels.
    """
    checks.integer('vocabulary_size', num_words, 1)
    if self._with_tags:
      checks.integer('num_labels', num_labels, 1)
    if path is not None:
      vocabulary = text_tokens.read(path)
    elif self._is_official:
      vocabulary = self._official_vocabulary()
    else:
      vocabulary = self._counted_vocabulary(num_words, num_labels)
    if self._with_tags and not vocabulary.labels:
      raise ValueError('there are no labels: ' + (
          'the training clients have none' if path is None else
          f'vocabulary {path} has none'))
    return vocabulary.first(num_words, num_labels)

  def _official_vocabulary(self) -> text_tokens.Vocabulary:
    """TFF's published counts, by training users; downloaded once."""
    words = text_tokens.read(_WORD_COUNT.find_or_download(self._cache_dir)).words
    labels = ()
    if self._with_tags:
      path = _TAG_COUNT.find_or_download(self._cache_dir)
      try:
        counts = json.loads(path.read_text(encoding='utf-8'))
        labels = text_tokens.most_frequent(counts, len(counts))
      except (ValueError, TypeError) as error:
        raise ValueError(f'{path} is damaged: {error}') from error
    return text_tokens.Vocabulary(
        words=words, labels=labels, made_from=text_tokens.TRAINING_CLIENTS)

  def _counted_vocabulary(self, num_words: int,
                          num_labels: int) -> text_tokens.Vocabulary:
    """Words and labels by the number of training clients that have them."""
    # Not by occurrences: one client adds at most 1 to each count.
    words, labels = collections.Counter(), collections.Counter()
    labelled, with_label = 0, collections.Counter()  # Records.
    for client in self.data.population.client_ids:
      try:
        raw, _ = self.data.split(self.data.population.examples(client))
      except task.BadClientError as error:
        self.data.skips.client(client, error)
        continue
      words.update({
          word for text in (*raw['text'], *raw.get('title', ()))
          for sentence in self.sentences(text) for word in sentence.split(' ')})
      of_records = [set(self.tags(text)) for text in raw.get('tags', ())]
      labels.update(set().union(*of_records))
      labelled += sum(map(bool, of_records))
      with_label.update(label for record in of_records for label in record)
    if not words:
      raise ValueError('the training clients have no words')
    labels = {label: count for label, count in labels.items()
              if with_label[label] < labelled}
    return text_tokens.Vocabulary(
        words=text_tokens.most_frequent(words, num_words),
        labels=text_tokens.most_frequent(labels, num_labels),
        made_from=text_tokens.TRAINING_CLIENTS)

  def build_task(self, name: str, model: task.Model,
                 vocabulary: text_tokens.Vocabulary, convert: text_data.Convert,
                 element_spec: records.ElementSpec, **limits: int | None) -> task.Task:
    """Builds the task of a vocabulary; see text_data.build_task."""
    public = vocabulary.made_from == text_tokens.PUBLIC
    return text_data.build_task(
        name, model, self.data, convert, element_spec,
        files={VOCABULARY_FILE: vocabulary.dumps()},
        warnings=() if public else (OUTSIDE,), **limits)
