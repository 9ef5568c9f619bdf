"""Draws the errors of the local mechanisms against epsilon.

  python -m benchmarks.ldp_mechanisms --output=out/figures/local_mechanisms.png

On the left the worst-case variance of one coordinate, in the middle the error of the
mean of many clients' vectors, on the right that of labels, which are corners of the
simplex. Lines are the formulas of what is drawn; points are
measured by drawing, with 95% intervals.
"""

from collections.abc import Sequence
import dataclasses
import pathlib
import sys

import numpy as np
from scipy import optimize
import tensorflow as tf

from aggregators import keys, local_dp
from tff_pipelines.common import declarations, files
from tff_pipelines.experiment import cli, settings as settings_lib

NAMES = ('piecewise', 'duchi', 'laplace')
# Mechanisms that answer with labels, by the names of their lines.
LABEL_NAMES = ('piecewise', 'duchi', 'laplace', 'krr', 'subset')
_POINTS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)

_run, _figure = declarations.groups('run', 'figure')


@dataclasses.dataclass(frozen=True, kw_only=True)
class FigureSettings(settings_lib.Settings):
  """Settings of the figure."""

  output: str = _run('out/figures/local_mechanisms.png', 'PNG file.', essential=True)
  num_clients: int = _figure(1000, 'Clients whose mean is estimated.',
      low=1, essential=True)
  dimension: int = _figure(10, 'Coordinates of their vectors.', low=1, essential=True)
  draws: int = _figure(
      20000, 'Outputs, of means vectors, behind a point.', low=2, essential=True)

  def check_paths(self) -> None:
    files.check_writable(self.output, 'output')


def worst_variance(name: str, epsilon: float) -> float:
  """Variance of one coordinate, maximum over all inputs."""
  return local_dp.build(name, epsilon=epsilon, dimension=1).worst_variance


def crossing() -> float:
  """The epsilon from which the piecewise mechanism is better than Duchi's."""
  return optimize.brentq(
      lambda epsilon: worst_variance('piecewise', epsilon) - worst_variance(
          'duchi', epsilon), 1.0, 2.0, xtol=1e-3)


def _mean(samples: Sequence[float]) -> tuple[float, float]:
  """The mean of samples, and half its 95% interval."""
  half = 1.96 * np.std(samples, ddof=1) / np.sqrt(len(samples))
  return float(np.mean(samples)), float(half)


def measured_variance(name: str, epsilon: float, draws: int) -> tuple[float, float]:
  """Worst-case variance of one coordinate by drawing, and half its interval."""
  z = 1.0 if name == 'piecewise' else 0.0
  mechanism = local_dp.build(name, epsilon=epsilon, dimension=1)
  drawn = mechanism.perturb(tf.fill([draws, 1], z), keys.fresh()).numpy()
  return _mean((drawn.astype(np.float64)[:, 0] - z)**2)


def measured_error(name: str, epsilon: float, *, clients: int, dimension: int,
                   repeats: int, labels: bool = False) -> tuple[float, float]:
  """Squared error a coordinate of the mean, and half its interval.

  Of vectors that are uniform on [-1, 1], or of labels, of which each is as frequent.
  """
  mechanism = local_dp.build(
      name, epsilon=epsilon, dimension=dimension, simplex=labels)
  values = np.random.default_rng(0).uniform(-1, 1, [clients, dimension])
  if labels:
    values = 2 * np.eye(dimension)[np.arange(clients) % dimension] - 1
  drawn = (mechanism.perturb(tf.constant(values), keys.fresh()).numpy()
           for _ in range(repeats))
  return _mean([np.mean((d.mean(axis=0) - values.mean(axis=0))**2) for d in drawn])


def expected_error(name: str, epsilon: float, *, clients: int, dimension: int,
                   labels: bool = False) -> float:
  """The same by the formula."""
  mechanism = local_dp.build(
      name, epsilon=epsilon, dimension=dimension, simplex=labels)
  if labels:
    return (mechanism.variance(1) + (dimension - 1) * mechanism.variance(-1)) / (
        dimension * clients)
  grid = (np.arange(200) + 0.5) / 100 - 1
  return float(np.mean([mechanism.variance(z) for z in grid])) / clients


def run(settings: FigureSettings) -> None:
  import matplotlib  # pylint: disable=g-import-not-at-top
  matplotlib.use('Agg')
  from matplotlib import pyplot  # pylint: disable=g-import-not-at-top
  figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(15, 4.6))
  epsilons = np.linspace(_POINTS[0], _POINTS[-1], 46)
  sizes = dict(clients=settings.num_clients, dimension=settings.dimension)
  repeats = max(2, settings.draws // settings.num_clients)
  for i, name in enumerate(LABEL_NAMES):
    panels = []
    if name in NAMES:
      panels.append((
          left, [worst_variance(name, e) for e in epsilons],
          [measured_variance(name, e, settings.draws) for e in _POINTS]))
    for axes in (middle, right) if name in NAMES else (right,):
      of = dict(sizes, labels=axes is right)
      panels.append((
          axes, [expected_error(name, e, **of) for e in epsilons],
          [measured_error(name, e, repeats=repeats, **of) for e in _POINTS]))
    for axes, formula, measured in panels:
      means, halves = np.transpose(measured)
      axes.plot(epsilons, formula, label=name, linewidth=1.3, color=f'C{i}')
      axes.errorbar(_POINTS, means, yerr=halves, linestyle='none', marker='o',
                    markersize=3.5, linewidth=1, color=f'C{i}')
  meeting = crossing()
  left.axvline(meeting, color='grey', linestyle=':', linewidth=1)
  left.annotate(
      f'epsilon = {meeting:.2f}', (meeting, worst_variance('duchi', meeting)),
      xytext=(12, 18), textcoords='offset points', fontsize=9)
  left.set(title='one coordinate, worst input', ylabel='variance')
  middle.set(ylabel='squared error a coordinate', title=(
      f'mean of {settings.num_clients:,} clients, {settings.dimension} coordinates'))
  right.set(title=f'the same of labels of {settings.dimension} classes')
  for axes in (left, middle, right):
    axes.set(yscale='log', xlabel='epsilon of a client',
             xlim=(epsilons[0], epsilons[-1]))
    axes.grid(True, which='both', alpha=0.2)
    axes.legend(fontsize=9)
  figure.tight_layout()
  path = pathlib.Path(settings.output)
  path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(path, dpi=110)
  pyplot.close(figure)
  print(f'drawn into {path}', file=sys.stderr)


main = cli.program(__name__, FigureSettings, 'benchmarks.ldp_mechanisms:run')
