"""The report of a run of FedMD, besides its guarantee."""

from collections.abc import Mapping, Sequence
import math
import pathlib
from typing import Any

from tasks.fedmd.task import FedMdTask
from tff_pipelines.common import decimals, files
from tff_pipelines.experiment import metrics as metrics_lib, report
from tff_pipelines.fedmd.plan import DELTA_IN_WORDS, FedMdPlan


def _kilobytes(count: float) -> str:
  return f'{count / 1e3:,.1f} kB'


def _range(values: Sequence[float]) -> str:
  low, high = min(values), max(values)
  return f'{low:,}' if low == high else f'{low:,} to {high:,}'


def communication(plan: FedMdPlan) -> dict[str, dict[str, float] | None]:
  """Bytes of a party in a round by kind of knowledge, None for one not allowed."""
  return {kind: None if isinstance(mean, str) else {
      'sent': mean.sent_bytes, 'received': mean.received_bytes,
      'sent_in_clear': mean.clear_bytes, 'bits': mean.wire_bits,
      'rounding_error': mean.rounding_error}
          for kind, mean in plan.kinds_of_knowledge().items()}


def communication_lines(plan: FedMdPlan) -> list[str]:
  lines = [f'communication of a party in a round, {plan.public_per_round} public '
           f'records of {plan.classes} classes:']
  for kind, mean in plan.kinds_of_knowledge().items():
    text = f'not with these settings: {mean}'
    if not isinstance(mean, str):
      error = (f'rounding moves the mean by at most {mean.rounding_error:.3g}'
               if mean.rounding_error else 'the mean is exact')
      text = (f'sent {_kilobytes(mean.sent_bytes)} ({mean.wire_bits:g} bits an entry), '
              f'received {_kilobytes(mean.received_bytes)}; without secure aggregation '
              f'sent {_kilobytes(mean.clear_bytes)}; {error}')
    lines.append(f' {"*" if kind == plan.settings.knowledge else " "} {kind:<8} {text}')
  return lines


def _mechanism(plan: FedMdPlan) -> str:
  settings = plan.settings
  if plan.draws_subset:
    sizes = [plan.draw(i).subset_size for i in range(len(plan.records))]
    return (f'nfdp: a party draws {_range(sizes)} of its records once, '
            f'{"with" if settings.replacement else "without"} replacement')
  if plan.mean.has_noise:
    scale = 'standard deviation' if settings.noise == 'gaussian' else 'scale'
    return f'ldp: {settings.noise} noise, {scale} {plan.mean.noise_scale:.4g} an entry'
  return f'{settings.mode}: all records, no noise'


def describe(task: FedMdTask, plan: FedMdPlan) -> report.Description:
  settings, mean = plan.settings, plan.mean
  rounds, details = f'{settings.rounds} after the first training', []
  if plan.has_consensus:
    rounds = (f'{settings.rounds}, {settings.knowledge} on {mean.records:,} of '
              f'{len(task.public):,} public records, {_kilobytes(mean.sent_bytes)}')
    details = communication_lines(plan)
  models = ', '.join(f'{a.name} ({a.size:,})' for a in task.architectures)
  if settings.mode in DELTA_IN_WORDS:
    details.append(f'{DELTA_IN_WORDS[settings.mode]}; epsilons are natural logarithms')
  if plan.draws_subset:
    details.append('epsilon and delta are those of the most exposed party; with the '
                   'same delta epsilon 0 holds as well')
  return report.Description(details=details, lines=[
      ('task', f'{task.name}, {len(task.parties)} parties of {_range(plan.records)} '
               f'records, {task.classes} classes'),
      ('models', f'{models} parameters'), ('mechanism', _mechanism(plan)),
      ('rounds', rounds)])


def _party(plan: FedMdPlan, task: FedMdTask, index: int, rounds: int,
           accuracy: float | None) -> dict[str, Any]:
  party = task.parties[index]
  fields = {
      'architecture': task.architectures[party.architecture].name,
      'records': len(party.private), 'accuracy': accuracy,
      # Whether training failed depends on the records: noise hides it.
      'rounds': None if plan.settings.mode == 'ldp' else rounds}
  if not plan.draws_subset:
    return fields
  event, seeded = plan.draw(index), '' if plan.seed is None else '_if_unseeded'
  return {**fields, 'draws': event.subset_size,
          f'epsilon{seeded}': event.published_epsilon,
          f'delta{seeded}': event.draw_probability}


def draw(path: pathlib.Path, names: Sequence[str], title: str,
         delta: float | None) -> None:
  rows = metrics_lib.read(path.parent / files.METRICS, 'communication_round')
  epsilon = float(rows[max(rows)].get('epsilon', math.inf))  # Seeded runs have none.
  if math.isfinite(epsilon):
    title += (f', epsilon {decimals.epsilon(epsilon)}, delta '
              f'{decimals.rounded_up(delta, 3)}')
  columns = {f'party_{i}': name for i, name in enumerate(names)} | {'mean': 'mean'}
  report.draw(
      path, [report.Curve(
          label=label, x=list(rows), main=column == 'mean',
          y=[float(row[f'{column}/accuracy']) for row in rows.values()])
             for column, label in columns.items()], title=title,
      xlabel='communication round (0: own records only)', ylabel='test accuracy')


def outcome(plan: FedMdPlan, task: FedMdTask, states: Sequence[Mapping[str, Any]],
            accuracies: Sequence[float] | None) -> report.Outcome:
  """The outcome of a run; `accuracies`, if measured, are of the parties' own models."""
  settings, mean = plan.settings, plan.mean
  parties = [_party(plan, task, i, int(state['rounds']), accuracies and accuracies[i])
             for i, state in enumerate(states)]
  names = [f'{i}: {party["architecture"]}' for i, party in enumerate(parties)]
  shared = settings.knowledge if plan.has_consensus else None
  measured, held_out = {'result': 'not measured: models stay with parties'}, {}
  if accuracies is not None:
    held_out = {'test': {'accuracy': sum(accuracies) / len(accuracies)}}
    lowest = min(range(len(parties)), key=accuracies.__getitem__)
    title = ', '.join(filter(None, (task.name, settings.mode, shared)))
    measured = dict(
        result=f'mean accuracy {held_out["test"]["accuracy"]:.4f} of own models',
        weakest=f'party {names[lowest]}, accuracy {accuracies[lowest]:.4f}'
        if len(parties) > 1 else None,
        figures={files.FIGURE: lambda path: draw(path, names, title, plan.delta)})
  return report.Outcome(
      **measured, files=(files.METRICS,),
      details=[f'party {name}, {party["records"]:,} records'
               + (f', {party["draws"]:,} draws' if 'draws' in party else '')
               + (f', accuracy {party["accuracy"]:.4f}' if accuracies else '')
               for name, party in zip(names, parties)],
      fields={
          'task': settings.task, 'algorithm': 'fedmd',
          'model': ', '.join(a.name for a in task.architectures),
          'headline_of': 'mean over the parties, each with its own model',
          'held_out': held_out, 'headline': 'accuracy' if accuracies else None,
          'mechanism': settings.mode if plan.is_private else 'none',
          'noise_multiplier': plan.noise_multiplier, 'population': len(parties),
          'bits': mean.wire_bits if shared else None, 'details': {
              **{name: getattr(settings, name) for name in (
                  'split', 'mode', 'initial_weights_seed', 'data_seed')},
              'knowledge': shared, 'parties': parties,
              'communication_rounds': settings.rounds,
              'public_per_round': plan.public_per_round,
              'communication_bytes': communication(plan) if shared else None,
              'noise': mean.noise if mean.has_noise else None,
              'noise_scale': mean.noise_scale or None,
              'delta_in_words': DELTA_IN_WORDS.get(settings.mode)}})
