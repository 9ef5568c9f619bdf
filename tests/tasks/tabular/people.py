"""A table of people in every form that a table comes in, and what is public of it."""

import json

import numpy as np
import pandas

BOUNDS = {'age': [0, 100], 'job': ['clerk', 'cook', '7'], 'pay': [0, 50]}


def rows(clients: int = 12, seed: int = 0) -> pandas.DataFrame:
  """Two rows of each client; pay follows from age and job, except for noise."""
  rng = np.random.default_rng(seed)
  count = 2 * clients
  age, job = rng.integers(20, 70, count), rng.integers(0, 3, count)
  pay = 0.3 * age + 5.0 * job + rng.normal(size=count)
  return pandas.DataFrame({
      'person': [f'p{i // 2}' for i in range(count)], 'age': age.astype(float),
      'job': np.array(BOUNDS['job'], object)[job], 'pay': pay,
      'rich': np.where(pay > np.median(pay), 'yes', 'no').astype(object)})


def written(folder, table: pandas.DataFrame, form: str = 'csv') -> dict[str, str]:
  """Options of the data source that reads a table from a file of this format."""
  path = folder / f'people.{form}'
  if form == 'parquet':
    table.to_parquet(path)
  elif form == 'jsonl':
    path.write_text(table.to_json(orient='records', lines=True))
  else:
    table.to_csv(path, index=False)
  return dict(data_source=form, data_path=str(path), client_field='person')


def bounds(folder, **more) -> str:
  """Path of the public bounds, with more columns, or others in their place."""
  path = folder / f'{"-".join(["bounds", *more])}.json'
  path.write_text(json.dumps({**BOUNDS, **more}))
  return str(path)
