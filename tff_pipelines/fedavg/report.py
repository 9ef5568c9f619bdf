"""The run report of federated averaging: its own lines, fields and figures."""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import pathlib
from typing import Any

import numpy as np

from tasks.task import Breakdown, Examples, Model, Task, VALIDATION
from tff_pipelines.accounting.events import base, preliminary
from tff_pipelines.accounting.guarantees import release_noise
from tff_pipelines.common import caveats, decimals, files
from tff_pipelines.experiment import measured as measured_lib, metrics as metrics_lib, report
from tff_pipelines.fedavg import columns, evaluation, private_evaluation, scores
from tff_pipelines.fedavg.plan import FedAvgPlan
from tff_pipelines.fedavg.settings import TrainSettings

# Held-out set -> why metrics on it, which are exact, are outside the guarantee.
_OUTSIDE = {
    'test_clients': ': no epsilon protects clients that are not in the population',
    'test_examples': ': they are computed from further examples of the clients',
    'test': ': no epsilon protects those whose examples the test part has'}
# Limits of a breakdown: in summary.json, where more classes are cut to the most
# frequent ones, and in report.txt.
_MAX_CLASSES, _MAX_PAIRS = 100, 20
_SHOWN_CLASSES, _SHOWN_PAIRS, _SHOWN_WEAKEST = 10, 5, 3
_CANARIES = caveats.Caveat(
    'trained with canaries', 'canaries of an audit took part in the training: the model is '
    'for the audit alone; delta is of clients and canaries, and the canaries\' shares of '
    'the noise are counted on')
_REFUTED = caveats.Caveat('refuted by its audit', measured_lib.REFUTED)

Results = Mapping[str, Mapping[str, float]]


def _is_outside(set_name: str, task: Task) -> bool:
  """Whether metrics on a held-out set are of people whom no epsilon protects.

  They are not if the set is public: it ships with the task, or is for validation.
  """
  return set_name != VALIDATION and (set_name != 'test' or task.test_of_files)


def _draws_clients(plan: FedAvgPlan, task: Task) -> bool:
  """Whether labels by client, which are exact counts, are drawn."""
  return task.label_counts is not None and (not task.test_of_files or plan.diagnostics)


def describe(task: Task, plan: FedAvgPlan) -> report.Description:
  """Description of the run before its first round."""
  mechanism = plan.mechanism
  details = []
  if plan.adaptive is not None:
    details.append(
        f'adaptive clip: quantile {plan.adaptive.target_quantile:g} of the norms, '
        f'learning rate {plan.adaptive.learning_rate:g}, noise of '
        f'{plan.adaptive.count_stddev:g} clients on the count')
  details += [f'{when}: {_release_line(event)}' + (
      f'; charged {charges} times, as starts were interrupted' * (charges > 1))
              for when, event, charges in plan.releases]
  if mechanism.has_bands:
    details.append(f'column of a row: {" ".join(map(str, mechanism.column))}')
  if plan.params is not None:
    details.append(
        f'sum modulo 2^{plan.params.bits}, scale {plan.params.scale:.4g} grid units '
        f'per model unit, {plan.params.padded_dimension:,} coordinates'
        + (f' (Hadamard order {order})' if (order := plan.params.rotation_order) else ''))
  notes = [caveats.Caveat(
      'held-out metrics not protected',
      f'metrics on {name} are outside the guarantee{_OUTSIDE.get(name, "")}')
           for name in task.held_out if _is_outside(name, task)]
  if plan.preliminary is None:
    notes += [caveats.Caveat(
        'release of another run', f'{name} was released with noise by another '
        'run, whose cost is not in this epsilon') for name in task.noised_files]
  if VALIDATION in task.held_out:
    notes.append(caveats.Caveat(
        'validation set stated as public',
        'the user states that the validation set, which chooses the model, is public: '
        'no epsilon protects those whose data it has'))
  if _draws_clients(plan, task) and task.test_of_files:
    notes.append(caveats.Caveat(
        'labels of clients drawn', f'diagnostics draw {report.LABELS_FIGURE}, exactly '
        'how often each client has each label, outside the guarantee'))
  return report.Description(
      lines=[
          ('task', f'{task.name}, {task.model.name} with {mechanism.dimension:,} '
                   f'parameters, {_population(plan)}'),
          ('run', run_line(plan, mechanism.rounds)),
          ('mechanism', mechanism_line(plan))],
      data=task.plan_lines, details=details, caveats=[*task.warnings, *notes])


def of_counts(plan: FedAvgPlan, work: columns.Workload) -> report.Description:
  """Description of a plan that is of no data."""
  return report.Description(lines=[
      ('run', run_line(plan, plan.mechanism.rounds)),
      ('mechanism', mechanism_line(plan)), *bands_lines(plan, work)])


def _release_line(event: base.Event) -> str:
  """A release outside the rounds in one line."""
  release = release_noise.release_of(event)
  stddev = math.sqrt(release.noise_variance)
  if isinstance(release, preliminary.EvaluationRelease):
    return (f'{release.dimension} sums of metrics on {private_evaluation.SET}, noise '
            f'of standard deviation {stddev / preliminary.UNITS:.4g} clients')
  noise = f'noise of standard deviation {stddev:.4g}'
  if not release.items:
    return f'{release.dimension} sums of all clients, {noise}'
  return (f'counts of clients, of whom each adds to at most {release.items}, {noise}, '
          f'released from {release.threshold} on')


def rates_line(settings: TrainSettings) -> str:
  """The rates of training in one line, those that the task decided included."""
  server = (f'momentum {settings.server_momentum:g}'
            if settings.server_optimizer == 'sgdm' else settings.server_optimizer)
  server = f'server {settings.server_learning_rate:g}, {server}'
  if settings.protect != 'client':
    return f'rates: {server}'
  return (f'rates: client {settings.client_learning_rate:g}, batches of '
          f'{settings.client_batch_size}, {settings.client_epochs} epochs; {server}')


def _population(plan: FedAvgPlan) -> str:
  """Who is protected: '1,206 clients', or '920 records of 4 silos'."""
  mechanism = plan.mechanism
  if mechanism.silos is None:
    return f'{mechanism.population:,} clients'
  units = 'persons' if plan.privacy_unit == 'one person' else 'records'
  return f'{mechanism.population:,} {units}' + (
      f' of {mechanism.silos:,} silos' if mechanism.silos > 1 else '')


def run_line(plan: FedAvgPlan, rounds: int) -> str:
  """The run in one line."""
  mechanism = plan.mechanism
  if mechanism.silos is not None:
    return (f'{rounds} steps of {mechanism.cohort_size:g} of {_population(plan)}, '
            'expected, drawn in secret')
  if mechanism.sampling == 'none':
    return f'{rounds} rounds of all {mechanism.population:,} clients'
  return (f'{rounds} rounds, {mechanism.cohort_size:g} of {mechanism.population:,} '
          f'clients {plan.scheme.cohort_in_words}, {mechanism.sampling} sampling'
          + ('' if mechanism.max_participations is None else
             f', each in at most {mechanism.max_participations}'))


def mechanism_line(plan: FedAvgPlan) -> str:
  """The mechanism that makes the run private, in one line."""
  if not plan.is_private:
    return 'none: no clipping, no noise, no guarantee' if plan.aggregation is None else (
        f'own: {plan.aggregation}, not accounted, no guarantee')
  if plan.aggregation is not None:
    return f'own: {plan.aggregation}, accounted as {type(plan.mechanism.release()).__name__}'
  mechanism = plan.mechanism
  noise = report.noise_in_words(mechanism.noise_multiplier, given=not plan.is_calibrated)
  return (f'{mechanism.mechanism}, noise multiplier {noise}, clip {mechanism.clip:g}'
          + (f', {plan.params.bits} bits' if plan.params is not None else ''))


def bands_lines(plan: FedAvgPlan, work: columns.Workload) -> list[tuple[str, str]]:
  """The noise that cancels in the models of a server's optimizer, as a line; or none."""
  column = plan.mechanism.column
  if not plan.mechanism.has_bands:
    return []
  plain = columns.gain(columns.prefix_sum(work.rounds), column)
  # On one line, so that the plan's caveats have theirs.
  return [('rows', f'of {len(column)} rounds: {columns.gain(work, column):.2f} times less '
           f'noise in models ({plain:.2f} in plain sums)')]


def finite_results(results: Results) -> dict[str, dict[str, float | None]]:
  """Metrics of held-out sets for JSON."""
  return {name: {key: files.finite(value) for key, value in values.items()}
          for name, values in results.items()}


def evaluated(task: Task, weights: Sequence[Any]) -> dict[str, dict[str, float | None]]:
  """Metrics of weights on the held-out sets of a task, for JSON."""
  return finite_results(evaluation.Evaluator(task.model, task.held_out).evaluate(weights))


def scored(model: Model, weights: Sequence[Any],
           held_out: Mapping[str, Examples]) -> dict[str, dict[str, float | None]]:
  """Metrics and scores of weights on held-out sets, for JSON."""
  results = evaluation.Evaluator(model, held_out).evaluate(weights)
  return finite_results(scores.with_scores(results, model, weights, held_out))


def _shown(value: float | None) -> str:
  return 'not finite' if value is None or not math.isfinite(value) else f'{value:.4f}'


def in_words(set_name: str, values: Mapping[str, float],
             names: Sequence[str] | None = None) -> str:
  """The metrics of a held-out set in one line, or some, by the best constant's."""
  beaten = scores.beats_constant(values)

  def entry(name: str) -> str:
    constant = _shown(values.get(scores.CONSTANT + name))
    return f'{name} {_shown(values[name])}' + (
        '' if name not in beaten else f' (a constant: {constant})' if beaten[name] else
        f', no better than a constant ({constant})')

  return f'{set_name}: ' + ', '.join(
      entry(name) for name in (values if names is None else names)
      if not name.startswith(scores.CONSTANT))


def _first_names(values: Mapping[str, float]) -> list[str]:
  """The metrics of the first line, those of rare classes where accuracy says little."""
  says_little = not scores.beats_constant(values).get('accuracy', True)
  further = scores.FURTHER[2 * says_little:]
  return [name for name in values if name not in further]


def constant_caveats(set_name: str, values: Mapping[str, float]
                      ) -> list[caveats.Caveat]:
  """A caveat if some metric is no better than that of the best constant."""
  beaten = scores.beats_constant(values)
  if all(beaten.values()):
    return []
  first = min(beaten, key=beaten.get).removeprefix('balanced_')
  return [caveats.Caveat(
      'no better than a constant' + f' by {first}' * any(beaten.values()),
      f'on {in_words(set_name, values, list(beaten))}')]


def draw_metrics(path: pathlib.Path, accuracy_of: str, title: str,
                 metric: str = 'accuracy', *, key: str = 'round',
                 xlabel: str = 'round', of: str = '') -> None:
  """Draws a metric and epsilon from the table in the figure's folder."""
  rows = metrics_lib.read(path.parent / files.METRICS, key)
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
  delta = f'delta {decimals.rounded_up(plan.delta, 3)}' if plan.delta else 'pure'
  return f'{what}, epsilon {decimals.epsilon(plan.epsilon(rounds))}, {delta}'


def fields(plan: FedAvgPlan) -> dict[str, Any]:
  """Fields of a summary that follow from the plan."""
  mechanism = plan.mechanism
  return {
      **{name: getattr(mechanism, name) for name in (
          'mechanism', 'population', 'cohort_size', 'noise_multiplier')},
      'parameters': mechanism.dimension,
      'clip': mechanism.clip if plan.is_private else None,
      'bits': plan.params and plan.params.bits}


def details(plan: FedAvgPlan) -> dict[str, Any]:
  """Details of a summary, of this family only, that follow from the plan."""
  return {
      'adaptive_clip': plan.adaptive and dataclasses.asdict(plan.adaptive),
      'column': list(plan.mechanism.column), 'scale': plan.params and plan.params.scale,
      'dimension_padded': plan.params and plan.params.padded_dimension,
      'rotation_order': plan.params and plan.params.rotation_order}


def describe_breakdown(breakdown: Breakdown, counts: Mapping[str, np.ndarray], *,
             outside_guarantee: bool) -> dict[str, Any]:
  """A held-out set's breakdown as JSON.

  Returns:
    `count`, the number of predictions; `constant`, the fraction that would be right
    if they were always the same; `classes`, the most frequent first, and `groups`,
    each with how often it occurred (`count`), was `right` and was `predicted`; and
    where pairs were counted, `confusions`, the most frequent mistakes.
  """
  occurred, confusion = counts['occurred'], counts.get('confusion')
  total = occurred.sum()
  order = np.argsort(-occurred, kind='stable')
  order = order[occurred[order] > 0]
  most = occurred[order[:breakdown.guesses]].sum()

  def entry(name: str, members: Sequence[int]) -> dict[str, Any]:
    return dict(name=name, **{
        key: int(counts[source][members].sum()) for key, source in (
            ('count', 'occurred'), ('right', 'right'), ('predicted', 'predicted'))})

  members = {name: list(members) for name, members in breakdown.groups.items()}
  groups = [entry(name, rows) for name, rows in members.items()]
  confusions = []
  if confusion is not None:
    for group in groups:
      group['taken_for'] = {
          other: int(confusion[np.ix_(members[group['name']], columns)].sum())
          for other, columns in members.items()}
    mistakes = confusion - np.diag(np.diag(confusion))
    pairs = np.argsort(-mistakes, axis=None, kind='stable')[:_MAX_PAIRS]
    confusions = [
        dict(true=breakdown.names[true], predicted=breakdown.names[guess],
             count=int(mistakes[true, guess]))
        for true, guess in zip(*np.unravel_index(pairs, mistakes.shape))
        if mistakes[true, guess] > 0]
  return {
      'kind': breakdown.kind, 'outside_guarantee': outside_guarantee,
      'count': int(total), 'constant': float(most / total) if total else None,
      'classes': [entry(breakdown.names[i], [i])
                  for i in order[:_MAX_CLASSES].tolist()],
      'groups': [group for group in groups if group['count'] or group['predicted']],
      'confusions': confusions}


def breakdown_lines(set_name: str, described: Mapping[str, Any]) -> list[str]:
  """Lines for people: groups, the most frequent classes and mistakes of one set."""
  if not described['count']:
    return []
  head = set_name + ', outside the guarantee' * described['outside_guarantee']
  result = []
  # Others were predicted only, which summary.json has.
  groups = [group for group in described['groups'] if group['count']]
  if groups:
    result.append(f'{head}, right by group: ' + '; '.join(map(_share, groups)))
  result.append(
      f'{head}, right by {described["kind"]}, of {described["count"]:,}: ' + '; '.join(
          map(_share, described['classes'][:_SHOWN_CLASSES]))
      + f'; the same for all would be {100 * described["constant"]:.1f}%')
  if described['confusions']:
    result.append(f'{head}, most frequent mistakes: ' + '; '.join(
        f'{pair["true"]!r} taken for {pair["predicted"]!r} {pair["count"]:,}'
        for pair in described['confusions'][:_SHOWN_PAIRS]))
  return result


def _share(entry: Mapping[str, Any]) -> str:
  return (f'{entry["name"]!r} {100 * entry["right"] / entry["count"]:.0f}% '
          f'of {entry["count"]:,}')


def weakest(described: Mapping[str, Any]) -> str | None:
  """The classes with the lowest accuracy in one line; None if none has occurred."""
  worst = sorted(described['classes'],
                 key=lambda entry: entry['right'] / entry['count'])[:_SHOWN_WEAKEST]
  return f'{described["kind"]} ' + ', '.join(map(_share, worst)) if worst else None


def by_silo(task: Task, weights: Sequence[Any]) -> dict[str, float | None]:
  """Silo -> the headline metric on its held-out examples; empty if it has none."""
  source = task.held_out_of_clients
  found = finite_results(evaluation.Evaluator(task.model, {
      silo: source.examples(silo) for silo in source.client_ids}).evaluate(weights))
  return {silo: values[task.model.headline] for silo, values in found.items() if values}


def outcome(plan: FedAvgPlan, task: Task, results: Results, counts: Mapping[str, Any],
            initial_weights_seed: int, best: Mapping[str, Any] | None = None,
            evaluated: Mapping[str, Any] | None = None, encoder: str | None = None,
            of_silos: Mapping[str, float | None] | None = None,
            audit: Sequence[Mapping[str, Any]] | None = None) -> report.Outcome:
  """Outcome of a run.

  Args:
    plan, task, initial_weights_seed: Those of the run.
    results: Held-out set -> metric -> value.
    counts: As Evaluator.breakdown returns it.
    best: `best` of the state of `FedAvgRounds`, whose model has these results; None for
      the last one.
    evaluated: What `private_evaluation.read` returned; None for no such release.
    encoder: Result of `native_chunks.encoder`; None where no updates are encoded.
    of_silos: Result of `by_silo`, a diagnostic; None for none.
    audit: Findings about the run's canaries as JSON; None without canaries.
  """
  outside = [name for name in results if _is_outside(name, task)]
  lines = [in_words(name, values) + ', outside the guarantee' * (name in outside)
           for name, values in results.items()]
  sentences = {name: in_words(name, values, _first_names(values))
               for name, values in results.items()}
  constants = [caveat for name, values in results.items()
               for caveat in constant_caveats(name, values)]
  measured = list(results)
  if evaluated is not None:
    of = evaluated['of']
    sentences[of] = private_evaluation.in_words(evaluated)
    lines.append(f'{sentences[of]}, in epsilon')
    results = {**results, of: {
        name: entry['value'] for name, entry in evaluated['metrics'].items()}}
  # A validation set heads no report if there is another one.
  first = min(results, key=lambda name: name == VALIDATION and len(measured) == 1)
  breakdown = {
      name: describe_breakdown(
          task.model.breakdown, of_set, outside_guarantee=_is_outside(name, task))
      for name, of_set in counts.items()}
  headline = task.model.headline
  name = f'{task.name} {task.model.name}, {plan.mechanism.mechanism}'
  figures = {files.FIGURE: lambda path: draw_metrics(
      path, measured[0], title(plan, name, plan.mechanism.rounds), headline)
             } if measured else {}
  if _draws_clients(plan, task):
    figures[report.LABELS_FIGURE] = lambda path: report.draw_labels(
        task.label_counts, path)
  mean_of_silos = None
  if of_silos and None not in of_silos.values():
    mean_of_silos = float(np.mean(list(of_silos.values())))
  if of_silos:
    shown = ', '.join(f'{silo} {_shown(value)}' for silo, value in of_silos.items())
    lines.append(f'{headline} by silo, outside the guarantee: mean '
                 f'{_shown(mean_of_silos)}; {shown}')
  if audit:
    lines += measured_lib.lines(audit)
    figures[measured_lib.FIGURE] = lambda path: report.draw(
        path, measured_lib.curves(audit), title='guesses which canaries took part',
        xlabel=measured_lib.OVER, ylabel=measured_lib.METRIC)
  chosen = best and int(best['round'])
  if best is not None:
    lines.append(f'model: that of round {chosen}, of the lowest loss on the public '
                 'validation set')
  for set_name, described in breakdown.items():
    lines += breakdown_lines(set_name, described)
    if len(task.model.breakdown.names) == 2 and 'f1' in results[set_name]:
      rarer = described['classes'][-1]['name']
      lines.append(f'{set_name}: f1 is of {rarer!r}, the rarer class')
  return report.Outcome(
      result=sentences[first], figures=figures, files=(files.METRICS,),
      caveats=[*constants, *[_CANARIES] * bool(audit),
                *[_REFUTED] * any(map(measured_lib.refutes, audit or ())), *(
          [caveats.Caveat('bad clients skipped', 'clients and records with bad data '
                          'are left out, outside the guarantee')]
          if task.skips.enabled else [])],
      weakest=weakest(breakdown[first]) if first in breakdown else None,
      details=lines, fields={
          **fields(plan), 'task': task.name, 'algorithm': 'fedavg',
          'model': task.model.name, 'headline': headline, 'headline_of': first,
          'held_out': finite_results(results), 'outside_guarantee': outside,
          'breakdown': breakdown, 'private_evaluation': evaluated, 'details': {
              **details(plan), 'initial_weights_seed': initial_weights_seed,
              'chosen_round': chosen, 'encoder': encoder, 'by_silo': of_silos, 'audit': audit,
              'mean_of_silos': mean_of_silos,
              'skipped_clients': len(task.skips.clients),
              'skipped_records': len(task.skips.records)}})
