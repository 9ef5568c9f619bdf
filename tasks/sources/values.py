"""Values of tables, as programs write them: gaps, categories and ids of clients."""

import decimal
import re
from typing import Any

import numpy as np

from tasks import checks

# Texts that programs write for a missing value; those that Python's make of one.
GAPS = frozenset(('', 'NA', 'N/A', 'n/a', 'NaN', 'nan', 'null', 'NULL', 'None', '<NA>',
                  'NaT', '#N/A'))
_MISSING = frozenset(('', 'nan', 'NaN', 'None', '<NA>', 'NaT'))
# A whole number as a column of floats has it: programs make one of integers with gaps.
_WHOLE = re.compile(r'([+-]?(?:0|[1-9][0-9]*))\.0+')
# A number of which digits may be lost.
_ROUNDED = re.compile(r'[0-9](\.[0-9]+)?[eE]\+[0-9]+')


def _is_whole(value: Any) -> bool:
  """Whether a value is a float or a decimal without a fraction."""
  if isinstance(value, decimal.Decimal):
    return value.is_finite() and value == value.to_integral_value()
  return isinstance(value, (float, np.floating)) and float(value).is_integer()


def category(value: Any) -> str:
  """The text of a category: '3' for 3, 3.0 and '3.0', 'true' for True and 'TRUE'."""
  text = str(int(value) if _is_whole(value) else value)
  if text.lower() in ('true', 'false'):
    return text.lower()
  whole = _WHOLE.fullmatch(text)
  return whole[1] if whole else text


def client_id(value: Any) -> str | None:
  """The id of the client that a value names: '12' for 12, 12.0 and '12.0'.

  None if it names none: a missing value, a number that is not whole, or one of which
  digits may be lost.
  """
  text = category(value.strip() if isinstance(value, str) else value)
  if text in _MISSING or _ROUNDED.fullmatch(text) or (
      isinstance(value, (float, np.floating, decimal.Decimal)) and not _is_whole(value)
  ) or isinstance(value, float) and abs(value) > 2**53:
    return None
  return text


def client_ids(values: Any) -> np.ndarray:
  """The ids of the clients that values name, integers or texts [n].

  Raises ValueError that names the first row whose value names none.
  """
  values = np.asarray(values)
  if values.dtype.kind in 'iu' or values.ndim != 1:
    return values
  ids = list(map(client_id, values))
  if None in ids:
    row = ids.index(None)
    raise checks.wrong(
        'clients', 'texts or whole numbers', f'{values[row]!r} in row {row}')
  return np.array(ids, str)
