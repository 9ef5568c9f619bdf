"""Tests of aggregators.adaptive_clip."""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from aggregators import adaptive_clip, modular_sum, structures
from aggregators.adaptive_clip import AdaptiveClipSumFactory
from aggregators.params import AdaptiveClipParams, DistributedSumParams
from tests import statistics_lib

N, D = 40, 12
_params = DistributedSumParams(
    clip=1.0, noise_multiplier=0.0, bits=18, dimension=D, cohort_size=N).replace


def _factory(params=None, count_stddev=0.0, seed=None, **settings):
  return AdaptiveClipSumFactory(
      params or _params(), AdaptiveClipParams(count_stddev=count_stddev, **settings),
      simulation_seed=seed)


def _process(factory):
  value_type = tff.TensorType(np.float32, [D])
  if factory.seeded:
    value_type = structures.keyed_type(value_type)
  return factory.create(value_type)


def _vectors(count=N, seed=0):
  """Updates whose norms are 0.05, 0.10, ... up to 0.05 * count."""
  vectors = np.random.default_rng(seed).normal(size=(count, D))
  norms = 0.05 * np.arange(1, count + 1)
  vectors *= norms[:, np.newaxis] / np.linalg.norm(vectors, axis=1, keepdims=True)
  return list(vectors.astype(np.float32))


def _in_graph_clips(factory, rounds, vectors, present=lambda r: slice(None)):
  """Clips of `rounds` rounds of the pure functions, seeded by the round."""
  state = factory.initial_state()

  @tf.function(autograph=False)
  def next_clip(clip, keys_of_round, chosen):
    now = collections.OrderedDict(state, clip=clip)
    total, _ = tf.while_loop(lambda _, i: i < tf.shape(chosen)[0], lambda total, i: (
            factory.add(total, factory.contribute(
                chosen[i], keys_of_round[i], now)[0]), i + 1),
        (factory.zero(D), tf.constant(0)))
    new, _, measured = factory.release(now, total, tf.shape(chosen)[0], keys_of_round[-1])
    return new['clip'], measured['estimated_fraction_below_clip']

  clip, clips, fractions = state['clip'], [], []
  rng = np.random.default_rng(3)
  stacked = tf.constant(np.array(vectors))
  for r in range(rounds):
    keys_of_round = tf.constant(rng.integers(2**62, size=(len(vectors) + 1, 2)))
    clip, fraction = next_clip(clip, keys_of_round, stacked[present(r)])
    clips.append(float(clip))
    fractions.append(float(fraction))
  return np.array(clips), np.array(fractions)


@pytest.mark.slow
@pytest.mark.parametrize('quantile, initial', [(0.1, 30.0), (0.9, 0.03)])
def test_without_noise_the_clip_finds_the_quantile(quantile, initial):
  factory = _factory(_params(clip=initial), target_quantile=quantile, learning_rate=0.3)
  clips, fractions = _in_graph_clips(factory, 250, _vectors())
  exact = 0.05 * N * quantile
  np.testing.assert_allclose(clips[-10:], exact, rtol=0, atol=0.06)
  np.testing.assert_allclose(fractions[-10:], quantile, atol=0.03)


def test_one_step_is_the_geometric_update(one_worker):
  process = _process(_factory(target_quantile=0.3, learning_rate=0.7))
  state = process.initialize()
  assert state['clip'] == 1.0
  output = process.next(state, _vectors())
  below = 19 / N  # float32 makes the norm of the 20th a little more than 1, or not.
  expected = [np.exp(-0.7 * (b - 0.3)) for b in (below, below + 1 / N)]
  assert any(output.state['clip'] == pytest.approx(e) for e in expected)
  assert output.measurements['clip'] == 1.0
  assert 'num_reporting' not in output.measurements


@pytest.mark.slow
@pytest.mark.parametrize('mechanism', ['skellam', 'skellam_central'])
def test_with_noise_the_clip_stays_near_the_quantile(mechanism):
  factory = _factory(
      _params(noise_multiplier=1.0, mechanism=mechanism), count_stddev=N / 20,
      learning_rate=0.2)
  clips, fractions = _in_graph_clips(factory, 120, _vectors())
  # Of the fraction 0.05, which a step of 0.2 averages over some ten rounds.
  assert abs(clips[40:].mean() - 1.0) < 0.1
  assert clips[40:].max() < 1.3 and clips[40:].min() > 0.75
  assert 0.03 < fractions[40:].std() < 0.08


def test_clients_that_do_not_come_count_as_half_below():
  # Half of the expected cohort, nearly all of it below: a fraction of 3/4.
  factory = _factory(_params(min_honest_fraction=0.5))
  _, fractions = _in_graph_clips(factory, 1, _vectors(), lambda r: slice(0, 15))
  assert fractions[0] == pytest.approx(0.5)  # 15 are too few: suppressed.
  shorter = [0.1 * v for v in _vectors()]
  _, fractions = _in_graph_clips(factory, 1, shorter, lambda r: slice(0, N // 2))
  assert fractions[0] == pytest.approx(0.75)


def test_a_bit_never_exceeds_its_sensitivity():
  for (clipped, not_finite, expected), believed in itertools.product(
      [(0, 0, 1), (1, 0, -1), (0, 1, 0)], [True, False]):
    assert int(adaptive_clip.bit(dict(
        clipped=tf.constant(clipped), not_finite=tf.constant(not_finite),
        cohort_disbelieved=tf.constant(1 - believed)))) == expected * believed
  for vector, value in (([0.5], 1), ([1.0], 1), ([1.001], -1), ([np.nan], 0),
                        ([np.inf], 0), ([3e38], -1), ([0.0], 1)):
    factory = _factory(_params(dimension=1))
    sent, _ = factory.contribute(
        tf.constant(vector, tf.float32), tf.constant([1, 2], tf.int64),
        factory.initial_state())
    assert modular_sum.unwrap(sent, 18).numpy()[-1] == value
    assert sent.shape == [2]


def _count_noise(factory, num_reporting, num_selected, rounds=20_000):
  """Noise in the released count, in the sum of bits, clients' shares included."""
  state = factory.initial_state()
  state['cohort_size'] = tf.constant(num_selected, tf.int32)
  # What this test is about: one coordinate, without its neighbours.
  variance = factory._count_variance  # pylint: disable=protected-access

  @tf.function(autograph=False)
  def one(key):
    total = tf.zeros([1], tf.int64)
    for i in range(num_reporting):
      total += factory._noise(  # pylint: disable=protected-access
          tf.stack([key[0], key[1] + i + 1]), variance / num_selected)
    fraction = factory._fraction_below(  # pylint: disable=protected-access
        modular_sum.wrap(total, 18), num_reporting, num_selected, key)
    return (fraction - 0.5) * 2 * N

  keys_ = tf.constant(np.random.default_rng(0).integers(2**62, size=(rounds, 2)))
  return tf.function(lambda: tf.map_fn(
      one, keys_, fn_output_signature=tf.float64), autograph=False)().numpy()


@pytest.mark.parametrize('num_reporting, num_selected', [(4, 4), (3, 4), (1, 4), (0, 1)])
def test_the_count_has_the_accounted_noise_for_any_cohort(num_reporting, num_selected):
  factory = _factory(_params(min_honest_fraction=0.5), count_stddev=1.5)
  noise = _count_noise(factory, num_reporting, num_selected)
  assert factory._adaptive.noise_variance == 9.0  # pylint: disable=protected-access
  # Shares are sized so that half of them are the 9 of the guarantee.
  statistics_lib.check_variance(noise, 18.0, 1 / 18)
  assert set(np.unique(noise % 1)) <= {0.0} or np.allclose(noise, noise.round())


@pytest.mark.slow
def test_each_client_adds_its_share_of_the_counts_noise():
  factory = _factory(count_stddev=6.0)
  state = factory.initial_state()

  @tf.function(autograph=False)
  def own(key):
    return factory.contribute(tf.zeros([D]), key, state)[0][-1:]

  keys_ = tf.constant(np.random.default_rng(0).integers(2**62, size=(20_000, 2)))
  sent = tf.function(lambda: tf.map_fn(
      own, keys_, fn_output_signature=tf.int32), autograph=False)()
  noise = modular_sum.unwrap(sent, 18).numpy().ravel() - 1
  statistics_lib.check_variance(noise, 144 / N, N / 144)
  central = _factory(_params(mechanism='skellam_central'), count_stddev=6.0)
  values = [int(modular_sum.unwrap(central.contribute(
      tf.zeros([D]), key, central.initial_state())[0], 18)[-1]) for key in keys_[:20]]
  assert values == [1] * 20


def test_the_clip_in_grid_units_stays_while_the_clip_moves():
  params = _params(rotation='none')
  factory = _factory(params)
  vector = tf.constant([1000.0] + [0.0] * (D - 1))
  for clip in (1e-3, 1.0, 50.0):
    state = collections.OrderedDict(
        factory.initial_state(), clip=tf.constant(clip, tf.float64))
    sent, _ = factory.contribute(vector, tf.constant([1, 2], tf.int64), state)
    grid = modular_sum.unwrap(sent, params.bits).numpy()[:-1].astype(np.int64)
    assert grid[0] == pytest.approx(params.clip_grid, abs=1.01)
    assert np.sum(grid**2) <= params.l2_sensitivity_squared
    _, released, measured = factory.release(state, sent, N, [3, 4])
    assert released[0].numpy() == pytest.approx(clip, rel=1e-3)
    assert measured['scale'].numpy() == pytest.approx(params.clip_grid / clip, rel=1e-6)


@pytest.mark.parametrize('settings, message', [(dict(count_stddev=-1.0), 'count_stddev'),
    (dict(count_stddev=float('nan')), 'count_stddev'),
    (dict(target_quantile=1.0), 'target_quantile'),
    (dict(learning_rate=0.0), 'learning_rate')])
def test_settings_out_of_range_are_named(settings, message):
  with pytest.raises(ValueError, match=message):
    AdaptiveClipParams(**{'count_stddev': 1.0, **settings})


@pytest.mark.parametrize('bits, stddev, fits', [
    (8, 2.0, True), (8, 10.0, False), (7, 1.0, True), (6, 1.0, False)])
def test_a_count_that_does_not_fit_the_field_is_refused(bits, stddev, fits):
  params = _params(bits=bits, k_stddevs=1.0)
  if fits:
    _factory(params, count_stddev=stddev)
  else:
    with pytest.raises(ValueError, match=f'bits={bits} are too few for the count'):
      _factory(params, count_stddev=stddev)
