"""Folders of runs that were changed: refused, or charged as if more had been released."""

import dataclasses
import re
import shutil
import signal

import pytest

from tests import interrupts
from tests.experiment import fuzz_folder
from tests.fedavg import still_run
from tests.programs import in_process
from tff_pipelines.accounting.guarantees import ledger as ledger_lib
from tff_pipelines.common import files
from tff_pipelines.experiment import (
    charged_records, configurations, records as records_lib)

pytestmark = pytest.mark.usefixtures('shared_context')

ARGUMENTS = ('--rounds=8', '--cohort_size=8', '--epsilon=8', '--delta=0.01',
             '--client_batch_size=3')


def _run(folder, *more):
  return still_run.main([*ARGUMENTS, f'--output_dir={folder}', *more])


@pytest.fixture(scope='module', name='stopped')
def _stopped(tmp_path_factory):
  """The folders of two runs that were ended by SIGTERM after four of eight rounds."""
  folders = [tmp_path_factory.mktemp('stopped') / name for name in ('run', 'other')]
  for folder in folders:
    with interrupts.after_commit(4, lambda: signal.raise_signal(signal.SIGTERM)):
      assert _run(folder) == 128 + signal.SIGTERM
    # A start that was killed before it committed a round: the server saw round 5.
    with interrupts.interrupted(still_run.Still, 'next'):
      still_run.experiment(
          folder, rounds=8, cohort_size=8.0, epsilon=8.0, delta=0.01, clip=None,
          noise_multiplier=None, resume=True).run()
  return folders


@pytest.fixture(scope='module', name='undisturbed')
def _undisturbed(stopped, tmp_path_factory):
  """The summary of the run that is resumed as it was left."""
  folder = shutil.copytree(stopped[0], tmp_path_factory.mktemp('whole') / 'run')
  assert _run(folder, '--resume') == 0
  return in_process.summary(folder)


@pytest.fixture(name='folder')
def _folder(stopped, tmp_path):
  return shutil.copytree(stopped[0], tmp_path / 'run')


def _refused(folder, capsys, *names):
  """The message of the refused run, which leaves ledger and metrics as they are."""
  capsys.readouterr()
  before = [path.read_bytes() if path.exists() else None
            for path in (folder / files.LEDGER, folder / files.METRICS)]
  assert _run(folder, '--resume') == 2
  lines = capsys.readouterr().err.splitlines()
  assert len(lines) == 1 and lines[0].startswith('error: '), lines
  for name in names:
    assert name in lines[0]
  assert before == [path.read_bytes() if path.exists() else None
                    for path in (folder / files.LEDGER, folder / files.METRICS)]
  return lines[0]


def test_undisturbed_run_has_both_of_its_restarts(undisturbed):
  assert undisturbed['starts'] == 3 and undisturbed['rounds'] == 8
  assert undisturbed['epsilon'] <= 8 < undisturbed['epsilon_server']


@pytest.mark.parametrize('bit', [0, 4])
def test_flipped_bit_of_the_noise_multiplier_is_refused(folder, capsys, bit):
  path = folder / files.CONFIGURATION
  content = bytearray(path.read_bytes())
  content[re.search(rb'"noise_multiplier": \d', content).end() - 1] ^= 1 << bit
  path.write_bytes(content)
  _refused(folder, capsys, str(path))


def _resealed(folder, **plan):
  """Rewrites a configuration with another plan, and with a hash that fits."""
  recorded = configurations.read(folder)
  recorded['plan'] = {**recorded['plan'], **plan}
  recorded['hash'] = configurations.hash_of(recorded)
  configurations.write(folder, recorded)
  return recorded['hash']


def test_edited_configuration_with_a_right_hash_is_not_that_of_the_ledger(folder, capsys):
  _resealed(folder, noise_multiplier=0.01)
  message = _refused(folder, capsys, files.CONFIGURATION, files.LEDGER)
  assert 'is not the configuration whose hash' in message


def test_recorded_noise_that_exceeds_the_target_is_refused(tmp_path, capsys):
  folder = tmp_path / 'run'
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(records_lib.RunRecords, 'restore', interrupts.interrupt)
    assert _run(folder) == 130
  changed = _resealed(folder, noise_multiplier=0.01)
  header = ledger_lib.Ledger(folder / files.LEDGER).header()
  del header['hash']
  (folder / files.LEDGER).write_text(ledger_lib._sealed(  # pylint: disable=protected-access
      {**header, 'configuration': changed}) + '\n')
  message = _refused(folder, capsys, str(folder))
  assert 'whose recorded noise gives epsilon=' in message and 'target 8' in message


@pytest.mark.parametrize('content, message', [
    (b'[]', 'must hold an object'), (b'{}', 'has version None, and known is 1'),
    (b'{"version": 7}', 'has version 7, and known is 1'),
    (b'{"version": 1}', 'does not match its own hash'), (b'\xff\x00', 'is damaged'),
    (b'[' * 100_000, 'is damaged'),
    (b'{"version": 1, "plan": NaN}', 'does not match its own hash')])
def test_configuration_of_any_other_content_is_one_line(folder, capsys, content, message):
  path = folder / files.CONFIGURATION
  path.write_bytes(content)
  assert message in _refused(folder, capsys, str(path))


@pytest.mark.parametrize('lost', [files.STARTS, f'{files.PRIVATE}/{files.STARTS}'])
@pytest.mark.parametrize('damage, warns', [
    pytest.param(lambda path: path.unlink(), True, id='removed'),
    pytest.param(lambda path: path.write_bytes(b'\xff\x00'), True, id='binary'),
    pytest.param(lambda path: path.write_bytes(path.read_bytes()[:30]), True, id='cut'),
    pytest.param(lambda path: path.write_bytes(
        path.read_bytes().split(b'\n')[0] + b'\n'), False, id='rolled back')])
def test_record_of_starts_may_be_lost_once(
    folder, capsys, undisturbed, lost, damage, warns):
  damage(folder / lost)
  assert _run(folder, '--resume') == 0
  summary, shown = in_process.summary(folder), capsys.readouterr().err
  for name in ('starts', 'epsilon', 'epsilon_server'):
    assert summary[name] == undisturbed[name]
  warnings = [line for line in shown.splitlines() if line.startswith('warning: ')]
  assert len(warnings) == warns and all(
      f'{folder / lost} is ' in line and 'the other copy' in line for line in warnings)
  first, second = ((folder / name).read_text() for name in (
      files.STARTS, f'{files.PRIVATE}/{files.STARTS}'))
  assert first == second and first.count('\n') == 3


def test_without_any_record_of_starts_it_is_refused(folder, capsys):
  (folder / files.STARTS).write_text('yesterday\n')
  (folder / files.PRIVATE / files.STARTS).unlink()
  message = _refused(folder, capsys, files.STARTS)
  assert 'its starts are not known' in message


def test_starts_are_at_least_those_of_the_ledger(stopped, tmp_path, undisturbed):
  # Records of another run, of one start: the ledger's lines count more.
  folder = shutil.copytree(stopped[0], tmp_path / 'run')
  assert _run(folder, '--resume') == 0
  one_start = (folder / files.STARTS).read_text().splitlines(keepends=True)[0]
  for name in (files.STARTS, f'{files.PRIVATE}/{files.STARTS}'):
    (folder / name).write_text(one_start)
  assert _run(folder, '--resume') == 0
  assert in_process.summary(folder)['starts'] == 4
  assert in_process.summary(folder)['epsilon_server'] == undisturbed['epsilon_server']


def _cut_ledger(folder, lines):
  path = folder / files.LEDGER
  path.write_text(''.join(path.read_text().splitlines(keepends=True)[:lines]))


@pytest.mark.parametrize('lost', [
    ('ledger.jsonl',), ('ledger.jsonl', 'private/checkpoints'),
    ('ledger.jsonl', 'private/checkpoints', 'metrics.csv', 'tensorboard'),
    ('private/checkpoints',), ('configuration.json',), ('private/fingerprint.key',),
    ('configuration.json', 'ledger.jsonl', 'private/checkpoints')])
def test_run_whose_files_are_gone_does_not_begin_again(folder, capsys, lost):
  for name in lost:
    path = folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
  _refused(folder, capsys, str(folder))


@pytest.mark.parametrize('left', ['metrics.csv', 'tensorboard'])
@pytest.mark.parametrize('checkpoints', ['none', 'the first'])
def test_ledger_without_its_rounds_is_refused_by_what_they_left(
    folder, capsys, left, checkpoints):
  _cut_ledger(folder, 1)
  shutil.rmtree(folder / 'private/checkpoints')
  if checkpoints == 'the first':
    new = folder.parent / 'new'
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(still_run.Still, 'next', interrupts.interrupt)
      assert _run(new) == 130
    recorded = configurations.read(folder)
    (folder / 'private/checkpoints').mkdir()
    one = records_lib.checkpoints.read(new / 'private/checkpoints/round_000000')
    records_lib.checkpoints.write(
        folder / 'private/checkpoints', dataclasses.replace(one, run=recorded['run']))
  if left == 'metrics.csv':
    shutil.rmtree(folder / 'tensorboard')
  else:
    (folder / 'metrics.csv').unlink()
  _refused(folder, capsys, str(folder / left))


def test_ledger_that_was_cut_comes_back_from_the_checkpoint_or_is_refused(
    folder, capsys, undisturbed):
  whole = (folder / files.LEDGER).read_bytes()
  _cut_ledger(folder, 4)
  copy = shutil.copytree(folder, folder.parent / 'copy')
  assert _run(folder, '--resume') == 0
  assert (folder / files.LEDGER).read_bytes().startswith(whole)
  assert in_process.summary(folder)['epsilon_server'] == undisturbed['epsilon_server']
  (copy / 'private/checkpoints/round_000004').unlink()
  _refused(copy, capsys, files.LEDGER, 'has a round without a line in ledger.jsonl, 4')


@pytest.mark.parametrize('damage', [
    pytest.param(lambda text: text.replace('\n3,', '\n3,9'), id='a number'),
    pytest.param(lambda text: text.replace('round', 'sound'), id='the index'),
    pytest.param(lambda text: text.replace('\n2,', '\n2,,,,,,,,'), id='more columns'),
    pytest.param(lambda text: text.replace('\n2,', '\nx,'), id='no index'),
    pytest.param(lambda text: '"' + text, id='a quote')])
def test_changed_metrics_are_refused(folder, capsys, damage):
  path = folder / files.METRICS
  text = path.read_text()
  path.write_text(damage(text))
  assert path.read_text() != text
  _refused(folder, capsys, str(path))


def test_metrics_that_no_checkpoint_has_must_be_there(folder, capsys):
  path = folder / files.METRICS
  path.write_text(path.read_text().split('\n')[0] + '\n')
  _refused(folder, capsys, str(path))


@pytest.mark.parametrize('name', [
    'configuration.json', 'ledger.jsonl', 'metrics.csv', 'private/fingerprint.key',
    'private/checkpoints/round_000004', 'starts.log', 'private/starts.log'])
def test_file_of_another_run_is_refused_or_changes_nothing(
    stopped, folder, capsys, undisturbed, name):
  shutil.copy(stopped[1] / name, folder / name)
  capsys.readouterr()
  code = _run(folder, '--resume')
  if code == 2:
    line, = capsys.readouterr().err.splitlines()
    assert line.startswith('error: ') and str(folder) in line
    return
  summary = in_process.summary(folder)
  assert code == 0 and summary['epsilon'] >= undisturbed['epsilon']
  assert summary['epsilon_server'] >= undisturbed['epsilon_server']


# Charged steps: `ldp` draws answers after it has charged them.


@pytest.fixture(scope='module', name='charged')
def _charged(tmp_path_factory):
  """Folder of an ldp run that was killed after two steps, the third charged and lost."""
  folder = tmp_path_factory.mktemp('charged') / 'run'
  keep, kept = charged_records.ChargedRecords.keep, []

  def keeps_two(self, line, arrays):
    if len(kept) == 2:
      raise KeyboardInterrupt
    kept.append(line)
    keep(self, line, arrays)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(charged_records.ChargedRecords, 'keep', keeps_two)
    with pytest.raises(KeyboardInterrupt):
      fuzz_folder.Ldp().experiment(folder, resume=False).run()
  assert len(ledger_lib.Ledger(folder / files.LEDGER).lines()) == 3
  return folder


def _drop_line(folder, cut):
  path = folder / files.LEDGER
  lines = path.read_bytes().splitlines(keepends=True)
  path.write_bytes(b''.join(lines[:-1]) + lines[-1][:cut])


@pytest.mark.parametrize('damage, message', [
    pytest.param(lambda folder: _drop_line(folder, 0), 'belongs to no line of',
                 id='last line'),
    pytest.param(lambda folder: _drop_line(folder, 40), 'belongs to no line of',
                 id='end of the last line'),
    pytest.param(lambda folder: (folder / files.METRICS).write_text(
        (folder / files.METRICS).read_text().replace('\n1,4', '\n1,5')),
                 'metrics.csv is damaged', id='metrics'),
    pytest.param(lambda folder: (folder / files.METRICS).write_text(
        (folder / files.METRICS).read_text().replace('\n2,', '\n9,')),
                 'has a step without a line', id='metrics of no step')])
def test_charged_step_is_never_drawn_again_without_its_charge(
    charged, tmp_path, damage, message):
  folder = shutil.copytree(charged, tmp_path / 'run')
  damage(folder)
  with pytest.raises(ValueError, match=message):
    fuzz_folder.Ldp().experiment(folder, resume=True).run()


def test_undisturbed_charged_run_counts_the_lost_step(charged, tmp_path):
  folder = shutil.copytree(charged, tmp_path / 'run')
  summary = fuzz_folder.Ldp().experiment(folder, resume=True).run()
  assert summary['rounds'] == 8 and summary['details']['queries_lost'] == 4


@pytest.mark.slow
@pytest.mark.parametrize('family', fuzz_folder.FAMILIES)
def test_damaged_folders_never_state_too_small_an_epsilon(family, capsys):
  assert fuzz_folder.main(['--cases=5', f'--family={family}', '--seed=1']) == 0
  assert '5 cases, 0 findings' in capsys.readouterr().out
