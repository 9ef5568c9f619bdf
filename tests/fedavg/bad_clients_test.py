"""A client whose data make the training fail contributes what one without data does.

All runs have one seed: of a run with such a client and of one in which it has no
examples, weights and public files must be the same to the last bit.
"""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from tests import interrupts, tiny_task
from tests.fedavg import failing_task, tiny_run
from tff_pipelines.accounting.sampling import schemes
from tff_pipelines.common import files
from tff_pipelines.experiment import failures
from tff_pipelines.fedavg import loop, process as process_lib, run as run_lib
from tff_pipelines.simulation import failures as computations

pytestmark = pytest.mark.usefixtures('shared_context')

CLIENT, LABEL = failing_task.CLIENT, failing_task.LABEL
_out_of_range, _nothing = failing_task.out_of_range, failing_task.nothing
INDEX, FEATURE = 1987654272, 777123.25
SECRETS = [str(value).encode() for value in (LABEL, INDEX, FEATURE)]


def _loss(weights, batch, seed):
  """That of the tiny task, whose features are asserted and looked up in a table too."""
  x = batch['x']
  with tf.control_dependencies([
      tf.debugging.Assert(~tf.reduce_any(x[:, 0] > 1000.0), [x])]):
    rows = tf.gather(weights[0], tf.where(
        x[:, 1] > 1000.0, tf.cast(x[:, 1], tf.int32), 0))
  batch = {**batch, 'x': x + 0.0 * tf.reduce_sum(rows, axis=1, keepdims=True)}
  return tiny_task.loss(weights, batch, seed)


MODEL = dataclasses.replace(tiny_task.MODEL, loss=_loss)


def _index(examples):
  x = examples['x'].copy()
  x[:, 1] = INDEX
  return {**examples, 'x': x}


def _memory(examples):
  raise MemoryError(f'{LABEL} bytes')


def _filled(value):
  return lambda examples: {**examples, 'x': np.full_like(examples['x'], value)}


FAILING = {'label': _out_of_range, 'assertion': _filled(FEATURE), 'index': _index,
    'memory': _memory, 'shape': lambda examples: {
        **examples, 'x': np.full([len(examples['x']), 9], FEATURE, np.float32)},
    'dtype': lambda examples: {
        **examples, 'y': np.array([str(LABEL)] * len(examples['y']), object)},
    'number of examples': lambda examples: {**examples, 'x': examples['x'][1:]}}


def _task(changes):
  return dataclasses.replace(failing_task.task(changes), model=MODEL)


class _Experiment(run_lib.TrainExperiment):
  """Training on the tiny task with changed clients."""

  def __init__(self, settings, changes):
    super().__init__(settings)
    self._changes = changes

  def build_task(self):
    return _task(self._changes)

  def serving(self, trained):
    return tiny_task.task().serving


@pytest.fixture(autouse=True, scope='module')
def _one_process():
  """Processes of the same form are traced once."""
  built, build = {}, process_lib.build_chunked

  def cached(*arguments, **keywords):
    key = keywords['initial_weights'][0].tobytes()
    if key not in built:
      built[key] = build(*arguments, **keywords)
    return built[key]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(process_lib, 'build_chunked', cached)
    yield


def _settings(folder, **settings):
  return tiny_run.settings(folder, **{'seed': 8, 'rounds': 4, **settings})


def _run(folder, changes, **settings):
  """The weights, to the last bit, and who was named to the operator."""
  _Experiment(_settings(folder, **settings), changes).run()
  weights = {name: array.tobytes()
             for name, array in files.read_arrays(folder / 'model.npz').items()}
  path = folder / files.PRIVATE / failures.BAD_CLIENTS
  told = [json.loads(line) for line in path.read_text().splitlines()
          ] if path.exists() else []
  return weights, {one['client']: one['error'] for one in told}


def _check_secret(folder, *printed):
  """Checks that no value is in what was printed or is public."""
  texts = {'printed': ''.join(printed).encode()} | {
      path.name: path.read_bytes() for path in folder.rglob('*')
      if path.is_file() and files.PRIVATE not in path.parts}
  assert len(texts) > 4
  assert not [(name, secret) for name, text in texts.items() for secret in SECRETS
              if secret in text]


@pytest.fixture(name='without', scope='module')
def _without(shared_context, tmp_path_factory):
  """The weights of a run in which the client has no examples."""
  del shared_context
  weights, told = _run(tmp_path_factory.mktemp('without') / 'run', {CLIENT: _nothing})
  assert not told
  return weights


@pytest.mark.parametrize('kind', FAILING)
def test_a_failing_client_contributes_noise_alone_and_no_message_has_its_data(
    tmp_path, capsys, without, kind):
  folder = tmp_path / 'run'
  weights, told = _run(folder, {CLIENT: FAILING[kind]})
  assert weights == without
  assert told.keys() == {CLIENT} and told[CLIENT]
  _check_secret(folder, *capsys.readouterr())


@pytest.mark.parametrize('changes, same', [
    ({}, False), ({CLIENT: _filled(np.nan)}, True)])
def test_an_update_that_is_not_finite_is_that_of_no_examples(
    tmp_path, without, changes, same):
  weights, told = _run(tmp_path / 'run', changes)
  assert (weights == without) == same and not told


@pytest.mark.slow
@pytest.mark.parametrize('settings', [{'local_workers': 2}, {'clients_per_call': 1}])
def test_so_it_is_in_workers_and_one_client_a_call(tmp_path, capsys, without, settings):
  folder = tmp_path / 'run'
  weights, told = _run(
      folder, {'3': _out_of_range, '5': _index, '6': _memory}, **settings)
  assert told.keys() == {'3', '5', '6'} and str(LABEL) in told['3']
  _check_secret(folder, *capsys.readouterr())
  wanted, _ = _run(tmp_path / 'empty', dict.fromkeys(told, _nothing))
  assert weights == wanted != without


def test_all_of_a_cohort_may_fail_if_the_population_does_not(tmp_path):
  changes = {str(client): _out_of_range for client in range(1, 8)}
  weights, told = _run(tmp_path / 'run', changes)
  assert told.keys() == changes.keys()
  assert weights == _run(tmp_path / 'empty', dict.fromkeys(changes, _nothing))[0]


def test_a_resumed_run_finds_its_bad_clients_again(tmp_path, without):
  folder = tmp_path / 'run'
  experiment = _Experiment(_settings(folder), {CLIENT: _out_of_range})
  experiment.callbacks = [interrupts.interrupt]
  with pytest.raises(KeyboardInterrupt):
    experiment.run()
  weights, told = _run(folder, {CLIENT: _out_of_range}, resume=True)
  assert weights == without and told.keys() == {CLIENT}


def test_an_error_of_all_clients_ends_the_run_in_one_line(tmp_path, capsys):
  folder = tmp_path / 'run'
  changes = {str(client): _out_of_range for client in range(8)}
  with pytest.raises(failures.RunFailedError) as raised:
    _run(folder, changes)
  line, path = str(raised.value), folder / files.PRIVATE / failures.ERROR
  assert line.startswith(
      'the run failed: InvalidArgumentError in SparseSoftmaxCrossEntropyWithLogits; '
      f'{path} says more')
  _check_secret(folder, line, *capsys.readouterr())
  assert str(LABEL) in path.read_text()
  assert not (folder / files.PRIVATE / failures.BAD_CLIENTS).exists()


def test_a_machine_without_memory_ends_the_run_in_one_line(tmp_path, capsys):
  folder, short = tmp_path / 'run', []

  class Short(_Experiment):

    def build_task(self):
      return _task({str(client): lambda examples: _memory(examples) if short
                    else examples for client in range(8)})

  experiment = Short(_settings(folder), {})
  experiment.callbacks = [lambda index, metrics: short.append(index)]
  with pytest.raises(failures.RunFailedError, match='run failed: MemoryError; '):
    experiment.run()
  _check_secret(folder, *capsys.readouterr())
  assert _run(folder, {}, resume=True)[0] == _run(tmp_path / 'whole', {})[0]


def test_where_one_record_is_protected_no_client_loses_all_of_its_records():
  bad = []

  class Failing:
    """A process whose rounds fail with some of the clients."""

    def next(self, state, clients):
      if any(len(client['examples']['y']) and client['examples']['y'][0] > 2
             for client in clients):
        raise ValueError(LABEL)
      return {'state': state, 'metrics': len(clients)}

  for unit_is_client in (False, True):
    rounds = loop.FedAvgRounds(Failing(), task=_task({CLIENT: _out_of_range}), rounds=1,
        scheme=schemes.Everyone(population=8, cohort_size=8, simulation_seed=None),
        on_bad=lambda client, error: bad.append(client), unit_is_client=unit_is_client)
    if unit_is_client:
      assert rounds._computed({}, range(8), 1)['metrics'] == 8
      continue
    with pytest.raises(computations.ComputationError):
      rounds._computed({}, range(8), 1)
    assert not bad
  assert bad == [CLIENT]


@pytest.mark.slow
def test_a_program_prints_no_value_of_a_failing_client(launcher, tmp_path):
  """As a process of its own, in which TensorFlow's own messages would be seen."""
  run = launcher.run(
      'tff_pipelines.train', '--task=tests.fedavg.failing_task:build', '--rounds=1',
      '--mechanism=gaussian', '--epsilon=8', '--cohort_size=8',
      f'--output_dir={tmp_path / "run"}')
  assert run.code == 0, run.stderr
  _check_secret(tmp_path / 'run', run.stdout, run.stderr)
  told = (tmp_path / 'run' / files.PRIVATE / failures.BAD_CLIENTS).read_text()
  assert json.loads(told)['client'] == CLIENT and str(LABEL) in told
