"""Noise-free and local mechanisms: published numbers and limits."""

import math

import pytest

from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import accountant


@pytest.mark.parametrize('records,subset,epsilon,delta', [
    (2880, 16, 0.0056, 0.0055), (2880, 60, 0.0208, 0.0206),
    (2880, 300, 0.1041, 0.0989), (2880, 2880, 0.9998, 0.6322),
    (300, 16, 0.0532, 0.0520), (300, 60, 0.1997, 0.1815),
    (300, 120, 0.3993, 0.3301), (300, 300, 0.9983, 0.6327)])
def test_noise_free_numbers_with_replacement(records, subset, epsilon, delta):
  event = events.Nfdp(records=records, subset_size=subset)
  assert event.published_epsilon == pytest.approx(epsilon, abs=5e-5)
  assert event.draw_probability == pytest.approx(delta, abs=5e-5)


def test_printed_tables_are_decimal_logarithms_of_eighteen_records():
  event = events.Nfdp(records=2880, subset_size=18)
  assert event.published_epsilon / math.log(10) == pytest.approx(0.0027, abs=5e-5)
  assert event.draw_probability == pytest.approx(0.0062, abs=5e-5)


def test_noise_free_without_replacement():
  event = events.Nfdp(records=100, subset_size=20, replacement=False)
  assert event.published_epsilon == pytest.approx(math.log(101 / 81))
  assert event.draw_probability == 0.2


@pytest.mark.parametrize('replacement', [True, False])
def test_draw_probability_is_a_valid_delta_with_epsilon_zero(replacement):
  event = events.Nfdp(records=50, subset_size=5, replacement=replacement)
  delta = event.draw_probability
  assert accountant.epsilon(event, delta) == 0
  assert accountant.epsilon(event, delta * 0.999) == math.inf
  assert accountant.delta(event, 10.0) == delta
  assert any('epsilon 0' in text for text in event.caveats())
  assert any('not a meaningful' in text for text in event.caveats())


def test_sampling_all_records_protects_nothing():
  event = events.Nfdp(records=1, subset_size=3)
  assert event.draw_probability == 1.0
  assert accountant.epsilon(event, 0.999) == math.inf


@pytest.mark.parametrize('kind', [
    events.Piecewise, events.Duchi, events.LocalLaplace])
def test_queries_of_a_local_mechanism_add_up_or_do_better_with_delta(kind):
  event = events.SelfComposed(event=kind(epsilon=0.1), count=200)
  assert accountant.epsilon(event, 0.0) == pytest.approx(20.0)
  assert accountant.epsilon(event, 1e-5) < 8.0
