"""Where a task's vocabulary comes from.

A vocabulary built from clients' texts tells of them, and no noise is added to it.
So it is outside the guarantee, and whoever uses one is told; a public list of words
is the way out.
"""

import collections
import json
import os
from typing import Callable, Iterable, Sequence

from tasks import checks
from tasks import official as official_files
from tasks.sources import records
from tasks import task
from tasks.text import data as text_data
from tasks.text import tokens as text_tokens

# Of the file that a run keeps its vocabulary in.
FILE_NAME = 'vocabulary.json'

OUTSIDE = task.Note(
    'vocabulary outside the guarantee',
    'the vocabulary was built from the training clients\' own texts: which words and '
    'labels are in it is outside the guarantee; --vocabulary takes a public list')

_WORD_COUNT, _TAG_COUNT = (
    official_files.File(
        what='the vocabulary of federated Stack Overflow',
        name=f'stackoverflow.{kind}_count', load=f'stackoverflow.load_{kind}_counts')
    for kind in ('word', 'tag'))

# Raw records of a client -> the words, or the labels, of each record.
Read = Callable[[records.RawExamples], Iterable[Sequence[str]]]


def obtain(data: text_data.TextData, *, vocabulary: str | os.PathLike[str] | None,
           words: Read, num_words: int, labels: Read | None = None,
           num_labels: int = 0) -> text_tokens.Vocabulary:
  """The given vocabulary, or one of the words that most training clients use.

  Args:
    data: Only the records that train are counted.
    vocabulary: A file that text_tokens.read reads; None counts.
    words: The words of each record of a client.
    num_words: At most so many words, >= 1.
    labels: The labels of each record of a client; None if the task has none.
    num_labels: At most so many labels. A label of every record that has any is
      left out when they are counted: there is nothing to predict.

  Raises:
    ValueError: If the file is bad or lacks labels that are needed, or if the
      clients have no words or labels.
  """
  checks.integer('vocabulary_size', num_words, 1)
  if labels is not None:
    checks.integer('num_labels', num_labels, 1)
  if vocabulary is None:
    found = _count(data, words, num_words, labels, num_labels)
  else:
    found = text_tokens.read(vocabulary).first(num_words, num_labels)
  if labels is not None and not found.labels:
    raise ValueError(
        'there are no labels: ' + ('the training clients have none'
                                   if vocabulary is None else
                                   f'vocabulary {vocabulary} has none'))
  return found


def _count(data, words, num_words, labels, num_labels) -> text_tokens.Vocabulary:
  # By clients, not by occurrences: one client adds at most 1 to each count.
  word_counts, label_counts = collections.Counter(), collections.Counter()
  labelled, with_label = 0, collections.Counter()  # Records.
  for client in data.population.client_ids:
    try:
      raw = data.train_records(data.population.examples(client))
    except task.BadClientError as error:
      data.skips.client(client, error)
      continue
    word_counts.update({word for record in words(raw) for word in record})
    if labels is not None:
      of_records = [set(record) for record in labels(raw)]
      label_counts.update(set().union(*of_records))
      labelled += sum(map(bool, of_records))
      with_label.update(label for record in of_records for label in record)
  if not word_counts:
    raise ValueError('the training clients have no words')
  label_counts = {label: count for label, count in label_counts.items()
                  if with_label[label] < labelled}
  return text_tokens.Vocabulary(
      words=text_tokens.most_frequent(word_counts, num_words),
      labels=text_tokens.most_frequent(label_counts, num_labels),
      made_from=text_tokens.TRAINING_CLIENTS)


def warnings(vocabulary: text_tokens.Vocabulary) -> tuple[str, ...]:
  """What a reader of a run's numbers must know of its vocabulary."""
  return () if vocabulary.made_from == text_tokens.PUBLIC else (OUTSIDE,)


def official(cache_dir: str | os.PathLike[str] | None,
             with_labels: bool) -> text_tokens.Vocabulary:
  """TFF's published counts for Stack Overflow, by training users; downloaded once.

  Raises:
    ValueError: If a file is neither there nor to be had, or is damaged.
  """
  path = _WORD_COUNT.find_or_download(cache_dir)
  labels: tuple[str, ...] = ()
  if with_labels:
    tags = _TAG_COUNT.find_or_download(cache_dir)
    try:
      counts = json.loads(tags.read_text(encoding='utf-8'))
      labels = text_tokens.most_frequent(counts, len(counts))
    except (ValueError, TypeError) as error:
      raise ValueError(f'{tags} is damaged: {error}') from error
  return text_tokens.Vocabulary(
      words=text_tokens.read(path).words, labels=labels,
      made_from=text_tokens.TRAINING_CLIENTS)
