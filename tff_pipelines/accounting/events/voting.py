"""Events of releases by voting (Zhu et al., "Voting-based approaches", 2020).

Every agent votes on a public query and adds its share of noise; the argmax of
the noisy sum is released. The bounds are those of the noisy sum itself, of
which the argmax is post-processing. One event is one query.

Schemes, with k = `neighbours`:

* 'ae': each agent casts one vote, for its own model's label;
* 'knn': each agent casts k votes, for the labels of the k records of its own
  nearest to the query, divided by the constant k at the end.

Where labels do not exclude each other an agent names up to `attributes` of them.
"""

import math

from tff_pipelines.accounting.events import base, combinators, local_events, sum_events
from tff_pipelines.common import caveats as caveats_lib, validate

SCHEMES = ('ae', 'knn')
LEVELS = ('agent', 'instance')
NOISES = ('skellam', 'gaussian')
BOUNDS = ('tight', 'paper')


class Vote(base.Equivalent, base.Release, combinators.AgentsShares):
  """One query answered by a noisy vote.

  Level 'agent' replaces all votes of one agent by zero. Level 'instance' adds, removes or
  replaces one record of one agent. For 'knn', also with fewer than k records, that needs

  * a public constant k, by which counts are always divided;
  * ties that break in a fixed order;
  * public features with a public scaling.

  Attributes:
    scheme, level: 'ae' or 'knn'; 'agent' or 'instance'.
    noise: 'skellam' (integer counts), 'gaussian' or 'discrete_gaussian'.
    noise_stddev: Standard deviation of the honest noise on a coordinate of the sum, in
      units in which an agent's votes sum to 1 (0: no guarantee). Neighbour counts carry
      k times as much, before the division.
    neighbours: k >= 1 for 'knn', None for 'ae'.
    bound: 'tight', or 'paper' for the sensitivity sqrt(2/k) that the paper states for
      'knn' at instance level, for Gaussian noise.
    attributes: The maximum number tau of labels that an agent names, for 'ae' only.
    max_weight: The maximum weight of a vote. Weights are public; an agent of weight w
      casts each vote w times.
  """

  scheme: str
  level: str = 'agent'
  noise: str = 'skellam'
  noise_stddev: validate.NonNegative
  neighbours: int | None = None
  bound: str = 'tight'
  attributes: validate.Count = 1
  max_weight: validate.Count = 1

  source = ('Zhu et al. 2020, Theorem 5, with sensitivity sqrt(2)/k for neighbours; '
            'arXiv 2110.04995, Theorem 3.5 and section 3.1 for Skellam noise')
  scaled = base.no_known_group

  def __post_init__(self):
    validate.one_of(SCHEMES, scheme=self.scheme)
    validate.one_of(LEVELS, level=self.level)
    validate.one_of((*NOISES, 'discrete_gaussian'), noise=self.noise)
    validate.one_of(BOUNDS, bound=self.bound)
    if self.scheme == 'knn':
      validate.integer(neighbours=self.neighbours, low=1)
      validate.integer(**{'attributes for scheme=knn': self.attributes}, high=1)
    elif self.neighbours is not None:
      raise ValueError(f'neighbours must be None for ae, found {self.neighbours!r}')
    if self.bound == 'paper' and self.noise != 'gaussian':
      raise ValueError(f'bound=paper needs noise=gaussian, found {self.noise!r}')

  @property
  def adjacency(self) -> str:
    return base.ZERO_OUT if self.level == 'agent' else base.INSTANCE

  @property
  def votes(self) -> int:
    """Votes of an agent, by which its counts are divided."""
    return self.neighbours or 1

  @property
  def count_stddev(self) -> float:
    """Noise standard deviation of the integer counts, before any division."""
    return self.votes * self.noise_stddev

  @property
  def l2_sensitivity(self) -> float:
    """In units in which the votes of an agent of weight 1 for a label sum to 1."""
    of_agent = self.max_weight * math.sqrt(self.attributes)
    if self.level == 'agent':
      return of_agent
    if self.bound == 'paper':
      return of_agent * math.sqrt(2.0 / self.votes)
    return of_agent * math.sqrt(2.0) / self.votes

  @property
  def equivalent(self) -> base.Event:
    if self.noise != 'skellam':
      kind = (local_events.LocalGaussian if self.noise == 'gaussian'
              else local_events.LocalDiscreteGaussian)
      return kind(noise_multiplier=self.noise_stddev / self.l2_sensitivity)
    is_instance = self.level == 'instance'
    # Counts that change; at instance level as many go up as come down.
    return combinators.SelfComposed(
        count=self.attributes * (2 if is_instance else 1),
        event=sum_events.SkellamCount(
            l1_sensitivity=self.max_weight * (1 if is_instance else self.votes),
            noise_variance=self.count_stddev**2))

  def factors(self, amplification: str) -> base.Factors | None:
    if self.noise_stddev and self.skellam_coordinates():
      return None  # How an agent's votes spread is unknown, so the worst pair is.
    return super().factors(amplification)

  def skellam_coordinates(self) -> int:
    # Counts that none of the agent's votes is in are the same for both inputs.
    return self.votes if (
        self.noise == 'skellam' and self.level == 'agent' and self.votes > 1) else 0

  def as_gaussian(self, distance: float) -> base.Event:
    return sum_events.gaussian_of_skellam(
        self, variance=self.count_stddev**2, distance=distance,
        l2_sensitivity=self.votes * self.max_weight)

  def caveats(self) -> tuple[caveats_lib.Caveat, ...]:
    if self.bound == 'paper' and self.scheme == 'knn':
      return (caveats_lib.Caveat(
          'published sensitivity',
          'bound=paper uses the published sensitivity sqrt(2/k), not sqrt(2)/k'),)
    return ()
