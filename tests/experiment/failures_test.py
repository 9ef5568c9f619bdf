"""Failing clients are found alone, and errors are told without values."""

import json
import pickle

import pytest
import tensorflow as tf

from tff_pipelines.common import files
from tff_pipelines.experiment import failures
from tff_pipelines.simulation import failures as computations


class _Round:
  """A round that fails with any of some clients, unless they are marked."""

  def __init__(self, bad, first=(0, 1, 2)):
    self.bad, self.marked, self.calls, self._first = set(bad), {}, [], first

  def compute(self, clients):
    self.calls.append(list(clients))
    if failing := self.bad.intersection(clients).difference(self.marked):
      raise computations.ComputationError('ValueError', f'of {min(failing)}')
    return list(clients)

  def first(self):
    return [client for client in self._first if client not in self.marked]

  def run(self, clients):
    return failures.without_bad(
        self.compute, clients, first=self.first, mark=self.marked.__setitem__)


@pytest.mark.parametrize('bad', [[], [7], [0, 5], [3, 4, 8, 9], range(1, 10)])
def test_failing_clients_are_found_and_the_cohort_stays(bad):
  round_ = _Round(bad)
  assert round_.run(list(range(10))) == list(range(10))
  assert {client: error.detail for client, error in round_.marked.items()} == {
      client: f'of {client}' for client in bad}
  assert round_.calls[0] == round_.calls[-1] == list(range(10))


def test_one_bad_client_among_many_takes_few_computations():
  round_ = _Round([700])
  round_.run(list(range(1000)))
  assert len(round_.calls) <= 3 + 2 * 10


@pytest.mark.parametrize('bad, clients', [
    (range(10), range(10)), ([0, 1, 2, 7], [5, 6, 7]), ([0, 1, 2], [])])
def test_an_error_of_the_first_clients_too_is_of_no_client(bad, clients):
  round_ = _Round(bad)
  if not clients:
    round_.compute = lambda clients: (_ for _ in ()).throw(
        computations.ComputationError('ValueError', 'of the server'))
  with pytest.raises(computations.ComputationError):
    round_.run(list(clients))
  assert not round_.marked


def test_an_error_of_clients_together_is_of_none_of_them():
  round_ = _Round([])

  def compute(clients):
    if len(clients) > 1:
      raise computations.ComputationError('MemoryError', '')
    return clients

  round_.compute = compute
  with pytest.raises(computations.ComputationError, match='MemoryError'):
    round_.run([4, 5, 6])
  assert not round_.marked


def test_errors_of_workers_and_files_are_nobodys():
  def lost():
    raise OSError('a worker was lost')

  with pytest.raises(OSError, match='a worker was lost'):
    computations.called(lost)


def test_the_kind_of_an_error_has_no_value():
  error = computations.ComputationError.of(tf.errors.InvalidArgumentError(
      None, None, '{{function_node __inference_f_390}} a secret {{node MatMul}} is 1038\n'
      '\t [[{{function_node while_body_218}}{{node while/x/Assert_1}}]]\n'
      '\t [[{{node secret}}]]\n\t [[while/body/_1/PartitionedCall]]'))
  assert error.kind == 'InvalidArgumentError in Assert'
  assert 'secret' in error.detail and 'secret' not in f'{error} {error!r}'
  assert computations.kind(KeyError('secret')) == 'KeyError'
  copy = pickle.loads(pickle.dumps(error))
  assert (copy.kind, copy.detail, str(copy)) == (error.kind, error.detail, str(error))


def test_what_a_computation_raises_is_not_the_context_of_its_error():
  with pytest.raises(computations.ComputationError) as raised:
    computations.called(lambda: {}['secret'])
  assert raised.value.__context__ is raised.value.__cause__ is None


@pytest.mark.parametrize('error, kind', [
    (computations.ComputationError('KeyError', "KeyError: 'secret'"), 'KeyError'),
    (MemoryError('secret'), 'MemoryError')])
def test_a_run_ends_in_one_line_and_the_operator_reads_more(tmp_path, error, kind):
  (tmp_path / files.PRIVATE).mkdir()
  files.write_json(tmp_path / files.CONFIGURATION, {})
  with pytest.raises(failures.RunFailedError) as raised:
    with failures.reported(tmp_path):
      raise error
  path = tmp_path / files.PRIVATE / failures.ERROR
  assert str(raised.value).startswith(f'the run failed: {kind}; {path} says more')
  assert 'secret' not in str(raised.value) and '\n' not in str(raised.value)
  assert raised.value.__suppress_context__
  assert 'secret' in path.read_text() and path.stat().st_mode & 0o777 == 0o600


def test_before_there_is_a_run_errors_stay_as_they_are(tmp_path):
  with pytest.raises(MemoryError), failures.reported(tmp_path):
    raise MemoryError
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('error, told', [
    (ValueError('y must be below 3'), 'y must be below 3'),
    (MemoryError(), 'MemoryError'),
    (computations.ComputationError('KeyError', "KeyError: 'y'"), "KeyError: 'y'")])
def test_the_operator_is_told_why_a_client_is_bad(tmp_path, error, told):
  path = tmp_path / 'private' / 'bad.jsonl'
  failures.write_bad_clients(path)('\x00a\n', error)
  assert json.loads(path.read_text()) == {'client': '\x00a\n', 'error': told}
