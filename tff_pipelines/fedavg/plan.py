"""The privacy plan of federated averaging: what is accounted is what is executed.

One object holds the mechanism, the sampling scheme and the trust model. The run takes
its cohorts and its aggregation factory from it, the ledger and the report their
numbers; no privacy parameter reaches them in another way.
"""

from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

from aggregators import params as params_lib
from tasks.task import Preliminary
from tff_pipelines.accounting.events import base, combinators, preliminary
from tff_pipelines.accounting.guarantees import (
    accountant, bounds, calibration, mechanisms, noise_budget, observers,
    plan as guarantee, release_noise)
from tff_pipelines.accounting.guarantees.guarantee import (
    ANY_SILO, APPROXIMATE, BY_SIMULATION, CLOSED)
from tff_pipelines.accounting.sampling import cohorts, schemes
from tff_pipelines.common import declarations, validate
from tff_pipelines.fedavg import columns, settings as settings_lib

# Fields of the plan with what is released before the first round and after the last.
_RELEASES = ('preliminary', 'evaluation')


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedAvgPlan(guarantee.Plan):
  """A calibrated plan for rounds of federated averaging.

  Attributes:
    mechanism: Noise, clip, grid, sampling and rounds.
    delta: Delta of the guarantee; without one it only goes into the ledger, None for
      a population of 1.
    target_epsilon: Epsilon that the noise was calibrated to; None if it was given.
    target_epsilon_server: The same for epsilon against the server.
    against_silos: Whether the target is one against another silo as well.
    accountant, amplification, seed, clients_per_person: As in `guarantee.Plan`; the
      noise is calibrated for one client.
    allow_degenerate: Whether a uselessly coarse grid is accepted.
    diagnostics: Whether values outside the guarantee are measured.
    target_quantile, clip_learning_rate: Those of an adaptive clip.
    preliminary: Event of a release before the first round; None for none.
    preliminary_charges: Number of times that it was charged, or will have been: more
      than once if a start was interrupted between charge and release.
    evaluation, evaluation_charges: The same of metrics after the last round.
    privacy_unit: Unit that one client is.
    aggregation: Name of an aggregation of the user's own; None for none.
  """

  mechanism: mechanisms.SumMechanism
  delta: float | None
  target_epsilon: float | None = None
  target_epsilon_server: float | None = None
  against_silos: bool = False
  accountant: str = 'auto'
  amplification: str = 'tight'
  seed: int | None = None
  allow_degenerate: bool = False
  diagnostics: bool = False
  target_quantile: float = 0.5
  clip_learning_rate: float = 0.2
  preliminary: base.Event | None = None
  preliminary_charges: int = 1
  evaluation: base.Event | None = None
  evaluation_charges: int = 1
  privacy_unit: str = 'one client'
  clients_per_person: int = 1
  aggregation: str | None = None

  @classmethod
  def calibrate(cls, mechanism: mechanisms.SumMechanism, *, delta: float | None = None,
                target_epsilon: float | None = None,
                target_epsilon_server: float | None = None,
                recorded_noise: float | None = None, **attributes: Any) -> 'FedAvgPlan':
    """Builds the plan that meets a target, or has the mechanism's own noise.

    Args:
      mechanism: With known dimension and population.
      delta: None for `accountant.default_delta`.
      target_epsilon, target_epsilon_server: Never exceeded; None where the mechanism
        has a noise multiplier, or no noise.
      recorded_noise: Noise multiplier that an earlier start of the run was calibrated
        to, to be used again; None to calibrate.
      **attributes: Further attributes of the plan.

    Raises ValueError if the target can't be met; the message says why.
    """
    population, cohort_size = mechanism.needed('population'), mechanism.cohort_size
    if cohort_size > population:
      raise ValueError(f'cohort_size={cohort_size:g} is larger than the population of '
                       f'{population} clients: lower it')
    if mechanism.sampling == 'none' and cohort_size != population:
      raise ValueError(f'cohort_size must be the population, {population}, with '
                       f'sampling=none, found {cohort_size:g}')
    delta = accountant.default_delta(population) if delta is None else delta
    plan = cls(mechanism=mechanism, delta=delta, target_epsilon=target_epsilon,
               target_epsilon_server=target_epsilon_server, **attributes)
    validate.integer(low=1, high=population, clients_per_person=plan.clients_per_person)
    if not plan.is_private:
      if plan._outside_rounds:
        raise ValueError(f'mechanism={mechanism.mechanism} takes no release beside rounds')
      plan.scheme  # Raises if clients can't be sampled so.
      return dataclasses.replace(
          plan._with(noise_multiplier=None), delta=delta if delta < 1 else None,
          target_epsilon=None, target_epsilon_server=None)
    validate.open_unit_interval(delta=delta)
    counted_on = mechanism.min_honest_fraction * (mechanism.silos or 1)
    if bounds.PARTICIPANT in plan.targets and counted_on <= 1 + 1e-9:
      raise ValueError(f'min_honest_fraction={mechanism.min_honest_fraction:g} must be above '
                       f'1/{mechanism.silos}: another silo that runs a server knows the rest')
    if recorded_noise is not None:
      plan = plan._with(noise_multiplier=recorded_noise)
    elif plan.is_calibrated:
      plan._check_redrawn()
      plan = plan._calibrated()
    if mechanism.family.knob is not None:
      validate.positive(noise_multiplier=plan.mechanism.needed('noise_multiplier'))
    plan.scheme, plan.adaptive  # Raise if a value is out of range.
    plan._check_redrawn()
    if plan.params is None:
      return plan
    plan.params.check_shares()
    if not plan.allow_degenerate:
      calibration.refuse_degenerate(plan.params)
    return plan

  def _check_redrawn(self) -> None:
    """Raises ValueError if drawing cohorts again takes more than half of delta."""
    least = self.mechanism.min_cohort_size
    taken = least and self.mechanism.sampled(
        combinators.NoPrivacy()).failure_probability()
    if taken and taken > self.delta / 2:
      raise ValueError(f'min_cohort_size={least} is too much: cohorts drawn again take '
                       f'{taken:.3g} of delta={self.delta:g}, more than half; lower it '
                       'or raise cohort_size')

  def _with(self, **changes: Any) -> 'FedAvgPlan':
    """The plan with these fields of its mechanism changed."""
    return dataclasses.replace(self, mechanism=self.mechanism.replace(**changes))

  def _solved(self, **changes: Any) -> 'FedAvgPlan':
    """With the minimum noise for the target; `calibration.Unreachable` if none."""
    start, rounds = self._with(**changes), self.mechanism.rounds
    at = lambda z: start._with(noise_multiplier=z)

    def total_variation(z: float) -> float | None:
      of_round = at(z).total_variation
      return of_round and self.release_count(rounds) * of_round

    return at(max(
        calibration.noise_multiplier(
            lambda z: at(z).released(rounds), epsilon=target, delta=self.delta,
            accountant=self.accountant, amplification=self.amplification,
            total_variation=total_variation, observer=observer)
        for observer, target in self.targets.items()))

  @property
  def targets(self) -> dict[str, float]:
    """Observer -> target that its epsilon does not exceed.

    Where cohorts are no secret, that against the observers is against all, silos too.
    """
    epsilon, server = self.target_epsilon, self.target_epsilon_server
    servers = [server, epsilon] if self.scheme.hides_nothing else [server]
    others = self.against_silos and self.mechanism.silos > 1 and (
        'min_honest_fraction' in self.mechanism.family.uses)
    return {observer: min(targets) for observer, targets in (
        (bounds.OUTSIDERS, [epsilon] * (epsilon is not None)),
        (bounds.SERVER, [one for one in servers if one is not None]),
        (bounds.PARTICIPANT, [epsilon] * (others and epsilon is not None))) if targets}

  def _calibrated(self) -> 'FedAvgPlan':
    """Calls `_solved`; its ValueError names the bits that would do, if any would."""
    target = min(self.targets.values())
    others = {}
    if self._outside_rounds:
      others['what is released beside the rounds'] = combinators.Composed(
          events=self._outside_rounds)
    if self.adaptive is not None:
      others[f'clip_count_stddev={self.adaptive.count_stddev:g} is too little: its '
             'count'] = self.mechanism.sampled(self.mechanism.clip_count())
    for name, event in others.items():
      alone = observers.bound(observers.View(event), self.delta, self.method).epsilon
      if alone >= target:
        raise ValueError(f'{name} costs epsilon={alone:.4g} alone, which leaves '
                         f'nothing of the target {target:g}')
    try:
      return self._solved()
    except calibration.Unreachable as error:
      if not self.mechanism.family.params:
        raise
      raise ValueError(calibration.unreachable_reason(
          self._with(noise_multiplier=1.0).params,
          lambda trial: self._solved(bits=trial.bits).params, error)) from None

  @functools.cached_property
  def params(self) -> params_lib.DistributedSumParams | None:
    """Parameters of the distributed sum; None for central mechanisms."""
    return self.mechanism.params() if self.mechanism.family.params else None

  @functools.cached_property
  def adaptive(self) -> params_lib.AdaptiveClipParams | None:
    """Parameters of an adaptive clip; None if the clip is fixed."""
    return self.mechanism.adaptive_clip(
        target_quantile=self.target_quantile, learning_rate=self.clip_learning_rate)

  @functools.cached_property
  def scheme(self) -> schemes.SamplingScheme:
    """Samples the clients of each round, as `event` accounts for it."""
    return self.mechanism.sampling_scheme(self.seed)

  @property
  def is_calibrated(self) -> bool:
    """Whether the noise meets a target, and was not given."""
    return (self.target_epsilon, self.target_epsilon_server) != (None, None)

  @property
  def calibrated(self) -> 'FedAvgPlan':
    if self.preliminary_charges == self.evaluation_charges == 1:
      return self
    return dataclasses.replace(self, preliminary_charges=1, evaluation_charges=1)

  @property
  def population(self) -> int:
    return self.mechanism.population

  @property
  def records(self) -> int | None:
    return None if self.mechanism.silos is None else self.population

  @property
  def is_private(self) -> bool:
    mechanism = self.mechanism
    return mechanism.mechanism != 'none' and (
        mechanism.mechanism != settings_lib.OWN or mechanism.stated_event is not None)

  @property
  def has_closed_sums(self) -> bool:
    return bool(self.mechanism.has_bands and self.params and self.params.has_shares)

  def event(self, index: int) -> base.Event:
    return self.mechanism.round_event(index)

  @property
  def releases(self) -> list[tuple[str, base.Event, int]]:
    """When a release outside the rounds is made, its event and number of charges."""
    return [release for release in (
        ('before the first round', self.preliminary, self.preliminary_charges),
        ('after the last round', self.evaluation, self.evaluation_charges))
            if release[1] is not None]

  @property
  def _outside_rounds(self) -> tuple[base.Event, ...]:
    """The events of `releases`, charge by charge."""
    return tuple(event for _, event, charges in self.releases for _ in range(charges))

  def released(self, rounds: int) -> base.Event:
    # A planned evaluation counts from the first round on.
    event, beside = self.mechanism.replace(rounds=rounds).event(), self._outside_rounds
    return combinators.Composed(events=(*beside, event)) if beside else event

  def release_count(self, rounds: int) -> int:
    return rounds + len(self._outside_rounds)

  def further(self, released: base.Event) -> dict[str, Any]:
    return {
        'epsilon_preliminary' if event is self.preliminary else
        'epsilon_private_evaluation': accountant.epsilon(
            combinators.SelfComposed(event=event, count=charges), self.delta)
        for _, event, charges in self.releases if self.seed is None}

  @functools.cached_property
  def total_variation(self) -> float | None:
    of_round = noise_budget.of_sum(self.params, self.scheme.largest_cohort)
    if of_round is None:
      return None
    return max(of_round, *(release_noise.release_of(event).total_variation
                           for event in self._outside_rounds), 0.0)

  @property
  def terms(self) -> guarantee.Terms:
    mechanism = self.mechanism
    # Who adds up a release beside the rounds sees what clients contribute to it.
    outside = bool(self._outside_rounds)
    shares = self.params is not None and self.params.has_shares
    closed = self.has_closed_sums
    trust, sampler, everyone = mechanism.family.trust_model, None, None
    if self.scheme.hides_nothing and not outside:
      everyone = ('any observer who holds no closed sum and no share of the noise'
                  if closed else 'any observer who holds no share of the noise'
                  if shares else 'any observer but the server')
    if closed:
      trust += ('; sums stay closed: they are opened in weighted rows of '
                f'{len(mechanism.column)} rounds alone')
    if mechanism.family.knob is not None:
      sampler = noise_budget.describe_sum(self.params, self.adaptive is not None)
    for when, *_ in self.releases:
      trust += f'; {when} {preliminary.TRUST}'
      sampler += f'; {when} {preliminary.SAMPLER}'
    common = dict(privacy_unit=self.privacy_unit, sampling=mechanism.sampling,
                  trust_model=trust, sampler=sampler,
                  secure_aggregation=self.params and BY_SIMULATION)
    if mechanism.silos is not None:
      against = but = 'all but the ' + (
          'curator' if mechanism.silos == 1 else 'silo that holds it')
      if mechanism.silos > 1 and shares:
        but = 'all who hold neither it nor a share of the noise'
        against = but.replace('all', 'observers of the models', 1)
        if self.against_silos:
          but = ANY_SILO + ', unless it holds closed sums' * closed
      elif mechanism.silos > 1 and self.is_private and mechanism.mechanism != 'silo_noise':
        against = but = f'{but} and the trusted server'
      against += (' and who adds up the evaluation' if against == but else
                  ', nor add up the evaluation') * outside
      return guarantee.Terms(
          against=against, everyone=everyone and but,
          observers=f'{against}: nobody else learns which were drawn, how many, or how '
          'long that took', adjacency=None if (
              mechanism.record_adjacency == base.INSTANCE) else
          f'{self.privacy_unit} is added or removed' + ', with all its records in one silo'
          * (self.privacy_unit == 'one person'),
          observers_server=shares and (
              'the server, as secure aggregation shows it sums only' + (
                  ', and no part of the evaluation' * outside)) or None,
          against_server='who sees secure sums alone' if outside else 'the server',
          observers_participant=shares and mechanism.silos > 1 and (
              'another silo, which knows its own sample and share of the noise, and may '
              'run a server' + ', but adds up no evaluation' * outside) or None,
          source=self.event(1).source, **common)
    return guarantee.Terms(
        observers='those who see the released models and learn neither who nor how '
        'many participated, nor how long rounds took',
        against='observers of the released models',
        observers_server=(
            f'{"those" if outside else "the server and those"} who know the cohorts '
            f'and no share of the noise{", and hold no closed sum" * closed}'
            if shares else
            'participants, who know the cohorts (the server is trusted)'),
        against_server=(
            'the participants (the server is trusted)' if not shares else
            'those who know the cohorts' if outside else 'the server'),
        observers_participant=(
            'a participant, which knows the cohorts of its rounds and its own share of '
            'the noise') if shares else None,
        everyone=everyone, source='; '.join(filter(None, dict.fromkeys([
            *_sources(self.released(1)),
            *[self.event(1).source] * mechanism.has_bands]))) or None, **common)

  def notes(self) -> list[guarantee.Caveat]:
    mechanism, params = self.mechanism, self.params
    degenerate = params and params.degeneracy()
    varies = params and params.has_shares and not params.noise.is_divisible
    approximate = [APPROXIMATE] * bool(varies and self.scheme.cohort_in_words == 'expected')
    closed = [CLOSED] * self.has_closed_sums
    return approximate + closed + [guarantee.Caveat(name, text) for applies, name, text in (
        (mechanism.silos, 'number of records public', 'the number of all that is protected, '
         'which sets the sampling rate and divides the sums, is taken as public, and to a '
         'factor of two that of the largest silo, which sets the time of a step'),
        (self.diagnostics, 'diagnostics outside the guarantee',
         'diagnostics measure raw values and cohort sizes, outside the guarantee'),
        (degenerate, 'degenerate grid', f'degenerate grid: {degenerate}'),
        (params and params.rotation == 'none', 'no rotation',
         'rotation=none: large coordinates may wrap around, which costs accuracy only'),
        (mechanism.mechanism == settings_lib.OWN and self.is_private,
         'aggregation as stated', 'epsilon is that of the event that is stated for the '
         f'aggregation {self.aggregation}: that it releases no more is not checked'),
        (mechanism.mechanism == settings_lib.OWN and not self.is_private,
         'mechanism not accounted', 'no event is stated for the aggregation '
         f'{self.aggregation}: nothing is guaranteed'))
                          if applies]

  def configuration(self) -> dict[str, Any]:
    mechanism = self.mechanism
    return {**{name: getattr(mechanism, name) for name in (
        'noise_multiplier', 'dimension', 'population', 'max_participations', 'bits')},
            'delta': self.delta, 'column': list(mechanism.column),
            'rotation_order': self.params and self.params.rotation_order,
            **({'stated_event': mechanism.stated_event} if mechanism.stated_event else {}),
            **{name: event.to_json() for name in _RELEASES
               if (event := getattr(self, name)) is not None}}


def _sources(event: base.Event) -> list[str]:
  """Sources of the bounds of the releases inside an event."""
  return [source for part in base.parts(event)
          for source in _sources(part)] or [event.source]


def build(settings: settings_lib.TrainSettings, *, dimension: int, population: int,
          privacy_unit: str = 'one client', needed: Preliminary | None = None,
          metrics: int = 0, server: Any = None, aggregation: Any = None,
          silos: int | None = None, recorded: Mapping[str, Any] | None = None) -> FedAvgPlan:
  """The calibrated plan of a training run.

  Args:
    settings: Settings of the run.
    dimension: Coordinates of an update.
    population: Number of units, of which each is a `privacy_unit`.
    needed: Release that the task needs before the first round; None for none.
    metrics: Number of metrics that are released after the last round.
    server: The `ServerConfig` for whose models the noise shall cancel; None for plain
      averaging.
    aggregation: The `aggregation.Aggregation` of mechanism=own.
    silos: Number of clients that hold the units; None where clients are the units.
    recorded: `configuration` of the plan of an earlier start; None for a new run.
  """
  recorded = recorded or {}
  delta = recorded.get('delta') if settings.delta is None else settings.delta
  limit = (recorded.get('max_participations') if recorded else
           settings.max_participations or None)
  of_silos = {} if silos is None else dict(
      silos=silos, cohort_size=settings.batch_size or max(1.0, population / 10))
  mechanism = mechanisms.SumMechanism(**declarations.shared(
      mechanisms.SumMechanism, settings, dimension=dimension, population=population,
      **of_silos,
      dropout_rate=settings.simulated_dropout_rate, max_participations=limit,
      column=tuple(recorded.get('column', (1,))),
      stated_event=aggregation and aggregation.stated_event))
  stated = recorded.get('stated_event')
  if recorded and stated != mechanism.stated_event:
    raise ValueError('aggregation must be that of the run, whose event was '
                     f'{stated}, found {mechanism.stated_event}')
  if not recorded and settings.sampling in settings_lib.WITH_ROWS and (
      'column' in mechanism.family.uses and mechanism.cohort_size <= population):
    mechanism = mechanism.replace(column=_column(settings, mechanism, server))
  if mechanism.bits is None and mechanism.family.params:
    mechanism = mechanism.replace(bits=recorded.get('bits') or (
        calibration.default_bits(mechanism, settings_lib.DEFAULT_BITS)))
  if not recorded and settings.max_participations is None and (
      settings.sampling == 'poisson' and 'max_participations' in mechanism.family.uses
      and settings.cohort_size <= population
      # Where suppression may show a client, a limit would take all amplification.
      and not mechanism.sampled(combinators.NoPrivacy()).event.pivotal_probability):
    mechanism = mechanism.replace(max_participations=cohorts.suggested_participations(
        settings.cohort_size / population, settings.rounds))
  releases = {name: recorded.get(name) and base.from_json(recorded[name])
              for name in _RELEASES}
  if not recorded:  # Each at an epsilon of its own.
    common = dict(
        delta=accountant.default_delta(population) if delta is None else delta,
        replace_one_of=population if (settings.sampling, settings.fixed_adjacency) == (
            'fixed', base.REPLACE_ONE) else None)
    if needed is not None:
      releases['preliminary'] = release_noise.planned(
          l2_sensitivity=needed.l2_sensitivity, items=needed.items,
          dimension=needed.dimension or population * needed.items,
          epsilon=settings.statistics_epsilon or settings.vocabulary_epsilon or 1.0,
          **common)
    if metrics:
      releases['evaluation'] = release_noise.planned_evaluation(
          metrics, epsilon=settings.private_evaluation, of_records=silos is not None,
          **common)
  return FedAvgPlan.calibrate(
      **declarations.shared(FedAvgPlan, settings, mechanism=mechanism, delta=delta,
                            aggregation=aggregation and aggregation.name),
      recorded_noise=(None if settings.noise_multiplier is not None else
                      recorded.get('noise_multiplier')),
      target_epsilon_server=settings.epsilon_server, privacy_unit=privacy_unit,
      against_silos=silos is not None, **releases)


def _column(settings: settings_lib.TrainSettings, mechanism: mechanisms.SumMechanism,
            server: Any) -> tuple[int, ...]:
  """The column of the settings' bands; ValueError if turns are not so far apart."""
  work = (columns.prefix_sum(settings.rounds) if server is None else
          columns.workload(server, settings.rounds))
  scheme = mechanism.sampling_scheme()
  if settings.bands is not None:
    if settings.bands > scheme.most_bands:
      raise ValueError(
          f'bands must be at most {scheme.most_bands}, the rounds between two turns of a '
          f'client: {scheme.population} clients, '
          f'{getattr(scheme, "turn_size", scheme.cohort_size):g} a round; found '
          f'{settings.bands}')
    return columns.best(work, settings.bands)
  return (1,) if settings.adaptive_clipping or mechanism.silos else columns.auto(
      work, columns.most_auto(scheme.most_bands, mechanism.dimension))
