"""All rows, and tiny ones that show that the script runs."""

from collections.abc import Mapping

from benchmarks.results import accounting, blind, emnist, emnist62, fedmd, ldp, mean, pages
from benchmarks.results import papers, readme, rows, silos, splits, text, voting
from benchmarks.results.rows import Row

ROWS = rows.by_name([*emnist.ROWS, *text.ROWS, *mean.ROWS, *voting.ROWS, *ldp.ROWS,
                     *fedmd.ROWS, *silos.ROWS, *emnist62.ROWS])


def _time(records: Mapping[str, pages.Record]) -> str:
  """How many rows are recorded, and the time that they took."""
  found = pages.manifest({name: record for name, record in records.items()
                          if name in ROWS})
  hours, of_62 = (found[name] / 3600 for name in ('cpu_seconds', 'cpu_seconds_62_classes'))
  more = f', {of_62:.1f} of them for 62 classes' if of_62 else ''
  again = sum(run.get('starts', 1) > 1 for record in records.values()
              for run in record['runs'])
  return (f'{len(found["rows"])} of {len(ROWS)} rows are recorded; their runs and trials '
          f'took {hours:.1f} hours of one processor{more}. Where a run was interrupted '
          f'and continued ({again}), its last start alone is counted.')


def _data(records: Mapping[str, pages.Record]) -> str:
  """Every file that a recorded row has read, with its digest."""
  found = {name: digest for record in records.values()
           for name, digest in record['data'].items()}
  return '\n'.join(['| file | content | made of | SHA-256 |', '|---|---|---|---|', *(
      f'| `{name}` | {content} | {source} | `{found[name]}` |'
      for name, (content, source) in splits.SOURCES.items() if name in found)])


TABLES = (*emnist.TABLES, *text.TABLES, *mean.TABLES, *voting.TABLES, *ldp.TABLES,
          *fedmd.TABLES, *silos.TABLES, *emnist62.TABLES, *blind.TABLES, *readme.TABLES,
          pages.Table(page='results.md', mark='time', rows=list(ROWS), render=_time),
          pages.Table(page='results.md', mark='data', rows=list(ROWS), render=_data))
FIGURES = {**accounting.FIGURES, **emnist.FIGURES, **mean.FIGURES, **voting.FIGURES,
           **ldp.FIGURES, **fedmd.FIGURES}
_TINY = dict(task='emnist', num_clients=12, cohort_size=4, rounds=1, sampling='poisson')
QUICK = rows.by_name([
    Row(name='quick/none', label='none', flags=dict(_TINY, mechanism='none'),
        grid=rows.product(client_learning_rate=(0.1, 0.2)), seeds=(0, 1),
        seeded=('initial_weights_seed', 'seed')),
    Row(name='quick/gaussian', label='gaussian', tuned_as='quick/none', seeds=(0,),
        flags=dict(_TINY, mechanism='gaussian', noise_multiplier=1.0))])


def answers(records: Mapping[str, pages.Record]) -> str:
  """The page of the papers: each claim with what is recorded or accounted for it."""
  return papers.page({**pages.verdicts(records), **mean.verdicts(records),
                      **accounting.verdicts()})
