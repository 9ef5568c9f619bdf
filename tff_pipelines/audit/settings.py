"""Settings of an audit of single releases, or of a run."""

import dataclasses

from tff_pipelines.common import declarations
from tff_pipelines.experiment import settings

KERNELS, GRAPH = 'kernels', 'graph'
ANSWERS = ('krr', 'subset', 'laplace', 'piecewise', 'duchi', 'gaussian')
# The releases of `releases.RELEASES`, whose module needs TensorFlow.
RELEASES = (
    f'skellam-{KERNELS}', f'discrete_gaussian-{KERNELS}',
    *(f'{name}-{GRAPH}' for name in (
        'skellam', 'discrete_gaussian', 'skellam_central', 'gaussian')),
    'skellam-rows', 'skellam-records', 'ae_vote-skellam', 'ae_vote-gaussian',
    'knn_vote-skellam', *(f'{name}-answer' for name in ANSWERS), 'gaussian-prediction',
    'laplace-prediction')
# Trials of a graph's release for one of another.
GRAPH_SHARE = 50

_audit = declarations.group('audit')


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditSettings(settings.Settings):
  """Settings of an audit: releases, their claim and number of trials; or a run."""

  mechanism: tuple[str, ...] | None = _audit(
      None, 'Releases, separated by commas. kernels, graph: the form of an encoding. '
      'rows: with correlated noise. records: with a hidden sample.', choices=RELEASES,
      essential=True, otherwise='all')
  run: str | None = _audit(
      None, 'Folder of a run with canaries, audited in place of releases.', essential=True)
  epsilon: float = _audit(2.0, 'Target that the noise is calibrated to.', above=0,
                          essential=True)
  delta: float = _audit(0.01, 'Delta of the claim, of what is not pure. Smaller ones '
                        'need more trials.', above=0, below=1, essential=True)
  trials: int = _audit(
      200_000, 'Outputs with the client, and as many without it; of a graph\'s sum a '
      f'{GRAPH_SHARE}th.', low=200, essential=True)
  clients: int = _audit(4, 'Clients of a sum, or agents of a vote.', low=1, high=1000)
  dimension: int = _audit(15, 'Coordinates of a vector.', low=1, high=2**20)
  bits: int = _audit(18, 'Bits of a sum.', low=2, high=30)
  format: str = _audit('text', 'Format of the output.', choices=('text', 'json'))

  def unused(self):
    yield from super().unused()
    if self.run is not None:
      for name in declarations.declared(AuditSettings).keys() - {'run', 'format'}:
        yield name, 'run'
