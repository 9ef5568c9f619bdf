"""Predicts by a trained model, of a run or an export: one row for each example.

  python -m tff_pipelines.predict --run=out/run --data_source=csv \\
      --data_path=digits.csv --output=predictions.csv

A row has the client, if there is one, the index of the example, and the outputs of the
model: of a classifier the class and its probability, or with --probabilities all. Files
are read and converted as in the training; they need no labels. Of rows that are
examples, such as those of tables, the order is kept, and no client is needed.
"""

from tff_pipelines.experiment import cli
from tff_pipelines.publish.settings import PredictSettings

main = cli.program(__name__, PredictSettings, 'tff_pipelines.publish.apply:predict')
