"""Tests of the two Stack Overflow tasks."""

import json

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks.models import text as text_models
from tasks.text import (
    stackoverflow_tag, stackoverflow_word, vocabulary as vocabulary_lib)
from tests.tasks import official_file

# Client -> posts of (text, title, tags). Two clients are held out of twelve.
POSTS = {
    f'user{i}': [
        (f'Use the list. It is only{i}!', 'How to sort?', ['java', 'list']),
        ('No.', 'How to sort?', ['java', 'list', 'sorting']),
        ('The null is here', None, None),
        ('The the string', 'What is a string', ['java', 'string'][:1 + i % 2]),
        ('Last lastword', 'Title', ['java', 'string']),] for i in range(12)}


@pytest.fixture(name='path')
def _path(tmp_path):
  path = tmp_path / 'posts.jsonl'
  with open(path, 'w', encoding='utf-8') as file:
    for client, posts in POSTS.items():
      for text, title, tags in posts:
        file.write(json.dumps(dict(
            client=client, text=text, title=title, tags=tags)) + '\n')
  return str(path)


def _word(path, **options):
  return stackoverflow_word.build(
      data_source='jsonl', data_path=path, sequence_length=6, **options)


def _tag(path, **options):
  return stackoverflow_tag.build(data_source='jsonl', data_path=path, **options)


def _vocabulary(built):
  return json.loads(built.files[vocabulary_lib.FILE])


def _sentences(built, rows):
  names = text_models.Special(len(_vocabulary(built)['words'])).names(
      _vocabulary(built)['words'])
  return [' '.join(names[token] for token in row if token) for row in rows]


def test_sentences_of_posts_are_rows_of_words(path):
  built = _word(path)
  client = built.train.client_ids[0]
  number = client.removeprefix('user')
  assert _sentences(built, built.train.examples(client)['tokens']) == [
      '<begin> use the list . <end>', f'<begin> it is only{number} ! <end>',
      '<begin> no . <end>', '<begin> the null is here <end>',
      '<begin> the the string <end>']
  # The fifth post is for tests.
  assert set(_sentences(built, built.held_out['test_examples']['tokens'])) == {
      '<begin> <unknown> <unknown> <end>'}


def test_vocabulary_is_of_what_training_clients_train_on(path):
  built = _word(path)
  words = _vocabulary(built)['words']
  held_out = set(POSTS) - set(built.train.client_ids)
  assert len(held_out) == 1
  for client in POSTS:
    assert (f'only{client.removeprefix("user")}' in words) == (client not in held_out)
  assert 'lastword' not in words and 'title' not in words
  # By clients, and then by the alphabet; 'the' stands five times in each.
  assert words[:5] == ['!', '.', 'here', 'is', 'it']
  assert _vocabulary(built)['made_from'] == 'training clients'
  assert built.warnings == (vocabulary_lib.OUTSIDE,)
  assert 'outside the guarantee' in vocabulary_lib.OUTSIDE


def test_public_vocabulary_takes_the_place_of_the_clients(path, tmp_path):
  file = tmp_path / 'words'
  file.write_text('the\nstring\nzebra\nuse\n')
  built = _word(path, vocabulary=str(file), vocabulary_size=3)
  assert _vocabulary(built) == {
      'format': 'vocabulary 1', 'made_from': 'public',
      'words': ['the', 'string', 'zebra'], 'labels': []}
  assert built.warnings == ()
  assert _sentences(built, built.train.examples('user3')['tokens'])[0] == (
      '<begin> <unknown> the <unknown> <unknown> <end>')


@pytest.mark.parametrize('build', [_word, _tag])
def test_vocabulary_of_clients_is_a_reason_not_to_be_private(build, path, tmp_path):
  words = tmp_path / 'words.json'
  words.write_text(json.dumps(dict(words=['the', 'is'], labels=['list'])))
  assert build(path).not_private == (vocabulary_lib.OUTSIDE,)
  public = build(path, vocabulary=str(words))
  assert public.not_private == ()
  kept = tmp_path / 'vocabulary.json'
  kept.write_text(build(path).files[vocabulary_lib.FILE])
  module = stackoverflow_word if build is _word else stackoverflow_tag
  served = module.serving({}, [], vocabulary=str(kept))
  assert served.not_private and served.files == build(path).files


def test_unlabelled_sentences_go_on_and_keep_their_last_words(path):
  built = _word(path)
  read = lambda labelled: built.reader(labelled=labelled, data_path=path)
  assert set(read(True).client_ids) == set(POSTS)  # Those held out, too.
  client = built.train.client_ids[0]
  rows = [_sentences(built, read(labelled).examples(client)['tokens'])
          for labelled in (True, False)]
  assert rows[0][-1].endswith(' <end>')
  assert rows[1][-1] == rows[0][-1].removesuffix(' <end>')
  long = 'one two three four five six seven eight nine'
  vocabulary = vocabulary_lib.Vocabulary(
      words=tuple(long.split()), made_from=vocabulary_lib.PUBLIC)
  assert vocabulary.sentence_row(long, 3, ended=False).tolist() == [11, 7, 8, 9]


def test_unlabelled_posts_need_no_tags(path):
  built = _tag(path)
  client = built.train.client_ids[0]
  labelled, bare = (built.reader(labelled=labelled, data_path=path).examples(client)
                    for labelled in (True, False))
  assert set(bare) == {'x'} and len(bare['x']) == 5 and len(labelled['x']) == 4
  np.testing.assert_array_equal(np.delete(bare['x'], 2, axis=0), labelled['x'])


def test_vocabulary_that_a_run_kept_makes_the_same_task(path, tmp_path):
  built = _tag(path)
  file = tmp_path / 'vocabulary.json'
  file.write_text(built.files[vocabulary_lib.FILE])
  again = _tag(path, vocabulary=str(file))
  assert again.files == built.files and again.warnings == built.warnings
  for client in built.train.client_ids:
    for name, rows in built.train.examples(client).items():
      np.testing.assert_array_equal(again.train.examples(client)[name], rows)


def test_tag_of_all_clients_is_no_tag_and_posts_without_tags_are_no_examples(path):
  built = _tag(path)
  vocabulary = _vocabulary(built)
  assert vocabulary['labels'] == ['list', 'sorting', 'string']
  client = next(c for c in built.train.client_ids if int(c[4:]) % 2 == 0)
  actual = built.train.examples(client)
  words = [[vocabulary['words'][i - 1] for i in row if i] for row in actual['x']]
  assert words == [
      ['how', 'to', 'sort', '?', 'use', 'the', 'list', '.', 'it', 'is',
       f'only{client[4:]}', '!'],
      ['how', 'to', 'sort', '?', 'no', '.'],
      ['what', 'is', 'a', 'string', 'the', 'the', 'string']]
  # The last has 'java' alone.
  assert actual['y'].tolist() == [[1, 0, 0, 0, 0], [1, 2, 0, 0, 0], [0, 0, 0, 0, 0]]


def test_client_whose_posts_have_no_tags_has_no_examples(tmp_path):
  path = tmp_path / 'posts.jsonl'
  with open(path, 'w', encoding='utf-8') as file:
    for i in range(12):
      file.write(json.dumps(dict(
          client=str(i), text='a b', tags=['x'] if i % 2 else None)) + '\n')
      file.write(json.dumps(dict(
          client=str(i), text='a c', tags=['y'] if i % 3 else None)) + '\n')
  built = _tag(str(path))
  counts = {c: len(built.train.examples(c)['x']) for c in built.train.client_ids}
  assert all(counts[c] == bool(int(c) % 2) + bool(int(c) % 3) for c in counts)
  assert 0 in counts.values()


def test_limits_of_words_and_tags(path):
  built = _tag(path, vocabulary_size=2, num_labels=1)
  assert len(_vocabulary(built)['words']) == 2
  assert _vocabulary(built)['labels'] == ['list']
  assert built.model.parameter_count() == 3
  with pytest.raises(ValueError, match='vocabulary_size must be an integer .*, found 0'):
    _tag(path, vocabulary_size=0)
  with pytest.raises(ValueError, match='num_labels must be an integer .*, found 0'):
    _tag(path, num_labels=0)


def test_vocabulary_without_tags_is_refused_by_the_tag_task(path, tmp_path):
  file = tmp_path / 'words'
  file.write_text('the\n')
  with pytest.raises(ValueError, match=f'no labels in {file}'):
    _tag(path, vocabulary=str(file))


def test_runs_without_a_file_have_the_text_that_ships():
  word, tag = stackoverflow_word.build(), stackoverflow_tag.build()
  assert len(word.train.client_ids) == len(tag.train.client_ids) >= 100
  assert word.train.examples(word.train.client_ids[0])['tokens'].shape[1:] == (21,)
  assert {'hamlet', 'tragedy'} <= set(_vocabulary(tag)['labels'])
  assert list(word.held_out) == list(tag.held_out) == ['test']


# The tag model.


def _tag_model(num_words=6, num_tags=8, name='logistic'):
  return stackoverflow_tag.build_model(name, vocabulary_lib.Vocabulary(
      words=tuple(f'w{i}' for i in range(num_words)),
      labels=tuple(f't{i}' for i in range(num_tags)), made_from=vocabulary_lib.PUBLIC))


def _batch(rng, rows=9):
  x = np.zeros([rows, stackoverflow_tag.MAX_WORDS], np.int32)
  y = np.zeros([rows, stackoverflow_tag.MAX_TAGS], np.int32)
  for row in range(1, rows):  # The first has no words; the second no tags.
    x[row, :row] = rng.integers(1, 7, row)
    tags = rng.permutation(8)[:row % 4] + 1 if row > 1 else []
    y[row, :len(tags)] = tags
  return {'x': x, 'y': y}


def _dense(batch):
  """Shares of words and tags as TFF's preprocessing has them."""
  counts = np.stack([np.bincount(row, minlength=7)[1:] for row in batch['x']])
  totals = counts.sum(axis=1, keepdims=True)
  truth = np.stack([np.bincount(row, minlength=9)[1:] for row in batch['y']])
  return (counts / np.maximum(totals, 1)).astype(np.float32), truth.astype(np.float32)


def _weights(rng):
  return [2 * rng.normal(size=shape).astype(np.float32) for shape in ([6, 8], [8])]


def test_tag_model_of_the_papers_has_5000500_parameters():
  model = _tag_model(10_000, 500)
  keras = tf.keras.Sequential([tf.keras.layers.Dense(500, input_shape=(10_000,))])
  assert model.parameter_count() == keras.count_params() == 5_000_500
  assert _tag_model(1_000, 50).parameter_count() == 50_050


@pytest.mark.parametrize('name, inputs_of', [
    ('logistic', lambda shares: shares),
    ('logistic_small', lambda shares: 4 * np.sqrt(shares))])
def test_tag_losses_are_the_cross_entropies_of_keras(name, inputs_of):
  rng = np.random.default_rng(0)
  batch, weights = _batch(rng), _weights(rng)
  words, truth = _dense(batch)
  expected = 8 * tf.keras.losses.binary_crossentropy(  # Keras takes the mean.
      truth, inputs_of(words) @ weights[0] + weights[1], from_logits=True)
  actual = _tag_model(name=name).loss(
      weights, tf.nest.map_structure(tf.constant, batch), None)
  np.testing.assert_allclose(actual, expected, rtol=1e-4)


def test_small_tag_model_starts_where_tags_are_rare():
  kernel, bias = _tag_model(name='logistic_small').initial_weights(0)
  np.testing.assert_array_equal(bias, np.full(8, -4, np.float32))
  assert bias.dtype == np.float32
  # Else as the other one.
  np.testing.assert_array_equal(kernel, _tag_model().initial_weights(0)[0])


def test_tag_predictions_are_probabilities_of_each_tag():
  rng, model = np.random.default_rng(3), _tag_model()
  batch, weights = _batch(rng), _weights(rng)
  outputs = model.predict(weights, {'x': batch['x']})
  x, _ = _dense(batch)
  logits = x @ weights[0] + weights[1]
  np.testing.assert_allclose(
      outputs['probabilities'], 1 / (1 + np.exp(-logits)), rtol=1e-5)
  np.testing.assert_array_equal(outputs['class'], logits.argmax(axis=1))


def test_recall_at_5_is_that_of_keras_and_rows_that_do_not_count_do_not():
  rng = np.random.default_rng(1)
  batch, weights = _batch(rng), _weights(rng)
  mask = np.array([1, 1, 0, 1, 1, 1, 1, 0, 1], np.float32)
  words, truth = _dense(batch)
  logits = words @ weights[0] + weights[1]
  recall = tf.keras.metrics.Recall(top_k=5)
  recall.update_state(truth[mask > 0], tf.sigmoid(logits[mask > 0]))
  actual = {name: (float(total), float(weight)) for name, (total, weight) in
           _tag_model().metrics(
               weights, tf.nest.map_structure(tf.constant, batch), mask).items()}
  total, weight = actual['recall_at_5']
  assert weight == truth[mask > 0].sum()
  assert 0 < total < weight
  assert total / weight == pytest.approx(float(recall.result()))
  best = logits.argmax(axis=1)
  tagged = (truth.sum(axis=1) > 0) & (mask > 0)
  assert actual['accuracy'] == (truth[np.arange(9), best][tagged].sum(), tagged.sum())
  assert actual['loss'][1] == mask.sum()


def test_tag_breakdown_adds_up_to_recall_at_5():
  rng = np.random.default_rng(2)
  batch, weights = tf.nest.map_structure(tf.constant, _batch(rng)), _weights(rng)
  model = _tag_model()
  mask = tf.constant([1.0] * 8 + [0.0])
  total, weight = model.metrics(weights, batch, mask)['recall_at_5']
  actual = model.breakdown.count(weights, batch, mask)
  assert float(tf.reduce_sum(actual['right'])) == float(total)
  assert float(tf.reduce_sum(actual['occurred'])) == float(weight)
  # Posts 2, 3, 5, 6 and 7 have tags.
  assert float(tf.reduce_sum(actual['predicted'])) == 5 * 5
  assert (model.headline, model.breakdown.guesses) == ('recall_at_5', 5)


# Official files.


def _official(folder, *, vocabulary=True):
  """Files as TFF downloads them."""
  official_file.write(folder / 'stackoverflow.sqlite', [
      (split, client, official_file.example({
          'tokens': tokens, 'title': 'sort a list', 'tags': 'java|list',
          'type': 'answer', 'creation_date': '2010', 'score': 3}))
      for split, clients in {
          'train': ['1', '2', '3'], 'heldout': ['10'], 'test': ['2', '7']}.items()
      for client in clients for tokens in (f'is the {split} .', "i don't")])
  if vocabulary:
    (folder / 'stackoverflow.word_count').write_text('the 90\nis 50\n. 20\nlist 3\n')
    (folder / 'stackoverflow.tag_count').write_text('{"list": 3, "java": 7}')
  return str(folder)


def test_official_sentences_are_as_they_are_and_words_those_of_tff(tmp_path):
  built = stackoverflow_word.build(
      data_source='official', cache_dir=_official(tmp_path), vocabulary_size=3)
  assert built.train.client_ids == ('1', '2', '3')
  assert _vocabulary(built)['words'] == ['the', 'is', '.']
  assert built.warnings == (vocabulary_lib.OUTSIDE,)
  # Every row of a client's is trained on: the file has a test part.
  assert _sentences(built, built.train.examples('2')['tokens']) == [
      '<begin> is the <unknown> . <end>', '<begin> <unknown> <unknown> <end>']
  # Clients of the test part that are in no other are left out.
  assert {name: len(rows['tokens']) for name, rows in built.held_out.items()} == {
      'test_clients': 2, 'test_examples': 2}


def test_official_tags_come_by_their_counts(tmp_path):
  built = stackoverflow_tag.build(data_source='official', cache_dir=_official(tmp_path))
  assert _vocabulary(built)['labels'] == ['java', 'list']
  actual = built.train.examples('1')
  assert actual['y'].tolist() == [[1, 2, 0, 0, 0]] * 2
  assert actual['x'][0, :4].tolist() == [4, 2, 1, 3]


def test_official_vocabulary_that_is_not_to_be_had_says_what_to_put_where(
    tmp_path, monkeypatch):
  folder = _official(tmp_path, vocabulary=False)

  def unreachable(**_):
    raise OSError('no network')

  monkeypatch.setattr(
      tff.simulation.datasets.stackoverflow, 'load_word_counts', unreachable)
  with pytest.raises(ValueError, match=r'no network.*stackoverflow\.word_count'):
    stackoverflow_word.build(data_source='official', cache_dir=folder)
  # A list of one's own needs no such file.
  words = tmp_path / 'words'
  words.write_text('the\n')
  assert stackoverflow_word.build(
      data_source='official', cache_dir=folder, vocabulary=str(words))


def test_tag_model_of_few_tags_guesses_them_all():
  model = _tag_model(num_tags=3)
  batch = {'x': tf.ones([2, 128], tf.int32), 'y': tf.constant([[1, 2, 0, 0, 0]] * 2)}
  total, weight = model.metrics(
      model.initial_weights(0), batch, tf.ones(2))['recall_at_5']
  assert float(total) == float(weight) == 4
