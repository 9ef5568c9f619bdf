"""The audit of single releases: claims, lower bounds and verdicts."""

import atexit
import dataclasses
import json
import pathlib
import time
from typing import Any

import numpy as np

from aggregators import tff_internals
from tff_pipelines.accounting.guarantees import accountant
from tff_pipelines.audit import guesses, lower_bounds, releases
from tff_pipelines.audit.settings import AuditSettings, GRAPH_SHARE
from tff_pipelines.experiment import measured

atexit.register(tff_internals.forget_default_context)

LEVEL = 0.95
# Level at which a claim is refuted: many releases are tested, and some bounds are tight.
_LEVEL_OF_REFUTATION = 0.999
# Trials of a release for one encoding whose norm is measured.
_TRIALS_OF_NORMS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
  """A release, as an audit found it.

  Attributes:
    name, form: Those of the release.
    claimed: Epsilon that is proved, at `delta`.
    lower: Epsilon is at least this, with probability LEVEL.
    surely: The same with probability 0.999, by which a claim is refuted.
    true_positives, false_positives: Rates of the test that proves it.
    largest: The largest lower bound that so many trials could have given.
    variance_ratio: Interval of the measured variance of the noise over the claimed one;
      None where it is not tested.
    norm_ratio: The largest squared norm of an encoding over the claimed one; None where
      it is not tested.
    trials: Outputs with the client, and without it.
    seconds: Time that they took.
  """

  name: str
  form: str
  claimed: float
  delta: float
  lower: float
  surely: float
  true_positives: float
  false_positives: float
  largest: float
  variance_ratio: tuple[float, float] | None
  norm_ratio: float | None
  trials: int
  seconds: float

  @property
  def problems(self) -> dict[str, str]:
    """Test -> what refutes the claim, in words; empty of a sound release."""
    found = {}
    if self.surely > self.claimed:
      found['epsilon'] = f'epsilon is at least {self.surely:.4g}'
    if self.variance_ratio is not None and self.variance_ratio[1] < 1:
      found['variance'] = ('the variance of the noise is at most '
                           f'{self.variance_ratio[1]:.4g} times the claimed one')
    if self.norm_ratio is not None and self.norm_ratio > 1:
      found['norm'] = ('a squared norm of a client is at least '
                       f'{self.norm_ratio:.4g} times the claimed one')
    return found

  def to_json(self) -> dict[str, Any]:
    return {**dataclasses.asdict(self), 'problems': self.problems}


def examine(release: releases.Release, trials: int,
            rng: np.random.Generator | None = None) -> Finding:
  """Audits a release; without a generator by the operating system's entropy."""
  rng, start = rng or np.random.default_rng(), time.monotonic()
  present, absent = (release.draw(is_there, trials, rng) for is_there in (True, False))
  found = lower_bounds.lower_bound(present, absent, release.delta, LEVEL)
  ratio = None
  if release.variance is not None:
    first = absent if absent.ndim == 1 else absent[:, 0]
    ratio = tuple(limit / release.variance for limit in
                  lower_bounds.variance_interval(first, _LEVEL_OF_REFUTATION))
  half = trials // 2
  return Finding(
      name=release.name, form=release.form, delta=release.delta, lower=found.epsilon,
      claimed=accountant.epsilon(release.event, release.delta),
      surely=float(lower_bounds.epsilon_of(
          round(found.true_positives * half), round(found.false_positives * half), half,
          release.delta, _LEVEL_OF_REFUTATION)),
      true_positives=found.true_positives, false_positives=found.false_positives,
      largest=float(lower_bounds.epsilon_of(half, 0, half, release.delta, LEVEL)),
      variance_ratio=ratio, norm_ratio=(
          release.largest and release.largest(trials // _TRIALS_OF_NORMS, rng)),
      trials=trials, seconds=time.monotonic() - start)


def audit(settings: AuditSettings) -> int:
  """Audits releases or a run and prints what is found; 1 if a claim is refuted, else 0."""
  if settings.run is not None:
    return _audit_run(settings)
  setting = releases.Setting(
      epsilon=settings.epsilon, delta=settings.delta, clients=settings.clients,
      dimension=settings.dimension, bits=settings.bits)
  is_text, findings = settings.format == 'text', []
  if is_text:
    print(f'{"release":<28}{"form":<9}{"epsilon: proved":>16}{"measured":>10}'
          f'{"ratio":>7}{"trials":>11}  (at least, {LEVEL:.0%} confidence)')
  for name in settings.mechanism or releases.RELEASES:
    release = releases.RELEASES[name](setting)
    trials = settings.trials
    if release.is_slow:
      trials = max(200, trials // GRAPH_SHARE)
    findings.append(found := examine(release, trials))
    if is_text:
      print(f'{found.name:<28}{found.form:<9}{found.claimed:>16.4f}{found.lower:>10.4f}'
            f'{found.lower / found.claimed:>7.2f}{found.trials:>11,}  '
            + ('REFUTED: ' if found.problems else '') + '; '.join(found.problems.values()),
            flush=True)
  if not is_text:
    print(json.dumps([one.to_json() for one in findings], indent=2))
  return int(any(one.problems for one in findings))


def _audit_run(settings: AuditSettings) -> int:
  """Audits the run in a folder by its canaries; returns as `audit`."""
  found = [one.to_json() for one in guesses.of_folder(pathlib.Path(settings.run))]
  refuted = int(any(map(measured.refutes, found)))
  if settings.format == 'json':
    print(json.dumps(found, indent=2))
    return refuted
  for line, one in zip(measured.lines(found), found):
    further = [] if one['area'] is None else [
        f'area under the ROC curve {one["area"]:.3f}']
    if one['estimate'] is not None:
      further.append(f'epsilon about {one["estimate"]:.3g} by a normal fit, which proves '
                     'nothing')
    print('\n  '.join([line, *further]))
  return refuted
