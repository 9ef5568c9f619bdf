"""What changes in the public files of a run when one client's data are removed.

No weight moves, and noise and cohorts follow from a seed: the release is the same with
and without the client, and whatever else told of it would be seen.
"""

import json

import numpy as np
import pytest

from tasks import task as task_lib
from tests import tiny_task
from tests.fedavg import failing_task, tiny_run
from tff_pipelines.common import files
from tff_pipelines.experiment import configurations

pytestmark = pytest.mark.usefixtures('shared_context')

# Keys of a line of the ledger that follow from the time and the run's secret key.
_OF_TIME = {'time', 'hash', 'previous', 'configuration_hash'}


def _experiment(name, change):
  """Runs in which one client has no examples, or reading them is an error."""
  return type(name, (tiny_run.TinyExperiment,), {
      'build_task': lambda self: failing_task.task({failing_task.CLIENT: change})})


def _bad(error):
  def read(examples):
    del examples
    raise error(f'client {failing_task.CLIENT!r}: y is missing')

  return _experiment(error.__name__, read)


_Empty = _experiment('_Empty', failing_task.nothing)
_Bad = _bad(task_lib.BadClientError)


def _run(experiment, folder, **changes):
  experiment(tiny_run.settings(folder, **{
      'seed': 8, 'client_learning_rate': 1e-30, **changes})).run()
  return folder


def public(folder):
  """Name -> content of everything that is not the operator's, times left out."""
  result = {}
  ledger = [json.loads(line) for line in
            (folder / files.LEDGER).read_text(encoding='utf-8').splitlines()]
  # What is by the run's secret key, and what follows from the time.
  configuration = configurations.read(folder)
  summary = json.loads((folder / files.SUMMARY).read_text(encoding='utf-8'))
  explained = [str(folder), summary['configuration'], configuration['run'],
               *(configuration['identity'][f'{of}_fingerprint']
                 for of in ('data', 'examples')),
               *(line[key] for line in ledger for key in _OF_TIME & line.keys())]
  for path in sorted(folder.rglob('*')):
    name = path.relative_to(folder).as_posix()
    if name.startswith(f'{files.PRIVATE}/') or name == 'starts.log' or path.is_dir():
      continue
    if path.suffix == '.npz':
      result[name] = {key: array.tobytes()
                      for key, array in files.read_arrays(path).items()}
    elif path.suffix in ('.json', '.jsonl', '.txt', '.html', '.csv'):
      text = path.read_text(encoding='utf-8')
      for part in sorted(filter(None, explained), key=len, reverse=True):
        text = text.replace(part, '*')
      result[name] = text
    else:
      result[name] = path.read_bytes()
  return result


@pytest.mark.parametrize('mechanism, others', [
    pytest.param('skellam', (_Bad,), marks=pytest.mark.slow),
    ('gaussian', (_Empty, _Bad, _bad(KeyError), _bad(MemoryError)))])
def test_no_public_byte_but_the_release_depends_on_a_client(tmp_path, mechanism, others):
  whole = _run(tiny_run.TinyExperiment, tmp_path / 'whole' / 'run', mechanism=mechanism)
  wanted = public(whole)
  assert {files.SUMMARY, files.REPORT, files.PAGE, files.METRICS, files.LEDGER,
          'model.npz', files.CONFIGURATION, files.FIGURE} <= wanted.keys()
  for experiment in others:
    folder = _run(experiment, tmp_path / experiment.__name__ / 'run', mechanism=mechanism)
    found = public(folder)
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if found[name] != wanted[name]] == []
    if experiment is not _Empty:
      told = (folder / files.PRIVATE / 'bad_clients.jsonl').read_text()
      assert json.loads(told)['client'] == failing_task.CLIENT


@pytest.mark.slow
def test_what_a_client_changes_is_seen(tmp_path):
  """The power of the other test: diagnostics and the release itself differ."""
  with_all, without = (public(_run(
      experiment, tmp_path / experiment.__name__ / 'run', diagnostics=True))
                       for experiment in (tiny_run.TinyExperiment, _Empty))
  assert {name for name in with_all if with_all[name] != without[name]} >= {files.METRICS}
  trained, other = (public(_run(
      experiment, tmp_path / f'{experiment.__name__}-trained' / 'run',
      client_learning_rate=0.3)) for experiment in (tiny_run.TinyExperiment, _Empty))
  assert trained['model.npz'] != other['model.npz']


@pytest.mark.slow
def test_client_that_is_bad_is_not_named(tmp_path, capsys):
  folder = _run(_Bad, tmp_path / 'run', client_learning_rate=0.3, seed=None)
  printed = capsys.readouterr()
  assert 'y is missing' not in printed.out + printed.err
  for path in folder.rglob('*'):
    if path.is_file() and files.PRIVATE not in path.parts:
      assert b'y is missing' not in path.read_bytes(), path
  assert np.isfinite(files.read_arrays(folder / 'model.npz')['output/bias']).all()
  client = failing_task.CLIENT
  assert tiny_task.task().train.client_ids[int(client)] == client
