"""Executed mean estimations: errors, files, resuming, the contract of experiments."""

import csv
import json
import math
import os
import shutil
import types

import matplotlib.image
import numpy as np
import pytest

from tests import statistics_lib
from tests.experiment import contract
from tests.mean import plan_test
from tff_pipelines import estimate_mean
from tff_pipelines.accounting.guarantees import ledger as ledger_lib, ledger_query
from tff_pipelines.common import files
from tff_pipelines.mean import plan as plan_lib, report, run as run_lib
from tff_pipelines.mean.settings import MeanSettings, RESULTS

settings = plan_test.settings


def _estimate(**changes):
  """The row of a sweep of one setting."""
  chosen = settings(**changes)
  (cell,), _ = plan_lib.cells(chosen)
  return run_lib.estimate(chosen, cell)


def _agrees(row):
  """Whether the measured error agrees with the predicted one, except for chance."""
  allowed = statistics_lib.Z * math.sqrt(2 / (row['repeats'] * row['d']))
  return abs(row['mse'] / row['predicted_mse'] - 1) <= allowed


@pytest.mark.parametrize('changes', [
    dict(bits=(16,)),
    # A quarter of the error is rounding, on a coarse grid.
    dict(bits=(10,), num_clients=(300,), epsilon=(8.0,)),
    dict(mechanisms=('discrete_gaussian',), bits=(12,)),
    dict(mechanisms=('skellam_central',), bits=(14,)), dict(mechanisms=('gaussian',)),
], ids=['table', 'rounding', 'discrete_gaussian', 'skellam_central', 'gaussian'])
@pytest.mark.slow
def test_measured_error_is_the_predicted_one(changes):
  row = _estimate(repeats=40, **changes)
  assert _agrees(row)
  # An error that is off by a quarter would be rejected.
  assert not _agrees({**row, 'mse': row['mse'] * 1.25})
  assert not _agrees({**row, 'mse': row['mse'] * 0.75})
  assert row['mse_low'] < row['mse'] < row['mse_high']
  assert row['l2_low'] < row['l2_error'] < row['l2_high']
  assert row['l2_error']**2 == pytest.approx(row['mse'] * row['d'], rel=0.02)


@pytest.mark.slow
def test_wrapping_of_identical_vectors_is_predicted():
  # Equal vectors of all clients fill the modulus: at one standard deviation a third
  # of the coordinates wrap around. A data set has too few vectors to neglect the
  # variance of the data, so the agreement is rougher.
  row = _estimate(vectors='identical', k_stddevs=1.0, repeats=30, epsilon=(8.0,))
  assert row['mse'] > 20 * row['noise_mse']
  assert row['mse'] == pytest.approx(row['predicted_mse'], rel=0.15)


def test_intervals_cover_and_narrow():
  mean, low, high = report.interval([1.0, 2.0, 3.0])
  assert mean == (low + high) / 2 == pytest.approx(2.0)
  # Student's t with two degrees of freedom, 4.303, times 1 / sqrt(3).
  assert (high - low) / 2 == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)


@pytest.mark.slow
def test_only_a_seed_repeats_a_row():
  def mse(**changes):
    return _estimate(num_clients=(5,), dimension=(8,), epsilon=(8.0,), **changes)[
        'mse_of_repeats']

  first = mse(seed=3)
  assert first == mse(seed=3)
  assert first != mse(seed=4)
  assert first[0] != first[1]
  assert mse(seed=None) != mse(seed=None) != first


# The files.

_SMALL = dict(num_clients=(20,), dimension=(5,), epsilon=(2.0,), seed=None,
              mechanisms=('gaussian_rdp', 'gaussian', 'skellam'))


def _run(folder, capsys, **changes):
  """The summary, results.json, and the printed text."""
  chosen = settings(**{**_SMALL, 'output_dir': os.fspath(folder), **changes})
  summary = run_lib.MeanExperiment(chosen).run()
  results = json.loads((folder / RESULTS).read_text(encoding='utf-8'),
                       parse_constant=pytest.fail)
  return summary, results, capsys.readouterr().out


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """A folder with three settings, and its rows."""
  folder = tmp_path_factory.mktemp('finished') / 'deep' / 'run'
  run_lib.MeanExperiment(settings(**_SMALL, output_dir=os.fspath(folder))).run()
  return folder, json.loads((folder / RESULTS).read_text())['rows']


@pytest.fixture
def folder(finished, tmp_path):
  """A copy of that folder."""
  shutil.copytree(finished[0], tmp_path / 'run')
  return tmp_path / 'run'


@pytest.mark.slow
def test_sweep_is_extended_and_nothing_is_computed_again(finished, folder, capsys):
  first = finished[1]
  assert len(first) == 3
  summary, results, printed = _run(folder, capsys, epsilon=(2.0, 6.0))
  rows = results['rows']
  assert rows[:3] == first and [row['epsilon'] for row in rows[3:]] == [6.0] * 3
  assert len(ledger_lib.Ledger(folder / files.LEDGER).lines()) == 6
  assert summary['rounds'] == 6
  with open(folder / report.TABLE, encoding='utf-8') as file:
    table = list(csv.DictReader(file))
  assert list(table[0]) == [name for name in rows[0] if name != 'mse_of_repeats']
  assert [float(row['mse']) for row in table] == [row['mse'] for row in rows]
  assert results['adjacency'] == 'zero-out'
  assert results['secure_aggregation'] == 'simulated'
  assert results['epsilon_is_of'].startswith('one release')
  assert {group['releases'] for group in results['against_gaussian']} == {4}
  assert summary['details']['epsilon_of_one_release'] == [2.0, 6.0]
  # Both numbers are printed.
  assert 'epsilon 2,6 at delta 1e-05 of one release of one data set' in printed
  assert 'against observers of all estimates' in printed
  image = matplotlib.image.imread(folder / report.FIGURE)
  assert image.shape[0] > 500 and image.shape[1] > 500
  assert len(np.unique(image.reshape(-1, image.shape[2]), axis=0)) > 100


@pytest.mark.slow
def test_epsilon_is_of_all_releases_of_the_folder(folder, capsys):
  alone, _, _ = _run(folder, capsys)
  summary, _, printed = _run(folder, capsys, epsilon=(6.0,), bits=(18,))
  assert summary['epsilon'] > alone['epsilon'] > 2.0
  answer = ledger_query.answer(folder / files.LEDGER)
  assert answer.epsilon == pytest.approx(summary['epsilon'], rel=1e-9)
  # The plan that is printed first counts the earlier releases of the folder.
  epsilons = [line.split()[1] for line in printed.splitlines()
              if line.startswith('epsilon')]
  assert len(epsilons) == 2 and epsilons[0] == epsilons[1]
  text = (folder / files.REPORT).read_text()
  assert 'skellam n=20 d=5 bits=18 epsilon=6: mse' in text
  assert 'epsilon=2: mse' not in text  # Not asked for now.


@pytest.mark.slow
def test_folder_of_another_configuration_is_refused(folder, capsys):
  with pytest.raises(ValueError, match='another configuration: delta .* repeats'):
    _run(folder, capsys, delta=1e-6, repeats=3)
  with pytest.raises(ValueError, match='holds a run already'):
    _run(folder, capsys, resume=False)


@pytest.mark.parametrize('flags, message', [
    (['--bits=10,x'], 'bits must be a comma-separated list of integers'),
    (['--epsilon=1;2'], 'epsilon must be a comma-separated list of numbers'),
    (['--accountant=pld'], 'accountant'),
    (['--mechanisms=gaussian', '--bits=9'],
     'bits is not used with mechanisms=gaussian'),
    (['--num_clients=1000', '--bits=10'], 'degenerate setting')])
def test_a_wrong_flag_is_one_line_and_code_2(flags, message, capsys):
  assert estimate_mean.main(flags) == 2
  printed = capsys.readouterr()
  assert message in printed.err and printed.out == ''
  assert printed.err.startswith('error: ') and printed.err.count('\n') == 1


def test_figure_of_a_single_point(tmp_path):
  row = _estimate(num_clients=(10,), dimension=(3,), mechanisms=('gaussian',))
  report.draw(tmp_path / 'one.png', [row], delta=1e-5)
  assert matplotlib.image.imread(tmp_path / 'one.png').size > 0


def _extended(tmp_path, **changes):
  return run_lib.MeanExperiment(MeanSettings(**{
      'num_clients': (20,), 'dimension': (8,), 'epsilon': (2.0,), 'repeats': 2,
      'output_dir': str(tmp_path / 'run'), **changes})).run()


@pytest.mark.slow
def test_folder_with_sums_is_not_extended_under_another_rounding(tmp_path):
  _extended(tmp_path, mechanisms=('skellam',), bits=(14,), beta=0.0)
  with pytest.raises(ValueError, match='beta .* differ'):
    _extended(tmp_path, mechanisms=('gaussian',))


@pytest.mark.slow
def test_guarantee_is_about_all_mechanisms_of_the_folder(tmp_path):
  first = _extended(tmp_path, mechanisms=('gaussian',))
  assert 'secure aggregation simulated' not in first['caveats']
  second = _extended(tmp_path, mechanisms=('skellam',), bits=(14,))
  assert second['epsilon'] > first['epsilon']
  for words in ('the server is trusted', 'the server sees sums only'):
    assert words in second['trust_model']
  third = _extended(tmp_path, mechanisms=('gaussian',))
  assert third['epsilon'] == second['epsilon']
  assert 'secure aggregation simulated' in third['caveats']


@pytest.fixture(scope='module', autouse=True)
def _stopped_clock():
  """Rows contain the seconds that they took."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(run_lib, 'time', types.SimpleNamespace(monotonic=lambda: 0.0))
    yield


class TestExperiment(contract.ExperimentContract):

  commits = 3
  trains = False
  in_vain = (
      ('bits', (12,), {'mechanisms': ('gaussian',)}),
      ('beta', 0.5, {'mechanisms': ('gaussian', 'gaussian_rdp')}),
      ('allow_degenerate', True, {'mechanisms': ('gaussian',)}))

  def settings_class(self):
    return MeanSettings

  def lost_when(self, when):
    return when == 'before'

  def experiment(self, folder, **changes):
    # The program resumes by default.
    return run_lib.MeanExperiment(MeanSettings(**{
        'num_clients': (6,), 'dimension': (4,), 'epsilon': (8.0,),
        'mechanisms': ('skellam', 'gaussian', 'gaussian_rdp'), 'repeats': 2, 'seed': 8,
        'resume': False, 'output_dir': str(folder), **(
            {'bits': (16,)} if 'mechanisms' not in changes else {}), **changes}))
