"""FedMD meets the contract of all experiments; folders of version 1 are continued."""

import json
import shutil

import pytest

from tests.experiment import contract
from tff_pipelines.accounting import ledger as ledger_lib
from tff_pipelines.experiment import checkpoints
from tff_pipelines.experiment import files
from tff_pipelines.fedmd import run
from tff_pipelines.fedmd.settings import FedMdSettings
from tff_pipelines.queries import ledger as ledger_query

_TINY = {
    'rounds': 1, 'num_clients': 2, 'records_per_client': 30, 'public_per_round': 20,
    'pretrain_epochs': 1, 'initial_epochs': 1, 'architectures': ('dense2',), 'seed': 7}


@pytest.fixture(scope='module', name='start')
def _start():
  """A task, and weights to start from."""
  settings = FedMdSettings(**_TINY)
  task = run.load_task(settings)
  return task, run.pretrain(task, settings)


class TestExperiment(contract.ExperimentContract):

  commits = 2
  in_vain = (
      ('bits', 16, {}), ('logit_bound', 3.0, {}), ('epsilon', 1.0, {'delta': 0.1}),
      ('subset_size', 3, {'mode': 'np'}), ('data_path', 'x', {}),
      ('digest_epochs', 3, {'mode': 'centralized'}))

  @pytest.fixture(autouse=True, scope='class')
  def _prepare(self, request, start):
    request.cls.start = start

  def settings_class(self):
    return FedMdSettings

  def experiment(self, folder, **changes):
    given = {**_TINY, 'subset_size': 9, 'output_dir': str(folder), **changes}
    if changes.get('mode') in ('np', 'centralized') and 'subset_size' not in changes:
      del given['subset_size']
    if changes.get('mode') == 'centralized':
      del given['public_per_round']
    task, pretrained = self.start
    return run.FedMdExperiment(
        FedMdSettings(**given), task=task, pretrained=pretrained)

  ledger_gives_the_same = False

  def test_ledger_alone_gives_the_epsilon_of_the_summary(self, private):
    folder, summary = private
    answer = ledger_query.answer(folder / files.LEDGER)
    # The tighter statement at the same delta.
    assert answer.epsilon == summary['details']['epsilon_tighter'] == 0
    assert answer.delta == summary['delta']


@pytest.mark.slow
class TestNoisyExperiment(TestExperiment):

  in_vain = (('replacement', True, {}), ('logit_bound', 3.0, {}))

  def experiment(self, folder, **changes):
    task, pretrained = self.start
    return run.FedMdExperiment(FedMdSettings(**{
        **_TINY, 'mode': 'ldp', 'epsilon': 3.0, 'delta': 1e-3, 'diagnostics': True,
        'output_dir': str(folder), **changes}), task=task, pretrained=pretrained)

  def test_models_that_stay_with_parties_are_not_measured(self, private, tmp_path):
    folder, summary = private
    assert 'diagnostics outside the guarantee' in summary['caveats']
    assert summary['accuracy'] is not None
    quiet = tmp_path / 'run'
    experiment = self.experiment(quiet, seed=None, diagnostics=False)
    summary = experiment.run()
    assert summary['held_out'] == {} and summary['accuracy'] is None
    assert 'diagnostics outside the guarantee' not in summary['caveats']
    for path in quiet.rglob('*'):
      if path.is_file() and files.PRIVATE not in path.parts and path.suffix != '.html':
        assert b'/accuracy' not in path.read_bytes(), path
    assert {path.name for path in folder.iterdir()} - {
        path.name for path in quiet.iterdir()} == {files.FIGURE}

  ledger_gives_the_same = True
  test_ledger_alone_gives_the_epsilon_of_the_summary = (
      contract.ExperimentContract.test_ledger_alone_gives_the_epsilon_of_the_summary)

  # Restarts count here, so epsilon differs; the other class shows the rest.
  test_restored_at_every_commit_it_ends_the_same = None


# Version 1 recorded a flat configuration, with all defaults filled in.
_VERSION_1 = {
    'mode': 'nfdp', 'knowledge': 'argmax', 'parties': 2, 'subset_size': 9,
    'replacement': True, 'rounds': 1, 'initial_epochs': 1, 'digest_epochs': 2,
    'revisit_epochs': 2, 'public_per_round': 20, 'weighting': 'equal', 'bits': 20,
    'logit_bound': 30.0, 'noise': 'gaussian', 'epsilon': None, 'delta': None,
    'pretrain_epochs': 1, 'pretrain_learning_rate': 0.003, 'pretrain_batch_size': 64,
    'private_learning_rate': 0.002, 'private_batch_size': 16,
    'digest_learning_rate': 0.002, 'digest_batch_size': 128, 'final_rate_factor': 0.05,
    'mirror': False, 'pair': 'digits', 'split': 'iid', 'architectures': ['dense2'],
    'records_per_party': 30, 'data_seed': 0, 'initial_weights_seed': 0, 'seed': 7,
    'simulated_dropout_rate': 0.0, 'records': [30, 30]}


@pytest.fixture(scope='module', name='finished')
def _finished(start, tmp_path_factory):
  """The folder of a finished run."""
  folder = tmp_path_factory.mktemp('finished') / 'run'
  run.distill(FedMdSettings(**_TINY, subset_size=9, output_dir=str(folder)),
              task=start[0], pretrained=start[1])
  return folder


def _resumed(finished, start, folder, **changes):
  """Resumes a copy of the run with a configuration of version 1, with changes."""
  shutil.copytree(finished, folder)
  (folder / files.PRIVATE / files.KEY).unlink()
  (folder / files.CONFIGURATION).write_text(json.dumps(
      {**_VERSION_1, 'data_fingerprint': start[0].fingerprint, **changes}))
  return run.distill(FedMdSettings(
      **_TINY, subset_size=9, output_dir=str(folder), resume=True), task=start[0])


@pytest.mark.slow
def test_folder_of_version_1_is_continued(finished, start, tmp_path):
  shutil.copytree(finished, tmp_path / 'run')
  for number in (1, 2):
    checkpoints.path_of(tmp_path / 'run' / 'private/checkpoints', number).unlink()
  (tmp_path / 'run' / files.METRICS).unlink()
  ledger = tmp_path / 'run' / files.LEDGER
  lines = ledger.read_text().splitlines(keepends=True)
  assert len(lines) == 3
  ledger.write_text(lines[0])
  summary = _resumed(tmp_path / 'run', start, tmp_path / 'copy')
  assert summary['starts'] == 2 and summary['rounds'] == 2
  copy = tmp_path / 'copy'
  assert (copy / files.METRICS).read_text() == (finished / files.METRICS).read_text()
  assert ledger_lib.Ledger(copy / files.LEDGER).verify() == []


@pytest.mark.parametrize('changes, message', [
    ({'subset_size': 8}, 'subset_size .8 then, 9 now. differ'),
    ({'pair': 'cifar'}, 'task .* differ'), ({'mirror': True}, 'mirror .* differ'),
    ({'records': [30, 31]}, 'records differ'),
    ({'data_fingerprint': 'x'}, 'data_fingerprint differ')])
def test_another_configuration_of_version_1_is_refused(
    finished, start, tmp_path, changes, message):
  with pytest.raises(ValueError, match=message):
    _resumed(finished, start, tmp_path / 'run', **changes)


def test_settings_that_version_1_ignored_may_differ(finished, start, tmp_path):
  summary = _resumed(finished, start, tmp_path / 'run', bits=12, epsilon=3.0,
                     noise='laplace')
  assert summary['starts'] == 2
