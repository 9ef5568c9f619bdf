"""Lower bounds of epsilon by this project and by jax_privacy, on the same scores.

  python -m benchmarks.audit_peers --python=PEER/bin/python

PEER is an environment with jax_privacy 2.0. Scores are those of a Gaussian release with and
without a client. At a threshold that is given both must prove the same; each also chooses
its own test: this project on half of the outputs, or by what was released, jax_privacy by
Bonferroni's correction over all thresholds.
"""

import argparse
from collections.abc import Sequence
import json
import subprocess
import sys

import numpy as np

SIGNIFICANCE, DELTA = 0.05, 1e-3
# Separation of the scores and their number: those of one client, and canaries.
CASES = ((0.5, 1000), (1.0, 1000), (2.0, 1000), (1.0, 10_000), (3.0, 10_000))


def scores(case: int) -> tuple[np.ndarray, np.ndarray]:
  """Log likelihood ratios with and without the client, float64 [count / 2] each."""
  rng, (mean, count) = np.random.default_rng(case), CASES[case]
  return tuple(mean * rng.normal(side * mean / 2, size=count // 2) for side in (1, -1))


def of_peer() -> None:
  """Prints the peer's bounds as JSON: runs in its own Python."""
  from jax_privacy import auditing  # pylint: disable=g-import-not-at-top
  result = []
  for case in range(len(CASES)):
    auditor = auditing.CanaryScoreAuditor(*scores(case))
    threshold = auditing.Explicit(CASES[case][0]**2 / 2)
    result.append([float(method(SIGNIFICANCE, DELTA, threshold_strategy=strategy))
                   for method in (auditor.epsilon_clopper_pearson, auditor.epsilon_one_run)
                   for strategy in (threshold, auditing.Bonferroni())])
  print(json.dumps(result))


def ours() -> list[list[float]]:
  """This project's bounds, as `of_peer` prints them."""
  from tff_pipelines.audit import guesses, lower_bounds  # pylint: disable=g-import-not-at-top
  result = []
  for case, (mean, count) in enumerate(CASES):
    present, absent = scores(case)
    true, false = (int(np.sum(x >= mean**2 / 2)) for x in (present, absent))
    found = guesses.find('server', np.concatenate([present, absent]),
                         np.arange(count) < count // 2, claimed=None, delta=DELTA)
    result.append([
        float(lower_bounds.epsilon_of(true, false, count // 2, DELTA, 1 - SIGNIFICANCE)),
        lower_bounds.lower_bound(present, absent, DELTA, 1 - SIGNIFICANCE).epsilon,
        lower_bounds.epsilon_of_guesses(
            count, true + false, true, DELTA, 1 - SIGNIFICANCE), found.lower])
  return result


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the script with these flags, those of the command line by default."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--python', help='Python of the environment with jax_privacy')
  flags = parser.parse_args(arguments)
  if flags.python is None:
    of_peer()
    return 0
  theirs = json.loads(subprocess.run(
      [flags.python, __file__], check=True, stdout=subprocess.PIPE).stdout)
  print('| separation, outputs | Clopper–Pearson, one threshold: here, jax_privacy | '
        'own choice | one run, one threshold | own choice |\n' + '|---' * 5 + '|')
  differ = 0.0
  for (mean, count), here, there in zip(CASES, ours(), theirs):
    differ = max(differ, *(abs(here[i] - there[i]) for i in (0, 2)))
    print(f'| {mean:g}, {count:,} | ' + ' | '.join(
        f'{a:.4f}, {b:.4f}' for a, b in zip(here, there)) + ' |')
  print(f'largest difference at a threshold that is given: {differ:.2g}')
  return int(differ > 1e-3)


if __name__ == '__main__':
  sys.exit(main())
