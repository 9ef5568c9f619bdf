"""The calibrated settings of a sweep of mean estimations, and their guarantee.

Numbers only, no TensorFlow: a sweep that can't be done fails before anything runs.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import functools
import itertools
import math
import operator
from typing import Any

from scipy import stats

from tff_pipelines.accounting.events import base, kinds as events
from tff_pipelines.accounting.guarantees import (
    calibration, mechanisms, plan as guarantee)
from tff_pipelines.accounting.guarantees.guarantee import BY_SIMULATION
from tff_pipelines.fedavg.plan import FedAvgPlan
from tff_pipelines.mean.settings import KEY, MeanSettings, SUMS

_IDEAL = guarantee.Caveat('ideal distributions', 'epsilon of all releases together is '
                          'that of ideal distributions: sampling error of the noise '
                          'consumes delta in the target of each only')
_MORE = guarantee.Caveat('later sweeps may add releases', 'a later sweep may add '
                         'releases of other mechanisms to this ledger')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
  """One calibrated setting.

  Attributes:
    mechanism: One of the choices of `MeanSettings.mechanisms`.
    n, d: Number of clients, and dimension.
    bits: Bits of a coordinate of the sum; None for the Gaussian.
    epsilon: Target.
    accountant: 'rdp', 'pld' or 'analytic', the one that calibrated it.
    plan: The plan of one release, a round of all clients.
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
  plan: FedAvgPlan
  gaussian_mse: float
  gaussian_rdp_mse: float

  key = property(operator.attrgetter(*KEY))  # Identifies it in a folder.

  @property
  def noise_mse(self) -> float:
    """Variance of the noise per coordinate of the mean, model units squared."""
    mechanism = self.plan.mechanism
    return _noise_mse(mechanism.noise_multiplier, mechanism.clip, self.n)

  def predicted_mse(self, mean_square: float) -> float:
    """Returns the expected error per coordinate of the mean, model units squared.

    Noise and, on a grid, rounding and wrap-around. Coordinates are taken as Gaussian,
    which they nearly are after the rotation; the effect of the condition on the
    rounding is left out, which is less than 1%. `mean_square` is ||true mean||^2 / d,
    model units squared.
    """
    if (params := self.plan.params) is None:
      return self.noise_mse
    to_grid = (self.n * params.scale)**2
    # The squared norm spreads over the padded coordinates.
    signal = mean_square * to_grid * self.d / params.padded_dimension
    rounding = self.n * _rounding_variance(params.clip_grid**2 / params.padded_dimension)
    total = signal + rounding + params.total_noise_variance
    return _wrapped_error(total, signal, float(params.modulus)) / to_grid


def _noise_mse(noise_multiplier: float, clip: float, n: int) -> float:
  return (noise_multiplier * clip / n)**2


def _rounding_variance(variance: float) -> float:
  """Variance of stochastic rounding of a coordinate x of N(0, variance), grid units^2."""
  # It is E[f (1 - f)] for the fractional part f of x; the Fourier series of f (1 - f)
  # is 1/6 - sum of cos(2 pi k x) / (pi k)^2.
  return 1 / 6 - math.fsum(math.exp(-2 * (math.pi * k)**2 * variance) / (math.pi * k)**2
                           for k in range(1, 200))


def _wrapped_error(total: float, signal: float, modulus: float) -> float:
  """E[(w - t)^2] of the wrapped sum w = x - m M of x = t + error, grid units^2."""
  # t has variance `signal` and x has variance `total`, both Gaussian of mean 0, so
  # E[t | x] = x signal / total, and the moments needed are those of x over the
  # intervals ((m - 1/2) M, (m + 1/2) M).
  stddev = math.sqrt(total)
  crossed = squared = 0.0  # E[m x] and E[m^2].
  for m in range(1, math.ceil(12 * stddev / modulus) + 1):
    low, high = (m - 0.5) * modulus / stddev, (m + 0.5) * modulus / stddev
    crossed += 2 * m * stddev * (stats.norm.pdf(low) - stats.norm.pdf(high))
    squared += 2 * m * m * (stats.norm.sf(low) - stats.norm.sf(high))
  of_square = total - 2 * modulus * crossed + modulus**2 * squared
  with_signal = signal / total * (total - modulus * crossed)
  return of_square - 2 * with_signal + signal


@functools.lru_cache(maxsize=None)
def _gaussian_noise(epsilon: float, delta: float) -> Mapping[str, float]:
  """Returns the noise multiplier of one Gaussian release by accountant."""
  return {
      'analytic': calibration.analytic_noise_multiplier(epsilon=epsilon, delta=delta),
      'rdp': calibration.noise_multiplier(
          lambda z: events.CentralGaussian(noise_multiplier=z), epsilon=epsilon,
          delta=delta, accountant='rdp')}


def _cell(settings: MeanSettings, mechanism: str, n: int, d: int, bits: int | None,
          epsilon: float) -> Cell:
  gaussian = _gaussian_noise(epsilon, settings.delta)
  analytic = mechanism == 'gaussian' and settings.accountant == 'auto'
  # That of sums is calibrated below.
  noise = gaussian['analytic' if analytic else 'rdp'] if bits is None else None
  plan = FedAvgPlan.calibrate(
      mechanisms.SumMechanism(
          mechanism=mechanism.removesuffix('_rdp'), noise_multiplier=noise,
          clip=settings.clip, bits=bits, beta=settings.beta,
          k_stddevs=settings.k_stddevs, dimension=d, cohort_size=n, population=n),
      delta=settings.delta, target_epsilon=epsilon if noise is None else None,
      accountant='rdp' if bits is None else settings.accountant,
      allow_degenerate=settings.allow_degenerate)
  return Cell(
      mechanism=mechanism, n=n, d=d, bits=bits, epsilon=epsilon, plan=plan,
      accountant='analytic' if analytic else plan.guarantee(1).outsiders.accountant,
      gaussian_mse=_noise_mse(gaussian['analytic'], settings.clip, n),
      gaussian_rdp_mse=_noise_mse(gaussian['rdp'], settings.clip, n))


def cells(settings: MeanSettings) -> tuple[list[Cell], list[guarantee.Caveat]]:
  """Calibrates all cells of a sweep.

  Raises ValueError if a cell can't be done, or only on a degenerate grid, and
  degenerate grids are not allowed; or if no cell can be done.
  """
  calibrated, notes = [], []
  for n, d, mechanism in itertools.product(
      settings.num_clients, settings.dimension, settings.mechanisms):
    all_bits = settings.bits if mechanism in SUMS else (None,)
    for bits, epsilon in itertools.product(all_bits, settings.epsilon):
      name = f'{mechanism} n={n} d={d} bits={bits} epsilon={epsilon:g}'
      try:
        cell = _cell(settings, mechanism, n, d, bits, epsilon)
      except ValueError as error:
        if bits is None:
          raise
        if not settings.allow_degenerate:
          raise ValueError(f'{name}: {error}') from error
        notes.append(guarantee.Caveat('settings left out', f'left out {name}: {error}'))
        continue
      calibrated.append(cell)
      if bits is not None and (reason := cell.plan.params.degeneracy()) is not None:
        notes.append(guarantee.Caveat('degenerate grid', f'degenerate grid at {name}: '
                                      f'{reason}'))
  if not calibrated:
    raise ValueError(f'nothing is left to do: {"; ".join(notes)}')
  return calibrated, notes


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanPlan(guarantee.Plan):
  """All releases of a folder, of earlier sweeps and of this one.

  Epsilon is that of all of them together, for a client that is in all data sets.
  Each setting has a smaller one, of one release of one data set: its target.

  Attributes:
    steps: The event of each setting, all its data sets.
    cells, caveats: The settings of this sweep, and their caveats.
    mechanisms: Mechanisms of these and of all earlier settings of the folder.
  """

  steps: tuple[events.SelfComposed, ...]
  cells: tuple[Cell, ...]
  mechanisms: tuple[str, ...]
  caveats: tuple[guarantee.Caveat, ...] = ()
  delta: float
  seed: int | None = None
  accountant: str = 'auto'

  def event(self, index: int) -> base.Event:
    return self.steps[index - 1]

  def configuration(self) -> dict[str, Any]:
    return {}  # Rows have their own noise multipliers.

  def notes(self) -> list[guarantee.Caveat]:
    return [*self.caveats, _IDEAL]

  @property
  def terms(self) -> guarantee.Terms:
    families = [mechanisms.MECHANISMS[name.removesuffix('_rdp')]
                for name in self.mechanisms]
    each = lambda texts: '; '.join(dict.fromkeys(texts))
    return guarantee.Terms(
        privacy_unit='one client, with its vectors in all data sets of all settings',
        observers='those who see all estimates of all settings and data sets, of which a '
        'client is in each', against='observers of all estimates',
        trust_model=each(family.trust_model for family in families),
        source=each(step.event.source for step in self.steps),
        sampler=each(cell.plan.terms.sampler for cell in self.cells),
        secure_aggregation=BY_SIMULATION if any(
            family.params for family in families) else None)

  def header(self, rounds: int, more: Iterable[str] = ()) -> dict[str, Any]:
    return super().header(rounds, (*more, _MORE))
