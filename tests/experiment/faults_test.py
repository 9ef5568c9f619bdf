"""Faults of disks, data and clocks: the run ends by one line, or goes on as if none."""

import dataclasses
import datetime
import errno
import fcntl
import json
import shutil
import signal

import numpy as np
import pytest

from tasks.sources import records, sqlite
from tests import tiny_task
from tests.experiment import faults, smallest_family
from tests.fedavg import still_run, tiny_run
from tests.tasks.sources import populations
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.common import files
from tff_pipelines.experiment import endings
from tff_pipelines.fedavg import loop, run
from tff_pipelines.fedavg.settings import TrainSettings


@pytest.mark.slow
def test_run_whose_disk_is_full_or_gone_ends_by_one_line_and_is_resumed(
    launcher, tmp_path):
  failed = faults.prove(launcher, tmp_path, kinds=('full', 'removed'), quick=True,
                        only=('ledger.jsonl', '.model.npz'))
  assert failed == {'full': ['ledger.jsonl', '.model.npz'], 'removed': ['.round_000004']}


def _arguments(folder):
  return ['--rounds=4', '--num_clients=6', '--seed=1', f'--output_dir={folder}']


def test_clock_that_jumps_changes_nothing(tmp_path, monkeypatch):
  whole, folder = tmp_path / 'whole', tmp_path / 'run'
  assert smallest_family.main(_arguments(whole)) == 0
  step, now = smallest_family.MeanRounds.step, [datetime.datetime(2030, 1, 1)]

  class Jumping(datetime.datetime):

    @classmethod
    def now(cls, tz=None):
      # A year forth, two years back.
      now[0] += datetime.timedelta(days=365 if len(now) % 2 else -730)
      now.append(now[0])
      return now[0].replace(tzinfo=tz)

  def killed(self, state, index):
    if index == 3:
      raise KeyboardInterrupt
    return step(self, state, index)

  monkeypatch.setattr(datetime, 'datetime', Jumping)
  with monkeypatch.context() as patch:
    patch.setattr(smallest_family.MeanRounds, 'step', killed)
    assert smallest_family.main(_arguments(folder)) == 130
  assert smallest_family.main([*_arguments(folder), '--resume']) == 0
  times = [line['time'] for line in ledger_lib.Ledger(folder / files.LEDGER).lines()]
  assert times != sorted(times) and len(now) > 4
  ours, theirs = (json.loads((each / files.SUMMARY).read_text())
                  for each in (folder, whole))
  of_starts = {'starts': None, 'configuration': None, 'about': None}
  assert {**ours, **of_starts} == {**theirs, **of_starts} and ours['starts'] == 2
  assert (folder / files.METRICS).read_bytes() == (whole / files.METRICS).read_bytes()


@pytest.mark.parametrize('change, message', [
    (lambda path: path.unlink(), 'data.npz does not exist'),
    (lambda path: shutil.copy(path.with_name('other.npz'), path),
     'examples_fingerprint differ')])
def test_data_that_vanished_or_were_replaced_since_the_start_are_refused(
    tmp_path, monkeypatch, change, message):
  path, rng = tmp_path / 'data.npz', np.random.default_rng(0)
  for name in ('data.npz', 'other.npz'):
    np.savez(tmp_path / name, x_train=rng.integers(0, 256, (40, 28, 28), np.uint8),
             y_train=np.arange(40) % 2, writer_train=np.arange(40) // 4,
             x_test=np.zeros([4, 28, 28], np.uint8), y_test=np.arange(4) % 2)

  def settings(**changes):
    return TrainSettings(
        task='emnist', data_source='npz', data_path=str(path), num_classes=2, seed=1,
        rounds=2, mechanism='none', cohort_size=4.0, output_dir=str(tmp_path / 'run'), **changes)

  class Ended(BaseException):
    pass

  def end(*_, **__):
    raise Ended

  monkeypatch.setattr(run.TrainExperiment, 'build_rounds', end)
  with pytest.raises(Ended):
    run.train(settings())
  change(path)
  before = {each: each.read_bytes() for each in (tmp_path / 'run').iterdir()
            if each.is_file()}
  with pytest.raises((ValueError, OSError), match=message) as caught:
    run.train(settings(resume=True))
  assert '\n' not in str(caught.value)
  assert {each: each.read_bytes() for each in before} == before


def test_data_that_vanish_during_a_run_end_it_by_one_line(tmp_path, monkeypatch):
  tiny = tiny_task.task()
  path = populations.prepared(tmp_path / 'clients.sqlite', populations.Clients({
      client: {name: values.astype(np.float64) for name, values in
               tiny.train.examples(client).items()} for client in tiny.train.client_ids}))

  class Reading(still_run.StillExperiment):

    def build_task(self):
      return dataclasses.replace(tiny, train=records.MappedSource(
          sqlite.SqliteSource(path, 'train'),
          lambda raw: {'x': raw['x'].astype(np.float32), 'y': raw['y'].astype(np.int32)},
          tiny.train.element_spec))

  def experiment(folder, **changes):
    return Reading(tiny_run.settings(
        tmp_path / folder, rounds=4, seed=1, mechanism='none', sampling='none',
        cohort_size=8.0, **changes))

  whole = experiment('whole')
  whole.run()
  step = loop.FedAvgRounds.step

  def vanishing(self, state, index):
    if index == 3:
      path.rename(tmp_path / 'elsewhere')
    return step(self, state, index)

  with monkeypatch.context() as patch:
    patch.setattr(loop.FedAvgRounds, 'step', vanishing)
    with pytest.raises(ValueError, match=f'{path} does not exist') as caught:
      experiment('run').run()
  assert '\n' not in str(caught.value)
  assert len((tmp_path / 'run' / files.METRICS).read_text().splitlines()) == 1 + 2
  with pytest.raises(ValueError, match=f'{path} does not exist'):
    experiment('run', resume=True).run()
  (tmp_path / 'elsewhere').rename(path)
  resumed = experiment('run', resume=True)
  resumed.run()
  for name, array in whole.weights.items():
    np.testing.assert_array_equal(resumed.weights[name], array, strict=True)


def test_file_system_without_locks_is_named(tmp_path, monkeypatch, capsys):
  def flock(*_):
    raise OSError(errno.ENOLCK, 'No locks available')

  monkeypatch.setattr(fcntl, 'flock', flock)
  assert smallest_family.main(_arguments(tmp_path / 'run')) == 2
  assert capsys.readouterr().err == (
      f'error: output_dir={tmp_path / "run"} can\'t be locked (No locks available): '
      'choose a file system that has locks\n')


def test_handler_that_was_not_installed_from_python_is_left_alone(tmp_path, monkeypatch):
  # As Python says of a handler of the program that it is embedded in.
  real, former = signal.getsignal, signal.getsignal(signal.SIGINT)
  monkeypatch.setattr(signal, 'getsignal', lambda signum: (
      None if signum == signal.SIGTERM else real(signum)))
  installed = []
  monkeypatch.setattr(signal, 'signal', lambda signum, handler: (
      installed.append(signum), former)[1])
  with endings.deferred(tmp_path):
    pass
  assert installed == [signal.SIGINT, signal.SIGINT]


def test_failed_append_leaves_the_file_as_it_was(tmp_path, monkeypatch):
  path = tmp_path / 'rows'
  files.append(path, b'one\n')

  def fsync(_):
    raise OSError(errno.EIO, 'Input/output error')

  with monkeypatch.context() as patch:
    patch.setattr(files.os, 'fsync', fsync)
    with pytest.raises(OSError, match=f"Input/output error: '{path}'"):
      files.append(path, b'two\n', durable=True)
    ledger = ledger_lib.Ledger(tmp_path / 'ledger')
    with pytest.raises(OSError, match='Input/output error'):
      ledger_lib.Ledger.create(ledger.path)
  assert path.read_bytes() == b'one\n'
  assert [each.name for each in tmp_path.iterdir()] == ['rows']


