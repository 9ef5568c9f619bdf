"""The plan of a distillation: what an answer costs and how many there may be.

Owners answer in groups, alternately, so that no owner answers more often than others;
the plan says how many answers an owner gives at most, what each is perturbed by, and
what all of them cost it. No TensorFlow.
"""

from collections.abc import Iterable, Mapping
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
from tff_pipelines.accounting import events
from tff_pipelines.accounting import ledger as ledger_lib
from tff_pipelines.experiment import guarantee
from tff_pipelines.ldp import settings as settings_lib

_PURE = {'piecewise': events.Piecewise, 'duchi': events.Duchi,
         'laplace': events.LocalLaplace}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LdpPlan(guarantee.Plan):
  """A calibrated plan.

  Its guarantee is that of one owner: what it calls a round is an answer of that owner.
  Events of the ledger are steps, `step_event`.

  Attributes:
    mechanism: One of `settings.MECHANISMS`.
    epsilon_per_query: Of one answer; None for the Gaussian mechanism.
    noise_multiplier: Of the Gaussian mechanism; None for others.
    answers_per_client: Maximum number of answers of an owner.
    delta: Of all answers; 0 for a pure guarantee.
    dimension: Coordinates of an answer, >= 2.
    num_clients: Number of owners.
    clients_per_query: Owners that answer a query together; divides `num_clients`.
    holdings: Sets of records behind the owners; fewer if they stand in.
    queries_per_step: Queries that a line of the ledger stands for, at most.
    privacy_unit: What one owner is.
    seed: A simulation seed voids the guarantee.
  """

  mechanism: str
  epsilon_per_query: float | None
  noise_multiplier: float | None
  answers_per_client: int
  delta: float
  dimension: int
  num_clients: int
  clients_per_query: int
  holdings: int
  queries_per_step: int = 100
  privacy_unit: str = 'one data owner, with all its records'
  seed: int | None = None

  def __post_init__(self):
    validate.integer(dimension=self.dimension, low=2)
    validate.integer(holdings=self.holdings, low=1, high=self.num_clients)

  @property
  def groups(self) -> int:
    """Groups of owners that answer alternately."""
    return self.num_clients // self.clients_per_query

  @property
  def queries(self) -> int:
    """Number of queries that the budget allows."""
    return self.groups * self.answers_per_client

  @functools.cached_property
  def answer_event(self) -> base.Event:
    """One answer of one owner."""
    return _answer(self.mechanism, self.epsilon_per_query, self.noise_multiplier)

  def event(self, index: int) -> base.Event:
    return self.answer_event

  def released(self, rounds: int) -> base.Event:
    return _composed(self.answer_event, rounds)

  def step_event(self, before: int, after: int) -> base.Event:
    """The step that brings the number of queries from `before` to `after`."""
    return events.LocalAnswers(
        event=self.answer_event, groups=self.groups, queries_before=before,
        queries_after=after)

  def most_answers(self, queries: int) -> int:
    """Maximum number of answers of one owner after this number of queries."""
    return -(-queries // self.groups)

  def holding_answers(self, queries: int) -> int:
    """Maximum number of answers from one set of records.

    Owners have sets alternately: owner i has set i modulo `holdings`.
    """
    if self.holdings == self.num_clients:
      return self.most_answers(queries)
    full, rest = divmod(queries, self.groups)
    every_client = -(-self.num_clients // self.holdings)
    return full * every_client + -(-rest * self.clients_per_query // self.holdings)

  @property
  def total_variation(self) -> float:
    """Distance between an answer and its ideal distribution.

    The distributions of the pure mechanisms are ratios of integers, and epsilon is
    that of these: nothing deviates. Random bits are taken as uniform.
    """
    return _total_variation(self.mechanism, self.dimension)

  def bound(self, event: base.Event, releases: int, *,
            server: bool = False) -> guarantee.Bound:
    bound = super().bound(event, releases, server=server)
    # Answers are drawn on a grid, by integers: the event's caveat does not apply.
    return dataclasses.replace(bound, caveats=tuple(
        caveat for caveat in bound.caveats if caveat not in event.caveats()))

  def guarantee_of(self, ledger: ledger_lib.Ledger) -> guarantee.Guarantee:
    charged = charged_queries(ledger.lines())
    answers = self.most_answers(charged)
    also = {'answers_of_a_client': answers, 'answers_of_a_holding': None,
            'epsilon_of_a_holding': None}
    if self.holdings < self.num_clients and self.seed is None:
      also['answers_of_a_holding'] = self.holding_answers(charged)
      also['epsilon_of_a_holding'] = self.epsilon(also['answers_of_a_holding'])
    return dataclasses.replace(self.guarantee(answers), also=also)

  def header(self, rounds: int, more: Iterable[str] = ()) -> dict[str, Any]:
    # A line of the ledger is a step.
    step = min(1.0, self.most_answers(self.queries_per_step) * self.total_variation)
    return {**super().header(rounds, more), 'delta': self.delta or None,
            'deviation_per_round': step}

  @property
  def terms(self) -> guarantee.Terms:
    return guarantee.Terms(
        privacy_unit=self.privacy_unit,
        observers='any observer, the data user who asks included',
        against='any observer',
        trust_model='no one is trusted: every owner perturbs its own answers',
        source=self.answer_event.source,
        sampler='integers on a public grid, from exact tables' if (
            self.mechanism == 'gaussian') else 'integers on a public grid, exactly')

  def configuration(self) -> dict[str, Any]:
    return {name: getattr(self, name) for name in _CALIBRATED}


_CALIBRATED = ('epsilon_per_query', 'noise_multiplier', 'answers_per_client', 'delta')


def charged_queries(lines: list[dict[str, Any]]) -> int:
  """Queries that the lines of a ledger charge, whether answers are kept or lost."""
  return lines[-1]['event']['queries_after'] if lines else 0


def _answer(mechanism: str, epsilon: float | None,
            noise_multiplier: float | None) -> base.Event:
  if mechanism == 'gaussian':
    return events.LocalDiscreteGaussian(noise_multiplier=noise_multiplier)
  return _PURE[mechanism](epsilon=epsilon)


def _total_variation(mechanism: str, dimension: int) -> float:
  if mechanism != 'gaussian':
    return 0.0
  return min(1.0, dimension * discrete_gaussian_table.TOTAL_VARIATION)


def _composed(event: base.Event, count: int) -> base.Event:
  return events.SelfComposed(event=event, count=count)


def _shared(total: float, answers: int) -> float:
  """The largest epsilon of which `answers` sum to at most `total`."""
  share = total / answers
  while share * answers > total:
    share = math.nextafter(share, 0.0)
  return share


def _affordable(event: base.Event, total: float, delta: float,
                total_variation: float) -> int:
  """How many such answers keep the total."""
  if delta == 0:
    one = event.pure_epsilon('none')
    count = math.floor(total / one * (1 + 1e-12))
    while count and count * one > total:
      count -= 1
  elif accountant.epsilon(event, delta) > total:
    count = 0
  else:
    count = calibration.rounds(
        lambda n: _composed(event, n), epsilon=total, delta=delta,
        total_variation=lambda n: n * total_variation)
  if count < 1:
    raise ValueError(f'epsilon={total:g} is less than one answer costs: lower '
                     'epsilon_per_query')
  return count


def _calibrated(settings: settings_lib.LdpSettings,
                total_variation: float) -> dict[str, Any]:
  """What of a plan is calibrated, by name.

  Of the total, the cost of an answer and the number of answers, two are needed. The
  default is a total of DEFAULT_EPSILON and one answer of every owner.
  """
  mechanism, is_gaussian = settings.mechanism, settings.mechanism == 'gaussian'
  delta = settings.delta
  if delta is None:
    delta = settings_lib.DEFAULT_GAUSSIAN_DELTA if is_gaussian else 0.0
  total, each = settings.epsilon, settings.epsilon_per_query
  if total is None and each is None:
    total = settings_lib.DEFAULT_EPSILON
  answers = settings.answers_per_client or 1
  noise = None
  if is_gaussian:
    target, count = (total, answers) if each is None else (each, 1)
    noise = calibration.noise_multiplier(
        lambda z: _composed(_answer(mechanism, None, z), count), epsilon=target,
        delta=delta, total_variation=lambda z: count * total_variation)
    each = None
  else:
    if each is None and delta == 0:
      each = _shared(total, answers)
    elif each is None:
      each = 1 / calibration.noise_multiplier(
          lambda z: _composed(_answer(mechanism, 1 / z, None), answers),
          epsilon=total, delta=delta)
    local_dp_laws.check_epsilon(epsilon_per_query=each)
  if total is not None and settings.epsilon_per_query is not None:
    answers = _affordable(
        _answer(mechanism, each, noise), total, delta, total_variation)
  return dict(epsilon_per_query=each, noise_multiplier=noise,
              answers_per_client=answers, delta=delta)


def build(settings: settings_lib.LdpSettings, *, dimension: int,
          holdings: int | None = None, recorded: Mapping[str, Any] | None = None,
          **attributes: Any) -> LdpPlan:
  """The calibrated plan of a distillation.

  Args:
    settings: Of the run.
    dimension: Coordinates of an answer, >= 2.
    holdings: Sets of records behind the owners; None for one each.
    recorded: `configuration` of the plan of an earlier start; None for a new run.
    **attributes: Further attributes of the plan.

  Raises:
    ValueError: If the budget can't be met or an argument is out of range.
  """
  calibrated = ({name: recorded[name] for name in _CALIBRATED} if recorded else
                _calibrated(settings, _total_variation(settings.mechanism, dimension)))
  return LdpPlan(
      mechanism=settings.mechanism, dimension=dimension,
      num_clients=settings.num_clients, clients_per_query=settings.clients_per_query,
      holdings=settings.num_clients if holdings is None else holdings,
      queries_per_step=settings.queries_per_step, seed=settings.seed, **calibrated,
      **attributes)
