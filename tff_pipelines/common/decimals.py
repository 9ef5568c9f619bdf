"""Numbers of a guarantee for people: rounded, and never to the lower side."""

import decimal
import math


def rounded_up(value: float, digits: int = 5) -> str:
  """The value with at most `digits` digits, from 1 to 15, never below it."""
  if not math.isfinite(value):
    return f'{value:g}'
  # The repr of a float identifies it, so it stands for its value.
  context = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
  return f'{float(context.create_decimal(repr(float(value)))):.{digits}g}'


def epsilon(value: float) -> str:
  """An epsilon with four decimals, never below the value; 'inf' for infinity."""
  return 'inf' if math.isinf(value) else str(decimal.Decimal(repr(float(value))).quantize(
      decimal.Decimal('0.0001'), decimal.ROUND_CEILING, decimal.Context(prec=400)))
