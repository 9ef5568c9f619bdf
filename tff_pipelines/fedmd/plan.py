"""What a distillation run is told, and what it promises.

One object says how parties protect their records, what that costs, and with
which parameters their predictions are averaged; the run executes what it says.
No TensorFlow: wrong flags are found at once.
"""

import dataclasses
import functools
import math
from typing import Sequence

from aggregators import prediction_params
from aggregators import validate
from aggregators.prediction_params import PredictionMeanParams
from tff_pipelines.accounting import accountant
from tff_pipelines.accounting import base
from tff_pipelines.accounting import calibration
from tff_pipelines.accounting import events

MODES = ('nfdp', 'np', 'centralized', 'ldp')
WEIGHTINGS = ('equal', 'records', 'agreement')
LDP_NOISES = ('gaussian', 'laplace')

# Noise is this much larger than calibrated, so that no rounding of a product
# leaves it short of what is accounted for.
_NOISE_EXCESS = 1.0 + 1e-9
# Parties that are not weighted equally have weights from 0 to this: hundredths
# spend few of the bits of a sum.
FULL_WEIGHT = 100

TRUST = {
    'nfdp': 'nobody is trusted with which records were drawn: the party draws its '
            'subset alone and in secret, and that draw is all the protection',
    'ldp': 'nobody is trusted: every party adds noise to its own predictions; its '
           'model stays with it',
    'np': 'everybody who sees predictions or models is trusted with the records',
    'centralized': 'the server is trusted with all records of all parties',
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillConfig:
  """What a run is told; fields as the flags of the same names.

  `subset_size` is None for as many draws as a party has records.
  """

  mode: str = 'nfdp'
  knowledge: str = 'argmax'
  parties: int = 10
  subset_size: int | None = None
  replacement: bool = True
  rounds: int = 20
  initial_epochs: int = 20
  digest_epochs: int = 2
  revisit_epochs: int = 2
  public_per_round: int = 5000
  weighting: str = 'equal'
  bits: int = 20
  logit_bound: float = 30.0
  noise: str = 'gaussian'
  epsilon: float | None = None
  delta: float | None = None
  pretrain_epochs: int = 16
  pretrain_learning_rate: float = 3e-3
  pretrain_batch_size: int = 64
  private_learning_rate: float = 2e-3
  private_batch_size: int = 16
  digest_learning_rate: float = 2e-3
  digest_batch_size: int = 128
  final_rate_factor: float = 0.05
  mirror: bool = False
  pair: str = 'digits'
  split: str = 'iid'
  architectures: tuple[str, ...] = ('conv2', 'conv3', 'mixed3')
  records_per_party: int | None = None
  data_dir: str | None = None
  cache_dir: str | None = None
  data_seed: int = 0
  initial_weights_seed: int = 0
  seed: int | None = None
  simulated_dropout_rate: float = 0.0
  num_workers: int = 0
  output_dir: str | None = None
  resume: bool = False

  def __post_init__(self):
    validate.one_of(MODES, mode=self.mode)
    validate.one_of(prediction_params.KNOWLEDGE, knowledge=self.knowledge)
    validate.one_of(WEIGHTINGS, weighting=self.weighting)
    validate.one_of(LDP_NOISES, noise=self.noise)
    validate.integer(parties=self.parties, low=1, high=1000)
    validate.integer(
        rounds=self.rounds, public_per_round=self.public_per_round,
        pretrain_batch_size=self.pretrain_batch_size,
        private_batch_size=self.private_batch_size,
        digest_batch_size=self.digest_batch_size, low=1)
    validate.integer(
        initial_epochs=self.initial_epochs, digest_epochs=self.digest_epochs,
        revisit_epochs=self.revisit_epochs, pretrain_epochs=self.pretrain_epochs,
        data_seed=self.data_seed, initial_weights_seed=self.initial_weights_seed,
        low=0)
    validate.integer(bits=self.bits, low=4, high=30)
    validate.positive(
        pretrain_learning_rate=self.pretrain_learning_rate,
        private_learning_rate=self.private_learning_rate,
        digest_learning_rate=self.digest_learning_rate,
        logit_bound=self.logit_bound)
    for name in ('subset_size', 'records_per_party'):
      if getattr(self, name) is not None:
        validate.integer(**{name: getattr(self, name)}, low=1)
    validate.integer(num_workers=self.num_workers, low=0, high=64)
    if not self.architectures:
      raise ValueError('architectures must name at least one, found none')
    validate.positive(final_rate_factor=self.final_rate_factor)
    if self.final_rate_factor > 1:
      raise ValueError('final_rate_factor must be at most 1, found '
                       f'{self.final_rate_factor!r}')
    validate.finite(simulated_dropout_rate=self.simulated_dropout_rate)
    if not 0 <= self.simulated_dropout_rate < 1:
      raise ValueError('simulated_dropout_rate must be in [0, 1), found '
                       f'{self.simulated_dropout_rate!r}')
    if self.seed is not None:
      validate.integer(seed=self.seed, low=0)
    if self.epsilon is not None:
      validate.positive(epsilon=self.epsilon)
    if self.delta is not None:
      validate.open_unit_interval(delta=self.delta)
    if (self.epsilon is None) != (self.delta is None):
      raise ValueError(
          'epsilon and delta must be given together, found '
          f'epsilon={self.epsilon!r} and delta={self.delta!r}')
    if self.mode == 'ldp' and self.weighting == 'agreement':
      raise ValueError(
          'weighting=agreement needs another mode than ldp: how well a party\'s '
          'model classifies public records is computed without noise')
    if self.output_dir == '':
      raise ValueError('output_dir must be a path, found an empty one')
    if self.resume and self.output_dir is None:
      raise ValueError('resume needs output_dir, the folder of the run to continue')

  def rate_factor(self, step: int) -> float:
    """What a round's learning rates are multiplied by: from 1 in the first round
    down to `final_rate_factor` in the last, in equal steps.

    Args:
      step: Number of the round, 0 (the initial training) to `rounds`.
    """
    if step < 1 or self.rounds == 1:
      return 1.0
    return 1.0 - (1.0 - self.final_rate_factor) * (step - 1) / (self.rounds - 1)


# What only some modes use.
_OF_NFDP = ('subset_size', 'replacement')
_OF_LDP = ('epsilon', 'delta', 'noise')
_OF_SHARING = ('knowledge', 'weighting', 'bits', 'logit_bound', 'digest_epochs',
               'digest_learning_rate', 'digest_batch_size', 'public_per_round',
               'simulated_dropout_rate')


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillPlan:
  """What a run promises about every single record of every party.

  Attributes:
    config: Of the run.
    records: Number of private records of each party.
    classes: Outputs of a party's model.
    given: Names of the flags that the user gave, for the warnings.
  """

  config: DistillConfig
  records: tuple[int, ...]
  classes: int
  given: frozenset[str] = frozenset()

  def __post_init__(self):
    if not self.records or min(self.records) < 1:
      raise ValueError(
          f'every party must have at least one record, found {self.records}')
    self.mean  # Raises for settings that don't fit together.
    self.round_event

  def weight(self, party: int) -> int:
    """Of a party in the consensus; negative where its agreement decides.

    By records it is that of the largest party times the part of its records,
    rounded up.
    """
    if self.config.weighting == 'records':
      return -(-FULL_WEIGHT * self.records[party] // max(self.records))
    return 1 if self.config.weighting == 'equal' else -FULL_WEIGHT

  def draws(self, party: int) -> int:
    """How many draws, or records, make up a party's subset."""
    size = self.config.subset_size
    return self.records[party] if size is None else size

  @property
  def draws_subset(self) -> bool:
    """Whether parties train on a random draw of their records only."""
    return self.config.mode == 'nfdp'

  @functools.cached_property
  def draw_event(self) -> events.Nfdp:
    """The draw of the party whose records are the most exposed.

    In the other modes, the draw that there would be with these settings.
    """
    found = []
    for party, count in enumerate(self.records):
      size, replacement = self.draws(party), self.config.replacement
      if not replacement and size >= count:
        raise ValueError(
            f'subset_size={size} without replacement takes every record of a party '
            f'with {count}, so delta is 1: draw fewer, draw with replacement, or '
            'take mode=np')
      event = events.Nfdp(
          records=count, subset_size=size, replacement=replacement)
      if event.draw_probability >= 1:
        instead = ('give --epsilon and --delta' if self.config.mode == 'ldp' else
                   'draw fewer, or take mode=np')
        raise ValueError(
            f'subset_size={size} of a party with {count} records draws each of them '
            f'for certain, so delta is 1: {instead}')
      found.append(event)
    return max(found, key=lambda event: event.draw_probability)

  @functools.cached_property
  def target(self) -> tuple[float, float]:
    """(epsilon, delta) that the noise of mode=ldp is calibrated to."""
    if self.config.epsilon is not None:
      return self.config.epsilon, self.config.delta
    event = self.draw_event
    return event.published_epsilon, event.draw_probability

  @property
  def releases(self) -> int:
    """Rounds that are accounted for: the first predictions, and those of rounds.

    Nothing is shared in the last one, which counts like the others.
    """
    return self.config.rounds + 1

  @functools.cached_property
  def _query_event(self) -> base.Event:
    """A party's noisy prediction on one record, for mode=ldp."""
    epsilon, delta = self.target
    count = self.releases * self.config.public_per_round
    if self.config.noise == 'gaussian':
      make = lambda z: events.LocalGaussian(noise_multiplier=z)
    else:
      make = lambda z: events.LocalLaplace(epsilon=1 / z)
    return make(calibration.noise_multiplier(
        lambda z: events.SelfComposed(event=make(z), count=count),
        epsilon=epsilon, delta=delta))

  @functools.cached_property
  def mean(self) -> PredictionMeanParams:
    """How predictions are averaged, with the noise of each party."""
    return self._mean_of(self.config.knowledge)

  def _mean_of(self, knowledge: str) -> PredictionMeanParams:
    config = self.config
    heaviest = 1 if config.weighting == 'equal' else FULL_WEIGHT
    bare = PredictionMeanParams(
        knowledge=knowledge, records=config.public_per_round,
        classes=self.classes, max_total_weight=heaviest * len(self.records),
        bits=config.bits, logit_bound=config.logit_bound)
    if config.mode != 'ldp':
      return bare
    query = self._query_event
    if config.noise == 'gaussian':
      scale = query.noise_multiplier * bare.l2_sensitivity
    else:
      scale = bare.l1_sensitivity / query.epsilon
    return bare.replace(noise=config.noise, noise_scale=scale * _NOISE_EXCESS)

  @functools.cached_property
  def round_event(self) -> base.Event:
    """What the ledger has of the first round."""
    mode = self.config.mode
    if mode == 'nfdp':
      return self.draw_event
    if mode == 'ldp':
      return events.SelfComposed(
          event=self._query_event, count=self.config.public_per_round)
    return events.NoPrivacy()

  def later_event(self) -> base.Event:
    """What the ledger has of every further round."""
    return events.PostProcessing() if self.draws_subset else self.round_event

  @property
  def trust_model(self) -> str:
    """Who is trusted with what, in words."""
    return TRUST[self.config.mode]

  @property
  def is_private(self) -> bool:
    return self.config.mode in ('nfdp', 'ldp')

  @property
  def delta(self) -> float | None:
    """Of the guarantee; None without one."""
    if self.config.mode == 'nfdp':
      return self.draw_event.draw_probability
    return self.target[1] if self.config.mode == 'ldp' else None

  def epsilon(self, rounds: int, starts: int = 1) -> float:
    """Epsilon at `delta` after so many committed rounds, the first one included.

    Of nfdp the published one; with the same delta 0 holds too.

    Args:
      rounds: >= 0.
      starts: Of the run, >= 1. Every start but the first may have repeated a round,
        with new noise, before the eyes of those who see predictions: it counts as
        one more round of mode=ldp. The draw of mode=nfdp is kept.
    """
    mode = self.config.mode
    if mode == 'nfdp':
      return self.draw_event.published_epsilon if rounds else 0.0
    if mode == 'ldp':
      if not rounds:
        return 0.0
      return accountant.epsilon(
          events.SelfComposed(event=self.round_event, count=rounds + starts - 1),
          self.delta)
    return math.inf

  def warnings(self, starts: int = 1) -> list[str]:
    """What a reader of the numbers must know, in words."""
    config = self.config
    found = []
    if config.seed is not None:
      found.append('seeded run: no guarantee (subsets, noise and orders follow '
                   'from a seed)')
    found += [f'--{name} is not used by {why}' for name, why in self._unused()]
    if config.mode in ('nfdp', 'ldp'):
      found.append(
          'the numbers of records of the parties are printed: the guarantee is for '
          'records that are replaced, and for added or removed ones only as long '
          'as those numbers stay secret')
    if config.mode == 'nfdp':
      found += self.draw_event.caveats()
    elif config.mode == 'ldp':
      found += self.round_event.caveats()
      if config.noise == 'gaussian':
        found.append('Gaussian noise in floating point carries the guarantee of '
                     'ideal arithmetic only')
      found.append(
          'accuracies of parties are those of their own models, which stay with '
          'them: they are outside the guarantee')
      epsilon = self.epsilon(self.releases, starts)
      if starts > 1 and epsilon > self.target[0]:
        found.append(
            f'the run was started {starts} times, and a start may have repeated a '
            f'round: epsilon after all rounds is {epsilon:.6g} and not the '
            f'{self.target[0]:.6g} that the noise was made for')
      found += accountant.warnings_about(epsilon, self.delta, None)
      worst = max(self.records)
      if self.delta >= 1 / worst:
        found.append(
            f'delta {self.delta:.6g} is not below 1/records = {1 / worst:.6g}: '
            'such a delta allows to expose single records entirely; this is not a '
            'meaningful guarantee')
    else:
      found.append('no noise is added and all records are used: there is no '
                   'privacy guarantee')
    if config.weighting == 'records' and config.mode != 'centralized':
      found.append('weighting=records makes the number of records of every party '
                   'public')
    return found

  def _unused(self) -> Sequence[tuple[str, str]]:
    mode, why = self.config.mode, f'mode={self.config.mode}'
    found = []
    if mode == 'centralized':
      found += [(name, why) for name in _OF_SHARING]
    if mode in ('np', 'centralized'):
      found += [(name, why) for name in _OF_NFDP]
    elif mode == 'ldp' and self.config.epsilon is not None:
      found += [(name, 'mode=ldp with its own epsilon') for name in _OF_NFDP]
    if mode != 'ldp':
      found += [(name, why) for name in _OF_LDP]
    if self.config.knowledge != 'logits' and mode != 'centralized':
      found.append(('logit_bound', f'knowledge={self.config.knowledge}'))
    if self.mean.sends_votes and mode != 'centralized':
      found.append(('bits', f'knowledge={self.config.knowledge}: votes are whole'))
    return [(name, reason) for name, reason in found if name in self.given]

  def kinds_of_knowledge(self) -> dict[str, PredictionMeanParams | str]:
    """The mean of this run for each kind of knowledge that parties may share.

    Why not, in words, for a kind that these settings, its own noise included, do
    not allow: too few bits, or more noise than the grid can hold.
    """
    found = {}
    for kind in prediction_params.KNOWLEDGE:
      try:
        found[kind] = self._mean_of(kind)
      except ValueError as error:
        found[kind] = str(error)
    return found
