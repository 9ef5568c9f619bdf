"""Random schedules of the two-server protocol, under invariants.

  python -m tests.deployment.schedules --examples=10000
"""

import argparse
import dataclasses
import pathlib
import tempfile

import hypothesis
from hypothesis import stateful, strategies
import numpy as np

from tests.deployment.federation import Federation
from tff_pipelines.deployment import messages

SITES = [f'site {i}' for i in range(4)]


class Schedules(stateful.RuleBasedStateMachine):
  """A leader that does what it likes, parties that restart, messages in any order."""

  def __init__(self):
    super().__init__()
    self._scratch = tempfile.TemporaryDirectory()
    self.federation = Federation(pathlib.Path(self._scratch.name), rounds=4)
    self.rounds, self.uploads, self.openings, self.answers = [], [], {}, {}

  def teardown(self):
    self._scratch.cleanup()

  @stateful.initialize(apart=strategies.integers(1, 3),
                       most=strategies.none() | strategies.integers(1, 3))
  def agree(self, apart, most):
    self.federation.agreement = dataclasses.replace(
        self.federation.agreement, apart=apart, most_answers=most)

  @stateful.rule(index=strategies.integers(1, 4), model=strategies.sampled_from([b'', b'a']))
  def describe(self, index, model):
    self.rounds.append(self.federation.round(index, model=model))

  @stateful.precondition(lambda self: self.rounds)
  @stateful.rule(data=strategies.data(), name=strategies.sampled_from(SITES))
  def ask(self, data, name):
    own = data.draw(strategies.sampled_from(self.rounds))
    key = (name, messages.read(own.message, 'round', most_payload=9).fields['round'])
    try:
      upload = self.federation.client(name).answer(own.message)
    except messages.MessageError:
      return
    assert key not in self.answers  # Never twice in a round.
    self.answers[key] = self.federation.vectors[key]
    # Nor more often, or nearer to one another, than epsilon counts on.
    answered = sorted(index for one, index in self.answers if one == name)
    agreement = self.federation.agreement
    assert len(answered) <= (agreement.most_answers or 4)
    assert min(np.diff(answered), default=4) >= agreement.apart
    self.uploads.append((own, upload))

  @stateful.precondition(lambda self: self.uploads)
  @stateful.rule(data=strategies.data())
  def take(self, data):
    own, upload = data.draw(strategies.sampled_from(self.uploads))
    data.draw(strategies.sampled_from(self.rounds)).take(upload)
    own.take(upload)

  @stateful.precondition(lambda self: any(own.reported > 1 for own in self.rounds))
  @stateful.rule(data=strategies.data())
  def open(self, data):
    own = data.draw(strategies.sampled_from([
        own for own in self.rounds if own.reported > 1]))
    request = own.request()
    answer = self.federation.helper().answer(request)
    try:
      found = own.finish(request, answer)
    except messages.MessageError:
      return
    index = messages.read(own.message, 'round', most_payload=9).fields['round']
    # One set a round, whichever of its descriptions.
    assert self.openings.setdefault(index, (request, answer)) == (request, answer)
    if len(found.clients) == 4:
      total = sum(self.answers[name, index].astype(np.int64) for name in SITES)
      np.testing.assert_array_equal(found.total, total % 2**18)


def run(examples: int) -> None:
  """Runs `examples` schedules of up to 30 steps; raises if an invariant is broken."""
  stateful.run_state_machine_as_test(Schedules, settings=hypothesis.settings(
      max_examples=examples, stateful_step_count=30, deadline=None, database=None,
      suppress_health_check=list(hypothesis.HealthCheck)))


if __name__ == '__main__':
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--examples', type=int, default=25)
  count = parser.parse_args().examples
  run(count)
  print(f'{count} schedules: no client was opened twice in a round')
