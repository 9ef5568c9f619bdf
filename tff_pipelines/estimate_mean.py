"""Estimates the mean of clients' vectors privately, over many settings.

Distributed mean estimation as in arXiv 2110.04995, section 5.1: n vectors on a
sphere in d dimensions, one release, the error of the estimate against epsilon
and the bits of a coordinate, beside the Gaussian mechanism.

  python -m tff_pipelines.estimate_mean
  python -m tff_pipelines.estimate_mean --n=100,1000 --d=250 \\
      --bits=10,12,14,16,18,20 --epsilon=1,2,3,4,5,6,7,8 --repeats=20 \\
      --allow_degenerate --output_dir=out/figures/mean_estimation

Every setting is calibrated before anything runs, then really executed: each
client's vector is clipped, rotated, rounded and noised, and added modulo 2^bits.
The output folder gets results.csv, results.json and mean_estimation.png. A
setting that is there already is not run again.

Exit codes: 0; 2 for a wrong flag or a folder that can't be used.
"""

from typing import Callable

from absl import flags

from tasks import mean_estimation as vectors_lib
from tff_pipelines import cli
from tff_pipelines import mean_plan

_SWEEP = 'sweep (a comma-separated list): '
_PRIVACY = 'privacy: '
_RUN = 'run: '

flags.DEFINE_string('n', '100', _SWEEP + 'Clients.')
flags.DEFINE_string('d', '250', _SWEEP + 'Dimension of a vector.')
flags.DEFINE_string('bits', '10,12,16', _SWEEP + 'Bits of a coordinate of the sum, '
                    '2 to 30.')
flags.DEFINE_string('epsilon', '1,2,4,8', _SWEEP + 'Target of one release.')
flags.DEFINE_string('mechanisms', 'skellam,gaussian,gaussian_rdp', _SWEEP +
                    'skellam, discrete_gaussian: clients add noise, the sum under '
                    'secure aggregation. skellam_central, gaussian: the server '
                    'adds noise; gaussian is accounted analytically. '
                    'gaussian_rdp: the same, accounted as Skellam is.')
flags.DEFINE_float('delta', 1e-5, _PRIVACY + 'Strictly between 0 and 1.')
flags.DEFINE_float('clip', 10.0, _PRIVACY + 'L2 clip, and the norm of every '
                   'vector.')
flags.DEFINE_float('k_stddevs', 2.0, _PRIVACY + 'Standard deviations of a '
                   'coordinate of the sum inside half the field.')
flags.DEFINE_float('beta', 0.60653066, _PRIVACY + 'Bias of the conditional '
                   'rounding, in [0, 1); the default is exp(-1/2).')
flags.DEFINE_enum('accountant', 'auto', mean_plan.ACCOUNTANTS, _PRIVACY +
                  'auto: the tightest of each mechanism. rdp: for all.')
flags.DEFINE_bool('allow_degenerate', False, _PRIVACY + 'Accept grids too coarse '
                  'to be useful, and leave out what no noise makes private, both '
                  'with a warning.')
flags.DEFINE_integer('seed', None, _PRIVACY + 'Simulation seed: makes noise and '
                     'rounding repeatable and void of any guarantee.')
flags.DEFINE_enum('vectors', 'sphere', vectors_lib.VECTORS, _RUN + 'sphere: each '
                  'client has its own. identical: all have the same, the case '
                  'that the modulus is sized for.')
flags.DEFINE_integer('data_seed', 0, _RUN + 'Of the vectors.')
flags.DEFINE_integer('repeats', 10, _RUN + 'Data sets, each released once, of '
                     'every setting.')
flags.DEFINE_string('output_dir', None, _RUN + 'Folder of the results; a new one '
                    'below out/ if not given.')

FLAGS = flags.FLAGS


def _values(name: str, convert: Callable[[str], object], kind: str) -> tuple:
  text = FLAGS[name].value
  try:
    return tuple(convert(part.strip()) for part in text.split(','))
  except ValueError:
    raise ValueError(f'{name} must be a comma-separated list of {kind}, found '
                     f'{text!r}') from None


def _config() -> mean_plan.MeanConfig:
  names = ('delta', 'clip', 'k_stddevs', 'beta', 'accountant', 'vectors',
           'repeats', 'data_seed', 'seed', 'allow_degenerate')
  return mean_plan.MeanConfig(
      n=_values('n', int, 'integers'), d=_values('d', int, 'integers'),
      bits=_values('bits', int, 'integers'),
      epsilon=_values('epsilon', float, 'numbers'),
      mechanisms=_values('mechanisms', str, 'names'),
      **{name: FLAGS[name].value for name in names})


def _unused(config: mean_plan.MeanConfig) -> list[str]:
  if config.uses_grid:
    return []
  return [f'--{name} is not used by mechanisms={",".join(config.mechanisms)}'
          for name in sorted(mean_plan.GRID_FIELDS) if FLAGS[name].present]


def main(argv: list[str]) -> int:
  del argv  # Unused.
  if FLAGS.output_dir == '':
    raise ValueError('output_dir must be a path, found an empty one')
  config = _config()
  cells, warnings = mean_plan.plan(config)
  # TensorFlow takes seconds to import: --help and wrong flags need not wait.
  from tff_pipelines import mean_estimation  # pylint: disable=g-import-not-at-top
  mean_estimation.run(config, cells, warnings + _unused(config),
                      FLAGS.output_dir)
  return 0


if __name__ == '__main__':
  cli.run(main)
