"""Mechanisms: the releases of a run, by the parameters that determine their privacy.

A mechanism is one frozen object; `event` is everything that it releases, and
`release` one release before clients are sampled. Names of fields are those of the
flags. `MECHANISMS` is the table of them all: the releases of each, the settings that
matter to it, and who is trusted.
"""

from collections.abc import Callable
import dataclasses
from typing import Any, Self

from aggregators import noises
from aggregators import params as params_lib
from tff_pipelines.common import validate
from tff_pipelines.accounting.events import base
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.sampling import schemes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism:
  """A mechanism and its parameters; those that are not given are None.

  Attributes:
    mechanism: A key of MECHANISMS.
  """

  mechanism: str

  def __post_init__(self):
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
    return self.release()


@dataclasses.dataclass(frozen=True, kw_only=True)
class SumMechanism(Mechanism):
  """Rounds of a sum over clients, and of the count that an adaptive clip adds.

  A parameter without a default is checked by what needs it.

  Attributes:
    mechanism: 'skellam', 'discrete_gaussian', 'skellam_central', 'gaussian', 'none' or
      'skellam_count'.
    noise_multiplier: Noise standard deviation over the clip, or of a count in clients.
    clip: L2 clip of a client's update, model units.
    bits: Bits of a coordinate of the sum; not together with `scale`.
    scale: Grid units per model unit, fixed instead of derived from `bits`.
    beta: Bias of the conditional rounding, in [0, 1).
    k_stddevs: Standard deviations of the sum inside half the field.
    dimension: Coordinates of an update, unpadded.
    cohort_size: Expected number of clients in a round.
    population: Number of clients.
    rounds: Number of releases, >= 1.
    sampling: How clients are selected, a key of `schemes.SCHEMES`.
    fixed_adjacency: Adjacency of sampling=fixed, 'replace-one' or 'zero-out'.
    max_participations: Limit on the rounds of a client with sampling=poisson, >= 1;
      None for none.
    min_cohort_size: Least cohort with sampling=poisson, >= 1; None for none.
    min_honest_fraction: Fraction of the noise shares counted on, in (0, 1].
    assumed_colluders: Clients of a round that are assumed to collude, >= 0.
    dropout_rate: Upper bound on the probability that a selected client drops out, in
      [0, 1), independently of other clients, of rounds and of its data.
    surviving_fraction: Fraction of the planned noise that is present when nothing tops
      it up, in [0, 1].
    rotation: Name of the rotation of an update before it is rounded.
    adaptive_clipping: Whether each round also releases the count of clients at most
      the clip.
    clip_count_stddev: Noise of that count, in clients; None for a twentieth of
      `cohort_size`.
  """

  noise_multiplier: float | None = None
  clip: float | None = None
  bits: int | None = None
  scale: float | None = None
  beta: float = 0.60653066
  k_stddevs: float = 4.0
  dimension: int | None = None
  cohort_size: float | None = None
  population: int | None = None
  rounds: int = 1
  sampling: str = 'none'
  fixed_adjacency: str = base.REPLACE_ONE
  max_participations: int | None = None
  min_cohort_size: int | None = None
  min_honest_fraction: float = 1.0
  assumed_colluders: int = 0
  dropout_rate: float = 0.0
  surviving_fraction: float = 1.0
  rotation: str = 'hadamard'
  adaptive_clipping: bool = False
  clip_count_stddev: float | None = None

  def __post_init__(self):
    super().__post_init__()
    validate.one_of(schemes.SCHEMES, sampling=self.sampling)
    validate.one_of(schemes.FIXED_ADJACENCIES, fixed_adjacency=self.fixed_adjacency)
    validate.one_of(params_lib.ROTATIONS, rotation=self.rotation)
    validate.integer(rounds=self.rounds, low=1)
    validate.integer(assumed_colluders=self.assumed_colluders, low=0)
    validate.below_one(dropout_rate=self.dropout_rate)
    if self.bits is not None and self.scale is not None:
      raise ValueError(
          'bits and scale must not both be given: bits derive the scale, found '
          f'bits={self.bits!r} and scale={self.scale!r}')

  def sampling_scheme(
      self, simulation_seed: int | None = None) -> schemes.SamplingScheme:
    """The scheme that selects the clients of each round, as `event` accounts for it.

    Args:
      simulation_seed: None for the operating system's entropy.
    """
    return schemes.build(
        self.sampling, population=self.population, cohort_size=self.cohort_size,
        simulation_seed=simulation_seed, adjacency=self.fixed_adjacency,
        max_participations=self.max_participations,
        min_cohort_size=self.min_cohort_size, rounds=self.rounds)

  def params(self) -> params_lib.DistributedSumParams:
    """The parameters of the sum, at this noise multiplier."""
    cohort = self.needed('cohort_size')
    scheme = self.sampling_scheme()
    bits = self.bits
    if self.scale is not None:
      bits = 30  # Irrelevant to privacy where the scale is fixed.
    elif bits is None:
      raise ValueError(f'bits or scale must be given for mechanism={self.mechanism}')
    return params_lib.DistributedSumParams(
        clip=self.needed('clip'), bits=bits, dimension=self.needed('dimension'),
        noise_multiplier=self.needed('noise_multiplier'), cohort_size=cohort,
        beta=self.beta, k_stddevs=self.k_stddevs,
        max_cohort_size=scheme.planned_cohort,
        cohort_limit=None if self.population is None else scheme.largest_cohort,
        min_honest_fraction=self.min_honest_fraction,
        assumed_colluders=self.assumed_colluders, fixed_scale=self.scale,
        rotation=self.rotation, mechanism=self.mechanism)

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
    validate.positive(clip_count_stddev=stddev)
    return params_lib.AdaptiveClipParams(count_stddev=stddev, **settings)

  def clip_count(self) -> events.SkellamCount | None:
    """The count that an adaptive clip adds to every sum; None for a fixed clip."""
    adaptive = self.adaptive_clip()
    if adaptive is None:
      return None
    # A server that adds all the noise misses none.
    shares = 'surviving_fraction' in self.family.uses
    return events.SkellamCount(
        l1_sensitivity=adaptive.sensitivity, noise_variance=base.scaled(
            adaptive.noise_variance, self.surviving_fraction if shares else 1.0))

  def release(self) -> base.Event:
    """The event of one round before clients are sampled.

    A sum and the count of an adaptive clip share one sample of the clients, so their
    curves add before it amplifies them.
    """
    released = super().release()
    if 'adaptive_clipping' not in self.family.uses or not self.adaptive_clipping:
      return released
    return events.Together(events=(released, self.clip_count()))

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
  """Queries with one release each.

  Attributes:
    queries: Number of releases, >= 1.
  """

  queries: int = 1

  def __post_init__(self):
    super().__post_init__()
    validate.integer(queries=self.queries, low=1)

  def event(self) -> base.Event:
    return events.SelfComposed(event=self.release(), count=self.queries)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VoteMechanism(_Queries):
  """Queries that agents answer by a noisy vote.

  Attributes:
    mechanism: 'ae_vote' or 'knn_vote'.
    queries: Number of votes, >= 1.
    noise_stddev: Standard deviation of the honest noise, in units in which an
      agent's votes sum to 1.
    level: 'agent' or 'instance', as in `voting.Vote`.
    bound: 'tight' or 'paper', as there.
    noise: 'skellam' or 'gaussian'; None for skellam, unless the bound is the paper's.
    neighbours: Votes of an agent in knn_vote.
  """

  noise_stddev: float | None = None
  level: str = 'agent'
  bound: str = 'tight'
  noise: str | None = None
  neighbours: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class NfdpMechanism(Mechanism):
  """Training on one random subset of a party's records, without noise.

  Attributes:
    mechanism: 'nfdp'.
    records: Number of records of the party.
    subset_size: Number of sampled records.
    replacement: Whether a record may be sampled more than once.
  """

  mechanism: str = 'nfdp'
  records: int | None = None
  subset_size: int | None = None
  replacement: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalMechanism(_Queries):
  """Queries that a client answers with noise of its own.

  Attributes:
    mechanism: 'piecewise', 'duchi' or 'laplace'.
    queries: Number of answers of a client, >= 1.
    epsilon: Epsilon of one query, > 0.
  """

  epsilon: float | None = None


_Release = Callable[[Any], base.Event]


def _shares(kind: Any) -> _Release:
  return lambda mechanism: kind.from_params(
      mechanism.params(), mechanism.surviving_fraction)


def _with(kind: type[base.Event], *fields: str) -> _Release:
  """The event of this kind, with these fields of the mechanism."""
  return lambda mechanism: kind(**{name: mechanism.needed(name) for name in fields})


def _count(mechanism: SumMechanism) -> base.Event:
  stddev = mechanism.needed('noise_multiplier')
  validate.non_negative(noise_multiplier=stddev)
  return events.SkellamCount(
      l1_sensitivity=1,
      noise_variance=base.scaled(stddev**2, mechanism.surviving_fraction))


def _vote(mechanism: VoteMechanism) -> base.Event:
  noise = mechanism.noise
  if noise is None:
    noise = 'gaussian' if mechanism.bound == 'paper' else 'skellam'
  knn = mechanism.mechanism == 'knn_vote'
  return events.Vote(
      scheme='knn' if knn else 'ae', level=mechanism.level, noise=noise,
      noise_stddev=mechanism.needed('noise_stddev'), bound=mechanism.bound,
      neighbours=mechanism.needed('neighbours') if knn else None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
  """The row of a mechanism in the table.

  Attributes:
    kind: The class of its parameters.
    release: From the parameters to the event of one release, before clients are
      sampled; without the count of an adaptive clip.
    uses: Names of the settings that matter to it, those of a query included.
    trust_model: A description of who is trusted with what.
    knob: The setting that is the noise, or None.
    counter: The setting that counts releases; None if there is only one.
  """

  kind: type[Mechanism]
  release: _Release
  uses: frozenset[str]
  trust_model: str
  knob: str | None = None
  counter: str | None = None

  @property
  def params(self) -> bool:
    """Whether the mechanism has a DistributedSumParams."""
    return 'bits' in self.uses


# A participant knows the share of the noise that it added itself.
OWN_SHARE = (
    'a participant who subtracts its own share of the noise counts as a colluder')

_ALWAYS = {'delta', 'accountant', 'epsilon'}
_ROUNDS = {'cohort_size', 'population', 'rounds', 'sampling', 'fixed_adjacency',
           'max_participations', 'min_cohort_size', 'noise_multiplier', 'amplification',
           'clients_per_person'}
_GRID = {'clip', 'bits', 'scale', 'beta', 'k_stddevs', 'dimension', 'rotation',
         'allow_degenerate', 'adaptive_clipping', 'clip_count_stddev'}
_SHARES = {'min_honest_fraction', 'surviving_fraction', 'assumed_colluders',
           'colluders', 'dropout_rate'}
_VOTE = {'queries', 'noise_stddev', 'level', 'bound', 'noise'}

_DISTRIBUTED = (
    'the server sees sums only: the secure aggregation protocol must refuse to '
    'open a sum of fewer shares than min_honest_fraction counts on, and the '
    'server must tell clients the true cohort and top missing shares up; the '
    'noise is that of the clients')
_CENTRAL = ('the server is trusted: it sees the sum without noise and adds the noise')
_BALLOT = (
    'agents add shares of the noise and the votes meet in secure aggregation; '
    'only the winning label leaves it')
_NO_SERVER = 'no server is trusted: every client protects itself'


def _sum(release, trust_model, *uses, knob='noise_multiplier') -> Family:
  return Family(
      kind=SumMechanism, release=release, uses=frozenset(_ALWAYS.union(*uses)),
      trust_model=trust_model, knob=knob, counter='rounds')


def _integers(noise: noises.Noise, kind: Any) -> Family:
  """The row of a sum of integers; who adds the noise is said by its mechanism."""
  if noise.has_shares:
    return _sum(_shares(kind), _DISTRIBUTED, _ROUNDS, _GRID, _SHARES)
  return _sum(lambda mechanism: kind.from_params(mechanism.params()), _CENTRAL, _ROUNDS,
              _GRID)


def _votes(*uses) -> Family:
  return Family(
      kind=VoteMechanism, release=_vote, uses=frozenset(_ALWAYS.union(_VOTE, *uses)),
      trust_model=_BALLOT, knob='noise_stddev', counter='queries')


def _answers(kind: type[base.Event]) -> Family:
  return Family(
      kind=LocalMechanism, release=_with(kind, 'epsilon'),
      uses=frozenset(_ALWAYS | {'queries'}), trust_model=_NO_SERVER, counter='queries')


MECHANISMS: dict[str, Family] = {
    **{name: _integers(noises.named(name), kind) for name, kind in (
        ('skellam', events.DistributedSkellam),
        ('discrete_gaussian', events.DistributedDiscreteGaussian),
        ('skellam_central', events.CentralSkellam))},
    'gaussian': _sum(
        _with(events.CentralGaussian, 'noise_multiplier'), _CENTRAL, _ROUNDS),
    'none': _sum(
        lambda _: events.NoPrivacy(),
        'everyone who sees the models is trusted with the data', {'rounds'}, knob=None),
    'skellam_count': _sum(_count, _DISTRIBUTED, _ROUNDS, {'surviving_fraction'}),
    'ae_vote': _votes(),
    'knn_vote': _votes({'neighbours'}),
    'nfdp': Family(
        kind=NfdpMechanism, uses=frozenset({'records', 'subset_size', 'replacement'}),
        release=_with(events.Nfdp, 'records', 'subset_size', 'replacement'),
        trust_model='no noise: sampling a subset is all the protection'),
    'piecewise': _answers(events.Piecewise),
    'duchi': _answers(events.Duchi),
    'laplace': _answers(events.LocalLaplace),
}


def names(kind: type[Mechanism]) -> tuple[str, ...]:
  """The names of the mechanisms whose parameters are of this class."""
  return tuple(name for name, family in MECHANISMS.items() if family.kind is kind)


def build(mechanism: str, **settings) -> Mechanism:
  """Builds a mechanism of any kind from its name.

  Args:
    mechanism: A key of MECHANISMS.
    **settings: Fields of its class.

  Raises:
    ValueError: If the name is unknown or a setting is out of range.
  """
  validate.one_of(MECHANISMS, mechanism=mechanism)
  return MECHANISMS[mechanism].kind(mechanism=mechanism, **settings)
