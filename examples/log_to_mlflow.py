"""Logs a run to MLflow; `make tracking` installs its client.

  python -m examples.log_to_mlflow

It gets settings without paths, the metrics of rounds when they end, which tells of
cohorts, the summary and report.html.
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
    self._log({name: x for name, x in values.items() if isinstance(x, (int, float))},
              step=values['rounds'])
    self._describe({name: x for name, x in values.items() if isinstance(x, str)})
    self._save(os.path.abspath(result.folder / 'report.html'))


def public(settings):
  """The settings without paths."""
  return {name: x for name, x in settings.configuration().items()
          if x is not None and not name.endswith('_path')}


@contextlib.contextmanager
def mlflow_log(settings, **options):
  """Logs to the store of MLflow; `options` go to mlflow.start_run."""
  import mlflow  # pylint: disable=g-import-not-at-top
  tags = {'mlflow.source.name': '', 'mlflow.user': ''}  # No path, no user's name.
  with mlflow.start_run(tags=tags, **options):
    mlflow.log_params(public(settings))
    yield Log(mlflow.log_metrics, mlflow.set_tags, mlflow.log_artifact)


def main(settings=api.TrainSettings(task='emnist', epsilon=4, rounds=5)):
  """Trains, logs, and returns the result."""
  with mlflow_log(settings) as log:
    log.finish(result := api.train(settings, callbacks=[log]))
  return result


if __name__ == '__main__':
  main()
