"""Epsilon on the counts of votes, which is marked as private."""

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
  assert list(answer) == [*account_test.KEYS, 'epsilon_data_dependent']
  event = events.Vote(scheme='ae', noise_stddev=11.0)
  assert answer['epsilon_data_dependent'] == votes_lib.data_dependent_epsilon(
      event, VOTES, 1e-3)
  # What may be published is the epsilon of any votes.
  assert answer['epsilon'] == accountant.epsilon(
      events.SelfComposed(event=event, count=25), 1e-3)
  assert answer['epsilon_data_dependent'] < 0.2 * answer['epsilon']
  assert answer['rounds'] == 25
  assert answer['warnings'][0].startswith('do not publish')
  text = account_test.run(*flags).stdout
  assert text.startswith('PRIVATE: do not publish')
  assert max(map(len, text.splitlines())) <= 80
  (row,) = csv.DictReader(io.StringIO(account_test.run(*flags, '--format=csv').stdout))
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


@pytest.mark.parametrize('flags, message', [
    ([*QUERY, '--noise_stddev=4'], 'votes must be given for query=data_dependent'),
    (['--query=data_dependent', '--mechanism=ae_vote', '--noise_stddev=4'],
     'delta must be given for query=data_dependent'),
    ([*GAUSSIAN, '--votes=nowhere.csv'], 'votes must be a file'),
    (['--query=data_dependent', '--mechanism=gaussian', '--noise_multiplier=1',
      '--delta=0.1'], 'needs mechanism=ae_vote or knn_vote'),
    (['--mechanism=ae_vote', '--noise_stddev=4', '--delta=0.1', '--votes=x.csv'],
     'votes is not used with query=epsilon'),
    ([*GAUSSIAN, '--queries=3'], 'queries is not used with query=data_dependent'),
    ([*GAUSSIAN, '--epsilon=3'], 'epsilon is not used with query=data_dependent')])
def test_mistakes_are_named(flags, message):
  done = account_test.run(*flags, code=2)
  assert message in done.stderr and done.stderr.count('\n') == 1 and done.stdout == ''


@pytest.mark.parametrize('content', [
    '', 'winner,loser\n3,1', '3,1\n3', '3,1.5', '3,-1', '3', '3,', 'nan,1'])
def test_files_of_anything_else_are_refused(tmp_path, content):
  path = tmp_path / 'votes.csv'
  path.write_text(content)
  with pytest.raises(ValueError, match='votes must be a file of integer counts'):
    run_lib.read_votes(path)
