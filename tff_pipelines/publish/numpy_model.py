"""Predicts from raw rows of a table by an exported model, with NumPy alone.

  python model.py rows.csv > predictions.csv

`predict` takes rows as mappings of names of columns to numbers, texts and dates, or to
the cells of a CSV file. Needs model.npz, columns.json and model.json in its folder.
"""

from collections.abc import Iterable, Iterator, Mapping
import csv
import datetime
import json
import math
import pathlib
import sys
from typing import Any

import numpy as np

_FOLDER = pathlib.Path(__file__).parent


def _number(column: Mapping[str, Any], value: Any) -> float:
  """The number, or a date's days since 1970-01-01."""
  if column['kind'] == 'date':
    if not isinstance(value, datetime.datetime):
      value = datetime.datetime.fromisoformat(str(value).replace('Z', '+00:00'))
    zone = value.utcoffset() or datetime.timedelta()
    since = value.replace(tzinfo=None) - zone - datetime.datetime(1970, 1, 1)
    return since / datetime.timedelta(days=1)
  return float(value)


def _encoded(column: Mapping[str, Any], value: Any, imputes: bool) -> list[float]:
  """The inputs that a value of a column becomes. Raises ValueError."""
  is_missing = value is None or value == '' or value != value
  if 'categories' in column:
    if isinstance(value, bool):
      value = str(value).lower()
    elif isinstance(value, float) and value.is_integer():
      value = int(value)
    if not imputes and str(value) not in column['categories']:
      raise ValueError(f'column {column["name"]!r} has no category {value!r}')
    return [float(not is_missing and str(value) == one)
            for one in column['categories']]
  if is_missing and not imputes:
    raise ValueError(f'column {column["name"]!r} has no value')
  if is_missing:
    return [0.0]
  number = _number(column, value)
  if not math.isfinite(number):
    raise ValueError(f'column {column["name"]!r} must be finite, found {value!r}')
  number = min(max(number, column['low']), column['high'])
  number = math.log(number) if column['is_log'] else number
  return [(number - column['center']) / column['scale']]


def predict(rows: Iterable[Mapping[str, Any]],
            folder: pathlib.Path = _FOLDER) -> Iterator[dict[str, Any]]:
  """Yields the class and all probabilities, or the value, of each row."""
  columns = json.loads((folder / 'columns.json').read_text(encoding='utf-8'))
  served = json.loads((folder / 'model.json').read_text(encoding='utf-8'))['served']
  imputes, label = served['settings'].get('missing') == 'impute', columns['label']
  with np.load(folder / 'model.npz') as arrays:
    weights = [arrays[name] for name in arrays.files]
  for row in rows:
    x = np.array([value for column in columns['features'] for value in _encoded(
        column, row[column['name']], imputes)], np.float32)
    for i in range(0, len(weights), 2):
      x = np.maximum(x, 0) if i else x
      x = x @ weights[i] + weights[i + 1]
    if 'categories' in label:
      chances = np.exp(x - x.max())
      chances = (chances / chances.sum()).tolist()
      yield {'class': label['categories'][int(np.argmax(chances))], **{
          f'probability_{name}': chance
          for name, chance in zip(label['categories'], chances)}}
    else:
      value = label['center'] + label['scale'] * float(x[0])
      yield {'value': math.exp(value) if label['is_log'] else value}


if __name__ == '__main__':
  with open(sys.argv[1], encoding='utf-8-sig', newline='') as file:
    writer = None
    for result in predict(csv.DictReader(file)):
      if writer is None:
        writer = csv.DictWriter(sys.stdout, result, lineterminator='\n')
        writer.writeheader()
      writer.writerow(result)
