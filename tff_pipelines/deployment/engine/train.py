"""`train` of all engines."""

from typing import Any

from tff_pipelines.deployment.engine.settings import AgreedSettings, ENGINES
from tff_pipelines.fedavg import run


def train(settings: AgreedSettings) -> dict[str, Any] | None:
  """Trains; with engine=grpc or pipes as the leader of an agreement (see `fedavg.run.train`)."""
  if settings.engine not in ENGINES:
    return run.train(settings)
  # It imports gRPC and cryptography.
  # pylint: disable-next=g-import-not-at-top
  from tff_pipelines.deployment.engine import experiment
  return experiment.Experiment(settings).run()
