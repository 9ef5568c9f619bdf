"""Settings of local distillation and of its baselines."""

import dataclasses
from typing import Any

from tasks.ldp import task as tasks_lib
from tff_pipelines.common import declarations
from tff_pipelines.experiment import settings
from tff_pipelines.fedavg import settings as train

DEFAULT_EPSILON = 8.0
DEFAULT_GAUSSIAN_DELTA = 1e-5
OF_CLASSES, CLASS_EPSILON = ('krr', 'subset'), 4.0

# Test records that are set aside for a target accuracy.
_VALIDATION, _VALIDATION_DIGITS = 1000, 60
_FILES = {'task': tuple(task for task in tasks_lib.TASKS if task != 'digits')}
# Defaults that differ by the algorithm of a baseline.
_DEFAULTS = {'rounds': {'dp_sgd': 300, 'dp_fl': 40},
             'clip': {'dp_sgd': 1.0, 'dp_fl': 0.3},
             'learning_rate': {'dp_sgd': 40.0, 'dp_fl': 3.0}}

_data, _clients, _privacy, _queries, _student = declarations.groups(
    'data', 'clients', 'privacy', 'queries', 'student')
_refined = declarations.group('student', refine=('auto', 'always'))
_pate = declarations.group('privacy', algorithm=('pate',))
_FEDERATED = {'algorithm': ('dp_fl',)}
_dp_fl = declarations.group('training', **_FEDERATED)


def _by_algorithm(name: str, text: str, **rest: Any) -> Any:
  """A field that the algorithms of `_DEFAULTS` use, each with its own default."""
  values = _DEFAULTS[name]
  return declarations.setting(
      None, text, when={'algorithm': tuple(values)}, otherwise=', '.join(
          f'{value:g} for {algorithm}' for algorithm, value in values.items()), **rest)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings(settings.TaskSettings):
  """Settings of the data owners' records, the public images and the features."""

  options_by_task = dict.fromkeys(tasks_lib.TASKS, tasks_lib.OPTIONS)

  task: str = _data('digits', 'digits: scikit-learn\'s. npz: any labelled images. '
      'Others: --data_path, else Keras.', choices=tasks_lib.TASKS, essential=True)
  data_path: str | None = _data(None, 'An .npz file with x_train, y_train, x_test and '
      'y_test.', essential=True, free=True, when=_FILES)
  num_classes: int | None = _data(None, 'Number of classes; labels are below it.',
      low=2, when=_FILES, otherwise='as the file says; 10 for data sets known by name')
  num_clients: int = _data(
      tasks_lib.NUM_CLIENTS, 'Number of data owners.', low=1, essential=True)
  public_records: int | None = _data(None, 'Unlabelled images of the public pool.',
      low=2, otherwise='a tenth of the training part')
  validation_records: int | None = _data(None, 'Test records for --target_accuracy.',
      low=0, otherwise='none; with a target '
      f'{_VALIDATION:,}, {_VALIDATION_DIGITS} of digits')
  partition: str | None = train.like('partition', otherwise='iid')
  dirichlet_alpha: float | None = train.like(
      'dirichlet_alpha', when={'partition': ('dirichlet',)})
  labels_per_client: int | None = train.like(
      'labels_per_client', when={'partition': ('labels',)})
  size_exponent: float | None = train.like('size_exponent', when={'partition': ('size',)})
  data_seed: int | None = train.like('data_seed')
  feature_seed: int = _data(0, 'Seed of the public feature map.', low=0)
  teacher_strength: float = _clients(0.03, 'Ridge penalty of the teachers.', above=0)

  def check(self) -> None:
    super().check()
    if self.task == 'npz' and self.data_path is None:
      raise ValueError('task npz needs data_path, an .npz file')


@dataclasses.dataclass(frozen=True, kw_only=True)
class LdpSettings(settings.RunSettings, DataSettings):
  stand_ins: int | None = _data(None, 'Sets of records that stand in for the owners, '
      'to reproduce published experiments.', low=1)
  records_per_client: int | None = _data(
      None, 'Records of each of the --stand_ins.', low=1)

  mechanism: str = _privacy('subset', 'Mechanism of an owner. krr: k-ary randomized '
      'response. subset: the same of sets of classes, where they are better.',
      choices=('krr', 'subset', 'laplace', 'gaussian', 'piecewise', 'duchi'),
      essential=True)
  epsilon: float | None = _privacy(None, 'Target of all answers of an owner together, '
      'never exceeded.', above=0, essential=True,
      otherwise=f'{DEFAULT_EPSILON:g}, without --epsilon_per_query')
  epsilon_per_query: float | None = _privacy(
      None, 'Epsilon of one answer of an owner.', above=0, essential=True)
  answers_per_client: int | None = _privacy(None, 'Maximum number of answers of an '
      'owner.', low=1, essential=True, otherwise='1, with classes one for each '
      f'{CLASS_EPSILON:g} of epsilon, or what both epsilons allow')
  delta: float | None = _privacy(None, 'Delta of all answers.', above=0, below=1,
      essential=True, otherwise='for gaussian 1/N^1.1 for N owners, at most '
      f'{DEFAULT_GAUSSIAN_DELTA:g}, else none')

  clients_per_query: int = _queries(1, 'Owners that answer a query together; divides '
      '--num_clients.', low=1, essential=True)
  queries_per_step: int = _queries(
      100, 'Queries before the student learns again.', low=1, essential=True)
  max_queries: int | None = _queries(
      None, 'Stop after this number of queries.', low=1, essential=True)
  target_accuracy: float | None = _queries(
      None, 'Stop when the student has it on --validation_records.', above=0, high=1)
  sampling: str = _queries('active', 'active: images that the student is least sure '
      'of. random: any.', choices=('active', 'random'), essential=True)
  sampling_seed: int = _queries(0, 'Public seed of random choices of queries.', low=0)
  temperature: float = _clients(
      0.05, 'Temperature of an owner\'s soft labels; small is hard.', above=0)
  refine: str = _student('auto', 'Train the student on its own labels of images, too. '
      'auto: if held-out answers allow it.', choices=('auto', 'always', 'never'))
  refine_steps: int = _refined(40, 'Steps of the refinement.', low=1)
  refine_strength: float = _refined(0.3, 'Ridge penalty of the refinement.', above=0)
  sharpness: float = _student(
      8.0, 'Factor from the student\'s scores to its logits.', above=0)
  trust: float = _refined(
      0.6, 'Weight of the answers in the refinement.', above=0, high=1)

  def check(self) -> None:
    super().check()
    if None not in (self.epsilon, self.epsilon_per_query, self.answers_per_client):
      raise ValueError('answers_per_client must not be given with both epsilons, '
                       f'found {self.answers_per_client!r}')
    if self.num_clients % self.clients_per_query:
      raise ValueError(f'clients_per_query must divide num_clients={self.num_clients}, '
                       f'found {self.clients_per_query!r}')

  def unused(self):
    yield from super().unused()
    if self.stand_ins is None:
      yield 'records_per_client', 'no stand_ins'
    else:
      yield 'partition', f'stand_ins={self.stand_ins}'
    if self.refine == 'never' and self.sampling == 'random':
      yield 'sharpness', 'refine=never and sampling=random'

  @property
  def task_options(self) -> dict[str, Any]:
    options = super().task_options
    if self.target_accuracy is not None:
      aside = _VALIDATION_DIGITS if self.task == 'digits' else _VALIDATION
      options.setdefault('validation_records', aside)
    return options


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaselineSettings(settings.RunSettings, DataSettings):
  """Settings of a baseline; None where the algorithm has no such setting."""

  algorithm: str = declarations.setting('pate', 'dp_sgd: noisy gradients of a curator. '
      'pate: noisy votes of teachers. dp_fl: federated averaging.',
      group='algorithm', choices=('dp_sgd', 'pate', 'dp_fl'), essential=True)
  epsilon: float = train.like('epsilon', 8.0, when={})
  delta: float = train.like('delta', 1e-05, when={})
  rounds: int | None = _by_algorithm('rounds', 'Steps of dp_sgd, rounds of dp_fl.',
      group='privacy', low=1, essential=True)
  clip: float | None = _by_algorithm('clip', 'L2 clip: of a gradient in dp_sgd, of an '
      'owner\'s update in dp_fl.', group='privacy', above=0, unit='model units')
  record_rate: float = _privacy(0.2, 'Probability that a step samples a record.',
      above=0, high=1, when={'algorithm': ('dp_sgd',)})
  queries: int = _pate(
      1000, 'Public images that pate asks about at most.', low=1, essential=True)
  answers: int = _pate(500, 'Queries that pate answers at most.', low=1, essential=True)
  threshold: float = _pate(
      0.5, 'Fraction of the owners that must agree, in pate.', above=0, high=1)
  threshold_noise: float = _pate(
      2.0, 'Noise of the check for agreement over that of votes, in pate.', above=0)
  learning_rate: float | None = _by_algorithm('learning_rate', 'Learning rate of '
      'dp_sgd, of the server in dp_fl.', group='training', above=0)
  client_learning_rate: float = _dp_fl(
      5.0, 'Learning rate of SGD at an owner, in dp_fl.', above=0)
  client_batch_size: int = _dp_fl(20, 'Records of a step at an owner, in dp_fl.', low=1)
  client_epochs: int = _dp_fl(2, 'Passes over own records in a round of dp_fl.', low=1)

  teacher_strength: float = declarations.like(
      DataSettings, 'teacher_strength', when={'algorithm': ('pate',)})
  local_workers: int = train.like('local_workers', when=_FEDERATED)
  engine: str = train.like('engine', when=_FEDERATED)
  slice_deadline: float = train.like('slice_deadline', when=_FEDERATED)

  def __post_init__(self):
    for name, values in _DEFAULTS.items():
      if getattr(self, name) is None:
        object.__setattr__(self, name, values.get(self.algorithm))
    super().__post_init__()
