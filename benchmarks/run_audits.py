"""Audits of whole runs: what canaries measure, what they cost, which faults they find.

  python -m benchmarks.run_audits --data_path=mnist.npz --folder=out/run_audits
  python -m benchmarks.run_audits --quick --folder=out/run_audits

Federated averaging on MNIST by writer under Skellam noise, 50 rounds of Poisson cohorts of
one in five, at several epsilons and numbers of canaries, three times. Rates follow the
population, so that with and without canaries a writer's update moves the model as far.
Faults are planted in runs that claim epsilon 1. Finished runs are not run again.
"""

import argparse
from collections.abc import Callable, Sequence
import contextlib
import json
import pathlib
import statistics
import sys
from unittest import mock

from tff_pipelines.audit import canaries as canaries_lib, guesses
from tff_pipelines.common import files
from tff_pipelines.fedavg import run as run_lib, settings as settings_lib

_RATE, _DELTA = 0.186, 1e-5
_sum_factory = run_lib.sum_factory
_client_update = canaries_lib.Canaries.client_update


def _with_noise(factor: float) -> mock._patch:
  """Noise at a factor of what is planned."""
  return mock.patch.object(run_lib, 'sum_factory', lambda plan: _sum_factory(
      plan._with(noise_multiplier=factor * plan.mechanism.noise_multiplier)))


@contextlib.contextmanager
def _clip_at_twice():
  with mock.patch.object(run_lib, 'sum_factory', lambda plan: _sum_factory(plan._with(
      clip=2 * plan.mechanism.clip,
      noise_multiplier=plan.mechanism.noise_multiplier / 2))), mock.patch.object(
          canaries_lib.Canaries, 'client_update',
          lambda self, train, clip: _client_update(self, train, 2 * clip)):
    yield


# Fault -> what plants it, for a run that claims epsilon 1.
FAULTS: dict[str, Callable[[], contextlib.AbstractContextManager]] = {
    'none': contextlib.nullcontext,
    'half the shares missing': lambda: _with_noise(0.5**0.5),
    'clip at twice': _clip_at_twice,
    'noise at 0.2': lambda: _with_noise(0.2),
    'noise at 0.02': lambda: _with_noise(0.02)}


def settings(folder: pathlib.Path, data_path: str | None, writers: int, *,
             epsilon: float, canaries: int, rounds: int,
             seed: int = 0) -> settings_lib.TrainSettings:
  """The settings of a run with this number of canaries among its writers."""
  population = writers + canaries
  data = dict(data_source='npz', data_path=data_path) if data_path else {}
  return settings_lib.TrainSettings(
      task='emnist', model='cnn_small', rounds=rounds, epsilon=epsilon, canaries=canaries,
      delta=_DELTA, initial_weights_seed=seed,
      sampling='poisson', cohort_size=round(_RATE * population), clip=0.3,
      client_learning_rate=0.3, client_batch_size=20, server_momentum=0.9,
      server_learning_rate=(0.5 if epsilon <= 2 else 1.0) * population / writers,
      rounds_per_evaluation=rounds,
      output_dir=str(folder), resume=folder.exists(), **data)


def run(given: settings_lib.TrainSettings) -> dict:
  """Runs unless it is finished; findings, accuracy, epsilons and the seconds."""
  folder = pathlib.Path(given.output_dir)
  if not (folder / files.SUMMARY).exists():
    experiment = run_lib.TrainExperiment(given)
    experiment.quiet = True
    experiment.run()
  summary = files.read_json(folder / files.SUMMARY)
  return {'accuracy': summary['value'], 'epsilon': summary['epsilon'],
          'epsilon_server': summary['epsilon_server'],
          'population': summary['population'],
          'findings': [one.to_json() for one in guesses.of_folder(folder)]
                      if given.canaries else []}


def _number(value: float | None) -> str:
  return '–' if value is None else f'{value:.2f}'


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the script with these flags, those of the command line by default."""
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--folder', required=True, help='folder of runs and findings')
  parser.add_argument('--data_path', help='MNIST by writer; embedded digits by default')
  parser.add_argument('--quick', action='store_true', help='one run and two faults')
  flags = parser.parse_args(arguments)
  folder, writers = pathlib.Path(flags.folder), 539 if flags.data_path else 200
  counts, rounds = ((300,), 8) if flags.quick else ((1000, 10_000), 50)
  start = lambda name, **changes: run(settings(
      folder / name, flags.data_path, writers, rounds=rounds, **changes))
  results, faults = {}, {}
  print('| ε of the models, of the server | canaries | accuracy, mean | from | at least '
        '| guesses right | with all right | ROC area | by a normal fit |\n|' + '---|' * 9)
  for epsilon in (8,) if flags.quick else (1, 2, 8):
    for count in (0, *counts):
      runs = results[f'{epsilon}-{count}'] = [
          start(f'{epsilon}-{count}-{seed}', epsilon=epsilon, canaries=count, seed=seed)
          for seed in range(1 if flags.quick else 3)]
      accuracy = statistics.mean(one['accuracy'] for one in runs)
      head = (f'| {runs[0]["epsilon"]:.3g}, {runs[0]["epsilon_server"]:.3g} | {count:,} | '
              f'{100 * accuracy:.1f} |')
      if not count:
        print(head + ' – |' * 6)
      for same in zip(*(one['findings'] for one in runs)):
        cells = [', '.join(text(one) for one in same) for text in (
            lambda one: f'{one["lower"]:.2f}',
            lambda one: f'{one["right"]:,} of {one["guesses"]:,}')]
        print(f'{head} {same[0]["observer"]} | {" | ".join(cells)} | '
              f'{same[0]["largest"]:.2f} | {same[0]["area"]:.3f} | '
              f'{_number(same[0]["estimate"])} |', flush=True)
  print('\n| fault, claim ε = 1 | canaries | from final, all models, server | found |')
  print('|---|---|---|---|')
  for fault, plant in list(FAULTS.items())[::4 if flags.quick else 1]:
    for count in counts:
      with plant():
        found = faults[f'{fault}-{count}'] = start(
            f'fault-{fault.replace(" ", "-")}-{count}', epsilon=1, canaries=count)
      refuted = [one['observer'] for one in found['findings']
                 if one['lower'] > one['claimed']]
      print(f'| {fault} | {count:,} | ' + ', '.join(
          f'{one["lower"]:.2f}' for one in found['findings'])
            + f' | {", ".join(refuted) or "no"} |', flush=True)
  (folder / 'findings.json').write_text(json.dumps(
      {'runs': results, 'faults': faults}, indent=2), encoding='utf-8')
  return 0


if __name__ == '__main__':
  sys.exit(main())
