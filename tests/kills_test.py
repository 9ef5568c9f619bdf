"""Runs that are killed end as if they never were: the quick run of `benchmarks.kills`."""

import psutil
import pytest

from benchmarks import kills
from tests.programs import launcher as launcher_lib

pytestmark = pytest.mark.slow


# `python -m benchmarks.kills --quick` has all families.
@pytest.mark.parametrize('family', ['train', 'vote', 'ldp'])
def test_killed_run_ends_as_if_never_killed(family, launcher, tmp_path):
  assert kills.prove(family, launcher, tmp_path) == 1


def test_workers_listen_nowhere_and_end_with_a_killed_driver(tmp_path):
  family, mark = kills.FAMILIES['train'], f'killed {tmp_path}'
  process = launcher_lib.python(
      family.module, *family.flags, '--rounds=1000', f'--output_dir={tmp_path / "run"}',
      '--local_workers=2', mark=mark)
  kills.wait_until(
      lambda: kills.committed(1)(tmp_path / 'run') or process.poll() is not None)
  workers = launcher_lib.workers_of(mark)
  assert len(workers) == 2
  for known in (psutil.Process(process.pid), *workers):
    assert not [connection for connection in known.connections('inet')
                if connection.status == psutil.CONN_LISTEN]
  process.kill()
  # Reading to the end also shows that no process keeps the trainer's pipes open.
  process.communicate(timeout=kills.WORKERS_END_SECONDS)
  kills.assert_no_workers(mark)
