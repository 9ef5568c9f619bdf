"""Next characters, tags and next words: accuracy by mechanism and bits."""

from benchmarks.results import pages
from benchmarks.results.pages import Comparison, Table
from benchmarks.results.rows import Row

EPSILONS = (2, 8)
_COMMON = dict(data_source='jsonl', max_test_examples=1000, client_batch_size=4)
TASKS = {
    'shakespeare': dict(
        data='shakespeare', flags=dict(task='shakespeare', max_examples_per_client=64,
                                       client_learning_rate=4.0, clip=0.3),
        poisson=dict(cohort_size=100, rounds=100), turns=dict(cohort_size=30, rounds=200)),
    'tags': dict(
        data='stackoverflow', flags=dict(task='stackoverflow_tag', clip=1.0,
                                         max_examples_per_client=16,
                                         client_learning_rate=0.5),
        poisson=dict(cohort_size=200, rounds=200), turns=dict(cohort_size=50, rounds=200)),
    'words': dict(
        data='stackoverflow', flags=dict(task='stackoverflow_word', clip=0.3,
                                         max_examples_per_client=32,
                                         client_learning_rate=2.0,
                                         server_schedule='cosine'),
        poisson=dict(cohort_size=200, rounds=200))}


def _grid(momentum, adam):
  """The server's optimizer and its rate."""
  return tuple(dict(server_optimizer=name, server_learning_rate=rate)
               for name, rates in (('sgdm', momentum), ('adam', adam)) for rate in rates)


GRIDS = {'shakespeare': _grid((0.5, 1.0, 2.0, 4.0), (0.05, 0.1, 0.2, 0.4)),
         'tags': _grid((1.0, 2.0, 4.0, 8.0), (0.05, 0.1, 0.2, 0.4)),
         'words': _grid((1.0, 2.0, 4.0, 8.0), (0.03, 0.06, 0.12, 0.25))}


def _epsilons(task: str):
  return EPSILONS if 'turns' in TASKS[task] else (8,)


def _rows(task: str):
  setting = TASKS[task]

  def row(key, label, kind='poisson', tuned='', **flags):
    flags = {**_COMMON, **setting['flags'], 'sampling': kind, **setting[kind], **flags}
    flags['rounds_per_evaluation'] = flags['rounds']
    if flags['mechanism'] == 'none':
      del flags['clip']
    return Row(name=f'{task}/{key}', label=label, data=setting['data'], flags=flags,
               grid=() if tuned else GRIDS[task], tuned_as=tuned and f'{task}/{tuned}')

  # Rounds cost nothing without privacy.
  yield row('none', 'no privacy, 200 rounds', mechanism='none', rounds=200)
  # Characters and tags show turns; words, a tenth of them right, would not.
  if 'turns' in setting:
    yield row('none-turns', 'no privacy, 200 rounds in turns', kind='turns',
              mechanism='none')
  for epsilon in _epsilons(task):
    poisson = dict(epsilon=epsilon, tuned=f'gaussian-{epsilon}')
    yield row(f'gaussian-{epsilon}', 'central Gaussian', mechanism='gaussian',
              epsilon=epsilon)
    every = (18, 16, 14) if task != 'words' else (18,)
    for bits in every if epsilon == 8 else (18,):
      yield row(f'skellam-{bits}-{epsilon}', f'Skellam, {bits} bits',
                mechanism='skellam', bits=bits, **poisson)
    for bits in every if epsilon == 8 else ():
      yield row(f'discrete_gaussian-{bits}-{epsilon}',
                f'discrete Gaussian, {bits} bits', mechanism='discrete_gaussian',
                bits=bits, **poisson)
    if 'turns' in setting:
      turns = dict(kind='turns', epsilon=epsilon)
      yield row(f'rows-gaussian-{epsilon}',
                'Gaussian of a trusted server, correlated noise', mechanism='gaussian',
                **turns)
      yield row(f'rows-skellam-{epsilon}', 'Skellam, correlated noise',
                mechanism='skellam', tuned=f'rows-gaussian-{epsilon}', **turns)


ROWS = tuple(row for task in TASKS for row in _rows(task))


def _against_poisson(task: str) -> list[Comparison]:
  return [*(Comparison(
      one=f'{task}/rows-skellam-{epsilon}', other=f'{task}/skellam-18-{epsilon}',
      words='Correlated noise against Poisson sampling of the same ε against observers, '
            f'ε = {epsilon}') for epsilon in EPSILONS), Comparison(
                one=f'{task}/rows-skellam-8', other=f'{task}/skellam-18-2',
                words='Correlated noise, ε = 8 against all, against Poisson sampling, ε = 2 '
                      'against observers and more than 8 against the server')]


def _table(task: str) -> Table:
  def against(one, other, words):
    return Comparison(one=f'{task}/{one}', other=f'{task}/{other}', words=words)

  gaussian = 'against the central Gaussian'
  epsilons = _epsilons(task)
  return Table(
      page='text_tasks.md', mark=task,
      rows=[row.name for row in ROWS if row.section == task], comparisons=[
          *(against(f'skellam-18-{epsilon}', f'gaussian-{epsilon}',
                    f'Skellam at 18 bits {gaussian}, ε = {epsilon}')
            for epsilon in epsilons),
          *(against(f'skellam-{bits}-8', 'gaussian-8',
                    f'Skellam at {bits} bits {gaussian}, ε = 8')
            for bits in ((16, 14) if task != 'words' else ())),
          against('discrete_gaussian-18-8', 'gaussian-8',
                  f'Discrete Gaussian at 18 bits {gaussian}, ε = 8'),
          *(against(f'rows-skellam-{epsilon}', f'rows-gaussian-{epsilon}',
                    f'Skellam against the Gaussian, correlated noise, ε = {epsilon}')
            for epsilon in epsilons if 'turns' in TASKS[task]),
          *(_against_poisson(task) if 'turns' in TASKS[task] else ())])


def _correlated(task: str, title: str) -> Table:
  cohort = TASKS[task]['poisson']['cohort_size']
  names = {f'{task}/none': f'no privacy, Poisson cohorts of {cohort}, 200 rounds',
           f'{task}/none-turns': 'no privacy, in turns, 200 rounds',
           **{f'{task}/rows-skellam-{epsilon}': 'Skellam, correlated noise'
              for epsilon in EPSILONS},
           **{f'{task}/skellam-18-{epsilon}': 'Skellam, Poisson sampling'
              for epsilon in EPSILONS}}
  return Table(
      page='correlated_noise.md', mark=f'turns_{task}', rows=list(names),
      render=pages.brief({title: names}, _against_poisson(task)))


def _optimizers(records) -> str:
  """The best rate of each optimizer, on the data of trials."""
  lines = ['| | FedAvgM: best | at rate | FedAdam: best | at rate | difference |',
           '|---|---|---|---|---|---|']
  for name in _TRIED:
    if (record := records.get(name)) is None:
      continue
    best = {kind: max((one for one in record['tried']
                       if one['flags']['server_optimizer'] == kind),
                      key=lambda one: one['value']) for kind in ('sgdm', 'adam')}
    row = next(row for row in ROWS if row.name == name)
    label = f'{row.section}, {row.label}' + (
        f', ε = {row.flags["epsilon"]}' if 'epsilon' in row.flags else '')
    lines.append(f'| {label} | ' + ' | '.join(
        f'{100 * one["value"]:.1f} | {one["flags"]["server_learning_rate"]:g}'
        for one in best.values()) + ' | '
                 f'{100 * (best["adam"]["value"] - best["sgdm"]["value"]):+.1f} |')
  return '\n'.join(lines)


_TRIED = [row.name for row in ROWS if row.grid]
TABLES = (*map(_table, TASKS),
          Table(page='optimizers.md', mark='optimizers', rows=_TRIED, render=_optimizers),
          _correlated('shakespeare', 'Next characters, 1,206 roles of Shakespeare'),
          _correlated('tags', 'Tags, 5,499 users of Stack Overflow'))
