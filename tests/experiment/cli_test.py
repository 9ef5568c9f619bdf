"""From flags to settings and exit codes: one line for every mistake of the user."""

import dataclasses
import importlib
import json
import re
import signal
import subprocess
import sys

import pytest

from tests import shells
from tests.programs import launcher
from tff_pipelines.common.declarations import setting
from tff_pipelines.experiment import cli, endings, settings as settings_lib
from tff_pipelines.fedavg.settings import TrainSettings

DOC = """Does nothing, in a sentence that is longer than a terminal is wide, as here.

  python -m program --rounds=2

More that only a patient reader wants to know about it.

Exit codes: 0.
"""
# Modules of programs that are started by settings.
PROGRAMS = sorted('.'.join(path.relative_to(launcher.ROOT).with_suffix('').parts)
    for path in (launcher.ROOT / 'tff_pipelines').rglob('*.py')
    if 'main = cli.program(' in path.read_text(encoding='utf-8'))

_seen: list[settings_lib.Settings] = []


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramSettings(settings_lib.RunSettings):
  """A few flags."""

  rounds: int = setting(1, 'Rounds in all.', group='work', low=1, essential=True)
  shout: bool = setting(False, 'Whether to shout.', group='work')
  names: tuple[str, ...] = setting((), 'Names.', group='work', repeated=True)


def succeed(settings):
  _seen.append(settings)


def count(settings):
  return settings.rounds


def summarize(settings):
  del settings
  return {'accuracy': 0.5}


def stop(settings):
  raise KeyboardInterrupt


def interrupted(settings):
  raise endings.Interrupted(signal.SIGINT, settings.output_dir)


def refuse(settings):
  raise ValueError(f'clip is\n  wrong in round {settings.rounds}')


def open_nothing(settings):
  del settings
  open('/proc/none', encoding='utf-8').close()


def fail(settings):
  del settings
  return {}['missing']


def _start(name, *arguments):
  return cli.start(DOC, ProgramSettings, f'{__name__}:{name}', arguments)


@pytest.fixture(autouse=True)
def _nothing_seen():
  _seen.clear()


def _one_line(capsys, code):
  """The line of an error."""
  out, err = capsys.readouterr()
  assert code == 2 and out == ''
  assert err.startswith('error: ') and err.endswith('\n') and err.count('\n') == 1, err
  return err[len('error: '):-1]


@pytest.mark.parametrize('name, arguments, code', [
    ('succeed', [], 0), ('count', ['--rounds=1'], 1), ('count', ['--rounds=3'], 3),
    ('summarize', [], 0), ('stop', [], 130)])
def test_exit_code_is_that_of_the_run(capsys, name, arguments, code):
  assert _start(name, *arguments) == code
  assert capsys.readouterr() == ('', '')


@pytest.mark.parametrize('folder', shells.HOSTILE)
def test_the_command_that_resumes_names_the_folder_whatever_it_is_called(capsys, folder):
  arguments = [f'--output_dir={folder}', f'--names={folder}', '--rounds=2']
  assert _start('interrupted', *arguments) == 130
  head, command = capsys.readouterr().err.split('\n', maxsplit=1)
  assert head == 'resume with:' and shells.arguments(command) == [
      'python', '-m', 'program', *arguments, '--resume']


@pytest.mark.parametrize('name, message', [('refuse', 'clip is wrong in round 4'),
    ('open_nothing', "[Errno 2] No such file or directory: '/proc/none'")])
def test_mistake_of_the_user_is_one_line(capsys, name, message):
  assert _one_line(capsys, _start(name, '--rounds=4')) == message


def test_fault_of_the_program_keeps_its_traceback():
  with pytest.raises(KeyError, match='missing'):
    _start('fail')


@pytest.mark.parametrize('arguments, named', [
    (['--unknown'], 'unknown flag --unknown; --helpfull lists all'),
    (['--round=3'], 'unknown flag --round: did you mean --rounds?'),
    (['--rounds=many'], '--rounds=many'), (['--rounds'], 'rounds'),
    (['rounds=3'], "arguments must be --flag=value, found 'rounds=3'"),
    (['--rounds=2', 'and', 'more'], "arguments must be --flag=value, found 'and'"),
    (['--flagfile=none.flags'], 'none.flags'), (['--norounds'], 'norounds'),
    (['--rounds=0'], 'rounds must be at least 1, found 0'),
    (['--shout=perhaps'], 'shout'),
    (['--resume'], 'resume needs output_dir, the folder of the run to continue'),
    (['--output_dir='], 'output_dir must be a non-empty text'),
    (['--output_dir=/proc/run'], '/proc/run'), (['--verbosity=loud'], 'verbosity')])
def test_wrong_argument_is_named_in_one_line(capsys, arguments, named):
  assert named in _one_line(capsys, _start('succeed', *arguments))
  assert not _seen


@pytest.mark.parametrize('flag, message', [
    ('lr', '--client_learning_rate or --server_learning_rate?'),
    ('optimizer', 'did you mean --server_optimizer?'),
    ('gpu', 'cores'), ('epsilom', 'did you mean --epsilon'),
    ('size', 'or --batch_size?')])
def test_flags_of_other_names_are_suggested(flag, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    cli.parsed(TrainSettings, [f'--{flag}=1'])


def test_arguments_become_settings():
  assert _start('succeed', '--rounds=3', '--shout', '--names=a', '--names=b') == 0
  settings, = _seen
  assert settings == ProgramSettings(rounds=3, shout=True, names=('a', 'b'))
  assert settings.given == {'rounds', 'shout', 'names'}


def test_arguments_that_are_no_flags_go_to_the_field_that_takes_them():
  @dataclasses.dataclass(frozen=True, kw_only=True)
  class ReadSettings(ProgramSettings):
    files: tuple[str, ...] = setting((), 'Files.', group='work', positional=True)

  settings = cli.parsed(ReadSettings, ['a', '--rounds=3', 'b', '--', '--c'])
  assert (settings.files, settings.rounds) == (('a', 'b', '--c'), 3)
  with pytest.raises(ValueError, match='^files must name at least one value'):
    cli.parsed(ReadSettings, ['--rounds=3'])
  with pytest.raises(ValueError, match="unknown flag --files; --helpfull lists all"):
    cli.parsed(ReadSettings, ['--files=a'])


def test_flagfiles_are_read(capsys, tmp_path):
  inner, outer = tmp_path / 'inner.flags', tmp_path / 'outer.flags'
  inner.write_text('# More.\n--rounds=3\n--rounds=4\n')
  outer.write_text(f'--shout\n\n--flagfile={inner}\n--names=a\n')
  assert _start('succeed', f'--flagfile={outer}', '--names=b') == 0
  assert _seen == [ProgramSettings(rounds=4, shout=True, names=('a', 'b'))]
  inner.write_text('--rounds=none\n')
  assert '--rounds=none' in _one_line(capsys, _start('succeed', f'--flagfile={inner}'))


def test_flags_of_one_start_are_gone_in_the_next():
  assert _start('succeed', '--rounds=3') == _start('succeed') == 0
  assert _seen[1] == ProgramSettings() and not _seen[1].given


@pytest.mark.parametrize('argument', ['--help', '-h', '-help', '--helpshort'])
def test_help_is_the_first_screen(capsys, argument):
  assert _start('fail', '--rounds=0', argument) == 0
  out, err = capsys.readouterr()
  assert err == '' and max(map(len, out.splitlines())) <= 80
  assert out.startswith('Does nothing, in a sentence that is longer')
  assert '--rounds=2' in out and '--rounds=1                 Rounds in all.' in out
  assert 'patient' not in out and 'Exit codes' not in out and '--shout' not in out
  assert out.endswith('All flags: --helpfull. Flags from a file: --flagfile=FILE.\n')


@pytest.mark.parametrize('argument', ['--helpfull', '-helpfull'])
def test_full_help_has_everything(capsys, argument):
  assert _start('fail', argument) == 0
  out = capsys.readouterr().out
  assert 'patient' in out and 'Exit codes: 0.' in out and max(
      map(len, out.splitlines())) <= 80
  for name in settings_lib.declared(ProgramSettings):
    assert f'  --{name}' in out


def _settings_of(module):
  result, = {value for value in vars(module).values() if isinstance(value, type)
            and issubclass(value, settings_lib.Settings)}
  return result


@pytest.mark.parametrize('name', PROGRAMS)
def test_first_screen_of_every_program_fits_and_has_the_flags_of_its_examples(
    capsys, name):
  module = importlib.import_module(name)
  assert module.main(['--help']) == 0
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) <= 45 and max(map(len, lines)) <= 80
  names = set(settings_lib.declared(_settings_of(module)))
  shown = re.findall(r'^  --(\w+)', '\n'.join(lines), re.M)
  flags = {flag if flag in names else flag.removeprefix('no') for flag in shown}
  assert flags and flags <= names
  examples = [part for part in module.__doc__.split('\n\n') if part.startswith('  ')]
  # Texts in quotes are for other programs.
  examples = re.sub(r'"[^"]*"', '', '\n'.join(examples))
  used = set(re.findall(r'\s--(\w+)', examples)) - {'flagfile'}
  assert used and used <= flags or '--' not in examples


@pytest.mark.parametrize('name', PROGRAMS)
def test_full_help_of_every_program_lists_all_flags_with_a_sentence(capsys, name):
  module = importlib.import_module(name)
  assert module.main(['--helpfull']) == 0
  out = capsys.readouterr().out
  for flag, field in settings_lib.declared(_settings_of(module)).items():
    shown = flag.upper() if field.positional else f'--(no)?{flag}'
    assert re.search(rf'^  {shown}\b', out, re.M), flag
    assert field.help.endswith('.'), flag


WITHOUT_TENSORFLOW = '''
import json, sys
from tff_pipelines import train
codes = [train.main(arguments) for arguments in json.loads(sys.argv[1])]
print(json.dumps([codes, 'tensorflow' in sys.modules]))
'''


def test_wrong_flags_and_help_need_no_tensorflow(tmp_path):
  folder = tmp_path / 'run'
  folder.mkdir()
  (folder / 'notes.txt').write_text('mine')
  attempts = [
      ['--clip=nan'], ['--rounds=0'], ['--task=cats'], ['--unknown'], ['--resume'],
      ['--mechanism=none', '--epsilon=1'], ['--epsilon=1', '--noise_multiplier=1'],
      ['--model=resnet'], [f'--output_dir={folder}'], ['--flagfile=none']]
  helps = [['--help'], ['--helpfull']]
  done = subprocess.run(
      [sys.executable, '-c', WITHOUT_TENSORFLOW, json.dumps(helps + attempts)],
      cwd=launcher.ROOT, env=launcher.environment(''), capture_output=True, text=True,
      timeout=400, check=True)
  assert json.loads(done.stdout.splitlines()[-1]) == [
      [0] * len(helps) + [2] * len(attempts), False]
  assert len(done.stderr.splitlines()) == len(attempts)
  assert all(line.startswith('error: ') for line in done.stderr.splitlines())
