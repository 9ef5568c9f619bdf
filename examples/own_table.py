"""Trains on a table of one's own, with the model's inputs scaled by public bounds.

  python -m examples.own_table
"""

import json
import pathlib
import tempfile

import numpy as np
import pandas as pd

from tff_pipelines import api


def write_table(folder: pathlib.Path, people: int = 300) -> None:
  """A CSV file of people's days, and what is publicly known of its columns."""
  rng = np.random.default_rng(0)
  person = np.repeat(np.arange(people), 5)
  hours, coffee = rng.uniform(4, 10, person.size), rng.integers(0, 6, person.size)
  job = rng.choice(['clerk', 'cook'], people)[person]
  score = (20 + 6 * hours - 2 * coffee + 5 * (job == 'cook')
           + rng.normal(0, 3, person.size))
  pd.DataFrame(dict(person=person, hours_of_sleep=hours, coffee=coffee, job=job,
                    score=score)).to_csv(folder / 'days.csv', index=False)
  (folder / 'bounds.json').write_text(json.dumps({
      'hours_of_sleep': [0, 12], 'coffee': [0, 10], 'job': ['clerk', 'cook'],
      'score': [0, 100]}))


def main(rounds: int = 40) -> api.Result:
  """Trains, prints and returns the result."""
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    write_table(folder)
    result = api.train(api.TrainSettings(
        task='tabular', data_source='csv', data_path=str(folder / 'days.csv'),
        client_field='person', label_field='score', no_cache=True,
        public_bounds=str(folder / 'bounds.json'), epsilon=4, rounds=rounds,
        cohort_size=100, output_dir=str(folder / 'run')))
    print(result.guarantee.lines()[0])
    print(result.summary['held_out'])
  return result


if __name__ == '__main__':
  main()
