"""Votes and their baselines: the tables and figure 2 of arXiv 2010.04851."""

from collections.abc import Iterator
from typing import Any

from benchmarks.results import figures, pages
from benchmarks.results.pages import Comparison, Record, Table
from benchmarks.results.rows import Row, product

TARGETS = {'webcam': 'A, C, D → webcam', 'dslr': 'A, C, W → dslr',
           'amazon': 'C, D, W → amazon', 'caltech10': 'A, D, W → caltech10'}
RECORDS = (50, 100, 200, 400, 600)
AGENTS = (50, 100, 200, 400, 800)

_AE = dict(algorithm='ae', delta=1e-3, bound='paper')
_OWN = dict(clients_see='records', model='cnn_small', client_epochs=8)
_FEDAVG = dict(algorithm='fedavg', client_batch_size=20, client_epochs=1)
_DP_FEDAVG = dict(algorithm='dp_fedavg', client_batch_size=20, client_epochs=1,
                  delta=1e-3)
_CNN = dict(_DP_FEDAVG, model='cnn_small')
_FEATURES = dict(features='contrastive', model='softmax')
# The student of a vote, on the same features.
_STUDENT = dict(_FEATURES, student='spread')
_ASKED = product(client_confidence=(0.5, 0.9), queries=(30, 50, 100, 200))
_IMAGES = product(rounds=(10, 20), clip=(0.5, 1.0), client_learning_rate=(0.1, 0.2))
_ON_FEATURES = product(rounds=(20, 30), clip=(0.4, 1.0),
                       client_learning_rate=(0.03, 0.1))
_TAUGHT = product(rounds=(10, 20), client_learning_rate=(0.01, 0.03), queries=(50, 100))
_PLAIN = product(rounds=(20, 60), client_learning_rate=(0.05, 0.1, 0.2, 0.4))


def _row(name: str, label: str, data: str, flags: dict[str, Any], **fields) -> Row:
  algorithm = flags['algorithm']
  seeded = ['feature_seed']
  if flags['task'] != 'office':  # Its agents are the domains.
    seeded.append('data_seed')
  if algorithm != 'knn':
    seeded.append('initial_weights_seed')
  if algorithm in ('ae', 'knn') or 'student' in flags:
    seeded.append('student_seed')
  if 'fed' in algorithm:
    flags = dict(flags, rounds_per_evaluation=1000)
  return Row(name=f'voting/{name}', label=label, program='vote', data=data, flags=flags,
             seeded=seeded, **fields)


def _mnist() -> Iterator[Row]:
  def row(name, label, *parts, **fields):
    flags = {'task': 'mnist'}
    for part in parts:
      flags.update(part)
    return _row(f'mnist-{name}', label, 'voting_mnist', flags, **fields)

  ae, shared = 'voting/mnist-ae', dict(map_of='voting/mnist-ae')
  target = dict(epsilon=4.3)
  yield row('ae', 'AE-DPFL, agents on public features', _AE, dict(feature_epochs=60),
            target, grid=_ASKED, map_of=ae)
  yield row('ae-own', 'AE-DPFL, agents with CNNs of their own', _AE, _OWN, target,
            tuned_as=ae, **shared)
  yield row('ae-random', 'AE-DPFL in the paper\'s form: random queries, no public '
            'features, student on them alone', _AE, _OWN, target,
            dict(features='pca', query_choice='random', student='labels'),
            grid=product(client_confidence=(0.5, 0.9), queries=(100, 200, 500, 1000)))
  yield row('dp_fedavg', 'DP-FedAvg, CNN', _CNN, target, grid=_IMAGES)
  yield row('dp_fedavg-features', 'DP-FedAvg on the public features', _DP_FEDAVG,
            _FEATURES, target, grid=_ON_FEATURES, **shared)
  yield row('dp_fedavg-student', 'DP-FedAvg on the public features, then the student',
            _DP_FEDAVG, _STUDENT, dict(clip=1.0), target, grid=_TAUGHT, **shared)
  yield row('dp_fedavg-8', 'DP-FedAvg, CNN, agents of 2 digits', _CNN,
            dict(labels_per_client=2, records_per_client=500, epsilon=8),
            tuned_as='voting/mnist-dp_fedavg')
  yield row('fedavg', 'FedAvg, CNN, no privacy', _FEDAVG, grid=_PLAIN)
  yield row('fedavg-student', 'FedAvg on the public features, then the student, no '
            'privacy', _FEDAVG, _STUDENT, grid=_TAUGHT, **shared)
  yield row('dp_fedsgd-student', 'DP-FedSGD on the public features, then the student; '
            'ε of a record',
            dict(algorithm='dp_fedsgd', delta=1e-6, record_rate=0.05, clip=1.0), _STUDENT,
            target, **shared, grid=product(
                rounds=(50, 100), server_learning_rate=(0.5, 2.0), queries=(50, 100)))


def _digits() -> Iterator[Row]:
  def row(name, label, *parts, **fields):
    flags = {'task': 'digits'}
    for part in parts:
      flags.update(part)
    return _row(f'digits-{name}', label, 'digits', flags, **fields)

  ae, shared = 'voting/digits-ae', dict(map_of='voting/digits-ae')
  own = dict(_AE, queries=500, model='cnn_small', client_shift=1)
  del own['bound']
  agents = product(client_epochs=(10, 20), client_confidence=(0.0, 0.3, 0.5, 0.7))
  adapted = product(client_confidence=(0.0, 0.5), client_epochs=(10, 20),
                    adversarial_strength=(0.1, 0.3))
  yield row('ae', 'AE-DPFL, 500 queries, σ = 25', own,
            dict(noise_stddev=25, clients_see='records'), grid=agents, map_of=ae)
  yield row('ae-da', 'AE-DPFL + DA, 500 queries, σ = 30', own, dict(noise_stddev=30),
            grid=adapted, **shared)
  yield row('ae-features', 'AE-DPFL, agents on public features', _AE, dict(epsilon=2.8),
            grid=_ASKED, **shared)
  yield row('dp_fedavg', 'DP-FedAvg', _CNN, dict(epsilon=3.7), grid=product(
      rounds=(40, 80), clip=(0.5, 1.0), client_learning_rate=(0.2, 0.4)))
  yield row('dp_fedavg-da', 'DP-FedAvg + DA', _CNN, dict(epsilon=3.6, clip=1.0),
            grid=product(rounds=(20, 40), client_learning_rate=(0.1, 0.2),
                         adversarial_strength=(0.03, 0.1)))
  yield row('dp_fedavg-student', 'DP-FedAvg on the public features, then the student',
            _DP_FEDAVG, _STUDENT, dict(clip=1.0, epsilon=2.8), grid=_TAUGHT, **shared)
  yield row('fedavg', 'FedAvg, no privacy', _FEDAVG, grid=product(
      rounds=(60, 150), client_learning_rate=(0.1, 0.2, 0.4, 0.8)))
  yield row('fedavg-da', 'FedAvg + DA, no privacy', _FEDAVG, dict(rounds=60),
            grid=product(client_learning_rate=(0.1, 0.2, 0.4, 0.8),
                         adversarial_strength=(0.03, 0.1)))


def _office() -> Iterator[Row]:
  for target, title in TARGETS.items():
    def row(name, label, *parts, **fields):
      flags = dict(task='office', target=target, features='pca', pca_dimensions=50)  # pylint: disable=cell-var-from-loop
      for part in parts:
        flags.update(part)
      if target != 'webcam':  # pylint: disable=cell-var-from-loop
        fields.pop('grid')
        fields['tuned_as'] = f'voting/office-webcam-{name}'
      return _row(f'office-{target}-{name}', f'{title}, {label}', 'office', flags,  # pylint: disable=cell-var-from-loop
                  **fields)

    record, student = dict(delta=1e-4, epsilon=3.9), dict(student_model='softmax')
    sgd = dict(algorithm='dp_fedsgd', clip=1.0)
    steps = product(rounds=(25, 50), record_rate=(0.1, 0.2),
                    server_learning_rate=(0.5, 1.0))
    knn = dict(algorithm='knn', neighbours=50)
    asked = product(queries=(20, 50), student_learning_rate=(0.01, 0.02, 0.05, 0.1))
    yield row('knn', 'kNN-DPFL', knn, student, record, grid=asked)
    yield row('dp_fedsgd', 'DP-FedSGD, a record replaced', sgd, record, grid=steps)
    yield row('dp_fedsgd-added', 'DP-FedSGD, a record added or removed', sgd, record,
              dict(adjacency='record-zero-out'), grid=steps)
    yield row('dp_fedsgd-student', 'DP-FedSGD, then the student of kNN-DPFL', sgd,
              student, record, dict(student='spread', rounds=50, record_rate=0.2),
              grid=product(server_learning_rate=(0.5, 1.0), queries=(20, 50),
                           student_learning_rate=(0.02, 0.05)))
    yield row('fedavg', 'FedAvg, no privacy', _FEDAVG, grid=product(
        rounds=(20, 50), client_learning_rate=(0.003, 0.01, 0.03, 0.1)))
    if target in ('webcam', 'dslr'):
      large = {'webcam': 12.4, 'dslr': 7.9}[target]
      end = {'webcam': '12', 'dslr': '8'}[target]
      tuned = 'voting/office-webcam-dp_fedsgd-added'
      yield _row(f'office-{target}-dp_fedsgd-{end}',
                 f'{title}, DP-FedSGD, a record added or removed, larger ε', 'office',
                 dict(task='office', target=target, features='pca', pca_dimensions=50,
                      **sgd, delta=1e-4, epsilon=large, adjacency='record-zero-out'),
                 tuned_as=tuned)
      # The sampling error of integer noise is proved to be small for smaller ones.
      yield row('dp_fedavg', 'DP-FedAvg, trusted server, ε of a domain', _DP_FEDAVG,
                dict(epsilon={'webcam': 46.6, 'dslr': 47.1}[target], delta=1e-4,
                     noise='gaussian_central'),
                grid=product(rounds=(5, 20), clip=(0.3, 1.0),
                             client_learning_rate=(0.01, 0.1)))
      yield _row(f'office-{target}-knn-15', f'{title}, kNN-DPFL, σ = 15 neighbours, '
                 'all public records asked', 'office',
                 dict(task='office', target=target, features='pca', pca_dimensions=50,
                      **knn, **student, noise_stddev=0.3, delta=1e-4, queries={
                          'webcam': 144, 'dslr': 76}[target]),
                 trial=dict(queries={'webcam': 62, 'dslr': 33}[target]),
                 grid=product(student_learning_rate=(
                     0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)))


_KINDS = {'': 'MNIST', 'letters-': 'letters'}


def _counted(name: str) -> str:
  """'600 records' of 'records600'."""
  what = name.rstrip('0123456789')
  return f'{name.removeprefix(what)} {what}'


def _figure_2() -> Iterator[Row]:
  for kind, data, task in (
      ('', 'voting_mnist', dict(task='mnist', public_records=1000)),
      ('letters-', 'letters', dict(task='npz', public_fraction=0.19,
                                   labels_per_client=15))):
    first = f'voting/ablation-{kind}ae-records600'
    few = {100, 400} if kind else set()
    settings = [(f'records{count}', dict(records_per_client=count, num_clients=100))
                for count in reversed(RECORDS) if count not in few]
    settings += [(f'agents{count}', dict(num_clients=count))
                 for count in AGENTS if count not in few | {100}]
    for name, given in settings:
      for method, label, base, grid in (
          # Noise by the proved bound: rows of one epsilon are compared.
          ('ae', 'AE-DPFL', dict(_AE, bound='tight'), _ASKED),
          ('dp_fedavg', 'DP-FedAvg on the public features', dict(
              _DP_FEDAVG, **_FEATURES), _ON_FEATURES),
          ('dp_fedavg-student', 'DP-FedAvg, then the student', dict(
              _DP_FEDAVG, **_STUDENT, clip=1.0), _TAUGHT)):
        start = f'ablation-{kind}{method}'
        own = name in ('records50', 'records600')
        near = 'records50' if name in ('records100', 'records200') else 'records600'
        yield _row(f'{start}-{name}', f'{_KINDS[kind]}, {_counted(name)}, {label}', data,
                   dict(task, **given, **base, epsilon=5), map_of=first,
                   grid=grid if own else (),
                   tuned_as='' if own else f'voting/{start}-{near}')


ROWS = (*_mnist(), *_digits(), *_office(), *_figure_2())
_NAMES = {row.name for row in ROWS}


def _detail(name: str, form):
  def text(record: Record) -> str:
    found = [run['details'].get(name) for run in record['runs']]
    return '–' if None in found else form(sum(found) / len(found))

  return text


_COLUMNS = {
    'labels right, %': _detail('labels_right', lambda value: f'{100 * value:.1f}'),
    'ε, published formula': _detail('epsilon_published', lambda value: f'{value:.2f}'),
    'uplink of an agent, kB': _detail(
        'uplink_bytes_per_agent', lambda value: f'{value / 1000:.1f}')}


def _against(one: str, other: str, words: str) -> Comparison:
  return Comparison(one=f'voting/{one}', other=f'voting/{other}', words=words)


def _table(mark: str, start: str, *comparisons: Comparison, **columns) -> Table:
  return Table(page='voting.md', mark=mark, columns={**columns, **_COLUMNS},
               comparisons=comparisons,
               rows=[row.name for row in ROWS if row.name.startswith(f'voting/{start}')])


_SAME = 'On public features: AE-DPFL against DP-FedAvg with the same student'
TABLES = (
    _table('mnist', 'mnist-', _against('mnist-ae', 'mnist-dp_fedavg-student', _SAME),
           _against('mnist-ae', 'mnist-dp_fedavg', 'AE-DPFL against DP-FedAvg, CNN'),
           _against('mnist-ae', 'mnist-dp_fedavg-features',
                    'AE-DPFL against DP-FedAvg on the public features'),
           _against('mnist-ae-random', 'mnist-dp_fedavg',
                    'AE-DPFL in the paper\'s form against DP-FedAvg, CNN'),
           _against('mnist-ae', 'mnist-fedavg-student',
                    'AE-DPFL against FedAvg with the same features and student')),
    _table('digits', 'digits-',
           _against('digits-ae-features', 'digits-dp_fedavg-student', _SAME),
           _against('digits-ae', 'digits-dp_fedavg', 'AE-DPFL against DP-FedAvg'),
           _against('digits-ae-da', 'digits-ae', 'AE-DPFL with against without DA'),
           _against('digits-fedavg-da', 'digits-fedavg', 'FedAvg with against without DA'
                    )),
    _table('office', 'office-', *(
        _against(f'office-{target}-knn', f'office-{target}-{other}',
                 f'{title}: kNN-DPFL against DP-FedSGD{more}')
        for target, title in TARGETS.items()
        for other, more in (('dp_fedsgd', ', a record replaced in both'),
                            ('dp_fedsgd-student', ' with the same student'))),
           **{'ε, another domain': pages.participant}),
    _table('figure_2', 'ablation-', *(
        _against(f'ablation-{kind}ae-{name}', f'ablation-{kind}{other}-{name}',
                 f'{what}, {_counted(name)}: AE-DPFL against {words}')
        for kind, what in _KINDS.items()
        for name in ('records50', 'records200', 'records400', 'records600', 'agents50',
                     'agents200', 'agents800')
        for other, words in (
            ('dp_fedavg', 'DP-FedAvg'),
            ('dp_fedavg-student', 'DP-FedAvg with the same student'))
        if f'voting/ablation-{kind}{other}-{name}' in _NAMES)))


def _draw(records, runs, path) -> None:
  """Draws figure 2: accuracy over records of an agent, and over agents."""
  del runs
  panels = []
  for kind, what in _KINDS.items():
    for axis, counts in (('records', RECORDS), ('agents', AGENTS)):
      panels.append((f'{what}, by {axis}', axis, {
          label: {count: f'voting/ablation-{kind}{method}-' + (
              'records600' if (axis, count) == ('agents', 100) else f'{axis}{count}')
                  for count in counts if (axis, count) == ('agents', 100) or (
                      f'voting/ablation-{kind}{method}-{axis}{count}' in _NAMES)}
          for method, label in (('ae', 'AE-DPFL'), ('dp_fedavg', 'DP-FedAvg, features'),
                                ('dp_fedavg-student', 'the same, and student'))}))
  figures.panels(records, path, panels, metric='accuracy (%), ε = 5')


FIGURES = {'voting_ablations.png': _draw}
