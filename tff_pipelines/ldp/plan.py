"""The plan of a distillation: what an answer costs and how many there may be.

Numbers only, no TensorFlow. Owners answer in groups, by turns, so that nobody
answers more often than others; the plan says how many answers an owner gives at
most, what each is perturbed by, and what all of them cost it.
"""

import dataclasses
import functools
import math
from typing import Any

from aggregators import discrete_gaussian_table
from aggregators import local_dp_laws
from aggregators import validate
from tff_pipelines.accounting import accountant
from tff_pipelines.accounting import base
from tff_pipelines.accounting import calibration
from tff_pipelines.accounting import deviation as deviation_lib
from tff_pipelines.accounting import events

MECHANISMS = ('piecewise', 'duchi', 'laplace', 'gaussian')
_PURE = {'piecewise': events.Piecewise, 'duchi': events.Duchi,
         'laplace': events.LocalLaplace}

DEFAULT_EPSILON = 8.0
DEFAULT_GAUSSIAN_DELTA = 1e-5

TRUST_MODEL = 'nobody is trusted: every owner perturbs its own answers'
OBSERVERS = 'everybody, the data user that asks included'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
  """What is asked of privacy; None for what was not given.

  Attributes:
    mechanism: One of MECHANISMS.
    epsilon_total: Of all answers of an owner together, never exceeded.
    epsilon_per_query: Of one answer.
    answers_per_owner: The most answers of an owner.
    delta: Of all answers together; without it the guarantee is pure (epsilon alone),
      but for the Gaussian mechanism.
  """

  mechanism: str
  epsilon_total: float | None = None
  epsilon_per_query: float | None = None
  answers_per_owner: int | None = None
  delta: float | None = None

  def __post_init__(self):
    validate.one_of(MECHANISMS, mechanism=self.mechanism)
    for name in ('epsilon_total', 'epsilon_per_query'):
      if getattr(self, name) is not None:
        validate.positive(**{name: getattr(self, name)})
    if self.answers_per_owner is not None:
      validate.integer(answers_per_owner=self.answers_per_owner, low=1)
    if self.delta is not None:
      validate.open_unit_interval(delta=self.delta)
    if None not in (
        self.epsilon_total, self.epsilon_per_query, self.answers_per_owner):
      raise ValueError(
          'answers_per_owner must not be given with both epsilon_total and '
          'epsilon_per_query: it follows from them, found '
          f'{self.answers_per_owner!r}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class LdpPlan:
  """A calibrated plan.

  Attributes:
    mechanism: One of MECHANISMS.
    epsilon_per_query: Of one answer; of the Gaussian mechanism None.
    noise_multiplier: Of the Gaussian mechanism; None of others.
    answers_per_owner: The most answers of an owner.
    delta: Of the guarantee; 0 for a pure one.
    dimension: Coordinates of an answer.
    owners: How many.
    owners_per_query: Who answers a query together; it divides `owners`.
    holdings: Sets of records behind the owners; fewer if they stand in.
    simulation_seed: A seed voids the guarantee.
  """

  mechanism: str
  epsilon_per_query: float | None
  noise_multiplier: float | None
  answers_per_owner: int
  delta: float
  dimension: int
  owners: int
  owners_per_query: int
  holdings: int
  simulation_seed: int | None = None

  @property
  def groups(self) -> int:
    """Groups of owners that answer by turns."""
    return self.owners // self.owners_per_query

  @property
  def queries(self) -> int:
    """How many queries the budget allows, in all."""
    return self.groups * self.answers_per_owner

  @functools.cached_property
  def answer_event(self) -> base.Event:
    """One answer of one owner."""
    if self.mechanism == 'gaussian':
      return events.LocalDiscreteGaussian(noise_multiplier=self.noise_multiplier)
    return _PURE[self.mechanism](epsilon=self.epsilon_per_query)

  def step_event(self, before: int, after: int) -> base.Event:
    """The step that brings the number of queries from `before` to `after`."""
    return events.LocalAnswers(
        event=self.answer_event, groups=self.groups, queries_before=before,
        queries_after=after)

  def most_answers(self, queries: int) -> int:
    """Of any one owner, after so many queries."""
    return -(-queries // self.groups)

  def holding_answers(self, queries: int) -> int:
    """At most so many answers come from one set of records.

    Owners have sets by turns: owner i has set i modulo `holdings`.
    """
    if self.holdings == self.owners:
      return self.most_answers(queries)
    full, rest = divmod(queries, self.groups)
    size = self.owners_per_query
    everyone = -(-self.owners // self.holdings)
    return full * everyone + -(-rest * size // self.holdings)

  @property
  def deviation_per_answer(self) -> float:
    """Total variation between an answer and its exact law.

    The laws of the pure mechanisms are ratios of integers, and epsilon is that of
    these: nothing deviates. Random words are taken as uniform.
    """
    if self.mechanism != 'gaussian':
      return 0.0
    return min(1.0, self.dimension * discrete_gaussian_table.TOTAL_VARIATION)

  def deviation_per_step(self, queries: int) -> float:
    """Total variation of an owner's answers in a step of so many queries, at most."""
    return min(1.0, self.most_answers(queries) * self.deviation_per_answer)

  def delta_sampler(self, answers: int) -> float:
    """What of delta the sampler takes, after so many answers of an owner.

    It is part of delta, unless it is more than half: then epsilon is that of exact
    laws.
    """
    if not self.deviation_per_answer or not answers:
      return 0.0
    # Renyi divergences give an epsilon that is larger, and found at once.
    return deviation_lib.taken_at_most(
        min(1.0, answers * self.deviation_per_answer),
        _composed(self.answer_event, answers), self.delta, accountant='rdp')

  def guarantee(self, answers: int) -> accountant.Guarantee | None:
    """What holds for an owner after so many answers; None after none."""
    if not answers:
      return None
    part = self.delta_sampler(answers)
    found = accountant.guarantee(
        _composed(self.answer_event, answers), deviation_lib.left(self.delta, part))
    # Answers are drawn on a grid, by integers: the events' caveat does not apply.
    warnings = accountant.warnings_about(found.epsilon, self.delta, None)
    if part > self.delta / 2:
      warnings = [*warnings, 'epsilon is that of exact laws: the draws of the noise '
                  f'would take {part:.3g} of delta, more than half']
    return dataclasses.replace(found, delta=self.delta, warnings=tuple(warnings))

  def epsilon(self, answers: int) -> float:
    """Epsilon of an owner after so many answers."""
    found = self.guarantee(answers)
    return 0.0 if found is None else found.epsilon

  def configuration(self) -> dict[str, Any]:
    """Everything that defines the plan, as JSON."""
    return dataclasses.asdict(self)


def _composed(event: base.Event, count: int) -> base.Event:
  return events.SelfComposed(event=event, count=count)


def _pure_event(mechanism: str):
  return lambda noise: _PURE[mechanism](epsilon=1 / noise)


def _gaussian_event(noise: float) -> base.Event:
  return events.LocalDiscreteGaussian(noise_multiplier=noise)


def _shared(total: float, answers: int) -> float:
  """The largest epsilon of which so many are at most `total`."""
  found = total / answers
  while found * answers > total:
    found = math.nextafter(found, 0.0)
  return found


def _most(event: base.Event, total: float, delta: float) -> int:
  """How many such answers keep the total."""
  if delta == 0:
    one = event.pure_epsilon('none')
    count = math.floor(total / one * (1 + 1e-12))
    while count and count * one > total:
      count -= 1
  else:
    if accountant.epsilon(event, delta) > total:
      count = 0
    else:
      count = calibration.rounds(
          lambda n: _composed(event, n), epsilon=total, delta=delta)
  if count < 1:
    raise ValueError(
        f'epsilon_total={total:g} is less than one answer costs: lower '
        'epsilon_per_query')
  return count


def calibrate(budget: Budget, *, dimension: int, owners: int, owners_per_query: int,
              holdings: int | None = None,
              simulation_seed: int | None = None) -> LdpPlan:
  """The plan of a budget.

  Of the total, the cost of an answer and the number of answers, two are needed. The
  default is a total of DEFAULT_EPSILON and one answer of every owner.

  Args:
    budget: What is asked.
    dimension: Coordinates of an answer, >= 2.
    owners: How many.
    owners_per_query: Divides `owners`.
    holdings: Sets of records behind them; None for one each.
    simulation_seed: Voids the guarantee.

  Raises:
    ValueError: If the budget can't be met or an argument is out of range.
  """
  validate.integer(dimension=dimension, low=2)
  validate.integer(owners=owners, owners_per_query=owners_per_query, low=1)
  if holdings is None:
    holdings = owners
  validate.integer(holdings=holdings, low=1, high=owners)
  if owners % owners_per_query:
    raise ValueError(
        f'owners_per_query must divide owners={owners}, found {owners_per_query!r}')
  if simulation_seed is not None:
    validate.integer(seed=simulation_seed, low=0)
  is_gaussian = budget.mechanism == 'gaussian'
  delta = budget.delta
  if delta is None:
    delta = DEFAULT_GAUSSIAN_DELTA if is_gaussian else 0.0
  total, each = budget.epsilon_total, budget.epsilon_per_query
  if total is None and each is None:
    total = DEFAULT_EPSILON
  answers = budget.answers_per_owner or 1
  law_delta = deviation_lib.calibrated_to(delta) if is_gaussian else delta
  noise = None
  if is_gaussian:
    target, count = (total, answers) if each is None else (each, 1)
    noise = calibration.noise_multiplier(
        lambda z: _composed(_gaussian_event(z), count), epsilon=target,
        delta=law_delta)
    event = _gaussian_event(noise)
  else:
    if each is None and delta == 0:
      each = _shared(total, answers)
    elif each is None:
      make = _pure_event(budget.mechanism)
      each = 1 / calibration.noise_multiplier(
          lambda z: _composed(make(z), answers), epsilon=total, delta=delta)
    local_dp_laws.check_epsilon(epsilon_per_query=each)
    event = _PURE[budget.mechanism](epsilon=each)
  if total is not None and budget.epsilon_per_query is not None:
    answers = _most(event, total, law_delta)
  plan = LdpPlan(
      mechanism=budget.mechanism,
      epsilon_per_query=None if is_gaussian else each, noise_multiplier=noise,
      answers_per_owner=answers, delta=delta, dimension=dimension, owners=owners,
      owners_per_query=owners_per_query, holdings=holdings,
      simulation_seed=simulation_seed)
  if plan.deviation_per_answer and total is not None:
    deviation_lib.check_kept(plan.delta_sampler(answers), total, delta)
  return plan
