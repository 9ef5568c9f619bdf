"""What a distillation run says of itself: before it starts, at its end, in pictures."""

import json
import math
import os
from typing import Sequence

import matplotlib
import pandas

from aggregators.prediction_params import PredictionMeanParams
from tasks.fedmd import FedMdTask
from tff_pipelines.accounting import accountant
from tff_pipelines.accounting import base
from tff_pipelines.accounting import decimals
from tff_pipelines.accounting import events
from tff_pipelines.distill_plan import DistillPlan
from tff_pipelines.simulation import contexts
from tff_pipelines.simulation import records as records_lib

PICTURE = 'progress.png'

DELTA_IN_WORDS = {
    'nfdp': 'delta is the chance that a given record is drawn into the subset that '
            'its party trains on; a record that is drawn may be exposed entirely, '
            'one that is not has no influence on anything',
    'ldp': 'delta is the part of the outcomes for which nothing is promised',
}


def _kilobytes(count: float) -> str:
  return f'{count / 1e3:,.1f} kB'


def _costs(mean: PredictionMeanParams | str) -> dict[str, float] | None:
  if isinstance(mean, str):
    return None
  return {
      'sent': mean.sent_bytes, 'received': mean.received_bytes,
      'sent_in_clear': mean.clear_bytes, 'bits': mean.wire_bits,
      'rounding_error': mean.rounding_error}


def communication(plan: DistillPlan) -> dict[str, dict[str, float] | None]:
  """Bytes of a party in a round, for each kind of knowledge; None for one that
  the settings do not allow."""
  return {kind: _costs(mean) for kind, mean in plan.kinds_of_knowledge().items()}


def print_communication(plan: DistillPlan) -> None:
  """Prints what a round costs, for each kind of knowledge."""
  config = plan.config
  print(f'communication of a party in a round, {config.public_per_round} public '
        f'records of {plan.classes} classes (secure aggregation: '
        f'{contexts.SECURE_AGGREGATION}):')
  for kind, mean in plan.kinds_of_knowledge().items():
    mark = '*' if kind == config.knowledge else ' '
    found = _costs(mean)
    if found is None:
      print(f' {mark} {kind:<8} not with these settings: {mean}')
      continue
    rounding = 'the mean is exact'
    if found['rounding_error']:
      rounding = f'rounding moves the mean by at most {found["rounding_error"]:.3g}'
    print(f' {mark} {kind:<8} sent {_kilobytes(found["sent"])} '
          f'({found["bits"]:g} bits an entry), received '
          f'{_kilobytes(found["received"])}; without secure aggregation sent '
          f'{_kilobytes(found["sent_in_clear"])}; {rounding}')


def _range(values: Sequence[float]) -> str:
  low, high = min(values), max(values)
  return f'{low:,}' if low == high else f'{low:,} to {high:,}'


def _guarantee_lines(plan: DistillPlan, starts: int) -> list[str]:
  """The guarantee in words, of a run that was started so often."""
  if not plan.is_private:
    return ['epsilon: none, nothing is guaranteed']
  epsilon = decimals.rounded_up(plan.epsilon(plan.releases, starts))
  if plan.config.seed is not None:
    return ['epsilon: none, the run is seeded and nothing is guaranteed (if it were '
            f'not: {epsilon} at delta {decimals.rounded_up(plan.delta)})']
  lines = [f'epsilon {epsilon} (natural logarithm) at delta '
           f'{decimals.rounded_up(plan.delta)} after all rounds, for a '
           f'record of {"the most exposed" if plan.draws_subset else "any"} party']
  if plan.draws_subset:
    lines.append('tighter, and true as well: epsilon 0 at the same delta')
  lines.append(DELTA_IN_WORDS[plan.config.mode])
  return lines


def print_plan(plan: DistillPlan, task: FedMdTask,
               records: records_lib.RunRecords) -> None:
  """Prints what is about to run and under which guarantee."""
  config = plan.config
  names = ', '.join(f'{a.name} ({a.size:,})' for a in task.architectures)
  print(f'task {task.name}: {len(task.parties)} parties of {_range(plan.records)} '
        f'records, {task.classes} classes, {len(task.public):,} public records')
  print(f'architectures (parameters): {names}')
  drawn = [plan.draws(i) for i in range(len(plan.records))]
  if plan.draws_subset:
    how = 'with' if config.replacement else 'without'
    print(f'mode nfdp: each party draws {_range(drawn)} of its records once, '
          f'{how} replacement')
  elif config.mode == 'ldp':
    print(f'mode ldp: {config.noise} noise of {plan.mean.noise_scale:.4g} on every '
          f'entry of a prediction ({config.noise} '
          f'{"standard deviation" if config.noise == "gaussian" else "scale"})')
  else:
    print(f'mode {config.mode}: all records, no noise')
  for line in _guarantee_lines(plan, records.starts):
    print(line)
  if config.mode != 'centralized':
    print_communication(plan)
  print(f'output folder {os.fspath(records.folder)}', flush=True)


def _of_party(plan: DistillPlan, task: FedMdTask, number: int, state,
              accuracy: float) -> dict:
  party = task.parties[number]
  found = {
      'architecture': task.architectures[party.architecture].name,
      'records': len(party.private), 'accuracy': accuracy,
      # Whether training failed is of the data, which noise hides.
      'rounds': None if plan.config.mode == 'ldp' else int(state['rounds'])}
  if plan.draws_subset:
    event = events.Nfdp(
        records=len(party.private), subset_size=plan.draws(number),
        replacement=plan.config.replacement)
    seeded = '_if_unseeded' if plan.config.seed is not None else ''
    found.update({'draws': event.subset_size,
                  f'epsilon{seeded}': event.published_epsilon,
                  f'delta{seeded}': event.draw_probability})
  return found


def summary(plan: DistillPlan, task: FedMdTask, records: records_lib.RunRecords,
            parties: Sequence, accuracies: Sequence[float]) -> dict:
  """The summary of a finished run as JSON; None where nothing is guaranteed."""
  config = plan.config
  committed = len(records.ledger.lines())
  starts = records.ledger.lines()[-1]['starts'] if committed else 1
  found = {
      'task': task.name, 'pair': config.pair, 'split': config.split,
      'mode': config.mode, 'knowledge': config.knowledge,
      'accuracy': sum(accuracies) / len(accuracies),
      'accuracy_of': 'mean over the parties, each with its own model',
      'parties': [_of_party(plan, task, i, parties[i], accuracies[i])
                  for i in range(len(parties))],
      'initial_weights_seed': config.initial_weights_seed,
      'data_seed': config.data_seed,
      'epsilon': None, 'delta': plan.delta, 'epsilon_tighter': None,
      'delta_in_words': None, 'accountant': None, 'adjacency': None,
      'adjacency_in_words': None,
      'privacy_unit': ('all records of one party' if config.mode == 'ldp' else
                       'one record of one party') + f'; a party is {task.party}',
      'observers': 'everybody but the party itself: the server, the other '
                   'parties, and those who see its predictions or its model'
                   if plan.draws_subset else
                   'everybody but the party itself, who see its noisy predictions '
                   'and not its model',
      'trust_model': plan.trust_model, 'source': _source(plan),
      'noise': config.noise if plan.mean.has_noise else None,
      'noise_scale': plan.mean.noise_scale or None,
      'rounds': committed - 1, 'starts': records.starts,
      'public_per_round': config.public_per_round,
      'communication_bytes': communication(plan)
                             if config.mode != 'centralized' else None,
      'secure_aggregation': contexts.SECURE_AGGREGATION
                            if config.mode != 'centralized' else None,
      'configuration': records.configuration_hash,
      'warnings': plan.warnings(starts),
  }
  if not plan.is_private:
    found['observers'] = None
    return found
  epsilon = plan.epsilon(committed, starts)
  adjacency = plan.round_event.adjacency
  found.update(
      delta_in_words=DELTA_IN_WORDS[config.mode], adjacency=adjacency,
      adjacency_in_words=base.ADJACENCY_IN_WORDS[adjacency])
  if config.seed is not None:
    found.update(epsilon_if_unseeded=epsilon)
    return found
  found.update(epsilon=epsilon)
  if plan.draws_subset:
    found.update(
        epsilon_tighter=accountant.epsilon(plan.draw_event, plan.delta),
        accountant='theorem')
  else:
    found.update(accountant='pld')
  return found


def _source(plan: DistillPlan) -> str:
  event = plan.round_event
  return getattr(event, 'event', event).source


def print_summary(found: dict) -> None:
  """Prints the summary for people."""
  print()
  for number, party in enumerate(found['parties']):
    drawn = f', {party["draws"]:,} draws' if 'draws' in party else ''
    print(f'party {number}: {party["architecture"]}, {party["records"]:,} '
          f'records{drawn}, accuracy {party["accuracy"]:.4f}')
  print(f'mean accuracy {found["accuracy"]:.4f} after {found["rounds"]} rounds')
  if found['epsilon'] is None:
    print('epsilon: none, nothing is guaranteed')
  else:
    delta = decimals.rounded_up(found['delta'])
    print(f'epsilon {decimals.rounded_up(found["epsilon"])} (natural '
          f'logarithm) at delta {delta}, against {found["observers"]}')
    if found['epsilon_tighter'] is not None:
      print(f'tighter, and true as well: epsilon {found["epsilon_tighter"]:g} at '
            f'delta {delta}')
    print(f'in words: {found["delta_in_words"]}')
    print(f'adjacency {found["adjacency"]}: {found["adjacency_in_words"]}')
    print(f'privacy unit: {found["privacy_unit"]}')
  print(f'trust model: {found["trust_model"]}')
  if found['secure_aggregation'] is not None:
    print(f'secure aggregation: {found["secure_aggregation"]}')
  for warning in found['warnings']:
    print(f'warning: {warning}')


def draw(metrics: pandas.DataFrame, names: Sequence[str], title: str,
         path: str | os.PathLike[str]) -> None:
  """Draws the accuracy of every party over the rounds.

  Args:
    metrics: Columns communication_round, mean/accuracy, party_0/accuracy and on.
    names: What to call the parties.
    title: Of the picture.
    path: Of the file.
  """
  matplotlib.use('Agg')
  from matplotlib import pyplot  # pylint: disable=g-import-not-at-top
  figure, axes = pyplot.subplots(figsize=(7, 4.2))
  for number, name in enumerate(names):
    axes.plot(metrics['communication_round'],
              100 * metrics[f'party_{number}/accuracy'], linewidth=1,
              alpha=0.7, label=name)
  axes.plot(metrics['communication_round'], 100 * metrics['mean/accuracy'],
            color='black', linewidth=2, label='mean')
  axes.set_xlabel('communication round (0: own records only)')
  axes.set_ylabel('test accuracy (%)')
  axes.grid(alpha=0.3)
  if len(names) <= 12:
    axes.legend(fontsize=7, ncols=2)
  axes.set_title(title, fontsize=10)
  figure.tight_layout()
  figure.savefig(path, dpi=120)
  pyplot.close(figure)


def finish(plan: DistillPlan, task: FedMdTask, records: records_lib.RunRecords,
           parties: Sequence, accuracies: Sequence[float]) -> dict:
  """Writes and prints the summary and draws the picture."""
  found = summary(plan, task, records, parties, accuracies)
  records_lib.write_atomically(
      records.folder / records_lib.SUMMARY,
      json.dumps(found, indent=2, allow_nan=False) + '\n')
  title = f'{task.name}, {plan.config.mode}, {plan.config.knowledge}'
  if found['epsilon'] is not None and math.isfinite(found['epsilon']):
    title += (f', epsilon {decimals.rounded_up(found["epsilon"])}, delta '
              f'{decimals.rounded_up(found["delta"], 3)}')
  draw(pandas.read_csv(records.folder / records_lib.METRICS),
       [f'{i}: {p["architecture"]}' for i, p in enumerate(found['parties'])],
       title, records.folder / PICTURE)
  print_summary(found)
  print(f'written to {os.fspath(records.folder)}: {records_lib.SUMMARY}, '
        f'{records_lib.METRICS}, {records_lib.LEDGER}, {PICTURE}')
  return found
