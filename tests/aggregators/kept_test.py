"""Kernels on disk: which files are loaded as code, and which never are."""

import hashlib
import os
import pickle
import stat

import pytest

from aggregators.native import compiling, kept, ownership

STRANGER = 54321
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason='root alone can give files away')


def _twice(x):
  return 2 * x


@pytest.fixture(name='choose')
def _choose(monkeypatch, tmp_path):
  """Lets a new process choose its folder, with a user's cache that is safe."""
  monkeypatch.setenv('NUMBA_CACHE_DIR', 'to be restored')
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))

  def choose(given=None):
    os.environ.pop('NUMBA_CACHE_DIR', None)
    if given is not None:
      os.environ['NUMBA_CACHE_DIR'] = str(given)
    kept.folder.cache_clear()
    return kept.folder()

  yield choose
  kept.folder.cache_clear()


def _folder(path, mode=0o700):
  path.mkdir()
  path.chmod(mode)
  return path


class _Attack:

  def __init__(self, mark):
    self._mark = mark

  def __reduce__(self):
    return os.mkdir, (str(self._mark),)


def _attack(path, mark):
  """Writes a file of a kernel that creates the folder `mark` when it is loaded."""
  content = pickle.dumps(_Attack(mark))
  path.write_bytes(hashlib.sha256(content).digest() + content)


def _files(folder):
  return kept.Files(folder, 'kernel', '1', pickle.dumps)


def test_a_kernel_of_these_sources_is_loaded_whole_or_not(tmp_path, monkeypatch):
  files = _files(tmp_path)
  assert files.load('haswell') is None
  files.save('haswell', b'code')
  assert files.load('haswell') == b'code'
  assert files.load('skylake') is None
  assert kept.Files(tmp_path, 'kernel', '2', pickle.dumps).load('haswell') is None
  path = files.path('haswell')
  assert [path] == list(tmp_path.iterdir())
  content = bytearray(path.read_bytes())
  for damaged in (content[:-1], content[:-1] + b'?', content[:20], b''):
    path.write_bytes(damaged)
    assert files.load('haswell') is None
  files.save('haswell', b'code')
  monkeypatch.setattr(kept, 'sources', lambda: 64 * 'f')
  assert files.load('haswell') is None


def test_a_kernel_that_can_not_be_saved_leaves_no_file(tmp_path, monkeypatch):
  _files(tmp_path / 'none').save('haswell', b'code')
  monkeypatch.setattr(os, 'replace', lambda *_: (_ for _ in ()).throw(OSError('full')))
  _files(tmp_path).save('haswell', b'code')
  assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_kernels_are_compiled_ahead_and_found(choose, tmp_path, monkeypatch):
  choose(tmp_path / 'kernels')
  monkeypatch.setattr(kept, '_process', None)
  assert not kept.are_kept()
  kept.compile_ahead()
  kept.finished()
  assert kept.are_kept()
  started = kept._process  # pylint: disable=protected-access
  assert started.returncode == 0
  monkeypatch.setattr(kept, '_process', None)
  kept.compile_ahead()
  assert kept._process is None  # pylint: disable=protected-access


def test_a_safe_folder_is_used_and_the_next_process_does_not_compile(choose, tmp_path):
  given = tmp_path / 'given'
  assert choose(given) == given
  first = compiling.jit(_twice)
  assert first(4) == 8 and first.stats.cache_misses
  file, = given.iterdir()
  assert stat.S_IMODE(file.stat().st_mode) == 0o600
  assert choose(given) == given
  again = compiling.jit(_twice)
  assert again(4) == 8 and again.stats.cache_hits and not again.stats.cache_misses

  # What another user puts there under the same name is not run, nor stays there.
  mark = tmp_path / 'attacked'
  _attack(file, mark)
  file.chmod(0o666)
  assert compiling.jit(_twice)(4) == 8
  assert not mark.exists() and stat.S_IMODE(file.stat().st_mode) == 0o600

  # In a folder that they can write it is not run either.
  _attack(file, mark)
  given.chmod(0o770)
  with pytest.warns(RuntimeWarning) as caught:
    chosen = choose(given)
    kernel = compiling.jit(_twice)
    assert kernel(4) == 8
  assert not mark.exists() and chosen is None
  message, = [str(warning.message) for warning in caught]
  assert '\n' not in message and all(text in message for text in (
      str(given), 'writable by its owner alone', '0770', 'chmod go-w',
      'NUMBA_CACHE_DIR'))

  # The attack is one: it is run where the user alone could have put it.
  given.chmod(0o700)
  choose(given)
  compiling.jit(_twice)(4)
  assert mark.exists()


def _unsafe_file(kind, path):
  if kind.startswith('mode'):
    path.chmod(int(kind.split()[1], 8))
  elif kind == 'of a stranger':
    os.chown(path, STRANGER, -1)
  else:
    content = path.read_bytes()
    path.unlink()
    if kind == 'link':
      path.with_name('target').write_bytes(content)
      path.symlink_to('target')
    elif kind == 'pipe':
      os.mkfifo(path, 0o600)
    else:
      path.mkdir(0o700)


@pytest.mark.parametrize('kind', [
    'mode 0620', 'mode 0602', 'mode 0666', 'link', 'pipe', 'folder',
    pytest.param('of a stranger', marks=AS_ROOT)])
def test_a_file_that_others_may_have_written_is_not_loaded(tmp_path, kind):
  files, mark = _files(_folder(tmp_path / 'kernels')), tmp_path / 'attacked'
  _attack(files.path('haswell'), mark)
  _unsafe_file(kind, files.path('haswell'))
  assert files.load('haswell') is None
  assert not mark.exists()


def test_what_was_opened_is_checked_not_what_had_the_name_before(tmp_path, monkeypatch):
  files, mark, check = _files(tmp_path), tmp_path / 'attacked', ownership.check
  files.save('haswell', b'code')

  def exchanged(folder):
    check(folder)
    _attack(files.path('haswell'), mark)
    files.path('haswell').chmod(0o606)

  monkeypatch.setattr(ownership, 'check', exchanged)
  assert files.load('haswell') is None
  assert not mark.exists()


def test_a_folder_that_is_opened_to_others_later_is_not_read_any_more(tmp_path):
  files, mark = _files(_folder(tmp_path / 'kernels')), tmp_path / 'attacked'
  files.save('haswell', b'code')
  for mode, code in ((0o720, None), (0o702, None), (0o1777, None), (0o755, b'code')):
    (tmp_path / 'kernels').chmod(mode)
    assert files.load('haswell') == code
  (tmp_path / 'kernels').rename(tmp_path / 'moved')
  (tmp_path / 'kernels').symlink_to('moved')
  _attack(files.path('haswell'), mark)
  assert files.load('haswell') is None and not mark.exists()


@pytest.mark.parametrize('mode', [0o770, 0o707])
@pytest.mark.parametrize('above', [False, True])
def test_folders_that_others_can_write_are_refused(tmp_path, mode, above):
  shared = _folder(tmp_path / 'shared', mode)
  path = shared / 'a' / 'kernels' if above else shared
  with pytest.raises(PermissionError, match=f'{shared} must be .* mode 0{mode:o}$'):
    ownership.private_folder(path)
  # So is a link to it, wherever that is; and nothing is created in it.
  (tmp_path / 'link').symlink_to(path)
  with pytest.raises(PermissionError, match=f'{shared} must be writable by its owner'):
    ownership.private_folder(tmp_path / 'link')
  assert not list(shared.iterdir())
  # In a sticky folder entries stay with their owners, but anyone adds some.
  shared.chmod(0o1777)
  if above:
    assert ownership.private_folder(path) == path
  else:
    with pytest.raises(PermissionError, match='found mode 1777'):
      ownership.private_folder(path)


@AS_ROOT
@pytest.mark.parametrize('above', [False, True])
def test_folders_of_strangers_are_refused(tmp_path, monkeypatch, above):
  theirs = _folder(tmp_path / 'theirs')
  path = theirs / 'kernels' if above else theirs
  path.mkdir(exist_ok=True)
  os.chown(theirs, STRANGER, -1)
  # Root runs with a user's folder, as sudo may.
  with pytest.raises(PermissionError, match=(
      f'{theirs} must belong to user 0 or to root, found user {STRANGER}')):
    ownership.private_folder(path)
  theirs.chmod(0o1777)
  with pytest.raises(PermissionError, match=f'found user {STRANGER}'):
    ownership.private_folder(path)
  # That user may use it, and what belongs to root.
  theirs.chmod(0o700)
  monkeypatch.setattr(os, 'geteuid', lambda: STRANGER)
  assert ownership.private_folder(path) == path
  (path / 'file').write_bytes(b'of root')
  assert ownership.read(path / 'file') == b'of root'


def test_links_are_resolved_before_the_check(tmp_path):
  target = _folder(tmp_path / 'target')
  (tmp_path / 'link').symlink_to(target)
  assert ownership.private_folder(tmp_path / 'link' / 'new') == target / 'new'
  with pytest.raises(PermissionError, match='link must be a folder, found l'):
    ownership.check(tmp_path / 'link')
  (tmp_path / 'file').touch()
  with pytest.raises(PermissionError, match='file must be a folder, found -'):
    ownership.private_folder(tmp_path / 'file')


def test_nothing_that_is_created_is_open_to_others_whatever_the_umask(choose, tmp_path):
  former = os.umask(0)
  try:
    folder = choose()
    _files(folder).save('haswell', b'code')
  finally:
    os.umask(former)
  paths = [_files(folder).path('haswell'), folder, folder.parent, tmp_path / 'cache']
  assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [
      0o600, 0o700, 0o700, 0o700]


def test_where_no_folder_is_safe_kernels_work_and_are_not_kept(
    choose, tmp_path, monkeypatch):
  shared = _folder(tmp_path / 'cache', 0o777)
  with pytest.warns(RuntimeWarning, match='each process compiles them again') as caught:
    assert choose() is None
  assert len(caught) == 1
  assert compiling.jit(_twice)(4) == 8
  monkeypatch.setattr(kept, '_process', None)
  kept.compile_ahead()
  assert kept._process is None  # pylint: disable=protected-access
  assert not list(shared.iterdir())
