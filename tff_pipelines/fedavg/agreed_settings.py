"""Settings of runs whose clients are the sites of an agreement."""

import dataclasses
import functools

from tff_pipelines.common import declarations
from tff_pipelines.experiment import settings

_agreed = functools.partial(
    declarations.group('run', engine=('grpc',)), free=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgreedSettings(settings.RunSettings):
  """Settings of every run whose clients may be elsewhere (docs/deployment.md)."""

  engine: str = declarations.like(settings.RunSettings, 'engine', choices=(
      'local', 'ray', 'grpc'), help='What runs the clients: workers of this machine, a Ray '
      'cluster, or the sites of an agreement, over gRPC.')
  party: str | None = _agreed(None, 'Folder of this party, which `deploy enrol` made.')
  agreement: str | None = _agreed(None, 'File of the agreement, which all parties have.')
  approve: str | None = _agreed(None, 'First digits of the digest of the agreement, as '
      'compared with the other parties: 16 or more.')
  listen: str | None = _agreed(None, 'HOST:PORT to listen at.', otherwise='the address '
      'that was enrolled')
  round_deadline: float = _agreed(120.0, 'Time that a round waits for sites, and for the '
      'helper.', above=0, unit='seconds')
