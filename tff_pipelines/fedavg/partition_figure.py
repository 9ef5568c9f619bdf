"""A figure of which labels simulated clients have."""

import os

import matplotlib
from matplotlib import figure as figure_lib
import numpy as np

FIGURE = 'clients.png'

# Bars beyond this many would be thinner than a pixel.
_MAX_BARS = 200
# A legend of more labels would cover the figure.
_MAX_LEGEND = 20


def draw(label_counts: np.ndarray, path: str | os.PathLike[str]) -> None:
  """Draws a stacked bar per client to a PNG file.

  Args:
    label_counts: [clients, classes], how often each client has each label. Of
      simulated clients only: of real ones it is private. The figure is as private
      as the examples that they have.
    path: The file, overwritten.
  """
  clients, classes = label_counts.shape
  shown = label_counts[:_MAX_BARS]
  figure = figure_lib.Figure(figsize=(9, 4.2))
  axes = figure.subplots()
  if has_legend := classes <= _MAX_LEGEND:
    colors = matplotlib.colormaps['tab10' if classes <= 10 else 'tab20'].colors
  else:
    colors = matplotlib.colormaps['turbo'](np.linspace(0.0, 1.0, classes))
  edges = np.arange(len(shown) + 1) - 0.5
  tops = np.cumsum(shown, axis=1)
  for label in range(classes):
    # One shape a label: separate bars would take seconds.
    axes.stairs(tops[:, label], edges, baseline=tops[:, label] - shown[:, label],
                fill=True, color=colors[label], label=str(label))
  axes.set_xlim(edges[0], edges[-1])
  axes.set_ylim(0, 1.02 * tops.max())
  axes.set_xlabel('client' if len(shown) == clients else
                  f'client (the first {len(shown)} of {clients:,})')
  axes.set_ylabel('examples, by label' if has_legend else
                  f'examples, by label, 0 (blue) to {classes - 1} (red)')
  if has_legend:
    axes.legend(fontsize=7, ncol=2, loc='center left', bbox_to_anchor=(1.0, 0.5))
  figure.tight_layout()
  figure.savefig(path, dpi=120)
