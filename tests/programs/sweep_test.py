"""A sweep: settings from flags, real runs, one figure."""

import json

import matplotlib.image
import pytest

from tests import ledgers, modules
from tests.experiment import page_example_run as example_run
from tests.programs import in_process
from tff_pipelines import sweep
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import ledger as ledger_lib, ledger_query
from tff_pipelines.common import decimals, files
from tff_pipelines.fedavg import sweep as sweep_report, sweep_settings as settings_lib
from tff_pipelines.fedavg.sweep_settings import SweepSettings

COMMON = ('--rounds=1 --num_clients=20 --cohort_size=5',)


@pytest.mark.parametrize('text, name, flags', [
    ('none: --mechanism=none', 'none', ('--mechanism=none',)),
    ('Skellam, 16 bits:--bits=16 --noadaptive_clipping', 'Skellam, 16 bits',
     ('--bits=16', '--noadaptive_clipping')),
    (' plain :', 'plain', ()),
    ("path: '--data_path=a b: c.npz'", 'path', ('--data_path=a b: c.npz',))])
def test_setting_is_a_name_and_flags_after_the_common_ones(text, name, flags):
  setting, = settings_lib.parse_settings([text], ['--rounds=2 --clip=1'])
  assert setting.name == name
  # What a setting does not use of the common flags is left out.
  assert setting.flags == ('--rounds=2', *['--clip=1'] * (name != 'none'), *flags)


@pytest.mark.parametrize('settings, common, message', [
    (['--mechanism=none'], [], 'setting must be a name, a colon and flags'),
    (['none'], [], "a colon and flags, found 'none'"),
    (['a: mechanism=none'], [], "setting 'a' must be of --flag=value"),
    (['a: --output_dir=x'], [], "setting 'a': --output_dir is set by the sweep"),
    (['a:'], ['--seed=1'], "setting 'a': --seed is set by the sweep"),
    (['a: --noresume'], [], "setting 'a': --resume is set by the sweep"),
    (['a b:', 'A, b: --clip=1'], [], "different names, found 'A, b' and 'a b'"),
    ([], [], 'there must be at least one setting')])
def test_bad_settings_are_refused(settings, common, message):
  with pytest.raises(ValueError, match=message):
    settings_lib.parse_settings(settings, common)


def test_repeats_go_through_all_settings_and_seeds_follow_the_repeat(tmp_path):
  settings = settings_lib.parse_settings(['a:', 'b: --clip=1'], [])
  runs = sweep_report.build_runs(settings, tmp_path, repeats=2, seeded=True)
  assert [(run.name, run.repeat) for run in runs] == [
      ('a', 0), ('b', 0), ('a', 1), ('b', 1)]
  assert runs[3].flags == ('--clip=1', '--initial_weights_seed=1', '--seed=1')
  assert runs[3].folder == tmp_path / 'b' / '1'
  unseeded = sweep_report.build_runs(settings, tmp_path, repeats=1, seeded=False)
  assert unseeded[0].flags == ('--initial_weights_seed=0',)
  with pytest.raises(ValueError, match='repeats must be at least 1, found 0'):
    SweepSettings(setting=('a:',), output_dir=tmp_path, repeats=0).check()


def test_folder_of_other_flags_is_refused(tmp_path):
  settings = settings_lib.parse_settings(['a: --clip=1'], [])
  sweep_report.build_runs(settings, tmp_path, repeats=1, seeded=False)[0].prepare()
  other = settings_lib.parse_settings(['a: --clip=2'], [])
  run = sweep_report.build_runs(other, tmp_path, repeats=1, seeded=False)[0]
  with pytest.raises(ValueError, match='has a run of other flags, --clip=1'):
    run.prepare()


def _finished(folder, repeats, *, seeded, epsilons):
  """Finished runs of settings with these epsilons."""
  settings = settings_lib.parse_settings([f'{name}:' for name in epsilons], [])
  runs = sweep_report.build_runs(settings, folder, repeats=repeats, seeded=seeded)
  for run in runs:
    run.output.mkdir(parents=True)
    epsilon = epsilons[run.name]
    summary = example_run.summary(
        headline_of='test', headline='accuracy', delta=1 / 3400, epsilon=None,
        held_out={'test': {'accuracy': 0.5}},
        noise_multiplier=None if epsilon is None else 0.123456789)
    if epsilon is not None:
      summary['epsilon_if_unseeded' if seeded else 'epsilon'] = epsilon + run.repeat
    (run.output / 'summary.json').write_text(json.dumps(summary))
    (run.output / 'metrics.csv').write_text('round,test/accuracy\n1,0.5\n')
  return runs


def _reported(folder, runs):
  """The table that a sweep of these runs writes."""
  sweep_report.write(sweep_report.collect(runs), folder, 'title', runs)
  return json.loads((folder / sweep_report.TABLE).read_text())


@pytest.mark.parametrize('epsilons, repeats, words', [
    ({'a': 8.0, 'b': 4.00001}, 2, 'the 4 runs together spend more'),
    ({'a': 8.0}, 2, 'the 2 runs together spend more'),
    ({'a': 8.0, 'none': None}, 1, 'runs without an epsilon protect no client'),
    ({'a': 8.0}, 1, None), ({'none': None}, 2, None)])
def test_epsilons_of_a_sweep_are_reported_to_be_of_each_run_alone(
    tmp_path, capsys, epsilons, repeats, words):
  runs = _finished(tmp_path, repeats, seeded=False, epsilons=epsilons)
  table = _reported(tmp_path, runs)
  printed = capsys.readouterr().out
  for row, epsilon in zip(table, epsilons.values()):
    if epsilon is None:
      assert row['epsilon'] is row['delta'] is row['epsilon_is_of'] is None
    else:
      assert row['epsilon'] == epsilon + repeats - 1  # The largest.
      assert (row['delta'], row['epsilon_is_of']) == (1 / 3400, 'each run alone')
    assert len(row['warnings']) == (words is not None)
  if words is None:
    assert 'together' not in printed
  else:
    warning, = table[0]['warnings']
    assert words in warning and 'of each run alone' in warning
    assert f'warning: {warning}' in printed
    assert 'no epsilon of all runs together' in printed  # Their ledgers are missing.
  if 'a' in epsilons:
    line, = [line for line in printed.splitlines() if line.startswith('a ')]
    assert float(line.split()[1]) >= 0.123456789
    assert 1 / 3400 <= float(line.split()[3]) < 0.00029413
  if 'b' in epsilons:
    assert ' 5.0001 ' in printed


def test_all_runs_together_have_the_numbers_of_their_ledgers(tmp_path, capsys):
  runs = _finished(tmp_path, 2, seeded=False, epsilons={'a': 8.0})
  event = events.PoissonSampled(
      event=events.CentralGaussian(noise_multiplier=2.0), sampling_rate=0.1)
  for run in runs:
    ledger = ledger_lib.Ledger.create(
        run.output / files.LEDGER, population=1000, delta=1e-5)
    ledgers.append(ledger, event, configuration_hash=str(run.repeat))
  row, = _reported(tmp_path, runs)
  answer = ledger_query.together([run.output / files.LEDGER for run in runs])
  numbers = {**answer.numbers(), 'delta': 1e-5}
  for name in ('epsilon', 'epsilon_server', 'epsilon_server_any_cohorts', 'delta'):
    assert row[f'{name}_of_all_runs'] == numbers[name] > 0
  epsilon, server, chosen = (decimals.epsilon(numbers[f'epsilon{of}']) for of in (
      '', '_server', '_server_any_cohorts'))
  assert (f'all 2 runs together: epsilon {epsilon} at delta 1e-05 against observers of '
          f'the models, {server} against the server ({chosen} whatever cohorts it '
          'chooses)') in capsys.readouterr().out


def test_seeded_sweep_reports_the_epsilons_of_unseeded_runs(tmp_path, capsys):
  runs = _finished(tmp_path, 2, seeded=True, epsilons={'a': 8.0})
  row, = _reported(tmp_path, runs)
  assert row['epsilon'] is None and row['epsilon_if_unseeded'] == 9.0
  assert (row['delta'], row['warnings']) == (1 / 3400, [])
  printed = capsys.readouterr().out
  assert '(9.0000)' in printed and 'one run without a seed' in printed


@pytest.mark.parametrize('setting, message', [
    ('a: --clip=-1', "setting 'a': clip must be from 1e-20 to 1e+20, found -1.0"),
    ('a: --nonsense=1', "'a': unknown flag --nonsense; --helpfull lists all")])
def test_flags_that_the_trainer_refuses_are_refused_before_any_run(
    tmp_path, capsys, setting, message):
  flags = [f'--output_dir={tmp_path / "sweep"}', '--setting=good:',
           f'--setting={setting}']
  assert sweep.main(flags) == 2
  printed = capsys.readouterr()
  assert message in printed.err and printed.err.count('\n') == 1
  assert printed.out == '' and not (tmp_path / 'sweep').exists()


def _sweep(folder, *settings):
  done = in_process.run(
      'tff_pipelines.sweep', f'--output_dir={folder}', '--repeats=1', '--seeded',
      '--at_once=2', *(f'--common={flags}' for flags in COMMON),
      *(f'--setting={setting}' for setting in settings), folder=modules.ROOT)
  return done.code, done.stdout, done.stderr


@pytest.mark.slow
def test_sweep_runs_all_settings_once_and_draws_them(tmp_path):
  settings = ('none: --mechanism=none', 'gaussian: --mechanism=gaussian')
  code, stdout, stderr = _sweep(tmp_path, *settings)
  assert code == 0, stderr
  assert '2 runs, 0 of them done' in stderr
  table = json.loads((tmp_path / 'sweep.json').read_text())
  assert [row['name'] for row in table] == ['none', 'gaussian']
  assert table[0]['epsilon'] is table[0]['noise_multiplier'] is None
  # Seeded: no guarantee.
  assert table[1]['epsilon'] is None and 0 < table[1]['epsilon_if_unseeded'] <= 8
  for row in table:
    assert len(row['values']) == 1 and row['metric'] == 'test/accuracy'
    assert [[point[0] for point in curve] for curve in row['curves']] == [[1]]
    assert [curve[-1][1] for curve in row['curves']] == pytest.approx(row['values'])
    assert f'{100 * row["mean"]:.2f}' in stdout
  figure = matplotlib.image.imread(tmp_path / 'sweep.png')
  assert figure.ndim == 3 and figure.std() > 0.05
  # Again, with a setting that fails: what is done is not done again.
  before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob('summary.json')}
  code, stdout, stderr = _sweep(tmp_path, *settings, 'bad: --cohort_size=21')
  assert code == 2
  assert stderr.splitlines()[-1].startswith('error: bad, repeat 0 ended with 2: ')
  assert '3 runs, 2 of them done' in stderr
  for text in ('bad, repeat', 'ended with 2', 'cohort_size=21 is larger'):
    assert text in stderr
  assert before == {
      path: path.stat().st_mtime_ns for path in tmp_path.rglob('summary.json')}
