"""Runs of clients who take turns: rows of sums are opened, and no sum alone."""

import csv
import json
import re
import shutil

import numpy as np
import pytest

from tests import known_cohorts
from tests.fedavg import tiny_run
from tff_pipelines.accounting.guarantees import ledger, ledger_query, mechanisms
from tff_pipelines.common import files
from tff_pipelines.experiment import checkpoints, cli
from tff_pipelines.fedavg import columns, plan as plan_lib
from tff_pipelines.fedavg.account_settings import AccountSettings
from tff_pipelines.fedavg.settings import TrainSettings

pytestmark = pytest.mark.usefixtures('shared_context')

# Of the tiny task: 8 clients, 4 a round, so that a turn is every second round.
SEED = 8
ANYONE = 'any observer who holds no closed sum and no share of the noise'


def _state(folder, rounds=3):
  """The last checkpoint: path -> array."""
  path = checkpoints.path_of(folder / files.PRIVATE / 'checkpoints', rounds)
  return checkpoints.read(path).arrays


def _of(state, name):
  """The array whose path ends in this name."""
  array, = (value for path, value in state.items() if path.endswith(name))
  return array


def _plan(folder, **changes):
  experiment = tiny_run.experiment(folder, **changes)
  return experiment.build_plan(experiment.build_task(), None)


@pytest.fixture(name='seeded', scope='module')
def _seeded(shared_context, tmp_path_factory):
  """The folder of a seeded run that nothing interrupted."""
  del shared_context
  folder = tmp_path_factory.mktemp('seeded') / 'run'
  tiny_run.experiment(folder, seed=SEED).run()
  return folder


@pytest.fixture(name='private', scope='module')
def _private(shared_context, tmp_path_factory):
  """The folder of a run with a guarantee, and its summary."""
  del shared_context
  folder = tmp_path_factory.mktemp('private') / 'run'
  return folder, tiny_run.experiment(folder).run()


def test_one_number_holds_against_observers_server_and_any_cohorts(tmp_path, capsys):
  folder = tmp_path / 'run'
  summary = tiny_run.experiment(folder).run()
  printed = ' '.join(capsys.readouterr().out.split())
  assert summary['epsilon'] == summary['epsilon_server'] == (
      summary['epsilon_server_any_cohorts'])
  assert summary['epsilon'] < summary['epsilon_participant']
  assert (summary['sampling'], summary['least_cohort']) == ('turns', 4)
  assert 'weighted rows of 2 rounds' in summary['trust_model']
  assert summary['observers_server'].endswith('and hold no closed sum')
  caveats = set(summary['caveats'])
  assert {'secure aggregation simulated', 'closed sums simulated'} <= caveats
  assert 'cohorts assumed to be hidden' not in caveats
  # The plan, and the report: one line each.
  number = f'epsilon {summary["epsilon"] + 5e-5:.4f} at delta 0.1 against {ANYONE} '
  assert printed.count(number) == 2 and 'against the server' not in printed
  assert printed.count('run 3 rounds, 4 of 8 clients exactly, turns sampling') == 2
  gain = columns.gain(columns.Workload(rates=(1.0,) * 3, momentum=0.9), (2, 1))
  assert f'rows of 2 rounds: {gain:.2f} times less noise in models (' in printed
  assert ANYONE in (folder / files.REPORT).read_text()
  with open(folder / files.METRICS, encoding='utf-8') as file:
    *_, last = csv.DictReader(file)
  assert float(last['epsilon']) == summary['epsilon']


@pytest.mark.parametrize('mechanism, against', [
    ('gaussian', 'any observer but the server'),
    ('skellam_central', 'any observer but the server'), ('skellam', ANYONE)])
def test_epsilon_is_that_of_the_rows_that_a_client_is_in(tmp_path, mechanism, against):
  plan = _plan(tmp_path / 'run', mechanism=mechanism)
  assert plan.mechanism.column == (2, 1)
  epsilons = [plan.epsilon(rounds) for rounds in (1, 2, 3, 4)]
  # Rows of noise |g|^2 = 5 have a first turn twice and then once, and a second one two
  # rounds later: the worst client is that of the first round.
  exact = [known_cohorts.gaussian_epsilon(squares / 5, plan.delta)
           for squares in (4, 5, 5 + 4, 5 + 5)]
  for epsilon, wanted in zip(epsilons, exact):
    assert wanted <= epsilon * (1 + 1e-9) < wanted * 1.001
  guarantee = plan.guarantee(3)
  assert guarantee.server.epsilon == guarantee.server_any_cohorts.epsilon == epsilons[2]
  assert guarantee.lines()[0].endswith(f'against {against}')
  assert ('closed sums simulated' in {note.name for note in guarantee.caveats}) == (
      mechanism == 'skellam')


def test_sums_of_one_band_are_opened_each_against_all_observers(tmp_path):
  plan = _plan(tmp_path / 'run', bands=1)
  assert plan.mechanism.column == (1,) and not plan.has_closed_sums
  assert plan.guarantee(3).lines()[0].endswith(
      'against any observer who holds no share of the noise')
  # The client of the first round has another turn in the third.
  assert plan.epsilon(1) == plan.epsilon(2) < plan.epsilon(3) == plan.epsilon(4)


def test_turns_that_are_random_too_hide_cohorts_again(tmp_path):
  guarantee = _plan(tmp_path / 'run', turn_rate=0.8).guarantee(3)
  assert guarantee.outsiders.epsilon < guarantee.server.epsilon < (
      guarantee.server_any_cohorts.epsilon)
  assert guarantee.lines()[0].endswith('against observers of the released models')
  assert 'cohorts assumed to be hidden' in {note.name for note in guarantee.caveats}


def test_target_is_met_against_the_server(tmp_path):
  plan = _plan(tmp_path / 'run', noise_multiplier=None, epsilon=6.0)
  assert plan.epsilon(3) == plan.guarantee(3).server.epsilon
  assert 5.99 < plan.epsilon(3) <= 6 < plan.epsilon(5)
  lower = _plan(tmp_path, noise_multiplier=None, epsilon=6.0, epsilon_server=2.0)
  assert 1.99 < lower.epsilon(3) <= 2


@pytest.mark.parametrize('after', [1, 2])
def test_interrupted_run_ends_in_the_same_state(tmp_path, seeded, after):
  folder = tmp_path / 'run'

  def interrupt(index, metrics):
    del metrics
    if index == after:
      raise KeyboardInterrupt

  experiment = tiny_run.experiment(folder, seed=SEED)
  experiment.callbacks = [interrupt]
  with pytest.raises(KeyboardInterrupt):
    experiment.run()
  assert not (folder / files.SUMMARY).exists()
  tiny_run.experiment(folder, seed=SEED, resume=True).run()
  state = _state(folder)
  np.testing.assert_equal(state, _state(seeded))
  assert (_of(state, 'closed_sums') != 0).any()
  assert (_of(state, 'released_sums') != 0).any()
  assert _of(state, 'scheme/key').shape == (2,)


def _damage(folder, rounds):
  """Flips a bit of the checkpoint after this many rounds."""
  path = checkpoints.path_of(folder / files.PRIVATE / 'checkpoints', rounds)
  content = bytearray(path.read_bytes())
  content[200] ^= 1
  path.write_bytes(content)


def test_round_whose_checkpoint_is_damaged_is_repeated_from_the_closed_sums(
    tmp_path, seeded, capsys):
  folder = shutil.copytree(seeded, tmp_path / 'run')
  _damage(folder, 3)
  summary = tiny_run.experiment(folder, seed=SEED, resume=True).run()
  assert 'round_000003 is damaged' in capsys.readouterr().err
  assert summary['rounds'] == 4 and 'rounds run again' in summary['caveats']
  np.testing.assert_equal(_state(folder), _state(seeded))


def test_row_that_is_opened_again_is_charged_again(tmp_path):
  folder, changes = tmp_path / 'run', dict(mechanism='gaussian', rounds=4, bands=2)
  whole = tiny_run.experiment(folder, **changes).run()
  _damage(folder, 4)
  summary = tiny_run.experiment(folder, resume=True, **changes).run()
  # The clients of rounds 2 and 4 are in rows 2 to 4 by 2, 1 and 2; whoever saw a round
  # of the restart too, in row 4 three times.
  for key, squares in (('epsilon', 13), ('epsilon_server', 13 + 4),
                       ('epsilon_server_any_cohorts', 13 + 4)):
    exact = known_cohorts.gaussian_epsilon(squares / 5, summary['delta'])
    assert whole[key] < exact <= summary[key] < 1.1 * exact


def test_order_of_unseeded_turns_is_kept_and_of_each_run_alone(tmp_path, private):
  orders = {tuple(_of(_state(private[0], last), 'scheme/key')) for last in (1, 2, 3)}
  assert len(orders) == 1
  tiny_run.experiment(tmp_path / 'run').run()
  assert tuple(_of(_state(tmp_path / 'run'), 'scheme/key')) not in orders


@pytest.mark.slow
@pytest.mark.parametrize('changes', [{}, {'mechanism': 'skellam_central'}])
def test_workers_change_no_weight(tmp_path, changes):
  for workers in (0, 2):
    tiny_run.experiment(tmp_path / f'{workers}', seed=SEED, local_workers=workers,
                        **changes).run()
  one, two = (files.read_arrays(tmp_path / name / 'model.npz') for name in '02')
  assert one
  np.testing.assert_equal(one, two)


@pytest.mark.parametrize('mechanism', ['skellam', 'gaussian'])
def test_added_rounds_go_on_with_the_closed_sums_and_the_column(
    tmp_path, monkeypatch, mechanism):
  common = dict(seed=SEED, mechanism=mechanism)
  added, whole = tmp_path / 'added', tmp_path / 'whole'
  tiny_run.experiment(added, rounds=2, **common).run()
  column = _recorded(added)
  assert len(column) == 2
  tiny_run.experiment(added, rounds=5, resume=True, **common).run()
  assert _recorded(added) == column
  # A run of five rounds from the start, by the column of the first two.
  monkeypatch.setattr(columns, 'auto', lambda work, most: tuple(column))
  tiny_run.experiment(whole, rounds=5, **common).run()
  np.testing.assert_equal(_state(added, 5), _state(whole, 5))
  one, other = (json.loads((folder / files.SUMMARY).read_text())['epsilon_if_unseeded']
                for folder in (added, whole))
  assert one == other


def _recorded(folder):
  """The column in the configuration of a run."""
  return json.loads((folder / files.CONFIGURATION).read_text())['plan']['column']


def test_added_rounds_must_meet_the_target_against_the_server(tmp_path):
  folder, target = tmp_path / 'run', dict(noise_multiplier=None, epsilon=4.0)
  tiny_run.experiment(folder, rounds=2, **target).run()
  with pytest.raises(ValueError, match='=4 was met by 2 rounds; 3 with this noise cost'):
    tiny_run.experiment(folder, rounds=3, resume=True, **target).run()


def test_suppressed_rounds_leave_the_number_against_the_server(tmp_path):
  changes = dict(simulated_dropout_rate=0.6, min_honest_fraction=0.9, rounds=4)
  folder = tmp_path / 'run'
  summary = tiny_run.experiment(folder, **changes).run()
  outcomes = [line['outcome'] for line in ledger.Ledger(folder / files.LEDGER).lines()]
  # All four of a cohort report with a probability of 0.4^4 = 0.026.
  assert 'suppressed' in outcomes
  planned = _plan(tmp_path / 'other', **changes).guarantee(4)
  assert summary['epsilon_server'] == planned.server.epsilon
  assert summary['epsilon_server_any_cohorts'] == planned.server_any_cohorts.epsilon
  assert 'suppressed rounds' not in summary['caveats']
  answer = ledger_query.answer(folder / files.LEDGER)
  assert answer.server.epsilon == pytest.approx(planned.server.epsilon)
  if outcomes[-1] == 'suppressed':
    state = _state(folder, 4)
    # Its row is not opened, and later rows count its sum as zero.
    assert not _of(state, 'closed_sums')[0].any()
    assert not _of(state, 'released_sums')[0].any()
  # With one band the server has seen the sums.
  alone = tiny_run.experiment(tmp_path / 'alone', bands=1, **changes).run()
  assert alone['epsilon_server'] is None and 'suppressed rounds' in alone['caveats']


def test_closed_sums_are_the_operators_alone(private):
  folder, state = private[0], _state(private[0])
  secrets = [_of(state, name).tobytes()
             for name in ('closed_sums', 'released_sums', 'scheme/key')]
  assert all(any(secret) for secret in secrets)
  public = [path for path in folder.rglob('*')
            if path.is_file() and files.PRIVATE not in path.parts]
  assert len(public) > 8
  for path in public:
    content = path.read_bytes()
    assert not [secret for secret in (b'closed_sums', b'released_sums', *secrets)
                if secret in content], path
  # The power of the test: they are in the checkpoint, byte for byte.
  kept = b''.join(path.read_bytes() for path in (folder / files.PRIVATE).rglob('*')
                  if path.is_file())
  assert all(secret in kept for secret in (b'closed_sums', *secrets))


@pytest.mark.parametrize('changes, message', [
    (dict(bands=3), 'bands must be at most 2, the rounds between two turns of a client: '
     '8 clients, 4 a round; found 3'),
    (dict(bands=2, cohort_size=5.0), 'bands must be at most 1, the rounds between'),
    (dict(cohort_size=9.0), 'cohort_size=9 is larger than the population of 8 clients: '
     'lower it'),
    (dict(cohort_size=6.0, turn_rate=0.5), 'turn_rate must be at least cohort_size / '
     'population, found 0.5')])
def test_what_a_population_does_not_allow_is_one_line_and_nothing_is_written(
    tmp_path, changes, message):
  with pytest.raises(ValueError, match=f'^(?!.*\n){message}'):
    tiny_run.experiment(tmp_path / 'run', **changes).run()
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('changes, message', [
    (dict(bands=2), r'bands .None then, 2 now. differ'),
    (dict(bands=1), r'bands .None then, 1 now. differ'),
    (dict(sampling='poisson'), r"sampling .'?turns'? then, '?poisson'? now.")])
def test_run_is_not_resumed_with_other_bands(private, changes, message):
  before = {path: path.read_bytes() for path in private[0].rglob('*') if path.is_file()}
  with pytest.raises(ValueError, match=f'^(?!.*\n).*{message}'):
    tiny_run.experiment(private[0], resume=True, **changes).run()
  assert before == {
      path: path.read_bytes() for path in private[0].rglob('*') if path.is_file()}


@pytest.mark.parametrize('changes, message', [
    ('--column=0,1', r'column must begin with a positive weight, found \(0, 1\)'),
    ('--column=3,-1', 'column must be from 0 to 1024, found -1'),
    ('--column=2', r'column of one weight must be \(1,\), found \(2,\)'),
    ('--column=1,x', "column must be a comma-separated list of integers, found '1,x'")])
def test_columns_that_are_none_are_refused_by_the_accountant(changes, message):
  flags = ('--mechanism=gaussian --noise_multiplier=1 --sampling=turns --rounds=20 '
           f'--cohort_size=10 --population=100 --delta=1e-3 {changes}')
  with pytest.raises(ValueError, match=f'^{message}'):
    cli.parsed(AccountSettings, flags.split()).about.event()


def test_column_without_turns_is_refused_by_the_accountant():
  with pytest.raises(ValueError, match='^column is not used with sampling=poisson'):
    cli.parsed(AccountSettings, [
        '--mechanism=gaussian', '--noise_multiplier=1', '--sampling=poisson',
        '--cohort_size=10', '--population=100', '--column=2,1'])


def _built(**changes):
  return plan_lib.build(
      TrainSettings(cohort_size=20.0, **changes), dimension=1000, population=1000)


def test_bits_of_a_row_are_named_where_there_are_too_few():
  with pytest.raises(ValueError, match='^(?!.*\n).*bits=10 are too few ') as raised:
    _built(bits=10)
  would_do, = map(int, re.findall(r'; bits=(\d+) would do', str(raised.value)))
  plan = _built(bits=would_do)
  assert would_do > 10 and len(plan.mechanism.column) > 5
  assert 7.9 < plan.epsilon(50) <= 8
  # A sum alone needs less.
  assert _built(bits=would_do - 1, bands=1).epsilon(50) <= 8


def test_more_bands_need_less_noise_in_the_model():
  """At equal epsilon, in units of the clip: as the columns' error says."""
  errors = []
  for bands in (1, 4, None):
    plan = _built(bands=bands)
    assert 7.9 < plan.guarantee(50).server.epsilon <= 8
    errors.append(plan.mechanism.noise_multiplier * columns.error(
        columns.prefix_sum(50), plan.mechanism.column))
  assert errors[0] > 1.2 * errors[1] > 1.2**2 * errors[2]


def test_sampling_of_the_mechanism_in_a_ledger_is_that_of_the_plan(private):
  folder, summary = private
  kept = ledger.Ledger(folder / files.LEDGER)
  assert not kept.verify()
  assert kept.lines()[0]['event'].items() >= {
      'kind': 'TurnSampled', 'column': [2, 1], 'turn_size': 4}.items()
  assert summary['trust_model'].startswith(
      mechanisms.MECHANISMS[summary['mechanism']].trust_model)
