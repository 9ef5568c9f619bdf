"""Federations through NVFlare's processes, next to the same over gRPC.

  python -m benchmarks.nvflare --nvflare=NVFLARE/bin/python --data_dir=DATA --folder=out/nvf
  python -m benchmarks.nvflare --quick --nvflare=... --folder=out/quick

NVFlare is in an environment of its own (requirements-nvflare.txt); its server and sites
start this project's processes, and carry their messages. Heart disease in four
hospitals, seeded, so that models must be those of the simulation to the last bit; then
private. Printed: accuracies, seconds, and bytes through the loopback.
"""

import argparse
from collections.abc import Sequence
import json
import pathlib
import shutil
import subprocess
import sys
import time

from tff_pipelines.experiment import cli  # First: TensorFlow's messages.
cli.quiet()
# pylint: disable=wrong-import-position
import numpy as np

from benchmarks import federation as federation_lib
from tff_pipelines.common import files
from tff_pipelines.deployment.engine import parties

ROOT = pathlib.Path(__file__).absolute().parent.parent
ADAPTER = ROOT / 'deploy' / 'nvflare'


def _loopback() -> int:
  """Bytes that this machine has sent to itself."""
  for line in pathlib.Path('/proc/net/dev').read_text(encoding='ascii').splitlines():
    name, _, rest = line.partition(':')
    if name.strip() == 'lo':
      return int(rest.split()[0])
  raise OSError('no loopback')


def parties_of(federation: federation_lib.Federation) -> dict:
  """The commands of all parties, as their administrators configure them."""
  def local(name: str) -> dict:
    command, *flags = federation.command(name)
    return {'approved': [federation.agreement.digest], 'folder': str(ROOT), 'command': [
        sys.executable, '-m', 'tff_pipelines.deploy', command,
        *(flag for flag in flags if not flag.startswith(('--agreement', '--approve')))]}

  return {'agreement': str(federation.folder / 'agreement.json'),
          'leader': local(parties.LEADER),
          'sites': {name: local(name) for name in federation.sites}}


def through_nvflare(federation: federation_lib.Federation, python: str) -> dict:
  """Runs a federation's job in NVFlare; its status, seconds and bytes."""
  path = federation.folder / 'parties.json'
  files.write_json(path, parties_of(federation))
  federation.start(parties.HELPER)
  before = _loopback()
  try:
    run = subprocess.run(
        [python, '-m', 'pipelines_nvflare.poc', f'--parties={path}',
         f'--folder={federation.folder / "nvflare"}'], cwd=ADAPTER, check=False,
        capture_output=True, text=True,
        timeout=3600)
  finally:
    federation.kill(parties.HELPER)
  if run.returncode:
    raise SystemExit(run.stderr[-3000:])
  return {**json.loads(run.stdout.splitlines()[-1]), 'bytes': _loopback() - before}


def through_grpc(federation: federation_lib.Federation) -> dict:
  """Runs the same over gRPC."""
  before, start = _loopback(), time.monotonic()
  with federation.running():
    code = federation.processes[parties.LEADER].wait()
  return {'status': code, 'seconds': time.monotonic() - start,
          'bytes': _loopback() - before}


def run(case: federation_lib.Case, data_dir: pathlib.Path | None, folder: pathlib.Path,
        python: str, **more: object) -> dict:
  """Runs a case both ways; what was measured of each."""
  arrays, found = federation_lib.arrays_of(case, data_dir, folder), {}
  for name, through in (('NVFlare', lambda one: through_nvflare(one, python)),
                        ('gRPC', through_grpc)):
    own = folder / name
    shutil.rmtree(own, ignore_errors=True)
    federation = federation_lib.Federation(
        case, arrays, own, federation_lib.Network([]), **more)
    measured = through(federation)
    np.savez(own / 'data' / 'all.npz', **arrays)
    accuracies = federation_lib.simulated(federation, own / 'data' / 'all.npz')
    ours, theirs = (federation_lib.model(own / kind) for kind in ('run', 'simulated'))
    summary = files.read_json(own / 'run' / files.SUMMARY)
    found[name] = {
        **measured, 'accuracy': accuracies['run'], 'simulated': accuracies['simulated'],
        'same to the last bit': all(
            np.array_equal(ours[key], theirs[key]) for key in theirs),
        'epsilon': summary['epsilon'], 'epsilon_server': summary['epsilon_server'],
        'caveats': summary['caveats'],
        'bytes a round and site': measured['bytes'] / federation.agreement.rounds / len(
            federation.sites)}
  return found


def main(arguments: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--nvflare', required=True, help='Python of NVFlare\'s environment')
  parser.add_argument('--data_dir', type=pathlib.Path, help='folder of the data files')
  parser.add_argument('--folder', type=pathlib.Path, required=True, help='of all files')
  parser.add_argument('--quick', action='store_true', help='three sites, embedded digits')
  given = parser.parse_args(arguments)
  case = federation_lib.CASES['quick' if given.quick else 'hearts']
  for name, more in (('seeded', {'seed': 3}), ('private', {}))[:1 if given.quick else 2]:
    found = run(case, given.data_dir, given.folder.absolute() / name, given.nvflare, **more)
    print(json.dumps({name: found}, indent=2), flush=True)
  return 0


if __name__ == '__main__':
  sys.exit(main())
