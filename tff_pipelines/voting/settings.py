"""Flags of the vote binary, turned once into a frozen configuration."""

import dataclasses
from typing import Any

from absl import flags

from aggregators import validate
from aggregators import voting_params
from tasks import voting as voting_tasks
from tff_pipelines.accounting import vote_events

FLAGS = flags.FLAGS

VOTES = ('ae', 'knn')
ALGORITHMS = (*VOTES, 'fedavg', 'dp_fedavg', 'dp_fedsgd')
_NOISES = voting_params.NOISES
_MODELS = ('softmax', 'mlp', 'cnn_small', 'cnn')
_FEATURES = ('none', 'standard', 'pca', 'contrastive')
_CHOICES = ('random', 'spread')
_SEEN = ('features', 'records')
_STUDENTS = ('labels', 'spread')

DEFAULT_EPSILON = 4.3

_PRIVACY, _VOTE, _AGENTS = 'privacy: ', 'vote: ', 'agents: '
_STUDENT, _BASELINES, _DATA, _RUN = 'student: ', 'baselines: ', 'data: ', 'run: '

_OF_VOTES = ('queries', 'query_choice', 'noise_stddev', 'bound', 'threshold',
             'min_honest_fraction', 'assumed_colluders', 'allow_degenerate',
             'student', 'student_model', 'student_epochs', 'student_batch_size',
             'student_learning_rate', 'own_labels_after', 'student_seed')
_OF_AGENTS = ('model', 'agent_epochs', 'agent_batch_size', 'agent_learning_rate',
              'agent_weight_decay', 'agent_confidence', 'agent_shift',
              'adversarial_strength', 'agents_see')
_OF_ROUNDS = ('model', 'rounds', 'server_learning_rate', 'server_momentum',
              'rounds_per_evaluation')
_OF_FEDAVG = ('client_learning_rate', 'client_batch_size', 'client_epochs',
              'cohort_size', 'clients_per_call')
_OF_PRIVACY = ('epsilon', 'delta', 'level')
# What each algorithm uses of the flags that not all of them use.
USES = {
    'ae': frozenset((*_OF_VOTES, *_OF_AGENTS, *_OF_PRIVACY, 'noise', 'rounds')),
    'knn': frozenset((*_OF_VOTES, *_OF_PRIVACY, 'noise', 'neighbours', 'rounds')),
    'fedavg': frozenset((*_OF_ROUNDS, *_OF_FEDAVG)),
    'dp_fedavg': frozenset((
        *_OF_ROUNDS, *_OF_FEDAVG, *_OF_PRIVACY, 'noise', 'noise_multiplier', 'clip',
        'bits')),
    'dp_fedsgd': frozenset((
        *_OF_ROUNDS, *_OF_PRIVACY, 'noise_multiplier', 'clip', 'record_rate')),
}
_SOME = frozenset().union(*USES.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class VoteConfig:
  """What a run is told.

  Attributes are the flags of the same names; `task_options` are those of the
  task's that were given, `unused` the names of flags that were given and have no
  effect.
  """

  task: str
  task_options: dict[str, Any]
  unused: tuple[str, ...] = ()
  algorithm: str = 'ae'
  epsilon: float | None = None
  noise_stddev: float | None = None
  noise_multiplier: float | None = None
  delta: float | None = None
  level: str | None = None
  bound: str = 'tight'
  noise: str = 'skellam'
  min_honest_fraction: float = 1.0
  assumed_colluders: int = 0
  allow_degenerate: bool = False
  seed: int | None = None
  queries: int = 50
  query_choice: str = 'spread'
  neighbours: int | None = None
  threshold: float | None = None
  features: str | None = None
  pca_dimensions: int = 50
  feature_epochs: int | None = None
  feature_learning_rate: float = 2e-3
  feature_seed: int = 0
  features_from: str | None = None
  model: str | None = None
  agent_epochs: int | None = None
  agent_batch_size: int | None = None
  agent_learning_rate: float | None = None
  agent_weight_decay: float | None = None
  agent_confidence: float = 0.0
  agent_shift: int = 0
  adversarial_strength: float = 0.0
  agents_see: str | None = None
  student: str = 'spread'
  student_model: str | None = None
  student_epochs: int | None = None
  student_batch_size: int = 128
  student_learning_rate: float = 1e-3
  own_labels_after: float = 1 / 3
  student_seed: int = 0
  rounds: int = 50
  cohort_size: float | None = None
  clip: float = 0.3
  bits: int = 18
  record_rate: float = 0.05
  client_learning_rate: float = 0.1
  client_batch_size: int = 20
  client_epochs: int = 1
  server_learning_rate: float = 1.0
  server_momentum: float = 0.0
  initial_weights_seed: int = 0
  output_dir: str | None = None
  resume: bool = False
  num_workers: int = 0
  clients_per_call: int | None = None
  rounds_per_evaluation: int = 1

  def __post_init__(self):
    validate.one_of(voting_tasks.TASKS, task=self.task)
    validate.one_of(ALGORITHMS, algorithm=self.algorithm)
    validate.one_of(_NOISES, noise=self.noise)
    validate.one_of(vote_events.BOUNDS, bound=self.bound)
    for name in ('epsilon', 'noise_stddev', 'noise_multiplier',
                 'agent_learning_rate', 'feature_learning_rate',
                 'student_learning_rate', 'clip', 'client_learning_rate',
                 'server_learning_rate', 'cohort_size'):
      if getattr(self, name) is not None:
        validate.positive(**{name: getattr(self, name)})
    if self.delta is not None:
      validate.open_unit_interval(delta=self.delta)
    for name in ('queries', 'neighbours', 'pca_dimensions', 'feature_epochs',
                 'agent_epochs', 'agent_batch_size', 'student_epochs',
                 'student_batch_size', 'rounds', 'client_batch_size',
                 'client_epochs', 'clients_per_call', 'rounds_per_evaluation'):
      if getattr(self, name) is not None:
        validate.integer(**{name: getattr(self, name)}, low=1)
    for name in ('seed', 'feature_seed', 'student_seed', 'initial_weights_seed',
                 'num_workers', 'assumed_colluders', 'agent_shift'):
      if getattr(self, name) is not None:
        validate.integer(**{name: getattr(self, name)}, low=0)
    validate.fraction(record_rate=self.record_rate)
    for name in ('server_momentum', 'agent_confidence'):
      validate.finite(**{name: getattr(self, name)})
      if not 0 <= getattr(self, name) < 1:
        raise ValueError(
            f'{name} must be in [0, 1), found {getattr(self, name)!r}')
    self._check_level()
    if self.algorithm == 'knn' and self.neighbours is None:
      raise ValueError('neighbours must be given for algorithm=knn')
    if self.output_dir == '':
      raise ValueError('output_dir must be a path, found an empty one')
    if self.resume and self.output_dir is None:
      raise ValueError('resume needs output_dir, the folder of the run to continue')

  def _check_level(self) -> None:
    only = {'dp_fedavg': 'agent', 'dp_fedsgd': 'instance'}.get(self.algorithm)
    if self.level is not None:
      validate.one_of(vote_events.LEVELS, level=self.level)
      if only is not None and self.level != only:
        raise ValueError(f'level must be {only} for algorithm={self.algorithm}, '
                         f'found {self.level!r}')

  @property
  def agents_see_features(self) -> bool:
    """Whether agents see records through the public feature map."""
    if self.algorithm == 'knn':
      return True
    if self.agents_see is None:
      return self.adversarial_strength == 0
    return self.agents_see == 'features'

  @property
  def is_vote(self) -> bool:
    return self.algorithm in VOTES

  @property
  def privacy_level(self) -> str:
    """'agent' or 'instance': given, or the one that suits the algorithm."""
    if self.level is not None:
      return self.level
    return 'instance' if self.algorithm in ('knn', 'dp_fedsgd') else 'agent'

  @property
  def target_epsilon(self) -> float | None:
    """The target, or None where the noise is given instead."""
    if self.epsilon is None and self.noise_stddev is None and (
        self.noise_multiplier is None):
      return DEFAULT_EPSILON
    return self.epsilon

  def configuration(self) -> dict[str, Any]:
    """What defines the run, as JSON."""
    fields = dataclasses.asdict(self)
    for name in ('output_dir', 'resume', 'num_workers', 'features_from',
                 'clients_per_call', 'rounds_per_evaluation', 'unused'):
      del fields[name]
    # Where the data lie may change.
    fields['task_options'] = {
        key: value for key, value in self.task_options.items()
        if key not in ('data_dir', 'data_path')}
    return fields


def define() -> None:
  """Defines all flags."""
  default = VoteConfig(task='embedded', task_options={})
  _define_privacy(default)
  _define_vote(default)
  _define_models(default)
  _define_baselines(default)
  _define_data()
  flags.DEFINE_string('output_dir', None, _RUN + 'Folder of checkpoints, ledger, '
                      'metrics, summary and picture; a new one below out/ if not '
                      'given.')
  flags.DEFINE_bool('resume', False, _RUN + 'Continue the run in --output_dir; '
                    'start it if there is none.')
  flags.DEFINE_integer('num_workers', default.num_workers, _RUN +
                       'TFF worker processes; 0 for none besides this one.')
  flags.DEFINE_integer('clients_per_call', None, _RUN + 'Agents that one graph call '
                       'trains one after another, in federated averaging.')
  flags.DEFINE_integer('rounds_per_evaluation', default.rounds_per_evaluation,
                       _RUN + 'Rounds from one evaluation to the next.')


def _define_privacy(default: VoteConfig) -> None:
  flags.DEFINE_enum('algorithm', default.algorithm, ALGORITHMS, _PRIVACY +
                    'ae: agents train models and vote by them. knn: agents vote by '
                    'their nearest records. fedavg, dp_fedavg, dp_fedsgd: baselines '
                    'without votes.')
  flags.DEFINE_float('epsilon', None, _PRIVACY + f'Target, never exceeded. '
                     f'{DEFAULT_EPSILON:g} if neither this nor noise is given. '
                     'Beside --noise_stddev, a limit.')
  flags.DEFINE_float('noise_stddev', None, _PRIVACY + 'Noise of a label\'s sum, an '
                     'agent\'s votes summing to 1.')
  flags.DEFINE_float('noise_multiplier', None, _PRIVACY + 'Noise over the clip, for '
                     'baselines.')
  flags.DEFINE_float('delta', None, _PRIVACY + '1e-3 for agents and 1e-4 for '
                     'instances if not given.')
  flags.DEFINE_enum('level', None, vote_events.LEVELS, _PRIVACY + 'What is '
                    'protected: an agent with all its records (ae, dp_fedavg), or '
                    'one record (knn, dp_fedsgd).')
  flags.DEFINE_enum('bound', default.bound, vote_events.BOUNDS, _PRIVACY +
                    'What the noise of votes is calibrated by; paper is the '
                    'published formula. Both numbers are reported.')
  flags.DEFINE_enum('noise', default.noise, _NOISES, _PRIVACY + 'skellam: integers. '
                    'gaussian: shares of agents. gaussian_central: the server adds '
                    'it. Baselines know no Gaussian shares but those of dp_fedsgd.')
  flags.DEFINE_float('min_honest_fraction', default.min_honest_fraction, _PRIVACY +
                     'Part of the agents whose noise the guarantee counts on.')
  flags.DEFINE_integer('assumed_colluders', default.assumed_colluders, _PRIVACY +
                       'Agents that are assumed to tell the server their noise.')
  flags.DEFINE_bool('allow_degenerate', False, _PRIVACY + 'Accept noise that drowns '
                    'the votes, with a warning.')
  flags.DEFINE_integer('seed', None, _PRIVACY + 'Simulation seed: makes the run '
                       'repeatable and void of any guarantee.')


def _define_vote(default: VoteConfig) -> None:
  flags.DEFINE_integer('queries', default.queries, _VOTE + 'Public records that '
                       'agents vote on.')
  flags.DEFINE_enum('query_choice', default.query_choice, _CHOICES, _VOTE +
                    'random; or spread: one near the centre of each of as many '
                    'clusters of the public features.')
  flags.DEFINE_integer('neighbours', None, _VOTE + 'k of algorithm knn, a public '
                       'number; an agent with fewer records has as many votes.')
  flags.DEFINE_float('threshold', None, _VOTE + 'A query is answered only if the '
                     'noisy count of its winner exceeds so many agents.')
  flags.DEFINE_enum('features', None, _FEATURES, _VOTE + 'Public feature map, fitted '
                    'on the server\'s records. standard: scaled (vectors, if not '
                    'given). pca: principal components. contrastive: a network '
                    '(images of votes, if not given). none (images of baselines, if '
                    'not given).')
  flags.DEFINE_integer('pca_dimensions', default.pca_dimensions, _VOTE + 'Principal '
                       'components.')
  flags.DEFINE_integer('feature_epochs', None, _VOTE + 'Of the contrastive network; '
                       'by the number of public records if not given.')
  flags.DEFINE_float('feature_learning_rate', default.feature_learning_rate, _VOTE +
                     'Of the contrastive network.')
  flags.DEFINE_string('features_from', None, _VOTE + 'Folder of another run of the '
                      'same public records, whose feature map is taken.')
  flags.DEFINE_integer('feature_seed', default.feature_seed, _VOTE + 'Of feature map '
                       'and queries, which are public.')


def _define_models(default: VoteConfig) -> None:
  flags.DEFINE_enum('model', None, _MODELS, _AGENTS + 'Model of an agent, or of a '
                    'baseline; by the records if not given.')
  flags.DEFINE_integer('agent_epochs', None, _AGENTS + 'By the model if not given.')
  flags.DEFINE_integer('agent_batch_size', None, _AGENTS + 'By the model if not '
                       'given.')
  flags.DEFINE_float('agent_learning_rate', None, _AGENTS + 'Of Adam; by the model '
                     'if not given.')
  flags.DEFINE_float('agent_weight_decay', None, _AGENTS + 'By the model if not '
                     'given.')
  flags.DEFINE_float('agent_confidence', default.agent_confidence, _AGENTS +
                     'Agents abstain where no class has more than this probability.')
  flags.DEFINE_integer('agent_shift', default.agent_shift, _AGENTS + 'Pixels by '
                       'which images are shifted at random in training.')
  flags.DEFINE_float('adversarial_strength', default.adversarial_strength, _AGENTS +
                     'Domain-adversarial training against the public records (+DA).')
  flags.DEFINE_enum('agents_see', None, _SEEN, _AGENTS + 'What their models are of: '
                    'features by the public map; or records as they are, which is so '
                    'with +DA if not given.')
  flags.DEFINE_enum('student', default.student, _STUDENTS, _STUDENT + 'labels: learns '
                    'from answered queries alone. spread: from all public records.')
  flags.DEFINE_enum('student_model', None, (*_MODELS, 'encoder'), _STUDENT + 'By the '
                    'records if not given; encoder needs --features=contrastive.')
  flags.DEFINE_integer('student_epochs', None, _STUDENT + 'Passes; by the number of '
                       'public records if not given.')
  flags.DEFINE_integer('student_batch_size', default.student_batch_size, _STUDENT +
                       'Records of a step.')
  flags.DEFINE_float('student_learning_rate', default.student_learning_rate,
                     _STUDENT + 'Of Adam.')
  flags.DEFINE_float('own_labels_after', default.own_labels_after, _STUDENT + 'Part '
                     'of the epochs after which its own labels take over.')
  flags.DEFINE_integer('student_seed', default.student_seed, _STUDENT + 'Of the order '
                       'and the distortions.')


def _define_baselines(default: VoteConfig) -> None:
  flags.DEFINE_integer('rounds', default.rounds, _BASELINES + 'Rounds; votes compare '
                       'their uplink with so many.')
  flags.DEFINE_float('cohort_size', None, _BASELINES + 'Agents of a round, expected, '
                     'by Poisson sampling; all if not given.')
  flags.DEFINE_float('clip', default.clip, _BASELINES + 'L2 clip of an update, or of '
                     'a record\'s gradient in dp_fedsgd.')
  flags.DEFINE_integer('bits', default.bits, _BASELINES + 'Of a coordinate of the '
                       'sum, with noise=skellam.')
  flags.DEFINE_float('record_rate', default.record_rate, _BASELINES + 'Part of the '
                     'records that take part in a round of dp_fedsgd.')
  for name, what in (('client_learning_rate', 'SGD of an agent.'),
                     ('server_learning_rate', 'SGD of the server.'),
                     ('server_momentum', 'In [0, 1).')):
    flags.DEFINE_float(name, getattr(default, name), _BASELINES + what)
  for name, what in (('client_batch_size', 'Records of a step of an agent.'),
                     ('client_epochs', 'Passes of an agent in a round.')):
    flags.DEFINE_integer(name, getattr(default, name), _BASELINES + what)
  flags.DEFINE_integer('initial_weights_seed', default.initial_weights_seed,
                       _BASELINES + 'Of the models that training starts from.')


def _define_data() -> None:
  flags.DEFINE_enum('task', 'embedded', voting_tasks.TASKS, _DATA + 'embedded: '
                    'scikit-learn\'s digits. mnist: each agent has some of the '
                    'digits. digits: MNIST and SVHN for USPS. office: domains of '
                    'Office-Caltech. npz: any file with the agents\' ids.')
  flags.DEFINE_string('data_dir', None, _DATA + 'Folder of the files of mnist, digits '
                      'and office.')
  flags.DEFINE_string('data_path', None, _DATA + 'File, for task=npz.')
  for name, what in (
      ('num_agents', 'Agents that records are dealt to.'),
      ('records_per_agent', 'Of task mnist (600).'),
      ('classes_per_agent', 'Of task mnist (6).'),
      ('svhn_agents', 'Of the agents of task digits, those that have SVHN (10).'),
      ('image_size', 'Of task digits (16).'),
      ('num_classes', 'Of task npz: labels are below; as the file says, if not '
                      'given.'),
      ('public_records', 'Unlabelled records of the server.'),
      ('data_seed', 'Of the deal (0).')):
    flags.DEFINE_integer(name, None, _DATA + what)
  flags.DEFINE_string('target', None, _DATA + 'The server\'s domain of task office '
                      '(webcam).')
  flags.DEFINE_float('public_fraction', None, _DATA + 'Part of the test records of '
                     'task npz that is the server\'s (0.3).')


def config() -> VoteConfig:
  """The flags as a configuration."""
  options = {name: FLAGS[name].value for name in voting_tasks.ALL_OPTIONS
             if FLAGS[name].value is not None}
  unused = sorted(
      name for name in _SOME - USES[FLAGS.algorithm]
      if FLAGS[name].present and name != 'level')
  names = set(VoteConfig.__dataclass_fields__) - {'task_options', 'unused'}
  return VoteConfig(
      task_options=options, unused=tuple(unused),
      **{name: FLAGS[name].value for name in names})
