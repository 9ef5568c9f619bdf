"""Answers to queries: numbers under stable keys, and the words around them."""

import dataclasses
import math
from typing import Any

from aggregators import params as params_lib
from tff_pipelines.common import validate
from tff_pipelines.accounting.guarantees import accountant
from tff_pipelines.accounting.events import base
from tff_pipelines.accounting.guarantees import calibration
from tff_pipelines.common import caveats
from tff_pipelines.accounting.guarantees import groups
from tff_pipelines.accounting.guarantees import mechanisms
from tff_pipelines.accounting.events import sum_events
from tff_pipelines.accounting.guarantees import votes

Mechanism = mechanisms.Mechanism

KINDS = ('epsilon', 'delta', 'noise_multiplier', 'rounds', 'bits', 'table')
_TABLE_BITS = (12, 14, 16, 18, 20)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Query:
  """A question to the accountant about a mechanism.

  Attributes:
    kind: One of KINDS: the number that is asked for, or a table of several.
    epsilon: Target, or for kind=delta the epsilon of that delta, > 0; None if not
      given.
    delta: Delta of the guarantee, strictly between 0 and 1; None if not given.
    accountant: 'auto', 'rdp' or 'pld'.
    amplification: Bound on sampling: 'tight', 'generic' or 'none'.
    allow_degenerate: Whether a grid too coarse to be useful is a warning only.
    colluders: Number of participants who pool what they know, >= 1.
    clients_per_person: Clients that one person may own, >= 1.
  """

  kind: str = 'epsilon'
  epsilon: float | None = None
  delta: float | None = None
  accountant: str = 'auto'
  amplification: str = 'tight'
  allow_degenerate: bool = False
  colluders: int = 1
  clients_per_person: int = 1

  def __post_init__(self):
    validate.integer(colluders=self.colluders,
                     clients_per_person=self.clients_per_person, low=1)
    validate.one_of(KINDS, query=self.kind)
    validate.one_of(base.AMPLIFICATIONS, amplification=self.amplification)
    validate.one_of(base.ACCOUNTANTS, accountant=self.accountant)

  def needed(self, name: str) -> Any:
    """The field `name`; ValueError if it was not given."""
    value = getattr(self, name)
    if value is None:
      raise ValueError(f'{name} must be given for query={self.kind}')
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
  """One answer; the fields are the keys of its JSON, None where not applicable.

  Attributes:
    epsilon: Achieved, against observers of the released models; None if no finite
      epsilon is guaranteed.
    epsilon_server: Against the server and all others who know the cohorts; None without
      rounds of clients.
    epsilon_participant: Against participants who subtract their own shares of the
      noise; None where clients add none, and where a cohort may have no other clients.
    clients_per_person: Clients of the person of the next two; None for one.
    epsilon_person: As `epsilon`, for a person who owns so many clients.
    epsilon_server_person: As `epsilon_server`, for such a person.
    delta: Delta of all epsilons.
    noise_multiplier: Noise of the guarantee over the sensitivity.
    rounds: Number of releases.
    scale: Grid units per model unit.
    local_stddev_grid: Standard deviation of a client's share, grid units.
    bits: Bits of a coordinate of the sum.
    dimension_padded: Coordinates that a client sends.
    order: Renyi order; None for PLD and for pure DP.
    accountant: The one that was used: 'rdp', 'pld' or 'theorem'.
    amplification: Bound on sampling.
    adjacency: A key of `base.ADJACENCY_IN_WORDS`.
    sampling: How the clients of a round are selected.
    trust_model: Who is trusted with what.
    warnings: Caveats, and errors of a row that can't be answered.
  """

  epsilon: float | None = None
  epsilon_server: float | None = None
  epsilon_participant: float | None = None
  clients_per_person: int | None = None
  epsilon_person: float | None = None
  epsilon_server_person: float | None = None
  delta: float | None = None
  noise_multiplier: float | None = None
  rounds: int | None = None
  scale: float | None = None
  local_stddev_grid: float | None = None
  bits: int | None = None
  dimension_padded: int | None = None
  order: int | None = None
  accountant: str | None = None
  amplification: str | None = None
  adjacency: str | None = None
  sampling: str | None = None
  trust_model: str | None = None
  warnings: list[caveats.Caveat | str] = dataclasses.field(default_factory=list)

  def to_json(self) -> dict[str, Any]:
    """The keys in their stable order."""
    return dataclasses.asdict(self)


def unbounded() -> caveats.Caveat:
  """The caveat where a cohort may have no clients but the participants."""
  return caveats.Caveat(
      'participants: a cohort may be of one',
      'against a participant epsilon is unbounded: it subtracts its own share of the '
      'noise, and a cohort may have no other clients; state a minimum '
      '(min_cohort_size), or sample cohorts of a fixed size')


def finite(value: float | None) -> float | None:
  """The value for JSON, which has no infinity: None for it."""
  return None if value is None or not math.isfinite(value) else float(value)


def integer_order(order: float | None) -> int | None:
  """A Renyi order for JSON: None for the infinite one."""
  return None if order is None or math.isinf(order) else int(order)


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


def _described(query: Query, mechanism: Mechanism, event: base.Event,
               delta: float) -> Answer:
  """Describes an event at a delta."""
  family = mechanism.family
  sums = mechanism if isinstance(mechanism, mechanisms.SumMechanism) else None
  if 0 < delta < 1:
    guarantee = accountant.guarantee(
        event, delta, amplification=query.amplification, accountant=query.accountant,
        population=sums.population if sums else None)
    epsilon = guarantee.epsilon if query.kind != 'delta' else query.epsilon
    warnings = list(guarantee.warnings)
    used, order = guarantee.accountant, guarantee.order
  else:
    # Delta came out as 0 or 1: there is nothing more to optimise.
    epsilon, order, warnings = query.epsilon, None, []
    used = 'pld' if event.factors(query.amplification) else 'rdp'
  fields = {}
  if sums:
    unamplified = accountant.epsilon(
        event.without_sampling(), delta,
        accountant=query.accountant) if delta < 1 else 0.0
    if sums.sampling != 'none' and unamplified > accountant.LARGE_EPSILON:
      warnings.append(caveats.Caveat(
          'large epsilon against the server',
          'against the server and whoever knows the cohorts '
          f'epsilon={_whole(unamplified)} says next to nothing'))
    fields = dict(epsilon_server=finite(unamplified), sampling=sums.sampling)
    if event.has_shares():
      # Missing shares are the others': all that is missing is seen as collusion.
      alone = math.inf if not sums.surviving_fraction else participant_epsilon(
          event, delta, query.accountant, query.colluders / sums.surviving_fraction)
      fields['epsilon_participant'] = finite(alone)
      if alone == math.inf:
        warnings.append(unbounded())
    if delta < 1:
      person, notes = of_person(
          event, query.clients_per_person, delta, population=sums.population,
          accountant=query.accountant, amplification=query.amplification)
      fields |= person
      warnings += notes
  if family.params:
    params = sums.params()
    warnings += _warnings_of_params(query, sums, params, delta)
    fields |= dict(
        scale=params.scale, local_stddev_grid=params.local_stddev_grid,
        bits=sums.bits, dimension_padded=params.padded_dimension)
  return Answer(
      epsilon=finite(epsilon), delta=delta,
      noise_multiplier=finite(getattr(mechanism, family.knob)),
      rounds=getattr(mechanism, family.counter), order=integer_order(order),
      accountant=used, amplification=query.amplification, adjacency=event.adjacency,
      trust_model=mechanism.family.trust_model, warnings=list(dict.fromkeys(warnings)),
      **fields)


def participant_epsilon(event: base.Event, delta: float, accountant_: str,
                        colluders: float) -> float:
  """Epsilon against participants who subtract their shares; `inf` if unbounded.

  Args:
    event: Everything that was released, with shares of clients.
    delta: In [0, 1].
    accountant_: As for `accountant.epsilon`.
    colluders: Number of participants who pool what they know, >= 1.
  """
  if delta >= 1:
    return 0.0
  return accountant.epsilon(
      event.seen_by_participants(colluders).without_sampling(), delta,
      accountant=accountant_)


def of_person(event: base.Event, clients: int, delta: float, *,
              seen: base.Event | None = None, population: int | None = None,
              deviation: float | None = None, deviation_seen: float | None = None,
              **how: str) -> tuple[dict[str, Any], list[caveats.Caveat]]:
  """Fields of an answer for a person who owns several clients, and their caveats.

  Args:
    event: Everything that was released.
    clients: >= 1; nothing is stated for 1.
    delta: In [0, 1).
    seen: Everything that the server may have seen; None for `event`.
    population: Number of clients; None if unknown.
    deviation: Total variation distance of all releases from ideal ones; None where no
      bound is known.
    deviation_seen: The same of what the server may have seen.
    **how: accountant and amplification, as for `accountant.epsilon`.
  """
  if population is not None:
    validate.integer(clients_per_person=clients, low=1, high=population)
  if clients == 1:
    return {}, []
  (person, ideal), (server, server_ideal) = (
      groups.epsilon(each, clients, delta, known=known, total_variation=distance, **how)
      for each, known, distance in (
          (event, False, deviation), (seen or event, True, deviation_seen)))
  notes = [groups.unbounded(clients)] * (math.inf in (person, server)) + [
      groups.IDEAL] * (ideal or server_ideal)
  return dict(clients_per_person=clients, epsilon_person=finite(person),
              epsilon_server_person=finite(server)), notes


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
  if mechanism.mechanism == 'skellam_central' or not 0 < delta < 1:
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
  if mechanism.mechanism == 'discrete_gaussian' and mechanism.sampling == 'poisson':
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
      delta=query.delta if query.kind == 'epsilon' else 1.0,
      noise_multiplier=0.0, rounds=mechanism.rounds, adjacency=event.adjacency,
      trust_model=mechanism.family.trust_model,
      warnings=[caveats.Caveat('infinite epsilon', 'epsilon is infinite'),
                *event.caveats()])


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
      epsilon=event.published_epsilon, delta=event.draw_probability, rounds=1,
      accountant='theorem', adjacency=event.adjacency,
      trust_model=mechanism.family.trust_model, warnings=warnings)


def _answer_local(query: Query, mechanism: mechanisms.LocalMechanism) -> Answer:
  """The total over queries of a budget for each; delta 0 unless one is given."""
  if query.kind != 'epsilon':
    raise _does_not_apply(
        query, mechanism, ': epsilon is its parameter, for one query; give delta and '
        'ask for the total epsilon')
  guarantee = accountant.guarantee(
      mechanism.event(), 0.0 if query.delta is None else query.delta,
      accountant=query.accountant)
  return Answer(
      epsilon=finite(guarantee.epsilon), delta=guarantee.delta,
      rounds=mechanism.queries, order=integer_order(guarantee.order),
      accountant=guarantee.accountant, adjacency=guarantee.adjacency,
      trust_model=mechanism.family.trust_model, warnings=list(guarantee.warnings))


def _answer_published_vote(query: Query, mechanism: mechanisms.VoteMechanism) -> Answer:
  """Votes by the published sensitivity and conversion, to reproduce numbers."""
  if query.kind != 'epsilon':
    raise ValueError(
        f'bound=paper answers query=epsilon only, found query={query.kind}')
  event = mechanism.release()
  delta = query.needed('delta')
  epsilon = votes.published_epsilon(event, mechanism.queries, delta)
  return Answer(
      epsilon=finite(epsilon), delta=delta,
      noise_multiplier=mechanism.noise_stddev, rounds=mechanism.queries,
      accountant='rdp', amplification=query.amplification,
      adjacency=event.adjacency, trust_model=mechanism.family.trust_model,
      warnings=[
          *event.caveats(), *accountant.warnings_about(epsilon, delta, None),
          caveats.Caveat(
              'published conversion', 'bound=paper converts from Renyi DP as '
              'published, which is not tight')])


def table(query: Query, mechanism: Mechanism) -> list[Answer]:
  """Rows to choose from: over the bits of a grid, else over the rounds.

  With a target epsilon each row is calibrated to it, otherwise the noise
  multiplier is the same in all. A row whose setting is impossible or degenerate
  says so in its warnings.

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
    return Answer(**known, warnings=[caveats.Caveat('impossible setting', str(error))])
