"""Runs from Python: settings in, a result out.

    from tff_pipelines.api import TrainSettings, train
    result = train(TrainSettings(task=my_task, epsilon=4, rounds=50))

Settings have the names, defaults and checks of the flags. A run prints nothing unless
its setting `verbose` is on; its folder gets all the files that the program writes.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
import types
from typing import Any

from tff_pipelines.experiment import cli  # First: the search path follows from it.
# pylint: disable=g-bad-import-order
from tff_pipelines.common import decimals, files
from tff_pipelines.experiment.callbacks import Callback
from tff_pipelines.experiment.callbacks import StopTraining
from tff_pipelines.fedavg.settings import TrainSettings
from tff_pipelines.voting.settings import VoteSettings

__all__ = ['Callback', 'Result', 'StopTraining', 'TrainSettings', 'VoteSettings',
           'train', 'vote']

# Before a program imports TensorFlow for a model of its own: TensorFlow's messages have
# values of clients' data.
cli.quiet()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """The result of a run.

  Attributes:
    weights: Name -> array of the released model, in the order of its layers. Empty if
      the run releases none.
    guarantee: All numbers of the guarantee and their terms, a
      `accounting.guarantees.guarantee.Guarantee`.
    summary: Content of summary.json; docs/summary.md.
    metrics: A row for each round, a pandas.DataFrame. Its epsilon is of the rounds so
      far; the guarantee of the run is `guarantee`.
    figures: Paths of the figures.
    folder: Folder of the run.
  """

  weights: Mapping[str, Any]
  guarantee: Any
  summary: Mapping[str, Any]
  metrics: Any
  figures: tuple[pathlib.Path, ...]
  folder: pathlib.Path

  def __repr__(self) -> str:
    summary, lines = self.summary, [f'Result in {self.folder}']
    if summary['value'] is not None:
      lines += ['{headline_of}: {headline} {value:.4f}'.format(**summary)]
    for who in ('', '_server'):
      if (epsilon := summary[f'epsilon{who}']) is not None:
        lines += [f'epsilon {decimals.epsilon(epsilon)} at delta {summary["delta"]} '
                  f'against {summary["observers" + who]}']
    return '\n'.join([*lines, f'caveats: {", ".join(summary["caveats"])}'])


def train(settings: TrainSettings, *, callbacks: Sequence[Callback] = ()) -> Result:
  """Trains by federated averaging, or resumes it.

  Args:
    settings: `task` is a name, 'module:function' or a tasks.task.Task.
    callbacks: Called with the index of a round and its metrics after each commit. One
      that returns True or raises StopTraining stops the run, whose epsilon then is
      that of all planned rounds: the decision may follow from what was released.

  Raises:
    ValueError, OSError: For what is wrong with settings, data or the folder; one line.
  """
  from tff_pipelines.fedavg import run  # pylint: disable=g-import-not-at-top
  return _result(run.TrainExperiment(settings), callbacks)


def vote(settings: VoteSettings, *, callbacks: Sequence[Callback] = ()) -> Result:
  """Answers public queries by private votes, and trains a student on the answers.

  Arguments and errors are those of `train`.
  """
  from tff_pipelines.voting import run  # pylint: disable=g-import-not-at-top
  return _result(run.experiment(settings), callbacks)


def _result(experiment: Any, callbacks: Sequence[Callback]) -> Result:
  import pandas  # pylint: disable=g-import-not-at-top
  experiment.callbacks = tuple(callbacks)
  experiment.quiet = not experiment.settings.verbose
  summary = experiment.run()
  folder = experiment.folder
  path = folder / files.METRICS
  return Result(
      weights=types.MappingProxyType(dict(experiment.weights)),
      guarantee=experiment.guarantee, summary=types.MappingProxyType(summary),
      folder=folder,
      metrics=(pandas.read_csv(path, float_precision='round_trip') if path.exists()
               else pandas.DataFrame()),
      figures=tuple(folder / name for name in experiment.figures))
