"""FedMD meets the contract of all experiments."""

import pytest

from tests.experiment import contract
from tff_pipelines.accounting.guarantees import ledger_query
from tff_pipelines.common import files
from tff_pipelines.fedmd import run
from tff_pipelines.fedmd.settings import FedMdSettings

_TINY = {'rounds': 1, 'num_clients': 2, 'records_per_client': 30, 'public_per_round': 20,
    'pretrain_epochs': 1, 'initial_epochs': 1, 'architectures': ('dense2',), 'seed': 7}


@pytest.fixture(scope='module', name='start')
def _start():
  """A task, and weights to start from."""
  settings = FedMdSettings(**_TINY)
  task = run.load_task(settings)
  return task, run.pretrain(task, settings)


class TestExperiment(contract.ExperimentContract):

  commits = 2
  in_vain = (('bits', 16, {}), ('logit_bound', 3.0, {}), ('epsilon', 1.0, {'delta': 0.1}),
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
    return run.FedMdExperiment(FedMdSettings(**given), task=task, pretrained=pretrained)

  ledger_gives_the_same = False

  def test_ledger_alone_gives_the_epsilon_of_the_summary(self, private):
    folder, summary = private
    answer = ledger_query.answer(folder / files.LEDGER)
    # The tighter statement at the same delta.
    assert answer.epsilon == summary['details']['epsilon_tighter'] == 0
    assert answer.delta == summary['delta']


@pytest.mark.slow
def test_models_that_stay_with_parties_are_not_measured(start, tmp_path):
  settings = FedMdSettings(**{
      **_TINY, 'seed': None, 'mode': 'ldp', 'epsilon': 3.0, 'delta': 1e-3})
  loud, quiet = tmp_path / 'loud', tmp_path / 'quiet'
  measured, summary = (run.experiment(
      settings.replace(output_dir=str(folder), diagnostics=folder == loud),
      task=start[0], pretrained=start[1]).run() for folder in (loud, quiet))
  assert 'diagnostics outside the guarantee' in measured['caveats']
  assert measured['accuracy'] is not None
  assert summary['held_out'] == {} and summary['accuracy'] is None
  assert 'diagnostics outside the guarantee' not in summary['caveats']
  for path in quiet.rglob('*'):
    if path.is_file() and files.PRIVATE not in path.parts and path.suffix != '.html':
      assert b'/accuracy' not in path.read_bytes(), path
  assert {path.name for path in loud.iterdir()} - {
      path.name for path in quiet.iterdir()} == {files.FIGURE}
  answer = ledger_query.answer(quiet / files.LEDGER)
  assert answer.epsilon == pytest.approx(summary['epsilon'], rel=1e-6)
