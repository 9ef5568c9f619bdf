"""Damages folders of interrupted runs and resumes them: no epsilon is ever too small.

  python -m tests.experiment.fuzz_folder [--cases=10000] [--seed=0] [--family=train ...]

A case is one change, or two in a fifth of them, to the files of a run that was stopped
after half of its rounds, and started once more without a commit. Then the run is resumed:
it must end as the undisturbed run, be refused by one line that names a file of the folder
or the folder, or state epsilons at least those of all that was released before and after.
Two changes spare the two records of starts, which may not both be lost.
"""

import argparse
import collections
from collections.abc import Iterator
import contextlib
import dataclasses
import functools
import io
import json
import math
import pathlib
import random
import shutil
import sys
import tempfile
from typing import Any
from unittest import mock

from tests.fedavg import still_run
from tff_pipelines.accounting.events import combinators
from tff_pipelines.accounting.guarantees import bounds
from tff_pipelines.common import files
from tff_pipelines.experiment import (
    charged_records, endings, records as records_lib, report)
from tff_pipelines.ldp import run as ldp_run
from tff_pipelines.ldp.settings import LdpSettings

_LONGEST = 1000  # Characters of a message.
_CHANGES = ('bit', 'bit', 'bit', 'byte', 'cut', 'remove', 'swap', 'line')
_EPSILONS = ('epsilon', 'epsilon_server', 'epsilon_server_any_cohorts',
             'epsilon_participant')


class Killed(BaseException):
  """Ends a run at a commit, as a kill would."""


class Train:
  """Federated averaging; rounds compute nothing, and cost what they cost."""

  sampling = dict(sampling='poisson', max_participations=3)

  def experiment(self, folder: pathlib.Path, resume: bool):
    return still_run.experiment(
        folder, rounds=8, num_clients=None, mechanism='skellam', resume=resume,
        noise_multiplier=2.0, **self.sampling)

  @functools.cache
  def least(self, released: int, shown: int) -> dict[str, float]:
    """Epsilons of `released` rounds, and of `shown` ones that the server saw too."""
    plan = _plan(self)
    event = plan.released(min(released, 8))
    repeated = plan.event(1).repeated()
    more = [repeated] * max(0, released - 8)
    everything = combinators.Composed(events=(event, *more))
    seen = combinators.Composed(events=(event, *more, *[repeated] * shown))
    return {'epsilon': plan.bound(everything, released).epsilon,
        **{bounds.KEYS[observer]: plan.bound(
            seen, released + shown, observer=observer).epsilon
           for observer in (bounds.SERVER, bounds.SERVER_ANY_COHORTS)}}


class Turns(Train):
  """The same of clients who take turns, whose sums are opened in rows."""

  sampling = {}


class Ldp:
  """Locally private distillation, whose answers are charged before they are drawn.

  In eight steps of four queries; a query's answers are those of five owners.
  """

  _prepared = None

  def experiment(self, folder: pathlib.Path, resume: bool):
    settings = LdpSettings(
        num_clients=40, clients_per_query=5, queries_per_step=4, epsilon=12.0,
        answers_per_client=4, mechanism='gaussian', output_dir=str(folder),
        resume=resume, refine='never')
    Ldp._prepared = Ldp._prepared or ldp_run.Prepared(settings)
    return ldp_run.LdpExperiment(settings, Ldp._prepared)

  @functools.cache
  def least(self, released: int, shown: int) -> dict[str, float]:
    plan = _plan(self)
    return {'epsilon': plan.epsilon(plan.most_answers(4 * (released + shown)))}


@functools.cache
def _plan(family):
  experiment = family.experiment(pathlib.Path('nowhere'), False)
  return experiment.build_plan(experiment.build_task(), None)


FAMILIES = {'train': Train, 'turns': Turns, 'ldp': Ldp}


@contextlib.contextmanager
def _watched(stop_after: float = math.inf) -> Iterator[collections.Counter]:
  """Counts releases by commits and by kept answers; ends the run after some.

  Args:
    stop_after: Number of releases after which the run is killed: before it commits
      another round, or between another charge and its answers.
  """
  counts = collections.Counter()
  commit, keep = records_lib.RunRecords.commit, charged_records.ChargedRecords.keep

  def counted(original):
    def call(self, *arguments, **named):
      if counts['released'] >= stop_after:
        counts['shown'] += 1
        raise Killed
      original(self, *arguments, **named)
      counts['released'] += 1
    return call

  # Figures take most of the time of such a run.
  with (mock.patch.object(report, 'draw', lambda path, *_, **__: path.touch()),
        mock.patch.object(records_lib.RunRecords, 'commit', counted(commit)),
        mock.patch.object(charged_records.ChargedRecords, 'keep', counted(keep))):
    yield counts


@dataclasses.dataclass
class Subject:
  """Interrupted runs of a family, with the same settings: one is damaged.

  `released` and `shown` are its releases, and those that starts lost; `undisturbed` is
  the summary of the run that was resumed without damage.
  """

  family: Any
  folder: pathlib.Path
  other: pathlib.Path
  released: int
  shown: int
  undisturbed: dict[str, Any] = dataclasses.field(default_factory=dict)


def _start(family, folder: pathlib.Path, resume: bool, stop_after: float = math.inf
           ) -> tuple[dict[str, Any] | None, collections.Counter]:
  """Starts or resumes a run; returns its summary, None if it was killed, and counts."""
  experiment = family.experiment(folder, resume)
  experiment.quiet = True
  with _watched(stop_after) as counts:
    try:
      return experiment.run(), counts
    except (Killed, endings.Interrupted):
      return None, counts


def prepare(name: str, folder: pathlib.Path) -> Subject:
  """Makes the interrupted runs of a family below a folder."""
  family, numbers = FAMILIES[name](), []
  for run in ('run', 'other'):
    counts = collections.Counter()
    for resume, stop_after in ((False, 3), (True, 1), (True, 0)):
      _, more = _start(family, folder / run, resume, stop_after)
      counts += more
    numbers.append(counts)
  subject = Subject(family, folder / 'run', folder / 'other',
                    numbers[0]['released'], numbers[0]['shown'])
  shutil.copytree(subject.folder, folder / 'whole')
  subject.undisturbed, _ = _start(family, folder / 'whole', True)
  return subject


def _names(folder: pathlib.Path) -> list[str]:
  return sorted(path.relative_to(folder).as_posix() for path in folder.rglob('*')
                if path.is_file() and path.name != files.LOCK)


def _changed(rng: random.Random, kind: str, content: bytes, other: bytes) -> bytes:
  """The content of a file after a change."""
  if kind == 'swap' or not content:
    return other
  at = rng.randrange(len(content))
  if kind == 'cut':
    return content[:at]
  if kind == 'line':
    lines = content.splitlines(keepends=True)
    del lines[rng.choice((-1, rng.randrange(len(lines)))):]
    return b''.join(lines)
  value = rng.randrange(256) if kind == 'byte' else content[at] ^ 1 << rng.randrange(8)
  return content[:at] + bytes([value]) + content[at + 1:]


def damage(rng: random.Random, subject: Subject, folder: pathlib.Path) -> list[str]:
  """Damages a copy of the run; returns the changes in words."""
  names, words = _names(folder), []
  chosen = rng.sample(names, 1 + (rng.random() < 0.2))
  if all(name.endswith(files.STARTS) for name in chosen):
    chosen = chosen[:1]
  for name in chosen:
    kind, path = rng.choice(_CHANGES), folder / name
    words.append(f'{kind} {name}')
    if kind == 'remove':
      path.unlink()
      continue
    other = subject.other / name
    path.write_bytes(_changed(
        rng, kind, path.read_bytes(), other.read_bytes() if other.exists() else b''))
  return words


def _finding(subject: Subject, folder: pathlib.Path) -> tuple[str, str | None]:
  """The end of a resumed run, and what is wrong with it, if anything is."""
  shown = io.StringIO()
  try:
    with contextlib.redirect_stderr(shown):
      summary, counts = _start(subject.family, folder, True)
  except (ValueError, OSError) as error:
    text = str(error)
    if '\n' in text or len(text) > _LONGEST or str(folder) not in text:
      return 'refused', f'message {text[:300]!r}'
    return 'refused', None
  least = subject.family.least(subject.released + counts['released'], subject.shown)
  stated = {name: summary[name] for name in _EPSILONS}
  for name, bound in least.items():
    if stated[name] is None or stated[name] < bound * (1 - 1e-9):
      return 'ended', f'{name} is {stated[name]} and must be at least {bound}'
  same = all(summary[name] == subject.undisturbed[name]
             for name in (*_EPSILONS, 'rounds', 'starts', 'value'))
  if same:
    return 'as undisturbed', None
  if any(summary[name] < subject.undisturbed[name] * (1 - 1e-9) for name in _EPSILONS
         if subject.undisturbed[name] is not None):
    return 'ended', 'an epsilon is below that of the undisturbed run'
  return 'with other results, and at least the epsilon', None


def case(subject: Subject, name: str, seed: int, number: int) -> dict[str, Any]:
  """Runs one case."""
  rng = random.Random(f'{name} {seed} {number}')
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch) / 'run'
    shutil.copytree(subject.folder, folder)
    changes = damage(rng, subject, folder)
    try:
      end, finding = _finding(subject, folder)
    except Exception as error:  # pylint: disable=broad-exception-caught
      end, finding = 'fault', f'{type(error).__name__}: {error}'
  return {'family': name, 'seed': seed, 'case': number, 'changes': changes, 'end': end,
          'finding': finding}


def main(arguments: list[str] | None = None) -> int:
  """Runs the cases; returns 1 if there is a finding."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--cases', type=int, default=10_000)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--family', action='append', choices=FAMILIES)
  options = parser.parse_args(arguments)
  ends, findings, names = collections.Counter(), 0, options.family or list(FAMILIES)
  with tempfile.TemporaryDirectory() as scratch:
    for name in names:
      subject = prepare(name, pathlib.Path(scratch) / name)
      for number in range(options.cases // len(names)):
        result = case(subject, name, options.seed, number)
        ends[name, result['end']] += 1
        if result['finding']:
          findings += 1
          print(json.dumps(result), flush=True)
  for (name, end), count in sorted(ends.items()):
    print(f'{name}: {count} {end}')
  print(f'{sum(ends.values())} cases, {findings} findings')
  return 1 if findings else 0


if __name__ == '__main__':
  sys.exit(main())
