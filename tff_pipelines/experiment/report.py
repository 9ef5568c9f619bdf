"""The run report: on the terminal, in report.txt, summary.json and a figure.

The terminal gets the short form: a plan of at most nine lines and two for each line
about the data, an empty one and a report of at most ten, none beyond 80 columns unless
a path in a command is. Everything is in report.txt and, for programs, in summary.json.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import re
import shlex
import textwrap
from typing import Any

import numpy as np

from tff_pipelines.accounting.guarantees import plan as guarantee_lib
from tff_pipelines.common import caveats as caveats_lib, decimals, files
from tff_pipelines.experiment import models
from tff_pipelines.experiment.page_elements import Curve

VERSION = 1
LABELS_FIGURE = 'clients.png'

_WIDTH = 80
_LABEL = 12
# Label of a command, which stays as it is, to be copied into a shell; and those of
# entries that are never cut.
_COMMAND = 'next'
_WHOLE = (_COMMAND, 'caveats', 'epsilon', '')
# These are named before any other, so that a short list has them.
_FIRST = ('refuted by its audit', 'seeded: not private', 'suppressed rounds', 'no finite epsilon', 'no privacy',
          'secure aggregation simulated', 'epsilon of ideal distributions',
          'approximate amplification', 'server: ideal distributions',
          'restarts cost epsilon', 'vote repeated', 'delta not below 1/records',
          'published epsilon is no bound', 'large epsilon')

_TYPES = {'integer': int, 'number': (int, float), 'text': str, 'list': list,
          'object': dict}

# Every summary has all of these keys and no others, of these JSON types, or null where
# there is a question mark. docs/summary.md says what they mean.
SCHEMA: Mapping[str, str] = {
    'version': 'integer', 'family': 'text', 'task': 'text', 'algorithm': 'text',
    'model': 'text?', 'parameters': 'integer?', 'headline': 'text?',
    'headline_of': 'text?', 'value': 'number?', 'accuracy': 'number?',
    'held_out': 'object', 'outside_guarantee': 'list', 'private_evaluation': 'object?',
    'breakdown': 'object', 'mechanism': 'text', 'noise_multiplier': 'number?',
    'noise_stddev': 'number?', 'clip': 'number?', 'bits': 'integer?',
    'epsilon': 'number?', 'epsilon_server': 'number?',
    'epsilon_server_any_cohorts': 'number?', 'epsilon_participant': 'number?',
    'clients_per_person': 'integer?', 'epsilon_person': 'number?',
    'epsilon_server_person': 'number?', 'epsilon_if_unseeded': 'number?',
    'delta': 'number?', 'consumed_delta': 'number?', 'consumed_delta_server': 'number?',
    'adjacency': 'text?', 'adjacency_in_words': 'text?', 'privacy_unit': 'text',
    'observers': 'text?', 'observers_server': 'text?', 'observers_participant': 'text?',
    'least_cohort': 'number?', 'sampling': 'text', 'trust_model': 'text',
    'source': 'text?', 'sampler': 'text?', 'accountant': 'text?', 'order': 'number?',
    'amplification': 'text?', 'skellam_as_gaussian': 'list?',
    'secure_aggregation': 'text?', 'population': 'integer?', 'cohort_size': 'number?',
    'rounds': 'integer', 'starts': 'integer', 'configuration': 'text',
    'about': 'object', 'caveats': 'list', 'warnings': 'list', 'details': 'object'}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
  """Description of a run, printed before its first round.

  Attributes:
    lines: Label and text, short; at most six.
    data: Label and text of lines about the data, such as the columns of a table.
    details: Further lines for the full report.
    caveats: What a reader must know in addition to the caveats of the guarantee.
  """

  lines: Sequence[tuple[str, str]]
  data: Sequence[tuple[str, str]] = ()
  details: Sequence[str] = ()
  caveats: Sequence[caveats_lib.Caveat] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """Result of a finished run.

  Attributes:
    result: The result in one line.
    fields: Keys of the summary that are not about privacy.
    weakest: The weakest classes or clients in one line; None for none.
    details: Further lines for the full report.
    caveats: What a reader must know in addition to those of plan and guarantee.
    figures: Name of a file -> function that draws it into a path.
    files: Further files that the run wrote.
    next: The command to do next; None for the account of the ledger.
    trained: Folder, relative to that of the run ('' for itself) -> the trained model
      that is kept in it.
  """

  result: str
  fields: Mapping[str, Any]
  weakest: str | None = None
  details: Sequence[str] = ()
  caveats: Sequence[caveats_lib.Caveat] = ()
  figures: Mapping[str, Callable[[pathlib.Path], None]] = dataclasses.field(
      default_factory=dict)
  files: Sequence[str] = ()
  next: str | None = None
  trained: Mapping[str, models.Trained] = dataclasses.field(default_factory=dict)


def validate_summary(summary: Mapping[str, Any]) -> None:
  """Raises ValueError unless a summary has the keys and types of SCHEMA."""
  missing, unknown = SCHEMA.keys() - summary.keys(), summary.keys() - SCHEMA.keys()
  if missing or unknown:
    raise ValueError(f'summary must have the keys of version {VERSION}; missing: '
                     f'{sorted(missing)}, unknown: {sorted(unknown)}')
  for name, kind in SCHEMA.items():
    value, is_null = summary[name], kind.endswith('?') and summary[name] is None
    if isinstance(value, bool) or not (
        is_null or isinstance(value, _TYPES[kind.rstrip('?')])):
      raise ValueError(f'summary: {name} must be of type '
                       f'{kind.replace("?", " or null")}, found {value!r}')
  json.dumps(summary, allow_nan=False)


def summary_of(family: str, guarantee: guarantee_lib.Guarantee, outcome: Outcome,
               caveats: Sequence[caveats_lib.Caveat], **run: Any) -> dict[str, Any]:
  """The summary of a run, complete and valid."""
  values = {
      'version': VERSION, 'family': family, 'held_out': {}, 'outside_guarantee': [],
      'breakdown': {}, 'about': {}, **guarantee.to_json(), **run,
      'caveats': [caveat.name for caveat in caveats],
      'warnings': [str(caveat) for caveat in caveats], 'details': {}, **outcome.fields}
  held_out = values['held_out']
  # A family that averages its metrics itself has one set, under another name.
  measured = {} if not isinstance(held_out, dict) else held_out.get(
      values.get('headline_of')) or next(iter(held_out.values()), {})
  values = {'value': measured.get(values.get('headline')),
            'accuracy': measured.get('accuracy'), **values}
  values['details'] = {
      **{key: files.finite(value) if isinstance(value, float) else value
         for key, value in guarantee.further.items()}, **values['details']}
  summary = {name: values.pop(name, None) for name in SCHEMA}
  if values:
    raise ValueError(f'summary has no keys {sorted(values)}')
  validate_summary(summary)
  return summary


def read_summary(path: str | os.PathLike[str]) -> dict[str, Any]:
  """The summary of a finished run; ValueError if there is none, or it is damaged."""
  path = pathlib.Path(path)
  if not path.is_file():
    raise ValueError(f'{path.parent} must be the folder of a finished run, found no '
                     f'{path.name}')
  summary = files.read_json(path)
  try:
    validate_summary(summary)
  except ValueError as error:
    raise ValueError(f'{path} is damaged: {error}; --resume writes it again') from error
  return summary


def ordered(caveats: Iterable[caveats_lib.Caveat]) -> list[caveats_lib.Caveat]:
  """Each caveat once, the gravest first."""
  return sorted(dict.fromkeys(caveats), key=lambda caveat: (
      _FIRST.index(caveat.name) if caveat.name in _FIRST else len(_FIRST)))


def _short(text: str, width: int) -> str:
  """The text, its middle left out if it is wider."""
  if len(text) <= width:
    return text
  left = (width - 3) // 3
  return f'{text[:left]}...{text[len(text) - (width - 3 - left):]}'


def folder_name(folder: pathlib.Path) -> str:
  """The path of a folder, relative to the working directory if that is shorter."""
  return min(os.path.relpath(folder), os.fspath(folder), key=len)


def account_command(folder: pathlib.Path, *flags: str) -> str:
  """The command that accounts for a run by its ledger, to be pasted into a shell."""
  return 'python -m tff_pipelines.account ' + shlex.join(
      [*flags, f'--ledger={folder_name(folder)}/{files.LEDGER}'])


def _rows(label: str, text: str, most: int | None = None) -> list[str]:
  """The text of an entry in rows, at most `most` unless it is a command."""
  width, rows = _WIDTH - _LABEL, []
  if label != _COMMAND:
    text = re.sub(r'\S+', lambda word: _short(word[0], width), text)
    return textwrap.wrap(text, width, max_lines=most, placeholder=' ...',
                         break_on_hyphens=False) or ['']
  # A shell joins the rows; an argument is in one, however wide.
  for word in map(shlex.quote, shlex.split(text)):
    if rows and len(rows[-1]) + len(word) + 3 <= width:
      rows[-1] += f' {word}'
    else:
      rows.append(word)
  return [f'{row} \\' for row in rows[:-1]] + rows[-1:]


def lines_of(entries: Iterable[tuple[str, str]], most: int) -> list[str]:
  """Labelled lines within 80 columns, at most `most` of them if caveats leave it.

  Texts are wrapped at blanks; a word that is wider than a line loses its middle, except
  in a command, which must work when it is pasted. If there are too many lines, the
  longest entries are cut, the last of them first, each to one line at the minimum;
  caveats and commands are not.
  """
  entries = list(entries)
  blocks = list(itertools.starmap(_rows, entries))
  while sum(map(len, blocks)) > most:
    longest = max(range(len(blocks)), key=lambda i: (
        len(blocks[i]) * (entries[i][0] not in _WHOLE), i))
    if len(blocks[longest]) == 1 or entries[longest][0] in _WHOLE:
      # Whole entries may need more lines; else there are more entries than lines.
      if not any(label in _WHOLE for label, _ in entries):
        blocks = blocks[:most]
      break
    blocks[longest] = _rows(*entries[longest], most=len(blocks[longest]) - 1)
  return [f'{"" if i else label:<{_LABEL}}{row}'
          for (label, _), rows in zip(entries, blocks) for i, row in enumerate(rows)]


def _names(caveats: Sequence[caveats_lib.Caveat]) -> list[tuple[str, str]]:
  names = '; '.join(dict.fromkeys(caveat.name for caveat in ordered(caveats)))
  return [('caveats', names)] if names else []


def plan_lines(description: Description, guarantee: guarantee_lib.Guarantee,
               folder: pathlib.Path) -> list[str]:
  """The plan on the terminal, before the first round, caveats included."""
  return lines_of([
      *description.lines, *description.data, ('epsilon', guarantee.lines()[0]),
      *_names([*guarantee.caveats, *description.caveats]),
      ('folder', folder_name(folder))], 9 + 2 * len(description.data))


def planned_lines(description: Description,
                  guarantee: guarantee_lib.Guarantee) -> list[str]:
  """The plan of a run that is not started, with all epsilons."""
  epsilon, *more = guarantee.lines()
  return lines_of([*description.lines, ('epsilon', epsilon),
                   *(('', line) for line in more), ('neighbours', guarantee.neighbours),
                   *_names([*guarantee.caveats, *description.caveats])], 20)


def report_lines(guarantee: guarantee_lib.Guarantee, outcome: Outcome,
                 caveats: Sequence[caveats_lib.Caveat], folder: pathlib.Path,
                 run: str) -> list[str]:
  """The report on the terminal, at the end."""
  epsilon, *more = guarantee.lines()
  written = (
      files.PAGE, files.REPORT, files.SUMMARY, files.LEDGER,
      *dict.fromkeys(name.partition('/')[0] or models.ARRAYS for name in outcome.trained),
      *outcome.files, *outcome.figures)
  entries = [
      ('result', outcome.result), ('weakest', outcome.weakest), ('epsilon', epsilon),
      *(('', line) for line in more), ('neighbours', guarantee.neighbours),
      ('run', run), *_names(caveats), ('files', ', '.join(written)),
      ('next', outcome.next or account_command(folder))]
  most = 10 + (guarantee.participant is not None) + (guarantee.person is not None)
  return lines_of([entry for entry in entries if entry[1]], most)


def full_report(description: Description, guarantee: guarantee_lib.Guarantee,
                outcome: Outcome, caveats: Sequence[caveats_lib.Caveat],
                folder: pathlib.Path, run: str) -> str:
  """Everything, as it is written to report.txt."""
  return '\n'.join([
      *(f'{label}: {text}' for label, text in (*description.lines, *description.data)),
      *description.details, '', f'result: {outcome.result}', f'run: {run}',
      *outcome.details, '', *guarantee.details(), '',
      *(f'warning: {caveat}' for caveat in ordered(caveats)), '',
      f'folder: {os.fspath(folder)}', ''])


def noise_in_words(noise_multiplier: float, *, given: bool) -> str:
  """A noise multiplier as it was given, or rounded up if it was calibrated."""
  return f'{noise_multiplier:.15g}' if given else decimals.rounded_up(noise_multiplier)


@contextlib.contextmanager
def figure(path: str | os.PathLike[str], xlabel: str, ylabel: str, *, title: str = '',
           width: float = 7) -> Iterator[Any]:
  """The axes of a figure, which is written as PNG at the end."""
  from matplotlib import figure as figure_lib  # pylint: disable=g-import-not-at-top
  drawn = figure_lib.Figure(figsize=(width, 4.2))
  axes = drawn.subplots()
  axes.set(xlabel=xlabel, ylabel=ylabel)
  axes.set_title(title, fontsize=10)
  yield axes
  drawn.tight_layout()
  drawn.savefig(path, dpi=120)


def draw(path: pathlib.Path, curves: Sequence[Curve], *, title: str, xlabel: str,
         ylabel: str, right: Curve | None = None) -> None:
  """Draws curves as PNG, over 0 to 1 if all lie there; `right` has an axis of its own."""
  with figure(path, xlabel, ylabel, title=title) as axes:
    for curve in curves:
      style = dict(color='black', linewidth=2) if curve.main and len(curves) > 1 else (
          dict(color='tab:blue', marker='.') if curve.main else
          dict(linewidth=1, alpha=0.7))
      axes.plot(curve.x, curve.y, label=curve.label, **style)
    if all(0 <= y <= 1 for curve in curves for y in curve.y):
      axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    if 1 < len(curves) <= 13:
      axes.legend(fontsize=7, ncols=2)
    if right is not None and len(right.x):
      other = axes.twinx()
      other.plot(right.x, right.y, color='tab:red', linestyle='--')
      other.set_ylabel(right.label, color='tab:red')
      other.set_ylim(bottom=0)


def draw_labels(label_counts: np.ndarray, path: str | os.PathLike[str]) -> None:
  """Draws clients' label counts, [clients, classes], as PNG: as private as examples."""
  import matplotlib  # pylint: disable=g-import-not-at-top
  clients, classes = label_counts.shape
  shown = label_counts[:200]  # More bars would be thinner than a pixel.
  if has_legend := classes <= 20:  # One of more labels would cover the figure.
    colors = matplotlib.colormaps['tab10' if classes <= 10 else 'tab20'].colors
  else:
    colors = matplotlib.colormaps['turbo'](np.linspace(0.0, 1.0, classes))
  edges = np.arange(len(shown) + 1) - 0.5
  # One shape a label: separate bars would take seconds.
  bars = np.pad(shown, ((0, 1), (0, 0)), 'edge').T
  xlabel = 'client' if len(shown) == clients else (
      f'client (the first {len(shown)} of {clients:,})')
  ylabel = 'examples, by label' if has_legend else (
      f'examples, by label, 0 (blue) to {classes - 1} (red)')
  with figure(path, xlabel, ylabel, width=9) as axes:
    axes.stackplot(edges, bars, step='post', colors=colors,
                   labels=map(str, range(classes)))
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, 1.02 * shown.sum(axis=1).max())
    if has_legend:
      axes.legend(fontsize=7, ncol=2, loc='center left', bbox_to_anchor=(1.0, 0.5))
