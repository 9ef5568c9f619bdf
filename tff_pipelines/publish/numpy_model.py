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
import re
import sys
from typing import Any

import numpy as np

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_FOLDER = pathlib.Path(__file__).parent
# Texts that programs write for a missing value.
_GAPS = ('', 'NA', 'N/A', 'n/a', 'NaN', 'nan', 'null', 'NULL', 'None', '<NA>', 'NaT',
         '#N/A')


def _number(value: Any, kind: str) -> float:
  """The number, or a date's days since 1970-01-01; NaN where missing."""
  if value is None or value in _GAPS or value != value:
    return math.nan
  if kind == 'date':
    if not isinstance(value, datetime.datetime):
      value = datetime.datetime.fromisoformat(str(value).replace('Z', '+00:00'))
    if value.tzinfo is None:
      value = value.replace(tzinfo=datetime.timezone.utc)
    return (value - _EPOCH) / datetime.timedelta(days=1)
  number = float(value)
  if not math.isfinite(number):
    raise ValueError(f'numbers must be finite, found {value!r}')
  return number


def _category(value: Any) -> str:
  """The text by which a category is known: '3' for 3.0 and '3.0', 'true' for True."""
  if value is None or value != value:
    return ''
  text = str(int(value) if isinstance(value, float) and value.is_integer() else value)
  if text.lower() in ('true', 'false'):
    return text.lower()
  whole = re.fullmatch(r'([+-]?(?:0|[1-9][0-9]*))\.0+', text)
  return whole[1] if whole else text


def _encoded(column: Mapping[str, Any], value: Any, imputes: bool) -> list[float]:
  """The inputs that a value of a column becomes. Raises ValueError."""
  if 'categories' in column:
    encoded = [float(_category(value) == _category(one)) for one in column['categories']]
    if not imputes and not any(encoded):
      raise ValueError(f'column {column["name"]!r} has no category {value!r}')
    return encoded
  number = _number(value, column['kind'])
  if math.isnan(number):
    if not imputes:
      raise ValueError(f'column {column["name"]!r} has no value')
    return [0.0]
  number = min(max(number, column['low']), column['high'])
  number = math.log(number) if column['is_log'] else number
  return [(number - column['center']) / column['scale']]


def predict(rows: Iterable[Mapping[str, Any]],
            folder: pathlib.Path = _FOLDER) -> Iterator[dict[str, Any]]:
  """Yields the class and all probabilities, or the value, of each row."""
  columns = json.loads((folder / 'columns.json').read_text(encoding='utf-8'))
  model = json.loads((folder / 'model.json').read_text(encoding='utf-8'))
  imputes = model['served']['settings'].get('missing') == 'impute'
  label, scales = columns['label'], model['scales']
  with np.load(folder / 'model.npz', allow_pickle=False) as arrays:
    weights = [arrays[name] for name in arrays.files]
  for number, row in enumerate(rows, 1):
    try:
      x = scales[0] * np.array([
          value for column in columns['features']
          for value in _encoded(column, row[column['name']], imputes)], np.float32)
    except KeyError as error:
      raise ValueError(f'row {number} has no column {error}') from error
    except ValueError as error:
      raise ValueError(f'row {number}: {error}') from error
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
      ends = math.log if label['is_log'] else float
      value = label['center'] + label['scale'] * scales[1] * float(x[0])
      value = min(max(value, ends(label['low'])), ends(label['high']))
      yield {'value': math.exp(value) if label['is_log'] else value}


def main(path: str) -> None:
  """Prints the predictions of a CSV file: UTF-8, with commas and a header."""
  with open(path, encoding='utf-8-sig', newline='') as file:
    results = list(predict(csv.DictReader(file)))
  if results:
    writer = csv.DictWriter(sys.stdout, results[0], lineterminator='\n')
    writer.writeheader()
    writer.writerows(results)


if __name__ == '__main__':
  if len(sys.argv) != 2:
    sys.exit('usage: python model.py rows.csv')
  try:
    main(sys.argv[1])
  except (ValueError, OSError) as error:
    sys.exit(f'error: {error}')
