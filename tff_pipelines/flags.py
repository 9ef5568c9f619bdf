"""Flags of the training binaries, turned once into frozen configurations.

Nothing else reads FLAGS. Each group has a function that defines it and one that
reads it; a binary defines the groups that it uses.
"""

import dataclasses
from typing import Any

from absl import flags

from aggregators import params as params_lib
from aggregators import validate
from tasks import registry
from tff_pipelines.accounting import base
from tff_pipelines.accounting import request as request_lib

FLAGS = flags.FLAGS

_PRIVACY = 'privacy: '
_TRAINING = 'training: '
_DATA = 'data: '
_RUN = 'run: '

# What says how an adaptive clip moves, and costs no privacy.
_OF_THE_CLIP = ('target_quantile', 'clip_learning_rate')


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
  """What a training run is told, but for its privacy.

  Attributes are the flags of the same names; `task_options` are those of the
  task's data that were given.
  """

  task: str
  task_options: dict[str, Any]
  initial_weights_seed: int
  client_learning_rate: float
  client_batch_size: int
  client_epochs: int
  server_learning_rate: float
  server_momentum: float
  simulated_dropout_rate: float
  num_workers: int
  clients_per_call: int | None
  output_dir: str | None
  resume: bool
  rounds_per_evaluation: int
  seed: int | None
  diagnostics: bool
  assumed_colluders: int
  target_quantile: float
  clip_learning_rate: float

  def __post_init__(self):
    validate.positive(
        client_learning_rate=self.client_learning_rate,
        server_learning_rate=self.server_learning_rate,
        clip_learning_rate=self.clip_learning_rate)
    validate.open_unit_interval(target_quantile=self.target_quantile)
    validate.integer(client_batch_size=self.client_batch_size,
                     client_epochs=self.client_epochs,
                     rounds_per_evaluation=self.rounds_per_evaluation, low=1)
    validate.integer(num_workers=self.num_workers, low=1, high=64)
    if self.clients_per_call is not None:
      validate.integer(clients_per_call=self.clients_per_call, low=1)
    validate.integer(initial_weights_seed=self.initial_weights_seed,
                     assumed_colluders=self.assumed_colluders, low=0)
    for name in ('server_momentum', 'simulated_dropout_rate'):
      value = getattr(self, name)
      validate.finite(**{name: value})
      if not 0 <= value < 1:
        raise ValueError(f'{name} must be in [0, 1), found {value!r}')
    if self.seed is not None:
      validate.integer(seed=self.seed, low=0)
    if self.output_dir == '':
      raise ValueError('output_dir must be a path, found an empty one')
    if self.resume and self.output_dir is None:
      raise ValueError('resume needs output_dir, the folder of the run to continue')


def define_privacy(mechanisms: tuple[str, ...]) -> None:
  """Defines the flags of the mechanism, its calibration and its accounting."""
  flags.DEFINE_enum('mechanism', 'skellam', mechanisms, _PRIVACY +
                    'skellam, discrete_gaussian: clients add noise, sums under '
                    'secure aggregation. skellam_central: integers too, but the '
                    'server adds the noise. gaussian: the server adds noise (the '
                    'baseline). none: no clipping, no noise, no guarantee.')
  flags.DEFINE_float('epsilon', None, _PRIVACY +
                     'Target over all rounds, never exceeded. 8 if neither this '
                     'nor --noise_multiplier is given.')
  flags.DEFINE_float('noise_multiplier', None, _PRIVACY +
                     'Noise standard deviation over the clip, instead of '
                     '--epsilon.')
  flags.DEFINE_float('delta', None, _PRIVACY + '1/population if not given.')
  flags.DEFINE_float('clip', 0.3, _PRIVACY + 'L2 clip of a client\'s update, '
                     'model units.')
  flags.DEFINE_bool('adaptive_clipping', False, _PRIVACY + 'The clip follows a '
                    'quantile of the norms, from --clip on; what that costs is '
                    'in epsilon.')
  flags.DEFINE_float('target_quantile', 0.5, _PRIVACY + 'Part of the clients that '
                     'an adaptive clip leaves as they are.')
  flags.DEFINE_float('clip_learning_rate', 0.2, _PRIVACY + 'How fast an adaptive '
                     'clip moves: a round changes it by less than this part, but '
                     'for noise.')
  flags.DEFINE_float('clip_count_stddev', None, _PRIVACY + 'Noise of the count of '
                     'clients at most the clip, in clients; a twentieth of '
                     '--cohort_size if not given.')
  flags.DEFINE_enum('rotation', 'hadamard', params_lib.ROTATIONS, _PRIVACY +
                    'Of an update before it is rounded.')
  flags.DEFINE_integer('bits', 18, _PRIVACY + 'Bits of a coordinate of the sum, '
                       '2 to 30.')
  flags.DEFINE_float('beta', 0.60653066, _PRIVACY + 'Bias of the conditional '
                     'rounding, in [0, 1); the default is exp(-1/2).')
  flags.DEFINE_float('k_stddevs', 4.0, _PRIVACY + 'Standard deviations of a '
                     'coordinate of the sum inside half the field.')
  flags.DEFINE_float('min_honest_fraction', 1.0, _PRIVACY + 'Part of the told '
                     'clients whose noise the guarantee counts on; rounds below '
                     'it are withheld.')
  flags.DEFINE_integer('assumed_colluders', 0, _PRIVACY + 'Clients of a round that '
                       'are assumed to tell the server their noise.')
  flags.DEFINE_float('cohort_size', 100, _PRIVACY + 'Clients of a round, expected.')
  flags.DEFINE_integer('rounds', 50, _PRIVACY + 'Rounds in all.')
  flags.DEFINE_enum('sampling', 'poisson', request_lib.SAMPLINGS, _PRIVACY +
                    'How the clients of a round are drawn. poisson: each by '
                    'itself. fixed: a subset of exactly --cohort_size. none: all.')
  flags.DEFINE_enum('amplification', 'tight', base.AMPLIFICATIONS, _PRIVACY +
                    'Bound on sampling; generic is the published one.')
  flags.DEFINE_enum('accountant', 'auto', base.ACCOUNTANTS, _PRIVACY +
                    'auto: pld where the worst case is known, else rdp.')
  flags.DEFINE_bool('allow_degenerate', False, _PRIVACY + 'Accept a grid too '
                    'coarse to be useful, with a warning.')
  flags.DEFINE_integer('seed', None, _PRIVACY + 'Simulation seed: makes the run '
                       'repeatable and void of any guarantee.')
  flags.DEFINE_bool('diagnostics', False, _PRIVACY + 'Also measure what is outside '
                    'the guarantee: survivors, training loss, fraction clipped, '
                    'rounding retries.')


def define_training() -> None:
  """Defines the flags of clients' and the server's optimisation."""
  flags.DEFINE_float('client_learning_rate', 0.2, _TRAINING + 'SGD on a client.')
  flags.DEFINE_integer('client_batch_size', 5, _TRAINING + 'Examples of a step.')
  flags.DEFINE_integer('client_epochs', 1, _TRAINING + 'Passes over a client\'s '
                       'examples.')
  flags.DEFINE_float('server_learning_rate', 0.7, _TRAINING + 'SGD on the server.')
  flags.DEFINE_float('server_momentum', 0.9, _TRAINING + 'In [0, 1).')
  flags.DEFINE_integer('initial_weights_seed', 0, _TRAINING + 'Of the model that '
                       'training starts from, which is public.')


def define_data() -> None:
  """Defines the flags of the task and its data."""
  flags.DEFINE_enum('task', 'emnist', registry.TASKS, _DATA + 'What is learnt.')
  models = sorted({m for names in registry.MODELS.values() for m in names})
  sources = sorted({s for names in registry.DATA_SOURCES.values() for s in names})
  flags.DEFINE_string('model', None, _DATA + f'One of {", ".join(models)}.')
  flags.DEFINE_string('data_source', None, _DATA + f'One of {", ".join(sources)}; '
                      'embedded if not given.')
  flags.DEFINE_string('data_path', None, _DATA + 'File, for data_source=npz.')
  flags.DEFINE_string('cache_dir', None, _DATA + 'Folder of TFF\'s data sets, for '
                      'data_source=official.')
  flags.DEFINE_bool('only_digits', None, _DATA + '10 classes instead of 62, for '
                    'data_source=official.')
  flags.DEFINE_integer('num_clients', None, _DATA + 'Clients that embedded data '
                       'are split over (200).')
  flags.DEFINE_float('dirichlet_alpha', None, _DATA + 'Evenness of the labels of '
                     'embedded clients (1.0).')
  flags.DEFINE_integer('data_seed', None, _DATA + 'Of the split of embedded data.')


def define_run() -> None:
  """Defines the flags of where and how a run takes place."""
  flags.DEFINE_string('output_dir', None, _RUN + 'Folder of checkpoints, ledger, '
                      'metrics, summary and picture; a new one below out/ if not '
                      'given.')
  flags.DEFINE_bool('resume', False, _RUN + 'Continue the run in --output_dir; '
                    'start it if there is none.')
  flags.DEFINE_integer('rounds_per_evaluation', 1, _RUN + 'Rounds from one '
                       'evaluation to the next.')
  flags.DEFINE_integer('num_workers', 1, _RUN + 'TFF worker processes.')
  flags.DEFINE_integer('clients_per_call', None, _RUN + 'Clients that one graph '
                       'call trains one after another; chosen by the cohort if '
                       'not given. 1: one TFF client each.')
  flags.DEFINE_float('simulated_dropout_rate', 0.0, _RUN + 'Part of the told '
                     'clients that do not answer.')


def privacy_request() -> tuple[request_lib.Request, frozenset[str]]:
  """The privacy flags, and the names of those that the user gave.

  `dimension` and `population` are None: the task knows them.
  """
  names = [name for name in request_lib.Request.__dataclass_fields__
           if name in FLAGS and name != 'mechanism']
  given = frozenset(name for name in (*names, *_OF_THE_CLIP)
                    if FLAGS[name].present)
  values = {name: FLAGS[name].value for name in names}
  if FLAGS.mechanism == 'none':
    values['epsilon'] = values['noise_multiplier'] = None
  elif values['epsilon'] is None and values['noise_multiplier'] is None:
    values['epsilon'] = 8.0
  request = request_lib.Request(
      query='epsilon', mechanism=FLAGS.mechanism, **values)
  return request, given


def train_config() -> TrainConfig:
  """The flags of task, training and run."""
  options = {name: FLAGS[name].value for name in registry.OPTIONS[FLAGS.task]
             if FLAGS[name].value is not None}
  names = set(TrainConfig.__dataclass_fields__) - {'task_options'}
  return TrainConfig(
      task_options=options, **{name: FLAGS[name].value for name in names})
