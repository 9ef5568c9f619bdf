"""Single releases of the shipped mechanisms, drawn many times on a worst pair.

A release is built by the claim's own parameters, and by those that are executed, which
are the same unless a fault is planted. Others than the audited client are there, with
nothing but their shares of the noise.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import math
from typing import Any

import numpy as np
import tensorflow as tf

from aggregators import (
    banded_sum, central_sum, client_sum, distributed_sum, keys, local_dp, modular_sum,
    prediction_mean, voting)
from aggregators.native import encoding
from aggregators.params import DistributedSumParams
from aggregators.prediction_params import PredictionMeanParams
from aggregators.voting_params import VotingParams
from tff_pipelines.accounting.events import base, kinds as events
from tff_pipelines.accounting.guarantees import calibration, mechanisms
from tff_pipelines.audit.settings import GRAPH, KERNELS

# Trials that are drawn at once.
_BLOCK = 50_000
COLUMN = (3, 2, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """Settings that all releases have in common.

  Attributes:
    epsilon, delta: Target of the calibrated noise; pure mechanisms have no delta.
    clients: Clients of a sum, or agents of a vote.
    dimension, bits: Coordinates of a vector, and bits of a sum.
    rate: Probability with which a record or a client is sampled, where it is.
  """

  epsilon: float = 2.0
  delta: float = 0.01
  clients: int = 4
  dimension: int = 15
  bits: int = 18
  rate: float = 0.3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Release:
  """A release with a claim.

  Attributes:
    name: Its mechanism.
    form: KERNELS or GRAPH.
    event: The event that is claimed.
    delta: Delta of the claim.
    draw: (whether the client is there, number of trials, generator) -> statistics,
      float [trials] or [trials, statistics].
    variance: Claimed variance of the first statistic without the client; None if the
      audit does not test it.
    is_slow: Whether every trial is a sum in a graph.
    largest: (number of trials, generator) -> the largest squared norm of as many
      encodings without noise, over the claimed one; None if it is not known.
  """

  name: str
  form: str
  event: base.Event
  delta: float
  draw: Callable[[bool, int, np.random.Generator], np.ndarray]
  variance: float | None = None
  is_slow: bool = False
  largest: Callable[[int, np.random.Generator], float] | None = None


def _blocks(draw: Callable[[bool, int, np.random.Generator], np.ndarray]):
  """`draw` in blocks."""
  def in_blocks(present: bool, trials: int, rng: np.random.Generator) -> np.ndarray:
    return np.concatenate([draw(present, min(_BLOCK, trials - start), rng)
                           for start in range(0, trials, _BLOCK)])

  return in_blocks


def _sum_mechanism(name: str, setting: Setting, **changes: Any) -> mechanisms.SumMechanism:
  """The mechanism of one release, with the noise of the setting's target."""
  mechanism = mechanisms.build(name, **{**dict(
      rounds=1, cohort_size=float(setting.clients), population=setting.clients, clip=1.0,
      bits=setting.bits, dimension=setting.dimension, sampling='none'), **changes})
  if mechanism.column != (1,):  # One participation, in all rows of its turn.
    mechanism = mechanism.replace(sampling='turns', rounds=len(mechanism.column),
                                  population=setting.clients * len(mechanism.column))
  noise = calibration.noise_multiplier(
      lambda z: mechanism.replace(noise_multiplier=z).event(), epsilon=setting.epsilon,
      delta=setting.delta)
  return mechanism.replace(noise_multiplier=noise)


def _factory(mechanism: mechanisms.SumMechanism) -> client_sum.ClientSumFactory:
  if not mechanism.family.params:
    return central_sum.CentralSumFactory(
        clip=mechanism.clip, noise_multiplier=mechanism.noise_multiplier)
  return (banded_sum.BandedSumFactory if mechanism.has_bands else
          distributed_sum.DistributedSumFactory)(mechanism.params())


def _flat(state: Mapping[str, Any], prefix: str = '') -> dict[str, np.ndarray]:
  return {name: value for key, part in state.items() for name, value in (
      _flat(part, f'{prefix}{key}/') if isinstance(part, Mapping) else
      {f'{prefix}{key}': np.asarray(part)}).items()}


def _vector(mechanism: mechanisms.SumMechanism, setting: Setting) -> np.ndarray:
  """A vector beyond the clip, all of it, float32 [dimension]."""
  signs = np.random.default_rng(5).choice([-1.0, 1.0], setting.dimension)
  return (3 * mechanism.clip * signs / math.sqrt(setting.dimension)).astype(np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SumFaults:
  """Faults of a sum that is executed; by default none.

  Attributes:
    changes: Fields of the mechanism that are executed with other values.
    silent: Clients whose share is missing, and nobody notices.
    same_key: Whether the noise of the second of two releases is that of the first.
    reopened: Whether every row is opened twice, each time with noise of its own.
    is_known: Whether it is known who is sampled.
    no_bound: Whether rounded vectors of any norm are accepted.
  """

  changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  silent: int = 0
  same_key: bool = False
  reopened: bool = False
  is_known: bool = False
  no_bound: bool = False


class _Unbounded(DistributedSumParams):
  """Parameters whose encoding accepts every rounding."""

  l2_sensitivity_squared = 2**40


def _keys(rng: np.random.Generator, *shape: int) -> np.ndarray:
  return rng.integers(-2**63, 2**63 - 1, size=shape)


def _sampled(present: bool, trials: int, rate: float,
             rng: np.random.Generator) -> np.ndarray:
  """Whether the client's vector is in each trial's sum."""
  return np.logical_and(present, rng.random(trials) < rate)


def _in_kernels(params: DistributedSumParams, vector: np.ndarray,
                state: Mapping[str, Any], clients: int, rate: float
                ) -> tuple[Callable, Callable]:
  """`draw` of sums of encoded clients by the kernels, and `largest`, in model units."""
  rows = np.zeros([2, clients, params.dimension], np.float32)
  rows[1, 0] = vector
  without = dict(noise_multiplier=0.0, column=(1,), fixed_scale=params.scale)
  bare = encoding.EncodedSum.of(params.replace(**without), state)
  unwrapped = lambda x: x - ((x >= params.modulus // 2) * params.modulus)

  def encoded(key: np.ndarray) -> np.ndarray:
    """The client's own integers."""
    bare.total[:] = 0
    bare.add(rows[1, :1], key[np.newaxis])
    return unwrapped(bare.total.astype(np.float64))

  direction = encoded(np.zeros(2, np.int64))
  direction /= np.linalg.norm(direction)

  def draw(present: bool, trials: int, rng: np.random.Generator) -> np.ndarray:
    total = encoding.EncodedSum.of(params, state)
    own_keys = _keys(rng, trials, clients, 2)
    is_there = _sampled(present, trials, rate, rng).astype(int)
    sums = np.empty([trials, len(direction)], np.int64)
    for trial in range(trials):
      total.total[:] = 0
      total.add(rows[is_there[trial]], own_keys[trial])
      sums[trial] = total.total[:len(direction)]
    return unwrapped(sums) @ direction / params.scale

  def largest(trials: int, rng: np.random.Generator) -> float:
    return max(np.square(encoded(key)).sum() for key in _keys(rng, trials, 2)) / (
        params.scale**2)

  return draw, largest


def _in_graph(factory: client_sum.ClientSumFactory, vector: np.ndarray, clients: int,
              column: tuple[int, ...], rate: float, faults: SumFaults) -> Callable:
  """Draws results of `release` in TensorFlow's graph, along the client's vector.

  With a column the statistic is that of all rows in which the client is.
  """
  dimension, rounds = len(vector), max(len(column), 1 + faults.same_key)
  direction = vector / np.linalg.norm(vector)
  state = factory.set_cohort_size(factory.initial_state(), clients)

  def one(arguments):
    key, is_there = arguments
    current, found = state, []
    for index in range(rounds):
      round_key = key if faults.same_key else keys.derive(key, index)
      total = factory.zero(dimension)
      for client in range(clients - faults.silent):
        row = tf.zeros([dimension])
        if client == 0 and index == 0:
          row = tf.where(is_there, tf.constant(vector), row)
        sent, _ = factory.contribute(row, keys.derive(round_key, client), current)
        total = factory.add(total, sent)
      current, result, _ = factory.release(
          current, total, tf.constant(clients), keys.derive(round_key, clients))
      # The rotation of the first round: noise would cancel by another as well.
      current = dict(current, rotation_key=state['rotation_key']) if (
          'rotation_key' in current) else current
      found.append(tf.tensordot(result, tf.constant(direction), 1))
    return tf.stack(found)

  run = tf.function(lambda own_keys, is_there: tf.map_fn(
      one, (own_keys, is_there), fn_output_signature=tf.float32), autograph=False,
                    reduce_retracing=True)

  def draw(present: bool, trials: int, rng: np.random.Generator) -> np.ndarray:
    again, results = 1 + faults.reopened, []
    for _ in range(again):
      results.append(run(tf.constant(_keys(rng, trials, 2)), tf.constant(
          _sampled(present, trials, rate, rng))).numpy().astype(np.float64))
    sums = np.mean(results, axis=0)
    if len(column) == 1:
      return sums if rounds == 1 else np.stack([
          sums[:, 0], sums[:, 0] - sums[:, 1]], axis=1)
    rows = np.stack([sum(column[j] * sums[:, t - j] for j in range(t + 1))
                     for t in range(rounds)], axis=1)
    return rows @ np.array(column)

  return draw


def of_sum(name: str, form: str, setting: Setting, *, column: tuple[int, ...] = (1,),
           sampled: bool = False, faults: SumFaults = SumFaults()) -> Release:
  """A release of a sum, of rows with a column, or of a sample that stays hidden."""
  changes = dict(column=column) if len(column) > 1 else {}
  if sampled:  # Of records, one of which is in a silo's sum with a probability.
    changes = dict(sampling='records', silos=setting.clients, population=1000,
                   cohort_size=1000 * setting.rate, bits=24)
  mechanism = _sum_mechanism(name, setting, **changes)
  executed = mechanism.replace(**{
      key: change(getattr(mechanism, key)) if callable(change) else change
      for key, change in faults.changes.items()})
  factory, vector = _factory(executed), _vector(executed, setting)
  rate = setting.rate if sampled and not faults.is_known else 1.0
  variance = largest = None
  if form == KERNELS:
    state = _flat(factory.set_cohort_size(factory.initial_state(), setting.clients))
    params = executed.params()
    if faults.no_bound:
      params = _Unbounded(**{field.name: getattr(params, field.name)
                             for field in dataclasses.fields(params)})
    draw, norms = _in_kernels(
        params, vector, state, setting.clients - faults.silent, rate)
    claimed = mechanism.params()
    variance = claimed.total_noise_variance / claimed.scale**2
    most = claimed.l2_sensitivity_squared / claimed.scale**2
    largest = lambda trials, rng: norms(trials, rng) / most
  else:
    draw = _in_graph(factory, vector, setting.clients, column, rate, faults)
  return Release(name=name + (' rows' if len(column) > 1 else ' of a hidden sample' if (
      sampled) else ''), form=form, event=mechanism.event(), delta=setting.delta,
                 draw=_blocks(draw), variance=variance, largest=largest,
                 is_slow=form == GRAPH)


def of_vote(name: str, setting: Setting, *, cast: int = 1, noise: str = 'skellam',
            **changes: Any) -> Release:
  """A vote's noisy sum: of agents, or of one record's neighbours.

  `cast` is how often the audited agent casts its vote; `changes` are executed.
  """
  is_knn, votes = name == 'knn_vote', 10 if name == 'knn_vote' else 1
  mechanism = mechanisms.build(
      name, level='instance' if is_knn else 'agent', noise=noise,
      **dict(neighbours=votes) if is_knn else {})
  stddev = calibration.noise_multiplier(
      lambda z: mechanism.replace(noise_stddev=z).event(), epsilon=setting.epsilon,
      delta=setting.delta)
  mechanism = mechanism.replace(noise_stddev=stddev)

  def draw(present: bool, trials: int, rng: np.random.Generator) -> np.ndarray:
    params = VotingParams(**{**dict(
        queries=trials, classes=2, agents=setting.clients, noise_stddev=stddev,
        votes=votes, noise=noise, max_weight=cast), **changes})
    ballot = np.zeros([trials, 2], np.int32)
    # One vote for the second class; of k neighbours one votes for the other class.
    ballot[:, 1] = (votes if is_knn else cast) if present else votes - 1
    if is_knn:
      ballot[:, 0] = votes - ballot[:, 1]
    total = 0
    for agent in range(setting.clients):
      own = ballot if agent == 0 else np.zeros_like(ballot)
      total += voting.cast(tf.constant(own), tf.constant(_keys(rng, 2)),
                           params).numpy().astype(np.float64)
    if params.is_integer:
      total = (total + 2**(params.bits - 1)) % 2**params.bits - 2**(params.bits - 1)
    return total[:, 1] - total[:, 0] * is_knn

  return Release(name=f'{name}, {noise}', form=GRAPH, event=mechanism.event(),
                 delta=setting.delta, draw=_blocks(draw),
                 variance=(1 + is_knn) * (votes * stddev)**2)


_ANSWERS = {
    'krr': lambda epsilon, _: events.SubsetSelection(epsilon=epsilon, classes=2),
    'subset': lambda epsilon, _: events.SubsetSelection(
        epsilon=epsilon, classes=10, size=local_dp.build(
            'subset', dimension=10, epsilon=epsilon, simplex=True).size),
    'laplace': lambda epsilon, _: events.LocalLaplace(epsilon=epsilon),
    'piecewise': lambda epsilon, _: events.Piecewise(epsilon=epsilon),
    'duchi': lambda epsilon, _: events.Duchi(epsilon=epsilon),
    'gaussian': lambda _, noise: events.LocalDiscreteGaussian(noise_multiplier=noise)}


def of_answer(name: str, setting: Setting, *, factor: float = 1.0) -> Release:
  """One answer of a locally private mechanism; `factor` times its epsilon is executed."""
  noise, kind = None, _ANSWERS[name]
  if name == 'gaussian':
    noise = calibration.noise_multiplier(
        lambda z: kind(None, z), epsilon=setting.epsilon, delta=setting.delta)
  event = kind(setting.epsilon, noise)
  simplex = name not in ('piecewise', 'duchi')
  dimension = 10 if name == 'subset' else 2 if simplex else 1
  mechanism = local_dp.build(name, dimension=dimension, simplex=simplex, **(
      {'noise_multiplier': noise / factor} if noise else {
          'epsilon': setting.epsilon * factor}))

  def draw(present: bool, trials: int, rng: np.random.Generator) -> np.ndarray:
    row = np.full([trials, dimension], -1.0)
    if simplex or present:
      row[:, 0 if present else 1] = 1.0
    found = mechanism.perturb(tf.constant(row), tf.constant(
        _keys(rng, 2))).numpy().astype(np.float64)
    if name == 'laplace':  # Beyond both inputs the likelihoods' ratio is constant.
      found = found.clip(-1, 1)
    return found[:, 0] - (found[:, 1] if simplex else 0)

  return Release(name=f'{name} answer', form=GRAPH, event=event, draw=_blocks(draw),
                 delta=setting.delta if noise else 0.0)


def of_prediction(noise: str, setting: Setting, *, factor: float = 1.0) -> Release:
  """A party's noised prediction of one record; `factor` times its noise is executed."""
  build = functools.partial(
      PredictionMeanParams, knowledge='softmax', classes=2, max_total_weight=1,
      noise=noise, bits=24)
  clean = build(records=1, noise_scale=1.0)
  if noise == 'gaussian':
    event = lambda z: events.LocalGaussian(noise_multiplier=z)
    multiplier = calibration.noise_multiplier(
        event, epsilon=setting.epsilon, delta=setting.delta)
    scale, event = multiplier * clean.l2_sensitivity, event(multiplier)
  else:
    event = events.LocalLaplace(epsilon=setting.epsilon)
    scale = clean.l1_sensitivity / setting.epsilon

  def draw(present: bool, trials: int, rng: np.random.Generator) -> np.ndarray:
    params = build(records=trials, noise_scale=scale * factor)
    logits = np.full([trials, 2], -30.0, np.float32)
    logits[:, 0 if present else 1] = 30.0
    sent = prediction_mean.encode(tf.constant(logits), tf.constant(1), tf.constant(
        _keys(rng, 2)), params).values.numpy()
    values = params.low + (params.high - params.low) * sent / params.levels
    if noise == 'laplace':
      values = values.clip(0, 1)
    return values[:, 0] - values[:, 1]

  return Release(name=f'prediction, {noise}', form=GRAPH, event=event,
                 draw=_blocks(draw), delta=setting.delta if noise == 'gaussian' else 0.0)


def _sums() -> dict[str, Callable[[Setting], Release]]:
  found = {}
  for name in ('skellam', 'discrete_gaussian'):
    found[f'{name}-{KERNELS}'] = functools.partial(of_sum, name, KERNELS)
  for name in ('skellam', 'discrete_gaussian', 'skellam_central', 'gaussian'):
    found[f'{name}-{GRAPH}'] = functools.partial(of_sum, name, GRAPH)
  found['skellam-rows'] = functools.partial(of_sum, 'skellam', GRAPH, column=COLUMN)
  found['skellam-records'] = functools.partial(of_sum, 'skellam', KERNELS, sampled=True)
  return found


# Name -> the release of a setting.
RELEASES: dict[str, Callable[[Setting], Release]] = {
    **_sums(),
    **{f'ae_vote-{noise}': functools.partial(of_vote, 'ae_vote', noise=noise)
       for noise in ('skellam', 'gaussian')},
    'knn_vote-skellam': functools.partial(of_vote, 'knn_vote'),
    **{f'{name}-answer': functools.partial(of_answer, name) for name in _ANSWERS},
    **{f'{noise}-prediction': functools.partial(of_prediction, noise)
       for noise in ('gaussian', 'laplace')}}
