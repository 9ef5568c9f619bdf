"""Predicts by the model that a run trained: one row for each example of the files.

  python -m tff_pipelines.predict --run=out/run --data_source=csv \\
      --data_path=digits.csv --output=predictions.csv

A row has the client, the index of the example among the client's, and the outputs of
the model: of a classifier the class and its probability. Files are read and converted
as in the training; they need no labels.
"""

from tff_pipelines.experiment import cli
from tff_pipelines.publish.settings import PredictSettings

main = cli.program(__name__, PredictSettings, 'tff_pipelines.publish.apply:predict')
