"""What a sweep of mean estimations consists of, calibrated, and its prediction.

Numbers only, no TensorFlow: a sweep that can't be done fails before anything
runs.
"""

import dataclasses
import functools
import itertools
import math
from typing import Any

from scipy import stats

from aggregators import params as params_lib
from aggregators import validate
from tasks import mean_estimation as vectors_lib
from tff_pipelines.accounting import analytic_gaussian
from tff_pipelines.accounting import calibration
from tff_pipelines.accounting import events

# Sums of integers, and what each releases.
_EVENTS = {
    'skellam': events.DistributedSkellam.from_params,
    'discrete_gaussian': events.DistributedDiscreteGaussian.from_params,
    'skellam_central': events.CentralSkellam.from_params,
}
# gaussian: noise at the server, by the tightest accounting there is.
# gaussian_rdp: the same mechanism, accounted as the sums of integers are.
MECHANISMS = (*_EVENTS, 'gaussian', 'gaussian_rdp')
# auto: analytic for gaussian, RDP for the others. rdp: RDP for all.
ACCOUNTANTS = ('auto', 'rdp')
# Fields that only a sum of integers has.
GRID_FIELDS = frozenset({'bits', 'beta', 'k_stddevs', 'allow_degenerate'})
# Fields that say which cells there are, not what a cell is.
_SWEPT = ('n', 'd', 'bits', 'epsilon', 'mechanisms', 'allow_degenerate')


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanConfig:
  """A sweep, as its flags tell it.

  Attributes:
    n: Numbers of clients.
    d: Dimensions of their vectors.
    bits: Of a coordinate of the sum, each in [2, 30].
    epsilon: Targets, each > 0, of one release.
    mechanisms: Some of MECHANISMS.
    delta: Strictly between 0 and 1.
    clip: L2 clip and norm of all vectors, model units.
    k_stddevs: As in DistributedSumParams.
    beta: As in DistributedSumParams.
    accountant: One of ACCOUNTANTS.
    vectors: One of `tasks.mean_estimation.VECTORS`.
    repeats: Data sets, and releases, of each cell; at least 2.
    data_seed: Of the vectors.
    seed: Of noise and rounding; None for the operating system's entropy.
    allow_degenerate: Accept grids too coarse to be useful, and leave out cells
      that no noise makes private, both with a warning.
  """

  n: tuple[int, ...]
  d: tuple[int, ...]
  bits: tuple[int, ...]
  epsilon: tuple[float, ...]
  mechanisms: tuple[str, ...]
  delta: float
  clip: float
  k_stddevs: float
  beta: float
  accountant: str
  vectors: str
  repeats: int
  data_seed: int
  seed: int | None
  allow_degenerate: bool

  def __post_init__(self):
    for name in ('n', 'd', 'bits', 'epsilon', 'mechanisms'):
      values = getattr(self, name)
      if not values:
        raise ValueError(f'{name} must name at least one value, found none')
      if len(set(values)) < len(values):
        raise ValueError(f'{name} must not name a value twice, found '
                         f'{",".join(str(value) for value in values)}')
    for value in self.n:
      validate.integer(n=value, low=1, high=2**31 - 1)
    for value in self.d:
      validate.integer(d=value, low=1, high=2**30)
    for value in self.bits:
      validate.integer(bits=value, low=2, high=30)
    for value in self.epsilon:
      validate.positive(epsilon=value)
    for value in self.mechanisms:
      validate.one_of(MECHANISMS, mechanisms=value)
    validate.open_unit_interval(delta=self.delta)
    validate.positive(clip=self.clip, k_stddevs=self.k_stddevs)
    # What is wrong whatever the cell is an error, allow_degenerate or not.
    params_lib.DistributedSumParams(
        clip=self.clip, noise_multiplier=1.0, bits=30, dimension=1,
        cohort_size=1, beta=self.beta)
    validate.one_of(ACCOUNTANTS, accountant=self.accountant)
    validate.one_of(vectors_lib.VECTORS, vectors=self.vectors)
    # One repeat has no spread, so no interval.
    validate.integer(repeats=self.repeats, low=2)
    validate.integer(data_seed=self.data_seed, low=0)
    if self.seed is not None:
      validate.integer(seed=self.seed, low=0)

  @property
  def uses_grid(self) -> bool:
    """Whether any of the mechanisms sums integers."""
    return not _EVENTS.keys().isdisjoint(self.mechanisms)

  def fixed(self) -> dict[str, Any]:
    """What the cells of one folder must share, as JSON."""
    return {key: value for key, value in dataclasses.asdict(self).items()
            if key not in _SWEPT}


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
    gaussian_rdp_mse: Likewise, for Gaussian noise accounted by RDP.
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
    """What tells it from the other cells of a folder."""
    return self.mechanism, self.n, self.d, self.bits, self.epsilon

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


def _cell(config: MeanConfig, mechanism: str, n: int, d: int, bits: int | None,
          epsilon: float) -> Cell:
  gaussian = {kind: _gaussian_noise(epsilon, config.delta, kind)
              for kind in ('analytic', 'rdp')}
  kind, params = 'rdp', None
  if mechanism in _EVENTS:
    params = calibration.calibrated(
        params_lib.DistributedSumParams(
            clip=config.clip, noise_multiplier=1.0, bits=bits, dimension=d,
            cohort_size=n, beta=config.beta, k_stddevs=config.k_stddevs,
            mechanism=mechanism),
        _EVENTS[mechanism], epsilon=epsilon,
        delta=config.delta, accountant='rdp',
        allow_degenerate=config.allow_degenerate)
  elif mechanism == 'gaussian' and config.accountant == 'auto':
    kind = 'analytic'
  noise = gaussian[kind] if params is None else params.noise_multiplier
  return Cell(
      mechanism=mechanism, n=n, d=d, bits=bits, epsilon=epsilon, accountant=kind,
      noise_multiplier=noise, clip=config.clip, params=params,
      gaussian_mse=_noise_mse(gaussian['analytic'], config.clip, n),
      gaussian_rdp_mse=_noise_mse(gaussian['rdp'], config.clip, n))


def plan(config: MeanConfig) -> tuple[list[Cell], list[str]]:
  """All cells of a sweep, calibrated, and what a reader must know of them.

  Args:
    config: The sweep.

  Returns:
    The cells, and warnings in words.

  Raises:
    ValueError: If a cell can't be done, or only on a degenerate grid, and
      degenerate grids are not allowed; or if no cell can be done.
  """
  cells, warnings = [], []
  degenerate: dict[str, list[Cell]] = {}
  for n, d, mechanism in itertools.product(
      config.n, config.d, config.mechanisms):
    all_bits = config.bits if mechanism in _EVENTS else (None,)
    for bits, epsilon in itertools.product(all_bits, config.epsilon):
      setting = f'{mechanism} n={n} d={d} bits={bits}'
      try:
        cell = _cell(config, mechanism, n, d, bits, epsilon)
      except ValueError as error:
        if bits is None:
          raise
        setting += f' epsilon={epsilon:g}'
        if not config.allow_degenerate:
          raise ValueError(f'{setting}: {error}') from error
        warnings.append(f'left out {setting}: {error}')
        continue
      cells.append(cell)
      if cell.params is not None and cell.params.degeneracy() is not None:
        degenerate.setdefault(setting, []).append(cell)
  for setting, found in degenerate.items():
    epsilons = ','.join(f'{cell.epsilon:g}' for cell in found)
    warnings.append(f'degenerate grid at {setting} epsilon={epsilons}: '
                    f'{found[-1].params.degeneracy()}')
  if not cells:
    raise ValueError(f'nothing is left to do: {"; ".join(warnings)}')
  if config.seed is not None:
    warnings.append('seeded run: no guarantee (noise and rounding follow from a '
                    'seed)')
  return cells, warnings
