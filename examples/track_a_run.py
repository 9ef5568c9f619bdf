"""Logs a run to MLflow and to Weights & Biases; `make tracking` installs both.

  python -m examples.track_a_run

They get the settings except for paths, each round's metrics, and at the end the summary
and report.html. They learn when rounds end, which tells of cohorts.
"""

import contextlib
import os

from tff_pipelines import api


class Log:
  """A callback, made of three functions: log metrics, set texts, and copy a file."""

  def __init__(self, log, describe, save):
    self._log, self._describe, self._save = log, describe, save

  def __call__(self, index, metrics):
    # The epsilon of the run may exceed that of its rounds so far.
    self._log({name.replace('epsilon', 'epsilon_so_far'): value
               for name, value in metrics.items()}, step=index)

  def finish(self, result):
    """Logs the summary and the page of an `api.Result`."""
    values = {**result.summary, 'caveats': ', '.join(result.summary['caveats'])}
    self._log({name: value for name, value in values.items()
               if isinstance(value, (int, float))}, step=values['rounds'])
    self._describe({name: x for name, x in values.items() if isinstance(x, str)})
    self._save(os.path.abspath(result.folder / 'report.html'))


def public(settings):
  """The settings without paths."""
  return {name: value for name, value in settings.configuration().items()
          if value is not None and not name.endswith('_path')}


@contextlib.contextmanager
def mlflow_log(settings, **options):
  """Logs to the store of MLflow; `options` go to mlflow.start_run."""
  import mlflow  # pylint: disable=g-import-not-at-top
  # Instead of the path of the program and the name of its user.
  with mlflow.start_run(tags={'mlflow.source.name': '', 'mlflow.user': ''}, **options):
    mlflow.log_params(public(settings))
    yield Log(mlflow.log_metrics, mlflow.set_tags, mlflow.log_artifact)


@contextlib.contextmanager
def wandb_log(settings, **options):
  """Logs to Weights & Biases; `options` go to wandb.init."""
  os.environ.setdefault('WANDB_ERROR_REPORTING', 'false')  # Traces have values.
  import wandb  # pylint: disable=g-import-not-at-top
  reduced = wandb.Settings(  # Nothing of the terminal, the code and the machine.
      console='off', disable_code=True, disable_git=True, disable_job_creation=True,
      x_disable_meta=True, x_disable_stats=True, x_save_requirements=False)
  with wandb.init(config=public(settings), settings=reduced, **options) as run:
    yield Log(run.log, run.summary.update, lambda path: run.save(
        path, base_path=os.path.dirname(path), policy='now'))


def main(settings=None, **wandb_options):
  """Trains, logs to both, and returns the result."""
  settings = settings or api.TrainSettings(task='emnist', epsilon=4, rounds=5)
  with mlflow_log(settings) as one, wandb_log(settings, **wandb_options) as other:
    result = api.train(settings, callbacks=[one, other])
    one.finish(result)
    other.finish(result)
  return result


if __name__ == '__main__':
  main(mode='offline')
