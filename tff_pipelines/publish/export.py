"""Writes a trained model into a folder of its own, with its privacy statement."""

import collections
from collections.abc import Callable, Iterable, Mapping
import os
import pathlib
import shutil
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

from tasks.task import Serving
from tff_pipelines.accounting.guarantees import ledger_query
from tff_pipelines.common import files
from tff_pipelines.experiment import configurations, models, pages, statement
from tff_pipelines.publish import numpy_model, run as run_lib
from tff_pipelines.publish.settings import ExportSettings

SAVED_MODEL = 'saved_model'
# Signatures of a SavedModel: of raw columns where there are any, and of encoded ones.
DEFAULT, ENCODED = 'serving_default', 'encoded'
# The model of a table in NumPy, which reads the files next to it.
NUMPY_MODEL = 'model.py'


def _is_plain(name: str) -> bool:
  """Whether TensorFlow takes a name as it is, for a feature or an output."""
  return name.isascii() and name.isidentifier()


def predict_function(serving: Serving, weights) -> Any:
  """A tf.function of the features of a batch, by name, to the outputs of `predict`."""
  return _function({
      name: tf.TensorSpec([None, *shape], tf.as_dtype(dtype),
                          name=name if _is_plain(name) else None)
      for name, (dtype, shape) in serving.inputs.items()},
                   lambda features: serving.model.predict(weights, features))


def _function(specs: Mapping[str, tf.TensorSpec],
              outputs_of: Callable[[dict[str, tf.Tensor]], Mapping[str, Any]]) -> Any:
  """A tf.function of tensors in the order of their specs, which have other names."""

  @tf.function(autograph=False, input_signature=list(specs.values()))
  def predict(*tensors):
    outputs = outputs_of(dict(zip(specs, tensors)))
    return {name: tf.convert_to_tensor(output) for name, output in outputs.items()}

  return predict


def _input_names(names: Iterable[str]) -> dict[str, str]:
  """Name of a column -> that of its input: the same, if TensorFlow takes it as it is."""
  # TensorFlow does not tell letters of other cases apart.
  used = collections.Counter(name.lower() for name in names)
  return {name: name if _is_plain(name) and used[name.lower()] == 1 and not (
      name.lower().startswith(('_', 'column_'))) else f'column_{i}'
          for i, name in enumerate(names)}


def _raw_function(serving: Serving, weights) -> Any:
  """A tf.function of raw columns [batch] to the outputs, the class by its name."""
  dtypes, inputs = serving.raw.dtypes, _input_names(serving.raw.dtypes)

  def outputs_of(columns):
    outputs = dict(serving.model.predict(weights, serving.raw.encode(columns)))
    if 'class' in outputs and (names := class_names(serving, None)):
      outputs['class'] = tf.gather(tf.constant(names), outputs['class'])
    return outputs

  return _function({name: tf.TensorSpec([None], dtype, name=inputs[name])
                    for name, dtype in dtypes.items()}, outputs_of)


def class_names(serving: Serving, count: int | None) -> list[str] | None:
  """Names of the classes; None if the model has none, or another number of them."""
  breakdown = serving.model.breakdown
  return list(breakdown.names) if breakdown is not None and count in (
      None, len(breakdown.names)) else None


def _write_saved_model(folder: pathlib.Path, serving: Serving,
                       trained: models.Trained) -> None:
  for name in serving.inputs:
    if not _is_plain(name):
      raise ValueError('format=savedmodel needs features whose names are ASCII '
                       f'identifiers, found {name!r}')
  module = tf.Module()
  module.variables_in_order = [tf.Variable(array, name=name, trainable=False)
                               for name, array in trained.arrays.items()]
  module.serve = predict_function(serving, module.variables_in_order)
  signatures = {DEFAULT: module.serve}
  if serving.raw is not None:
    module.serve_raw = _raw_function(serving, module.variables_in_order)
    signatures = {DEFAULT: module.serve_raw, ENCODED: module.serve}
  # Gradients of one's own may hold on to loops of Keras, which can't be saved.
  tf.saved_model.save(
      module, os.fspath(folder), signatures=signatures,
      options=tf.saved_model.SaveOptions(experimental_custom_gradients=False))


def _write(folder: pathlib.Path, settings: ExportSettings, run: run_lib.FinishedRun,
           trained: models.Trained, serving: Serving) -> dict[str, Any]:
  files.write_arrays(folder / models.ARRAYS, dict(trained.arrays))
  if settings.format == 'keras':
    if serving.model.to_keras is None:
      raise ValueError('format=keras is for models from Keras and of tables, found '
                       + serving.model.name)
    models.write_keras(folder / models.KERAS, serving.model.to_keras(trained.weights))
  elif settings.format == 'savedmodel':
    _write_saved_model(folder / SAVED_MODEL, serving, trained)
  predict = predict_function(serving, trained.weights)
  outputs = predict.get_concrete_function().structured_outputs
  files.write_json(folder / models.DESCRIPTION, {
      **trained.description(), 'outputs': {
          name: {'dtype': spec.dtype.name, 'shape': spec.shape[1:].as_list()}
          for name, spec in outputs.items()},
      'classes': class_names(serving, outputs['probabilities'].shape[-1])
                 if 'probabilities' in outputs else None,
      'scales': serving.raw and serving.raw.scales, 'columns': serving.raw and {
          name: {'input': input_name, 'dtype': serving.raw.dtypes[name]}
          for name, input_name in _input_names(serving.raw.dtypes).items()},
      run_lib.SERVED: run.public_settings})
  if serving.raw is not None:
    shutil.copyfile(numpy_model.__file__, folder / NUMPY_MODEL)
  for name, text in serving.files.items():
    files.write_atomically(folder / name, text)
  reasons = [*serving.not_private, *([statement.PARTY] if settings.party else [])]
  # The summary names the models of all parties.
  content = statement.statement(
      {**run.summary, 'model': trained.name}, reasons, _earlier(settings, run),
      _audit(settings, run))
  files.write_json(folder / statement.JSON, content)
  files.write_atomically(folder / statement.TEXT, statement.in_words(content))
  return content


def _earlier(settings: ExportSettings, run: run_lib.FinishedRun) -> dict | None:
  """All releases about the same people, those of earlier ledgers included."""
  if settings.earlier_ledgers is None:
    return None
  answer = ledger_query.together([run.folder / files.LEDGER, *settings.earlier_ledgers])
  return {'count': len(settings.earlier_ledgers), 'epsilon': answer.epsilon,
          'delta': answer.delta}


def _audit(settings: ExportSettings, run: run_lib.FinishedRun) -> list | None:
  """The findings of the audit that is given; ValueError if it is of other settings."""
  if settings.audit is None:
    return None
  try:
    audit = run_lib.read_finished(settings.audit)
    is_run = not audit.is_export and pages.verdict_on(audit.folder).proves(audit.summary)
  except ValueError as error:
    raise ValueError(f'audit={settings.audit} must be a finished run: {error}') from error
  if not is_run:
    raise ValueError(f'audit={settings.audit} must be a run whose ledger proves its '
                     'guarantee')
  own, other = (configurations.read(one.folder)['settings'] for one in (run, audit))
  if differ := [name for name in sorted({*own, *other} - {'canaries'})
                if own.get(name) != other.get(name)]:
    raise ValueError(f'audit={settings.audit} must be a run of the same settings but for '
                     f'canaries, found other {", ".join(differ)}')
  if not (findings := audit.summary['details'].get('audit')):
    raise ValueError(f'audit={settings.audit} must be a run with canaries, found none')
  return findings


def export(settings: ExportSettings) -> pathlib.Path:
  """Exports the model of a run; OSError or ValueError for mistakes of the user."""
  run = run_lib.read_finished(settings.run, settings.party)
  if run.is_export:
    raise ValueError(f'run={settings.run} is an export: give the folder of its run')
  if not pages.verdict_on(run.folder).proves(run.summary):
    raise ValueError(f'run={settings.run}: its ledger does not prove the guarantee')
  if run.summary['details'].get('audit'):
    raise ValueError(f'run={settings.run} trained with canaries, for an audit: export one '
                     'without, and give this as audit')
  trained = run.trained()
  serving = run.serving(trained)
  if not all(np.isfinite(array).all() for array in trained.weights):
    raise ValueError(f'run={settings.run}: the model has NaN or infinite weights')
  folder = pathlib.Path(settings.output_dir)
  folder.parent.mkdir(parents=True, exist_ok=True)
  # Complete or not at all.
  partial = pathlib.Path(tempfile.mkdtemp(dir=folder.parent, prefix=f'.{folder.name}.'))
  try:
    content = _write(partial, settings, run, trained, serving)
    files.publish(partial)
    os.replace(partial, folder)
  except BaseException:
    shutil.rmtree(partial, ignore_errors=True)
    raise
  print(statement.in_words(content))
  print(f'exported to {folder}: ' + ', '.join(
      sorted(path.name for path in folder.iterdir())))
  return folder
