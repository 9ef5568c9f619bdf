"""The comparison of optimizers: fair in what it tries, resumed, and written down."""

from benchmarks import optimizers


def _line(run, value):
  return {'row': run.row, 'value': value, 'headline': 'recall_at_5',
          'noise_multiplier': 0.5}


def test_best_attempt_alone_is_repeated_and_not_counted_as_a_repetition():
  case = optimizers.CASES[1]
  results = {run.name: _line(run, {1.0: 0.6, 0.03: 0.7}.get(run.rate, 0.5))
             for run in optimizers.tried(case)}
  again = optimizers.repeated(case, results)
  assert [(run.optimizer, run.rate, run.seed) for run in again] == [
      *(('FedAvgM', 1.0, seed) for seed in (1, 2, 3)),
      *(('FedAdam', 0.03, seed) for seed in (1, 2, 3))]
  results |= {run.name: _line(run, 0.2 + run.seed / 10) for run in again}
  rows = optimizers.table([case], results).splitlines()
  assert len(rows) == 4
  assert '| 0.03 | **40.0 ± 10.0** (30.0 40.0 50.0) |' in rows[-1]
  assert '0.03: 70.0, 0.1: 50.0, 0.3: 50.0, 1: 60.0' in rows[-1]
