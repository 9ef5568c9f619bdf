"""Federations through NVFlare's processes, next to the same over gRPC.

  python -m benchmarks.nvflare --nvflare=NVFLARE/bin/python --folder=out/nvflare
  python -m benchmarks.nvflare --case=hearts --data_dir=DATA --nvflare=... --folder=...

NVFlare is in an environment of its own (requirements-nvflare.txt); its server and sites
start this project's processes, and carry their messages. Embedded digits in five sites,
or heart disease in four hospitals: seeded, so that models must be those of the
simulation to the last bit; hospitals then privately. Printed: accuracies, seconds, and
bytes through the loopback.
"""

import argparse
import collections
from collections.abc import Sequence
import dataclasses
import json
import os
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
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
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
          'helper': {'folder': str(ROOT), 'command': [
              sys.executable, '-m', 'tff_pipelines.deploy',
              *federation.command(parties.HELPER)]},
          'leader': local(parties.LEADER),
          'sites': {name: local(name) for name in federation.sites}}


def through_nvflare(federation: federation_lib.Federation, python: str,
                    *more: str) -> dict:
  """Runs a federation's job in NVFlare; its status, seconds and bytes."""
  path = federation.folder / 'parties.json'
  files.write_json(path, parties_of(federation))
  before = _loopback()
  run = subprocess.run(
      [python, '-m', 'pipelines_nvflare.poc', f'--parties={path}',
       f'--folder={federation.folder / "nvflare"}', *more], cwd=ADAPTER, check=False,
      capture_output=True, text=True, timeout=7200)
  if run.returncode:
    raise SystemExit(run.stderr[-3000:])
  return {**json.loads(run.stdout.splitlines()[-1]), 'bytes': _loopback() - before}


def killed(case: federation_lib.Case, data_dir: pathlib.Path | None,
           folder: pathlib.Path, python: str, kills: int) -> dict:
  """Runs a case whose processes are killed; what the parties' ledgers say then."""
  shutil.rmtree(folder, ignore_errors=True)
  arrays = federation_lib.arrays_of(case, data_dir, folder.parent)
  federation = federation_lib.Federation(
      case, arrays, folder, federation_lib.Network([]))
  found = through_nvflare(federation, python, f'--kills={kills}', '--deadline=20')
  ledger = ledger_lib.Ledger(folder / 'run' / files.LEDGER)
  outcomes = collections.Counter(line['outcome'] for line in ledger.lines())
  charges = {name: len(parties.Party(folder / name).ledger.entries())
             for name in federation.sites}
  summary = files.read_json(folder / 'run' / files.SUMMARY)
  return {**found, 'rounds': dict(outcomes), 'ledger': ledger.verify() or 'holds',
          'charges of sites': charges, 'starts': summary['starts'],
          'accuracy': summary['value'], 'epsilon_server': summary['epsilon_server']}


def refused(case: federation_lib.Case, data_dir: pathlib.Path | None,
            folder: pathlib.Path, python: str) -> dict:
  """Submits jobs that the sites' policies forbid; what sites say, and what they sent."""
  found, arrays = {}, federation_lib.arrays_of(case, data_dir, folder)
  for name, change in (('epsilon', {'epsilon': 0.01}), ('work', {'programs': ['0' * 64]}),
                       ('cohort', {'least_cohort': 9})):
    shutil.rmtree(folder / name, ignore_errors=True)
    federation = federation_lib.Federation(
        case, arrays, folder / name, federation_lib.Network([]))
    for site in federation.sites:
      path = folder / name / site / parties.POLICY
      files.write_json(path, {**files.read_json(path), **change})
    status = through_nvflare(federation, python, '--deadline=10')['status']
    log = next((folder / name / 'nvflare').rglob(f'{federation.sites[0]}.log')).read_text(
        encoding='utf-8')
    found[name] = {
        'status': status, 'the first site says': next(
            line.partition('nothing is sent: ')[2] for line in log.splitlines()
            if 'nothing is sent: ' in line),
        'rounds answered': [len(path.read_bytes()) // 4 for site in federation.sites
                            for path in (folder / name / site).rglob('answered')],
        'charges': [len(parties.Party(folder / name / site).ledger.entries())
                    for site in federation.sites]}
  return found


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
  parser.add_argument('--case', choices=('digits', 'hearts'), default='digits')
  parser.add_argument('--kills', type=int, default=0,
                      help='kills of each process, in a private run of hospitals')
  parser.add_argument('--refused', action='store_true',
                      help='jobs that the policies of sites forbid')
  given = parser.parse_args(arguments)
  # NVFlare's processes start in folders of their own.
  given.nvflare = os.path.abspath(given.nvflare)
  if given.refused:
    print(json.dumps(refused(
        federation_lib.CASES['quick'], None, given.folder.absolute() / 'refused', given.nvflare), indent=2))
    return 0
  if given.kills:
    print(json.dumps(killed(
        federation_lib.CASES['hearts'], given.data_dir, given.folder.absolute() / 'killed',
        given.nvflare, given.kills), indent=2))
    return 0
  is_hearts = given.case == 'hearts'
  case = federation_lib.CASES['hearts'] if is_hearts else dataclasses.replace(
      federation_lib.CASES['quick'], silos=5)
  for name, more in (('seeded', {'seed': 3}), ('private', {}))[:1 + is_hearts]:
    found = run(case, given.data_dir, given.folder.absolute() / name, given.nvflare, **more)
    print(json.dumps({name: found}, indent=2), flush=True)
  return 0


if __name__ == '__main__':
  sys.exit(main())
