"""Audits: sound mechanisms stay below their claims, planted faults are found."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from benchmarks import planted_faults
from tests.programs import in_process
from tff_pipelines.audit import lower_bounds, releases, run
from tff_pipelines.audit import settings as settings_lib

pytestmark = pytest.mark.usefixtures('shared_context')


def test_limits_are_those_of_clopper_and_pearson():
  for count, trials in ((0, 50), (3, 50), (49, 50), (50, 50)):
    exact = stats.binomtest(count, trials).proportion_ci(0.9, method='exact')
    assert lower_bounds.least_rate(count, trials, 0.95) == pytest.approx(exact.low)
    assert lower_bounds.most_rate(count, trials, 0.95) == pytest.approx(exact.high)


def test_a_bound_is_near_the_truth_and_above_it_as_rarely_as_stated():
  # Randomized response of epsilon 1: the truth is the only output with a probability
  # of 0.731.
  epsilon, rng, above = 1.0, np.random.default_rng(4), 0
  right = math.exp(epsilon) / (1 + math.exp(epsilon))
  for _ in range(200):
    present, absent = (rng.random(2000) < p for p in (right, 1 - right))
    found = lower_bounds.lower_bound(present, absent, 0.0)
    above += found.epsilon > epsilon
    assert 0.6 < found.epsilon < 1.3
  assert above <= stats.binom.ppf(0.999, 200, 0.05)
  # Outputs that tell nothing, and one that tells all.
  same = rng.normal(size=[2, 5000])
  assert lower_bounds.lower_bound(*same, 0.0).epsilon < 0.3
  told = lower_bounds.lower_bound(same[0] + 100, same[1], 0.01)
  most = lower_bounds.epsilon_of(2500, 0, 2500, 0.01, 0.95)
  assert 5.5 < told.epsilon <= most


def test_guesses_refute_what_they_would_be_too_good_for():
  # All of a hundred right: q^100 is 5%.
  q = 0.05**0.01
  assert lower_bounds.epsilon_of_guesses(100, 100, 100, 0.0) == pytest.approx(
      math.log(q / (1 - q)), abs=1e-6)
  # The largest bound of 539 canaries at delta 1 / 539 is 2.8, of 3,400 at 1e-5 6.9.
  best = lambda m, delta: max(
      lower_bounds.epsilon_of_guesses(m, k, k, delta) for k in range(m // 25, m + 1, m // 25))
  assert best(539, 1 / 539) == pytest.approx(2.8, abs=0.1)
  assert best(3400, 1e-5) == pytest.approx(6.9, abs=0.1)
  assert lower_bounds.epsilon_of_guesses(1000, 500, 255, 1e-5) == 0
  # Randomized response of epsilon 1 is refuted as rarely as stated.
  rng, above = np.random.default_rng(3), 0
  for _ in range(300):
    right = rng.binomial(400, math.e / (1 + math.e))
    above += lower_bounds.epsilon_of_guesses(400, 400, right, 0.0) > 1
  assert above <= stats.binom.ppf(0.999, 300, 0.05)


def test_every_release_is_listed():
  assert set(settings_lib.RELEASES) == set(releases.RELEASES)


@pytest.mark.parametrize('name', [
    name for name in settings_lib.RELEASES if 'graph' not in name and 'rows' not in name])
def test_a_sound_release_is_below_its_claim_and_near_it(name):
  found = run.examine(releases.RELEASES[name](releases.Setting()), 8000,
                      np.random.default_rng(1))
  assert not found.problems and 0.4 < found.lower / found.claimed <= 1


@pytest.mark.slow
@pytest.mark.parametrize('name', ['skellam-graph', 'gaussian-graph', 'skellam-rows'])
def test_graphs_are_below_their_claims(name):
  found = run.examine(releases.RELEASES[name](releases.Setting()), 400,
                      np.random.default_rng(1))
  assert not found.problems and found.lower < found.claimed <= 2


def test_planted_faults_are_found(tmp_path, capsys):
  path = tmp_path / 'faults.json'
  assert planted_faults.main(['--quick', f'--json={path}']) == 0
  assert 'not found: none' in capsys.readouterr().out
  found = json.loads(path.read_text())
  assert 'variance' in found['one share in ten missing']['problems']
  assert set(found['rounding without its bound, coarse grid']['problems']) == {'norm'}
  assert 'epsilon' in found['noise at 0.7']['problems']


def test_the_program_prints_claims_and_measurements(tmp_path, monkeypatch):
  # A bound of 95% is above a tight claim now and then: these draws have a seed.
  real = np.random.default_rng
  monkeypatch.setattr(np.random, 'default_rng', lambda seed=0: real(seed))
  finished = in_process.run('tff_pipelines.audit', '--mechanism=krr-answer,duchi-answer',
                            '--trials=4000', '--format=json', folder=tmp_path)
  found = json.loads(finished.stdout)
  assert finished.code == 0 and [one['name'] for one in found] == [
      'krr answer', 'duchi answer']
  assert all(0 < one['lower'] < one['claimed'] < one['largest'] for one in found)
  assert all(one['surely'] < one['claimed'] for one in found)
  finished = in_process.run('tff_pipelines.audit', '--mechanism=nothing', folder=tmp_path)
  in_process.check_refused(finished, 'mechanism must be')
