"""One page about one run, or several: a file without scripts, which loads nothing."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import itertools
import json
import operator
from typing import Any

from tff_pipelines.accounting.guarantees import bounds
from tff_pipelines.accounting.guarantees.guarantee import Guarantee, in_words
from tff_pipelines.experiment import page_elements, statement
from tff_pipelines.experiment.page_elements import (
    Child, Curve, element, Element, folded, table)

# A matrix is shown for up to this many classes.
_MATRIX = 12

# Keys of the summary that say how epsilon was computed.
_COMPUTED = ('mechanism', 'noise_multiplier', 'noise_stddev', 'clip', 'bits', 'sampling',
             'cohort_size', 'population', 'rounds', 'accountant', 'amplification',
             'sampler', 'secure_aggregation', 'source')
_BOUNDS = ('ε, observers', 'ε, server')

_INTRODUCTION = (
    'For the operator. What is marked “may be published” is covered by the guarantee. '
    'Which clients were selected, and how many, is nowhere on this page.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
  """The check of a run's ledger: its releases, `problems` of its chain, its guarantee."""

  rounds: int
  problems: Sequence[str] = ()
  guarantee: Guarantee | None = None

  def proves(self, summary: Mapping[str, Any]) -> bool:
    """Whether the chain holds and no epsilon is above the one that a summary states."""
    mine = {} if self.guarantee is None else self.guarantee.numbers()
    return not self.problems and all(
        summary[key] is None or (
            mine.get(key) is not None and mine[key] <= summary[key] * (1 + 1e-6))
        for key in bounds.KEYS.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """A finished run by the name of its folder, with its summary (docs/summary.md)."""

  name: str
  summary: Mapping[str, Any]
  settings: Mapping[str, Any]
  curves: Sequence[Curve]
  verdict: Verdict


def document(runs: Sequence[Run]) -> str:
  """The text of a page about at least one run, with different names."""
  first = runs[0].summary
  title = (f'{first["task"]}, {first["algorithm"]}: {runs[0].name}' if len(runs) == 1
           else f'{len(runs)} runs side by side')
  # Exact metrics of a protected model on public data are post-processing.
  covered = all(run.summary['epsilon'] is not None
                and not run.summary['outside_guarantee'] for run in runs)
  parts = [
      ('guarantee', 'Guarantee', True, _cards(
          element('article', element('h3', run.name), *_statement(run.summary),
                  class_='card') for run in runs)),
      ('results', 'Results', covered, _results(runs)),
      ('curves', 'Curves', covered and all(
          curve.covered for run in runs for curve in run.curves), _curves(runs)),
      ('classes', 'Classes', covered, _cards(_classes(runs))),
      ('settings', 'Settings', False, _settings(runs)),
      ('ledger', 'Ledger', False, _ledgers(runs)),
      ('warnings', 'Warnings', False, _cards(
          element('div', element('h3', run.name), element('ul', *(
              element('li', text) for text in run.summary['warnings'])))
          for run in runs if run.summary['warnings']))]
  parts = [part for part in parts if part[-1]]
  sections = [
      element('section', element('h2', heading, ' ', _judged(
          'may be published' if public else 'operator only', public, 'tag '), id=name),
              *content, aria_labelledby=name)
      for name, heading, public, content in parts]
  links = [element('a', heading, href=f'#{name}') for name, heading, *_ in parts]
  return page_elements.written(element(
      'html', element(
          'head', element('meta', charset='utf-8'),
          element('meta', name='viewport', content='width=device-width, initial-scale=1'),
          element('title', title), element('style', page_elements.CSS)),
      element(
          'body', element('header', element('h1', title), element('p', _INTRODUCTION)),
          element('nav', *links, aria_label='Sections'), element('main', *sections)),
      lang='en'))


def _judged(text: str, is_good: bool, kind: str = '') -> Element:
  return element('span', text, class_=kind + ('ok' if is_good else 'no'))


def _bounds(run: Run, guarantee: Guarantee | None) -> list[str]:
  """Cells of the columns `_BOUNDS`; a dash where no number is stated for the server."""
  mine = {} if guarantee is None else guarantee.by_observer
  stated = run.summary['observers_server'] is not None
  return [in_words(mine.get(bounds.OUTSIDERS)),
          in_words(mine.get(bounds.SERVER)) if stated else '–']


def _cards(content: Iterable[Element]) -> list[Element]:
  """One box of elements side by side, as many as fit; none for none."""
  content = list(content)
  return [element('div', *content, class_='cards')] if content else []


def _statement(summary: Mapping[str, Any]) -> list[Element]:
  """The privacy statement, as an export has it."""
  content, elements = statement.statement(summary), []
  for kind, group in itertools.groupby(statement.parts(content), operator.itemgetter(0)):
    # Parts between ** are bold.
    texts = [[element('strong', part) if i % 2 else part
              for i, part in enumerate(text.split('**')) if part] for _, text in group]
    if kind == 'item':
      elements.append(element('ul', *(element('li', *text) for text in texts)))
    elif kind == 'title':
      style = f'number {"ok" if content["private"] else "no"}'
      elements += [element('p', *text, class_=style) for text in texts]
    else:
      elements += [element('h4' if kind == 'heading' else 'p', *text) for text in texts]
  return [*elements, folded('How it was computed', element('ul', *(
      element('li', f'{name.replace("_", " ")}: {_shown(summary[name])}')
      for name in _COMPUTED if summary[name] is not None)))]


def _shown(value: Any) -> str:
  """A value of a setting or a summary for people."""
  if value is None:
    return 'not set'
  if isinstance(value, str):
    return value
  return f'{value:.6g}' if isinstance(value, float) else json.dumps(value)


def _metrics(run: Run) -> dict[tuple[str, str], float | None]:
  """(held-out set, metric) -> value."""
  return {(set_name, metric): value
          for set_name, values in run.summary['held_out'].items()
          for metric, value in values.items()}


def _results(runs: Sequence[Run]) -> list[Element]:
  if not (columns := list(dict.fromkeys(itertools.chain(*map(_metrics, runs))))):
    return []
  outside = sorted({name for run in runs for name in run.summary['outside_guarantee']})
  rows = [[run.name, *(_number(_metrics(run).get(column)) for column in columns),
           *_bounds(run, Guarantee.from_json(run.summary))]
          for run in runs]
  notes = [f'Outside the guarantee: {", ".join(outside)}.'] if outside else []
  for run in runs:
    if released := run.summary['private_evaluation']:
      noise = ', '.join(f'{_number(entry["stddev"])} of {name.replace("_", " ")}'
                        for name, entry in released['metrics'].items())
      notes.append(f'{run.name}, {released["of"]}: means over {released["unit"]}s, with '
                   f'noise that is in ε, of standard deviation {noise}.')
  head = [f'{set_name}: {metric.replace("_", " ")}' for set_name, metric in columns]
  return [table(['run', *head, *_BOUNDS], rows,
                caption='Metrics on held-out sets, and what they cost'),
          *(element('p', note) for note in notes)]


def _number(value: float | None) -> str:
  return '–' if value is None else f'{value:.4f}'


def _curves(runs: Sequence[Run]) -> list[Element]:
  groups: dict[tuple[str, str], list[tuple[str, Run, Curve]]] = {}
  for run in runs:
    for curve in run.curves:
      if len(runs) == 1 or curve.main:
        groups.setdefault((curve.metric, curve.over), []).append((
            curve.label if len(runs) == 1 or curve.log else run.name, run, curve))
  # A run, or else a label, has the same colour in all charts.
  keys = list(dict.fromkeys(key for group in groups.values() for key, *_ in group))
  figures = []
  for (metric, over), curves in groups.items():
    one_label = len({curve.label for *_, curve in curves}) == 1
    figures.append(page_elements.chart(f'{metric} over {over}', over, [
        (keys.index(key), curve.label if len(runs) == 1 else
         run.name if one_label else f'{run.name}: {curve.label}', curve)
        for key, run, curve in curves], log=all(curve.log for *_, curve in curves)))
  note = [element('p', 'Epsilon in the charts is that against the observers.')] * any(
      'epsilon' in group for group in groups)
  return [*note, element('div', *figures, class_='charts')] if figures else []


def _classes(runs: Sequence[Run]) -> Iterator[Element]:
  for run in runs:
    for set_name, counts in run.summary['breakdown'].items():
      if counts['classes']:
        yield element('div', element('h3', f'{run.name}, {set_name}' + (
            ', outside the guarantee' * counts['outside_guarantee'])),
                      *_breakdown(counts))


def _breakdown(counts: Mapping[str, Any]) -> Iterator[Element]:
  """Confusion of groups, classes and mistakes of one held-out set."""
  kind = counts['kind']
  kinds = f'{kind}es' if kind.endswith('s') else f'{kind}s'
  if groups := [group for group in counts['groups'] if 'taken_for' in group]:
    names = list(dict.fromkeys(name for group in groups for name, count in
                               group['taken_for'].items() if count))
    yield _matrix(f'Confusion of groups of {kinds}: true in rows, predicted in columns',
                  [group['name'] for group in groups], names, {
                      (group['name'], name): group['taken_for'].get(name, 0)
                      for group in groups for name in names})
  classes, mistakes = counts['classes'], counts['confusions']
  names = [one['name'] for one in classes]
  if mistakes and len(names) <= _MATRIX:
    cells = {(one['name'], one['name']): one['right'] for one in classes}
    cells |= {(one['true'], one['predicted']): one['count'] for one in mistakes}
    predicted = list(dict.fromkeys([*names, *(one['predicted'] for one in mistakes)]))
    yield _matrix(f'Confusion of {kinds}: true in rows, predicted in columns; a dot is '
                  'none or few', sorted(names), sorted(predicted), cells)
  elif mistakes:
    yield table(['true', 'predicted', 'count'], [
        [one['true'], one['predicted'], f'{one["count"]:,}'] for one in mistakes],
                caption='Most frequent mistakes')
  yield folded(f'{len(classes)} {kinds}, the most frequent first', table(
      [kind, 'count', 'right', 'share right', 'times predicted'],
      [[one['name'], f'{one["count"]:,}', f'{one["right"]:,}',
        f'{one["right"] / one["count"]:.1%}' if one['count'] else '–',
        f'{one["predicted"]:,}'] for one in classes], caption=f'By {kind}'))


def _matrix(caption: str, rows: Sequence[str], columns: Sequence[str],
            cells: Mapping[tuple[str, str], int]) -> Element:
  def cell(row: str, column: str) -> Child:
    if (row, column) not in cells:
      return element('span', '·', class_='heat')
    share = cells[row, column] / max(1, sum(
        cells.get((row, other), 0) for other in columns))
    return element('span', f'{cells[row, column]:,}', class_='heat',
                   style=f'--share: {share:.3f}')

  return table(['', *columns], [
      [row, *(cell(row, column) for column in columns)] for row in rows],
               caption=caption, class_='matrix')


def _settings(runs: Sequence[Run]) -> list[Element]:
  names = sorted(set().union(*(run.settings for run in runs)))
  rows = {name: [run.settings.get(name, '–') for run in runs] for name in names}
  same = [name for name, values in rows.items() if all(
      value == values[0] for value in values)]
  differing = [[name, *map(_shown, values)] for name, values in rows.items()
               if name not in same]
  result = []
  if len(runs) > 1:
    result.append(table(['setting', *(run.name for run in runs)], differing,
                        caption='Settings that differ') if differing else
                  element('p', 'All settings are the same.'))
  if same:
    result.append(folded(
        f'{len(same)} settings' + ' that are the same' * (len(runs) > 1),
        table(['setting', 'value'], [[name, _shown(rows[name][0])] for name in same],
              caption='Settings')))
  return result


def _ledgers(runs: Sequence[Run]) -> list[Element]:
  rows = []
  for run in runs:
    verdict, proved = run.verdict, run.verdict.proves(run.summary)
    problems = '; '.join(verdict.problems)
    rows.append([
        run.name, f'{verdict.rounds:,}',
        _judged(f'broken: {problems}' if problems else 'holds', not problems),
        *_bounds(run, verdict.guarantee), _judged('yes' if proved else 'no', proved)])
  return [table(
      ['run', 'releases', 'hash chain', *_BOUNDS, 'proves the guarantee'], rows,
      caption='Verdict on the ledgers'), element(
           'p', 'Every ε is recomputed from the ledger alone, which proves the '
           'guarantee if its hash chain holds and none is above the one stated.')]
