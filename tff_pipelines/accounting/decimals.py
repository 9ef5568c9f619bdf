"""Numbers of a guarantee for people: rounded, and never to the lower side."""

import decimal
import math


def rounded_up(value: float, digits: int = 5) -> str:
  """At most so many digits, from 1 to 15, never below the value."""
  if not math.isfinite(value):
    return f'{value:g}'
  # What a float is printed as tells it from all others, so it stands for it.
  context = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
  return f'{float(context.create_decimal(repr(float(value)))):.{digits}g}'


def epsilon(value: float) -> str:
  """An epsilon with four decimals, never below the value; 'inf' for infinity."""
  if math.isinf(value):
    return 'inf'
  return str(decimal.Decimal(repr(float(value))).quantize(
      decimal.Decimal('0.0001'), decimal.ROUND_CEILING, decimal.Context(prec=400)))
