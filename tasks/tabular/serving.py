"""Use of a model of tables outside this project: raw columns in a graph, and Keras."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tasks import task
from tasks.sources import records
from tasks.tabular import columns as columns_lib, models

# As records.days reads dates: year, month, day, hour, minute, second, and the zone's
# sign, hours and minutes. A rewriting can name no more than 9 groups.
_DATE = (r'^(\d{4})-(\d{2})-(\d{2})(?:[T ](\d{2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?'
         r'(?:Z|([+-])(\d{2})(?::?(\d{2}))?)?)?$')
# A whole number as programs write one in a column of floats.
_WHOLE = r'^([+-]?(?:0|[1-9][0-9]*))\.0+$'


def _first_day(year: tf.Tensor, month: tf.Tensor) -> tf.Tensor:
  """Days from 1970-01-01 to the first of a month; years begin in March."""
  year, month = year - tf.cast(month < 3, tf.float64), (month + 9) % 12
  return (365 * year + year // 4 - year // 100 + year // 400 +
          (153 * month + 2) // 5 - 719468)


def days(texts: tf.Tensor, name: str) -> tf.Tensor:
  """Days since 1970-01-01 of dates in ISO 8601, float64 [n], NaN where empty.

  Calls with other texts fail; the message names the column.
  """
  is_date = tf.strings.regex_full_match(texts, _DATE)

  def part(group: int) -> tf.Tensor:
    found = tf.strings.regex_replace(texts, _DATE, rf'\{group}')
    return tf.strings.to_number(tf.where(is_date & (found != ''), found, '0'), tf.float64)

  year, month, day, hour, minute, second = map(part, range(1, 7))
  zone = 60 * part(8) + part(9)
  first = _first_day(year, month)
  after = _first_day(year + month // 12, month % 12 + 1)
  is_valid = is_date & (year > 0) & (1 <= month) & (month <= 12) & (1 <= day) & (
      day <= after - first) & (hour < 24) & (minute < 60) & (second < 60) & (zone < 1440)
  is_gap = texts == ''
  tf.debugging.assert_equal(is_valid | is_gap, True, f'column {name} must have dates '
                            'such as 2024-03-01 or 2024-03-01T12:30')
  is_west = tf.strings.regex_replace(texts, _DATE, r'\7') == '-'
  minutes = 60 * hour + minute + tf.where(is_west, zone, -zone)
  result = first + day - 1 + (60 * minutes + second) / 86400
  return tf.where(is_gap, tf.constant(float('nan'), tf.float64), result)


def _encoded(column: columns_lib.Column, values: tf.Tensor, missing: str) -> tf.Tensor:
  """Encodes a column as `column.encode` does: float32 [n, width]."""
  if isinstance(column, columns_lib.Category):
    lower = tf.strings.lower(values)
    values = tf.where((lower == 'true') | (lower == 'false'), lower,
                      tf.strings.regex_replace(values, _WHOLE, r'\1'))
    encoded = values[:, tf.newaxis] == tf.constant(column.known)
    if missing == columns_lib.ERROR:
      tf.debugging.assert_equal(
          tf.reduce_any(encoded, axis=1), True,
          f'column {column.name} must be one of its categories in every row')
    return tf.cast(encoded, tf.float32)
  if column.kind == records.DATE:
    values = days(values, column.name)
  gaps = tf.math.is_nan(values)
  tf.debugging.assert_equal(tf.math.is_inf(values), False,
                            f'column {column.name} must be finite')
  if missing == columns_lib.ERROR:
    tf.debugging.assert_equal(
        gaps, False, f'column {column.name} must have a value in every row')
  values = tf.clip_by_value(values, column.low, column.high)
  scaled = tf.math.log(values) if column.is_log else values
  encoded = tf.cast((scaled - column.center) / column.scale, tf.float32)
  return tf.where(gaps, 0.0, encoded)[:, tf.newaxis]


def raw_columns(columns: columns_lib.Columns, missing: str) -> task.RawColumns:
  """The encoding of raw columns; `missing` as in columns.Columns.encode."""
  def encode(tensors: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {'x': tf.concat([_encoded(column, tensors[column.name], missing)
                            for column in columns.features], axis=1)}

  return task.RawColumns(encode=encode, scales=models.scales(columns), dtypes={
      column.name: 'float64' if column.kind == records.MEASURE else 'string'
      for column in columns.features})


def to_keras(columns: columns_lib.Columns, weights: task.Weights) -> tf.keras.Model:
  """The network from the encoded x to probabilities, or values in the label's units."""
  layers, label, scales = tf.keras.layers, columns.label, models.scales(columns)
  biases = weights[1::2]
  network = [tf.keras.Input([columns.width], name='x'),
             *(layers.Dense(len(bias), activation='relu') for bias in biases[:-1]),
             layers.Dense(len(biases[-1]))]
  if columns.is_classification:
    network += [layers.Softmax()]
  else:
    # A rectified unit with a maximum is the only layer that cuts values off at both
    # ends: from the lower bound on.
    low, high = label.encoded_bounds
    network += [layers.Rescaling(label.scale, offset=label.center - low),
                layers.ReLU(max_value=high - low), layers.Rescaling(1.0, offset=low)]
    network += [layers.Activation('exponential')] * label.is_log
  network = tf.keras.Sequential(network)
  # Scales are parts of the weights here.
  scaled = list(map(np.array, weights))
  scaled[0] *= scales[0]
  for array in scaled[-2:]:
    array *= scales[1]
  network.set_weights(scaled)
  return network
