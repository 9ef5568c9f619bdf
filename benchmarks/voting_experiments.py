"""The experiments behind the tables of docs/voting.md: runs of tff_pipelines.vote."""

from collections.abc import Iterator
import dataclasses
import pathlib
import shlex
import sys

SEEDS = (0, 1, 2)
# File of the letters, in the folder of the runs; see voting_letters.
LETTERS = 'letters.npz'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
  """One run.

  Attributes:
    row: Name that its repetitions share.
    seed: Seed of the partition, the public map, the queries and all weights; never of
      noise.
    flags: Flags of the program, one string.
    map_of: Name of an earlier run whose public feature map is taken.
  """

  row: str
  seed: int
  flags: str
  map_of: str | None = None

  @property
  def name(self) -> str:
    return f'{self.row}-{self.seed}'

  def command(self, folder: pathlib.Path, data_dir: str | None) -> list[str]:
    """The command line; the run gets a folder of its own below `folder`."""
    names = ['feature_seed']
    if '--task=office' not in self.flags:  # Its agents are the domains.
      names.append('data_seed')
    if '--algorithm=knn' not in self.flags:
      names.append('initial_weights_seed')
    if any(f'--{name}' in self.flags for name in (
        'algorithm=ae', 'algorithm=knn', 'student=')):
      names.append('student_seed')
    seeds = [f'--{name}={self.seed}' for name in names]
    if self.map_of is not None:
      seeds.append(f'--features_from={folder / self.map_of}')
    if '--task=npz' in self.flags:
      data_dir = folder / LETTERS  # Which the script writes.
    if data_dir is not None:
      seeds.append(f'--data_path={data_dir}')
    return [sys.executable, '-m', 'tff_pipelines.vote', *shlex.split(self.flags),
            *seeds, '--resume', f'--output_dir={folder / self.name}']


_AE = '--algorithm=ae --client_confidence=0.9 --delta=1e-3 '
_OWN = '--clients_see=records --model=cnn_small --client_epochs=8 '
_FEDAVG = ('--algorithm=fedavg --client_learning_rate=0.1 --client_batch_size=20 '
           '--client_epochs=1 --rounds_per_evaluation=5 ')
_DP_FEDAVG = ('--algorithm=dp_fedavg --delta=1e-3 --client_epochs=1 '
              '--rounds_per_evaluation=10 ')
# The queries and the student of a vote.
_STUDENT = '--student=spread --queries=50 '
# Few rounds and a large clip: their product over the noise stays the same.
_DP_IMAGES = _DP_FEDAVG + ('--model=cnn_small --rounds=10 --clip=1.0 --client_learning_rate=0.1 '
                           '--client_batch_size=20 ')
_DP_FEATURES = _DP_FEDAVG + (
    '--features=contrastive --model=softmax --rounds=10 --clip=1.0 --client_learning_rate=0.02 '
    '--client_batch_size=20 ')


def _mnist() -> Iterator[Experiment]:
  task = '--task=mnist '
  for seed in SEEDS:
    yield Experiment(row='mnist-ae', seed=seed, flags=(
        task + _AE + '--queries=50 --epsilon=4.3 --bound=paper'))
    yield Experiment(
        row='mnist-dp_fedavg-features', seed=seed, map_of=f'mnist-ae-{seed}',
        flags=task + _DP_FEATURES + '--epsilon=4.3')
    yield Experiment(
        row='mnist-dp_fedavg-student', seed=seed, map_of=f'mnist-ae-{seed}',
        flags=task + _DP_FEATURES + _STUDENT + '--epsilon=4.3')
    yield Experiment(row='mnist-dp_fedavg', seed=seed, flags=(
        task + _DP_IMAGES + '--epsilon=4.3'))
    yield Experiment(row='mnist-fedavg', seed=seed, flags=(
        task + _FEDAVG + '--rounds=30'))
  # One seed: 100 networks take minutes.
  yield Experiment(row='mnist-ae-own', seed=0, map_of='mnist-ae-0', flags=(
      task + _AE + _OWN + '--queries=50 --epsilon=4.3 --bound=paper'))
  yield Experiment(row='mnist-ae-random', seed=0, flags=(
      task + _AE + _OWN + '--queries=500 --epsilon=4.3 --bound=paper '
      '--features=pca --query_choice=random --student=labels'))


def _digits() -> Iterator[Experiment]:
  task = '--task=digits '
  # The paper's numbers of queries and noise, with small networks.
  voting = task + ('--algorithm=ae --delta=1e-3 --queries=500 --model=cnn_small '
                   '--client_epochs=20 --client_shift=1 --client_confidence=0.5 ')
  given = dict(seed=0, map_of='digits-ae-0')
  yield Experiment(row='digits-ae', seed=0, flags=(
      voting + '--noise_stddev=25 --clients_see=records'))
  yield Experiment(row='digits-ae-da', **given, flags=(
      voting + '--noise_stddev=30 --adversarial_strength=0.3'))
  yield Experiment(row='digits-ae-features', **given, flags=(
      task + _AE + '--queries=50 --epsilon=2.8 --bound=paper'))
  yield Experiment(row='digits-dp_fedavg', seed=0, flags=(
      task + _DP_IMAGES + '--epsilon=3.7'))
  yield Experiment(row='digits-fedavg', seed=0, flags=(
      task + _FEDAVG + '--rounds=20'))
  yield Experiment(
      row='digits-dp_fedavg-student', seed=0, map_of='digits-ae-0',
      flags=task + _DP_FEATURES + _STUDENT + '--epsilon=2.8')
  adversarial = '--adversarial_strength=0.1 '
  yield Experiment(row='digits-dp_fedavg-da', seed=0, flags=(
      task + _DP_IMAGES + adversarial + '--epsilon=3.7'))
  yield Experiment(row='digits-fedavg-da', seed=0, flags=(
      task + _FEDAVG + adversarial + '--rounds=20'))


TARGETS = ('webcam', 'dslr', 'amazon', 'caltech10')


def _office() -> Iterator[Experiment]:
  for target in TARGETS:
    task = f'--task=office --target={target} --features=pca --pca_dimensions=50 '
    # Test sets are small and runs short: several seeds here too.
    for seed in SEEDS:
      yield Experiment(row=f'office-{target}-knn', seed=seed, flags=(
          task + '--algorithm=knn --queries=50 --neighbours=50 --delta=1e-4 '
          '--epsilon=3.9 --student_model=softmax --student_learning_rate=0.02'))
      gradients = task + (
          '--algorithm=dp_fedsgd --epsilon=3.9 --delta=1e-4 --rounds=50 '
          '--record_rate=0.2 --clip=1.0 --server_learning_rate=1.0 '
          '--rounds_per_evaluation=50 ')
      for name, more in (
          ('', ''), ('-added', '--adjacency=record-zero-out '),
          ('-student', _STUDENT + '--student_model=softmax '
           '--student_learning_rate=0.02 ')):
        yield Experiment(
            row=f'office-{target}-dp_fedsgd{name}', seed=seed, flags=gradients + more)
    yield Experiment(row=f'office-{target}-fedavg', seed=0, flags=(
        task + '--algorithm=fedavg --rounds=20 --client_learning_rate=0.01 '
        '--client_epochs=1 --client_batch_size=20 --rounds_per_evaluation=20'))


RECORDS = (50, 100, 200, 400, 600)
AGENTS = (50, 100, 200, 400, 800)


def _ablations() -> Iterator[Experiment]:
  settings = [(f'records{count}', f'--records_per_client={count}')
              for count in RECORDS]
  settings += [(f'agents{count}', f'--num_clients={count}')
               for count in AGENTS if count != 100]
  first = f'ablation-ae-records{RECORDS[0]}'
  for name, given in settings:
    row = f'ablation-ae-{name}'
    task = f'--task=mnist --public_records=1000 {given} '
    yield Experiment(
        row=row, seed=0, map_of=None if row == first else f'{first}-0',
        flags=task + _AE + '--queries=50 --epsilon=5 --bound=paper '
        '--student_epochs=12')
    yield Experiment(
        row=f'ablation-dp_fedavg-{name}', seed=0, map_of=f'{first}-0',
        flags=task + _DP_FEATURES + '--epsilon=5')
  yield from _letters()


def _letters() -> Iterator[Experiment]:
  """The same on letters, of 26 classes, of which an agent has 15."""
  task = '--task=npz --public_fraction=0.19 --labels_per_client=15 '
  first = f'ablation-letters-ae-records{RECORDS[0]}'
  settings = [(f'records{count}', f'--num_clients=100 --records_per_client={count} ')
              for count in RECORDS]
  settings += [(f'agents{count}', f'--num_clients={count} ')
               for count in AGENTS if count != 100]
  for name, given in settings:
    row = f'ablation-letters-ae-{name}'
    yield Experiment(
        row=row, seed=0, map_of=None if row == first else f'{first}-0',
        flags=task + given + _AE + '--queries=100 --epsilon=5 --bound=paper')
    yield Experiment(
        row=f'ablation-letters-dp_fedavg-{name}', seed=0, map_of=f'{first}-0',
        flags=task + given + _DP_FEATURES + '--epsilon=5')


def experiments() -> list[Experiment]:
  """All experiments, those that others take their feature map from first.

  One seed of everything comes before the others.
  """
  return sorted([*_mnist(), *_digits(), *_office(), *_ablations()],
                key=lambda experiment: experiment.seed)


_TINY = '--task=embedded --num_clients=3 --public_records=30 --features=pca '
# Tiny experiments that fill a table and a figure with numbers of no meaning.
QUICK = (
    Experiment(row='mnist-ae', seed=0, flags=_TINY + (
        '--algorithm=ae --queries=5 --client_epochs=1 --student_epochs=1 '
        '--student_model=softmax --allow_degenerate')),
    *(Experiment(row=row, seed=0, map_of='mnist-ae-0',
                 flags=_TINY + '--algorithm=fedavg --rounds=1')
      for row in ('mnist-fedavg', 'ablation-dp_fedavg-records50')))
