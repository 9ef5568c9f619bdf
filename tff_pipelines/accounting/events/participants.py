"""Releases as seen by participants, who know their own shares of the noise.

A participant knows the cohort of a round that it is in, and subtracts the share of the
noise that it added. Of the noise, of variance v/h in all (v counted on, h the
min_honest_fraction), the other shares are left: (v/h)(1 - k/m) in a cohort of m for k
colluding participants. Nothing is amplified. See
docs/participation.md.
"""

import dataclasses

from tff_pipelines.common import validate
from tff_pipelines.accounting.events import base
from tff_pipelines.accounting.events import combinators
from tff_pipelines.accounting.events import sum_events

_SHARES = (sum_events.DistributedSkellam, sum_events.DistributedDiscreteGaussian)
# Rounding of a product leaves no more noise than there is.
_ROUNDING = 1 - 1e-12


def _parts(event: base.Event) -> list[base.Event]:
  """The events inside an event."""
  values = []
  for field in dataclasses.fields(event):
    value = getattr(event, field.name)
    values += value if isinstance(value, tuple) else [value]
  return [value for value in values if isinstance(value, base.Event)]


def has_shares(event: base.Event) -> bool:
  """Whether clients add shares of the noise of a sum in the event."""
  return isinstance(event, _SHARES) or any(map(has_shares, _parts(event)))


def least_cohort(event: base.Event) -> float | None:
  """The minimum cohort of the sums of shares in an event; None if one may be of one."""
  if isinstance(event, combinators.PoissonSampled):
    return event.least_cohort
  if isinstance(event, (combinators.FixedSizeSampled, combinators.EpochSampled)):
    return event.cohort_size
  if isinstance(event, _SHARES):
    return event.cohort_size
  cohorts = [least_cohort(part) for part in _parts(event) if has_shares(part)]
  return None if not cohorts or None in cohorts else min(cohorts)


def seen(event: base.Event, colluders: float = 1.0) -> base.Event:
  """The release as seen by participants, who subtract their own shares.

  Args:
    event: Everything that was released. A sum that is not sampled has its `cohort_size`
      exactly; others have a cohort of at least `least_cohort`.
    colluders: k >= 1 participants who pool what they know.

  Returns:
    The same with the noise that the shares of all others are; without any where a
    cohort may have no others. To be accounted without amplification.
  """
  validate.finite(colluders=colluders)
  if colluders < 1:
    raise ValueError(f'colluders must be at least 1, found {colluders!r}')
  return _seen(event, colluders, None) if has_shares(event) else event


def _seen(event: base.Event, colluders: float, cohort: float | None) -> base.Event:
  """As `seen`, of a cohort of at least `cohort`; None for that of the event."""
  if isinstance(event, (combinators.PoissonSampled, combinators.FixedSizeSampled,
                        combinators.EpochSampled)):
    cohort = least_cohort(event) or 1
  elif isinstance(event, combinators.Together) and cohort is None:
    cohort = least_cohort(event)
  if isinstance(event, combinators.Composed):
    # A count beside a sum of shares has shares too.
    return dataclasses.replace(event, events=tuple(
        _seen(part, colluders, cohort) for part in event.events))
  if isinstance(event, (*_SHARES, sum_events.SkellamCount)):
    honest = getattr(event, 'min_honest_fraction', None) or 1.0
    cohort = getattr(event, 'cohort_size', None) if cohort is None else cohort
    if cohort is None or cohort <= colluders:
      return combinators.NoPrivacy()
    return dataclasses.replace(event, noise_variance=_ROUNDING * (
        event.noise_variance / honest * (1 - colluders / cohort)))
  if hasattr(event, 'event'):
    return dataclasses.replace(event, event=_seen(event.event, colluders, cohort))
  return event
