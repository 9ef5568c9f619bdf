"""Samplers that are near their law, and what of delta that takes.

If a mechanism's releases are within a total variation t of those of the exact one,
whatever the data, then (epsilon, delta) of the exact one is (epsilon, delta + (1 +
e^epsilon) t) of the other: one t for each of the two neighbours, the second times
e^epsilon. At most half of delta is given to it: beyond that epsilon is that of
exact laws, and whoever prints it says so.
"""

import math

from tff_pipelines.accounting import accountant
from tff_pipelines.accounting import base

# exp of more than this is not a float.
_LARGEST_EXPONENT = 700.0


def taken(deviation: float, epsilon: float) -> float:
  """(1 + e^epsilon) times a total variation, at most 1."""
  return min(1.0, deviation * (1 + math.exp(min(epsilon, _LARGEST_EXPONENT))))


def taken_at_most(deviation: float, event: base.Event, delta: float,
                  **how: str) -> float:
  """What a deviation takes at the epsilon that will be found, or a little more.

  Args:
    deviation: Total variation of all releases.
    event: Of all releases under exact laws.
    delta: In which it has a part.
    **how: accountant and amplification, as for `accountant.epsilon`.
  """
  # Half of delta at least is left, so what is found is at most this epsilon.
  return taken(deviation, accountant.epsilon(event, delta / 2, **how))


def left(delta: float, part: float | None) -> float:
  """What of delta is left for the exact law; delta if the part is beyond half."""
  if part is None or part > delta / 2:
    return delta
  return delta - part


# The part of delta that noise is calibrated without, so that what its sampler takes
# does not make epsilon exceed its target.
_KEPT = 2.0**-15


def calibrated_to(delta: float) -> float:
  """A little less than delta, to calibrate noise for a target epsilon at."""
  return delta * (1 - _KEPT)


def check_kept(part: float, epsilon: float, delta: float) -> None:
  """Raises ValueError if a sampler takes more than `calibrated_to` keeps for it.

  Args:
    part: Of delta, the very one that the guarantee is stated without.
    epsilon: The target.
    delta: Of the guarantee.
  """
  if part > _KEPT * delta:
    raise ValueError(
        f'epsilon={epsilon:g} at delta={delta:g} can not be had: at such an epsilon '
        f'the draws of the noise take {part:.3g} of delta, and 2^-15 of it is kept '
        'for them; lower epsilon or raise delta')
