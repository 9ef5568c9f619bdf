"""The run report: on the terminal, in report.txt, summary.json and a figure.

The terminal gets the short form: a plan of at most nine lines, an empty one and a
report of at most ten, none beyond 80 columns. Everything is in report.txt and, for
programs, in summary.json, whose keys are those of `SCHEMA` (docs/summary.md).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import json
import os
import pathlib
import textwrap
from typing import Any

from tff_pipelines.accounting import caveats as caveats_lib
from tff_pipelines.accounting import decimals
from tff_pipelines.experiment import files
from tff_pipelines.experiment import guarantee as guarantee_lib

VERSION = 2

_WIDTH = 80
_LABEL = 12
_MOST_PLAN_LINES, _MOST_LINES = 9, 10
# Commands: they stay as they are, to be copied into a shell.
_WHOLE = ('next',)
# These are named before any other, so that a short list has them.
_FIRST = (
    'seeded: not private', 'suppressed rounds', 'no finite epsilon', 'no privacy',
    'secure aggregation simulated', 'epsilon of ideal distributions',
    'approximate amplification', 'epsilon of ideal distributions, server',
    'restarts cost epsilon', 'vote repeated', 'delta not below 1/records',
    'published epsilon is no bound', 'large epsilon')

_NUMBER, _TEXT, _TEXTS = (int, float), (str,), (list,)
_OPTIONAL = (type(None),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Key:
  """Attributes: types of the value; meaning, a line for docs/summary.md."""

  types: tuple[type, ...]
  meaning: str


def _optional(types: tuple[type, ...], meaning: str) -> Key:
  return Key(types=(*types, *_OPTIONAL), meaning=meaning)


# Every summary has all of these keys and no others; null where one does not apply.
SCHEMA: Mapping[str, Key] = {
    'version': Key(types=(int,), meaning='Version of the schema.'),
    'family': Key(types=_TEXT, meaning='train, vote, fedmd, ldp, ldp_baselines or '
                  'estimate_mean.'),
    'task': Key(types=_TEXT, meaning='As given by --task.'),
    'algorithm': Key(types=_TEXT, meaning='What ran.'),
    'model': _optional(_TEXT, 'Name of the trained model.'),
    'parameters': _optional((int,), 'Number of parameters of that model.'),
    'headline': _optional(_TEXT, 'The metric that heads the report.'),
    'headline_of': _optional(_TEXT, 'The held-out set, or what is averaged.'),
    'value': _optional(_NUMBER, 'Value of that metric there.'),
    'accuracy': _optional(_NUMBER, 'Accuracy there, where the task has one.'),
    'held_out': Key(types=(dict,), meaning='Held-out set -> metric -> value.'),
    'outside_guarantee': Key(types=_TEXTS, meaning='Held-out sets of people whom no '
                             'epsilon protects.'),
    'breakdown': Key(types=(dict,), meaning='Held-out set -> how predictions divide '
                     'over classes.'),
    'mechanism': Key(types=_TEXT, meaning='What makes releases private; none.'),
    'noise_multiplier': _optional(_NUMBER, 'Noise standard deviation over the '
                                  'sensitivity.'),
    'noise_stddev': _optional(_NUMBER, 'Of votes: noise of a sum, in clients.'),
    'clip': _optional(_NUMBER, 'L2 clip, model units.'),
    'bits': _optional((int,), 'Bits of a coordinate of a sum.'),
    'epsilon': _optional(_NUMBER, 'Against the observers.'),
    'epsilon_server': _optional(_NUMBER, 'Against the server and whoever knows the '
                                'cohorts; restarts counted.'),
    'epsilon_if_unseeded': _optional(_NUMBER, 'What epsilon would be without the '
                                     'seed.'),
    'delta': _optional(_NUMBER, 'Delta of all epsilons here.'),
    'consumed_delta': _optional(_NUMBER, 'Part of delta consumed by sampling error of '
                                'the noise, at epsilon; a lower bound where `sampler` '
                                'says that no bound is known for a part.'),
    'consumed_delta_server': _optional(_NUMBER, 'The same at epsilon_server.'),
    'adjacency': _optional(_TEXT, 'What neighbouring inputs are.'),
    'adjacency_in_words': _optional(_TEXT, 'The same in a sentence.'),
    'privacy_unit': Key(types=_TEXT, meaning='The unit that is protected.'),
    'observers': _optional(_TEXT, 'Against whom epsilon holds.'),
    'observers_server': _optional(_TEXT, 'Against whom epsilon_server holds.'),
    'sampling': Key(types=_TEXT, meaning='How participants are sampled.'),
    'trust_model': Key(types=_TEXT, meaning='Who is trusted with what.'),
    'source': _optional(_TEXT, 'Where the bounds come from.'),
    'sampler': _optional(_TEXT, 'What draws the noise.'),
    'accountant': _optional(_TEXT, 'What computed epsilon.'),
    'order': _optional(_NUMBER, 'Renyi order that gave epsilon.'),
    'amplification': _optional(_TEXT, 'The bound on sampling.'),
    'secure_aggregation': _optional(_TEXT, 'simulated, or null.'),
    'population': _optional((int,), 'Number of clients.'),
    'cohort_size': _optional(_NUMBER, 'Clients of a round, expected.'),
    'rounds': Key(types=(int,), meaning='Number of rounds released or suppressed.'),
    'starts': Key(types=(int,), meaning='How often the run was started.'),
    'configuration': Key(types=_TEXT, meaning='SHA-256 of configuration.json.'),
    'caveats': Key(types=_TEXTS, meaning='Names of the warnings.'),
    'warnings': Key(types=_TEXTS, meaning='What a reader must know, in sentences.'),
    'details': Key(types=(dict,), meaning='What only this family reports.'),
}

_FORMER = {
    'epsilon_unamplified': 'epsilon_server', 'delta_sampler': 'consumed_delta',
    'delta_sampler_unamplified': 'consumed_delta_server',
    'observers_unamplified': 'observers_server', 'accuracy_of': 'headline_of',
    'agents': 'population', 'owners': 'population'}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
  """Description of a run, printed before its first round.

  Attributes:
    lines: Label and text, short; at most six.
    details: Further lines for the full report.
    caveats: What a reader must know besides the caveats of the guarantee.
  """

  lines: Sequence[tuple[str, str]]
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
    caveats: What a reader must know besides the caveats of plan and guarantee.
    figures: Name of a file -> what draws it into a path.
    files: Further files that the run wrote.
    next: The command to do next; None for the account of the ledger.
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


def validate_summary(summary: Mapping[str, Any]) -> None:
  """Raises ValueError unless a summary has the keys and types of SCHEMA."""
  missing, unknown = SCHEMA.keys() - summary.keys(), summary.keys() - SCHEMA.keys()
  if missing or unknown:
    raise ValueError(
        f'summary must have the keys of version {VERSION}; missing: '
        f'{sorted(missing)}, unknown: {sorted(unknown)}')
  for name, key in SCHEMA.items():
    value = summary[name]
    is_bool = isinstance(value, bool)
    if is_bool or not isinstance(value, key.types):
      raise ValueError(f'summary: {name} must be of type '
                       f'{" or ".join(t.__name__ for t in key.types)}, found {value!r}')
  json.dumps(summary, allow_nan=False)


def summary_of(family: str, guarantee: guarantee_lib.Guarantee, outcome: Outcome,
               caveats: Sequence[caveats_lib.Caveat],
               **run: Any) -> dict[str, Any]:
  """The summary of a run, complete and valid.

  Args:
    family: Name of the program.
    guarantee: All its numbers.
    outcome: The fields that are the family's.
    caveats: All of them.
    **run: rounds, starts and configuration.
  """
  values = {
      'version': VERSION, 'family': family, 'held_out': {}, 'outside_guarantee': [],
      'breakdown': {}, **guarantee.to_json(), **run,
      'caveats': [caveat.name for caveat in caveats],
      'warnings': [str(caveat) for caveat in caveats], 'details': {},
      **outcome.fields}
  held_out = values['held_out']
  # What a family averages itself has one set, under another name.
  measured = {} if not isinstance(held_out, dict) else held_out.get(
      values.get('headline_of')) or next(iter(held_out.values()), {})
  values = {'value': measured.get(values.get('headline')),
            'accuracy': measured.get('accuracy'), **values}
  values['details'] = {**guarantee.also, **values['details']}
  found = {name: values.pop(name, None) for name in SCHEMA}
  if values:
    raise ValueError(f'summary has no keys {sorted(values)}')
  validate_summary(found)
  return found


def read_summary(path: str | os.PathLike[str]) -> dict[str, Any]:
  """A summary of any version, with the keys of the present one.

  Keys that version 1 had and the present one has not are in `details`; keys that it
  did not have are None.
  """
  found = json.loads(pathlib.Path(path).read_text(encoding='utf-8'))
  if found.get('version', 1) == VERSION:
    return found
  found = {_FORMER.get(name, name): value for name, value in found.items()}
  summary = {name: found.pop(name, None) for name in SCHEMA}
  return {**summary, 'version': 1, 'details': {**found, **(summary['details'] or {})}}


def ordered(caveats: Iterable[caveats_lib.Caveat]) -> list[caveats_lib.Caveat]:
  """Each once, the gravest first."""
  found = list(dict.fromkeys(caveats))
  return sorted(found, key=lambda caveat: (
      _FIRST.index(caveat.name) if caveat.name in _FIRST else len(_FIRST)))


def _short(text: str, width: int) -> str:
  """The text, its middle left out if it is wider."""
  if len(text) <= width:
    return text
  left = (width - 3) // 3
  return f'{text[:left]}...{text[len(text) - (width - 3 - left):]}'


def folder_name(folder: pathlib.Path) -> str:
  """A folder as a person would write it: relative to this one if that is shorter."""
  return min(os.path.relpath(folder), os.fspath(folder), key=len)


def lines_of(entries: Iterable[tuple[str, str]], most: int) -> list[str]:
  """Labelled lines within 80 columns, at most `most` of them.

  Texts are wrapped at blanks; what is wider even so loses its middle. Where the lines
  are too many, the longest entries are cut, the last of them first, each to one line
  at the least.
  """
  blocks = []
  for label, text in entries:
    whole = label in _WHOLE
    rows = textwrap.wrap(text, _WIDTH - _LABEL - 2 * whole, break_long_words=False,
                         break_on_hyphens=False) or ['']
    if whole:
      rows[:-1] = [f'{row} \\' for row in rows[:-1]]
    blocks.append((label, rows))
  while sum(len(rows) for _, rows in blocks) > most:
    longest = max(range(len(blocks)), key=lambda i: (
        0 if blocks[i][0] in _WHOLE else len(blocks[i][1]), i))
    label, rows = blocks[longest]
    if len(rows) == 1 or label in _WHOLE:
      blocks = blocks[:most]
      break
    blocks[longest] = label, [*rows[:-2], f'{_cut(rows[-2])} ...']
  return [f'{label if i == 0 else "":<{_LABEL}}{_short(row, _WIDTH - _LABEL)}'
          for label, rows in blocks for i, row in enumerate(rows)]


def _cut(row: str) -> str:
  while len(row) > _WIDTH - _LABEL - 4:
    row = row.rpartition(' ')[0] or row[:_WIDTH - _LABEL - 4]
  return row.rstrip(';, ')


def _names(caveats: Sequence[caveats_lib.Caveat]) -> list[tuple[str, str]]:
  if not caveats:
    return []
  return [('caveats', '; '.join(dict.fromkeys(c.name for c in ordered(caveats))))]


def plan_lines(description: Description, guarantee: guarantee_lib.Guarantee,
               folder: pathlib.Path) -> list[str]:
  """What the terminal shows before the first round, caveats included."""
  entries = [*description.lines]
  entries += [('epsilon' if i == 0 else '', line)
              for i, line in enumerate(guarantee.lines()[:1])]
  entries += _names([*guarantee.caveats, *description.caveats])
  entries.append(('folder', folder_name(folder)))
  return lines_of(entries, _MOST_PLAN_LINES)


def report_lines(summary: Mapping[str, Any], guarantee: guarantee_lib.Guarantee,
                 outcome: Outcome, caveats: Sequence[caveats_lib.Caveat],
                 folder: pathlib.Path, run: str) -> list[str]:
  """What the terminal shows at the end."""
  del summary
  entries = [('result', outcome.result)]
  if outcome.weakest:
    entries.append(('weakest', outcome.weakest))
  entries += [('epsilon' if i == 0 else '', line)
              for i, line in enumerate(guarantee.lines())]
  if guarantee.neighbours:
    entries.append(('neighbours', guarantee.neighbours))
  entries.append(('run', run))
  entries += _names(caveats)
  name = folder_name(folder)
  entries.append(('files', ', '.join(
      (files.REPORT, files.SUMMARY, files.LEDGER, *outcome.files, *outcome.figures))))
  entries.append(('next', outcome.next or
                  f'python -m tff_pipelines.account --ledger={name}/{files.LEDGER}'))
  return lines_of(entries, _MOST_LINES)


def full_report(description: Description, guarantee: guarantee_lib.Guarantee,
                outcome: Outcome, caveats: Sequence[caveats_lib.Caveat],
                folder: pathlib.Path, run: str) -> str:
  """Everything, as it is written to report.txt."""
  return '\n'.join([
      *(f'{label}: {text}' for label, text in description.lines),
      *description.details, '', f'result: {outcome.result}', f'run: {run}',
      *outcome.details, '', *guarantee.details(), '',
      *(f'warning: {caveat}' for caveat in ordered(caveats)), '',
      f'folder: {os.fspath(folder)}', ''])


def noise_in_words(noise_multiplier: float, *, given: bool) -> str:
  """A noise multiplier as it was given, or rounded up where it was calibrated."""
  return f'{noise_multiplier:.15g}' if given else decimals.rounded_up(noise_multiplier)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
  """Attributes: label; x and y, of equal length; main, whether it is the one that
  stands out."""

  label: str
  x: Sequence[float]
  y: Sequence[float]
  main: bool = True


def draw(path: pathlib.Path, curves: Sequence[Curve], *, title: str, xlabel: str,
         ylabel: str, right: Curve | None = None) -> None:
  """Draws curves, from 0 to 1 if all of them lie there; and one more on the right."""
  import matplotlib  # pylint: disable=g-import-not-at-top
  matplotlib.use('Agg')
  from matplotlib import pyplot  # pylint: disable=g-import-not-at-top
  figure, axes = pyplot.subplots(figsize=(7, 4.2))
  for curve in curves:
    style = dict(color='black', linewidth=2) if curve.main and len(curves) > 1 else (
        dict(color='tab:blue', marker='.') if curve.main else
        dict(linewidth=1, alpha=0.7))
    axes.plot(curve.x, curve.y, label=curve.label, **style)
  axes.set_xlabel(xlabel)
  axes.set_ylabel(ylabel)
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
  axes.set_title(title, fontsize=10)
  figure.tight_layout()
  figure.savefig(path, dpi=120)
  pyplot.close(figure)
