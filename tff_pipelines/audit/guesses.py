"""Lower bounds of epsilon of a whole run, by guesses about its canaries."""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

import numpy as np
from scipy import optimize, special, stats

from tff_pipelines.accounting.guarantees import bounds, ledger as ledger_lib, ledger_query
from tff_pipelines.accounting.guarantees.guarantee import Guarantee
from tff_pipelines.audit import canaries as canaries_lib, lower_bounds
from tff_pipelines.common import files
from tff_pipelines.experiment import checkpoints, configurations, measured

# Observers for whom the epsilon is the server's.
_OF_SERVER = frozenset({'server'})
# Numbers of guesses that are compared, and points of a curve.
_COMPARED, _POINTS = 25, 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
  """The lower bound that one observer's guesses prove.

  Attributes:
    observer: A key of `measured.OBSERVERS`.
    claimed: Epsilon that is proved against it, at `delta`; None if there is none.
    lower: Epsilon is at least this, with probability `measured.LEVEL` (arXiv 2305.08846).
    largest: The bound if every canary were guessed right.
    canaries, guesses, right: Numbers of canaries, of guesses and of right ones.
    estimate: Epsilon of two normal distributions that fit the scores of canaries that
      are in and out (arXiv 2302.03098): no bound. None for the server.
    area: Area under the ROC curve of the guesses; None if all canaries are in, or none.
    curve: Points of that curve, (false positive rate, true positive rate).
  """

  observer: str
  claimed: float | None
  delta: float
  lower: float
  largest: float
  canaries: int
  guesses: int
  right: int
  estimate: float | None
  area: float | None
  curve: Sequence[tuple[float, float]]

  def to_json(self) -> dict[str, Any]:
    return dataclasses.asdict(self)


def ratios_of_model(moved: np.ndarray, variance: float, expected: float,
                    rounds: int) -> np.ndarray:
  """Log likelihood ratios of being in, of scores whose scale is unknown.

  Args:
    moved: float [count], inner products of the model's change with the directions.
    variance: That of a random direction's.
    expected: Expected number of rounds of a client, of `rounds`.
  """
  mean = 2 * moved.mean()  # Half of them are in.
  if mean <= 0 or not variance:
    return np.zeros(len(moved))
  wider = variance + mean**2 * (1 / expected - 1 / rounds)
  law = lambda location, v: stats.norm.logpdf(moved, location, np.sqrt(v))
  return law(mean, wider) - law(0.0, variance)


def epsilon_of_normals(one: tuple[float, float], other: tuple[float, float],
                       delta: float) -> float:
  """Epsilon at delta of two normal distributions, (mean, standard deviation) each."""
  def divergence(first, second, epsilon):
    # The log ratio minus epsilon is the parabola a x^2 + b x + c.
    (m, s), (n, t) = first, second
    a, b = (t**-2 - s**-2) / 2, m / s**2 - n / t**2
    c = (n / t)**2 / 2 - (m / s)**2 / 2 + np.log(t / s) - epsilon
    roots = np.sort([x.real for x in np.roots([a, b, c]) if not x.imag])
    edges, inside = [-np.inf, *roots, np.inf], [0.0]
    if len(roots):
      inside = [roots[0] - 1, *(roots[1:] + roots[:-1]) / 2, roots[-1] + 1]
    return sum(
        np.diff(stats.norm.cdf(part, m, s))[0]
        - np.exp(epsilon) * np.diff(stats.norm.cdf(part, n, t))[0]
        for x, *part in zip(inside, edges, edges[1:]) if (a * x + b) * x + c > 0)

  worst = lambda epsilon: max(divergence(one, other, epsilon),
                              divergence(other, one, epsilon)) - delta
  if worst(0.0) <= 0:
    return 0.0
  return float(optimize.brentq(worst, 0.0, 500.0, xtol=1e-6)) if worst(500.0) < 0 else (
      np.inf)


def find(observer: str, ratios: np.ndarray, is_in: np.ndarray, *, claimed: float | None,
         delta: float, scores: np.ndarray | None = None) -> Finding:
  """The finding of guesses by log likelihood ratios; `scores` are for the estimate.

  Canaries are guessed in the order of how sure it is, in where a ratio is above 0. How
  many is decided by the ratios alone, and so without the coins.
  """
  count, order = len(ratios), np.argsort(-np.abs(ratios), kind='stable')
  sure = np.cumsum(special.expit(np.abs(ratios[order])))
  ks = np.unique(np.geomspace(1, count, _COMPARED).astype(int))
  bound = lambda k, right: lower_bounds.epsilon_of_guesses(
      count, k, right, delta, measured.LEVEL, is_fixed=False)
  guesses = max(ks.tolist(), key=lambda k: (bound(k, int(sure[k - 1])), -k))
  right = int(np.sum((ratios > 0)[order[:guesses]] == is_in[order[:guesses]]))
  estimate = None
  laws = [] if scores is None else [
      (part.mean(), part.std()) for part in (scores[is_in], scores[~is_in]) if len(part)]
  if len(laws) == 2 and all(deviation > 0 for _, deviation in laws):
    estimate = epsilon_of_normals(*laws, delta)
  thresholds = np.unique(np.quantile(ratios, np.linspace(0, 1, _POINTS)))[::-1]
  curve = [(0.0, 0.0), *(
      tuple(float(np.mean(part >= t)) if len(part) else 0.0
            for part in (ratios[~is_in], ratios[is_in])) for t in thresholds), (1.0, 1.0)]
  return Finding(
      observer=observer, claimed=claimed, delta=delta, lower=bound(guesses, right),
      largest=max(bound(k, k) for k in ks.tolist()), canaries=count, guesses=guesses,
      right=right, estimate=estimate if estimate is None else files.finite(estimate),
      area=float(np.trapz(*np.array(curve).T[::-1])) if 0 < is_in.sum() < count else None,
      curve=curve)


def of_run(canaries: Any, state: Mapping[str, Any], weights: Sequence[np.ndarray],
           guarantee: Guarantee, *, expected: float, rounds: int,
           descends: bool = False) -> list[Finding]:
  """The findings of a run's canaries, one of each observer.

  Args:
    canaries: The run's `canaries.Canaries`.
    state: Its state about them, after the last round.
    weights: Those of the final model.
    guarantee: Numbers to compare with.
    expected, rounds: Expected number of rounds of a client, and of all.
    descends: Whether the model moves against what is contributed, gradients.
  """
  moved = (canaries.transformed(weights) - state['initial']) * (-1 if descends else 1)
  own = moved[canaries.rows].astype(np.float64)
  ratios = {'final': ratios_of_model(
      own, float(np.mean(np.square(moved, dtype=np.float64))), expected, rounds),
            'models': state['released'], 'server': state['server']}
  scores = {'final': own, 'models': state['largest']}
  found = []
  for name in measured.OBSERVERS:
    bound = guarantee.by_observer.get(
        bounds.SERVER if name in _OF_SERVER else bounds.OUTSIDERS)
    found.append(find(
        name, np.asarray(ratios[name]), canaries.is_in, delta=guarantee.delta,
        claimed=bound and files.finite(bound.epsilon), scores=scores.get(name)))
  return found


def of_folder(folder: pathlib.Path) -> list[Finding]:
  """The findings of the run in a folder, from its last checkpoint and its ledger.

  Raises ValueError if it has no canaries, is not finished, or its ledger is damaged.
  """
  configuration = configurations.read(folder)
  settings = (configuration or {}).get('settings', {})
  if not settings.get('canaries'):
    raise ValueError(f'run={folder} must be the folder of a run with canaries')
  kept = checkpoints.list_all(folder / files.PRIVATE / 'checkpoints')
  ledger = ledger_lib.Ledger(folder / files.LEDGER)
  if problems := ledger.verify():
    raise ValueError(f'run={folder}: {"; ".join(problems)}')
  lines = ledger.lines()
  checkpoint = checkpoints.read(kept[0][1]) if kept else None
  # Rounds that a stop left out, and those that were lost and run again, are charged too.
  unused = ledger_lib.unused(lines)
  if checkpoint is None or checkpoint.rounds + unused != settings['rounds'] or (
      len(lines) != settings['rounds'] + len(checkpoint.lost)):
    raise ValueError(f'run={folder} is not finished: continue it with --resume')
  arrays, plan, rounds = checkpoint.arrays, configuration['plan'], checkpoint.rounds
  part = lambda name: {path.removeprefix(name): array for path, array in arrays.items()
                       if path.startswith(name)}
  # With a validation set the run ends with the best model.
  weights = part('best/weights/') or part('process/weights/')
  canaries = canaries_lib.Canaries.of_run(
      folder, resumed=True, dimension=plan['dimension'])
  return of_run(
      canaries, part('canaries/'), [weights[name] for name in sorted(weights, key=int)],
      ledger_query.answer(ledger.path, delta=plan['delta']), rounds=rounds,
      expected=max(1.0, rounds * (settings['batch_size'] or settings['cohort_size'])
                   / plan['population']), descends=settings['protect'] == 'record')
