"""Clients that travel as ids: read where they train, with the bits of the tensors."""

import collections
import contextlib
import functools
import json
import sqlite3

import numpy as np
import pytest
import tensorflow as tf

from aggregators.distributed_sum import DistributedSumFactory
from aggregators.params import DistributedSumParams
from tasks import task as task_lib
from tasks.sources import records, sqlite as source_sqlite
from tests import tiny_task
from tests.tasks.sources import populations
from tff_pipelines.accounting.guarantees import mechanisms
from tff_pipelines.common import files
from tff_pipelines.experiment import (
    failures, metrics as metrics_lib, records as records_lib, rounds as rounds_lib)
from tff_pipelines.fedavg import (
    local_training, loop, process as process_lib, run as run_lib)
from tff_pipelines.fedavg.plan import FedAvgPlan
from tff_pipelines.fedavg.server_optimizer import ServerConfig
from tff_pipelines.simulation import contexts, values as values_lib

COHORT, ROUNDS = 5, 2
TINY = tiny_task.task(num_clients=COHORT)
SETTINGS = dict(initial_weights=tiny_task.initial_weights(0),
    server=ServerConfig(learning_rate=1.0, momentum=0.9))
LOCAL = local_training.LocalConfig(learning_rate=0.3, batch_size=3, epochs=2)
UPDATE = local_training.client_update(tiny_task.loss, LOCAL)


def _convert(raw):
  y = raw['y'].astype(np.int32)
  if np.any(y >= tiny_task.CLASSES):
    raise ValueError('y must be below 3')
  return {'x': raw['x'].astype(np.float32), 'y': y}


def _convert_in_graph(raw):
  y = tf.strings.to_number(raw['y'], tf.int32)
  with tf.control_dependencies([
      tf.debugging.Assert(tf.reduce_all(y < tiny_task.CLASSES), ['y'])]):
    y = tf.identity(y)
  return {'x': tf.cast(raw['x'], tf.float32), 'y': y}


def _task(folder, bad=(), skip=False, ids=TINY.train.client_ids):
  """The tiny task from an SQLite file, labels as texts; clients differ in size."""
  result = {}
  for number, client in enumerate(ids):
    examples = tiny_task.examples(number + 1, seed=number)
    result[client] = {'x': examples['x'].astype(np.float64),
        'y': np.where(number in bad, 9, examples['y']).astype(str).astype(object)}
  path = populations.prepared(folder / "tiny's.sqlite", populations.Clients(result))
  return task_lib.Task(name='tiny', model=TINY.model, train=records.MappedSource(
          source_sqlite.SqliteSource(path, 'train'), _convert,
          TINY.train.element_spec, convert_in_graph=_convert_in_graph),
      held_out=TINY.held_out, privacy_unit='one client', skips=task_lib.Skips(skip))


@pytest.fixture(name='task', scope='module')
def _task_fixture(tmp_path_factory):
  return _task(tmp_path_factory.mktemp('by_id'))


def _factory():
  return DistributedSumFactory(DistributedSumParams(
          clip=0.4, noise_multiplier=0.5, bits=16, dimension=tiny_task.DIMENSION,
          cohort_size=COHORT), simulation_seed=7, diagnostics=False)


_processes = {}


def _weights(task, clients_per_call, by_id, stored=False):
  """The weights after some rounds, to the last bit."""
  if (by_id, stored) not in _processes:  # All of them are of one task.
    spec, reading = task.train.element_spec, {}
    if stored:
      spec = task_lib.reader_in_graph(task.train).spec
      reading['convert'] = loop.converter_in_graph(task)
    elif by_id:
      reading['read_in_graph'] = loop.reader_in_graph(task)
    _processes[by_id, stored] = process_lib.build_chunked(
        UPDATE, spec, sum_factory=_factory(), expected_cohort_size=COHORT, **reading,
        **SETTINGS)
  process = _processes[by_id, stored]
  reader = loop.ClientReader(task, 7, by_id)
  state = process.initialize()
  for r in range(ROUNDS):
    clients = process_lib.grouped(
        [reader.read(client, r) for client in range(COHORT)], clients_per_call)
    if stored:
      clients = [values_lib.Deferred(functools.partial(reader.stored, chunk))
                 for chunk in clients]
    state = process.next(state, clients)['state']
  return [np.asarray(w).tobytes() for w in state['weights']]


@pytest.fixture(name='wanted', scope='module')
def _wanted(task):
  """The weights that clients give whose examples were sent, one a call."""
  with contexts.simulation():
    return _weights(task, 1, False)


@pytest.mark.slow
@pytest.mark.parametrize('context, clients_per_call', [
    ('in_process', 1), ('in_process', 3), ('two_workers', 3)])
def test_ids_give_the_bits_of_the_tensors(
    task, wanted, request, context, clients_per_call):
  request.getfixturevalue(context)
  assert _weights(task, clients_per_call, True) == wanted


@pytest.mark.parametrize('clients_per_call', [1, 3])
def test_what_is_stored_gives_the_bits_of_the_tensors(
    task, wanted, in_process, clients_per_call):
  assert _weights(task, clients_per_call, True, stored=True) == wanted


def test_cohorts_travel_as_ids_and_keys_only(task):
  reader = loop.ClientReader(task, 7, True)
  assert loop.reads_by_id(task)
  client = reader.read(2, 0)
  assert client['client_id'] == '=2' and set(client) == {'client_id', 'key'}
  chunk, = process_lib.grouped([reader.read(client, 0) for client in range(3)], 4)
  assert set(chunk) == {'client_ids', 'keys'}
  assert chunk['client_ids'].tolist() == ['=0', '=1', '=2']


_STRANGE = ('\x01', '', '\x00a', 'a\x00', "o'ben\"é", 'two\nlines', '=')


def test_any_text_is_the_id_of_a_client(tmp_path):
  task = _task(tmp_path, ids=_STRANGE, bad=[4])
  assert set(task.train.client_ids) == set(_STRANGE)
  bad, read = {}, loop.reader_in_graph(task)
  reader = loop.ClientReader(task, None, True, bad.__setitem__)
  reader.find_bad(range(len(_STRANGE)))
  assert bad.keys() == {_STRANGE[4]}
  in_graph = tf.function(read, autograph=False)
  for index, client in enumerate(task.train.client_ids):
    found = in_graph(tf.constant(reader.read(index, 1)['client_id']))
    wanted = {} if client in bad else task.train.examples(client)
    for name, value in found.items():
      np.testing.assert_array_equal(value, wanted.get(name, value[:0]))
  # And together, as what is stored.
  chunk = process_lib.make_chunk(
      [reader.read(index, 1) for index in range(len(_STRANGE))])
  stored = reader.stored(chunk)
  assert [length > 0 for length in stored['lengths']] == [
      client not in bad for client in task.train.client_ids]
  ends = np.cumsum(stored['lengths'])
  convert = tf.function(loop.converter_in_graph(task), autograph=False)
  for client, end, length in zip(task.train.client_ids, ends, stored['lengths']):
    found = convert({name: x[end - length:end] for name, x in stored['examples'].items()})
    wanted = {} if client in bad else task.train.examples(client)
    for name, value in found.items():
      np.testing.assert_array_equal(value, wanted.get(name, value[:0]))


def test_arrays_and_conversions_outside_graphs_travel_as_tensors(task):
  assert not loop.reads_by_id(TINY)
  client = loop.ClientReader(TINY, None, loop.reads_by_id(TINY)).read(0, 0)
  assert isinstance(client['examples'], collections.OrderedDict)
  task.skips.enabled = True
  assert not loop.reads_by_id(task)
  task.skips.enabled = False


def _run(task, folder, on_bad=lambda client_id, error: None, stored=False):
  """Reporting clients of each round of the whole population, without privacy."""
  plan = FedAvgPlan.calibrate(mechanisms.SumMechanism(
      mechanism='none', cohort_size=COHORT, sampling='none', rounds=ROUNDS,
      dimension=tiny_task.DIMENSION, population=COHORT), seed=3, diagnostics=True)
  rounds = run_lib.build_rounds(
      task, plan, clients_per_call=3, by_id=loop.reads_by_id(task), stored=stored,
      local=LOCAL, on_bad=on_bad, **SETTINGS)
  run_records = records_lib.RunRecords(
      folder / 'run', plan.configuration(), plan.header(ROUNDS), resume=False)
  rounds_lib.run(rounds, plan, run_records)
  rows = metrics_lib.read(run_records.folder / files.METRICS, 'round')
  return [float(row['diagnostics/num_reporting']) for row in rows.values()]


@pytest.mark.parametrize('skip, stored', [(False, False), (True, False), (False, True)])
def test_bad_clients_participate_with_nothing_and_the_operator_alone_is_told(
    tmp_path, in_process, skip, stored):
  task = _task(tmp_path, bad=[1, 3], skip=skip)
  assert loop.reads_by_id(task) != skip
  path = tmp_path / 'private' / 'bad.jsonl'
  # All are in the sum: were they missing, a round could be suppressed for it.
  assert _run(task, tmp_path, failures.write_bad_clients(path), stored) == (
      [COHORT] * ROUNDS)
  assert not task.skips.clients
  told = [json.loads(line) for line in path.read_text().splitlines()]
  assert sorted(one['client'] for one in told) == ['1', '3']
  assert "tiny's.sqlite, split 'train', client '1': y must be below" in str(told)
  assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_file_that_changes_or_goes_names_no_client_of_a_cohort(tmp_path):
  task, bad = _task(tmp_path), {}
  reader = loop.ClientReader(task, None, on_bad=bad.setdefault)
  path = tmp_path / "tiny's.sqlite"
  with contextlib.closing(sqlite3.connect(path)) as connection, connection:
    for table in ('examples', 'client_metadata'):
      connection.execute(f"DELETE FROM {table} WHERE client_id = '3'")
  assert len(reader.read(3, 0)['examples']['y']) == 0
  assert isinstance(bad['3'], task_lib.DamagedDataError) and bad.keys() == {'3'}
  assert str(bad['3']).startswith(f'{path} is damaged (')
  path.unlink()
  with pytest.raises(ValueError) as raised:
    reader.read(4, 0)
  assert str(raised.value) == f'{path} does not exist or is not a file'
  assert raised.value.__context__ is None and bad.keys() == {'3'}


@pytest.mark.parametrize('stored', [False, True])
def test_data_that_are_bad_for_everyone_are_named(tmp_path, stored):
  task = _task(tmp_path, bad=range(COHORT))
  with contexts.simulation(), pytest.raises(task_lib.BadClientError,
      match="tiny's.sqlite, split 'train', client '0': y must be below"):
    _run(task, tmp_path, stored=stored)
