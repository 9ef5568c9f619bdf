"""Contents that a page takes from the folder of a run."""

import json

import pytest

from tests.experiment import page_example_run as example_run
from tff_pipelines.common import files
from tff_pipelines.experiment import configurations, pages
from tff_pipelines.experiment.page_document import Verdict

VERDICT = Verdict(rounds=3)


def _curves(folder, tables, **changes):
  """(metric, over, label) -> curve of a run with these tables."""
  files.write_json(folder / files.SUMMARY, example_run.summary(**changes))
  configurations.write(folder, configurations.sealed({'settings': {'bits': 18}}))
  for name, table in tables.items():
    (folder / name).write_text(table)
  run = pages.read(folder, VERDICT)
  assert run.name == folder.name and run.settings == {'bits': 18}
  return {(curve.metric, curve.over, curve.label): curve for curve in run.curves}


def test_curves_are_over_rounds_and_over_epsilon(tmp_path):
  curves = _curves(tmp_path, {files.METRICS: (
      'round,epsilon,others/accuracy,others/loss,test/accuracy,test/loss\n'
      '1,0.5,0.1,3,0.2,4\n2,inf,,,,\n3,1.5,0.3,2,0.4,nan\n')})
  assert list(curves) == [
      ('accuracy', 'rounds', 'others'), ('loss', 'rounds', 'others'),
      ('accuracy', 'rounds', 'test'), ('accuracy', 'epsilon', 'others'),
      ('accuracy', 'epsilon', 'test'), ('epsilon', 'rounds', 'observers')]
  main = curves['accuracy', 'epsilon', 'test']
  assert (main.x, main.y, main.main) == ((0.5, 1.5), (0.2, 0.4), True)
  other = curves['accuracy', 'rounds', 'others']
  # What is measured on no held-out set may come from raw values.
  assert main.covered and not other.main and not other.covered


def test_cohorts_and_diagnostics_are_left_out_and_an_adaptive_clip_is_not(tmp_path):
  curves = _curves(tmp_path, {files.METRICS: (
      'round,parties,diagnostics/num_reporting,public/clip,public/scale\n'
      '1,4,7,0.3,100\n2,5,8,0.2,100\n')})
  assert list(curves) == [('clip', 'rounds', 'clip')]


def test_epsilon_of_a_seeded_run_says_so(tmp_path):
  curves = _curves(tmp_path, {files.METRICS: (
      'step,epsilon_if_unseeded,test/accuracy\n1,1,0.5\n2,2,0.75\n')})
  assert list(curves) == [
      ('accuracy', 'steps', 'test'), ('accuracy', 'epsilon', 'test, without the seed'),
      ('epsilon', 'steps', 'observers, without the seed')]


def test_errors_are_over_epsilon_and_a_student_over_its_epochs(tmp_path):
  curves = _curves(tmp_path, {
      'results.csv': 'mechanism,n,d,bits,epsilon,mse\nskellam,9,5,18,1,0.5\n'
                     'gaussian,9,5,,1,0.25\nskellam,9,5,18,2,0.125\n'
                     'gaussian,9,5,,2,0.0625\n',
      'student.csv': 'epoch,accuracy\n1,0.1\n2,0.2\n'})
  label = 'skellam, 9 n, 5 d, 18 bits'
  error = curves['squared error of a coordinate', 'epsilon', label]
  assert error.log and not error.covered and (error.x, error.y) == ((1.0, 2.0), (0.5, 0.125))
  assert ('accuracy', 'epochs', 'test') in curves and len(curves) == 3


def test_single_points_are_no_curve(tmp_path):
  assert not _curves(tmp_path, {files.METRICS: 'round,test/accuracy\n1,0.5\n'})


@pytest.mark.parametrize('text, message', [
    (None, 'must be the folder of a finished run, found no summary.json'),
    ('{', 'summary.json is damaged'), ('[]', 'summary.json is damaged'),
    (json.dumps({'version': 2}), 'summary.json is damaged'),
    (json.dumps({'family': 'train'}),
     'is damaged: summary must have the keys .* --resume writes it again')])
def test_folder_without_a_summary_is_refused(tmp_path, text, message):
  if text is not None:
    (tmp_path / files.SUMMARY).write_text(text)
  with pytest.raises(ValueError, match=message):
    pages.read(tmp_path, VERDICT)
