"""What benchmarks.results_fedmd runs: the rows of the tables of arXiv 2009.05537.

No TensorFlow: tables and figures of finished runs need none.
"""

import dataclasses
from typing import Iterator

from tff_pipelines.accounting import events
from tff_pipelines.distill_plan import DistillConfig

SEEDS = (0, 1, 2)
# Where a difference is judged by one point, which single draws differ by.
MORE_SEEDS = (0, 1, 2, 3, 4, 5)
PAIR_NAMES = {'cifar': 'CIFAR', 'mnist_letters': 'letters'}
TABLES = ('2', '3', '4', '5', 'ldp', 'parties')

# Private records of all parties together in the paper, for its epsilon.
_PAPER_RECORDS = {'cifar': 3_000, 'mnist_letters': 28_800}
# Accuracy and epsilon (a decimal logarithm) of table 2, by draws of a party.
_PRINTED = {
    'cifar': {
        16: (74.40, 0.0260), 60: (81.58, 0.0867), 120: (83.57, 0.1734),
        None: (87.38, 0.4336)},
    'mnist_letters': {
        16: (80.64, 0.0027), 300: (93.56, 0.0452), None: (96.63, 0.4342)}}
# Runs that the claims of the paper are judged by.
_REPEATED = {
    **dict.fromkeys((
        'cifar-k60-with', 'cifar-k60-without', 'cifar-k16-softmax-10',
        'cifar-np-190'), SEEDS),
    **dict.fromkeys((
        'cifar-np', 'cifar-kall', 'cifar-np-argmax', 'cifar-kall-argmax',
        'cifar-k16-logits-10', 'cifar-k16-argmax-10'), MORE_SEEDS)}
# How many different records 300 draws with replacement have, in the mean.
_DIFFERENT = 190


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """One row of a table, run once or more. Rows of one key share their runs.

  Attributes:
    key: Name of its runs.
    table: One of TABLES.
    name: Of the row.
    pair: Of data sets.
    changes: Fields of the configuration that are not the defaults of the pair.
    printed: Accuracy in the paper, per cent; None if it has none.
    printed_epsilon: In the paper, a decimal logarithm; None if it has none.
  """

  key: str
  table: str
  name: str
  pair: str
  changes: dict
  printed: float | None = None
  printed_epsilon: float | None = None

  @property
  def seeds(self) -> tuple[int, ...]:
    """Of the split and of the public models; never of a draw or of noise."""
    return _REPEATED.get(self.key, SEEDS[:1])

  def config(self, seed: int, **others) -> DistillConfig:
    """The configuration of a run; table 2 says no kind: it is of softmax."""
    common = dict(
        pair=self.pair, knowledge='softmax', mirror=self.pair == 'cifar',
        initial_weights_seed=seed, data_seed=seed)
    return DistillConfig(**{**common, **self.changes, **others})

  def run(self, seed: int) -> str:
    """Name of a run."""
    return f'{self.key}-{seed}'

  @property
  def paper_epsilon(self) -> float | None:
    """Of the paper's setting, in natural logarithms; None without a draw."""
    config = self.config(0)
    if config.mode != 'nfdp' or config.split != 'iid':
      return None
    records = _PAPER_RECORDS[self.pair] // config.parties
    return events.Nfdp(
        records=records, subset_size=config.subset_size or records,
        replacement=config.replacement).published_epsilon


def _table_2() -> Iterator[Case]:
  printed = {'cifar': dict(np=86.88, centralized=88.83),
             'mnist_letters': dict(np=96.15, centralized=98.00)}
  keys = {16: 'k16-softmax-10', 60: 'k60-with', 300: 'k300-with'}
  for pair, found in _PRINTED.items():
    for mode, name in (('np', 'FedMD-NP'), ('centralized', 'Centralized')):
      yield Case(key=f'{pair}-{mode}', table='2', name=name, pair=pair,
                 changes=dict(mode=mode), printed=printed[pair][mode])
    if pair == 'cifar':  # Not of the paper: what k = all is without its draw.
      yield Case(key='cifar-np-190', table='2', pair=pair,
                 name=f'FedMD-NP, {_DIFFERENT} records of each party',
                 changes=dict(mode='np', records_per_party=_DIFFERENT))
    for size, (accuracy, epsilon) in found.items():
      key = keys.get(size, f'k{size or "all"}')
      yield Case(
          key=f'{pair}-{key}', table='2', name=f'FedMD-NFDP, k = {size or "all"}',
          pair=pair, changes=dict(subset_size=size), printed=accuracy,
          printed_epsilon=epsilon)


def _table_3() -> Iterator[Case]:
  printed = {
      'cifar': {10: (74.55, 74.88, 75.12), 5: (69.79, 70.02, 70.01)},
      'mnist_letters': {10: (80.74, 80.64, 81.58), 5: (74.99, 75.02, 75.58)}}
  for pair, of_parties in printed.items():
    for parties, accuracies in of_parties.items():
      for kind, accuracy in zip(('logits', 'softmax', 'argmax'), accuracies):
        yield Case(
            key=f'{pair}-k16-{kind}-{parties}', table='3',
            name=f'k = 16, {kind}, {parties} parties', pair=pair, printed=accuracy,
            changes=dict(subset_size=16, knowledge=kind, parties=parties),
            printed_epsilon=_PRINTED[pair][16][1] if parties == 10 else None)
  # Not of the paper: what table 2 would be, had it shared argmax predictions.
  yield Case(key='cifar-np-argmax', table='3', name='FedMD-NP, argmax', pair='cifar',
             changes=dict(mode='np', knowledge='argmax'))
  yield Case(key='cifar-kall-argmax', table='3', name='k = all, argmax',
             pair='cifar', changes=dict(subset_size=None, knowledge='argmax'))


def _table_4() -> Iterator[Case]:
  for pair, split, accuracy in (
      ('cifar', 'iid', 75.12), ('cifar', 'noniid', 53.18),
      ('mnist_letters', 'iid', 81.58), ('mnist_letters', 'noniid', 78.36)):
    # The iid row is that of table 3.
    end = '10' if split == 'iid' else 'noniid'
    yield Case(
        key=f'{pair}-k16-argmax-{end}', table='4', name=f'k = 16, argmax, {split}',
        pair=pair, printed=accuracy, changes=dict(
            subset_size=16, knowledge='argmax', split=split),
        printed_epsilon=_PRINTED[pair][16][1] if split == 'iid' else None)


def _table_5() -> Iterator[Case]:
  for pair, size, accuracies in (('cifar', 60, (81.58, 81.13)),
                                 ('mnist_letters', 300, (93.56, 93.63))):
    for replacement, accuracy in zip((True, False), accuracies):
      how = 'with' if replacement else 'without'
      yield Case(
          key=f'{pair}-k{size}-{how}', table='5',
          name=f'k = {size}, {how} replacement', pair=pair, printed=accuracy,
          changes=dict(subset_size=size, replacement=replacement),
          printed_epsilon=_PRINTED[pair][size][1] if replacement else None)


def _ldp() -> Iterator[Case]:
  alone = ', consensus alone'
  for kind in ('softmax', 'argmax', 'logits'):
    yield Case(
        key=f'cifar-ldp-{kind}', table='ldp', name=f'FedMD-LDP, {kind}',
        pair='cifar', changes=dict(mode='ldp', subset_size=60, knowledge=kind))
  yield Case(
      key='cifar-ldp-digest', table='ldp', name=f'FedMD-LDP, softmax{alone}',
      pair='cifar', changes=dict(mode='ldp', subset_size=60, revisit_epochs=0))
  yield Case(
      key='cifar-nfdp-digest', table='ldp', name=f'FedMD-NFDP, softmax{alone}',
      pair='cifar', changes=dict(subset_size=60, revisit_epochs=0))
  yield Case(
      key='cifar-k60-with', table='ldp', name='FedMD-NFDP, softmax', pair='cifar',
      changes=dict(subset_size=60))
  yield Case(
      key='cifar-k60-own', table='ldp', name='own draws alone, no digest',
      pair='cifar', changes=dict(subset_size=60, digest_epochs=0))


def _parties() -> Iterator[Case]:
  """Figure 2 (d), beside table 3: k = 16 whatever the number of parties."""
  for parties in (1, 2):
    yield Case(
        key=f'cifar-k16-softmax-{parties}', table='parties', pair='cifar',
        name=f'k = 16, softmax, {parties} {"party" if parties == 1 else "parties"}',
        changes=dict(subset_size=16, parties=parties))


def cases() -> list[Case]:
  """All rows, in the order of the tables."""
  return [*_table_2(), *_table_3(), *_table_4(), *_table_5(), *_ldp(), *_parties()]


def runs() -> list[tuple[Case, int]]:
  """All runs, each once: those that matter most first, first seeds before others."""
  rank = ('2', '5', 'ldp', '3', '4', 'parties')
  found = {}
  for case in cases():
    for seed in case.seeds:
      found.setdefault(case.run(seed), (case, seed))

  def place(item):
    case, seed = item
    if seed:
      stage = 2
    elif case.pair == 'cifar':
      stage = 0
    else:
      stage = 1 if case.table == '2' else 3
    return stage, rank.index(case.table), case.changes.get('parties', 10) != 10

  return sorted(found.values(), key=place)
