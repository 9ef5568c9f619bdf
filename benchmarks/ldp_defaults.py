"""Shows how the defaults of local distillation and of its baselines were chosen.

  python -m benchmarks.ldp_defaults

The embedded digits without their test part: 300 of the training records are set aside in
turn, by five seeds, and settings around the defaults are judged by them alone.
"""

import contextlib
import functools
import io
import pathlib
import sys
import tempfile

import numpy as np

from benchmarks.results import rows, splits
from tasks.ldp import task as task_lib
from tff_pipelines.common import files
from tff_pipelines.ldp import baselines, run, settings as settings_lib

SEEDS = range(5)
_ASIDE = 300
# What is varied, the other settings being the defaults.
_STUDENT = (
    {}, *rows.product(refine=('always', 'never')),
    *rows.product(answers_per_client=(1, 3)),
    *rows.product(refine_strength=(0.1, 1.0)), *rows.product(sharpness=(4.0, 16.0)),
    *rows.product(trust=(0.3, 1.0)), *rows.product(refine_steps=(20, 80)),
    *rows.product(sampling=('random',)), *rows.product(mechanism=('krr', 'piecewise')))
_DP_FL = (
    *rows.product(rounds=(8, 15, 30), learning_rate=(7.5, 15.0, 30.0)),
    *rows.product(clip=(0.1, 1.0)), *rows.product(client_learning_rate=(0.3, 3.0)))
_DP_SGD = rows.product(rounds=(150, 300), learning_rate=(20.0, 40.0, 80.0))
_PATE = rows.product(answers=(250, 500), threshold=(0.3, 0.5),
                     threshold_noise=(1.0, 2.0))


def _split(folder: pathlib.Path, seed: int) -> pathlib.Path:
  """Writes the training digits, some of them as the test part."""
  train = task_lib.load('digits', None, None).train
  aside = np.zeros(len(train), bool)
  aside[np.random.default_rng(seed).choice(len(train), _ASIDE, replace=False)] = True
  path = folder / f'digits-{seed}.npz'
  files.write_arrays(path, splits.without_test(
      {'x_train': train.x, 'y_train': train.y, 'num_classes': np.array(10)}, aside))
  return path


def main() -> int:
  """Prints the mean accuracy on records set aside, by program and setting."""
  print('| program | setting | %, mean ± deviation of five seeds |\n|---|---|---|')
  for what, build, execute, tried in (
      ('ldp', settings_lib.LdpSettings, run.run, _STUDENT),
      *((name, functools.partial(settings_lib.BaselineSettings, algorithm=name),
         baselines.run, tried)
        for name, tried in (('dp_fl', _DP_FL), ('dp_sgd', _DP_SGD), ('pate', _PATE)))):
    default = build()
    for given in tried:
      found = []
      with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
          one = build(
              task='npz', data_path=str(_split(pathlib.Path(folder), seed)),
              data_seed=seed, feature_seed=seed, output_dir=f'{folder}/{seed}', **given)
          with contextlib.redirect_stdout(io.StringIO()):
            found.append(100 * execute(one)['value'])
      is_default = all(getattr(default, name) == value for name, value in given.items())
      words = ', '.join(f'{name}={value}' for name, value in given.items())
      print(f'| {what} | {words}{" (default)" * is_default} | {np.mean(found):.2f} ± '
            f'{np.std(found, ddof=1):.2f} |', flush=True)
  return 0


if __name__ == '__main__':
  sys.exit(main())
