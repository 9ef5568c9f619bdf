"""The settings of a sweep of mean estimations, calibrated, and what they cost.

Numbers only, no TensorFlow: a sweep that can't be done fails before anything
runs.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import functools
import itertools
import math
from typing import Any

from scipy import stats

from aggregators import params as params_lib
from tff_pipelines.accounting import analytic_gaussian
from tff_pipelines.accounting import base
from tff_pipelines.accounting import calibration
from tff_pipelines.accounting import caveats as caveats_lib
from tff_pipelines.accounting import events
from tff_pipelines.accounting import ledger as ledger_lib
from tff_pipelines.accounting import mechanisms
from tff_pipelines.accounting import noise_budget
from tff_pipelines.experiment import guarantee
from tff_pipelines.mean import settings as settings_lib

# Sums of integers, and what each releases.
_EVENTS = {
    'skellam': events.DistributedSkellam.from_params,
    'discrete_gaussian': events.DistributedDiscreteGaussian.from_params,
    'skellam_central': events.CentralSkellam.from_params,
}
_IDEAL = caveats_lib.Caveat(
    'ideal distributions',
    'epsilon of all releases together is that of ideal distributions: sampling error of '
    'the noise consumes nothing of delta there, as it does in the target of each')
_MORE = caveats_lib.Caveat(
    'later sweeps may add releases',
    'a later sweep may add releases of other mechanisms to this ledger, whose noise a '
    'trusted server adds or clients do')


def _release(mechanism: str, params: params_lib.DistributedSumParams | None,
             noise_multiplier: float) -> base.Event:
  """The event of one release of a mechanism."""
  if params is None:
    return events.CentralGaussian(noise_multiplier=noise_multiplier)
  return _EVENTS[mechanism](params)


def _params(settings: settings_lib.MeanSettings, mechanism: str, n: int, d: int,
            bits: int | None,
            noise_multiplier: float = 1.0) -> params_lib.DistributedSumParams | None:
  """Parameters of a sum of integers; None for the Gaussian."""
  if mechanism not in _EVENTS:
    return None
  return params_lib.DistributedSumParams(
      clip=settings.clip, noise_multiplier=noise_multiplier, bits=bits, dimension=d,
      cohort_size=n, beta=settings.beta, k_stddevs=settings.k_stddevs,
      mechanism=mechanism)


def release_of_row(settings: settings_lib.MeanSettings,
                   row: Mapping[str, Any]) -> base.Event:
  """The event of one release of a row of results, at the noise that it had."""
  mechanism, noise = row['mechanism'], row['noise_multiplier']
  return _release(mechanism, _params(
      settings, mechanism, row['n'], row['d'], row['bits'], noise), noise)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
  """One calibrated setting.

  Attributes:
    mechanism: One of MECHANISMS.
    n: Clients.
    d: Dimension.
    bits: Of a coordinate of the sum; None for the Gaussian.
    epsilon: Target.
    accountant: 'rdp' or 'analytic', the one that calibrated it.
    noise_multiplier: Standard deviation of the sum's noise over the clip.
    clip: Model units.
    params: Of the sum of integers; None for the Gaussian.
    gaussian_mse: Error per coordinate of the mean under the analytic Gaussian
      mechanism for the same epsilon and delta, model units squared.
    gaussian_rdp_mse: The same for Gaussian noise accounted by RDP.
  """

  mechanism: str
  n: int
  d: int
  bits: int | None
  epsilon: float
  accountant: str
  noise_multiplier: float
  clip: float
  params: params_lib.DistributedSumParams | None
  gaussian_mse: float
  gaussian_rdp_mse: float

  @property
  def key(self) -> tuple:
    """Identifies it among the cells of a folder."""
    return self.mechanism, self.n, self.d, self.bits, self.epsilon

  @property
  def release(self) -> base.Event:
    """The event of one release."""
    return _release(self.mechanism, self.params, self.noise_multiplier)

  @property
  def name(self) -> str:
    """For people."""
    bits = '' if self.bits is None else f' bits={self.bits}'
    return (f'{self.mechanism} n={self.n} d={self.d}{bits} '
            f'epsilon={self.epsilon:g}')

  @property
  def noise_mse(self) -> float:
    """Variance of the noise per coordinate of the mean, model units squared."""
    return _noise_mse(self.noise_multiplier, self.clip, self.n)

  def predicted_mse(self, mean_square: float) -> float:
    """The error per coordinate of the mean that is to be expected.

    Noise and, on a grid, rounding and wrap-around, with coordinates taken as
    Gaussian, as the rotation makes them nearly, and without what the condition
    on the rounding changes, which is less than 1%.

    Args:
      mean_square: ||true mean||^2 / d, model units squared.
    """
    if self.params is None:
      return self.noise_mse
    params = self.params
    to_grid = (self.n * params.scale)**2
    # The squared norm spreads over the padded coordinates.
    signal = mean_square * to_grid * self.d / params.padded_dimension
    rounding = self.n * _rounding_variance(
        params.clip_grid**2 / params.padded_dimension)
    total = signal + rounding + params.total_noise_variance
    return _wrapped_error(total, signal, float(params.modulus)) / to_grid


def _noise_mse(noise_multiplier: float, clip: float, n: int) -> float:
  return (noise_multiplier * clip / n)**2


def _rounding_variance(variance: float) -> float:
  """Of one stochastically rounded coordinate x of N(0, variance), grid units^2.

  E[f (1 - f)] for the fractional part f of x; the Fourier series of f (1 - f)
  is 1/6 - sum of cos(2 pi k x) / (pi k)^2.
  """
  return 1 / 6 - math.fsum(
      math.exp(-2 * (math.pi * k)**2 * variance) / (math.pi * k)**2
      for k in range(1, 200))


def _wrapped_error(total: float, signal: float, modulus: float) -> float:
  """E[(w - t)^2] of the wrapped sum w = x - m M of x = t + error, grid units^2.

  t has variance `signal` and x has variance `total`, both Gaussian of mean 0, so
  E[t | x] = x signal / total, and what is needed are the moments of x over the
  intervals ((m - 1/2) M, (m + 1/2) M).
  """
  stddev = math.sqrt(total)
  most = math.ceil(12 * stddev / modulus)
  crossed = squared = 0.0  # E[m x] and E[m^2].
  for m in range(1, most + 1):
    low, high = (m - 0.5) * modulus / stddev, (m + 0.5) * modulus / stddev
    crossed += 2 * m * stddev * (stats.norm.pdf(low) - stats.norm.pdf(high))
    squared += 2 * m * m * (stats.norm.sf(low) - stats.norm.sf(high))
  of_square = total - 2 * modulus * crossed + modulus**2 * squared
  with_signal = signal / total * (total - modulus * crossed)
  return of_square - 2 * with_signal + signal


@functools.lru_cache(maxsize=None)
def _gaussian_noise(epsilon: float, delta: float, kind: str) -> float:
  """Noise multiplier of one Gaussian release."""
  if kind == 'analytic':
    return analytic_gaussian.noise_multiplier(epsilon=epsilon, delta=delta)
  return calibration.noise_multiplier(
      lambda z: events.CentralGaussian(noise_multiplier=z), epsilon=epsilon,
      delta=delta, accountant='rdp')


def _cell(settings: settings_lib.MeanSettings, mechanism: str, n: int, d: int,
          bits: int | None, epsilon: float) -> Cell:
  gaussian = {kind: _gaussian_noise(epsilon, settings.delta, kind)
              for kind in ('analytic', 'rdp')}
  kind, params = 'rdp', _params(settings, mechanism, n, d, bits)
  if params is not None:
    params = calibration.calibrated(
        params, _EVENTS[mechanism], epsilon=epsilon, delta=settings.delta,
        accountant='rdp', allow_degenerate=settings.allow_degenerate,
        total_variation=lambda trial: noise_budget.of_sum(trial, n))
  elif mechanism == 'gaussian' and settings.accountant == 'auto':
    kind = 'analytic'
  noise = gaussian[kind] if params is None else params.noise_multiplier
  return Cell(
      mechanism=mechanism, n=n, d=d, bits=bits, epsilon=epsilon, accountant=kind,
      noise_multiplier=noise, clip=settings.clip, params=params,
      gaussian_mse=_noise_mse(gaussian['analytic'], settings.clip, n),
      gaussian_rdp_mse=_noise_mse(gaussian['rdp'], settings.clip, n))


def cells(settings: settings_lib.MeanSettings
          ) -> tuple[list[Cell], list[caveats_lib.Caveat]]:
  """All cells of a sweep, calibrated, and what a reader must know of them.

  Raises:
    ValueError: If a cell can't be done, or only on a degenerate grid, and
      degenerate grids are not allowed; or if no cell can be done.
  """
  found, notes = [], []
  degenerate: dict[str, list[Cell]] = {}
  for n, d, mechanism in itertools.product(
      settings.num_clients, settings.dimension, settings.mechanisms):
    all_bits = settings.bits if mechanism in _EVENTS else (None,)
    for bits, epsilon in itertools.product(all_bits, settings.epsilon):
      name = f'{mechanism} n={n} d={d} bits={bits}'
      try:
        cell = _cell(settings, mechanism, n, d, bits, epsilon)
      except ValueError as error:
        if bits is None:
          raise
        name += f' epsilon={epsilon:g}'
        if not settings.allow_degenerate:
          raise ValueError(f'{name}: {error}') from error
        notes.append(caveats_lib.Caveat(
            'settings left out', f'left out {name}: {error}'))
        continue
      found.append(cell)
      if cell.params is not None and cell.params.degeneracy() is not None:
        degenerate.setdefault(name, []).append(cell)
  for name, group in degenerate.items():
    epsilons = ','.join(f'{cell.epsilon:g}' for cell in group)
    notes.append(caveats_lib.Caveat(
        'degenerate grid', f'degenerate grid at {name} epsilon={epsilons}: '
        f'{group[-1].params.degeneracy()}'))
  if not found:
    raise ValueError(f'nothing is left to do: {"; ".join(notes)}')
  return found, notes


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanPlan(guarantee.Plan):
  """All releases of a folder: those of earlier sweeps and those to come.

  Epsilon is that of all of them together, for a client that is in all data sets.
  Each setting has a smaller one, of one release of one data set: its target.

  Attributes:
    steps: What each charged setting releases, all data sets of it.
    cells: The settings asked for now.
    mechanisms: Of these and of all earlier settings of the folder.
    caveats: Of the settings asked for now.
    delta, seed, accountant: As in `guarantee.Plan`.
  """

  steps: tuple[base.Event, ...]
  cells: tuple[Cell, ...]
  mechanisms: tuple[str, ...]
  caveats: tuple[caveats_lib.Caveat, ...] = ()
  delta: float
  seed: int | None = None
  accountant: str = 'auto'

  def event(self, index: int) -> base.Event:
    return self.steps[index - 1]

  def configuration(self) -> dict[str, Any]:
    return {}  # A row that is there keeps its noise, and others have none yet.

  def notes(self) -> list[caveats_lib.Caveat]:
    return [*self.caveats, _IDEAL]

  def guarantee_of(self, ledger: ledger_lib.Ledger) -> guarantee.Guarantee:
    charged = tuple(events.from_json(line['event']) for line in ledger.lines())
    return dataclasses.replace(self, steps=charged).guarantee(len(charged))

  @property
  def terms(self) -> guarantee.Terms:
    names = dict.fromkeys(name.removesuffix('_rdp') for name in self.mechanisms)
    samplers = dict.fromkeys(
        noise_budget.describe_sum(cell.params, False) for cell in self.cells)
    return guarantee.Terms(
        privacy_unit='one client, with its vectors in all data sets of all settings',
        observers='those who see all estimates of all settings and data sets, of which '
        'a client is in each',
        against='observers of all estimates',
        trust_model='; '.join(dict.fromkeys(
            mechanisms.MECHANISMS[name].trust_model for name in names)),
        source='; '.join(dict.fromkeys(
            getattr(step, 'event', step).source for step in self.steps)),
        sampler='; '.join(samplers), secure_aggregation=any(
            mechanisms.MECHANISMS[name].params for name in names))

  def header(self, rounds: int, more: Iterable[str] = ()) -> dict[str, Any]:
    return super().header(rounds, (*more, _MORE))
