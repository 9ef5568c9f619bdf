"""Speed of the accountant, against the method of the reference code.

  python -m benchmarks.accounting [--json]

The reference finds the noise of a subsampled Skellam run by two nested
minimisations without brackets: an outer one over the local noise, an inner one
over the scale, each step a loop in Python over the orders. That method is
reimplemented here, with the same formulas, and timed on the same setting in
the same run. Prints seconds and ratios, as JSON with --json.
"""

import argparse
from collections.abc import Sequence
import json
import math
import statistics
import time

import numpy as np
from scipy import optimize, special

from aggregators import params as params_lib
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import accountant, calibration

POPULATION, COHORT, ROUNDS, EPSILON = 3400, 100, 1500, 10.0
CLIP, BITS, DIMENSION, K_STDDEVS, BETA = 0.03, 18, 2**20, 4.0, math.exp(-0.5)
RATE, DELTA = COHORT / POPULATION, 1 / POPULATION
ORDERS = [1 + x / 10.0 for x in range(1, 100)] + list(range(11, 64)) + [
    128, 256, 512, 1024]


def skellam_run(params):
  return events.SelfComposed(
      event=events.PoissonSampled(
          event=events.DistributedSkellam.from_params(params),
          sampling_rate=RATE), count=ROUNDS)


def our_params(noise_multiplier=1.0):
  return params_lib.DistributedSumParams(
      clip=CLIP, noise_multiplier=noise_multiplier, bits=BITS,
      dimension=DIMENSION, cohort_size=COHORT, beta=BETA, k_stddevs=K_STDDEVS)


def rounded_norms(scale):
  """Returns the L1 and L2 sensitivity of the rounded vector, model units."""
  clip = scale * CLIP
  bound = math.sqrt(min(
      (clip + math.sqrt(DIMENSION))**2,
      clip**2 + DIMENSION / 4 + math.sqrt(2 * math.log(1 / BETA)) *
      (clip + math.sqrt(DIMENSION) / 2)))
  return min(bound * math.sqrt(DIMENSION), bound**2) / scale, bound / scale


def release_rdp(order, scale, stddev, l1, l2):
  variance = stddev**2
  first = order * l2**2 / (2 * variance)
  return first + min(
      ((2 * order - 1) * scale * l2**2 + 6 * l1) / (4 * scale**3 * variance**2),
      3 * l1 / (2 * scale * variance))


def looped_epsilon(scale, local_stddev):
  """Computes epsilon by a loop over orders and terms, generic subsampling."""
  l1, l2 = rounded_norms(scale)
  stddev = local_stddev * math.sqrt(COHORT)
  best = math.inf
  for order in sorted({math.ceil(order) for order in ORDERS if order >= 2}):
    terms = [(order - 1) * math.log1p(-RATE) + math.log1p((order - 1) * RATE)]
    for l in range(2, order + 1):
      choose = (special.gammaln(order + 1) - special.gammaln(l + 1) -
                special.gammaln(order - l + 1))
      terms.append(
          choose + (order - l) * math.log1p(-RATE) + l * math.log(RATE) +
          (l - 1) * release_rdp(l, scale, stddev, l1, l2) +
          (math.log(3) if l > 2 else 0))
    curve = min(special.logsumexp(terms) / (order - 1),
                release_rdp(order, scale, stddev, l1, l2))
    best = min(best, ROUNDS * curve + math.log1p(-1 / order) -
               math.log(DELTA * order) / (order - 1))
  return best


def heuristic_scale(local_stddev):
  """Inner minimisation: finds the scale that the bits allow, without a bracket."""
  def gap(scale):
    scale = abs(float(np.squeeze(scale)))
    variance = CLIP**2 * COHORT**2 * scale**2 / DIMENSION + COHORT * (
        0.25 + scale**2 * local_stddev**2)
    return (2**BITS - 2 * K_STDDEVS * math.sqrt(variance))**2
  return abs(optimize.minimize_scalar(gap).x)


def nested_minimisation():
  """Outer minimisation, of the squared gap to the target epsilon."""
  def gap(local_stddev):
    local_stddev = max(abs(local_stddev), 1e-4)
    epsilon = looped_epsilon(heuristic_scale(local_stddev), local_stddev)
    return (EPSILON - min(epsilon, 1e6))**2
  local_stddev = optimize.minimize_scalar(
      gap, bracket=(CLIP / 20, CLIP / 5), options={'maxiter': 60}).x
  return abs(local_stddev) * math.sqrt(COHORT) / CLIP


def seconds(function, repeats):
  """Returns the median time of a call, and the last result."""
  times = []
  for _ in range(repeats):
    start = time.perf_counter()
    result = function()
    times.append(time.perf_counter() - start)
  return statistics.median(times), result


def main(arguments: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
  parser.add_argument('--json', action='store_true', help='print JSON')
  as_json = parser.parse_args(arguments).json
  event = skellam_run(our_params(0.9))
  accountant.epsilon(event, DELTA)  # Tables are built once.
  epsilon_time, _ = seconds(lambda: accountant.epsilon(event, DELTA), 15)
  curve_time, _ = seconds(lambda: event.curve(1024, 'tight'), 5)
  ours_time, ours = seconds(lambda: calibration.noise_multiplier(
      lambda z: skellam_run(our_params(z)), epsilon=EPSILON, delta=DELTA,
      amplification='generic'), 5)
  local = 0.9 * CLIP / math.sqrt(COHORT)
  looped_time, _ = seconds(
      lambda: looped_epsilon(heuristic_scale(local), local), 1)
  theirs_time, theirs = seconds(nested_minimisation, 1)
  pld_event = events.SelfComposed(
      event=events.PoissonSampled(
          event=events.CentralGaussian(noise_multiplier=0.848),
          sampling_rate=RATE), count=ROUNDS)
  pld_time, _ = seconds(lambda: accountant.epsilon(pld_event, DELTA), 5)
  result = {
      'epsilon_seconds': epsilon_time,
      'curve_to_order_1024_seconds': curve_time,
      'epsilon_seconds_looped': looped_time,
      'epsilon_ratio': looped_time / epsilon_time,
      'calibration_seconds': ours_time,
      'calibration_seconds_nested_minimisation': theirs_time,
      'calibration_ratio': theirs_time / ours_time,
      'noise_multiplier': ours,
      'noise_multiplier_nested_minimisation': theirs,
      'pld_epsilon_seconds': pld_time,
  }
  print(json.dumps(result) if as_json else
        '\n'.join(f'{name}: {value:.6g}' for name, value in result.items()))


if __name__ == '__main__':
  main()
