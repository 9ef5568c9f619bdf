"""Faults that are planted in shipped mechanisms, each of which an audit must find.

  python -m benchmarks.planted_faults [--quick] [--json=FILE]

A release is executed with a fault and audited at the claim without it. Beside each fault
stands which test has found it: the lower bound of epsilon, the variance of the noise, or
the norm of an encoding.
"""

import argparse
from collections.abc import Callable, Sequence
import functools
import json
import pathlib
import sys

from tff_pipelines.audit import releases, run
from tff_pipelines.audit.releases import Release, Setting, SumFaults
from tff_pipelines.audit.settings import GRAPH, KERNELS

_sum = functools.partial(releases.of_sum, 'skellam')
_SETTING = Setting()


def _of_kernels(**faults) -> Release:
  return _sum(KERNELS, _SETTING, faults=SumFaults(**faults))


def _of_graph(setting: Setting = _SETTING, column: tuple[int, ...] = (1,),
              **faults) -> Release:
  return _sum(GRAPH, setting, column=column, faults=SumFaults(**faults))


# Fault -> the release that has it, and trials over those of the script.
FAULTS: dict[str, tuple[Callable[[], Release], float]] = {
    'noise at 0.7': (lambda: _of_kernels(
        changes={'noise_multiplier': lambda z: 0.7 * z}), 1),
    'clip at twice': (lambda: _of_kernels(
        changes={'clip': 2.0, 'noise_multiplier': lambda z: z / 2}), 1),
    'half the shares missing': (lambda: _of_kernels(silent=2), 1),
    'one share in ten missing': (lambda: _sum(
        KERNELS, Setting(clients=10), faults=SumFaults(silent=1)), 1),
    'half the shares missing, graph': (lambda: _of_graph(silent=2), 0.1),
    'the same key twice': (lambda: _of_graph(same_key=True), 0.02),
    'a known cohort where a hidden one is claimed': (lambda: _sum(
        KERNELS, _SETTING, sampled=True, faults=SumFaults(is_known=True)), 1),
    'rounding without its bound, coarse grid': (lambda: _sum(
        KERNELS, Setting(dimension=255, bits=8), faults=SumFaults(no_bound=True)), 1),
    'rows of bands opened twice': (lambda: _of_graph(
        column=releases.COLUMN, reopened=True), 0.1),
    'votes cast twice': (lambda: releases.of_vote('ae_vote', _SETTING, cast=2), 1),
    **{f'{name} answers at 1.5 times their epsilon': (
        functools.partial(releases.of_answer, name, _SETTING, factor=1.5), 1)
       for name in ('krr', 'subset', 'laplace', 'piecewise', 'duchi', 'gaussian')},
    **{f'predictions, {noise} noise at 0.7': (functools.partial(
        releases.of_prediction, noise, _SETTING, factor=0.7), 1)
       for noise in ('gaussian', 'laplace')}}


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the script with these flags, those of the command line by default."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--trials', type=int, default=200_000)
  parser.add_argument('--quick', action='store_true', help='few trials of quick releases')
  parser.add_argument('--json', help='file of the findings')
  flags = parser.parse_args(arguments)
  findings, missed = {}, []
  print('| fault | claimed ε | lower bound | variance over the claimed | found by |')
  print('|---|---|---|---|---|')
  for fault, (build, share) in FAULTS.items():
    release = build()
    if flags.quick and release.is_slow:
      continue
    found = run.examine(release, int((60_000 if flags.quick else flags.trials) * share))
    ratio = '–' if found.variance_ratio is None else '{:.3f} to {:.3f}'.format(
        *found.variance_ratio)
    by = list(found.problems)
    if not by:
      missed.append(fault)
    findings[fault] = found.to_json()
    print(f'| {fault} | {found.claimed:.3f} | {found.lower:.3f} | {ratio} | '
          f'{", ".join(by) or "**not found**"} |', flush=True)
  if flags.json:
    pathlib.Path(flags.json).write_text(json.dumps(findings, indent=2), encoding='utf-8')
  print('not found:', ', '.join(missed) or 'none')
  return int(bool(missed))


if __name__ == '__main__':
  sys.exit(main())
