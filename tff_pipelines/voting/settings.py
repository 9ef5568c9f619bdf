"""Settings of a vote of agents on public queries, and of its baselines."""

from collections.abc import Iterator
import dataclasses
import functools
from typing import Any

from aggregators import voting_params
from tasks.sources import image_npz
from tasks.voting import data as voting_data
from tasks.voting import task as voting_tasks
from tff_pipelines.accounting import vote_events
from tff_pipelines.experiment import settings
from tff_pipelines.experiment.settings import setting

VOTES = ('ae', 'knn')
BASELINES = ('fedavg', 'dp_fedavg', 'dp_fedsgd')
ALGORITHMS = (*VOTES, *BASELINES)
MODELS = ('softmax', 'mlp', 'cnn_small', 'cnn')

DEFAULT_EPSILON = 4.3
# As in the experiments of Zhu et al. 2020.
DEFAULT_DELTA = {'agent': 1e-3, 'instance': 1e-4}

# Training of an agent of algorithm ae by Adam, by its model; and by SGD in a baseline.
_AGENTS = {
    'softmax': dict(learning_rate=0.1, batch_size=500, epochs=150),
    'mlp': dict(learning_rate=5e-3, batch_size=100, epochs=30),
    'cnn_small': dict(learning_rate=5e-3, batch_size=50, epochs=15),
    'cnn': dict(learning_rate=2e-3, batch_size=50, epochs=10)}
_IN_BASELINES = dict(learning_rate=0.1, batch_size=20, epochs=1)

_VOTE = {'algorithm': VOTES}
_AE = {'algorithm': ('ae',)}
_ROUNDS = {'algorithm': BASELINES}
_AVERAGING = {'algorithm': ('fedavg', 'dp_fedavg')}
_TRAINED = {'algorithm': ('ae', 'fedavg', 'dp_fedavg')}
_PRIVATE = {'algorithm': (*VOTES, 'dp_fedavg', 'dp_fedsgd')}
_CLIPPED = {'algorithm': ('dp_fedavg', 'dp_fedsgd')}
_SHARES = {**_VOTE, 'noise': ('skellam', 'gaussian')}
_CONTRASTIVE = {'features': (None, 'contrastive')}


def _by_model(name: str) -> str:
  """The defaults of a client's training setting in words."""
  of_models = ', '.join(
      f'{values[name]:g} {model}' for model, values in _AGENTS.items())
  return f'{of_models}; {_IN_BASELINES[name]:g} in baselines'


_data = functools.partial(setting, group='data')
_privacy = functools.partial(setting, group='privacy')
_vote = functools.partial(setting, group='vote')
_training = functools.partial(setting, group='training')
_student = functools.partial(setting, group='student')
_run = functools.partial(setting, group='run')


@dataclasses.dataclass(frozen=True, kw_only=True)
class VoteSettings(settings.RunSettings):
  """Everything that a vote or one of its baselines can be asked for.

  Settings of the data are None where the task decides.
  """

  task: str = _data('embedded', 'embedded: scikit-learn\'s digits. mnist: agents with '
      'some of the digits. digits: MNIST and SVHN for USPS. office: domains of '
      'Office-Caltech. npz: a file with agents\' ids.', choices=voting_tasks.TASKS,
      essential=True)
  data_path: str | None = _data(None, 'Folder of the files of mnist, digits and '
      'office; file of npz.', essential=True, free=True, aliases=('data_dir',))
  target: str | None = _data(None, 'The server\'s domain, for task=office.',
      choices=voting_data.OFFICE_DOMAINS, otherwise='webcam')
  num_clients: int | None = _data(None, 'Number of simulated agents.', low=1,
      essential=True, aliases=('num_agents',), otherwise='30 embedded, 100 mnist, 200 '
      'digits')
  records_per_client: int | None = _data(None, 'Records of an agent, for task=mnist.',
      low=1, aliases=('records_per_agent',), otherwise='600')
  labels_per_client: int | None = _data(None, 'Different digits of an agent, for '
      'task=mnist.', low=1, aliases=('classes_per_agent',), otherwise='6')
  svhn_clients: int | None = _data(None, 'Agents with SVHN digits, for task=digits.',
      low=0, aliases=('svhn_agents',), otherwise='10')
  image_size: int | None = _data(None, 'Side of all images, for task=digits.', low=1,
      unit='pixels', otherwise='16')
  num_classes: int | None = _data(None, 'Number of classes, for task=npz; labels are '
      'below it.', low=2, high=image_npz.MAX_CLASSES, otherwise='as the file says')
  public_records: int | None = _data(None, 'Unlabelled records of the server.', low=0,
      otherwise='300 embedded, 3000 mnist and digits')
  public_fraction: float | None = _data(None, 'Fraction of the test records that the '
      'server has unlabelled, for task=npz.', low=0, below=1, otherwise='0.3')
  data_seed: int | None = _data(None, 'Seed by which records are dealt to agents.',
      low=0, otherwise='0')

  algorithm: str = _privacy('ae', 'ae: agents vote by models of their own. knn: by '
      'their nearest records. fedavg, dp_fedavg, dp_fedsgd: baselines without votes.',
      choices=ALGORITHMS, essential=True)
  epsilon: float | None = _privacy(None, 'Target; the noise is calibrated to it. With '
      '--noise_stddev: a limit.', above=0, essential=True, when=_PRIVATE,
      otherwise=f'{DEFAULT_EPSILON:g} where no noise is given')
  noise_stddev: float | None = _privacy(None, 'Noise standard deviation of a label\'s '
      'sum, in which an agent\'s votes sum to 1.', above=0, unit='agents', when=_VOTE)
  noise_multiplier: float | None = _privacy(None, 'Noise standard deviation over the '
      'clip, instead of --epsilon.', above=0, when=_CLIPPED)
  delta: float | None = _privacy(None, 'Delta of the guarantee.', above=0, below=1,
      essential=True, when=_PRIVATE,
      otherwise=', '.join(f'{value:g} per {level}' for level, value in DEFAULT_DELTA.items()))
  level: str | None = _privacy(None, 'What is protected: an agent with all its '
      'records, or one record.', choices=vote_events.LEVELS, essential=True,
      when=_PRIVATE, otherwise='agent for ae and dp_fedavg, else instance')
  bound: str = _privacy('tight', 'Bound that noise is calibrated by; paper is the '
      'published formula. Both numbers are reported.', choices=vote_events.BOUNDS,
      when=_VOTE)
  noise: str = _privacy('skellam', 'skellam: agents add shares in integers. gaussian: '
      'in floating point. gaussian_central: the server adds the noise.',
      choices=voting_params.NOISES, when={'algorithm': (*VOTES, 'dp_fedavg')})
  clip: float = _privacy(0.3, 'L2 clip of an update, or of a record\'s gradient in '
      'dp_fedsgd.', above=0, unit='model units', when=_CLIPPED)
  bits: int = _privacy(18, 'Bits of a coordinate of the sum.', low=2, high=30,
      when={'algorithm': ('dp_fedavg',), 'noise': ('skellam',)})
  record_rate: float = _privacy(0.05, 'Probability with which a record is sampled into '
      'a round.', above=0, high=1, when={'algorithm': ('dp_fedsgd',)})
  cohort_size: float | None = _privacy(None, 'Expected number of agents in a round, by '
      'Poisson sampling.', above=0, unit='agents', when=_AVERAGING, otherwise='all')
  rounds: int = _privacy(50, 'Number of rounds of a baseline; a vote compares its '
      'uplink with as many.', low=1, essential=True)
  min_honest_fraction: float = _privacy(1.0, 'Fraction of the agents whose noise the '
      'guarantee counts on; a vote of fewer is suppressed.', above=0, high=1,
      when=_SHARES)
  assumed_colluders: int = _privacy(0, 'Agents that are assumed to tell the server '
      'their noise.', low=0, unit='agents', when=_SHARES)
  allow_degenerate: bool = _privacy(False, 'Accept noise that drowns the votes, with a '
      'warning.', when=_VOTE)

  queries: int = _vote(50, 'Public records that agents vote on.', low=1, essential=True,
      when=_VOTE)
  query_choice: str = _vote('spread', 'How queries are chosen. spread: one near the '
      'centre of each of as many clusters of the public features.',
      choices=('random', 'spread'), when=_VOTE)
  neighbours: int | None = _vote(None, 'Nearest records by which an agent of knn '
      'votes, a public number.', low=1, essential=True, when={'algorithm': ('knn',)})
  threshold: float | None = _vote(None, 'Noisy count that the winner must exceed for a '
      'query to be answered.', unit='agents', when=_VOTE)
  features: str | None = _vote(None, 'Public feature map, fitted to the server\'s '
      'records. standard: scaled coordinates. pca: principal components. contrastive: '
      'a network for images.', choices=('none', 'standard', 'pca', 'contrastive'),
      otherwise='standard for vectors; contrastive for images, none in baselines')
  pca_dimensions: int = _vote(50, 'Number of principal components.', low=1,
      when={'features': (None, 'pca')})
  feature_epochs: int | None = _vote(None, 'Epochs of the contrastive network.', low=1,
      when=_CONTRASTIVE, otherwise='by the number of public records')
  feature_learning_rate: float = _vote(0.002, 'Learning rate of Adam for the '
      'contrastive network.', above=0, when=_CONTRASTIVE)
  features_from: str | None = _vote(None, 'Folder of another run on the same public '
      'records, whose feature map is taken.', free=True)
  feature_seed: int = _vote(0, 'Seed of the feature map and the queries, which are '
      'public.', low=0)

  model: str | None = _training(None, 'Model of an agent, or of a baseline.',
      choices=MODELS, when={'algorithm': ('ae', *BASELINES)},
      otherwise='softmax for vectors; cnn for images, cnn_small in baselines')
  client_epochs: int | None = _training(None, 'Passes of an agent over its records, in '
      'a round.', low=1, aliases=('agent_epochs',), when=_TRAINED,
      otherwise=_by_model('epochs'))
  client_batch_size: int | None = _training(None, 'Records of a step of an agent.',
      low=1, aliases=('agent_batch_size',), when=_TRAINED,
      otherwise=_by_model('batch_size'))
  client_learning_rate: float | None = _training(None, 'Learning rate of an agent: of '
      'Adam in ae, of SGD in a baseline.', above=0, aliases=('agent_learning_rate',),
      when=_TRAINED, otherwise=_by_model('learning_rate'))
  client_weight_decay: float = _training(0.001, 'Weight decay of Adam on an agent.',
      low=0, aliases=('agent_weight_decay',), when=_AE)
  client_confidence: float = _training(0.0, 'Agents abstain where no class has more '
      'than this probability.', low=0, below=1, aliases=('agent_confidence',), when=_AE)
  client_shift: int = _training(0, 'Pixels by which images are shifted at random in '
      'training, where agents see records.', low=0, aliases=('agent_shift',), when=_AE)
  clients_see: str | None = _training(None, 'What models of agents are of: features by '
      'the public map, or records as they are.', choices=('features', 'records'),
      aliases=('agents_see',), when=_AE, otherwise='features, without '
      '--adversarial_strength')
  adversarial_strength: float = _training(0.0, 'Strength of domain-adversarial '
      'training against the public records.', low=0, when=_AE)
  server_learning_rate: float = _training(1.0, 'Learning rate of SGD on the server.',
      above=0, when=_ROUNDS)
  server_momentum: float = _training(0.0, 'Momentum of SGD on the server.', low=0,
      below=1, when=_ROUNDS)
  initial_weights_seed: int = _training(0, 'Seed of the models that training starts '
      'from, which are public.', low=0, when={'algorithm': ('ae', *BASELINES)})

  student: str = _student('spread', 'labels: the student learns from answered queries '
      'alone. spread: from all public records, over which the labels are spread.',
      choices=('labels', 'spread'), when=_VOTE)
  student_model: str | None = _student(None, 'Model of the student; encoder continues '
      'from features=contrastive.', choices=(*MODELS, 'encoder'), when=_VOTE,
      otherwise='encoder; cnn or softmax without such features')
  student_epochs: int | None = _student(None, 'Epochs of the student.', low=1,
      when=_VOTE, otherwise='by the number of public records')
  student_batch_size: int = _student(128, 'Records of a step of the student.', low=1,
      when=_VOTE)
  student_learning_rate: float = _student(0.001, 'Learning rate of Adam for the '
      'student.', above=0, when=_VOTE)
  own_labels_after: float = _student(1 / 3, 'Fraction of the epochs after which the '
      'student\'s own labels take over; 1 for never.', low=0, high=1,
      when={**_VOTE, 'student': ('spread',)})
  student_seed: int = _student(0, 'Seed of the order of records and of the '
      'distortions.', low=0, when=_VOTE)

  clients_per_call: int | None = _run(None, 'Agents that one graph call trains one '
      'after another in federated averaging; 1 makes each a TFF client of its own.',
      low=1, free=True, when=_AVERAGING, otherwise='chosen by the cohort')
  rounds_per_evaluation: int = _run(1, 'Rounds from one evaluation to the next.', low=1,
      free=True, when=_ROUNDS)

  def check(self) -> None:
    super().check()
    if self.algorithm == 'knn' and self.neighbours is None:
      raise ValueError('neighbours must be given for algorithm=knn')
    only = {'dp_fedavg': 'agent', 'dp_fedsgd': 'instance'}.get(self.algorithm)
    if only is not None and self.level not in (None, only):
      raise ValueError(f'level must be {only} for algorithm={self.algorithm}, found '
                       f'{self.level!r}')
    if self.algorithm == 'dp_fedavg' and self.noise == 'gaussian':
      raise ValueError('noise must be skellam or gaussian_central for '
                       f'algorithm=dp_fedavg, found {self.noise!r}')
    if self.epsilon is not None and self.noise_multiplier is not None:
      raise ValueError(
          'epsilon and noise_multiplier must not both be given: one follows from '
          f'the other; found epsilon={self.epsilon!r} and '
          f'noise_multiplier={self.noise_multiplier!r}')
    if self.student_model == 'encoder' and self.features not in (None, 'contrastive'):
      raise ValueError('student_model=encoder needs features=contrastive, found '
                       f'features={self.features}')

  def check_paths(self) -> None:
    super().check_paths()
    if self.data_path is None and 'data_path' in voting_tasks.required(self.task):
      raise ValueError(f'data_path must be given for task={self.task}')

  def unused(self) -> Iterator[tuple[str, str]]:
    yield from super().unused()
    for name in voting_tasks.ALL_OPTIONS:
      if name not in voting_tasks.options(self.task):
        yield name, f'task={self.task}'
    if self.clients_see_features:
      yield 'client_shift', 'clients_see=features'

  @property
  def task_options(self) -> dict[str, Any]:
    """The options of the task that were given."""
    return {name: getattr(self, name) for name in voting_tasks.ALL_OPTIONS
            if getattr(self, name) is not None}

  @property
  def is_vote(self) -> bool:
    return self.algorithm in VOTES

  @property
  def clients_see_features(self) -> bool:
    """Whether agents see records through the public feature map."""
    if self.clients_see is None:
      return self.adversarial_strength == 0
    return self.clients_see == 'features'

  @property
  def privacy_level(self) -> str:
    """'agent' or 'instance': given, or the one that suits the algorithm."""
    if self.level is not None:
      return self.level
    return 'instance' if self.algorithm in ('knn', 'dp_fedsgd') else 'agent'

  @property
  def privacy_delta(self) -> float:
    """Delta: given, or the one that suits the level."""
    return DEFAULT_DELTA[self.privacy_level] if self.delta is None else self.delta

  @property
  def target_epsilon(self) -> float | None:
    """The target; None where the noise is given instead, or there is none."""
    if self.algorithm == 'fedavg':
      return None
    if self.noise_stddev is None and self.noise_multiplier is None:
      return DEFAULT_EPSILON if self.epsilon is None else self.epsilon
    return self.epsilon

  def client_training(self, model: str) -> dict[str, Any]:
    """`learning_rate`, `batch_size` and `epochs` of an agent with a model."""
    defaults = _AGENTS[model] if self.algorithm == 'ae' else _IN_BASELINES
    given = {name: getattr(self, f'client_{name}') for name in defaults}
    return {name: defaults[name] if value is None else value
            for name, value in given.items()}
