"""Task: read a handwritten character from a 28 x 28 image (EMNIST).

One client is one writer. The models take batches of the features 'x', uint8
[batch, 28, 28] with ink near 255, and 'y', int32 [batch] class numbers.
"""

from collections.abc import Sequence
import os
import string
from typing import Any

from tasks import official, task
from tasks.images import data as data_lib
from tasks.models import classifiers, layers
from tasks.sources import records, sqlite as source_sqlite

SHAPE = (28, 28)

OFFICIAL = official.File(name='emnist_all.sqlite', load='emnist.load_data')


def _official(*, cache_dir: str | os.PathLike[str] | None = None,
              only_digits: bool = False, skip_bad_clients: bool = False) -> data_lib.Data:
  """TFF's federated EMNIST, downloaded unless it is in the cache."""
  path = OFFICIAL.find_or_download(cache_dir)
  train, test = (open_official(path, part, only_digits=only_digits)
                 for part in ('train', 'test'))
  return data_lib.Data(train=train, test=test, skips=task.Skips(skip_bad_clients),
                       num_classes=10 if only_digits else 62, privacy_unit='one writer')


def open_official(path: str | os.PathLike[str], part: str, *,
                  only_digits: bool) -> records.MappedSource:
  """Opens 'train' or 'test' of TFF's official federated EMNIST, an SQLite file.

  3,400 writers and 62 classes, or 3,383 writers and 10 digits; every writer has
  training and test examples. Images are dark on light: 1 is paper. Raises ValueError if
  the file is missing, corrupted or in another format.
  """
  kind = 'digits_only' if only_digits else 'all'
  source = source_sqlite.SqliteSource(
      path, f'{kind}_{part}', fields=data_lib.fields(*data_lib.OFFICIAL_FIELDS))
  return data_lib.images(
      source, num_classes=10 if only_digits else 62, dark_ink=True, shape=SHAPE)


def _breakdown(names: Sequence[str]) -> dict[str, Any]:
  """Classes by their characters, where they are those of EMNIST or MNIST."""
  characters = string.digits + string.ascii_uppercase + string.ascii_lowercase
  if len(names) == len(string.digits):
    return {'kind': 'digit', 'names': string.digits}
  if len(names) != len(characters):
    return classifiers.numbered(len(names))
  return {'kind': 'character', 'names': characters, 'groups': {
      'digits': range(10), 'upper case': range(10, 36), 'lower case': range(36, 62)}}


def cnn_1m(shape: tuple[int, ...], num_classes: int) -> classifiers.Network:
  """Builds the CNN of the distributed-DP papers.

  Convolution 3 x 3 of 32, ReLU, max pool 2 x 2, convolution 3 x 3 of 64, ReLU,
  dropout 0.25, dense 128, ReLU, dropout 0.5, dense num_classes: 1,018,174
  parameters for 62 classes.
  """
  return classifiers.network(
      'cnn_1m', shape, num_classes,
      # Pooling here, between the convolutions, gives the papers' count of parameters;
      # after both it would be 1,206,590.
      layers.Convolution(3, 32, pool=2), layers.Convolution(3, 64),
      layers.Dropout(0.25), layers.Hidden(128), layers.Dropout(0.5))


# cnn_small learns from a few hundred clients under differential privacy: 7,346
# parameters for 10 classes, 27,366 for 62. The norm of the noise that privacy adds grows
# with their number, and a rotation pads that to a power of two: these are just below
# 2^13 and 2^15. It has no dropout: privacy noise regularizes enough.
MODELS = {'cnn_1m': cnn_1m, 'cnn_small': classifiers.cnn_small}

_task = data_lib.ImageTask(
    name='emnist', models=MODELS, breakdown=_breakdown, shape=SHAPE, num_classes=62,
    own={'embedded': data_lib.embedded, 'official': _official})
SOURCES, options_of = _task.sources, _task.options
load, open_raw = _task.load, _task.open_raw
build, build_model, serving = _task.build, _task.build_model, _task.serving
