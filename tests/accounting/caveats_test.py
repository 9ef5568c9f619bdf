"""Caveats are their text, and have a name in addition."""

import json
import math
import pickle

import pytest

from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import accountant, answers, mechanisms
from tff_pipelines.common import caveats

CAVEAT = caveats.Caveat('large epsilon', 'epsilon=40 says next to nothing')


def test_a_caveat_is_its_text():
  text = 'epsilon=40 says next to nothing'
  assert CAVEAT == text and hash(CAVEAT) == hash(text) and f'{CAVEAT}' == text
  assert isinstance(CAVEAT, str) and CAVEAT.name == 'large epsilon'
  assert dict.fromkeys([CAVEAT, text]) == {text: None}
  assert json.dumps([CAVEAT]) == f'["{text}"]'
  for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
    read = pickle.loads(pickle.dumps(CAVEAT, protocol))
    assert type(read) is str and read == text


@pytest.mark.parametrize('name, text, message', [
    ('', 'a text', "name must be a non-empty string, found ''"),
    ('a name', '', "text must be a non-empty string, found ''"),
    (None, 'a text', 'name must be a non-empty string, found None'),
    ('a name', 3, 'text must be a non-empty string, found 3'),
    (41 * 'a', 'a text', 'name must have at most 40 characters')])
def test_impossible_caveats_are_named(name, text, message):
  with pytest.raises(ValueError, match=message):
    caveats.Caveat(name, text)
  assert caveats.Caveat(40 * 'a', 'a text').name == 40 * 'a'


def _names(warnings):
  assert all(isinstance(warning, caveats.Caveat) for warning in warnings)
  return [warning.name for warning in warnings]


def test_numbers_of_a_guarantee_are_judged_by_name():
  assert accountant.warnings_about(1.0, 1e-6, 1000) == []
  assert _names(accountant.warnings_about(21.0, 1e-2, 1000)) == [
      'large epsilon', 'delta not below 1/population']
  assert _names(accountant.warnings_about(math.inf, 1e-6, None)) == ['no finite epsilon']
  sampled = events.PoissonSampled(
      event=events.CentralGaussian(noise_multiplier=1.0), sampling_rate=0.1)
  guarantee = accountant.bound(sampled, 1e-2, population=1000)
  assert _names(guarantee.caveats) == [
      'cohorts assumed to be hidden', 'delta not below 1/population']
  assert accountant.bound(sampled, 1e-6, amplification='none').caveats == ()


GRID = dict(clip=10.0, dimension=250, cohort_size=100.0, population=1000, bits=8,
            noise_multiplier=1.0, sampling='poisson')


@pytest.mark.parametrize('mechanism, settings, names', [('skellam', GRID, [
        'cohorts assumed to be hidden', 'degenerate grid',
        'little noise if all others collude']),
    ('discrete_gaussian', {**GRID, 'bits': 20}, [
        'cohorts assumed to be hidden', 'little noise if all others collude',
        'approximate amplification']),
    ('skellam', {**GRID, 'bits': 20, 'cohort_size': 1, 'sampling': 'fixed'}, [
        'cohorts assumed to be hidden', 'participants: a cohort may be of one']),
    ('skellam', {**GRID, 'bits': 20, 'min_honest_fraction': 0.9, 'dropout_rate': 0.1}, [
        'cohorts assumed to be hidden', 'suppression depends on single clients',
        'shares of all clients counted on', 'little noise if all others collude']),
    ('gaussian', dict(noise_multiplier=0.1, sampling='poisson', cohort_size=1.0,
                      population=1000), ['cohorts assumed to be hidden', 'large epsilon',
        'large epsilon against the server']),
    ('none', {}, ['infinite epsilon', 'no noise']),
    ('nfdp', dict(records=10, subset_size=5), [
        'drawn records are not protected', 'delta not below 1/records',
        'delta not used']),
    ('laplace', dict(epsilon=1.0), ['floating-point arithmetic']),
    ('knn_vote', dict(neighbours=5, noise_stddev=9.0, bound='paper',
                      level='instance'), [
        'published sensitivity', 'published conversion'])])
def test_answers_name_their_warnings(mechanism, settings, names):
  answer = answers.answer(answers.Query(delta=1e-5, allow_degenerate=True),
      mechanisms.build(mechanism, **settings))
  assert _names(answer.caveats) == names
