"""The executor of this process, against TFF's own worker and plain Python."""

import collections
import concurrent.futures
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import keys
from tests import tiny_task
from tests.simulation import pools
from tff_pipelines.simulation import (
    contexts, in_process as in_process_lib, values as values_lib)

SEQUENCE = tff.SequenceType(np.int32)
PAIR = tff.TensorType(np.float32, [2])


def _clients(type_spec):
  return tff.FederatedType(type_spec, tff.CLIENTS)


def _server(type_spec):
  return tff.FederatedType(type_spec, tff.SERVER)


def _described(value):
  """A result with the types of containers and leaves, to be compared."""
  if isinstance(value, dict):
    return type(value), [(key, _described(x)) for key, x in value.items()]
  if isinstance(value, (list, tuple)):
    return type(value), [_described(x) for x in value]
  if isinstance(value, tf.data.Dataset):
    return 'dataset', value.element_spec, [_described(x) for x in value]
  array = value.numpy() if isinstance(value, tf.Tensor) else np.asarray(value)
  # As text, so that what is not a number is equal to itself.
  return type(value), array.dtype, array.shape, repr(array.tolist())


_plus_one = tff.tensorflow.computation(lambda x: x + 1, np.int32)
_three = tff.tensorflow.computation(lambda: tf.constant(3))
_upto = tff.tensorflow.computation(lambda x: tf.range(0, x), np.int32)
_doubled = tff.tensorflow.computation(
    lambda numbers: numbers.map(lambda x: 2 * x), SEQUENCE)
_same_sequence = tff.tensorflow.computation(lambda numbers: numbers, SEQUENCE)
_halve_and_add = tff.tensorflow.computation(
    lambda total, value: total / 2 + value, (np.float32, np.float32))
_with_its_square = tff.tensorflow.computation(
    lambda x: collections.OrderedDict(x=x, squares=[x * x]), np.float32)
_with_a_zero_byte = tff.tensorflow.computation(
    lambda x: tf.strings.join([x, '\0']), np.str_)
_length = tff.tensorflow.computation(lambda x: tf.strings.length(input=x), np.str_)
_last_first = tff.tensorflow.computation(
    lambda x, pair, unused: (pair, {'b': x, 'a': (pair, [x])}),
    [('x', np.int32), ('pair', PAIR), ('unused', SEQUENCE)])


@tff.tensorflow.computation(np.str_)
def _looked_up(word):
  table = tf.lookup.StaticHashTable(
      tf.lookup.KeyValueTensorInitializer(['a', 'b'], tf.constant([1, 2])), -1)
  return table.lookup(word)


@tff.tensorflow.computation(np.int32)
def _counted(x):
  """The value of a variable that is 0 at first."""
  variable = tf.Variable(0)
  return variable.assign_add(x)


@tff.tensorflow.computation(np.int64)
def _remembered(x):
  """Whether a table, which nothing initializes, knows x already; enters it."""
  table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
  result = table.lookup(x)
  with tf.control_dependencies([result]):
    insert = table.insert([x], [x])
  with tf.control_dependencies([insert]):
    return result >= 0


@tff.federated_computation(_clients(np.int32), _server(np.int32))
def _mixed_zip(values, at_server):
  return tff.federated_zip(collections.OrderedDict(
      b=tff.federated_broadcast(at_server),
      a=(values, tff.federated_value(2, tff.CLIENTS))))


@tff.federated_computation(
    tff.FederatedType(np.int32, tff.CLIENTS, all_equal=True), _clients(np.int32))
def _all_equal(same, values):
  return (same, tff.federated_map(_plus_one, same), tff.federated_sum(same),
          tff.federated_sum(tff.federated_zip((same, values))))


@tff.federated_computation(_clients(np.float32), _clients(np.float32))
def _summaries(values, weights):
  return collections.OrderedDict(
      mean=tff.federated_mean(values), weighted=tff.federated_mean(values, weights),
      least=tff.federated_min(values), most=tff.federated_max(values),
      folded=tff.federated_aggregate(
          values, np.float32(8), _halve_and_add, _halve_and_add, _with_its_square))


@tff.federated_computation(_clients(np.int32))
def _secure(values):
  return (tff.federated_secure_sum(values, 100),
          tff.federated_secure_sum_bitwidth(values, 7),
          tff.backends.mapreduce.federated_secure_modular_sum(values, 10),
          tff.backends.mapreduce.federated_secure_modular_sum(values, 16))


_sum_of_structures = tff.federated_computation(
    lambda values: (tff.federated_sum(values), tff.federated_sum(values[1].x)),
    _clients((np.int8, collections.OrderedDict(y=np.float16, x=PAIR))))
_of_no_clients = tff.federated_computation(lambda: (
    tff.federated_sum(tff.federated_value(1, tff.CLIENTS)),
    tff.federated_eval(_three, tff.SERVER), tff.federated_value('text', tff.SERVER)))
_twice = tff.federated_computation(
    lambda x, function: function(function(x)),
    (np.int32, tff.FunctionType(np.int32, np.int32)))
_plus_two = tff.federated_computation(lambda x: _twice(x, _plus_one), np.int32)


def _at_each(computation):
  return tff.federated_computation(
      lambda values: tff.federated_map(computation, values),
      _clients(computation.type_signature.parameter))


_lengths = tff.federated_computation(
    lambda words: tff.federated_map(
        _length, tff.federated_map(_with_a_zero_byte, words)), _clients(np.str_))
_threes_and_sum = tff.federated_computation(
    lambda values: (tff.federated_eval(_three, tff.CLIENTS),
                    tff.federated_sum(tff.federated_map(_plus_one, values))),
    _clients(np.int32))
_BIG = np.arange(2 * 100, dtype=np.float32).reshape([100, 2])

# Name -> computation and arguments.
CASES = {
    'scalar of Python': (_plus_one, [3]), 'scalar of NumPy': (_plus_one, [np.int32(3)]),
    'narrower integer': (_plus_one, [np.int16(3)]),
    'tensor': (_plus_one, [tf.constant(3)]), 'functions as arguments': (_plus_two, [1]),
    'names, nesting, unused arguments': (_last_first, [1, [1.0, 2.0], [5]]),
    'other byte order': (_last_first, [1, np.array([1, 2], '>f4'), [5]]),
    'every other element': (_last_first, [1, _BIG[:2, 1], [5]]),
    'words': (_at_each(_with_a_zero_byte), [['a', b'bc', np.str_('d')]]),
    'words end in zero bytes': (_lengths, [['a', 'bc', b'd\0']]),
    'tables': (_at_each(_looked_up), [['a', 'b', 'c', 'a']]),
    'sequences': (_at_each(_doubled), [[[1, 2], [3], tf.data.Dataset.from_tensors(7)]]),
    'sequence as it is': (_at_each(_same_sequence), [[[1, 2], [3]]]),
    'variables': (_at_each(_counted), [list(range(200))]),
    'tables that nothing initializes': (
        _at_each(_remembered), [[np.int64(i) for i in (1, 1, 2, 1)]]),
    'shapes of clients differ': (_at_each(_upto), [[0, 2, 1]]),
    'zip of equal and other values': (_mixed_zip, [[1, 2], 5]),
    'values equal at all clients': (_all_equal, [3, [1, 2]]),
    'mean, extremes, fold': (_summaries, [[1.0, 2.5, -4.0], [3.0, 1.0, 0.5]]),
    'mean, extremes, fold of no clients': (_summaries, [[], []]),
    'secure sums': (_secure, [[11, 22, -3]]),
    'secure sums of no clients': (_secure, [[]]),
    'sums of structures': (_sum_of_structures, [
        [(100, collections.OrderedDict(y=0.5, x=[1.0, 2.0]))] * 3]),
    'sums of structures of no clients': (_sum_of_structures, [[]]),
    'without an argument': (_of_no_clients, []),
    'evaluation at clients': (_threes_and_sum, [[1, 2]]),
    'many clients': (_at_each(_plus_one), [list(range(1000))])}


@pytest.mark.parametrize('name', sorted(CASES))
def test_results_and_their_types_are_those_of_the_worker(
    name, _in_process_context, _one_worker_context):
  computation, arguments = CASES[name]
  result = []
  for context in (_in_process_context, _one_worker_context):
    with contexts.installed(context):
      # Twice: nothing is left from the first call.
      result.append([_described(computation(*arguments)) for _ in range(2)])
  assert result[0] == result[1]


def test_a_result_at_no_client_is_an_empty_list(in_process):
  assert _at_each(_plus_one)([]) == []
  assert _mixed_zip([], 5) == []


@pytest.mark.parametrize('value', [
    1.5, 2**40, True, '3', None, np.int64(3), np.float32(3), np.bool_(1), [3], np.ones(
        1, np.int32)], ids=repr)
def test_what_the_worker_refuses_is_refused(
    value, _in_process_context, _one_worker_context):
  for context in (_in_process_context, _one_worker_context):
    with contexts.installed(context):
      with pytest.raises((TypeError, NotImplementedError)):
        _at_each(_plus_one)([1, value])


@pytest.mark.parametrize('value, type_spec, message', [
    (1.5, np.int32, r'must be int32, found 1\.5 \(float\)'),
    (np.zeros(2), PAIR, r'must be float32\[2\], found array.* \(float64\)'),
    (np.zeros([3, 3], np.int32), tff.TensorType(np.int32, [None, 2]),
     r'must be int32\[\?,2\], found the shape \[3, 3\]'),
    (5, np.str_, r'must be str, found 5'),
    (np.array([b'a', 5], object), tff.TensorType(np.str_, [2]), 'must be str.*found 5'),
    ({'x': 1, 'y': [1, 'b']}, [('x', np.int32), ('y', (np.int32, np.int32))],
     r"y: 1: a tensor must be int32, found 'b' \(str\)"),
    ({'y': 1, 'x': 2}, [('x', np.int32), ('y', np.int32)],
     "an element must be named 'x', found 'y'"),
    ([1, 2], [('x', np.int32)], 'must have 1 elements, found 2')])
def test_an_error_tells_the_place_the_rule_and_what_was_found(value, type_spec, message):
  with pytest.raises(TypeError, match=message):
    values_lib.ingested(value, tff.to_type(type_spec))


@pytest.mark.parametrize('bits', [3, 31])
@pytest.mark.parametrize('modulus', [1, 2, 10, 2**16, 2**30, 2**31 - 1])
@pytest.mark.parametrize('dtype', [np.int32, np.int64])
def test_modular_sums_are_those_of_python_integers(bits, modulus, dtype):
  values = np.random.default_rng(0).integers(
      -2**bits, 2**bits, size=[50, 2], dtype=np.int64).astype(dtype)
  result = values_lib.total(tff.TensorType(dtype, [2]), list(values), np.int64(modulus))
  assert result.dtype == dtype
  assert result.tolist() == [sum(int(v) for v in column) % modulus for column in values.T]


def test_modular_sums_of_large_moduli_do_not_overflow():
  modulus = 2**63 - 1
  result = values_lib.total(
      tff.TensorType(np.int64), [np.int64(modulus - 1)] * 5, modulus)
  assert result.dtype == np.int64 and result == 5 * (modulus - 1) % modulus
  for bad in (0, -4):
    with pytest.raises(ValueError, match=f'modulus must be in .* found {bad}'):
      values_lib.total(tff.TensorType(np.int64), [], bad)


@tff.tensorflow.computation(np.int32)
def _below_five(x):
  with tf.control_dependencies([tf.debugging.Assert(x < 5, ['found', x])]):
    return tf.identity(x)


def test_a_clients_error_is_the_original_and_leaves_the_context_usable(in_process):
  mapped = _at_each(_below_five)
  for clients in ([1, 9], list(range(200))):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r'\[found\] \['):
      mapped(clients)
    assert mapped([1] * 200) == [1] * 200


def test_what_cannot_run_here_is_named(in_process):
  add = tff.tensorflow.computation(lambda a, b: a + b, (np.int32, np.int32))
  reduced = tff.federated_computation(
      lambda numbers: tff.sequence_reduce(numbers, 0, add), SEQUENCE)
  with pytest.raises(NotImplementedError, match='sequence_reduce cannot run'):
    reduced([1, 2])
  with pytest.raises(TypeError, match=r'known shapes, found int32\[\?\]'):
    values_lib.total(tff.TensorType(np.int32, [None]), [])


def test_results_share_no_memory_with_arguments_or_each_other(in_process):
  vector = tff.TensorType(np.float32, [1000])
  copies = tff.tensorflow.computation(
      lambda x: (x, tf.identity(x), tf.reshape(x, [10, 100]), x + 0), vector)
  spread = tff.federated_computation(lambda values: (
      values, tff.federated_map(copies, values), tff.federated_sum(values)),
                                     _clients(vector))
  sent = np.arange(1000, dtype=np.float32)
  results = tf.nest.flatten([copies(sent), spread([sent, sent])])
  for number, result in enumerate(results):
    result.fill(-number)
  np.testing.assert_array_equal(sent, np.arange(1000))
  assert [r.flat[0] for r in results] == [-float(i) for i in range(len(results))]


@tff.tensorflow.computation(np.int32)
def _fresh_keys(unused):
  """Keys of all places of a graph: int64 [4 + 3 + 2, 2]."""
  del unused
  loop = tf.while_loop(
      lambda i, result: i < 4, lambda i, result: (i + 1, result.write(i, keys.fresh())),
      [0, tf.TensorArray(tf.int64, 4, element_shape=[2])])[1].stack()
  mapped = tf.map_fn(lambda _: keys.fresh(), tf.range(3), fn_output_signature=tf.int64)
  return tf.concat([loop, mapped, [keys.fresh(), keys.fresh()]], axis=0)


_fresh_keys_of_server = tff.tensorflow.computation(lambda: [keys.fresh()])


@tff.federated_computation(_clients(np.int32))
def _fresh_keys_of_clients(values):
  return (tff.federated_map(_fresh_keys, values), tff.federated_map(
      _fresh_keys, values), tff.federated_eval(_fresh_keys_of_server, tff.SERVER))


def _assert_distinct(rows, count):
  assert len({tuple(row) for row in rows}) == len(rows) == count


def test_no_fresh_key_comes_twice(in_process):
  rows = []
  for _ in range(3):
    first, second, (at_server,) = _fresh_keys_of_clients([0] * 100)
    rows.extend(np.concatenate([*first, *second, [at_server]]))
  _assert_distinct(rows, 3 * (200 * 9 + 1))


@tff.tensorflow.computation(SEQUENCE)
def _fresh_keys_of_sequence(numbers):
  empty = tf.zeros([0, 2], tf.int64)
  many = [numbers.reduce(empty, lambda drawn, _: tf.concat([drawn, [draw()]], axis=0))
          for draw in (keys.fresh, tf.function(keys.fresh))]
  return tf.concat([*many, [keys.fresh(), keys.fresh()]], axis=0)


def test_no_fresh_key_of_graphs_that_reduce_sequences_comes_twice(in_process):
  run = _at_each(_fresh_keys_of_sequence)
  _assert_distinct(np.concatenate(
      [*run([[1, 2, 3]] * 20), *run([[1, 2, 3]] * 20)]), 2 * 20 * 8)


def test_a_call_that_reduces_a_sequence_sees_nothing_of_others(in_process):

  @tff.tensorflow.computation(SEQUENCE, SEQUENCE, SEQUENCE, np.int32, np.int32)
  def run(numbers, same, unused_sequence, start, unused):
    del unused_sequence, unused
    variable = tf.Variable(100)
    add = tf.function(lambda x, y: x + variable.assign_add(y))
    return numbers.reduce(start, add), numbers.map(lambda x: x + start), same

  for start in (7, 8):
    total, shifted, same = run([1, 2], [5], [6], start, 9)
    assert total == start + 101 + 103
    assert list(shifted) == [start + 1, start + 2] and list(same) == [5]


def test_contexts_used_by_several_threads_draw_different_keys(in_process):
  context = tff.framework.get_context_stack().current
  barrier = threading.Barrier(3)

  def draw(_):
    with contexts.installed(context):
      barrier.wait()
      return _at_each(_fresh_keys)([0] * 30)

  with concurrent.futures.ThreadPoolExecutor(3) as threads:
    rows = np.concatenate(
        [keys_ for result in threads.map(draw, range(3)) for keys_ in result])
  _assert_distinct(rows, 3 * 30 * 9)


def test_loops_of_the_old_kind_draw_a_fresh_key_in_each_round(in_process, monkeypatch):
  fed = []
  find = in_process_lib.Graph._find_fresh_keys
  monkeypatch.setattr(
      in_process_lib.Graph, '_find_fresh_keys',
      lambda self, types: fed.append((types, find(self, types))) or fed[-1][1])

  def loop():
    tf.compat.v1.disable_control_flow_v2()
    try:
      return tf.while_loop(
          lambda i, _: i < 4, lambda i, result: (i + 1, result.write(i, keys.fresh())),
          [0, tf.TensorArray(tf.int64, 4, element_shape=[2])])[1].stack()
    finally:
      tf.compat.v1.enable_control_flow_v2()

  computation = tff.tensorflow.computation(lambda: (loop(), keys.fresh()))
  rows = []
  for _ in range(3):
    looped, single = computation()
    rows.extend([*looped, single])
  _assert_distinct(rows, 15)
  (types, names), = fed
  assert 'Enter' in types and not names


def test_kernel_entropy_is_fed_where_it_can_be(in_process, monkeypatch):
  drawn = []
  real = os.urandom
  monkeypatch.setattr(
      in_process_lib.os, 'urandom', lambda n: drawn.append(real(n)) or drawn[-1])
  result = tff.tensorflow.computation(
      lambda: (keys.fresh(), keys.derive(keys.fresh(), 3)))()
  first, second = (np.frombuffer(x, np.int64) for x in drawn)
  np.testing.assert_array_equal(result[0], first)
  np.testing.assert_array_equal(result[1], keys.derive(second, 3))


def _learning_process():
  """TFF's own federated averaging of a Keras model."""
  spec = (tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None], tf.int32))

  def model():
    keras = tf.keras.Sequential([tf.keras.layers.Input([4]), tf.keras.layers.Dense(3)])
    return tff.learning.models.from_keras_model(
        keras, input_spec=spec,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[tf.keras.metrics.SparseCategoricalAccuracy()])

  return tff.learning.algorithms.build_weighted_fed_avg(
      model, tff.learning.optimizers.build_sgdm(0.1, momentum=0.9),
      tff.learning.optimizers.build_sgdm(1.0),
      model_aggregator=tff.learning.robust_aggregator(zeroing=False, clipping=True))


def _trained(process, context):
  """Weights and metrics after three rounds."""
  train = tiny_task.task().train
  clients = [
      tf.data.Dataset.from_tensor_slices((examples['x'], examples['y'])).batch(2)
      for examples in map(train.examples, train.client_ids)]
  with contexts.installed(context):
    # What Keras begins with is random.
    state = process.set_model_weights(
        process.initialize(), tff.learning.models.ModelWeights(
            trainable=tiny_task.initial_weights(0), non_trainable=[]))
    for _ in range(3):
      output = process.next(state, clients)
      state = output.state
    return (process.get_model_weights(state).trainable,
            output.metrics['client_work']['train'])


@pytest.mark.slow
def test_federated_averaging_of_tff_gives_what_the_worker_gives(
    _in_process_context, _one_worker_context, monkeypatch):
  process = _learning_process()
  weights, metrics = _trained(process, _in_process_context)
  with monkeypatch.context() as patch, contexts.started() as context:
    # Graphs that reduce data sets are optimised by sessions, to the same bits.
    patch.setattr(in_process_lib, '_REDUCES', b'no such operation')
    for a, b in zip(weights, _trained(process, context)[0], strict=True):
      np.testing.assert_array_equal(a, b)
  wanted, wanted_metrics = _trained(process, _one_worker_context)
  for a, b in zip(weights, wanted, strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
  assert metrics['num_examples'] == wanted_metrics['num_examples'] == 40
  assert metrics['loss'] == pytest.approx(wanted_metrics['loss'], rel=1e-4)
  assert metrics['sparse_categorical_accuracy'] == (
      wanted_metrics['sparse_categorical_accuracy'])
  assert not np.allclose(weights[0], tiny_task.initial_weights(0)[0], atol=1e-3)


def _round(size):
  """A computation whose leaves hold a variable, a dataset and a vector."""
  type_spec = tff.TensorType(np.float32, [size])

  @tff.tensorflow.computation(tff.SequenceType(type_spec))
  def summed(vectors):
    variable = tf.Variable(tf.zeros([size]))
    with tf.control_dependencies([variable.assign_add(
        vectors.reduce(tf.zeros([size]), tf.add))]):
      return variable.read_value(), keys.fresh()

  @tff.federated_computation(_clients(tff.SequenceType(type_spec)))
  def run(values):
    return tff.federated_sum(tff.federated_map(summed, values)[0])

  return run


@pytest.mark.slow
def test_memory_does_not_grow_with_rounds(in_process):
  run = _round(10_000)
  clients = [tf.data.Dataset.from_tensors(np.ones(10_000, np.float32))] * 2
  for _ in range(20):
    np.testing.assert_array_equal(run(clients), np.full(10_000, 2.0))
  grown = []
  # An allocator may take memory once; a leak does so again and again.
  while len(grown) < 3 and min(grown, default=np.inf) >= 8e6:
    gc.collect()
    before = psutil.Process().memory_info().rss
    for _ in range(200):
      run(clients)
    gc.collect()
    grown.append(psutil.Process().memory_info().rss - before)
  # One vector kept for each client and round would be 16 MB each time.
  assert min(grown) < 8e6, grown


def test_the_end_of_a_computation_releases_its_graphs():
  factory = in_process_lib.InProcessContext(2)
  computation = tff.tensorflow.computation(lambda: keys.fresh())  # pylint: disable=unnecessary-lambda
  compiled = weakref.ref(factory.compiled(computation))
  assert factory.compiled(computation) is compiled()
  del computation
  gc.collect()
  assert compiled() is None
  factory.close()


def test_a_context_that_has_ended_is_an_error_and_has_no_threads():
  before = set(threading.enumerate())
  with contexts.started() as context:
    with contexts.installed(context):
      assert _at_each(_counted)([1] * 100) == [1] * 100
      during = [t for t in threading.enumerate() if t not in before]
      threads = [t for t in during if 'ThreadPool' in t.name]
      # One that calls the others; fewer if one is idle whenever there is work.
      assert 2 <= len(threads) <= os.cpu_count() + 1
  assert not [t for t in threads if t.is_alive()]
  with contexts.installed(context):
    with pytest.raises(RuntimeError, match='context .* has ended'):
      _plus_one(1)


_ENDLESS = '''
import threading
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tff_pipelines.simulation import contexts

@tff.tensorflow.computation(np.int64)
def never_ends(x):
  return tf.while_loop(lambda i: i >= 0, lambda i: [(i + 1) % 1000], [x])[0]

@tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
def endless_round(values):
  return tff.federated_sum(tff.federated_map(never_ends, values))

with contexts.simulation():
  threading.Timer(1.0, lambda: print('running', flush=True)).start()
  endless_round([np.int64(i) for i in range(9)])
'''


@pytest.mark.slow
def test_an_interrupt_ends_a_round_that_would_not_end():
  with subprocess.Popen(
      [sys.executable, '-c', _ENDLESS],
      env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'}, stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
    try:
      for line in process.stdout:
        if line.strip() == 'running':
          break
      errors = 'no interrupt ended it'
      for _ in range(6):
        # On a busy machine the round may not have begun when the first one comes.
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
          _, errors = process.communicate(timeout=10)
          break
    finally:
      process.kill()
  assert process.returncode == -signal.SIGINT, errors
  assert 'KeyboardInterrupt' in errors


def test_a_forked_child_ends_no_session_of_other_threads():
  with pools.session_elsewhere():
    for _ in range(3):
      child = subprocess.Popen(
          [sys.executable, '-S', '-c', 'print(1)'], preexec_fn=lambda: None,
          stdout=subprocess.PIPE)
      assert child.communicate(timeout=60)[0] == b'1\n'
