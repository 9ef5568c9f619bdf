"""The epsilon of each observer: what it sees, and what that costs.

One function for every number, in plans, ledgers and answers: `seen` is the event that
an observer sees, `bound` its epsilon.
"""

from collections.abc import Mapping
import dataclasses
import math
from typing import NamedTuple

from tff_pipelines.accounting.events import base
from tff_pipelines.accounting.guarantees import (
    accountant as accountant_lib, bounds, groups, noise_budget)
from tff_pipelines.common import caveats

IDEAL = 'epsilon of ideal distributions'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
  """How numbers are computed.

  Attributes:
    accountant, amplification: As for `accountant.epsilon`.
    population, records: As for `accountant.bound`.
    colluders: Number of participants who pool what they know, >= 1.
    clients_per_person: Clients that one person may own, >= 1.
  """

  accountant: str = 'auto'
  amplification: str = 'tight'
  population: int | None = None
  records: int | None = None
  colluders: float = 1
  clients_per_person: int = 1


def seen(event: base.Event, observer: str, colluders: float = 1) -> base.Event:
  """The event that an observer sees of everything that was released."""
  if observer == bounds.PARTICIPANT:
    event = event.seen_by_participants(colluders)
  return event if observer in (bounds.OUTSIDERS, bounds.PERSON) else (
      event.without_sampling())


class View(NamedTuple):
  """The releases of runs as an observer sees them.

  Attributes:
    event: Everything that was released to it.
    total_variation: Distance of all of that from ideal distributions; None where no
      bound is known.
    hides_records: Whether records were sampled that no other party knows.
  """

  event: base.Event
  total_variation: float | None = None
  hides_records: bool = False

  def observer(self, observer: str) -> str:
    """The observer as which this one is accounted."""
    return bounds.OUTSIDERS if self.hides_records and observer == bounds.SERVER else (
        observer)

  def seen(self, observer: str, method: Method,
           event: base.Event | None = None) -> base.Event:
    """The event that an observer sees, of all releases or of one of them."""
    return seen(self.event if event is None else event, self.observer(observer),
                method.colluders)


def bound_of_view(view: View, observer: str, delta: float,
                  method: Method) -> bounds.Bound:
  """The epsilon of an observer by its view; arguments are those of `bound`."""
  result = bound(view.event, delta, method, observer=view.observer(observer),
                 total_variation=view.total_variation)
  return dataclasses.replace(result, observer=observer)


def bound(event: base.Event, delta: float, method: Method, *,
          observer: str = bounds.OUTSIDERS,
          total_variation: float | None = None) -> bounds.Bound:
  """The epsilon of an observer.

  Args:
    event: Everything that was released, as outsiders see it.
    delta: In [0, 1).
    method: How it is computed.
    observer: One of `bounds.KEYS`.
    total_variation: Distance of all releases together from ideal ones, above 1 as 1,
      which consumes delta; None where no bound is proved.
  """
  if observer in (bounds.PERSON, bounds.PERSON_SERVER):
    return _of_person(event, delta, method, observer, total_variation)
  amplification = method.amplification if observer == bounds.OUTSIDERS else 'none'
  event = seen(event, observer, method.colluders)
  consumed = noise_budget.consumed_by(
      event, total_variation, delta, amplification, method.accountant)
  result = accountant_lib.bound(
      event, noise_budget.remaining(delta, consumed), accountant=method.accountant,
      amplification=amplification, population=method.population,
      records=method.records, stated_delta=delta)
  ideal = () if not noise_budget.is_too_much(consumed, delta) else (caveats.Caveat(
      IDEAL,
      'epsilon is that of ideal distributions: at such an epsilon the sampling '
      f'error of the noise would consume {consumed:.3g} of delta, more than half'),)
  return dataclasses.replace(
      result, delta=delta, observer=observer, consumed_delta=consumed,
      amplification=None if event.without_sampling() == event else amplification,
      caveats=(*result.caveats, *ideal))


def _of_person(event: base.Event, delta: float, method: Method, observer: str,
               total_variation: float | None) -> bounds.Bound:
  """The epsilon of an observer for a person who owns several clients."""
  epsilon, ideal = groups.epsilon(
      event, method.clients_per_person, delta, accountant=method.accountant,
      amplification=method.amplification, known=observer == bounds.PERSON_SERVER,
      total_variation=total_variation)
  notes = ()
  if epsilon == math.inf:
    notes = (groups.unbounded(method.clients_per_person),)
  elif ideal:
    notes = (groups.IDEAL,)
  return bounds.Bound(epsilon=epsilon, delta=delta, observer=observer,
                      adjacency=event.adjacency, caveats=notes)


def caveats_of(found: Mapping[str, bounds.Bound]) -> list[caveats.Caveat]:
  """The caveats of several numbers: all of the outsiders', else those of the number.

  Args:
    found: Observer -> bound; that of outsiders is there.
  """
  notes = list(found[bounds.OUTSIDERS].caveats)
  for who in (bounds.SERVER, bounds.PARTICIPANT):
    if who in found and found[who].is_finite:
      notes += [
          caveats.Caveat(f'{who}: ideal distributions', f'against the {who}: {note}')
          for note in found[who].caveats if note not in notes and note.name == IDEAL]
  return notes + [note for who in (bounds.PERSON, bounds.PERSON_SERVER) if who in found
                  for note in found[who].caveats]
