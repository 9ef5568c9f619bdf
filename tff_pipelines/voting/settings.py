"""Settings of a vote of agents on public queries, and of its baselines."""

from collections.abc import Iterator, Mapping
import dataclasses
from typing import Any

from aggregators import voting_params
from tasks.sources import labelled
from tasks.voting import data as voting_data, task as voting_tasks
from tff_pipelines.accounting.events import base, voting
from tff_pipelines.accounting.guarantees import accountant
from tff_pipelines.common import declarations
from tff_pipelines.experiment import settings
from tff_pipelines.fedavg import settings as train

VOTES = ('ae', 'knn')
BASELINES = ('fedavg', 'dp_fedavg', 'dp_fedsgd')
ALGORITHMS = (*VOTES, *BASELINES)
MODELS = ('softmax', 'mlp', 'cnn_small', 'cnn')

DEFAULT_EPSILON = 4.3
# Values of the experiments of Zhu et al. 2020.
DEFAULT_DELTA = {'agent': 1e-3, 'instance': 1e-4}

# Training of an agent of algorithm ae by Adam, by its model; and by SGD in a baseline.
_AGENTS = {
    'softmax': dict(learning_rate=0.1, batch_size=500, epochs=150),
    'mlp': dict(learning_rate=5e-3, batch_size=100, epochs=30),
    'cnn_small': dict(learning_rate=5e-3, batch_size=50, epochs=15),
    'cnn': dict(learning_rate=2e-3, batch_size=50, epochs=10)}
_IN_BASELINES = dict(learning_rate=0.1, batch_size=5, epochs=5)

# When a setting has an effect.
_ROUNDS = {'algorithm': BASELINES}
_AVERAGING = {'algorithm': ('fedavg', 'dp_fedavg')}
_MODELLED = {'algorithm': ('ae', *BASELINES)}
_GUARANTEED = {'algorithm': (*VOTES, 'dp_fedavg', 'dp_fedsgd')}
_CLIPPED = {'algorithm': ('dp_fedavg', 'dp_fedsgd')}
_DISTRIBUTED = {**_CLIPPED, 'noise': ('skellam',)}
_SHARES = {'algorithm': VOTES, 'noise': ('skellam', 'gaussian')}
_OF_LOCAL = {'algorithm': ('ae', 'fedavg', 'dp_fedavg')}
_CONTRASTIVE = {'features': (None, 'contrastive')}
# Settings that need a student, besides its own.
_OF_STUDENT = ('queries', 'query_choice', 'clients_see', 'client_confidence')

_data, _privacy, _features, _training, _student = declarations.groups(
    'data', 'privacy', 'vote', 'training', 'student')
# Settings of votes alone.
_noise = declarations.group('privacy', algorithm=VOTES)
_vote = declarations.group('vote', algorithm=VOTES)
_ae = declarations.group('training', algorithm=('ae',))


def _of_client(name: str, text: str, **attributes: Any) -> Any:
  """A field of a client's training, whose default depends on the model."""
  by_model = ', '.join(f'{values[name]:g} {model}' for model, values in _AGENTS.items())
  return _training(None, text, when=_OF_LOCAL, **attributes, otherwise=(
      f'{by_model}; {_IN_BASELINES[name]:g} in baselines'))


@dataclasses.dataclass(frozen=True, kw_only=True)
class VoteSettings(settings.RunSettings, settings.TaskSettings):
  """Settings of a vote or a baseline; those of data are None where the task decides."""

  options_by_task = voting_tasks.OPTIONS

  task: str = _data('embedded', 'embedded: digits that ship. mnist: agents with '
      'few digits. digits: MNIST and SVHN for USPS. office: domains of Office-Caltech. '
      'npz: any file.', choices=voting_tasks.TASKS, essential=True)
  data_path: str | None = _data(
      None, 'Folder of the task\'s files; file of npz.', essential=True, free=True)
  target: str | None = _data(None, 'The server\'s domain, for task=office.',
      choices=voting_data.OFFICE_DOMAINS, otherwise='webcam')
  num_clients: int | None = _data(None, 'Number of simulated agents.', low=1,
      essential=True, otherwise='100; 200 digits; npz: the file\'s')
  records_per_client: int | None = _data(
      None, 'Records of an agent, for task=mnist or npz.', low=1, otherwise='600')
  labels_per_client: int | None = _data(
      None, 'Classes of an agent, for task=mnist or npz.', low=1, otherwise='6')
  svhn_clients: int | None = _data(
      None, 'Agents with SVHN digits, for task=digits.', low=0, otherwise='10')
  image_size: int | None = _data(None, 'Side of all images, for task=digits.', low=1,
      unit='pixels', otherwise='16')
  num_classes: int | None = train.like('num_classes', high=labelled.MAX_CLASSES,
      help='Number of classes, for task=npz.', otherwise='as the file says')
  public_records: int | None = _data(None, 'Unlabelled records of the server.', low=0,
      otherwise='300 embedded, 3000 mnist and digits')
  public_fraction: float | None = _data(None, 'Fraction of the test records that are '
      'public, for task=npz.', low=0, below=1, otherwise='0.3')
  data_seed: int | None = train.like('data_seed', help='Seed of the partition.')

  algorithm: str = _privacy('ae', 'ae: agents vote by own models. knn: by nearest '
      'records. Others: baselines without votes.', choices=ALGORITHMS, essential=True)
  epsilon: float | None = train.like(
      'epsilon', help='Target epsilon; with --noise_stddev a limit.', when=_GUARANTEED,
      otherwise=f'{DEFAULT_EPSILON:g} where no noise is given')
  noise_stddev: float | None = _noise(
      None, 'Noise standard deviation of the sum of a label.', above=0, unit='agents')
  noise_multiplier: float | None = train.like(
      'noise_multiplier', essential=False, when=_CLIPPED)
  delta: float | None = train.like('delta', when=_GUARANTEED, otherwise=', '.join(
      f'{value:g} per {level}' for level, value in DEFAULT_DELTA.items())
      + ', and less where these are too many')
  level: str | None = _privacy(None, 'What is protected: an agent, or one record.',
      choices=voting.LEVELS, essential=True, when=_GUARANTEED,
      otherwise='agent for ae and dp_fedavg, else instance')
  adjacency: str = _privacy(
      base.INSTANCE, 'Neighbours of dp_fedsgd. instance: one record of one agent is '
      'added, removed or replaced, as in votes. record-zero-out: added or removed.',
      choices=(base.INSTANCE, base.RECORD_ZERO_OUT), when={'algorithm': ('dp_fedsgd',)})
  bound: str = _noise('tight', 'Bound that noise is calibrated by; paper is the '
      'published formula. Both numbers are reported.', choices=voting.BOUNDS)
  noise: str = _privacy('skellam', 'skellam: agents add integers; gaussian: agents, in '
      'floating point; gaussian_central: the server adds it.',
      choices=voting_params.NOISES, when=_GUARANTEED)
  clip: float = _privacy(1.0, 'L2 clip of an update; in dp_fedsgd of a gradient.',
      above=0, unit='model units', when=_CLIPPED)
  bits: int = train.like('bits', train.DEFAULT_BITS, when=_DISTRIBUTED, otherwise='')
  record_rate: float = _privacy(0.2, 'Probability that a round samples a record.',
      above=0, high=1, when={'algorithm': ('dp_fedsgd',)})
  cohort_size: float | None = _privacy(None, 'Expected number of agents in a round, by '
      'Poisson sampling.', above=0, unit='agents', when=_AVERAGING, otherwise='all')
  rounds: int = _privacy(50, 'Rounds of a baseline; a vote compares its uplink with '
      'as many.', low=1, essential=True)
  min_honest_fraction: float = train.like('min_honest_fraction', when=_SHARES)
  assumed_colluders: int = train.like('assumed_colluders', when=_SHARES)
  allow_degenerate: bool = _noise(False, 'Only warn of noise that drowns the votes.')

  queries: int = _features(50, 'Public records that are labelled by votes, or by a '
      'baseline.', low=1, essential=True)
  query_choice: str = _features('spread', 'spread: nearest to the centres of clusters of '
      'public features. random: any.', choices=('random', 'spread'))
  neighbours: int = _vote(3, 'Nearest records that vote for an agent.', low=1,
      essential=True, when={'algorithm': ('knn',)})
  threshold: float | None = _vote(
      None, 'Noisy count that the winner of a query must exceed.', unit='agents')
  features: str | None = _features(None, 'Public feature map.',
      choices=('none', 'standard', 'pca', 'contrastive'),
      otherwise='standard for vectors; contrastive for images, none without a student')
  pca_dimensions: int = _features(
      50, 'Number of principal components.', low=1, when={'features': (None, 'pca')})
  feature_epochs: int | None = _features(None, 'Epochs of the contrastive network.',
      low=1, when=_CONTRASTIVE, otherwise='by the number of public records')
  feature_learning_rate: float = _features(
      0.002, 'Learning rate of the contrastive network.', above=0, when=_CONTRASTIVE)
  features_from: str | None = _features(
      None, 'Folder of a run whose feature map is taken.', free=True)
  feature_seed: int = _features(0, 'Public seed of feature map and queries.', low=0)

  model: str | None = _training(None, 'Model of an agent, or of a baseline.',
      choices=MODELS, when=_MODELLED,
      otherwise='softmax for vectors and in private baselines; for images cnn, and '
      'cnn_small in fedavg')
  client_epochs: int | None = _of_client(
      'epochs', 'Passes over agents\' records in a round.', low=1)
  client_batch_size: int | None = _of_client(
      'batch_size', 'Records of a step of an agent.', low=1)
  client_learning_rate: float | None = _of_client(
      'learning_rate', 'Learning rate of an agent.', above=0)
  client_weight_decay: float = _ae(0.001, 'Weight decay of Adam on an agent.', low=0)
  client_confidence: float = _training(
      0.0, 'Probability below which an agent, or a baseline\'s model, abstains.', low=0,
      below=1, when=_MODELLED)
  client_shift: int = _ae(
      0, 'Pixels by which images are shifted at random in training.', low=0)
  clients_see: str | None = _training(None, 'What models of agents, or of a baseline '
      'with a student, are of.', choices=('features', 'records'), when=_MODELLED,
      otherwise='features, without --adversarial_strength')
  adversarial_strength: float = _training(0.0, 'Strength of domain-adversarial '
      'training against the server\'s records.', low=0, when=_OF_LOCAL)
  server_learning_rate: float = train.like(
      'server_learning_rate', 1.0, essential=False, when=_ROUNDS)
  server_momentum: float = train.like('server_momentum', 0.0, when=_ROUNDS)
  initial_weights_seed: int = train.like('initial_weights_seed', when=_MODELLED)

  student: str | None = _student(None, 'Student of released labels: of these alone '
      '(labels), or of all public records (spread).', choices=('labels', 'spread'),
      essential=True, otherwise='spread; none in baselines')
  student_model: str | None = _student(None, 'Model of the student.',
      choices=(*MODELS, 'encoder'),
      otherwise='encoder, for features=contrastive; else cnn or softmax')
  student_epochs: int | None = _student(None, 'Epochs of the student.', low=1,
      otherwise='by the number of public records')
  student_batch_size: int = _student(128, 'Records of a step of the student.', low=1)
  student_learning_rate: float = _student(0.001, 'Learning rate of Adam.', above=0)
  own_labels_after: float = _student(1 / 3, 'Fraction of epochs before own labels.',
      low=0, high=1, when={'student': (None, 'spread')})
  student_seed: int = _student(0, 'Seed of the order and distortion of records.', low=0)

  clients_per_call: int | None = train.like('clients_per_call', when=_AVERAGING)
  rounds_per_evaluation: int = train.like('rounds_per_evaluation', when=_ROUNDS)

  def check(self) -> None:
    super().check()
    only = {'dp_fedavg': 'agent', 'dp_fedsgd': 'instance'}.get(self.algorithm, self.level)
    if self.level not in (None, only):
      raise ValueError(
          f'level must be {only} for algorithm={self.algorithm}, found {self.level!r}')
    if self.algorithm in _CLIPPED['algorithm'] and self.noise == 'gaussian':
      raise ValueError('noise must be skellam or gaussian_central for '
                       f'algorithm={self.algorithm}, found {self.noise!r}')

  def check_paths(self) -> None:
    super().check_paths()
    if self.data_path is None and 'data_path' in voting_tasks.REQUIRED[self.task]:
      raise ValueError(f'data_path must be given for task={self.task}')

  def unused(self) -> Iterator[tuple[str, str]]:
    yield from super().unused()
    if self.clients_see_features:
      yield 'client_shift', 'clients_see=features'
    if self.task == 'npz' and self.num_clients is None:
      for name in ('records_per_client', 'labels_per_client', 'data_seed'):
        yield name, 'task=npz without num_clients'
    if not self.has_student:
      for name, field in declarations.declared(type(self)).items():
        if field.group == 'student' and name != 'student' or name in _OF_STUDENT:
          yield name, f'algorithm={self.algorithm} without student'

  @property
  def is_vote(self) -> bool:
    return self.algorithm in VOTES

  @property
  def has_student(self) -> bool:
    return self.is_vote or self.student is not None

  @property
  def clients_see_features(self) -> bool:
    """Whether agents see records through the public feature map."""
    return self.clients_see == 'features' or self.clients_see is None and not (
        self.has_student and self.adversarial_strength)

  @property
  def privacy_level(self) -> str:
    """'agent' or 'instance': given, or the one that suits the algorithm."""
    return self.level or (
        'instance' if self.algorithm in ('knn', 'dp_fedsgd') else 'agent')

  def privacy_delta(self, units: int | None, recorded: Mapping[str, Any] | None) -> float:
    """Delta: given, or recorded, or by level and number of units if that is public."""
    usual = DEFAULT_DELTA[self.privacy_level]
    if self.delta is not None or recorded is not None:
      return self.delta or recorded.get('delta') or usual
    return min(usual, accountant.default_delta(units)) if units else usual

  @property
  def target_epsilon(self) -> float | None:
    """The target; None where the noise is given instead, or there is none."""
    given = self.epsilon, self.noise_stddev, self.noise_multiplier
    is_default = self.algorithm != 'fedavg' and given == (None, None, None)
    return DEFAULT_EPSILON if is_default else self.epsilon

  def client_training(self, model: str) -> dict[str, Any]:
    """`learning_rate`, `batch_size` and `epochs` of an agent with a model."""
    defaults = _AGENTS[model] if self.algorithm == 'ae' else _IN_BASELINES
    return {name: getattr(self, f'client_{name}') or default
            for name, default in defaults.items()}
