"""A plan and a guarantee that tests of the reports of all families use."""

import dataclasses
from typing import Any

from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import plan as guarantee

TERMS = guarantee.Terms(privacy_unit='one client', observers='those who see the models',
    against='observers of the models', observers_server='the server and the clients',
    against_server='the server', sampling='poisson',
    trust_model='the server is trusted', source='arXiv 1607.00133', sampler='exact tables')


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExamplePlan(guarantee.Plan):
  """Rounds of a Gaussian sum over sampled clients, or of local noise.

  After `period` rounds the noise doubles; None for the same in all rounds.
  """

  noise: float = 1.0
  period: int | None = None
  sampling_rate: float = 0.1
  caveats: tuple[guarantee.Caveat, ...] = ()
  event_kind: str = 'sum'
  private: bool = True
  terms: guarantee.Terms = TERMS
  delta: float | None = 1e-3
  seed: int | None = None
  accountant: str = 'rdp'
  amplification: str = 'tight'
  population: int | None = 100
  total_variation: float | None = None

  @property
  def is_private(self) -> bool:
    return self.private

  def event(self, index: int):
    if not self.private:
      return events.NoPrivacy()
    if self.event_kind == 'local':
      return events.LocalGaussian(noise_multiplier=self.noise)
    noise = self.noise
    if self.period is not None:
      noise *= 2 ** ((index - 1) // self.period)
    return events.PoissonSampled(event=events.CentralGaussian(noise_multiplier=noise),
        sampling_rate=self.sampling_rate)

  def notes(self) -> list[guarantee.Caveat]:
    return list(self.caveats)

  def configuration(self) -> dict[str, Any]:
    return {'noise': self.noise}
