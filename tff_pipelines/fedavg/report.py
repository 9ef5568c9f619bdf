"""What a run says of itself: before it starts, at its end, and as a picture."""

import dataclasses
import json
import math
import os

import matplotlib
import pandas

from tasks.task import Task
from tff_pipelines import breakdown_report
from tff_pipelines import partition_figure
from tff_pipelines.accounting import base
from tff_pipelines.accounting import decimals
from tff_pipelines.accounting import report as accounting_report
from tff_pipelines.privacy_plan import PrivacyPlan, describe_epsilon
from tff_pipelines.simulation import contexts
from tff_pipelines.simulation import loop
from tff_pipelines.simulation import records as records_lib

PICTURE = 'progress.png'

# Whose examples a held-out set has, and what that means for its metrics, which are
# exact.
_OUTSIDE = {
    'test_clients':
        'metrics on test_clients are outside the guarantee: held-out clients are '
        'not part of the population, so no epsilon protects them',
    'test_examples':
        'metrics on test_examples are computed from further examples of the '
        'clients themselves and are outside the guarantee',
    'test':
        'metrics on test are outside the guarantee: no epsilon protects those whose '
        'examples the test part has',
}


def print_plan(plan: PrivacyPlan, task: Task,
               records: records_lib.RunRecords) -> None:
  """Prints what is about to run and under which guarantee."""
  request = plan.request
  print(f'task {task.name}, model {task.model.name} '
        f'({request.dimension:,} parameters), {request.population:,} clients, '
        f'{request.cohort_size:g} a round by {request.sampling} sampling, '
        f'{request.rounds} rounds')
  if not plan.is_private:
    print('mechanism none: no clipping, no noise, no guarantee')
  else:
    name = loop.epsilon_key(plan).replace('_', ' ')
    print(f'mechanism {request.mechanism}: noise multiplier '
          f'{_noise(plan)}, clip {request.clip:g}, {name} '
          f'{describe_epsilon(plan.epsilon(request.rounds))} at delta '
          f'{decimals.rounded_up(request.delta)} after all rounds')
  if plan.adaptive is not None:
    print(f'adaptive clip: quantile {plan.adaptive.target_quantile:g} of the norms, '
          f'learning rate {plan.adaptive.learning_rate:g}, noise of '
          f'{plan.adaptive.count_stddev:g} clients on the count')
  if plan.params is not None:
    print(f'sum modulo 2^{plan.params.bits}, scale {plan.params.scale:.4g} grid '
          f'units per model unit, {plan.params.padded_dimension:,} coordinates, '
          f'secure aggregation: {contexts.SECURE_AGGREGATION}')
  print(f'output folder {os.fspath(records.folder)}', flush=True)


def _noise(plan: PrivacyPlan) -> str:
  """The noise multiplier as it was given, or rounded up if epsilon was."""
  if plan.request.epsilon is None:
    return f'{plan.request.noise_multiplier:.15g}'
  return decimals.rounded_up(plan.request.noise_multiplier)


def _is_outside(set_name: str, task: Task) -> bool:
  """Whether metrics on a held-out set are of people whom no epsilon protects.

  They are not if the set ships with the task: it is public.
  """
  return set_name != 'test' or task.test_of_files


def _draws_clients(plan: PrivacyPlan, task: Task) -> bool:
  """Whether labels by client are drawn: they are exact counts."""
  return task.label_counts is not None and (
      not task.test_of_files or plan.diagnostics)


def _finite(value: float | None) -> float | None:
  return None if value is None or not math.isfinite(value) else float(value)


def _server_view(plan: PrivacyPlan) -> str:
  if plan.request.mechanism == 'none':
    return 'nobody'
  if plan.params is None or not plan.params.has_shares:
    return 'participants, who know the cohorts (the server is trusted)'
  return ('the server and the participants, who know the cohorts '
          f'({accounting_report.OWN_SHARE})')


def summary(plan: PrivacyPlan, task: Task, records: records_lib.RunRecords,
            results: dict, initial_weights_seed: int,
            breakdown: dict | None = None) -> dict:
  """The summary of a finished run as JSON; None where nothing is guaranteed.

  A round that a crash interrupted was run anew; outsiders saw it once, but the
  server may have seen it twice. So each start of the run but the first, up to
  the last round, counts as one more round in `epsilon_unamplified`.
  """
  request = plan.request
  lines = records.ledger.lines()
  rounds = len(lines)
  repeated = lines[-1]['starts'] - 1 if lines else 0
  headline = next(iter(results))
  found = {
      'task': task.name, 'model': task.model.name,
      'parameters': request.dimension,
      'initial_weights_seed': initial_weights_seed,
      'accuracy': results[headline]['accuracy'], 'accuracy_of': headline,
      'headline': task.model.headline,
      'held_out': {
          name: {key: _finite(value) for key, value in values.items()}
          for name, values in results.items()},
      'outside_guarantee': [name for name in results if _is_outside(name, task)],
      'breakdown': {
          name: breakdown_report.describe(
              task.model.breakdown, counts,
              outside_guarantee=_is_outside(name, task))
          for name, counts in (breakdown or {}).items()},
      'mechanism': request.mechanism,
      'epsilon': None, 'epsilon_unamplified': None, 'delta': request.delta,
      'delta_sampler': None, 'delta_sampler_unamplified': None,
      'sampler': plan.sampler_in_words, 'noise_generator': (
          None if plan.params is None else plan.params.noise_generator),
      'noise_multiplier': request.noise_multiplier,
      'clip': request.clip if plan.is_private else None,
      'adaptive_clip': dataclasses.asdict(plan.adaptive) if plan.adaptive else None,
      'rounds': rounds, 'starts': records.starts,
      'cohort_size': request.cohort_size, 'population': request.population,
      'scale': None, 'bits': None, 'dimension_padded': None, 'order': None,
      'accountant': None, 'amplification': None, 'adjacency': None,
      'adjacency_in_words': None, 'privacy_unit': task.privacy_unit,
      'sampling': request.sampling,
      'observers': 'those who see the released models and learn neither who nor '
                   'how many took part, nor how long rounds took',
      'observers_unamplified': _server_view(plan),
      'trust_model': request.family.trust_model,
      'source': _source(plan.round_event),
      'secure_aggregation': None,
      'configuration': records.configuration_hash,
      'skipped_clients': len(task.skips.clients),
      'skipped_records': len(task.skips.records),
      'warnings': (plan.warnings(rounds) + _of_results(results, task)
                   + _of_picture(plan, task) + list(task.warnings)
                   + _of_skips(task)),
  }
  if plan.is_private and plan.simulation_seed is None:
    guarantee = plan.guarantee(rounds)
    found.update(
        epsilon=_finite(guarantee.epsilon),
        epsilon_unamplified=_finite(
            plan.epsilon_unamplified(rounds + repeated)),
        delta_sampler=plan.delta_sampler,
        delta_sampler_unamplified=plan.delta_sampler_unamplified(
            rounds + repeated),
        order=_finite(guarantee.order), accountant=guarantee.accountant,
        amplification=guarantee.amplification, adjacency=guarantee.adjacency,
        adjacency_in_words=base.ADJACENCY_IN_WORDS[guarantee.adjacency])
    if plan.params is not None and plan.params.has_shares and any(
        line['outcome'] == 'withheld' for line in lines):
      found['epsilon_unamplified'] = None
      found['warnings'].append(
          'rounds were withheld from outsiders, but the server saw their sums '
          'with less noise than was planned: no epsilon holds against it')
  elif plan.is_private:
    guarantee = plan.guarantee(rounds)
    found.update(
        epsilon_if_unseeded=_finite(guarantee.epsilon),
        adjacency=guarantee.adjacency)
  if plan.params is not None:
    found.update(
        scale=plan.params.scale, bits=plan.params.bits,
        dimension_padded=plan.params.padded_dimension,
        secure_aggregation=contexts.SECURE_AGGREGATION)
  return found


def _of_results(results: dict, task: Task) -> list[str]:
  return [_OUTSIDE.get(name, f'metrics on {name} are outside the guarantee')
          for name in results if _is_outside(name, task)]


def _of_picture(plan: PrivacyPlan, task: Task) -> list[str]:
  if not _draws_clients(plan, task) or not task.test_of_files:
    return []
  return [f'{partition_figure.PICTURE} is drawn because diagnostics are on: it '
          'shows exactly how often each simulated client has each label, and is '
          'outside the guarantee']


def _of_skips(task: Task) -> list[str]:
  skipped = task.skips.describe()
  return [] if skipped is None else [skipped]


def _source(event) -> str | None:
  """Where the bounds of the releases inside an event come from."""
  while hasattr(event, 'event'):
    event = event.event
  parts = getattr(event, 'events', (event,))
  found = dict.fromkeys(part.source for part in parts)
  return '; '.join(found) or None


def _of_sampler(found: dict) -> str:
  """What draws the noise, and what that takes of delta, in a line."""
  text = f"sampler of the noise: {found['sampler']}"
  if found['delta_sampler'] is None:
    return text
  taken = decimals.rounded_up(found['delta_sampler'], 3)
  text += f'; it takes {taken} of delta'
  if (found['delta_sampler_unamplified'] or 0) > found['delta'] / 2:
    text += ' (more than half, not amplified: that epsilon is of exact laws)'
  return text


def print_summary(found: dict) -> None:
  """Prints the summary for people."""
  print()
  for name, values in found['held_out'].items():
    line = ', '.join(
        f'{key} ' + ('not finite' if value is None else f'{value:.4f}')
        for key, value in values.items())
    outside = ', outside the guarantee' if name in found['outside_guarantee'] else ''
    print(f'{name}{outside}: {line}')
  for name, breakdown in found['breakdown'].items():
    for line in breakdown_report.lines(name, breakdown):
      print(line)
  if found['epsilon'] is not None:
    delta = decimals.rounded_up(found['delta'])
    print(f"epsilon {describe_epsilon(found['epsilon'])} at delta "
          f"{delta}, against {found['observers']} "
          f"({found['accountant']}, {found['amplification']} amplification)")
    print(f"epsilon {describe_epsilon(found['epsilon_unamplified'] or math.inf)}, "
          f"not amplified, against {found['observers_unamplified']}")
    print(_of_sampler(found))
    print(f"adjacency {found['adjacency']}: {found['adjacency_in_words']}")
    print(f"privacy unit: {found['privacy_unit']}")
    print(f"sampling: {found['sampling']}, {found['cohort_size']:g} of "
          f"{found['population']} clients expected, {found['rounds']} rounds")
    print(f"trust model: {found['trust_model']}")
  else:
    print('epsilon: none, nothing is guaranteed')
  if found['secure_aggregation'] is not None:
    print(f"secure aggregation: {found['secure_aggregation']}")
  for warning in found['warnings']:
    print(f'warning: {warning}')


def draw(records: records_lib.RunRecords, accuracy_of: str, title: str,
         metric: str = 'accuracy') -> None:
  """Draws a metric, which is a part of 1, and epsilon over the rounds."""
  matplotlib.use('Agg')
  from matplotlib import pyplot  # pylint: disable=g-import-not-at-top
  metrics = pandas.read_csv(records.folder / records_lib.METRICS)
  figure, axes = pyplot.subplots(figsize=(7, 4.2))
  name = f'{accuracy_of}/{metric}'
  if name in metrics:
    evaluated = metrics.dropna(subset=[name])
    axes.plot(evaluated['round'], 100 * evaluated[name], color='tab:blue')
  axes.set_xlabel('round')
  label = metric.replace('_', ' ')
  axes.set_ylabel(f'{label} on {accuracy_of} (%)', color='tab:blue')
  axes.set_ylim(0, 100)
  axes.grid(alpha=0.3)
  name = 'epsilon' if 'epsilon' in metrics else 'epsilon_if_unseeded'
  epsilons = pandas.to_numeric(metrics[name], errors='coerce')
  if epsilons.map(math.isfinite).any():
    right = axes.twinx()
    right.plot(metrics['round'], epsilons, color='tab:red', linestyle='--')
    right.set_ylabel(f"{name.replace('_', ' ')} so far", color='tab:red')
    right.set_ylim(bottom=0)
  axes.set_title(title, fontsize=10)
  figure.tight_layout()
  figure.savefig(records.folder / PICTURE, dpi=120)
  pyplot.close(figure)


def finish(plan: PrivacyPlan, task: Task, records: records_lib.RunRecords,
           results: dict, initial_weights_seed: int,
           breakdown: dict | None = None) -> dict:
  """Writes and prints the summary and draws the picture.

  Args:
    plan: Of the run.
    task: Of the run.
    records: Of the run.
    results: Held-out set -> metric -> value.
    initial_weights_seed: Of the run.
    breakdown: As Evaluator.breakdown returns it; None if it was not counted.
  """
  found = summary(
      plan, task, records, results, initial_weights_seed, breakdown)
  records_lib.write_atomically(
      records.folder / records_lib.SUMMARY,
      json.dumps(found, indent=2, allow_nan=False) + '\n')
  title = f"{task.name} {task.model.name}, {plan.request.mechanism}"
  if found['epsilon'] is not None:
    title += (f", epsilon {describe_epsilon(found['epsilon'])}, delta "
              f"{decimals.rounded_up(found['delta'], 3)}")
  draw(records, found['accuracy_of'], title, found['headline'])
  pictures = [PICTURE]
  if _draws_clients(plan, task):
    pictures.append(partition_figure.PICTURE)
    partition_figure.draw(
        task.label_counts, records.folder / partition_figure.PICTURE)
  print_summary(found)
  print(f'written to {os.fspath(records.folder)}: {records_lib.SUMMARY}, '
        f'{records_lib.METRICS}, {records_lib.LEDGER}, {", ".join(pictures)}')
  return found
