"""One experiment for all families: settings, task, plan, rounds, report.

A family subclasses `Experiment` and adds what is its own; the folder, the configuration
check, the ledger's header, the context, the loop of commits, the files of the trained
model, summary, report and figures are here.
"""

import abc
from collections.abc import Collection, Iterable, Mapping, Sequence
import dataclasses
import math
import pathlib
import types
from typing import Any, ClassVar

import numpy as np

import tff_pipelines
from tff_pipelines.accounting.guarantees import plan as guarantee_lib
from tff_pipelines.common import caveats as caveats_lib, decimals, files
from tff_pipelines.experiment import (
    callbacks as callbacks_lib, charged_records, configurations, failures, models, pages,
    records as records_lib, report, rounds as rounds_lib, settings as settings_lib)
from tff_pipelines.experiment.page_document import Verdict
from tff_pipelines.simulation import contexts, ray_transport

# Digests of data of all clients.
_FINGERPRINTS = ('data_fingerprint', 'examples_fingerprint')
# Relative error that the order of operations may make.
_ROUNDING = 1e-9
# Settings that may change with the number of rounds: it and the targets that it costs.
_RESTATED = frozenset({'rounds', 'epsilon', 'epsilon_server'})
_FOLLOWED = ('what else that followed from, such as metrics on held-out examples, is '
             'outside the guarantee')
_CAVEATS = {
    'stopped early':
        'the run was stopped after round {0} of {1}: epsilon is that of all {1}, since '
        f'what was released may have decided that; {_FOLLOWED}',
    'rounds run again':
        'checkpoints were damaged: epsilon also counts {} rounds that were released '
        'before and are not in the result',
    'rounds added':
        'rounds were added to a run that was planned for {}: epsilon is that of all, '
        'whether or not what was released decided that, as long as no more are added; '
        f'{_FOLLOWED}'}
# Whether workers of a cluster compute -> who can read clients' rows.
_RAW_ROWS = {False: 'The operator of the machine on which the run simulated all clients',
             True: 'The operators of the cluster on which the run simulated all clients'}


class Experiment(abc.ABC):
  """A family's experiment.

  Attributes:
    family: Name of its program.
    takes_more_rounds: Whether a run may be resumed with more rounds than were planned,
      at the noise that was calibrated; the family then checks the new epsilon.
    kept_as: File of the answers of a charged step; see `ChargedRecords`.
    folder: Folder of the run; exists once the run has started.
    callbacks: Called after each commit of a round.
    guarantee, weights, figures: All numbers of the guarantee, name -> array of the
      released model, and names of the figures, once the run is over.
    earlier_rounds: Numbers of rounds that were planned before more were added.
  """

  family: ClassVar[str]
  takes_more_rounds: ClassVar[bool] = False
  kept_as: ClassVar[str] = 'answers/{:06}.npz'
  callbacks: Sequence[callbacks_lib.Callback] = ()
  quiet: bool = False
  guarantee: guarantee_lib.Guarantee
  weights: Mapping[str, np.ndarray] = types.MappingProxyType({})
  figures: Collection[str] = ()
  earlier_rounds: Sequence[int] = ()

  def __init__(self, settings: settings_lib.FolderSettings):
    self.settings = settings
    self.folder = files.new_folder(*self.folder_words()) if (
        settings.output_dir is None) else pathlib.Path(settings.output_dir)

  def folder_words(self) -> tuple[str, ...]:
    """Words that name the folder of a run that gives none."""
    return (self.family,)

  @abc.abstractmethod
  def build_task(self) -> Any:
    """Data and models. Raises ValueError for bad data."""

  def identity(self, task: Any) -> dict[str, Any]:
    """Identity of the data, as JSON; a run is only resumed on the same.

    `data_fingerprint` and `examples_fingerprint`, digests of data of all clients, are
    recorded by a secret key of the run, all else as it is.
    """
    return {}

  def keyed(self, identity: Mapping[str, Any]) -> dict[str, Any]:
    """An `identity` as it is recorded: what follows from all clients' data, keyed."""
    key = files.read_key(self.folder)
    return {name: files.keyed(value, key) if name in _FINGERPRINTS else value
            for name, value in identity.items()}

  def targets(self) -> dict[str, float]:
    """Name of an epsilon -> target that the plan's must not exceed."""
    return {name: value for name in ('epsilon', 'epsilon_server')
            if (value := getattr(self.settings, name, None)) is not None}

  @abc.abstractmethod
  def build_plan(self, task: Any,
                 recorded: Mapping[str, Any] | None) -> guarantee_lib.Plan:
    """The calibrated plan.

    `recorded` is the configuration of the plan that an earlier start recorded, whose
    calibrated numbers are taken over; None for a new run.
    """

  @abc.abstractmethod
  def describe(self, task: Any, plan: guarantee_lib.Plan) -> report.Description:
    """Description of the run before its first round."""

  def released(self, task: Any, plan: guarantee_lib.Plan,
               records: records_lib.RunRecords) -> Any:
    """Makes releases before the first round; returns the task that they complete."""
    return task

  def release_last(self, task: Any, plan: guarantee_lib.Plan,
                   records: records_lib.RunRecords, rounds: rounds_lib.Rounds,
                   last: Any) -> None:
    """Makes releases after the last round, which `outcome` reports."""

  def keep(self, task: Any) -> None:
    """Writes files that the run needs when it is resumed, before the first round."""

  @abc.abstractmethod
  def build_rounds(self, task: Any, plan: guarantee_lib.Plan
                   ) -> rounds_lib.Rounds | rounds_lib.ChargedRounds:
    """The rounds, or the charged steps, of the run."""

  @abc.abstractmethod
  def outcome(self, task: Any, plan: guarantee_lib.Plan, rounds: Any,
              last: Any) -> report.Outcome:
    """Outcome of the run; may train further on what was released.

    `last` is the last state of rounds, or the `ChargedRecords` of charged steps.
    """

  def serving(self, trained: models.Trained) -> Any:
    """The tasks.task.Serving of a trained model, without its data where possible.

    Raises ValueError if the family trains no model, or the model is of other settings.
    """
    raise ValueError(f'a run of {self.family} trains no model')

  def evaluate(self, task: Any,
               trained: models.Trained) -> Mapping[str, Mapping[str, float | None]]:
    """Held-out set of the run -> metric -> value, as in the summary of the run."""
    raise ValueError(f'a run of {self.family} trains no model')

  def write_bad(self) -> failures.OnBad:
    """A function that tells the operator of a client whose data are bad."""
    return failures.write_bad_clients(self.folder / files.PRIVATE / failures.BAD_CLIENTS)

  def read_by_workers(self, task: Any) -> Sequence[Any]:
    """`simulation.proofs.DataProof`s of what workers read; ValueError if they can't."""
    return ()

  def planned_rounds(self, plan: guarantee_lib.Plan) -> int:
    """Number of rounds that the plan is printed for."""
    return 1

  def run_line(self, plan: guarantee_lib.Plan, rounds: int) -> str:
    """The run in one line, for the report."""
    return f'{rounds} rounds'

  def run(self) -> dict[str, Any]:
    """Runs or resumes, and reports; OSError or ValueError, one line, for a mistake."""
    self.settings.check_paths()
    if self._on_ray:
      ray_transport.check(self.settings.engine_address)
    with files.locked(self.folder), failures.reported(self.folder):
      return self._run()

  @property
  def where(self) -> dict[str, Any]:
    """Keyword arguments of `simulation.contexts.started`."""
    return getattr(self.settings, 'where', {})

  @property
  def raw_rows(self) -> str:
    """Who can read clients' rows, for the privacy statement."""
    return _RAW_ROWS[self._on_ray]

  @property
  def _on_ray(self) -> bool:
    return getattr(self.settings, 'engine', 'local') == 'ray'

  def _run(self) -> dict[str, Any]:
    recorded = self._recorded()
    task = self.build_task()
    data = self.read_by_workers(task)
    identity = self.identity(task)  # Raises what does not fit the task.
    if recorded is not None:
      identity = self.keyed(identity)
      self._check_same(name for name, value in identity.items()
                       if recorded['identity'].get(name, value) != value)
    plan = self.build_plan(task, None if recorded is None else recorded['plan'])
    description = self.describe(task, plan)
    more = [caveats_lib.PARTIAL_SUMS] * self._on_ray
    if recorded is None:
      files.create_folder(self.folder)
      files.new_key(self.folder)
      identity = self.keyed(identity)
    configuration = {'family': self.family, 'settings': self.settings.configuration(),
                     'identity': identity, 'plan': plan.configuration()}
    if self.earlier_rounds:
      configuration['earlier_rounds'] = list(self.earlier_rounds)
      more.append(_caveat('rounds added', self.earlier_rounds[-1]))
    description = dataclasses.replace(description, caveats=[*description.caveats, *more])
    count, header = self.planned_rounds(plan), {}
    planned = plan.guarantee(count)
    if recorded is None:
      header = plan.header(count, description.caveats)
    else:
      self._check_targets(planned if plan.calibrated is plan else
                          plan.calibrated.guarantee(count))
    records = records_lib.RunRecords(
        self.folder, configuration, header, resume=self.settings.resume,
        replace=recorded is not None and self._adds_rounds(recorded),
        engine='ray' if self._on_ray else getattr(self.settings, 'engine', 'local'))
    files.write_json(self.folder / files.PATHS, self.settings.paths())
    self._print('\n'.join(report.plan_lines(description, planned, self.folder)))
    task = self.released(task, plan, records)
    self.keep(task)
    with contexts.simulation(**self.where, data=data):
      rounds = self.build_rounds(task, plan)
      if isinstance(rounds, rounds_lib.ChargedRounds):
        last = charged_records.ChargedRecords(records, self.kept_as)
        rounds_lib.run_charged(rounds, last, self.quiet)
      else:
        last = rounds_lib.run(rounds, plan, records, self.callbacks, self.quiet)
        self.release_last(task, plan, records, rounds, last)
      outcome = self.outcome(task, plan, rounds, last)
    return self._finish(plan, records, description, outcome)

  def _recorded(self) -> dict[str, Any] | None:
    """The record of an earlier start; ValueError if it had other settings."""
    if (recorded := configurations.read(self.folder)) is None:
      return None
    if recorded['family'] != self.family:
      raise ValueError(f'output_dir={self.folder} holds a run of another program, '
                       f'{recorded["family"]}')
    configurations.check_ledger(self.folder, recorded)
    then, now = recorded['settings'], self.settings.configuration()
    differences = self.settings.differences(then)
    self.earlier_rounds = recorded.get('earlier_rounds', ())
    if self._adds_rounds(recorded) and _RESTATED.issuperset(differences):
      differences = []
      self.earlier_rounds = (*self.earlier_rounds, then['rounds'])
    self._check_same(f'{name} ({then.get(name)!r} then, {now.get(name)!r} now)'
                     for name in differences)
    return recorded

  def _adds_rounds(self, recorded: Mapping[str, Any]) -> bool:
    """Whether more rounds are asked for than an earlier start recorded."""
    return self.takes_more_rounds and (
        self.settings.rounds > recorded['settings'].get('rounds', math.inf))

  def _check_targets(self, planned: guarantee_lib.Guarantee) -> None:
    """Raises ValueError if the plan of a resumed run exceeds its targets."""
    bounds = {'epsilon': planned.of_everyone or planned.outsiders,
              'epsilon_server': planned.server}
    for name, target in self.targets().items():
      if (bound := bounds[name]) is not None and bound.epsilon > target * (1 + _ROUNDING):
        raise ValueError(
            f'output_dir={self.folder} holds a run whose recorded noise gives '
            f'{name}={decimals.epsilon(bound.epsilon)}, above the target {target:g}')

  def _print(self, text: str) -> None:
    if not self.quiet:
      print(text, flush=True)

  def _check_same(self, differences: Iterable[str]) -> None:
    """Raises ValueError if an earlier start recorded something else."""
    if names := ', '.join(differences):
      raise ValueError(f'output_dir={self.folder} holds a checkpoint of another '
                       f'configuration: {names} differ')

  def _finish(self, plan: guarantee_lib.Plan, records: records_lib.RunRecords,
              description: report.Description, outcome: report.Outcome) -> dict[str, Any]:
    """Writes summary, report, page and figures, and prints the report."""
    guarantee = self.guarantee = plan.guarantee_of(records.ledger)
    self.figures = tuple(outcome.figures)
    if '' in outcome.trained:
      self.weights = outcome.trained[''].arrays
    planned = len(records.ledger.lines()) - records.outside_rounds
    rounds = planned - records.unused
    caveats = report.ordered([
        *guarantee.caveats,
        *[_caveat('stopped early', rounds, planned)] * bool(records.unused),
        *[_caveat('rounds run again', len(records.lost))] * bool(records.lost),
        *[caveats_lib.PARTIAL_SUMS] * ('ray' in records.engines),
        *description.caveats, *outcome.caveats])
    summary = report.summary_of(
        self.family, guarantee, outcome, caveats, rounds=rounds,
        starts=records.starts, configuration=records.configuration['hash'], about={
            'unit_name': self.settings.unit_name,
            'data_description': self.settings.data_description,
            'raw_rows': self.raw_rows, 'version': tff_pipelines.__version__,
            'date': configurations.begun_on(self.folder)})
    for name, trained in outcome.trained.items():
      trained.write(self.folder / name)
    files.write_json(self.folder / files.SUMMARY, summary)
    for name, draw in outcome.figures.items():
      with files.replacing(self.folder / name) as path:
        draw(path)
    line = self.run_line(plan, rounds)
    text = report.full_report(description, guarantee, outcome, caveats, self.folder, line)
    files.write_atomically(self.folder / files.REPORT, text)
    # The numbers of this guarantee are those of the ledger.
    verdict = Verdict(rounds=len(records.ledger.lines()), guarantee=guarantee,
                      problems=records.ledger.verify())
    pages.write(self.folder / files.PAGE, [pages.read(self.folder, verdict)])
    self._print('\n' + (text.rstrip('\n') if self.settings.verbose else '\n'.join(
        report.report_lines(guarantee, outcome, caveats, self.folder, line))))
    return summary


def _caveat(name: str, *numbers: int) -> caveats_lib.Caveat:
  return caveats_lib.Caveat(name, _CAVEATS[name].format(*numbers))
