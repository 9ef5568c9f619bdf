"""What a distillation says of itself: before it starts, at its end, as a picture."""

import datetime
import json
import os
import pathlib
from typing import Any

import matplotlib
import numpy as np

from tasks.ldp_distillation import DistillationTask
from tff_pipelines import ldp_plan
from tff_pipelines.accounting import base
from tff_pipelines.accounting import decimals
from tff_pipelines.algorithms.ldp_distillation_student import Student
from tff_pipelines.ldp_flags import LdpConfig
from tff_pipelines.ldp_records import ANSWERS
from tff_pipelines.ldp_records import LdpRecords
from tff_pipelines.privacy_plan import describe_epsilon
from tff_pipelines.simulation import records as records_lib
from tff_pipelines.vote_records import write_arrays

PICTURE = 'progress.png'
STUDENT = 'student.npz'
_SEEDED = 'seeded run: no guarantee (what owners add follows from a seed)'


def folder_of(config: LdpConfig) -> pathlib.Path:
  """The output folder: given, or a new one."""
  if config.output_dir is not None:
    return pathlib.Path(config.output_dir)
  now = datetime.datetime.now().strftime('%Y%m%d-%H%M%S')
  return pathlib.Path('out') / (
      f'ldp-{config.task}-{config.budget.mechanism}-{now}')


def _answer_in_words(plan: ldp_plan.LdpPlan) -> str:
  if plan.mechanism == 'gaussian':
    multiplier = decimals.rounded_up(plan.noise_multiplier)
    return f'noise multiplier {multiplier} an answer'
  epsilon = decimals.rounded_up(plan.epsilon_per_query, 6)
  return f'epsilon {epsilon} an answer'


def warnings(plan: ldp_plan.LdpPlan, task: DistillationTask) -> list[str]:
  """What a reader of the numbers must know, in words."""
  found = [] if plan.simulation_seed is None else [_SEEDED]
  return found + list(task.notes)


def print_plan(plan: ldp_plan.LdpPlan, task: DistillationTask, config: LdpConfig,
               records: records_lib.RunRecords) -> None:
  """Prints what is about to be asked and under which guarantee."""
  print(f'task {task.name}: {task.owners} data owners in {plan.groups} groups, '
        f'{len(task.public)} public images, {task.num_classes} classes, '
        f'{config.sampling} queries, {config.queries_per_step} a step')
  name = 'epsilon' if plan.simulation_seed is None else 'epsilon if unseeded'
  print(f'mechanism {plan.mechanism}: {_answer_in_words(plan)}, at most '
        f'{plan.answers_per_owner} answers of an owner, {name} '
        f'{describe_epsilon(plan.epsilon(plan.answers_per_owner))} at delta '
        f'{decimals.rounded_up(plan.delta)} in all; enough for '
        f'{plan.queries} queries')
  print(f'output folder {os.fspath(records.folder)}', flush=True)


def summary(plan: ldp_plan.LdpPlan, task: DistillationTask, config: LdpConfig,
            records: LdpRecords, student: Student | None,
            reason: str) -> dict[str, Any]:
  """The summary as JSON."""
  charged, answered = records.charged, records.answered
  lost = charged - answered
  most = plan.most_answers(charged)
  guarantee = plan.guarantee(max(1, most))
  metrics = records.metrics[records.steps[-1].number] if records.steps else {}
  found = {
      'task': task.name, 'algorithm': 'ldp_distillation',
      'accuracy': metrics.get('test/accuracy'), 'test_examples': len(task.test),
      'validation_accuracy': metrics.get('validation/accuracy'),
      'stopped': reason, 'mechanism': plan.mechanism,
      'epsilon': None, 'epsilon_per_query': plan.epsilon_per_query,
      'noise_multiplier': plan.noise_multiplier, 'delta': plan.delta,
      'delta_sampler': plan.delta_sampler(max(1, most)),
      'answers_of_an_owner': most, 'epsilon_of_a_holding': None,
      'answers_of_a_holding': None, 'order': None, 'accountant': None,
      'adjacency': guarantee.adjacency,
      'adjacency_in_words': base.ADJACENCY_IN_WORDS[guarantee.adjacency],
      'privacy_unit': task.privacy_unit, 'observers': ldp_plan.OBSERVERS,
      'trust_model': ldp_plan.TRUST_MODEL, 'source': plan.answer_event.source,
      'owners': task.owners, 'groups': plan.groups,
      'owners_per_query': plan.owners_per_query, 'queries': answered,
      'queries_charged': charged, 'queries_lost': lost,
      'queries_of_budget': plan.queries, 'sampling': config.sampling,
      'public_records': len(task.public),
      'refined': None if student is None else student.refined,
      'steps': len(records.steps), 'starts': records.run.starts,
      'configuration': records.run.configuration_hash,
      'warnings': warnings(plan, task),
  }
  if lost:
    found['warnings'].append(
        f'answers to {lost} queries were lost when the run was interrupted; they '
        'count as given')
  if plan.simulation_seed is None:
    found.update(epsilon=plan.epsilon(most), accountant=guarantee.accountant,
                 order=_finite(guarantee.order))
    if task.shares_holdings:
      answers = plan.holding_answers(charged)
      found.update(answers_of_a_holding=answers,
                   epsilon_of_a_holding=plan.epsilon(answers))
    found['warnings'] += guarantee.warnings
  else:
    found['epsilon_if_unseeded'] = plan.epsilon(most)
  return found


def _finite(value: float | None) -> float | None:
  return None if value is None or not np.isfinite(value) else float(value)


def print_summary(found: dict[str, Any]) -> None:
  """Prints the summary for people."""
  print()
  if found['accuracy'] is not None:
    print(f"test: accuracy {found['accuracy']:.4f}, {found['test_examples']} examples")
  print(f"{found['queries']} queries answered, {found['queries_charged']} charged of "
        f"{found['queries_of_budget']}, stopped: {found['stopped']}")
  if found['epsilon'] is not None:
    delta = decimals.rounded_up(found['delta'])
    print(f"epsilon {describe_epsilon(found['epsilon'])} at delta "
          f"{delta} for an owner, after at most "
          f"{found['answers_of_an_owner']} answers, against {found['observers']} "
          f"({found['accountant']})")
    if found['epsilon_of_a_holding'] is not None:
      print(f"epsilon {describe_epsilon(found['epsilon_of_a_holding'])} for a set of "
            f"records that stands in for owners, after at most "
            f"{found['answers_of_a_holding']} answers")
    print(f"adjacency {found['adjacency']}: {found['adjacency_in_words']}")
    print(f"trust model: {found['trust_model']}")
  else:
    print('epsilon: none, nothing is guaranteed')
  print(f"privacy unit: {found['privacy_unit']}")
  for warning in found['warnings']:
    print(f'warning: {warning}')


def draw(path: pathlib.Path, records: LdpRecords, title: str) -> None:
  """Draws accuracy and epsilon over the queries."""
  matplotlib.use('Agg')
  from matplotlib import pyplot  # pylint: disable=g-import-not-at-top
  rows = [records.metrics[step.number] for step in records.steps]
  queries = [row['queries'] for row in rows]
  figure, axes = pyplot.subplots(figsize=(7, 4.2))
  axes.plot(queries, [100 * row['test/accuracy'] for row in rows], marker='.',
            color='tab:blue')
  axes.set(xlabel='queries answered', ylim=(0, 100))
  axes.set_ylabel('accuracy on test (%)', color='tab:blue')
  axes.grid(alpha=0.3)
  name = next(key for key in (rows[0] if rows else {'epsilon': 0})
              if key.startswith('epsilon'))
  right = axes.twinx()
  right.plot(queries, [row[name] for row in rows], color='tab:red', linestyle='--')
  right.set_ylabel(f"{name.replace('_', ' ')} of an owner so far", color='tab:red')
  right.set_ylim(bottom=0)
  axes.set_title(title, fontsize=10)
  figure.tight_layout()
  figure.savefig(path, dpi=120)
  pyplot.close(figure)


def finish(plan: ldp_plan.LdpPlan, task: DistillationTask, config: LdpConfig,
           records: LdpRecords, student: Student | None,
           reason: str) -> dict[str, Any]:
  """Writes student, summary and picture, and prints the summary."""
  found = summary(plan, task, config, records, student, reason)
  folder = records.run.folder
  if student is not None:
    write_arrays(folder / STUDENT, {'weights': student.weights})
  records_lib.write_atomically(
      folder / records_lib.SUMMARY,
      json.dumps(found, indent=2, allow_nan=False) + '\n')
  title = f'{task.name}, {plan.mechanism}, {config.sampling} queries'
  if found['epsilon'] is not None:
    title += f", epsilon {describe_epsilon(found['epsilon'])}"
    delta = decimals.rounded_up(found['delta'], 3)
    title += f', delta {delta}' if found['delta'] else ' (pure)'
  draw(folder / PICTURE, records, title)
  print_summary(found)
  print(f'written to {os.fspath(folder)}: {ANSWERS}/, {records_lib.SUMMARY}, '
        f'{records_lib.METRICS}, {records_lib.LEDGER}, {STUDENT}, {PICTURE}')
  return found
