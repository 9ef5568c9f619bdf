"""Weights that training starts from, read from a file."""

import dataclasses
import hashlib
import io
import os
import pathlib
import zipfile

import numpy as np

from tasks.task import Model
from tff_pipelines.common import caveats, files


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmStart:
  """Weights of a file, float32 arrays in the order of the model, and their SHA-256."""

  weights: list[np.ndarray]
  digest: str

  def caveat(self, is_public: bool) -> caveats.Caveat:
    """The limit of the guarantee; weights are public where the user states that."""
    if is_public:
      return caveats.Caveat(
          'warm start stated as public',
          'the user states that the weights training starts from are public: no '
          'epsilon protects those whose data they were trained on')
    return caveats.Caveat(
        'warm start outside the guarantee',
        'what the weights training starts from tell of their data is outside this '
        'guarantee; if those are of the same people, what both runs cost adds up')


def read(path: str | os.PathLike[str], model: Model) -> WarmStart:
  """Reads the weights of a model from a file.

  It has arrays (.npz), by the names of the model's weights or in their order; or, for
  a model from Keras, it is Keras' own (.keras, .h5, .weights.h5). Raises ValueError if
  it does not fit the model, or holds NaN or infinity.
  """
  if not os.path.isfile(path):
    raise ValueError(f'warm_start={path} must be a file, found none')
  initial = model.initial_weights(0)
  if pathlib.Path(path).suffix == '.npz':
    arrays = files.read_arrays(pathlib.Path(path))
    named = set(model.weight_names) == arrays.keys()
    weights = [arrays[name] for name in (model.weight_names if named else arrays)]
  else:
    weights = _of_keras(path, model, initial)
  shapes, wanted = ([list(w.shape) for w in arrays] for arrays in (weights, initial))
  if shapes != wanted:
    raise ValueError(f'warm_start={path} must have weights of the shapes {wanted}, '
                     f'found {shapes}')
  if not all(w.dtype == np.float32 and np.all(np.isfinite(w)) for w in weights):
    raise ValueError(f'warm_start={path} must have finite weights of float32')
  digest = hashlib.sha256(b''.join(w.tobytes() for w in weights))
  return WarmStart(weights=weights, digest=digest.hexdigest())


def _of_keras(path, model: Model, initial: list[np.ndarray]) -> list[np.ndarray]:
  if model.to_keras is None:
    raise ValueError(f'warm_start={path} must be .npz: the model is not from Keras')
  # Takes a while to import.
  import h5py  # pylint: disable=g-import-not-at-top
  network = model.to_keras(initial)
  constants = [weight.numpy() for weight in network.non_trainable_weights]
  try:
    network.load_weights(path)
    names, content = [], path
    if zipfile.is_zipfile(path):
      with zipfile.ZipFile(path) as archive:
        content = io.BytesIO(archive.read('model.weights.h5'))
    with h5py.File(content) as file:
      file.visit(names.append)
    # Keras takes what it finds of these, and counts those of its older formats.
    count = sum('vars' in name.split('/')[:-1] and
                not name.startswith(('optimizer/', 'metrics/')) for name in names)
    if count not in (0, len(network.weights)):
      raise ValueError(f'it has {count} arrays, the model {len(network.weights)}')
  except (OSError, ValueError, KeyError, NotImplementedError, ImportError,
          zipfile.BadZipFile) as error:
    raise ValueError(f'warm_start={path} must have the weights of this model: '
                     + str(error).strip().split('\n')[0]) from error
  if not all(map(np.array_equal, constants, network.non_trainable_weights)):
    raise ValueError(f'warm_start={path} must have the weights that are not trainable '
                     'as build_fn has them')
  return [weight.numpy() for weight in network.trainable_weights]
