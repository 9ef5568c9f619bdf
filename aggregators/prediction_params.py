"""Parameters of a mean of predictions, and what follows from them. No TensorFlow."""

import dataclasses
import math

from tff_pipelines.common import validate

# Knowledge that parties share: the outputs of the last layer, class probabilities, or
# the most likely class alone.
KNOWLEDGE = ('logits', 'softmax', 'argmax')
NOISES = ('none', 'gaussian', 'laplace')

# Noisy values this far out are clipped, which is post-processing: beyond it lies
# less than 2e-15 of a Gaussian (8 standard deviations) and 3e-16 of a Laplace
# distribution (36 scales).
_REACH = {'none': 0.0, 'gaussian': 8.0, 'laplace': 36.0}
# A grid of fewer steps than this over the range of a prediction is of no use.
_MIN_LEVELS = 16
# Norms and probabilities are computed in float32, which may exceed the bound that they
# are clipped to: sensitivities are larger by this factor.
_FLOAT_SLACK = 1.0 + 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictionMeanParams:
  """A weighted mean over parties of their predictions on public records.

  Every entry of a prediction is put on a grid of `levels` steps from `low` to
  `high`, multiplied by the party's weight, and summed modulo 2^wire_bits. The
  sum does not wrap around as long as weights sum up to `max_total_weight` at most.

  Attributes:
    knowledge: One of KNOWLEDGE.
    records: Public records that are predicted on, >= 1.
    classes: Outputs of a party's model, >= 2.
    max_total_weight: Maximum sum of the weights of a round, integers >= 0; >= 1.
    bits: Bits of an entry of the sum, 4 to 30. Votes without noise take fewer.
    logit_bound: B > 0. Without noise every logit is clipped to [-B, B]; with
      Gaussian noise the logits of a record to the L2 norm B, with Laplace noise
      to the L1 norm B. Logits only.
    noise: Noise that every party adds to its own predictions, one of NOISES.
    noise_scale: Standard deviation of the Gaussian, or scale of the Laplace
      noise (its standard deviation over sqrt 2), in units of a prediction; > 0
      with noise, 0 without.
  """

  knowledge: str
  records: int
  classes: int
  max_total_weight: int
  bits: int = 20
  logit_bound: float = 30.0
  noise: str = 'none'
  noise_scale: float = 0.0

  def __post_init__(self):
    validate.one_of(KNOWLEDGE, knowledge=self.knowledge)
    validate.one_of(NOISES, noise=self.noise)
    validate.integer(records=self.records, low=1, high=2**24)
    validate.integer(classes=self.classes, low=2, high=2**16)
    validate.integer(max_total_weight=self.max_total_weight, low=1, high=2**26)
    validate.integer(bits=self.bits, low=4, high=30)
    for name, low, high in (('logit_bound', 1e-3, 1e6), ('noise_scale', 0.0, 1e12)):
      value = getattr(self, name)
      validate.finite(**{name: value})
      if not low <= value <= high:
        raise ValueError(f'{name} must be in [{low:g}, {high:g}], found {value!r}')
    if self.has_noise != (self.noise_scale > 0):
      raise ValueError('noise_scale must be greater than 0 with noise and 0 without, '
                       f'found noise={self.noise} and {self.noise_scale!r}')
    if not self.sends_votes and self.levels < _MIN_LEVELS:
      needed = (_MIN_LEVELS * self.max_total_weight).bit_length()
      raise ValueError(f'bits must be at least {needed} for max_total_weight='
                       f'{self.max_total_weight}, found {self.bits}')

  @property
  def has_noise(self) -> bool:
    return self.noise != 'none'

  @property
  def sends_votes(self) -> bool:
    """Whether parties send whole votes, which need no rounding."""
    return self.knowledge == 'argmax' and not self.has_noise

  @property
  def noise_reach(self) -> float:
    """Noisy predictions are clipped this far beyond the range of clean ones."""
    return _REACH[self.noise] * self.noise_scale

  @property
  def low(self) -> float:
    """The smallest value of an entry that is sent, in units of a prediction."""
    return (-self.logit_bound if self.knowledge == 'logits' else 0.0) - self.noise_reach

  @property
  def high(self) -> float:
    """The largest value of an entry that is sent."""
    return (self.logit_bound if self.knowledge == 'logits' else 1.0) + self.noise_reach

  @property
  def levels(self) -> int:
    """Steps of the grid from `low` to `high`."""
    return 1 if self.sends_votes else (2**self.bits - 1) // self.max_total_weight

  @property
  def wire_bits(self) -> int:
    """Bits of an entry of the sum."""
    return self.max_total_weight.bit_length() if self.sends_votes else self.bits

  @property
  def modulus(self) -> int:
    """Above the largest possible sum of an entry, max_total_weight * levels."""
    return 2**self.wire_bits

  @property
  def rounding_error(self) -> float:
    """Maximum error of an entry of the mean by rounding; 0 for votes.

    Half a step of the grid, and half of a last digit of float32, which the mean is
    returned in. With noise the mean is also projected on what predictions can be.
    """
    if self.sends_votes:
      return 0.0
    largest = max(abs(self.low), abs(self.high))
    return (self.high - self.low) / (2 * self.levels) + largest * 2.0**-24

  @property
  def l2_sensitivity(self) -> float:
    """L2 distance of a party's predictions on one record, for any two inputs."""
    clean = 2 * self.logit_bound if self.knowledge == 'logits' else math.sqrt(2)
    return clean * _FLOAT_SLACK

  @property
  def l1_sensitivity(self) -> float:
    """L1 distance of predictions on a record; logits are then clipped in L1."""
    return (2 * self.logit_bound if self.knowledge == 'logits' else 2.0) * _FLOAT_SLACK

  @property
  def sent_bytes(self) -> float:
    """Bytes that a party sends in a round under secure aggregation."""
    return self.records * self.classes * self.wire_bits / 8

  @property
  def clear_bytes(self) -> float:
    """Bytes that a party would send without secure aggregation: float32, or labels."""
    return (self.records * (self.classes - 1).bit_length() / 8 if self.sends_votes else
            self.records * self.classes * 4)

  @property
  def received_bytes(self) -> float:
    """Bytes that a party receives in a round: the sums, and records' int32 indices."""
    return self.sent_bytes + self.records * 4

  def replace(self, **changes) -> 'PredictionMeanParams':
    """A copy with these fields changed, validated again."""
    return dataclasses.replace(self, **changes)
