"""Settings of questions to the accountant."""

import dataclasses
import functools
import os
from typing import Any

from aggregators import params as params_lib
from tff_pipelines.accounting.guarantees import answers
from tff_pipelines.accounting.events import base
from tff_pipelines.accounting.guarantees import mechanisms
from tff_pipelines.accounting.sampling import schemes
from tff_pipelines.accounting.events import voting
from tff_pipelines.common import files
from tff_pipelines.experiment import settings
from tff_pipelines.experiment.settings import setting

DATA_DEPENDENT = 'data_dependent'
RELEASE = ('release_order', 'release_smoothness', 'release_noise')
_WITH_MECHANISM = {'query', 'mechanism', 'format', 'plot', 'votes', 'explain',
                   *RELEASE}
_WITH_LEDGER = {'ledger', 'delta', 'accountant', 'amplification', 'format', 'colluders',
                'clients_per_person', 'explain'}


@functools.lru_cache(maxsize=None)
def _defaults() -> dict[str, Any]:
  kinds = (answers.Query, *dict.fromkeys(
      family.kind for family in mechanisms.MECHANISMS.values()))
  return {field.name: field.default for kind in kinds
          for field in dataclasses.fields(kind)}


def _of(name: str, help: str, **rest: Any) -> Any:  # pylint: disable=redefined-builtin
  """A setting with the default of the accountant's field of this name."""
  return setting(_defaults()[name], help, **rest)


_sum = functools.partial(_of, group='sums')
_vote = functools.partial(_of, group='votes and local answers')
_subset = functools.partial(_of, group='random subsets')
_data_dependent = settings.group('votes and local answers', query=(DATA_DEPENDENT,))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AccountSettings(settings.Settings):
  """A question: about a mechanism, votes or a ledger, or for figures alone."""

  query: str = setting(
      _defaults()['kind'], 'What to find: epsilon, delta, noise_multiplier, rounds, '
      'bits (the fewest that keep --epsilon or, without --noise_multiplier, that need '
      'within 1% of the central Gaussian\'s noise), table (a row for several bits, '
      'or numbers of rounds) or data_dependent (epsilon on --votes; private).',
      group='query', choices=(*answers.KINDS, DATA_DEPENDENT), essential=True)
  mechanism: str | None = setting(
      None, 'Release to account for: ' + ', '.join(mechanisms.MECHANISMS) + '.',
      group='query', choices=tuple(mechanisms.MECHANISMS), essential=True)
  ledger: tuple[str, ...] | None = setting(
      None, 'Recompute epsilon from this ledger, or from several (by commas), of runs '
      'on the same clients.', group='query', essential=True)
  epsilon: float | None = _of(
      'epsilon', 'Target; for piecewise, duchi and laplace the parameter of one query.',
      group='query', above=0, essential=True)
  delta: float | None = _of(
      'delta', 'Delta.',
      group='query', low=0, below=1, essential=True,
      otherwise='the ledger\'s, or 1/N^1.1')
  accountant: str = _of(
      'accountant', 'auto: privacy loss distributions (pld) where the worst case is '
      'known, else Renyi divergences (rdp).', group='query', choices=base.ACCOUNTANTS)
  amplification: str = _of(
      'amplification', 'Bound on sampling; generic is the published one.',
      group='query', choices=base.AMPLIFICATIONS)
  colluders: int = _of(
      'colluders', 'Number of participants who pool what they know, for epsilon '
      'against participants, who know their own shares of the noise.', group='query',
      low=1, unit='clients')
  clients_per_person: int = _of(
      'clients_per_person', 'Clients that one person may own: epsilon of such a person '
      'as well.', group='query', low=1, unit='clients')
  allow_degenerate: bool = _of(
      'allow_degenerate', 'Accept a grid too coarse to be useful, with a warning.',
      group='query')

  noise_multiplier: float | None = _sum(
      'noise_multiplier', 'Noise standard deviation over the clip, or of a count in '
      'clients.', low=0, essential=True)
  rounds: int = _sum('rounds', 'Number of rounds.', low=1, essential=True)
  cohort_size: float | None = _sum(
      'cohort_size', 'Expected number of clients in a round.', above=0, unit='clients',
      essential=True)
  population: int | None = _sum(
      'population', 'Number of clients.', low=1, essential=True)
  sampling: str = _sum(
      'sampling', f'Clients of a round. {schemes.IN_WORDS}.', choices=schemes.SAMPLINGS,
      essential=True)
  fixed_adjacency: str = _sum(
      'fixed_adjacency', 'Adjacency with --sampling=fixed: one client is replaced by '
      'another, or its contribution by zero.', choices=schemes.FIXED_ADJACENCIES)
  max_participations: int | None = _sum(
      'max_participations', 'Maximum number of rounds that select one client, with '
      '--sampling=poisson.', low=1, otherwise='no limit')
  min_cohort_size: int | None = _sum(
      'min_cohort_size', 'Minimum number of clients in a round, with '
      '--sampling=poisson: smaller cohorts are drawn again before any client is told.',
      low=1, unit='clients', otherwise='a cohort may be of one')
  clip: float | None = _sum(
      'clip', 'L2 clip of a client\'s update.', above=0, unit='model units',
      essential=True)
  bits: int | None = _sum(
      'bits', 'Bits of a coordinate of the sum.', low=2, high=30, essential=True)
  dimension: int | None = _sum(
      'dimension', 'Coordinates of an update, unpadded.', low=1, essential=True)
  scale: float | None = _sum(
      'scale', 'Grid units per model unit, fixed instead of derived from --bits.',
      above=0)
  rotation: str = _sum(
      'rotation', 'Rotation of an update before it is rounded; it decides the padding.',
      choices=params_lib.ROTATIONS)
  beta: float = _sum(
      'beta', 'Bias of the conditional rounding; the default is exp(-1/2).', low=0,
      below=1)
  k_stddevs: float = _sum(
      'k_stddevs', 'Standard deviations of a coordinate of the sum that fit into half '
      'the modulus.', above=0)
  adaptive_clipping: bool = _sum(
      'adaptive_clipping', 'Each round also releases the noisy count of clients at '
      'most the clip.')
  clip_count_stddev: float | None = _sum(
      'clip_count_stddev', 'Noise of that count of an adaptive clip.', above=0,
      unit='clients', otherwise='a twentieth of --cohort_size')
  min_honest_fraction: float = _sum(
      'min_honest_fraction', 'Fraction of the selected clients whose noise the '
      'guarantee counts on.', above=0, high=1)
  assumed_colluders: int = _sum(
      'assumed_colluders', 'Clients of a round that are assumed to tell the server '
      'their noise.', low=0, unit='clients')
  dropout_rate: float = _sum(
      'dropout_rate', 'Upper bound on the probability that a selected client drops '
      'out, independently of other clients and rounds. What suppressed rounds reveal '
      'under Poisson sampling depends on it.', low=0, below=1)
  surviving_fraction: float = _sum(
      'surviving_fraction', 'Fraction of the planned noise that is there when nothing '
      'tops it up.', low=0, high=1)

  queries: int = _vote(
      'queries', 'Number of votes, or of a client\'s locally private answers.', low=1)
  noise_stddev: float | None = _vote(
      'noise_stddev', 'Noise of a vote, where an agent\'s votes sum to 1.', above=0)
  level: str = _vote(
      'level', 'The unit that a vote protects: an agent with all its data, or one '
      'record.', choices=voting.LEVELS)
  bound: str = _vote(
      'bound', 'Sensitivity and conversion of votes; paper is the published one.',
      choices=voting.BOUNDS)
  noise: str | None = _vote(
      'noise', 'Noise of votes.', choices=voting.NOISES,
      otherwise='skellam; gaussian with --bound=paper')
  neighbours: int | None = _vote('neighbours', 'Votes of an agent in knn_vote.', low=1)
  votes: str | None = _data_dependent(
      None, 'CSV or .npz file of the vote counts: a line for each query, a column for '
      'each label. What is computed from them is private.')
  release_order: float | None = _data_dependent(
      None, 'Release epsilon on the votes with noise (smooth sensitivity), at this '
      'Renyi order, below 1 / (2 --release_smoothness). For ae_vote with '
      '--level=instance and --noise=gaussian.', above=1)
  release_smoothness: float | None = _data_dependent(
      None, 'Smoothness beta of that release.', above=0)
  release_noise: float | None = _data_dependent(
      None, 'Noise standard deviation of that release over the smooth sensitivity.',
      above=0)
  records: int | None = _subset('records', 'Records of a party in nfdp.', low=1)
  subset_size: int | None = _subset(
      'subset_size', 'Records that a party samples in nfdp.', low=1)
  replacement: bool = _subset('replacement', 'Let nfdp sample with replacement.')

  format: str = setting(
      'text', 'Format of the answer.', group='run', choices=('text', 'json', 'csv'),
      essential=True)
  explain: bool = setting(
      False, 'Show the steps to each number.', group='run', essential=True)
  plot: str | None = setting(
      None, 'PNG file for figures that compare mechanisms.',
      group='run', essential=True)

  def check(self) -> None:
    super().check()
    if not (self.mechanism or self.ledger or self.plot):
      raise ValueError('mechanism must be given (or ledger or plot)')
    if self.query == DATA_DEPENDENT and self.mechanism is not None and (
        self._family.kind is not mechanisms.VoteMechanism):
      raise ValueError('query=data_dependent needs mechanism=ae_vote or knn_vote, '
                       f'found mechanism={self.mechanism}')
    if self.explain and (self.format == 'csv' or self.query in (
        'table', DATA_DEPENDENT)):
      raise ValueError(
          'explain needs query=epsilon, delta, noise_multiplier, rounds or bits, and '
          f'format=text or json, found query={self.query}, format={self.format}')
    if self.plot is not None and not self.plot.lower().endswith('.png'):
      raise ValueError(f'plot must end in .png, found {self.plot!r}')

  def check_paths(self) -> None:
    for path in self.ledger or ():
      if not os.path.isfile(path):
        raise ValueError(f'ledger must be the ledger.jsonl of a run, found {path!r}, '
                         'which is no file')
    if self.votes is not None and not os.path.isfile(self.votes):
      raise ValueError(f'votes must be a file, found {self.votes!r}')
    if self.plot is not None:
      files.check_writable(self.plot, 'plot')

  def unused(self):
    yield from super().unused()
    if self.ledger is not None:
      used, why = _WITH_LEDGER, 'ledger'
    elif self.mechanism is not None:
      used = self._family.uses | _WITH_MECHANISM
      why = f'mechanism={self.mechanism}'
    elif self.plot is not None:
      used, why = {'plot'}, 'plot alone'
    else:
      return  # Nothing is asked.
    yield from ((name, why) for name in settings.declared(type(self))
                if name not in used)
    if self.mechanism is not None:
      yield from ((name, f'query={self.query}, which finds it')
                  for name in self._found())

  @property
  def _family(self) -> mechanisms.Family:
    return mechanisms.MECHANISMS[self.mechanism]

  def _found(self) -> list[str | None]:
    """The settings that the query finds or varies itself."""
    family = self._family
    if self.query == 'table':
      varied = ['noise_multiplier'] if self.epsilon is not None else []
      if family.params and self.scale is None:
        varied += ['bits', 'allow_degenerate']
      return varied
    if self.query == DATA_DEPENDENT:
      return ['epsilon', 'queries']
    # For local answers epsilon is a parameter.
    epsilon = None if family.kind is mechanisms.LocalMechanism else 'epsilon'
    return [{'epsilon': epsilon, 'noise_multiplier': family.knob,
             'rounds': family.counter}.get(self.query, self.query)]

  def _given(self, kind: type) -> dict[str, Any]:
    """Those fields of a class that the mechanism uses."""
    return {field.name: getattr(self, field.name) for field in dataclasses.fields(kind)
            if field.name in self._family.uses}

  @property
  def question(self) -> answers.Query:
    """The question about the mechanism."""
    return answers.Query(kind=self.query, **self._given(answers.Query))

  @property
  def about(self) -> mechanisms.Mechanism:
    """The mechanism that the question is about."""
    return mechanisms.build(self.mechanism, **self._given(self._family.kind))
