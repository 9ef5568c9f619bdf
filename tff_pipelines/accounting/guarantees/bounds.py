"""One epsilon, and against whom it holds: the type that everything states it by."""

import dataclasses
import math

from tff_pipelines.common import caveats as caveats_lib

# Observers, by whom a number is known: of the models, the server and all others who
# know the cohorts, which are drawn by the rule; a server that may choose them;
# participants who subtract their shares of the noise. The last two are the first two
# where a person owns several clients.
OUTSIDERS, SERVER, PARTICIPANT = 'outsiders', 'server', 'participant'
SERVER_ANY_COHORTS = 'server_any_cohorts'
PERSON, PERSON_SERVER = 'person', 'person_server'
# Observer -> its key in summaries and answers.
KEYS = {OUTSIDERS: 'epsilon', SERVER: 'epsilon_server',
        SERVER_ANY_COHORTS: 'epsilon_server_any_cohorts',
        PARTICIPANT: 'epsilon_participant', PERSON: 'epsilon_person',
        PERSON_SERVER: 'epsilon_server_person'}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
  """One epsilon, and how it was computed.

  Attributes:
    epsilon: At least 0, `inf` if no finite one is proved.
    delta: In [0, 1], consumed_delta included; None if it is that of its guarantee.
    adjacency: Relation of neighbours, a key of `base.ADJACENCY_IN_WORDS`; None if it
      is that of its guarantee.
    consumed_delta: Delta consumed by sampling error of the noise; None where no bound
      on that error is proved.
    order: Renyi order that gave it, `inf` for pure DP; None for PLD and where no order
      gives a finite value.
    accountant: Accountant that computed it: 'rdp', 'pld' or 'theorem'.
    amplification: Bound on the effect of sampling: 'tight' or 'generic' where cohorts
      are hidden, 'average' where they are known and drawn by the rule, 'none' where
      they are any; None where nothing is sampled.
    caveats: Caveats, where it is weak or easily misread.
    certificates: Certificates by which Skellam noise was accounted as Gaussian, as
      `sum_events.GaussianOfSkellam.certificate`; none if it was not.
  """

  epsilon: float
  delta: float | None = None
  adjacency: str | None = None
  consumed_delta: float | None = 0.0
  order: float | None = None
  accountant: str | None = None
  amplification: str | None = None
  caveats: tuple[caveats_lib.Caveat, ...] = ()
  certificates: tuple[dict[str, float], ...] = ()

  @property
  def is_finite(self) -> bool:
    return self.epsilon < math.inf
