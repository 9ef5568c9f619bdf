"""Parties that distil: the tables of arXiv 2009.05537."""

from collections.abc import Iterable, Iterator

from benchmarks.results import fedmd_figures, papers
from benchmarks.results.pages import Comparison, Table
from benchmarks.results.rows import Row, product

NAMES = {'cifar': 'CIFAR', 'mnist_letters': 'letters'}
# Draws of a party in table 2; None for as many as it has records.
_DRAWS = {'cifar': (16, 60, 120, None), 'mnist_letters': (16, 60, 300, None)}
# Draws of table 5.
_REPLACED = {'cifar': 60, 'mnist_letters': 300}
# Mean number of distinct records of 300 draws with replacement.
_DIFFERENT = 190
GRID = product(client_learning_rate=(0.001, 0.002), digest_learning_rate=(0.001, 0.002),
               revisit_epochs=(1, 2))
_ALONE = product(client_learning_rate=(0.0005, 0.001, 0.002, 0.004),
                 client_batch_size=(16, 32))
# Its members are no users: columns of the metrics by party.
_PARTIES = tuple(f'party_{i}/accuracy' for i in range(10))


def _row(task: str, key: str, label: str, tuned: str | None = None, **flags) -> Row:
  """A row; `tuned` is whose settings are taken, None for its own."""
  if flags.get('mode') != 'centralized':
    flags = {'knowledge': 'softmax', **flags}
  is_alone = flags.get('mode') == 'centralized' or flags.get('digest_epochs') == 0
  return Row(
      name=f'fedmd/{task}-{key}', label=f'{NAMES[task]}, {label}', program='fedmd',
      data=task, flags=dict(task=task, **flags),
      grid=() if tuned else _ALONE if is_alone else GRID,
      tuned_as=f'fedmd/{task}-{tuned}' if tuned else '',
      curve=_PARTIES if key in ('kall', 'k16-softmax-10') else (),
      trial=dict(rounds=5), seeded=('initial_weights_seed', 'data_seed'))


def _rows(task: str) -> Iterator[Row]:
  yield _row(task, 'np', 'FedMD without privacy', mode='np')
  yield _row(task, 'centralized', 'all records in one place', mode='centralized')
  keys = {16: 'k16-softmax-10', 60: 'k60-with', 300: 'k300-with'}
  for size in _DRAWS[task]:
    kind = ', softmax, 10 parties' if size == 16 else ''
    yield _row(task, keys.get(size, f'k{size or "all"}'), f'k = {size or "n"}{kind}',
               None if size in (16, 60, None) else 'kall', subset_size=size)
  for parties in (10, 5):
    for kind in ('logits', 'softmax', 'argmax'):
      if (parties, kind) != (10, 'softmax'):
        yield _row(task, f'k16-{kind}-{parties}', f'k = 16, {kind}, {parties} parties',
                   'k16-softmax-10', subset_size=16, knowledge=kind,
                   num_clients=parties)
  for parties, word in ((1, 'one party'), (2, 'two parties')):
    yield _row(task, f'k16-softmax-{parties}', f'k = 16, softmax, {word}', 'k16-softmax-10',
               subset_size=16, num_clients=parties)
  yield _row(task, 'k16-argmax-noniid', 'k = 16, argmax, not iid', 'k16-softmax-10',
             subset_size=16, knowledge='argmax', split='noniid')
  size = _REPLACED[task]
  yield _row(task, f'k{size}-without', f'k = {size}, without replacement',
             'k60-with' if size == 60 else 'kall', subset_size=size, replacement=False)
  # At the epsilon and delta of the draw of 60.
  yield _row(task, 'ldp-softmax', 'FedMD-LDP, softmax; models unreleased', mode='ldp',
             subset_size=60, diagnostics=True)


def _of_cifar() -> Iterator[Row]:
  yield _row('cifar', 'np-190', f'without privacy, {_DIFFERENT} records of each party',
             'np', mode='np', records_per_client=_DIFFERENT)
  yield _row('cifar', 'np-argmax', 'without privacy, argmax', 'np', mode='np',
             knowledge='argmax')
  yield _row('cifar', 'kall-argmax', 'k = n, argmax', 'kall', knowledge='argmax')
  for kind in ('argmax', 'logits'):
    yield _row('cifar', f'ldp-{kind}', f'FedMD-LDP, {kind}; models unreleased',
               'ldp-softmax', mode='ldp', subset_size=60, knowledge=kind,
               diagnostics=True)
  yield _row('cifar', 'ldp-digest', 'FedMD-LDP, consensus alone; models unreleased',
             'ldp-softmax', mode='ldp', subset_size=60, revisit_epochs=0, diagnostics=True)
  yield _row('cifar', 'nfdp-digest', 'k = 60, consensus alone', 'k60-with',
             subset_size=60, revisit_epochs=0)
  yield _row('cifar', 'k60-own', 'k = 60, own draws alone', subset_size=60,
             digest_epochs=0)
  yield _row('cifar', 'np-own', 'without privacy, own records alone', mode='np',
             digest_epochs=0)


ROWS = (*_rows('cifar'), *_of_cifar(), *_rows('mnist_letters'))


def _against(one: str, other: str, words: str) -> Comparison:
  return Comparison(one=f'fedmd/{one}', other=f'fedmd/{other}', words=words)


def _both(*keys: str) -> list[str]:
  """The rows of both data sets with these keys, in this order."""
  return [f'{task}-{key}' for task in NAMES for key in keys
          if f'fedmd/{task}-{key}' in _NAMES]


def _table(mark: str, place: str, rows: Iterable[str],
           comparisons: Iterable[Comparison] = ()) -> Table:
  """A table of rows, with the numbers at a place of the paper."""
  rows = [f'fedmd/{row}' for row in rows]
  return Table(page='fedmd.md', mark=mark, rows=rows, comparisons=list(comparisons),
               printed={claim.rows[0]: claim.printed for claim in papers.CLAIMS
                        if claim.paper == 'fedmd' and claim.place == place})


_NAMES = {row.name for row in ROWS}
_KINDS = [f'k16-{kind}-{parties}' for parties in (10, 5)
          for kind in ('logits', 'softmax', 'argmax')]
TABLES = (
    _table('fedmd 2', 'Table 2', _both(
        'np', 'np-190', 'centralized', 'k16-softmax-10', 'k60-with', 'k120', 'k300-with',
        'kall'), [
        *(_against(f'{task}-kall', f'{task}-np', f'{name}: k = n against no privacy')
          for task, name in NAMES.items()),
        _against('cifar-kall', 'cifar-np-190',
                 'CIFAR: k = n against no privacy with as many records as it draws '
                 'different ones')]),
    _table('fedmd 3', 'Table 3', _both(*_KINDS, 'np-argmax', 'kall-argmax'), [
        *(_against(f'{task}-k16-argmax-10', f'{task}-k16-{kind}-10',
                   f'{name}, k = 16: argmax against {kind}')
          for task, name in NAMES.items() for kind in ('logits', 'softmax')),
        *(_against(f'{task}-k16-softmax-10', f'{task}-k16-softmax-5',
                   f'{name}, k = 16, softmax: ten parties against five')
          for task, name in NAMES.items()),
        _against('cifar-kall-argmax', 'cifar-kall',
                 'CIFAR, k = n: argmax against softmax'),
        _against('cifar-np-argmax', 'cifar-np',
                 'CIFAR, no privacy: argmax against softmax'),
        _against('cifar-kall-argmax', 'cifar-np-argmax',
                 'CIFAR, argmax: k = n against no privacy')]),
    _table('fedmd 4', 'Table 4', _both('k16-argmax-10', 'k16-argmax-noniid'), [
        _against(f'{task}-k16-argmax-noniid', f'{task}-k16-argmax-10',
                 f'{name}: not iid against iid') for task, name in NAMES.items()]),
    _table('fedmd 5', 'Table 5', [
        f'{task}-k{size}-{kind}' for task, size in _REPLACED.items()
        for kind in ('with', 'without')], [
        _against(f'{task}-k{size}-with', f'{task}-k{size}-without',
                 f'{NAMES[task]}, k = {size}: with against without replacement')
        for task, size in _REPLACED.items()]),
    _table('fedmd ldp', 'Section 5.2', _both(
        'ldp-softmax', 'ldp-argmax', 'ldp-logits', 'ldp-digest', 'nfdp-digest', 'k60-with',
        'k60-own', 'np-own'), [
        *(_against(f'{task}-k60-with', f'{task}-ldp-softmax',
                   f'{name}: k = 60 (models released) against FedMD-LDP at its ε '
                   'and δ (models unreleased)') for task, name in NAMES.items()),
        _against('cifar-ldp-softmax', 'cifar-np-own',
                 'CIFAR: FedMD-LDP, softmax, against own records alone'),
        _against('cifar-k60-with', 'cifar-np-own',
                 'CIFAR: k = 60 against own records alone, without privacy'),
        _against('cifar-nfdp-digest', 'cifar-ldp-digest',
                 'CIFAR, consensus alone: k = 60 against FedMD-LDP'),
        _against('cifar-k60-with', 'cifar-k60-own',
                 'CIFAR, k = 60: with the consensus against own draws alone')]),
    _table('fedmd parties', '', _both(*(f'k16-softmax-{n}' for n in (1, 2, 5, 10)))))


FIGURES = {fedmd_figures.FIGURES[number]: draw for number, draw in (
    (2, fedmd_figures.draw_budget), (3, fedmd_figures.draw_rounds),
    (4, fedmd_figures.draw_replacement))}
