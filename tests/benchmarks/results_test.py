"""The experiments behind the documents: settings, splits, words and pages."""

import collections
import gzip
import itertools
import json
import math

import numpy as np
import pytest
from scipy import optimize, special

from benchmarks.results import __main__ as program
from benchmarks.results import accounting, experiments, papers, pages
from benchmarks.results import rows as rows_lib, splits, statistics
from tasks import registry
from tests import data_dir
from tff_pipelines.experiment import cli
from tff_pipelines.experiment import report

ROWS = experiments.ROWS


@pytest.mark.parametrize('name', ROWS)
def test_every_setting_is_one_of_its_program(name):
  row = ROWS[name]
  path = {} if row.data is None else {'data_path': '.'}
  grids = ROWS[row.tuned_as].grid if row.tuned_as else row.grid
  for chosen in grids or ({},):
    settings = cli.parsed(rows_lib.main_of(row.program).args[1],
                          row.arguments(chosen, 1, path))
    for flag, value in {**row.flags, **dict.fromkeys(row.seeded, 1)}.items():
      found = getattr(settings, flag)
      assert found == value or isinstance(found, tuple) and list(found) == [
          float(one) for one in value.split(',')], flag


def test_every_method_gets_the_same_number_of_settings():
  assert {len(row.grid) for row in ROWS.values()} <= {0, 8}
  for row in ROWS.values():
    assert not row.grid or len({json.dumps(one) for one in row.grid}) == 8
    # Rows that take another's settings are of the same data, on the same split; digits
    # in one silo are those in several.
    of = row.tuned_as and ROWS[row.tuned_as].data
    assert of in ('', row.data) or of == 'digits_1' and row.data.startswith('digits_')
  without = [row.name for row in ROWS.values() if not row.grid and not row.tuned_as]
  assert sorted(without) == ['ldp/curve-random', 'mean/figure-4']


def test_every_row_has_three_seeds_but_hospitals_and_that_of_twenty_repeats():
  assert {row.name: len(row.seeds) for row in ROWS.values() if len(row.seeds) != 3} == {
      'mean/figure-4': 1, **{name: 5 for name in ROWS if name.startswith('silos/heart-')}}


def test_names_differ_and_rows_are_tuned_as_tuned_ones():
  one = rows_lib.Row(name='a/one', label='')
  with pytest.raises(ValueError, match='must differ'):
    rows_lib.by_name([one, one])
  with pytest.raises(ValueError, match='a row with a grid'):
    rows_lib.by_name([rows_lib.Row(name='a/two', label='', tuned_as='a/one'), one,
                      rows_lib.Row(name='a/three', label='', tuned_as='a/two')])


def _arrays():
  rng = np.random.default_rng(0)
  return {'x_train': np.arange(100), 'y_train': rng.integers(0, 3, 100),
          'writer_train': np.repeat(np.arange(20), 5), 'x_test': np.arange(1000, 1010),
          'y_test': np.zeros(10), 'writer_test': np.full(10, 99), 'names': np.arange(3)}


def test_trials_are_on_training_clients_alone():
  arrays = _arrays()
  found = splits.by_writer(arrays, 4)
  assert len(np.unique(found['writer_test'])) == 4
  assert not set(found['writer_test']) & set(found['writer_train'])
  together = np.sort(np.concatenate([found['x_train'], found['x_test']]))
  assert np.array_equal(together, arrays['x_train'])
  assert np.array_equal(found['names'], arrays['names'])
  found = splits.by_record(arrays, 30)
  assert len(found['x_test']) == 30 and found['x_test'].max() < 100
  assert np.array_equal(found['y_train'], arrays['y_train'][found['x_train']])
  arrays['writer_train'][:4] = 1
  found = splits.at_most(arrays, 3)
  assert np.bincount(found['writer_train']).tolist() == [1, *[3] * 19]
  assert np.array_equal(found['writer_train'], arrays['writer_train'][found['x_train']])
  assert len(found['x_test']) == len(arrays['x_test'])


def test_domains_are_divided_between_trials_and_tables():
  arrays = {'a_x': np.arange(50)[:, np.newaxis], 'a_y': np.arange(50)}
  trial, final = (splits.of_domains(arrays, 0.3, is_trial) for is_trial in (True, False))
  assert len(trial['a_y']) == 15
  assert np.array_equal(np.sort(np.concatenate([trial['a_y'], final['a_y']])),
                        arrays['a_y'])
  assert np.array_equal(trial['a_x'][:, 0], trial['a_y'])


TEXTS = {'shakespeare': 'shakespeare', 'stackoverflow': 'stackoverflow_tag'}


@pytest.mark.parametrize('name', TEXTS)
def test_trials_of_texts_lack_the_clients_that_tables_test_on(name, tmp_path):
  for file in splits.DATA[name].files:
    with gzip.open(data_dir.require(file), 'rt') as lines, gzip.open(
        tmp_path / file, 'wt') as some:
      some.writelines(itertools.islice(lines, 300))
  given = dict(data_source='jsonl', cache_dir=str(tmp_path / 'cache'))
  whole, trial = (registry.build(TEXTS[name], **given, data_path=str(
      splits.DATA[name].paths(tmp_path, tmp_path, is_trial=is_trial)))
                  for is_trial in (False, True))
  population, tried = set(whole.train.client_ids), set(trial.train.client_ids)
  assert tried < population
  # A tenth of them is what settings are judged by.
  assert len(tried) == len(population) - round(0.1 * len(population))


def test_intervals_are_those_of_student_and_welch():
  found = statistics.interval([96.0, 97.0, 98.0])
  assert (found.mean, found.high - found.mean) == (97.0, pytest.approx(4.30265 / 3**0.5, 1e-5))
  # By hand: variances 1 and 4 of three values each, 2.94 degrees of freedom.
  found = statistics.difference([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
  freedom = (1 / 3 + 4 / 3)**2 / ((1 / 3)**2 / 2 + (4 / 3)**2 / 2)
  assert found.mean == -2 and freedom == pytest.approx(2.941, 1e-3)
  assert found.high == pytest.approx(-2 + 3.2198 * math.sqrt(5 / 3), 1e-3)


@pytest.mark.parametrize('one, other, word', [
    ([97.0, 97.1, 97.2], [95.0, 95.1, 95.0], 'better'),
    ([95.0, 95.1, 95.0], [97.0, 97.1, 97.2], 'worse'),
    ([97.0, 97.1, 97.2], [97.0, 97.1, 97.1], 'equal within 1 point'),
    ([97.0, 97.1, 97.2], [96.5, 96.4, 96.5], 'better by less than 1 point'),
    ([90.0, 97.1, 99.2], [97.0, 97.1, 97.1], 'undecided'),
    ([97.0], [90.0, 90.1], 'undecided'), ([5.0] * 3, [5.0] * 3, 'equal within 1 point')])
def test_words_follow_intervals(one, other, word):
  assert statistics.word(statistics.difference(one, other)) == word


@pytest.mark.parametrize('value, epsilon, word', [
    (99.5, 5.0, 'better'), (99.5, 3.0, 'better'), (99.5, 6.0, 'none'), (99.5, None, 'better'),
    (90.0, 6.0, 'worse')])
def test_an_accuracy_of_a_larger_epsilon_is_not_better_than_a_papers(value, epsilon, word):
  record = {'runs': [dict(seed=i, value=(value + i / 100) / 100, epsilon=epsilon)
                     for i in range(3)]}  # Table 1 prints 98.1 at epsilon 5.
  text, verdict = pages.verdicts({'ldp/mnist-ldp-query-5': record})['ldp/mnist-ldp-query-5']
  assert verdict.startswith(word) and ('ε' in text) == (epsilon is not None)


@pytest.mark.parametrize('run, cells', [
    (dict(epsilon=2.0, epsilon_server=5.0), ['2.0000', '5.0000', '1e-05']),
    # A third run was continued, and one round may have been released twice.
    (dict(epsilon=2.0, epsilon_server=5.0, starts=2, more=0.5),
     ['2.0000', '5.5000 (continued; else 5.0000)', '1e-05']),
    (dict(epsilon=2.0, epsilon_server=5.0, caveats=['approximate amplification']),
     ['≈ 2.0000', '5.0000', '1e-05']),
    (dict(epsilon=2.0, epsilon_server=5.0, mechanism='gaussian'), ['2.0000', 'trusted', '1e-05']),
    (dict(epsilon=2.0, adjacency='local', delta=0.0), ['2.0000', '2.0000', '0']),
    (dict(epsilon=2.0, mechanism='nfdp'), ['2.0000', '2.0000', '1e-05']),
    (dict(epsilon=2.0), ['2.0000', '–', '1e-05']), (dict(), ['–', '–', '–'])])
def test_an_epsilon_stands_with_whom_it_holds_against(run, cells):
  more = run.pop('more', 0.0)
  runs = [dict(dict(delta=1e-5, value=0.5), **dict(run, starts=1), seed=i) for i in range(2)]
  runs.append(dict(runs[0], seed=2, starts=run.get('starts', 1)))
  if more:
    runs[2]['epsilon_server'] += more
  assert pages.cells({'runs': runs, 'identity': {'flags': {}}})[1:] == cells


def test_a_rate_at_an_end_of_the_tries_is_said():
  grid = [dict(kind=kind, rate=rate, clip=clip) for kind, rates in (
      ('sgdm', (1.0, 2.0, 4.0)), ('adam', (0.1, 0.2, 0.4))) for rate in rates
          for clip in (0.1, 0.3)]
  row = rows_lib.Row(name='a/b', label='row', grid=grid)
  def said(**chosen):
    return pages._tried(row, dict(chosen=chosen, tried=[
        dict(flags=flags, value=0.5) for flags in grid]))
  assert ', the smallest rate of the tries. ' in said(kind='sgdm', rate=1.0, clip=0.1)
  assert ', the largest rate of the tries. ' in said(kind='adam', rate=0.4, clip=0.1)
  assert ' of the tries. ' not in said(kind='adam', rate=0.2, clip=0.1)


def test_commands_are_those_of_the_recorded_runs(capsys):
  assert program.main(['--list', '--only=emnist/rows-skellam-8']) == 0
  first, *others = capsys.readouterr().out.strip().split('\n')
  assert len(others) == 2 and first.startswith('emnist/rows-skellam-8, seed 0: ')
  record = program.read_record(pages.RECORDS / 'emnist' / 'rows-skellam-8.json')
  for name, value in {**record['identity']['flags'], **record['chosen']}.items():
    assert f' --{name}={value}' in first
  assert '--data_path="$DATA_DIR/mnist.npz"' in first and 'initial_weights_seed=0' in first


def test_pages_are_those_of_the_records():
  found = pages.read(pages.RECORDS)
  for page, marks in pages.contents(ROWS, found, experiments.TABLES).items():
    text = (program.ROOT / 'docs' / page).read_text(encoding='utf-8')
    for mark, content in marks.items():
      assert f'<!-- {mark}: begin -->\n{content}\n<!-- {mark}: end -->' in text, (
          f'{page}, {mark}: python -m benchmarks.results --tables --update')
  text = (program.ROOT / 'docs' / 'papers.md').read_text(encoding='utf-8')
  assert text == experiments.answers(found)


def test_epsilons_of_the_papers_figures_are_those_of_closed_forms(tmp_path):
  curves = accounting.curves()
  for name, noise in (('scalar-left', 1.0), ('scalar-right', 5.0)):
    exact = optimize.brentq(lambda e, z=noise: special.ndtr(0.5 / z - e * z) - math.exp(
        e) * special.ndtr(-0.5 / z - e * z) - 1e-5, 0.0, 50.0)
    assert curves[f'{name}-gaussian_analytic']['epsilon'][0] == pytest.approx(exact, 1e-3)
    skellam = curves[f'{name}-skellam_rdp']['epsilon']
    assert skellam == sorted(skellam, reverse=True)
    assert skellam[-1] == pytest.approx(curves[f'{name}-gaussian_rdp']['epsilon'][0], 1e-3)
    assert all(a >= b for a, b in zip(curves[f'{name}-ddgauss']['epsilon'],
                                      curves[f'{name}-discrete_gaussian']['epsilon']))
  assert {row for claim in papers.CLAIMS for row in claim.rows
          if row.startswith('accounting/')} == set(accounting.verdicts())
  accounting.draw({}, tmp_path, tmp_path / 'figure.png')
  image = (tmp_path / 'figure.png').read_bytes()
  assert image.startswith(b'\x89PNG') and len(image) > 10_000


def test_records_are_of_the_settings_that_are_listed():
  for name, record in pages.read(pages.RECORDS).items():
    assert record['identity'] == ROWS[name].identity(), name
    assert len(record['tried']) == len(ROWS[name].grid), name
    assert {run['seed'] for run in record['runs']} <= set(ROWS[name].seeds), name


def test_every_row_of_a_claim_is_one_of_ours():
  sections = collections.Counter(row.section for row in ROWS.values())
  missing = [row for claim in papers.CLAIMS for row in claim.rows
             if row.split('/')[0] in sections and row not in ROWS
             and not row.startswith('mean/')]
  assert not missing


@pytest.mark.slow
def test_rows_are_tried_then_run_and_not_run_again(tmp_path, capfd):
  flags = ['--quick', f'--output_dir={tmp_path}', '--jobs=1']
  assert program.main(flags) == 0
  first = capfd.readouterr().out
  record = program.read_record(tmp_path / 'records' / 'quick' / 'none.json')
  best = max(record['tried'], key=lambda one: one['value'])
  assert record['chosen'] == best['flags'] and len(record['runs']) == 2
  other = program.read_record(tmp_path / 'records' / 'quick' / 'gaussian.json')
  assert other['chosen'] == best['flags'] and not other['tried']
  summary = report.read_summary(
      tmp_path / 'runs' / 'quick' / 'gaussian' / 'seed-0' / 'summary.json')
  assert other['runs'][0]['value'] == summary['value']
  assert first.count('\n') == 5
  assert program.main(flags) == 0 and not capfd.readouterr().out
  # The first seed of a row without random choices, once more.
  assert program.main([*flags, '--repeat']) == 0
  assert 'quick/none: the same\n1 rows' in capfd.readouterr().out
  # Of other data nothing is compared, and no record is lost.
  path = tmp_path / 'records' / 'quick' / 'none.json'
  other = dict(record, data={'mnist.npz': '0'})
  path.write_text(json.dumps(other), encoding='utf-8')
  assert program.main([*flags, '--repeat']) == 1
  assert 'the data are not those of the record' in capfd.readouterr().out
  assert program.read_record(path) == other
  # Nothing to compare with is no success.
  other = ['--quick', f'--output_dir={tmp_path / "other"}', '--jobs=1', '--repeat']
  assert program.main(other) == 1 and 'no record of it' in capfd.readouterr().out
  assert program.main([*other, '--only=other']) == 1


def test_a_changed_grid_keeps_the_tries_that_remain(tmp_path, monkeypatch):
  done = []
  monkeypatch.setattr(program.Runner, '_execute', lambda self, name, flags, seed, **_: (
      done.append(name) or dict(value=flags.get('x', 0), seconds=1, cpu_seconds=1, date='')))
  def run(chosen=None, **fields):
    runner = program.Runner(
        rows_lib.Row(name='a/b', label='', seeds=(0,), **fields), tmp_path, None)
    runner.run(chosen)
    found, done[:] = tuple(done), []
    return found, runner.record['chosen'], len(runner.record['runs'])

  grid = rows_lib.product(x=(1, 2))
  assert run(grid=grid) == (('trial-0', 'trial-1', 'seed-0'), {'x': 2}, 1)
  assert run(grid=grid) == ((), {'x': 2}, 1)
  # The best is another one, so its runs are; then it is the same.
  grid = rows_lib.product(x=(2, 3))
  assert run(grid=grid) == (('trial-1', 'seed-0'), {'x': 3}, 1)
  assert run(grid=rows_lib.product(x=(0, 3))) == (('trial-0',), {'x': 3}, 1)
  # Other flags are another experiment.
  assert run(grid=grid, flags={'y': 1})[0] == ('trial-0', 'trial-1', 'seed-0')
