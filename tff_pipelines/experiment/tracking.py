"""Callbacks that log runs to MLflow and to Weights & Biases.

    with tracking.mlflow_callback(settings) as log:
      log.finish(train(settings, callbacks=[log]))

A tracker gets the settings except for paths, each round's metrics, and at the end the
summary and report.html. It learns when rounds end, which tells of cohorts.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import os
from typing import Any

from tff_pipelines.common import files
from tff_pipelines.experiment.settings import Settings


class TrackingCallback:
  """A callback, made of three functions: log metrics, set texts, and copy a file."""

  def __init__(self, log: Callable, describe: Callable, save: Callable):
    self._log, self._describe, self._save = log, describe, save

  def __call__(self, index: int, metrics: Mapping[str, float]) -> None:
    # The epsilon of the run may exceed that of its rounds so far.
    self._log({'epsilon_so_far' if name == 'epsilon' else name: value
               for name, value in metrics.items()}, step=index)

  def finish(self, result: Any) -> None:
    """Logs the summary and the page of a `tff_pipelines.api.Result`."""
    values = {**result.summary, 'caveats': ', '.join(result.summary['caveats'])}
    self._log({name: value for name, value in values.items()
               if isinstance(value, (int, float))}, step=values['rounds'])
    self._describe({name: value for name, value in values.items()
                    if isinstance(value, str)})
    self._save(os.path.abspath(result.folder / files.PAGE))


def _public(settings: Settings) -> dict[str, Any]:
  return {name: value for name, value in settings.configuration().items()
          if value is not None and not name.endswith('_path')}


@contextlib.contextmanager
def mlflow_callback(settings: Settings, **options: Any) -> Iterator[TrackingCallback]:
  """Logs to the store and experiment of MLflow; `options` go to mlflow.start_run."""
  try:
    import mlflow  # pylint: disable=g-import-not-at-top
  except ImportError:
    raise ImportError('mlflow must be installed, by: make tracking') from None
  # Instead of the path of the program and the name of its user.
  tags = {'mlflow.source.name': 'tff_pipelines', 'mlflow.user': ''}
  with mlflow.start_run(tags={**tags, **options.pop('tags', {})}, **options):
    mlflow.log_params(_public(settings))
    yield TrackingCallback(mlflow.log_metrics, mlflow.set_tags, mlflow.log_artifact)


@contextlib.contextmanager
def wandb_callback(settings: Settings, **options: Any) -> Iterator[TrackingCallback]:
  """Logs to Weights & Biases; `options` go to wandb.init."""
  # Traces of errors, with values, would go to its maker.
  os.environ.setdefault('WANDB_ERROR_REPORTING', 'false')
  try:
    import wandb  # pylint: disable=g-import-not-at-top
  except ImportError:
    raise ImportError('wandb must be installed, by: make tracking') from None
  # Nothing of the terminal, the command, the code and the machine.
  reduced = wandb.Settings(
      console='off', disable_code=True, disable_git=True, disable_job_creation=True,
      x_disable_meta=True, x_disable_stats=True, x_save_requirements=False)
  with wandb.init(config=_public(settings), settings=reduced, **options) as run:
    yield TrackingCallback(
        run.log, run.summary.update,
        lambda path: run.save(path, base_path=os.path.dirname(path), policy='now'))
