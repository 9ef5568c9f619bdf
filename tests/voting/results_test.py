"""The experiments behind the tables of docs/voting.md."""

import pathlib
import shlex

from benchmarks import results_voting, voting_experiments, voting_tables
from tff_pipelines.experiment import cli, report
from tff_pipelines.voting import report as voting_report
from tff_pipelines.voting.settings import VoteSettings

EXPERIMENTS = voting_experiments.experiments()


def _settings(experiment):
  command = experiment.command(pathlib.Path('runs'), 'data')
  assert command[1:3] == ['-m', 'tff_pipelines.vote']
  return cli.parsed(VoteSettings, command[3:])


def test_every_experiment_is_what_the_program_takes(capsys):
  for experiment in EXPERIMENTS:
    settings = _settings(experiment)  # Raises for a flag without effect.
    assert settings.seed is None  # Noise is the operating system's.
    assert settings.output_dir == f'runs/{experiment.name}'
    assert f'--algorithm={settings.algorithm}' in shlex.split(experiment.flags)
  assert not capsys.readouterr().err  # No former name of a flag.


def test_every_row_of_a_table_has_experiments():
  rows = {experiment.row for experiment in EXPERIMENTS}
  shown = {row[0] for table in voting_tables.TABLES.values() for row in table}
  assert shown <= rows
  assert all(row.startswith('ablation-') for row in rows - shown)


def test_fields_that_are_kept_are_those_of_a_summary():
  assert set(results_voting._KEPT) <= (  # pylint: disable=protected-access
      report.SCHEMA.keys() | set(voting_report.DETAILS))
