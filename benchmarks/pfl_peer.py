"""Rounds of Apple's pfl, as a peer of benchmarks/round.py; runs in its own Python.

Reads lines from standard input. The first is JSON: model ('cnn' or 'softmax'),
clients, examples, batch, threads. Every further line asks for one round, which
is answered by a line when it is done. Federated averaging with pfl's central
Gaussian mechanism; nothing is evaluated.
"""

from collections.abc import Callable, Iterable, Mapping
import json
import sys
from typing import Any

import numpy as np


def build_round(setting: Mapping[str, Any]) -> tuple[int, Callable[[], None]]:
  """The number of the model's parameters, and a function that runs a round.

  Args:
    setting: The first line.
  """
  # pylint: disable=g-import-not-at-top
  from pfl.aggregate.simulate import SimulatedBackend
  from pfl.algorithm.base import NNAlgorithmParams
  from pfl.algorithm.federated_averaging import FederatedAveraging
  from pfl.data.dataset import Dataset
  from pfl.data.federated_dataset import FederatedDataset
  from pfl.data.sampling import get_user_sampler
  from pfl.hyperparam import NNTrainHyperParams
  from pfl.model.pytorch import PyTorchModel
  from pfl.privacy.gaussian_mechanism import GaussianMechanism
  from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
  import torch
  from torch import nn
  # pylint: enable=g-import-not-at-top

  class Classifier(nn.Sequential):
    """Layers under the loss that pfl needs."""

    def loss(self, x, y, is_eval=False):
      self.train(not is_eval)
      return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x, y, is_eval=True):
      del x, y, is_eval
      return {}

  torch.set_num_threads(setting['threads'])
  clients, examples = setting['clients'], setting['examples']
  rng = np.random.default_rng(0)
  if setting['model'] == 'softmax':
    classes, network = 10, Classifier(nn.Flatten(), nn.Linear(784, 10))
  else:
    classes, network = 62, Classifier(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3),
        nn.ReLU(), nn.Dropout(0.25), nn.Flatten(), nn.Linear(11 * 11 * 64, 128),
        nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 62))
  # Tensors are built once, as pfl's own benchmarks do.
  data = [
      Dataset((torch.from_numpy(rng.random((examples, 1, 28, 28), np.float32)),
               torch.from_numpy(rng.integers(0, classes, examples))))
      for _ in range(clients)]
  sampler = get_user_sampler('minimize_reuse', list(range(clients)))
  dataset = FederatedDataset(lambda user: data[user], sampler)
  model = PyTorchModel(
      model=network, local_optimizer_create=torch.optim.SGD,
      central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0))
  backend = SimulatedBackend(
      training_data=dataset, val_data=dataset,
      postprocessors=[
          CentrallyAppliedPrivacyMechanism(GaussianMechanism(1.0, 1.0))])
  algorithm = FederatedAveraging()
  local = NNTrainHyperParams(
      local_batch_size=setting['batch'], local_num_epochs=1,
      local_learning_rate=0.01)
  rounds = 0

  def run():
    nonlocal model, rounds
    rounds += 1
    # A second run continues where the first ended.
    model = algorithm.run(
        NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=10**9,
            train_cohort_size=clients, val_cohort_size=None),
        backend, model, model_train_params=local)

  return sum(p.numel() for p in network.parameters()), run


def main(lines: Iterable[str] | None = None, build: Callable = build_round) -> None:
  """Answers the lines.

  Args:
    lines: The setting and the requests; None for standard input.
    build: Builds the round of a setting.
  """
  lines = iter(sys.stdin if lines is None else lines)
  parameters, run = build(json.loads(next(lines)))
  print(json.dumps(dict(parameters=parameters)), flush=True)
  for _ in lines:
    run()
    print('done', flush=True)


if __name__ == '__main__':
  main()
