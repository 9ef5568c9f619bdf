"""Parameters of a vote, and every number that follows from them. No TensorFlow here.

Units. "Counts" are the integers that are summed. "Agents" are units in which the
votes of one agent of weight 1 for a label sum to 1: k counts are one agent.
"""

import dataclasses
import math

from aggregators import alias_table
from aggregators.params import NoiseShares
from aggregators.share_tables import SHARE_EXCESS
from tff_pipelines.common import validate

# skellam, gaussian: agents add shares. gaussian_central: the server, which is
# trusted, adds all the noise.
NOISES = ('skellam', 'gaussian', 'gaussian_central')

_PHILOX = 'random bits by Philox, which is not a cryptographic generator'

# The label of a query that is not answered.
NO_LABEL = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class VotingParams(NoiseShares):
  """A vote of agents on public queries (Zhu et al. 2020).

  Adjacency is zero-out at agent level, all votes of one agent replaced by zero;
  it still participates and still adds its noise share. At instance level one
  record of one agent is added, removed or replaced.

  Attributes:
    queries: Q >= 1.
    classes: C >= 2 labels; with `attributes`, C >= 1 of them.
    agents: N >= 1, the selected agents. A constant of the run.
    noise_stddev: sigma, agents. The guarantee rests on noise of this standard
      deviation per label of the sum.
    votes: k >= 1 votes of an agent a query, a public constant: 1 for its model's
      label, or its number of neighbours.
    attributes: None where a query has one label. Otherwise labels do not exclude
      each other, an agent names at most this many (tau), and `votes` must be 1.
    max_weight: Integer >= 1. An agent of weight w casts each vote w times.
      Weights are public; the guarantee holds for weights up to this one.
    noise: One of NOISES.
    threshold: Agents. A query is answered only if the noisy count of the winner
      exceeds it; None for no threshold. With `attributes` a label is released
      as present if its noisy count exceeds it, and None means half the agents.
      It costs no privacy, and queries that are not answered cost what others do.
    min_honest_fraction: h in (0, 1]. The fraction of the selected agents whose noise
      the guarantee counts on; noise in all is 1/h of it.
    assumed_colluders: Agents that are assumed to tell the server their noise. A vote
      is suppressed when the other reporting agents are fewer than h N.
  """

  queries: int
  classes: int
  agents: int
  noise_stddev: validate.NonNegative
  votes: int = 1
  attributes: int | None = None
  max_weight: int = 1
  noise: str = 'skellam'
  threshold: validate.Finite | None = None
  min_honest_fraction: float = 1.0
  assumed_colluders: int = 0

  def __post_init__(self):
    validate.integer(queries=self.queries, agents=self.agents, votes=self.votes,
                     max_weight=self.max_weight, low=1, high=2**30)
    validate.integer(
        classes=self.classes, low=2 if self.attributes is None else 1, high=2**30)
    validate.fields(self)
    validate.one_of(NOISES, noise=self.noise)
    self.check_honest(self.agents)
    if self.attributes is not None:
      validate.integer(attributes=self.attributes, low=1, high=self.classes)
      if self.votes != 1:
        raise ValueError(f'votes must be 1 where attributes are, found {self.votes}')
    self.bits  # Raises when the modulus would be too large.

  @property
  def has_shares(self) -> bool:
    """Whether agents add the noise, and some of it may be missing."""
    return self.noise != 'gaussian_central'

  @property
  def is_integer(self) -> bool:
    """Whether counts and noise are integers, summed modulo 2^bits."""
    return self.noise == 'skellam'

  @property
  def noise_variance(self) -> float:
    """Variance per label that the guarantee rests on, counts squared."""
    return (self.votes * self.noise_stddev)**2

  @property
  def share_variance(self) -> float:
    """Variance of one agent's share of the noise, counts squared."""
    return self.total_noise_variance * SHARE_EXCESS / self.agents

  @property
  def has_table(self) -> bool:
    """Whether shares are drawn from an exact table of their distribution."""
    return self.is_integer and alias_table.SKELLAM.fits(self.share_variance)

  @property
  def sampler_deviation(self) -> float | None:
    """Total variation distance of the noise of all counts from the ideal one.

    None where no bound is proved: for noise in floating point or too large for a table.
    """
    draws = self.agents * self.queries * self.classes
    return min(1.0, draws * alias_table.TOTAL_VARIATION) if self.has_table else None

  @property
  def sampler_in_words(self) -> str:
    """The sampler of the noise, in words."""
    if self.has_table:
      return f'exact tables; {_PHILOX}'
    kind = "TensorFlow's Poisson sampler in float64" if self.is_integer else (
        'Gaussian noise in floating point')
    return f'{kind}: no bound on its deviation is proved; {_PHILOX}'

  @property
  def most_counts(self) -> int:
    """The maximum count that one agent gives to one label."""
    return self.votes * self.max_weight

  @property
  def threshold_counts(self) -> float | None:
    """The threshold in counts; None if there is none."""
    if self.threshold is not None:
      return self.threshold * self.votes
    return self.agents / 2 if self.attributes is not None else None

  @property
  def bits(self) -> int:
    """Bits of a label's count: sums are known modulo 2^bits.

    They hold all votes, and noise that is exceeded once in 10^9 counts. Privacy does
    not depend on it.
    """
    noise = 64 + 12 * math.sqrt(self.total_noise_variance)
    if (bits := math.ceil(math.log2(self.agents * self.most_counts + noise)) + 1) > 30:
      raise ValueError(
          f'agents={self.agents}, votes={self.votes}, max_weight={self.max_weight} and '
          f'noise_stddev={self.noise_stddev:g} need sums of {bits} bits, above 30')
    return bits

  @property
  def uplink_bytes(self) -> float:
    """Bytes that one agent sends for all queries: `bits` a count, or 4 bytes."""
    return self.queries * self.classes * (self.bits if self.is_integer else 32) / 8
