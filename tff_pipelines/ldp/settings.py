"""Flags of the distillation binary, turned once into a frozen configuration."""

import dataclasses
from typing import Any, Mapping

from absl import flags

from aggregators import validate
from tasks import ldp_distillation as tasks_lib
from tff_pipelines import ldp_plan

FLAGS = flags.FLAGS

SAMPLINGS = ('active', 'random')
REFINEMENTS = ('auto', 'always', 'never')

_PRIVACY, _QUERIES, _OWNERS = 'privacy: ', 'queries: ', 'owners: '
_STUDENT, _DATA, _RUN = 'student: ', 'data: ', 'run: '

_OF_BUDGET = tuple(ldp_plan.Budget.__dataclass_fields__)
# What may differ between a run and its resumption.
_FREE = ('output_dir', 'resume', 'num_workers')
# Test records that are set aside for a target, unless told otherwise.
_VALIDATION = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class LdpConfig:
  """What a distillation is told.

  Attributes are the flags of the same names; `budget` has those of privacy,
  `task_options` those of the task that were given.
  """

  task: str
  task_options: dict[str, Any]
  budget: ldp_plan.Budget
  seed: int | None = None
  owners_per_query: int = 1
  queries_per_step: int = 100
  max_queries: int | None = None
  target_accuracy: float | None = None
  sampling: str = 'active'
  sampling_seed: int = 0
  teacher_strength: float = 0.03
  temperature: float = 0.05
  feature_seed: int = 0
  refine: str = 'auto'
  refine_steps: int = 40
  refine_strength: float = 0.3
  sharpness: float = 8.0
  trust: float = 0.6
  output_dir: str | None = None
  resume: bool = False
  num_workers: int = 0

  def __post_init__(self):
    validate.one_of(tasks_lib.TASKS, task=self.task)
    validate.one_of(SAMPLINGS, sampling=self.sampling)
    validate.one_of(REFINEMENTS, refine=self.refine)
    validate.integer(owners_per_query=self.owners_per_query,
                     queries_per_step=self.queries_per_step,
                     refine_steps=self.refine_steps, low=1)
    validate.integer(sampling_seed=self.sampling_seed,
                     feature_seed=self.feature_seed, low=0)
    validate.integer(num_workers=self.num_workers, low=0, high=64)
    validate.positive(
        teacher_strength=self.teacher_strength, temperature=self.temperature,
        refine_strength=self.refine_strength, sharpness=self.sharpness)
    validate.fraction(trust=self.trust)
    if self.max_queries is not None:
      validate.integer(max_queries=self.max_queries, low=1)
    if self.target_accuracy is not None:
      validate.fraction(target_accuracy=self.target_accuracy)
    if self.seed is not None:
      validate.integer(seed=self.seed, low=0)
    if self.output_dir == '':
      raise ValueError('output_dir must be a path, found an empty one')
    if self.resume and self.output_dir is None:
      raise ValueError('resume needs output_dir, the folder of the run to continue')

  @property
  def data_options(self) -> dict[str, Any]:
    """Options of the task; a target needs records to measure it on."""
    options = dict(self.task_options)
    if self.target_accuracy is not None:
      default = 60 if self.task == 'digits' else _VALIDATION
      options.setdefault('validation_records', default)
    return options

  def configuration(self) -> dict[str, Any]:
    """What defines the run, as JSON."""
    fields = dataclasses.asdict(self)
    for name in _FREE:
      del fields[name]
    # Where the data lie may change; what they are is in the fingerprint.
    fields['task_options'] = {
        key: value for key, value in self.data_options.items()
        if key != 'data_path'}
    return fields


def define() -> None:
  """Defines all flags."""
  default = LdpConfig(task='digits', task_options={},
                      budget=ldp_plan.Budget(mechanism='piecewise'))
  _define_privacy(default)
  flags.DEFINE_integer('owners_per_query', default.owners_per_query, _QUERIES +
                       'Owners that answer a query together; it divides --owners.')
  flags.DEFINE_integer('queries_per_step', default.queries_per_step, _QUERIES +
                       'Asked at a time, then the student learns.')
  flags.DEFINE_integer('max_queries', None, _QUERIES + 'Stop after so many, even if '
                       'the budget allows more.')
  flags.DEFINE_float('target_accuracy', None, _QUERIES + 'Stop when the student has '
                     'it on --validation_records, which then are set aside.')
  flags.DEFINE_enum('sampling', default.sampling, SAMPLINGS, _QUERIES + 'active: '
                    'images that the student is least sure of. random: any.')
  flags.DEFINE_integer('sampling_seed', default.sampling_seed, _QUERIES + 'Of random '
                       'choices of queries, which are public.')
  flags.DEFINE_float('teacher_strength', default.teacher_strength, _OWNERS + 'Ridge '
                     'penalty of an owner\'s teacher.')
  flags.DEFINE_float('temperature', default.temperature, _OWNERS + 'Of soft labels; '
                     'small is hard.')
  flags.DEFINE_integer('feature_seed', default.feature_seed, _STUDENT + 'Of the '
                       'public feature map.')
  flags.DEFINE_enum('refine', default.refine, REFINEMENTS, _STUDENT + 'Whether it '
                    'goes on with its own labels of all public images; auto: unless '
                    'answers that were held out speak against it.')
  flags.DEFINE_integer('refine_steps', default.refine_steps, _STUDENT + 'Of that.')
  flags.DEFINE_float('refine_strength', default.refine_strength, _STUDENT + 'Ridge '
                     'penalty of that.')
  flags.DEFINE_float('sharpness', default.sharpness, _STUDENT + 'Of the probabilities '
                     'that its scores stand for.')
  flags.DEFINE_float('trust', default.trust, _STUDENT + 'Part of what answers say '
                     'that is believed, in (0, 1].')
  define_data()
  define_run()


def define_run() -> None:
  """Defines where a run leaves its files and how it is executed."""
  flags.DEFINE_string('output_dir', None, _RUN + 'Folder of answers, ledger, '
                      'metrics, summary and picture; a new one below out/ if not '
                      'given.')
  flags.DEFINE_bool('resume', False, _RUN + 'Continue the run in --output_dir; '
                    'start it if there is none.')
  flags.DEFINE_integer('num_workers', 0, _RUN +
                       'TFF worker processes; 0 for none besides this one.')


def _define_privacy(default: LdpConfig) -> None:
  flags.DEFINE_enum('mechanism', default.budget.mechanism, ldp_plan.MECHANISMS,
                    _PRIVACY + 'What owners do to their answers.')
  flags.DEFINE_float('epsilon_total', None, _PRIVACY + 'Of all answers of an owner '
                     f'together, never exceeded; {ldp_plan.DEFAULT_EPSILON:g} if '
                     'neither this nor --epsilon_per_query is given.')
  flags.DEFINE_float('epsilon_per_query', None, _PRIVACY + 'Of one answer of an '
                     'owner.')
  flags.DEFINE_integer('answers_per_owner', None, _PRIVACY + 'The most answers of an '
                       'owner; 1 if it does not follow from both epsilons.')
  flags.DEFINE_float('delta', None, _PRIVACY + 'Of all answers together. Without it '
                     'epsilon alone is the guarantee, but for the Gaussian mechanism '
                     f'({ldp_plan.DEFAULT_GAUSSIAN_DELTA:g}).')
  flags.DEFINE_integer('seed', None, _PRIVACY + 'Simulation seed: makes the run '
                       'repeatable and void of any guarantee.')


def define_data() -> None:
  """Defines the flags of the data, which baselines share."""
  flags.DEFINE_enum('task', 'digits', tasks_lib.TASKS, _DATA + 'digits: those of '
                    'scikit-learn. mnist, fashion_mnist, cifar10: from --data_path, '
                    'else by Keras. npz: any file of labelled images.')
  flags.DEFINE_string('data_path', None, _DATA + 'An .npz file with x_train, y_train, '
                      'x_test, y_test.')
  for name, what in (
      ('num_classes', 'Labels are below; as the file says, or 10 for mnist, '
                      'fashion_mnist and cifar10, if not given.'),
      ('owners', 'Data owners (50).'),
      ('public_records', 'Unlabelled images of the pool (a tenth).'),
      ('validation_records', 'Test records that are set aside for '
                             '--target_accuracy.'),
      ('stand_ins', 'Sets of records that stand in for owners by turns, for the '
                    'reproduction of published experiments.'),
      ('records_per_owner', 'Of each of those sets.'),
      ('labels_per_client', 'Of --partition=labels.'),
      ('data_seed', 'Of the division (0).')):
    flags.DEFINE_integer(name, None, _DATA + what)
  flags.DEFINE_string('partition', None, _DATA + 'How records are dealt to owners: '
                      'iid, dirichlet, labels or size (iid).')
  flags.DEFINE_float('dirichlet_alpha', None, _DATA + 'Of --partition=dirichlet.')
  flags.DEFINE_float('size_exponent', None, _DATA + 'Of --partition=size.')


def of(values: Mapping[str, Any]) -> LdpConfig:
  """The configuration of values of flags; defaults for those that are missing.

  Raises:
    ValueError: For a name that is no flag, and whatever is out of range.
  """
  fields = set(LdpConfig.__dataclass_fields__) - {'task_options', 'budget'}
  unknown = set(values) - fields - set(tasks_lib.OPTIONS) - set(_OF_BUDGET)
  if unknown:
    raise ValueError(f'there is no flag {", ".join(sorted(unknown))}')
  values = {'task': 'digits', 'mechanism': 'piecewise', **values}

  def some(names):
    return {name: values[name] for name in names if name in values}

  options = {name: value for name, value in some(tasks_lib.OPTIONS).items()
             if value is not None}
  return LdpConfig(task_options=options, budget=ldp_plan.Budget(**some(_OF_BUDGET)),
                   **some(fields))


def preparation_key(of_run) -> str:
  """What features and teachers depend on, of an LdpConfig or that of a baseline."""
  return repr((of_run.task, sorted(of_run.data_options.items()),
               of_run.feature_seed, of_run.teacher_strength))


def config() -> LdpConfig:
  """The flags as a configuration."""
  names = set(LdpConfig.__dataclass_fields__) - {'task_options', 'budget'}
  return of({name: FLAGS[name].value
             for name in (*names, *tasks_lib.OPTIONS, *_OF_BUDGET)})
