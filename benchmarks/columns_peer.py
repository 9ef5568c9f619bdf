"""Columns and matrices of jax_privacy, as peers of benchmarks/columns.py.

  python benchmarks/columns_peer.py benchmarks/columns_peer.json

Runs in a Python of its own, with jax_privacy 2.0. Every mechanism is optimized by
jax_privacy's own functions for the mean of the squared errors. Its losses are those of
prefix sums; for momentum they are given the workload's coefficients or matrix, by the
same functions.
"""

from importlib import metadata
import json
import math
import pathlib
import sys

import jax
from jax_privacy.matrix_factorization import (
    buffered_toeplitz, dense, optimization, sensitivity, toeplitz)
import jax.numpy as jnp

# Rounds T, bands and rounds between two turns b, turns k.
SETTINGS = ((50, 5, 10), (200, 20, 10), (1500, 34, 45))
MOMENTA = (0.0, 0.9)
_MOST_BUFFERS = 6
# Rounds up to which dense matrices are optimized.
_MOST_DENSE = 200


def workload(rounds: int, momentum: float) -> jax.Array:
  """The first column of the workload's Toeplitz matrix, [T].

  The learning rate is 1 - momentum: `dense.optimize` stops at an absolute gradient.
  """
  powers = momentum**jnp.arange(rounds, dtype=jnp.float64)
  return (1 - momentum) * jnp.cumsum(powers)


def banded(rounds: int, bands: int, turns: int, momentum: float) -> dict:
  """A banded Toeplitz matrix; turns are as many rounds apart as there are bands."""
  work = workload(rounds, momentum)

  def errors(column):
    return toeplitz.per_query_error(
        strategy_coef=column, n=rounds, workload_coef=work, skip_checks=True)

  if momentum == 0:
    column = toeplitz.optimize_banded_toeplitz(rounds, bands)
  else:
    column = optimization.optimize(
        lambda c: errors(c).mean() * toeplitz.sensitivity_squared(c, rounds),
        toeplitz.optimal_max_error_strategy_coefs(bands))
  square = toeplitz.minsep_sensitivity_squared(column, bands, turns, rounds)
  return dict(squares=errors(column), sensitivity=square, column=column)


def blt(rounds: int, bands: int, turns: int, momentum: float) -> dict:
  """A buffered linear Toeplitz matrix; one more buffer lowers its loss by less than 1%.

  That is the rule of `buffered_toeplitz.optimize`.
  """
  work = workload(rounds, momentum)
  single = buffered_toeplitz.LossFn.build_min_sep(
      rounds, 'mean', min_sep=bands, max_participations=turns)

  def errors(inverse):
    return toeplitz.per_query_error(
        noising_coef=inverse.toeplitz_coefs(rounds), workload_coef=work,
        skip_checks=True)

  loss = buffered_toeplitz.LossFn(
      error_for_inv=lambda inverse: errors(inverse).mean(),
      sensitivity_squared=single.sensitivity_squared, n=rounds, min_sep=bands,
      max_participations=turns)
  result, lowest = buffered_toeplitz.optimize_loss(loss, 1)
  buffers = 1
  while buffers < _MOST_BUFFERS:
    try:
      more, value = buffered_toeplitz.optimize_loss(loss, buffers + 1)
    except (RuntimeError, ValueError) as error:  # A matrix that is not valid.
      print(f'{buffers + 1} buffers: {str(error).splitlines()[0]}', file=sys.stderr)
      break
    if 1.01 * value >= lowest:
      break
    result, lowest, buffers = more, value, buffers + 1
  return dict(
      squares=errors(result.inverse()), sensitivity=loss.sensitivity_squared(result),
      buffers=buffers)


def dense_banded(rounds: int, bands: int, turns: int, momentum: float) -> dict:
  """The banded matrix of the lowest error, Toeplitz or not; columns have norm 1."""
  matrix = toeplitz.materialize_lower_triangular(workload(rounds, momentum))
  strategy = dense.optimize(rounds, bands=bands, equal_norm=True, A=matrix)
  return dict(
      squares=dense.per_query_error(strategy_matrix=strategy, workload_matrix=matrix),
      sensitivity=sensitivity.get_sensitivity_banded(
          strategy, min_sep=bands, max_participations=turns)**2)


def dense_turns(rounds: int, bands: int, turns: int, momentum: float) -> dict:
  """The matrix of the lowest error if all turns are exactly T / k rounds apart."""
  del bands
  matrix = toeplitz.materialize_lower_triangular(workload(rounds, momentum))
  strategy = dense.optimize(rounds, epochs=turns, A=matrix)
  return dict(
      squares=dense.per_query_error(strategy_matrix=strategy, workload_matrix=matrix),
      sensitivity=sensitivity.fixed_epoch_sensitivity(strategy, turns)**2)


def main(path: str) -> None:
  """Writes all results into a JSON file; those that it has are not computed again."""
  jax.config.update('jax_enable_x64', True)
  versions = {name: metadata.version(name) for name in ('jax_privacy', 'jax', 'optax')}
  file = pathlib.Path(path)
  results = json.loads(file.read_text())['results'] if file.exists() else []
  done = {(r['name'], r['rounds'], r['momentum']) for r in results}
  for rounds, bands, turns in SETTINGS:
    for momentum in MOMENTA:
      for function in (banded, blt, dense_banded, dense_turns):
        if (function in (dense_banded, dense_turns) and rounds > _MOST_DENSE
            or (function.__name__, rounds, momentum) in done):
          continue
        found = function(rounds, bands, turns, momentum)
        # In units of a turn's noise multiplier, like those of `columns.error`.
        rows = jnp.sqrt(found.pop('squares') * found.pop('sensitivity') / turns)
        rows /= 1 - momentum
        if 'column' in found:
          found['column'] = [float(f'{w:.8g}') for w in found['column']]
        if function is dense_turns:
          found['rows'] = [float(f'{row:.6g}') for row in rows]
        results.append(dict(
            name=function.__name__, rounds=rounds, bands=bands, turns=turns,
            momentum=momentum, error=math.sqrt(float(jnp.mean(rows**2))), **found))
        file.write_text(json.dumps(dict(versions=versions, results=results)) + '\n')


if __name__ == '__main__':
  main(sys.argv[1])
