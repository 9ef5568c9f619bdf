"""Settings of FedMD and of the images that its parties hold."""

from collections.abc import Iterator
import dataclasses

from aggregators import prediction_params
from tasks.fedmd import data as fedmd_data
from tff_pipelines.common import declarations
from tff_pipelines.experiment import settings

_SHARED = {'mode': ('nfdp', 'np', 'ldp')}
_WITH_FILES = {'task': ('mnist_letters', 'cifar')}

_data, _privacy, _rounds, _training = declarations.groups(
    'data', 'privacy', 'rounds', 'training')
# Privacy by random draws, and by noise; rounds and training with a consensus.
_drawn = declarations.group('privacy', mode=('nfdp', 'ldp'))
_noisy = declarations.group('privacy', mode=('ldp',))
_shared = declarations.group('rounds', **_SHARED)
_digest = declarations.group('training', **_SHARED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedMdSettings(settings.RunSettings):
  task: str = _data('digits', 'Public and private images. digits: embedded. '
      'mnist_letters: MNIST and letters a to f. cifar: CIFAR-10 and CIFAR-100.',
      choices=tuple(fedmd_data.TASKS), essential=True)
  data_path: str | None = _data(
      None, 'Folder of the .npz files.', essential=True, free=True, when=_WITH_FILES)
  cache_dir: str | None = _data(None, 'Folder of TFF\'s federated EMNIST, for the '
      'letters.', free=True, when={'task': ('mnist_letters',)},
      otherwise='letters from unipen62_writers.npz')
  num_clients: int = _data(10, 'Number of parties.', low=1, high=1000, essential=True)
  records_per_client: int | None = _data(None, 'Private records of a party.', low=1,
      otherwise='all, up to what the paper had')
  split: str = _data('iid', 'iid: random records each. noniid: a party is a writer, '
      'or has one kind of each class.', choices=fedmd_data.SPLITS, essential=True)
  data_seed: int = _data(0, 'Seed of the split.', low=0)

  mode: str = _privacy('nfdp', 'nfdp: a party trains on a random draw of its records. '
      'ldp: it adds noise to its predictions. np: no privacy. centralized: all records '
      'in one place.', choices=('nfdp', 'np', 'centralized', 'ldp'), essential=True)
  subset_size: int | None = _drawn(None, 'Draws of a party, once for the whole run.',
      low=1, unit='records', essential=True, otherwise='as many as it has records')
  replacement: bool = _drawn(True, 'A record may be drawn more than once.')
  epsilon: float | None = _noisy(None, 'Target of mode=ldp over all rounds.', above=0,
      essential=True, otherwise='that of the draw')
  delta: float | None = _noisy(None, 'Delta of that target.', above=0, below=1,
      essential=True, otherwise='that of the draw')
  diagnostics: bool = _noisy(
      False, 'Also measure the parties\' own models, outside the guarantee.')
  noise: str = _noisy('gaussian', 'Distribution of the noise of mode=ldp.',
      choices=('gaussian', 'laplace'))

  knowledge: str = _shared('argmax', 'What parties share of their predictions; argmax '
      'is the most likely class.', choices=prediction_params.KNOWLEDGE, essential=True)
  rounds: int = _rounds(
      20, 'Rounds after the parties\' first training.', low=1, essential=True)
  initial_epochs: int = _rounds(20, 'Epochs of a party\'s first training.', low=0)
  digest_epochs: int = _shared(2, 'Epochs of a round on the consensus.', low=0)
  revisit_epochs: int = _rounds(2, 'Epochs of a round on own records.', low=0)
  public_per_round: int | None = _shared(None, 'Public records of a round.', low=1,
      unit='records', otherwise='5000; 200 of digits')
  weighting: str = _shared('equal', 'Weights of parties.', choices=('equal', 'records'))
  bits: int = _shared(20, 'Bits of an entry of the sum of predictions.', low=4, high=30)
  logit_bound: float = _rounds(30.0, 'Bound that logits are clipped to.', low=1e-3,
      high=1e6, when={**_SHARED, 'knowledge': ('logits',)})

  architectures: tuple[str, ...] = _training(('conv2', 'conv3', 'mixed3'), 'Networks '
      'that parties have alternately: conv2, conv3, mixed3, dense2, dense3.')
  pretrain_epochs: int = _training(
      16, 'Epochs on labelled public records, before parties start.', low=0)
  pretrain_learning_rate: float = _training(
      0.003, 'Learning rate of Adam on labelled public records.', above=0)
  pretrain_batch_size: int = _training(64, 'Labelled public records of a step.', low=1)
  client_learning_rate: float = _training(
      0.002, 'Learning rate of Adam on a party\'s records.', above=0)
  client_batch_size: int = _training(
      16, 'Examples of a step on a party\'s records.', low=1)
  digest_learning_rate: float = _digest(
      0.002, 'Learning rate of Adam on the consensus.', above=0)
  digest_batch_size: int = _digest(128, 'Examples of a step on the consensus.', low=1)
  final_rate_factor: float = _training(0.05, 'Fraction of learning rates in the last '
      'round, to which they fall in equal steps.', above=0, high=1)
  mirror: bool | None = _training(
      None, 'Mirror half of the images in training.', otherwise='for cifar only')
  initial_weights_seed: int = _training(0, 'Public seed of the initial weights.', low=0)

  simulated_dropout_rate: float = declarations.setting(0.0, 'Probability that a party '
      'misses a round.', group='run', low=0, below=1, when=_SHARED)

  def check(self) -> None:
    super().check()
    if (self.epsilon is None) != (self.delta is None):
      raise ValueError('epsilon and delta must be given together, found '
                       f'epsilon={self.epsilon!r} and delta={self.delta!r}')
    if self.task in _WITH_FILES['task'] and self.data_path is None:
      raise ValueError(f'task={self.task} needs data_path, the folder of its files')

  def unused(self) -> Iterator[tuple[str, str]]:
    yield from super().unused()
    if self.mode == 'ldp' and self.epsilon is not None:
      for name in ('subset_size', 'replacement'):
        yield name, 'an epsilon of its own in mode=ldp'
    if self.mode in ('nfdp', 'np') and self.knowledge == 'argmax':
      yield 'bits', 'knowledge=argmax'
    if self.task == 'mnist_letters' and self.split == 'noniid':
      yield 'records_per_client', 'split=noniid of letters'

  @property
  def public_records(self) -> int:
    """Public records of a round, the default of the task filled in."""
    return self.public_per_round or (200 if self.task == 'digits' else 5000)

  @property
  def mirrors(self) -> bool:
    """Whether images are mirrored, the default of the task filled in."""
    # Images of CIFAR keep their meaning in a mirror.
    return self.task == 'cifar' if self.mirror is None else self.mirror

  def rate_factor(self, number: int) -> float:
    """The factor of the learning rates of round `number`, 0 the first training."""
    return (1.0 if number < 1 or self.rounds == 1 else
            1.0 - (1.0 - self.final_rate_factor) * (number - 1) / (self.rounds - 1))
