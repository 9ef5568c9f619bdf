"""The observers that the amplified epsilon covers: the cost of a published cohort.

Others hold the clip along one direction, the client twice as far against it or
zero: the true releases of 1,500 rounds of the federated EMNIST setting with
Gaussian noise, composed by their privacy loss distribution.
"""

import numpy as np
import pytest
from scipy import stats

from tff_pipelines.accounting.divergences import pairs, pld
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import accountant

NOISE, COHORT, POPULATION, ROUNDS = 0.848, 100, 3400, 1500
RATE, DELTA = COHORT / POPULATION, 1 / POPULATION


class Cells(pairs.Pair):
  """A pair given by its masses on the same fine cells, with and without."""

  release: str

  def atoms(self, cells):
    del cells
    p, q = (RELEASES[self.release](shift) for shift in SHIFTS[self.release])
    seen = (p > 1e-280) & (q > 1e-280)
    p, q = p[seen], q[seen]
    loss = np.log(p) - np.log(q)
    return (pairs.Atoms(loss=loss, p=p, q=q), pairs.Atoms(loss=-loss, p=q, q=p))


def masses(edges):
  return np.where(edges[:-1] + edges[1:] < 0,
                  stats.norm.cdf(edges[1:]) - stats.norm.cdf(edges[:-1]),
                  stats.norm.sf(edges[:-1]) - stats.norm.sf(edges[1:]))


def size_hidden(shift):
  """The sum over the constant q N, nothing else."""
  edges = np.linspace(-38, 41, 60_001)
  return (1 - RATE) * masses(edges / NOISE) + RATE * masses((edges - shift) / NOISE)


def divided_by_size(shift):
  """The sum over the number m of the round's clients, m itself unseen."""
  edges = np.linspace(-0.6, 0.6, 20_001)
  sizes = np.arange(50, 161)
  weights = stats.binom.pmf(sizes, POPULATION, RATE)
  total = np.zeros(edges.size - 1)
  for m, weight in zip(sizes, weights / weights.sum()):
    rate = m / POPULATION
    total += weight * ((1 - rate) * masses(edges * m / NOISE) +
                       rate * masses((edges * m - shift) / NOISE))
  return total


RELEASES = {'hidden': size_hidden, 'published': size_hidden, 'divided': divided_by_size}
# Hidden: the sum moves by what the client sends. Otherwise another client would have
# its place among the known number of participants.
SHIFTS = {'hidden': (1, 0), 'published': (2, 1), 'divided': (2, 1)}


def epsilon_of(release):
  return pld.bracket(((Cells(release=release), ROUNDS),), DELTA)[0]


def test_amplified_epsilon_is_that_of_a_release_that_hides_the_cohort():
  event = events.SelfComposed(event=events.PoissonSampled(
          event=events.CentralGaussian(noise_multiplier=NOISE),
          sampling_rate=RATE), count=ROUNDS)
  claimed = accountant.epsilon(event, DELTA)
  assert epsilon_of('hidden') == pytest.approx(claimed, rel=2e-3)
  assert claimed == pytest.approx(8.57, rel=1e-2)
  by_rdp = accountant.epsilon(event, DELTA, accountant='rdp')
  assert claimed < by_rdp == pytest.approx(10.0, abs=0.01)


def test_a_published_cohort_size_breaks_the_amplified_epsilon():
  assert epsilon_of('published') == pytest.approx(38.1, rel=5e-3)


@pytest.mark.slow
def test_dividing_by_the_cohort_size_breaks_the_amplified_epsilon():
  assert epsilon_of('divided') == pytest.approx(31.9, rel=1e-2)
