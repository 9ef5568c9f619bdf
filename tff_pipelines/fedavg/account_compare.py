"""Compares Poisson sampling with turns: epsilon at the same noise in the models.

Correlated noise buys what amplification by sampling buys, and neither has all of both:
which is less depends on the observer. All rows have the error of Poisson sampling at
the given epsilon, or noise. See docs/correlated_noise.md.
"""

from collections.abc import Sequence
import dataclasses
import math
import textwrap
from typing import Any

from scipy import optimize

from tff_pipelines.accounting.guarantees import (
    accountant, answers, calibration, mechanisms)
from tff_pipelines.accounting.guarantees.guarantee import Caveat
from tff_pipelines.accounting.sampling import cohorts
from tff_pipelines.common import decimals
from tff_pipelines.fedavg import account_settings, columns

_WIDTH = 80
# Probabilities of a client in its turn: the smaller, the more amplification and the
# fewer bands.
_TURN_RATES = (1.0, 0.5, 0.25, 0.125)
_OBSERVERS = {'epsilon': 'observers of the models', 'epsilon_server': 'the server',
              'epsilon_participant': 'a participant'}
_CLOSED = Caveat(
    'sums of the latest rounds stay closed',
    'epsilon with bands holds against all who do not hold the closed sums of the '
    'latest rounds, which are opened in weighted rows alone')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row(answers.Answer):
  """The answer about one kind of sampling; None where not applicable.

  Attributes:
    max_participations: Limit of Poisson sampling.
    turn_rate: Probability that a client is sampled in its turn.
    bands: Number of weights of the column.
    gain: Error of independent noise over that of the column, at the same epsilon.
    error: Standard deviation of the noise in a coordinate of the models over the clip:
      root mean square over the models after each round, of sums over the cohort and a
      learning rate of 1.
  """

  max_participations: int | None = None
  turn_rate: float | None = None
  bands: int | None = None
  gain: float | None = None
  error: float | None = None

  def to_json(self) -> dict[str, Any]:
    answer = super().to_json()
    return {'sampling': answer['sampling'], **{
        name: getattr(self, name) for name in (
            'max_participations', 'turn_rate', 'bands', 'gain', 'error')}, **answer}

  @property
  def label(self) -> str:
    """The sampling in at most 22 characters."""
    if self.max_participations is not None:
      return f'poisson, at most {self.max_participations}'
    return f'turns, rate {self.turn_rate:g}' if (
        self.turn_rate or 1) < 1 else self.terms.sampling


def compare(settings: account_settings.AccountSettings) -> list[Row]:
  """Rows of the same error: Poisson sampling, without and with a limit, and turns.

  Raises ValueError if not even Poisson sampling is possible.
  """
  about, query = settings.about, settings.question
  if query.delta is None:
    query = dataclasses.replace(query, delta=accountant.default_delta(about.population))
  work = columns.Workload(rates=(1.0,) * about.rounds, momentum=settings.server_momentum)
  poisson = about.replace(sampling='poisson')
  if about.noise_multiplier is None:
    poisson = poisson.replace(noise_multiplier=answers.answer(
        dataclasses.replace(query, kind='noise_multiplier'), poisson).noise_multiplier)
  of_poisson = model_error(poisson, work)
  limit = cohorts.suggested_participations(
      about.cohort_size / about.population, about.rounds)
  return [
      _answered(query, poisson, work), *([] if limit is None else [
          _answered(query, poisson.replace(max_participations=limit), work)]),
      *(_of_turns(query, poisson.replace(sampling='turns', turn_rate=rate), work,
                  of_poisson, most) for rate, most in (
                      (1.0, 1), *((rate, columns.MOST_AUTO) for rate in _TURN_RATES)))]


def model_error(mechanism: mechanisms.SumMechanism, work: columns.Workload) -> float:
  """The `error` of a row; rounding counts with its bound, half a unit a client."""
  squares = (mechanism.noise_multiplier * columns.error(work, mechanism.column))**2
  if mechanism.family.params:
    params = mechanism.params()
    squares = squares / params.counted_on + params.cohort_size / 4 * (
        columns.error(work, (1,)) / params.clip_grid)**2
  return math.sqrt(squares)


def _of_turns(query: answers.Query, mechanism: mechanisms.SumMechanism,
              work: columns.Workload, error: float, most: int) -> Row:
  """The row of turns with up to `most` bands; if there is none, the reason."""
  try:
    allowed, rate = mechanism.sampling_scheme().most_bands, mechanism.turn_rate
    if rate == allowed == 1 < most:
      raise ValueError('turns are next to each other: bands need a population of at '
                       f'least {2 * mechanism.cohort_size:g}')
    mechanism = mechanism.replace(column=columns.auto(work, min(allowed, most)))
    def excess(noise):
      return model_error(mechanism.replace(noise_multiplier=noise), work) - error

    # Noise alone has at least this error.
    high = error / columns.error(work, mechanism.column) * (1 + 1e-9)
    if excess(1e-3 * high) > 0:
      raise ValueError('rounding alone has a larger error: more bits are needed')
    mechanism = mechanism.replace(noise_multiplier=optimize.brentq(
        excess, 1e-3 * high, high, rtol=1e-12))
    if mechanism.family.params and not query.allow_degenerate:
      # Before the numbers of a row that is refused: they take long.
      calibration.refuse_degenerate(mechanism.params())
    return _answered(query, mechanism, work)
  except ValueError as reason:
    return Row(terms=answers.terms(None, 'turns'), turn_rate=mechanism.turn_rate,
               caveats=(Caveat('impossible setting', str(reason)),))


def _answered(query: answers.Query, mechanism: mechanisms.SumMechanism,
              work: columns.Workload) -> Row:
  """The row of a mechanism with its noise."""
  found = answers.answer(query, mechanism)
  closed = (_CLOSED,) * (
      mechanism.has_bands and 'min_honest_fraction' in mechanism.family.uses)
  return Row(**{
      **vars(found), 'caveats': (*found.caveats, *closed),
      'max_participations': mechanism.max_participations,
      'turn_rate': mechanism.turn_rate if mechanism.sampling == 'turns' else None,
      'bands': len(mechanism.column), 'gain': columns.gain(work, mechanism.column),
      'error': model_error(mechanism, work)})


def as_table(rows: Sequence[Row]) -> str:
  """A line for each row, in 80 columns; then the smallest number of each observer."""
  lines = [f'{"sampling":<22}{"bands":>5}{"noise":>11}{"gain":>7}{"epsilon":>11}'
           f'{"server":>11}{"participant":>13}']
  found = [(row, row.to_json()) for row in rows]
  possible = [(row, values) for row, values in found if row.bands is not None]
  for row, values in found:
    if row.bands is None:
      lines += textwrap.wrap(f'{row.label:<22} {row.caveats[0]}', _WIDTH,
                             subsequent_indent=' ' * 23)
      continue
    noise, *epsilons = ('-' if values[key] is None else decimals.rounded_up(
        values[key], 6) for key in ('noise_multiplier', *_OBSERVERS))
    lines.append(f'{row.label:<22}{row.bands:>5}{noise:>11}{row.gain:>7.4g}' + ''.join(
        f'{cell:>{width}}' for cell, width in zip(epsilons, (11, 11, 13))))
  lines += ['', f'equal error: {rows[0].error:.6g}, delta: '
            f'{decimals.rounded_up(rows[0].delta, 6)}']
  for key, observer in _OBSERVERS.items():
    stated = [(values[key], row) for row, values in possible if values[key] is not None]
    if stated:
      epsilon, row = min(stated, key=lambda one: one[0])
      lines.append(f'smallest against {observer}: {decimals.rounded_up(epsilon, 6)}, '
                   f'{row.label}, bands {row.bands}')
  names = dict.fromkeys(note.name for row, _ in possible for note in row.caveats)
  return '\n'.join(lines + textwrap.wrap(f'caveats: {"; ".join(names)}', _WIDTH) * bool(
      names))
