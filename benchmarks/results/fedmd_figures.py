"""Figures 2, 3 and 4 of arXiv 2009.05537, from our accountant and recorded runs."""

import pathlib
import statistics
from typing import Mapping

from matplotlib import figure as figure_lib, ticker
import numpy as np

from benchmarks.results import pages
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import calibration

# Figure 2: private records of all parties, draws of each, and queries of all rounds.
RECORDS = {'FEMNIST': 28_800, 'CIFAR': 3_000}
DRAWS, QUERIES = 3, 100_000
PARTIES = (2, 5, 10, 20, 50, 100)
PARTIES_RUN = (1, 2, 5, 10)
FIGURES = {2: 'fedmd_budget.png', 3: 'fedmd_rounds.png', 4: 'fedmd_replacement.png'}


def _panels(width: float, height: float, count: int):
  """Creates a figure of `count` panels in a row; sizes are inches."""
  figure = figure_lib.Figure(figsize=(width * count, height))
  return figure, figure.subplots(1, count, squeeze=False)[0]


def _save(figure: figure_lib.Figure, path: pathlib.Path) -> None:
  figure.tight_layout()
  figure.savefig(path, dpi=80)


def ldp_stddev(event: events.Nfdp) -> float:
  """Returns the noise of softmax predictions at the epsilon and delta of a draw."""
  multiplier = calibration.noise_multiplier(
      lambda z: events.SelfComposed(
          event=events.LocalGaussian(noise_multiplier=z), count=QUERIES),
      epsilon=event.published_epsilon, delta=event.draw_probability)
  return multiplier * 2**0.5


def draw_budget(records: Mapping[str, pages.Record], runs: pathlib.Path,
                path: pathlib.Path) -> None:
  """Draws figure 2: epsilon, delta, noise and accuracy by the number of parties."""
  del runs
  points = {n: pages.values(records[name]) for n in PARTIES_RUN
            if (name := f'fedmd/cifar-k16-softmax-{n}') in records}
  figure, axes = _panels(3.75, 3.6, 4 if points else 3)
  for name, size in RECORDS.items():
    draws = [events.Nfdp(records=size // n, subset_size=DRAWS) for n in PARTIES]
    for axis, values in zip(axes, (
        [event.published_epsilon for event in draws],
        [event.draw_probability for event in draws],
        [ldp_stddev(event) for event in draws])):
      axis.loglog(PARTIES, values, marker='o', label=name)
  for axis, title in zip(axes, (
      f'(a) ε of {DRAWS} draws, natural log.', f'(b) δ of {DRAWS} draws',
      f'(c) σ of LDP at that ε and δ, {QUERIES:,} queries')):
    axis.set_title(title, fontsize=10)
    axis.set_xlabel('parties')
    axis.grid(alpha=0.3)
  axes[0].legend()
  if points:
    counts = sorted(points)
    axes[3].plot(counts, [statistics.fmean(points[n]) for n in counts], marker='o',
                 color='tab:orange')
    # Every run, in addition to their mean.
    axes[3].plot(*zip(*((n, value) for n in counts for value in points[n])), '.',
                 color='tab:gray')
    axes[3].set_title('(d) accuracy (%), CIFAR, k = 16, softmax', fontsize=10)
    axes[3].set_xlabel('parties')
    axes[3].grid(alpha=0.3)
  _save(figure, path)


def draw_rounds(records: Mapping[str, pages.Record], runs: pathlib.Path,
                path: pathlib.Path) -> None:
  """Draws figure 3: the accuracy of every party over the rounds."""
  del runs
  chosen = [(title, records[f'fedmd/{name}']['runs'][0]['curve']) for title, name in (
      ('letters, all draws', 'mnist_letters-kall'), ('CIFAR, all draws', 'cifar-kall'),
      ('CIFAR, k = 16', 'cifar-k16-softmax-10')) if f'fedmd/{name}' in records]
  if not chosen:
    return
  figure, axes = _panels(5, 3.8, len(chosen))
  for axis, (title, history) in zip(axes, chosen):
    history = 100 * np.array(history)
    axis.plot(history, linewidth=1, alpha=0.7)
    axis.plot(history.mean(axis=1), color='black', linewidth=2, label='mean')
    axis.set_title(title, fontsize=10)
    axis.set_xlabel('communication round')
    axis.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axis.set_ylabel('test accuracy of each party (%)')
    axis.grid(alpha=0.3)
    axis.legend()
  _save(figure, path)


def draw_replacement(records: Mapping[str, pages.Record], runs: pathlib.Path,
                     path: pathlib.Path) -> None:
  """Draws figure 4: epsilon and delta with and without replacement, 100 records."""
  del records, runs
  sizes = np.arange(1, 100)
  figure, axes = _panels(4.5, 3.6, 2)
  for replacement, name in ((True, 'with'), (False, 'without')):
    draws = [events.Nfdp(records=100, subset_size=int(k), replacement=replacement)
             for k in sizes]
    axes[0].plot(sizes, [event.published_epsilon for event in draws],
                 label=f'{name} replacement')
    axes[1].plot(sizes, [event.draw_probability for event in draws])
  for axis, title in zip(axes, ('(a) ε, n = 100', '(b) δ, n = 100')):
    axis.set_title(title, fontsize=10)
    axis.set_xlabel('draws k')
    axis.grid(alpha=0.3)
  axes[0].legend()
  _save(figure, path)
