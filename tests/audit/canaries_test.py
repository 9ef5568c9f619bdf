"""Canaries: state of a run, bounds by guesses, and reports."""

import json

from dp_accounting.pld import privacy_loss_distribution
import numpy as np
import pytest
from scipy import integrate, stats
import tensorflow as tf

from benchmarks import run_audits
from tests import tiny_task
from tests.programs import in_process
from tff_pipelines.audit import canaries as canaries_lib, guesses
from tff_pipelines.experiment import checkpoints, measured, statement

pytestmark = pytest.mark.usefixtures('shared_context')
TRAIN, AUDIT = 'tff_pipelines.train', 'tff_pipelines.audit'
SMALL = ('--rounds=4', '--cohort_size=40', '--mechanism=skellam')


@pytest.mark.parametrize('count, dimension', [(300, 100), (64, 64), (1, 1), (400, 257)])
def test_one_transform_compares_with_all_directions(count, dimension):
  canaries = canaries_lib.Canaries.draw(count, dimension, seed=1)
  directions = np.stack([canaries.direction(tf.constant(i)) for i in range(count)])
  np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1, rtol=1e-6)
  vector = np.random.default_rng(2).normal(size=dimension).astype(np.float32)
  parts = [vector[:dimension // 3], vector[dimension // 3:].reshape(1, -1)]
  np.testing.assert_allclose(canaries.transformed(parts)[canaries.rows],
                             directions @ vector, atol=1e-5)
  others = directions @ directions.T - np.eye(count)
  # No worse than random signs, also just above a power of two.
  assert np.abs(others).max() < (1e-5 if count == dimension else 6 * dimension**-0.5)
  assert count < 50 or 0.3 < canaries.is_in.mean() < 0.7


def test_guesses_prove_less_than_the_truth_and_no_little():
  # Log likelihood ratios of one Gaussian release with noise 1: its epsilon at 1e-6.
  truth = privacy_loss_distribution.from_gaussian_mechanism(
      1.0).get_epsilon_for_delta(1e-6)
  rng, found = np.random.default_rng(5), []
  for _ in range(40):
    is_in = rng.random(2000) < 0.5
    ratios = rng.normal(np.where(is_in, 0.5, -0.5))
    found.append(guesses.find('server', ratios, is_in, claimed=truth, delta=1e-6).lower)
  assert sum(lower > truth for lower in found) <= stats.binom.ppf(0.999, 40, 0.05)
  assert np.median(found) > 1
  all_right = guesses.find('server', 40 * is_in - 20.0, is_in, claimed=1.0, delta=1e-3)
  assert measured.refutes(all_right.to_json()) and all_right.lower == all_right.largest
  assert all_right.area == 1 and all_right.guesses == all_right.right
  blind = guesses.find('server', np.zeros(2000), is_in, claimed=1.0, delta=1e-3)
  assert blind.lower == 0 and blind.area == 0.5 and blind.estimate is None


@pytest.mark.parametrize('one, other', [
    ((1.0, 1.0), (0.0, 1.0)), ((1.0, 2.0), (0.0, 1.0)), ((0.5, 0.5), (-1.0, 1.5))])
def test_epsilon_of_normals_is_that_of_their_densities(one, other):
  epsilon = guesses.epsilon_of_normals(one, other, 0.01)
  gains = [integrate.quad(lambda x, p=p, q=q: max(0.0, stats.norm.pdf(
      x, *p) - np.exp(epsilon) * stats.norm.pdf(x, *q)), -12, 12, limit=500)[0]
           for p, q in ((one, other), (other, one))]
  assert max(gains) == pytest.approx(0.01, rel=1e-3)
  assert guesses.epsilon_of_normals(one, one, 0.01) == 0


def _trained(folder, name, *flags):
  finished = in_process.run(TRAIN, *SMALL, *flags, f'--output_dir={name}', folder=folder)
  assert finished.code == 0, finished.stderr
  (folder / name / 'stdout').write_text(finished.stdout)
  return folder / name


@pytest.fixture(name='audited', scope='module')
def _audited(tmp_path_factory):
  return _trained(tmp_path_factory.mktemp('canaries'), 'run', '--epsilon=4',
                  '--canaries=150')


@pytest.mark.slow
def test_a_run_tells_the_pair_and_is_not_exported(audited):
  folder = audited.parent
  summary = in_process.summary(audited)
  assert summary['population'] == 350 and 'trained with canaries' in summary['caveats']
  plan = in_process.run(TRAIN, *SMALL, '--epsilon=4', '--canaries=150', '--plan',
                        folder=folder)
  assert plan.code == 0 and '350 clients' in plan.stdout, plan.stderr
  _, _, command = (audited / 'stdout').read_text().rpartition('next')
  assert command.split() == ['python', '-m', AUDIT, '--run=run']
  finished = in_process.run(AUDIT, '--run=run', '--format=json', folder=folder)
  found = json.loads(finished.stdout)
  assert finished.code == 0 and found == summary['details']['audit']
  assert [one['observer'] for one in found] == ['final', 'models', 'server']
  assert found[0]['claimed'] == summary['epsilon'] == pytest.approx(4)
  assert found[2]['claimed'] == summary['epsilon_server']
  for name, text in (('report.txt', 'at most 4 (proved)'), ('report.html', 'Measured'),
                     ('report.html', 'false positive rate')):
    assert text in (audited / name).read_text(encoding='utf-8')
  assert (audited / 'audit.png').stat().st_size > 1000
  export = lambda *flags: in_process.run(
      'tff_pipelines.export', '--output_dir=export', '--format=npz', *flags, folder=folder)
  in_process.check_refused(export('--run=run'), 'trained with canaries')
  plain = _trained(folder, 'plain', '--epsilon=4')
  in_process.check_refused(export('--run=plain', '--audit=plain'), 'found none')
  in_process.check_refused(export('--run=plain', '--audit=.'), 'must be a finished run')
  other = _trained(folder, 'other', '--epsilon=3', '--canaries=20')
  in_process.check_refused(export('--run=plain', f'--audit={other}'), 'other epsilon')
  assert export(f'--run={plain}', '--audit=run').code == 0
  statement = (folder / 'export/PRIVACY.md').read_text(encoding='utf-8')
  assert f'at least {found[1]["lower"]:.3g} (measured, 95% confidence)' in statement
  in_process.check_refused(in_process.run(AUDIT, '--run=plain', folder=folder),
                           'must be the folder of a run with canaries')


@pytest.mark.slow
@pytest.mark.parametrize('sampling', [['--sampling=poisson'], ['--bands=3']])
def test_all_forms_and_resumed_runs_find_the_same(tmp_path, sampling):
  flags = ('--noise_multiplier=0.05', '--canaries=60', '--seed=3', *sampling)
  states = []
  for name, more in (('whole', ()), ('single', ('--clients_per_call=1',)),
                     ('central', ('--mechanism=gaussian',))):
    run = _trained(tmp_path, name, *flags, *more)
    states.append(checkpoints.read(checkpoints.path_of(
        run / 'private/checkpoints', 4)).arrays)
  whole, single, central = states
  for name in ('released', 'server', 'largest', 'past'):
    np.testing.assert_array_equal(whole[f'canaries/{name}'], single[f'canaries/{name}'])
  for found in map(guesses.of_folder, (tmp_path / 'whole', tmp_path / 'central')):
    # What little noise there is, is that of other clients.
    assert found[2].right > 0.8 * found[2].guesses and found[2].lower > 0.3
  assert not np.array_equal(whole['canaries/server'], central['canaries/server'])
  for path in (tmp_path / 'whole/private/checkpoints').iterdir():
    if path.name > 'round_000002':
      path.unlink()
  run = _trained(tmp_path, 'whole', *flags, '--resume')
  again = checkpoints.read(checkpoints.path_of(run / 'private/checkpoints', 4)).arrays
  np.testing.assert_array_equal(again['canaries/released'], whole['canaries/released'])
  (run / canaries_lib.FILE).unlink()
  finished = in_process.run(TRAIN, *SMALL, *flags, '--output_dir=whole', '--resume',
                            folder=tmp_path)
  in_process.check_refused(finished, 'canaries.npz is missing')


@pytest.mark.slow
def test_records_of_silos_can_be_canaries(tmp_path):
  flags = ('--protect=record', '--num_clients=4', '--rounds=8', '--canaries=60',
           '--batch_size=300', '--seed=2')
  found = {}
  for noise in (0.01, 5):
    finished = in_process.run(TRAIN, *flags, f'--noise_multiplier={noise}',
                              f'--output_dir={noise}', folder=tmp_path)
    assert finished.code == 0, finished.stderr
    assert '1,497 records of 4 silos' in finished.stdout
    found[noise] = guesses.of_folder(tmp_path / str(noise))
  for sharp, blunt in zip(*found.values()):
    # With next to no noise what was drawn is seen, also in the last model's direction.
    assert sharp.lower > 0.3 > blunt.lower and sharp.area > 0.8
  assert found[5][1].lower == found[5][2].lower


@pytest.mark.slow
def test_faults_of_runs_are_found_and_sound_runs_are_not_refuted(tmp_path, capsys):
  run_audits.main(['--quick', f'--folder={tmp_path}'])
  found = json.loads((tmp_path / 'findings.json').read_text())
  refuted = {fault: [one['lower'] > one['claimed'] for one in result['findings']]
             for fault, result in found['faults'].items()}
  assert refuted == {'none-300': [False] * 3, 'noise at 0.02-300': [True] * 3}
  assert '| noise at 0.02 | 300 |' in capsys.readouterr().out
  faulty = tmp_path / 'fault-noise-at-0.02-300'
  assert in_process.run(AUDIT, f'--run={faulty}', folder=tmp_path).code == 1
  content = statement.statement(in_process.summary(faulty))
  assert not content['private'] and measured.REFUTED in content['reasons']
  # A ledger without its last line is of a run that was interrupted.
  ledger = faulty / 'ledger.jsonl'
  ledger.write_bytes(b''.join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
  in_process.check_refused(in_process.run(AUDIT, f'--run={faulty}', folder=tmp_path),
                           'is not finished')


@pytest.mark.parametrize('flags, message', [
    (['--canaries=50', '--mechanism=none'], 'canaries is not used with mechanism=none'),
    (['--canaries=50', '--adaptive_clipping'], 'adaptive_clipping'),
    (['--canaries=50', '--private_evaluation=1'], 'it counts clients alone'),
    (['--canaries=50', '--protect=person', '--person_field=x'], 'protect'),
    (['--canaries=19'], 'canaries must be at least 20'),
    (['--canaries=50', '--plan', '--population=99', '--dimension=9'], 'population=99')])
def test_canaries_are_refused_where_they_measure_nothing(tmp_path, flags, message):
  finished = in_process.run(TRAIN, *flags, '--output_dir=run', folder=tmp_path)
  in_process.check_refused(finished, message)
  assert not (tmp_path / 'run').exists()


def test_a_source_with_canaries_leaves_clients_as_they_are():
  source = tiny_task.task().train
  canaries = canaries_lib.Canaries.draw(8, 10, seed=2)
  whole = canaries_lib.OfClients(source, canaries.is_in)
  count = len(source.client_ids)
  assert whole.client_ids[:count] == tuple(source.client_ids)
  own = whole.examples(source.client_ids[0])
  assert not own.pop(canaries_lib.FEATURE).any()
  for name, values in source.examples(source.client_ids[0]).items():
    np.testing.assert_array_equal(own[name], values)
  for number, client in enumerate(whole.client_ids[count:]):
    examples = whole.examples(client)
    expected = [number + 1] * int(canaries.is_in[number])
    assert examples[canaries_lib.FEATURE].tolist() == expected
    assert {len(values) for values in examples.values()} == {len(expected)}
