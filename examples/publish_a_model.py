"""Trains a model, exports it with its privacy statement, and loads it again.

  python -m examples.publish_a_model
"""

import json
import pathlib
import tempfile

import tensorflow as tf

from tff_pipelines import api
from tff_pipelines.publish import export
from tff_pipelines.publish.settings import ExportSettings


def main(rounds: int = 20) -> dict[str, object]:
  """Trains, publishes into a folder, prints and returns the statement."""
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    api.train(api.TrainSettings(
        task='emnist', epsilon=8, rounds=rounds, output_dir=str(folder / 'run')))
    # Only the export is made to be published; the run's folder is the operator's.
    export.export(ExportSettings(
        run=str(folder / 'run'), output_dir=str(folder / 'published')))
    print((folder / 'published' / 'PRIVACY.md').read_text(encoding='utf-8'))
    statement = json.loads(
        (folder / 'published' / 'privacy.json').read_text(encoding='utf-8'))
    # This is all that a user of the model needs.
    model = tf.saved_model.load(str(folder / 'published' / 'saved_model'))
    outputs = model.signatures['serving_default'](x=tf.zeros([1, 28, 28], tf.uint8))
    print('class of an empty image:', outputs['class'].numpy())
  return statement


if __name__ == '__main__':
  main()
