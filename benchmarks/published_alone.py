"""Predicts by a published model in an environment without this project.

  PYTHON published_alone.py EXPORT ROWS.csv OUTPUT.json

Needs TensorFlow. Writes {form: predictions} of the SavedModel or the Keras file in the
export: probabilities [rows, classes], or values [rows]. The inputs of the Keras file
are in EXPORT/x.npz, in their order.
"""

import csv
import json
import pathlib
import sys

import numpy as np
import tensorflow as tf


def main(export: pathlib.Path, rows: str, output: str) -> None:
  results = {'version': tf.__version__}
  if (export / 'saved_model').exists():
    described = json.loads((export / 'model.json').read_text())['columns']
    with open(rows, encoding='utf-8', newline='') as file:
      table = list(csv.DictReader(file))
    columns = {}
    for name, column in described.items():
      cells = [row[name] for row in table]
      columns[column['input']] = tf.constant(
          cells if column['dtype'] == 'string' else [
              float(cell or 'nan') for cell in cells], column['dtype'])
    serve = tf.saved_model.load(str(export / 'saved_model')).signatures
    outputs = serve['serving_default'](**columns)
    results['SavedModel'] = outputs.get('value', outputs.get('probabilities'))
    if 'class' in outputs:
      results['class'] = [name.decode() for name in outputs['class'].numpy()]
  if (export / 'model.keras').exists():
    network = tf.keras.models.load_model(export / 'model.keras')
    with np.load(export / 'x.npz') as arrays:
      inputs = [arrays[name] for name in arrays.files]
    results['Keras'] = network(inputs if len(inputs) > 1 else inputs[0])
  pathlib.Path(output).write_text(json.dumps({
      name: np.asarray(value).tolist() for name, value in results.items()}))


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
