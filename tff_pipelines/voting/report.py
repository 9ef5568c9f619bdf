"""What a voting run, or a baseline of one, says of itself.

All algorithms report the same fields, so that they can be put side by side. Vote
counts and margins are never among them: they are as private as the votes.
"""

import dataclasses
import datetime
import hashlib
import json
import math
import os
import pathlib
from typing import Any, Sequence

import matplotlib
import numpy as np

from tasks.voting import VotingTask
from tff_pipelines.accounting import base
from tff_pipelines.accounting import decimals
from tff_pipelines.accounting import report as accounting_report
from tff_pipelines.privacy_plan import describe_epsilon
from tff_pipelines.simulation import contexts
from tff_pipelines.simulation import records as records_lib
from tff_pipelines.vote_flags import VoteConfig
from tff_pipelines.vote_plan import VotePlan
from tff_pipelines.vote_records import CURVE

PICTURE = 'progress.png'
# Of every run: what agents have of each class is theirs alone to know.
_CLASSES = ('the classes are taken as public knowledge; whether any agent has '
            'records of each of them is not looked at')
_FLOAT_BYTES = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """What came of a vote.

  Attributes:
    labels: int32 [Q], as released, -1 where a query was not answered.
    truth: int32 [Q], true labels of the queries, for measurements alone.
    curve: The student's test metrics after each epoch.
    features: Kind of the public feature map.
    student: Name of the student's architecture.
    model: Name of the agents' model, None where they have none.
    model_parameters: Of a model that federated averaging would train instead.
  """

  labels: np.ndarray
  truth: np.ndarray
  curve: Sequence[dict[str, float]]
  features: str
  student: str
  model: str | None
  model_parameters: int


def folder_of(config: VoteConfig) -> pathlib.Path:
  """The output folder: given, or a new one."""
  if config.output_dir is not None:
    return pathlib.Path(config.output_dir)
  now = datetime.datetime.now().strftime('%Y%m%d-%H%M%S')
  return pathlib.Path('out') / f'vote-{config.task}-{config.algorithm}-{now}'


def fingerprint(task: VotingTask) -> str:
  """Of the agents, the shape of a record and the public records."""
  digest = hashlib.sha256(repr(sorted(
      (name, str(dtype), tuple(shape))
      for name, (dtype, shape) in task.agents.element_spec.items())).encode())
  for agent in task.agents.client_ids:
    digest.update(agent.encode() + b'\0')
  digest.update(np.ascontiguousarray(task.public).tobytes())
  return digest.hexdigest()


def describe_bytes(count: float) -> str:
  """A number of bytes for people."""
  for unit, size in (('MB', 1e6), ('kB', 1e3)):
    if count >= size:
      return f'{count / size:.4g} {unit}'
  return f'{count:.4g} bytes'


def print_plan(plan: VotePlan, task: VotingTask, config: VoteConfig,
               records: records_lib.RunRecords) -> None:
  """Prints what is about to be voted on and under which guarantee."""
  params = plan.params
  print(f'task {task.name}, {params.agents} agents, {params.queries} of '
        f'{len(task.public)} public records are queries, {params.classes} classes, '
        f'algorithm {config.algorithm}')
  name = 'epsilon' if plan.simulation_seed is None else 'epsilon if unseeded'
  stddev, counts = (
      decimals.rounded_up(value)
      for value in (params.noise_stddev, params.votes * params.noise_stddev))
  print(f'noise {params.noise}: standard deviation {stddev} agents '
        f'({counts} counts), {name} {describe_epsilon(plan.epsilon)} at delta '
        f'{decimals.rounded_up(plan.delta)} for one '
        f'{plan.level}; by the published formula '
        f'{describe_epsilon(plan.epsilon_published)}')
  if params.is_integer:
    print(f'sum modulo 2^{params.bits}, secure aggregation: '
          f'{contexts.SECURE_AGGREGATION}')
  print(f'output folder {os.fspath(records.folder)}', flush=True)


def _privacy_unit(task: VotingTask, config: VoteConfig) -> str:
  """What one of two neighbouring inputs lacks, at the level of the run."""
  if config.privacy_level == 'instance':
    return f'one record of an agent (an agent is {task.privacy_unit})'
  return task.privacy_unit


def common(task: VotingTask, config: VoteConfig,
           records: records_lib.RunRecords) -> dict[str, Any]:
  """Fields of every summary, None where an algorithm has nothing to say."""
  return {
      'task': task.name, 'algorithm': config.algorithm, 'accuracy': None,
      'loss': None, 'test_examples': len(task.test['y']), 'features': None,
      'model': None, 'parameters': None, 'agents': len(task.agents.client_ids),
      'epsilon': None, 'epsilon_published': None,
      'epsilon_server': None, 'delta': None, 'delta_sampler': None,
      'sampler': None, 'level': None, 'adjacency': None,
      'adjacency_in_words': None, 'accountant': None, 'order': None,
      'amplification': None, 'noise': None, 'noise_stddev': None,
      'noise_multiplier': None, 'clip': None, 'bits': None, 'bound': None,
      'sampling': None, 'rounds': None,
      'queries': None, 'answered': None, 'labels_right': None,
      'neighbours': None, 'threshold': None, 'student': None,
      'student_model': None,
      'uplink_bytes_per_agent': None, 'uplink_of_federated_averaging': None,
      'privacy_unit': _privacy_unit(task, config), 'trust_model': None,
      'observers': None, 'observers_server': None, 'source': None,
      'secure_aggregation': None,
      'starts': records.starts, 'configuration': records.configuration_hash,
      'warnings': [_CLASSES, *task.notes, *(
          f'--{name} is not used by algorithm={config.algorithm}'
          for name in config.unused)],
  }


def finite(value: float | None) -> float | None:
  """A number for JSON, None where there is none."""
  return None if value is None or not math.isfinite(value) else float(value)


def summary(plan: VotePlan, task: VotingTask, config: VoteConfig,
            records: records_lib.RunRecords, outcome: Outcome) -> dict[str, Any]:
  """The summary of a vote as JSON."""
  params = plan.params
  line = records.ledger.lines()[-1]
  withheld = line['outcome'] == 'withheld'
  answered = outcome.labels >= 0
  last = outcome.curve[-1]
  own = f' ({accounting_report.OWN_SHARE})' if params.has_shares else ''
  found = common(task, config, records)
  found.update({
      'accuracy': last['accuracy'], 'loss': finite(last['loss']),
      'features': outcome.features, 'model': outcome.model,
      'parameters': outcome.model_parameters,
      'epsilon_published': finite(plan.epsilon_published),
      'delta': plan.delta, 'delta_sampler': plan.delta_sampler,
      'sampler': params.sampler_in_words, 'level': plan.level,
      'adjacency': plan.guarantee.adjacency,
      'adjacency_in_words': base.ADJACENCY_IN_WORDS[plan.guarantee.adjacency],
      'accountant': plan.guarantee.accountant, 'order': finite(
          plan.guarantee.order), 'amplification': 'none',
      'noise': params.noise, 'noise_stddev': params.noise_stddev,
      'bits': params.bits if params.is_integer else None, 'bound': plan.bound,
      'sampling': 'none', 'rounds': 1, 'queries': params.queries,
      'answered': float(answered.mean()),
      'labels_right': float((outcome.labels == outcome.truth)[answered].mean()),
      'neighbours': params.votes if plan.scheme == 'knn' else None,
      'threshold': params.threshold, 'student': config.student,
      'student_model': outcome.student,
      'uplink_bytes_per_agent': params.uplink_bytes,
      'uplink_of_federated_averaging': float(
          outcome.model_parameters * config.rounds * _FLOAT_BYTES),
      'trust_model': plan.trust_model,
      'observers': 'everyone who sees the labels or what is made of them' + own,
      'observers_server': 'the server, which sees the noisy sums (each start of '
                          f'the run before the vote was kept counts as a vote){own}',
      'source': plan.event.event.source,
      'secure_aggregation': contexts.SECURE_AGGREGATION,
  })
  found['warnings'] += plan.warnings(line['starts'])
  if plan.simulation_seed is None:
    found['epsilon'] = finite(plan.epsilon)
    if withheld:
      found['warnings'].append(
          'the vote was withheld, but the server saw its sums with less noise '
          'than was planned: no epsilon holds against it')
    elif params.has_shares:
      # It may have seen the sums of interrupted votes too.
      found['epsilon_server'] = finite(plan.epsilon_of(line['starts']))
  else:
    found['epsilon_if_unseeded'] = finite(plan.epsilon)
  return found


def print_summary(found: dict[str, Any]) -> None:
  """Prints the summary of any algorithm for people."""
  print()
  print(f"test: accuracy {found['accuracy']:.4f}, loss "
        f"{'not finite' if found['loss'] is None else format(found['loss'], '.4f')}, "
        f"{found['test_examples']} examples")
  if found['queries'] is not None:
    print(f"released labels: {100 * found['answered']:.1f}% of {found['queries']} "
          f"queries answered, {100 * found['labels_right']:.1f}% of them right")
  if found['epsilon'] is not None:
    delta = decimals.rounded_up(found['delta'])
    print(f"epsilon {describe_epsilon(found['epsilon'])} at delta "
          f"{delta}, against {found['observers']} "
          f"({found['accountant']})")
    if found['epsilon_published'] is not None:
      print('epsilon by the published formula '
            f"{describe_epsilon(found['epsilon_published'])}")
    if found['epsilon_server'] is not None:
      print(f"epsilon {describe_epsilon(found['epsilon_server'])}, against "
            f"{found['observers_server']}")
    taken = ''
    if found['delta_sampler'] is not None:
      part = decimals.rounded_up(found['delta_sampler'], 3)
      taken = f'; it takes {part} of delta'
    print(f"sampler of the noise: {found['sampler']}{taken}")
    print(f"adjacency {found['adjacency']}: {found['adjacency_in_words']}")
    print(f"trust model: {found['trust_model']}")
  else:
    print('epsilon: none, nothing is guaranteed')
  print(f"privacy unit: {found['privacy_unit']}")
  uplink = describe_bytes(found['uplink_bytes_per_agent'])
  if found['uplink_of_federated_averaging'] is not None:
    other = found['uplink_of_federated_averaging']
    ratio = other / found['uplink_bytes_per_agent']
    print(f'uplink of an agent: {uplink} in all; federated averaging of '
          f"{found['parameters']:,} parameters as floats: {describe_bytes(other)}, "
          f'{ratio:,.0f} times as much')
  else:
    print(f'uplink of an agent: {uplink} in all')
  if found['secure_aggregation'] is not None:
    print(f"secure aggregation: {found['secure_aggregation']}")
  for warning in found['warnings']:
    print(f'warning: {warning}')


def draw(path: pathlib.Path, curve: Sequence[dict[str, float]],
         title: str) -> None:
  """Draws the student's accuracy over its epochs."""
  matplotlib.use('Agg')
  from matplotlib import pyplot  # pylint: disable=g-import-not-at-top
  figure, axes = pyplot.subplots(figsize=(7, 4.2))
  axes.plot([row['epoch'] for row in curve],
            [100 * row['accuracy'] for row in curve], marker='.')
  axes.set(xlabel='epoch of the student', ylabel='accuracy on test (%)',
           ylim=(0, 100))
  axes.set_title(title, fontsize=10)
  axes.grid(alpha=0.3)
  figure.tight_layout()
  figure.savefig(path, dpi=120)
  pyplot.close(figure)


def title_of(found: dict[str, Any]) -> str:
  """What a picture of a run is headed by."""
  text = f"{found['task']}, {found['algorithm']}"
  if found['epsilon'] is not None:
    text += (f", epsilon {describe_epsilon(found['epsilon'])}, delta "
             f"{decimals.rounded_up(found['delta'], 3)}")
  return text


def write_summary(folder: pathlib.Path, found: dict[str, Any]) -> None:
  """Writes summary.json."""
  records_lib.write_atomically(
      folder / records_lib.SUMMARY,
      json.dumps(found, indent=2, allow_nan=False) + '\n')


def finish(plan: VotePlan, task: VotingTask, config: VoteConfig,
           records: records_lib.RunRecords, outcome: Outcome) -> dict[str, Any]:
  """Writes and prints the summary of a vote and draws its picture."""
  found = summary(plan, task, config, records, outcome)
  write_summary(records.folder, found)
  draw(records.folder / PICTURE, outcome.curve, title_of(found))
  print_summary(found)
  print(f'written to {os.fspath(records.folder)}: {records_lib.SUMMARY}, '
        f'{CURVE}, {records_lib.METRICS}, {records_lib.LEDGER}, {PICTURE}')
  return found
