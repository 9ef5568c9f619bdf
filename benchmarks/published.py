"""Predictions of published models of tables where this project is not installed.

  python -m benchmarks.published [--tensorflow=PYTHON] [--numpy=PYTHON]

Trains small models of a table of numbers, on a log scale too, dates and categories,
with gaps; exports them in all formats; and compares, on raw rows, `predict` of this
project with the SavedModel and the Keras file in a new environment of today's
TensorFlow, and with model.py in one of NumPy alone. Networks of Keras' usual layers are
written as for models from Keras, and compared there, too. Environments are built by
venv and pip unless their interpreters are given.
"""

import argparse
from collections.abc import Iterator
import contextlib
import csv
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np
import pandas
import tensorflow as tf

from benchmarks import published_alone
from tff_pipelines import export, predict, train
from tff_pipelines.experiment import models
from tff_pipelines.publish import run as run_lib

# Label -> models.
CASES = {'sick': ('logistic', 'mlp'), 'charges': ('linear', 'mlp')}
# Largest relative difference of predictions.
TOLERANCE = 1e-5
BOUNDS = {
    'Age (years)': [18, 80], 'income': {'bounds': [100, 1e6], 'log': True},
    'job': ['clerk', 'cook', '7'], 'seen': ['2015-01-01', '2024-12-31'],
    'charges': {'bounds': [1, 90000], 'log': True, 'target': True},
    'sick': {'categories': ['no', 'yes'], 'target': True}}


def write_table(folder: pathlib.Path, count: int = 400) -> None:
  """Writes data.csv, raw rows without clients and labels, and the public bounds."""
  rng = np.random.default_rng(0)
  income, age = np.exp(rng.normal(10, 1.5, count)), rng.uniform(10, 90, count)
  seen = np.datetime64('2015-01-01T00:00') + rng.integers(0, 3600 * 1440, count)
  job = np.array(['clerk', 'cook', '7', 'unknown', None], object)[
      rng.integers(0, 5, count)]
  rows = pandas.DataFrame({
      'Age (years)': np.where(rng.random(count) < 0.1, np.nan, age),
      'income': np.where(rng.random(count) < 0.1, np.nan, income), 'job': job,
      'seen': np.where(rng.random(count) < 0.1, None, seen.astype(str))})
  rows.to_csv(folder / 'rows.csv', index=False)
  rows.assign(
      client=[f'p{i // 2}' for i in range(count)],
      charges=np.exp(5 + 0.05 * age + rng.normal(size=count)).clip(1, 90000),
      sick=np.where(income > np.median(income), 'yes', 'no')).to_csv(
          folder / 'data.csv', index=False)
  (folder / 'bounds.json').write_text(json.dumps(BOUNDS))


def _called(main, *arguments: str) -> None:
  with contextlib.redirect_stdout(io.StringIO()):
    if main(arguments):
      raise RuntimeError(arguments)


def trained(folder: pathlib.Path, label: str, model: str) -> pathlib.Path:
  """A run on the table in a folder, with its exports and predictions next to it."""
  run = folder / f'{label}-{model}'
  _called(train.main, '--task=tabular', f'--model={model}', '--data_source=csv',
          f'--data_path={folder / "data.csv"}', f'--label_field={label}',
          f'--public_bounds={folder / "bounds.json"}', '--missing=impute', '--no_cache',
          '--rounds=3', '--cohort_size=20', f'--output_dir={run}')
  for form in ('savedmodel', 'keras', 'npz'):
    _called(export.main, f'--run={run}', f'--format={form}',
            f'--output_dir={run}-{form}')
  _called(predict.main, f'--run={run}', f'--data_path={folder / "rows.csv"}',
          '--probabilities', f'--output={run}.csv')
  # Keras takes encoded rows.
  finished = run_lib.read_finished(str(run))
  source = finished.serving(finished.trained()).reader(
      labelled=False, data_path=str(folder / 'rows.csv'), in_order=True)
  np.savez(f'{run}-keras/x.npz', x=np.concatenate(
      [source.examples(chunk)['x'] for chunk in source.client_ids]))
  return run


def networks() -> dict[str, tf.keras.Model]:
  """Networks of the usual layers, by these in words."""
  keras, tokens = tf.keras.layers, tf.keras.Input([6], dtype='int32')
  one, two = tf.keras.Input([3], name='one'), tf.keras.Input([2], name='two')
  joined = keras.Concatenate()([one, two])
  hidden = keras.Add()([keras.Dense(5)(joined), joined])
  sequence = keras.GRU(4, return_sequences=True)(
      keras.Embedding(9, 3, mask_zero=True)(tokens))
  return {
      'convolution, pooling, group normalization': tf.keras.Sequential([
          tf.keras.Input([8, 8, 1]), keras.Rescaling(1 / 255),
          keras.Conv2D(4, 3, activation='relu'), keras.MaxPooling2D(),
          keras.GroupNormalization(2), keras.Flatten(), keras.Dropout(0.2),
          keras.Dense(3)]),
      'layer normalization, concatenate, add': tf.keras.Model(
          [one, two], keras.Dense(4, 'sigmoid')(keras.LayerNormalization()(hidden))),
      'embedding, GRU, LSTM': tf.keras.Model(
          tokens, keras.Dense(3)(keras.LSTM(4)(sequence)))}


def compared_network(folder: pathlib.Path, network: tf.keras.Model,
                     tensorflow: str) -> tuple[str, float]:
  """Version, and largest difference of the outputs of a network in a new folder."""
  rng = np.random.default_rng(0)
  for weight in network.weights:
    weight.assign(rng.normal(size=weight.shape))
  inputs = [rng.integers(9, size=(20, *tensor.shape[1:])).astype(
      tensor.dtype.as_numpy_dtype) for tensor in network.inputs]
  folder.mkdir()
  models.write_keras(folder / models.KERAS, network)
  np.savez(folder / 'x.npz', *inputs)
  results = _alone(folder, '', tensorflow)
  outputs = network(inputs if len(inputs) > 1 else inputs[0])
  return results['version'], float(np.max(np.abs(outputs - results['Keras'])))


def _alone(export_folder: pathlib.Path, rows: str, tensorflow: str) -> dict[str, Any]:
  """The result of published_alone in an environment."""
  output = f'{export_folder}.json'
  subprocess.run(
      [tensorflow, '-I', published_alone.__file__, export_folder, rows, output],
      check=True, env=_clean(), capture_output=True)
  return json.loads(pathlib.Path(output).read_text(encoding='utf-8'))


def _clean() -> dict[str, str]:
  return {**os.environ, 'PYTHONPATH': '', 'TF_CPP_MIN_LOG_LEVEL': '3'}


def predictions(path: pathlib.Path) -> tuple[np.ndarray, list[str]]:
  """Values [rows], or probabilities [rows, classes] and classes, of a CSV file."""
  with open(path, encoding='utf-8', newline='') as file:
    rows = list(csv.DictReader(file))
  names = [name for name in rows[0] if name.startswith('probability_')] or ['value']
  values = np.array([[float(row[name]) for name in names] for row in rows])
  return values, [row['class'] for row in rows if 'class' in row]


def compared(run: pathlib.Path, tensorflow: str, numpy: list[str]
             ) -> Iterator[tuple[str, str, float]]:
  """Form, version, and largest difference of a form's predictions from `predict`'s.

  A relative difference for values. `tensorflow` and `numpy` are the interpreter and the
  command that starts one; the environment's own packages alone are there.
  """
  rows, (wanted, classes) = run.parent / 'rows.csv', predictions(
      run.with_suffix('.csv'))
  scale = 1 if classes else np.abs(wanted)

  def difference(values, names):
    if names != classes:
      raise ValueError('classes differ')
    return float(np.max(np.abs(
        np.reshape(values, wanted.shape) - wanted) / scale))

  for form in ('savedmodel', 'keras'):
    results = _alone(pathlib.Path(f'{run}-{form}'), str(rows), tensorflow)
    version, names = results.pop('version'), results.pop('class', classes)
    for name, values in results.items():
      yield name, f'TensorFlow {version}', difference(values, names)
  output = pathlib.Path(f'{run}-npz.csv')
  with open(output, 'wb') as file:
    subprocess.run([*numpy, f'{run}-npz/model.py', str(rows)], check=True, stdout=file,
                   env=_clean())
  version = subprocess.run([*numpy, '-c', 'import numpy; print(numpy.__version__)'],
                           check=True, capture_output=True, text=True, env=_clean())
  yield 'model.py', f'NumPy {version.stdout.strip()}', difference(*predictions(output))


def _environment(folder: pathlib.Path, package: str) -> str:
  """The interpreter of a new environment with one package and what it needs."""
  subprocess.run([sys.executable, '-m', 'venv', folder / package], check=True)
  python = folder / package / 'bin' / 'python'
  subprocess.run([python, '-m', 'pip', 'install', '--quiet', package], check=True)
  return str(python)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  for package in ('tensorflow', 'numpy'):
    parser.add_argument(f'--{package}', help='interpreter of an environment of it')
  given = parser.parse_args()
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    tensorflow = given.tensorflow or _environment(folder, 'tensorflow-cpu')
    numpy = given.numpy or _environment(folder, 'numpy')
    write_table(folder)
    lines = ['| label, or layers | model | form | environment | difference |',
             '|---|---|---|---|---|']
    for label, names in CASES.items():
      for model in names:
        for form, version, difference in compared(
            trained(folder, label, model), tensorflow, [numpy, '-I']):
          if difference > TOLERANCE:
            raise SystemExit(f'{label} {model} {form}: {difference:g}')
          lines.append(
              f'| {label} | {model} | {form} | {version} | {difference:.1g} |')
    for i, (layers, network) in enumerate(networks().items()):
      version, difference = compared_network(
          folder / f'network_{i}', network, tensorflow)
      if difference > TOLERANCE:
        raise SystemExit(f'{layers}: {difference:g}')
      lines.append(f'| {layers} | | Keras | TensorFlow {version} | {difference:.1g} |')
  print('\n'.join(lines))


if __name__ == '__main__':
  main()
