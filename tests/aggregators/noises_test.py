"""Mechanisms of noise are objects: what they leave unsaid is refused."""

import dataclasses
import json
import math

import pytest

from aggregators import alias_table
from aggregators import distributed_sum
from aggregators import noises
from aggregators import params as params_lib
from aggregators import share_tables
from aggregators.native import marks
from tff_pipelines.accounting.guarantees import mechanisms

PARAMS = params_lib.DistributedSumParams(
    clip=1.0, noise_multiplier=1.0, bits=16, dimension=8, cohort_size=10)


def _weights(variance):
  """Integers proportional to a centred binomial distribution of 4 v trials."""
  half = round(2 * variance)
  return [math.comb(2 * half, half + k) << 200 for k in range(half + 1)]


BINOMIAL = dict(
    name='binomial', has_shares=True, is_divisible=True, smallest_share=0.0,
    tables=alias_table.Family(lambda variance: round(2 * variance), _weights),
    sampler='poisson', sampler_total_variation=None, in_kernels=False)


def test_unknown_name_is_refused_wherever_it_arrives():
  rule = 'mechanism must be one of .*binomial'
  with pytest.raises(ValueError, match=rule):
    noises.named('binomial')
  with pytest.raises(ValueError, match=rule):
    PARAMS.replace(mechanism='binomial')
  mark = json.dumps({**json.loads(marks.text(PARAMS)), 'mechanism': 'binomial'})
  with pytest.raises(ValueError, match=rule):
    marks.parameters(mark.encode())
  # Parameters that were changed by force are refused too.
  forged = dataclasses.replace(PARAMS)
  object.__setattr__(forged, 'mechanism', 'binomial')
  for ask in (share_tables.tables, share_tables.most_shares, marks.is_supported,
              distributed_sum.DistributedSumFactory):
    with pytest.raises(ValueError, match=rule):
      ask(forged)
  with pytest.raises(ValueError, match=rule):
    distributed_sum.sample_noise([0, 1], [3], 1.0, forged)
  with pytest.raises(ValueError, match='mechanism must be one of'):
    mechanisms.build('binomial')


@pytest.mark.parametrize('name', [field.name for field in dataclasses.fields(
    noises.Noise)])
def test_mechanism_that_leaves_something_unsaid_cannot_be_built(name):
  with pytest.raises(TypeError, match=name):
    noises.Noise(**{key: value for key, value in BINOMIAL.items() if key != name})


@pytest.mark.parametrize('changes, rule', [
    ({'sampler': 'binomial'}, 'sampler must be one of'),
    ({'tables': 'skellam'}, 'tables must be a family'),
    ({'has_shares': 'clients'}, 'has_shares must be True or False'),
    ({'in_kernels': None}, 'in_kernels must be True or False'),
    ({'smallest_share': math.nan}, 'smallest_share must be'),
    ({'sampler_total_variation': 2.0}, 'sampler_total_variation must be'),
    ({'is_divisible': False}, 'sampler_total_variation of binomial must be given'),
])
def test_mechanism_that_misstates_something_cannot_be_built(changes, rule):
  with pytest.raises(ValueError, match=rule):
    noises.Noise(**{**BINOMIAL, **changes})


def test_new_mechanism_draws_from_its_own_tables_and_outside_the_kernels(monkeypatch):
  monkeypatch.setitem(noises.NOISES, 'binomial', noises.Noise(**BINOMIAL))
  params = PARAMS.replace(mechanism='binomial', fixed_scale=4.0)
  assert share_tables.tables(params) is BINOMIAL['tables']
  assert not marks.is_supported(params)
  assert marks.is_supported(params.replace(mechanism='skellam'))
  table = share_tables.noise_table(params, 10)
  assert table['variance'] == share_tables.share_variance(params, 10)
  # It has a sum and no event yet: nothing accounts for it.
  with pytest.raises(ValueError, match='mechanism must be one of'):
    mechanisms.build('binomial')


def test_each_mechanism_has_an_event_that_agrees_on_who_adds_the_noise():
  for name, noise in noises.NOISES.items():
    params = PARAMS.replace(mechanism=name)
    event = mechanisms.build(
        name, clip=1.0, noise_multiplier=1.0, bits=16, dimension=8, cohort_size=10,
        population=10).release()
    assert event.has_shares() == noise.has_shares == params.has_shares
