"""A vote from Python: the result, callbacks, and mistakes."""

import json

import numpy as np
import pytest

from tff_pipelines import api
from tff_pipelines.accounting.guarantees import ledger_query

pytestmark = [pytest.mark.usefixtures('shared_context'), pytest.mark.slow]


def _settings(folder, **changes):
  return api.VoteSettings(**{
      'num_clients': 6, 'queries': 12, 'features': 'pca', 'epsilon': 8.0,
      'student_model': 'softmax', 'student_epochs': 2, 'client_epochs': 2,
      'allow_degenerate': True, 'output_dir': str(folder), **changes})


def test_vote_gives_a_student_its_guarantee_and_its_metrics(tmp_path, capfd):
  seen = []
  result = api.vote(_settings(tmp_path / 'run'), callbacks=[
      lambda *arguments: seen.append(arguments)])
  assert capfd.readouterr().out == ''
  assert result.folder == tmp_path / 'run'
  with np.load(result.folder / 'model.npz') as arrays:
    assert arrays.files == list(result.weights)
    for name in arrays.files:
      np.testing.assert_array_equal(arrays[name], result.weights[name])
  assert {'output/kernel', 'output/bias'} <= set(result.weights)
  assert 0 < result.guarantee.outsiders.epsilon == result.summary['epsilon'] <= 8
  assert ledger_query.answer(result.folder / 'ledger.jsonl').epsilon == pytest.approx(
      result.summary['epsilon'])
  assert json.loads((result.folder / 'summary.json').read_text()) == result.summary
  (index, metrics), = seen  # A vote is one round.
  assert result.metrics.to_dict('records') == [{'round': index, **metrics}]
  assert metrics['epsilon'] == result.summary['epsilon'] and index == 1
  assert result.figures and all(path.exists() for path in result.figures)
  # What is done is only read again.
  again = api.vote(_settings(tmp_path / 'run', resume=True))
  assert again.summary['held_out'] == result.summary['held_out']
  for name, array in again.weights.items():
    np.testing.assert_array_equal(array, result.weights[name])
