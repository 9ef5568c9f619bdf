"""The trained model in the folder of a run, or of an export."""

from collections.abc import Mapping, Sequence
import dataclasses
import io
import json
import os
import pathlib
import tempfile
from typing import Any
import zipfile

import numpy as np

from tff_pipelines.common import files

# Arrays by name in the order of the layers; what the model takes; its Keras form.
ARRAYS, DESCRIPTION, KERAS = 'model.npz', 'model.json', 'model.keras'

Spec = Mapping[str, tuple[np.dtype, tuple[int, ...]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
  """A trained model.

  Attributes:
    name: Name of the model.
    inputs: Feature name -> (NumPy dtype, shape of one example).
    arrays: Name -> array of the weights, in their order.
    keras: A Keras model with these weights; None for other models.
  """

  name: str
  inputs: Spec
  arrays: Mapping[str, np.ndarray]
  keras: Any = None

  @classmethod
  def of(cls, serving: Any, weights: Sequence[np.ndarray]) -> 'Trained':
    """The model of a tasks.task.Serving with these weights."""
    model = serving.model
    return cls(name=model.name, inputs=serving.inputs, arrays=model.named(weights),
               keras=model.to_keras and model.to_keras(weights))

  @property
  def weights(self) -> list[np.ndarray]:
    return list(self.arrays.values())

  def write(self, folder: pathlib.Path) -> None:
    """Writes the files of the model; the folder is created if it does not exist."""
    files.make_folder(folder)
    files.write_json(folder / DESCRIPTION, self.description())
    if self.keras is not None:
      write_keras(folder / KERAS, self.keras)
    # Last: where it is, the others are.
    files.write_arrays(folder / ARRAYS, dict(self.arrays))

  def description(self) -> dict[str, Any]:
    """Name and inputs, as JSON."""
    return {'name': self.name, 'inputs': {
        name: {'dtype': np.dtype(dtype).name, 'shape': list(shape)}
        for name, (dtype, shape) in self.inputs.items()}}


def read(folder: pathlib.Path) -> Trained | None:
  """The model in a folder, without its Keras form, or None; ValueError if damaged."""
  arrays, path = files.read_arrays(folder / ARRAYS), folder / DESCRIPTION
  if arrays is None:
    return None
  try:
    content = json.loads(path.read_text(encoding='utf-8'))
    return Trained(name=content['name'], arrays=arrays, inputs={
        name: (np.dtype(spec['dtype']), tuple(spec['shape']))
        for name, spec in content['inputs'].items()})
  except (OSError, ValueError, TypeError, KeyError) as error:
    raise ValueError(f'{path} is missing or damaged: {error}') from error


def _portable(config: Any) -> Any:
  """Keras 2's configuration of a model in the terms that Keras 3 knows, too."""
  if isinstance(config, list):
    return list(map(_portable, config))
  if not isinstance(config, dict):
    return config
  result = {name: _portable(value) for name, value in config.items()
            if (name, value) != ('time_major', False)}
  if result.get('class_name') == 'Functional':  # Its module is private to Keras 2.
    result |= {'class_name': 'Model', 'module': 'keras', 'registered_name': None}
  if isinstance(result.get('config'), dict) and (
      result.get('class_name') != 'InputLayer'):
    result['config'].pop('batch_input_shape', None)
  return result


def write_keras(path: pathlib.Path, model: Any) -> None:
  """Writes a Keras model so that it is seen complete or not at all, without times.

  Keras 2 and 3 load it, if there are only layers, without operations between them.
  """
  content = io.BytesIO()
  with tempfile.TemporaryDirectory() as folder:
    saved = os.path.join(folder, path.name)
    model.save(saved)
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(content, 'w') as target:
      for name in source.namelist():
        part = source.read(name)
        if name == 'metadata.json':
          metadata = json.loads(part)
          metadata.pop('date_saved', None)
          part = json.dumps(metadata).encode()
        elif name == 'config.json':
          part = json.dumps(_portable(json.loads(part))).encode()
        # Entries of this kind are of 1980.
        target.writestr(zipfile.ZipInfo(name), part, zipfile.ZIP_DEFLATED)
  files.write_bytes(path, content.getvalue())
