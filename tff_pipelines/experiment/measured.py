"""Findings of an audit of a run, in words and as curves, from their JSON.

They are those of `audit.guesses.Finding.to_json`, in the summary's `details`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tff_pipelines.experiment.page_elements import Curve

LEVEL = 0.95
# Observer -> what it guesses from.
OBSERVERS = {'final': 'the final model', 'models': 'all models',
             'server': 'secure sums and cohorts'}
FIGURE = 'audit.png'
METRIC, OVER = 'true positive rate', 'false positive rate'

REFUTED = 'an audit measured more than the epsilon that is stated: the run is faulty'


def refutes(found: Mapping[str, Any]) -> bool:
  """Whether a finding refutes the epsilon that it is compared with."""
  return found['claimed'] is not None and found['lower'] > found['claimed']


def lines(findings: Sequence[Mapping[str, Any]]) -> list[str]:
  """The pair of bounds of each finding, a line each."""
  proved = lambda claimed: '' if claimed is None else f'at most {claimed:.4g} (proved), '
  return [
      f'from {OBSERVERS[found["observer"]]}: epsilon {proved(found["claimed"])}at least '
      f'{found["lower"]:.3g} (measured, {LEVEL:.0%} confidence): {found["right"]:,} of '
      f'{found["guesses"]:,} guesses right about {found["canaries"]:,} canaries, which '
      f'can show {found["largest"]:.3g} at most; at delta {found["delta"]:.3g}'
      + ': REFUTED' * refutes(found) for found in findings]


def curves(findings: Sequence[Mapping[str, Any]] | None) -> list[Curve]:
  """The ROC curves of guesses; none without findings."""
  return [Curve(label=OBSERVERS[found['observer']], metric=METRIC, over=OVER, main=False,
                x=[x for x, _ in found['curve']], y=[y for _, y in found['curve']])
          for found in findings or ()]
