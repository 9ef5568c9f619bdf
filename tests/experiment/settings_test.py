"""Fields become arguments, flags, help and configuration, each declared once."""

import dataclasses
import math
import re

from absl import flags
import pytest

from tff_pipelines.common import declarations
from tff_pipelines.common.declarations import setting
from tff_pipelines.experiment import settings as settings_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plain(settings_lib.RunSettings):
  """A field of every kind."""

  kind: str = setting(
      'fast', 'Kind of run.', group='data', choices=('fast', 'slow'), essential=True)
  name: str | None = setting(None, 'Any text.', group='data', otherwise='the kind')
  rounds: int = setting(5, 'Number of rounds.', group='work', low=1, high=9)
  rate: float = setting(0.25, 'A rate.', group='work', above=0, below=1)
  momentum: float = setting(0.5, 'A momentum.', group='work', low=0, below=1)
  share: float = setting(1.0, 'A share.', group='work', above=0, high=1)
  noise: float | None = setting(
      None, 'A noise.', group='work', above=0, unit='votes', otherwise='calibrated')
  sizes: tuple[int, ...] = setting((1, 2), 'Sizes.', group='work', low=1)
  weights: tuple[float, ...] | None = setting(None, 'Weights.', group='work')
  words: tuple[str, ...] = setting(
      (), 'Any words.', group='work', repeated=True, choices=('a', 'b'))
  quick: bool = setting(False, 'Whether to hurry.', group='work')
  loud: bool = setting(True, 'Whether to shout.', group='work')
  polite: bool | None = setting(None, 'Whether to ask.', group='work')
  depth: int = setting(3, 'Depth.', group='work', when={'kind': ('slow',)})
  folder: str | None = setting(None, 'A folder.', group='work', free=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strict(Plain):
  """Fields that depend on two others, and on each other."""

  rounds: int = declarations.like(Plain, 'rounds', 7, high=20)
  extra: float = setting(
      1.0, 'Extra.', group='work', when={'kind': ('slow',), 'quick': (True,)})

  def unused(self):
    yield from super().unused()
    if self.name == 'anonymous':
      yield 'folder', 'an anonymous run'


def _from(cls, *arguments):
  """The settings that arguments stand for."""
  values = flags.FlagValues()
  settings_lib.define_flags(cls, values)
  values(['', *arguments])
  return settings_lib.from_flags(cls, values)


def test_every_field_has_its_default_and_none_counts_as_given():
  settings = Plain()
  assert (settings.kind, settings.rounds, settings.sizes, settings.noise) == (
      'fast', 5, (1, 2), None)
  assert settings.given == frozenset()
  assert Plain(rounds=5, noise=None).given == {'rounds'}
  assert Strict().rounds == 7 and Strict(rounds=20).rounds == 20


def test_a_field_like_another_under_a_wrong_name_is_not_left_at_its_default():
  own = dataclasses.make_dataclass('Own', [
      ('first_rate', float, declarations.like(Plain, 'rate'))])
  with pytest.raises(TypeError, match='first_rate is like rate and must be called'):
    declarations.shared(own, _from(Plain, '--rate=0.5'))


@pytest.mark.parametrize('values, message', [
    ({'kind': 'brisk'}, "kind must be one of fast, slow, found 'brisk'"),
    ({'kind': None}, 'kind must be a non-empty text, found None'),
    ({'kind': 3}, 'kind must be a non-empty text, found 3'),
    ({'name': ''}, "name must be a non-empty text, found ''"),
    ({'rounds': 0}, 'rounds must be from 1 to 9, found 0'),
    ({'rounds': 10}, 'rounds must be from 1 to 9, found 10'),
    ({'rounds': 2.0}, 'rounds must be an integer, found 2.0'),
    ({'rounds': True}, 'rounds must be an integer, found True'),
    ({'rounds': None}, 'rounds must be an integer, found None'),
    ({'rate': 0}, 'rate must be strictly between 0 and 1, found 0'),
    ({'rate': 1.0}, 'rate must be strictly between 0 and 1, found 1.0'),
    ({'rate': math.nan}, 'rate must be a finite number, found nan'),
    ({'rate': '0.5'}, "rate must be a finite number, found '0.5'"),
    ({'momentum': -0.1}, 'momentum must be at least 0 and less than 1, found -0.1'),
    ({'momentum': 1.0}, 'momentum must be at least 0 and less than 1, found 1.0'),
    ({'share': 0.0}, 'share must be greater than 0 and at most 1, found 0.0'),
    ({'share': 1.5}, 'share must be greater than 0 and at most 1, found 1.5'),
    ({'noise': 0.0}, 'noise must be greater than 0, found 0.0'),
    ({'noise': math.inf}, 'noise must be a finite number, found inf'),
    ({'sizes': (1, 0)}, 'sizes must be at least 1, found 0'),
    ({'sizes': ()}, 'sizes must name at least one value, found none'),
    ({'sizes': [1]}, 'sizes must be a tuple, found [1]'),
    ({'weights': (1.0, math.nan)}, 'weights must be a finite number, found nan'),
    ({'words': ('a', 'c')}, "words must be one of a, b, found 'c'"),
    ({'quick': 1}, 'quick must be true or false, found 1'),
    ({'polite': 'no'}, "polite must be true or false, found 'no'"),
    ({'seed': -1}, 'seed must be at least 0, found -1'),
    ({'local_workers': 1025}, 'local_workers must be from 0 to 1024, found 1025'),
    ({'resume': True}, 'resume needs output_dir')])
def test_value_out_of_range_is_refused_by_name_value_and_rule(values, message):
  with pytest.raises(ValueError, match=f'^{re.escape(message)}'):
    Plain(**values)


@pytest.mark.parametrize('values', [
    {'rate': 0.001}, {'momentum': 0}, {'share': 1}, {'noise': 1e-9}, {'rounds': 9},
    {'words': ()}, {'words': ('b', 'b')}, {'weights': None}, {'polite': False},
    {'seed': 0}, {'resume': True, 'output_dir': 'run'}])
def test_values_at_the_bounds_are_accepted(values):
  settings = Plain(**values)
  assert {name: getattr(settings, name) for name in values} == values


def test_setting_that_has_no_effect_is_refused_if_it_was_given():
  assert Plain().depth == 3
  with pytest.raises(ValueError, match=(
      '^depth is not used with kind=fast: leave it out, found 3$')):
    Plain(depth=3)  # Its default, but given.
  assert Plain(kind='slow', depth=4).depth == 4
  with pytest.raises(ValueError, match='^extra is not used with kind=fast'):
    Strict(extra=1.0)
  with pytest.raises(ValueError, match='^extra is not used with quick=false'):
    Strict(extra=1.0, kind='slow')
  assert Strict(extra=2.0, kind='slow', quick=True).extra == 2
  with pytest.raises(ValueError, match='^folder is not used with an anonymous run'):
    Strict(name='anonymous', folder='x')


def test_replacing_keeps_what_was_given_and_validates():
  settings = Plain(rounds=3, kind='slow', depth=4).replace(rate=0.5)
  assert (settings.rounds, settings.rate, settings.depth) == (3, 0.5, 4)
  assert settings.given == {'rounds', 'rate', 'kind', 'depth'}
  assert type(Strict().replace(rounds=1)) is Strict
  with pytest.raises(ValueError, match='depth is not used with kind=fast'):
    settings.replace(kind='fast')
  # None takes a value back.
  assert Plain(noise=1.0).replace(noise=None).given == frozenset()
  with pytest.raises(ValueError, match='rounds must be from 1 to 9'):
    settings.replace(rounds=10)


def test_flags_give_the_settings_that_arguments_of_the_class_do():
  settings = _from(
      Plain, '--kind=slow', '--name=x', '--rounds=2', '--rate=0.5', '--noise=2',
      '--sizes=3, 4', '--weights=1,2.5', '--words=a', '--words=b', '--quick',
      '--noloud', '--nopolite', '--depth=1', '--seed=0')
  assert settings == Plain(
      kind='slow', name='x', rounds=2, rate=0.5, noise=2.0, sizes=(3, 4),
      weights=(1.0, 2.5), words=('a', 'b'), quick=True, loud=False, polite=False,
      depth=1, seed=0)
  assert isinstance(settings.noise, float) and isinstance(settings.weights[0], float)
  assert settings.given == {
      'kind', 'name', 'rounds', 'rate', 'noise', 'sizes', 'weights', 'words', 'quick',
      'loud', 'polite', 'depth', 'seed'}
  assert _from(Plain) == Plain() and not _from(Plain).given
  assert _from(Plain, '--rounds=5').given == {'rounds'}


@pytest.mark.parametrize('argument, message', [('--sizes=1,two',
     "sizes must be a comma-separated list of integers, found '1,two'"),
    ('--weights=1;2', 'weights must be a comma-separated list of numbers'),
    ('--sizes=', 'sizes must name at least one value'),
    ('--sizes=1.5', 'sizes must be a comma-separated list of integers'),
    ('--name=', 'name must be a non-empty text'),
    ('--kind=brisk', 'kind must be one of fast, slow'),
    ('--depth=1', 'depth is not used with kind=fast'),
    ('--rate=nan', 'rate must be a finite number')])
def test_wrong_value_of_a_flag_is_refused_by_name(argument, message):
  with pytest.raises(ValueError, match=message):
    _from(Plain, argument)


def test_configuration_is_json_and_has_what_defines_a_run():
  settings = Plain(seed=3, output_dir='run', weights=(1.0,)).configuration()
  assert settings == {'seed': 3, 'kind': 'fast', 'name': None, 'rounds': 5, 'rate': 0.25,
      'momentum': 0.5, 'share': 1.0, 'noise': None, 'sizes': [1, 2], 'weights': [1.0],
      'words': [], 'quick': False, 'loud': True, 'polite': None, 'depth': 3}


def test_differences_name_what_changed_and_what_is_unknown():
  recorded = Plain(rounds=3).configuration()
  assert Plain(rounds=3).differences(recorded) == []
  assert Plain(rounds=4, rate=0.5, sizes=(2, 1)).differences(recorded) == [
      'rate', 'rounds', 'sizes']
  assert Plain(rounds=3).differences({**recorded, 'gone': 1}) == ['gone']
  # What may differ is not compared, whoever wrote it down.
  assert Plain(rounds=3, folder='x').differences({**recorded, 'folder': 'y'}) == []
  del recorded['rounds'], recorded['sizes']
  assert Plain().differences(recorded) == ['rounds', 'sizes']
  # Nor is a recorded value without effect.
  recorded = {**Plain().configuration(), 'depth': 8}
  assert Plain().differences(recorded) == []
  assert Plain(kind='slow').differences(recorded) == ['depth', 'kind']


def test_help_has_essential_flags_short_and_all_flags_with_their_ranges():
  short = settings_lib.help_lines(Plain, full=False)
  assert short == ['', 'data:', '  --kind=fast                Kind of run.', '', 'run:',
      '  --output_dir               Folder for checkpoints, ledger, metrics, summary',
      '                             and report. Default: a new one below out/.',
      '  --resume                   Continue the run in --output_dir; start it if '
      'there', '                             is none.']
  full = settings_lib.help_lines(Plain, full=True)
  assert max(map(len, short + full)) <= 80
  text = ' '.join(' '.join(full).split())
  for expected in ('--kind=fast Kind of run. [fast, slow]',
      '--rounds=5 Number of rounds. [from 1 to 9]', '--name Any text. Default: the kind.',
      '--noise A noise. Default: calibrated. [votes; greater than 0]',
      '--momentum=0.5 A momentum. [at least 0 and less than 1]',
      '--rate=0.25 A rate. [strictly between 0 and 1]', '--sizes=1,2 Sizes.',
      '--quick Whether to hurry.', '--noloud Turn this off: Whether to shout.',
      '--polite Whether to ask.'):
    assert expected in text, expected
  for name in declarations.declared(Plain):
    assert re.search(rf'--(no)?{name}\b', text), name
  assert full.index('run:') > full.index('work:') > full.index('data:')


def test_folder_is_checked_before_anything_runs(tmp_path):
  Plain().check_paths()
  Plain(output_dir=str(tmp_path / 'new' / 'run')).check_paths()
  assert not (tmp_path / 'new').exists()
  (tmp_path / 'file').write_text('')
  with pytest.raises(ValueError, match='output_dir=.*file must be a folder'):
    Plain(output_dir=str(tmp_path / 'file')).check_paths()
