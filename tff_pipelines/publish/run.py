"""A finished run and its trained model, opened from the run's folder."""

import dataclasses
import importlib
import pathlib
from typing import Any

from tasks import registry
from tasks.task import Serving
from tff_pipelines.accounting.events import preliminary
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.common import files
from tff_pipelines.experiment import (
    configurations, models, report, run as run_lib, settings as settings_lib)

# Family of runs that train -> module with `experiment`, a function of the settings, and
# the class of these.
_FAMILIES = {
    'train': ('tff_pipelines.fedavg.run', 'TrainSettings'),
    'vote': ('tff_pipelines.voting.run', 'VoteSettings'),
    'fedmd': ('tff_pipelines.fedmd.run', 'FedMdSettings'),
    'ldp': ('tff_pipelines.ldp.run', 'LdpSettings'),
    'ldp_baselines': ('tff_pipelines.ldp.baselines', 'BaselineSettings')}
# Key of an export's description: the family and the settings that its use takes. They
# are public: no path, cohort or time, and nothing that was counted.
SERVED = 'served'
_PUBLIC = ('task', 'model', 'missing', 'num_classes', 'class_names', 'only_digits',
           'sequence_length', 'data_source', 'client_field', 'text_field', 'image_field',
           'label_field', 'dark_ink')
# Family whose parties have a model each, and the folder of these.
_OF_PARTIES, _PARTIES = 'fedmd', 'parties'


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinishedRun:
  """A run that is over, or an export of it, which has no summary.

  `party` is that whose model is meant, None for the model of all.
  """

  folder: pathlib.Path
  summary: dict[str, Any] | None
  experiment: run_lib.Experiment
  party: str | None = None

  @property
  def is_export(self) -> bool:
    return self.summary is None

  @property
  def public_settings(self) -> dict[str, Any]:
    """The family, and the settings that the use of the trained model takes."""
    given = configurations.read(self.folder)['settings']
    return {
        'family': self.experiment.family,
        'has_files': getattr(self.experiment.settings, 'data_path', None) is not None,
        'settings': {
            name: given[name] for name in _PUBLIC if given.get(name) is not None}}

  def trained(self) -> models.Trained:
    """The trained model; ValueError if a party must be given, or there is none."""
    if (self.party is None and not self.is_export and
        self.experiment.family == _OF_PARTIES):
      raise ValueError('party must be given, such as party_0')
    folder = self.folder if self.party is None else self.parties / self.party
    if (trained := models.read(folder)) is None:
      raise ValueError(f'{folder} has no {models.ARRAYS}: --resume writes it')
    return trained

  @property
  def parties(self) -> pathlib.Path:
    return self.folder / files.PRIVATE / _PARTIES

  def serving(self, trained: models.Trained) -> Serving:
    """How the model is served. Raises ValueError if the weights do not fit."""
    serving = self.experiment.serving(trained)
    expected = serving.model.named(serving.model.initial_weights(0))
    shapes = lambda arrays: [(name, array.shape) for name, array in arrays.items()]
    if shapes(expected) != shapes(trained.arrays):
      raise ValueError(f'{self.folder}: {models.ARRAYS} must have the arrays of the '
                       f'model {serving.model.name}, found those of another')
    if serving.model.predict is None:
      raise ValueError(f'model {serving.model.name} must have a predict, found none')
    return serving

  def own_figures(self) -> dict[str, dict[str, float | None]]:
    """Held-out set -> metric -> its mean over parties; ValueError for other data."""
    if self.is_export:
      raise ValueError(f'data_path must be given: {self.folder} is an export')
    experiment = self.experiment
    task = experiment.build_task()
    recorded = configurations.read(self.folder)['identity']
    if any(recorded.get(name, value) != value
           for name, value in experiment.keyed(experiment.identity(task)).items()):
      raise ValueError(f'the data are not those of the run in {self.folder}: '
                       'give --data_path to evaluate on other data')
    if self.party is not None or experiment.family != _OF_PARTIES:
      return experiment.evaluate(task, self.trained())
    names = sorted((folder.name for folder in self.parties.iterdir()),
                   key=lambda name: int(name.rpartition('_')[2]))
    every = [experiment.evaluate(task, dataclasses.replace(self, party=name).trained())
             for name in names]
    return {name: {metric: sum(one[name][metric] for one in every) / len(every)
                   for metric in values} for name, values in every[0].items()}


def read_finished(folder: str, party: str | None = None) -> FinishedRun:
  """Opens a finished run; ValueError if it is none, is damaged, or lacks the party."""
  path = pathlib.Path(folder)
  configuration = configurations.read(path)
  if is_export := configuration is None:
    configuration = _exported(path)
  if (family := configuration['family']) not in _FAMILIES:
    raise ValueError(f'run={folder} is a run of {family}, which trains no model')
  summary = None if is_export else _summary(path, configuration)
  module = importlib.import_module(_FAMILIES[family][0])
  cls = getattr(module, _FAMILIES[family][1])
  paths_file, declared = path / files.PATHS, settings_lib.declared(cls)
  paths = files.read_json(paths_file) if paths_file.exists() else {}
  if is_export:  # An export's files have no digests, which a resumed run would check.
    paths = {option: str(path / name) for option, name in registry.KEPT_FILES.items()
             if (path / name).exists()}
    if configuration['has_files']:  # Some settings need the path, which is not public.
      paths['data_path'] = folder
  paths = {name: value for name, value in paths.items() if name in declared}
  experiment = module.experiment(settings_lib.of_configuration(
      cls, configuration['settings'], output_dir=folder, resume=not is_export, **paths))
  if party is not None:
    known = [one.name for one in (path / files.PRIVATE / _PARTIES).glob('party_*')]
    if party not in known:
      raise ValueError(f'party must be one of {", ".join(sorted(known)) or "none"}, '
                       f'found {party!r}')
  return FinishedRun(folder=path, summary=summary, experiment=experiment, party=party)


def _exported(folder: pathlib.Path) -> dict[str, Any]:
  """The family and the settings that an export tells. Raises ValueError."""
  path = folder / models.DESCRIPTION
  if (served := files.read_json(path).get(SERVED) if path.exists() else None) is None:
    raise ValueError(f'run={folder} holds no run: there is no {files.CONFIGURATION}')
  if not isinstance(served, dict) or set(served) != {
      'family', 'has_files', 'settings'} or not isinstance(served['settings'], dict):
    raise ValueError(f'{path} is damaged: {SERVED} must have family and settings')
  if served['family'] == 'train' and registry.is_own(
      served['settings'].get('task', registry.TASKS[0])):
    raise ValueError(f'run={folder} is an export of a task of your own: give the '
                     'folder of its run')
  return served


def _summary(folder: pathlib.Path, configuration: dict[str, Any]) -> dict[str, Any]:
  """The summary; ValueError unless it is that of all rounds of the ledger."""
  path, ledger = folder / files.SUMMARY, ledger_lib.Ledger(folder / files.LEDGER)
  if not path.exists():
    raise ValueError(f'run={folder} is not finished: continue it with --resume')
  summary = report.read_summary(path)
  if problems := ledger.verify():
    raise ValueError(f'{ledger.path}: the chain does not hold: {problems[0]}')
  lines = ledger.lines()
  # Rounds of a run that was stopped are charged, but were not run.
  done = len(lines) - ledger_lib.unused(lines)
  if (summary['configuration'] != configuration['hash']
      or summary['rounds'] != done - preliminary.count(lines)):
    raise ValueError(f'run={folder} is not finished: continue it with --resume')
  return summary
