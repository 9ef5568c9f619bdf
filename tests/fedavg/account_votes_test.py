"""Epsilon on the counts of votes: marked as private, or released with noise."""

import csv
import io

import numpy as np
import pytest

from tests.fedavg import account_test
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import accountant, votes as votes_lib
from tff_pipelines.fedavg import account as run_lib

VOTES = [[560, 400, 40]] * 20 + [[990, 5, 5]] * 5
QUERY = ['--query=data_dependent', '--mechanism=ae_vote', '--delta=1e-3']
GAUSSIAN = [*QUERY, '--noise_stddev=40', '--noise=gaussian', '--level=instance']
RELEASE = ['--release_order=8', '--release_smoothness=0.02', '--release_noise=10']


def _written(path, votes=VOTES):
  if path.suffix == '.npz':
    np.savez(path, votes=np.array(votes))
  else:
    path.write_text('\n'.join(','.join(map(str, row)) for row in votes))
  return f'--votes={path}'


@pytest.mark.parametrize('name', ['votes.csv', 'votes.npz'])
def test_epsilon_on_the_votes_is_private_and_says_so(tmp_path, name):
  flags = [*QUERY, '--noise_stddev=11', _written(tmp_path / name)]
  answer = account_test.as_json(*flags)
  assert list(answer) == [
      *account_test.KEYS, 'epsilon_data_dependent', 'epsilon_released']
  event = events.Vote(scheme='ae', noise_stddev=11.0)
  assert answer['epsilon_data_dependent'] == votes_lib.data_dependent_epsilon(
      event, VOTES, 1e-3)
  # What may be published is the epsilon of any votes.
  assert answer['epsilon'] == accountant.epsilon(
      events.SelfComposed(event=event, count=25), 1e-3)
  assert answer['epsilon_data_dependent'] < 0.2 * answer['epsilon']
  assert answer['epsilon_released'] is None and answer['rounds'] == 25
  assert answer['warnings'][0].startswith('do not publish')
  text = account_test.run(*flags).stdout
  assert text.startswith('PRIVATE: do not publish')
  assert max(map(len, text.splitlines())) <= 80
  (row,) = csv.DictReader(io.StringIO(
      account_test.run(*flags, '--format=csv').stdout))
  assert row['warnings'].startswith('do not publish')


def test_epsilon_on_the_votes_is_never_above_that_of_any_votes(tmp_path):
  answer = account_test.as_json(
      *QUERY, '--noise_stddev=11', _written(tmp_path / 'votes.csv', [[9, 9]] * 3))
  assert answer['epsilon_data_dependent'] == answer['epsilon']


def test_published_formula_is_for_comparison(tmp_path):
  votes = _written(tmp_path / 'votes.csv', [[990, 5, 5]] * 9)
  answer = account_test.as_json(*GAUSSIAN, votes, '--bound=paper')
  assert answer['epsilon_data_dependent'] == votes_lib.data_dependent_epsilon(
      events.Vote(scheme='ae', noise='gaussian', level='instance', noise_stddev=40.0,
                  bound='paper'), [[990, 5, 5]] * 9, 1e-3)
  assert 'do not publish' in answer['warnings'][0]
  assert any('bound=paper' in text for text in answer['warnings'])


def test_release_is_noisy_and_pays_for_itself(tmp_path, monkeypatch):
  monkeypatch.setattr(np.random, 'default_rng', lambda: np.random.Generator(
      np.random.PCG64(1)))
  flags = [*GAUSSIAN, _written(tmp_path / 'votes.csv'), *RELEASE]
  answer = account_test.as_json(*flags)
  event = events.Vote(
      scheme='ae', noise='gaussian', level='instance', noise_stddev=40.0)
  exact, sensitivity = votes_lib.exact_cost(event, VOTES, 8.0, 0.02)
  noise = float(np.random.default_rng().standard_normal())
  cost = exact + 10 * sensitivity * noise + votes_lib.release_cost(
      0.02, 10.0, 8.0)
  assert answer['epsilon_released'] == pytest.approx(
      votes_lib.epsilon_of_cost(cost, 8.0, 1e-3), rel=1e-12)
  # What holds for any votes is of the labels and the release together.
  labels = len(VOTES) * event.curve(8, 'tight')[-1]
  assert answer['epsilon'] == pytest.approx(votes_lib.epsilon_of_cost(
      labels + votes_lib.release_cost(0.02, 10.0, 8.0), 8.0, 1e-3), rel=1e-12)
  alone = account_test.as_json(*GAUSSIAN, flags[len(GAUSSIAN)])
  assert answer['epsilon'] > alone['epsilon']
  # Nothing in it is private: neither the exact number nor the sensitivity.
  assert answer['epsilon_data_dependent'] is None
  assert not any('do not publish' in text for text in answer['warnings'])
  assert any('costs as much again' in text for text in answer['warnings'])
  assert 'PRIVATE' not in account_test.run(*flags).stdout


def test_releases_differ(tmp_path):
  # With little noise, so that no cost is cut off at 0, where releases are equal.
  flags = [*GAUSSIAN, _written(tmp_path / 'votes.csv'), *RELEASE[:2],
           '--release_noise=0.3']
  assert len({account_test.as_json(*flags)['epsilon_released'] for _ in range(3)}) == 3


def test_epsilon_of_a_cost_is_that_of_the_renyi_accountant():
  curve = events.CentralGaussian(noise_multiplier=2.0).curve(64, 'tight')
  epsilons = [votes_lib.epsilon_of_cost(cost, order, 1e-5)
              for order, cost in enumerate(curve, start=2)]
  assert min(epsilons) == pytest.approx(accountant.epsilon(
      events.CentralGaussian(noise_multiplier=2.0), 1e-5, accountant='rdp'))


@pytest.mark.parametrize('flags, message', [
    ([*QUERY, '--noise_stddev=4'], 'votes must be given for query=data_dependent'),
    (['--query=data_dependent', '--mechanism=ae_vote', '--noise_stddev=4'],
     'delta must be given for query=data_dependent'),
    ([*GAUSSIAN, '--release_order=8'], 'release_smoothness must be given'),
    ([*GAUSSIAN, *RELEASE, '--level=agent'], 'smooth sensitivity is proved'),
    ([*GAUSSIAN, '--votes=nowhere.csv'], 'votes must be a file'),
    (['--query=data_dependent', '--mechanism=gaussian', '--noise_multiplier=1',
      '--delta=0.1'], 'needs mechanism=ae_vote or knn_vote'),
    (['--mechanism=ae_vote', '--noise_stddev=4', '--delta=0.1', '--votes=x.csv'],
     'votes is not used with query=epsilon'),
    ([*GAUSSIAN, '--queries=3'], 'queries is not used with query=data_dependent'),
    ([*GAUSSIAN, '--epsilon=3'], 'epsilon is not used with query=data_dependent')])
def test_mistakes_are_named(tmp_path, flags, message):
  if '--release_order=8' in flags:
    flags = [*flags, _written(tmp_path / 'votes.csv')]
  done = account_test.run(*flags, code=2)
  assert message in done.stderr and done.stderr.count('\n') == 1 and done.stdout == ''


@pytest.mark.parametrize('content', [
    '', 'winner,loser\n3,1', '3,1\n3', '3,1.5', '3,-1', '3', '3,', 'nan,1'])
def test_files_of_anything_else_are_refused(tmp_path, content):
  path = tmp_path / 'votes.csv'
  path.write_text(content)
  with pytest.raises(ValueError, match='votes must be a file of integer counts'):
    run_lib.read_votes(path)
