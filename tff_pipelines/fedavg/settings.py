"""Settings of federated averaging and of the data that it trains on."""

import dataclasses
import functools
from typing import Any

from aggregators import params as params_lib
from tasks import registry
from tasks.sources import partition
from tff_pipelines.accounting import base
from tff_pipelines.accounting import schemes
from tff_pipelines.experiment import settings
from tff_pipelines.experiment.settings import setting

_SHARES = ('skellam', 'discrete_gaussian')
_GRID = (*_SHARES, 'skellam_central')
_PRIVATE = (*_GRID, 'gaussian')
MECHANISMS = (*_PRIVATE, 'none')

DEFAULT_EPSILON = 8.0

_WITH_NOISE = {'mechanism': _PRIVATE}
_WITH_GRID = {'mechanism': _GRID}
_WITH_SHARES = {'mechanism': _SHARES}
_ADAPTIVE = {'mechanism': _GRID, 'adaptive_clipping': (True,)}
_MODELS = tuple(sorted({m for names in registry.MODELS.values() for m in names}))
_SOURCES = tuple(sorted({s for names in registry.DATA_SOURCES.values() for s in names}))
_FORMATS = [name for name in _SOURCES if name not in ('embedded', 'official')]


_data = functools.partial(setting, group='data')
_privacy = functools.partial(setting, group='privacy')
_training = functools.partial(setting, group='training')
_run = functools.partial(setting, group='run')


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings(settings.Settings):
  """Where clients' data are and what of them is read.

  All but `task` are None where the task decides.
  """

  task: str | None = _data('emnist', 'emnist: digits and letters. shakespeare: next '
      'character. stackoverflow_word: next word. stackoverflow_tag: tags of a post.',
      choices=registry.TASKS, essential=True)
  model: str | None = _data(None, 'Model of the task.', choices=_MODELS,
      otherwise='the small one of the task')
  data_source: str | None = _data(None, f'{", ".join(_FORMATS)}; official: TFF\'s '
      'data sets.', choices=_SOURCES,
      essential=True, otherwise='embedded, a small set that ships with the task')
  data_path: str | None = _data(None, 'Data files: paths and patterns, separated by '
      'commas; for folder, the folder of the clients\' folders.', essential=True,
      free=True)
  test_path: str | None = _data(None, 'Files of a test part, given like --data_path.',
      free=True, otherwise='some clients are held out')
  held_out_fraction: float | None = _data(None, 'Fraction of the clients held out '
      'where there is no test part.', above=0, below=1, otherwise='0.1')
  client_field: str | None = _data(None, 'Field, column or array that names the '
      'client.', otherwise='client; writer for npz')
  image_field: str | None = _data(None, 'Field of the images.',
      otherwise='pixels; image for folder, x for leaf and npz')
  label_field: str | None = _data(None, 'Field of the labels.',
      otherwise='label; y for leaf and npz')
  dark_ink: bool | None = _data(None, 'Ink is near 0, as in LEAF\'s and TFF\'s images, '
      'and not near the maximum, as in MNIST\'s.')
  num_classes: int | None = _data(None, 'Number of classes; labels are below it.',
      low=2, otherwise='62; as the file says, for npz')
  train_split: str | None = _data(None, 'split_name of the training part, for '
      'data_source=sqlite.', otherwise='train')
  test_split: str | None = _data(None, 'split_name of the test part, for '
      'data_source=sqlite.', otherwise='test, if there is one')
  skip_bad_clients: bool | None = _data(None, 'Skip and count clients whose data are '
      'bad, instead of stopping at the first.')
  cache_dir: str | None = _data(None, 'Folder of TFF\'s data sets, for '
      'data_source=official.', free=True)
  only_digits: bool | None = _data(None, '10 classes instead of 62, for '
      'data_source=official.')
  partition: str | None = _data(None, 'How embedded data and npz files are divided '
      'over simulated clients. labels: some labels each. size: sizes by a power law.',
      choices=tuple(partition.PARTITIONS), otherwise='dirichlet, for embedded data')
  num_clients: int | None = _data(None, 'Number of simulated clients.', low=1,
      otherwise='200 for embedded images, 125 for embedded texts')
  dirichlet_alpha: float | None = _data(None, 'Evenness of a client\'s labels, for '
      'partition=dirichlet.', above=0, otherwise='1.0')
  labels_per_client: int | None = _data(None, 'Different labels of a client, for '
      'partition=labels.', low=1, otherwise='2')
  size_exponent: float | None = _data(None, 'For partition=size: the client of rank r '
      'has r to the minus this of the examples.', otherwise='1.0')
  data_seed: int | None = _data(None, 'Seed of the partition.', low=0, otherwise='0')
  text_field: str | None = _data(None, 'Field of the text.',
      otherwise='text; snippets or tokens in official files')
  vocabulary: str | None = _data(None, 'File of a public list of words.', free=True,
      otherwise='words are counted in the training texts, outside the guarantee')
  vocabulary_size: int | None = _data(None, 'Maximum number of words.', low=1,
      otherwise='10,000; 1,000 for small models')
  num_labels: int | None = _data(None, 'Maximum number of tags.', low=1,
      otherwise='500; 50 for small models')
  sequence_length: int | None = _data(None, 'Tokens predicted in one example.', low=1,
      otherwise='80 characters, 20 words')
  max_examples_per_client: int | None = _data(None, 'Maximum number of examples that a '
      'client trains on: rows of characters, sentences, posts.', low=1)
  max_test_examples: int | None = _data(None, 'Maximum number of examples of a '
      'held-out set.', low=1, otherwise='2,000')

  def check(self) -> None:
    super().check()
    if self.task is not None and self.model is not None:
      models = registry.MODELS[self.task]
      if self.model not in models:
        raise ValueError(f'model must be one of {", ".join(models)} for '
                         f'task={self.task}, found {self.model!r}')

  def unused(self):
    yield from super().unused()
    if self.task is not None:
      for name in settings.declared(DataSettings):
        if name != 'task' and name not in registry.OPTIONS[self.task]:
          yield name, f'task={self.task}'

  @property
  def task_options(self) -> dict[str, Any]:
    """The options of the task that were given."""
    return {name: getattr(self, name) for name in settings.declared(DataSettings)
            if name != 'task' and getattr(self, name) is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSettings(settings.RunSettings, DataSettings):
  """Everything that a training run can be asked for."""

  mechanism: str = _privacy('skellam', 'skellam, discrete_gaussian: clients add noise '
      'under secure aggregation; skellam_central, gaussian: the server does; none: no '
      'privacy.', choices=MECHANISMS, essential=True)
  epsilon: float | None = _privacy(None, 'Target over all rounds; the noise is '
      'calibrated to it.', above=0, essential=True, when=_WITH_NOISE,
      otherwise=f'{DEFAULT_EPSILON:g}, without --noise_multiplier')
  noise_multiplier: float | None = _privacy(None, 'Noise standard deviation over the '
      'clip, instead of --epsilon.', above=0, essential=True, when=_WITH_NOISE)
  delta: float | None = _privacy(None, 'Delta of the guarantee.', above=0, below=1,
      essential=True, when=_WITH_NOISE, otherwise='1/number of clients')
  clip: float = _privacy(0.3, 'L2 clip of a client\'s update.', above=0,
      unit='model units', essential=True, when=_WITH_NOISE)
  cohort_size: float = _privacy(100.0, 'Expected number of clients in a round.', low=1,
      unit='clients', essential=True)
  rounds: int = _privacy(50, 'Number of rounds.', low=1, essential=True)
  sampling: str = _privacy('poisson', 'Clients of a round. '
      f'{schemes.IN_WORDS}.', choices=schemes.SAMPLINGS)
  adaptive_clipping: bool = _privacy(False, 'Let the clip follow a quantile of the '
      'updates\' norms, from --clip on; epsilon includes what that costs.',
      when=_WITH_GRID)
  target_quantile: float = _privacy(0.5, 'Fraction of the clients that an adaptive '
      'clip leaves unclipped.', above=0, below=1, when=_ADAPTIVE)
  clip_learning_rate: float = _privacy(0.2, 'Learning rate of an adaptive clip: a '
      'round changes the clip by less than this fraction, except for noise.', above=0,
      when=_ADAPTIVE)
  clip_count_stddev: float | None = _privacy(None, 'Noise of the count of unclipped '
      'clients in a round with an adaptive clip.', above=0, unit='clients',
      when=_ADAPTIVE, otherwise='a twentieth of --cohort_size')
  rotation: str = _privacy('hadamard', 'Rotation of an update before it is rounded.',
      choices=params_lib.ROTATIONS, when=_WITH_GRID)
  bits: int = _privacy(18, 'Bits of a coordinate of the sum.', low=2, high=30,
      when=_WITH_GRID)
  beta: float = _privacy(0.60653066, 'Bias of the conditional rounding; the default is '
      'exp(-1/2).', low=0, below=1, when=_WITH_GRID)
  k_stddevs: float = _privacy(4.0, 'Standard deviations of a coordinate of the sum '
      'that fit into half the modulus.', above=0, when=_WITH_GRID)
  min_honest_fraction: float = _privacy(1.0, 'Fraction of the selected clients whose '
      'noise the guarantee counts on; rounds with fewer are suppressed.', above=0,
      high=1, when=_WITH_SHARES)
  assumed_colluders: int = _privacy(0, 'Clients of a round that are assumed to tell '
      'the server their noise.', low=0, unit='clients', when=_WITH_SHARES)
  noise_generator: str = _privacy('philox', 'Generator of the random bits of rounding '
      'and noise. chacha20: cryptographic, slower, and refused where noise is not '
      'drawn from tables.', choices=params_lib.NOISE_GENERATORS, when=_WITH_SHARES)
  amplification: str = _privacy('tight', 'Bound on sampling; generic is the published '
      'one.', choices=base.AMPLIFICATIONS, when=_WITH_NOISE)
  accountant: str = _privacy('auto', 'auto: privacy loss distributions (pld) where the '
      'worst case is known, else Renyi divergences (rdp).', choices=base.ACCOUNTANTS,
      when=_WITH_NOISE)
  allow_degenerate: bool = _privacy(False, 'Accept a grid too coarse to be useful, '
      'with a warning.', when=_WITH_GRID)
  diagnostics: bool = _privacy(False, 'Also measure what is outside the guarantee: '
      'reporting clients, training loss, fraction clipped, rounding retries.')

  client_learning_rate: float = _training(0.2, 'Learning rate of SGD on a client.',
      above=0, essential=True)
  client_batch_size: int = _training(5, 'Examples of a step on a client.', low=1,
      essential=True)
  client_epochs: int = _training(1, 'Passes of a client over its examples in a round.',
      low=1)
  server_learning_rate: float = _training(0.7, 'Learning rate of SGD on the server.',
      above=0, essential=True)
  server_momentum: float = _training(0.9, 'Momentum of SGD on the server.', low=0,
      below=1)
  initial_weights_seed: int = _training(0, 'Seed of the model that training starts '
      'from, which is public.', low=0)

  rounds_per_evaluation: int = _run(1, 'Rounds from one evaluation to the next.', low=1,
      free=True)
  clients_per_call: int | None = _run(None, 'Clients that one graph call trains one '
      'after another; 1 makes each a TFF client of its own.', low=1, free=True,
      otherwise='chosen by the cohort')
  clients_by_id: bool = _run(True, 'Read clients of SQLite files where they train, '
      'which must have the files, instead of sending their examples. The numbers are '
      'the same.', free=True)
  simulated_dropout_rate: float = _run(0.0, 'Fraction of the selected clients that '
      'drop out, independently. What suppressed rounds then reveal is in epsilon.',
      low=0, below=1)

  def check(self) -> None:
    super().check()
    if self.epsilon is not None and self.noise_multiplier is not None:
      raise ValueError(
          'epsilon and noise_multiplier must not both be given: one follows from '
          f'the other; found epsilon={self.epsilon!r} and '
          f'noise_multiplier={self.noise_multiplier!r}')
    if self.sampling == 'fixed' and self.cohort_size != int(self.cohort_size):
      raise ValueError('cohort_size must be an integer for sampling=fixed, found '
                       f'{self.cohort_size!r}')

  @property
  def target_epsilon(self) -> float | None:
    """The target of the calibration; None where the noise is given or there is none."""
    if self.mechanism == 'none' or self.noise_multiplier is not None:
      return None
    return DEFAULT_EPSILON if self.epsilon is None else self.epsilon
