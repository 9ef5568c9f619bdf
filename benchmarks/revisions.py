"""Times of this tree against those of another revision, in interleaved pairs.

  python -m benchmarks.revisions --base=REV [--quick] [--json=FILE] [--pairs=N]

Milliseconds of a round's commit (0.03 and 8 MB of state), of `account` as a whole
process, and of a round under the Skellam mechanism for the models of
`benchmarks.round`. Each tree runs in a process of its own, with its own benchmarks. The
ratio is ours over theirs: its geometric mean over the pairs, and the 95% interval of
Student's t of the logarithms. A ratio is kept if its interval lies or begins below 1.05.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
from scipy import stats

_ROOT = pathlib.Path(__file__).absolute().parents[1]
_LIMIT = 1.05
_COMMITS = ('commit 0.03', 'commit 8')
_ROUNDS = ('round cnn', 'round softmax', 'round lstm', 'round tags')
_ACCOUNT = 'account'
_FLAGS = ('--mechanism=skellam', '--clip=1', '--bits=18', '--dimension=100000',
          '--cohort_size=100', '--population=3400', '--rounds=1500', '--delta=1e-6',
          '--sampling=poisson', '--noise_multiplier=0.6')
# Calls of one measurement, so that it takes tens of milliseconds at least.
_CALLS = {'commit 0.03': 20, 'commit 8': 3, 'round softmax': 3}


def _function(case: str, folder: str, quick: bool) -> Callable[[], None]:
  """Builds the function that a case times, from the tree that this process imports."""
  # pylint: disable=g-import-not-at-top
  kind, _, which = case.partition(' ')
  if kind == _ACCOUNT:
    return lambda: subprocess.run(
        [sys.executable, '-m', 'tff_pipelines.account', *_FLAGS], check=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  if kind == 'commit':
    from benchmarks import commit
    run, counter = commit.ours(
        pathlib.Path(folder) / 'run', commit.state_of(float(which))), iter(
            range(1, 10**9))
    return lambda: run(next(counter))
  from benchmarks import round as round_lib
  setting, = (setting for setting in (
      round_lib.QUICK_SETTINGS if quick else round_lib.SETTINGS)
              if setting.model == which)
  return round_lib.our_round(setting, round_lib.build_clients(setting), private=True)


def _serve(case: str, quick: bool) -> None:
  """Prints the seconds of a measurement for each line of standard input."""
  from tff_pipelines.simulation import contexts  # pylint: disable=g-import-not-at-top
  answers, sys.stdout = sys.stdout, sys.stderr
  context = contexts.simulation() if case in _ROUNDS else contextlib.nullcontext()
  with tempfile.TemporaryDirectory() as folder, context:
    run = _function(case, folder, quick)
    for _ in sys.stdin:
      os.sync()
      start = time.perf_counter()
      for _ in range(1 if quick else _CALLS.get(case, 1)):
        run()
      print(time.perf_counter() - start, file=answers, flush=True)


@contextlib.contextmanager
def _measured(tree: pathlib.Path, case: str, quick: bool) -> Iterator[Callable]:
  """A function that measures a case of a tree, in seconds."""
  process = subprocess.Popen(
      [sys.executable, '-P', __file__, f'--serve={case}', *['--quick'][:quick]],
      cwd=tree, env={**os.environ, 'PYTHONPATH': str(tree), 'TF_CPP_MIN_LOG_LEVEL': '3'},
      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
      text=True)

  def measure() -> float:
    process.stdin.write('\n')
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
      raise RuntimeError(f'{case} failed in {tree}')
    return float(line)

  try:
    yield measure
  finally:
    process.stdin.close()
    process.wait()
    process.stdout.close()


def _ratio(case: str, base: pathlib.Path, pairs: int, quick: bool) -> dict:
  """The row of a case."""
  with _measured(_ROOT, case, quick) as ours, _measured(base, case, quick) as theirs:
    for _ in range(2):  # Traced, compiled, and in the caches.
      ours(), theirs()
    times = []
    for index in range(pairs):  # Each is first in every second pair.
      if index % 2:
        their, our = theirs(), ours()
      else:
        our, their = ours(), theirs()
      times.append((our, their))
  our, their = np.array(times).T
  logs = np.log(our / their)
  half = stats.t.ppf(0.975, pairs - 1) * logs.std(ddof=1) / np.sqrt(pairs)
  low, mean, high = np.exp(logs.mean() + half * np.array([-1, 0, 1]))
  return {'case': case, 'ms': 1e3 * np.median(our), 'base_ms': 1e3 * np.median(their),
          'ratio': mean, 'low': low, 'high': high, 'kept': bool(low <= _LIMIT)}


def main(arguments: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
  parser.add_argument('--base', help='revision to compare with', default='HEAD')
  parser.add_argument('--quick', action='store_true', help='small, to see it run')
  parser.add_argument('--json', help='file for the rows')
  parser.add_argument('--pairs', type=int, default=9, help='pairs of a case, >= 2')
  parser.add_argument('--serve', help=argparse.SUPPRESS)
  flags = parser.parse_args(arguments)
  if flags.serve:
    _serve(flags.serve, flags.quick)
    return
  cases = _COMMITS[:1] if flags.quick else (
      *_COMMITS, _ACCOUNT, *_ROUNDS)
  with tempfile.TemporaryDirectory() as base:
    archive = subprocess.run(['git', 'archive', flags.base], cwd=_ROOT, check=True,
                             stdout=subprocess.PIPE).stdout
    subprocess.run(['tar', '-x', '-C', base], input=archive, check=True)
    rows = []
    for case in cases:
      rows.append(_ratio(case, pathlib.Path(base), 2 if flags.quick else flags.pairs,
                         flags.quick))
      print('{case:<14} {ms:9.1f} ms, base {base_ms:9.1f} ms, ratio {ratio:.3f} '
            '({low:.3f} to {high:.3f}) {kept}'.format(**rows[-1]), flush=True)
  if flags.json:
    pathlib.Path(flags.json).write_text(json.dumps(rows, indent=1), encoding='utf-8')


if __name__ == '__main__':
  main()
