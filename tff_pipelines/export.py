"""Exports the model that a run trained, with a privacy statement to publish.

  python -m tff_pipelines.export --run=out/run --output_dir=out/model
  python -m tff_pipelines.export --run=out/run --output_dir=out/npz --format=npz

The folder gets the model, its weights (model.npz), model.json (its inputs, outputs and
classes), the files of the task that it needs, and the statement: privacy.json, and
PRIVACY.md in plain words. A model of a table also gets model.py, which predicts from
raw rows with NumPy alone.
The statement has nothing that only the operator may know. A model that carries a
vocabulary that was counted in private texts, one of a seeded run, and a party's own
model say that they are not private.
"""

from tff_pipelines.experiment import cli
from tff_pipelines.publish.settings import ExportSettings

main = cli.program(__name__, ExportSettings, 'tff_pipelines.publish.export:export')
