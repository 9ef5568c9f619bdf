"""Flags of the baselines of local distillation, as a frozen configuration."""

import dataclasses
from typing import Any, Mapping

from absl import flags

from aggregators import validate
from tasks import ldp_distillation as tasks_lib
from tff_pipelines import ldp_flags

FLAGS = flags.FLAGS

ALGORITHMS = ('dp_sgd', 'pate', 'dp_fl')

# Algorithm -> the flags that it alone uses, and their defaults.
_OWN = {
    'dp_sgd': dict(rounds=60, clip=1.0, learning_rate=8.0, record_rate=0.2),
    'pate': dict(queries=1000, answers=500, threshold=0.5, threshold_noise=2.0),
    'dp_fl': dict(rounds=15, clip=0.3, learning_rate=15.0, client_learning_rate=0.2,
                  client_batch_size=20, client_epochs=1),
}
_SOME = frozenset().union(*_OWN.values())
_INTEGERS = ('rounds', 'queries', 'answers', 'client_batch_size', 'client_epochs')


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaselineConfig:
  """What a baseline is told.

  Attributes are the flags of the same names; those that not all algorithms use are
  None if they were not given.
  """

  task: str
  task_options: dict[str, Any]
  algorithm: str = 'pate'
  epsilon: float = 8.0
  delta: float = 1e-5
  seed: int | None = None
  feature_seed: int = 0
  teacher_strength: float = 0.03
  rounds: int | None = None
  clip: float | None = None
  learning_rate: float | None = None
  record_rate: float | None = None
  client_learning_rate: float | None = None
  client_batch_size: int | None = None
  client_epochs: int | None = None
  queries: int | None = None
  answers: int | None = None
  threshold: float | None = None
  threshold_noise: float | None = None
  output_dir: str | None = None
  resume: bool = False
  num_workers: int = 0

  def __post_init__(self):
    validate.one_of(tasks_lib.TASKS, task=self.task)
    validate.one_of(ALGORITHMS, algorithm=self.algorithm)
    validate.positive(epsilon=self.epsilon, teacher_strength=self.teacher_strength)
    validate.open_unit_interval(delta=self.delta)
    validate.integer(feature_seed=self.feature_seed, low=0)
    validate.integer(num_workers=self.num_workers, low=0, high=64)
    if self.seed is not None:
      validate.integer(seed=self.seed, low=0)
    own = _OWN[self.algorithm]
    for name in sorted(_SOME):
      value = getattr(self, name)
      if value is None:
        continue
      if name not in own:
        raise ValueError(f'{name} is not used by algorithm={self.algorithm}, found '
                         f'{value!r}')
      if name in _INTEGERS:
        validate.integer(**{name: value}, low=1)
      elif name in ('record_rate', 'threshold'):
        validate.fraction(**{name: value})
      else:
        validate.positive(**{name: value})
    if 'stand_ins' in self.task_options:
      raise ValueError('stand_ins can\'t be used here: every owner of a baseline '
                       'has records of its own')
    if self.output_dir == '':
      raise ValueError('output_dir must be a path, found an empty one')
    if self.resume and self.output_dir is None:
      raise ValueError('resume needs output_dir, the folder of the run to continue')

  def of(self, name: str) -> Any:
    """The value of a flag that not all algorithms use, or its default."""
    value = getattr(self, name)
    return _OWN[self.algorithm][name] if value is None else value

  @property
  def data_options(self) -> dict[str, Any]:
    """Options of the task."""
    return dict(self.task_options)

  def configuration(self) -> dict[str, Any]:
    """What defines the run, as JSON."""
    fields = dataclasses.asdict(self)
    for name in ('output_dir', 'resume', 'num_workers', *_SOME):
      del fields[name]
    fields.update({name: self.of(name) for name in _OWN[self.algorithm]})
    # Where the data lie may change; what they are is in the fingerprint.
    fields['task_options'] = {
        key: value for key, value in self.task_options.items()
        if key != 'data_path'}
    return fields


_HELP = {
    'rounds': 'Steps of dp_sgd, rounds of dp_fl.',
    'clip': 'L2, of a record\'s gradient in dp_sgd, of an owner\'s update in dp_fl.',
    'learning_rate': 'Of dp_sgd, and of the server in dp_fl.',
    'record_rate': 'Part of the records that takes part in a step of dp_sgd.',
    'client_learning_rate': 'Of an owner in dp_fl.',
    'client_batch_size': 'Of an owner in dp_fl.',
    'client_epochs': 'Of an owner in a round of dp_fl.',
    'queries': 'Public images that pate asks about, at most.',
    'answers': 'The most that it answers.',
    'threshold': 'Part of the owners that must agree, in pate.',
    'threshold_noise': 'Noise on that, over the noise on votes, in pate.',
}


def define() -> None:
  """Defines all flags."""
  default = BaselineConfig(task='digits', task_options={})
  flags.DEFINE_enum('algorithm', default.algorithm, ALGORITHMS, 'dp_sgd: noisy '
                    'gradients of records that a curator holds. pate: noisy votes of '
                    'the owners\' teachers, counted by a curator. dp_fl: federated '
                    'averaging with distributed Skellam noise.')
  flags.DEFINE_float('epsilon', default.epsilon, 'Of the whole run.')
  flags.DEFINE_float('delta', default.delta, 'Of the whole run.')
  flags.DEFINE_integer('seed', None, 'Simulation seed: makes the run repeatable and '
                       'void of any guarantee.')
  flags.DEFINE_integer('feature_seed', default.feature_seed, 'Of the public feature '
                       'map.')
  flags.DEFINE_float('teacher_strength', default.teacher_strength, 'Ridge penalty of '
                     'an owner\'s teacher.')
  for name, text in _HELP.items():
    values = [f'{algorithm} {own[name]}' for algorithm, own in _OWN.items()
              if name in own]
    make = flags.DEFINE_integer if name in _INTEGERS else flags.DEFINE_float
    make(name, None, f'{text} Default: {", ".join(values)}.')
  ldp_flags.define_data()
  ldp_flags.define_run()


def of(values: Mapping[str, Any]) -> BaselineConfig:
  """The configuration of values of flags; defaults for those that are missing."""
  fields = set(BaselineConfig.__dataclass_fields__) - {'task_options'}
  unknown = set(values) - fields - set(tasks_lib.OPTIONS)
  if unknown:
    raise ValueError(f'there is no flag {", ".join(sorted(unknown))}')
  values = {'task': 'digits', **values}
  options = {name: values[name] for name in tasks_lib.OPTIONS
             if values.get(name) is not None}
  return BaselineConfig(task_options=options, **{
      name: values[name] for name in fields if name in values})


def config() -> BaselineConfig:
  """The flags as a configuration."""
  names = set(BaselineConfig.__dataclass_fields__) - {'task_options'}
  return of({name: FLAGS[name].value for name in (*names, *tasks_lib.OPTIONS)})
