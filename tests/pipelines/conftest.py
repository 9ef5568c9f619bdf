"""The launcher of binaries, one for the session."""

import pytest

from tests.pipelines import launcher as launcher_lib


@pytest.fixture(scope='session')
def launcher(tmp_path_factory):
  found = launcher_lib.Launcher(tmp_path_factory.mktemp('launcher'))
  yield found
  found.stop()
