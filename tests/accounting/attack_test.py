"""An attack on the samplers that run in the graph.

A distinguisher sees 10^6 releases of a count, with the client and without, and
estimates P[E] - e^epsilon Q[E] for every threshold event E. It must never exceed
a claimed delta, and must exceed a claim that is 20% smaller, in delta or in
epsilon. Seeds are fixed; margins are 5 standard errors, so that with other seeds a
correct sampler would fail less than once in 10^5 runs.
"""

import math

import numpy as np
import pytest
import tensorflow as tf

from aggregators import alias_table, keys, noisy_rounding, skellam
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import accountant

DRAWS = 10**6
BITS = 20


def by_poisson(value, variance, seed):
  """Releases of `value` by the sampler of Poisson draws."""
  return value + skellam.sample(
      tf.constant(keys.from_seed(seed)), [DRAWS], variance).numpy()


def by_table(value, variance, seed):
  """Releases of `value` by the kernel that rounds, adds noise and wraps."""
  table = alias_table.SKELLAM.build(variance)
  released, _, fell_back = noisy_rounding.noisy_round(
      tf.fill([DRAWS], float(value)), tf.constant(keys.from_seed(seed)),
      DRAWS * value**2, noisy_rounding.TableNoise(
          packed=tf.constant(table.packed), tie=tf.constant(table.tie)), BITS)
  assert not bool(fell_back)
  released = released.numpy().astype(np.int64)
  return np.where(released >= 2**(BITS - 1), released - 2**BITS, released)


def attack(with_client, without_client, epsilon):
  """(estimate, standard error) of the best threshold event."""
  low = min(with_client.min(), without_client.min())
  size = max(with_client.max(), without_client.max()) - low + 1
  # P[release >= threshold] for every threshold.
  p, q = (np.bincount(x - low, minlength=size)[::-1].cumsum()[::-1] / DRAWS
          for x in (with_client, without_client))
  gain = p - math.exp(epsilon) * q
  best = int(np.argmax(gain))
  error = math.sqrt((p[best] * (1 - p[best]) + math.exp(2 * epsilon) * q[best] *
                     (1 - q[best])) / DRAWS)
  return gain[best], error


@pytest.mark.parametrize('release', [by_poisson, by_table])
@pytest.mark.parametrize('variance,epsilon', [(2.0, 0.7), (9.0, 0.25)])
def test_attack_meets_the_claim_and_refutes_smaller_ones(release, variance, epsilon):
  event = events.SkellamCount(noise_variance=variance)
  delta = accountant.delta(event, epsilon)
  seen = [release(value, variance, seed=17 + value) for value in (1, 0)]
  # Both directions: the noise is symmetric.
  for first, second in (seen, [-seen[1], -seen[0]]):
    gain, error = attack(first, second, epsilon)
    assert gain <= delta + 5 * error
    # A smaller delta at this epsilon is refuted ...
    assert gain - 5 * error > 0.8 * delta
    # ... and so is a smaller epsilon at this delta.
    gain, error = attack(first, second, 0.8 * epsilon)
    assert gain - 5 * error > delta
  assert accountant.epsilon(event, delta) == pytest.approx(epsilon, rel=2e-3)


@pytest.mark.parametrize('release', [by_poisson, by_table])
def test_attack_sees_noise_that_is_a_fifth_too_small(release):
  variance, epsilon = 9.0, 0.25
  claimed = accountant.delta(events.SkellamCount(noise_variance=variance), epsilon)
  seen = [release(value, variance * 0.8, seed=5 + value) for value in (1, 0)]
  gain, error = attack(*seen, epsilon)
  assert gain - 5 * error > claimed
