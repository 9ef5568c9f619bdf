"""The privacy plan of FedMD: the guarantee of a record of a party.

No TensorFlow: wrong settings are refused at once.
"""

from collections.abc import Mapping
import dataclasses
import functools
import math
from typing import Any

from aggregators import prediction_params
from aggregators.prediction_params import PredictionMeanParams
from tff_pipelines.accounting.events import base, kinds as events
from tff_pipelines.accounting.guarantees import (
    accountant, bounds, calibration, plan as guarantee)
from tff_pipelines.accounting.guarantees.guarantee import BY_SIMULATION
from tff_pipelines.common import decimals
from tff_pipelines.common.caveats import Caveat
from tff_pipelines.fedmd.settings import FedMdSettings

# Noise is this much larger than calibrated: no rounding leaves it below.
_NOISE_EXCESS = 1.0 + 1e-9
# Maximum of unequal weights: hundredths take few of the bits of a sum.
FULL_WEIGHT = 100

_TRUST = {
    'nfdp': 'no one is trusted with which records a party drew, alone and in secret',
    'ldp': 'no one is trusted: a party adds noise to predictions and keeps its model',
    'np': 'all who see predictions or models are trusted with the records',
    'centralized': 'the server is trusted with all records of all parties'}
_OBSERVERS = {
    'nfdp': 'all but the party itself, who may see its predictions or its model',
    'ldp': 'all but the party itself, who see its noisy predictions and not its model'}
DELTA_IN_WORDS = {
    'nfdp': 'delta is the chance that a given record is drawn into the subset that '
            'its party trains on; a drawn record may be exposed entirely, another one '
            'has no influence',
    'ldp': 'delta is the fraction of the outcomes for which nothing is promised'}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedMdPlan(guarantee.Plan):
  """The guarantee of a run for every single record of every party.

  Round 1 is the parties' own training. `records` are the parties' numbers of private
  records; `recorded` is the `configuration` of an earlier start, which is taken over.
  """

  settings: FedMdSettings
  records: tuple[int, ...]
  classes: int
  party: str = 'a simulated one'
  recorded: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    if min(self.records) < 1:
      raise ValueError(f'a party must have at least one record, found {self.records}')
    self.mean, self.event(1)  # Raise for settings that don't fit together.

  @property
  def seed(self) -> int | None:
    return self.settings.seed

  @property
  def is_private(self) -> bool:
    return self.settings.mode in _OBSERVERS

  @property
  def draws_subset(self) -> bool:
    return self.settings.mode == 'nfdp'

  @property
  def measures_models(self) -> bool:
    """Whether the parties' own models are measured: noisy ones are not released."""
    return self.settings.mode != 'ldp' or self.settings.diagnostics

  @property
  def has_consensus(self) -> bool:
    return self.settings.mode != 'centralized'

  @property
  def public_per_round(self) -> int:
    return self.recorded.get('public_per_round', self.settings.public_records)

  def weight(self, party: int) -> int:
    """Weight: 1, or `FULL_WEIGHT` of the largest party's records, rounded up."""
    return (1 if self.settings.weighting == 'equal' else
            -(-FULL_WEIGHT * self.records[party] // max(self.records)))

  def draw(self, party: int) -> events.Nfdp:
    """The event of a party's draw; ValueError if it takes a record for certain."""
    settings, count = self.settings, self.records[party]
    event = events.Nfdp(records=count, subset_size=settings.subset_size or count,
                        replacement=settings.replacement)
    if event.draw_probability >= 1:
      raise ValueError(
          f'subset_size={event.subset_size} draws each of the {count} records for '
          'certain, so delta is 1: draw fewer, or with mode=ldp give --epsilon')
    return event

  @functools.cached_property
  def draw_event(self) -> events.Nfdp:
    """The draw of the party with the most exposed records."""
    return max(map(self.draw, range(len(self.records))),
               key=lambda event: event.draw_probability)

  @functools.cached_property
  def target(self) -> tuple[float, float]:
    """(epsilon, delta) of the draw, or the target of the noise of mode=ldp."""
    if self.settings.epsilon is not None:
      return self.settings.epsilon, self.settings.delta
    return self.draw_event.published_epsilon, self.draw_event.draw_probability

  @property
  def releases(self) -> int:
    """Number of rounds that are accounted for: the last, which shares nothing, too."""
    return self.settings.rounds + 1

  def _query_event(self, noise_multiplier: float) -> base.Event:
    if self.settings.noise == 'gaussian':
      return events.LocalGaussian(noise_multiplier=noise_multiplier)
    return events.LocalLaplace(epsilon=1 / noise_multiplier)

  @functools.cached_property
  def noise_multiplier(self) -> float | None:
    """Standard deviation over L2 sensitivity, or scale over L1; None without noise."""
    recorded = self.recorded.get('noise_multiplier')
    if recorded is not None or self.settings.mode != 'ldp':
      return recorded
    epsilon, delta = self.target
    count = self.releases * self.public_per_round
    return calibration.noise_multiplier(
        lambda z: events.SelfComposed(event=self._query_event(z), count=count),
        epsilon=epsilon, delta=delta)

  @functools.cached_property
  def mean(self) -> PredictionMeanParams:
    return self._mean_of(self.settings.knowledge)

  def _mean_of(self, knowledge: str) -> PredictionMeanParams:
    settings = self.settings
    max_weight = 1 if settings.weighting == 'equal' else FULL_WEIGHT
    noiseless = PredictionMeanParams(
        knowledge=knowledge, records=self.public_per_round, classes=self.classes,
        max_total_weight=max_weight * len(self.records), bits=settings.bits,
        logit_bound=settings.logit_bound)
    if settings.mode != 'ldp':
      return noiseless
    multiplier = self.noise_multiplier
    scale = (multiplier * noiseless.l2_sensitivity if settings.noise == 'gaussian' else
             noiseless.l1_sensitivity / self._query_event(multiplier).epsilon)
    return noiseless.replace(noise=settings.noise, noise_scale=scale * _NOISE_EXCESS)

  def kinds_of_knowledge(self) -> dict[str, PredictionMeanParams | str]:
    """Parameters of the mean by kind of knowledge, or why settings do not allow it."""
    params = {}
    for kind in prediction_params.KNOWLEDGE:
      try:
        params[kind] = self._mean_of(kind)
      except ValueError as error:
        params[kind] = str(error)
    return params

  def event(self, index: int) -> base.Event:
    if self.draws_subset:
      return self.draw_event if index == 1 else events.PostProcessing()
    if self.settings.mode == 'ldp':
      return events.SelfComposed(event=self._query_event(self.noise_multiplier),
                                 count=self.public_per_round)
    return events.NoPrivacy()

  @property
  def delta(self) -> float | None:
    return self.target[1] if self.is_private else None

  def bound(self, event: base.Event, releases: int, *, observer: str = bounds.OUTSIDERS,
            delta: float | None = None) -> guarantee.Bound:
    if self.draws_subset:
      # With the same delta 0 holds too, see `further`.
      return guarantee.Bound(epsilon=self.target[0] if delta is None else math.inf,
                             accountant='theorem', caveats=self.draw_event.caveats())
    bound = super().bound(event, releases, observer=observer, delta=delta)
    if releases <= self.releases or bound.epsilon <= self.target[0]:
      return bound
    return dataclasses.replace(bound, caveats=(*bound.caveats, Caveat(
        'restarts cost epsilon',
        f'restarts may have repeated {releases - self.releases} rounds: epsilon is '
        f'{decimals.epsilon(bound.epsilon)}, not the {self.target[0]:.6g} planned')))

  def further(self, released: base.Event) -> dict[str, Any]:
    return ({} if not self.draws_subset or self.seed is not None else
            {'epsilon_tighter': accountant.epsilon(self.draw_event, self.delta)})

  @property
  def terms(self) -> guarantee.Terms:
    mode, event = self.settings.mode, self.event(1)
    unit = 'all records of one party' if mode == 'ldp' else 'one record of one party'
    return guarantee.Terms(
        privacy_unit=f'{unit}; a party is {self.party}',
        observers=_OBSERVERS.get(mode, 'no one'), against='all but the party itself',
        trust_model=_TRUST[mode], source=getattr(event, 'event', event).source,
        sampler=f'{self.mean.noise}, in floating point: no bound on its deviation is '
        'proved' if self.mean.has_noise else None, 
        secure_aggregation=BY_SIMULATION if self.has_consensus else None)

  def notes(self) -> list[Caveat]:
    settings, worst = self.settings, 1 / max(self.records)
    is_ldp = settings.mode == 'ldp'
    return [Caveat(name, text) for holds, name, text in (
        (self.is_private, 'record counts public',
         'the numbers of records of the parties are public: the guarantee is for records '
         'that are replaced, not for added or removed ones'),
        (not self.is_private, 'no privacy',
         'no noise is added and all records are used: there is no privacy guarantee'),
        (is_ldp and settings.noise == 'gaussian', 'floating-point arithmetic',
         'noise in floating point carries the guarantee of ideal arithmetic only'),
        (is_ldp and self.measures_models, 'diagnostics outside the guarantee',
         'accuracies of the parties\' own models are outside the guarantee'),
        (is_ldp and self.delta >= worst, 'delta not below 1/records',
         f'delta {self.delta or 0:.6g} is not below 1/records = {worst:.6g}: it allows '
         'to expose single records entirely and is not a meaningful guarantee'),
        (settings.weighting == 'records' and self.has_consensus, 'weights are public',
         'weighting=records makes the number of records of every party public')) if holds]

  def configuration(self) -> dict[str, Any]:
    return {'public_per_round': self.public_per_round,
            'noise_multiplier': self.noise_multiplier}
