"""Cost of votes on the counts at hand: private itself, or released with noise."""

import dataclasses
import os

import numpy as np

from tff_pipelines.accounting import answers
from tff_pipelines.accounting import caveats
from tff_pipelines.accounting import voting
from tff_pipelines.queries import settings as settings_lib

DO_NOT_PUBLISH = caveats.Caveat(
    'PRIVATE: do not publish',
    'do not publish: epsilon_data_dependent is computed from the private votes and is '
    'itself sensitive; epsilon holds for any votes')
_ESTIMATE = caveats.Caveat(
    'noisy estimate',
    'epsilon_released is an estimate centred on the exact value: its noise may put it '
    'below')
_ONCE = caveats.Caveat(
    'publish one release only',
    'every run of this query is one more release, which costs as much again; '
    'release_order, release_smoothness and release_noise must not depend on the votes')
_FLOATING_POINT = caveats.Caveat(
    'floating-point Gaussian noise',
    'Gaussian noise in floating point carries the guarantee of ideal arithmetic only')


@dataclasses.dataclass(frozen=True, kw_only=True)
class VotesAnswer(answers.Answer):
  """An answer about votes that were counted.

  Attributes:
    epsilon_data_dependent: On these votes alone, as private as they are; None in an
      answer that may be published.
    epsilon_released: The same at the order `release_order`, released with noise, the
      cost of the release included; None if it was not asked for.
  """

  epsilon_data_dependent: float | None = None
  epsilon_released: float | None = None


def read(path: str | os.PathLike[str]) -> np.ndarray:
  """Vote counts of a file, [queries, labels], integers >= 0.

  Args:
    path: Of an .npz file with one such array, else of a CSV file with one line a query
      and no header.

  Raises:
    OSError: If the file can't be read.
    ValueError: If it holds anything else.
  """
  name = os.fspath(path)
  try:
    if name.endswith('.npz'):
      with np.load(name, allow_pickle=False) as arrays:
        (votes,) = (arrays[key] for key in arrays.files)
    else:
      with open(name, encoding='utf-8') as file:
        votes = np.array([[int(cell) for cell in line.split(',')]
                          for line in file if line.strip()])
    if votes.ndim != 2 or not votes.size:
      raise ValueError(f'its shape is {votes.shape}')
    for counts in votes:
      voting.checked_counts(counts)
  except OSError:
    raise
  except Exception as error:  # zipfile, NumPy and int() raise errors of all kinds.
    raise ValueError(
        f'votes must be a file of integer counts, [queries, labels], found {name!r}: '
        f'{error}') from error
  return votes


def answer(settings: settings_lib.AccountSettings) -> VotesAnswer:
  """Epsilon on the votes of a file, or its release with noise.

  Raises:
    OSError: If the file can't be read.
    ValueError: If a setting is missing, or the votes have no such bound.
  """
  is_release = any(getattr(settings, name) is not None for name in settings_lib.RELEASE)
  for name in ('delta', 'votes', *(settings_lib.RELEASE if is_release else ())):
    if getattr(settings, name) is None:
      raise ValueError(
          f'{name} must be given for query=data_dependent'
          + (' and a release with noise' if name in settings_lib.RELEASE else ''))
  votes = read(settings.votes)
  mechanism = settings.about.replace(queries=len(votes))
  event = mechanism.release()
  independent = answers.answer(answers.Query(
      delta=settings.delta, accountant=settings.accountant), mechanism)
  fields = dict(vars(independent))
  if is_release:
    order = settings.release_order
    cost = voting.release(
        event, votes, order=order, beta=settings.release_smoothness,
        noise=settings.release_noise, random=np.random.default_rng())
    fields |= dict(
        epsilon_released=voting.epsilon_of_cost(
            cost, order, settings.delta),
        warnings=[_ESTIMATE, _ONCE, _FLOATING_POINT, *independent.warnings])
  else:
    epsilon = voting.data_dependent_epsilon(event, votes, settings.delta)
    if independent.epsilon is not None:
      epsilon = min(epsilon, independent.epsilon)
    fields |= dict(epsilon_data_dependent=answers.finite(epsilon),
                   warnings=[DO_NOT_PUBLISH, *independent.warnings])
  return VotesAnswer(**fields)
