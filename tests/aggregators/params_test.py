"""Tests of aggregators.params."""

import itertools
import math

import mpmath
import pytest

from aggregators.params import DistributedSumParams

_params = DistributedSumParams(
    clip=0.03, noise_multiplier=0.85, bits=18, dimension=1_018_174,
    cohort_size=100).replace


@pytest.mark.parametrize('rotation, dimension, padded', [
    ('hadamard', 1, 1), ('hadamard', 3, 4), ('hadamard', 2**24, 2**24),
    ('hadamard', 2**24 + 1, 35 * 2**19), ('hadamard', 1025, 1280), ('dft', 7, 8), ('dft', 8, 8), ('none', 7, 7)])
def test_padding_is_to_what_the_rotation_needs_and_no_more(rotation, dimension, padded):
  params = _params(rotation=rotation, dimension=dimension)
  assert params.padded_dimension == padded


@pytest.mark.parametrize('changes', [
    {}, dict(bits=12), dict(noise_multiplier=0.0), dict(k_stddevs=2.5),
    dict(min_honest_fraction=0.7), dict(sqrtn_norm_growth=True),
    dict(max_cohort_size=140), dict(rotation='none'), dict(clip=1e-9),
    dict(max_cohort_size=140, sqrtn_norm_growth=True, min_honest_fraction=0.9)])
def test_scale_is_the_formula_of_the_paper(changes):
  params = _params(**changes)
  with mpmath.workdps(40):
    f = mpmath.mpf
    n = f(params.max_cohort_size or params.cohort_size)
    c, k, z, h, d = map(f, (params.clip, params.k_stddevs, params.noise_multiplier,
        params.min_honest_fraction, params.padded_dimension))
    local_variance = z**2 * c**2 / (h * n)
    growth = n if params.sqrtn_norm_growth else n**2
    expected = mpmath.sqrt(f(2)**(2 * params.bits) - n * k**2) / (
        2 * k * mpmath.sqrt(c**2 * growth / d + n * local_variance))
    assert params.scale == pytest.approx(float(expected), rel=1e-13)
    # k standard deviations of a coordinate then fill half the field exactly.
    spread = mpmath.sqrt(growth * c**2 * expected**2 / d + n * (
        f(1) / 4 + expected**2 * local_variance))
    assert float(2 * k * spread) == pytest.approx(2**params.bits, rel=1e-13)


def test_noise_variance_is_that_of_the_noise_multiplier_in_grid_units():
  params = _params(min_honest_fraction=0.8)
  stddev = params.scale * params.clip * params.noise_multiplier
  assert params.noise_variance == pytest.approx(stddev**2, rel=1e-14)
  assert params.total_noise_variance == pytest.approx(stddev**2 / 0.8, rel=1e-14)
  assert params.local_stddev_grid == pytest.approx(
      stddev / math.sqrt(0.8 * 100), rel=1e-14)
  assert params.modulus == 2**18


def _bound(clip_grid, dim, beta):
  """Delta_2^2 of arXiv 2102.06387, Theorem 1."""
  with mpmath.workdps(40):
    x, d = mpmath.mpf(clip_grid), mpmath.mpf(dim)
    bound = (x + mpmath.sqrt(d))**2
    if beta > 0:
      bound = min(bound, x**2 + d / 4 + mpmath.sqrt(
          2 * mpmath.log(1 / mpmath.mpf(beta))) * (x + mpmath.sqrt(d) / 2))
    # With the usual beta the bound is an integer for some clips, up to float64.
    return int(mpmath.floor(bound * (1 + mpmath.mpf(2)**-51)))


@pytest.mark.parametrize('clip_grid, dim, beta', itertools.product(
    [0.01, 1.0, 100.0, 12345.6], [1, 16, 2**20], [0.0, 1e-6, math.exp(-0.5), 0.99]))
def test_sensitivities_are_those_of_the_paper(clip_grid, dim, beta):
  params = _params(clip=1.0, fixed_scale=clip_grid, dimension=dim, beta=beta)
  assert params.l2_sensitivity_squared == _bound(clip_grid, dim, beta)
  assert isinstance(params.l2_sensitivity_squared, int)
  delta_2 = math.sqrt(params.l2_sensitivity_squared)
  assert params.l2_sensitivity == delta_2
  assert params.l1_sensitivity == pytest.approx(
      min(math.sqrt(dim) * delta_2, delta_2**2), rel=1e-14)


@pytest.mark.parametrize('changes', [
    dict(noise_multiplier=1e9), dict(noise_multiplier=1e-6),
    dict(bits=30, k_stddevs=1e-3, noise_multiplier=0.0), dict(k_stddevs=1e-200)])
def test_the_clip_is_within_the_grid_that_integers_hold(changes):
  params = _params(**changes)
  assert 2.0**-60 <= params.clip_grid <= 2.0**30


@pytest.mark.parametrize('cohort_size', [1, 2, 7, 64, 100, 12345])
@pytest.mark.parametrize('k_stddevs', [0.5, 2.0, 4.0])
def test_the_bits_that_the_error_asks_for_are_the_least_that_will_do(
    cohort_size, k_stddevs):
  settings = dict(cohort_size=cohort_size, k_stddevs=k_stddevs)
  enough = next(b for b in range(2, 31) if 4**b > cohort_size * k_stddevs**2)
  assert _params(bits=enough, **settings).scale > 0
  if enough > 2:
    with pytest.raises(ValueError, match=(
        f'bits={enough - 1} .* cohort of {cohort_size} .* '
        f'k_stddevs={k_stddevs:g}.* at least {enough} bits')):
      _params(bits=enough - 1, **settings)


NAN, INF = float('nan'), float('inf')


@pytest.mark.parametrize('field, value', [
    *[(name, bad) for name in ('clip', 'k_stddevs', 'fixed_scale')
      for bad in (0.0, -1.0, NAN, INF, True)],
    *[('noise_multiplier', bad) for bad in (-1e-9, NAN, INF, None)],
    *[('bits', bad) for bad in (1, 31, 16.0, True)],
    *[('dimension', bad) for bad in (0, 1.5, 2**30 + 1)],
    *[('cohort_size', bad) for bad in (0.99, -5, NAN, INF)],
    *[('beta', bad) for bad in (-0.1, 1, NAN)], ('rotation', 'Hadamard'),
    *[('min_honest_fraction', bad) for bad in (0, 1.01, NAN)],
    *[('assumed_colluders', bad) for bad in (-1, 0.5)],
    *[('max_cohort_size', bad) for bad in (99, NAN, INF)],
    *[('cohort_limit', bad) for bad in (0, NAN, INF)],
    ('clip', 1e-21), ('clip', 1e21), ('clip', 5e-324),
    ('fixed_scale', 2.0**30 / 0.0299), ('fixed_scale', 1e-40),
    ('noise_multiplier', 1e200), ('k_stddevs', 1e200)])
def test_impossible_values_are_named(field, value):
  with pytest.raises(ValueError, match=field):
    _params(**{field: value})


def test_a_cohort_beyond_all_bits_is_named():
  with pytest.raises(ValueError, match=r'cohort of 1e\+200 .* 335 bits'):
    _params(cohort_size=1e200)


@pytest.mark.parametrize('fraction, colluders, allowed', [
    (1.0, 0, True), (1.0, 1, False), (0.9, 10, True), (0.9, 11, False),
    (0.7, 30, True), (0.7, 31, False), (0.1, 90, True), (0.1, 91, False)])
def test_as_many_colluders_are_allowed_as_the_honest_fraction_leaves(
    fraction, colluders, allowed):
  settings = dict(min_honest_fraction=fraction, assumed_colluders=colluders)
  if allowed:
    assert _params(**settings).assumed_colluders == colluders
  else:
    with pytest.raises(ValueError, match=f'assumed_colluders={colluders} '):
      _params(**settings)


def test_coarse_grids_say_why_they_are_of_no_use():
  assert _params().degeneracy() is None
  assert 'less than one, at bits=8' in _params(
      bits=8, noise_multiplier=100.0).degeneracy()
  assert 'more than double, at scale=100' in _params(
      clip=1.0, fixed_scale=100.0).degeneracy()
