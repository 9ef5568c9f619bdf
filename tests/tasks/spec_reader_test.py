"""Readers of files by the element_spec of a task of one's own."""

import json

import numpy as np
import pandas
import pytest

from tasks import custom
from tasks.sources import records

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
  examples, _ = records.gather(
      custom.reader(SPEC)(labelled=True, no_cache=True, **data))
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
