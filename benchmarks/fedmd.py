"""Speed of a round of FedMD, against Keras models fitted one after another.

  python -m benchmarks.fedmd [--quick] [--json=FILE] [--repeats=N]

A round of parties with networks of three architectures: digest the consensus on
public records, revisit the own ones, predict on new ones, average; epochs, batches
and learning rates are the defaults of `fedmd`. Ours is the TFF process that
`fedmd` runs, in this process, secure aggregation simulated. The peer does the same
with `tf.keras` models of the same layers, batches and optimizer, in this process too:
`fit`, `fit`, `predict`, mean. Both use the same synthetic images, which are not
mirrored: the peer would need an input pipeline for that. See benchmarks/README.md.
"""

import argparse
import collections
from collections.abc import Sequence
import dataclasses

import numpy as np
import tensorflow as tf

from aggregators.prediction_params import PredictionMeanParams
from benchmarks import measure
from tasks.models import fedmd as fedmd_models
from tff_pipelines.fedmd import process as fedmd
from tff_pipelines.fedmd.process import FitConfig
from tff_pipelines.fedmd.settings import FedMdSettings
from tff_pipelines.simulation import contexts

CLASSES = 6
_DEFAULTS = FedMdSettings()
RATE = _DEFAULTS.digest_learning_rate
PRIVATE_BATCH = _DEFAULTS.client_batch_size
DIGEST_BATCH = _DEFAULTS.digest_batch_size
DIGEST_EPOCHS = _DEFAULTS.digest_epochs
REVISIT_EPOCHS = _DEFAULTS.revisit_epochs
ARCHITECTURES = ('conv2', 'conv3', 'mixed3')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """Sizes of a round.

  Attributes:
    name: Name of the row.
    image: Height, width, channels.
    parties: Number of parties.
    records: Private records of a party.
    public: Public records of a round.
    target: Target of the ratio; None for none.
  """

  name: str
  image: tuple[int, int, int]
  parties: int
  records: int
  public: int
  target: float | None = None

  @property
  def sizes(self) -> str:
    return f'{self.parties} x {self.records}, {self.public} public'


SETTINGS = (
    Setting(name='CIFAR sizes', image=(32, 32, 3), parties=10, records=300,
            public=5000, target=1.5),
    Setting(name='MNIST sizes', image=(28, 28, 1), parties=10, records=869,
            public=5000, target=1.5),
    Setting(name='CIFAR sizes, k = 16', image=(32, 32, 3), parties=10, records=16,
            public=5000, target=1.5),
    Setting(name='digits', image=(8, 8, 1), parties=10, records=85, public=200,
            target=1.5),
)
QUICK_SETTINGS = (
    Setting(name='tiny', image=(8, 8, 1), parties=3, records=20, public=40),)


class Data:
  """Synthetic images, new public ones for every round."""

  def __init__(self, setting: Setting):
    self._setting = setting
    self._rng = np.random.default_rng(0)
    self.private = [
        (self.images(setting.records),
         self._rng.integers(CLASSES, size=setting.records).astype(np.int32))
        for _ in range(setting.parties)]
    self.pool = self.images(2 * setting.public)

  def images(self, count: int) -> np.ndarray:
    return self._rng.integers(
        0, 256, (count, *self._setting.image), dtype=np.uint8)

  def subset(self) -> np.ndarray:
    rows = self._rng.choice(len(self.pool), self._setting.public, replace=False)
    return self.pool[rows]


def our_round(setting: Setting, data: Data):
  """Returns a function that runs a round of our process, as `fedmd` calls it."""
  architectures = [
      fedmd_models.build(name, setting.image, CLASSES) for name in ARCHITECTURES]
  process = fedmd.build(
      architectures, image_shape=setting.image,
      mean=PredictionMeanParams(
          knowledge='logits', records=setting.public, classes=CLASSES,
          max_total_weight=setting.parties),
      initial_epochs=0,
      private=FitConfig(learning_rate=RATE, batch_size=PRIVATE_BATCH),
      digest=FitConfig(learning_rate=RATE, batch_size=DIGEST_BATCH))
  parties = [
      fedmd.new_party(i, i % len(architectures),
                      architectures[i % len(architectures)].initial_weights(i),
                      np.array([i, 1]))
      for i in range(setting.parties)]
  private = [collections.OrderedDict(images=x, labels=y, weight=np.int32(1))
             for x, y in data.private]
  state = dict(server=process.initialize(), parties=parties, public=data.subset())

  def run():
    chosen = data.subset()
    announced = collections.OrderedDict(
        digest_images=state['public'], digest_epochs=np.int32(DIGEST_EPOCHS),
        revisit_epochs=np.int32(REVISIT_EPOCHS), rate_factor=np.float32(1),
        predict_images=chosen, share=np.bool_(True))
    output = process.next(state['server'], announced, state['parties'], private)
    state.update(server=output['state'], parties=list(output['parties']),
                 public=chosen)

  return run


def keras_model(name: str, image) -> tf.keras.Model:
  """Builds the same network as ours of this name."""
  keras = tf.keras.layers
  layers = [keras.Rescaling(1 / 255, offset=-0.5, input_shape=image)]
  for layer in fedmd_models.build(name, image, CLASSES).layers:
    if isinstance(layer, fedmd_models.Shrink):
      layers.append(keras.AveragePooling2D())
    elif isinstance(layer, fedmd_models.Hidden):
      layers += [keras.Flatten(), keras.Dense(layer.units, activation='relu')]
    else:
      layers.append(keras.Conv2D(
          layer.filters, layer.size, strides=layer.stride, activation='relu'))
      if layer.pool > 1:
        layers.append(keras.MaxPool2D(layer.pool))
  return tf.keras.Sequential([*layers, keras.Flatten(), keras.Dense(CLASSES)])


def keras_round(setting: Setting, data: Data):
  """Returns a function that runs a round of Keras models, party after party.

  A compiled model has one loss, so a party has two models that share their layers:
  one that is compiled again in every round would be traced again.
  """
  parties = []
  for i in range(setting.parties):
    digest = keras_model(ARCHITECTURES[i % len(ARCHITECTURES)], setting.image)
    digest.compile(tf.keras.optimizers.Adam(RATE), 'mae')
    revisit = tf.keras.Sequential(digest.layers)
    revisit.compile(
        tf.keras.optimizers.Adam(RATE),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    parties.append((digest, revisit))
  state = dict(public=data.subset(),
               consensus=np.zeros([setting.public, CLASSES], np.float32))

  def run():
    chosen = data.subset()
    predictions = []
    for (digest, revisit), (x, y) in zip(parties, data.private):
      digest.fit(state['public'], state['consensus'], epochs=DIGEST_EPOCHS,
                 batch_size=DIGEST_BATCH, verbose=0)
      revisit.fit(x, y, epochs=REVISIT_EPOCHS, batch_size=PRIVATE_BATCH, verbose=0)
      predictions.append(digest.predict(chosen, batch_size=500, verbose=0))
    state.update(public=chosen, consensus=np.mean(predictions, axis=0))

  return run


def rounds(setting: Setting, repeats: int, warm_ups: int) -> list[measure.Row]:
  """Measures both alternately: wall and processor time of a round."""
  with contexts.simulation():
    times = measure.in_turns(
        {'ours': our_round(setting, Data(setting)),
         'keras': keras_round(setting, Data(setting))}, repeats, warm_ups)
  rows = []
  for i, unit in enumerate(('s/round', 'cpu-s/round')):
    rows.append(measure.Row(
        name=f'FedMD, {setting.name}', sizes=setting.sizes,
        ours=times['ours'].medians()[i], peer=times['keras'].medians()[i],
        unit=unit, target=setting.target))
    measure.show(rows[-1])
  return rows


def main(arguments: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
  parser.add_argument('--quick', action='store_true', help='smoke test of tiny sizes')
  parser.add_argument('--json', help='file for the rows')
  parser.add_argument('--repeats', type=int, default=7, help='turns, >= 1')
  parser.add_argument('--only', help='prefix of the names of settings')
  flags = parser.parse_args(arguments)
  tf.get_logger().setLevel('CRITICAL')  # Silences Keras's warnings of retracing.
  measure.heading()
  rows = []
  for setting in QUICK_SETTINGS if flags.quick else SETTINGS:
    if setting.name.startswith(flags.only or ''):
      rows += rounds(setting, *((1, 0) if flags.quick else (flags.repeats, 2)))
  measure.write(rows, flags.json)


if __name__ == '__main__':
  main()
