"""Noise from tables: all its randomness is from ChaCha20."""

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from aggregators import distributed_sum, keys, modular_sum, share_tables
from aggregators.distributed_sum import DistributedSumFactory
from aggregators.params import DistributedSumParams
from tests import statistics_lib

D = 4096
_params = DistributedSumParams(
    clip=1.0, noise_multiplier=1.0, bits=14, dimension=D, cohort_size=20,
    rotation='none').replace


def _encode(params, num_selected, key=(1, 2), vector=None):
  table = share_tables.noise_table(params, num_selected)
  vector = np.zeros(params.dimension, np.float32) if vector is None else vector
  return distributed_sum.encode(
      tf.constant(vector), tf.constant(key, tf.int64), [0, 0], num_selected, params,
      table)


def _decode(total, num_reporting, num_selected, params, key=(5, 6)):
  return distributed_sum.decode(
      total, num_reporting, num_selected, tf.constant(key, tf.int64), [0, 0], params,
      table=share_tables.noise_table(params, num_selected))


def test_nothing_is_drawn_from_another_generator(monkeypatch):
  def forbidden(*_, **__):
    raise AssertionError('Philox was used')

  for module, name in ((keys, '_draw'), (tf.random, 'stateless_poisson'),
                       (tf.random, 'stateless_uniform')):
    monkeypatch.setattr(module, name, forbidden)
  # A share of several draws, a vector long enough to be rounded again, a tie or
  # two, and dropouts.
  params = _params(bits=16, cohort_size=20)
  sent = _encode(params, 1, vector=np.full(D, 1.0, np.float32))
  assert share_tables.draws_of_cohort(params, 1) > 1
  _decode(sent.values, 18, 20, params)
  # Power: with noise beyond tables both fail.
  beyond = _params(bits=24)
  with pytest.raises(AssertionError, match='Philox was used'):
    distributed_sum.encode(tf.zeros([D]), tf.constant([1, 2], tf.int64), [0, 0], 20, beyond)
  with pytest.raises(AssertionError, match='Philox was used'):
    distributed_sum.decode(sent.values, 18, 20, tf.constant([5, 6], tf.int64),
                           [0, 0], beyond)


@pytest.mark.usefixtures('form')
@pytest.mark.parametrize('num_selected', [100, 20, 15, 5, 2, 1])
@pytest.mark.parametrize('mechanism', ['skellam', 'discrete_gaussian'])
def test_shares_of_every_cohort_have_their_variance(mechanism, num_selected):
  params = _params(bits=16, mechanism=mechanism)
  share = share_tables.share_variance(params, num_selected)
  noise = modular_sum.unwrap(_encode(params, num_selected).values, params.bits).numpy()
  statistics_lib.check_variance(noise, share)
  statistics_lib.check_mean(noise, 0, share)


@pytest.mark.usefixtures('form')
@pytest.mark.slow
@pytest.mark.parametrize('bits, cohort_size, num_selected, draws', [
    (18, 20, 20, 1), (18, 20, 2, 5), (20, 40, 3, 11)])
def test_small_cohorts_take_as_many_draws_as_they_need(
    bits, cohort_size, num_selected, draws):
  params = _params(bits=bits, cohort_size=cohort_size, dimension=2**14)
  table = share_tables.noise_table(params, num_selected)
  assert table['draws'] == share_tables.draws_of_cohort(params, num_selected) == draws
  share = share_tables.share_variance(params, num_selected)
  assert table['variance'] == share / draws
  noise = modular_sum.unwrap(_encode(params, num_selected).values, bits).numpy()
  statistics_lib.check_variance(noise, share)
  # Draws of the one share are not each other's copies: that would be a
  # multiple, with gaps.
  edges = np.concatenate([[-np.inf], np.linspace(-3, 3, 41), [np.inf]])
  counts, _ = np.histogram(noise / share**0.5, np.nan_to_num(edges))
  assert statistics_lib.fits(counts, np.diff(stats.norm.cdf(edges)))


@pytest.mark.parametrize('mechanism, num_reporting, num_selected', [
    ('skellam', 12, 20), ('skellam', 1, 1), ('skellam', 7, 5), ('skellam', 0, 0),
    ('discrete_gaussian', 3, 5), ('discrete_gaussian', 7, 20)])
def test_the_noise_of_a_release_is_the_same_for_any_cohort(
    mechanism, num_reporting, num_selected):
  params = _params(min_honest_fraction=0.6, mechanism=mechanism)
  factory = DistributedSumFactory(params)
  state = factory.set_cohort_size(factory.initial_state(), num_selected)
  state['rotation_key'] = np.zeros([2], np.int64)
  contribute = tf.function(
      lambda key: factory.contribute(tf.zeros([D]), key, state)[0], autograph=False)
  total = factory.zero(D)
  for i in range(num_reporting):
    total = factory.add(total, contribute(tf.constant([1, i], tf.int64)))
  _, vector, measurements = factory.release(
      state, total, tf.constant(num_reporting), tf.constant([2, 2], tf.int64))
  variance = params.total_noise_variance * max(1, num_reporting / max(1, num_selected))
  errors = vector.numpy() * params.scale
  statistics_lib.check_variance(errors, variance)
  statistics_lib.check_mean(errors, 0, variance)
  assert bool(measurements['suppressed']) == (num_reporting < 0.6 * num_selected)


def test_compiled_and_uncompiled_clients_and_servers_send_the_same(monkeypatch):
  params = _params(dimension=2**14, bits=18, cohort_size=4)
  vector = np.full(2**14, 2.0**-7, np.float32)

  def both():
    sent = _encode(params, 1, vector=vector).values
    return sent.numpy(), _decode(sent, 1, 4, params).vector.numpy()

  compiled = both()
  monkeypatch.setattr(distributed_sum, '_MIN_COMPILED', 2**30)
  for uncompiled, wanted in zip(both(), compiled):
    np.testing.assert_array_equal(uncompiled, wanted)
  assert share_tables.draws_of_cohort(params, 1) > 1


def test_a_table_of_another_cohort_is_an_error():
  params = _params()
  table = share_tables.noise_table(params, 20)
  for call in (lambda: distributed_sum.encode(
          tf.zeros([D]), tf.constant([1, 2], tf.int64), [0, 0], 19, params, table),
      lambda: distributed_sum.decode(
          tf.zeros([D], tf.int32), 3, 19, tf.constant([1, 2], tf.int64), [0, 0],
          params, table=table)):
    with pytest.raises(tf.errors.InvalidArgumentError,
                       match='noise_table must be that of cohort_size'):
      call()
  # Without one it is that of the cohort, where that is known.
  values = [distributed_sum.encode(
      tf.zeros([D]), tf.constant([1, 2], tf.int64), [0, 0], 20, params, given).values
            for given in (table, None)]
  np.testing.assert_array_equal(*values)


@pytest.mark.parametrize('num_selected, drawn', [(20, True), (15, True), (3, False)])
def test_shares_that_do_not_add_up_are_sampled_beyond_tables(num_selected, drawn):
  # The whole of this discrete Gaussian noise is beyond tables, and so are large shares.
  params = _params(mechanism='discrete_gaussian', bits=18, min_honest_fraction=0.5)
  assert not share_tables.has_all_noise(params)
  table, share = (of(params, num_selected) for of in (
      share_tables.noise_table, share_tables.share_variance))
  assert (table['variance'] == share) == drawn
  noise = modular_sum.unwrap(_encode(params, num_selected).values, params.bits).numpy()
  statistics_lib.check_variance(noise, share)
  # A server makes up for a missing client as clients draw.
  total = _decode(tf.zeros([D], tf.int32), num_selected - 1, num_selected, params)
  statistics_lib.check_variance(total.vector.numpy() * params.scale, share)
