"""Settings of questions to the accountant."""

import dataclasses
import os
from typing import Any

from tff_pipelines.accounting.guarantees import answers, mechanisms
from tff_pipelines.common import declarations
from tff_pipelines.common.declarations import setting
from tff_pipelines.experiment import settings
from tff_pipelines.fedavg import settings as training

DATA_DEPENDENT = 'data_dependent'
_WITH_MECHANISM = {'query', 'mechanism', 'format', 'votes', 'explain'}
# With --compare rows have values of their own, or numbers alone.
_NOT_COMPARED = ('query', 'sampling', 'adaptive_clipping', 'explain')
OF_LEDGERS = ('delta', 'accountant', 'amplification', 'colluders', 'clients_per_person')
_data_dependent = declarations.group('votes and local answers', query=(DATA_DEPENDENT,))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _VotesFile:
  """Settings of epsilon on the votes that were cast."""

  votes: str | None = _data_dependent(
      None, 'CSV or .npz file of the vote counts: a line for each query, a column for '
      'each label. What is computed from them is private.')


@dataclasses.dataclass(frozen=True, kw_only=True)
@declarations.fields_of(answers.Query, mechanisms.SumMechanism,
                        mechanisms.VoteMechanism, mechanisms.NfdpMechanism,
                        _VotesFile, leave=('kind',))
class AccountSettings(settings.Settings):
  """A question: about a mechanism, votes or a ledger, or for figures alone."""

  query: str = declarations.like(
      answers.Query, 'kind', choices=(*answers.KINDS, DATA_DEPENDENT),
      help='What to find; bits are the fewest that keep --epsilon or, without '
      '--noise_multiplier, that need within 1% of the central Gaussian\'s noise; '
      'data_dependent is epsilon on --votes, itself private.')
  mechanism: str | None = setting(
      None, 'Release to account for.', group='query',
      choices=tuple(mechanisms.MECHANISMS), essential=True)
  compare: bool = setting(
      False, 'Compare Poisson sampling with turns, at the noise in the models that the '
      'first needs.', group='query', essential=True)
  server_momentum: float = training.like(
      'server_momentum', 0.9, group='query', when={'compare': (True,)}, by_task=False)
  ledger: tuple[str, ...] | None = setting(
      None, 'Recompute epsilon from this ledger, or from several (by commas), of runs '
      'on the same clients.', group='query', essential=True)
  format: str = setting(
      'text', 'Format of the answer.', group='run', choices=('text', 'json', 'csv'),
      essential=True)
  explain: bool = setting(
      False, 'Show the steps to each number.', group='run', essential=True)

  def check(self) -> None:
    super().check()
    if not (self.mechanism or self.ledger):
      raise ValueError('mechanism must be given (or ledger)')
    if self.query == DATA_DEPENDENT and self.mechanism is not None and (
        self._family.kind is not mechanisms.VoteMechanism):
      raise ValueError('query=data_dependent needs mechanism=ae_vote or knn_vote, '
                       f'found {self.mechanism}')
    if self.compare:
      for name in ('population', 'cohort_size'):
        if getattr(self, name) is None:
          raise ValueError(f'{name} must be given for compare')
      if self.epsilon is self.noise_multiplier is None:
        raise ValueError('epsilon (or noise_multiplier) must be given for compare')
      if None not in (self.epsilon, self.noise_multiplier):
        raise ValueError('epsilon and noise_multiplier must not both be given, found '
                         f'{self.epsilon!r} and {self.noise_multiplier!r}')
    if self.explain and (self.format == 'csv' or self.query in (
        'table', DATA_DEPENDENT)):
      raise ValueError('explain needs query and format of other values, found '
                       f'query={self.query}, format={self.format}')
    if self.explain and self.bound == 'paper':
      raise ValueError('explain needs bound=tight, found bound=paper')

  def check_paths(self) -> None:
    for path in self.ledger or ():
      if not os.path.isfile(path):
        raise ValueError(f'ledger must be the ledger.jsonl of a run, found {path!r}')
    if self.votes is not None and not os.path.isfile(self.votes):
      raise ValueError(f'votes must be a file, found {self.votes!r}')

  def unused(self):
    yield from super().unused()
    if self.ledger is not None:
      used, why = {'ledger', 'format', 'explain', *OF_LEDGERS}, 'ledger'
    elif self.mechanism is None:
      return  # Nothing is asked.
    else:
      used = self._family.uses | _WITH_MECHANISM
      if 'column' in used:
        used |= {'compare', 'server_momentum'}
      why = f'mechanism={self.mechanism}'
    yield from ((name, why) for name in declarations.declared(type(self))
                if name not in used)
    if self.mechanism is not None and self.compare:
      yield from ((name, 'compare') for name in _NOT_COMPARED)
    elif self.mechanism is not None:
      yield from ((name, f'query={self.query}, which finds it') for name in self._found())

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
