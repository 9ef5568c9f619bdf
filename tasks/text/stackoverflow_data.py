"""What the two Stack Overflow tasks read, and how they take posts apart.

One client is one user. Records are posts as people wrote them ('text'), or, as in
TFF's file, sentences whose tokens are separated by spaces already ('tokens').
"""

from typing import Any

from tasks import checks
from tasks import official
from tasks import task
from tasks.sources import records
from tasks.text import data as text_data
from tasks.text import tokens as text_tokens
from tasks.text import vocabulary as text_vocabulary

OFFICIAL = official.File(
    what='federated Stack Overflow', name='stackoverflow.sqlite',
    load='stackoverflow.load_data', others_split='heldout')

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
    if text_field is None:
      text_field = _TOKENS if self._is_official else 'text'
    self._is_split = text_field == _TOKENS
    fields = [records.Field(
        name='text', source_name=text_field, kind=records.TEXT)]
    if with_tags:
      fields += [records.Field(name=name, kind=records.TEXT, optional=True)
                 for name in ('tags', 'title')]
    self._with_tags = with_tags
    self.data = text_data.load(
        OFFICIAL, fields=fields, privacy_unit='one user', data_source=data_source,
        **data_options)

  def sentences(self, text: str) -> list[str]:
    """The sentences of a record's text, tokens separated by spaces."""
    if self._is_split:
      return [text] if text else []
    return text_tokens.sentences(text)

  def words(self, raw: records.RawExamples) -> list[list[str]]:
    """The tokens of each text, titles included if they were read."""
    texts = [*raw['text'], *raw.get('title', ())]
    return [[token for sentence in self.sentences(text)
             for token in sentence.split(' ')] for text in texts]

  @staticmethod
  def tags(text: str) -> list[str]:
    """The tags of a record."""
    return [tag for tag in text.split('|') if tag]

  def vocabulary(self, path: str | None, num_words: int,
                 num_labels: int = 0) -> text_tokens.Vocabulary:
    """The given vocabulary, TFF's for TFF's file, or one of the training clients."""
    if path is None and self._is_official:
      checks.integer('vocabulary_size', num_words, 1)
      return text_vocabulary.official(
          self._cache_dir, self._with_tags).first(num_words, num_labels)
    labels = None
    if self._with_tags:
      labels = lambda raw: [self.tags(text) for text in raw['tags']]
    return text_vocabulary.obtain(
        self.data, vocabulary=path, words=self.words, num_words=num_words,
        labels=labels, num_labels=num_labels)

  def make_task(self, name: str, model: task.Model,
                vocabulary: text_tokens.Vocabulary, convert: text_data.Convert,
                element_spec: records.ElementSpec, **limits: int | None) -> task.Task:
    """The task of a vocabulary; other arguments are those of text_data.make_task."""
    return text_data.make_task(
        name, model, self.data, convert, element_spec,
        files={text_vocabulary.FILE_NAME: vocabulary.dumps()},
        warnings=text_vocabulary.warnings(vocabulary), **limits)
