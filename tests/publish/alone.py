"""TensorFlow in a process that knows nothing of this project; it serves models.

One process serves all tests of a session: TensorFlow takes seconds to import.
"""

import atexit
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

_SERVER = '''
import json, sys
import numpy as np, tensorflow as tf
for line in sys.stdin:
  model, folder = json.loads(line)
  with np.load(folder + "/features.npz") as arrays:
    features = {name: tf.constant(arrays[name]) for name in arrays.files}
  if model.endswith(".keras"):
    network = tf.keras.models.load_model(model)
    outputs = {"outputs": network(
        features if len(features) > 1 else next(iter(features.values())))}
  else:
    signatures = tf.saved_model.load(model).signatures
    serve = signatures.get("encoded", signatures["serving_default"])
    if not set(features) <= set(serve.structured_input_signature[1]):
      serve = signatures["serving_default"]
    assert set(serve.structured_input_signature[1]) == set(features)
    outputs = serve(**features)
  np.savez(folder + "/outputs.npz", **{k: v.numpy() for k, v in outputs.items()})
  assert not {name.split(".")[0] for name in sys.modules} & {
      "tasks", "tff_pipelines", "aggregators", "tests"}
  print("served", flush=True)
'''


@functools.cache
def _process() -> tuple[subprocess.Popen, str]:
  """The process and its folder."""
  folder = tempfile.TemporaryDirectory()
  process = subprocess.Popen(
      [sys.executable, '-c', _SERVER], cwd=folder.name, stdin=subprocess.PIPE,
      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
      env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3', 'PYTHONPATH': ''})

  @atexit.register
  def stop():
    process.stdin.close()
    process.wait()
    process.stdout.close()
    folder.cleanup()

  return process, folder.name


def served(model: pathlib.Path, **features: np.ndarray) -> dict[str, np.ndarray]:
  """Outputs of a SavedModel by name, or of a .keras file as 'outputs'."""
  process, folder = _process()
  np.savez(os.path.join(folder, 'features.npz'), **features)
  process.stdin.write(json.dumps([os.fspath(model), folder]) + '\n')
  process.stdin.flush()
  assert process.stdout.readline() == 'served\n', f'{model} is not served'
  with np.load(os.path.join(folder, 'outputs.npz')) as arrays:
    return dict(arrays)
