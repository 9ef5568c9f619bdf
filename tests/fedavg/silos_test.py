"""Steps of silos: gradients of single units, secret samples, constant time."""

import collections
import json

import numpy as np
import pytest
import tensorflow as tf

from aggregators import central_sum, distributed_sum, plain_sum
from aggregators.params import DistributedSumParams
from aggregators.record_sum import RecordSumFactory
from tasks.sources import records
from tests import statistics_lib, tiny_task
from tests.programs import in_process as programs
from tff_pipelines.fedavg import silos
from tff_pipelines.fedavg.server_optimizer import ServerConfig

KEY = tf.constant([4, 5], tf.int64)
WEIGHTS = tiny_task.initial_weights(0)
DIMENSION = sum(w.size for w in WEIGHTS)
CLIP = 1.5
FINE = DistributedSumParams(
    clip=CLIP, noise_multiplier=1e-4, bits=28, dimension=DIMENSION, cohort_size=150)


def _gradient(examples, rows):
  """The gradient of the mean loss of some records, by TensorFlow; [DIMENSION]."""
  weights = [tf.constant(w) for w in WEIGHTS]
  with tf.GradientTape() as tape:
    tape.watch(weights)
    loss = tf.reduce_mean(tiny_task.loss(
        weights, {k: tf.constant(examples[k][rows]) for k in ('x', 'y')}, None))
  return np.concatenate([np.ravel(g) for g in tape.gradient(loss, weights)])


def _clipped(gradient):
  return gradient * min(1.0, CLIP / np.linalg.norm(gradient))


def _examples(count, seed=3, persons=None):
  examples = dict(tiny_task.examples(count, seed))
  if persons is not None:
    examples[records.PERSON] = np.asarray(persons, np.int32)
  return examples


def _values(silos_, keyed=False, step=2):
  return [collections.OrderedDict(
      examples=collections.OrderedDict(sorted(examples.items())),
      **{'key': np.array([i, step], np.int64)} if keyed else {})
          for i, examples in enumerate(silos_)]


def _process(factory, example, rate=1.0, **units):
  spec = {name: (x.dtype, x.shape[1:]) for name, x in example.items()}
  return silos.build(
      tiny_task.loss, spec, initial_weights=WEIGHTS, factory=RecordSumFactory(factory),
      units=silos.Units(**{**dict(sampling_rate=rate, expected=10.0, room=3), **units}),
      server=ServerConfig(learning_rate=1.0, momentum=0.0))


def _moved(output):
  return np.concatenate([
      np.ravel(old - new) for new, old in zip(output['state']['weights'], WEIGHTS)])


FACTORIES = {'skellam': lambda: distributed_sum.DistributedSumFactory(FINE.over_silos(3)),
    'gaussian': lambda: central_sum.CentralSumFactory(clip=CLIP, noise_multiplier=1e-6)}


@pytest.mark.parametrize('name', FACTORIES)
def test_a_step_is_along_the_mean_of_gradients_that_are_clipped_one_by_one(
    in_process, name):
  silos_ = [_examples(5, 1), _examples(0), _examples(140, 2)]
  process = _process(FACTORIES[name](), silos_[0])
  output = process.next(process.initialize(), _values(silos_))
  expected = sum(_clipped(_gradient(examples, [i])) for examples in silos_
                 for i in range(len(examples['y'])))
  np.testing.assert_allclose(_moved(output), expected / 10, atol=2e-4)
  norms = [np.linalg.norm(_gradient(silos_[2], [i])) for i in range(140)]
  assert min(norms) < CLIP < max(norms)


def test_a_persons_gradients_are_clipped_together_and_so_many_records_count(in_process):
  # Person 2 has five records, of which the first three count.
  examples = _examples(9, persons=[0, 2, 2, 1, 2, 0, 2, 2, 0])
  process = _process(FACTORIES['gaussian'](), examples, most_records=3)
  output = process.next(process.initialize(), _values([examples]))
  expected = sum(_clipped(_gradient(examples, rows)) for rows in (
      [0, 5, 8], [3], [1, 2, 4]))
  np.testing.assert_allclose(_moved(output), expected / 10, atol=1e-5)


def test_a_person_with_huge_records_changes_no_others_gradient(in_process):
  examples = _examples(7, persons=[5, 1, 1, 2, 2, 3, 3])
  examples['x'][0] = np.nan
  process = _process(FACTORIES['gaussian'](), examples, most_records=4)
  output = process.next(process.initialize(), _values([examples]))
  expected = sum(_clipped(_gradient(examples, [i, i + 1])) for i in (1, 3, 5))
  np.testing.assert_allclose(_moved(output), expected / 10, atol=1e-5)


def test_nan_or_infinite_gradients_count_as_zero(in_process):
  examples = _examples(5)
  examples['x'][2] = np.nan
  for factory in FACTORIES.values():
    process = _process(factory(), examples)
    output = process.next(process.initialize(), _values([examples] + [_examples(0)] * 2))
    expected = sum(_clipped(_gradient(examples, [i])) for i in (0, 1, 3, 4))
    np.testing.assert_allclose(_moved(output), expected / 10, atol=2e-4)


def test_units_are_sampled_independently_at_the_rate():
  count, rate, rounds = 400, 0.05, 200
  sample = tf.function(
      lambda k: silos.sampled(k, tf.constant(count), rate), autograph=False)
  found = np.stack([np.isin(np.arange(count), sample(tf.constant([i, 8], tf.int64)))
                    for i in range(rounds)])
  statistics_lib.check_mean(found, rate, rate * (1 - rate))
  # Sizes vary as those of independent draws.
  statistics_lib.check_mean(
      (found.sum(axis=1) - count * rate)**2, count * rate * (1 - rate),
      2 * (count * rate)**2 * 1.2)
  np.testing.assert_array_equal(silos.sampled(KEY, tf.constant(7), 1.0), np.arange(7))


def test_persons_are_sampled_with_all_their_records():
  persons = np.repeat(np.arange(300), 3)
  examples = {'x': np.arange(900), records.PERSON: persons.astype(np.int32)}
  batches, counts = silos.sample(examples, KEY, silos.Units(0.1, 30.0, 30, 4))
  assert counts.shape[1] == 4 and np.all(np.sum(counts, axis=1) == 3)
  drawn = np.asarray(batches['x'])[np.asarray(counts) > 0] // 3
  assert np.array_equal(np.bincount(drawn)[np.unique(drawn)], np.full(len(counts), 3))
  statistics_lib.check_mean(np.isin(np.arange(300), drawn), 0.1, 0.09)


@pytest.mark.parametrize('count, blocks', [(0, 3), (2, 3), (9, 3), (14, 4)])
def test_a_silo_takes_as_many_blocks_whatever_it_sampled(
    in_process, monkeypatch, count, blocks):
  bare_sum = plain_sum.PlainSumFactory.bare_sum
  monkeypatch.setattr(silos, 'block_size', lambda dimension: 4)
  monkeypatch.setattr(plain_sum.PlainSumFactory, 'bare_sum', lambda *arguments: (
      bare_sum(*arguments)[0], {'blocks': tf.constant(1)}))
  process = _process(plain_sum.PlainSumFactory(diagnostics=True), _examples(1), room=9)
  output = process.next(process.initialize(), _values([_examples(count)]))
  assert output['metrics']['aggregator']['diagnostics']['totals']['blocks'] == blocks


def test_seeded_steps_repeat_and_unseeded_ones_do_not(in_process):
  silos_ = [_examples(20, 1), _examples(30, 2)]
  params = FINE.replace(noise_multiplier=1.0, bits=18).over_silos(2)
  for seed in (0, None):
    process = _process(distributed_sum.DistributedSumFactory(
        params, simulation_seed=seed), silos_[0], rate=0.5)
    state = process.initialize()
    first, again = (_moved(process.next(state, _values(silos_, seed is not None)))
                    for _ in range(2))
    assert np.array_equal(first, again) == (seed is not None)


def test_a_step_that_lacks_a_silo_is_suppressed(in_process):
  params = FINE.replace(noise_multiplier=1.0, bits=18).over_silos(3)
  process = _process(distributed_sum.DistributedSumFactory(params), _examples(5))
  output = process.next(process.initialize(), _values([_examples(5)] * 2))
  assert output['metrics']['aggregator']['suppressed']


def test_a_silo_must_have_records():
  source = records.ArraysByClient(_examples(3), np.array(['north'] * 3))
  source.client_ids = ('north', 'south')
  source.examples = lambda name: _examples(3 * (name == 'north'))
  with pytest.raises(ValueError, match="silo 'south' must have records, found none"):
    silos.unit_counts(source)


def test_what_is_protected_is_in_one_silo():
  def counted(*persons, most=None):
    source = records.ArraysByClient(_examples(len(persons), persons=persons), np.array(
        ['north'] * 3 + ['south'] * (len(persons) - 3)))
    return silos.unit_counts(source, most)

  assert counted(1, 2, 1, 4, 5, most=9) == [2, 2] and counted(1, 2, 3, 4) == [3, 1]
  with pytest.raises(ValueError, match='a person must be in one silo, found 1 in several'):
    counted(1, 2, 3, 3)
  with pytest.raises(ValueError, match="'north' must have one record of each person"):
    counted(1, 1, 3, 4)
  # Held-out records are no exception.
  train, test = (records.ArraysByClient(_examples(2, persons=persons), np.array(
      ['north', 'south'])) for persons in ([1, 2], [2, 3]))
  with pytest.raises(ValueError, match='a person must be in one silo, found 1 in several'):
    silos.unit_counts(train, 9, test)


def test_a_turn_depends_on_the_record_alone():
  turns, examples = silos.Turns(3), _examples(40)
  found = [turns.of('north', examples, step) for step in range(1, 7)]
  assert [len(a['y']) for a in found[:3]] == [len(a['y']) for a in found[3:]]
  assert sorted(np.concatenate([a['x'][:, 0] for a in found[:3]])) == sorted(
      examples['x'][:, 0])
  fewer = silos.Turns(3).of('north', {k: x[1:] for k, x in examples.items()}, 2)
  assert set(found[1]['x'][:, 0]) - set(fewer['x'][:, 0]) <= {examples['x'][0, 0]}


@pytest.mark.parametrize('most, rate, period', [(400, 0.05, 1), (400, 0.15, 3), (9, 1.0, 1)])
def test_there_is_room_for_all_but_rare_samples(most, rate, period):
  found = silos.room(most, rate, period, odds=1e-2)
  rng = np.random.default_rng(2)
  sampled_ = rng.binomial(rng.binomial(most, 1 / period, 20_000), rate)
  assert np.mean(sampled_ > found) <= 1e-2 and found.bit_count() == 1
  assert found < 2 * np.quantile(sampled_, 1 - 1e-3) + 2
  assert silos.room(most, rate, period, odds=1e-12) >= found


@pytest.fixture(name='hospitals', scope='module')
def _hospitals(tmp_path_factory):
  """Flags for a table of three hospitals, two rows of each patient."""
  folder, rng = tmp_path_factory.mktemp('hospitals'), np.random.default_rng(6)
  age = rng.uniform(20, 80, 240)
  lines = [f'h{i % 3},p{i // 6}-{i % 3},{a:.1f},{int(a > 50)}' for i, a in enumerate(age)]
  (folder / 'table.csv').write_text('\n'.join(['site,patient,age,ill', *lines]))
  (folder / 'bounds.json').write_text('{"age": [0, 120]}')
  return ['--task=tabular', f'--data_path={folder / "table.csv"}', '--client_field=site',
          '--label_field=ill', f'--public_bounds={folder / "bounds.json"}',
          '--feature_fields=age', '--num_classes=2', '--rounds=3', '--no_cache',
          '--delta=0.001']


@pytest.mark.parametrize('flags, lines', [
    (['--protect=record', '--epsilon=4', '--diagnostics'], [
        'epsilon     4.0000 at delta 0.001 against any one silo but that which holds it, '
        'even if it runs a server', 'neighbours  one record']),
    (['--protect=person', '--person_field=patient', '--epsilon=4',
      '--private_evaluation=1'], ['4.0000 against another silo, one of 3',
          'neighbours  one person is added or removed, with all its records in one silo']),
    (['--protect=record', '--mechanism=silo_noise', '--epsilon=4'], [
        'epsilon     4.0000 at delta 0.001 against all but the silo that holds it']),
    (['--protect=record', '--mechanism=gaussian', '--epsilon=4', '--batch_size=40',
      '--bands=2'], ['rows of 2 rounds',
                     'all but the silo that holds it and the trusted server']),
    (['--protect=record', '--epsilon=4', '--batch_size=40', '--bands=2'], [
        'rows of 2 rounds', '4.0000 at delta 0.001 against any one silo but that'])])
def test_hospitals_train_on_a_table_of_theirs(hospitals, tmp_path, flags, lines):
  finished = programs.run('tff_pipelines.train', *hospitals, *flags,
                          '--output_dir=run', folder=tmp_path)
  assert finished.code == 0, finished.stderr
  summary, shown = programs.summary(tmp_path / 'run'), ' '.join(finished.stdout.split())
  assert not [line for line in lines if ' '.join(line.split()) not in shown]
  by_silo = summary['details']['by_silo']
  if '--diagnostics' in flags:
    assert set(by_silo) == {'h0', 'h1', 'h2'}
    assert summary['details']['mean_of_silos'] == pytest.approx(
        np.mean(list(by_silo.values())))
  else:
    assert by_silo is None
  if '--private_evaluation=1' in flags:
    released = summary['private_evaluation']
    assert released['unit'] == 'person'
    # Who predicts needs no names.
    assert list(json.loads((tmp_path / 'run' / 'model.json').read_text())['inputs']) == ['x']
    # About a tenth of 120 patients are held out.
    deviation = released['clients']['stddev']
    assert 3 - 4 * deviation < released['clients']['value'] < 24 + 4 * deviation
