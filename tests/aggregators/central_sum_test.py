"""Tests of aggregators.central_sum."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from aggregators.central_sum import CentralSumFactory
from tests import statistics_lib

D = 3000


def _process(value_type=tff.TensorType(np.float32, [D]), **arguments):
  return CentralSumFactory(**{**dict(clip=1.0, noise_multiplier=0.0),
                              **arguments}).create(value_type)


def _sum(process, values):
  return process.next(process.initialize(), values).result


def _updates(count=8):
  vectors = np.random.default_rng(0).normal(size=(count, D))
  vectors *= np.linspace(0.3, 3.1, count)[:, None] / np.linalg.norm(
      vectors, axis=1, keepdims=True)
  return vectors.astype(np.float32)


def clipped_sum(vectors, clip=1.0):
  vectors = np.asarray(vectors, np.float64)
  norms = np.linalg.norm(vectors, axis=1, keepdims=True)
  return np.sum(vectors * np.minimum(1, clip / norms), axis=0)


def test_without_noise_it_is_the_clipped_sum(in_process):
  vectors = _updates()
  np.testing.assert_allclose(
      _sum(_process(), list(vectors)), clipped_sum(vectors), atol=1e-6)


@pytest.mark.parametrize('clients', [8, 1, 0])
def test_noise_is_that_of_the_multiplier_for_any_cohort(in_process, clients):
  vectors = _updates()[:clients]
  process = _process(clip=0.5, noise_multiplier=3.0)
  errors = _sum(process, list(vectors)) - clipped_sum(vectors, 0.5)
  statistics_lib.check_variance(errors, 1.5**2)
  statistics_lib.check_mean(errors, 0, 1.5**2)


def test_noise_of_every_round_is_fresh(in_process):
  process = _process(noise_multiplier=1.0)
  state, zeros = process.initialize(), [np.zeros(D, np.float32)]
  results = [process.next(state, zeros).result for _ in range(2)]
  assert np.mean(results[0] != results[1]) > 0.99


def test_nothing_is_measured_unless_diagnostics_are_asked_for(in_process):
  off = _process().next.type_signature.result.measurements
  assert not list(off.member.children())
  process = _process(diagnostics=True)
  vectors = _updates()
  vectors[0, 0] = np.nan
  measured = process.next(process.initialize(), list(vectors)).measurements
  norms = np.linalg.norm(vectors[1:], axis=1)
  assert measured['diagnostics'] == collections.OrderedDict(
      num_reporting=8, totals=collections.OrderedDict(
          clipped=int(np.sum(norms > 1)), not_finite=1))


@pytest.mark.parametrize('arguments, message', [
    (dict(clip=0.0), 'clip .*0.0'), (dict(clip=float('nan')), 'clip .*nan'),
    (dict(noise_multiplier=-0.5), 'noise_multiplier .*-0.5'),
    (dict(noise_multiplier=float('inf')), 'noise_multiplier .*inf')])
def test_impossible_arguments_are_named(arguments, message):
  with pytest.raises(ValueError, match=message):
    _process(**arguments)
