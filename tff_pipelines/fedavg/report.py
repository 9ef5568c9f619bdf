"""The run report of federated averaging: its own lines, fields and figures."""

from collections.abc import Mapping
import dataclasses
import math
import pathlib
from typing import Any

from tasks.task import Task
from tff_pipelines.accounting import caveats
from tff_pipelines.accounting import decimals
from tff_pipelines.experiment import files
from tff_pipelines.experiment import records
from tff_pipelines.experiment import report
from tff_pipelines.fedavg import breakdown as breakdown_lib
from tff_pipelines.fedavg import partition_figure
from tff_pipelines.fedavg.plan import FedAvgPlan

# Why metrics on a held-out set, which are exact, are outside the guarantee.
_OUTSIDE = {
    'test_clients': 'are outside the guarantee: held-out clients are not part of the '
                    'population, so no epsilon protects them',
    'test_examples': 'are computed from further examples of the clients themselves and '
                     'are outside the guarantee',
    'test': 'are outside the guarantee: no epsilon protects those whose examples the '
            'test part has'}

Results = Mapping[str, Mapping[str, float]]


def _is_outside(set_name: str, task: Task) -> bool:
  """Whether metrics on a held-out set are of people whom no epsilon protects.

  They are not if the set ships with the task: it is public.
  """
  return set_name != 'test' or task.test_of_files


def _draws_clients(plan: FedAvgPlan, task: Task) -> bool:
  """Whether labels by client, which are exact counts, are drawn."""
  return task.label_counts is not None and (
      not task.test_of_files or plan.diagnostics)


def describe(task: Task, plan: FedAvgPlan) -> report.Description:
  """Description of the run before its first round."""
  mechanism = plan.mechanism
  lines = [
      ('task', f'{task.name}, {task.model.name} with {mechanism.dimension:,} '
               f'parameters, {mechanism.population:,} clients'),
      ('run', run_line(plan, mechanism.rounds)), ('mechanism', mechanism_line(plan))]
  details = []
  if plan.adaptive is not None:
    details.append(
        f'adaptive clip: quantile {plan.adaptive.target_quantile:g} of the norms, '
        f'learning rate {plan.adaptive.learning_rate:g}, noise of '
        f'{plan.adaptive.count_stddev:g} clients on the count')
  if plan.params is not None:
    details.append(
        f'sum modulo 2^{plan.params.bits}, scale {plan.params.scale:.4g} grid units '
        f'per model unit, {plan.params.padded_dimension:,} coordinates')
  notes = [caveats.Caveat(note.name, str(note)) for note in task.warnings]
  notes += [caveats.Caveat('held-out metrics not protected', (
      f'metrics on {name} {_OUTSIDE.get(name, "are outside the guarantee")}'))
            for name in task.held_out if _is_outside(name, task)]
  if _draws_clients(plan, task) and task.test_of_files:
    notes.append(caveats.Caveat(
        'labels of clients drawn',
        f'{partition_figure.FIGURE} is drawn because diagnostics are on: it shows '
        'exactly how often each simulated client has each label, and is outside the '
        'guarantee'))
  return report.Description(lines=lines, details=details, caveats=notes)


def run_line(plan: FedAvgPlan, rounds: int) -> str:
  """The run in one line."""
  mechanism = plan.mechanism
  if mechanism.sampling == 'none':
    return f'{rounds} rounds of all {mechanism.population:,} clients'
  return (f'{rounds} rounds, {mechanism.cohort_size:g} of {mechanism.population:,} '
          f'clients {plan.scheme.cohort_in_words}, {mechanism.sampling} sampling')


def mechanism_line(plan: FedAvgPlan) -> str:
  """The mechanism that makes the run private, in one line."""
  if not plan.is_private:
    return 'none: no clipping, no noise, no guarantee'
  mechanism = plan.mechanism
  noise = report.noise_in_words(
      mechanism.noise_multiplier, given=plan.target_epsilon is None)
  bits = f', {plan.params.bits} bits' if plan.params is not None else ''
  return (f'{mechanism.mechanism}, noise multiplier {noise}, clip '
          f'{mechanism.clip:g}{bits}')


def finite_results(results: Results) -> dict[str, dict[str, float | None]]:
  """Metrics of held-out sets for JSON."""
  return {name: {key: files.finite(value) for key, value in values.items()}
          for name, values in results.items()}


def in_words(set_name: str, values: Mapping[str, float]) -> str:
  """The metrics of a held-out set in one line."""
  return f'{set_name}: ' + ', '.join(
      f'{key} ' + (f'{value:.4f}' if value is not None and math.isfinite(value)
                   else 'not finite') for key, value in values.items())


def draw_metrics(path: pathlib.Path, accuracy_of: str, title: str,
                 metric: str = 'accuracy', *, key: str = 'round',
                 xlabel: str = 'round', of: str = '') -> None:
  """Draws a metric and epsilon from the table in the figure's folder.

  Args:
    path: Path of the figure.
    accuracy_of: Held-out set of the metric.
    title: Title of the figure.
    metric: Name of the metric.
    key: Column of the horizontal axis.
    xlabel: Label of that axis.
    of: Whose epsilon it is, if it is not that of all clients.
  """
  rows = records.read_metrics(path.parent / files.METRICS, key)
  name = f'{accuracy_of}/{metric}'
  points = {x: float(row[name]) for x, row in rows.items() if row.get(name)}
  seeded = any('epsilon_if_unseeded' in row for row in rows.values())
  epsilon = 'epsilon_if_unseeded' if seeded else 'epsilon'
  spent = {x: float(row[epsilon]) for x, row in rows.items()
           if math.isfinite(float(row.get(epsilon) or math.inf))}
  report.draw(
      path, [report.Curve(label=metric, x=list(points), y=list(points.values()))],
      title=title, xlabel=xlabel, ylabel=f'{metric.replace("_", " ")} on {accuracy_of}',
      right=report.Curve(label=f'{epsilon.replace("_", " ")}{of} so far',
                         x=list(spent), y=list(spent.values())))


def title(plan: FedAvgPlan, what: str, rounds: int) -> str:
  """Title of a figure of a run."""
  if not plan.is_private or plan.seed is not None:
    return what
  return (f'{what}, epsilon {decimals.epsilon(plan.epsilon(rounds))}, delta '
          f'{decimals.rounded_up(plan.delta, 3)}')


def fields(plan: FedAvgPlan) -> dict[str, Any]:
  """Fields of a summary that follow from the plan."""
  mechanism = plan.mechanism
  return {
      'mechanism': mechanism.mechanism, 'population': mechanism.population,
      'cohort_size': mechanism.cohort_size, 'parameters': mechanism.dimension,
      'noise_multiplier': mechanism.noise_multiplier,
      'clip': mechanism.clip if plan.is_private else None,
      'bits': None if plan.params is None else plan.params.bits}


def details(plan: FedAvgPlan) -> dict[str, Any]:
  """Details of a summary, of this family only, that follow from the plan."""
  return {
      'adaptive_clip': plan.adaptive and dataclasses.asdict(plan.adaptive),
      'scale': plan.params and plan.params.scale,
      'dimension_padded': plan.params and plan.params.padded_dimension,
      'noise_generator': plan.params and plan.params.noise_generator}


def outcome(plan: FedAvgPlan, task: Task, results: Results, counts: Mapping[str, Any],
            initial_weights_seed: int) -> report.Outcome:
  """Outcome of a run.

  Args:
    plan: Plan of the run.
    task: Task of the run.
    results: Held-out set -> metric -> value.
    counts: As Evaluator.breakdown returns it.
    initial_weights_seed: Seed of the initial weights.
  """
  first = next(iter(results))
  outside = [name for name in results if _is_outside(name, task)]
  breakdown = {
      name: breakdown_lib.describe(
          task.model.breakdown, of_set, outside_guarantee=_is_outside(name, task))
      for name, of_set in counts.items()}
  headline, skipped = task.model.headline, task.skips.describe()
  name = f'{task.name} {task.model.name}, {plan.mechanism.mechanism}'
  figures = {files.FIGURE: lambda path: draw_metrics(
      path, first, title(plan, name, plan.mechanism.rounds), headline)}
  if _draws_clients(plan, task):
    figures[partition_figure.FIGURE] = lambda path: partition_figure.draw(
        task.label_counts, path)
  lines = [in_words(set_name, values) + ', outside the guarantee' * (
      set_name in outside) for set_name, values in results.items()]
  for set_name, described in breakdown.items():
    lines += breakdown_lib.lines(set_name, described)
  return report.Outcome(
      result=in_words(first, results[first]), figures=figures, files=(files.METRICS,),
      caveats=[caveats.Caveat('bad clients skipped', skipped)] if skipped else [],
      weakest=breakdown_lib.weakest(breakdown[first]) if first in breakdown else None,
      details=lines, fields={
          **fields(plan), 'task': task.name, 'algorithm': 'fedavg',
          'model': task.model.name, 'headline': headline, 'headline_of': first,
          'held_out': finite_results(results), 'outside_guarantee': outside,
          'breakdown': breakdown, 'details': {
              **details(plan), 'initial_weights_seed': initial_weights_seed,
              'skipped_clients': len(task.skips.clients),
              'skipped_records': len(task.skips.records)}})
