"""Answers to queries: numbers under stable keys, and the words around them."""

from collections.abc import Mapping
import contextlib
import dataclasses
from typing import Any

from aggregators import params as params_lib
from tff_pipelines.accounting.events import base, sum_events
from tff_pipelines.accounting.guarantees import (
    accountant, bounds, calibration, mechanisms, observers, votes)
from tff_pipelines.accounting.guarantees.bounds import Bound
from tff_pipelines.accounting.guarantees.guarantee import (
    APPROXIMATE, Caveat, CLOSED, Guarantee, Terms)
from tff_pipelines.common import declarations, decimals, files, validate

Mechanism = mechanisms.Mechanism

KINDS = ('epsilon', 'delta', 'noise_multiplier', 'rounds', 'bits', 'table')
_TABLE_BITS = (12, 14, 16, 18, 20)
# Noise that is near the Gaussian's, relative.
_NEAR = 0.01
_query = declarations.group('query')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Query:
  """A question to the accountant about a mechanism."""

  kind: str = _query('epsilon', 'The number that is asked for, or a table of several.',
                     choices=KINDS, essential=True)
  epsilon: float | None = _query(
      None, 'Target against observers of what is released; for piecewise, duchi and '
      'laplace the parameter of one query.', above=0, essential=True)
  delta: float | None = _query(None, 'Delta.', low=0, below=1, essential=True,
                               otherwise='the ledger\'s, or 1/N^1.1')
  accountant: str = _query(
      'auto', 'Accountant. auto: privacy loss distributions (pld) where the worst case '
      'is known, else Renyi divergences (rdp).', choices=base.ACCOUNTANTS)
  amplification: str = _query(
      'tight', 'Bound on amplification by sampling; generic is the published one.',
      choices=base.AMPLIFICATIONS)
  colluders: int = _query(
      1, 'Number of participants who pool what they know of the noise, for epsilon '
      'against participants.', low=1, unit='clients')
  clients_per_person: int = _query(
      1, 'Clients that one person may own: epsilon of such a person as well.', low=1,
      unit='clients')
  allow_degenerate: bool = _query(
      False, 'Accept a grid too coarse to be useful, with a warning.')

  def __post_init__(self):
    declarations.check(self)

  def needed(self, name: str) -> Any:
    """The field `name`; ValueError if it was not given."""
    if (value := getattr(self, name)) is None:
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
    values = {**vars(self), **super().to_json(), 'warnings': list(self.caveats)}
    if (order := values['order']) is not None and order.is_integer():
      values['order'] = int(order)
    return {name: values[name] for name in _KEYS}


_KEYS = ('epsilon', 'epsilon_server', 'epsilon_server_any_cohorts',
         'epsilon_participant', 'clients_per_person', 'epsilon_person',
         'epsilon_server_person', 'delta', 'noise_multiplier', 'rounds', 'scale',
         'local_stddev_grid', 'bits', 'dimension_padded', 'order', 'accountant',
         'amplification', 'adjacency', 'sampling', 'trust_model', 'warnings')


def _target(query: Query) -> dict[str, Any]:
  return dict(epsilon=query.needed('epsilon'), delta=query.needed('delta'),
              accountant=query.accountant, amplification=query.amplification)


def _solved(query: Query, mechanism: Mechanism) -> Mechanism:
  """The mechanism with the number that is asked for, if that is one of its fields."""
  family = mechanism.family
  if query.kind == 'noise_multiplier':
    try:
      return _with_noise(query, mechanism)
    except calibration.Unreachable as error:
      if not family.params:
        raise
      raise ValueError(calibration.unreachable_reason(
          mechanism.replace(noise_multiplier=1.0).params(),
          lambda trial: _with_noise(query, mechanism.replace(bits=trial.bits)).params(),
          error)) from None
  if query.kind == 'rounds':
    return mechanism.replace(**{family.counter: calibration.rounds(
        lambda count: mechanism.replace(**{family.counter: count}).event(),
        **_target(query))})
  if query.kind == 'bits':
    if not family.params or mechanism.scale is not None:
      raise ValueError('query=bits needs a mechanism on a grid and no scale, found '
                       f'mechanism={mechanism.mechanism}')
    if mechanism.noise_multiplier is None:
      return _with_bits(query, mechanism)
    return mechanism.replace(bits=calibration.bits(
        lambda bits: mechanism.replace(bits=bits).event(), **_target(query)))
  return mechanism


def _with_noise(query: Query, mechanism: Mechanism) -> Mechanism:
  """The mechanism with the minimum noise for the target."""
  knob = mechanism.family.knob
  return mechanism.replace(**{knob: calibration.noise_multiplier(
      lambda noise: mechanism.replace(**{knob: noise}).event(), **_target(query))})


def _with_bits(query: Query,
               mechanism: mechanisms.SumMechanism) -> mechanisms.SumMechanism:
  """The mechanism with the minimum bits that need within 1% of the Gaussian's noise.

  Both are accounted by RDP, so that mechanisms are compared, not accountants. A grid so
  fine that it stands for the Gaussian gives the noise of that.
  """
  query = dataclasses.replace(query, accountant='rdp')
  gaussian = _with_noise(query, mechanism.replace(
      bits=None, scale=params_lib.MAX_CLIP_GRID * (1 - 1e-12) / mechanism.needed('clip'))
                         ).noise_multiplier
  for bits in range(2, calibration.MAX_BITS + 1):
    with contextlib.suppress(ValueError):  # Too few bits for the cohort.
      trial = _with_noise(query, mechanism.replace(bits=bits))
      if trial.params().degeneracy() is None and (
          trial.noise_multiplier <= (1 + _NEAR) * gaussian):
        return trial
  raise ValueError(f'bits={calibration.MAX_BITS} do not come within {_NEAR:g} of the '
                   f'central Gaussian\'s noise multiplier {gaussian:.6g}')


def answer(query: Query, mechanism: Mechanism) -> Answer:
  """Answers every query but a table.

  The field that is asked for is ignored. ValueError if the question is incomplete, out
  of range or without a solution.
  """
  return explained(query, mechanism)[0]


def explained(query: Query, mechanism: Mechanism
              ) -> tuple[Answer, dict[str, observers.View], observers.Method]:
  """`answer` with the views and the method that gave the numbers."""
  family, is_published = mechanism.family, getattr(mechanism, 'bound', None) == 'paper'
  if is_published and query.kind != 'epsilon':
    raise ValueError(f'bound=paper answers query=epsilon only, found {query.kind}')
  if family.only is not None and query.kind not in family.only:
    raise ValueError(f'query must be {" or ".join(family.only)} for mechanism='
                     f'{mechanism.mechanism}, found {query.kind}')
  solved = _solved(query, mechanism)
  event = solved.event()
  method = observers.Method(**declarations.shared(
      observers.Method, query, population=getattr(mechanism, 'population', None),
      surviving_fraction=getattr(mechanism, 'surviving_fraction', None) or 1.0))
  views = dict.fromkeys(bounds.KEYS, observers.View(event))
  if mechanism.mechanism == 'none':
    fields = dict(
        delta=query.delta if query.kind == 'epsilon' else 1.0, noise_multiplier=0.0,
        caveats=(Caveat('infinite epsilon', 'epsilon is infinite'), *event.caveats()))
  elif isinstance(mechanism, mechanisms.NfdpMechanism):
    fields = _of_subset(query, event)
  elif isinstance(mechanism, mechanisms.LocalMechanism):
    # The total over queries of a budget for each; delta 0 unless one is given.
    outsiders = accountant.bound(event, query.delta or 0.0, accountant=query.accountant)
    fields = dict(delta=outsiders.delta, caveats=outsiders.caveats,
                  outsiders=dataclasses.replace(outsiders, amplification=None))
  elif is_published:
    fields = _of_published_votes(query, solved)
  else:
    fields = _of_numbers(query, solved, views, method)
  knob, counter = family.knob, family.counter
  return Answer(**{
      'terms': terms(family.trust_model, solved.sampling
                     if 'sampling' in family.uses else None),
      'adjacency': event.adjacency,
      'noise_multiplier': knob and files.finite(getattr(solved, knob)),
      'rounds': getattr(solved, counter) if counter else 1, **fields}), views, method


def _of_numbers(query: Query, mechanism: Mechanism, views: Mapping[str, observers.View],
                method: observers.Method) -> dict[str, Any]:
  """The fields of an answer that the accountant gives."""
  event, is_sum = views[bounds.OUTSIDERS].event, 'cohort_size' in mechanism.family.uses
  if query.kind == 'delta':
    delta = observers.delta(views[bounds.OUTSIDERS], query.needed('epsilon'), method)
  else:
    delta = query.needed('delta')
    validate.open_unit_interval(delta=delta)
  found, notes = observers.numbers(
      views if is_sum else {bounds.OUTSIDERS: views[bounds.OUTSIDERS]}, delta, method)
  outsiders = found[bounds.OUTSIDERS]
  if not 0 < delta < 1:
    # Delta came out as 0 or 1: there is nothing more to optimise.
    notes = [note for note in notes if note not in outsiders.caveats]
    outsiders = Bound(epsilon=query.epsilon, amplification=query.amplification,
                      accountant='pld' if event.factors(query.amplification) else 'rdp')
  if query.kind == 'delta':
    outsiders = dataclasses.replace(outsiders, epsilon=query.epsilon)
  fields = dict(found, delta=delta, outsiders=outsiders,
                clients_per_person=query.clients_per_person)
  if is_sum and mechanism.sampling != 'none' and (
      server := found[bounds.SERVER].epsilon) > accountant.LARGE_EPSILON:
    notes.append(Caveat(
        'large epsilon against the server', 'against the server and whoever knows the '
        f'cohorts epsilon={decimals.rounded_up(server)} says next to nothing'))
  if mechanism.family.params:
    params = mechanism.params()
    notes += _caveats_of_params(query, mechanism, params, delta)
    fields |= dict(scale=params.scale, local_stddev_grid=params.local_stddev_grid,
                   bits=mechanism.bits, dimension_padded=params.padded_dimension)
  return {**fields, 'caveats': tuple(dict.fromkeys(notes))}


def _caveats_of_params(
    query: Query, mechanism: mechanisms.SumMechanism,
    params: params_lib.DistributedSumParams, delta: float) -> list[Caveat]:
  """Refuses or reports a degenerate grid; reports what collusion leaves."""
  notes = []
  if not query.allow_degenerate:
    calibration.refuse_degenerate(params)
  elif params.degeneracy() is not None:
    notes.append(Caveat(
        'degenerate grid', f'degenerate setting, allowed: {params.degeneracy()}'))
  if params.has_shares and mechanism.has_bands:
    notes.append(CLOSED)
  if not params.has_shares or not 0 < delta < 1:
    return notes
  alone, _ = accountant.renyi_epsilon(sum_events.DistributedSkellam(
      l1_sensitivity=params.l1_sensitivity, l2_sensitivity=params.l2_sensitivity,
      noise_variance=params.local_stddev_grid**2), delta)
  if alone > accountant.LARGE_EPSILON:
    notes.append(Caveat('little noise if all others collude', 'if all others collude, '
                        'the noise of a client\'s own share leaves it '
                        f'epsilon={decimals.rounded_up(alone)} in one round'))
  if not params.noise.is_divisible and (
      mechanism.sampling_scheme().cohort_in_words == 'expected'):
    notes.append(APPROXIMATE)
  return notes


def _of_subset(query: Query, event: base.Event) -> dict[str, Any]:
  """The fields of the answer about one random subset of records."""
  notes = [*event.caveats()]
  if query.delta is not None:
    notes.append(Caveat('delta not used', f'delta={query.delta:g} is not used: records '
                        'and subset_size determine delta'))
  return dict(delta=event.draw_probability, caveats=tuple(notes),
              outsiders=Bound(epsilon=event.published_epsilon, accountant='theorem'))


def _of_published_votes(query: Query, mechanism: mechanisms.VoteMechanism
                        ) -> dict[str, Any]:
  """The fields of the answer about votes that reproduces published numbers."""
  event, delta = mechanism.release(), query.needed('delta')
  epsilon = votes.published_epsilon(event, mechanism.queries, delta)
  notes = (*event.caveats(), *accountant.warnings_about(epsilon, delta, None), Caveat(
      'published conversion', 'bound=paper converts as published, not tightly'))
  return dict(delta=delta, caveats=notes, outsiders=Bound(
      epsilon=epsilon, accountant='rdp', amplification=query.amplification))


def table(query: Query, mechanism: Mechanism) -> list[Answer]:
  """Rows to choose from: over the bits of a grid, else over the rounds.

  With a target epsilon each row is calibrated to it, otherwise the noise multiplier is
  the same in all. A row whose setting is impossible says so in its caveats.
  """
  family = mechanism.family
  calibrates = query.epsilon is not None and family.knob is not None
  query = dataclasses.replace(query, kind='noise_multiplier' if calibrates else 'epsilon')
  if family.params and mechanism.scale is None:
    query = dataclasses.replace(query, allow_degenerate=True)
    return [_row(query, mechanism.replace(bits=bits), bits=bits) for bits in _TABLE_BITS]
  if family.counter is None:
    return [_row(query, mechanism, rounds=1)]
  last = getattr(mechanism, family.counter)
  return [_row(query, mechanism.replace(**{family.counter: count}), rounds=count)
          for count in [10**power for power in range(12) if 10**power < last] + [last]]


def _row(query: Query, mechanism: Mechanism, **known: int) -> Answer:
  """An answer; if there is none, what is known of the row, and why."""
  try:
    return answer(query, mechanism)
  except ValueError as error:
    return Answer(**known, caveats=(Caveat('impossible setting', str(error)),))
