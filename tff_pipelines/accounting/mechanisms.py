"""What a user asks the accountant: one frozen request, and its events.

The names are those of the flags. A request knows which of its fields its
mechanism uses, so that nothing that was asked for is dropped in silence.
"""

import dataclasses
import functools
from typing import Callable

from aggregators import params as params_lib
from aggregators import validate
from tff_pipelines.accounting import base
from tff_pipelines.accounting import events
from tff_pipelines.accounting import sampling as sampling_lib

QUERIES = ('epsilon', 'delta', 'noise_multiplier', 'rounds', 'bits', 'table')
SAMPLINGS = ('poisson', 'fixed', 'none')

# Bits that stand in where a fixed scale makes them irrelevant to privacy.
_ANY_BITS = 30
# Noise of the count of an adaptive clip, for each client of the expected cohort
# (arXiv 1905.03871).
_COUNT_STDDEV_OF_COHORT = 1 / 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """A question to the accountant; fields as the flags of the same name.

  Fields that were not given are None. Fields without a default in the flags are
  checked where they are needed, by the mechanism that needs them.
  """

  query: str
  mechanism: str
  epsilon: float | None = None
  delta: float | None = None
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
  min_honest_fraction: float = 1.0
  assumed_colluders: int = 0
  dropout_rate: float = 0.0
  surviving_fraction: float = 1.0
  amplification: str = 'tight'
  accountant: str = 'auto'
  allow_degenerate: bool = False
  rotation: str = 'hadamard'
  adaptive_clipping: bool = False
  clip_count_stddev: float | None = None
  queries: int = 1
  noise_stddev: float | None = None
  level: str = 'agent'
  bound: str = 'tight'
  noise: str | None = None
  neighbours: int | None = None
  records: int | None = None
  subset_size: int | None = None
  replacement: bool = True

  def __post_init__(self):
    validate.one_of(QUERIES, query=self.query)
    validate.one_of(tuple(MECHANISMS), mechanism=self.mechanism)
    validate.one_of(SAMPLINGS, sampling=self.sampling)
    validate.one_of(base.AMPLIFICATIONS, amplification=self.amplification)
    validate.one_of(base.ACCOUNTANTS, accountant=self.accountant)
    validate.one_of(params_lib.ROTATIONS, rotation=self.rotation)
    validate.integer(rounds=self.rounds, low=1)
    validate.integer(queries=self.queries, low=1)
    validate.integer(assumed_colluders=self.assumed_colluders, low=0)
    validate.finite(dropout_rate=self.dropout_rate)
    if not 0 <= self.dropout_rate < 1:
      raise ValueError(
          f'dropout_rate must be in [0, 1), found {self.dropout_rate!r}')
    if self.bits is not None and self.scale is not None:
      raise ValueError(
          'bits and scale must not both be given: bits derive the scale, found '
          f'bits={self.bits!r} and scale={self.scale!r}')

  @property
  def family(self) -> 'Family':
    """What is done with this mechanism."""
    return MECHANISMS[self.mechanism]

  def replace(self, **changes) -> 'Request':
    """A copy with these fields changed, validated anew."""
    return dataclasses.replace(self, **changes)

  def needed(self, name: str):
    """The field `name`; ValueError if it was not given."""
    value = getattr(self, name)
    if value is None:
      raise ValueError(
          f'{name} must be given for mechanism={self.mechanism} and '
          f'query={self.query}')
    return value

  @functools.cached_property
  def sampling_rate(self) -> float:
    """q = cohort_size / population."""
    cohort, population = self.needed('cohort_size'), self.needed('population')
    validate.positive(cohort_size=cohort)
    validate.integer(population=population, low=1)
    if cohort > population:
      raise ValueError(
          f'cohort_size must be at most population={population!r}, found '
          f'{cohort!r}')
    return cohort / population

  def params(self) -> params_lib.DistributedSumParams:
    """Parameters of the sum, at this noise multiplier."""
    cohort = self.needed('cohort_size')
    most = None
    if self.sampling == 'poisson':
      most = max(cohort, sampling_lib.cohort_upper_quantile(
          self.needed('population'), self.sampling_rate))
    bits = self.bits
    if self.scale is not None:
      bits = _ANY_BITS
    elif bits is None:
      raise ValueError(
          f'bits or scale must be given for mechanism={self.mechanism}')
    return params_lib.DistributedSumParams(
        clip=self.needed('clip'), bits=bits, dimension=self.needed('dimension'),
        noise_multiplier=self.needed('noise_multiplier'), cohort_size=cohort,
        beta=self.beta, k_stddevs=self.k_stddevs, max_cohort_size=most,
        min_honest_fraction=self.min_honest_fraction,
        assumed_colluders=self.assumed_colluders, fixed_scale=self.scale,
        rotation=self.rotation, mechanism=self.mechanism)

  def adaptive_clip(self, **settings) -> params_lib.AdaptiveClipParams | None:
    """How the clip adapts; None if it does not.

    Args:
      **settings: Attributes of AdaptiveClipParams that cost no privacy.
    """
    if not self.adaptive_clipping:
      return None
    stddev = self.clip_count_stddev
    if stddev is None:
      stddev = self.needed('cohort_size') * _COUNT_STDDEV_OF_COHORT
    validate.positive(clip_count_stddev=stddev)
    return params_lib.AdaptiveClipParams(count_stddev=stddev, **settings)

  def event(self) -> base.Event:
    """Everything that is released."""
    return self.family.event(self)


def sampled(request: Request, event: base.Event) -> base.Event:
  """All rounds of one release from a sample of the clients."""
  if request.sampling == 'poisson':
    event = events.PoissonSampled(
        event=event, sampling_rate=request.sampling_rate,
        pivotal_probability=_pivotal_probability(request))
  elif request.sampling == 'fixed':
    cohort = request.needed('cohort_size')
    if cohort != int(cohort):
      raise ValueError('cohort_size must be an integer for sampling=fixed, '
                       f'found {cohort!r}')
    event = events.FixedSizeSampled(
        event=event, cohort_size=int(cohort),
        population=request.needed('population'))
  return events.SelfComposed(event=event, count=request.rounds)


def _pivotal_probability(request: Request) -> float:
  """How often a client's taking part decides whether a round is withheld."""
  if 'min_honest_fraction' not in request.family.uses:
    return 0.0  # Nothing is withheld where the server adds the noise.
  return sampling_lib.pivotal_probability(
      request.population, request.sampling_rate, request.min_honest_fraction,
      request.assumed_colluders, request.dropout_rate)


def clip_count(request: Request) -> events.SkellamCount | None:
  """The release that an adaptive clip adds to every sum; None without one."""
  adaptive = request.adaptive_clip()
  if adaptive is None:
    return None
  fraction = 1.0  # A server that adds all noise itself misses none.
  if 'surviving_fraction' in request.family.uses:
    fraction = request.surviving_fraction
  return events.SkellamCount(
      l1_sensitivity=adaptive.sensitivity,
      noise_variance=base.scaled(adaptive.noise_variance, fraction))


def _sampled_sum(request: Request, event: base.Event) -> base.Event:
  """All rounds of a sum and, if the clip adapts, of the count beside it.

  They share one sample of the clients, so their curves add before it counts.
  """
  count = clip_count(request)
  if count is not None:
    event = events.Together(events=(event, count))
  return sampled(request, event)


def _skellam(request: Request) -> base.Event:
  return _sampled_sum(request, events.DistributedSkellam.from_params(
      request.params(), request.surviving_fraction))


def _discrete_gaussian(request: Request) -> base.Event:
  return _sampled_sum(request, events.DistributedDiscreteGaussian.from_params(
      request.params(), request.surviving_fraction))


def _skellam_central(request: Request) -> base.Event:
  return _sampled_sum(
      request, events.CentralSkellam.from_params(request.params()))


def _gaussian(request: Request) -> base.Event:
  return sampled(request, events.CentralGaussian(
      noise_multiplier=request.needed('noise_multiplier')))


def _none(request: Request) -> base.Event:
  return events.SelfComposed(event=events.NoPrivacy(), count=request.rounds)


def _count(request: Request) -> base.Event:
  stddev = request.needed('noise_multiplier')
  validate.non_negative(noise_multiplier=stddev)
  return sampled(request, events.SkellamCount(
      l1_sensitivity=1,
      noise_variance=base.scaled(stddev**2, request.surviving_fraction)))


def vote(request: Request) -> events.Vote:
  """The event of one query to the vote."""
  noise = request.noise
  if noise is None:
    noise = 'gaussian' if request.bound == 'paper' else 'skellam'
  knn = request.mechanism == 'knn_vote'
  return events.Vote(
      scheme='knn' if knn else 'ae', level=request.level, noise=noise,
      noise_stddev=request.needed('noise_stddev'), bound=request.bound,
      neighbours=request.needed('neighbours') if knn else None)


def _votes(request: Request) -> base.Event:
  return events.SelfComposed(event=vote(request), count=request.queries)


def nfdp(request: Request) -> events.Nfdp:
  """The event of one noise-free draw."""
  return events.Nfdp(
      records=request.needed('records'),
      subset_size=request.needed('subset_size'),
      replacement=request.replacement)


def _local(kind: type[base.Event]) -> Callable[[Request], base.Event]:
  def build(request: Request) -> base.Event:
    return events.SelfComposed(
        event=kind(epsilon=request.needed('epsilon')), count=request.queries)
  return build


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
  """What is done with a mechanism.

  Attributes:
    event: From a request to everything that is released.
    uses: The fields that matter to it, beside query, mechanism, format, plot.
    knob: The field that is the noise, or None.
    counter: The field that counts releases.
    target: 'epsilon', unless epsilon is a parameter of it: then None.
    params: Whether a DistributedSumParams stands behind it.
    trust_model: Who is trusted with what, in words.
  """

  event: Callable[[Request], base.Event]
  uses: frozenset[str]
  knob: str | None
  counter: str = 'rounds'
  target: str | None = 'epsilon'
  params: bool = False
  trust_model: str


_ALWAYS = {'delta', 'accountant', 'amplification', 'epsilon'}
_ROUNDS = {'cohort_size', 'population', 'rounds', 'sampling', 'noise_multiplier'}
_GRID = {'clip', 'bits', 'scale', 'beta', 'k_stddevs', 'dimension', 'rotation',
         'allow_degenerate', 'adaptive_clipping', 'clip_count_stddev'}
_SHARES = {'min_honest_fraction', 'surviving_fraction', 'assumed_colluders',
           'dropout_rate'}
_VOTE = {'queries', 'noise_stddev', 'level', 'bound', 'noise'}

_DISTRIBUTED = (
    'the server sees sums only: the secure aggregation protocol must refuse to '
    'open a sum of fewer shares than min_honest_fraction counts on, and the '
    'server must tell clients the true cohort and top missing shares up; the '
    'noise is that of the clients')
_CENTRAL = (
    'the server is trusted: it sees the sum without noise and adds the noise')
_BALLOT = (
    'agents add shares of the noise and the votes meet in secure aggregation; '
    'only the winning label leaves it')
_NO_SERVER = 'nobody is trusted: every client protects itself'


def _family(event, *uses, knob, **rest) -> Family:
  return Family(event=event, uses=frozenset(_ALWAYS.union(*uses)), knob=knob,
                **rest)


MECHANISMS: dict[str, Family] = {
    'skellam': _family(
        _skellam, _ROUNDS, _GRID, _SHARES,
        knob='noise_multiplier', params=True, trust_model=_DISTRIBUTED),
    'discrete_gaussian': _family(
        _discrete_gaussian, _ROUNDS, _GRID, _SHARES,
        knob='noise_multiplier', params=True, trust_model=_DISTRIBUTED),
    'skellam_central': _family(
        _skellam_central, _ROUNDS, _GRID,
        knob='noise_multiplier', params=True, trust_model=_CENTRAL),
    'gaussian': _family(
        _gaussian, _ROUNDS, knob='noise_multiplier', trust_model=_CENTRAL),
    'none': _family(
        _none, {'rounds'}, knob=None,
        trust_model='everybody who sees the models is trusted with the data'),
    'skellam_count': _family(
        _count, _ROUNDS, {'surviving_fraction'},
        knob='noise_multiplier', trust_model=_DISTRIBUTED),
    'ae_vote': _family(
        _votes, _VOTE, knob='noise_stddev', counter='queries',
        trust_model=_BALLOT),
    'knn_vote': _family(
        _votes, _VOTE, {'neighbours'}, knob='noise_stddev', counter='queries',
        trust_model=_BALLOT),
    'nfdp': _family(
        nfdp, {'records', 'subset_size', 'replacement'}, knob=None,
        trust_model='no noise: the draw of a subset is all the protection'),
    'piecewise': _family(
        _local(events.Piecewise), {'queries'}, knob=None, counter='queries',
        target=None, trust_model=_NO_SERVER),
    'duchi': _family(
        _local(events.Duchi), {'queries'}, knob=None, counter='queries',
        target=None, trust_model=_NO_SERVER),
    'laplace': _family(
        _local(events.LocalLaplace), {'queries'}, knob=None, counter='queries',
        target=None, trust_model=_NO_SERVER),
}
