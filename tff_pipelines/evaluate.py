"""Evaluates the model that a run trained: on the run's own test data, or on others.

  python -m tff_pipelines.evaluate --run=out/run
  python -m tff_pipelines.evaluate --run=out/run --data_source=csv \\
      --data_path=digits.csv

Without data the metrics are those of the run's summary, computed again; an export
needs data. With data they are over all clients of the files, which are read and
converted as in the training.
"""

from tff_pipelines.experiment import cli
from tff_pipelines.publish.settings import EvaluateSettings

main = cli.program(__name__, EvaluateSettings, 'tff_pipelines.publish.apply:evaluate')
