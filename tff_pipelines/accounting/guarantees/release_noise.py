"""The noise of releases before the first round and after the last."""

import contextlib
import math
from typing import Any

from tff_pipelines.accounting.events import base, preliminary, records, sized
from tff_pipelines.accounting.guarantees import calibration

# Fraction of a run's delta that keys of a single client may take.
FAILURE_FRACTION = 0.1
# The sampler draws no noise of a larger variance.
_MAX_VARIANCE = 2.0**52


def planned(*, l2_sensitivity: float, dimension: int, items: int, epsilon: float,
            delta: float, replace_one_of: int | None = None, of_records: bool = False,
            kind: type[preliminary.CentralRelease] = preliminary.PreliminaryRelease
            ) -> base.Event:
  """The release with the minimum noise for an epsilon of its own, and a threshold.

  Args:
    l2_sensitivity, dimension, items: As in `preliminary.CentralRelease`.
    epsilon, delta: Epsilon of this release alone, at the delta of the run, of which
      keys of a single client take FAILURE_FRACTION.
    replace_one_of: Number of clients, to state it for a replaced client; None for
      zero-out.
    of_records: Whether records, or persons, contribute, and not clients.
    kind: Class of the release.

  Raises ValueError if the target can't be met.
  """
  def event(z: float, **keys: Any) -> base.Event:
    release = kind(l2_sensitivity=l2_sensitivity, dimension=dimension,
                   noise_variance=(z * l2_sensitivity)**2, **keys)
    if of_records:
      return records.SampledRecords(event=release, sampling_rate=1.0)
    return release if replace_one_of is None else sized.FixedSizeSampled(
        event=release, cohort_size=replace_one_of, population=replace_one_of)

  if not items:
    return event(calibration.noise_multiplier(event, epsilon=epsilon, delta=delta))
  # Keys are taken to fail as often as they may: their effect jumps with the threshold,
  # and epsilon would not fall with the noise.
  most = FAILURE_FRACTION * delta
  z = calibration.noise_multiplier(
      lambda z: event(z, items=items, threshold=2**62),  # Never reached.
      epsilon=epsilon, delta=delta - most)
  return event(z, items=items, threshold=preliminary.threshold(
      (z * l2_sensitivity)**2, items, most))


def planned_evaluation(metrics: int, *, epsilon: float, delta: float,
                       **stated: Any) -> base.Event:
  """The release of so many metrics, and of how many clients have them; as `planned`."""
  with contextlib.suppress(calibration.Unreachable):
    event = planned(l2_sensitivity=preliminary.UNITS * math.sqrt(metrics + 1), items=0,
                    dimension=metrics + 1, epsilon=epsilon, delta=delta,
                    kind=preliminary.EvaluationRelease, **stated)
    if release_of(event).noise_variance <= _MAX_VARIANCE:
      return event
  raise ValueError(f'private_evaluation={epsilon:g} is too small for the sampler')


def release_of(event: base.Event) -> preliminary.CentralRelease:
  """The release inside an event of `planned`."""
  return getattr(event, 'event', event)
