"""Figures that compare mechanisms by accounting alone.

After figures 1 to 3 of arXiv 2110.04995: how epsilon grows with composition,
and how near Skellam and the distributed discrete Gaussian come to the Gaussian
as the grid becomes finer.
"""

import math
import os

import matplotlib

matplotlib.use('Agg')
# pylint: disable=g-import-not-at-top,wrong-import-position
from matplotlib import pyplot
import numpy as np

from aggregators import params as params_lib
from tff_pipelines.accounting.guarantees import accountant
from tff_pipelines.accounting.events import base
from tff_pipelines.accounting.divergences import curves
from tff_pipelines.accounting.events import kinds as events

_DELTA = 1e-5
_COLOURS = {'gaussian': 'tab:green', 'skellam': 'tab:blue', 'discrete': 'tab:orange'}


def _plot(axes, name: str, event_of, xs, kind: str, style: str, label: str,
          delta: float = _DELTA) -> None:
  """Plots epsilon by the accountant `kind` of the events of `xs`."""
  axes.plot(
      xs, [accountant.epsilon(event_of(x), delta, accountant=kind) for x in xs], style,
      color=_COLOURS[name], label=label)


def _advanced(event: base.Event, count: int) -> float:
  """Advanced composition of one release (Dwork, Rothblum, Vadhan 2010).

  One half of delta is that of the releases, the other its slack.
  """
  one = accountant.epsilon(event, _DELTA / (2 * count))
  return min(count * one, one * math.sqrt(
      2 * count * math.log(2 / _DELTA)) + count * one * math.expm1(one))


def composition(axes) -> None:
  """Epsilon over the number of releases of a count (figure 1)."""
  stddev = 10.0
  counts = np.unique(np.round(np.logspace(0, 3, 13)).astype(int)).tolist()
  skellam = events.SkellamCount(noise_variance=stddev**2)
  gaussian = events.CentralGaussian(noise_multiplier=stddev)
  for event, name in ((skellam, 'skellam'), (gaussian, 'gaussian')):
    for kind, style in (('pld', '-'), ('rdp', '--')):
      _plot(axes, name,
            lambda count, event=event: events.SelfComposed(event=event, count=count),
            counts, kind, style, f'{name} ({kind.upper()})')
  axes.plot(counts, [_advanced(skellam, count) for count in counts], ':',
            color='tab:red', label='skellam (advanced composition)')
  axes.set(xscale='log', yscale='log', xlabel='releases', ylabel='epsilon',
           title=f'Composition of a count, noise {stddev:g}')


def scalar_scales(axes, noise: float, clients: int) -> None:
  """Epsilon of one sensitivity-1 query over the scale of its grid (figure 2)."""
  scales = [2**power for power in range(8)]

  def gaussian(_):
    return events.CentralGaussian(noise_multiplier=noise)

  def skellam(scale):
    return events.SkellamCount(l1_sensitivity=scale, noise_variance=(scale * noise)**2)

  def discrete(scale):
    return events.DistributedDiscreteGaussian(
        l1_sensitivity=scale, l2_sensitivity=scale,
        noise_variance=(scale * noise)**2,
        local_variance=(scale * noise)**2 / clients, clients=clients, dimension=1)

  for event_of, name in ((gaussian, 'gaussian'), (skellam, 'skellam')):
    for kind, style in (('pld', '-'), ('rdp', '--')):
      _plot(axes, name, event_of, scales, kind, style, f'{name} ({kind.upper()})')
  _plot(axes, 'discrete', discrete, scales, 'rdp', '--',
        f'discrete Gaussian, {clients} shares (RDP)')
  axes.set(xscale='log', xlabel='scale', ylabel='epsilon',
           title=f'One count, noise {noise:g}')
  axes.set_ylim(0, 3 * accountant.epsilon(gaussian(1), _DELTA))


def vector_scales(axes, *, clip: float, dimension: int, cohort: int,
                  rate: float, rounds: int, delta: float,
                  scales: tuple[float, ...], title: str) -> None:
  """Epsilon over the noise multiplier for several scales (figure 3)."""
  noises = np.linspace(0.4, 2.0, 9).tolist()

  def wrapped(event):
    if rate < 1:
      event = events.PoissonSampled(event=event, sampling_rate=rate)
    return events.SelfComposed(event=event, count=rounds)

  _plot(axes, 'gaussian',
        lambda z: wrapped(events.CentralGaussian(noise_multiplier=z)), noises, 'rdp',
        '-', 'gaussian', delta)
  for scale, style in zip(scales, ('-', '--', ':')):
    for name, kind in (('skellam', events.DistributedSkellam),
                       ('discrete', events.DistributedDiscreteGaussian)):
      _plot(axes, name, lambda z, scale=scale, kind=kind: wrapped(kind.from_params(
          params_lib.DistributedSumParams(
              clip=clip, noise_multiplier=z, bits=30, dimension=dimension,
              cohort_size=cohort, fixed_scale=scale))), noises, 'rdp', style,
            f'{name}, {scale * clip:g} grid units of clip', delta)
  axes.set(yscale='log', xlabel='noise multiplier', ylabel='epsilon', title=title)


def draw(path: str | os.PathLike) -> None:
  """Draws all panels into one PNG file.

  Args:
    path: Path of the file, overwritten if it is there; ends in .png.

  Raises:
    ValueError: If the name does not end in .png.
    OSError: If it cannot be written.
  """
  if not os.fspath(path).lower().endswith('.png'):
    raise ValueError(f'plot must end in .png, found {os.fspath(path)!r}')
  figure, axes = pyplot.subplots(2, 3, figsize=(16, 9))
  try:
    composition(axes[0, 0])
    scalar_scales(axes[0, 1], noise=1.0, clients=10)
    scalar_scales(axes[0, 2], noise=5.0, clients=1000)
    vector_scales(axes[1, 0], clip=1.0, dimension=1024, cohort=100, rate=1.0,
                  rounds=1, delta=_DELTA, scales=(10.0, 30.0, 100.0),
                  title='1,024 coordinates, one release')
    vector_scales(axes[1, 1], clip=0.03, dimension=2**20, cohort=100,
                  rate=100 / 3400, rounds=1500, delta=1 / 3400,
                  scales=tuple(size / 0.03 for size in (512.0, 2048.0, 16384.0)),
                  title='A million coordinates, 1,500 sampled rounds')
    axes[1, 2].axis('off')
    axes[1, 2].text(
        0, 0.5, f'delta = {_DELTA:g} in the first four panels,\n1/3400 in the '
        f'fifth. Orders 2 to {curves.MAX_ORDER}.\nZero-out neighbours.')
    for panel in axes.flat[:5]:
      panel.grid(True, alpha=0.3)
      panel.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
  finally:
    pyplot.close(figure)
