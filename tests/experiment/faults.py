"""Runs that meet a fault of their disk: one line, exit code 2, and then resumed.

  python -m tests.experiment.faults [--quick] [--kind=full|permission|removed ...]

A training run is started once for each write that it makes, and that write fails: no
file may grow (RLIMIT_FSIZE) after a byte of it, the process is another user's, or its
folder is gone. Each must end by one line with exit code 2, leave no part of a file, and
`--resume` must end with what an undisturbed run leaves.
"""

import argparse
from collections.abc import Collection, Sequence
import io
import json
import os
import pathlib
import re
import resource
import shutil
import sys
import tempfile

import numpy as np

from tests.fedavg import still_run
from tests.programs import launcher as launcher_lib
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.common import files
from tff_pipelines.experiment import checkpoints

KINDS = ('full', 'permission', 'removed')
_NOBODY = 65534
_MODULE = 'tests.experiment.faults'
# Bytes that a full disk still takes.
_FIT = 1
_RANDOM_NAME = re.compile(r'(?<=^\.)(\d+)\.|\.\w{8}$|(?<=\.)\d+\.(?=new$)')


def _name(path: pathlib.Path) -> str:
  """A file's name without what is random in that of one to be renamed."""
  name = path.name if path.name.startswith('.') or path.suffix == '.new' else ''
  return _RANDOM_NAME.sub('', name) if name else path.name


class _Writes:
  """Counts the files that a process opens to write in a folder; one of them fails."""

  def __init__(self, folder: pathlib.Path, kind: str | None, at: int):
    self.names = []
    self._folder, self._kind, self._at = folder, kind, at
    sys.addaudithook(self._audit)

  def _audit(self, event, arguments):
    if event != 'open' or not isinstance(arguments[0], (str, bytes)):
      return
    path, flags = pathlib.Path(os.fsdecode(arguments[0])), arguments[2] or 0
    if not flags & (os.O_WRONLY | os.O_RDWR) or self._folder not in path.parents:
      return
    self.names.append(_name(path))
    if len(self.names) == self._at:
      self._fail(path)

  def _fail(self, path):
    if self._kind == 'full':
      size = path.stat().st_size if path.exists() else 0
      _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
      resource.setrlimit(resource.RLIMIT_FSIZE, (size + _FIT, hard))
    elif self._kind == 'permission':
      for folder, _, _ in os.walk(self._folder):
        os.chmod(folder, 0o555)
      if os.geteuid() == 0:
        os.seteuid(_NOBODY)
    else:
      shutil.rmtree(self._folder)


def _child(folder: str, kind: str, at: int) -> int:
  """Runs the program with a fault in its `at`th write; prints the names of all."""
  writes = _Writes(pathlib.Path(folder), kind, at)
  # Where it prints is no file that could be full.
  shown, sys.stderr = sys.stderr, io.StringIO()
  sys.stdout = io.StringIO()
  code = still_run.main([*still_run.ARGUMENTS, f'--output_dir={folder}'])
  resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
  if os.geteuid() == _NOBODY and os.getuid() == 0:
    os.seteuid(0)
  for parent, _, _ in os.walk(folder):
    os.chmod(parent, 0o755)
  print(sys.stderr.getvalue(), end='', file=shown)
  pathlib.Path('names').write_text('\n'.join(writes.names), encoding='utf-8')
  return code


def _left(folder: pathlib.Path) -> tuple:
  """What a finished run leaves that follows from its settings."""
  with np.load(folder / 'model.npz') as arrays:
    model = {name: arrays[name].tobytes() for name in arrays.files}
  summary = json.loads((folder / files.SUMMARY).read_text(encoding='utf-8'))
  rounds, path = checkpoints.list_all(folder / 'private/checkpoints')[0]
  state = {name: array.tobytes() for name, array in checkpoints.read(path).arrays.items()}
  names = {path.relative_to(folder) for path in folder.rglob('*')
           if 'tensorboard' not in path.parts}
  return (model, state, rounds, (folder / files.METRICS).read_bytes(), names, {
      name: value for name, value in summary.items()
      if name not in ('starts', 'configuration', 'epsilon_server',
                      'epsilon_server_any_cohorts')})


def _assert_nothing_is_half_written(folder: pathlib.Path) -> None:
  """Fails if a file has only a part of what it should have."""
  for path in folder.rglob('*'):
    assert not path.name.startswith('.') and not path.name.endswith('.new'), path
    if path.suffix == '.json':
      json.loads(path.read_text(encoding='utf-8'))
    elif path.name in (files.METRICS, 'starts.log', files.LEDGER):
      assert path.read_bytes().endswith(b'\n') or not path.stat().st_size, path
    elif path.name.startswith('round_'):
      checkpoints.read(path)
    elif path.suffix == '.png':
      assert path.read_bytes().endswith(b'IEND\xaeB`\x82'), path
  ledger = ledger_lib.Ledger(folder / files.LEDGER)
  assert not ledger.path.exists() or ledger.verify() == []


def prove(launcher: launcher_lib.Launcher, base: pathlib.Path, *,
          kinds: Sequence[str] = KINDS, quick: bool = False,
          only: Collection[str] | None = None) -> dict[str, list[str]]:
  """Lets every write of a run fail, by every kind of fault.

  `quick` takes the last write to each kind of file alone, and of `permission` and
  `removed` only that of a checkpoint; `only` names files of `full`, with # for their
  digits. Returns kind -> names of the files whose writes failed.
  """
  whole = base / 'whole'
  undisturbed = launcher.run(_MODULE, f'--folder={whole}', '--kind=full', '--at=0')
  assert undisturbed.code == 0, undisturbed.stderr
  names = (undisturbed.folder / 'names').read_text(encoding='utf-8').splitlines()
  expected, failed = _left(whole), {kind: [] for kind in kinds}
  last = {re.sub(r'\d+', '#', name): at for at, name in enumerate(names, start=1)}
  runs = []
  for kind in kinds:
    places = list(enumerate(names, start=1))
    if quick:
      places = [(at, names[at - 1]) for name, at in last.items()
                if (only is None or name in only if kind == 'full' else
                    name.startswith('.round_'))]
    runs += [(kind, at, name) for at, name in places]
  for kind, at, name in runs:
    folder, what = base / f'{kind}_{at}', f'{kind} at {name}, write {at}'
    run = launcher.run(_MODULE, f'--folder={folder}', f'--kind={kind}', f'--at={at}')
    assert run.code == 2, (what, run.code, run.stderr)
    errors = [line for line in run.stderr.splitlines() if line.startswith('error: ')]
    assert len(errors) == 1 and run.stderr.endswith(errors[0] + '\n'), (what, run.stderr)
    assert 'Traceback' not in run.stderr and str(folder) in errors[0], (what, errors)
    if folder.exists():
      _assert_nothing_is_half_written(folder)
    run = launcher.run('tests.fedavg.still_run', *still_run.ARGUMENTS,
                       f'--output_dir={folder}', '--resume')
    assert run.code == 0, (what, run.stderr)
    for mine, theirs in zip(_left(folder), expected, strict=True):
      assert mine == theirs, (what, mine, theirs)
    failed[kind].append(name)
  return failed


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; 0 if all runs ended as they should."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--kind', action='append', choices=KINDS)
  parser.add_argument('--quick', action='store_true', help='every kind of file once')
  parser.add_argument('--folder', help='run the program here, in this process')
  parser.add_argument('--at', type=int, help='which of its writes fails; 0 for none')
  flags = parser.parse_args(argv)
  if flags.folder:
    return _child(flags.folder, flags.kind[0], flags.at)
  with tempfile.TemporaryDirectory() as folder:
    base = pathlib.Path(folder)
    (base / 'launcher').mkdir()
    launcher = launcher_lib.Launcher(base / 'launcher')
    try:
      for kind, names in prove(launcher, base, kinds=flags.kind or KINDS,
                               quick=flags.quick).items():
        print(f'{kind}: {len(names)} runs ended by one line and were resumed: '
              f'{", ".join(dict.fromkeys(names))}', flush=True)
    finally:
      launcher.stop()
  return 0


if __name__ == '__main__':
  sys.exit(main())
