"""Flags of the training binaries, turned once into frozen configurations.

Nothing else reads FLAGS. Each group has a function that defines it and one that
reads it; a binary defines the groups that it uses.
"""

import dataclasses
from typing import Any

from absl import flags

from aggregators import params as params_lib
from aggregators import validate
from tasks import open_source
from tasks import partition
from tasks import records
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
  clients_by_id: bool
  output_dir: str | None
  resume: bool
  rounds_per_evaluation: int
  seed: int | None
  diagnostics: bool
  target_quantile: float
  clip_learning_rate: float
  noise_generator: str

  def __post_init__(self):
    validate.positive(
        client_learning_rate=self.client_learning_rate,
        server_learning_rate=self.server_learning_rate,
        clip_learning_rate=self.clip_learning_rate)
    validate.open_unit_interval(target_quantile=self.target_quantile)
    validate.integer(client_batch_size=self.client_batch_size,
                     client_epochs=self.client_epochs,
                     rounds_per_evaluation=self.rounds_per_evaluation, low=1)
    validate.integer(num_workers=self.num_workers, low=0, high=64)
    if self.clients_per_call is not None:
      validate.integer(clients_per_call=self.clients_per_call, low=1)
    validate.integer(initial_weights_seed=self.initial_weights_seed, low=0)
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
  flags.DEFINE_enum('noise_generator', 'philox', params_lib.NOISE_GENERATORS,
                    _PRIVACY + 'Of the random words of rounding and noise. chacha20: '
                    'cryptographic, slower, and refused where noise is not drawn from '
                    'tables.')
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


def define_data(default_task: str | None = 'emnist') -> None:
  """Defines the flags of the task and its data."""
  flags.DEFINE_enum('task', default_task, registry.TASKS, _DATA + 'What is learnt.')
  models = sorted({m for names in registry.MODELS.values() for m in names})
  sources = sorted({s for names in registry.DATA_SOURCES.values() for s in names})
  flags.DEFINE_string('model', None, _DATA + f'One of {", ".join(models)}.')
  flags.DEFINE_string('data_source', None, _DATA + f'One of {", ".join(sources)}; '
                      'embedded if not given.')
  flags.DEFINE_string('data_path', None, _DATA + 'The files: paths and patterns, '
                      'comma between; for folder, the folder of the clients\' folders.')
  flags.DEFINE_string('test_path', None, _DATA + 'Files of a test part, like '
                      '--data_path; without one, some clients are held out.')
  flags.DEFINE_float('held_out_fraction', None, _DATA + 'Part of the clients that are '
                     'held out where there is no test part (0.1).')
  flags.DEFINE_string('client_field', None, _DATA + 'Field, column or array that names '
                      'the client (client; writer for npz).')
  flags.DEFINE_string('image_field', None, _DATA + 'Field of the images (pixels; image '
                      'for folder, x for leaf and npz).')
  flags.DEFINE_string('label_field', None, _DATA + 'Field of the labels (label; y for '
                      'leaf and npz).')
  flags.DEFINE_bool('dark_ink', None, _DATA + 'Ink is near 0, as in LEAF\'s and TFF\'s '
                    'images, and not near the maximum, as in MNIST\'s.')
  flags.DEFINE_integer('num_classes', None, _DATA + 'Labels are below this (62; as the '
                       'file says, of npz).')
  flags.DEFINE_string('train_split', None, _DATA + 'split_name of the training part, '
                      'for data_source=sqlite (train).')
  flags.DEFINE_string('test_split', None, _DATA + 'split_name of the test part, for '
                      'data_source=sqlite (test, if there is one).')
  flags.DEFINE_bool('skip_bad_clients', None, _DATA + 'Skip and count clients whose '
                    'data are bad, instead of stopping at the first.')
  flags.DEFINE_string('cache_dir', None, _DATA + 'Folder of TFF\'s data sets, for '
                      'data_source=official.')
  flags.DEFINE_bool('only_digits', None, _DATA + '10 classes instead of 62, for '
                    'data_source=official.')
  flags.DEFINE_enum('partition', None, partition.PARTITIONS, _DATA + 'How embedded data '
                    'and npz files are divided over simulated clients (dirichlet, for '
                    'embedded). labels: some labels each. size: by a power law.')
  flags.DEFINE_integer('num_clients', None, _DATA + 'Simulated clients (200, for '
                       'embedded; 125 of texts).')
  flags.DEFINE_float('dirichlet_alpha', None, _DATA + 'Evenness of the labels of '
                     'clients of --partition=dirichlet (1.0).')
  flags.DEFINE_integer('labels_per_client', None, _DATA + 'Of --partition=labels (2).')
  flags.DEFINE_float('size_exponent', None, _DATA + 'Of --partition=size: the client of '
                     'rank r has r to the minus this of the examples (1.0).')
  flags.DEFINE_integer('data_seed', None, _DATA + 'Of the partition (0).')
  _define_text()


def _define_text() -> None:
  """The flags of tasks that learn from texts."""
  flags.DEFINE_string('text_field', None, _DATA + 'Field of the text (text; of '
                      'official files, snippets or tokens).')
  flags.DEFINE_string('vocabulary', None, _DATA + 'File of a public list of words; '
                      'without one, words are counted in the training clients\' '
                      'texts, outside the guarantee.')
  flags.DEFINE_integer('vocabulary_size', None, _DATA + 'Words at most (10,000; 1,000 '
                       'for small models).')
  flags.DEFINE_integer('num_labels', None, _DATA + 'Tags at most (500; 50 for small '
                       'models).')
  flags.DEFINE_integer('sequence_length', None, _DATA + 'Tokens predicted in one '
                       'example (80 characters, 20 words).')
  flags.DEFINE_integer('max_examples_per_client', None, _DATA + 'A client trains on '
                       'at most so many examples: rows of characters, sentences, '
                       'posts.')
  flags.DEFINE_integer('max_test_examples', None, _DATA + 'Of each held-out set '
                       '(2,000).')


def define_preparation() -> None:
  """Defines the flags of what data are copied to."""
  flags.DEFINE_string('output', None, _RUN + 'The SQLite file to write.')
  flags.DEFINE_list('fields', None, _DATA + 'What to copy, without --task: NAME, '
                    'NAME:KIND or, where it may be missing, NAME:KIND?, comma between; '
                    f'KIND being {", ".join(records.KINDS)}. All fields of the first '
                    'record if not given.')


def define_run() -> None:
  """Defines the flags of where and how a run takes place."""
  flags.DEFINE_string('output_dir', None, _RUN + 'Folder of checkpoints, ledger, '
                      'metrics, summary and picture; a new one below out/ if not '
                      'given.')
  flags.DEFINE_bool('resume', False, _RUN + 'Continue the run in --output_dir; '
                    'start it if there is none.')
  flags.DEFINE_integer('rounds_per_evaluation', 1, _RUN + 'Rounds from one '
                       'evaluation to the next.')
  flags.DEFINE_integer('num_workers', 0, _RUN + 'TFF worker processes that share '
                       'the clients of a round, at most 64; 0: all is computed in '
                       'this process, which is the fastest on one machine.')
  flags.DEFINE_integer('clients_per_call', None, _RUN + 'Clients that one graph '
                       'call trains one after another; chosen by the cohort if '
                       'not given. 1: one TFF client each.')
  flags.DEFINE_bool('clients_by_id', True, _RUN + 'Clients of SQLite files are read '
                    'where they train, which must have the files; otherwise their '
                    'examples are sent. The numbers are the same.')
  flags.DEFINE_float('simulated_dropout_rate', 0.0, _RUN + 'Part of the told '
                     'clients that do not answer, each by itself. What withheld '
                     'rounds then tell is in epsilon.')


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
  """What prepare_data is told.

  Attributes are the flags of the same names; `options` are those of the data that
  were given.
  """

  output: str
  task: str | None
  data_source: str | None
  options: dict[str, Any]
  fields: list[str] | None

  def __post_init__(self):
    if not self.output:
      raise ValueError('output must be the path of a file, found none')


def prepare_config() -> PrepareConfig:
  """The flags of prepare_data."""
  known = {name for names in registry.OPTIONS.values() for name in names}
  options = {name: FLAGS[name].value for name in sorted(known)
             if FLAGS[name].value is not None and name != 'data_source'}
  usable = open_source.OPTIONS if FLAGS.task is None else registry.OPTIONS[FLAGS.task]
  unused = sorted(set(options) - set(usable) | (set(options) & {'model'}))
  if unused:
    raise ValueError(
        f'{", ".join(unused)} not used '
        + ('without --task' if FLAGS.task is None else f'by --task={FLAGS.task}'))
  return PrepareConfig(
      output=FLAGS.output, task=FLAGS.task, data_source=FLAGS.data_source,
      options=options, fields=FLAGS.fields)


def train_config() -> TrainConfig:
  """The flags of task, training and run."""
  options = {name: FLAGS[name].value for name in registry.OPTIONS[FLAGS.task]
             if FLAGS[name].value is not None}
  names = set(TrainConfig.__dataclass_fields__) - {'task_options'}
  return TrainConfig(
      task_options=options, **{name: FLAGS[name].value for name in names})
