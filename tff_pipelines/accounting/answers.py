"""Answers to requests: numbers under stable keys, and the words around them."""

import dataclasses
import math
from typing import Any

from aggregators import params as params_lib
from aggregators import validate
from tff_pipelines.accounting import accountant
from tff_pipelines.accounting import base
from tff_pipelines.accounting import calibration
from tff_pipelines.accounting import request as request_lib
from tff_pipelines.accounting import rdp
from tff_pipelines.accounting import sum_events
from tff_pipelines.accounting import voting

Request = request_lib.Request

_TABLE_BITS = (12, 14, 16, 18, 20)
_LOCAL = ('piecewise', 'duchi', 'laplace')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
  """One answer; the fields are the keys of its JSON, None where not applicable.

  Attributes:
    epsilon: Achieved, against those who see the released models; None if no
      finite epsilon is guaranteed.
    epsilon_unamplified: Against the server and the participants, who know the
      cohort; None without rounds of clients.
    delta: Of both.
    noise_multiplier: Noise of the guarantee over the sensitivity.
    rounds: Releases in all.
    scale: Grid units per model unit.
    local_stddev_grid: Standard deviation of a client's share, grid units.
    bits: Of a coordinate of the sum.
    dimension_padded: Coordinates that a client sends.
    order: Renyi order; None for PLD and for pure DP.
    accountant: The one that was used.
    amplification: The bound on sampling.
    adjacency: What neighbours are.
    sampling: How the clients of a round are drawn.
    trust_model: Who is trusted with what.
    warnings: In words.
  """

  epsilon: float | None = None
  epsilon_unamplified: float | None = None
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
  warnings: list[str] = dataclasses.field(default_factory=list)

  def to_json(self) -> dict[str, Any]:
    """The keys in their stable order."""
    return dataclasses.asdict(self)


def finite(value: float | None) -> float | None:
  """The value for JSON, which has no infinity: None for it."""
  return None if value is None or not math.isfinite(value) else float(value)


def _whole(epsilon: float) -> str:
  """A large epsilon in words, rounded up."""
  return str(math.ceil(epsilon)) if math.isfinite(epsilon) else 'infinite'


def integer_order(order: float | None) -> int | None:
  """A Renyi order for JSON: None for the infinite one."""
  return None if order is None or math.isinf(order) else int(order)


def _target(request: Request) -> dict[str, Any]:
  return dict(epsilon=request.needed('epsilon'), delta=request.needed('delta'),
              accountant=request.accountant, amplification=request.amplification)


def _knob(request: Request) -> str:
  knob = request.family.knob
  if knob is None:
    raise ValueError(
        f'query={request.query} does not apply to mechanism='
        f'{request.mechanism}, which has no noise to vary')
  return knob


def _solved(request: Request) -> Request:
  """The request with what it asks for filled in, so that it asks epsilon."""
  if request.query == 'noise_multiplier':
    return _with_noise(request)
  if request.query == 'rounds':
    _knob(request)
    counter = request.family.counter
    found = calibration.rounds(
        lambda count: request.replace(**{counter: count}).event(),
        **_target(request))
    return request.replace(**{counter: found})
  if request.query == 'bits':
    if not request.family.params or request.scale is not None:
      raise ValueError(
          'query=bits needs a mechanism on a grid (skellam, discrete_gaussian, '
          f'skellam_central) and no scale, found mechanism={request.mechanism}')
    return _with_bits(request)
  return request


def _with_noise(request: Request) -> Request:
  knob = _knob(request)

  def solved(trial: Request) -> Request:
    return trial.replace(**{knob: calibration.noise_multiplier(
        lambda noise: trial.replace(**{knob: noise}).event(),
        **_target(request))})

  try:
    return solved(request)
  except calibration.Unreachable as error:
    if not request.family.params:
      raise
    start = request.replace(**{knob: 1.0}).params()
    raise ValueError(calibration.unreachable_reason(
        start, lambda trial: solved(request.replace(bits=trial.bits)).params(),
        error)) from None


def _with_bits(request: Request) -> Request:
  if request.noise_multiplier is not None:
    found = calibration.bits(
        lambda bits: request.replace(bits=bits).event(), **_target(request))
    return request.replace(bits=found)
  params = calibration.suggest_bits(
      request.replace(bits=30, noise_multiplier=1.0).params(),
      lambda trial: request.replace(
          bits=None if trial.fixed_scale else trial.bits,
          scale=trial.fixed_scale,
          noise_multiplier=trial.noise_multiplier).event(),
      epsilon=request.needed('epsilon'), delta=request.needed('delta'),
      amplification=request.amplification)
  return request.replace(
      bits=params.bits, noise_multiplier=params.noise_multiplier)


def answer(request: Request) -> Answer:
  """Answers every query but 'table'.

  Raises:
    ValueError: If the request is incomplete, out of range or without a solution.
  """
  if request.mechanism == 'nfdp':
    return _answer_nfdp(request)
  if request.mechanism == 'none':
    return _answer_none(request)
  if request.mechanism in _LOCAL:
    return _answer_local(request)
  if request.bound == 'paper' and request.family.counter == 'queries':
    return _answer_published_vote(request)
  solved = _solved(request)
  event = solved.event()
  if request.query == 'delta':
    delta = accountant.delta(
        event, request.needed('epsilon'), accountant=request.accountant,
        amplification=request.amplification)
  else:
    delta = request.needed('delta')
    validate.open_unit_interval(delta=delta)
  return _described(solved, event, delta)


def _described(request: Request, event: base.Event, delta: float) -> Answer:
  """Everything about an event at a delta."""
  settings = dict(accountant=request.accountant)
  if 0 < delta < 1:
    found = accountant.guarantee(
        event, delta, amplification=request.amplification,
        population=request.population, **settings)
    epsilon = found.epsilon
    if request.query == 'delta':
      epsilon = request.needed('epsilon')
    warnings = list(found.warnings)
    used, order = found.accountant, found.order
  else:
    # Delta came out as 0 or 1: there is nothing more to optimise.
    epsilon, order, warnings = request.needed('epsilon'), None, []
    used = 'pld' if event.factors(request.amplification) else 'rdp'
  unamplified = None
  sampled = request.family.counter == 'rounds'
  if sampled:
    unamplified = accountant.epsilon(
        event.without_sampling(), delta, **settings) if delta < 1 else 0.0
  if (unamplified is not None and request.sampling != 'none' and
      unamplified > accountant.LARGE_EPSILON):
    warnings.append(
        'against the server and the participants '
        f'epsilon={_whole(unamplified)} says next to nothing')
  params = request.params() if request.family.params else None
  warnings += _warnings_of_params(request, params, delta)
  return Answer(
      epsilon=finite(epsilon), epsilon_unamplified=finite(unamplified),
      delta=delta, noise_multiplier=finite(
          getattr(request, request.family.knob) if request.family.knob else None),
      rounds=getattr(request, request.family.counter),
      scale=params.scale if params else None,
      local_stddev_grid=params.local_stddev_grid if params else None,
      bits=request.bits if params else None,
      dimension_padded=params.padded_dimension if params else None,
      order=integer_order(order), accountant=used,
      amplification=request.amplification, adjacency=event.adjacency,
      sampling=request.sampling if sampled else None,
      trust_model=request.family.trust_model,
      warnings=list(dict.fromkeys(warnings)))


def _warnings_of_params(
    request: Request, params: params_lib.DistributedSumParams | None,
    delta: float) -> list[str]:
  """Refuses or reports a degenerate grid; reports what collusion leaves."""
  if params is None:
    return []
  found = []
  if not request.allow_degenerate:
    calibration.refuse_degenerate(params)
  elif params.degeneracy() is not None:
    found.append(f'degenerate setting, allowed: {params.degeneracy()}')
  if request.mechanism == 'skellam_central' or not 0 < delta < 1:
    return found
  share = sum_events.DistributedSkellam(
      l1_sensitivity=params.l1_sensitivity, l2_sensitivity=params.l2_sensitivity,
      noise_variance=params.local_stddev_grid**2)
  alone, _ = rdp.epsilon(share, delta)
  if alone > accountant.LARGE_EPSILON:
    found.append(
        'local noise is too small if all others collude: a client\'s own share '
        f'leaves it epsilon={_whole(alone)} in one round')
  if request.mechanism == 'discrete_gaussian' and request.sampling == 'poisson':
    found.append(
        'discrete Gaussian shares do not add up to one law as the cohort '
        'varies: amplification by Poisson sampling holds approximately only')
  return found


def _answer_none(request: Request) -> Answer:
  if request.query not in ('epsilon', 'delta'):
    raise ValueError(
        f'query={request.query} does not apply to mechanism=none, which has no '
        'guarantee to reach')
  event = request.event()
  return Answer(
      delta=request.delta if request.query == 'epsilon' else 1.0,
      noise_multiplier=0.0, rounds=request.rounds, adjacency=event.adjacency,
      trust_model=request.family.trust_model,
      warnings=['epsilon is infinite', *event.caveats()])


def _answer_nfdp(request: Request) -> Answer:
  if request.query != 'epsilon':
    raise ValueError(
        f'query={request.query} does not apply to mechanism=nfdp: records and '
        'subset_size determine both epsilon and delta')
  event = request_lib.nfdp(request)
  warnings = [*event.caveats()]
  if request.delta is not None:
    warnings.append(
        f'delta={request.delta:g} was given but is not used: records and '
        'subset_size determine delta')
  return Answer(
      epsilon=event.published_epsilon, delta=event.draw_probability, rounds=1,
      accountant='theorem', adjacency=event.adjacency,
      trust_model=request.family.trust_model, warnings=warnings)


def _answer_local(request: Request) -> Answer:
  """The total over queries of a budget for each; delta 0 unless one is given."""
  if request.query not in ('epsilon', 'delta'):
    raise ValueError(
        f'query={request.query} does not apply to mechanism='
        f'{request.mechanism}: epsilon is its parameter, for one query')
  if request.query == 'delta':
    raise ValueError(
        f'query=delta does not apply to mechanism={request.mechanism}: epsilon '
        'is its parameter; give delta and ask for the total epsilon')
  event = request.event()
  delta = 0.0 if request.delta is None else request.delta
  found = accountant.guarantee(event, delta, accountant=request.accountant)
  return Answer(
      epsilon=finite(found.epsilon), delta=delta, rounds=request.queries,
      order=integer_order(found.order), accountant=found.accountant,
      adjacency=found.adjacency, trust_model=request.family.trust_model,
      warnings=list(found.warnings))


def _answer_published_vote(request: Request) -> Answer:
  """Votes by the published sensitivity and conversion, to reproduce numbers."""
  if request.query != 'epsilon':
    raise ValueError(
        f'bound=paper answers query=epsilon only, found query={request.query}')
  event = request_lib.vote(request)
  delta = request.needed('delta')
  epsilon = voting.published_epsilon(event, request.queries, delta)
  warnings = [
      *event.caveats(), *accountant.warnings_about(epsilon, delta, None),
      'bound=paper converts from Renyi DP as published, which is not tight']
  return Answer(
      epsilon=finite(epsilon), delta=delta,
      noise_multiplier=request.noise_stddev, rounds=request.queries,
      accountant='rdp', amplification=request.amplification,
      adjacency=event.adjacency, trust_model=request.family.trust_model,
      warnings=warnings)


def table(request: Request) -> list[Answer]:
  """Rows to choose from: over the bits of a grid, else over the rounds.

  With a target epsilon each row is calibrated to it, otherwise the noise
  multiplier is the same in all. A row whose setting is impossible or degenerate
  says so in its warnings.
  """
  wants_noise = request.epsilon is not None and request.family.knob is not None
  base_request = request.replace(
      query='noise_multiplier' if wants_noise else 'epsilon')
  rows = []
  if request.family.params and request.scale is None:
    for bits in _TABLE_BITS:
      trial = base_request.replace(bits=bits, allow_degenerate=True)
      rows.append(_row(trial, bits=bits))
    return rows
  counter = request.family.counter
  last = getattr(request, counter)
  steps = [10**power for power in range(12) if 10**power < last] + [last]
  return [_row(base_request.replace(**{counter: count}), rounds=count)
          for count in steps]


def _row(request: Request, **known) -> Answer:
  try:
    return answer(request)
  except ValueError as error:
    return Answer(**known, warnings=[str(error)])
