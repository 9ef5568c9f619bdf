"""Digits by writer: accuracy against epsilon, by mechanism and bits."""

from benchmarks.results import figures, pages
from benchmarks.results.pages import Comparison, Table
from benchmarks.results.rows import Row, product

EPSILONS = (1, 2, 4, 8, 16)
# Epsilon -> that of the row whose settings are taken: two are tuned.
_TUNED = {1: 2, 2: 2, 4: 8, 8: 8, 16: 8}
_COMMON = dict(
    task='emnist', data_source='npz', num_classes=10, model='cnn_small', rounds=50,
    client_batch_size=20, server_momentum=0.9, rounds_per_evaluation=50)
_POISSON = dict(sampling='poisson', cohort_size=100)
_TURNS = dict(sampling='turns', cohort_size=107)
# Clip and the server's rate act as their product where all updates are clipped.
GRID = tuple(
    {**rates, 'client_learning_rate': rate}
    for rates in (dict(clip=0.3, server_learning_rate=0.25),
                  dict(clip=0.3, server_learning_rate=0.5),
                  dict(clip=0.3, server_learning_rate=1.0),
                  dict(clip=0.3, server_learning_rate=2.0))
    for rate in (0.1, 0.3))
_PLAIN = product(client_learning_rate=(0.05, 0.1, 0.2, 0.4),
                 server_learning_rate=(0.5, 1.0))


def _row(name: str, label: str, **fields) -> Row:
  flags = {**_COMMON, **fields.pop('flags')}
  return Row(name=f'emnist/{name}', label=label, data='mnist', flags=flags, **fields)


def _rows():
  yield _row('none', 'no privacy', flags=dict(_POISSON, mechanism='none'), grid=_PLAIN,
             seeded=('initial_weights_seed', 'seed'))
  for epsilon in EPSILONS:
    def row(key, label, **flags):
      own = key in ('gaussian', 'rows-gaussian') and _TUNED[epsilon] == epsilon
      tuned = 'rows-gaussian' if key.startswith('rows') else 'gaussian'
      return _row(
          f'{key}-{epsilon}', label, flags=dict(epsilon=epsilon, **flags),  # pylint: disable=cell-var-from-loop
          grid=GRID if own else (),
          tuned_as='' if own else f'emnist/{tuned}-{_TUNED[epsilon]}')  # pylint: disable=cell-var-from-loop

    yield row('gaussian', 'central Gaussian', mechanism='gaussian', **_POISSON)
    yield row('skellam-18', 'Skellam, 18 bits', mechanism='skellam', bits=18, **_POISSON)
    if epsilon in (1, 4, 16):
      for bits in (16, 14, 12, 10) if epsilon == 4 else (16, 14):
        yield row(f'skellam-{bits}', f'Skellam, {bits} bits', mechanism='skellam',
                  bits=bits, **_POISSON)
      for bits in (18, 16, 14) if epsilon == 4 else (18,):
        yield row(f'discrete_gaussian-{bits}', f'discrete Gaussian, {bits} bits',
                  mechanism='discrete_gaussian', bits=bits, **_POISSON)
    if epsilon in (2, 8):
      yield row('rows-gaussian', 'Gaussian of a trusted server, correlated noise',
                mechanism='gaussian', **_TURNS)
    yield row('rows-skellam', 'Skellam, correlated noise', mechanism='skellam', **_TURNS)
  yield _row('skellam_central-18-8', 'Skellam of a trusted server, 18 bits',
             flags=dict(_POISSON, mechanism='skellam_central', epsilon=8, bits=18),
             tuned_as='emnist/gaussian-8')
  # Delta of the papers, at which giving one writer away is allowed.
  for mechanism, name, more in (('gaussian', 'central Gaussian', {}),
                                ('skellam', 'Skellam, 18 bits', dict(bits=18))):
    yield _row(f'{mechanism}-8-of-papers', f'{name}, δ = 1/539',
               flags=dict(_POISSON, mechanism=mechanism, epsilon=8, delta=1 / 539,
                          max_participations=0, **more), tuned_as='emnist/gaussian-8')


ROWS = tuple(_rows())

_NAMES = [row.name for row in ROWS]


def _of(start: str) -> dict[float, str]:
  """Epsilon -> row, of the rows of a kind."""
  return {epsilon: f'emnist/{start}-{epsilon}' for epsilon in EPSILONS
          if f'emnist/{start}-{epsilon}' in _NAMES}


def _at(epsilon: int, kind: str, other: str, words: str) -> Comparison:
  return Comparison(one=f'emnist/{kind}-{epsilon}', other=f'emnist/{other}-{epsilon}',
                    words=f'{words}, ε = {epsilon}')


TABLES = (Table(
    page='results.md', mark='emnist', rows=_NAMES, comparisons=[
        *(_at(epsilon, 'skellam-18', 'gaussian',
              'Skellam at 18 bits against the central Gaussian')
          for epsilon in EPSILONS),
        *(_at(epsilon, f'skellam-{bits}', 'skellam-18',
              f'Skellam at {bits} bits against 18')
          for epsilon in (1, 4, 16)
          for bits in ((16, 14, 12, 10) if epsilon == 4 else (16, 14))),
        *(_at(epsilon, 'skellam-18', 'discrete_gaussian-18',
              'Skellam against the discrete Gaussian, 18 bits')
          for epsilon in (1, 4, 16)),
        *(_at(epsilon, 'rows-skellam', 'rows-gaussian',
              'Skellam against the Gaussian, correlated noise') for epsilon in (2, 8)),
        *(Comparison(one='emnist/none', other=f'emnist/skellam-18-{epsilon}',
                     words=f'no privacy against Skellam at 18 bits, ε = {epsilon}')
          for epsilon in (8, 16))]),)

_CORRELATED = {
    'Digits of 539 writers': {
        'emnist/none': 'no privacy',
        **{f'emnist/rows-skellam-{epsilon}': 'Skellam, correlated noise'
           for epsilon in EPSILONS},
        **{f'emnist/skellam-18-{epsilon}': 'Skellam, Poisson sampling'
           for epsilon in EPSILONS}}}
TABLES += (Table(
    page='correlated_noise.md', mark='turns_emnist', rows=[*_CORRELATED.values()][0],
    render=pages.brief(_CORRELATED, [
        *(_at(epsilon, 'rows-skellam', 'skellam-18', 'Correlated noise against Poisson '
              'sampling of the same ε against observers') for epsilon in EPSILONS),
        *(Comparison(one=f'emnist/rows-skellam-{less}', other=f'emnist/skellam-18-{more}',
                     words=f'Correlated noise, ε = {less} against all, against Poisson '
                           f'sampling at ε = {more} against observers')
          for less, more in ((2, 4), (4, 8), (8, 16)))])),)


def draw(records, runs, path) -> None:
  """Accuracy against epsilon, each curve with its observers."""
  del runs
  hidden = 'observers who do not know cohorts'
  figures.against_epsilon(records, path, {
      f'central Gaussian; {hidden}': _of('gaussian'),
      **{f'Skellam, {bits} bits; {hidden}': _of(f'skellam-{bits}')
         for bits in (18, 16, 14)},
      f'discrete Gaussian, 18 bits; {hidden}': _of('discrete_gaussian-18'),
      'Skellam, 18 bits; server': {
          records[name]['runs'][0]['epsilon_server']: name
          for name in _of('skellam-18').values() if name in records},
      'Skellam, correlated noise; server and observers': _of('rows-skellam')},
                          none='emnist/none', metric='accuracy (%)',
                          title='Digits by writer, 539 writers, 50 rounds; 95% intervals '
                                'of three seeds')


FIGURES = {'emnist.png': draw}
