"""Plans of distillation: the numbers of the guarantee, and the words around them."""

import dataclasses
import math

import pytest

from tff_pipelines.accounting import accountant
from tff_pipelines.accounting import events
from tff_pipelines.distill_plan import DistillConfig, DistillPlan


def _plan(records=(300,) * 10, given=(), **changes):
  return DistillPlan(config=DistillConfig(**changes), records=tuple(records),
                     classes=6, given=frozenset(given))


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
  assert everything.draws(2) == 900 and everything.draw_event.records == 2


def test_rounds_after_the_draw_cost_nothing():
  plan = _plan(subset_size=16)
  whole = events.Composed(events=(plan.round_event, events.SelfComposed(
      event=plan.later_event(), count=20)))
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
  # Recomputed from the noise that parties really add, apart from the plan.
  mean = plan.mean
  if noise == 'gaussian':
    query = events.LocalGaussian(
        noise_multiplier=mean.noise_scale / mean.l2_sensitivity)
  else:
    query = events.LocalLaplace(epsilon=mean.l1_sensitivity / mean.noise_scale)
  spent = accountant.epsilon(
      events.SelfComposed(event=query, count=5 * 5000), draw.draw_probability)
  assert spent <= draw.published_epsilon
  texts = ' '.join(plan.warnings())
  assert 'such a delta allows to expose single records entirely' in texts
  assert 'outside the guarantee' in texts


def test_ldp_takes_an_epsilon_of_its_own():
  plan = _plan(mode='ldp', epsilon=8.0, delta=1e-5, rounds=2, public_per_round=100,
               given={'replacement'})
  assert plan.target == (8.0, 1e-5)
  assert plan.epsilon(3) <= 8.0
  texts = ' '.join(plan.warnings())
  assert 'meaningful' not in texts
  assert 'replacement is not used by mode=ldp with its own' in texts


@pytest.mark.parametrize('mode', ['np', 'centralized'])
def test_without_protection_nothing_is_claimed(mode):
  plan = _plan(mode=mode)
  assert plan.epsilon(1) == math.inf and plan.delta is None
  assert any('no privacy guarantee' in text for text in plan.warnings())
  assert not plan.mean.has_noise


@pytest.mark.parametrize('size', [1, 16, None])
@pytest.mark.parametrize('replacement', [True, False])
def test_meaning_of_delta_is_said_whenever_a_record_may_be_exposed(size, replacement):
  if size is None and not replacement:
    return
  plan = _plan(subset_size=size, replacement=replacement)
  texts = ' '.join(plan.warnings())
  assert 'any one sampled record may be exposed entirely' in texts
  assert 'not a meaningful guarantee' in texts
  assert 'holds with epsilon 0' in texts


def test_seeded_run_is_said_to_have_no_guarantee():
  assert 'no guarantee' in _plan(seed=3).warnings()[0]


@pytest.mark.parametrize('changes, given, unused', [
    (dict(mode='np', subset_size=4), {'subset_size'}, 'subset_size is not used by'),
    (dict(mode='centralized'), {'knowledge'}, 'knowledge is not used by mode=centr'),
    (dict(mode='nfdp'), {'noise'}, 'noise is not used by mode=nfdp'),
    (dict(knowledge='argmax'), {'logit_bound'}, 'logit_bound is not used by knowl'),
    (dict(knowledge='argmax'), {'bits'}, 'bits is not used by knowledge=argmax')])
def test_flag_that_is_not_used_is_reported(changes, given, unused):
  assert any(unused in text for text in _plan(given=given, **changes).warnings())
  assert not any('not used' in text for text in _plan(**changes).warnings())


def test_weights_are_hundredths_of_the_heaviest():
  plan = _plan(records=(100, 50, 2), weighting='records', subset_size=1)
  assert [plan.weight(i) for i in range(3)] == [100, 50, 2]
  assert plan.mean.max_total_weight == 300
  assert _plan(weighting='agreement').weight(0) == -100
  assert _plan().weight(0) == 1 and _plan().mean.max_total_weight == 10


def test_learning_rates_come_down_in_equal_steps():
  config = DistillConfig(rounds=5, final_rate_factor=0.2)
  assert [config.rate_factor(step) for step in range(6)] == pytest.approx(
      [1.0, 1.0, 0.8, 0.6, 0.4, 0.2])
  assert DistillConfig(rounds=1, final_rate_factor=0.2).rate_factor(1) == 1.0
  kept = DistillConfig(final_rate_factor=1.0)
  assert {kept.rate_factor(step) for step in range(21)} == {1.0}


def test_every_kind_of_knowledge_has_its_bytes():
  found = {kind: mean.sent_bytes for kind, mean in
           _plan(knowledge='logits').kinds_of_knowledge().items()}
  assert found == {'logits': 75_000, 'softmax': 75_000, 'argmax': 15_000}


@pytest.mark.parametrize('changes, message', [
    (dict(mode='dp'), 'mode must be one of'),
    (dict(parties=0), 'parties must be at least 1'),
    (dict(subset_size=0), 'subset_size must be at least 1'),
    (dict(rounds=0), 'rounds must be at least 1'),
    (dict(num_workers=-1), 'num_workers must be at least 0'),
    (dict(digest_epochs=-1), 'digest_epochs must be at least 0'),
    (dict(digest_learning_rate=math.nan), 'digest_learning_rate must be a finite'),
    (dict(final_rate_factor=0.0), 'final_rate_factor must be .*0.0'),
    (dict(final_rate_factor=1.5), 'final_rate_factor must be at most 1, found 1.5'),
    (dict(epsilon=1.0), 'epsilon and delta must be given together'),
    (dict(epsilon=1.0, delta=1.0), 'delta must be strictly between 0 and 1'),
    (dict(mode='ldp', weighting='agreement'), 'agreement needs another mode'),
    (dict(architectures=()), 'architectures must name at least one'),
    (dict(simulated_dropout_rate=1.0), r'simulated_dropout_rate must be in \[0, 1\)'),
    (dict(seed=-1), 'seed must be at least 0'),
    (dict(bits=3), 'bits must be at least 4'),
    (dict(resume=True), 'resume needs output_dir')])
def test_what_cannot_be_is_named(changes, message):
  with pytest.raises(ValueError, match=message):
    DistillConfig(**changes)


def test_drawing_everything_without_replacement_is_refused():
  with pytest.raises(ValueError, match='so delta is 1'):
    _plan(subset_size=300, replacement=False)
  with pytest.raises(ValueError, match='at least one record'):
    _plan(records=(3, 0))
  with pytest.raises(ValueError, match='delta is 1: give --epsilon and --delta'):
    _plan(mode='ldp', records=(1,))
  _plan(mode='ldp', records=(1,), epsilon=1.0, delta=1e-3)


@pytest.mark.parametrize('records, size', [(1, None), (300, 12_000)])
def test_so_many_draws_that_nobody_is_left_out_are_refused(records, size):
  with pytest.raises(ValueError, match='for certain, so delta is 1: draw fewer'):
    _plan(records=(records,) * 2, subset_size=size)


def test_meaning_of_delta_is_that_for_the_party_with_the_most_records():
  for delta, said in ((0.005, True), (0.0009, False)):
    texts = ' '.join(_plan(
        records=(100, 1000), mode='ldp', epsilon=1.0, delta=delta).warnings())
    assert ('allows to expose single records entirely' in texts) == said


def test_every_start_but_the_first_may_have_repeated_a_round():
  plan = _plan(mode='ldp', epsilon=3.0, delta=1e-3, rounds=2, public_per_round=10)
  assert plan.epsilon(2, starts=2) == plan.epsilon(3) > plan.epsilon(2)
  assert plan.epsilon(0, starts=5) == 0.0
  assert not any('started' in text for text in plan.warnings())
  assert any('started 3 times' in text and 'not the 3 ' in text
             for text in plan.warnings(starts=3))
  drawn = _plan(subset_size=9)
  assert drawn.epsilon(2, starts=9) == drawn.epsilon(1)
  assert drawn.warnings(starts=9) == drawn.warnings()


def test_kinds_of_knowledge_have_their_own_noise_or_a_reason():
  plan = _plan(mode='ldp', knowledge='softmax', epsilon=3.0, delta=1e-3, rounds=2,
               public_per_round=10)
  kinds = plan.kinds_of_knowledge()
  for kind, mean in kinds.items():
    other = _plan(mode='ldp', knowledge=kind, epsilon=3.0, delta=1e-3, rounds=2,
                  public_per_round=10)
    assert mean == other.mean
  assert kinds['logits'].noise_scale > 10 * kinds['softmax'].noise_scale
  votes = _plan(knowledge='argmax', bits=4).kinds_of_knowledge()
  assert 'bits=4 leave' in votes['logits'] and 'bits=4 leave' in votes['softmax']
  assert votes['argmax'].wire_bits == 4
  with pytest.raises(ValueError, match='bits=4 leave'):
    _plan(knowledge='softmax', bits=4)


def test_plan_is_frozen():
  with pytest.raises(dataclasses.FrozenInstanceError):
    _plan().config = None
