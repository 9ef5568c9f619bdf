"""Queries: questions to the accountant about a mechanism."""

import dataclasses
from typing import Any

from aggregators import validate
from tff_pipelines.accounting import base

KINDS = ('epsilon', 'delta', 'noise_multiplier', 'rounds', 'bits', 'table')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Query:
  """A question to the accountant about a mechanism.

  Attributes:
    kind: One of KINDS: the number that is asked for, or a table of several.
    epsilon: Target, or for kind=delta the epsilon of that delta, > 0; None if not
      given.
    delta: Of the guarantee, strictly between 0 and 1; None if not given.
    accountant: 'auto', 'rdp' or 'pld'.
    amplification: Bound on sampling: 'tight', 'generic' or 'none'.
    allow_degenerate: Whether a grid too coarse to be useful is a warning only.
  """

  kind: str = 'epsilon'
  epsilon: float | None = None
  delta: float | None = None
  accountant: str = 'auto'
  amplification: str = 'tight'
  allow_degenerate: bool = False

  def __post_init__(self):
    validate.one_of(KINDS, query=self.kind)
    validate.one_of(base.AMPLIFICATIONS, amplification=self.amplification)
    validate.one_of(base.ACCOUNTANTS, accountant=self.accountant)

  def replace(self, **changes) -> 'Query':
    """A copy with these fields changed, validated."""
    return dataclasses.replace(self, **changes)

  def needed(self, name: str) -> Any:
    """The field `name`; ValueError if it was not given."""
    value = getattr(self, name)
    if value is None:
      raise ValueError(f'{name} must be given for query={self.kind}')
    return value
