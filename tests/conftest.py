"""Fixtures that more than one folder of tests uses.

Workers start once for a session. TensorFlow is imported by the fixtures that
need it, so tests of plain numbers start at once.
"""

import warnings

import hypothesis
import pytest

from aggregators.native import kept

# The same examples in every run, so that a failure can be repeated.
hypothesis.settings.register_profile(
    'repeatable', hypothesis.settings.default, derandomize=True)
hypothesis.settings.load_profile('repeatable')


# Before modules of tests import kernels: a checkout's user need not have a safe cache.
with warnings.catch_warnings(action='ignore'):
  _KERNELS = kept.folder()


@pytest.fixture(scope='session', autouse=True)
def _cache_of_the_session(tmp_path_factory):
  """Copies of data go where the session's other files do, of its programs too.

  Kernels stay where they are: they take long to compile.
  """
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))
    if _KERNELS is not None:
      patch.setenv('NUMBA_CACHE_DIR', str(_KERNELS))
    yield


@pytest.fixture(scope='session')
def _in_process_context():
  from tff_pipelines.simulation import contexts  # pylint: disable=g-import-not-at-top
  with contexts.started() as context:
    yield context


@pytest.fixture(scope='session')
def _one_worker_context():
  from benchmarks import tff_worker  # pylint: disable=g-import-not-at-top
  with tff_worker.started() as context:
    yield context


@pytest.fixture(scope='session')
def _two_worker_context():
  from tff_pipelines.simulation import contexts  # pylint: disable=g-import-not-at-top
  with contexts.started(local_workers=2) as context:
    yield context


@pytest.fixture
def in_process(_in_process_context):
  """TFF computations of the test run in this process."""
  from tff_pipelines.simulation import contexts  # pylint: disable=g-import-not-at-top
  with contexts.installed(_in_process_context):
    yield


@pytest.fixture
def one_worker(_one_worker_context):
  """TFF computations of the test run in TFF's own worker."""
  from tff_pipelines.simulation import contexts  # pylint: disable=g-import-not-at-top
  with contexts.installed(_one_worker_context):
    yield


@pytest.fixture
def two_workers(_two_worker_context):
  """Clients of the test's TFF computations are shared by two worker processes."""
  from tff_pipelines.simulation import contexts  # pylint: disable=g-import-not-at-top
  with contexts.installed(_two_worker_context):
    yield


@pytest.fixture(scope='module')
def shared_context(_in_process_context):
  """Runs of the module share a context, which keeps what it has compiled."""
  from tff_pipelines.simulation import contexts  # pylint: disable=g-import-not-at-top
  simulation = contexts.simulation

  def shared(**where):
    if where.get('local_workers') or where.get('engine') == 'ray':
      return simulation(**where)
    return contexts.installed(_in_process_context)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(contexts, 'simulation', shared)
    yield


@pytest.fixture(scope='module')
def programs(shared_context, tmp_path_factory):
  """Runs programs in this process; see `tests.programs.in_process.Programs`."""
  from tests.programs import in_process as in_process_lib  # pylint: disable=g-import-not-at-top
  del shared_context  # Graphs that one program compiled serve the next.
  return in_process_lib.Programs(tmp_path_factory.mktemp)


@pytest.fixture(scope='session')
def launcher(tmp_path_factory):
  """Starts programs as processes of their own; see `tests.programs.launcher`."""
  from tests.programs import launcher as launcher_lib  # pylint: disable=g-import-not-at-top
  started = launcher_lib.Launcher(tmp_path_factory.mktemp('launcher'))
  yield started
  started.stop()
