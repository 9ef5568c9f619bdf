"""Records what every program computes and compares it with an earlier revision.

  python -m tests.recorder --base=REV
  python -m tests.recorder --base=REV --only='train-*,vote-knn' --keep=FOLDER
  python -m tests.recorder --base=REV --digests

The programs run on tiny data, seeded, by the same command lines in both trees, and
their folders are compared bit by bit: states and models, labels, answers, cohorts,
partitions, ledgers, metrics. Folders of the base are also rolled back to an
early state and resumed by the present tree. Runs of the base are kept below
out/recorder, so that only the present tree runs the next time.

--digests writes tests/recorded.json: digests of cohorts, partitions and ledger
events, which no float of a model affects.

Not compared: printed text, prose, figures, TensorBoard, times, the form of the
settings. Numbers of a summary may move to other keys.

Exit codes: 0; 1 if a case differs or fails; 2 for a wrong flag.
"""

import argparse
import dataclasses
import fnmatch
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from typing import Any, Sequence

from tests import recorder_runs
from tests import recording

ROOT = pathlib.Path(__file__).absolute().parents[1]
DIGESTS = pathlib.Path(__file__).absolute().with_name('recorded.json')

# Groups of cases of one program beyond this length are halved.
_LONGEST_GROUP = 8
_SHOWN = 5  # Differences of a case that are printed; the rest is counted.
_WORK, _COMMAND = 'work', 'command.json'


# Cases.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """A program to run and what to compare.

  Attributes:
    name: Of the case and of its folder.
    command: A module and its flags. {work} stands for the folder of the case, {base}
      for that of all cases of the base.
    resumes: Case whose folder of the base is rolled back and resumed.
    ignored: Patterns of random values, which are not compared.
    reads_stdout: Whether the program prints numbers as JSON.
  """

  name: str
  command: tuple[str, ...]
  resumes: str | None = None
  ignored: tuple[str, ...] = ()
  reads_stdout: bool = False

  @property
  def needs(self) -> set[str]:
    """Names of the cases of the base whose folders this one reads."""
    result = {name for word in self.command
             for name in re.findall(r'\{base\}/([^/]+)/', word)}
    return result | ({self.resumes} if self.resumes else set())


_EMNIST = ('--rounds=3', '--num_clients=20', '--cohort_size=6',
           '--noise_multiplier=0.5', '--seed=3')
_TEXT = ('--rounds=2', '--num_clients=30', '--cohort_size=4', '--noise_multiplier=0.5',
         '--seed=5', '--max_test_examples=50', '--max_examples_per_client=4')
_WORDS = (*_TEXT, '--vocabulary_size=30')
_ADAPTIVE = ('--adaptive_clipping', '--clip_count_stddev=2', '--target_quantile=0.55')
_DATA = {'emnist': ('--task=emnist', '--num_clients=20')}
_TRAIN = {
    'skellam': (*_EMNIST, '--diagnostics'),
    'skellam-plain': (*_EMNIST, '--clients_per_call=1', '--diagnostics'),
    'skellam-fixed-dft': (*_EMNIST, '--sampling=fixed', '--rotation=dft', '--beta=0',
                          '--bits=16', '--assumed_colluders=1',
                          '--min_honest_fraction=0.8'),
    'skellam-all': ('--rounds=2', '--num_clients=6', '--cohort_size=6', '--seed=1',
                    '--noise_multiplier=1', '--sampling=none', '--partition=labels',
                    '--labels_per_client=3', '--delta=0.01', '--rotation=none'),
    'chacha': (*_EMNIST, '--noise_generator=chacha20'),
    'gaussian': (*_EMNIST, '--mechanism=gaussian', '--server_momentum=0.5'),
    'adaptive': (*_EMNIST, *_ADAPTIVE),
    'adaptive-plain': (*_EMNIST, *_ADAPTIVE, '--clients_per_call=1'),
    'discrete_gaussian': (*_EMNIST, '--mechanism=discrete_gaussian'),
    'skellam_central': (*_EMNIST, '--mechanism=skellam_central', *_ADAPTIVE),
    'none': (*_EMNIST[:3], '--seed=3', '--mechanism=none', '--client_epochs=2',
             '--clients_per_call=4', '--rounds_per_evaluation=2'),
    'dropouts': (*_EMNIST, '--simulated_dropout_rate=0.3', '--min_honest_fraction=0.4',
                 '--diagnostics', '--initial_weights_seed=2', '--data_seed=1'),
    'workers': (*_EMNIST[:4], '--seed=9', '--rounds=1', '--num_workers=2'),
    'sqlite': ('--rounds=2', *_EMNIST[2:], '--data_source=sqlite',
               '--data_path={base}/data-emnist/work/data.sqlite'),
    'shakespeare': ('--task=shakespeare', *_TEXT, '--sequence_length=20'),
    'tag': ('--task=stackoverflow_tag', *_WORDS, '--num_labels=6',
            '--mechanism=gaussian'),
    'word': ('--task=stackoverflow_word', *_WORDS),
}
_VOTE_DATA = ('--num_clients=6', '--public_records=60', '--seed=3')
_VOTE = (*_VOTE_DATA, '--queries=12', '--student_epochs=2', '--allow_degenerate',
         '--noise_stddev=0.5')
_PCA = (*_VOTE, '--features=pca')
_BASELINE = (*_VOTE_DATA, '--rounds=2', '--features=pca')
_VOTES = {
    'ae': (*_PCA, '--student_model=softmax', '--client_confidence=0.2'),
    'ae-contrastive': (*_VOTE, '--feature_epochs=1', '--model=softmax',
                       '--client_epochs=2'),
    'ae-adversarial': (*_PCA, '--adversarial_strength=0.5', '--model=cnn_small',
                       '--client_epochs=1', '--student=labels', '--client_shift=1'),
    'ae-gaussian': (*_PCA, '--noise=gaussian', '--student_model=mlp',
                    '--bound=paper', '--query_choice=random'),
    'ae-central': (*_PCA, '--noise=gaussian_central', '--student_model=softmax',
                   '--threshold=0.5', '--model=mlp', '--client_epochs=2'),
    'knn': (*_PCA, '--algorithm=knn', '--neighbours=5', '--student_model=softmax'),
    'fedavg': (*_BASELINE, '--algorithm=fedavg', '--server_momentum=0.5'),
    'fedavg-images': (*_VOTE_DATA, '--rounds=1', '--algorithm=fedavg'),
    'dp_fedavg': (*_BASELINE, '--algorithm=dp_fedavg', '--noise_multiplier=0.5'),
    'dp_fedavg-central': (
        *_BASELINE, '--algorithm=dp_fedavg', '--noise_multiplier=0.5',
        '--noise=gaussian_central', '--cohort_size=3'),
    'dp_fedsgd': (*_BASELINE, '--algorithm=dp_fedsgd', '--noise_multiplier=0.5'),
}
_PARTIES = ('--rounds=2', '--num_clients=3', '--public_per_round=40',
            '--pretrain_epochs=1',
            '--initial_epochs=1', '--architectures=dense3,dense2', '--seed=5')
_FEDMD = {
    'nfdp': (*_PARTIES, '--subset_size=20', '--architectures=conv2,dense2'),
    'ldp': (*_PARTIES, '--mode=ldp', '--epsilon=4', '--delta=1e-3',
            '--knowledge=softmax'),
    'ldp-laplace': (*_PARTIES, '--mode=ldp', '--subset_size=20', '--noise=laplace'),
    'np': (*_PARTIES, '--mode=np', '--knowledge=logits', '--split=noniid',
           '--simulated_dropout_rate=0.4', '--weighting=agreement', '--mirror'),
    'nfdp-records': (*_PARTIES, '--noreplacement', '--weighting=records',
                     '--data_seed=1', '--subset_size=15'),
    'centralized': ('--mode=centralized', '--rounds=1', '--num_clients=3', '--seed=5',
                    '--pretrain_epochs=1', '--initial_epochs=1',
                    '--architectures=dense3,dense2'),
}
_ANSWERS = ('--num_clients=40', '--clients_per_query=5', '--queries_per_step=4',
            '--seed=11')
_PURE = (*_ANSWERS, '--refine_steps=5', '--epsilon=12', '--answers_per_client=2')
_LDP = {
    'piecewise': _PURE,
    'duchi': (*_PURE, '--mechanism=duchi', '--sampling=random'),
    'laplace': (*_PURE, '--mechanism=laplace', '--partition=dirichlet',
                '--dirichlet_alpha=0.5', '--max_queries=6'),
    'gaussian': (*_ANSWERS, '--mechanism=gaussian', '--epsilon=10',
                 '--delta=1e-3', '--answers_per_client=2', '--refine=never'),
    'stand-ins': (*_PURE, '--stand_ins=8', '--records_per_client=30', '--max_queries=8',
                  '--target_accuracy=0.99'),
}
_LDP_BASELINES = {
    'dp_sgd': ('--algorithm=dp_sgd', '--rounds=3', '--num_clients=20', '--seed=1'),
    'dp_fl': ('--algorithm=dp_fl', '--rounds=2', '--num_clients=20', '--seed=1'),
    'pate': ('--algorithm=pate', '--answers=40', '--num_clients=20', '--seed=1'),
}
_MEAN = ('--num_clients=20', '--dimension=50', '--epsilon=2,8', '--repeats=2',
         '--seed=1')
_MEANS = {
    'sums': (*_MEAN, '--bits=14', '--mechanisms=skellam,discrete_gaussian,gaussian'),
    'central': (*_MEAN, '--bits=12', '--mechanisms=skellam_central,gaussian_rdp',
                '--vectors=identical', '--accountant=rdp', '--epsilon=4'),
}
_GRID = ('--clip=0.3', '--dimension=1000', '--cohort_size=20', '--population=500',
         '--rounds=10', '--delta=1e-3')
_SUM = (*_GRID, '--bits=18')
_ACCOUNT = {
    'gaussian': ('--mechanism=gaussian', '--noise_multiplier=1', '--delta=1e-5',
                 '--rounds=100'),
    'gaussian-sampled': (
        '--mechanism=gaussian', '--noise_multiplier=1', '--rounds=50', '--delta=1e-5',
        '--sampling=poisson', '--cohort_size=10', '--population=1000'),
    'skellam': ('--mechanism=skellam', '--noise_multiplier=1', '--sampling=poisson',
                *_SUM),
    'skellam-noise': ('--query=noise_multiplier', '--mechanism=skellam', '--epsilon=4',
                      '--sampling=fixed', '--adaptive_clipping', *_SUM),
    'skellam-central': ('--mechanism=skellam_central', '--noise_multiplier=1', *_SUM),
    'discrete-gaussian': (
        '--mechanism=discrete_gaussian', '--noise_multiplier=1',
        '--min_honest_fraction=0.8', '--assumed_colluders=1', *_SUM),
    'bits': ('--query=bits', '--mechanism=skellam', '--epsilon=8', *_GRID),
    'table': ('--query=table', '--mechanism=skellam', '--epsilon=8', *_GRID),
    'rounds': ('--query=rounds', '--mechanism=gaussian', '--epsilon=4', '--delta=1e-5',
               '--noise_multiplier=2'),
    'ae': ('--mechanism=ae_vote', '--queries=50', '--noise_stddev=5', '--delta=1e-3'),
    'knn': ('--mechanism=knn_vote', '--queries=50', '--noise_stddev=5', '--delta=1e-4',
            '--level=instance', '--neighbours=5'),
    'paper': ('--mechanism=ae_vote', '--queries=50', '--noise_stddev=5', '--delta=1e-3',
              '--bound=paper'),
    'piecewise': ('--mechanism=piecewise', '--epsilon=1', '--queries=5',
                  '--delta=1e-5'),
    'nfdp': ('--mechanism=nfdp', '--records=100', '--subset_size=40'),
    'ledger': ('--ledger={base}/train-unseeded/work/run/ledger.jsonl',),
}
_SWEEP = ('--repeats=1', '--seeded', '--common=--rounds=1 --num_clients=8',
          '--common=--cohort_size=4', '--setting=Skellam, 16 bits: --bits=16 '
          '--noise_multiplier=1')
_RESUMED = ('train-skellam', 'train-adaptive-plain', 'train-tag', 'train-dropouts',
            'vote-ae-contrastive', 'vote-knn', 'vote-dp_fedavg', 'vote-dp_fedsgd',
            'fedmd-nfdp', 'fedmd-np', 'ldp-piecewise', 'ldp-gaussian',
            'ldp-baseline-dp_sgd', 'ldp-baseline-dp_fl', 'ldp-baseline-pate',
            'mean-sums', 'sweep')


def cases() -> dict[str, Case]:
  """Returns all cases by name."""
  result = {}

  def add(name: str, *command: str, **attributes):
    result[name] = Case(name=name, command=command, **attributes)

  def add_runs(prefix: str, program: str, runs: dict[str, tuple[str, ...]]):
    for name, flags in runs.items():
      add(f'{prefix}{name}', f'tff_pipelines.{program}', *flags,
          '--output_dir={work}/run')

  add('probes', recorder_runs.PROBE)
  for name, flags in _DATA.items():
    add(f'data-{name}', 'tff_pipelines.prepare_data', *flags,
        '--output={work}/data.sqlite')
  add_runs('train-', 'train', _TRAIN)
  # Without a seed: a ledger that states an epsilon.
  add('train-unseeded', 'tff_pipelines.train', *_EMNIST[:4], '--output_dir={work}/run',
      ignored=('run/state/*', 'run/initial/*', 'run/*.csv/*', 'run/summary.json.*'))
  add_runs('vote-', 'vote', _VOTES)
  add_runs('fedmd-', 'fedmd', _FEDMD)
  add_runs('ldp-', 'ldp', _LDP)
  add_runs('ldp-baseline-', 'ldp_baselines', _LDP_BASELINES)
  add_runs('mean-', 'estimate_mean', _MEANS)
  add_runs('', 'sweep', {'sweep': _SWEEP})
  for name, flags in _ACCOUNT.items():
    add(f'account-{name}', 'tff_pipelines.account', *flags, '--format=json',
        reads_stdout=True)
  for name in _RESUMED:
    # Sweeps and means resume without a flag.
    more = () if name.startswith(('sweep', 'mean')) else ('--resume',)
    result[f'resumed-{name}'] = dataclasses.replace(
        result[name], name=f'resumed-{name}', resumes=name,
        command=(*result[name].command, *more))
  return result


# Runs.


def _keep_lines(path: pathlib.Path, count: int) -> None:
  lines = path.read_text(encoding='utf-8').splitlines(keepends=True)
  path.write_text(''.join(lines[:count]), encoding='utf-8')


def roll_back(folder: pathlib.Path) -> None:
  """Brings a finished run back to an early state, as if it had been killed there.

  That is after the first round whose state is kept, or the first step that has answers.
  A vote keeps its features and queries, PATE its labels, means their first row, a sweep
  all.
  """
  summary, table = folder / 'summary.json', folder / 'metrics.csv'
  answers, states = (sorted((folder / name).glob('*'), key=lambda path: (
      recording.natural(path.name))) for name in ('answers', 'checkpoints'))
  for path in (summary, folder / 'student.npz', folder / 'student.csv'):
    path.unlink(missing_ok=True)
  rounds = None
  if answers:
    rounds = 1
    for path in answers[1:]:
      path.unlink()
    _keep_lines(table, 2)
  elif states:
    rounds = int(states[0].name.removeprefix('round_'))
    for path in states[1:]:
      if path.is_dir():  # Of an earlier version.
        shutil.rmtree(path)
      else:
        path.unlink()
    if rounds:
      _keep_lines(table, 1 + rounds)
    else:
      table.unlink()
  if rounds is not None:
    _keep_lines(folder / 'ledger.jsonl', 1 + rounds)
  if (folder / 'results.json').exists():
    result = json.loads((folder / 'results.json').read_text())
    result['rows'] = result['rows'][:1]
    (folder / 'results.json').write_text(json.dumps(result))


def _command(case: Case) -> str:
  """Returns the command and environment that a kept run must have had."""
  return json.dumps([case.command, os.cpu_count(), sys.version])


def _groups(requests: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
  """Groups the cases by program, which saves time; the longest groups first."""
  by_program = {}
  for request in requests:
    by_program.setdefault(request['command'][0], []).append(request)
  result = []
  for group in by_program.values():
    middle = len(group) // 2 if len(group) > _LONGEST_GROUP else 0
    result += [part for part in (group[:middle], group[middle:]) if part]
  return sorted(result, key=len, reverse=True)


def _run(tree: pathlib.Path, chosen: Sequence[Case], base: pathlib.Path,
         where: pathlib.Path) -> dict[str, int]:
  """Runs cases in a tree; returns exit codes by name.

  Args:
    tree: With the packages.
    chosen: The cases.
    base: Folder of the base's cases.
    where: Folder of these cases.
  """
  requests, by_name = [], {case.name: case for case in chosen}
  for case in chosen:
    work = where / case.name / _WORK
    shutil.rmtree(where / case.name, ignore_errors=True)
    work.mkdir(parents=True)
    if case.resumes is not None:
      shutil.copytree(base / case.resumes / _WORK / 'run', work / 'run')
      roll_back(work / 'run')
    requests.append({'name': case.name, 'folder': str(work), 'command': [
        word.replace('{work}', str(work)).replace('{base}', str(base))
        for word in case.command]})
  codes = {}
  with tempfile.TemporaryFile('w+') as file:
    json.dump(_groups(requests), file)
    file.seek(0)
    process = subprocess.Popen(
        # Without the script's folder on the path: it has packages of these names.
        [sys.executable, '-P', recorder_runs.__file__], cwd=tree, stdin=file,
        env={**os.environ, 'PYTHONPATH': str(tree)}, stdout=subprocess.PIPE, text=True)
    with process:
      for line in process.stdout:
        result = json.loads(line)
        name, codes[result['name']] = result['name'], result['code']
        print(f'  {name}: {result["seconds"]:.0f} s, exit code {result["code"]}',
              file=sys.stderr, flush=True)
        if not result['code']:
          (where / name / _COMMAND).write_text(_command(by_name[name]))
  if process.returncode:
    raise RuntimeError(f'runs in {tree} ended with {process.returncode}')
  return codes


def _last_line(folder: pathlib.Path) -> str:
  lines = (folder / _WORK / 'stderr').read_text(errors='replace').splitlines()
  return next((line for line in reversed(lines) if line.strip()), '')


def _is_kept(folder: pathlib.Path, case: Case) -> bool:
  path = folder / case.name / _COMMAND
  return path.is_file() and path.read_text() == _command(case)


def _git(*arguments: str) -> str:
  return subprocess.run(['git', *arguments], cwd=ROOT, check=True, text=True,
                        capture_output=True).stdout


def _unpack(revision: str, folder: pathlib.Path) -> None:
  """Unpacks the tree of a revision to a new folder."""
  if folder.exists():
    return
  partial = folder.with_name(f'{folder.name}.{os.getpid()}')
  partial.mkdir(parents=True)
  archive = subprocess.run(['git', 'archive', revision], cwd=ROOT, check=True,
                           stdout=subprocess.PIPE).stdout
  with tempfile.TemporaryFile() as file:
    file.write(archive)
    file.seek(0)
    with tarfile.open(fileobj=file) as tar:
      tar.extractall(partial, filter='data')
  partial.rename(folder)


def _copy(tree: pathlib.Path, folder: pathlib.Path) -> None:
  """Copies the packages of a tree, which may be edited while the copy runs."""
  for name in ('aggregators', 'tasks', 'tff_pipelines'):
    shutil.copytree(tree / name, folder / name, ignore=shutil.ignore_patterns(
        '__pycache__'))


def _chosen(patterns: Sequence[str]) -> list[Case]:
  result = [case for case in cases().values()
           if any(fnmatch.fnmatch(case.name, p) for p in patterns)]
  if not result:
    raise ValueError(f'there is no case {", ".join(patterns)}, only '
                     f'{", ".join(cases())}')
  return result


def _complete_base(chosen: Sequence[Case], revision: str,
                   base: pathlib.Path) -> list[str]:
  """Runs the missing cases of the base; returns the failed ones, a line each."""
  everything = cases()
  names = {name for case in chosen
           for name in ({case.name} if case.resumes is None else set()) | case.needs}
  names |= {need for name in names for need in everything[name].needs}
  _unpack(revision, base / 'tree')
  failed = []
  for is_first in (True, False):  # Some read the folders of others.
    missing = [case for name, case in everything.items()
               if name in names and bool(case.needs) != is_first
               and not _is_kept(base, case)]
    if missing and not failed:
      print(f'{len(missing)} cases of {revision}', file=sys.stderr)
      codes = _run(base / 'tree', missing, base, base)
      failed = [f'{name}: {_last_line(base / name)}'
                for name, code in codes.items() if code]
  return failed


def _compared(case: Case, base: pathlib.Path, where: pathlib.Path,
              ignored: Sequence[str], expected: dict[str, str]
              ) -> tuple[list[str], str]:
  """Returns the differences of a case in both trees, and the size of the base's."""
  ignored = [*ignored, *case.ignored]
  if case.resumes is not None:
    ignored += ['*ledger.jsonl:starts', '*summary.json.starts']
  old, new = (
      recording.read(folder / _WORK, case.reads_stdout).without(ignored)
      for folder in (base / (case.resumes or case.name), where / case.name))
  result = recording.differences(old, new)
  now = recording.digests(new)
  result += [f'{name}: is not that of {DIGESTS.name}' for name in now
            if expected.get(name, now[name]) != now[name]]
  return result, old.size()


def _write_digests(chosen: Sequence[Case], base: pathlib.Path) -> None:
  result = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}
  for case in chosen:
    if case.resumes is None:
      result[case.name] = recording.digests(
          recording.read(base / case.name / _WORK).without(case.ignored))
  DIGESTS.write_text(json.dumps(
      {name: values for name, values in result.items() if values},
      indent=1, sort_keys=True) + '\n')


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the chosen cases and reports; returns the exit code."""
  parser = argparse.ArgumentParser(
      prog='python -m tests.recorder', description=__doc__.splitlines()[0])
  parser.add_argument('--base', help='Revision to compare with.')
  parser.add_argument('--only', default='*',
                      help='Patterns of cases, separated by commas.')
  parser.add_argument('--keep', help='Folder for the runs of the present tree.')
  parser.add_argument('--tree', default=ROOT, type=pathlib.Path,
                      help='Folder of another tree instead of the present one.')
  parser.add_argument('--ignore', default='', help='Patterns of arrays, texts and '
                      'numbers that are not compared, separated by commas.')
  parser.add_argument('--digests', action='store_true',
                      help=f'Write {DIGESTS.name} of the base; nothing is compared.')
  parser.add_argument('--list', action='store_true', help='Print the cases.')
  options = parser.parse_args(arguments)
  if options.list:
    for case in cases().values():
      print(f'{case.name}: {" ".join(case.command)}')
    return 0
  if options.base is None:
    parser.error('--base must be given')
  try:
    chosen = _chosen(options.only.split(','))
    revision = _git('rev-parse', f'{options.base}^{{commit}}').strip()
  except (ValueError, subprocess.CalledProcessError) as error:
    parser.error(str(error))
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')  # Before states are read.
  start = time.monotonic()
  base = ROOT / 'out' / 'recorder' / revision[:12]
  if failed := _complete_base(chosen, revision, base):
    print(f'programs of {options.base} fail', *failed, sep='\n  ')
    return 1
  if options.digests:
    _write_digests(chosen, base)
    return 0
  expected = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}
  different = 0
  with tempfile.TemporaryDirectory() as scratch:
    tree = pathlib.Path(scratch) / 'tree'
    _copy(options.tree, tree)
    where = pathlib.Path(options.keep or scratch).absolute() / 'cases'
    print(f'{len(chosen)} cases of {options.tree}', file=sys.stderr)
    codes = _run(tree, chosen, base, where)
    for case in chosen:
      if code := codes[case.name]:
        lines, size = [f'exit code {code}, {_last_line(where / case.name)}'], ''
      else:
        lines, size = _compared(case, base, where, options.ignore.split(','),
                                expected.get(case.resumes or case.name, {}))
      different += bool(lines)
      more = f'; and {len(lines) - _SHOWN} more' if len(lines) > _SHOWN else ''
      text = '; '.join(lines[:_SHOWN]) + more if lines else f'equal ({size})'
      print(f'{case.name}: {text}', flush=True)
  print(f'{len(chosen) - different} cases equal, {different} not, '
        f'{math.ceil(time.monotonic() - start)} s')
  return 1 if different else 0


if __name__ == '__main__':
  sys.exit(main())
