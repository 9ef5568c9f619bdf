"""Tests of aggregators.local_dp_mean."""

import collections
import doctest
import re

import numpy as np
import pytest
import tensorflow_federated as tff

from aggregators import local_dp
from aggregators.local_dp_mean import LocalAnswersFactory, LocalMeanFactory
from tests import modules, statistics_lib

D = 20
ROW = np.linspace(-1, 1, D).astype(np.float32)
PIECEWISE = local_dp.Piecewise(epsilon=5.0, dimension=10)
VECTOR = tff.TensorType(np.float32, [D])


def _mean(process, values):
  return process.next(process.initialize(), values)


@pytest.mark.parametrize('mechanism', [
    PIECEWISE, local_dp.Duchi(epsilon=2.0, dimension=5),
    local_dp.Laplace(epsilon=5.0, dimension=4),
    local_dp.Gaussian(noise_multiplier=0.5, dimension=D)])
def test_mean_is_unbiased_with_the_variance_of_its_clients(in_process, mechanism):
  clients, rounds = 20, 60
  process = LocalMeanFactory(mechanism).create(VECTOR)
  state, errors = process.initialize(), []
  for _ in range(rounds):
    output = process.next(state, [ROW] * clients)
    state = output.state
    errors.append(output.result - ROW)
    assert output.measurements['answers'] == clients
  errors = np.array(errors, np.float64)
  variances = np.array([mechanism.variance(float(z)) for z in ROW]) / clients
  scaled = errors / np.sqrt(variances)
  statistics_lib.check_mean(scaled, 0, 1)
  # Coordinates of a client are not independent, so the bound is a loose one.
  assert 0.75 < np.mean(scaled**2) < 1.3


def test_structures_are_cut_into_rows_and_put_together_again(in_process):
  value_type = tff.to_type(collections.OrderedDict(
      a=tff.TensorType(np.float32, [2, 5]), b=tff.TensorType(np.float64, [10])))
  value = collections.OrderedDict(
      a=np.full([2, 5], 0.5, np.float32), b=np.full([10], -0.5))
  result = _mean(LocalMeanFactory(PIECEWISE).create(value_type), [value] * 300).result
  assert result['a'].shape == (2, 5) and result['b'].dtype == np.float64
  assert np.mean(result['a']) == pytest.approx(0.5, abs=0.35)
  assert np.mean(result['b']) == pytest.approx(-0.5, abs=0.35)


def test_noise_is_fresh_for_every_client_and_round(in_process):
  process = LocalMeanFactory(local_dp.Laplace(epsilon=1.0, dimension=D)).create(VECTOR)
  one, other = (_mean(process, [ROW]).result for _ in range(2))
  # On this grid two draws of a coordinate are equal once in 320 times.
  assert np.mean(one != other) > 0.5
  # Two clients with the same value: were their draws equal, the mean would be on
  # the grid of a single draw.
  two = _mean(process, [ROW, ROW]).result
  steps = local_dp.Laplace(epsilon=1.0, dimension=D).steps
  assert np.any(np.rint(two * steps) != two * steps)


def test_clipping_is_measured_only_when_asked_for(in_process):
  assert list(_mean(LocalMeanFactory(PIECEWISE).create(VECTOR), [ROW]
                    ).measurements) == ['answers']
  values = np.append(3 * ROW[1:], np.float32(np.nan))
  measured = _mean(LocalMeanFactory(PIECEWISE, diagnostics=True).create(VECTOR),
                   [values]).measurements
  assert measured['diagnostics']['totals']['outside'] == np.sum(~(np.abs(values) <= 1))


def test_coordinates_that_do_not_fill_rows_are_refused():
  with pytest.raises(ValueError, match='multiple of 10 coordinates.*found 7'):
    LocalMeanFactory(PIECEWISE).create(tff.TensorType(np.float32, [7]))


def test_the_example_of_the_docstring_runs(in_process):
  examples = doctest.DocTestFinder(recurse=False).find(
      LocalMeanFactory, globs={'LocalMeanFactory': LocalMeanFactory,
                               'local_dp': local_dp, 'np': np, 'tff': tff})
  outcome = doctest.DocTestRunner().run(*examples)
  assert outcome.failed == 0 and outcome.attempted > 3


def test_the_example_of_the_page_runs():
  page = (modules.ROOT / 'docs' / 'noise.md').read_text(encoding='utf-8')
  code, = re.findall(r'^```python\n(.*?)^```$', page, re.DOTALL | re.MULTILINE)
  scope = {}
  exec(code, scope)  # pylint: disable=exec-used
  output, mechanism = scope['output'], scope['mechanism']
  assert output.measurements['answers'] == 1000
  error = (mechanism.worst_variance / 1000)**0.5
  assert f'{error:.2f}' in page.splitlines()[-1]
  np.testing.assert_allclose(output.result, scope['vector'], atol=6 * error)


def _answer(queries, value=0.5, **more):
  queries = np.array(queries, np.int32)
  return collections.OrderedDict(
      values=np.full([len(queries), 10], value, np.float32), queries=queries, **more)


def _process(num_queries=4, **arguments):
  factory = LocalAnswersFactory(
      local_dp.Laplace(epsilon=30.0, dimension=10), num_queries, **arguments)
  return factory.create(factory.value_type)


def test_answers_meet_at_their_queries(in_process):
  values = [_answer([0, 2], 0.5)] * 40 + [_answer([2], -0.5)] * 40 + [_answer([])]
  result = _mean(_process(), values).result
  np.testing.assert_array_equal(result['answers'], [40, 0, 80, 0])
  spread = 5 * (2 * 10 / 30) * np.sqrt(2 / 400)
  means = result['means']
  assert means[0].mean() == pytest.approx(0.5, abs=spread)
  assert means[2].mean() == pytest.approx(0.0, abs=spread)
  np.testing.assert_array_equal(means[[1, 3]], np.zeros([2, 10]))


def test_two_answers_of_a_client_have_noise_of_their_own(in_process):
  means = _mean(_process(), [_answer([0, 1])]).result['means']
  assert np.mean(means[0] != means[1]) > 0.5


def test_answers_without_queries_are_refused():
  with pytest.raises(TypeError, match='values must be of the type'):
    LocalAnswersFactory(PIECEWISE, 3).create(VECTOR)
  with pytest.raises(ValueError, match='num_queries .*0'):
    LocalAnswersFactory(PIECEWISE, 0)
