"""Settings of the baselines of local distillation."""

import dataclasses
import functools
from typing import Any

from tff_pipelines.experiment import settings
from tff_pipelines.experiment.settings import setting
from tff_pipelines.ldp import settings as ldp_settings

ALGORITHMS = ('dp_sgd', 'pate', 'dp_fl')

_DP_SGD, _PATE, _DP_FL = ({'algorithm': (name,)} for name in ALGORITHMS)
# Defaults that differ by algorithm.
_DEFAULTS = {'rounds': {'dp_sgd': 60, 'dp_fl': 15},
             'clip': {'dp_sgd': 1.0, 'dp_fl': 0.3},
             'learning_rate': {'dp_sgd': 8.0, 'dp_fl': 15.0}}


def _by_algorithm(name: str, text: str, **rest: Any) -> Any:
  """A field that the algorithms of `_DEFAULTS` use, each with its own default."""
  values = _DEFAULTS[name]
  return setting(
      None, text, when={'algorithm': tuple(values)}, otherwise=', '.join(
          f'{value:g} for {algorithm}' for algorithm, value in values.items()), **rest)


_algorithm = functools.partial(setting, group='algorithm')
_privacy = functools.partial(setting, group='privacy')
_training = functools.partial(setting, group='training')


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaselineSettings(settings.RunSettings, ldp_settings.DataSettings):
  """Everything that a baseline can be asked for.

  Attributes without a value get the default of the algorithm; None if it does not use
  them.
  """

  algorithm: str = _algorithm('pate', 'dp_sgd: noisy gradients of records that a '
      'curator holds. pate: noisy votes of the owners\' teachers, counted by a '
      'curator. dp_fl: federated averaging with distributed Skellam noise.',
      choices=ALGORITHMS, essential=True)
  epsilon: float = _privacy(8.0, 'Target of the whole run; the noise is calibrated to '
      'it.', above=0, essential=True)
  delta: float = _privacy(1e-05, 'Delta of the guarantee.', above=0, below=1,
      essential=True)
  rounds: int | None = _by_algorithm(
      'rounds', 'Steps of dp_sgd, rounds of dp_fl.', group='privacy', low=1,
      essential=True)
  clip: float | None = _by_algorithm(
      'clip', 'L2 clip of a record\'s gradient in dp_sgd, of an owner\'s update in '
      'dp_fl.', group='privacy', above=0, unit='model units')
  record_rate: float = _privacy(0.2, 'Probability that a record is sampled for a step '
      'of dp_sgd.', above=0, high=1, when=_DP_SGD)
  queries: int = _privacy(1000, 'Maximum number of public images that pate asks about.',
      low=1, when=_PATE, essential=True)
  answers: int = _privacy(500, 'Maximum number of queries that pate answers.', low=1,
      when=_PATE, essential=True)
  threshold: float = _privacy(0.5, 'Fraction of the owners that must agree, in pate.',
      above=0, high=1, when=_PATE)
  threshold_noise: float = _privacy(2.0, 'Noise of the check for agreement over the '
      'noise of votes, in pate.', above=0, when=_PATE)
  learning_rate: float | None = _by_algorithm(
      'learning_rate', 'Learning rate of dp_sgd, of the server in dp_fl.',
      group='training', above=0)
  client_learning_rate: float = _training(0.2, 'Learning rate of SGD at an owner, in '
      'dp_fl.', above=0, when=_DP_FL)
  client_batch_size: int = _training(20, 'Records of a step at an owner, in dp_fl.',
      low=1, when=_DP_FL)
  client_epochs: int = _training(1, 'Passes of an owner over its records in a round of '
      'dp_fl.', low=1, when=_DP_FL)

  teacher_strength: float = settings.changed(
      ldp_settings.DataSettings, 'teacher_strength',
      ldp_settings.DataSettings.teacher_strength, when=_PATE)
  num_workers: int = settings.changed(
      settings.RunSettings, 'num_workers', settings.RunSettings.num_workers,
      when=_DP_FL)

  def __post_init__(self):
    for name, values in _DEFAULTS.items():
      if getattr(self, name) is None:
        object.__setattr__(self, name, values.get(self.algorithm))
    super().__post_init__()
