"""The plan of a distillation: cost and number of answers; owners answer alternately."""

from collections.abc import Iterable, Mapping
import dataclasses
import math
from typing import Any

from aggregators import alias_table, local_dp_distributions as distributions
from tff_pipelines.accounting.events import base, kinds as events
from tff_pipelines.accounting.guarantees import (
    accountant, bounds, calibration, ledger as ledger_lib, plan as guarantee)
from tff_pipelines.ldp import settings as settings_lib

_PURE = {'piecewise': events.Piecewise, 'laplace': events.LocalLaplace}
_CALIBRATED = ('epsilon_per_query', 'noise_multiplier', 'answers_per_client', 'delta')


@dataclasses.dataclass(frozen=True, kw_only=True)
class LdpPlan(guarantee.Plan):
  """A calibrated plan, whose rounds are the answers of one owner.

  Events of the ledger are steps, `step_event`. `dimension` >= 2 is that of an answer;
  `holdings`, sets of records, are fewer than owners if they stand in; `delta` is 0 for
  a pure guarantee; by the mechanism, one of the numbers that are optional is None.
  """

  settings: settings_lib.LdpSettings
  dimension: int
  holdings: int
  answers_per_client: int
  delta: float
  epsilon_per_query: float | None = None
  noise_multiplier: float | None = None
  privacy_unit: str = 'one data owner, with all its records'

  @property
  def seed(self) -> int | None:
    return self.settings.seed

  @property
  def is_gaussian(self) -> bool:
    return self.settings.mechanism == 'gaussian'

  @property
  def groups(self) -> int:
    return self.settings.num_clients // self.settings.clients_per_query

  @property
  def queries(self) -> int:
    return self.groups * self.answers_per_client

  def event(self, index: int) -> base.Event:
    if self.is_gaussian:
      return events.LocalDiscreteGaussian(noise_multiplier=self.noise_multiplier)
    if self.settings.mechanism in settings_lib.OF_CLASSES:
      return events.SubsetSelection(
          epsilon=self.epsilon_per_query, classes=self.dimension,
          size=1 if self.settings.mechanism == 'krr' else distributions.subset_size(
              self.epsilon_per_query, self.dimension))
    if self.settings.mechanism == 'duchi':
      return events.Duchi(epsilon=self.epsilon_per_query, dimension=self.dimension)
    return _PURE[self.settings.mechanism](epsilon=self.epsilon_per_query)

  def released(self, rounds: int) -> base.Event:
    return events.SelfComposed(event=self.event(1), count=rounds)

  def step_event(self, before: int, after: int) -> base.Event:
    """The step that brings the number of queries from `before` to `after`."""
    return events.LocalAnswers(event=self.event(1), groups=self.groups,
                               queries_before=before, queries_after=after)

  def most_answers(self, queries: int) -> int:
    """Maximum number of answers of one owner after this number of queries."""
    return -(-queries // self.groups)

  def holding_answers(self, queries: int) -> int:
    """Maximum number of answers from one set; owner i has set i modulo `holdings`."""
    full, rest = divmod(queries, self.groups)
    every_client = -(-self.settings.num_clients // self.holdings)
    return full * every_client + -(
        -rest * self.settings.clients_per_query // self.holdings)

  @property
  def total_variation(self) -> float:
    """Distance between an answer and its ideal distribution, for uniform random bits."""
    # The pure mechanisms' are ratios of integers, which epsilon is of: none deviates.
    return min(1.0, self.dimension * alias_table.TOTAL_VARIATION * self.is_gaussian)

  def bound(self, event: base.Event, releases: int, *, observer: str = bounds.OUTSIDERS,
            delta: float | None = None) -> guarantee.Bound:
    bound = super().bound(event, releases, observer=observer, delta=delta)
    # Answers are drawn on a grid, by integers: the event's caveat does not apply.
    return dataclasses.replace(bound, caveats=tuple(
        caveat for caveat in bound.caveats if caveat not in event.caveats()))

  def guarantee_of(self, ledger: ledger_lib.Ledger) -> guarantee.Guarantee:
    charged = charged_queries(ledger.lines())
    answers, of_holding = self.most_answers(charged), None
    if self.holdings < self.settings.num_clients and self.seed is None:
      of_holding = self.holding_answers(charged)
    of_answers = self.guarantee(answers)
    return dataclasses.replace(of_answers, further={
        **of_answers.further,
        'answers_of_a_client': answers, 'answers_of_a_holding': of_holding,
        'epsilon_of_a_holding': of_holding and self.epsilon(of_holding)})

  def header(self, rounds: int, more: Iterable[str] = ()) -> dict[str, Any]:
    # A line of the ledger is a step.
    answers = self.most_answers(self.settings.queries_per_step)
    return {**super().header(rounds, more), 'delta': self.delta or None,
            'deviation_per_round': min(1.0, answers * self.total_variation)}

  @property
  def terms(self) -> guarantee.Terms:
    return guarantee.Terms(
        privacy_unit=self.privacy_unit,
        observers='any observer, the data user who asks included', against='any observer',
        trust_model='no one is trusted: every owner perturbs its own answers',
        source=self.event(1).source, sampler='integers on a public grid, ' + (
            'from exact tables' if self.is_gaussian else 'exactly'))

  def configuration(self) -> dict[str, Any]:
    return {name: getattr(self, name) for name in _CALIBRATED}

  def with_least_noise(self, epsilon: float, answers: int) -> 'LdpPlan':
    """The same with the minimum noise that keeps `answers` answers within epsilon."""
    def noisy(z: float) -> 'LdpPlan':
      return dataclasses.replace(self, **(
          {'noise_multiplier': z} if self.is_gaussian else {'epsilon_per_query': 1 / z}))

    return noisy(calibration.noise_multiplier(
        lambda z: noisy(z).released(answers), epsilon=epsilon, delta=self.delta,
        total_variation=lambda z: answers * self.total_variation))


def charged_queries(lines: list[dict[str, Any]]) -> int:
  """Queries that the lines of a ledger charge, whether answers are kept or lost."""
  return lines[-1]['event']['queries_after'] if lines else 0


def build(settings: settings_lib.LdpSettings, *,
          recorded: Mapping[str, Any] | None = None, **attributes: Any) -> LdpPlan:
  """The calibrated plan of a distillation; ValueError if the budget can't be met.

  Of the total (DEFAULT_EPSILON), the cost of an answer and the number of answers (1, and
  of classes as many as have CLASS_EPSILON each, which tells most) two are needed.
  """
  if recorded:
    return LdpPlan(settings=settings, **attributes,
                   **{name: recorded[name] for name in _CALIBRATED})
  is_gaussian, delta = settings.mechanism == 'gaussian', settings.delta
  if delta is None:
    delta = 0.0 if not is_gaussian else min(
        settings_lib.DEFAULT_GAUSSIAN_DELTA,
        accountant.default_delta(settings.num_clients))
  each = settings.epsilon_per_query
  total = settings.epsilon or (None if each else settings_lib.DEFAULT_EPSILON)
  if (answers := settings.answers_per_client) is None:
    many = settings.mechanism in settings_lib.OF_CLASSES and not (each or delta)
    answers = max(1, int(total / settings_lib.CLASS_EPSILON)) if many else 1
  plan = LdpPlan(settings=settings, answers_per_client=answers, delta=delta,
                 epsilon_per_query=None if is_gaussian else each, **attributes)
  if each is None and (is_gaussian or delta):
    plan = plan.with_least_noise(total, answers)
  elif is_gaussian:
    plan = plan.with_least_noise(each, 1)
  elif each is None:
    share = total / answers
    # The largest whose sum over the answers is at most the total.
    while share * answers > total:
      share = math.nextafter(share, 0.0)
    plan = dataclasses.replace(plan, epsilon_per_query=share)
  if not is_gaussian:
    distributions.check_epsilon(epsilon_per_query=plan.epsilon_per_query)
  if None in (total, each):
    return plan
  if accountant.epsilon(plan.event(1), delta) > total:
    raise ValueError(f'epsilon={total:g} is less than one answer costs')
  return dataclasses.replace(plan, answers_per_client=calibration.rounds(
      plan.released, epsilon=total, delta=delta,
      total_variation=lambda count: count * plan.total_variation))
