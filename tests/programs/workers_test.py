"""Programs whose rounds are computed by local workers, and what happens to them."""

import os
import subprocess
import sys
import threading
import time

import psutil
import pytest

from tests import worker_faults
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.common import files

TRAIN = 'tff_pipelines.train'
SMALL = ('--rounds=2', '--cohort_size=20', '--seed=4', '--rounds_per_evaluation=2')

pytestmark = pytest.mark.slow


def _workers():
  found = []
  for child in psutil.Process().children():
    try:
      if any('local_processes.serve' in text for text in child.cmdline()):
        found.append(child)
    except psutil.Error:
      continue  # It has ended, or has not begun.
  return found


def test_a_run_whose_workers_all_die_ends_in_one_line_and_is_resumed(programs, tmp_path):
  kept, ended = set(_workers()), threading.Event()

  def kill_all():
    while not ended.wait(0.05):
      for worker in set(_workers()) - kept:
        worker.kill()

  killer = threading.Thread(target=kill_all)
  killer.start()
  try:
    run = programs.run(
        TRAIN, *SMALL, '--local_workers=2', f'--output_dir={tmp_path / "run"}')
  finally:
    ended.set()
    killer.join()
  assert run.code == 2
  line = run.stderr.strip().splitlines()[-1]
  assert line.startswith('error: the round was abandoned') and '4 times' in line
  assert not (tmp_path / 'run' / 'summary.json').exists()
  assert not set(_workers()) - kept
  programs.done(TRAIN, *SMALL, '--resume', f'--output_dir={tmp_path / "run"}')


def test_killed_and_stopped_workers_change_nothing():
  assert '2 faults' in worker_faults.check(2)


def _raylet(process):
  """The raylet below a process; None before it runs."""
  try:
    for child in psutil.Process(process.pid).children(recursive=True):
      if os.path.basename(child.cmdline()[0]) == 'raylet':
        return child
  except (psutil.Error, IndexError):
    pass
  return None


# A killed run that is resumed ends the same: tests/kills_test.py.
def test_run_whose_raylet_is_gone_ends_in_one_line(tmp_path):
  pytest.importorskip('ray')
  folder, flags = tmp_path / 'run', ['--rounds=1000', *SMALL[1:]]
  process = subprocess.Popen(
      [sys.executable, '-W', 'ignore', '-m', TRAIN, *flags, '--engine=ray',
       '--local_workers=1', f'--output_dir={folder}'], stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
  try:
    path = folder / files.LEDGER
    while process.poll() is None and not (
        path.exists() and path.read_bytes().count(b'\n') > 2):
      time.sleep(0.05)
    _raylet(process).kill()
    _, shown = process.communicate(timeout=120)
  finally:
    process.kill()
  assert process.returncode == 2
  # Whichever is first: Ray ends its driver, or the driver finds the worker gone.
  assert shown.splitlines()[-1].startswith(
      ('error: Ray ended this program', 'error: the round was abandoned'))
  assert not (folder / files.SUMMARY).exists()
  assert 2 <= len(ledger_lib.Ledger(path).lines()) < 1000
