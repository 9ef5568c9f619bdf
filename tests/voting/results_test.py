"""The experiments behind the tables of docs/voting.md."""

import pathlib
import shlex

from benchmarks import results_voting
from benchmarks import voting_experiments
from benchmarks import voting_tables
from tff_pipelines.experiment import cli
from tff_pipelines.experiment import report
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


def test_maps_are_taken_from_earlier_runs_of_the_same_public_records():
  done = {}
  for experiment in EXPERIMENTS:
    settings = _settings(experiment)
    public = (settings.task, settings.public_records)
    if experiment.map_of is not None:
      assert done[experiment.map_of] == (public, settings.feature_seed)
    done[experiment.name] = (public, settings.feature_seed)
  assert len(done) == len(EXPERIMENTS)


def test_every_row_of_a_table_has_experiments():
  rows = {experiment.row for experiment in EXPERIMENTS}
  shown = {row[0] for table in voting_tables.TABLES.values() for row in table}
  assert shown <= rows
  assert all(row.startswith('ablation-') for row in rows - shown)


def _line(row, seed, accuracy, **changes):
  return {**dict(
      name=f'{row}-{seed}', row=row, seed=seed, accuracy=accuracy, epsilon=3.2,
      epsilon_published=4.3, labels_right=0.98, uplink_bytes_per_agent=562.5,
      cpu_seconds=90, date='2026-01-02', commit='abc', cpu='some', cores=2), **changes}


def test_tables_have_means_over_seeds_and_leave_out_what_was_not_run():
  lines = [_line('mnist-ae', seed, 0.96 + 0.01 * seed) for seed in range(3)]
  lines.append(_line('mnist-fedavg', 0, 0.975, epsilon=None, epsilon_published=None,
                     labels_right=None, uplink_bytes_per_agent=440760.0))
  table = voting_tables.table({line['name']: line for line in lines}, 'mnist')
  rows = table.splitlines()
  assert rows[2] == (
      '| AE-DPFL, agents on public features, 50 queries | 97.0 ± 1.0 | 98.0 ± 0.0 | '
      '4.30 | 3.20 | 562 bytes | 95.1 | 4.3 |')
  assert '| FedAvg, no privacy | 97.5 | – | – | – | 441 kB | 97.8 | – |' in rows
  assert rows[-1].startswith('4 runs, 6 minutes of processor time on some, 2 cores')
  assert not any('DP-FedAvg' in row for row in rows)


def test_fields_that_are_kept_are_those_of_a_summary():
  assert set(results_voting._KEPT) <= (  # pylint: disable=protected-access
      report.SCHEMA.keys() | set(voting_report.DETAILS))
