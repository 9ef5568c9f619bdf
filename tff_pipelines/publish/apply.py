"""Evaluates a trained model and predicts by it, on the data of the run or on others."""

from collections.abc import Iterator
import io
import json
import pathlib
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from tasks import task as task_lib
from tasks.sources import records
from tff_pipelines.common import files
from tff_pipelines.fedavg import evaluation, report, scores
from tff_pipelines.publish import export, run as run_lib
from tff_pipelines.publish.settings import EvaluateSettings, PredictSettings

# Name of a set of further data.
DATA = 'data'


def _opened(run: run_lib.FinishedRun, options: dict[str, Any], labelled: bool):
  """The trained model, how it is served, and the source of further data."""
  trained = run.trained()
  serving = run.serving(trained)
  if serving.reader is None:
    raise ValueError('the task must have a reader of further files, found none')
  return trained, serving, serving.reader(labelled=labelled, **options)


def evaluate(settings: EvaluateSettings) -> None:
  """Prints the metrics of a model; OSError or ValueError for mistakes of the user."""
  run = run_lib.read_finished(settings.run, settings.party)
  options = settings.reader_options
  if not options:
    results, skipped = run.own_figures(), None
  else:
    trained, serving, source = _opened(run, options, labelled=True)
    skips = getattr(source, 'skips', None)
    examples, _ = records.gather(source, skips=skips)
    results = report.finite_results(scores.with_scores(
        evaluation.Evaluator(serving.model, {DATA: examples}).evaluate(trained.weights),
        serving.model, trained.weights, {DATA: examples}))
    skipped = skips and skips.describe()
  if settings.format == 'json':
    print(json.dumps(results, allow_nan=False))
  else:
    for name, values in results.items():
      print(report.in_words(name, values))
    print('metrics are exact: no epsilon is theirs')
  if skipped:
    print(skipped, file=sys.stderr)


def _predictions(serving: task_lib.Serving, weights, source: task_lib.ClientSource,
                 skips: task_lib.Skips) -> Iterator[dict[str, Any]]:
  """The row of each example: its client, its index there, and its outputs."""
  predict = export.predict_function(serving, [tf.constant(w) for w in weights])
  for client in source.client_ids:
    try:
      examples = source.examples(client)
    except task_lib.BadClientError as error:
      skips.client(client, error)
      continue
    count = len(examples[next(iter(serving.inputs))])
    for start in range(0, count, serving.model.evaluation_batch):
      stop = min(count, start + serving.model.evaluation_batch)
      outputs = {name: output.numpy() for name, output in predict(*(
          tf.constant(examples[name][start:stop]) for name in serving.inputs)).items()}
      columns = _columns(serving, outputs)
      for row in range(stop - start):
        yield {'client': client, 'index': start + row, **{
            name: values[row] for name, values in columns.items()}}


def _columns(serving: task_lib.Serving, outputs: dict[str, np.ndarray]
             ) -> dict[str, list]:
  """Name of a column -> its cells: the class by name, and its probability."""
  columns, chances = {}, outputs.pop('probabilities', None)
  if 'class' in outputs and outputs['class'].ndim == 1:
    chosen = outputs.pop('class')
    names = export.class_names(
        serving, None if chances is None else chances.shape[1])
    columns['class'] = [names[i] for i in chosen] if names else chosen.tolist()
    if chances is not None:
      columns['probability'] = chances[np.arange(len(chosen)), chosen].tolist()
  elif chances is not None:
    outputs['probabilities'] = chances
  for name, values in outputs.items():
    flat = values.reshape(len(values), -1)
    for i in range(flat.shape[1]):
      columns[name if values.ndim == 1 else f'{name}_{i}'] = flat[:, i].tolist()
  return columns


def predict(settings: PredictSettings) -> None:
  """Writes one row for each example: client, index, outputs; errors as `evaluate`."""
  trained, serving, source = _opened(
      run_lib.read_finished(settings.run, settings.party), settings.reader_options,
      labelled=False)
  skips = getattr(source, 'skips', None) or task_lib.Skips()
  rows = list(_predictions(serving, trained.weights, source, skips))
  if not rows:
    raise ValueError('there is no example to predict')
  path = pathlib.Path(settings.output)
  path.parent.mkdir(parents=True, exist_ok=True)
  if path.suffix == '.csv':
    files.write_table(path, rows)
  else:
    # Takes a quarter of a second to import.
    import pyarrow  # pylint: disable=g-import-not-at-top
    from pyarrow import parquet  # pylint: disable=g-import-not-at-top
    content = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), content)
    files.write_bytes(path, content.getvalue())
  files.publish(path)
  if skipped := skips.describe():
    print(skipped, file=sys.stderr)
  print(f'{len(rows):,} predictions written to {path}')
