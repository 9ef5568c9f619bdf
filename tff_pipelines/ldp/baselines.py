"""Runs the baselines of local distillation, on what `ldp_run.prepare` gives.

All of them end in a linear classifier of the public features, so what differs is who
is trusted and where the noise goes.
"""

import collections
import datetime
import functools
import json
import os
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf
import tqdm

from aggregators import keys
from tasks import sources
from tasks import task as task_lib
from tasks import voting_models
from tff_pipelines import ldp_run
from tff_pipelines import run_report
from tff_pipelines import training
from tff_pipelines import vote_records
from tff_pipelines.accounting import accountant
from tff_pipelines.accounting import base
from tff_pipelines.accounting import calibration
from tff_pipelines.accounting import decimals
from tff_pipelines.accounting import deviation
from tff_pipelines.accounting import events
from tff_pipelines.accounting import report as accounting_report
from tff_pipelines.accounting import request as request_lib
from tff_pipelines.algorithms import fedavg
from tff_pipelines.algorithms import ldp_distillation_student as student_lib
from tff_pipelines.algorithms import local_training
from tff_pipelines.algorithms import pate
from tff_pipelines.algorithms import voting_noisy_sgd
from tff_pipelines.ldp_baseline_flags import BaselineConfig
from tff_pipelines.privacy_plan import PrivacyPlan, describe_epsilon
from tff_pipelines.simulation import chunked
from tff_pipelines.simulation import contexts
from tff_pipelines.simulation import loop
from tff_pipelines.simulation import records as records_lib
from tff_pipelines.vote_plan import SgdPlan

LABELS = 'labels.npz'
_CURATOR = 'a curator is trusted with all records'
_COUNTER = 'a curator is trusted with all votes'
# A label of a vote is taken for nearly sure: what the student counts as the variance
# of an answer.
_LABEL_VARIANCE = 0.05


def _seeded(config: BaselineConfig) -> list[str]:
  return [] if config.seed is None else [
      'seeded run: no guarantee (all noise follows from a seed)']


def _key(config: BaselineConfig) -> tf.Tensor:
  """A key of the operating system, or of the seed."""
  if config.seed is None:
    return keys.fresh()
  return tf.constant(keys.from_seed(config.seed))


def _centred(setting: ldp_run.Setting) -> tuple[np.ndarray, np.ndarray]:
  """Owners' and test features, by public constants centred and scaled.

  Gradient descent needs it: what all images share would hide what they do not.
  """
  mean = setting.public.mean(axis=0)
  scale = np.float32(1 / np.sqrt(np.mean(np.sum(
      np.square(setting.public - mean), axis=1))))
  return (setting.records - mean) * scale, (setting.test - mean) * scale


# DP-SGD.


def sgd_plan(config: BaselineConfig, records: int) -> SgdPlan:
  """The calibrated plan of DP-SGD on so many records of one curator."""
  return SgdPlan.calibrate(
      epsilon=config.epsilon, noise_multiplier=None, delta=config.delta,
      sampling_rate=config.of('record_rate'), clip=config.of('clip'),
      rounds=config.of('rounds'), agents=1, records=records,
      simulation_seed=config.seed)


def _accuracy(network: voting_models.Network, weights, features: np.ndarray,
              labels: np.ndarray) -> float:
  logits = network.logits(weights, tf.constant(features)).numpy()
  return float(np.mean(logits.argmax(axis=1) == labels))


def _dp_sgd(config: BaselineConfig, setting: ldp_run.Setting,
            records: records_lib.RunRecords) -> dict[str, Any]:
  """Noisy gradients of all records; fields of the summary."""
  labels = np.concatenate([held.y for held in setting.task.holdings])
  plan = sgd_plan(config, len(labels))
  guarantee = plan.guarantee(plan.rounds)
  network = voting_models.softmax(
      setting.public.shape[1:], setting.task.num_classes)
  model = network.as_model()
  features, test = _centred(setting)
  examples = {'x': tf.constant(features), 'y': tf.constant(labels)}
  noise = voting_noisy_sgd.NoisySgdConfig(
      clip=plan.clip, noise_multiplier=plan.noise_multiplier,
      sampling_rate=plan.sampling_rate, agents=1,
      expected_records=plan.expected_records)

  @functools.partial(tf.function, autograph=False)
  def step(weights, examples, key):
    total = voting_noisy_sgd.contribution(
        model.loss, weights, examples, key, noise)
    scale = config.of('learning_rate') / noise.expected_records
    return [w - scale * g for w, g in zip(weights, total)]

  weights, done = records.restore(network.initial_weights(0), dict(
      delta=plan.delta, adjacency=guarantee.adjacency, trust_model=_CURATOR,
      seeded=config.seed is not None, warnings=plan.warnings(plan.rounds)))
  name = 'epsilon' if config.seed is None else 'epsilon_if_unseeded'
  for number in tqdm.trange(done + 1, plan.rounds + 1, unit='step', mininterval=1.0,
                            dynamic_ncols=True):
    key = keys.derive(_key(config), number)
    weights = [w.numpy() for w in step(
        [tf.constant(w) for w in weights], examples, key)]
    records.commit(
        weights, number, plan.round_event, withheld=False,
        metrics={name: plan.epsilon(number),
                 'test/accuracy': _accuracy(
                     network, weights, test, setting.task.test.y)})
  return dict(
      accuracy=_accuracy(network, weights, test, setting.task.test.y),
      guarantee=guarantee,
      noise_multiplier=plan.noise_multiplier, rounds=plan.rounds,
      trust_model=_CURATOR, unit='one record',
      observers='those who see the model and do not learn which records were drawn',
      source=plan.round_event.source,
      warnings=plan.warnings(plan.rounds))


# DP-FL.


def fl_plan(config: BaselineConfig, owners: int, dimension: int) -> PrivacyPlan:
  """The calibrated plan of DP-FedAvg; all owners take part in every round."""
  return PrivacyPlan.calibrate(
      request_lib.Request(
          query='epsilon', mechanism='skellam', epsilon=config.epsilon,
          delta=config.delta, clip=config.of('clip'), bits=18, dimension=dimension,
          cohort_size=float(owners), population=owners, rounds=config.of('rounds')),
      simulation_seed=config.seed)


def _as_task(setting: ldp_run.Setting,
             network: voting_models.Network) -> task_lib.Task:
  """The owners' features as a task of federated averaging."""
  holdings = setting.task.holdings
  owners = np.repeat(np.arange(len(holdings)), [len(held) for held in holdings])
  features, test = _centred(setting)
  return task_lib.Task(
      name=setting.task.name, model=network.as_model(),
      train=sources.ArraysByClient(
          {'x': features,
           'y': np.concatenate([held.y for held in holdings])}, owners),
      held_out={'test': {'x': test, 'y': setting.task.test.y}},
      privacy_unit=setting.task.privacy_unit)


def _dp_fl(config: BaselineConfig, setting: ldp_run.Setting,
           records: records_lib.RunRecords) -> dict[str, Any]:
  """Federated averaging with distributed noise; fields of the summary."""
  network = voting_models.softmax(
      setting.public.shape[1:], setting.task.num_classes)
  task = _as_task(setting, network)
  plan = fl_plan(config, setting.task.owners, task.model.parameter_count())
  factory = training.sum_factory(plan)
  rounds = plan.request.rounds
  process = chunked.build(
      task.model, task.train.element_spec,
      initial_weights=network.initial_weights(0), sum_factory=factory,
      expected_cohort_size=plan.request.cohort_size,
      local=local_training.LocalConfig(
          learning_rate=config.of('client_learning_rate'),
          batch_size=config.of('client_batch_size'),
          epochs=config.of('client_epochs')),
      server_learning_rate=config.of('learning_rate'), server_momentum=0.0)
  with contexts.simulation(num_workers=config.num_workers):
    results = loop.run(
        process,
        lambda state, cohort: fedavg.tell_cohort_size(state, cohort, factory),
        task, plan, records, loop.LoopConfig(
            rounds=rounds,
            clients_per_call=training.default_clients_per_call(plan)))
  lines = records.ledger.lines()
  # Rounds that a crash interrupted: the server may have seen them twice.
  seen = rounds + lines[-1]['starts'] - 1
  withheld = any(line['outcome'] == 'withheld' for line in lines)
  return dict(
      accuracy=results['test']['accuracy'], guarantee=plan.guarantee(rounds),
      epsilon_server=None if withheld else plan.epsilon_unamplified(seen),
      observers='those who see the released models and do not learn how many owners '
                'answered',
      observers_server='the server and the participants, not amplified '
                       f'({accounting_report.OWN_SHARE})',
      sampler=plan.sampler_in_words, delta_sampler=plan.delta_sampler,
      noise_multiplier=plan.request.noise_multiplier, rounds=rounds,
      trust_model=plan.request.family.trust_model,
      unit=setting.task.privacy_unit, source=plan.round_event.source,
      warnings=plan.warnings(rounds))


# PATE.


def pate_event(stddev: float, *, threshold_stddev: float, queries: int,
               answers: int) -> base.Event:
  """All that a run of Confident-GNMax releases, at most.

  Votes are charged as if one owner moved one of them, which covers any change of its
  records; the checks for agreement as well, which is more than they cost.
  """
  def vote(noise):
    return events.Vote(scheme='ae', level='instance', noise='discrete_gaussian',
                       noise_stddev=noise)
  return events.Composed(events=(
      events.SelfComposed(event=vote(threshold_stddev), count=queries),
      events.SelfComposed(event=vote(stddev), count=answers)))


def pate_aggregator(config: BaselineConfig, owners: int,
                    queries: int) -> tuple[pate.ConfidentGnmax, base.Event]:
  """The calibrated aggregator for so many queries, and what it costs."""
  ratio, answers = config.of('threshold_noise'), min(config.of('answers'), queries)
  stddev = calibration.noise_multiplier(
      lambda z: pate_event(z, threshold_stddev=ratio * z, queries=queries,
                           answers=answers),
      epsilon=config.epsilon, delta=deviation.calibrated_to(config.delta),
      accountant='rdp')
  aggregator = pate.ConfidentGnmax(
      threshold=config.of('threshold') * owners, threshold_stddev=ratio * stddev,
      stddev=stddev, most_answers=answers)
  return aggregator, pate_event(
      stddev, threshold_stddev=ratio * stddev, queries=queries, answers=answers)


def _sampler_part(event: base.Event, drift: float, delta: float) -> float:
  """What of delta draws take that deviate by so much in all."""
  return deviation.taken_at_most(min(1.0, drift), event, delta, accountant='rdp')


def _released(setting: ldp_run.Setting, config: BaselineConfig, rows: np.ndarray,
              aggregator: pate.ConfidentGnmax, event: base.Event,
              records: records_lib.RunRecords) -> np.ndarray:
  """The labels: those that are kept, or new ones, charged before they are drawn."""
  path = records.folder / LABELS
  found = vote_records.read_arrays(path)
  if found is not None:
    return found['labels']
  records.ledger.append_line(records.ledger.next_line(
      event, outcome='released', starts=1,
      configuration_hash=records.configuration_hash))
  votes = pate.count_votes(setting.public[rows], setting.teachers)
  labels = pate.answer(votes, aggregator, _key(config))
  vote_records.write_arrays(path, {'rows': rows, 'labels': labels})
  return labels


def _pate(config: BaselineConfig, setting: ldp_run.Setting,
          records: records_lib.RunRecords) -> dict[str, Any]:
  """A noisy vote and a student of its labels; fields of the summary."""
  pool = len(setting.public)
  rows = np.random.default_rng([config.feature_seed, 2]).permutation(pool)[
      :min(config.of('queries'), pool)]
  aggregator, event = pate_aggregator(config, setting.task.owners, len(rows))
  warnings = [*_seeded(config), 'what is paid for does not depend on the votes; the '
              'data-dependent epsilon of publications is itself private']
  drift = aggregator.deviation(len(rows), setting.task.num_classes)
  deviation.check_kept(
      _sampler_part(event, drift, config.delta), config.epsilon, config.delta)
  if not records.ledger.path.exists():
    records.ledger.create(
        records.ledger.path, delta=config.delta, adjacency=event.adjacency,
        trust_model=_COUNTER, seeded=config.seed is not None,
        deviation_per_round=drift, warnings=warnings)
  records.ledger.drop_torn()
  labels = _released(setting, config, rows, aggregator, event, records)
  lines = len(records.ledger.lines())
  if lines > 1:
    warnings.append(f'the vote was interrupted and begun {lines} times; every time '
                    'counts')
  event = events.SelfComposed(event=event, count=lines)
  part = _sampler_part(event, lines * drift, config.delta)
  guarantee = accountant.guarantee(
      event, deviation.left(config.delta, part), accountant='rdp')
  if part > config.delta / 2:
    warnings.append('epsilon is that of exact laws: the draws of the noise would take '
                    f'{decimals.rounded_up(part, 3)} of delta, more than '
                    'half')
  answered = labels >= 0
  if not answered.any():
    raise ValueError('no query was answered: lower --threshold or --answers, or '
                     'raise --epsilon')
  trainer = student_lib.Trainer(setting.public, student_lib.StudentConfig())
  student = trainer.train(
      rows[answered], np.eye(setting.task.num_classes)[labels[answered]],
      _LABEL_VARIANCE)
  return dict(
      accuracy=ldp_run.accuracy(student, setting.test, setting.task.test.y),
      guarantee=guarantee, queries=len(rows), answered=int(answered.sum()),
      noise_stddev=aggregator.stddev, delta_sampler=part, trust_model=_COUNTER,
      observers='everyone who sees the labels or what is made of them',
      unit=f'{setting.task.privacy_unit}: whatever it may be replaced by',
      adjacency_in_words='any change of one owner\'s records, which moves its vote',
      source='arXiv 1802.08908, Algorithm 1; arXiv 2004.00010, Proposition 5',
      warnings=[*warnings, *guarantee.warnings])


_RUNS = {'dp_sgd': _dp_sgd, 'dp_fl': _dp_fl, 'pate': _pate}


def _folder(config: BaselineConfig) -> pathlib.Path:
  if config.output_dir is not None:
    return pathlib.Path(config.output_dir)
  now = datetime.datetime.now().strftime('%Y%m%d-%H%M%S')
  return pathlib.Path('out') / f'{config.algorithm}-{config.task}-{now}'


def summary(config: BaselineConfig, setting: ldp_run.Setting,
            records: records_lib.RunRecords, found: dict[str, Any]) -> dict[str, Any]:
  """The summary as JSON, from the fields of an algorithm."""
  guarantee = found.pop('guarantee')
  found['warnings'] = [*setting.task.notes, *found['warnings']]
  result = collections.OrderedDict(
      task=setting.task.name, algorithm=config.algorithm,
      accuracy=float(found.pop('accuracy')), test_examples=len(setting.test),
      epsilon=guarantee.epsilon, delta=config.delta,
      adjacency=guarantee.adjacency,
      adjacency_in_words=found.pop(
          'adjacency_in_words', base.ADJACENCY_IN_WORDS[guarantee.adjacency]),
      accountant=guarantee.accountant, privacy_unit=found.pop('unit'),
      owners=setting.task.owners, **found, starts=records.starts,
      configuration=records.configuration_hash)
  if config.seed is not None:
    result['epsilon_if_unseeded'] = result['epsilon']
    result['epsilon'] = None
    result['epsilon_server'] = None
  return result


def _print(found: dict[str, Any]) -> None:
  print(f"\ntest: accuracy {found['accuracy']:.4f}, {found['test_examples']} examples")
  if 'answered' in found:
    print(f"{found['answered']} of {found['queries']} queries answered")
  if found['epsilon'] is None:
    print('epsilon: none, nothing is guaranteed')
  else:
    delta = decimals.rounded_up(found['delta'])
    print(f"epsilon {describe_epsilon(found['epsilon'])} at delta "
          f"{delta} ({found['accountant']}), against "
          f"{found['observers']}")
    if found.get('epsilon_server') is not None:
      print(f"epsilon {describe_epsilon(found['epsilon_server'])}, against "
            f"{found['observers_server']}")
    print(f"adjacency {found['adjacency']}: {found['adjacency_in_words']}")
    print(f"trust model: {found['trust_model']}")
  print(f"privacy unit: {found['privacy_unit']}")
  for warning in found['warnings']:
    print(f'warning: {warning}')


def run(config: BaselineConfig,
        setting: ldp_run.Setting | None = None) -> dict[str, Any]:
  """Runs a baseline, or goes on with it, and reports.

  Args:
    config: Of the run.
    setting: As `ldp_run.prepared` made it of the same data, if it did already.

  Returns:
    The summary, as it is written to summary.json.
  """
  setting = setting or ldp_run.prepared(config)
  records = records_lib.RunRecords(
      _folder(config), {**config.configuration(),
                        'data_fingerprint': ldp_run.fingerprint(setting.task)},
      resume=config.resume)
  print(f'task {setting.task.name}: {setting.task.owners} data owners, algorithm '
        f'{config.algorithm}, epsilon {config.epsilon:.15g}, delta '
        f'{config.delta:.15g}')
  print(f'output folder {os.fspath(records.folder)}', flush=True)
  found = summary(config, setting, records,
                  _RUNS[config.algorithm](config, setting, records))
  records_lib.write_atomically(
      records.folder / records_lib.SUMMARY,
      json.dumps(found, indent=2, allow_nan=False) + '\n')
  if config.algorithm != 'pate':
    run_report.draw(records, 'test', f"{found['task']}, {found['algorithm']}")
  _print(found)
  print(f'written to {os.fspath(records.folder)}')
  return found
