"""Plans of FedMD: the numbers of the guarantee, and their caveats."""

import math

import pytest

from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import accountant
from tff_pipelines.fedmd.plan import FedMdPlan
from tff_pipelines.fedmd.settings import FedMdSettings


def _plan(records=(300,) * 10, recorded=None, **changes):
  if changes.get('mode') != 'centralized':
    changes = {'public_per_round': 5000, **changes}
  return FedMdPlan(settings=FedMdSettings(**changes), records=tuple(records),
                   classes=6, recorded=recorded or {})


def _warnings(plan, rounds=1, **seen):
  return list(map(str, plan.guarantee(rounds, **seen).caveats))


@pytest.mark.parametrize('records, size, epsilon, delta', [
    (2880, 16, 0.0056, 0.0055), (2880, 60, 0.0208, 0.0206),
    (2880, 300, 0.1041, 0.0989), (2880, None, 0.9998, 0.6322),
    (300, 16, 0.0532, 0.0520), (300, None, 0.9983, 0.6327)])
def test_draw_has_the_published_guarantee_in_natural_logarithms(
    records, size, epsilon, delta):
  plan = _plan(records=(records,) * 3, subset_size=size)
  assert plan.epsilon(1) == plan.epsilon(21) == pytest.approx(epsilon, abs=5e-5)
  assert plan.delta == pytest.approx(delta, abs=5e-5)
  assert plan.epsilon(0) == 0


def test_draw_without_replacement():
  plan = _plan(records=(100,), subset_size=20, replacement=False)
  assert plan.epsilon(1) == pytest.approx(math.log(101 / 81))
  assert plan.delta == pytest.approx(0.2)


def test_guarantee_is_that_of_the_most_exposed_party():
  plan = _plan(records=(500, 60, 900), subset_size=10)
  assert plan.draw_event.records == 60
  everything = _plan(records=(500, 2, 900))
  assert everything.draw(2).subset_size == 900 and everything.draw_event.records == 2


def test_rounds_after_the_draw_cost_nothing():
  plan = _plan(subset_size=16)
  assert plan.event(2) == plan.event(21) == events.PostProcessing()
  whole = plan.released(21)
  assert accountant.epsilon(whole, plan.delta) == 0
  assert accountant.delta(whole, 5.0) == plan.delta


@pytest.mark.parametrize('noise, knowledge', [
    ('gaussian', 'logits'), ('laplace', 'softmax')])
def test_noise_of_all_rounds_meets_the_guarantee_of_the_draw(noise, knowledge):
  plan = _plan(mode='ldp', noise=noise, knowledge=knowledge, subset_size=60, rounds=4)
  draw = events.Nfdp(records=300, subset_size=60)
  assert plan.target == (draw.published_epsilon, draw.draw_probability)
  assert 0.99 * draw.published_epsilon < plan.epsilon(5) <= draw.published_epsilon
  assert plan.epsilon(2) < plan.epsilon(5)
  # Recomputed from the noise that parties really add, independently of the plan.
  mean = plan.mean
  if noise == 'gaussian':
    query = events.LocalGaussian(noise_multiplier=mean.noise_scale / mean.l2_sensitivity)
  else:
    query = events.LocalLaplace(epsilon=mean.l1_sensitivity / mean.noise_scale)
  spent = accountant.epsilon(
      events.SelfComposed(event=query, count=5 * 5000), draw.draw_probability)
  assert spent <= draw.published_epsilon
  texts = ' '.join(_warnings(plan))
  assert 'allows to expose single records entirely' in texts
  assert 'outside the guarantee' not in texts
  measured = _plan(mode='ldp', noise=noise, knowledge=knowledge, subset_size=60,
                   rounds=4, diagnostics=True)
  assert 'outside the guarantee' in ' '.join(_warnings(measured))


def test_ldp_can_have_its_own_epsilon():
  plan = _plan(mode='ldp', epsilon=8.0, delta=1e-5, rounds=2, public_per_round=100)
  assert plan.target == (8.0, 1e-5)
  assert plan.epsilon(3) <= 8.0
  assert 'meaningful' not in ' '.join(_warnings(plan))


@pytest.mark.parametrize('noise', ['gaussian', 'laplace'])
def test_noise_of_an_earlier_start_is_taken_over(noise):
  common = dict(mode='ldp', noise=noise, subset_size=60, rounds=2, knowledge='softmax')
  plan = _plan(**common, public_per_round=100)
  again = _plan(**common, public_per_round=100, recorded=plan.configuration())
  assert again.mean == plan.mean and again.event(1) == plan.event(1)
  other = _plan(**common, recorded={'noise_multiplier': 7.0, 'public_per_round': 9})
  assert other.noise_multiplier == 7.0 and other.mean.records == 9
  assert _plan(subset_size=60).configuration() == {
      'public_per_round': 5000, 'noise_multiplier': None}


@pytest.mark.parametrize('mode', ['np', 'centralized'])
def test_without_protection_nothing_is_claimed(mode):
  plan = _plan(mode=mode)
  assert plan.epsilon(1) == math.inf and plan.delta is None
  guarantee = plan.guarantee(1)
  assert guarantee.outsiders is guarantee.adjacency is None
  assert any('no privacy guarantee' in text for text in guarantee.caveats)
  assert not plan.mean.has_noise


@pytest.mark.parametrize('size', [1, 16, None])
@pytest.mark.parametrize('replacement', [True, False])
def test_meaning_of_delta_is_stated_whenever_a_record_may_be_exposed(size, replacement):
  if size is None and not replacement:
    return
  plan = _plan(subset_size=size, replacement=replacement)
  texts = ' '.join(_warnings(plan))
  assert 'any one sampled record may be exposed entirely' in texts
  assert 'not a meaningful guarantee' in texts
  assert 'holds with epsilon 0' in texts


def test_tighter_epsilon_of_a_draw_is_stated_as_well():
  plan = _plan(subset_size=16)
  guarantee = plan.guarantee(21)
  assert guarantee.further == {
      'epsilon_tighter': 0.0, 'epsilon_at_delta_1e-6': math.inf,
      'epsilon_server_at_delta_1e-6': None}
  assert guarantee.outsiders.epsilon == plan.draw_event.published_epsilon
  assert guarantee.outsiders.accountant == 'theorem' and guarantee.server is None
  assert not any(_plan(subset_size=16, seed=1).guarantee(21).further.values())
  noisy = _plan(mode='ldp', epsilon=3.0, delta=1e-3, rounds=1, public_per_round=10)
  assert noisy.guarantee(2).further['epsilon_at_delta_1e-6'] > 3


def test_weights_are_hundredths_of_the_heaviest():
  plan = _plan(records=(100, 50, 2), weighting='records', subset_size=1)
  assert [plan.weight(i) for i in range(3)] == [100, 50, 2]
  assert plan.mean.max_total_weight == 300
  assert _plan().weight(0) == 1 and _plan().mean.max_total_weight == 10


def test_every_kind_of_knowledge_has_its_bytes():
  sent_bytes = {kind: mean.sent_bytes for kind, mean in
                _plan(knowledge='logits').kinds_of_knowledge().items()}
  assert sent_bytes == {'logits': 75_000, 'softmax': 75_000, 'argmax': 15_000}


def test_parties_without_records_and_noise_without_a_target_are_refused():
  with pytest.raises(ValueError, match='at least one record'):
    _plan(records=(3, 0))
  with pytest.raises(ValueError, match='delta is 1: .* with mode=ldp give --eps'):
    _plan(mode='ldp', records=(1,))
  _plan(mode='ldp', records=(1,), epsilon=1.0, delta=1e-3)


@pytest.mark.parametrize('records, size, replacement', [
    (1, None, True), (300, 12_000, True), (300, 300, False)])
def test_draws_that_leave_no_record_out_are_refused(records, size, replacement):
  with pytest.raises(ValueError, match='for certain, so delta is 1: draw fewer'):
    _plan(records=(records,) * 2, subset_size=size, replacement=replacement)


def test_meaning_of_delta_is_that_for_the_party_with_the_most_records():
  for delta, warned in ((0.005, True), (0.0009, False)):
    texts = ' '.join(_warnings(_plan(
        records=(100, 1000), mode='ldp', epsilon=1.0, delta=delta)))
    assert ('allows to expose single records entirely' in texts) == warned


def test_every_start_except_the_first_may_have_repeated_a_round():
  plan = _plan(mode='ldp', epsilon=3.0, delta=1e-3, rounds=2, public_per_round=10)
  assert plan.epsilon(2, repeats=1) == plan.epsilon(3) > plan.epsilon(2)
  assert plan.epsilon(0, repeats=4) == 0.0
  assert not any('restarts' in text for text in _warnings(plan, 3))
  seen = plan.released(5)
  guarantee = plan.guarantee(3, 2, seen=seen)
  assert guarantee.outsiders.epsilon == plan.epsilon(5)
  assert any('repeated 2 rounds' in text and 'not the 3 ' in text
             for text in guarantee.caveats)
  drawn = _plan(subset_size=9)
  assert drawn.epsilon(2, repeats=8) == drawn.epsilon(1)
  assert _warnings(drawn, 2, repeats=8, seen=drawn.released(2)) == _warnings(drawn)


def test_kinds_of_knowledge_have_their_own_noise_or_a_reason():
  settings = dict(mode='ldp', epsilon=3.0, delta=1e-3, rounds=2, public_per_round=10)
  kinds = _plan(**settings, knowledge='softmax').kinds_of_knowledge()
  for kind, mean in kinds.items():
    assert mean == _plan(**settings, knowledge=kind).mean
  assert kinds['logits'].noise_scale > 10 * kinds['softmax'].noise_scale
  votes = _plan((300,) * 2**17, knowledge='argmax').kinds_of_knowledge()
  assert 'found 20' in votes['logits'] and 'found 20' in votes['softmax']
  assert votes['argmax'].wire_bits == 18
  with pytest.raises(ValueError, match='bits must be at least .*found 4'):
    _plan(knowledge='softmax', bits=4)
