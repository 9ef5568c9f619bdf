"""Figures that compare mechanisms by accounting alone.

  python -m benchmarks.accounting_figures --output=figures.png

After figures 1 to 3 of arXiv 2110.04995: how epsilon grows with composition,
and how near Skellam and the distributed discrete Gaussian come to the Gaussian
as the grid becomes finer.
"""

import argparse
from collections.abc import Iterable, Sequence
import math
import os

import matplotlib

matplotlib.use('Agg')
# pylint: disable=g-import-not-at-top,wrong-import-position
from matplotlib import pyplot
import numpy as np

from aggregators import params as params_lib
from tff_pipelines.accounting.divergences import curves
from tff_pipelines.accounting.events import base, kinds as events
from tff_pipelines.accounting.guarantees import accountant

_DELTA = 1e-5
_COLOURS = {'gaussian': 'tab:green', 'skellam': 'tab:blue', 'discrete': 'tab:orange'}
_ACCOUNTANTS = (('pld', '-'), ('rdp', '--'))


def _plot(axes, xs: Sequence[float], lines: Iterable[tuple], delta: float = _DELTA,
          **how: str) -> None:
  """Plots epsilon over xs.

  Each line is (name, accountant, style, label, function from x to the event).
  """
  for name, kind, style, label, event_of in lines:
    axes.plot(
        xs, [accountant.epsilon(event_of(x), delta, accountant=kind) for x in xs], style,
        color=_COLOURS[name], label=label or f'{name} ({kind.upper()})')
  axes.set(ylabel='epsilon', **how)


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
  releases = (('skellam', skellam),
              ('gaussian', events.CentralGaussian(noise_multiplier=stddev)))
  axes.plot(counts, [_advanced(skellam, count) for count in counts], ':',
            color='tab:red', label='skellam (advanced composition)')
  _plot(axes, counts, (
      (name, kind, style, '',
       lambda count, event=event: events.SelfComposed(event=event, count=count))
      for name, event in releases for kind, style in _ACCOUNTANTS),
        xscale='log', yscale='log', xlabel='releases',
        title=f'Composition of a count, noise {stddev:g}')


def scalar_scales(axes, noise: float, clients: int) -> None:
  """Epsilon of one sensitivity-1 query over the scale of its grid (figure 2)."""
  gaussian = events.CentralGaussian(noise_multiplier=noise)

  def skellam(scale):
    return events.SkellamCount(l1_sensitivity=scale, noise_variance=(scale * noise)**2)

  def discrete(scale):
    return events.DistributedDiscreteGaussian(
        l1_sensitivity=scale, l2_sensitivity=scale,
        noise_variance=(scale * noise)**2,
        local_variance=(scale * noise)**2 / clients, clients=clients, dimension=1)

  _plot(axes, [2**power for power in range(8)], (
      *((name, kind, style, '', event_of)
        for name, event_of in (('gaussian', lambda _: gaussian), ('skellam', skellam))
        for kind, style in _ACCOUNTANTS),
      ('discrete', 'rdp', '--', f'discrete Gaussian, {clients} shares (RDP)', discrete)),
        xscale='log', xlabel='scale', title=f'One count, noise {noise:g}')
  axes.set_ylim(0, 3 * accountant.epsilon(gaussian, _DELTA))


def vector_scales(axes, *, clip: float, dimension: int, cohort: int,
                  rate: float, rounds: int, delta: float,
                  scales: tuple[float, ...], title: str) -> None:
  """Epsilon over the noise multiplier for several scales (figure 3)."""
  def wrapped(event):
    if rate < 1:
      event = events.PoissonSampled(event=event, sampling_rate=rate)
    return events.SelfComposed(event=event, count=rounds)

  def on_grid(kind, scale):
    return lambda z: wrapped(kind.from_params(params_lib.DistributedSumParams(
        clip=clip, noise_multiplier=z, bits=30, dimension=dimension,
        cohort_size=cohort, fixed_scale=scale)))

  _plot(axes, np.linspace(0.4, 2.0, 9).tolist(), (
      ('gaussian', 'rdp', '-', 'gaussian',
       lambda z: wrapped(events.CentralGaussian(noise_multiplier=z))),
      *((name, 'rdp', style, f'{name}, {scale * clip:g} grid units of clip',
         on_grid(kind, scale))
        for scale, style in zip(scales, ('-', '--', ':')) for name, kind in (
            ('skellam', events.DistributedSkellam),
            ('discrete', events.DistributedDiscreteGaussian)))),
        delta, yscale='log', xlabel='noise multiplier', title=title)


def draw(path: str | os.PathLike) -> None:
  """Draws all panels into one PNG file.

  It is overwritten if it is there; OSError if it cannot be written.
  """
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


if __name__ == '__main__':
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--output', required=True, help='PNG file')
  draw(parser.parse_args().output)
