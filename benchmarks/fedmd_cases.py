"""Runs of benchmarks.results_fedmd: the rows of the tables of arXiv 2009.05537.

No TensorFlow: tables and figures of finished runs need none.
"""

import dataclasses
from typing import Iterator

from benchmarks.results import papers
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.fedmd.settings import FedMdSettings

SEEDS = (0, 1, 2)
# For differences judged by one point, by which single draws differ.
MORE_SEEDS = (0, 1, 2, 3, 4, 5)
TASK_NAMES = {'cifar': 'CIFAR', 'mnist_letters': 'letters'}
TABLES = ('2', '3', '4', '5', 'ldp', 'parties')

# Private records of all parties together in the paper, for its epsilon.
_PAPER_RECORDS = {'cifar': 3_000, 'mnist_letters': 28_800}
# Draws of a party in table 2; None for as many as it has records.
_DRAWS = {'cifar': (16, 60, 120, None), 'mnist_letters': (16, 300, None)}
# Runs that the claims of the paper are judged by.
_REPEATED = {
    **dict.fromkeys((
        'cifar-k60-with', 'cifar-k60-without', 'cifar-k16-softmax-10',
        'cifar-np-190'), SEEDS),
    **dict.fromkeys((
        'cifar-np', 'cifar-kall', 'cifar-np-argmax', 'cifar-kall-argmax',
        'cifar-k16-logits-10', 'cifar-k16-argmax-10'), MORE_SEEDS)}
# Mean number of distinct records of 300 draws with replacement.
_DIFFERENT = 190


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """One row of a table, run once or more. Rows of one key share their runs.

  Attributes:
    key: Name of its runs.
    table: One of TABLES.
    name: Name of the row.
    task: Task of the settings.
    changes: Settings that are not the defaults of the task.
  """

  key: str
  table: str
  name: str
  task: str
  changes: dict

  @property
  def seeds(self) -> tuple[int, ...]:
    """Seeds of the split and of the public models; never of a draw or of noise."""
    return _REPEATED.get(self.key, SEEDS[:1])

  @property
  def printed(self) -> float | None:
    """Accuracy in the paper's table, percent; None if it has none."""
    claim = papers.claim('fedmd', f'Table {self.table}', f'fedmd/{self.key}')
    return claim and float(claim.printed)

  @property
  def printed_epsilon(self) -> float | None:
    """Epsilon in the paper's table, a decimal logarithm; None if it has none."""
    claim = papers.claim('fedmd', f'Table {self.table}', f'fedmd/{self.key}')
    if claim is None or claim.printed_epsilon in (None, 'infinite'):
      return None
    return float(claim.printed_epsilon)

  @property
  def has_consensus(self) -> bool:
    """Whether parties share predictions."""
    return self.changes.get('mode') != 'centralized'

  def settings(self, seed: int, **others) -> FedMdSettings:
    """Returns the settings of a run; table 2 names no knowledge: softmax."""
    common = dict(task=self.task, initial_weights_seed=seed, data_seed=seed)
    if self.has_consensus:
      common['knowledge'] = 'softmax'
    if self.task != 'digits':
      common['data_path'] = '.'  # Does not define a run.
    return FedMdSettings(**{**common, **self.changes, **others})

  def run(self, seed: int) -> str:
    """Returns the name of a run."""
    return f'{self.key}-{seed}'

  @property
  def paper_epsilon(self) -> float | None:
    """Epsilon of the paper's setting, natural logarithms; None without a draw."""
    settings = self.settings(0)
    if settings.mode != 'nfdp' or settings.split != 'iid':
      return None
    records = _PAPER_RECORDS[self.task] // settings.num_clients
    return events.Nfdp(
        records=records, subset_size=settings.subset_size or records,
        replacement=settings.replacement).published_epsilon


def _table_2() -> Iterator[Case]:
  keys = {16: 'k16-softmax-10', 60: 'k60-with', 300: 'k300-with'}
  for task, sizes in _DRAWS.items():
    for mode, name in (('np', 'FedMD-NP'), ('centralized', 'Centralized')):
      yield Case(key=f'{task}-{mode}', table='2', name=name, task=task,
                 changes=dict(mode=mode))
    if task == 'cifar':  # Not in the paper: k = all without its draw.
      yield Case(key='cifar-np-190', table='2', task=task,
                 name=f'FedMD-NP, {_DIFFERENT} records of each party',
                 changes=dict(mode='np', records_per_client=_DIFFERENT))
    for size in sizes:
      key = keys.get(size, f'k{size or "all"}')
      yield Case(
          key=f'{task}-{key}', table='2', name=f'FedMD-NFDP, k = {size or "all"}',
          task=task, changes=dict(subset_size=size))


def _table_3() -> Iterator[Case]:
  for task in _DRAWS:
    for parties in (10, 5):
      for kind in ('logits', 'softmax', 'argmax'):
        yield Case(
            key=f'{task}-k16-{kind}-{parties}', table='3',
            name=f'k = 16, {kind}, {parties} parties', task=task,
            changes=dict(subset_size=16, knowledge=kind, num_clients=parties))
  # Not in the paper: table 2 with argmax predictions.
  yield Case(key='cifar-np-argmax', table='3', name='FedMD-NP, argmax', task='cifar',
             changes=dict(mode='np', knowledge='argmax'))
  yield Case(key='cifar-kall-argmax', table='3', name='k = all, argmax',
             task='cifar', changes=dict(subset_size=None, knowledge='argmax'))


def _table_4() -> Iterator[Case]:
  for task in _DRAWS:
    for split in ('iid', 'noniid'):
      # The iid row is that of table 3.
      end = '10' if split == 'iid' else 'noniid'
      yield Case(
          key=f'{task}-k16-argmax-{end}', table='4', name=f'k = 16, argmax, {split}',
          task=task, changes=dict(subset_size=16, knowledge='argmax', split=split))


def _table_5() -> Iterator[Case]:
  for task, size in (('cifar', 60), ('mnist_letters', 300)):
    for how in ('with', 'without'):
      yield Case(
          key=f'{task}-k{size}-{how}', table='5',
          name=f'k = {size}, {how} replacement', task=task,
          changes=dict(subset_size=size, replacement=how == 'with'))


def _ldp() -> Iterator[Case]:
  alone = ', consensus alone'
  for kind in ('softmax', 'argmax', 'logits'):
    yield Case(
        key=f'cifar-ldp-{kind}', table='ldp', name=f'FedMD-LDP, {kind}',
        task='cifar', changes=dict(
            mode='ldp', subset_size=60, knowledge=kind, diagnostics=True))
  yield Case(
      key='cifar-ldp-digest', table='ldp', name=f'FedMD-LDP, softmax{alone}',
      task='cifar', changes=dict(
          mode='ldp', subset_size=60, revisit_epochs=0, diagnostics=True))
  yield Case(
      key='cifar-nfdp-digest', table='ldp', name=f'FedMD-NFDP, softmax{alone}',
      task='cifar', changes=dict(subset_size=60, revisit_epochs=0))
  yield Case(
      key='cifar-k60-with', table='ldp', name='FedMD-NFDP, softmax', task='cifar',
      changes=dict(subset_size=60))
  yield Case(
      key='cifar-k60-own', table='ldp', name='own draws alone, no digest',
      task='cifar', changes=dict(subset_size=60, digest_epochs=0))


def _parties() -> Iterator[Case]:
  """Figure 2 (d), in addition to table 3: k = 16 for any number of parties."""
  for parties in (1, 2):
    yield Case(
        key=f'cifar-k16-softmax-{parties}', table='parties', task='cifar',
        name=f'k = 16, softmax, {parties} {"party" if parties == 1 else "parties"}',
        changes=dict(subset_size=16, num_clients=parties))


def cases() -> list[Case]:
  """Returns all rows, in the order of the tables."""
  return [*_table_2(), *_table_3(), *_table_4(), *_table_5(), *_ldp(), *_parties()]


def runs() -> list[tuple[Case, int]]:
  """Returns all runs, each once: the important ones and first seeds first."""
  rank = ('2', '5', 'ldp', '3', '4', 'parties')
  by_name = {}
  for case in cases():
    for seed in case.seeds:
      by_name.setdefault(case.run(seed), (case, seed))

  def order(item):
    case, seed = item
    if seed:
      stage = 2
    elif case.task == 'cifar':
      stage = 0
    else:
      stage = 1 if case.table == '2' else 3
    return stage, rank.index(case.table), case.changes.get('num_clients', 10) != 10

  return sorted(by_name.values(), key=order)
