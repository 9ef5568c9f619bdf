"""Tasks of one's own, from the folder in which a program is started."""

import contextlib
import json
import pathlib
import re
import shutil
import sys

import numpy as np
import pytest

from tests.programs import in_process, launcher as launcher_lib
from tff_pipelines.experiment import checkpoints

TRAIN = 'tff_pipelines.train'
SOURCE = pathlib.Path(__file__).with_name('own_task.py')
PAGE = pathlib.Path(__file__).parents[2] / 'docs' / 'models.md'
SMALL = ('--rounds=2', '--cohort_size=4', '--client_learning_rate=0.1', '--seed=1')

pytestmark = pytest.mark.usefixtures('shared_context')


@pytest.fixture(name='folder')
def _folder(tmp_path, monkeypatch):
  """A user's folder with a task, which modules are imported from."""
  shutil.copy(SOURCE, tmp_path / 'blobs.py')
  monkeypatch.setattr(sys, 'path', [*sys.path, str(tmp_path)])
  monkeypatch.delitem(sys.modules, 'blobs', raising=False)
  yield tmp_path
  sys.modules.pop('blobs', None)


def _train(folder, *arguments):
  return in_process.run(TRAIN, '--output_dir=run', *SMALL, *arguments, folder=folder)


def _weights(folder):
  path = checkpoints.path_of(folder / 'run/private/checkpoints', 2)
  return list(checkpoints.read(path).arrays.values())


@pytest.mark.slow
def test_keras_model_trains_and_is_the_same_in_both_forms_of_the_process(folder):
  results = []
  for form in ((), ('--clients_per_call=1',)):
    run = _train(folder, '--task=blobs:build', '--noise_multiplier=1', *form)
    assert run.code == 0, run.stderr
    assert 'blobs, keras with 67 parameters, 8 clients' in run.stdout
    results.append(_weights(folder))
    configuration = json.loads((folder / 'run/configuration.json').read_text())
    summary = json.loads((folder / 'run/summary.json').read_text())
    shutil.rmtree(folder / 'run')
  assert all(map(np.array_equal, *results))
  source = configuration['identity']['task_source']
  assert (source['module'], source['function']) == ('blobs', 'build')
  assert len(source['sha256']) == 64
  assert summary['breakdown']['test_clients']['kind'] == 'class'
  assert summary['task'] == 'blobs' and summary['model'] == 'keras'


@pytest.mark.slow
def test_run_is_not_resumed_with_another_source(folder):
  assert _train(folder, '--task=blobs:build', '--mechanism=none').code == 0
  path = folder / 'blobs.py'
  path.write_text(path.read_text() + '\n# Changed.\n')
  sys.modules.pop('blobs')
  run = _train(folder, '--task=blobs:build', '--mechanism=none', '--resume')
  in_process.check_refused(run, 'task_source differ')


@pytest.mark.slow
def test_options_of_the_function_are_settings(folder):
  run = _train(folder, '--task=blobs:build', '--mechanism=none', '--num_clients=5',
               '--cohort_size=3')
  assert run.code == 0 and '5 clients' in run.stdout
  shutil.rmtree(folder / 'run')
  run = _train(folder, '--task=blobs:build', '--data_path=x')
  assert (run.code, run.stderr) == (
      2, 'error: task blobs:build does not use data_path; its options are '
      'num_clients\n')


@pytest.mark.slow
def test_snippets_of_the_document_run_as_pasted(folder, capsys):
  module, program = re.findall(
      r'^```python\n(.*?)^```', PAGE.read_text(encoding='utf-8'), re.DOTALL | re.M)
  source = SOURCE.read_text(encoding='utf-8').partition('\n\n')[2]
  assert module.partition('\n')[2] == source
  (folder / 'blobs.py').write_text(module)
  with contextlib.chdir(folder):
    exec(program, {})  # pylint: disable=exec-used
  *rounds, last = capsys.readouterr().out.splitlines()
  epsilon, accuracy = map(float, last.split())
  assert rounds and 7.9 < epsilon <= 8 and 0 <= accuracy <= 1


@pytest.mark.parametrize('task, message', [
    ('nowhere:build', "nowhere can't be imported: ModuleNotFoundError: No module"),
    ('blobs:missing', 'blobs has no function missing'),
    ('blobs:examples', 'the argument count must have a default'),
    ('blobs:network', 'its function must return a Task, found Sequential'),
    ('broken:build', "broken can't be imported: SyntaxError"),
    ('needy:build', "No module named 'nothing_like_this'"),
    ('blobs.py', 'or module:function, found')])
def test_wrong_name_of_a_task_is_one_line(folder, task, message):
  (folder / 'broken.py').write_text('def build(:\n')
  (folder / 'needy.py').write_text('import nothing_like_this\n')
  run = _train(folder, f'--task={task}', '--mechanism=none')
  in_process.check_refused(run, message)
  assert not (folder / 'run').exists()


@pytest.mark.slow
def test_program_finds_the_current_folder_which_hides_nothing(folder):
  for name in ('tasks.py', 'aggregators.py'):
    (folder / name).write_text('raise RuntimeError("the wrong module")\n')
  process = launcher_lib.python(
      TRAIN, '--task=blobs:build', '--output_dir=run', '--mechanism=none', *SMALL[:2],
      '--rounds=1', mark='own', folder=folder)
  _, stderr = process.communicate(timeout=300)
  assert process.returncode == 0, stderr
