"""Draws the errors of the local mechanisms against epsilon.

  python -m tff_pipelines.ldp_figure --output=out/figures/local_mechanisms.png

On the left the worst-case variance of one coordinate, on the right the error of the
mean of many clients' vectors. Lines are the formulas of what is drawn; points are
measured by drawing, with 95% intervals.

Exit codes: 0; 2 for a wrong flag or a file that can't be written.
"""

import os
import pathlib
import sys

from absl import flags

from aggregators import validate
from tff_pipelines import cli

flags.DEFINE_string('output', 'out/figures/local_mechanisms.png', 'PNG file.')
flags.DEFINE_integer('clients', 1000, 'Whose mean is estimated, on the right.')
flags.DEFINE_integer('dimension', 10, 'Coordinates of their vectors.')
flags.DEFINE_integer('draws', 20_000, 'Outputs behind each point on the left; the '
                     'right takes as many vectors.')

FLAGS = flags.FLAGS


def main(argv: list[str]) -> int:
  del argv  # Unused.
  validate.integer(clients=FLAGS.clients, dimension=FLAGS.dimension, low=1)
  validate.integer(draws=FLAGS.draws, low=2)
  if not FLAGS.output:
    raise ValueError('output must be a path, found an empty one')
  path = pathlib.Path(FLAGS.output)
  path.parent.mkdir(parents=True, exist_ok=True)
  # TensorFlow takes seconds to import: --help and wrong flags need not wait.
  from tff_pipelines import ldp_mechanisms_figure  # pylint: disable=g-import-not-at-top
  ldp_mechanisms_figure.draw(
      path, clients=FLAGS.clients, dimension=FLAGS.dimension, draws=FLAGS.draws)
  print(f'drawn into {os.fspath(path)}', file=sys.stderr)
  return 0


if __name__ == '__main__':
  cli.run(main)
