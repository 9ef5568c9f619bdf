"""Tasks of one's own: checked, wrong ones named in one line; readers by their spec."""

import dataclasses
import json

import numpy as np
import pandas
import pytest
import tensorflow as tf

from tasks import custom, task as task_lib
from tasks.sources import records
from tests import tiny_task

TASK = tiny_task.task()


class _Source:
  """A source whose parts can be changed."""

  client_ids = TASK.train.client_ids
  element_spec = TASK.train.element_spec

  def __init__(self, **changes):
    for name, value in changes.items():
      setattr(self, name, value)

  def examples(self, client_id):
    return TASK.train.examples(client_id)


def _examples(**changes):
  return {**tiny_task.examples(5, 0), **changes}


def _task(**changes):
  return dataclasses.replace(TASK, **changes)


def _model(**changes):
  return _task(model=dataclasses.replace(TASK.model, **changes))


def test_right_task_stays_as_it_is():
  checked = custom.checked('tiny', TASK)
  assert checked.model is TASK.model
  assert checked.train.client_ids == TASK.train.client_ids
  for client in TASK.train.client_ids:
    for name, array in TASK.train.examples(client).items():
      np.testing.assert_array_equal(checked.train.examples(client)[name], array)


@pytest.mark.parametrize('wrong, message', [
    (None, 'its function must return a Task, found NoneType'),
    (_task(model='cnn'), 'model must be a Model, found str'),
    (_task(privacy_unit=''), 'privacy_unit must be a text'),
    (_task(train=[1, 2]), 'train must have client_ids, found list'),
    (_task(train=_Source(client_ids=[])), 'train.client_ids must be at least 1 texts'),
    (_task(train=_Source(client_ids=['0', '1', '0'])), 'that differ, found 0, 1, 0'),
    (_task(train=_Source(client_ids=[0, 1])), 'texts that differ, found 0, 1'),
    (_task(train=_Source(element_spec={'x': (4,)})), 'train.element_spec must map'),
    (_task(train=_Source(element_spec={'x': (object, ()), 'y': (np.int32, ())})),
     'x must be of numbers'),
    (_task(train=_Source(element_spec={'x': (np.float32, (5,)), 'y': (np.int32, ())})),
     r"client '0': examples: x must be float32 \[examples, 5\], found "
     r'float32 \[5, 4\]'),
    (_task(held_out={}), 'held_out must have a set of examples'),
    (_task(held_out={'test': _examples(y=np.zeros(5))}),
     "held_out 'test': y must be int32"),
    (_task(held_out={'test': {'x': np.zeros((5, 4), np.float32)}}), 'have the feat'),
    (_task(held_out={'test': {key: x[:0] for key, x in _examples().items()}}),
     "held_out 'test' must have examples, found none"),
    (_task(held_out={'test': _examples(x=np.full((5, 4), np.inf, np.float32))}),
     'x must be finite, found NaN or infinity'),
    (_task(held_out={'test': _examples(y=np.zeros(3, np.int32))}), 'have one length'),
    (_model(initial_weights=lambda seed: [np.zeros(3)]), 'arrays, found .*float64'),
    (_model(initial_weights=lambda seed: None), 'float32 arrays, found NoneType'),
    (_model(initial_weights=lambda seed: [np.full(3, np.nan, np.float32)]), 'finite'),
    (_model(initial_weights=lambda seed: [np.random.rand(3).astype(np.float32)]),
     'must be the same for the same seed'),
    (_model(loss=lambda *_: tf.constant(1.0)),
     r'model.loss must be float32 \[batch\], found float32 \[\] of 2 examples'),
    (_model(metrics=lambda *_: {'accuracy': (tf.constant(1.0), tf.constant(1.0))}),
     "model.metrics must have 'loss'"),
    (_model(headline='recall'), "must have 'recall', found"),
    (_model(metrics=lambda *_: {'loss': 1.0, 'accuracy': 1.0}),
     'model.metrics: loss must be a pair of scalars')])
def test_wrong_task_is_one_line(wrong, message):
  with pytest.raises(ValueError, match=f'^task=mine: .*{message}') as raised:
    custom.checked('mine', wrong)
  assert '\n' not in str(raised.value)


def test_bad_client_is_named_when_it_is_read():
  class Source(_Source):

    def examples(self, client_id):
      examples = TASK.train.examples(client_id)
      return examples if client_id != '3' else _examples(
          x=np.full((5, 4), np.nan, np.float32))

  checked = custom.checked('mine', _task(train=Source()))
  checked.train.examples('2')
  with pytest.raises(task_lib.BadClientError, match="client '3': examples: x must"):
    checked.train.examples('3')


@pytest.mark.parametrize('function, options, message', [
    (lambda clients: None, {}, 'the argument clients must have a default'),
    (lambda *, no_setting: None, {}, 'the argument no_setting must have'),
    (lambda *, num_clients: None, {}, 'task mine needs num_clients'),
    (lambda *, num_clients=1: None, {'data_path': 'x'},
     'task mine does not use data_path; its options are num_clients')])
def test_options_are_the_keywords_of_the_function(function, options, message):
  with pytest.raises(ValueError, match=message):
    custom.build('mine', function, options, frozenset({'num_clients', 'data_path'}))


SPEC = {'x': (np.dtype(np.float32), (2, 2)), 'n': (np.dtype(np.uint8), ()),
        'y': (np.dtype(np.int32), ())}
X, N, Y = [[1, 2, 3, 4], [0.5, 6, 7, 8], [9, 10, 11, 12]], [7, 8, 9], [0, 1, 0]


def _written(folder, form, **changes):
  columns = {'x': X, 'n': N, 'y': Y, 'client': ['a', 'b', 'a'], **changes}
  path = folder / f'data.{form}'
  if form == 'npz':
    np.savez(path, **{name: np.array(values) for name, values in columns.items()})
  elif form == 'parquet':
    pandas.DataFrame(columns).to_parquet(path)
  elif form == 'csv':
    columns['x'] = [' '.join(map(str, row)) for row in columns['x']]
    pandas.DataFrame(columns).to_csv(path, index=False)
  else:
    path.write_text(''.join(json.dumps(dict(zip(columns, row))) + '\n'
                            for row in zip(*columns.values())))
  return dict(data_source=form, data_path=str(path))


@pytest.mark.parametrize('form', ['csv', 'jsonl', 'npz', 'parquet'])
def test_features_are_read_under_their_names(tmp_path, form):
  data = _written(tmp_path, form)
  examples, _ = records.gather(custom.reader(SPEC)(labelled=True, no_cache=True, **data))
  # Client a has the first and the last record.
  for name, values in dict(x=np.reshape(X, [3, 2, 2]), n=N, y=Y).items():
    assert examples[name].dtype == SPEC[name][0]
    np.testing.assert_array_equal(examples[name], np.array(values)[[0, 2, 1]])
  if form != 'npz':
    source = custom.reader(SPEC)(labelled=False, in_order=True, **data)
    chunk, = source.client_ids
    assert set(source.examples(chunk)) == {'x', 'n'}
    np.testing.assert_array_equal(source.examples(chunk)['n'], N)


@pytest.mark.parametrize('changes, message', [
    ({'x': [[1, 2, 3]] * 3}, r"feature 'x' must be float32 \[examples, 2, 2\]"),
    ({'n': [300, 1, 2]}, r"feature 'n' must be uint8 \[examples\], found int64 \[2\]"),
    ({'n': [0.5, 1.0, 2.0]}, "feature 'n' must be uint8"),
    ({'x': [[1e300, 2, 3, 4]] * 3}, 'x must be finite')])
def test_features_of_another_shape_or_type_are_named(tmp_path, changes, message):
  source = custom.reader(SPEC)(
      labelled=False, no_cache=True, **_written(tmp_path, 'jsonl', **changes))
  with pytest.raises(ValueError, match=message):
    records.gather(source)
