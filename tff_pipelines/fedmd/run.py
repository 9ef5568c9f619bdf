"""A distillation run: parties, their subsets, the rounds, one folder."""

import collections
import dataclasses
import datetime
import functools
import hashlib
import os
import pathlib
import secrets
from typing import Any, Mapping

import numpy as np
import tensorflow as tf
import tqdm

from tasks import fedmd as fedmd_task
from tff_pipelines import distillation_report
from tff_pipelines.algorithms import fedmd
from tff_pipelines.algorithms import fedmd_training
from tff_pipelines.algorithms.fedmd_training import FitConfig
from tff_pipelines.distill_plan import DistillConfig, DistillPlan
from tff_pipelines.simulation import cohorts
from tff_pipelines.simulation import contexts
from tff_pipelines.simulation import records as records_lib

# Fields of a configuration that may differ between a run and its resumption, and
# where the data lie: what they are is in the fingerprint.
_FREE = ('output_dir', 'resume', 'num_workers', 'data_dir', 'cache_dir')
_EVALUATED_AT_ONCE = 1000
# What the key of the public labelled data's training is derived for.
_PRETRAINING = 'pretraining'

# Name of an architecture -> weights after training on public labels.
Pretrained = dict[str, np.ndarray]


def _seed_of(*words: Any) -> int:
  """A seed that follows from words, 128 bits."""
  digest = hashlib.sha256(' '.join(map(str, words)).encode()).digest()
  return int.from_bytes(digest[:16], 'big')


def _key_of(*words: Any) -> np.ndarray:
  """A key that follows from words, int64[2]."""
  return np.frombuffer(_seed_of(*words).to_bytes(16, 'big'), np.int64).copy()


def draw_subset(records: int, draws: int, replacement: bool,
                seed: int | None) -> np.ndarray:
  """The records that a party trains on, drawn once for the whole run.

  Args:
    records: Of the party, >= 1.
    draws: How many; at most `records` without replacement.
    replacement: Whether a record may be drawn more than once.
    seed: None for the operating system's entropy, the only draw with a
      guarantee.

  Returns:
    int64 [draws] in [0, records).
  """
  if seed is not None:
    rng = np.random.default_rng(seed)
    return rng.choice(records, draws, replace=replacement).astype(np.int64)
  if replacement:
    found = [secrets.randbelow(records) for _ in range(draws)]
  else:
    found = secrets.SystemRandom().sample(range(records), draws)
  return np.array(found, np.int64)


def pretrain(task: fedmd_task.FedMdTask, config: DistillConfig) -> Pretrained:
  """Weights of every architecture, trained on the labels of the public records.

  They depend on the public records, `initial_weights_seed` and the settings of
  pretraining alone.
  """
  found = {}
  fit = FitConfig(learning_rate=config.pretrain_learning_rate,
                  batch_size=config.pretrain_batch_size, mirror=config.mirror)
  for architecture in task.public_architectures:
    trained = tf.function(functools.partial(
        fedmd_training.fit, architecture, kind=fedmd_training.LABELS,
        config=fit), autograph=False)
    weights = trained(
        tf.constant(architecture.initial_weights(config.initial_weights_seed)),
        tf.constant(task.public.x), tf.constant(task.public.y),
        tf.constant(config.pretrain_epochs, tf.int32),
        tf.constant(_key_of(_PRETRAINING, config.initial_weights_seed))).numpy()
    if not np.all(np.isfinite(weights)):
      raise ValueError(
          f'architecture {architecture.name} is not finite after training on '
          'public records: lower --pretrain_learning_rate')
    found[architecture.name] = weights
  return found


class Evaluator:
  """Accuracies of parties' models on the task's test records."""

  def __init__(self, task: fedmd_task.FedMdTask):
    self._test = task.test
    self._classes = [
        tf.function(lambda weights, images, a=architecture: tf.argmax(
            a.logits(weights, images), axis=-1), reduce_retracing=True,
                    autograph=False)
        for architecture in task.architectures]

  def accuracy(self, party) -> float:
    """Of one party's model; of the public weights if it never took part."""
    classes = self._classes[int(party['architecture'])]
    weights = tf.constant(party['weights'])
    right = 0
    for start in range(0, len(self._test), _EVALUATED_AT_ONCE):
      rows = slice(start, start + _EVALUATED_AT_ONCE)
      found = classes(weights, tf.constant(self._test.x[rows])).numpy()
      right += int(np.sum(found == self._test.y[rows]))
    return right / len(self._test)


class Run:
  """The rounds of a run.

  The state, as it is checkpointed, is an OrderedDict of `server`, `parties` (a
  list of their states), `subsets` (a list of the record numbers that they train
  on) and `digest` (the public records that the consensus is about).
  """

  def __init__(self, task: fedmd_task.FedMdTask, plan: DistillPlan):
    self._task = task
    self._plan = plan
    self._config = config = plan.config
    self._process = fedmd.build(
        task.architectures, image_shape=task.image_shape, mean=plan.mean,
        config=fedmd.PartyConfig(
            initial_epochs=config.initial_epochs,
            private=FitConfig(learning_rate=config.private_learning_rate,
                              batch_size=config.private_batch_size,
                              mirror=config.mirror),
            digest=FitConfig(learning_rate=config.digest_learning_rate,
                             batch_size=config.digest_batch_size,
                             mirror=config.mirror)),
        simulation_seed=config.seed)

  def _seed(self, *words: Any) -> int | None:
    """A seed for one purpose; None where the operating system decides."""
    seed = self._config.seed
    return None if seed is None else _seed_of(*words, seed)

  def initial_state(self, pretrained: Mapping[str, np.ndarray]):
    """Of a new run; the subsets are drawn here."""
    config = self._config
    starts = [
        architecture.transferred(
            pretrained[architecture.name], config.initial_weights_seed)
        for architecture in self._task.architectures]
    parties, subsets = [], []
    for number, party in enumerate(self._task.parties):
      key = np.frombuffer(os.urandom(16), np.int64).copy()
      if config.seed is not None:
        key = _key_of('party', number, config.seed)
      parties.append(fedmd.new_party(
          number, party.architecture, starts[party.architecture], key))
      count = len(party.private)
      subsets.append(
          draw_subset(count, self._plan.draws(number), config.replacement,
                      self._seed('subset', number))
          if self._plan.draws_subset else np.arange(count))
    return collections.OrderedDict(
        digest=np.zeros([config.public_per_round], np.int64), parties=parties,
        server=self._process.initialize(), subsets=subsets)

  def _data(self, state, party: int):
    """What a party brings beside its state."""
    rows = state['subsets'][party]
    private = self._task.parties[party].private
    return collections.OrderedDict(
        images=private.x[rows], labels=private.y[rows],
        weight=np.int32(self._plan.weight(party)))

  def _public_subset(self, step: int) -> np.ndarray:
    """Numbers of the public records to predict on."""
    return draw_subset(len(self._task.public), self._config.public_per_round,
                       False, self._seed('public', step))

  def _present(self, step: int) -> list[int]:
    """The parties that take part, each by chance."""
    count, rate = len(self._task.parties), self._config.simulated_dropout_rate
    if rate == 0 or self._config.mode == 'centralized':
      return list(range(count))
    return cohorts.CohortSampler(
        sampling='poisson', population=count, cohort_size=(1 - rate) * count,
        simulation_seed=self._seed('dropout')).sample(step).tolist()

  def step(self, state, step: int, present: list[int] | None = None):
    """One round; the first one, number 0, is the parties' initial training.

    Args:
      state: Before the round.
      step: The number of the round, 0 to `rounds`.
      present: Numbers of the parties that take part; None to draw them.

    Returns:
      The state after it, and its metrics: `parties`, `rejected`.
    """
    config, public = self._config, self._task.public
    shares = step < config.rounds and config.mode != 'centralized'
    present = self._present(step) if present is None else present
    if not present:
      # TFF returns no states of nobody. Nothing is known of the next records.
      server = collections.OrderedDict(state['server'], known=np.bool_(False))
      return collections.OrderedDict(state, server=server), {
          'parties': 0, 'rejected': 0}
    chosen = self._public_subset(step) if shares else state['digest']
    known = len(chosen) if state['server']['known'] else 0
    said = collections.OrderedDict(
        digest_images=public.x[state['digest'][:known]],
        digest_epochs=np.int32(config.digest_epochs),
        revisit_epochs=np.int32(config.revisit_epochs if step else 0),
        rate_factor=np.float32(config.rate_factor(step)),
        predict_images=public.x[chosen], share=np.bool_(shares))
    output = self._process.next(
        state['server'], said, [state['parties'][i] for i in present],
        [self._data(state, i) for i in present])
    parties = list(state['parties'])
    came = sorted(int(new['number']) for new in output['parties'])
    if came != sorted(present):
      raise RuntimeError(f'parties {present} took part, but {came} came back')
    for new in output['parties']:
      number = int(new['number'])
      # Without TFF's containers, whatever context it ran in.
      parties[number] = collections.OrderedDict(
          (name, new[name]) for name in parties[number])
    state = collections.OrderedDict(
        state, digest=chosen, parties=parties,
        server=collections.OrderedDict(
            (name, output['state'][name]) for name in state['server']))
    metrics = output['metrics']
    return state, {'parties': int(metrics['parties']),
                   'rejected': int(metrics['rejected'])}

  def run(self, records: records_lib.RunRecords, pretrained: Pretrained | None,
          evaluator: Evaluator):
    """Runs the rounds that are not committed yet.

    Args:
      records: The folder of the run.
      pretrained: As from `pretrain`; None to train them, if that is needed.
      evaluator: Of the test records.

    Returns:
      The last state, and the accuracies of the parties in it.
    """
    plan, config = self._plan, self._config
    if records.has_checkpoint():
      # Only their shapes matter.
      pretrained = {a.name: np.zeros(a.size, np.float32)
                    for a in self._task.public_architectures}
    elif pretrained is None:
      pretrained = pretrain(self._task, config)
    state, done = records.restore(
        self.initial_state(pretrained),
        dict(population=None, delta=plan.delta,
             adjacency=plan.round_event.adjacency,
             trust_model=plan.trust_model, seeded=config.seed is not None,
             warnings=plan.warnings()))
    accuracies = [evaluator.accuracy(party) for party in state['parties']]
    name = 'epsilon' if config.seed is None else 'epsilon_if_unseeded'
    with tqdm.tqdm(total=config.rounds + 1, initial=done, unit='round',
                   dynamic_ncols=True, mininterval=1.0) as progress:
      for committed in range(done + 1, config.rounds + 2):
        state, counts = self.step(state, committed - 1)
        accuracies = [evaluator.accuracy(party) for party in state['parties']]
        event = plan.round_event if committed == 1 else plan.later_event()
        records.commit(
            state, committed, event, withheld=False, metrics={
                name: plan.epsilon(committed, records.starts),
                'communication_round': committed - 1, **counts,
                'mean/accuracy': float(np.mean(accuracies)),
                **{f'party_{i}/accuracy': accuracy
                   for i, accuracy in enumerate(accuracies)}})
        progress.set_postfix(accuracy=f'{np.mean(accuracies):.4f}', refresh=False)
        progress.update()
    return state, accuracies


def load_task(config: DistillConfig) -> fedmd_task.FedMdTask:
  """The task of a run, with the parties that its mode has."""
  task = fedmd_task.build(
      config.pair, split=config.split, parties=config.parties,
      architectures=config.architectures,
      records_per_party=config.records_per_party, data_seed=config.data_seed,
      data_dir=config.data_dir, cache_dir=config.cache_dir)
  if config.mode == 'centralized':
    return task.pooled()
  if config.public_per_round > len(task.public):
    raise ValueError(
        f'public_per_round={config.public_per_round} is more than the '
        f'{len(task.public)} public records of pair {config.pair}')
  return task


def make_plan(task: fedmd_task.FedMdTask, config: DistillConfig,
              given: frozenset[str] = frozenset()) -> DistillPlan:
  """The plan of a run of the task."""
  return DistillPlan(
      config=config, classes=task.classes, given=given,
      records=tuple(len(party.private) for party in task.parties))


def _configuration(task: fedmd_task.FedMdTask, config: DistillConfig) -> dict:
  fields = dataclasses.asdict(config)
  for name in _FREE:
    del fields[name]
  fields['architectures'] = list(config.architectures)
  fields['data_fingerprint'] = task.fingerprint
  # They are printed, and the subsets are of these.
  fields['records'] = [len(party.private) for party in task.parties]
  return fields


def distill(config: DistillConfig, given: frozenset[str] = frozenset(), *,
            task: fedmd_task.FedMdTask | None = None,
            pretrained: Pretrained | None = None) -> dict:
  """Runs, or goes on with a run, and reports.

  Args:
    config: Of the run.
    given: Names of the flags that the user gave.
    task: As from `load_task` of this configuration, where it is there already.
    pretrained: Likewise, as from `pretrain`.

  Returns:
    The summary, as it is written to summary.json.
  """
  task = task or load_task(config)
  plan = make_plan(task, config, given)
  folder = config.output_dir
  if folder is None:
    now = datetime.datetime.now().strftime('%Y%m%d-%H%M%S')
    folder = pathlib.Path('out') / f'{config.pair}-{config.mode}-{now}'
  records = records_lib.RunRecords(
      folder, _configuration(task, config), resume=config.resume)
  distillation_report.print_plan(plan, task, records)
  with contexts.simulation(num_workers=config.num_workers):
    state, accuracies = Run(task, plan).run(records, pretrained, Evaluator(task))
  return distillation_report.finish(
      plan, task, records, state['parties'], accuracies)
