"""A federation of NVFlare on this machine: provisions, starts, runs a job, ends.

  python -m pipelines_nvflare.poc --parties=parties.json --folder=poc

`parties.json` has `agreement`, a path, the `command` of `helper`, and `leader` and
`sites` by name, each with its own `command` and `approved` digests, as its
`local/tff_pipelines.json` will have them. In earnest each party's administrator writes
that into its own start-up kit.

--kills=N kills each of server, site, helper, leader's and site's process N times at
random moments, and aborts the job as often; a job that ended for it is submitted again,
until the run is over.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

from nvflare.fuel.flare_api import flare_api

_CLASSES = ('SiteExecutor', 'UploadsOnly', 'LeaderController')
_PATH = 'pipelines_nvflare.components.'
_SERVER, _HELPER = 'server', 'helper'
_ADMIN, _PROJECT = 'admin@nvidia.com', 'example_project/prod_00'


def _write(path: pathlib.Path, value) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps(value, indent=2) + '\n', encoding='utf-8')


def provision(folder: pathlib.Path, parties: dict) -> pathlib.Path:
  """Makes start-up kits, and writes each administrator's part; the folder of the kits."""
  subprocess.run(
      [pathlib.Path(sys.executable).with_name('nvflare'), 'poc', 'prepare', '--force', '-c',
       *parties['sites']], check=True, capture_output=True,
      env=dict(os.environ, NVFLARE_POC_WORKSPACE=str(folder)))
  kits = folder / _PROJECT
  for name, local in ((_SERVER, parties['leader']), *parties['sites'].items()):
    own = kits / name / 'local'
    resources = json.loads((own / 'resources.json.default').read_text(encoding='utf-8'))
    # Jobs may name these classes, and bring no code of their own.
    resources['class_allow_list'] += [_PATH + one for one in _CLASSES]
    _write(own / 'resources.json', resources)
    _write(own / 'tff_pipelines.json', local)
    if name != _SERVER:
      _write(own / 'privacy.json', {'scopes': [{'name': 'public', 'task_result_filters': [
          {'path': f'{_PATH}UploadsOnly', 'args': {}}]}], 'default_scope': 'public'})
  return kits


def job(folder: pathlib.Path, agreement: str, sites, deadline: int) -> pathlib.Path:
  """Writes the job: an agreement, and names of classes."""
  app = folder / 'job' / 'app' / 'config'
  _write(folder / 'job' / 'meta.json', {
      'name': 'tff_pipelines', 'resource_spec': {}, 'min_clients': 1,
      'deploy_map': {'app': ['@ALL']}})
  _write(app / 'config_fed_server.json', {'format_version': 2, 'workflows': [{
      'id': 'leader', 'path': f'{_PATH}LeaderController',
      'args': {'agreement': agreement, 'round_deadline': deadline}}]})
  _write(app / 'config_fed_client.json', {'format_version': 2, 'executors': [{
      'tasks': ['tff_pipelines_round'], 'executor': {
          'path': f'{_PATH}SiteExecutor', 'args': {'agreement': agreement}}}]})
  return folder / 'job'


class Processes:
  """NVFlare's server and sites, started by their own scripts, and the helper."""

  def __init__(self, kits: pathlib.Path, parties: dict):
    self._kits, self._parties, self.by_name = kits, parties, {}
    for name in (_HELPER, _SERVER, *parties['sites']):
      self.start(name)

  def start(self, name: str) -> None:
    helper, here = self._parties[_HELPER], pathlib.Path(__file__).parent.parent
    log = open(self._kits / f'{name}.log', 'ab')  # pylint: disable=consider-using-with
    command = helper['command'] if name == _HELPER else [
        'bash', self._kits / name / 'startup' / 'sub_start.sh', '--once']
    self.by_name[name] = subprocess.Popen(
        command, cwd=helper['folder'] if name == _HELPER else None, stdout=log,
        stderr=log, start_new_session=True, env={
            **os.environ, 'PYTHONPATH': str(here), 'PATH': os.pathsep.join([
                str(pathlib.Path(sys.executable).parent), os.environ['PATH']])})

  def kill(self, name: str) -> None:
    """Kills a process, with all that it started."""
    os.killpg(self.by_name[name].pid, signal.SIGKILL)
    self.by_name[name].wait()

  def kill_party(self, command: str) -> None:
    """Kills a party's process, of a command of `deploy`, that NVFlare has started."""
    found = subprocess.run(
        ['pgrep', '-f', f'tff_pipelines.deploy {command} .*engine=pipes'], check=False,
        capture_output=True, text=True).stdout.split()
    if found:
      os.kill(int(random.choice(found)), signal.SIGKILL)

  def end(self) -> None:
    for name, process in self.by_name.items():
      if process.poll() is None:
        self.kill(name)


def run(folder: pathlib.Path, parties: dict, deadline: int, kills: int = 0) -> dict:
  """Runs jobs until one is complete; its status, seconds, and what was killed."""
  kits = provision(folder, parties)
  agreement = pathlib.Path(parties['agreement']).read_text(encoding='utf-8')
  path = job(folder, agreement, list(parties['sites']), deadline)
  processes, start, killed, jobs = Processes(kits, parties), time.monotonic(), [], 0
  waiting = [_SERVER, _HELPER, 'leader', 'client', 'site', 'abort'] * kills
  random.shuffle(waiting)
  try:
    while True:
      session = _session(kits, len(parties['sites']))
      job_id, jobs = session.submit_job(str(path)), jobs + 1
      status, pause = '', random.uniform(15, 40)
      while not status.startswith('FINISHED'):
        time.sleep(0.5)
        pause -= 0.5
        if waiting and pause <= 0:
          name, pause = waiting.pop(), random.uniform(5, 20)
          killed.append(name)
          if name in ('leader', 'client'):
            processes.kill_party(name)
          elif name == 'abort':  # As from the console.
            session.abort_job(job_id)
          else:
            name = random.choice(list(parties['sites'])) if name == 'site' else name
            processes.kill(name)
            processes.start(name)
            if name == _SERVER:
              break
        try:
          status = str(session.get_job_meta(job_id)['status'])
        except Exception:  # The server is not there for a moment.
          break
      if status == 'FINISHED:COMPLETED':
        return {'status': status, 'seconds': time.monotonic() - start, 'jobs': jobs,
                'killed': killed}
      if not kills:
        return {'status': status, 'seconds': time.monotonic() - start}
  finally:
    processes.end()


def _session(kits: pathlib.Path, sites: int):
  """A session of the administrator, once all sites are there."""
  end = time.monotonic() + 120
  while True:
    try:
      session = flare_api.new_secure_session(_ADMIN, str(kits / _ADMIN))
      while len(session.get_system_info().client_info) < sites:
        time.sleep(0.5)
      return session
    except Exception:  # The server is not up yet.
      if time.monotonic() > end:
        raise
      time.sleep(1)


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--parties', type=pathlib.Path, required=True)
  parser.add_argument('--folder', type=pathlib.Path, required=True)
  parser.add_argument('--deadline', type=int, default=120, help='seconds of a round')
  parser.add_argument('--kills', type=int, default=0, help='of each process')
  given = parser.parse_args()
  parties = json.loads(given.parties.read_text(encoding='utf-8'))
  print(json.dumps(run(given.folder.absolute(), parties, given.deadline, given.kills)),
        flush=True)
  os._exit(0)  # Threads of NVFlare's session do not end.


if __name__ == '__main__':
  main()
