"""A kind of event that leaves something unsaid, or misstates it, can't be defined."""

import math

import numpy as np
import pytest

from tff_pipelines.accounting.divergences import curves
from tff_pipelines.accounting.events import base, kinds as events, sampled, sum_events


def _curve(self, max_order, amplification):
  return curves.gaussian(self.noise_multiplier, max_order)


def _forwarded(name):
  return lambda self, amplification: getattr(self.event, name)(amplification)


# The answers of a mechanism whose noise is a server's.
_MECHANISM = dict(
    __annotations__={'noise_multiplier': float}, source='here', adjacency=base.ZERO_OUT,
    curve=_curve, pure_epsilon=base.not_pure, failure_probability=base.never_fails,
    factors=base.no_known_pair, caveats=base.no_caveats, scaled=base.no_known_group)
# The answers of a way to sample clients that amplifies nothing.
_SAMPLING = dict(source='here', adjacency=property(lambda self: self.event.adjacency),
    curve=lambda self, max_order, amplification: self.event.curve(
        max_order, amplification),
    pure_epsilon=_forwarded('pure_epsilon'), factors=_forwarded('factors'),
    failure_probability=lambda self: self.event.failure_probability(),
    caveats=lambda self: self.event.caveats(),
    without_sampling=lambda self: self.event, repeated=lambda self: self,
    counted=lambda self, count, amplification: ((self, count),),
    minimum_cohort=lambda self: None,
    group=lambda self, clients, known: None, known=base.any_cohorts)


def _defined(name, bases, answers, without=(), **changes):
  """Defines a kind of event by these answers."""
  body = {key: value for key, value in answers.items() if key not in without}
  if 'more' in changes:
    body['__annotations__'] = {**body.get('__annotations__', {}), **changes.pop('more')}
  return type(base.Event)(name, bases, {'__module__': __name__, **body, **changes})


@pytest.fixture(autouse=True)
def _kinds(monkeypatch):
  """Kinds that a test defines are not there for others."""
  monkeypatch.setattr(base, '_KINDS', dict(base._KINDS))


_SERVER = (base.Release, base.WithoutShares)


def test_a_mechanism_that_says_everything_is_accounted():
  kind = _defined('NewNoise', _SERVER, _MECHANISM)
  event = kind(noise_multiplier=2.0)
  assert base.from_json(event.to_json()) == event
  np.testing.assert_array_equal(
      events.SelfComposed(event=event, count=3).curve(8, 'tight'),
      3 * curves.gaussian(2.0, 8))
  assert event.seen_by_participants() == event and event.group(3, True) is None
  with pytest.raises(AttributeError):  # It is frozen.
    event.noise_multiplier = 1.0
  with pytest.raises(ValueError, match='NewNoise cannot be amplified by sampling'):
    events.PoissonSampled(event=event, sampling_rate=0.1)


def test_a_sampling_that_says_everything_passes_on_what_participants_see():
  kind = _defined('NewSampling', (sampled.Sampled,), _SAMPLING)
  event = kind(event=events.DistributedSkellam(
      l1_sensitivity=3.0, l2_sensitivity=2.0, noise_variance=9.0, cohort_size=50.0))
  assert event.has_shares() and event.minimum_cohort() is None
  # Without a minimum cohort a participant may be alone, whatever is expected.
  alone = event.seen_by_participants().without_sampling()
  assert alone == events.NoPrivacy()
  assert event.skellam_coordinates() == 0 == event.event.skellam_coordinates()


@pytest.mark.parametrize('bases, answers, missing', [*((_SERVER, _MECHANISM, name)
      for name in sorted({*_MECHANISM} - {'__annotations__'})),
    *(((sampled.Sampled,), _SAMPLING, name) for name in sorted(_SAMPLING)),
    # Without the answers that `WithoutShares` gives.
    ((base.Release,), _MECHANISM,
     'honest_fraction, is_known_in_part, minimum_cohort, seen')])
def test_every_answer_is_needed(bases, answers, missing):
  with pytest.raises(TypeError, match=f'NewKind must define {missing}$'):
    _defined('NewKind', bases, answers, without=[missing])


@pytest.mark.parametrize('bases, changes, message', [
    (_SERVER, dict(source=''), 'must define source'),
    (_SERVER, dict(adjacency='client'), "must have a known adjacency, found 'client'"),
    (_SERVER, dict(curve=lambda self, max_order: None),
     'must define curve as a method with the parameters .*amplification'),
    (_SERVER, dict(failure_probability=0.0),
     'must define failure_probability as a method'),
    (_SERVER, dict(seen=lambda self, colluders: self),
     'must define seen as a method with the parameters .*cohort'),
    (_SERVER, dict(as_gaussian=lambda self, distance: events.CentralGaussian(
        noise_multiplier=9.0)), 'as_gaussian and skellam_coordinates together'),
    (_SERVER, dict(skellam_coordinates=lambda self: 3),
     'as_gaussian and skellam_coordinates together'),
    (_SERVER, dict(more=dict(inner=base.Event)),
     'events in fields called event or events, found inner'),
    (_SERVER, dict(more=dict(releases=tuple[base.Event, ...])), 'found releases'),
    ((events.CentralGaussian,), {}, 'not derive from another kind, found CentralGauss'),
    ((events.PoissonSampled,), {}, 'not derive from another kind, found PoissonSampled'),
])
def test_a_kind_that_misstates_something_is_refused(bases, changes, message):
  with pytest.raises(TypeError, match=f'event kind NewNoise .*{message}'):
    _defined('NewNoise', bases, _MECHANISM, **changes)


def test_the_name_of_another_kind_is_refused():
  with pytest.raises(TypeError, match='CentralGaussian must have a name of its own'):
    _defined('CentralGaussian', _SERVER, _MECHANISM)


@pytest.mark.parametrize('parent', [
    base.Event, base.Release, sampled.Sampled, sum_events.ClientSum,
    sum_events.GaussianNoise])
def test_a_base_class_is_no_kind(parent):
  with pytest.raises(TypeError, match='abstract'):
    parent()
  with pytest.raises(ValueError, match='event kind must be a known one'):
    base.from_json({'kind': parent.__name__})


def test_shares_of_agents_have_no_number_against_other_agents():
  event = events.Vote(scheme='ae', noise_stddev=5.0)
  seen = events.SelfComposed(event=event, count=2).seen_by_participants()
  assert seen.without_sampling().pure_epsilon('none') == math.inf
  assert np.isinf(seen.curve(8, 'none')).all() and not event.has_shares()
