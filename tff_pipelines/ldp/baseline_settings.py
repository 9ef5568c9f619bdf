"""Settings of the baselines of local distillation."""

import dataclasses
from typing import Any

from tff_pipelines.experiment import settings
from tff_pipelines.fedavg import settings as train
from tff_pipelines.ldp import settings as ldp_settings

ALGORITHMS = ('dp_sgd', 'pate', 'dp_fl')

# Defaults that differ by algorithm.
_DEFAULTS = {'rounds': {'dp_sgd': 60, 'dp_fl': 15},
             'clip': {'dp_sgd': 1.0, 'dp_fl': 0.3},
             'learning_rate': {'dp_sgd': 8.0, 'dp_fl': 15.0}}


def _by_algorithm(name: str, text: str, **rest: Any) -> Any:
  """A field that the algorithms of `_DEFAULTS` use, each with its own default."""
  values = _DEFAULTS[name]
  return settings.setting(
      None, text, when={'algorithm': tuple(values)}, otherwise=', '.join(
          f'{value:g} for {algorithm}' for algorithm, value in values.items()), **rest)


_dp_sgd = settings.group('privacy', algorithm=('dp_sgd',))
_pate = settings.group('privacy', algorithm=('pate',))
_dp_fl = settings.group('training', algorithm=('dp_fl',))


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaselineSettings(settings.RunSettings, ldp_settings.DataSettings):
  """Everything that a baseline can be asked for.

  Attributes without a value get the default of the algorithm; None if it does not use
  them.
  """

  algorithm: str = settings.setting('pate', 'dp_sgd: noisy gradients of records that a '
      'curator holds. pate: noisy votes of the owners\' teachers, counted by a '
      'curator. dp_fl: federated averaging with distributed Skellam noise.',
      group='algorithm', choices=ALGORITHMS, essential=True)
  epsilon: float = train.like('epsilon', 8.0, when={})
  delta: float = train.like('delta', 1e-05, when={})
  rounds: int | None = _by_algorithm('rounds', 'Steps of dp_sgd, rounds of dp_fl.',
      group='privacy', low=1, essential=True)
  clip: float | None = _by_algorithm('clip', 'L2 clip: of a gradient in dp_sgd, of an '
      'owner\'s update in dp_fl.', group='privacy', above=0, unit='model units')
  record_rate: float = _dp_sgd(0.2, 'Probability that a record is sampled for a step '
      'of dp_sgd.', above=0, high=1)
  queries: int = _pate(1000, 'Public images that pate asks about at most.', low=1,
      essential=True)
  answers: int = _pate(500, 'Queries that pate answers at most.', low=1, essential=True)
  threshold: float = _pate(0.5, 'Fraction of the owners that must agree, in pate.',
      above=0, high=1)
  threshold_noise: float = _pate(2.0, 'Noise of the check for agreement over the noise '
      'of votes, in pate.', above=0)
  learning_rate: float | None = _by_algorithm('learning_rate', 'Learning rate of '
      'dp_sgd, of the server in dp_fl.', group='training', above=0)
  client_learning_rate: float = _dp_fl(0.2, 'Learning rate of SGD at an owner, in '
      'dp_fl.', above=0)
  client_batch_size: int = _dp_fl(20, 'Records of a step at an owner, in dp_fl.', low=1)
  client_epochs: int = _dp_fl(1, 'Passes over own records in a round of dp_fl.', low=1)

  teacher_strength: float = settings.changed(
      ldp_settings.DataSettings, 'teacher_strength', when={'algorithm': ('pate',)})
  num_workers: int = train.like('num_workers', when={'algorithm': ('dp_fl',)})

  def __post_init__(self):
    for name, values in _DEFAULTS.items():
      if getattr(self, name) is None:
        object.__setattr__(self, name, values.get(self.algorithm))
    super().__post_init__()
