"""The guarantee of a run: all of its numbers, each with the observers it holds against.

A family says what each round releases (`Plan.event`) and to whom (`Terms`). Here its
events become numbers, in one way for all: the same object feeds the plan that is printed
before the first round, the metrics of each round, the ledger's header and the summary.
"""

import abc
import collections
from collections.abc import Iterable, Sequence
import functools
import math
from typing import Any

from tff_pipelines.accounting.events import base, combinators
from tff_pipelines.accounting.guarantees import (
    accountant, bounds, groups, ledger as ledger_lib, observers)
from tff_pipelines.accounting.guarantees.bounds import Bound
from tff_pipelines.accounting.guarantees.guarantee import (
    AGGREGATED, Caveat, Guarantee, SEEDED, SUPPRESSED, Terms)
from tff_pipelines.common import declarations

_AT_SMALL_DELTA = ('epsilon_at_delta_1e-6', 'epsilon_server_at_delta_1e-6')


class Plan(abc.ABC):
  """The guarantee that a run plans, spends and reports.

  Attributes:
    terms, delta: As in `Guarantee`.
    seed: A simulation seed voids the guarantee; None for none.
    accountant, amplification: As for `accountant.epsilon`.
    population, records: As for `accountant.bound`.
    total_variation: Distance in [0, 1] between a release and that of the ideal
      distributions in its event; None where no bound is proved.
    preliminary: Event of a release before the first round, in `released`; None for none.
    clients_per_person: Clients that one person may own, for whom numbers of their own
      are stated if they are several.
    has_closed_sums: Whether sums stay closed, and those of suppressed rounds for ever.
  """

  terms: Terms
  delta: float | None
  seed: int | None = None
  accountant: str = 'auto'
  amplification: str = 'tight'
  population: int | None = None
  records: int | None = None
  total_variation: float | None = None
  preliminary: base.Event | None = None
  clients_per_person: int = 1
  has_closed_sums: bool = False

  @abc.abstractmethod
  def event(self, index: int) -> base.Event:
    """The event that the round of this index, from 1, releases."""

  @abc.abstractmethod
  def configuration(self) -> dict[str, Any]:
    """The calibrated numbers that a resumed run takes over, as JSON."""

  @property
  def calibrated(self) -> 'Plan':
    """The plan that meets the targets: without what faults charged in addition."""
    return self

  @property
  def is_private(self) -> bool:
    """Whether anything is guaranteed."""
    return True

  def notes(self) -> list[Caveat]:
    """Caveats of this plan, in addition to those of its numbers."""
    return []

  def further(self, released: base.Event) -> dict[str, Any]:
    """Further numbers of the guarantee, by their key in the summary."""
    return {}

  def released(self, rounds: int) -> base.Event:
    """Everything that the first `rounds` rounds, and what is before them, release."""
    return combinators.composed(
        collections.Counter(map(self.event, range(1, rounds + 1))))

  @functools.cached_property
  def adjacency(self) -> str:
    return self.event(1).adjacency

  @property
  def epsilon_name(self) -> str:
    """The name of epsilon in a run's metrics; a seeded run has none."""
    return 'epsilon' if self.seed is None else 'epsilon_if_unseeded'

  @property
  def method(self) -> observers.Method:
    """How its numbers are computed."""
    return observers.Method(**declarations.shared(observers.Method, self))

  def bound(self, event: base.Event, releases: int, *,
            observer: str = bounds.OUTSIDERS, delta: float | None = None) -> Bound:
    """The epsilon of an observer, one of `bounds.KEYS`.

    Args:
      event: Everything that was released, as outsiders see it.
      releases: Number of its rounds; sampling error consumes delta in each.
      observer, delta: The observer; None for the delta of the guarantee.
    """
    view = observers.View(event, self.total_variation and releases * self.total_variation)
    return observers.bound(
        view, self.delta if delta is None else delta, self.method, observer)

  def epsilon(self, rounds: int, repeats: int = 0,
              lost: Sequence[base.Event] = ()) -> float:
    """Epsilon against the observers; 0 after no rounds.

    Args:
      rounds: Number of committed rounds.
      repeats: Rounds that restarts repeated, which count in local privacy.
      lost: Released in addition, by rounds that were lost and run again.
    """
    if not rounds or not self.is_private:
      return math.inf if rounds else 0.0
    if self.adjacency == base.LOCAL:
      rounds += repeats
    released = self.released(rounds)
    if lost:
      released = combinators.Composed(events=(released, *lost))
    return self.bound(released, self.release_count(rounds) + len(lost)).epsilon

  def release_count(self, rounds: int) -> int:
    """Number of releases of this many rounds, and of what is before them."""
    return rounds + (self.preliminary is not None)

  def guarantee(self, rounds: int, repeats: int = 0, *, suppressed: bool = False,
                seen: base.Event | None = None,
                released: base.Event | None = None) -> Guarantee:
    """All numbers of the guarantee.

    Args:
      rounds: Number of committed rounds, >= 1; of all releases, where `released` is
        given.
      repeats: Rounds that the server may have seen again after restarts.
      suppressed: Whether any was suppressed: the server saw less noise there.
      seen: All that the server may have seen; None if nothing was repeated.
      released: All that these rounds released; None for `released(rounds)`.
    """
    notes = [SEEDED] if self.seed is not None else []
    if self.terms.secure_aggregation:
      notes.append(AGGREGATED[self.terms.secure_aggregation])
    if not self.is_private:
      return Guarantee(terms=self.terms, delta=self.delta,
                       further=dict.fromkeys(_AT_SMALL_DELTA),
                       caveats=(*notes, *self.notes()))
    if released is None:
      released, rounds = self.released(rounds), self.release_count(rounds)
    is_unseeded, terms = self.seed is None, self.terms
    has_server = terms.observers_server is not None and is_unseeded
    if has_server and suppressed and not self.has_closed_sums:
      notes.append(SUPPRESSED)
      has_server = False
    is_person = self.clients_per_person > 1 and is_unseeded
    of_records = released.adjacency in base.OF_RECORDS  # Another silo may run the server.
    views = observers.by_observer(
        (released, rounds), (seen or released, rounds + repeats), released.adjacency)
    stated = {bounds.OUTSIDERS: True, bounds.SERVER: has_server,
              bounds.SERVER_ANY_COHORTS: has_server,
              bounds.PARTICIPANT: is_unseeded and terms.observers_participant and (
                  has_server or not of_records),
              bounds.PERSON: is_person, bounds.PERSON_SERVER: is_person and has_server}
    found = {observer: self.bound(*view, observer=observer)
             for observer, view in views.items() if stated[observer]}
    small = dict.fromkeys(_AT_SMALL_DELTA)
    who = bounds.PARTICIPANT if of_records and bounds.PARTICIPANT in found else bounds.SERVER
    for observer, name in zip((bounds.OUTSIDERS, who), small):
      if observer in found and is_unseeded and self.delta > accountant.SMALL_DELTA:
        bound = self.bound(
            *views[observer], observer=observer, delta=accountant.SMALL_DELTA)
        if observers.IDEAL not in {note.name for note in bound.caveats}:
          small[name] = bound.epsilon
    # Every observer sees the answers that a restart repeats.
    released, _ = views[bounds.OUTSIDERS]
    return Guarantee(
        terms=terms, delta=self.delta, adjacency=released.adjacency, **found,
        least_cohort=released.minimum_cohort(),
        clients_per_person=self.clients_per_person, seeded=not is_unseeded,
        further={**small, **self.further(released)}, caveats=tuple(dict.fromkeys(
            [*notes, *self.notes(), *observers.caveats_of(found)])))

  def guarantee_of(self, ledger: ledger_lib.Ledger) -> Guarantee:
    """All numbers of the releases in a ledger, restarts included."""
    lines = ledger.lines()
    return self.guarantee(
        len(lines), ledger.repeats, seen=ledger.seen_event(), released=ledger.event(),
        suppressed=any(line['outcome'] not in ('released', ledger_lib.UNUSED)
                       for line in lines))

  def header(self, rounds: int, more: Iterable[str] = ()) -> dict[str, Any]:
    """Keyword arguments of the ledger's header.

    Args:
      rounds: Number of rounds of the whole run.
      more: Further caveats of every number that is computed from the ledger.
    """
    guarantee = self.guarantee(rounds)
    return dict(
        population=self.population, delta=self.delta, adjacency=guarantee.adjacency,
        trust_model=self.terms.trust_model, seeded=self.seed is not None,
        deviation_per_round=self.total_variation, certificates=guarantee.certificates,
        warnings=[*(str(note) for note in guarantee.caveats
                    if note.name not in groups.NAMES), *map(str, more)])
