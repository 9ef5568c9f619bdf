"""Evaluates a trained model and predicts by it, on the data of the run or on others."""

from collections.abc import Iterator, Sequence
import json
import pathlib
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from tasks import checks, task as task_lib
from tasks.sources import further, records
from tff_pipelines.common import files
from tff_pipelines.fedavg import report
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
  # Readers of one's own may know no order.
  if not labelled and 'in_order' in checks.keywords(serving.reader)[0]:
    options = {**options, 'in_order': True}
  return trained, serving, serving.reader(labelled=labelled, **options)


def evaluate(settings: EvaluateSettings) -> None:
  """Prints the metrics of a model; OSError or ValueError for mistakes of the user."""
  run = run_lib.read_finished(settings.run, settings.party)
  if not (options := settings.reader_options):
    results, skipped = run.own_figures(), None
  else:
    trained, serving, source = _opened(run, options, labelled=True)
    skips = getattr(source, 'skips', None)
    examples, _ = records.gather(source, skips=skips)
    results = report.scored(serving.model, trained.weights, {DATA: examples})
    skipped = skips and skips.describe()
  if settings.format == 'json':
    print(json.dumps(results, allow_nan=False))
  else:
    for name, values in results.items():
      print(report.in_words(name, values))
    print('metrics are exact: no epsilon is theirs')
  if skipped:
    print(skipped, file=sys.stderr)


def _examples(source: task_lib.ClientSource, skips: task_lib.Skips
              ) -> Iterator[tuple[list[dict[str, Any]], task_lib.Examples]]:
  """Columns that name examples, and the examples, of a client or a chunk of rows."""
  if not getattr(source, 'in_order', False):
    for client, examples in skips.examples(source):
      count = len(next(iter(examples.values())))
      yield [{'client': client, 'index': i} for i in range(count)], examples
    return
  has_clients = source.has_clients

  def read(rows: Sequence[further.InputRow]):
    try:
      examples = source.examples(rows)
    except task_lib.BadClientError as error:
      if len(rows) == 1:
        skips.client(None, error)
      else:  # By the row, so that the bad one is named, or skipped.
        for row in rows:
          yield from read((row,))
      return
    yield [{**({'client': row.client or ''} if has_clients else {}),
            'index': row.index} for row in rows], examples

  for chunk in source.client_ids:
    yield from read(chunk)


def _predictions(serving: task_lib.Serving, weights, source: task_lib.ClientSource,
                 skips: task_lib.Skips, probabilities: bool
                 ) -> Iterator[list[dict[str, Any]]]:
  """The rows of each batch: client, index, and outputs."""
  predict = export.predict_function(serving, [tf.constant(w) for w in weights])
  for named, examples in _examples(source, skips):
    for start in range(0, len(named), serving.model.evaluation_batch):
      rows = slice(start, start + serving.model.evaluation_batch)
      outputs = {name: output.numpy() for name, output in predict(*(
          tf.constant(examples[name][rows]) for name in serving.inputs)).items()}
      columns = _columns(serving, outputs, probabilities)
      yield [{**name, **dict(zip(columns, cells))} for name, cells in zip(
          named[rows], zip(*columns.values()), strict=True)]


def _columns(serving: task_lib.Serving, outputs: dict[str, np.ndarray],
             probabilities: bool) -> dict[str, list]:
  """Name of a column -> its cells: the class by name, and its probability or all."""
  columns, chances = {}, outputs.pop('probabilities', None)
  names = export.class_names(serving, None if chances is None else chances.shape[-1])
  if 'class' in outputs and outputs['class'].ndim == 1:
    chosen = outputs.pop('class')
    columns['class'] = [names[i] for i in chosen] if names else chosen.tolist()
    if chances is not None:
      columns['probability'] = chances[np.arange(len(chosen)), chosen].tolist()
      if probabilities:
        columns |= {f'probability_{name}': cells for name, cells in zip(
            names or range(chances.shape[1]), chances.T.tolist())}
  elif chances is not None:
    outputs['probabilities'] = chances
  for name, values in outputs.items():
    flat = values.reshape(len(values), -1)
    for i in range(flat.shape[1]):
      columns[name if values.ndim == 1 else f'{name}_{i}'] = flat[:, i].tolist()
  return columns


def predict(settings: PredictSettings) -> None:
  """Writes one row for each example: client, index, outputs; errors as `evaluate`."""
  trained, serving, source = _opened(run_lib.read_finished(settings.run, settings.party),
                                     settings.reader_options, labelled=False)
  skips = getattr(source, 'skips', None) or task_lib.Skips()
  path = pathlib.Path(settings.output)
  path.parent.mkdir(parents=True, exist_ok=True)
  count = files.write_batches(path, _predictions(
      serving, trained.weights, source, skips, settings.probabilities is True))
  files.publish(path)
  if items := skips.items():
    print(f'skipped {len(items)} bad rows, or clients; the first: {items[0][1]}',
          file=sys.stderr)
  print(f'{count:,} predictions written to {path}')
