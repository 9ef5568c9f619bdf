"""Sampling schemes: the cohorts that they sample, and the events of the rounds."""

import fractions
import json
import math

import numpy as np
import pytest
from scipy import stats

from tests import statistics_lib
from tff_pipelines.accounting.events import base, kinds as events, sampled
from tff_pipelines.accounting.guarantees import (
    accountant, ledger as ledger_lib, mechanisms)
from tff_pipelines.accounting.sampling import cohorts, schemes

POPULATION = 400


def _scheme(sampling='poisson', **changes):
  return schemes.build(sampling, **{**dict(
      population=POPULATION, cohort_size=100), **changes})


def _included(scheme, rounds=2000):
  """Which clients were selected: bool [rounds, population]."""
  included = np.zeros([rounds, POPULATION], bool)
  for r in range(rounds):
    chosen = scheme.sample(r)
    assert chosen.dtype == np.int64 and (np.diff(chosen) > 0).all()
    included[r, chosen] = True
  return included


def _check_rate(included, q):
  """Asserts the rate of inclusion: of all, of each client, of each round."""
  statistics_lib.check_mean(included, q, q * (1 - q))
  # Exact tails: a rare client's few inclusions are not nearly normal.
  counts, binomial = included.sum(axis=0), stats.binom(len(included), q)
  tails = np.minimum(binomial.cdf(counts), binomial.sf(counts - 1))
  assert tails.min() > statistics_lib.FALSE_ALARM / 2 / POPULATION


@pytest.mark.parametrize('seed', [None, 3])
@pytest.mark.parametrize('cohort_size', [100, 1, 399.5, 0.25])
def test_poisson_includes_every_client_at_the_rate(seed, cohort_size):
  included = _included(_scheme(simulation_seed=seed, cohort_size=cohort_size))
  q = cohort_size / POPULATION
  _check_rate(included, q)
  for wrong in (q * 2 / 3, min(0.9999, q * 3 / 2)):
    if abs(wrong - q) * (included.size * wrong)**0.5 > 15 * wrong:
      with pytest.raises(AssertionError):
        _check_rate(included, wrong)


@pytest.mark.parametrize('seed', [None, 3])
def test_poisson_includes_clients_independently(seed):
  included = _included(_scheme(simulation_seed=seed)).astype(np.float64)
  q = 0.25
  # The size of the cohort is binomial; of samples of a fixed size it is not.
  sizes = included.sum(axis=1) - 100
  statistics_lib.check_variance(sizes, POPULATION * q * (1 - q), 6 / POPULATION)
  # Neighbours, and the same client in the next round.
  centred = included - q
  for products in (centred[:, 1:] * centred[:, :-1], centred[1:] * centred[:-1],
                   centred[:, ::2] * centred[:, 1::2]):
    statistics_lib.check_mean(products, 0, (q * (1 - q))**2)
  fixed = _included(_scheme(sampling='fixed', simulation_seed=seed))
  assert not statistics_lib.has_second_moment(
      fixed.sum(axis=1) - 100, POPULATION * q * (1 - q))


@pytest.mark.parametrize('cohort_size, population', [
    (1, 3), (2, 3), (100, 539), (7, 1999), (101.5, 3400), (1e-3, 10**6), (3, 10**7)])
def test_poisson_is_sampled_at_the_accounted_rate_or_just_below(
    monkeypatch, cohort_size, population):
  asked = []
  monkeypatch.setattr(schemes.subsets, 'binomial',
                      lambda bits, trials, numerator: asked.append(numerator) or 0)
  scheme = _scheme(cohort_size=cohort_size, population=population)
  assert scheme.sample(0).size == 0
  rate = fractions.Fraction(asked[0], 2**64)
  accounted = scheme.event(GAUSSIAN, 1).sampling_rate
  assert rate <= fractions.Fraction(cohort_size) / population
  assert rate <= fractions.Fraction(accounted)
  assert float(rate) == pytest.approx(accounted, rel=2.0**-48)


@pytest.mark.parametrize('seed', [None, 3])
def test_fixed_is_a_uniform_subset_of_the_exact_size(seed):
  included = _included(_scheme('fixed', cohort_size=37, simulation_seed=seed))
  np.testing.assert_array_equal(included.sum(axis=1), 37)
  q = 37 / POPULATION
  errors = (included.mean(axis=0) - q) / (q * (1 - q) / len(included))**0.5
  assert np.abs(errors).max() < 6.0
  # Pairs: each of them as often as without replacement, within 5 deviations.
  assert np.mean(included[:, ::2] & included[:, 1::2]) == pytest.approx(
      q * 36 / (POPULATION - 1), rel=0.08)


@pytest.mark.parametrize('arguments', [
    dict(sampling='none'), dict(sampling='none', cohort_size=5),
    dict(sampling='poisson', cohort_size=POPULATION),
    dict(sampling='fixed', cohort_size=POPULATION)])
@pytest.mark.parametrize('seed', [None, 1])
def test_all_clients_are_selected_where_nothing_is_sampled(arguments, seed):
  scheme = _scheme(simulation_seed=seed, **arguments)
  for r in range(3):
    np.testing.assert_array_equal(scheme.sample(r), np.arange(POPULATION))


@pytest.mark.parametrize('arguments, message', [
    (dict(sampling='shuffle'), "sampling must be .*'shuffle'"),
    *((dict(population=value), f'population .*{value}') for value in (0, 1.5)),
    *((dict(cohort_size=size), f'cohort_size .*{size}') for size in (0, -3, math.nan)),
    (dict(cohort_size=401), 'cohort_size must be at most population=400, found 401'),
    (dict(sampling='none', cohort_size=401), 'cohort_size .*found 401'),
    (dict(sampling='fixed', cohort_size=1.5), 'integer for sampling=fixed'),
    *(({name: None}, f'{name} must be given for sampling=poisson')
      for name in ('population', 'cohort_size'))])
def test_impossible_arguments_are_named(arguments, message):
  with pytest.raises(ValueError, match=message):
    _scheme(**arguments)


@pytest.mark.parametrize('sampling, expected', [
    ('poisson', {1: [3, 7, 13], 2: [5, 7, 8, 10, 16, 17, 19]}),
    ('fixed', {1: [3, 5, 6, 7, 13, 17], 2: [0, 7, 8, 10, 16, 17]}),
    ('none', {1: list(range(20)), 2: list(range(20))})])
def test_cohorts_of_a_seed_are_always_the_same(sampling, expected):
  scheme = _scheme(sampling, population=20, cohort_size=6, simulation_seed=3)
  assert {r: scheme.sample(r).tolist() for r in expected} == expected


@pytest.mark.parametrize('sampling, expected, largest, planned', [
    ('poisson', 100, 400, cohorts.upper_quantile(400, 0.25)),
    ('fixed', 100, 100, None), ('none', 400, 400, None)])
def test_cohorts_are_expected_planned_for_and_bounded(
    sampling, expected, largest, planned):
  scheme = _scheme(sampling)
  assert (scheme.expected_cohort, scheme.largest_cohort, scheme.planned_cohort) == (
      expected, largest, planned)
  sizes = [len(scheme.sample(r)) for r in range(300)]
  assert max(sizes) <= largest
  assert np.mean(sizes) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize('sampling', ['poisson', 'fixed', 'none'])
def test_most_schemes_keep_no_state(sampling):
  scheme = _scheme(sampling)
  assert scheme.state() == {}
  scheme.restore({})
  with pytest.raises(ValueError, match='state must be empty .* found deck'):
    scheme.restore({'deck': np.arange(3)})


GAUSSIAN = events.CentralGaussian(noise_multiplier=2.0)


@pytest.mark.parametrize('sampling, expected', [('poisson', events.PoissonSampled(
        event=GAUSSIAN, sampling_rate=0.25, pivotal_probability=0.125)),
    ('fixed', events.FixedSizeSampled(
        event=GAUSSIAN, cohort_size=100, population=POPULATION)),
    ('epochs', events.EpochSampled(
        event=GAUSSIAN, cohort_size=100, population=POPULATION)), ('none', GAUSSIAN)])
def test_the_event_of_a_round_is_that_of_its_sampling(sampling, expected):
  scheme = _scheme(sampling)
  for r in (1, 7):
    event = scheme.event(GAUSSIAN, r, 0.125)
    # A repeated round of an epoch is one more for its clients.
    assert event == expected and event.repeated() == (
        GAUSSIAN if sampling == 'epochs' else expected)
  assert scheme.events(GAUSSIAN, 12, 0.125) == events.SelfComposed(
      event=expected, count=12)


def test_pivotal_clients_are_those_of_random_cohorts():
  settings = (0.9, 1, 0.1)
  assert _scheme('poisson').pivotal_probability(*settings) == (
      cohorts.pivotal_probability(POPULATION, 0.25, *settings)) > 0
  for sampling in ('fixed', 'none'):
    assert _scheme(sampling).pivotal_probability(*settings) == 0


@pytest.mark.parametrize('sampling', schemes.SCHEMES)
@pytest.mark.parametrize('rounds', [1, 4, 7])
def test_no_client_is_selected_more_often_than_is_accounted(sampling, rounds):
  scheme = schemes.build(sampling, population=10, cohort_size=4, simulation_seed=1,
                         silos=3 if sampling == 'records' else None)
  selected = np.bincount(np.concatenate(
      [scheme.sample(r) for r in range(1, rounds + 1)]).astype(int), minlength=10)
  assert selected.max() <= sum(
      times for _, times in scheme.event(GAUSSIAN, 1).counted(rounds, 'none'))


def test_the_names_of_the_flags_are_those_of_the_schemes():
  assert tuple(schemes.SCHEMES) == (
      'poisson', 'fixed', 'epochs', 'turns', 'none', 'records')
  assert all(schemes.SCHEMES[name].name == name for name in schemes.SCHEMES)


class Turn(sampled.Sampled):
  """A round of `Groups`: a cost if it is the first of a pass over all groups.

  Attributes:
    event: From one group.
    is_first: Whether the groups before it in the pass are none.
    cohort_size: Minimum number of clients in a group, >= 1.
  """

  is_first: bool
  cohort_size: int

  source = 'a pass over disjoint groups costs what one of them does'
  known = base.any_cohorts

  @property
  def adjacency(self):
    return self.event.adjacency

  def curve(self, max_order, amplification):
    return self.event.curve(max_order, amplification) if self.is_first else (
        np.zeros(max_order - 1))

  def pure_epsilon(self, amplification):
    return self.event.pure_epsilon(amplification) if self.is_first else 0.0

  def failure_probability(self):
    return self.event.failure_probability() if self.is_first else 0.0

  def factors(self, amplification):
    return self.event.factors(amplification) if self.is_first else ()

  def without_sampling(self):
    return self  # Nothing is hidden.

  def counted(self, count, amplification):
    return ((self, count),)

  def repeated(self):
    return self.event

  def minimum_cohort(self):
    return self.cohort_size

  def group(self, clients, known):
    return None  # They may be in groups of their own.

  def caveats(self):
    return self.event.caveats()


class Groups(schemes.SamplingScheme):
  """Selects groups of clients alternately, from a deck that a checkpoint keeps.

  A client is in one group, so that a pass over all of them costs what one does.
  """

  name = 'groups'

  def __init__(self, **arguments):
    super().__init__(**arguments)
    self.groups = int(self.population / self.cohort_size)
    rng = np.random.default_rng(self.simulation_seed)
    self._deck = rng.permutation(self.population)

  def sample(self, round_index):
    return np.sort(self._deck[round_index % self.groups::self.groups])

  def event(self, release, round_index, pivotal_probability=0.0):
    del pivotal_probability  # The sizes of cohorts are public.
    return Turn(event=release, is_first=round_index % self.groups == 1 % self.groups,
                cohort_size=int(self.cohort_size))

  def state(self):
    return {'deck': self._deck}

  def restore(self, state):
    self._deck = state['deck']

  @property
  def planned_cohort(self):
    return None


@pytest.fixture(name='with_groups')
def _with_groups(monkeypatch):
  monkeypatch.setitem(schemes.SCHEMES, 'groups', Groups)


def _mechanism(**changes):
  return mechanisms.SumMechanism(**{**dict(
      mechanism='gaussian', noise_multiplier=2.0, population=12, cohort_size=3.0,
      rounds=10, sampling='groups'), **changes})


def _epsilon(event):
  return accountant.epsilon(event, 1e-5, accountant='rdp')


@pytest.mark.usefixtures('with_groups')
def test_a_registered_scheme_is_sampled_accounted_and_restored():
  mechanism = _mechanism()
  scheme = mechanism.sampling_scheme(simulation_seed=5)
  cohorts = [scheme.sample(r).tolist() for r in range(1, 5)]
  assert sorted(sum(cohorts, [])) == list(range(12))
  resumed = mechanism.sampling_scheme()
  resumed.restore(scheme.state())
  assert [resumed.sample(r).tolist() for r in range(1, 5)] == cohorts
  # Ten rounds are two passes and a half: three releases for the clients of some group.
  assert _epsilon(mechanism.event()) == _epsilon(
      events.SelfComposed(event=GAUSSIAN, count=3))
  first, second = map(mechanism.round_event, (1, 2))
  assert first.is_first and not second.is_first
  assert mechanism.event() == events.Composed(events=[
      events.SelfComposed(event=event, count=count)
      for event, count in ((first, 3), (second, 7))])


@pytest.mark.usefixtures('with_groups')
def test_a_repeated_round_of_a_registered_scheme_costs_what_it_says(tmp_path):
  mechanism = _mechanism()
  scheme = mechanism.sampling_scheme()
  ledger = ledger_lib.Ledger.create(tmp_path / 'ledger.jsonl')
  for r in range(1, 5):
    event = scheme.event(mechanism.release(), r)
    assert event.repeated() == GAUSSIAN
    ledger.append_line(ledger.next_line(
        event, outcome='released', configuration_hash='c', starts=1 + (r >= 3)))
  assert _epsilon(ledger.event()) == _epsilon(GAUSSIAN)
  # The repeated round was the third, which is no first of a pass.
  assert _epsilon(ledger.seen_event()) == _epsilon(
      events.SelfComposed(event=GAUSSIAN, count=2))
  assert base.from_json(json.loads(json.dumps(event.to_json()))) == event


@pytest.mark.usefixtures('with_groups')
def test_every_client_is_pivotal_in_a_scheme_that_does_not_say():
  seen = []

  class Recorder(Groups):
    """Records the probability."""

    def event(self, release, round_index, pivotal_probability=0.0):
      seen.append(pivotal_probability)
      return super().event(release, round_index, pivotal_probability)

  schemes.SCHEMES['groups'] = Recorder
  for mechanism, probability in (('skellam', 1.0), ('skellam_central', 0.0)):
    seen.clear()
    _mechanism(mechanism=mechanism, clip=1.0, bits=16, dimension=8).event()
    assert set(seen) == {probability}
