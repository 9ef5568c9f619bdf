"""A federation in memory, for tests of the two-server protocol."""

import dataclasses
import pathlib

import numpy as np

from tff_pipelines.accounting.events import combinators
from tff_pipelines.accounting.guarantees import mechanisms
from tff_pipelines.deployment import agreements, client, helper, identities, leader

MODEL = b'model'


def params_of(count: int, *, dimension: int = 15, rounds: int = 5, **changes):
  """A mechanism of `count` silos, all of which are in a round."""
  return mechanisms.SumMechanism(**{
      'mechanism': 'skellam', 'noise_multiplier': 1.0, 'rounds': rounds,
      'cohort_size': count, 'population': count, 'sampling': 'none', 'clip': 0.3,
      'bits': 18, 'dimension': dimension, 'min_honest_fraction': 0.5, **changes})


class Federation:
  """Parties with keys and folders.

  Attributes:
    agreement, folder: The agreement and the folder of all parties.
    identities: Name of a client -> its keys; and `leader_keys` and `helper_keys`.
    vectors: (client, round) -> the vector that it contributed.
  """

  def __init__(self, folder: pathlib.Path, count: int = 4, *, varies: bool = False,
               **changes):
    mechanism = params_of(count, **changes)
    self.folder, self.vectors = folder, {}
    self.identities = {f'site {i}': identities.Identity.new() for i in range(count)}
    self.leader_keys = identities.Identity.new()
    self.helper_keys = identities.Identity.new(seals=True)
    rounds = mechanism.rounds
    self.agreement = agreements.Agreement(
        run='run 1', study='a study', program='ab' * 32, params=mechanism.params(),
        rounds=rounds, cohort_size=None if varies else count, roster=identities.Roster(
            self.leader_keys.public, self.helper_keys.public, {
                name: keys.public for name, keys in self.identities.items()}),
        event=combinators.SelfComposed(
            event=mechanism.round_event(1), count=rounds).to_json())
    self.rng = np.random.default_rng(1)

  def client(self, name: str, allow=lambda agreement: None, **changes) -> client.Client:
    """A client, as after a restart; `changes` are of its agreement."""
    own = self.folder / name
    own.mkdir(exist_ok=True, parents=True)
    agreement = dataclasses.replace(self.agreement, **changes)

    def work(model, index, cohort_size):
      del model, cohort_size  # Unused.
      vector = self.rng.integers(2**agreement.params.bits, size=agreement.length,
                                 dtype=np.int32)
      self.vectors[name, index] = vector
      return vector

    return client.Client(name, agreement, self.identities[name], work, own,
                         most_model=1000, allow=allow)

  def helper(self) -> helper.Helper:
    """The helper, as after a restart."""
    own = self.folder / 'helper'
    own.mkdir(exist_ok=True, parents=True)
    return helper.Helper(self.agreement, self.helper_keys, own)

  def round(self, index: int = 1, *, history=None, model: bytes = MODEL, selected=None,
            agreement=None) -> leader.Round:
    params = self.agreement.params
    if history is None:
      history = np.zeros((len(params.column) - 1, params.padded_dimension), np.uint32)
    return leader.Round(agreement or self.agreement, self.leader_keys, index,
                        list(self.identities) if selected is None else selected,
                        model, history)
