"""Contract of every family's experiment: a test class that each inherits.

A family's test file has one class:

    class TestExperiment(contract.ExperimentContract):
      def experiment(self, folder, **changes): ...
"""

import json
import math
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests import shells
from tests.experiment import page_parsed as parsed
from tff_pipelines import report as page_program
from tff_pipelines.accounting.guarantees import ledger_query
from tff_pipelines.common import decimals, files
from tff_pipelines.experiment import (
    charged_records, configurations, failures, models, pages, records as records_lib,
    report)


class _Killed(BaseException):
  """Ends a run at a commit, as a kill would."""


# Fields of a summary that differ between a run and one that was resumed; the hash of
# the configuration, in which the data's fingerprint is by a key of each run.
_OF_STARTS = {'starts', 'epsilon_server', 'epsilon_server_any_cohorts',
              'consumed_delta_server', 'configuration'}


class ExperimentContract:
  """Inherit as a class whose name begins with Test.

  `commits` are those, or the charges, of a run at least; `accountant` is that of the
  plan, which a ledger does not state; `ledger_gives_the_same` epsilon as the summary,
  not a tighter one; `in_vain`: (setting, value, others that leave it no effect).
  """

  commits: int = 2
  in_vain: tuple = ()
  accountant: str = 'auto'
  trains: bool = True
  ledger_gives_the_same: bool = True

  def experiment(self, folder, **changes):
    """A small experiment with these settings, seeded unless `seed=None` is given."""
    raise NotImplementedError

  def settings_class(self):
    """Class of the experiment's settings."""
    raise NotImplementedError

  @pytest.fixture(scope='class')
  def seeded(self, tmp_path_factory):
    """The folder and the summary of a seeded run."""
    folder = tmp_path_factory.mktemp('seeded') / 'run'
    return folder, self.experiment(folder).run()

  @pytest.fixture(scope='class')
  def private(self, tmp_path_factory):
    """The folder and the summary of a run with a guarantee."""
    folder = tmp_path_factory.mktemp('private') / 'run'
    return folder, self.experiment(folder, seed=None).run()

  @pytest.mark.slow
  @pytest.mark.parametrize('when', ['before', 'after'])
  def test_restored_at_every_commit_it_ends_the_same(
      self, seeded, tmp_path, monkeypatch, when):
    folder, summary = seeded
    lines = _events(folder)
    assert len(lines) >= self.commits
    copy, kills, resumed = tmp_path / when, 0, None
    while resumed is None:
      # Each start gets one commit further than the one before.
      with monkeypatch.context() as patch:
        _kill_at(patch, 2 if kills and when == 'before' else 1, when)
        try:
          resumed = self.experiment(copy, resume=kills > 0).run()
        except _Killed:
          kills += 1
    assert resumed['starts'] == kills + 1
    if self.lost_when(when):
      # What was charged and lost stays charged: the run has an end of its own.
      assert kills and len(_events(copy)) >= len(lines)
      return
    assert kills == len(lines) and _events(copy) == lines
    assert _comparable(resumed) == _comparable(summary)
    _assert_same_results(copy, folder)

  def lost_when(self, when) -> bool:
    """Whether a kill at that point loses what was charged."""
    del when
    return False

  def test_summary_is_what_the_schema_says(self, seeded, private):
    for folder, summary in (seeded, private):
      report.validate_summary(summary)
      assert report.read_summary(folder / files.SUMMARY) == summary
    assert seeded[1]['epsilon'] is seeded[1]['epsilon_server'] is None
    assert 'seeded: not private' in seeded[1]['caveats']
    assert 'seeded: not private' not in private[1]['caveats']

  def test_kept_models_give_the_figures_of_the_run(self, seeded):
    folder, summary = seeded
    kept = [models.read(path.parent) for path in sorted(folder.rglob(models.ARRAYS))]
    assert bool(kept) == self.trains
    if not kept:
      with pytest.raises(ValueError, match='trains no model'):
        self.experiment(folder, resume=True).serving(None)
      return
    experiment = self.experiment(folder, resume=True)
    task = experiment.build_task()
    every = [experiment.evaluate(task, trained) for trained in kept]
    means = {name: {metric: sum(one[name][metric] for one in every) / len(every)
                    for metric in values} for name, values in every[0].items()}
    assert means == summary['held_out']

  def test_kept_models_serve_without_the_data(self, seeded):
    folder, _ = seeded
    for path in folder.rglob(models.ARRAYS):
      trained = models.read(path.parent)
      serving = self.experiment(folder, resume=True).serving(trained)
      assert serving.inputs == trained.inputs
      first = serving.model.named(serving.model.initial_weights(0))
      assert {name: array.shape for name, array in trained.arrays.items()} == {
          name: array.shape for name, array in first.items()}
      assert list(first) == list(trained.arrays)
      assert not any(name.startswith('weight_') for name in first)
      batch = {name: np.ones([2, *shape], dtype)
               for name, (dtype, shape) in trained.inputs.items()}
      outputs = serving.model.predict(trained.weights, batch)
      chances = outputs['probabilities'].numpy()
      np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-5)
      np.testing.assert_array_equal(outputs['class'], chances.argmax(axis=1))

  def test_ledger_alone_gives_the_epsilon_of_the_summary(self, private):
    folder, summary = private
    answer = ledger_query.answer(folder / files.LEDGER, accountant=self.accountant)
    for mine, theirs in answer.numbers().items():
      if summary[mine] is not None:
        assert theirs == pytest.approx(summary[mine], rel=1e-6), mine
    assert summary['epsilon'] is not None or not self.is_private
    assert answer.delta == pytest.approx(summary['delta'] or answer.delta)

  is_private = True

  def test_report_is_complete_and_short(self, tmp_path, capsys):
    self.experiment(tmp_path / 'run').run()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 20 and shells.width(lines) <= 80, lines
    end = lines[lines.index('') + 1:]
    assert 0 < len(end) <= 10
    labels = [line[:12].strip() for line in end if line[:12].strip()]
    assert labels[0] == 'result' and labels[-1] == 'next'
    assert {'epsilon', 'run', 'caveats', 'files'} <= set(labels)
    shown = ' '.join(line[12:] for line in lines)
    assert shown.count('seeded: not private') == 2  # Before the first round, too.
    full = (tmp_path / 'run' / files.REPORT).read_text(encoding='utf-8')
    summary = json.loads((tmp_path / 'run' / files.SUMMARY).read_text())
    assert all(warning in full for warning in summary['warnings'])

  def test_page_states_the_guarantee_and_the_ledger_proves_it(self, seeded, private):
    for folder, summary in (seeded, private):
      page = parsed.Page((folder / files.PAGE).read_text(encoding='utf-8'))
      assert {'Guarantee', 'Settings', 'Ledger'} <= {text.strip() for text in page.texts}
      for name in ('epsilon', 'epsilon_server'):
        if summary[name] is not None:
          number = f'epsilon {decimals.epsilon(summary[name])}, delta'
          assert any(number in text for text in page.texts), number
      assert summary['epsilon'] is not None or 'This model is not private' in page.texts
      assert pages.verdict_on(folder).proves(summary)
      written = (folder / files.PAGE).read_bytes()
      assert page_program.report(page_program.ReportSettings(runs=(str(folder),))) == 0
      rewritten = (folder / files.PAGE).read_bytes()
      assert written == rewritten or not self.ledger_gives_the_same

  def test_settings_given_in_vain_are_refused(self, tmp_path):
    assert self.in_vain
    for name, value, others in self.in_vain:
      with pytest.raises(ValueError, match=f'^{name} is not used with'):
        self.experiment(tmp_path / 'run', **{name: value}, **others)
    assert not (tmp_path / 'run').exists()

  def test_what_is_private_is_the_operators_alone(self, private):
    folder = private[0] / files.PRIVATE
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / files.KEY).stat().st_mode & 0o777 == 0o600
    recorded = configurations.read(private[0])['identity']
    experiment = self.experiment(private[0], seed=None, resume=True)
    task = experiment.build_task()
    plain = experiment.identity(task)
    if 'data_fingerprint' in plain:
      assert plain['data_fingerprint'] != recorded['data_fingerprint']
      assert experiment.keyed(plain) == recorded

  def test_an_error_of_a_graph_ends_it_in_one_line_without_values(
      self, tmp_path, monkeypatch, capsys):
    experiment = self.experiment(tmp_path / 'run')

    def fail(*_):
      raise tf.errors.InvalidArgumentError(None, None, 'a label of\n1038123457')

    monkeypatch.setattr(experiment, 'build_rounds', fail)
    with pytest.raises(failures.RunFailedError, match='failed: InvalidArgumentError; '
                       ) as raised:
      experiment.run()
    printed = capsys.readouterr()
    assert '1038123457' not in f'{raised.value} {printed.out} {printed.err}'
    assert '\n' not in str(raised.value)
    for path in (tmp_path / 'run').rglob('*'):
      if path.is_file():
        assert (b'1038123457' in path.read_bytes()) == (path.name == failures.ERROR)

  def test_run_of_another_configuration_is_not_resumed(self, seeded, tmp_path):
    folder = tmp_path / 'run'
    shutil.copytree(seeded[0], folder)
    with pytest.raises(ValueError, match='seed .* differ'):
      self.experiment(folder, seed=12345, resume=True).run()
    with pytest.raises(ValueError, match='holds a run already'):
      self.experiment(folder).run()


def _kill_at(patch, number, when):
  """Ends the process at the commit, or the keeping, of a round."""
  def killing(original, count):
    def wrapped(self, *arguments, **named):
      count[0] += 1
      if count[0] == number and when == 'before':
        raise _Killed
      result = original(self, *arguments, **named)
      if count[0] == number:
        raise _Killed
      return result
    return wrapped

  count = [0]
  for owner, name in ((records_lib.RunRecords, 'commit'),
                      (charged_records.ChargedRecords, 'keep')):
    patch.setattr(owner, name, killing(getattr(owner, name), count))


def _events(folder):
  lines = (folder / files.LEDGER).read_text(encoding='utf-8').splitlines()[1:]
  return [(json.loads(line)['event'], json.loads(line)['outcome']) for line in lines]


def _comparable(summary):
  return {name: value for name, value in summary.items() if name not in _OF_STARTS}


def _assert_same_results(one, other):
  """Tables and arrays that both folders have are equal."""
  assert _table(one) == _table(other)
  names = {path.relative_to(other) for path in other.rglob('*.npz')}
  assert names == {path.relative_to(one) for path in one.rglob('*.npz')}
  for name in names:
    mine, theirs = files.read_arrays(one / name), files.read_arrays(other / name)
    assert mine.keys() == theirs.keys()
    for key in mine.keys() - {'line'}:  # A hash over times.
      np.testing.assert_array_equal(mine[key], theirs[key])


def _table(folder):
  path = folder / files.METRICS
  if not path.exists():
    return None
  rows = [line.split(',') for line in path.read_text(encoding='utf-8').splitlines()]
  epsilon = [i for i, name in enumerate(rows[0]) if name.startswith('epsilon')]
  # Restarts count where clients protect themselves.
  return [[value for i, value in enumerate(row) if i not in epsilon or not
           math.isfinite(float(value))] if number else row
          for number, row in enumerate(rows)]
