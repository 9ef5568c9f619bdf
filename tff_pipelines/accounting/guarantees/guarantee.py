"""All numbers of a guarantee and their terms, in JSON and in words.

Numbers are rounded up, so that no digit promises more than is guaranteed.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import math
from typing import Any

from tff_pipelines.accounting.events import base, preliminary
from tff_pipelines.accounting.guarantees import bounds
from tff_pipelines.accounting.guarantees.bounds import Bound
from tff_pipelines.common import caveats, decimals, files

Caveat = caveats.Caveat

SEEDED = Caveat(
    'seeded: not private', 'seeded run: no privacy guarantee (noise is predictable)')
SIMULATED = Caveat('secure aggregation simulated', 'secure aggregation is simulated: '
                   'the sums that a protocol would open are computed in the clear')
UNAUDITED = Caveat('two servers, not audited', 'epsilon holds while one of the two servers '
                   'is honest, and none holds against both together; others have not '
                   'audited protocol and code')
ANY_SILO = 'any one silo but that which holds it, even if it runs a server'
# Ways in which secure aggregation is computed, and their caveat.
BY_SIMULATION, TWO_SERVERS = 'simulated', 'two servers, not audited'
AGGREGATED = {BY_SIMULATION: SIMULATED, TWO_SERVERS: UNAUDITED}
SUPPRESSED = Caveat(
    'suppressed rounds',
    'rounds were suppressed for outsiders, but the server saw their sums with less '
    'noise than was planned: no epsilon holds against it')
CLOSED = Caveat('closed sums simulated', 'epsilon holds against all who do not hold the '
                'closed sums of the latest rounds, which are opened in weighted rows '
                'alone; here the operator holds them, as the protocol is simulated, in '
                'place of two servers that share them, or of silos that keep their own')
APPROXIMATE = Caveat(
    'approximate amplification',
    'amplification by Poisson sampling holds approximately only: the distribution of '
    'the sum of clients\' shares of the noise varies with the cohort')
UNBOUNDED = Caveat(
    'participants: a cohort may be of one',
    'against a participant epsilon is unbounded: a cohort may have no other clients, '
    'or all others collude (or all silos); state the population or a minimum '
    '(min_cohort_size), or sample cohorts of a fixed size')

# Certificates in words: a participant's number has one for each size of a cohort.
_SHOWN = 3
# The assumption of the numbers against those who know the cohorts.
DRAWN = ('cohorts drawn by the rule, independently of what was opened; restarts are '
         'charged')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Terms:
  """The terms of a guarantee, in words.

  Attributes:
    privacy_unit: Unit that is added, removed or changed between neighbouring inputs.
    observers, against: Observers against whom epsilon holds; the same in a few words.
    observers_server, against_server: The same of the number for the server; None if
      none is stated, because the server is trusted or sees what all see.
    observers_participant: Participants against whom a number of their own holds; None
      if none is stated.
    everyone: Observers and server in a few words, where cohorts are no secret and what
      holds against the server holds against all; None where each has its own number.
    sampling: Sampling of the participants of a round; None if it is not known.
    trust_model: Who is trusted with what; None if it is not known.
    source: Source of the bounds, with theorems' numbers.
    sampler: Sampler of the noise; None if there is no noise.
    adjacency: Neighbouring inputs, where those of the event are too general, or None.
    secure_aggregation: How it is computed, a key of AGGREGATED; None without it.
  """

  privacy_unit: str
  observers: str
  against: str
  observers_server: str | None = None
  against_server: str = 'the server'
  observers_participant: str | None = None
  everyone: str | None = None
  sampling: str | None = 'none'
  trust_model: str | None
  source: str | None
  sampler: str | None = None
  adjacency: str | None = None
  secure_aggregation: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
  """All numbers of a guarantee and their terms.

  Attributes:
    terms: In words.
    delta: Delta of all numbers; None without a guarantee.
    adjacency: A key of `base.ADJACENCY_IN_WORDS`; None without a guarantee.
    outsiders: Bound against the observers; None if nothing is guaranteed.
    server: Bound against the server, where cohorts are drawn by the rule; None if no
      number holds, or none is stated.
    server_any_cohorts: The same whatever cohorts the server chooses.
    participant: Bound against a participant, in cohorts drawn by the rule; `inf` if no
      finite one is proved, None if none is stated.
    least_cohort: Minimum cohort that it holds for; None if one may be of one.
    person, person_server: Bounds against the observers and against the server for a
      person who owns `clients_per_person` clients; None if none is stated.
    seeded: Whether the numbers would hold only without the seed.
    further: Further numbers that belong to these, by their key in the summary.
    caveats: Caveats of the numbers.
  """

  terms: Terms
  delta: float | None = None
  adjacency: str | None = None
  outsiders: Bound | None = None
  server: Bound | None = None
  server_any_cohorts: Bound | None = None
  participant: Bound | None = None
  least_cohort: float | None = None
  person: Bound | None = None
  person_server: Bound | None = None
  clients_per_person: int = 1
  seeded: bool = False
  further: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  caveats: tuple[Caveat, ...] = ()

  @classmethod
  def from_json(cls, summary: Mapping[str, Any]) -> 'Guarantee':
    """The numbers of a summary or a statement and their terms.

    A number that is null there has no bound here.
    """
    epsilons = {observer: summary.get(key) for observer, key in bounds.KEYS.items()}
    unseeded = summary.get('epsilon_if_unseeded')
    if unseeded is not None:
      epsilons[bounds.OUTSIDERS] = unseeded
    terms = {field.name: summary.get(field.name) for field in dataclasses.fields(Terms)}
    return cls(
        terms=Terms(**{**terms, 'adjacency': summary['adjacency_in_words']}),
        delta=summary['delta'], adjacency=summary['adjacency'],
        least_cohort=summary['least_cohort'], seeded=unseeded is not None,
        clients_per_person=summary['clients_per_person'] or 1, **{
            observer: Bound(epsilon=value) for observer, value in epsilons.items()
            if value is not None})

  @property
  def by_observer(self) -> dict[str, Bound]:
    """Observer -> bound, where there is one; none for a seeded run."""
    return {observer: bound for observer in bounds.KEYS
            if (bound := getattr(self, observer)) is not None and not self.seeded}

  # Epsilon against the observers and against the server; None where none is finite.
  epsilon = property(lambda self: self.numbers()['epsilon'])
  epsilon_server = property(lambda self: self.numbers()['epsilon_server'])

  def numbers(self) -> dict[str, float | None]:
    """All epsilons by their keys in summaries; None where none is finite."""
    return {key: (bound := self.by_observer.get(observer)) and files.finite(bound.epsilon)
            for observer, key in bounds.KEYS.items()}

  def stated(self) -> Iterator[tuple[str, Bound | None, str]]:
    """Yields (observer, bound, against whom) of every number that is stated.

    The bound is None where no finite number holds against them.
    """
    for observer, against in ((bounds.OUTSIDERS, self.terms.observers),
                              (bounds.SERVER, self.terms.observers_server),
                              (bounds.PARTICIPANT, self.terms.observers_participant)):
      if against is not None:
        yield observer, self.by_observer.get(observer), against

  @property
  def adjacency_in_words(self) -> str | None:
    """Neighbouring inputs, in a sentence."""
    return None if self.adjacency is None else (
        self.terms.adjacency or base.ADJACENCY_IN_WORDS[self.adjacency])

  @property
  def neighbours(self) -> str | None:
    """The same, short enough for one line of the terminal."""
    if self.adjacency == base.ZERO_OUT and self.terms.adjacency is None:
      return 'one client\'s contribution is replaced by zero; its noise stays'
    return self.adjacency_in_words

  def to_json(self) -> dict[str, Any]:
    """The fields of a summary that are about privacy."""
    terms, nothing = self.terms, Bound(epsilon=math.inf, consumed_delta=None)
    mine = self.by_observer
    outsiders, server = (mine.get(observer, nothing) for observer in (
        bounds.OUTSIDERS, bounds.SERVER))
    return {
        **self.numbers(),
        'clients_per_person': self.clients_per_person if self.person else None,
        'epsilon_if_unseeded': (
            files.finite((self.outsiders or nothing).epsilon) if self.seeded else None),
        'delta': self.delta, 'consumed_delta': outsiders.consumed_delta,
        'consumed_delta_server': server.consumed_delta, 'adjacency': self.adjacency,
        'adjacency_in_words': self.adjacency_in_words,
        'observers': self.outsiders and terms.observers,
        'observers_server': self.outsiders and terms.observers_server,
        'observers_participant': self.participant and terms.observers_participant,
        'least_cohort': self.participant and self.least_cohort,
        **{name: getattr(terms, name) for name in (
            'privacy_unit', 'sampling', 'trust_model', 'source', 'sampler')},
        'accountant': outsiders.accountant, 'order': files.finite(outsiders.order),
        'amplification': outsiders.amplification,
        'skellam_as_gaussian': list(self.certificates) or None,
        'secure_aggregation': terms.secure_aggregation}

  @property
  def certificates(self) -> tuple[dict[str, float], ...]:
    """The distinct certificates of its numbers."""
    return tuple({
        tuple(one.items()): one
        for bound in (self.outsiders, self.server, self.server_any_cohorts,
                      self.participant) if bound
        for one in bound.certificates}.values())

  @property
  def _of_silos(self) -> bool:
    """Whether participants are silos, who draw records."""
    return self.terms.sampling == 'records'

  @property
  def _includes_silos(self) -> bool:
    """Whether all observers of `Terms.everyone` are the other silos, too."""
    return (self.terms.everyone or '').startswith(ANY_SILO)

  @property
  def cohorts(self) -> str:
    """The cohorts for which the number against a participant holds."""
    if self.participant is None or not self.participant.is_finite:
      return ('no other honest silo may be left' if self._of_silos else
              'a cohort may be of one')
    if self._of_silos:
      return f'one of {self.least_cohort:g}'
    drawn = '' if self.terms.sampling == 'none' else ', drawn by the rule'
    return ('in cohorts drawn by the rule' if self.least_cohort is None else
            f'in cohorts of at least {self.least_cohort:g}{drawn}')

  @property
  def of_everyone(self) -> Bound | None:
    """Bound against all observers of `Terms.everyone`; None if there is none."""
    if self.terms.everyone is None or self.seeded or not self.server:
      return None
    found = [self.outsiders, self.server, self.server_any_cohorts, *[
        self.participant] * self._includes_silos]
    return max(filter(None, found), key=lambda bound: bound.epsilon)

  @property
  def chosen(self) -> Bound | None:
    """Bound whatever cohorts the server chooses, where it is not the server's."""
    bound = self.server_any_cohorts
    return bound if bound and self.server and bound.epsilon != self.server.epsilon else (
        None)

  def lines(self) -> list[str]:
    """All epsilons with delta and observers, short, for the terminal."""
    if self.outsiders is None:
      return ['none: nothing is guaranteed']
    number = (f'{decimals.epsilon(self.outsiders.epsilon)} at delta '
              f'{decimals.rounded_up(self.delta)}')
    if self.seeded:
      return [f'none, the run is seeded (without the seed: {number})']
    lines, server = [f'{number} against {self.terms.against}'], self.terms.against_server
    if (bound := self.of_everyone) is not None:
      lines = [f'{in_words(bound)} at delta {decimals.rounded_up(self.delta)} against '
               f'{self.terms.everyone}']
    elif self.server is not None:
      number, chosen = decimals.epsilon(self.server.epsilon), ''
      if self.chosen is not None and server == 'the server':
        chosen = f' ({in_words(self.chosen)} whatever cohorts it chooses)'
      elif self.chosen is not None:
        number += f' ({in_words(self.chosen)} in any cohorts)'
      lines.append(f'{number} against {server}{chosen}')
    elif SUPPRESSED in self.caveats:
      lines.append(f'none against {server}: rounds suppressed')
    if self.participant is not None and not (self._includes_silos and self.of_everyone):
      who = 'another silo' if self._of_silos else 'a participant'
      number = (f'unbounded against {who}:' if not self.participant.is_finite else
                f'{decimals.epsilon(self.participant.epsilon)} against {who},')
      lines.append(f'{number} {self.cohorts}')
    if self.person is not None:
      number = in_words(self.person)
      if self.person_server is not None:
        number += f', {in_words(self.person_server)} against {server}'
      lines.append(f'of a person with {self.clients_per_person} clients: {number}')
    return lines

  def details(self) -> list[str]:
    """Everything, in sentences, for the full report."""
    terms, outsiders = self.terms, self.outsiders
    if outsiders is None:
      return ['epsilon: none, nothing is guaranteed', f'trust model: {terms.trust_model}']

    def number(bound: Bound, against: str | None, shown: str | None = None) -> str:
      return (f'epsilon {shown or decimals.epsilon(bound.epsilon)} at delta '
              f'{decimals.rounded_up(self.delta)} against {against}')

    how = ', '.join(filter(None, (
        outsiders.accountant,
        outsiders.amplification and f'{outsiders.amplification} amplification')))
    lines = ['epsilon: none, the run is seeded; without the seed ' * self.seeded
             + f'{number(outsiders, terms.observers)} ({how})']
    if (bound := self.of_everyone) is not None:
      same = [f'{number(bound, terms.everyone, in_words(bound))} ({how})']
      lines = same + lines * (bound.epsilon > outsiders.epsilon)
    elif self.server is not None and not self.seeded:
      lines.append(number(self.server, terms.observers_server) + (
          f': {DRAWN}' if self.chosen else ''))
    if self.chosen and not self.seeded and bound is None:
      lines.append(number(self.chosen, terms.observers_server) +
                   ', whatever cohorts the server chooses')
    if (own := self.participant) is not None:
      lines.append(f'{number(own, terms.observers_participant, in_words(own))}, '
                   f'{self.cohorts}')
    lines += [
        f'of a person who owns {self.clients_per_person} clients: '
        + number(bound, observers, in_words(bound))
        for bound, observers in ((self.person, terms.observers),
                                 (self.person_server, terms.observers_server))
        if bound is not None]
    for key, value in self.further.items():
      if value is not None:
        shown = 'none' if value == math.inf else (
            decimals.rounded_up(value) if isinstance(value, float) else value)
        lines.append(f'{key.replace("_", " ")}: {shown}')
    lines += [f'adjacency {self.adjacency}: {self.adjacency_in_words}',
              f'privacy unit: {terms.privacy_unit}', f'sampling: {terms.sampling}',
              f'trust model: {terms.trust_model}', f'source: {terms.source}']
    lines += [f'Skellam noise accounted as Gaussian noise: {words}'
              for words in certificates_in_words(self.certificates)]
    if terms.sampler is not None:
      consumed = ''
      if outsiders.consumed_delta:
        at_least = 'at least ' if 'no bound' in terms.sampler else ''
        consumed = (f'; sampling error consumes {at_least}'
                    f'{decimals.rounded_up(outsiders.consumed_delta, 3)} of delta')
      lines.append(f'noise: {terms.sampler}{consumed}')
    if terms.secure_aggregation:
      lines.append(f'secure aggregation: {terms.secure_aggregation}')
    return lines

  def meaning(self) -> str:
    """The meaning of epsilon against the observers, for a reader of no paper on it."""
    epsilon, delta = self.epsilon, self.delta
    if epsilon is None:
      return 'There is no guarantee: the release may reveal any input.'
    odds = 'more than a million' if epsilon >= math.log(1e6) else (
        decimals.rounded_up(math.exp(epsilon), 3) if epsilon < 4 else
        f'{math.ceil(math.exp(epsilon)):,}')
    return ('Whatever is computed from what was released, the probability of any result '
            f'with one of two neighbouring inputs is at most {odds} times (e to the '
            f'epsilon) that with the other, plus {decimals.rounded_up(delta)}. '
            f'Neighbouring inputs: {self.adjacency_in_words}.')

  def sentences(self) -> str:
    """The same, against whom it holds, and who is trusted."""
    trust = self.terms.trust_model or 'the ledger does not say who is trusted'
    if self.epsilon is None:
      return f'{self.meaning()} Trust: {trust}.'
    numbers, server, own = self.numbers(), self.epsilon_server, ''
    who = 'silos' if self._of_silos else 'participants'
    if (participant := numbers['epsilon_participant']) is not None:
      own = (f', against {who} who subtract their own shares of the noise '
             f'{decimals.rounded_up(participant)}')
    elif self.participant is not None or UNBOUNDED in self.caveats:
      own = f', against {who} unbounded, as {self.cohorts}'
    if SUPPRESSED in self.caveats:
      third = ('That epsilon does not hold against the server, against which none is '
               f'guaranteed{own}; trust: {trust}.')
    elif self.terms.sampling == 'none' or not self.chosen and server in (
        None, self.epsilon):
      # The same number against any observer.
      third = f'A{own.removeprefix(", a")}; trust: {trust}.' if own else (
          f'Trust: {trust}.')
    else:
      # A trusted server, or who adds up a release before the rounds, sees more.
      is_server = 'noise is that of the clients' in trust and preliminary.TRUST not in trust
      third = (
          'That epsilon holds against observers who do not learn who or how many '
          'participated, and' + ', for cohorts drawn by the rule,' * bool(self.chosen)
          + f' against {"the server" if is_server else "those who know the cohorts"} it '
          f'is {decimals.rounded_up(server)}' + (
              f' ({in_words(self.chosen)} whatever cohorts the server chooses)'
              if self.chosen else '') + f'{own}; trust: {trust}.')
    return f'{self.meaning()} {third}'


def in_words(bound: Bound | None) -> str:
  """An epsilon, rounded up: none where no finite one is proved."""
  return 'none' if bound is None or bound.epsilon == math.inf else (
      decimals.epsilon(bound.epsilon))


def certificates_in_words(certificates: Sequence[Mapping[str, float]]) -> list[str]:
  """The noise that certificates replace, of the first; see `Bound.certificates`."""
  lines = ['variance {variance:.6g} as {smaller:.6g} in each of {dimension} coordinates '
           '({nodes} nodes, total variation {total_variation:.2g})'.format(
               smaller=one['variance'] - one['removed'], **one)
           for one in certificates[:_SHOWN]]
  more = len(certificates) - _SHOWN
  return lines + [f'{more} more, of cohorts of other sizes'] * (more > 0)


def detected(epsilon: float, delta: float, false_alarms: float) -> float:
  """The power of a test that tells neighbouring inputs apart, in per cent.

  An upper bound, rounded up to hundredths.

  Args:
    epsilon: Finite.
    delta: In [0, 1).
    false_alarms: Probability in (0, 1) that the test is wrong without a difference.
  """
  # By (epsilon, delta) from either neighbour; both bounds hold.
  power = min(math.exp(min(epsilon, 99.0)) * false_alarms + delta,
              1 - math.exp(-epsilon) * max(0.0, 1 - delta - false_alarms))
  return min(100.0, math.ceil(power * 1e4) / 100)
