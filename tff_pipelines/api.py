"""Runs from Python: settings in, a result out.

    from tff_pipelines.api import TrainSettings, train
    result = train(TrainSettings(task=my_task, epsilon=4, rounds=50))

Settings have the names, defaults and checks of the flags. A run prints nothing unless
its setting `verbose` is on; its folder gets all the files that the program writes.
"""

from collections.abc import Sequence
from typing import Any

from tff_pipelines.experiment import cli  # First: the search path follows from it.
# pylint: disable=g-bad-import-order
from tff_pipelines.experiment import callbacks as runs
from tff_pipelines.experiment.callbacks import Callback, Result, StopTraining
from tff_pipelines.fedavg.account_settings import AccountSettings
from tff_pipelines.fedavg.settings import TrainSettings
from tff_pipelines.fedavg.sweep_settings import SweepSettings
from tff_pipelines.fedmd.settings import FedMdSettings
from tff_pipelines.ldp.settings import LdpSettings
from tff_pipelines.mean.settings import MeanSettings
from tff_pipelines.voting.settings import VoteSettings

__all__ = ['AccountSettings', 'Callback', 'FedMdSettings', 'LdpSettings', 'MeanSettings',
           'Result', 'StopTraining', 'SweepSettings', 'TrainSettings', 'VoteSettings',
           'account', 'estimate_mean', 'fedmd', 'ldp', 'plan', 'sweep', 'train', 'vote']

# Before a program imports TensorFlow for a model of its own: TensorFlow's messages have
# values of clients' data.
cli.quiet()


def train(settings: TrainSettings, *, aggregation: Any = None, event: Any = None,
          callbacks: Sequence[Callback] = ()) -> Result:
  """Trains by federated averaging, or resumes it.

  Args:
    settings: `task` is a name, 'module:function' or a tasks.task.Task.
    aggregation: A factory of tff.aggregators for the mean update, in place of a
      mechanism (docs/composing.md).
    event: The event of `accounting.events` that accounts for one sum of it, before
      clients are sampled; None guarantees nothing.
    callbacks: Called with the index of a round and its metrics after each commit. One
      that returns True or raises StopTraining stops the run, whose epsilon then is
      that of all planned rounds: the decision may follow from what was released.

  Raises ValueError or OSError for what is wrong with settings, data or the folder; one
  line.
  """
  from tff_pipelines.fedavg import run  # pylint: disable=g-import-not-at-top
  if aggregation is not None:
    from tff_pipelines.fedavg import aggregation as own  # pylint: disable=g-import-not-at-top
    settings = settings.replace(mechanism='own', aggregation=own.Aggregation(
        name=type(aggregation).__name__, factory=aggregation, event=event))
  elif event is not None:
    raise ValueError('event is not used without an aggregation: leave it out')
  return runs.run(run.TrainExperiment(settings), callbacks)


def plan(settings: TrainSettings) -> Any:
  """Plans a training run without starting it.

  Without data if `settings` have `population` and `dimension`. Returns a
  `fedavg.planning.Planned`; errors are those of `train`.
  """
  from tff_pipelines.fedavg import run  # pylint: disable=g-import-not-at-top
  return run.plan(run.TrainExperiment(settings.replace(plan=True)))


def vote(settings: VoteSettings, *, callbacks: Sequence[Callback] = ()) -> Result:
  """Answers public queries by private votes, and trains a student on the answers.

  Arguments and errors here and below are those of `train`.
  """
  from tff_pipelines.voting import run  # pylint: disable=g-import-not-at-top
  return runs.run(run.experiment(settings), callbacks)


def fedmd(settings: FedMdSettings, *, callbacks: Sequence[Callback] = ()) -> Result:
  """Distils between parties that keep their records and their models."""
  from tff_pipelines.fedmd import run  # pylint: disable=g-import-not-at-top
  return runs.run(run.experiment(settings), callbacks)


def ldp(settings: LdpSettings, *, callbacks: Sequence[Callback] = ()) -> Result:
  """Learns from locally private answers to public queries."""
  from tff_pipelines.ldp import run  # pylint: disable=g-import-not-at-top
  return runs.run(run.experiment(settings), callbacks)


def estimate_mean(settings: MeanSettings) -> Result:
  """Estimates means of clients' vectors; `summary` has a row for each setting."""
  from tff_pipelines.mean import run  # pylint: disable=g-import-not-at-top
  return runs.run(run.MeanExperiment(settings))


def sweep(settings: SweepSettings) -> Any:
  """Trains with several settings, each in a process of its own.

  Returns a pandas.DataFrame with a row for each setting.
  """
  import pandas  # pylint: disable=g-import-not-at-top
  from tff_pipelines.fedavg import sweep as sweep_lib  # pylint: disable=g-import-not-at-top
  return pandas.DataFrame(sweep_lib.sweep(settings))


def account(settings: AccountSettings) -> Sequence[Any]:
  """Answers a question to the accountant; no data are read.

  Returns one `accounting.guarantees.answers.Answer`, or those of a table. Raises
  ValueError where the chain of a ledger does not hold.
  """
  from tff_pipelines.accounting.guarantees import ledger  # pylint: disable=g-import-not-at-top
  from tff_pipelines.fedavg import account as account_lib  # pylint: disable=g-import-not-at-top
  for path in settings.ledger or ():
    if problems := ledger.Ledger(path).verify():
      raise ValueError(f'{path}: the chain does not hold: {problems[0]}')
  return account_lib.found(settings)[0]
