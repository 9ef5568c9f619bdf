"""Draws the errors of the local mechanisms against epsilon.

  python -m tff_pipelines.ldp_figure --output=out/figures/local_mechanisms.png

On the left the worst-case variance of one coordinate, on the right the error of the
mean of many clients' vectors. Lines are the formulas of what is drawn; points are
measured by drawing, with 95% intervals.
"""

from tff_pipelines.experiment import cli
from tff_pipelines.ldp.settings import FigureSettings

main = cli.program(__name__, FigureSettings, 'tff_pipelines.ldp.mechanisms_figure:run')
