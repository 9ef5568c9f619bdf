"""Settings of what is done with a trained model: export, evaluation, predictions."""

import dataclasses
import functools
import pathlib

from tff_pipelines.common import declarations, files
from tff_pipelines.experiment import settings
from tff_pipelines.fedavg import settings as train

FORMATS = ('npz', 'keras', 'savedmodel')
OUTPUTS = ('.csv', '.parquet')

_run, _model = declarations.groups('run', 'model')
# A field of the data that are read, named as in the training.
_reader = functools.partial(train.like, otherwise='as in the training')


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ModelSettings(settings.Settings):
  """Settings that name a trained model; `required` fields have no default."""

  required = ('run',)

  run: str | None = _model(
      None, 'Folder of the run that trained the model, or, to evaluate and predict, of '
      'an export.', essential=True)
  party: str | None = _model(
      None, 'Party of a run of fedmd, such as party_0.', essential=True)

  def check(self) -> None:
    super().check()
    for name in self.required:
      if getattr(self, name) is None:
        raise ValueError(f'{name} must be given')


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportSettings(_ModelSettings):
  required = ('run', 'output_dir')

  format: str = _run('savedmodel', 'npz: named arrays, which are in every export. keras: '
      'Keras 2 and 3 load it; for tables, and models from Keras. savedmodel: TensorFlow '
      'alone loads and serves it.', choices=FORMATS, essential=True)
  output_dir: str | None = _run(None, 'New folder of the export.', essential=True)
  earlier_ledgers: tuple[str, ...] | None = _run(None, 'Ledgers of earlier releases '
      'about the same people, separated by commas: the statement adds them up.')
  audit: str | None = _run(None, 'Folder of a run with canaries and else the same '
      'settings, whose measured lower bounds the statement shows.')

  def check_paths(self) -> None:
    path = pathlib.Path(self.output_dir)
    if path.exists() and not path.is_dir():
      raise ValueError(f'output_dir={self.output_dir} must be a folder, found a file')
    if path.is_dir() and any(path.iterdir()):
      raise ValueError(f'output_dir={self.output_dir} is not empty')
    files.check_writable(path, 'output_dir')


@dataclasses.dataclass(frozen=True, kw_only=True)
class _DataSettings(_ModelSettings):
  data_source: str | None = _reader('data_source')
  data_path: str | None = _reader('data_path', otherwise='')
  client_field: str | None = _reader('client_field')
  text_field: str | None = _reader('text_field')
  image_field: str | None = _reader('image_field')
  label_field: str | None = _reader('label_field')
  dark_ink: bool | None = _reader('dark_ink')
  train_split: str | None = _reader('train_split', otherwise='train')
  test_split: str | None = _reader('test_split', otherwise='test, if there is one')
  skip_bad_clients: bool | None = _reader('skip_bad_clients')
  @property
  def reader_options(self) -> dict[str, str | bool]:
    """The options of the reader that are given."""
    return {name: getattr(self, name) for name, field in declarations.declared(
        type(self)).items() if field.group == 'data' and name in self.given}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateSettings(_DataSettings):
  """Settings of an evaluation; without data it is that of the run itself."""

  cache_dir: str | None = _reader('cache_dir')
  no_cache: bool | None = _reader('no_cache', otherwise='')
  format: str = _run('text', 'Format of the metrics on standard output.',
      choices=('text', 'json'))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictSettings(_DataSettings):
  required = ('run', 'output')

  output: str | None = _run(
      None, 'New file of the predictions, .csv or .parquet.', essential=True)
  probabilities: bool | None = _run(
      None, 'Also write the probability of each class, as probability_NAME.')

  def check(self) -> None:
    super().check()
    if not self.output.endswith(OUTPUTS):
      raise ValueError(
          f'output must end with {" or ".join(OUTPUTS)}, found {self.output!r}')
    if self.data_path is None and self.data_source is None:
      raise ValueError('data_path must be given, or a data_source that needs none')

  def check_paths(self) -> None:
    if pathlib.Path(self.output).exists():
      raise ValueError(f'output={self.output} exists: choose another file')
    files.check_writable(self.output, 'output')
