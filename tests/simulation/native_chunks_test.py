"""Chunks encoded, and sums decoded, by compiled kernels instead of the graph."""

import collections
import functools
import sys
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import share_tables, structures
from aggregators.adaptive_clip import AdaptiveClipSumFactory
from aggregators.distributed_sum import DistributedSumFactory
from aggregators.native import decoding, encoding, marks
from aggregators.params import AdaptiveClipParams, DistributedSumParams
from tests import tiny_task
from tests.simulation import pools
from tff_pipelines.fedavg import local_training, process as process_lib
from tff_pipelines.fedavg.server_optimizer import ServerConfig
from tff_pipelines.simulation import contexts, native_chunks

COHORT = 5
TASK = tiny_task.task(num_clients=COHORT)
UPDATE = local_training.client_update(
    tiny_task.loss, local_training.LocalConfig(learning_rate=0.3, batch_size=3, epochs=1))


def _params(**changes):
  return DistributedSumParams(**{**dict(
      clip=0.4, noise_multiplier=0.5, bits=16, dimension=tiny_task.DIMENSION,
      cohort_size=COHORT), **changes})


@functools.lru_cache(maxsize=None)
def _process(factory, update=UPDATE):
  return process_lib.build_chunked(
      update, TASK.train.element_spec, sum_factory=factory,
      expected_cohort_size=COHORT, initial_weights=tiny_task.initial_weights(0),
      server=ServerConfig(learning_rate=1.0))


# Shared by the tests: tracing a process takes seconds.
SEEDED = DistributedSumFactory(_params(), simulation_seed=7, diagnostics=True)
UNSEEDED = DistributedSumFactory(_params())


def _chunks(sizes, seeded=True):
  clients = []
  for i, client in enumerate(TASK.train.client_ids):
    examples = TASK.train.examples(client)
    clients.append(collections.OrderedDict(examples=collections.OrderedDict(
        (name, x[:i]) for name, x in sorted(examples.items()))))
    if seeded:
      clients[-1]['key'] = np.array([i, 12], np.int64)
  ends = np.cumsum(sizes)
  return [process_lib.make_chunk(clients[end - size:end])
          for size, end in zip(sizes, ends)]


def _bytes(structure):
  return [np.asarray(leaf).tobytes() for leaf in tf.nest.flatten(structure)]


@pytest.fixture
def added(monkeypatch):
  """The clients' keys, int64 [clients, 2], of each call that encodes by kernels."""
  native_chunks.kernels()  # Tries them, before the spy is there.
  keys = []
  add = encoding.EncodedSum.add

  def spy(self, vectors, own):
    keys.append(np.array(own))
    add(self, vectors, own)

  monkeypatch.setattr(encoding.EncodedSum, 'add', spy)
  return keys


@pytest.mark.parametrize('at_a_time', [1, 2, 100])
def test_kernels_give_the_bits_of_the_graph_however_many_are_trained_at_a_time(
    monkeypatch, added, at_a_time):
  # A process of its own, as graphs depend on it.
  monkeypatch.setattr(marks, 'MAX_NUMBERS', at_a_time * tiny_task.DIMENSION)
  process = _process.__wrapped__(SEEDED)
  with contexts.simulation():
    state = process.initialize()
    result = _bytes(process.next(state, _chunks([3, 2])))
    assert sorted(map(len, added)) == {1: [1] * 5, 2: [1, 2, 2], 100: [2, 3]}[at_a_time]
    added.clear()
    with pools.in_graph_form():
      assert _bytes(process.next(state, _chunks([3, 2]))) == result
    assert not added


def test_keys_of_unseeded_clients_are_new_in_each_chunk_and_round(in_process, added):
  process = _process(UNSEEDED)
  state = process.initialize()
  totals = [process.next(state, _chunks([3, 2], seeded=False))['state']['weights']
            for _ in range(2)]
  assert _bytes(totals[0]) != _bytes(totals[1])
  keys = np.concatenate(added)
  assert len(keys) == 10 and len(np.unique(keys)) == 20


def test_without_numba_the_graph_encodes_and_one_warning_says_so(
    in_process, monkeypatch, added):
  process = _process(SEEDED)
  state = process.initialize()
  wanted = _bytes(process.next(state, _chunks([5])))
  assert added
  added.clear()
  monkeypatch.setattr(native_chunks, '_tried', [])
  monkeypatch.setattr(native_chunks, 'encoders', set())
  monkeypatch.setitem(sys.modules, 'aggregators.native.encoding', None)
  monkeypatch.delattr('aggregators.native.encoding')
  with pytest.warns(RuntimeWarning, match='encoded by TensorFlow') as caught:
    assert _bytes(process.next(state, _chunks([5]))) == wanted
    assert native_chunks.encoders == {native_chunks.encoder(SEEDED)} == {'graph'}
  assert len(caught) == 1
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    assert _bytes(process.next(state, _chunks([5]))) == wanted
  assert not added


def test_a_cohort_beyond_the_table_is_encoded_by_the_graph(in_process, added):
  params = _params(mechanism='discrete_gaussian', bits=18, noise_multiplier=2.0)
  assert not share_tables.has_all_noise(params)
  factory = DistributedSumFactory(params, simulation_seed=7, diagnostics=True)
  process = _process(factory)
  state = process_lib.set_cohort_size(process.initialize(), 1, factory)
  native_chunks.encoders.clear()
  process.next(state, _chunks([1]))
  assert not added
  assert native_chunks.encoder(factory) == 'graph'


def test_diagnostics_have_the_names_of_the_graph(in_process, added):
  process = _process(SEEDED)
  state, chunks = process.initialize(), _chunks([3, 2])
  chunks[0]['examples'] = {
      name: np.full_like(x, np.nan) if x.dtype == np.float32 else x
      for name, x in chunks[0]['examples'].items()}
  native = process.next(state, chunks)['metrics']['aggregator']['diagnostics']
  assert added
  # The first client has no examples.
  assert native['totals']['not_finite'] == 2
  assert native['totals']['cohort_disbelieved'] == 0
  with pools.in_graph_form():
    graph = process.next(state, chunks)['metrics']['aggregator']['diagnostics']
  assert graph == native


@functools.lru_cache(maxsize=None)
def _summing(kind):
  """An aggregation process whose short sums are marked, too."""
  params = _params(min_honest_fraction=0.5)
  factory = DistributedSumFactory(params, simulation_seed=3)
  if kind == 'adaptive':
    factory = AdaptiveClipSumFactory(
        params, AdaptiveClipParams(count_stddev=1.0), simulation_seed=3)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(marks, 'LEAST_DECODED', 1)
    return factory.create(structures.keyed_type(
        tff.TensorType(np.float32, [tiny_task.DIMENSION])))


@pytest.mark.parametrize('kind', ['fixed', 'adaptive'])
@pytest.mark.parametrize('reporting', [COHORT, COHORT - 1, 1])
def test_sums_are_decoded_to_the_bits_of_the_graph(
    in_process, monkeypatch, kind, reporting):
  # No client is missing; one is, whose noise is added; the round is suppressed.
  decoded, decode = [], decoding.decoded

  def spy(*arguments):
    decoded.append(arguments)
    return decode(*arguments)

  native_chunks.kernels()  # Tries them, before the spy is there.
  monkeypatch.setattr(decoding, 'decoded', spy)
  process = _summing(kind)
  native_chunks.encoders.clear()
  state = process.initialize()
  values = [collections.OrderedDict(
      value=np.full(tiny_task.DIMENSION, 0.01 * i, np.float32),
      key=np.array([i, 3], np.int64)) for i in range(reporting)]
  result = process.next(state, values)
  assert len(decoded) == 1
  assert native_chunks.encoders == ({'native'} if kind == 'fixed' else set())
  assert result.measurements['suppressed'] == (reporting == 1)
  with pools.in_graph_form():
    assert _bytes(process.next(state, values)) == _bytes(result)
  assert len(decoded) == 1


@pytest.mark.parametrize('factory', [
    AdaptiveClipSumFactory(_params(), AdaptiveClipParams(count_stddev=1.0)),
    DistributedSumFactory(_params(rotation='dft')),
    DistributedSumFactory(_params(bits=26)), type('Other', (DistributedSumFactory,), {
        'contribute': lambda *_: None})(_params())], ids=lambda f: type(f).__name__)
def test_other_contributions_have_no_marks(factory):
  assert factory.native_params is None


def test_marks_of_another_version_are_left_to_the_graph():
  def graph_of(text):
    with tf.Graph().as_default() as graph:
      with tf.name_scope(f'inner/{marks.SCOPE}'):
        tf.constant(text, name=marks.PARAMETERS)
        total = tf.zeros([16], tf.int32, name=marks.TOTAL)
    return native_chunks.find(graph, [], [total.name])

  assert graph_of(marks.text(_params())) is not None
  assert graph_of('{"another": 1}') is None
  assert graph_of('{') is None
  assert native_chunks.find(tf.Graph(), [], []) is None


@pytest.mark.slow
def test_training_that_reduces_a_data_set_leaves_the_encoding_to_kernels(
    in_process, added):

  def update(weights, examples, key):
    zero = tf.data.Dataset.range(3).reduce(tf.constant(-3, tf.int64), tf.add)
    return UPDATE([w + tf.cast(zero, w.dtype) for w in weights], examples, key)

  results = [
      _bytes(process.next(process.initialize(), _chunks([3, 2])))
      for process in (_process(SEEDED), _process(SEEDED, update))]
  assert results[0] == results[1]
  assert sum(map(len, added)) == 10
