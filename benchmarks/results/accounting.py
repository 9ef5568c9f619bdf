"""Curves of the papers that are accounting alone, in seconds.

Figures 1 to 3 of arXiv 2110.04995: how epsilon grows with composition, and how near
Skellam and the distributed discrete Gaussian come to the Gaussian as the grid becomes
finer. Figures 2 and 4 of arXiv 2009.05537: what a draw of a party's records gives by its
own theorems. Neighbours differ by one record or client, which is zeroed out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import math
import pathlib
from typing import Any

from matplotlib import figure as figure_lib
import numpy as np

from aggregators import params as params_lib
from benchmarks.results import fedmd_figures
from tff_pipelines.accounting.events import base, kinds as events
from tff_pipelines.accounting.guarantees import accountant
from tff_pipelines.common import decimals

PICTURE = 'accounting.png'
_DELTA = 1e-5
_COUNT_NOISE = 10.0
# Panel of figure 2 -> noise and number of shares.
_SCALAR = {'left': (1.0, 10), 'right': (5.0, 1000)}
# Panel of figure 3 -> clip, coordinates, sampling rate, releases, delta, and grid units of
# the clip.
_VECTOR = {'left': (1.0, 1024, 1.0, 1, _DELTA, (10, 30, 100)),
           'right': (0.03, 2**20, 100 / 3400, 1500, 1 / 3400, (512, 2048, 16384))}
_TITLES = {
    'composition': f'One count, noise {_COUNT_NOISE:g}',
    **{f'scalar-{panel}': f'One count, noise {noise:g}, {clients:,} shares'
       for panel, (noise, clients) in _SCALAR.items()},
    'vector-left': '1,024 coordinates, one release',
    'vector-right': '1,048,576 coordinates, 1,500 sampled rounds'}
_AXES = {'composition': 'releases', 'scalar': 'grid units of the sensitivity',
         'vector': 'noise multiplier'}
Curve = dict[str, Any]


def _discrete(scale: int, noise: float, clients: int) -> base.Event:
  """A count on a grid with discrete Gaussian shares; of one share it is the central one."""
  variance = (scale * noise)**2
  return events.DistributedDiscreteGaussian(
      l1_sensitivity=scale, l2_sensitivity=scale, noise_variance=variance,
      local_variance=variance / clients, clients=clients, dimension=1)


def _skellam(scale: int, noise: float) -> base.Event:
  return events.SkellamCount(l1_sensitivity=scale, noise_variance=(scale * noise)**2)


def _advanced(event: base.Event, count: int) -> float:
  """Advanced composition of one release (Dwork, Rothblum, Vadhan 2010).

  One half of delta is that of the releases, the other its slack.
  """
  one = accountant.epsilon(event, _DELTA / (2 * count))
  return min(count * one, one * math.sqrt(
      2 * count * math.log(2 / _DELTA)) + count * one * math.expm1(one))


def _curve(name: str, label: str, x: Sequence[float],
           event_of: Callable[[float], base.Event], kind: str = 'pld',
           delta: float = _DELTA) -> tuple[str, Curve]:
  return name, {'label': label, 'x': list(x), 'delta': delta, 'epsilon': [
      float(f'{accountant.epsilon(event_of(value), delta, accountant=kind):.6g}')
      for value in x]}


def _composition() -> Iterator[tuple[str, Curve]]:
  counts = np.unique(np.round(np.logspace(0, 3, 13)).astype(int)).tolist()
  gaussian = events.CentralGaussian(noise_multiplier=_COUNT_NOISE)
  for name, label, event, kind in (
      ('skellam_pld', 'Skellam (PLD)', _skellam(1, _COUNT_NOISE), 'pld'),
      ('skellam_rdp', 'Skellam (RDP)', _skellam(1, _COUNT_NOISE), 'rdp'),
      ('gaussian', 'Gaussian (PLD)', gaussian, 'pld'),
      ('discrete_gaussian', 'discrete Gaussian (RDP)',
       _discrete(1, _COUNT_NOISE, 1), 'rdp')):
    yield _curve(f'composition-{name}', label, counts, lambda count, event=event:
                 events.SelfComposed(event=event, count=count), kind)
  yield 'composition-skellam_advanced', {
      'label': 'Skellam (advanced composition)', 'x': counts, 'delta': _DELTA,
      'epsilon': [_advanced(_skellam(1, _COUNT_NOISE), count) for count in counts]}


def _scalar() -> Iterator[tuple[str, Curve]]:
  for panel, (noise, clients) in _SCALAR.items():
    gaussian = events.CentralGaussian(noise_multiplier=noise)
    for name, label, event_of, kind in (
        ('gaussian_analytic', 'Gaussian (PLD)', lambda _, g=gaussian: g, 'pld'),
        ('gaussian_rdp', 'Gaussian (RDP)', lambda _, g=gaussian: g, 'rdp'),
        ('skellam_pld', 'Skellam (PLD)', lambda s, z=noise: _skellam(s, z), 'pld'),
        ('skellam_rdp', 'Skellam (RDP)', lambda s, z=noise: _skellam(s, z), 'rdp'),
        ('discrete_gaussian', 'discrete Gaussian (RDP)',
         lambda s, z=noise: _discrete(s, z, 1), 'rdp'),
        ('ddgauss', f'{clients:,} discrete shares (RDP)',
         lambda s, z=noise, n=clients: _discrete(s, z, n), 'rdp')):
      yield _curve(f'scalar-{panel}-{name}', label, [2**power for power in range(8)],
                   event_of, kind)


def _vector() -> Iterator[tuple[str, Curve]]:
  for panel, (clip, dimension, rate, rounds, delta, sizes) in _VECTOR.items():
    def wrapped(event):
      if rate < 1:  # pylint: disable=cell-var-from-loop
        event = events.PoissonSampled(event=event, sampling_rate=rate)  # pylint: disable=cell-var-from-loop
      return events.SelfComposed(event=event, count=rounds)  # pylint: disable=cell-var-from-loop

    def on_grid(kind, size, z):
      return wrapped(kind.from_params(params_lib.DistributedSumParams(
          clip=clip, noise_multiplier=z, bits=30, dimension=dimension,  # pylint: disable=cell-var-from-loop
          cohort_size=100, fixed_scale=size / clip)))  # pylint: disable=cell-var-from-loop

    noises = np.linspace(0.4, 2.0, 9).round(2).tolist()
    yield _curve(f'vector-{panel}-gaussian', 'Gaussian (RDP)', noises, lambda z:
                 wrapped(events.CentralGaussian(noise_multiplier=z)), 'rdp', delta)
    for size in sizes:
      for name, label, kind in (
          ('skellam', 'Skellam', events.DistributedSkellam),
          ('discrete_gaussian', 'discrete Gaussian', events.DistributedDiscreteGaussian)):
        yield _curve(f'vector-{panel}-{name}-{size}', f'{label}, {size:,} units of clip',
                     noises, lambda z, kind=kind, size=size: on_grid(kind, size, z),
                     'rdp', delta)


def curves() -> dict[str, Curve]:
  """Name -> label, x, epsilon and delta of figures 1 to 3 of arXiv 2110.04995."""
  return dict((*_composition(), *_scalar(), *_vector()))


def draw(records: Mapping[str, Any], runs: pathlib.Path, path: pathlib.Path) -> None:
  """Draws `curves()`, five panels, as a PNG file."""
  del records, runs
  found = curves()
  figure = figure_lib.Figure(figsize=(16, 9))
  axes = figure.subplots(2, 3).flat
  for panel, axis in zip(_TITLES, axes):
    named = [curve for name, curve in found.items() if name.startswith(panel)]
    for curve in named:
      axis.plot(curve['x'], curve['epsilon'], marker='.', linewidth=1,
                label=curve['label'], linestyle=':' if 'PLD' in curve['label'] else '-')
    kind = panel.partition('-')[0]
    axis.set(title=f'{_TITLES[panel]}; δ = {decimals.rounded_up(named[0]["delta"], 3)}', ylabel='epsilon',
             xlabel=_AXES[kind], xscale='linear' if kind == 'vector' else 'log',
             yscale='linear' if kind == 'scalar' else 'log')
    if kind == 'scalar':
      axis.set_ylim(0, 3 * named[0]['epsilon'][0])
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)
  axes[5].axis('off')
  figure.tight_layout()
  figure.savefig(path, dpi=90)


def _ends(curve: Curve, unit: str) -> str:
  x, epsilon = curve['x'], curve['epsilon']
  return f'ε {epsilon[0]:.3g} to {epsilon[-1]:.3g}, {unit} {x[0]:g} to {x[-1]:g}'


def _against(curve: Curve, other: Curve) -> str:
  """Words for the ratio of two curves over their x."""
  ratios = [a / b for a, b in zip(curve['epsilon'], other['epsilon']) if b > 0]
  return (f'{min(ratios):.3f} to {max(ratios):.3f} times {other["label"]}')


def verdicts() -> dict[str, tuple[str, str]]:
  """Row of the claims -> what was found, and how it compares with the Gaussian."""
  found, result = curves(), {}
  for name, curve in found.items():
    panel = next(panel for panel in _TITLES if name.startswith(panel))
    kind = panel.partition('-')[0]
    base_of = {'composition': 'composition-gaussian',
               'scalar': f'{panel}-gaussian_{"rdp" if "RDP" in curve["label"] else "analytic"}',
               'vector': f'{panel}-gaussian'}[kind]
    size = name.rpartition('-')[2]
    row = name.removesuffix(f'-{size}') if size.isdigit() else name
    text = _ends(curve, _AXES[kind])
    if size.isdigit():
      text = f'{size} units: {text}'
    word = ('' if name == base_of or base_of not in found
            else _against(curve, found[base_of]))
    before = result.get(row)
    result[row] = ((f'{before[0]}; {text}', f'{before[1]}; {word}') if before else
                   (text, word or 'no number printed'))
  return {f'accounting/{row}': cells for row, cells in (*result.items(), *_draws())}


FIGURES = {PICTURE: draw}


def _draws() -> Iterator[tuple[str, tuple[str, str]]]:
  """Figures 2 and 4 of arXiv 2009.05537; logarithms to base 10."""
  for task, of in (('mnist_letters', 'FEMNIST'), ('cifar', 'CIFAR')):
    size = fedmd_figures.RECORDS[of]
    found = {n: events.Nfdp(records=size // n, subset_size=fedmd_figures.DRAWS)
             for n in (2, 10, 100)}
    yield f'nfdp-parties-{task}', (
        '; '.join(f'N = {n}: log10 ε {math.log10(event.published_epsilon):.2f}, log10 δ '
                  f'{math.log10(event.draw_probability):.2f}'
                  for n, event in found.items()), 'as the theorem says')
    noises = [math.log10(fedmd_figures.ldp_stddev(event)) for event in found.values()]
    yield f'ldp-parties-{task}', (
        '; '.join(f'N = {n}: log10 σ {value:.2f}' for n, value in zip(found, noises)),
        'as printed' if 4 <= min(noises) and max(noises) <= 7 else
        f'{min(noises):.1f} to {max(noises):.1f}, calibrated by PLD')
  for replacement, name in ((True, 'with'), (False, 'without')):
    found = {k: events.Nfdp(records=100, subset_size=k, replacement=replacement)
             for k in (1, 50, 99)}
    yield f'nfdp-n100-{name}', (
        '; '.join(f'k = {k}: ε {event.published_epsilon:.3g}, δ '
                  f'{event.draw_probability:.3g}' for k, event in found.items()),
        'as the theorem says')
