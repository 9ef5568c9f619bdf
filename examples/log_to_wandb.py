"""Logs a run to Weights & Biases; `make tracking` installs its client.

  python -m examples.log_to_wandb

It gets what `log_to_mlflow` logs, and learns as much of the run.
"""

import contextlib
import os

from examples import log_to_mlflow
from tff_pipelines import api


@contextlib.contextmanager
def wandb_log(settings, **options):
  """Logs to Weights & Biases; `options` go to wandb.init."""
  os.environ.setdefault('WANDB_ERROR_REPORTING', 'false')  # Traces have values.
  import wandb  # pylint: disable=g-import-not-at-top
  reduced = wandb.Settings(  # Nothing of the terminal, the code and the machine.
      console='off', disable_code=True, disable_git=True, disable_job_creation=True,
      x_disable_meta=True, x_disable_stats=True, x_save_requirements=False)
  config = log_to_mlflow.public(settings)
  with wandb.init(config=config, settings=reduced, **options) as run:
    yield log_to_mlflow.Log(run.log, run.summary.update, lambda path: run.save(
        path, base_path=os.path.dirname(path), policy='now'))


def main(settings=api.TrainSettings(task='emnist', epsilon=4, rounds=5), **options):
  """Trains, logs, and returns the result."""
  with wandb_log(settings, **options) as log:
    log.finish(result := api.train(settings, callbacks=[log]))
  return result


if __name__ == '__main__':
  main(mode='offline')
