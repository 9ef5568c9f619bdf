"""Settings of the commands of `deploy`."""

import dataclasses
import functools
from typing import Any

from tff_pipelines.common import declarations
from tff_pipelines.deployment.engine import parties
from tff_pipelines.experiment import settings
from tff_pipelines.fedavg.settings import DataSettings, TrainSettings

_party, _data, _run = declarations.groups('party', 'data', 'run')
GRPC, PIPES = ENGINES = 'grpc', 'pipes'
_agreed = functools.partial(declarations.group('run', engine=ENGINES), free=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgreedSettings(TrainSettings):
  """Settings of a training run whose clients may be the sites of an agreement."""

  engine: str = declarations.like(settings.RunSettings, 'engine', choices=(
      'local', 'ray', *ENGINES), help='What runs the clients: workers of this machine, a '
      'Ray cluster, or the sites of an agreement, over gRPC or, by pipes, another engine.')
  party: str | None = _agreed(None, 'Folder of this party, created by `deploy enrol`.')
  agreement: str | None = _agreed(None, 'File of the agreement, the same for all.')
  approve: str | None = _agreed(None, 'First digits of the digest of the agreement, as '
      'compared with the other parties: 32 or more.')
  listen: str | None = _agreed(None, 'HOST:PORT to listen at.', when={'engine': (GRPC,)},
                               otherwise='the address that was enrolled')
  round_deadline: float = _agreed(120.0, 'Time that a round waits for sites, and for the '
      'helper.', above=0, unit='seconds')


_train = lambda name, *default, **changes: declarations.like(
    AgreedSettings, name, *default, **{
        'when': {}, 'essential': True, 'group': 'run', **changes})
_rows = lambda name, **changes: declarations.like(DataSettings, name, **changes)
_engine = _train('engine', GRPC, choices=ENGINES, help='What carries messages '
                 'between leader and sites. pipes: an engine that starts this process, by '
                 'standard input and output.', essential=False)


def _given(cls: type, source: settings.Settings) -> dict[str, Any]:
  """The fields of a class that were given to other settings."""
  return {name: getattr(source, name) for name in source.given
          if name in declarations.declared(cls)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Folder(settings.Settings):
  """Settings of commands of a party."""

  party: str | None = _train('party', group='party')

  def check(self) -> None:
    super().check()
    for name in self.needed:
      if getattr(self, name) is None:
        raise ValueError(f'{name} must be given')

  needed = ('party',)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnrolSettings(_Folder):
  """Settings of `enrol`."""

  role: str = _party(parties.CLIENT, 'Role: a client (a site), or one of two servers.',
                     choices=parties.ROLES, essential=True)
  name: str | None = _party(None, 'Name of the party; of a client, that of its records '
      'in data of several clients.', essential=True)
  address: str | None = _party(None, 'HOST:PORT under which others reach a server.',
      when={'role': (parties.LEADER, parties.HELPER)}, essential=True)

  needed = ('party', 'name')

  def check(self) -> None:
    super().check()
    if (self.address is None) != (self.role == parties.CLIENT):
      raise ValueError(f'address must be given with role={self.role}: HOST:PORT')


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatusSettings(_Folder):
  """Settings of `status`."""

  agreement: str | None = _train('agreement')


@dataclasses.dataclass(frozen=True, kw_only=True)
class _PartSettings(StatusSettings):
  """Settings of a party's part of a run."""

  approve: str | None = _train('approve')

  needed = ('party', 'agreement')


@dataclasses.dataclass(frozen=True, kw_only=True)
class HelperSettings(_PartSettings):
  """Settings of `helper`."""

  listen: str | None = _train('listen')


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientSettings(_PartSettings):
  """Settings of `client`."""

  data_path: str | None = _rows('data_path')
  data_source: str | None = _rows('data_source', otherwise='that of the agreement')
  client_field: str | None = _rows('client_field', otherwise='that of the agreement')
  person_field: str | None = _rows('person_field', otherwise='that of the agreement')
  image_field: str | None = _rows('image_field', otherwise='that of the agreement')
  label_field: str | None = _rows('label_field', otherwise='that of the agreement')
  text_field: str | None = _rows('text_field', otherwise='that of the agreement')
  cache_dir: str | None = _rows('cache_dir')
  no_cache: bool | None = _rows('no_cache')
  engine: str = _engine
  patience: float = _run(3600.0, 'Time without the leader after which the client ends.',
      above=0, unit='seconds', when={'engine': (GRPC,)})

  def training(self, recorded: dict[str, Any]) -> AgreedSettings:
    """The settings of the run's program, on the data of this site."""
    given = _given(AgreedSettings, self)
    # The format of a file is that of its name.
    own = {*given, 'data_source'} if 'data_path' in given else given
    recorded = {name: value for name, value in recorded.items() if name not in own}
    return settings.of_configuration(
        AgreedSettings, recorded, **{**given, 'engine': self.engine})


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeaderSettings(_PartSettings):
  """Settings of `leader`."""

  engine: str = _engine
  listen: str | None = _train('listen', when={'engine': (GRPC,)})
  round_deadline: float = _train('round_deadline')
  data_path: str | None = _rows('data_path', help='Public or invented data with the '
      'columns of the sites\', from which held-out sets are taken.',
      otherwise='as when it was agreed')
  test_path: str | None = _rows('test_path')
  output_dir: str | None = _train('output_dir')
  resume: bool = _train('resume')
  verbose: bool = _train('verbose')

  def training(self, recorded: dict[str, Any]) -> AgreedSettings:
    """The settings of the run."""
    return settings.of_configuration(
        AgreedSettings, recorded, **{
            **_given(AgreedSettings, self), 'engine': self.engine})


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgreeSettings(TrainSettings):
  """Settings of `agree`: those of the run, on data of the form of the sites'."""

  agreement: str | None = _party(None, 'File that the agreement is written to.',
                                 essential=True, free=True)
  output_dir: str | None = _train('output_dir', essential=False)
  resume: bool = _train('resume', essential=False)
  plan: bool = _train('plan', essential=False)
  parties: str | None = _party(None, 'Files of enrolments, separated by commas.',
                               essential=True, free=True)
  study: str | None = _party(None, 'Purpose of the run, for the sites\' administrators.',
                             essential=True, free=True)
  units: int | None = _party(None, 'Public number of records, or persons, of all sites.',
      low=1, essential=True, free=True, when={'protect': ('record', 'person')})
  units_of_largest: int | None = _party(None, 'The largest number of records, or persons, '
      'of a site: all take the time for as many.', low=1, free=True, otherwise='--units',
      when={'protect': ('record', 'person')})

  def unused(self):
    yield from super().unused()
    for name in ('output_dir', 'resume', 'plan', 'verbose', 'engine', 'local_workers'):
      yield name, 'agree, which starts nothing'

  def check(self) -> None:
    super().check()
    for name in ('agreement', 'parties', 'study', *['units'] * (self.protect != 'client')):
      if getattr(self, name) is None:
        raise ValueError(f'{name} must be given')

  @property
  def training(self) -> TrainSettings:
    """The settings of the run."""
    return TrainSettings(**_given(TrainSettings, self))


# Name of a command -> its settings, and a sentence.
COMMANDS = {
    'enrol': (EnrolSettings, 'Creates this party\'s folder and keys.'),
    'agree': (AgreeSettings, 'Plans a run and writes the agreement for all parties. '
              'Also takes the flags of train.'),
    'status': (StatusSettings, 'Shows what a site has spent, and what an agreement would '
               'cost.'),
    'client': (ClientSettings, 'Participates in a run with the data of one site.'),
    'helper': (HelperSettings, 'Serves as the second server of a run.'),
    'leader': (LeaderSettings, 'Leads a run, and reports as train does.')}
