"""Records of few silos: four hospitals, and digits in 4, 10 and 50 silos."""

from collections.abc import Iterator
import functools
import os

import dp_accounting
from dp_accounting import pld, rdp

from benchmarks.results import pages
from benchmarks.results.pages import Comparison, Table
from benchmarks.results.rows import Row, product

_BOUNDS = os.path.join('benchmarks', 'results', 'heart_bounds.json')
EPSILONS = (10, 5, 1, 0.1)
_HEART = dict(task='tabular', data_source='npz', client_field='center',
              label_field='disease', num_classes=2, public_bounds=_BOUNDS,
              protect='record', batch_size=120, diagnostics=True)
_RATES = product(rounds=(40, 80), server_learning_rate=(0.05, 0.1, 0.25, 0.5))
_SLOW = product(rounds=(40, 80), server_learning_rate=(0.02, 0.05, 0.1, 0.2))
SILOS = (4, 10, 50)
_DIGITS = dict(task='emnist', data_source='npz', client_field='silo',
               model='cnn_small', protect='record', batch_size=600, clip=1.0)
_DIGITS_EPSILONS = (8, 2, 1)
# FLamby: a centre's noise is calibrated for 15 passes over its records, in batches of 4,
# and it takes 1,500 steps.
CENTRES = {'Cleveland': 199, 'Hungary': 172, 'Long Beach': 85, 'Switzerland': 30}
_DELTA, _BATCH, _PASSES, _STEPS = 1e-3, 4, 15, 1500


def _heart() -> Iterator[Row]:
  def row(name, label, grid, **flags):
    return Row(name=f'silos/heart-{name}', label=label, data='heart', grid=grid,
               flags=dict(_HEART, rounds_per_evaluation=1000, **flags),
               seeds=range(5), metric='mean_of_silos')

  yield row('none', 'no privacy', _RATES, mechanism='none')
  for epsilon in EPSILONS:
    for mechanism, label in (('skellam', 'Skellam, 18 bits'),
                             ('silo_noise', 'all noise at each silo')):
      yield row(f'{mechanism}-{epsilon}', label, _SLOW if epsilon < 1 else _RATES,
                mechanism=mechanism, epsilon=epsilon, delta=_DELTA, clip=0.5)


def _digits() -> Iterator[Row]:
  def row(name, label, silos, epsilon, mechanism, **fields):
    return Row(name=f'silos/digits-{name}-{epsilon}', label=label,
               data=f'digits_{silos}', flags=dict(
                   _DIGITS, mechanism=mechanism, epsilon=epsilon, delta=1e-5,
                   rounds_per_evaluation=1000), **fields)

  for epsilon in _DIGITS_EPSILONS:
    yield row('central', 'one curator, Gaussian', 1, epsilon, 'gaussian',
              grid=product(rounds=(150, 300), server_learning_rate=(0.25, 0.5, 1.0, 2.0)))
  for epsilon in _DIGITS_EPSILONS:
    tuned = dict(tuned_as=f'silos/digits-central-{epsilon}')
    for silos in SILOS:
      yield row(f'skellam-{silos}', f'{silos} silos, Skellam, 18 bits', silos, epsilon,
                'skellam', **tuned)
    for silos in (SILOS[0], SILOS[-1]):
      yield row(f'silo_noise-{silos}', f'{silos} silos, all noise at each', silos,
                epsilon, 'silo_noise', **tuned)


ROWS = (*_heart(), *_digits())


@functools.cache
def _epsilon(noise: float, steps: int, records: int) -> float:
  accountant = pld.PLDAccountant()
  accountant.compose(dp_accounting.PoissonSampledDpEvent(
      _BATCH / records, dp_accounting.GaussianDpEvent(noise)), steps)
  return accountant.get_epsilon(_DELTA)


def true_epsilon(nominal: float, records: int) -> float:
  """Epsilon of FLamby's steps with the noise for a nominal one, by dp_accounting."""
  noise = dp_accounting.calibrate_dp_mechanism(
      rdp.RdpAccountant, lambda z: dp_accounting.SelfComposedDpEvent(
          dp_accounting.PoissonSampledDpEvent(
              _BATCH / records, dp_accounting.GaussianDpEvent(z)),
          _PASSES * -(-records // _BATCH)), nominal, _DELTA)
  return _epsilon(noise, _STEPS, records)


def _nominal(records) -> str:
  """The epsilons of FLamby's setting, as Markdown."""
  del records
  lines = ['| nominal ε | accuracy that FLamby reports, % | ' + ' | '.join(
      f'true ε, {centre} ({count} records)' for centre, count in CENTRES.items()) + ' |',
           '|---' * (2 + len(CENTRES)) + '|']
  for nominal, accuracy in ((5, 70.0), (1, 70.2), (0.1, 62.9)):
    lines.append(f'| {nominal:g} | {accuracy} | ' + ' | '.join(
        f'{true_epsilon(nominal, count):.3g}' for count in CENTRES.values()) + ' |')
  return '\n'.join(lines)


def _against(one: str, other: str, words: str) -> Comparison:
  return Comparison(one=f'silos/{one}', other=f'silos/{other}', words=words)


def _table(mark: str, *comparisons: Comparison) -> Table:
  return Table(page='silos.md', mark=mark, columns={'ε, another silo': pages.participant},
               rows=[row.name for row in ROWS if row.name.startswith(f'silos/{mark}-')],
               comparisons=comparisons)


TABLES = (
    _table('heart', *(
        _against(f'heart-skellam-{epsilon}', f'heart-{other}',
                 f'Skellam at ε = {epsilon:g} against {words}')
        for epsilon in EPSILONS for other, words in (
            ('none', 'no privacy'),
            (f'silo_noise-{epsilon}', 'all noise at each silo')))),
    Table(page='silos.md', mark='flamby', rows=('silos/heart-none',), render=_nominal),
    _table('digits', *(
        _against(f'digits-skellam-{silos}-{epsilon}', f'digits-{other}-{epsilon}',
                 f'{silos} silos at ε = {epsilon}, against {words}')
        for epsilon in _DIGITS_EPSILONS for silos in SILOS for other, words in (
            ('central', 'one curator'),
            *[(f'silo_noise-{silos}', 'all noise at each')] * (silos != 10)))))
