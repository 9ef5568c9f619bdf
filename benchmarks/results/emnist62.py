"""62 classes by writer, with the CNN of a million parameters: figure 5 of the paper."""

from benchmarks.results.pages import Comparison, Table
from benchmarks.results.rows import Row, product

_COMMON = dict(
    task='emnist', data_source='npz', num_classes=62, model='cnn_1m', cohort_size=100,
    sampling='poisson', client_batch_size=20)
# Half of the tries without momentum, by which a tuner who had not seen the grid gained
# more than a point.
_PRIVATE = (
    *product(rounds=(50,), clip=(0.1,), client_learning_rate=(0.03, 0.1),
             server_momentum=(0.9,)),
    *product(rounds=(100,), clip=(0.05, 0.1), client_learning_rate=(0.03,),
             server_momentum=(0.9,)),
    *({'rounds': 50, 'clip': clip, 'client_learning_rate': 0.05, 'server_momentum': 0,
       'server_learning_rate': rate}
      for clip, rate in ((0.1, 8), (0.2, 3), (0.2, 5), (0.3, 3))))
_PLAIN = product(rounds=(60, 120), client_learning_rate=(0.03, 0.06, 0.12, 0.25),
                 server_momentum=(0.9,))
# By Renyi accounting epsilon is 10 in the setting of the paper, with 3,400 writers.
PAPER_NOISE = 0.848


def _row(name: str, label: str, grid=(), tuned: str = '', **flags) -> Row:
  return Row(name=f'emnist62/{name}', label=label, data='letters62', grid=grid,
             tuned_as=tuned and f'emnist62/{tuned}',
             flags=dict(_COMMON, rounds_per_evaluation=300, **flags))


def _rows():
  yield _row('none', 'no privacy', _PLAIN, mechanism='none')
  yield _row('gaussian-8', 'central Gaussian', _PRIVATE, mechanism='gaussian', epsilon=8)
  for mechanism, name in (('skellam', 'Skellam'), (
      'discrete_gaussian', 'discrete Gaussian')):
    # Digits, characters and tags show discrete Gaussian noise at fewer bits.
    for bits in (18, 16, 14) if mechanism == 'skellam' else (18,):
      yield _row(f'{mechanism}-{bits}-8', f'{name}, {bits} bits', tuned='gaussian-8',
                 mechanism=mechanism, bits=bits, epsilon=8)
  for mechanism, name, more in (('gaussian', 'central Gaussian', {}),
                                ('skellam', 'Skellam, 18 bits', dict(bits=18))):
    yield _row(f'{mechanism}-of-the-paper', f'{name}, z = {PAPER_NOISE}',
               tuned='gaussian-8', mechanism=mechanism, noise_multiplier=PAPER_NOISE,
               **more)


ROWS = tuple(_rows())
TABLES = (Table(
    page='results.md', mark='emnist62', rows=[row.name for row in ROWS], comparisons=[
        *(Comparison(one=f'emnist62/{one}-8', other='emnist62/gaussian-8',
                     words=f'{words} against the central Gaussian, ε = 8')
          for one, words in (
              ('skellam-18', 'Skellam at 18 bits'), ('skellam-16', 'Skellam at 16 bits'),
              ('skellam-14', 'Skellam at 14 bits'),
              ('discrete_gaussian-18', 'Discrete Gaussian at 18 bits'))),
        Comparison(one='emnist62/skellam-of-the-paper',
                   other='emnist62/gaussian-of-the-paper',
                   words=f'Skellam at 18 bits against the central Gaussian, z = {PAPER_NOISE}')
    ]),)
