"""How the numbers of a guarantee came about, step by step.

Every number here is computed by `observers.bound`, as those of the guarantee are.
"""

from collections.abc import Iterator, Mapping
import dataclasses
from typing import Any, NamedTuple

from tff_pipelines.accounting.events import base, combinators
from tff_pipelines.accounting.guarantees import bounds, observers
from tff_pipelines.accounting.guarantees.guarantee import (
    certificates_in_words, Guarantee, in_words)
from tff_pipelines.common import decimals, files

_AGAINST = {
    bounds.OUTSIDERS: 'observers of what is released',
    bounds.SERVER: 'the server and others who know the cohorts, drawn by the rule '
                   '(restarts are charged)',
    bounds.SERVER_ANY_COHORTS: 'a server that may choose the cohorts (restarts are '
                               'charged)',
    bounds.PARTICIPANT: 'participants who subtract their shares of the noise',
    bounds.PERSON: 'observers, for a person with {} clients',
    bounds.PERSON_SERVER: 'the server, for a person with {} clients'}
# Amplification -> what is taken to be known of the cohorts.
_COHORTS = {
    'tight': 'who and how many participated are hidden',
    'generic': 'who and how many participated are hidden, by the published bound',
    observers.AVERAGE: 'cohorts are known, independent of what was opened, and '
                       'drawn by the rule',
    'none': 'cohorts are known, and may be any'}


class Step(NamedTuple):
  """A step on the way to a number.

  Attributes:
    text: Description in a line.
    bound: Epsilon at this step; None where the step has no number.
    level: Depth in the tree, 0 for an observer.
  """

  text: str
  bound: bounds.Bound | None = None
  level: int = 1

  def line(self) -> str:
    """The step for the terminal."""
    number = '' if self.bound is None else f': {in_words(self.bound)}'
    return f'{"  " * self.level}{self.text}{number}'

  def to_json(self) -> dict[str, Any]:
    bound = self.bound
    return {'step': self.text, 'level': self.level,
            'epsilon': bound and files.finite(bound.epsilon),
            'accountant': bound and bound.accountant,
            'order': bound and files.finite(bound.order)}


def steps(guarantee: Guarantee, views: Mapping[str, observers.View],
          method: observers.Method) -> list[Step]:
  """The steps to all numbers of a guarantee, observer after observer.

  `views` has what each observer of the numbers sees.
  """
  return [step for observer, number in guarantee.by_observer.items()
          for step in _of_observer(observer, number, views[observer],
                                   guarantee.delta, method)]


def _of_observer(observer: str, number: bounds.Bound, view: observers.View,
                 delta: float, method: observers.Method) -> Iterator[Step]:
  against = _AGAINST[observer].format(method.clients_per_person)
  yield Step(f'against {against}, at delta {decimals.rounded_up(delta)}', number, 0)
  under_ideal = ', under ideal distributions' * bool(view.total_variation)

  def bound(event: base.Event, whom: str = observer) -> bounds.Bound | None:
    """The epsilon of an event under ideal distributions; None if unknown."""
    if number.accountant == 'theorem' or delta >= 1 or (
        observer == bounds.PARTICIPANT and not number.is_finite):
      return None
    return observers.bound(
        view._replace(event=event, total_variation=0.0), delta, method, whom)

  if observer in observers.OF_ONE:
    yield Step('for one client', bound(view.event, observers.OF_ONE[observer]))
  else:
    parts = combinators.releases(view.event)
    for event, count in parts.items():
      yield Step(f'{count} x {_name(event)}')
      yield from _fields(event)
      if observer == bounds.PARTICIPANT:
        yield from _left(event, method)
      if (count > 1 or len(parts) > 1) and (alone := bound(event)) is not None:
        yield Step('one of them alone', alone, 2)
    most, total = combinators.contributions(view.event), sum(parts.values())
    if most < total:
      yield Step(f'one client contributes at most {most} times to the {total} releases')
  if number.accountant != 'theorem' and delta < 1:
    found = observers.candidates(view, observer, method)
    for candidate in found:
      text = _COHORTS.get(candidate.amplification, 'nothing is sampled')
      yield Step(f'all releases where {text}{under_ideal}' if len(found) > 1 else
                 f'all releases{under_ideal}', observers.of_candidate(
                     candidate, view._replace(total_variation=0.0), delta, method))
  if number.consumed_delta:
    yield Step(f'sampling error of the noise consumes '
               f'{decimals.rounded_up(number.consumed_delta, 3)} of delta', number)
  if number.accountant is not None:
    how = '' if number.amplification is None else (
        f', amplification by sampling: {number.amplification}')
    order = '' if number.order is None else f', order {number.order:g}'
    yield Step(f'accountant {number.accountant}{order}{how}')
  for words in certificates_in_words(number.certificates):
    yield Step(f'Skellam noise as Gaussian noise: {words}')


def _name(event: base.Event) -> str:
  inner = ' and '.join(map(_name, base.parts(event)))
  return type(event).__name__ + (f' of {inner}' if inner else '')


def _fields(event: base.Event) -> Iterator[Step]:
  """Yields the parameters of an event and of those that it wraps."""
  shown = ', '.join(
      f'{field.name} {value:.6g}' if isinstance(value, float) else
      f'{field.name} {value}' for field in dataclasses.fields(event)
      if (value := getattr(event, field.name)) is not None
      and field.name not in ('event', 'events'))
  if shown:
    yield Step(f'{type(event).__name__}: {shown}', level=2)
  for part in base.parts(event):
    yield from _fields(part)


def _left(event: base.Event, method: observers.Method) -> Iterator[Step]:
  """Yields what is left of the noise when participants subtract their shares."""
  shares, cohort = method.participants.shares, event.minimum_cohort()
  before, after = _noise(event), _noise(event.seen_by_participants(shares))
  if event.has_shares() and cohort is None:
    yield Step('a cohort may be of one participant, who knows all of its noise; cohorts '
               'drawn by the rule rarely are', level=2)
  if before and after and cohort:
    yield Step(f'without the shares of {shares:g} in cohorts of at least '
               f'{cohort:g}: noise of variance {after:.6g}, not {before:.6g}', level=2)


def _noise(event: base.Event) -> float | None:
  """The variance of the first noise of shares in an event."""
  return getattr(event, 'noise_variance', None) or next(
      filter(None, map(_noise, base.parts(event))), None)
