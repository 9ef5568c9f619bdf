"""Answers to queries: numbers under stable keys, and the words around them."""

from collections.abc import Iterator
import dataclasses
import math
from typing import Any

from aggregators import params as params_lib
from tff_pipelines.accounting.events import base, sum_events
from tff_pipelines.accounting.guarantees import (
    accountant, bounds, calibration, mechanisms, observers, votes)
from tff_pipelines.accounting.guarantees.bounds import Bound
from tff_pipelines.accounting.guarantees.guarantee import Guarantee, Terms, UNBOUNDED
from tff_pipelines.common import caveats, declarations, files, validate

Mechanism = mechanisms.Mechanism

KINDS = ('epsilon', 'delta', 'noise_multiplier', 'rounds', 'bits', 'table')
_TABLE_BITS = (12, 14, 16, 18, 20)
_query = declarations.group('query')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Query:
  """A question to the accountant about a mechanism."""

  kind: str = _query(
      'epsilon', 'The number that is asked for, or a table of several.', choices=KINDS,
      essential=True)
  epsilon: float | None = _query(
      None, 'Target; for piecewise, duchi and laplace the parameter of one query.',
      above=0, essential=True)
  delta: float | None = _query(
      None, 'Delta.', low=0, below=1, essential=True,
      otherwise='the ledger\'s, or 1/N^1.1')
  accountant: str = _query(
      'auto', 'Accountant. auto: privacy loss distributions (pld) where the worst '
      'case is known, else Renyi divergences (rdp).', choices=base.ACCOUNTANTS)
  amplification: str = _query(
      'tight', 'Bound on amplification by sampling; generic is the published one.',
      choices=base.AMPLIFICATIONS)
  colluders: int = _query(
      1, 'Number of participants who pool what they know, for epsilon against '
      'participants, who know their own shares of the noise.', low=1, unit='clients')
  clients_per_person: int = _query(
      1, 'Clients that one person may own: epsilon of such a person as well.', low=1,
      unit='clients')
  allow_degenerate: bool = _query(
      False, 'Accept a grid too coarse to be useful, with a warning.')

  def __post_init__(self):
    declarations.check(self)

  def needed(self, name: str) -> Any:
    """The field `name`; ValueError if it was not given."""
    value = getattr(self, name)
    if value is None:
      raise ValueError(f'{name} must be given for query={self.kind}')
    return value


def terms(trust_model: str | None, sampling: str | None = None) -> Terms:
  """The terms of an answer, of which a mechanism or a ledger states these two alone."""
  return Terms(privacy_unit='', observers='observers of the models', against='',
               trust_model=trust_model, sampling=sampling, source=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer(Guarantee):
  """A guarantee, and the numbers of what it is about; None where not applicable.

  Its caveats are also errors of a row that can't be answered.

  Attributes:
    noise_multiplier: Noise of the guarantee over the sensitivity.
    rounds: Number of releases.
    scale: Grid units per model unit.
    local_stddev_grid: Standard deviation of a client's share, grid units.
    bits: Bits of a coordinate of the sum.
    dimension_padded: Coordinates that a client sends.
  """

  terms: Terms = terms(None)
  noise_multiplier: float | None = None
  rounds: int | None = None
  scale: float | None = None
  local_stddev_grid: float | None = None
  bits: int | None = None
  dimension_padded: int | None = None

  def to_json(self) -> dict[str, Any]:
    """The keys in their stable order."""
    outsiders = self.by_observer.get(bounds.OUTSIDERS, _NOTHING)
    values = {
        **vars(self), **self.numbers(), 'order': _json_order(outsiders.order),
        'accountant': outsiders.accountant, 'amplification': outsiders.amplification,
        'clients_per_person': (
            self.clients_per_person if self.clients_per_person > 1 else None),
        'sampling': self.terms.sampling, 'trust_model': self.terms.trust_model,
        'warnings': list(self.caveats)}
    return {name: values[name] for name in _KEYS}


_KEYS = ('epsilon', 'epsilon_server', 'epsilon_participant', 'clients_per_person',
         'epsilon_person', 'epsilon_server_person', 'delta', 'noise_multiplier',
         'rounds', 'scale', 'local_stddev_grid', 'bits', 'dimension_padded', 'order',
         'accountant', 'amplification', 'adjacency', 'sampling', 'trust_model',
         'warnings')
_NOTHING = Bound(epsilon=math.inf)


def _json_order(order: float | None) -> float | None:
  """A Renyi order for JSON: None for the infinite one."""
  if order is None or math.isinf(order):
    return None
  return int(order) if order == int(order) else order


def _whole(epsilon: float) -> str:
  """A large epsilon in words, rounded up."""
  return str(math.ceil(epsilon)) if math.isfinite(epsilon) else 'infinite'


def _does_not_apply(query: Query, mechanism: Mechanism, reason: str) -> ValueError:
  return ValueError(
      f'query={query.kind} does not apply to mechanism={mechanism.mechanism}{reason}')


def _target(query: Query) -> dict[str, Any]:
  return dict(epsilon=query.needed('epsilon'), delta=query.needed('delta'),
              accountant=query.accountant, amplification=query.amplification)


def _solved(query: Query, mechanism: Mechanism) -> Mechanism:
  """The mechanism with the number that is asked for, if that is one of its fields."""
  family = mechanism.family
  if query.kind == 'noise_multiplier':
    return _with_noise(query, mechanism)
  if query.kind == 'rounds':
    most = calibration.rounds(
        lambda count: mechanism.replace(**{family.counter: count}).event(),
        **_target(query))
    return mechanism.replace(**{family.counter: most})
  if query.kind == 'bits':
    if not family.params or mechanism.scale is not None:
      raise ValueError(
          'query=bits needs a mechanism on a grid (skellam, discrete_gaussian, '
          'skellam_central) and no scale, found '
          f'mechanism={mechanism.mechanism}')
    return _with_bits(query, mechanism)
  return mechanism


def _with_noise(query: Query, mechanism: Mechanism) -> Mechanism:
  knob = mechanism.family.knob

  def solved(trial: Mechanism) -> Mechanism:
    return trial.replace(**{knob: calibration.noise_multiplier(
        lambda noise: trial.replace(**{knob: noise}).event(), **_target(query))})

  try:
    return solved(mechanism)
  except calibration.Unreachable as error:
    if not mechanism.family.params:
      raise
    start = mechanism.replace(**{knob: 1.0}).params()
    raise ValueError(calibration.unreachable_reason(
        start, lambda trial: solved(mechanism.replace(bits=trial.bits)).params(),
        error)) from None


def _with_bits(query: Query,
               mechanism: mechanisms.SumMechanism) -> mechanisms.SumMechanism:
  if mechanism.noise_multiplier is not None:
    return mechanism.replace(bits=calibration.bits(
        lambda bits: mechanism.replace(bits=bits).event(), **_target(query)))
  params = calibration.suggest_bits(
      mechanism.replace(bits=30, noise_multiplier=1.0).params(),
      lambda trial: mechanism.replace(
          bits=None if trial.fixed_scale else trial.bits,
          scale=trial.fixed_scale,
          noise_multiplier=trial.noise_multiplier).event(),
      epsilon=query.needed('epsilon'), delta=query.needed('delta'),
      amplification=query.amplification)
  return mechanism.replace(bits=params.bits, noise_multiplier=params.noise_multiplier)


def answer(query: Query, mechanism: Mechanism) -> Answer:
  """Answers every query but a table.

  Args:
    query: The question.
    mechanism: What it is asked about; the field that is asked for is ignored.

  Raises:
    ValueError: If the question is incomplete, out of range or without a solution.
  """
  if isinstance(mechanism, mechanisms.NfdpMechanism):
    return _answer_nfdp(query, mechanism)
  if mechanism.mechanism == 'none':
    return _answer_none(query, mechanism)
  if isinstance(mechanism, mechanisms.VoteMechanism) and mechanism.bound == 'paper':
    return _answer_published_vote(query, mechanism)
  if isinstance(mechanism, mechanisms.LocalMechanism):
    return _answer_local(query, mechanism)
  solved = _solved(query, mechanism)
  event = solved.event()
  if query.kind == 'delta':
    delta = accountant.delta(
        event, query.needed('epsilon'), accountant=query.accountant,
        amplification=query.amplification)
  else:
    delta = query.needed('delta')
    validate.open_unit_interval(delta=delta)
  return _described(query, solved, event, delta)


def explained(query: Query, mechanism: Mechanism
              ) -> tuple[Answer, dict[str, observers.View], observers.Method]:
  """`answer` with the events and the method that gave the numbers."""
  if getattr(mechanism, 'bound', None) == 'paper':
    raise ValueError('explain needs bound=tight, found bound=paper: its numbers are '
                     'those of a published formula')
  result, family = answer(query, mechanism), mechanism.family
  solved = {'noise_multiplier': {family.knob: result.noise_multiplier},
            'rounds': {family.counter: result.rounds},
            'bits': {family.knob: result.noise_multiplier, 'bits': result.bits}}
  mechanism = mechanism.replace(**solved.get(query.kind, {}))
  event = mechanism.release() if isinstance(
      mechanism, mechanisms.NfdpMechanism) else mechanism.event()
  return (result, dict.fromkeys(bounds.KEYS, observers.View(event)),
          method_of(query, mechanism))


def _described(query: Query, mechanism: Mechanism, event: base.Event,
               delta: float) -> Answer:
  """Describes an event at a delta."""
  family = mechanism.family
  sums = mechanism if isinstance(mechanism, mechanisms.SumMechanism) else None
  if 0 < delta < 1:
    outsiders = accountant.bound(
        event, delta, amplification=query.amplification, accountant=query.accountant,
        population=sums.population if sums else None)
    if query.kind == 'delta':
      outsiders = dataclasses.replace(outsiders, epsilon=query.epsilon)
  else:
    # Delta came out as 0 or 1: there is nothing more to optimise.
    outsiders = Bound(
        epsilon=query.epsilon, amplification=query.amplification,
        accountant='pld' if event.factors(query.amplification) else 'rdp')
  warnings, fields = list(outsiders.caveats), {}
  found = {bounds.OUTSIDERS: outsiders}
  if sums:
    for observer in _observers(query, event):
      found[observer] = _bound(query, sums, event, delta, observer)
    server = found[bounds.SERVER].epsilon
    if sums.sampling != 'none' and server > accountant.LARGE_EPSILON:
      warnings.append(caveats.Caveat(
          'large epsilon against the server',
          'against the server and whoever knows the cohorts '
          f'epsilon={_whole(server)} says next to nothing'))
    if bounds.PARTICIPANT in found and not found[bounds.PARTICIPANT].is_finite:
      warnings.append(UNBOUNDED)
    warnings += observers.caveats_of(found)
  if family.params:
    params = sums.params()
    warnings += _warnings_of_params(query, sums, params, delta)
    fields |= dict(
        scale=params.scale, local_stddev_grid=params.local_stddev_grid,
        bits=sums.bits, dimension_padded=params.padded_dimension)
  return Answer(
      terms=terms(family.trust_model, sums and sums.sampling), delta=delta,
      adjacency=event.adjacency, clients_per_person=query.clients_per_person,
      noise_multiplier=files.finite(getattr(mechanism, family.knob)),
      rounds=getattr(mechanism, family.counter),
      caveats=tuple(dict.fromkeys(warnings)), **found, **fields)


def _observers(query: Query, event: base.Event) -> Iterator[str]:
  """Yields the observers, other than outsiders, of a sum of clients."""
  yield bounds.SERVER
  if event.has_shares():
    yield bounds.PARTICIPANT
  if query.clients_per_person > 1:
    yield bounds.PERSON
    yield bounds.PERSON_SERVER


def _bound(query: Query, sums: mechanisms.SumMechanism, event: base.Event,
           delta: float, observer: str) -> Bound:
  """The epsilon of an observer other than outsiders."""
  if sums.population is not None:
    validate.integer(clients_per_person=query.clients_per_person, low=1,
                     high=sums.population)
  if delta >= 1:
    return Bound(epsilon=0.0)
  if observer == bounds.PARTICIPANT and not sums.surviving_fraction:
    return Bound(epsilon=math.inf)
  return observers.bound(event, delta, method_of(query, sums), observer=observer)


def method_of(query: Query, mechanism: Mechanism) -> observers.Method:
  """How the numbers of an answer are computed."""
  # Missing shares are the others': all that is missing is seen as collusion.
  surviving = getattr(mechanism, 'surviving_fraction', 1.0) or 1.0
  return observers.Method(
      accountant=query.accountant, amplification=query.amplification,
      colluders=query.colluders / surviving,
      clients_per_person=query.clients_per_person)


def _warnings_of_params(
    query: Query, mechanism: mechanisms.SumMechanism,
    params: params_lib.DistributedSumParams, delta: float) -> list[caveats.Caveat]:
  """Refuses or reports a degenerate grid; reports what collusion leaves."""
  warnings = []
  if not query.allow_degenerate:
    calibration.refuse_degenerate(params)
  elif params.degeneracy() is not None:
    warnings.append(caveats.Caveat(
        'degenerate grid', f'degenerate setting, allowed: {params.degeneracy()}'))
  if not params.has_shares or not 0 < delta < 1:
    return warnings
  share = sum_events.DistributedSkellam(
      l1_sensitivity=params.l1_sensitivity, l2_sensitivity=params.l2_sensitivity,
      noise_variance=params.local_stddev_grid**2)
  alone, _ = accountant.renyi_epsilon(share, delta)
  if alone > accountant.LARGE_EPSILON:
    warnings.append(caveats.Caveat(
        'little noise if all others collude',
        'local noise is too small if all others collude: a client\'s own share '
        f'leaves it epsilon={_whole(alone)} in one round'))
  if not params.noise.is_divisible and mechanism.sampling == 'poisson':
    warnings.append(caveats.Caveat(
        'approximate amplification',
        'discrete Gaussian shares do not add up to one distribution as the cohort '
        'varies: amplification by Poisson sampling holds approximately only'))
  return warnings


def _answer_none(query: Query, mechanism: mechanisms.SumMechanism) -> Answer:
  if query.kind not in ('epsilon', 'delta'):
    raise _does_not_apply(query, mechanism, ', which has no guarantee to reach')
  event = mechanism.event()
  return Answer(
      terms=terms(mechanism.family.trust_model),
      delta=query.delta if query.kind == 'epsilon' else 1.0,
      noise_multiplier=0.0, rounds=mechanism.rounds, adjacency=event.adjacency,
      caveats=(caveats.Caveat('infinite epsilon', 'epsilon is infinite'),
               *event.caveats()))


def _answer_nfdp(query: Query, mechanism: mechanisms.NfdpMechanism) -> Answer:
  if query.kind != 'epsilon':
    raise _does_not_apply(
        query, mechanism,
        ': records and subset_size determine both epsilon and delta')
  event = mechanism.release()
  warnings = [*event.caveats()]
  if query.delta is not None:
    warnings.append(caveats.Caveat(
        'delta not used',
        f'delta={query.delta:g} was given but is not used: records and '
        'subset_size determine delta'))
  return Answer(
      terms=terms(mechanism.family.trust_model), delta=event.draw_probability, rounds=1,
      outsiders=Bound(epsilon=event.published_epsilon, accountant='theorem'),
      adjacency=event.adjacency, caveats=tuple(warnings))


def _answer_local(query: Query, mechanism: mechanisms.LocalMechanism) -> Answer:
  """The total over queries of a budget for each; delta 0 unless one is given."""
  if query.kind != 'epsilon':
    raise _does_not_apply(
        query, mechanism, ': epsilon is its parameter, for one query; give delta and '
        'ask for the total epsilon')
  outsiders = accountant.bound(
      mechanism.event(), 0.0 if query.delta is None else query.delta,
      accountant=query.accountant)
  return Answer(
      terms=terms(mechanism.family.trust_model), delta=outsiders.delta,
      rounds=mechanism.queries, adjacency=outsiders.adjacency,
      outsiders=dataclasses.replace(outsiders, amplification=None),
      caveats=outsiders.caveats)


def _answer_published_vote(query: Query, mechanism: mechanisms.VoteMechanism) -> Answer:
  """Votes by the published sensitivity and conversion, to reproduce numbers."""
  if query.kind != 'epsilon':
    raise ValueError(
        f'bound=paper answers query=epsilon only, found query={query.kind}')
  event = mechanism.release()
  delta = query.needed('delta')
  epsilon = votes.published_epsilon(event, mechanism.queries, delta)
  return Answer(
      terms=terms(mechanism.family.trust_model), delta=delta,
      noise_multiplier=mechanism.noise_stddev, rounds=mechanism.queries,
      outsiders=Bound(epsilon=epsilon, accountant='rdp',
                      amplification=query.amplification),
      adjacency=event.adjacency, caveats=(
          *event.caveats(), *accountant.warnings_about(epsilon, delta, None),
          caveats.Caveat(
              'published conversion', 'bound=paper converts from Renyi DP as '
              'published, which is not tight')))


def table(query: Query, mechanism: Mechanism) -> list[Answer]:
  """Rows to choose from: over the bits of a grid, else over the rounds.

  With a target epsilon each row is calibrated to it, otherwise the noise
  multiplier is the same in all. A row whose setting is impossible or degenerate
  says so in its caveats.

  Args:
    query: Query of any kind, which is ignored.
    mechanism: What it is asked about, with its largest number of rounds.
  """
  family = mechanism.family
  calibrates = query.epsilon is not None and family.knob is not None
  query = dataclasses.replace(
      query, kind='noise_multiplier' if calibrates else 'epsilon')
  if family.params and mechanism.scale is None:
    query = dataclasses.replace(query, allow_degenerate=True)
    return [_row(query, mechanism.replace(bits=bits), bits=bits)
            for bits in _TABLE_BITS]
  if family.counter is None:
    return [_row(query, mechanism, rounds=1)]
  last = getattr(mechanism, family.counter)
  counts = [10**power for power in range(12) if 10**power < last] + [last]
  return [_row(query, mechanism.replace(**{family.counter: count}), rounds=count)
          for count in counts]


def _row(query: Query, mechanism: Mechanism, **known: int) -> Answer:
  """An answer; if there is none, what is known of the row, and why."""
  try:
    return answer(query, mechanism)
  except ValueError as error:
    return Answer(**known, caveats=(caveats.Caveat('impossible setting', str(error)),))
