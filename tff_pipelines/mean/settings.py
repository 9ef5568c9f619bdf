"""Settings of a sweep of mean estimations."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from aggregators import noises
from tasks import mean_estimation
from tff_pipelines.common import declarations
from tff_pipelines.experiment import settings
from tff_pipelines.fedavg import settings as train

RESULTS = 'results.json'

# Names of the fields that identify a setting, and its row of results, in a folder.
KEY = ('mechanism', 'n', 'd', 'bits', 'epsilon')
SUMS = tuple(noises.NOISES)  # Sums of integers.

_data, _privacy = declarations.groups('data', 'privacy')


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanSettings(settings.FolderSettings):
  """A sweep: every combination of the values of its lists is a setting.

  The lists are free: a folder can have settings of several sweeps.
  """

  num_clients: tuple[int, ...] = _data((100,), 'Numbers of clients, separated by '
      'commas.', low=1, high=2**31 - 1, essential=True, free=True)
  dimension: tuple[int, ...] = _data((250,), 'Dimensions of vectors, separated by '
      'commas.', low=1, high=2**30, essential=True, free=True)
  vectors: str = _data('sphere', 'sphere: each client has a vector of its own. '
      'identical: all have the same, the case that the modulus is sized for.',
      choices=mean_estimation.VECTORS, essential=True)
  # One repeat has no spread, so no interval.
  repeats: int = _data(10, 'Data sets of every setting, each released once.', low=2,
      essential=True)
  data_seed: int = _data(0, 'Seed of the vectors.', low=0)

  mechanisms: tuple[str, ...] = _privacy(('skellam', 'gaussian', 'gaussian_rdp'),
      'Mechanisms, separated by commas. skellam, discrete_gaussian: clients add noise '
      'under secure aggregation. Else the server adds it; gaussian is accounted '
      'analytically, gaussian_rdp by Rényi divergences.',
      choices=(*SUMS, 'gaussian', 'gaussian_rdp'), essential=True, free=True)
  epsilon: tuple[float, ...] = _privacy((1.0, 2.0, 4.0, 8.0), 'Targets of one release, '
      'separated by commas.', above=0, essential=True, free=True)
  bits: tuple[int, ...] = _privacy((10, 12, 16), 'Numbers of bits of a coordinate of '
      'the sum, separated by commas.', low=2, high=30, essential=True, free=True)
  delta: float = train.like('delta', 1e-05, when={})
  clip: float = _privacy(10.0, 'L2 clip, and the norm of every vector.', above=0,
      unit='model units', essential=True)
  k_stddevs: float = train.like('k_stddevs', 2.0, when={})
  beta: float = train.like('beta', when={})
  accountant: str = _privacy('auto', 'auto: the tightest for each mechanism. rdp: '
      'Renyi divergences for all.', choices=('auto', 'rdp'))
  allow_degenerate: bool = _privacy(False, 'Only warn of grids too coarse to be '
      'useful, and leave out what no noise makes private.', essential=True, free=True)

  resume: bool = declarations.like(
      settings.FolderSettings, 'resume', True, help='Continue or extend '
      'the sweep in --output_dir, instead of refusing a folder that holds results.')

  def check(self) -> None:
    super().check()
    for name in ('num_clients', 'dimension', 'bits', 'epsilon', 'mechanisms'):
      values = getattr(self, name)
      if len(set(values)) < len(values):
        raise ValueError(f'{name} must not name a value twice, found '
                         f'{",".join(map(str, values))}')

  def unused(self):
    yield from super().unused()
    if not set(SUMS) & set(self.mechanisms):
      for name in ('bits', 'beta', 'k_stddevs', 'allow_degenerate'):
        yield name, f'mechanisms={",".join(self.mechanisms)}'

  def differences(self, recorded: Mapping[str, Any]) -> list[str]:
    # Earlier rows of sums depend on these, whatever the mechanisms are now.
    return sorted({*super().differences(recorded), *(
        name for name in ('beta', 'k_stddevs')
        if recorded.get(name, getattr(self, name)) != getattr(self, name))})
