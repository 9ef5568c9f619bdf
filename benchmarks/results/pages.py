"""Pages and figures of recorded rows.

A page of the documents has its text, and tables between marks, `<!-- name: begin -->` and
`<!-- name: end -->`. `write` fills them from records alone, so that pages and records can
be compared.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import json
import pathlib
import shutil
from typing import Any

from benchmarks import documents
from benchmarks.results import papers, statistics
from benchmarks.results.rows import Row
from benchmarks.results.splits import DATA
from tff_pipelines.common import decimals, files

RECORDS = pathlib.Path(__file__).with_name('records')
# Mechanisms whose server adds the noise, and has no epsilon.
_CENTRAL = ('gaussian', 'skellam_central')
Record = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
  """A difference of two rows that a page states.

  Attributes:
    one, other: Rows.
    words: Name of the comparison: 'Skellam at 18 bits against the central Gaussian'.
    margin: Points within which the rows are called equal.
  """

  one: str
  other: str
  words: str
  margin: float = statistics.MARGIN


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
  """A table of a page.

  Attributes:
    page: File below docs.
    mark: Name of its marks.
    rows: Names of its rows; those without a record are left out, and said to be.
    comparisons: Differences that are stated below it.
    columns: Further columns: head -> (record) -> text.
    printed: Row -> number in the paper.
    render: (records) -> the table in Markdown, for one of a form of its own.
  """

  page: str
  mark: str
  rows: Sequence[str]
  comparisons: Sequence[Comparison] = ()
  columns: Mapping[str, Callable[[Record], str]] = dataclasses.field(
      default_factory=dict)
  printed: Mapping[str, str] = dataclasses.field(default_factory=dict)
  render: Callable[[Mapping[str, Record]], str] | None = None


def read(folder: pathlib.Path) -> dict[str, Record]:
  """Name -> record, of all records of a folder that have a run."""
  found = {}
  for path in sorted(folder.glob('*/*.json')):
    record = json.loads(path.read_text(encoding='utf-8'))
    if record['runs']:
      found[record['name']] = record
  return found


def values(record: Record) -> list[float]:
  """The metric of all runs, in per cent, by seed."""
  return [100 * run['value'] for run in sorted(
      record['runs'], key=lambda run: run['seed'])]


def _epsilon(record: Record, name: str) -> str:
  """The largest epsilon of the runs; they differ where noise is calibrated by data.

  That of a continued run, which may have released a round twice, is marked.
  """
  runs = record['runs']
  if None in [run.get(name) for run in runs]:
    return '–'
  once = [run for run in runs if run.get('starts', 1) == 1] or runs
  largest, other = (decimals.epsilon(max(run[name] for run in some))
                    for some in (runs, once))
  return largest if largest == other else f'{largest} (continued; else {other})'


def _observers(record: Record) -> str:
  """Epsilon against observers; of shares of discrete Gaussians it is approximate."""
  is_near = 'approximate amplification' in record['runs'][0].get('caveats', ())
  return '≈ ' * is_near + _epsilon(record, 'epsilon')


def participant(record: Record) -> str:
  """The largest epsilon against another participant, who subtracts its own noise."""
  return _epsilon(record, 'epsilon_participant')


def _server(record: Record) -> str:
  """Epsilon against the server; one that adds the noise itself sees the sums without.

  Answers under local privacy and draws of records are private before they are sent.
  """
  run = record['runs'][0]
  if run.get('mechanism') in _CENTRAL or record['identity']['flags'].get(
      'algorithm') == 'pate':
    return 'trusted'
  is_before = run.get('adjacency') == 'local' or run.get('mechanism') == 'nfdp'
  return _epsilon(record, 'epsilon' if is_before else 'epsilon_server')


def _flags(flags: Mapping[str, Any]) -> str:
  return ' '.join(f'{name}={value:g}' if isinstance(value, float) else
                  f'{name}={value}' for name, value in flags.items()) or 'defaults'


def cells(record: Record) -> list[str]:
  """Accuracy with its interval, epsilon of observers and of the server, and delta."""
  run = record['runs'][0]
  has_epsilon = None not in (run.get('epsilon'), run.get('delta'))
  return [str(statistics.interval(values(record))), _observers(record), _server(record),
          decimals.rounded_up(run['delta'], 3) if has_epsilon else '–']


def _line(row: Row, record: Record, table: Table) -> str:
  mean, *guarantee = cells(record)
  each = ' '.join(f'{value:.2f}' for value in values(record))
  line = [row.label + _at(row), mean, each, *guarantee,
          *(column(record) for column in table.columns.values())]
  if table.printed:
    line.append(table.printed.get(row.name, '–'))
  return f'| {" | ".join(line)} |'


def _tried(row: Row, record: Record) -> str:
  of = DATA[row.data].trials if row.data else 'the same test part'
  each = '; '.join(
      f'{_flags(one["flags"])}: {100 * one["value"]:.1f}' for one in record['tried'])
  best = ''.join([_flags(record['chosen']), *(
      f', the {end} {name} of the tries' for name, end in _ends(record))])
  return (f'- {row.label}{_at(row)}: {len(record["tried"])} settings on {of}, taken '
          f'{best}. {each}.')


def _ends(record: Record) -> Iterable[tuple[str, str]]:
  """Settings of three or more values whose best is the first or the last of them."""
  chosen = record['chosen']
  like = [one['flags'] for one in record['tried'] if all(
      one['flags'].get(name) == value for name, value in chosen.items()
      if isinstance(value, str))]
  for name, value in chosen.items():
    if isinstance(value, (int, float)) and not isinstance(value, bool):
      tried = {flags[name] for flags in like if name in flags}
      if len(tried) > 2 and value in (min(tried), max(tried)):
        yield name, 'smallest' if value == min(tried) else 'largest'


def _at(row: Row) -> str:
  epsilon = row.flags.get('epsilon')
  if epsilon is None or row.flags.get('bound') == 'paper':  # A column has that one.
    return ''
  return f', ε = {epsilon:g}'


def table(rows: Mapping[str, Row], records: Mapping[str, Record], spec: Table) -> str:
  """A table in Markdown, with what was tried and the comparisons."""
  found = [name for name in spec.rows if name in records]
  if spec.render is not None:
    return spec.render(records)
  head = ['', '%, mean and 95% interval', 'seeds', 'ε, observers', 'ε, server', 'δ',
          *spec.columns, *['paper'] * bool(spec.printed)]
  lines = [f'| {" | ".join(head)} |', '|---' * len(head) + '|']
  lines += [_line(rows[name], records[name], spec) for name in found]
  compared = stated(records, spec.comparisons)
  if compared:
    lines += ['', *compared]
  tuned = dict.fromkeys(rows[name].tuned_as or name for name in found)
  lines += ['', '<details><summary>What was tried</summary>', '',
            *(_tried(rows[name], records[name]) for name in tuned
              if name in records and records[name]['tried']), '', '</details>']
  left = [name for name in spec.rows if name not in records]
  if left:
    lines += ['', f'Not run yet: {", ".join(left)}.']
  seconds = sum(_seconds(records[name]) for name in found)
  lines += ['', f'{sum(len(records[name]["runs"]) for name in found)} runs and '
            f'{sum(len(records[name]["tried"]) for name in found)} trials, '
            f'{seconds / 60:.0f} minutes of processor time; '
            f'{made(records[name] for name in found)}.']
  return '\n'.join(lines)


def stated(records: Mapping[str, Record],
           comparisons: Iterable[Comparison]) -> list[str]:
  """A line for each comparison whose rows are recorded."""
  lines = []
  for one in comparisons:
    if one.one in records and one.other in records:
      found = statistics.difference(values(records[one.one]), values(records[one.other]))
      lines.append(
          f'- {one.words}: {found} points, **{statistics.word(found, one.margin)}**.')
  return lines


def brief(groups: Mapping[str, Mapping[str, str]], comparisons: Sequence[Comparison]
          ) -> Callable[[Mapping[str, Record]], str]:
  """A `render` of rows that another page has in full: group -> row -> its name."""
  def render(records: Mapping[str, Record]) -> str:
    lines = ['| | | %, mean and 95% interval | ε, observers | ε, server | δ |',
             '|---|---|---|---|---|---|']
    for group, names in groups.items():
      for name, label in names.items():
        if name in records:
          lines.append(f'| {" | ".join([group, label, *cells(records[name])])} |')
          group = ''
    words = stated(records, comparisons)
    return '\n'.join([*lines, *[''] * bool(words), *words])

  return render


def _seconds(record: Record) -> float:
  """Processor time, since runs share cores with whatever else runs."""
  return sum(run['cpu_seconds'] for run in (*record['tried'], *record['runs']))


def made(records: Iterable[Record]) -> str:
  """Dates, commits and processors of all runs."""
  runs = [run for record in records for run in record['runs']]
  dates, commits, cpus = (sorted({run[name] for run in runs})
                          for name in ('date', 'commit', 'cpu'))
  return (f'{dates[0]}{f" to {dates[-1]}" * (len(dates) > 1)}, commit '
          f'{", ".join(commits)}, {" and ".join(cpus)}')


def manifest(records: Mapping[str, Record]) -> dict[str, Any]:
  """Data, settings, commits and processor time of all rows."""
  return {
      'rows': {name: {
          'data': record['data'], 'lock': record['lock'], **record['identity'],
          'chosen': record['chosen'], 'tried': len(record['tried']),
          'seeds': [run['seed'] for run in record['runs']],
          'commits': sorted({run['commit'] for run in record['runs']}),
          'cpu_seconds': round(_seconds(record), 1)} for name, record in records.items()},
      'cpu_seconds': round(sum(map(_seconds, records.values())), 1),
      'cpu_seconds_62_classes': round(sum(
          _seconds(record) for name, record in records.items()
          if name.startswith('emnist62/')), 1)}


def verdicts(records: Mapping[str, Record]) -> dict[str, tuple[str, str]]:
  """Row -> what was found, and how that compares with the paper's number."""
  claims = {row: claim for claim in papers.CLAIMS for row in claim.rows
            if claim.printed is not None}
  found = {}
  for name, record in records.items():
    if record['runs'][0].get('kept'):
      continue  # A table of its own.
    own, claim = statistics.interval(values(record)), claims.get(name)
    text, verdict = str(own), 'no number printed'
    theirs = claim and _number(claim.printed)
    if theirs is not None:
      verdict = statistics.word(statistics.Interval(
          own.mean - theirs, *(None if end is None else end - theirs
                               for end in (own.low, own.high))))
      epsilons = [run.get('epsilon') for run in record['runs']]
      if None not in epsilons:
        text += f' (ε {decimals.rounded_up(max(epsilons), 4)})'
        if not verdict.startswith('worse') and max(epsilons) > 1.05 * (
            _number(claim.printed_epsilon or '') or 0.0):
          verdict = 'none: ε is larger, or the paper prints none'
    found[name] = text, verdict
  return found


def _number(text: str) -> float | None:
  """A number of a paper; None if it is none."""
  try:
    return float(text.lstrip('≈'))
  except ValueError:
    return None


def contents(rows: Mapping[str, Row], records: Mapping[str, Record],
             tables: Iterable[Table]) -> dict[str, dict[str, str]]:
  """Page -> mark -> Markdown, of tables that have a row."""
  found = {}
  for spec in tables:
    if any(name in records for name in spec.rows):
      found.setdefault(spec.page, {})[spec.mark] = table(rows, records, spec)
  return found


def write(rows: Mapping[str, Row], tables: Iterable[Table],
          answers: Callable[[Mapping[str, Record]], str],
          figures: Mapping[str, Callable[..., None]],
          folder: pathlib.Path, root: pathlib.Path, *, update: bool) -> None:
  """Writes pages, figures and the manifest of the records in a folder.

  Args:
    rows: All rows by name.
    tables: All tables.
    answers: (records) -> the page of the papers.
    figures: File -> (records, folder of the runs, path) that draws it if it can.
    folder: Output folder with `records`.
    root: Root of the project, whose pages are read.
    update: Whether records, pages and figures of the project are written too.
  """
  if update:
    for path in sorted((folder / 'records').glob('*/*.json')):
      to = RECORDS / path.relative_to(folder / 'records')
      to.parent.mkdir(parents=True, exist_ok=True)
      shutil.copyfile(path, to)
  records = read(folder / 'records')
  files.write_json(folder / 'manifest.json', manifest(records))
  for docs in [folder / 'docs', *[root / 'docs'] * update]:
    (docs / 'figures').mkdir(parents=True, exist_ok=True)
    for page, marks in contents(rows, records, tables).items():
      text = (root / 'docs' / page).read_text(encoding='utf-8')
      for mark, content in marks.items():
        text = documents.rewritten(text, mark, content)
      files.write_atomically(docs / page, text)
    files.write_atomically(docs / 'papers.md', answers(records))
    for name, draw in figures.items():
      draw(records, folder / 'runs', docs / 'figures' / name)
