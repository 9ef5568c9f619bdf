"""Rosters: ids without examples, and the proof that a worker has the file."""

import contextlib
import sqlite3

import numpy as np
import pytest
import tensorflow as tf

from tasks import task as task_lib
from tasks.sources import records, rosters, sqlite
from tests import tiny_task
from tests.tasks.sources import populations
from tff_pipelines.fedavg import loop

SECRET = 'nobody but workers reads this'


def _clients(*ids):
  return populations.Clients({
      client: {'n': np.arange(number + 1), 't': np.array([SECRET] * (number + 1), object)}
      for number, client in enumerate(ids)})


def _file(path, *ids):
  return populations.prepared(path, _clients(*ids), populations.Clients({
      'zoe': {'n': np.arange(3), 't': np.array(['public'] * 3, object)}}))


@pytest.fixture(name='complete')
def _complete(tmp_path):
  return _file(tmp_path / 'complete.sqlite', "o'ben", 'ann', '7')


def test_a_roster_has_everything_except_the_training_examples(complete, tmp_path):
  path = tmp_path / 'roster.sqlite'
  assert rosters.write(complete, path) == 3
  whole, roster = (sqlite.SqliteSource(p, 'train') for p in (complete, path))
  assert roster.is_roster and not whole.is_roster
  assert list(roster.client_ids) == list(whole.client_ids)
  assert roster.element_spec == whole.element_spec
  assert SECRET.encode() in complete.read_bytes()
  assert SECRET.encode() not in path.read_bytes()
  with contextlib.closing(sqlite3.connect(path)) as connection:
    assert connection.execute(
        'SELECT split_name, sum(num_examples) FROM client_metadata GROUP BY 1'
    ).fetchall() == [('test', 3), ('train', 0)]
  test = sqlite.SqliteSource(path, 'test')
  assert not test.is_roster and test.examples('zoe')['n'].tolist() == [0, 1, 2]
  with pytest.raises(ValueError, match="roster.sqlite is a roster: the examples of "
                     "its split 'train' are only where clients train"):
    roster.examples('ann')
  assert path.stat().st_mode & 0o777 == 0o600


def test_only_a_prepared_file_has_a_roster_and_nothing_is_replaced(complete, tmp_path):
  path = tmp_path / 'roster.sqlite'
  rosters.write(complete, path, 'train')
  for data_path, output, message in (
      (path, tmp_path / 'x', 'must be a file that prepare_data wrote'),
      (complete, path, 'roster.sqlite exists already'),
      (complete, complete, 'complete.sqlite exists already'),
      (tmp_path / 'gone', tmp_path / 'x', 'gone does not exist')):
    with pytest.raises(ValueError, match=message):
      rosters.write(data_path, output)
  with pytest.raises(ValueError, match="no clients in split 'valid'"):
    rosters.write(complete, tmp_path / 'x', 'valid')
  assert sorted(p.name for p in tmp_path.iterdir()) == [
      'complete.sqlite', 'roster.sqlite']


def test_the_proof_of_a_file_is_that_of_its_roster_and_of_no_other(complete, tmp_path):
  proof = sqlite.SqliteSource(complete, 'train').data_proof
  there = proof.digest(in_worker=True)
  kept = tmp_path / 'kept'
  complete.rename(kept)
  rosters.write(kept, complete)
  assert sqlite.SqliteSource(complete, 'train').data_proof == proof
  assert proof.digest(in_worker=False) == there
  with pytest.raises(ValueError, match='complete.sqlite is a roster'):
    proof.digest(in_worker=True)
  complete.unlink()
  with pytest.raises(ValueError, match='complete.sqlite does not exist'):
    proof.digest(in_worker=True)
  # One more client, and the same clients with one more example.
  assert _file(complete, "o'ben", 'ann', '7', 'x') and (
      proof.digest(in_worker=True) != there)
  complete.unlink()
  kept.rename(complete)
  assert proof.digest(in_worker=True) == there
  with contextlib.closing(sqlite3.connect(complete)) as connection, connection:
    connection.execute("INSERT INTO examples SELECT * FROM examples LIMIT 1")
  assert proof.digest(in_worker=True) != there


def test_wrapped_sources_pass_on_what_they_are(complete, tmp_path):
  path = tmp_path / 'roster.sqlite'
  rosters.write(complete, path)
  roster = sqlite.SqliteSource(path, 'train')
  wrapped = records.SubsetSource(roster, ['ann'])
  assert task_lib.is_roster(wrapped)
  assert task_lib.data_proof(wrapped) == roster.data_proof
  array = tiny_task.task().train
  assert not task_lib.is_roster(array) and task_lib.data_proof(array) is None


def test_clients_of_a_roster_travel_as_ids_and_are_never_read_here(complete, tmp_path):
  path = tmp_path / 'roster.sqlite'
  rosters.write(complete, path)
  train = records.MappedSource(
      sqlite.SqliteSource(path, 'train'), lambda raw: {'n': raw['n']},
      {'n': (np.int64, ())}, convert_in_graph=lambda raw: {'n': tf.identity(raw['n'])})
  tiny = tiny_task.task()
  task = task_lib.Task(name='t', model=tiny.model, train=train, held_out=tiny.held_out,
                       privacy_unit='one client')
  assert loop.reads_by_id(task)
  reader = loop.ClientReader(task, None, by_id=True)
  reader.check_some()
  assert reader.read(0, 0) == {'client_id': '=7'}
  # After an error of a graph: who was bad is not known here, and nobody is blamed.
  reader.find_bad(range(3))
  assert not reader.bad
  with pytest.raises(ValueError, match='roster.sqlite is a roster'):
    loop.ClientReader(task, None, by_id=False).check_some()
