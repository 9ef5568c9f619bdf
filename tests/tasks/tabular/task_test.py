"""The task of tables: its sources, examples and models."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tasks import registry, task as task_lib
from tasks.tabular import columns as columns_lib
from tests.tasks.tabular import people


def _build(folder, table=None, form='csv', label='pay', **options):
  table = people.rows() if table is None else table
  options = {'public_bounds': people.bounds(folder), **options}
  return registry.build('tabular', **people.written(folder, table, form),
                        label_field=label, **options)


def _all(source):
  examples = [source.examples(client) for client in sorted(source.client_ids)]
  return {name: np.concatenate([e[name] for e in examples]) for name in ('x', 'y')}


def test_every_format_gives_the_same_examples(tmp_path):
  tasks = {form: _build(tmp_path, form=form) for form in ('csv', 'parquet', 'jsonl')}
  first = _all(tasks['csv'].train)
  assert first['x'].shape == (22, 4) and first['y'].dtype == np.float32
  for task in tasks.values():
    for name, values in _all(task.train).items():
      np.testing.assert_allclose(values, first[name], atol=1e-6)
    assert len(task.train.client_ids) == 11  # One of twelve is held out.
    assert list(task.held_out) == ['test_clients']


def test_public_sample_standardises_and_bounds_override_it(tmp_path):
  sample = people.rows(seed=9).drop(columns='person')
  sample.to_csv(tmp_path / 'sample.csv', index=False)
  (tmp_path / 'bounds.json').write_text('{"pay": [0, 50], "job": ["7", "clerk", "cook"]}')
  table = people.rows().assign(rich='no')
  task = registry.build(
      'tabular', **people.written(tmp_path, table), label_field='pay',
      feature_fields=('age', 'job'), public_sample=str(tmp_path / 'sample.csv'),
      public_bounds=str(tmp_path / 'bounds.json'))
  client = task.train.client_ids[0]
  ages = table[table.person == client].age
  np.testing.assert_allclose(
      task.train.examples(client)['x'][:, 0],
      (ages - sample.age.mean()) / sample.age.std(ddof=0), rtol=1e-5)
  assert '"public sample"' in task.files['columns.json']


def test_plan_names_columns_by_public_knowledge_and_header_only(tmp_path):
  sample = people.rows(seed=9).assign(job='cook', street='x').drop(columns='rich')
  sample.rename(columns={'age': 'Unnamed: 0'}).to_csv(tmp_path / 'sample.csv')
  wide = {f'{"x" * 9}{i}': [0, 1] for i in range(20)}
  table = people.rows().assign(**dict.fromkeys(wide, 0.5), seen='2020-01-02')
  task = _build(
      tmp_path, table, form='parquet', public_sample=str(tmp_path / 'sample.csv'),
      public_bounds=people.bounds(tmp_path, seen=['2020-01-01', '2020-12-31'], **wide),
      feature_fields=('age', 'job', 'seen', *wide))
  x = ', '.join(f'{name} [0, 1]' for name in list(wide)[:8])
  assert task.plan_lines == [
      ('features', f'age [0, 100], job (3 categories), seen [2020-01-01, 2020-12-31], '
       f'{x}, 12 more'), ('target', 'pay [0, 50]'),
      ('left out', 'street, rich'), ('doubtful', 'job (one value)')]


def test_public_sample_is_none_of_the_data_and_says_that_it_is_stated(tmp_path):
  people.rows(seed=9).to_csv(tmp_path / 'sample.csv', index=False)
  build = lambda sample: registry.build(
      'tabular', **people.written(tmp_path, people.rows()), label_field='pay',
      feature_fields=('age', 'job'), public_sample=str(sample))
  task = build(tmp_path / 'sample.csv')
  assert [note.name for note in task.warnings] == ['public sample stated as public']
  (tmp_path / 'link.csv').symlink_to(tmp_path / 'people.csv')
  for private in ('people.csv', 'link.csv'):
    with pytest.raises(ValueError, match='public_sample and data_path must differ'):
      build(tmp_path / private)


def test_no_private_row_changes_the_encoding(tmp_path):
  table = people.rows()
  before = _build(tmp_path, table)
  table.loc[table.person == 'p1', 'age'] = 99.0
  assert _build(tmp_path, table).files == before.files


@pytest.mark.parametrize('form', ['csv', 'parquet'])
def test_gaps_stop_the_run_or_are_imputed(tmp_path, form):
  table = people.rows()
  table.loc[1, 'age'], table.loc[4, 'job'] = np.nan, None
  with pytest.raises(task_lib.BadClientError, match=(
      f"people.{form}.*client 'p0': column 'age' must have a value in every row, found "
      'none; --missing=impute')):
    _build(tmp_path, table, form, held_out_fraction=0.05)
  # Also those of clients whom no one would read before the first round.
  task = _build(tmp_path, table, form, held_out_fraction=0.05, skip_bad_clients=True)
  assert sorted(task.skips.clients) == ['p0', 'p2']
  task = _build(tmp_path, table, form, held_out_fraction=0.05, missing='impute')
  assert task.train.examples('p0')['x'][1, 0] == 0
  np.testing.assert_array_equal(task.train.examples('p2')['x'][0, 1:], [0, 0, 0])


# More: tests/programs/wrong_tables_test.py.
@pytest.mark.parametrize('options, message', [
    (dict(label_field='rich', class_names=('no',)), "label 'rich' must have 2 classes"),
    (dict(label_field='rich', class_names=('no', 'yes'), model='linear'),
     'model must be one of logistic, mlp, found'),
    (dict(public_bounds='nowhere.json'), 'public_bounds=nowhere.json: .* not exist'),
    (dict(class_weights=('1', '2')),
     "class_weights needs a label with classes, 'pay' is a number"),
    *((dict(class_weights=weights, label_field='rich', class_names=('no', 'yes')), rule)
      for weights, rule in (
          (('balanced',), 'class_weights=balanced needs frequencies of the classes: a '
           "public_sample with 'rich', or statistics_epsilon"),
          (('1', 'x'), 'class_weights must be numbers or balanced, found 1,x'),
          (('1', '2', '3'), 'class_weights must be 2 positive numbers'),
          (('1', '101'), 'the largest at most 100 times the smallest'),
          (('nan', '1'), 'class_weights must be 2 positive numbers')))])
def test_wrong_choices_are_one_line(tmp_path, options, message):
  with pytest.raises(ValueError, match=message) as raised:
    registry.build('tabular', **{
        **people.written(tmp_path, people.rows()), 'label_field': 'pay',
        'public_bounds': people.bounds(tmp_path), **options})
  assert '\n' not in str(raised.value)


def test_kept_columns_take_the_place_of_the_sample_that_they_are_from(tmp_path):
  first = _build(tmp_path, feature_fields=('job', 'age'))
  kept = tmp_path / 'columns.json'
  kept.write_text(first.files['columns.json'])
  again = _build(tmp_path, public_bounds=str(kept), public_sample='nowhere.csv')
  assert again.files == first.files


def _fitted(task, steps=300, rate=0.5):
  examples = {k: tf.constant(v) for k, v in _all(task.train).items()}
  variables = [tf.Variable(w) for w in task.model.initial_weights(0)]

  @tf.function
  def step():
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(task.model.loss(variables, examples, None))
    for variable, gradient in zip(variables, tape.gradient(loss, variables)):
      variable.assign_sub(rate * gradient)

  for _ in range(steps):
    step()
  return variables, examples


@pytest.mark.parametrize('model', ['linear', 'mlp'])
@pytest.mark.parametrize('is_log', [False, True])
def test_regression_predicts_in_the_units_of_the_label(tmp_path, model, is_log):
  bounds = people.bounds(tmp_path, pay={'bounds': [1, 50], 'log': is_log})
  task = _build(tmp_path, people.rows(60), model=model, public_bounds=bounds)
  assert task.model.headline == 'mae'
  weights, examples = _fitted(task)
  totals = task.model.metrics(weights, examples, tf.ones(len(examples['y'])))
  metrics = {name: float(total / weight) for name, (total, weight) in totals.items()}
  table = people.rows(60)
  truth = np.concatenate([table[table.person == client].pay
                          for client in sorted(task.train.client_ids)])
  np.testing.assert_allclose(task.model.in_units(examples['y']), truth, rtol=1e-5)
  predicted = task.model.predict(weights, {'x': examples['x']})['value'].numpy()
  error = predicted - truth
  assert metrics['mae'] == pytest.approx(np.mean(np.abs(error)), rel=1e-4)
  assert metrics['mae'] < (2.5 if is_log else 1.5)
  far = task.model.predict([1e9 * w for w in weights], {'x': examples['x']})['value']
  assert np.all((far >= 0.999) & (far <= 50.001))
  mask = np.zeros(len(truth), np.float32)
  mask[:5] = 1
  some = task.model.metrics(weights, examples, tf.constant(mask))
  assert float(some['mae'][0] / 5) == pytest.approx(np.mean(np.abs(error[:5])), rel=1e-4)


def test_classification_predicts_classes_and_probabilities(tmp_path):
  task = _build(tmp_path, people.rows(60), label='rich', class_names=('no', 'yes'))
  weights, examples = _fitted(task)
  outputs = task.model.predict(weights, {'x': examples['x']})
  right = outputs['class'].numpy() == examples['y'].numpy()
  total, weight = task.model.metrics(weights, examples, tf.ones(len(right)))['accuracy']
  assert np.mean(right) == pytest.approx(float(total / weight)) and np.mean(right) > 0.8
  np.testing.assert_allclose(np.sum(outputs['probabilities'], axis=1), 1, rtol=1e-5)
  assert task.model.weight_names == ('output/kernel', 'output/bias')
  assert task.model.breakdown.names == ('no', 'yes')


def _balanced(folder, **options):
  return _build(folder, people.rows(60).assign(rich=['yes', *['no'] * 119]),
                label='rich', class_names=('no', 'yes'), **options)


def test_weights_of_classes_are_those_of_the_loss_and_are_kept(tmp_path):
  plain, weighted = (_balanced(tmp_path, **options)
                     for options in ({}, {'class_weights': ('1', '30')}))
  weights = [np.float32(w) + 0.1 for w in plain.model.initial_weights(0)]
  width, = plain.train.element_spec['x'][1]
  batch = {'x': tf.ones([2, width]), 'y': tf.constant([0, 1])}
  np.testing.assert_allclose(weighted.model.loss(weights, batch, None), np.array(
      [1, 30]) * plain.model.loss(weights, batch, None), rtol=1e-6)
  mask = tf.ones(2)
  assert (weighted.model.metrics(weights, batch, mask)['loss'][0]
          == plain.model.metrics(weights, batch, mask)['loss'][0])
  kept = tmp_path / 'columns.json'
  kept.write_text(weighted.files['columns.json'])
  assert _balanced(tmp_path, public_bounds=str(kept)).files == weighted.files
  assert weighted.files != plain.files


def test_balanced_weights_are_by_the_public_sample(tmp_path):
  sample = people.rows(50, seed=9).assign(rich=['yes'] * 20 + ['no'] * 80)
  sample.to_csv(tmp_path / 'sample.csv', index=False)
  task = _balanced(tmp_path, class_weights=('balanced',), public_bounds=None,
                   public_sample=str(tmp_path / 'sample.csv'),
                   feature_fields=('age', 'job'))
  label = json.loads(task.files['columns.json'])['label']
  # 0.8 and 0.2 of the rows: the mean over rows is 1.
  assert label['weights'] == pytest.approx([0.625, 2.5])
  label = columns_lib.Category(name='c', categories=('a', 'b', 'c'))
  for counts, weights in (([900, 1, -5], [0.5, 50, 50]), ([0, -1, 0], [1, 1, 1])):
    found = np.array(columns_lib.balanced(label, counts).weights)
    np.testing.assert_allclose(found / found[0], np.array(weights) / weights[0])


def test_embedded_tumours_are_standardised_by_rows_that_are_nobodys():
  task = registry.build('tabular', num_clients=50)
  assert 'simulated' in task.privacy_unit
  rows = _all(task.train)['x']
  assert len(rows) + len(task.held_out['test']['y']) + 100 == 569
  assert np.abs(rows.mean(axis=0)).max() < 0.5 and 0.5 < rows.std() < 2
  for options in ({'label_field': 'x'}, {'data_path': 'f'}, {'num_clients': 357}):
    with pytest.raises(ValueError, match=next(iter(options))):
      registry.build('tabular', **options)


def test_skipped_clients_are_those_whose_rows_are_bad(tmp_path):
  table = people.rows().astype(object)
  table.loc[6, 'age'] = 'old'
  task = _build(tmp_path, table, skip_bad_clients=True)
  assert list(task.skips.clients) == ['p3']
