"""Mechanisms: the releases of a run, by the parameters that determine their privacy.

A mechanism is one frozen object; `event` is everything that it releases, and
`release` one release before clients are sampled. Names of fields are those of the
flags. `MECHANISMS` is the table of them all: the releases of each, the settings that
matter to it, and who is trusted.
"""

from collections.abc import Callable
import dataclasses
import functools
import json
import math
from typing import Any, NamedTuple, Self

from aggregators import noises, params as params_lib
from tff_pipelines.accounting.events import base, kinds as events, sum_events, voting
from tff_pipelines.accounting.sampling import schemes
from tff_pipelines.common import declarations, validate
from tff_pipelines.common.declarations import REQUIRED, setting


_sums, _subsets = declarations.groups('sums', 'random subsets')
_answered = declarations.group('votes and local answers')
_poisson = declarations.group('sums', sampling=('poisson',))
_fixed = declarations.group('sums', sampling=('fixed',))
_turns = {'sampling': ('turns',)}
_rows = {'sampling': ('turns', 'records')}
_adaptive = declarations.group('sums', adaptive_clipping=(True,))
_sum_params = functools.partial(
    declarations.like, params_lib.DistributedSumParams, group='sums')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism:
  """A mechanism and its parameters; those that are not given are None."""

  mechanism: str = setting(REQUIRED, 'A key of MECHANISMS.')

  def __post_init__(self):
    declarations.check(self)
    validate.one_of(names(type(self)), mechanism=self.mechanism)

  @property
  def family(self) -> 'Family':
    """The mechanism's row of the table."""
    return MECHANISMS[self.mechanism]

  def replace(self, **changes) -> Self:
    """A copy with these fields changed, validated."""
    return dataclasses.replace(self, **changes)

  def needed(self, name: str) -> Any:
    """The field `name`; ValueError if it was not given."""
    value = getattr(self, name)
    if value is None:
      raise ValueError(f'{name} must be given for mechanism={self.mechanism}')
    return value

  def release(self) -> base.Event:
    """The event of one release, before clients are sampled."""
    return self.family.release(self)

  def event(self) -> base.Event:
    """The event of everything that is released."""
    release, counter = self.release(), self.family.counter
    return release if counter is None else events.SelfComposed(
        event=release, count=getattr(self, counter))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SumMechanism(Mechanism):
  """Rounds of a sum over clients, and of the count that an adaptive clip adds."""

  noise_multiplier: float | None = _sum_params('noise_multiplier', None, help=
      'Noise standard deviation over the clip, or of a count in clients.')
  rounds: int = _sums(1, 'Number of rounds.', low=1, essential=True)
  cohort_size: float | None = _sum_params('cohort_size', None, low=None, above=0)
  population: int | None = _sums(None, 'Number of clients.', low=1, essential=True)
  sampling: str = _sums(
      'none', f'Sampling of the clients. {schemes.IN_WORDS}.',
      choices=schemes.SCHEMES, essential=True)
  fixed_adjacency: str = _fixed(
      base.REPLACE_ONE, 'Adjacency of the guarantee: one client is replaced by another, '
      'or its contribution by zero, which costs less.',
      choices=schemes.FIXED_ADJACENCIES)
  max_participations: int | None = _poisson(
      None, 'Maximum number of rounds that select one client.', low=1,
      otherwise='no limit')
  min_cohort_size: int | None = _poisson(
      None, 'Minimum number of clients in a round: a smaller cohort is drawn again, '
      'which epsilon includes. Bounds what a participant knows of the noise.',
      low=1, unit='clients', otherwise='a cohort may be of one')
  turn_rate: float = _sums(
      1.0, 'Probability that a client is sampled in its turn. Turns are the longer the '
      'smaller it is: --cohort_size over it, rounded up.', above=0, high=1, when=_turns)
  column: tuple[int, ...] = _sum_params('column', when=_rows)
  silos: int | None = _sums(
      None, 'Number of silos, each with a share of the noise.', low=1,
      when={'sampling': ('records',)}, otherwise='clients have shares')
  record_adjacency: str = _sums(
      base.RECORD_ZERO_OUT, 'Adjacency where silos sample records: one is added or '
      'removed, or (instance) replaced as well.', when={'sampling': ('records',)},
      choices=(base.RECORD_ZERO_OUT, base.INSTANCE))
  clip: float | None = _sum_params('clip', None)
  bits: int | None = _sum_params('bits', None)
  dimension: int | None = _sum_params('dimension', None)
  scale: float | None = _sum_params('fixed_scale', instead_of='bits')
  rotation: str = _sum_params('rotation')
  beta: float = _sum_params('beta')
  k_stddevs: float = _sum_params('k_stddevs')
  adaptive_clipping: bool = _sums(
      False, 'Let the clip follow a quantile of the updates\' norms; the noisy count '
      'that this takes is released too.')
  clip_count_stddev: float | None = _adaptive(
      None, 'Noise of the count behind an adaptive clip.', above=0, unit='clients',
      otherwise='--cohort_size / 20')
  min_honest_fraction: float = _sum_params('min_honest_fraction')
  assumed_colluders: int = _sum_params('assumed_colluders')
  stated_event: str | None = _sums(
      None, 'JSON of the event of one sum, before clients are sampled.',
      when={'mechanism': ('own',)}, otherwise='nothing is guaranteed')
  dropout_rate: float = _sums(
      0.0, 'Upper bound on the probability that a selected client drops out, '
      'independently of other clients, of rounds and of its data.', low=0, below=1)
  surviving_fraction: float = _sums(
      1.0, 'Fraction of the planned noise that is there when nothing tops it up.',
      low=0, high=1)

  def __post_init__(self):
    super().__post_init__()
    if self.adaptive_clipping and len(self.column) > 1:
      raise ValueError('adaptive_clipping needs a column of one weight, found '
                       f'{self.column!r}: sums of other clips have other scales')

  @property
  def has_bands(self) -> bool:
    """Whether rows of several sums are opened, and not each sum."""
    return len(self.column) > 1

  def sampling_scheme(
      self, simulation_seed: int | None = None) -> schemes.SamplingScheme:
    """The scheme that selects the clients of each round; without a seed by entropy."""
    return schemes.build(
        self.sampling, population=self.population, cohort_size=self.cohort_size,
        simulation_seed=simulation_seed, adjacency=self.fixed_adjacency,
        max_participations=self.max_participations,
        min_cohort_size=self.min_cohort_size, rounds=self.rounds,
        turn_rate=self.turn_rate, column=self.column, silos=self.silos,
        neighbours=self.record_adjacency)

  def params(self) -> params_lib.DistributedSumParams:
    """The parameters of the sum, at this noise multiplier."""
    for name in ('cohort_size', 'clip', 'dimension', 'noise_multiplier'):
      self.needed(name)
    scheme = self.sampling_scheme()
    if self.scale is self.bits is None:
      raise ValueError(f'bits or scale must be given for mechanism={self.mechanism}')
    params = functools.partial(
        params_lib.DistributedSumParams, **declarations.shared(
            params_lib.DistributedSumParams, self, fixed_scale=self.scale,
            # Irrelevant to privacy where the scale is fixed.
            bits=self.bits if self.scale is None else 30,
            max_cohort_size=scheme.planned_cohort, cohort_limit=(
                None if self.population is None else scheme.largest_cohort)))
    if self.silos is None:
      return params()
    return params(min_honest_fraction=1.0, assumed_colluders=0).over_silos(
        self.silos, min_honest_fraction=self.min_honest_fraction,
        assumed_colluders=self.assumed_colluders)

  def adaptive_clip(self, **settings) -> params_lib.AdaptiveClipParams | None:
    """The parameters of an adaptive clip; None if the clip is fixed.

    Args:
      **settings: Attributes of AdaptiveClipParams that cost no privacy.
    """
    if not self.adaptive_clipping:
      return None
    stddev = self.clip_count_stddev
    if stddev is None:
      stddev = 0.05 * self.needed('cohort_size')  # arXiv 1905.03871.
    return params_lib.AdaptiveClipParams(count_stddev=stddev, **settings)

  def clip_count(self) -> events.SkellamCount | None:
    """The count that an adaptive clip adds to every sum; None for a fixed clip."""
    adaptive = self.adaptive_clip()
    return adaptive and events.SkellamCount(
        l1_sensitivity=adaptive.sensitivity,
        noise_variance=sum_events.surviving_variance(adaptive.noise_variance, self.surviving()))

  def surviving(self) -> float:
    """The fraction of the noise that is there; a server that adds it all misses none."""
    return self.surviving_fraction if 'surviving_fraction' in self.family.uses else 1.0

  def release(self) -> base.Event:
    """The event of one round, the count of an adaptive clip included."""
    released = super().release()
    has_count = 'adaptive_clipping' in self.family.uses and self.adaptive_clipping
    return events.Together(
        events=(released, self.clip_count())) if has_count else released

  def round_event(self, round_index: int = 1) -> base.Event:
    """The event of one round, counted from 1, sampling included."""
    if 'sampling' not in self.family.uses:
      return self.release()
    scheme = self.sampling_scheme()
    return scheme.event(self.release(), round_index, self._pivotal_probability(scheme))

  def event(self) -> base.Event:
    return self.sampled(self.release())

  def sampled(self, release: base.Event) -> base.Event:
    """The event of all rounds of a release from the selected clients."""
    if 'sampling' not in self.family.uses:
      return events.SelfComposed(event=release, count=self.rounds)
    scheme = self.sampling_scheme()
    return scheme.events(release, self.rounds, self._pivotal_probability(scheme))

  def _pivotal_probability(self, scheme: schemes.SamplingScheme) -> float:
    """The probability that one client decides whether a round is suppressed."""
    if 'min_honest_fraction' not in self.family.uses:
      return 0.0  # Nothing is suppressed where the server adds the noise.
    return scheme.pivotal_probability(
        self.min_honest_fraction, self.assumed_colluders, self.dropout_rate)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Queries(Mechanism):
  """Queries with one release each."""

  queries: int = _answered(
      1, 'Number of votes, or of a client\'s locally private answers.', low=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VoteMechanism(_Queries):
  """Queries that agents answer by a noisy vote."""

  noise_stddev: float | None = _answered(
      None, 'Noise of a vote, where an agent\'s votes sum to 1.', above=0)
  level: str = _answered(
      'agent', 'The unit that a vote protects: an agent, or one record (instance).',
      choices=voting.LEVELS)
  bound: str = _answered(
      'tight', 'Sensitivity and conversion of votes; paper is the published one.',
      choices=voting.BOUNDS)
  noise: str | None = _answered(
      None, 'Noise of votes.', choices=voting.NOISES,
      otherwise='skellam; gaussian with --bound=paper')
  neighbours: int | None = _answered(None, 'Votes of an agent in knn_vote.', low=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NfdpMechanism(Mechanism):
  """Training on one random subset of a party's records, without noise."""

  mechanism: str = declarations.like(Mechanism, 'mechanism', 'nfdp')
  records: int | None = _subsets(None, 'Records of a party in nfdp.', low=1)
  subset_size: int | None = _subsets(None, 'Records that a party samples in nfdp.', low=1)
  replacement: bool = _subsets(True, 'Let nfdp sample with replacement.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalMechanism(_Queries):
  """Queries that a client answers with noise of its own."""

  epsilon: float | None = _answered(None, 'Epsilon of one query.', above=0)


def _with(kind: type[base.Event], *fields: str) -> Callable[[Any], base.Event]:
  """The event of this kind, with these fields of the mechanism."""
  return lambda mechanism: kind(**{name: mechanism.needed(name) for name in fields})


def _row_stddev(mechanism: SumMechanism) -> float:
  """Noise standard deviation of a row over the sensitivity of a contribution in it."""
  stddev = mechanism.needed('noise_multiplier')
  validate.non_negative(noise_multiplier=stddev)
  return stddev * math.sqrt(params_lib.squared_norm(mechanism.column))


def _gaussian(mechanism: SumMechanism) -> base.Event:
  return events.CentralGaussian(noise_multiplier=_row_stddev(mechanism))


def _stated(mechanism: SumMechanism) -> base.Event:
  stated = mechanism.stated_event
  return events.NoPrivacy() if stated is None else base.from_json(json.loads(stated))


def _count(mechanism: SumMechanism) -> base.Event:
  return events.SkellamCount(l1_sensitivity=1, noise_variance=sum_events.surviving_variance(
      _row_stddev(mechanism)**2, mechanism.surviving()))


def _vote(mechanism: VoteMechanism) -> base.Event:
  knn = mechanism.mechanism == 'knn_vote'
  return events.Vote(
      scheme='knn' if knn else 'ae', level=mechanism.level, noise=mechanism.noise or (
          'gaussian' if mechanism.bound == 'paper' else 'skellam'),
      noise_stddev=mechanism.needed('noise_stddev'), bound=mechanism.bound,
      neighbours=mechanism.needed('neighbours') if knn else None)


class Family(NamedTuple):
  """The row of a mechanism in the table.

  Attributes:
    kind: The class of its parameters.
    release: From the parameters to the event of one release, before clients are
      sampled; without the count of an adaptive clip.
    trust_model: A description of who is trusted with what.
    uses: Names of the settings that matter to it, those of a query included.
    only: Kinds of the queries that apply to it; None for all.
  """

  kind: type[Mechanism]
  release: Callable[[Any], base.Event]
  trust_model: str
  uses: set[str]
  only: tuple[str, ...] | None = None

  @property
  def params(self) -> bool:
    """Whether the mechanism has a DistributedSumParams."""
    return 'bits' in self.uses

  @property
  def knob(self) -> str | None:
    """The setting that is the noise, or None."""
    return self._used('noise_multiplier', 'noise_stddev')

  @property
  def counter(self) -> str | None:
    """The setting that counts releases; None if there is only one."""
    return self._used('rounds', 'queries')

  def _used(self, *settings: str) -> str | None:
    return next((name for name in settings if name in self.uses), None)


# A participant knows the share of the noise that it added itself.
OWN_SHARE = (
    'a participant who subtracts its own share of the noise counts as a colluder')

_ALWAYS = {'delta', 'accountant', 'epsilon'}
_ROUNDS = _ALWAYS | {
    'cohort_size', 'population', 'rounds', 'sampling', 'fixed_adjacency',
    'max_participations', 'min_cohort_size', 'turn_rate', 'column', 'noise_multiplier',
    'silos', 'record_adjacency',
    'amplification', 'clients_per_person'}
_GRID = _ROUNDS | {
    'clip', 'bits', 'scale', 'beta', 'k_stddevs', 'dimension', 'rotation',
    'allow_degenerate', 'adaptive_clipping', 'clip_count_stddev'}
_SHARES = {'min_honest_fraction', 'surviving_fraction', 'assumed_colluders',
           'colluders', 'dropout_rate'}
_VOTE = _ALWAYS | {'queries', 'noise_stddev', 'level', 'bound', 'noise'}
_SUBSET = ('records', 'subset_size', 'replacement')

_DISTRIBUTED = (
    'the server sees sums only: the secure aggregation protocol must refuse to '
    'open a sum of fewer shares than min_honest_fraction counts on, and the '
    'server must tell clients the true cohort and top missing shares up; the '
    'noise is that of the clients')
_CENTRAL = ('the server is trusted: it sees the sum without noise and adds the noise')
_AS_STATED = ('the aggregation is not of this project: that it releases no more than '
              'its stated event, and to whom, is not checked')
_BALLOT = (
    'agents add shares of the noise and the votes meet in secure aggregation; '
    'only the winning label leaves it')
_NO_SERVER = 'no server is trusted: every client protects itself'


def _integers(noise: noises.Noise, kind: Any) -> Family:
  """The row of a sum of integers."""
  return Family(
      SumMechanism, lambda mechanism: kind.from_params(
          mechanism.params(), mechanism.surviving()),
      _DISTRIBUTED if noise.has_shares else _CENTRAL,
      _GRID | _SHARES if noise.has_shares else _GRID)


MECHANISMS: dict[str, Family] = {
    **{name: _integers(noises.named(name), kind) for name, kind in (
        ('skellam', events.DistributedSkellam),
        ('discrete_gaussian', events.DistributedDiscreteGaussian),
        ('skellam_central', events.CentralSkellam))},
    'gaussian': Family(SumMechanism, _gaussian, _CENTRAL, _ROUNDS),
    # Every silo hides its records from all others by itself.
    'silo_noise': Family(SumMechanism, _gaussian, _NO_SERVER, _ROUNDS - {'column'}),
    'own': Family(SumMechanism, _stated, _AS_STATED,
                  _ROUNDS - {'noise_multiplier', 'column'} | {'stated_event'}),
    'none': Family(
        SumMechanism, lambda _: events.NoPrivacy(),
        'everyone who sees the models is trusted with the data', _ALWAYS | {'rounds'},
        ('epsilon', 'delta')),
    'skellam_count': Family(
        SumMechanism, _count, _DISTRIBUTED, _ROUNDS | {'surviving_fraction'}),
    'ae_vote': Family(VoteMechanism, _vote, _BALLOT, _VOTE),
    'knn_vote': Family(VoteMechanism, _vote, _BALLOT, _VOTE | {'neighbours'}),
    'nfdp': Family(
        NfdpMechanism, _with(events.Nfdp, *_SUBSET),
        'no noise: sampling a subset is all the protection', set(_SUBSET),
        ('epsilon',)),
    **{name: Family(LocalMechanism, _with(kind, 'epsilon'), _NO_SERVER,
                    _ALWAYS | {'queries'}, ('epsilon',))
       for name, kind in (('piecewise', events.Piecewise), ('duchi', events.Duchi),
                          ('laplace', events.LocalLaplace))},
}


def names(kind: type[Mechanism]) -> tuple[str, ...]:
  """The names of the mechanisms whose parameters are of this class."""
  return tuple(name for name, family in MECHANISMS.items() if family.kind is kind)


def build(mechanism: str, **settings) -> Mechanism:
  """Builds a mechanism of any kind from its name.

  Raises ValueError if the name is unknown or a setting is out of range.
  """
  validate.one_of(MECHANISMS, mechanism=mechanism)
  return MECHANISMS[mechanism].kind(mechanism=mechanism, **settings)
