"""Settings of federated averaging and of the data that it trains on."""

from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

from aggregators import noises, params as params_lib
from aggregators.native import kept
from tasks import registry
from tasks.sources import open_source, partition, records
from tff_pipelines.accounting.guarantees import answers, mechanisms
from tff_pipelines.common import declarations, files
from tff_pipelines.experiment import settings

_GRID = tuple(noises.NOISES)
_PRIVATE = (*_GRID, 'gaussian', 'silo_noise')
# Aggregation of the user's own, whose noise is not calibrated here.
OWN = 'own'
_ACCOUNTED = (*_PRIVATE, OWN)
MECHANISMS = (*_ACCOUNTED, 'none')
SERVER_OPTIMIZERS = ('sgdm', 'adam', 'adagrad', 'yogi')
SERVER_SCHEDULES = ('constant', 'linear_warmup', 'linear_decay', 'cosine')

DEFAULT_EPSILON, DEFAULT_BITS = 8.0, 18
# Sampling by turns, alone with which sums may stay closed; and of records, by silos.
TURNS, RECORDS = 'turns', 'records'
WITH_ROWS = TURNS, RECORDS
# Units that are protected in place of clients, which are silos then, and the defaults
# of settings that tasks have for clients.
OF_SILOS = ('record', 'person')
_FOR_SILOS = {'clip': 1.0, 'server_learning_rate': 0.25, 'server_momentum': 0.9}

_MODELS = tuple(sorted({m for names in registry.MODELS.values() for m in names}))


def _by_task(name: str) -> str:
  """The defaults of the tasks, in words: '0.2; 2 for shakespeare, ...'."""
  tasks: dict[float, list[str]] = {}
  for task in registry.TASKS:
    tasks.setdefault(registry.DEFAULTS[task][name], []).append(task)
  first, *rest = tasks.items()
  return '; '.join([f'{first[0]:g}', *(
      f'{value:g} for {", ".join(names)}' for value, names in rest)])


def _sum(name: str, *default: Any, **changes: Any) -> Any:
  """The parameter of a sum of this name, used with the mechanisms that have it."""
  declared = declarations.declared(mechanisms.SumMechanism)[name]
  users = tuple(mechanism for mechanism in MECHANISMS
                if name in mechanisms.MECHANISMS[mechanism].uses)
  when = {} if users == MECHANISMS else {'mechanism': users}
  return declarations.like(mechanisms.SumMechanism, name, *default, **{
      'group': 'privacy', 'when': {**when, **declared.when}, **changes})


_data, _privacy, _training, _run = declarations.groups(
    'data', 'privacy', 'training', 'run')
# Settings of privacy by mechanism: noise, a grid, noise of clients, an adaptive clip.
_noise = declarations.group('privacy', mechanism=_PRIVATE)
_silos = declarations.group('privacy', protect=OF_SILOS)
_person = declarations.group('privacy', protect=('person',))
# Fewer canaries can refute nothing.
_LEAST_CANARIES = 20
_CLIENTS = {'protect': ('client',)}
_local = declarations.group('training', **_CLIENTS)
_of_clients = declarations.group('run', **_CLIENTS)
_accounted = declarations.group('privacy', mechanism=_ACCOUNTED)
_query = functools.partial(
    declarations.like, answers.Query, group='privacy', when={'mechanism': _ACCOUNTED})
_grid = declarations.group('privacy', mechanism=_GRID)
_adaptive = functools.partial(
    declarations.like, params_lib.AdaptiveClipParams, group='privacy',
    when={'mechanism': _GRID, 'adaptive_clipping': (True,)})
_planned = functools.partial(
    declarations.group('run', plan=(True,)), low=1, free=True,
    otherwise='that of the data')
# Headings of training by the server's optimizer and schedule.
_sgdm = declarations.group('training', server_optimizer=('sgdm',))
_not_sgdm = declarations.group('training', server_optimizer=SERVER_OPTIMIZERS[1:])
_betas = declarations.group('training', server_optimizer=('adam', 'yogi'))
_scheduled = declarations.group('training', server_schedule=SERVER_SCHEDULES[1:])


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings(settings.TaskSettings):
  """The clients' data and the options of their reader.

  All but `task` are None where the task decides.
  """

  options_by_task = registry.OPTIONS
  defaults_by_task = registry.DEFAULTS

  task: str | None = _data('emnist', 'Task. tabular: tables. images: any size. '
      'text_classification: classes. emnist: characters. shakespeare: next character. '
      'stackoverflow_word, stackoverflow_tag: next word, tags of posts. '
      'module:function: your own.', named=True, essential=True)
  model: str | None = _data(None, 'Model of the task.', choices=_MODELS,
      otherwise='the small one of the task')
  data_source: str | None = _data(None, 'Data source: '
      f'{", ".join(open_source.FORMATS)}; official: TFF\'s data sets.', essential=True,
      choices=registry.DATA_SOURCES,
      otherwise='by the names of --data_path, or embedded')
  data_path: str | None = _data(None, 'Data files: paths and patterns, separated by '
      'commas; for folder, that of the clients\' folders.', essential=True, free=True)
  test_path: str | None = _data(None, 'Files of a test part, given like --data_path.',
      free=True, otherwise='some clients are held out')
  held_out_fraction: float | None = _data(None, 'Fraction of the clients held out '
      'where there is no test part.', above=0, below=1, otherwise='0.1')
  held_out_records: float | None = _data(None, 'Fraction of each client\'s records, or '
      'persons, held out where there is no test part, instead of clients.', above=0,
      below=1, otherwise='0.1 for files with --protect=record or person; else none')
  client_field: str | None = _data(None, 'Field, column or array that names the '
      'client.', otherwise='client; writer for npz')
  person_field: str | None = _data(None, 'Field that names the person of a record.',
      otherwise='none; needed to protect persons; of records, each is another\'s')
  image_field: str | None = _data(None, 'Field of the images.',
      otherwise='pixels; image for folder, x for leaf and npz')
  label_field: str | None = _data(None, 'Field of the labels.',
      otherwise='label; y for images of leaf and npz')
  dark_ink: bool | None = _data(None, 'Dark ink: it is near 0, as in LEAF\'s and '
      'TFF\'s images, not near the maximum, as in MNIST\'s.')
  num_classes: int | None = _data(None, 'Number of classes; labels are below it.',
      low=2, otherwise='62 for emnist; as the file says, for npz')
  class_names: tuple[str, ...] | None = _data(None, 'Names of the classes, separated '
      'by commas; labels are these texts.', otherwise='labels are integers')
  feature_fields: tuple[str, ...] | None = _data(None, 'Columns to learn from, '
      'separated by commas.', otherwise='all that are publicly known, but the label')
  public_bounds: str | None = _data(None, 'JSON file of what is publicly known of a '
      'table: column -> [low, high], or a list of its categories.', free=True)
  public_sample: str | None = _data(None, 'File of public rows, .csv, .tsv, .jsonl or '
      '.parquet, by which columns without public bounds are standardised.', free=True)
  statistics_epsilon: float | None = _data(None, 'Epsilon of noised means, deviations '
      'of bounded columns, by which they are standardised; epsilon includes it.',
      above=0, otherwise='columns are standardised by bounds or sample')
  class_weights: tuple[str, ...] | None = _data(None, 'Weights of the classes of a '
      'table in the loss: one each, separated by commas; or balanced, by the public '
      'sample or, with --statistics_epsilon, by noised counts.', otherwise='1')
  missing: str | None = _data(None, 'Missing values and unknown categories: error, or '
      'impute by the centre of the column, or none of the categories.',
      choices=('error', 'impute'), otherwise='error')
  train_split: str | None = _data(None, 'split_name of the training part, for '
      'data_source=sqlite.', otherwise='train')
  test_split: str | None = _data(None, 'split_name of the test part, for '
      'data_source=sqlite.', otherwise='test, if there is one')
  skip_bad_clients: bool | None = _data(None, 'Skip and count clients whose data are '
      'bad when they are opened, instead of stopping at the first.')
  cache_dir: str | None = _data(None, 'Folder of the copies of data files, which are '
      'as private as these, and of official data sets.', free=True,
      otherwise='~/.cache/tff_pipelines; ~/.tff for official')
  no_cache: bool | None = _data(None, 'Keep no copy of data files: one that is deleted '
      'with the process.', free=True)
  only_digits: bool | None = _data(None, 'Only the 10 digits of the official data.')
  partition: str | None = _data(None, 'Partition of data over simulated clients. '
      'labels: some labels each. size: sizes by a power law.',
      choices=tuple(partition.PARTITIONS), otherwise='dirichlet, for embedded data')
  num_clients: int | None = _data(None, 'Number of simulated clients.', low=1,
      otherwise='200 for embedded images, 125 for embedded texts')
  dirichlet_alpha: float | None = _data(None, 'Evenness of a client\'s labels, for '
      'partition=dirichlet.', above=0, otherwise='1.0')
  labels_per_client: int | None = _data(None, 'Different labels of a client, for '
      'partition=labels.', low=1, otherwise='2')
  size_exponent: float | None = _data(None, 'For partition=size: the client of rank r '
      'has r to the minus this of the examples.', low=0, otherwise='1.0')
  data_seed: int | None = _data(None, 'Seed of the partition.', low=0, otherwise='0')
  text_field: str | None = _data(None, 'Field of the text.',
      otherwise='text; snippets or tokens in official files')
  vocabulary: str | None = _data(None, 'File of public words, or private_counts: words '
      'of the training texts, counted with noise that is in epsilon.', free=True,
      otherwise='words are counted in the training texts, outside the guarantee')
  words_per_client: int | None = _data(None, 'Maximum number of words that a client '
      'adds to the counts of --vocabulary=private_counts.', low=1, otherwise='64')
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

  def __post_init__(self):
    # Recorded like a value that was given: a resumed run has it, wherever its files are.
    if self.data_source is None and self.data_path is not None and (
        self.task is None or self.task in registry.TASKS):
      object.__setattr__(self, 'data_source', open_source.format_of(self.data_path))
    super().__post_init__()

  def paths(self) -> dict[str, str]:
    # This vocabulary is no path.
    return {**super().paths(), **({'vocabulary': self.vocabulary} if (
        self.vocabulary == registry.PRIVATE_COUNTS) else {})}

  def check(self) -> None:
    super().check()
    # Raises for a task that is unknown.
    own = not isinstance(self.task, str) or registry.is_own(self.task)
    models = () if own else registry.MODELS[self.task]
    if not own and self.model not in (None, *models):
      raise ValueError(f'model must be one of {", ".join(models)} for '
                       f'task={self.task}, found {self.model!r}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSettings(settings.RunSettings, DataSettings):
  """All settings of a training run."""

  mechanism: str = _privacy('skellam', 'Of clients: skellam, discrete_gaussian; a '
      'server: skellam_central, gaussian; silo_noise, none, own.',
      choices=MECHANISMS, essential=True)
  protect: str = _privacy('client', 'Unit of epsilon: a client, or a record or person of '
      'clients that are silos.',
      choices=('client', *OF_SILOS))
  batch_size: float | None = _silos(None, 'Expected records, or persons, of a step, of '
      'all silos together.', above=0, otherwise='a tenth of all')
  records_per_person: int = _person(16, 'Maximum number of records of a person that are '
      'used.', low=1)
  aggregation: str | None = declarations.setting(None, 'Aggregation of your own, '
      'module:function: it returns a factory of TFF for the mean update, or a pair of '
      'it and the event that it is accounted by.', group='privacy', named=True,
      when={'mechanism': (OWN,)})
  epsilon: float | None = _noise(None, 'Target epsilon of the whole run; the noise is '
      'calibrated to it.', above=0, essential=True,
      otherwise=f'{DEFAULT_EPSILON:g}, without another target or --noise_multiplier')
  epsilon_server: float | None = _noise(None, 'Target epsilon against the server and '
      'whoever knows the cohorts, drawn by the rule; with --epsilon both are met.',
      above=0)
  noise_multiplier: float | None = _sum(
      'noise_multiplier', low=None, above=0, instead_of='epsilon',
      help='Noise standard deviation over the clip, instead of --epsilon.')
  delta: float | None = _accounted(None, 'Delta of the guarantee.', above=0, below=1,
      essential=True, otherwise='1/N^1.1 for N clients, at most 1e-5 from 10,000 on')
  clip: float | None = _sum(
      'clip', when={'mechanism': _PRIVATE}, by_task=True, otherwise=_by_task('clip'))
  cohort_size: float = _sum('cohort_size', 100.0, low=1, above=None, when=_CLIENTS)
  rounds: int = _sum('rounds', 50)
  sampling: str = _sum('sampling', TURNS, when={}, essential=False)
  fixed_adjacency: str = _sum('fixed_adjacency')
  max_participations: int | None = _sum('max_participations', help='Maximum number of '
      'rounds that select a client, which lowers epsilon_server. 0: no limit.', low=0,
      otherwise='the expected number plus its square root, rounded up; no limit where '
      'rounds may be suppressed')
  min_cohort_size: int | None = _sum('min_cohort_size')
  turn_rate: float = _sum('turn_rate', when={'sampling': (TURNS,)})
  bands: int | None = declarations.setting(
      None, 'Rounds in a row, whose sums stay closed but for it: noise cancels over '
      'them, so that less is enough. auto: as many as are worth it.', group='privacy',
      low=1, high=params_lib.MAX_BANDS, unit='rounds', auto=True,
      otherwise=f'{settings.AUTO}; 1 for records', when={
          'mechanism': (*_GRID, 'gaussian'), 'sampling': (TURNS, RECORDS)})
  adaptive_clipping: bool = _sum(
      'adaptive_clipping', when={'mechanism': _GRID, **_CLIENTS}, help='Let the clip '
      'follow a quantile of the updates\' norms, from --clip on; epsilon includes the '
      'cost.')
  target_quantile: float = _adaptive('target_quantile')
  clip_learning_rate: float = _adaptive('learning_rate')
  clip_count_stddev: float | None = _sum('clip_count_stddev')
  rotation: str = _sum('rotation')
  bits: int | None = _sum('bits', essential=False, otherwise=(
      f'{DEFAULT_BITS}, or as many as rows of several rounds need'))
  beta: float = _sum('beta')
  k_stddevs: float = _sum('k_stddevs')
  min_honest_fraction: float = _sum('min_honest_fraction')
  assumed_colluders: int = _sum('assumed_colluders')
  amplification: str = _query('amplification')
  accountant: str = _query('accountant')
  clients_per_person: int = declarations.setting(1, group='privacy', when={
      'mechanism': _ACCOUNTED, **_CLIENTS}, low=1, unit='clients', help='Clients that one '
      'person may own, whose epsilon is stated too; noise is calibrated for one client.')
  allow_degenerate: bool = _grid(False, 'Only warn of a grid too coarse to be useful.')
  diagnostics: bool = _privacy(False, 'Also measure values outside the guarantee: '
      'reporting clients, training loss, fraction clipped, rounding retries.')
  canaries: int = declarations.setting(0, group='privacy', when={
      'mechanism': _PRIVATE, 'adaptive_clipping': (False,),
      'protect': ('client', 'record')}, low=0, high=2**20, unit='canaries', help='Canaries '
      'that join the clients, or records, so that a lower bound of epsilon is measured. '
      'The model is not for use.')
  private_evaluation: float = _noise(0.0, 'Epsilon of noised metrics of the training '
      'clients\' held-out examples after the last round; epsilon includes it. 0: exact '
      'metrics, outside the guarantee.', low=0)

  client_learning_rate: float | None = _local(None, 'Learning rate of SGD on a '
      'client.', above=0, essential=True, by_task=True,
      otherwise=_by_task('client_learning_rate'))
  client_batch_size: int | None = _local(None, 'Examples of a step on a client.',
      low=1, essential=True, by_task=True, otherwise=_by_task('client_batch_size'))
  client_epochs: int = _local(1, 'Passes over a client\'s data in a round.', low=1)
  client_proximal: float = _local(0.0, 'FedProx: a client\'s loss has half of this '
      'times the squared distance from the server\'s weights.', low=0)
  client_weight_decay: float = _local(0.0, 'Weight decay on a client: its loss has '
      'half of this times the squared norm of the weights.', low=0)
  server_learning_rate: float | None = _training(None, 'Learning rate on the server.',
      above=0, essential=True, by_task=True, otherwise=_by_task('server_learning_rate'))
  server_optimizer: str = _training('sgdm', 'Optimizer of the server: SGD, or another '
      'one that needs a --server_learning_rate.', choices=SERVER_OPTIMIZERS)
  server_momentum: float | None = _sgdm(None, 'SGD momentum on the server.', low=0,
      below=1, by_task=True, otherwise=_by_task('server_momentum'))
  server_beta_1: float = _betas(0.9, 'Decay of the mean of updates on the server.',
      low=0, below=1)
  server_beta_2: float = _betas(0.99, 'Decay of the mean of squared updates on the '
      'server.', low=0, below=1)
  server_adaptivity: float = _not_sgdm(1e-3, 'Constant added to the root of squared '
      'updates on the server: the smaller, the more adaptive.', above=0)
  server_schedule: str = _training('constant', 'Learning rate of the server: all but '
      'constant rise over --server_warmup_rounds; linear_decay and cosine fall to 0.',
      choices=SERVER_SCHEDULES)
  server_warmup_rounds: int | None = _scheduled(None, 'Rounds in which the server\'s '
      'learning rate rises.', low=0, otherwise='a tenth of --rounds')
  validation_path: str | None = _training(None, 'Public data, never of people whom '
      'epsilon must protect: the run ends with the model of the lowest loss on them.')
  initial_weights_seed: int = _training(0, 'Public seed of the initial weights.', low=0)
  warm_start: str | None = _training(None, 'File of weights to start from, model.npz '
      'or of Keras. What they learnt from is outside the guarantee.', free=True,
      otherwise='initial weights')
  warm_start_is_public: bool = _training(False, 'The weights of --warm_start are '
      'public, not of people whom epsilon must protect; else an export of '
      'this run is not called private.')

  plan: bool = _run(False, 'Print the plan, its error and its time, and end.',
      free=True, essential=True)
  population: int | None = _planned(None, 'Number of clients to plan for, without '
      'data; with --dimension.')
  dimension: int | None = _planned(None, 'Number of parameters to plan for; with '
      '--population.')
  rounds_per_evaluation: int = _run(1, 'Rounds between evaluations.', low=1, free=True)
  clients_per_call: int | None = _of_clients(None, 'Clients that a graph call trains in '
      'turn; 1 makes each a TFF client.', low=1, free=True, otherwise='by the cohort')
  clients_by_id: bool = _of_clients(True, 'Read clients of SQLite files where they train, '
      'which must have the files, instead of sending their examples.', free=True)
  simulated_dropout_rate: float = _run(0.0, 'Fraction of selected clients dropping '
      'out independently. What suppressed rounds reveal is in epsilon.', low=0, below=1)

  vocabulary_epsilon: float | None = _noise(None, 'Epsilon of the vocabulary alone, '
      'for --vocabulary=private_counts; epsilon includes it.', above=0, otherwise='1')

  def __post_init__(self):
    if self.protect != 'client':
      defaults = {**_FOR_SILOS, 'sampling': RECORDS}
      if self.data_path and self.task in registry.TASKS:
        defaults['held_out_records'] = 0.1
      for name, value in defaults.items():
        if name not in self.given:
          object.__setattr__(self, name, value)
    super().__post_init__()

  def unused(self):
    yield from super().unused()
    if self.vocabulary != registry.PRIVATE_COUNTS:
      for name in ('vocabulary_epsilon', 'words_per_client'):
        yield name, f'vocabulary={self.vocabulary}'
    if self.protect == 'client':
      yield 'person_field', f'protect={self.protect}'
    if self.warm_start is not None:
      yield 'initial_weights_seed', 'warm_start'
    else:
      yield 'warm_start_is_public', 'warm_start=None'

  def _refuse(self, given: Mapping[str, Any], why: str) -> None:
    """Raises ValueError if a setting of these names is given, by what they map to."""
    for name in filter(given.get, given):
      raise ValueError(f'{name}={getattr(self, name)} {why}')

  def check(self) -> None:
    super().check()
    counted = {'vocabulary': self.vocabulary == registry.PRIVATE_COUNTS,
               'statistics_epsilon': self.statistics_epsilon is not None}
    if self.mechanism not in _PRIVATE:
      self._refuse(counted, f'needs noise: mechanism={self.mechanism}')
    if self.mechanism == OWN and self.aggregation is None:
      raise ValueError('mechanism=own needs aggregation, found none')
    if (self.sampling == RECORDS) != (self.protect != 'client'):
      raise ValueError(f'sampling must be {RECORDS} if and only if a record or a person '
                       f'is protected, found {self.sampling} with protect={self.protect}')
    if self.protect != 'client':
      # They are of clients: one record would decide on all of its silo.
      self._refuse({
          'mechanism': self.mechanism == OWN, 'skip_bad_clients': self.skip_bad_clients,
          # Else what is left would depend on the number of a client's records.
          'max_examples_per_client': self.max_examples_per_client,
          'held_out_fraction': self.held_out_fraction, 'partition': self.partition,
          **counted}, f'is of clients, and can\'t be had with protect={self.protect}')
    if self.mechanism == 'silo_noise' and self.protect == 'client':
      raise ValueError('mechanism=silo_noise needs protect=record or person: clients are '
                       'silos then')
    if self.mechanism == 'silo_noise' and self.private_evaluation:
      raise ValueError('private_evaluation can\'t be had with mechanism=silo_noise: one '
                       'party would be trusted with the evaluation')
    if 0 < self.canaries < _LEAST_CANARIES:
      raise ValueError(f'canaries must be at least {_LEAST_CANARIES}, of which something can '
                       f'be proved, or 0, found {self.canaries}')
    if self.canaries:
      self._refuse({'private_evaluation': self.private_evaluation, **counted,
                    'population': self.population},
                   'can\'t be had with canaries: it counts clients alone')
    if self.protect == 'person' and self.person_field is None:
      raise ValueError('protect=person needs person_field, the field that names them')
    if (self.population is None) != (self.dimension is None):
      raise ValueError('population and dimension must both be given, found '
                       f'{self.population} and {self.dimension}')
    if self.epsilon_server is not None and self.noise_multiplier is not None:
      raise ValueError('epsilon_server and noise_multiplier must not both be given')
    if self.bands is not None and self.bands > self.rounds:
      raise ValueError(f'bands must be at most rounds={self.rounds}, found '
                       f'{self.bands!r}')
    if self.adaptive_clipping and (self.bands or 1) > 1:
      raise ValueError(f'bands={self.bands} can\'t be had with adaptive_clipping: a row '
                       'adds up sums of several rounds, which must have one clip')
    exact = ('fixed', 'epochs', *[TURNS] * (self.turn_rate == 1))
    if self.sampling in exact and self.cohort_size % 1:
      raise ValueError(f'cohort_size must be an integer for sampling={self.sampling}, '
                       f'found {self.cohort_size!r}: or give --sampling=poisson')
    for target in (self.target_epsilon, self.epsilon_server):
      if target is not None and self.private_evaluation >= target:
        raise ValueError('private_evaluation must be less than the target epsilon='
                         f'{target:g}, found {self.private_evaluation!r}')
    if self.server_optimizer != 'sgdm' and 'server_learning_rate' not in self.given:
      raise ValueError('server_learning_rate must be given with server_optimizer='
                       f'{self.server_optimizer}')

  def prepare(self) -> None:
    if self.mechanism in noises.NOISES:  # Other runs encode no updates.
      kept.compile_ahead()

  @property
  def target_epsilon(self) -> float | None:
    """The target of the calibration; None where the noise is given or there is none."""
    if (self.mechanism not in _PRIVATE or (
        self.noise_multiplier, self.epsilon, self.epsilon_server) != (None,) * 3):
      return self.epsilon
    return DEFAULT_EPSILON


# A field of another family that copies one of these: `like('bits', 20, low=4)`.
like = functools.partial(declarations.like, TrainSettings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareSettings(DataSettings):
  """Settings of a copy of clients' data (`prepare_data`)."""

  task: str | None = declarations.like(
      DataSettings, 'task', None, otherwise='none, fields are copied as they are')
  fields: tuple[str, ...] | None = declarations.setting(
      None, 'Fields to copy without --task: NAME, NAME:KIND or, if it may be missing, '
      f'NAME:KIND?, separated by commas; KIND is one of {", ".join(records.KINDS)}.',
      group='data', essential=True, otherwise='all fields of the first record')
  output: str | None = _run(None, 'The SQLite file to write.', essential=True)
  purge: bool = _run(
      False, 'Delete all copies in --cache_dir, and write nothing.', essential=True)
  roster: bool = _run(False, 'Leave out the training clients\' examples, which workers '
      'have: the roster of a prepared file.', essential=True)

  def check(self) -> None:
    super().check()
    if self.roster and (self.data_source, self.task, self.fields) != (
        'sqlite', None, None):
      raise ValueError('roster needs data_source=sqlite, and neither task nor fields')
    if self.purge:
      return
    if self.output is None:
      raise ValueError('output must be the path of a file, found none')
    if self.task is None and self.data_source is None:
      raise ValueError('data_source must be given, or a task')

  def check_paths(self) -> None:
    if not self.purge:
      files.check_writable(self.output, 'output')

  def unused(self):
    yield from super().unused()
    if self.task is not None:
      yield from (('fields', f'task={self.task}'), ('model', 'a copy of data'))
      return
    known = {'task', 'data_source', 'data_path', 'train_split'}
    if not self.roster:
      known |= {*open_source.OPTIONS} - {'no_cache'} - (
          set() if self.purge else {'cache_dir'})
    for name in declarations.declared(DataSettings).keys() - known:
      yield name, 'a copy of fields as they are, without task'
