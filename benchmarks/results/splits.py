"""Data of the tables, and the split on which settings are tried.

What a setting is tried on is in no table: its test part is made of training clients, or
training records, which its training part then lacks. `write` leaves files of the same
names and formats, so programs read them as they read those of the tables.
"""

from collections.abc import Callable, Mapping, Sequence
import csv
import dataclasses
import gzip
import hashlib
import json
import os
import pathlib
import shutil

import numpy as np

from tasks.sources import ids as ids_lib
from tasks.sources import records
from tff_pipelines.common import files

_SEED = 20261127
Arrays = dict[str, np.ndarray]


def without_test(arrays: Arrays, aside: np.ndarray) -> Arrays:
  """Moves the training records `aside`, bool [n], to the test part, which goes."""
  result = {}
  for name, array in arrays.items():
    kind = name.removesuffix('_train')
    if kind != name:
      result[name], result[f'{kind}_test'] = array[~aside], array[aside]
  return {**arrays, **result}


def by_writer(arrays: Arrays, count: int) -> Arrays:
  """Sets `count` training writers aside."""
  writers = np.unique(arrays['writer_train'])
  chosen = np.random.default_rng(_SEED).choice(writers, count, replace=False)
  return without_test(arrays, np.isin(arrays['writer_train'], chosen))


def by_record(arrays: Arrays, count: int) -> Arrays:
  """Sets `count` training records aside."""
  size = len(arrays['x_train'])
  aside = np.zeros(size, bool)
  aside[np.random.default_rng(_SEED).choice(size, count, replace=False)] = True
  return without_test(arrays, aside)


def at_most(arrays: Arrays, count: int) -> Arrays:
  """Keeps `count` training records of each writer, or all of a writer with fewer."""
  order = np.random.default_rng(_SEED).permutation(len(arrays['writer_train']))
  by_writers = order[np.argsort(arrays['writer_train'][order], kind='stable')]
  _, starts, counts = np.unique(
      arrays['writer_train'][by_writers], return_index=True, return_counts=True)
  places = np.arange(len(order)) - np.repeat(starts, counts)
  rows = np.sort(by_writers[places < count])
  return {name: array[rows] if name.endswith('_train') else array
          for name, array in arrays.items()}


def of_domains(arrays: Arrays, fraction: float, is_trial: bool) -> Arrays:
  """That fraction of each domain's images for trials, or the others for tables."""
  result = {}
  for name in sorted(name for name in arrays if name.endswith('_y')):
    size = len(arrays[name])
    order = np.random.default_rng(_SEED).permutation(size)
    count = round(fraction * size)
    rows = np.sort(order[:count] if is_trial else order[count:])
    for name in (name, f'{name[:-1]}x'):
      result[name] = arrays[name][rows]
  return result


def _npz(split: Callable[[Arrays], Arrays]) -> Callable[[pathlib.Path, pathlib.Path], None]:
  def write(path: pathlib.Path, to: pathlib.Path) -> None:
    with np.load(path, allow_pickle=False) as file:
      arrays = {name: file[name] for name in file.files}
    files.write_arrays(to, split(arrays))

  return write


def _without_held_out(field: str) -> Callable[[pathlib.Path, pathlib.Path], None]:
  """JSON lines without the clients that the tables are tested on."""
  def write(path: pathlib.Path, to: pathlib.Path) -> None:
    with gzip.open(path, 'rt', encoding='utf-8') as file:
      lines = file.readlines()
    clients = [str(json.loads(line)[field]) for line in lines]
    population = records.split_clients(_Clients(sorted(set(clients))))[0]
    kept = set(population.client_ids)
    with gzip.open(to, 'wt', encoding='utf-8') as file:
      file.writelines(
          line for line, client in zip(lines, clients) if client in kept)

  return write


class _Clients:
  """A source without examples, to split its clients."""

  element_spec = {}

  def __init__(self, names: Sequence[str]):
    self.client_ids = ids_lib.Ids([names])


def _copy(path: pathlib.Path, to: pathlib.Path) -> None:
  os.symlink(path.absolute(), to)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
  """The files of a row.

  Attributes:
    files: Name of a file -> (what writes its split for trials).
    trials: What settings are tried on, in words.
    is_folder: Whether programs take the folder and not the file.
    tables: Like `files`, for files of the tables that are no copy.
    reads: The file that programs read, if it is none of `files`.
  """

  files: Mapping[str, Callable[[pathlib.Path, pathlib.Path], None]]
  trials: str
  is_folder: bool = False
  tables: Mapping[str, Callable[[pathlib.Path, pathlib.Path], None]] = (
      dataclasses.field(default_factory=dict))
  reads: str = ''

  def paths(self, data_dir: pathlib.Path, folder: pathlib.Path, *,
            is_trial: bool) -> pathlib.Path:
    """What a program reads; the split is written below `folder` unless it is there."""
    writers = self.files if is_trial else self.tables
    if writers:
      to = folder / ('trials' if is_trial else 'tables')
      if not to.exists():
        partial = to.with_name(f'.{to.name}.{os.getpid()}')
        partial.mkdir(parents=True)
        for name, write in writers.items():
          write(data_dir / name, partial / name)
        try:
          partial.rename(to)
        except OSError:  # Another job has written it; a split follows from its data.
          if not to.is_dir():
            raise
          shutil.rmtree(partial)
      data_dir = to
    return data_dir if self.is_folder else data_dir / (
        self.reads or next(iter(self.files)))

  def digests(self, data_dir: pathlib.Path) -> dict[str, str]:
    """Name of a file -> SHA-256 of its bytes."""
    return {name: hashlib.sha256((data_dir / name).read_bytes()).hexdigest()
            for name in self.files}


def _office(is_trial: bool):
  return _npz(lambda arrays: of_domains(arrays, 0.3, is_trial))


def letters(arrays: Arrays) -> Arrays:
  """The letters, 26 classes: upper and lower case are one."""
  result = {'num_classes': np.array(26)}
  for part in ('train', 'test'):
    y = arrays[f'y_{part}']
    rows = y >= 10
    result[f'y_{part}'] = (y[rows].astype(np.int64) - 10) % 26
    for name in ('x', 'writer'):
      result[f'{name}_{part}'] = arrays[f'{name}_{part}'][rows]
  return result


def _letters(is_trial: bool):
  return _npz(lambda arrays: by_record(letters(arrays), 6000) if is_trial else (
      letters(arrays)))


_CATEGORIES = ('sex', 'chest_pain', 'fasting_blood_sugar', 'resting_ecg',
               'exercise_angina')
_MEASURES = ('age', 'resting_blood_pressure', 'cholesterol', 'max_heart_rate',
             'st_depression')


def _heart(is_trial: bool):
  """FLamby's columns, rows and parts, or for trials half of its training rows."""
  def write(path: pathlib.Path, to: pathlib.Path) -> None:
    with open(path, encoding='utf-8', newline='') as file:
      rows = [row for row in csv.DictReader(file) if row['split']]
    arrays = {}
    for part in ('train', 'test'):
      of_part = [row for row in rows if row['split'] == part]
      columns = {**{name: [str(int(float(row[name]))) for row in of_part]
                    for name in _CATEGORIES},
                 **{name: [float(row[name]) for row in of_part] for name in _MEASURES},
                 'center': [row['center'] for row in of_part],
                 'disease': [int(float(row['diagnosis']) > 0) for row in of_part]}
      arrays.update({f'{name}_{part}': np.array(column)
                     for name, column in columns.items()})
    if is_trial:
      size = len(arrays['disease_train'])
      aside = np.random.default_rng(_SEED).permutation(size) < 0.5 * size
      arrays = without_test(arrays, aside)
    files.write_arrays(to.with_name('heart.npz'), arrays)

  return write


def _in_silos(count: int, is_trial: bool):
  """MNIST, whose writers are in silos of consecutive ones."""
  def split(arrays: Arrays) -> Arrays:
    writers = np.unique(arrays['writer_train'])
    of = np.searchsorted(writers, arrays['writer_train']) * count // len(writers)
    arrays = dict(arrays, silo_train=np.char.add('silo ', of.astype(str)),
                  silo_test=np.full(len(arrays['y_test']), 'test'))
    return by_writer(arrays, 60) if is_trial else arrays

  return _npz(split)


DATA = {
    'heart': Data(
        files={'heart_disease.csv': _heart(True)}, reads='heart.npz',
        tables={'heart_disease.csv': _heart(False)},
        trials='half of the training rows'),
    **{f'digits_{count}': Data(
        files={'mnist.npz': _in_silos(count, True)},
        tables={'mnist.npz': _in_silos(count, False)},
        trials='60 of the 539 training writers') for count in (1, 4, 10, 20, 50)},
    'mnist': Data(files={'mnist.npz': _npz(lambda arrays: by_writer(arrays, 60))},
                  trials='60 of the 539 training writers'),
    'letters62': Data(
        files={'unipen62_writers.npz': _npz(
            lambda arrays: at_most(by_record(arrays, 6000), 100))},
        tables={'unipen62_writers.npz': _npz(lambda arrays: at_most(arrays, 100))},
        trials='6,000 training images'),
    'fashion_mnist': Data(
        files={'fashion_mnist.npz': _npz(lambda arrays: by_record(arrays, 10_000))},
        trials='10,000 training images'),
    'cifar10': Data(
        files={'cifar10_subset.npz': _npz(lambda arrays: by_record(arrays, 2000))},
        trials='2,000 training images'),
    'cifar': Data(
        files={'cifar10_subset.npz': _copy,
               'cifar100_subset.npz': _npz(lambda arrays: by_record(arrays, 3400))},
        trials='597 training images of the six kinds, in runs of 5 rounds', is_folder=True),
    'mnist_letters': Data(
        files={'mnist.npz': _copy, 'unipen62_writers.npz':
               _npz(lambda arrays: by_record(arrays, 6000))},
        trials='857 training letters, in runs of 5 rounds', is_folder=True),
    'voting_mnist': Data(
        files={'mnist.npz': _npz(lambda arrays: by_writer(arrays, 90))},
        trials='90 of the 539 training writers', is_folder=True),
    'letters': Data(
        files={'unipen62_writers.npz': _letters(True)},
        tables={'unipen62_writers.npz': _letters(False)},
        trials='6,000 training letters'),
    'digits': Data(
        files={'mnist.npz': _copy, 'svhn_1000.npz': _copy,
               'usps.npz': _npz(lambda arrays: by_record(arrays, 1500))},
        trials='1,500 training digits of USPS', is_folder=True),
    'office': Data(
        files={'office_caltech10_surf.npz': _office(True)},
        tables={'office_caltech10_surf.npz': _office(False)},
        trials='30% of the images of each domain, which the tables lack',
        is_folder=True),
    'shakespeare': Data(
        files={'shakespeare_roles.jsonl.gz': _without_held_out('client')},
        trials='a tenth of the training roles'),
    'stackoverflow': Data(
        files={'stackoverflow_users.jsonl.gz': _without_held_out('client')},
        trials='a tenth of the training users'),
}
# File -> what is in it, and the public repository that it is made of.
SOURCES = {
    'mnist.npz': (
        'MNIST, 60,000 + 10,000, in its order, with the NIST writer of each digit: '
        '`x_train`, `y_train`, `writer_train`, `x_test`, `y_test`, `writer_test`',
        '`rasbt/mnist-pngs`; writers from the labels of `facebookresearch/qmnist`'),
    'unipen62_writers.npz': (
        'characters of 318 writers, 62 classes, 58,338 + 6,383, the same arrays: pen '
        'strokes drawn in 28 × 28, at most 400 a writer, a tenth of each writer\'s for '
        'the test', 'UNIPEN train_r01_v07, categories 1a, 1b, 1c '
        '(`GreenCappuccino/train_r01_v07`)'),
    'fashion_mnist.npz': ('Fashion-MNIST, 60,000 + 10,000', '`Sentdex/nnfs_book`'),
    'cifar10_subset.npz': ('CIFAR-10, 1,200 + 300 of each class',
                           '`cyizhuo/CIFAR-10-dataset`'),
    'cifar100_subset.npz': (
        'CIFAR-100, the 34 fine classes 0 1 2 4 9 10 16 20 22 28 30 32 39 40 51 53 54 55 '
        '57 61 62 63 67 70 71 72 73 82 83 86 87 91 92 95, all images: `x_train`, '
        '`y_fine_train`, `y_coarse_train`, and `_test`', '`cyizhuo/CIFAR-100-dataset`'),
    'usps.npz': ('USPS, 7,291 + 2,007 digits of 16 × 16',
                 '`niuers/Learning-From-Data-A-Short-Course`'),
    'svhn_1000.npz': ('SVHN, 800 + 200 cropped digits', '`Danial-Baharvand/SVHN_Classifier`'),
    'office_caltech10_surf.npz': (
        'counts of 800 SURF words of 2,533 images: `amazon_x`, `amazon_y`, and of '
        '`caltech10`, `dslr`, `webcam`',
        '`alecamo97/Optimal-Transport-Office-Caltech-dataset`'),
    'shakespeare_roles.jsonl.gz': (
        '30,985 speeches of 1,340 roles: `client` (play and role), `text`',
        '`martin-gorner/tensorflow-rnn-shakespeare`, without the poems'),
    'stackoverflow_users.jsonl.gz': (
        '80,811 posts of 6,110 users, each with five or more, of threads tagged `java`: '
        '`client`, `title`, `tags`, `text`',
        '`joyguoguo/StackOverflowDataAnalysis`, '
        '`Layheng-Hok/StackOverflow-Java-Stats`, `csgrace/CS209A`, '
        '`Cooper-Zhong/CS209-StackOverflow-web-application`'),
    'heart_disease.csv': (
        'UCI Heart Disease, 920 patients of four hospitals, with the parts of FLamby '
        '(`split`)', 'UCI Machine Learning Repository')}
