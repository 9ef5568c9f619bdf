"""Tests of aggregators.banded_sum: rows are opened, sums come out, noise cancels."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from aggregators import distributed_sum, modular_sum, structures
from aggregators.adaptive_clip import AdaptiveClipSumFactory
from aggregators.banded_sum import BandedCentralSumFactory, BandedSumFactory
from aggregators.central_sum import CentralSumFactory
from aggregators.params import AdaptiveClipParams, DistributedSumParams
from tests import statistics_lib

N, D, ROUNDS = 8, 1300, 12
COLUMN = (4, 3, 2)
_params = DistributedSumParams(
    clip=1.0, noise_multiplier=0.5, bits=20, dimension=D, cohort_size=N,
    column=COLUMN).replace


def _updates(round_index):
  vectors = np.random.default_rng(round_index).normal(size=[N, D])
  return (0.9 * vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(
      np.float32)


def _run(factory, rounds=ROUNDS, reporting=lambda index: N, updates=_updates):
  """Errors of the sums, [rounds, D], measurements and states; seeded factories."""
  process = factory.create(structures.keyed_type(tff.TensorType(np.float32, [D])))
  state, errors, measured, states = process.initialize(), [], [], []
  for index in range(rounds):
    vectors = updates(index)[:reporting(index)]
    state = factory.set_cohort_size(state, N)
    output = process.next(state, [
        collections.OrderedDict(value=vector, key=np.array([index, i], np.int64))
        for i, vector in enumerate(vectors)])
    states.append(state := output.state)
    errors.append(output.result - vectors.sum(axis=0, dtype=np.float64))
    measured.append(output.measurements)
  return np.array(errors), measured, states


def _matrix(column, rounds=ROUNDS):
  return sum(weight * np.eye(rounds, k=-band) for band, weight in enumerate(column))


def test_without_noise_every_sum_comes_out_to_the_rounding(in_process):
  params = _params(noise_multiplier=0.0)
  errors, *_ = _run(BandedSumFactory(params, simulation_seed=1))
  # Each client's coordinates are off by half a grid unit on average, and by less than
  # one; nothing adds up over rounds.
  unit = 1 / params.scale
  assert np.abs(errors).max() < N * unit * D**0.5
  assert np.square(errors).mean(axis=1).max() < 2 * N / 4 * unit**2


@pytest.mark.parametrize('kind', ['skellam', 'discrete_gaussian', 'gaussian'])
def test_errors_are_the_quotient_of_fresh_noise_by_the_column(in_process, kind):
  if kind == 'gaussian':
    factory = BandedCentralSumFactory(
        column=COLUMN, dimension=D, clip=1.0, noise_multiplier=0.5, simulation_seed=2)
  else:
    factory = BandedSumFactory(_params(mechanism=kind), simulation_seed=2)
  errors, *_ = _run(factory)
  # Rows of the column times the errors are the fresh noise: independent over rounds, of
  # standard deviation noise_multiplier * clip * |column|.
  fresh, variance = _matrix(COLUMN) @ errors, 0.25 * 29
  statistics_lib.check_variance(fresh, variance)
  assert np.abs(np.corrcoef(fresh) - np.eye(ROUNDS)).max() < 5 / D**0.5
  # The sums alone have more noise, which cancels in the model: the sum of sums.
  model = np.linalg.inv(_matrix(COLUMN)).sum(axis=0)
  statistics_lib.check_variance(errors.sum(axis=0), variance * np.square(model).sum())


def test_fresh_rotations_would_undo_the_cancellation(in_process):
  class Fresh(BandedSumFactory):
    """Takes new signs in every round, as a sum without bands may."""

    def release(self, state, total, num_reporting, key):
      state, *rest = super().release(state, total, num_reporting, key)
      state['rotation_key'] = distributed_sum.keys.derive(key, 7)
      return (state, *rest)

  column, rounds = (16, 15, 14, 13, 13), 20
  one, other = (np.square(np.cumsum(_run(
      kind(_params(column=column), simulation_seed=3), rounds)[0], axis=0)).mean()
                for kind in (BandedSumFactory, Fresh))
  sums, norm = np.linalg.inv(_matrix(column, rounds)), 0.5 * np.linalg.norm(column)
  cancelled = np.square(np.cumsum(sums, axis=0)).sum(axis=1).mean() * norm**2
  # With fresh signs the noise of different rounds adds up in squares.
  independent = np.cumsum(np.square(sums).sum(axis=1)).mean() * norm**2
  assert one == pytest.approx(cancelled, rel=0.15)
  assert other > 0.5 * independent > 2 * one


def test_the_first_half_of_a_contribution_is_that_of_a_sum_without_bands():
  def encoded(params, vector=_updates(0)[0]):
    return distributed_sum.encode(vector, np.array([3, 4], np.int64),
                                  np.array([5, 6], np.int64), N, params).values.numpy()

  params = _params()
  # The same noise, for a sum that has it without bands.
  alone = params.replace(
      column=(1,), fixed_scale=params.scale, noise_multiplier=0.5 * 29**0.5)
  assert alone.noise_variance == pytest.approx(params.noise_variance)
  noise = encoded(alone, np.zeros_like(_updates(0)[0]))
  np.testing.assert_array_equal(np.reshape(encoded(params), [2, -1]), [
      encoded(alone), (encoded(alone) - noise) % params.modulus])


def test_the_state_has_the_closed_sums_and_no_client_receives_them(in_process):
  factory = BandedSumFactory(_params(noise_multiplier=0.0), simulation_seed=1)
  _, _, states = _run(factory, 4)
  closed = [modular_sum.unwrap(state['closed_sums'], 20).numpy() for state in states]
  assert closed[3].shape == (2, 1536)
  np.testing.assert_array_equal(closed[3][1], closed[2][0])
  # Without noise what is released is exactly what is closed.
  np.testing.assert_array_equal(closed[3], states[3]['released_sums'])
  assert len({state['rotation_key'].tobytes() for state in states}) == 1
  process = factory.create(structures.keyed_type(tff.TensorType(np.float32, [D])))
  text = process.next.to_building_block().compact_representation()
  broadcast, = {line for line in text.split('federated_broadcast(')[1:]}
  assert 'selected' not in broadcast
  shared = factory.shared_type(process.initialize.type_signature.result.member)
  assert not {'closed_sums', 'released_sums'} & set(dir(shared))


def test_the_row_of_a_suppressed_round_is_not_opened(in_process):
  factory = BandedSumFactory(_params(min_honest_fraction=0.75), simulation_seed=4)
  errors, measured, states = _run(factory, reporting=lambda index: 2 if index == 5 else N)
  assert [bool(m['suppressed']) for m in measured] == [i == 5 for i in range(ROUNDS)]
  # Nothing is released, and the round's sum counts as zero in later ones.
  for name in ('closed_sums', 'released_sums'):
    assert not np.any(states[5][name][0]) and np.any(states[5][name][1])
  errors[5] = 0
  # All noise of other rounds is there: of 0.75 of the shares counted on.
  fresh = np.delete(_matrix(COLUMN) @ errors, 5, axis=0)
  statistics_lib.check_variance(fresh, 0.25 * 29 / 0.75)


def test_the_row_of_an_empty_cohort_is_not_opened(in_process):
  # All of its noise would be the server's own, which sees earlier sums without it.
  factory, member = BandedSumFactory(_params()), tff.types.to_type((np.float32, [D]))
  process = factory.create(member)
  state = process.next(process.initialize(), list(_updates(0))).state
  output = process.next(factory.set_cohort_size(state, 0), [])
  assert output.measurements['suppressed'] and not np.any(output.result)
  # A server that adds all the noise adds it to a row without clients, too.
  central = BandedSumFactory(_params(mechanism='skellam_central'))
  del state['noise_table']
  output = central.create(member).next(state, [])
  assert not output.measurements['suppressed'] and np.any(output.result)


def test_noise_of_missing_clients_is_topped_up(in_process):
  params = _params(min_honest_fraction=0.5, noise_multiplier=2.0)
  errors, *_ = _run(BandedSumFactory(params, simulation_seed=4),
                    reporting=lambda index: 5 + index % 3)
  statistics_lib.check_variance(_matrix(COLUMN) @ errors, 4.0 * 29 / 0.5)


def test_one_band_is_the_central_sum(in_process):
  arguments = dict(clip=1.0, noise_multiplier=0.5, simulation_seed=6)
  one, *_ = _run(BandedCentralSumFactory(column=(1,), dimension=D, **arguments), 3)
  plain, *_ = _run(CentralSumFactory(**arguments), 3)
  np.testing.assert_allclose(one, plain, atol=1e-6)


def test_bits_are_sized_for_rows():
  rows = _params(bits=16, noise_multiplier=0.0, dimension=2**14)
  one = rows.replace(column=(1,))
  # A row of sums of one direction is 9 times as long.
  assert rows.scale == pytest.approx(one.scale / 9, rel=0.01)
  assert rows.l2_sensitivity / rows.clip_grid > one.l2_sensitivity / one.clip_grid
  # Rows whose sums have one direction, at full norm, do not wrap around.
  assert rows.degeneracy() is None
  assert 'more than double' in _params(bits=12, column=(16,) * 40).degeneracy()
  with pytest.raises(ValueError, match='bits=4 are too few for a cohort of 8'):
    _params(bits=4)


def test_rows_of_one_direction_do_not_wrap_around(in_process):
  same = np.full([N, D], 0.99 * D**-0.5, np.float32)
  factory = BandedSumFactory(_params(noise_multiplier=0.0, bits=16), simulation_seed=8)
  errors, measured, _ = _run(factory, updates=lambda index: same)
  assert max(float(m['estimated_wrapped_fraction']) for m in measured) < 0.01
  assert np.abs(errors).max() < 0.2 * N * D**-0.5


@pytest.mark.parametrize('column, message', [
    ((0, 3), r'column must begin with a positive weight, found \(0, 3\)'),
    *(((4, weight), rf'column\[1\] must be .*found {weight}')
      for weight in (-1, 1.5, float('nan'), 2**20)),
    ((), r'column must begin with a positive weight, found \(\)'),
    ((2,), r'column of one weight must be \(1,\), found \(2,\)'),
    ((1,) * 2000, 'column must have at most 1024 weights, found 2000')])
def test_impossible_columns_are_named(column, message):
  with pytest.raises(ValueError, match=message):
    _params(column=column)
  with pytest.raises(ValueError, match=message):
    BandedCentralSumFactory(column=column, dimension=D, clip=1.0, noise_multiplier=1.0)


def test_other_factories_refuse_bands():
  for build in (distributed_sum.DistributedSumFactory, lambda params: (
      AdaptiveClipSumFactory(params, AdaptiveClipParams(count_stddev=1.0)))):
    with pytest.raises(ValueError, match=r'column must be \(1,\) for .*SumFactory'):
      build(_params())
  factory = BandedCentralSumFactory(
      column=COLUMN, dimension=D, clip=1.0, noise_multiplier=1.0)
  with pytest.raises(ValueError, match='values must have dimension=1300, found 7'):
    factory.create(tff.TensorType(np.float32, [7]))
