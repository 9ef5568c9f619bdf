"""The guarantee of a person who owns several clients: group privacy.

Neighbouring inputs then differ in up to g clients. Where the release between such
inputs is known, its event is accounted as every other one is (`Event.group`). Elsewhere,
or if that is less, the guarantee of one client is taken g times (`chained`). Proofs:
docs/participation.md.
"""

from collections.abc import Callable
import math

import numpy as np
from scipy import optimize

from tff_pipelines.accounting.events import base
from tff_pipelines.common import caveats, validate

# The logarithm of the delta of a chain is found to this much.
_TOLERANCE = 0.01
_SMALLEST = math.log(1e-300)

# Names of the caveats of the numbers of a person.
NAMES = ('person: ideal distributions', 'person: no finite epsilon')
IDEAL = caveats.Caveat(
    NAMES[0], 'an epsilon of a person is that of ideal distributions: at such an epsilon '
    'the sampling error of the noise would consume more than half of delta')


def unbounded(clients: int) -> caveats.Caveat:
  """The caveat where no finite epsilon is proved for a person."""
  return caveats.Caveat(
      NAMES[1], f'no finite epsilon is proved for a person who owns {clients} clients')


def of_group(event: base.Event, clients: int, *,
             known: bool = False) -> base.Event | None:
  """The release between inputs that differ in up to g >= 1 clients; see `Event.group`.

  Raises ValueError if a record, and no client, is protected.
  """
  validate.integer(clients_per_person=clients, low=1)
  if clients > 1 and event.adjacency in base.OF_RECORDS:
    raise ValueError(f'clients_per_person={clients} needs a guarantee of clients, found '
                     f'adjacency {event.adjacency}')
  return event if clients == 1 else event.group(clients, known)


def may_be_chained(event: base.Event, clients: int, *, known: bool) -> bool:
  """Whether a chain may cost less than `of_group`, or there is nothing else."""
  group = of_group(event, clients, known=known)
  return group is None or any(_has_chains(one, known) for one in (event, group))


def _has_chains(event: base.Event, known: bool) -> bool:
  """Whether `Event.may_be_chained` holds of an event or of a part of it."""
  return event.may_be_chained(known) or any(
      _has_chains(part, known) for part in base.parts(event))


def chained(of: Callable[[float], float], clients: int, delta: float) -> float:
  """Epsilon of g = `clients` >= 1 by that of one, from neighbour to neighbour.

  (e, d) for one client is (g e, d (e^(g e) - 1) / (e^e - 1)) for g of them.

  Args:
    of: From a delta in [0, 1) to the epsilon of one client.
    delta: Delta of the group, in [0, 1).

  Returns g times the epsilon of one client at a smaller delta; `inf` if none will do.
  """
  if delta == 0 or clients == 1:
    return clients * of(delta)
  found = [math.inf]

  def excess(log_delta: float) -> float:
    """By how much the logarithm of the group's delta is too large."""
    one = of(math.exp(log_delta))
    # log(1 + e^one + ... + e^((g-1) one)), by which the delta of one grows.
    growth = one if one == math.inf else float(
        np.logaddexp.reduce(one * np.arange(clients)))
    if (total := log_delta + growth - math.log(delta) + 1e-12) <= 0:
      found.append(clients * one)
    return min(max(total, -50.0), 50.0)

  high, step = math.log(delta / clients), 2.0
  if excess(high) > 0:
    while (low := math.log(delta) - step) > _SMALLEST and excess(low) > 0:
      high, step = low, 2 * step
    if len(found) > 1:
      optimize.brentq(excess, low, high, xtol=_TOLERANCE)
  return min(found)
