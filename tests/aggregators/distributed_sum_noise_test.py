"""Tests of aggregators.distributed_sum: shares, dropouts, suppressed rounds.

The release carries the same noise for any number of reporting clients.
"""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import distributed_sum, modular_sum
from aggregators.distributed_sum import DistributedSumFactory
from aggregators.params import DistributedSumParams
from tests import statistics_lib

D = 4096
_params = DistributedSumParams(
    clip=1.0, noise_multiplier=1.0, bits=14, dimension=D, cohort_size=20,
    rotation='none').replace


def _total(params, num_reporting, num_selected, value=0.0, seed=0):
  """The sum of what clients send."""
  vector = np.full(D, value, np.float32)
  encode = tf.function(lambda k: distributed_sum.encode(
      tf.constant(vector), k, [0, 0], num_selected, params).values, autograph=False)
  total = np.zeros(D, np.int32)
  for i in range(num_reporting):
    sent = encode(tf.constant([seed, i], tf.int64))
    total = modular_sum.add(total, sent, params.bits)
  return tf.constant(total)


def _release(params, num_reporting, num_selected, value=0.0, seed=0):
  """The release of a round, grid units, and its measurements."""
  out = distributed_sum.decode(
      _total(params, num_reporting, num_selected, value, seed), num_reporting,
      num_selected, tf.constant([seed, -1], tf.int64), [0, 0], params)
  return out.vector.numpy() * params.scale, out.measurements


@pytest.mark.parametrize('honest', [1.0, 0.6])
@pytest.mark.parametrize('num_reporting, num_selected', [
    (20, 20), (12, 20), (5, 5), (37, 37), (3, 5),  # Dropouts, unexpected cohorts.
    (25, 20), (7, 20), (0, 0)])  # More than were selected, too few.
def test_the_noise_of_a_release_is_the_same_for_any_cohort(
    honest, num_reporting, num_selected):
  params = _params(min_honest_fraction=honest)
  errors, measurements = _release(params, num_reporting, num_selected)
  variance = params.total_noise_variance * max(1, num_reporting / max(1, num_selected))
  statistics_lib.check_variance(errors, variance)
  statistics_lib.check_mean(errors, 0, variance)
  assert bool(measurements['suppressed']) == (num_reporting < honest * num_selected)


@pytest.mark.usefixtures('form')
@pytest.mark.slow
@pytest.mark.parametrize('stated', [56, 2**31 - 1])
def test_a_server_that_states_too_large_a_cohort_gets_noise_and_no_data(in_process, stated):
  # 55.7 is believed: 20 + sqrt(2 * 20 * ln 1e9) + ln 1e9 / 3.
  params = _params()
  factory = DistributedSumFactory(params, diagnostics=True)
  state = factory.set_cohort_size(factory.initial_state(), stated)
  vector = tf.fill([D], np.float32(D**-0.5))
  shift = D**-0.5 * params.scale
  share = params.total_noise_variance / params.believed_cohort
  for cohort, mean in ((stated, 0.0), (55, shift)):
    own = factory.set_cohort_size(state, cohort)
    sent, diagnostics = tf.function(factory.contribute)(
        vector, tf.constant([cohort, 1], tf.int64), own)
    values = modular_sum.unwrap(sent, params.bits).numpy()
    statistics_lib.check_mean(values, mean, share + 1 / 4)
    assert diagnostics['cohort_disbelieved'] == (mean == 0)
  # The share is as large as in the largest cohort that is believed.
  sent, _ = factory.contribute(tf.zeros([D]), tf.constant([stated, 2], tf.int64), state)
  statistics_lib.check_variance(modular_sum.unwrap(sent, params.bits).numpy(), share)
  # The release of an honest server that states it by mistake is all noise.
  process = factory.create(tff.TensorType(np.float32, [D]))
  output = process.next(state, [vector.numpy()] * 3)
  assert output.measurements['public']['suppressed']
  statistics_lib.check_variance(output.result * params.scale, params.total_noise_variance)


def test_a_trusted_server_may_tell_any_cohort():
  params = _params(mechanism='skellam_central')
  sent = distributed_sum.encode(
      tf.fill([D], np.float32(D**-0.5)), tf.constant([1, 1], tf.int64), [0, 0], 10**6,
      params)
  assert np.any(modular_sum.unwrap(sent.values, params.bits).numpy())


def test_reporting_clients_at_the_honest_fraction_carry_the_noise_of_the_guarantee():
  # What the server sees before it adds anything.
  params = _params(min_honest_fraction=0.6)
  total = modular_sum.unwrap(_total(params, 12, 20), params.bits)
  statistics_lib.check_variance(total.numpy(), params.noise_variance)


@pytest.mark.parametrize('fraction, colluders, num_selected, minimum', [
    (1.0, 0, 20, 20), (0.7, 0, 10, 7), (0.6, 3, 20, 15), (1 / 3, 0, 9, 3),
    (0.5, 0, 7, 4)])
def test_a_round_is_suppressed_below_the_minimum_and_not_at_it(
    fraction, colluders, num_selected, minimum):
  params = _params(min_honest_fraction=fraction, assumed_colluders=colluders, bits=10)
  for num_reporting, suppressed in [
      (minimum, False), (minimum - 1, True), (num_selected, False)]:
    out = distributed_sum.decode(
        tf.zeros([D], tf.int32), num_reporting, num_selected, [1, 1], [0, 0], params)
    assert bool(out.measurements['suppressed']) == suppressed, num_reporting


@pytest.mark.parametrize('num_reporting', [0, 11, 14])
def test_a_suppressed_round_releases_noise_alone(num_reporting):
  params = _params(min_honest_fraction=0.6, assumed_colluders=3)
  value = D**-0.5
  errors, measurements = _release(params, num_reporting, 20, value=value)
  assert bool(measurements['suppressed'])
  statistics_lib.check_mean(errors, 0, params.total_noise_variance)
  statistics_lib.check_variance(errors, params.total_noise_variance)
  # Power: the clients' values would have been seen.
  if num_reporting:
    shift = num_reporting * value * params.scale
    with pytest.raises(AssertionError):
      statistics_lib.check_mean(errors + shift, 0, params.total_noise_variance)


def test_the_top_up_of_every_round_is_fresh():
  params = _params()
  first, _ = _release(params, 0, 20, seed=1)
  second, _ = _release(params, 0, 20, seed=2)
  assert np.mean(first != second) > 0.9


@pytest.mark.parametrize('num_reporting, num_selected', [(4, 6), (0, 6)])
def test_the_factory_reads_the_cohort_from_its_state(
    in_process, num_reporting, num_selected):
  params = _params(min_honest_fraction=0.5, cohort_size=20, bits=12)
  factory = DistributedSumFactory(params)
  process = factory.create(tff.TensorType(np.float32, [D]))
  state = factory.set_cohort_size(process.initialize(), num_selected)
  clients = [np.zeros(D, np.float32)] * num_reporting
  output = process.next(state, clients)
  assert output.measurements['suppressed'] == (num_reporting < num_selected / 2)
  assert output.state['cohort_size'] == num_selected
  statistics_lib.check_variance(
      output.result * params.scale, params.total_noise_variance)
  # Written by hand the state has the table of another cohort.
  state = collections.OrderedDict(
      process.initialize(), cohort_size=np.int32(num_selected))
  with pytest.raises(tf.errors.InvalidArgumentError, match='must be that of cohort_size'):
    process.next(state, clients)


def test_the_cohort_of_the_state_is_the_expected_one_until_set():
  params = _params(cohort_size=20.4)
  factory = DistributedSumFactory(params)
  state = factory.initial_state()
  assert int(state['cohort_size']) == 20
  assert factory.set_cohort_size(state, 33)['cohort_size'] == 33
  assert int(state['cohort_size']) == 20
  for bad in (-1, 1.5, True):
    with pytest.raises(ValueError, match=f'cohort_size .*{bad}'):
      factory.set_cohort_size(state, bad)
