"""Task: predict one column of a table from others.

One client is one person: all rows in which --client_field has one value. Columns are
encoded by what is publicly known of them; see tasks.tabular.columns.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np

from tasks import checks, task
from tasks.sources import further, labelled, open_source, records, tables
from tasks.tabular import (
    columns as columns_lib, models, serving as serving_lib, statistics)

SOURCES = tuple(sorted(('embedded', *open_source.FORMATS)))

# Rows of the embedded table that no client has, and those for tests.
_SAMPLE, _TEST = 100, 113
_LABEL = 'diagnosis'
# Columns that a line of the plan names.
_SHOWN = 12

_NOTHING_KNOWN = (
    'task tabular needs what is publicly known of the columns: public_bounds, a JSON '
    'file of bounds and categories, or public_sample, a file of public rows')


@functools.lru_cache(maxsize=1)
def _embedded_table() -> dict[str, np.ndarray]:
  """The 569 tumours that ship with scikit-learn: 30 measurements and the diagnosis."""
  # scikit-learn takes a second to import, which the other sources need not pay.
  from sklearn import datasets  # pylint: disable=g-import-not-at-top
  data = datasets.load_breast_cancer()
  order = np.random.default_rng(labelled.SPLIT_SEED).permutation(len(data.target))
  table = {str(name).replace(' ', '_'): column[order]
           for name, column in zip(data.feature_names, data.data.T)}
  return {**table, _LABEL: np.array(data.target_names, object)[data.target[order]]}


def _embedded_rows(start: int, end: int | None = None) -> dict[str, np.ndarray]:
  return {name: column[start:end] for name, column in _embedded_table().items()}


def open_embedded(*, num_clients: int = 200) -> records.RawData:
  """Opens the embedded table, over simulated clients with consecutive rows.

  Raises ValueError unless they are from 1 to the 356 training rows.
  """
  rows = _embedded_rows(_SAMPLE + _TEST)
  count = len(rows[_LABEL])
  checks.integer('num_clients', num_clients, 1, count, 'training rows')
  return records.RawData(
      train=records.ArraysByClient(rows, np.arange(count) * num_clients // count),
      test=records.ArraysByClient(
          _embedded_rows(_SAMPLE, _SAMPLE + _TEST), np.full(_TEST, 'nobody')),
      skips=task.Skips())


STATED = task.Note('public sample stated as public', 'columns are standardised by rows '
                   'that the user states are public: no epsilon protects those whose '
                   'rows they are')


def _choose_columns(public_bounds: str | None, public_sample: str | None,
                    data_source: str, data_options: Mapping[str, Any], *,
                    label_field: str, feature_fields: Sequence[str] | None,
                    client_field: str | None, classes: Sequence[str],
                    class_weights: Sequence[str] | None, has_release: bool
                    ) -> tuple[columns_lib.Columns, dict[str, list[str]]]:
  """The columns that files describe; bounds take precedence over a sample.

  Returns the columns, and label and names of the other columns that the plan shows.
  """
  known = {} if public_bounds is None else columns_lib.read(public_bounds)
  columns, sample = known, {}
  if not isinstance(known, columns_lib.Columns):
    if data_source == 'embedded':
      label_field, sample = _LABEL, _embedded_rows(0, _SAMPLE)
    elif public_sample is not None:
      open_source.check_public('public_sample', public_sample, data_options)
      sample = columns_lib.read_sample(public_sample)
    known = {**columns_lib.sampled(
        sample, feature_fields and [*feature_fields, label_field],
        {client_field, *known}), **known}
    if not known:
      raise ValueError(_NOTHING_KNOWN)
    columns = columns_lib.choose(
        known, label_field=label_field, feature_fields=feature_fields,
        client_field=client_field, classes=classes,
        made_from=columns_lib.SAMPLE if sample else columns_lib.BOUNDS)
    if class_weights is not None:
      columns = _weighted(columns, class_weights, sample, has_release)
  names = dict.fromkeys([*sample, *(known if columns is not known else ())])
  if data_options.get('data_path') and data_source in open_source.FORMATS:
    names |= dict.fromkeys(open_source.columns(data_source, data_options['data_path']))
  used = {client_field, *(field.name for field in columns.fields)}
  return columns, {
      'left out': [name for name in names
                   if name not in used and not tables.is_index(name)],
      'doubtful': columns_lib.doubtful(sample, (*columns.features, columns.label))}


def _hidden(columns: columns_lib.Columns) -> list[task.Note]:
  """A note on the columns whose noised statistics say nothing."""
  names = [column.name for column in columns.features
           if isinstance(column, columns_lib.Number) and column.has_scale_of_bounds]
  return [task.Note(
      'deviations hidden by noise',
      f'{", ".join(names)}: noise hides the deviation, so the bounds stand for it; a '
      'larger statistics_epsilon, or narrower bounds, would show it')] * bool(names)


def _plan_lines(columns: columns_lib.Columns, more: Mapping[str, Sequence[str]]
                ) -> list[tuple[str, str]]:
  """Label and text of the lines of the plan; long lists end with a count."""
  lines = {'features': list(map(str, columns.features)),
           'target': [str(columns.label)], **more}
  return [(label, ', '.join(names if len(names) <= _SHOWN else [
      *names[:_SHOWN - 1], f'{len(names) - _SHOWN + 1} more']))
          for label, names in lines.items() if names]


BALANCED = 'balanced'


def _weighted(columns: columns_lib.Columns, class_weights: Sequence[str],
              sample: columns_lib.Sample, has_release: bool) -> columns_lib.Columns:
  """The columns with weights of classes: those given, or by public rows."""
  label = columns.label
  if not columns.is_classification:
    raise ValueError(f'class_weights needs a label with classes, {label.name!r} is a '
                     'number')
  if list(class_weights) != [BALANCED]:
    try:
      weights = tuple(map(float, class_weights))
    except ValueError:
      raise checks.wrong('class_weights', f'numbers or {BALANCED}',
                         ','.join(class_weights)) from None
    label = dataclasses.replace(label, weights=weights)
  elif label.name in sample:
    label = columns_lib.balanced(label, columns_lib.count(label, sample))
  elif not has_release:
    raise ValueError(
        f'class_weights={BALANCED} needs frequencies of the classes: a public_sample '
        f'with {label.name!r}, or statistics_epsilon, to release them with noise')
  return dataclasses.replace(columns, label=label)


def _mapped(raw: task.ClientSource, columns: columns_lib.Columns, missing: str,
            has_labels: bool = True) -> records.MappedSource:
  """The examples of raw rows, with labels or without."""
  def convert(raw: records.RawExamples) -> dict[str, np.ndarray]:
    examples = {'x': columns.encode(raw, missing)}
    if has_labels:
      examples['y'] = columns.label.target(raw[columns.label.name])
    return examples
  spec = element_spec(columns)
  return records.MappedSource(raw, convert, spec if has_labels else {'x': spec['x']})


def _serving(columns: columns_lib.Columns, model: str | None, missing: str,
             recorded: Mapping[str, Any]) -> task.Serving:
  """The trained model of columns; `recorded` are the options of the training."""

  def known(source: str) -> Sequence[str]:
    return ['num_clients'] if source == 'embedded' else further.of_files(source)

  def read(*, labelled: bool, in_order: bool | None = None,
           **given: Any) -> task.ClientSource:
    source, options = further.source_of(recorded, given, known)
    if source == 'embedded':
      raw = open_embedded(**options)
      raw = further.concatenated([raw.train, raw.test], raw.skips)
    else:
      wanted = columns.fields if labelled else columns.fields[:-1]
      raw = further.open_files(source, wanted, in_order=in_order, **options)
    return _mapped(raw, columns, missing, labelled)

  built = dataclasses.replace(models.build(model, columns),
                              to_keras=functools.partial(serving_lib.to_keras, columns))
  return task.Serving(model=built, inputs={'x': element_spec(columns)['x']}, reader=read,
                      raw=serving_lib.raw_columns(columns, missing),
                      files={columns_lib.FILE: columns.dumps()})


def serving(inputs: task.Spec, weights: task.Weights, *, model: str | None = None,
            public_bounds: str | None = None, missing: str | None = None,
            **options: Any) -> task.Serving:
  """The trained model, by the columns that the run kept; see registry.serving."""
  del inputs, weights
  columns = None if public_bounds is None else columns_lib.read(public_bounds)
  if not isinstance(columns, columns_lib.Columns):
    raise ValueError(f'the run has no {columns_lib.FILE}, which its model needs')
  missing = checks.choice('missing', missing, columns_lib.MISSING, columns_lib.ERROR)
  return _serving(columns, model, missing, options)


def element_spec(columns: columns_lib.Columns) -> records.ElementSpec:
  """The features of examples."""
  label = np.int32 if columns.is_classification else np.float32
  return {'x': (np.dtype(np.float32), (columns.width,)), 'y': (np.dtype(label), ())}


def build(*, model: str | None = None, data_source: str | None = None,
          label_field: str = 'label', feature_fields: Sequence[str] | None = None,
          num_classes: int | None = None, class_names: Sequence[str] | None = None,
          public_bounds: str | None = None, public_sample: str | None = None,
          statistics_epsilon: float | None = None,
          class_weights: Sequence[str] | None = None, missing: str | None = None,
          held_out_fraction: float | None = None, **data_options: Any) -> task.Task:
  """Builds the task.

  Args:
    model: One of models.MODELS; None means logistic or linear, by the label.
    data_source: One of SOURCES; None means 'embedded'.
    label_field: Column to predict.
    feature_fields: Columns to learn from; None for all that are known but the label and
      the clients.
    num_classes, class_names: The label is an integer below, or one of these texts.
      Without either it is what the public bounds or the public sample say.
    public_bounds, public_sample: See columns.read, columns.read_sample. A file that a
      run kept decides alone.
    statistics_epsilon: Epsilon of the release of means and deviations between the
      public bounds, by which columns are standardised then; None for none.
    class_weights: Weight of each class in the loss, in their order, as texts; or
      BALANCED alone, by the public sample or by that release. None for 1.
    missing: One of columns.MISSING; None means 'error'.
    held_out_fraction: See records.with_held_out.
    **data_options: num_clients for 'embedded', else see open_source.open_raw.

  Raises ValueError on an unknown model, an option that the data source does not use,
  nothing known of a column, and bad data.
  """
  data_source = checks.choice('data_source', data_source, SOURCES, 'embedded')
  missing = checks.choice('missing', missing, columns_lib.MISSING, columns_lib.ERROR)
  is_embedded = data_source == 'embedded'
  columns, more = _choose_columns(
      public_bounds, public_sample, data_source, data_options,
      class_weights=class_weights, has_release=statistics_epsilon is not None,
      label_field=label_field, feature_fields=feature_fields,
      classes=labelled.named_classes(num_classes, class_names),
      client_field=data_options.get('client_field', 'client'))
  # Before the data are copied.
  checks.choice('model', model, models.MODELS[columns.is_classification],
                models.MODELS[columns.is_classification][0])
  is_complete = statistics_epsilon is None or columns.made_from == columns_lib.STATISTICS
  if not is_complete and (public_sample is not None or is_embedded):
    raise ValueError('statistics_epsilon is not used with a public sample')
  if is_embedded:
    raw = open_embedded(**checks.options('data_source embedded, without data_path,', {
        **data_options, 'num_classes': num_classes, 'class_names': class_names or None,
        'label_field': None if label_field == 'label' else label_field,
        'public_sample': public_sample, 'held_out_fraction': held_out_fraction or None,
    }, ['num_clients']))
    unit = f'one of {len(raw.train.client_ids)} simulated clients, not people'
  else:
    raw = open_source.open_raw(
        data_source, fields=columns.checked_fields(missing), **data_options)
    unit = 'one client of the files, with all its rows'

  def finish(columns: columns_lib.Columns) -> task.Task:
    train, test = (source and _mapped(source, columns, missing)
                   for source in (raw.train, raw.test))
    of_clients = None
    if is_embedded:
      held_out = {'test': records.gather(test)[0]}
    else:
      of_clients = records.of_population(test, train)
      train, held_out = records.with_held_out(
          train, test, skips=raw.skips, held_out_fraction=held_out_fraction)
    served = _serving(
        columns, model, missing, {'data_source': data_source, **data_options})
    noised = columns.made_from == columns_lib.STATISTICS
    stated = columns.made_from == columns_lib.SAMPLE and not is_embedded
    return task.Task(name='tabular', model=served.model, train=train, held_out=held_out,
                     held_out_of_clients=of_clients, privacy_unit=unit, skips=raw.skips,
                     files=served.files, reader=served.reader,
                     noised_files=(columns_lib.FILE,) if noised else (),
                     plan_lines=_plan_lines(columns, more),
                     warnings=[STATED] * stated + _hidden(columns) * noised)

  result = finish(columns)
  if is_complete:
    return result
  return dataclasses.replace(result, files={}, preliminary=statistics.release(
      records.SubsetSource(raw.train, result.train.client_ids), columns, raw.skips,
      missing, finish,
      counts_classes=class_weights is not None and not columns.label.weights))
