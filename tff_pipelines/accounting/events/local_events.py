"""Events of clients that protect themselves: noise-free sampling, local DP."""

import math

from dp_accounting import dp_event
import numpy as np

from tff_pipelines.accounting.divergences import curves, pairs
from tff_pipelines.accounting.events import base, combinators, sum_events
from tff_pipelines.common import caveats as caveats_lib, decimals, validate


# By how much grids may raise a total variation distance: see docs/proofs.md.
_ON_A_GRID = 1 + 2.0**-11
# The same of sets that random integers choose.
_ON_TIES = 1 + 2.0**-30


class Nfdp(base.Release, base.WithoutShares):
  """Training on one random sample of a party's records, without noise.

  Everything after sampling is post-processing. Two statements hold with the same
  delta, and accountants use the stronger:

  * the published one, with an epsilon above 0;
  * one with epsilon 0, because delta is the probability that the record is sampled.

  They are for a replaced record, between data of the same number of records, which is
  public. For an added or removed one they hold only where neither that number nor
  anything that follows from it is seen; with as many draws as records the number of
  draws gives it away, and nothing holds.

  Attributes:
    records: n records of the party.
    subset_size: k records sampled, at most n without replacement.
    replacement: Whether a record may be sampled more than once.
  """

  records: validate.Count
  subset_size: validate.Count
  replacement: bool = True

  source = ('noise-free differential privacy, theorems on sampling with and without '
            'replacement (natural logarithms); total variation of the draw')
  adjacency = base.RECORD

  failure_probability = base.never_fails
  pure_epsilon = base.not_pure
  scaled = base.no_known_group

  def __post_init__(self):
    if not isinstance(self.replacement, bool):
      raise ValueError(f'replacement must be true or false, found {self.replacement!r}')
    if not self.replacement:
      validate.integer(subset_size=self.subset_size, high=self.records)

  @property
  def published_epsilon(self) -> float:
    """Epsilon of the published theorem, for `draw_probability` as delta."""
    n, k = self.records, self.subset_size
    if self.replacement:
      return k * math.log1p(1 / n)
    return math.log((n + 1) / (n + 1 - k))

  @property
  def draw_probability(self) -> float:
    """Delta: the probability that a given record is sampled."""
    n, k = self.records, self.subset_size
    if not self.replacement or n == 1:
      return min(1.0, k / n)
    return -math.expm1(k * math.log1p(-1 / n))

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    return curves.no_guarantee(max_order)

  def factors(self, amplification: str) -> base.Factors:
    return ((pairs.Leak(probability=self.draw_probability), 1),)

  def repeated(self) -> 'PostProcessing':
    # The sample is kept in the checkpoint before the first round: a repeated round
    # reads the same records, and all that it releases follows from them.
    return PostProcessing()

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    delta = decimals.rounded_up(self.draw_probability, 6)
    caveats = [caveats_lib.Caveat(
        'drawn records are not protected',
        f'the same delta {delta} holds with epsilon 0: it is the chance that a given '
        'record is drawn, and a drawn record has no protection at all')]
    # Always so in exact arithmetic: some record is drawn.
    if self.draw_probability >= (1 - 1e-9) / self.records:
      caveats.append(caveats_lib.Caveat(
          'delta not below 1/records',
          f'delta {delta} is not below 1/records = {1 / self.records:.6g}: any one '
          'sampled record may be exposed entirely; this is not a meaningful guarantee'))
    return tuple(caveats)


class PostProcessing(base.Release, base.WithoutShares):
  """A release that is computed from earlier ones alone: it costs nothing.

  Rounds after a noise-free sample are of this kind: they read only its records.
  """

  source = 'post-processing, Dwork and Roth 2014, Proposition 2.1'
  adjacency = base.ANY

  failure_probability = base.never_fails
  caveats = base.no_caveats
  scaled = base.no_known_group

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    return np.zeros(max_order - 1)

  def pure_epsilon(self, amplification: str) -> float:
    return 0.0

  def factors(self, amplification: str) -> base.Factors:
    return ()

  def to_dp_accounting(self) -> dp_event.DpEvent:
    return dp_event.NoOpDpEvent()


class _PureLocal(base.Release, base.WithoutShares, abstract=True):
  """One value of one client, epsilon-DP without delta.

  Attributes:
    epsilon: Epsilon of the whole vector, one query.
  """

  epsilon: validate.Positive

  adjacency = base.LOCAL

  failure_probability = base.never_fails
  scaled = base.no_known_group

  # That of the randomized response that dominates it: with 1, of this epsilon, any is.
  answered = 1.0

  def curve(self, max_order: int, amplification: str) -> np.ndarray:
    pure = curves.pure(self.epsilon, max_order)
    return curves.mixed(np.zeros_like(pure), pure, self.answered)

  def pure_epsilon(self, amplification: str) -> float:
    return self.epsilon

  def factors(self, amplification: str) -> base.Factors:
    pair = pairs.RandomizedResponse(epsilon=self.epsilon, answered=self.answered)
    return ((pair, 1),)

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    return (caveats_lib.Caveat(
        'floating-point arithmetic',
        'a real-valued mechanism in floating point carries the guarantee of ideal '
        'arithmetic only, unless its outputs are rounded to a public grid'),)


class _LikeLaplace(_PureLocal, abstract=True):
  """One whose total variation distance is that of Laplace noise, 1 - e^(-epsilon/2)."""

  @property
  def answered(self) -> float:
    shared = math.exp(-self.epsilon / 2)
    return min(1.0, _ON_A_GRID * (1 + shared**2) / (1 + shared))


class Piecewise(_LikeLaplace):
  """Piecewise mechanism on one vector (Wang et al., arXiv 1907.00782)."""

  source = 'arXiv 1907.00782, section III; arXiv 2311.01553; docs/proofs.md'


class LocalLaplace(_LikeLaplace):
  """Laplace noise whose scale is the L1 distance of any two inputs over epsilon.

  That is 2d/epsilon on d coordinates in [-1, 1], and 2/epsilon on probabilities.
  """

  source = 'Dwork et al. 2006, Proposition 1; arXiv 2311.01553; docs/proofs.md'


class Duchi(_PureLocal):
  """Mechanism of Duchi, Jordan and Wainwright on one vector.

  Attributes:
    dimension: Coordinates of a vector whose outputs orthogonal to its signs stay as
      they are (`DuchiDistribution`); None for any other form.
  """

  dimension: validate.Count | None = None

  source = 'arXiv 1604.02390; arXiv 2311.01553; docs/proofs.md'

  @property
  def answered(self) -> float:
    d = self.dimension or 1
    return 1.0 if d % 2 else 1.0 - math.comb(d, d // 2) / 2**d


class SubsetSelection(_PureLocal):
  """Subset selection of one of k classes; k-ary randomized response if `size` is 1.

  Its losses are epsilon, -epsilon and 0: its pair is itself. `classes` is k >= 2, and
  `size`, less than k, the number of classes in a set.
  """

  classes: validate.Count
  size: validate.Count = 1

  source = 'arXiv 1702.00610; arXiv 1407.1338 (one class); docs/proofs.md'

  caveats = base.no_caveats

  def __post_init__(self):
    super().__post_init__()
    validate.integer(size=self.size, high=self.classes - 1)

  @property
  def answered(self) -> float:
    k, size, shrink = self.classes, self.size, math.exp(-self.epsilon)
    return min(1.0, _ON_TIES * size * (k - size) * (1 + shrink) / (
        (k - 1) * (size + (k - size) * shrink)))


class _LocalGaussian(sum_events.GaussianNoise, abstract=True):
  """Gaussian noise, or noise of no larger divergence, on one vector of one client.

  Attributes:
    noise_multiplier: Noise standard deviation over the L2 distance of any two inputs.
  """

  adjacency = base.LOCAL
  scaled = base.no_known_group


class LocalGaussian(_LocalGaussian, sum_events.WorstOfGaussian):
  """Gaussian noise on one vector of one client."""

  source = 'arXiv 1702.07476, Corollary 3'

  def to_dp_accounting(self) -> dp_event.DpEvent:
    return dp_event.GaussianDpEvent(self.noise_multiplier)


class LocalDiscreteGaussian(_LocalGaussian):
  """Discrete Gaussian noise on one vector of one client, on a public grid.

  Its Renyi divergence is that of Gaussian noise or less; that its worst pair is the
  Gaussian's too is not known, so there is no privacy loss distribution. The standard
  deviation in `noise_multiplier` is the root of the noise's parameter.
  """

  source = 'arXiv 2004.00010, Proposition 5'

  def factors(self, amplification: str) -> base.Factors | None:
    return base.EVERYTHING if self.noise_multiplier == 0 else None


class LocalAnswers(base.Equivalent, base.Release, base.WithoutShares):
  """Answers of clients to public queries, each perturbed on a public grid.

  Clients answer in groups, alternately: query n, counted from 0 over the whole run,
  goes to every client of group n modulo `groups`. So no client has given more than
  ceil(n / groups) answers after n queries, and the steps of a run, composed, cost
  what the client with the maximum number of answers has spent.

  Attributes:
    event: One answer of one client.
    groups: Number of groups.
    queries_before: Queries of all earlier steps, >= 0, lost ones included.
    queries_after: The same after this step, more than before.
  """

  event: base.Inner
  groups: validate.Count
  queries_before: int
  queries_after: int

  source = 'sequential composition for each client, arXiv 1702.07476, Proposition 1'
  adjacency = base.LOCAL

  caveats = base.no_caveats
  scaled = base.no_known_group

  def __post_init__(self):
    if self.event.adjacency != base.LOCAL:
      raise ValueError(f'event must be a local one, found {type(self.event).__name__}')
    validate.integer(queries_before=self.queries_before, low=0)
    validate.integer(queries_after=self.queries_after, low=self.queries_before + 1)

  @property
  def count(self) -> int:
    """The growth of the maximum number of answers that one client has given."""
    return self._answers(self.queries_after) - self._answers(self.queries_before)

  def _answers(self, queries: int) -> int:
    """The maximum number of answers that one client gives to this many queries."""
    return -(-queries // self.groups)

  def _composed(self, count: int) -> base.Event:
    return combinators.SelfComposed(
        event=self.event, count=count) if count else PostProcessing()

  def repeated(self) -> base.Event:
    # To the same groups: the maximum may have grown by less than a client answered.
    return self._composed(self._answers(self.queries_after - self.queries_before))

  @property
  def equivalent(self) -> base.Event:
    return self._composed(self.count)
