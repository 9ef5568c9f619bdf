"""Runs for pages, made up: no program has to run for them."""

from typing import Any

from tff_pipelines.accounting.guarantees import answers, bounds
from tff_pipelines.experiment import report
from tff_pipelines.experiment.page_document import Curve, Run, Verdict

_BREAKDOWN = {'kind': 'digit', 'outside_guarantee': False, 'count': 9, 'constant': 0.5,
    'classes': [{'name': '0', 'count': 5, 'right': 4, 'predicted': 6},
                {'name': '1', 'count': 4, 'right': 2, 'predicted': 3}],
    'groups': [], 'confusions': [{'true': '1', 'predicted': '0', 'count': 2},
                                 {'true': '0', 'predicted': '1', 'count': 1}]}
_SUMMARY = {'version': report.VERSION, 'family': 'train', 'task': 'emnist', 'algorithm':
    'fedavg', 'headline': 'accuracy', 'headline_of': 'test', 'value': 0.75,
    'held_out': {'test': {'accuracy': 0.75, 'loss': None}}, 'outside_guarantee': [],
    'breakdown': {'test': _BREAKDOWN}, 'mechanism': 'skellam', 'epsilon': 2.0,
    'epsilon_server': 6.5, 'delta': 1e-5, 'adjacency': 'zero-out',
    'adjacency_in_words': 'one contribution is replaced by zero', 'privacy_unit':
    'one client', 'observers': 'those who see the models', 'observers_server':
    'the server', 'sampling': 'poisson', 'trust_model': 'the server sees sums only',
    'rounds': 3, 'starts': 1, 'configuration': 'abc', 'caveats': ['simulated'],
    'warnings': ['sums are simulated'], 'details': {}, 'about': {
        'unit_name': 'patient', 'data_description': 'heartbeats', 'version': '1',
        'date': '2026-11-24', 'raw_rows': 'the operator'}}


def summary(**changes: Any) -> dict[str, Any]:
  """A summary that the schema allows."""
  result = {**dict.fromkeys(report.SCHEMA), **_SUMMARY, **changes}
  report.validate_summary(result)
  return result


def verdict_of(epsilon: float | None, server: float | None = None,
               **others: float) -> Verdict:
  """The verdict on an intact ledger that gives these epsilons."""
  numbers = {'outsiders': epsilon, 'server': server, **others}
  return Verdict(rounds=3, guarantee=answers.Answer(**{
      name: bounds.Bound(epsilon=value) for name, value in numbers.items()
      if value is not None}))


def run(name: str = 'first', *, settings: dict[str, Any] | None = None,
        verdict: Verdict | None = None, curves: tuple[Curve, ...] | None = None,
        **changes: Any) -> Run:
  """A run with a curve over rounds and one over epsilon."""
  if curves is None:
    curves = tuple(Curve(metric='accuracy', over=over, label='test', x=x,
                         y=(0.2, 0.5, 0.75)) for over, x in (
                             ('rounds', (1, 2, 3)), ('epsilon', (1.0, 1.6, 2.0))))
  stated = summary(**changes)
  return Run(name=name, summary=stated, settings=settings or {'rounds': 3, 'bits': 18},
             curves=curves, verdict=verdict or verdict_of(
                 stated['epsilon'], stated['epsilon_server']))
