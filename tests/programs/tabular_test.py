"""The trainer on tables, as a user runs it."""

import json

import pytest

from tests.programs import in_process
from tests.tasks.tabular import people

TRAIN = 'tff_pipelines.train'
TINY = ('--task=tabular', '--rounds=1', '--cohort_size=5', '--mechanism=gaussian')

pytestmark = pytest.mark.usefixtures('shared_context')


def _flags(folder, table=None, **options):
  options = {**people.written(folder, people.rows() if table is None else table),
             'label_field': 'pay', **options}
  return [f'--{name}={value}' for name, value in options.items()]


@pytest.mark.slow
def test_table_is_learnt_from_and_its_columns_are_kept(programs, tmp_path):
  # The name of the file tells its format.
  flags = [*TINY, *_flags(tmp_path, public_bounds=people.bounds(tmp_path))[1:],
           f'--output_dir={tmp_path / "run"}']
  assert 'features    age [0, 100], job (3 categories)\ntarget      pay [0, 50]\n' + (
      'left out    rich\n') in programs.done(TRAIN, *flags).stdout
  summary = in_process.summary(tmp_path / 'run')
  assert set(summary['held_out']['test_clients']) == {
      'mae', 'constant_mae', 'rmse', 'constant_rmse', 'r2', 'loss'}
  assert summary['headline'] == 'mae' and summary['accuracy'] is None
  report = (tmp_path / 'run' / 'report.txt').read_text()
  assert 'rates: client 0.' in report
  kept = json.loads((tmp_path / 'run' / 'columns.json').read_text())
  assert [column['name'] for column in kept['features']] == ['age', 'job']
  # A resumed run encodes by what it kept.
  people.bounds(tmp_path, age=[0, 1])
  assert programs.run(TRAIN, *flags, '--resume').code == 0
  assert in_process.summary(tmp_path / 'run')['held_out'] == summary['held_out']
  run = programs.done('tff_pipelines.evaluate', f'--run={tmp_path / "run"}',
                      '--format=json')
  assert json.loads(run.stdout) == summary['held_out']
