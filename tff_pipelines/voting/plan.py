"""The privacy plan of a vote: what is accounted for is what is executed."""

import bisect
from collections.abc import Iterable
import dataclasses
import math
from typing import Any

from aggregators.voting_params import VotingParams
from tff_pipelines.accounting.events import (
    base, kinds as events, voting as voting_accounting)
from tff_pipelines.accounting.guarantees import (
    calibration, mechanisms, plan as guarantee, votes as votes_lib)
from tff_pipelines.accounting.guarantees.guarantee import BY_SIMULATION
from tff_pipelines.common import caveats, files, validate

_NO_BOUND = caveats.Caveat('published epsilon is no bound', 'epsilon by the published '
                           'formula is less than what is proved: it is no bound')


@dataclasses.dataclass(frozen=True, kw_only=True)
class VotePlan(guarantee.Plan):
  """A calibrated plan for one vote on Q queries, answered or not.

  `scheme` is 'ae' or 'knn', `level` 'agent' or 'instance'; `calibrated_by` is 'paper'
  if noise was calibrated by the published formula; the guarantee is 'tight' always.
  """

  params: VotingParams
  scheme: str
  level: str
  delta: float
  calibrated_by: str = 'tight'
  seed: int | None = None
  privacy_unit: str = 'one agent'

  amplification = 'none'  # All agents vote.

  def __post_init__(self):
    validate.open_unit_interval(delta=self.delta)
    validate.one_of(voting_accounting.BOUNDS, bound=self.calibrated_by)
    self.event(1)  # Raises what is out of range.

  @property
  def vote(self) -> events.Vote:
    params = self.params
    return events.Vote(
        scheme=self.scheme, level=self.level, noise_stddev=params.noise_stddev,
        noise='skellam' if params.is_integer else 'gaussian',
        neighbours=params.votes if self.scheme == 'knn' else None,
        attributes=params.attributes or 1, max_weight=params.max_weight)

  def event(self, index: int) -> base.Event:
    return events.SelfComposed(event=self.vote, count=self.params.queries)

  @property
  def population(self) -> int | None:
    return self.params.agents if self.level == 'agent' else None

  @property
  def total_variation(self) -> float | None:
    return self.params.sampler_deviation

  @property
  def published(self) -> events.Vote:
    """The event of one query in the published formula."""
    return dataclasses.replace(self.vote, noise='gaussian', bound='paper')

  @property
  def epsilon_published(self) -> float:
    return votes_lib.published_epsilon(self.published, self.params.queries, self.delta)

  @property
  def epsilon_planned(self) -> float:
    """Epsilon by the bound that the noise is calibrated by."""
    return self.epsilon_published if self.calibrated_by == 'paper' else self.epsilon(1)

  def further(self, released: base.Event) -> dict[str, Any]:
    return {'epsilon_published': files.finite(self.epsilon_published)}

  @property
  def terms(self) -> guarantee.Terms:
    shares = self.params.has_shares
    own = f' ({mechanisms.OWN_SHARE})' if shares else ''
    return guarantee.Terms(
        privacy_unit=self.privacy_unit, against='everyone who sees the labels',
        observers=f'everyone who sees the labels or what is made of them{own}',
        observers_server='the server, which sees the noisy sums (each start of the run '
        f'before the vote was kept counts as a vote){own}' if shares else None,
        against_server='the server, which sees noisy sums',
        trust_model=mechanisms.MECHANISMS[
            'ae_vote' if shares else 'gaussian'].trust_model,
        source=self.vote.source, sampler=self.params.sampler_in_words,
        secure_aggregation=BY_SIMULATION if shares else None)

  def degeneracy(self) -> str | None:
    stddev, most = self.params.noise_stddev, self.params.agents * self.params.max_weight
    return None if stddev < most else (
        f'noise of {stddev:.4g} on votes of at most {most}: labels of the noise')

  def notes(self) -> list[caveats.Caveat]:
    notes = []
    if (degenerate := self.degeneracy()) is not None:
      notes.append(caveats.Caveat('noise drowns the votes', degenerate))
    if not self.params.is_integer:
      notes.append(caveats.Caveat(
          'floating-point Gaussian noise',
          'noise in floating point carries the guarantee of ideal arithmetic only' + (
              ', and of secure aggregation that sums real numbers'
              * self.params.has_shares)))
    if self.epsilon(1) > self.epsilon_published:
      notes.append(_NO_BOUND)
    return notes

  def header(self, rounds: int, more: Iterable[str] = ()) -> dict[str, Any]:
    return {**super().header(rounds, more), 'population': self.params.agents}

  def configuration(self) -> dict[str, Any]:
    return {'noise_stddev': self.params.noise_stddev, 'delta': self.delta,
            'agents': self.params.agents, 'classes': self.params.classes}

  def _with(self, **changes: Any) -> 'VotePlan':
    return dataclasses.replace(self, params=self.params.replace(**changes))

  def largest_queries(self, epsilon: float) -> int:
    """The maximum number of queries within epsilon at this noise; 0 if none is."""
    def planned(queries: int) -> float:
      return self._with(queries=queries).epsilon_planned

    beyond = 1
    while beyond <= 2**30 and planned(beyond) <= epsilon:
      beyond *= 2
    return bisect.bisect(range(1, beyond), epsilon, key=planned)

  def _calibrated(self, epsilon: float) -> 'VotePlan':
    if self.calibrated_by == 'paper':
      # The published formula is explicit:
      # s + 2 sqrt(s ln(1/delta)) = epsilon for s = Q Delta^2 / (2 sigma^2).
      log = math.log(1 / self.delta)
      root = epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))
      # One part in 10^12 more, for the private side of all roundings.
      return self._with(noise_stddev=self.published.l2_sensitivity * math.sqrt(
          self.params.queries / 2) / root * (1 + 1e-12))
    return self._with(noise_stddev=calibration.noise_multiplier(
        lambda z: self._with(noise_stddev=z).event(1), epsilon=epsilon, delta=self.delta,
        total_variation=lambda z: self._with(noise_stddev=z).total_variation))

  @classmethod
  def calibrate(cls, params: VotingParams, *, target_epsilon: float | None,
                noise_stddev: float | None, allow_degenerate: bool = False,
                **attributes: Any) -> 'VotePlan':
    """Builds the plan for a target, never exceeded, or for a given noise, agents.

    With both the target is a limit; ValueError, with the number of queries that fit, if
    it can't be met. The noise of `params` is ignored.
    """
    targets = {'epsilon': target_epsilon, 'noise_stddev': noise_stddev}
    given = {name: value for name, value in targets.items() if value is not None}
    if not given:
      raise ValueError('epsilon or noise_stddev must be given, found neither')
    validate.positive(**given)
    plan = cls(params=params.replace(noise_stddev=given.get('noise_stddev', 1.0)),
               **attributes)
    if noise_stddev is None:
      plan = plan._calibrated(target_epsilon)
    elif target_epsilon is not None and plan.epsilon_planned > target_epsilon:
      raise ValueError(
          f'epsilon={target_epsilon:g} cannot be reached with queries={params.queries} '
          f'at noise_stddev={noise_stddev:g}: the largest number of queries that fits '
          f'is {plan.largest_queries(target_epsilon)}')
    if (message := plan.degeneracy()) and not allow_degenerate:
      raise ValueError(f'queries={params.queries} with epsilon={target_epsilon} take '
                       f'{message}; lower --queries or pass --allow_degenerate')
    return plan
