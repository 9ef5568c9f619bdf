"""The numbers of the figure of the mechanisms."""

import pytest

from benchmarks import ldp_mechanisms as figure


def test_the_piecewise_mechanism_is_better_from_the_published_epsilon_on():
  assert figure.crossing() == pytest.approx(1.29, abs=0.01)
  assert figure.worst_variance('piecewise', 1.2) > figure.worst_variance('duchi', 1.2)
  assert figure.worst_variance('piecewise', 1.4) < figure.worst_variance('duchi', 1.4)


@pytest.mark.parametrize('name', figure.NAMES)
@pytest.mark.parametrize('epsilon', [0.5, 2.0, 8.0])
def test_lines_are_what_is_drawn(name, epsilon):
  variance, half = figure.measured_variance(name, epsilon, 20_000)
  # Three of the half widths, which are 1.96 standard errors: one in 10^8.
  assert variance == pytest.approx(
      figure.worst_variance(name, epsilon), abs=3 * half, rel=1e-6)
  # More here: the errors are few and skewed, and so is their standard error.
  sizes = dict(clients=200, dimension=10)
  error, half = figure.measured_error(name, epsilon, repeats=40, **sizes)
  assert error == pytest.approx(
      figure.expected_error(name, epsilon, **sizes), abs=4 * half)


@pytest.mark.parametrize('name', figure.LABEL_NAMES)
def test_lines_of_labels_are_what_is_drawn(name):
  sizes = dict(clients=200, dimension=10, labels=True)
  error, half = figure.measured_error(name, 1.0, repeats=40, **sizes)
  assert error == pytest.approx(figure.expected_error(name, 1.0, **sizes), abs=4 * half)


def test_sets_have_the_least_error_of_labels_at_every_epsilon():
  for epsilon in (0.5, 1.0, 2.0, 5.0):
    error = {name: figure.expected_error(
        name, epsilon, clients=1, dimension=10, labels=True)
             for name in figure.LABEL_NAMES}
    assert min(error, key=error.get) in ('krr', 'subset')
    assert error['subset'] <= error['krr'] * (1 + 1e-9)
