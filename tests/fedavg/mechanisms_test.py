"""The trainer with every mechanism, rotation, rounding bound and adaptive clip."""

import csv
import json

import pytest

from tff_pipelines import privacy_plan
from tff_pipelines.accounting import accountant
from tff_pipelines.accounting import base
from tff_pipelines.accounting import ledger as ledger_lib
from tff_pipelines.accounting import request as request_lib
from tff_pipelines.privacy_plan import PrivacyPlan

TRAIN = 'tff_pipelines.train'
TINY = ('--rounds=2', '--num_clients=20', '--cohort_size=5', '--epsilon=6')
# The fraction is a multiple of a tenth: it never meets its target, by no chance.
ADAPTIVE = ('--adaptive_clipping', '--clip_count_stddev=2',
            '--target_quantile=0.55')

RUNS = {
    'discrete_gaussian': ['--mechanism=discrete_gaussian'],
    'skellam_central': ['--mechanism=skellam_central'],
    'skellam dft': ['--mechanism=skellam', '--rotation=dft', '--beta=0'],
    'skellam none': ['--mechanism=skellam', '--rotation=none', '--beta=0',
                     '--clients_per_call=1'],
    'discrete_gaussian dft': [
        '--mechanism=discrete_gaussian', '--rotation=dft', '--beta=0',
        '--simulated_dropout_rate=0.3', '--min_honest_fraction=0.4'],
    'skellam_central none': [
        '--mechanism=skellam_central', '--rotation=none', '--beta=0'],
    'adaptive skellam': ['--mechanism=skellam', *ADAPTIVE],
    'adaptive plain form': [
        '--mechanism=skellam', *ADAPTIVE, '--clients_per_call=1'],
    'adaptive discrete_gaussian': [
        '--mechanism=discrete_gaussian', *ADAPTIVE, '--target_quantile=0.85',
        '--clip_learning_rate=0.5'],
    'adaptive skellam_central': ['--mechanism=skellam_central', *ADAPTIVE],
}
ADAPTING = [name for name in RUNS if name.startswith('adaptive')]
AT_ONCE = 2


@pytest.fixture(scope='module')
def runs(launcher, tmp_path_factory):
  """Name -> (finished run, its output folder)."""
  base_folder = tmp_path_factory.mktemp('mechanisms')
  found, running = {}, []
  for name, arguments in RUNS.items():
    folder = base_folder / name.replace(' ', '_')
    found[name] = (launcher.start(
        TRAIN, *TINY, *arguments, f'--output_dir={folder}'), folder)
    running.append(found[name][0])
    if len(running) == AT_ONCE:
      running.pop(0).wait(300)
  for run in running:
    run.wait(300)
  return found


def _summary(runs, name):
  run, folder = runs[name]
  assert run.code == 0, run.stderr
  return json.loads((folder / 'summary.json').read_text())


def _rows(folder):
  with open(folder / 'metrics.csv', encoding='utf-8') as file:
    return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.parametrize('name', RUNS)
def test_run_meets_its_target_and_its_ledger_says_the_same(runs, name):
  found = _summary(runs, name)
  _, folder = runs[name]
  assert 0 < found['epsilon'] <= 6 and found['rounds'] == 2
  assert found['epsilon'] > 5.99
  ledger = ledger_lib.Ledger(folder / 'ledger.jsonl')
  assert not ledger.verify()
  event = ledger.event()
  assert accountant.epsilon(event, found['delta']) == pytest.approx(
      found['epsilon'], rel=1e-9)
  # Who drops out is drawn anew in every run: a round of too few is withheld from
  # outsiders, and the server saw less noise than any epsilon would count on.
  if any(line['outcome'] == 'withheld' for line in ledger.lines()):
    assert '--simulated_dropout_rate=0.3' in RUNS[name]
    assert found['epsilon_unamplified'] is None
  else:
    assert found['epsilon_unamplified'] > found['epsilon']
  assert found['adjacency'] == base.ZERO_OUT
  assert ('count' in json.dumps(event.to_json()).lower()) or name not in ADAPTING


@pytest.mark.slow
@pytest.mark.parametrize('name', RUNS)
def test_the_trust_model_is_that_of_the_mechanism(runs, name):
  found = _summary(runs, name)
  central = found['mechanism'] == 'skellam_central'
  assert ('the server is trusted: it sees' in found['trust_model']) == central
  assert ('the server is trusted' in found['observers_unamplified']) == central
  words = ' '.join(found['warnings'])
  assert ('one law' in words) == (found['mechanism'] == 'discrete_gaussian')
  assert ('rotation=none' in words) == ('none' in name)
  assert 'not used' not in words


@pytest.mark.slow
@pytest.mark.parametrize('name, padded', [
    ('skellam dft', 7346), ('skellam none', 7346), ('skellam_central', 8192)])
def test_the_rotation_decides_the_padding(runs, name, padded):
  assert _summary(runs, name)['dimension_padded'] == padded


@pytest.mark.slow
@pytest.mark.parametrize('name', ADAPTING)
def test_an_adaptive_clip_is_published_and_moves(runs, name):
  found = _summary(runs, name)
  rows = _rows(runs[name][1])
  clips = [float(row['public/clip']) for row in rows]
  assert clips[0] == 0.3 and clips[1] != 0.3 and 0.1 < clips[1] < 1
  grid = [float(row['public/scale']) * clip for row, clip in zip(rows, clips)]
  assert grid[0] == pytest.approx(grid[1], rel=1e-6)
  assert found['adaptive_clip']['count_stddev'] == 2
  assert 'Theorem 3.5; PLD' in found['source']
  assert not [key for key in rows[0] if 'diagnostics' in key]


@pytest.mark.slow
def test_a_fixed_clip_is_not_published_as_a_measurement(runs):
  assert _summary(runs, 'skellam dft')['adaptive_clip'] is None
  assert 'public/clip' not in _rows(runs['skellam dft'][1])[0]


def _request(mechanism='skellam', **changes):
  return request_lib.Request(**{**dict(
      query='epsilon', mechanism=mechanism, epsilon=4.0, clip=0.3, bits=18,
      dimension=1000, cohort_size=20.0, population=200, rounds=5,
      sampling='poisson'), **changes})


@pytest.mark.parametrize('mechanism', ['none', 'gaussian'])
def test_an_adaptive_clip_needs_integers(mechanism):
  with pytest.raises(ValueError, match='adaptive_clipping needs a mechanism'):
    privacy_plan.check(_request(mechanism, adaptive_clipping=True))


def test_a_count_that_alone_exceeds_the_target_is_named():
  request = _request(adaptive_clipping=True, clip_count_stddev=0.1)
  with pytest.raises(ValueError, match='clip_count_stddev=0.1 is too little'):
    PrivacyPlan.calibrate(request)
  # With the noise given there is no target, only its cost.
  plan = PrivacyPlan.calibrate(
      request.replace(epsilon=None, noise_multiplier=1.0))
  assert plan.epsilon(5) > 4


def test_too_small_discrete_gaussian_shares_are_refused_before_a_run():
  with pytest.raises(ValueError, match=r'at least 0\.5 grid units'):
    PrivacyPlan.calibrate(_request(
        'discrete_gaussian', epsilon=None, noise_multiplier=1e-6))


@pytest.mark.parametrize('mechanism', [
    'skellam', 'discrete_gaussian', 'skellam_central'])
def test_calibrated_plans_cost_more_noise_with_a_count(mechanism):
  fixed = PrivacyPlan.calibrate(_request(mechanism))
  adaptive = PrivacyPlan.calibrate(
      _request(mechanism, adaptive_clipping=True, clip_count_stddev=3.0))
  assert fixed.adaptive is None and adaptive.adaptive.count_stddev == 3.0
  assert (adaptive.request.noise_multiplier > fixed.request.noise_multiplier)
  for plan in (fixed, adaptive):
    assert 3.999 < plan.epsilon(5) <= 4
    assert plan.params.mechanism == mechanism


def test_flags_of_an_adaptive_clip_without_one_are_reported():
  plan = PrivacyPlan.calibrate(_request(), given=frozenset(
      {'target_quantile', 'clip_count_stddev', 'rotation'}))
  found = [text for text in plan.warnings(5) if 'not used' in text]
  assert len(found) == 2 and all('--adaptive_clipping' in text for text in found)
  plan = PrivacyPlan.calibrate(
      _request(adaptive_clipping=True, clip_count_stddev=3.0),
      given=frozenset({'target_quantile', 'clip_count_stddev'}))
  assert not [text for text in plan.warnings(5) if 'not used' in text]


def test_colluders_and_honest_fractions_are_reported_where_the_server_is_trusted():
  plan = PrivacyPlan.calibrate(
      _request('skellam_central', min_honest_fraction=0.5, assumed_colluders=3),
      given=frozenset({'min_honest_fraction', 'assumed_colluders'}))
  found = ' '.join(plan.warnings(5))
  assert '--min_honest_fraction is not used' in found
  assert '--assumed_colluders is not used' in found
