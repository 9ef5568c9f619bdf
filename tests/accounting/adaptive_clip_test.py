"""The cost of an adaptive clip: events, epsilon, calibration, ledger."""

import json

import pytest

from aggregators import noises, params as params_lib
from tff_pipelines import account
from tff_pipelines.accounting.events import kinds as events
from tff_pipelines.accounting.guarantees import accountant, calibration, mechanisms

MECHANISMS = tuple(noises.NOISES)
_mechanism = mechanisms.SumMechanism(
    mechanism='skellam', noise_multiplier=1.0, clip=0.3, bits=18, dimension=1000,
    cohort_size=50.0, population=1000, rounds=20, sampling='poisson',
    adaptive_clipping=True).replace


def _released(mechanism):
  """The events of one round before clients are sampled."""
  assert mechanism.event().event.event == mechanism.release()
  return mechanism.release()


@pytest.mark.parametrize('name, kind', zip(MECHANISMS, (
    events.DistributedSkellam, events.DistributedDiscreteGaussian,
    events.CentralSkellam)))
def test_a_round_is_the_sum_and_the_count_of_one_sample(name, kind):
  mechanism = _mechanism(mechanism=name)
  assert mechanism.event().event.sampling_rate == 0.05
  together = _released(mechanism)
  total, count = together.events
  assert isinstance(together, events.Together) and isinstance(total, kind)
  assert total == _released(mechanism.replace(adaptive_clipping=False))
  # A twentieth of the cohort in clients is twice that in bits of +1 and -1.
  assert count == events.SkellamCount(l1_sensitivity=1, noise_variance=25.0)
  assert events.from_json(json.loads(json.dumps(together.to_json()))) == together


def test_the_count_has_the_variance_that_the_factory_adds():
  mechanism = _mechanism(clip_count_stddev=3.0)
  adaptive = mechanism.adaptive_clip(target_quantile=0.4, learning_rate=0.1)
  assert adaptive == params_lib.AdaptiveClipParams(
      count_stddev=3.0, target_quantile=0.4, learning_rate=0.1)
  count = _released(mechanism).events[1]
  assert count.noise_variance == adaptive.noise_variance == 36.0
  assert count.l1_sensitivity == adaptive.sensitivity == 1
  assert mechanism.replace(surviving_fraction=0.5).clip_count() == (
      events.SkellamCount(l1_sensitivity=1, noise_variance=18.0))


@pytest.mark.parametrize('name, sampling', zip(MECHANISMS, ('poisson', 'fixed', 'none')))
def test_epsilon_is_larger_than_without_and_than_of_the_count_alone(name, sampling):
  mechanism = _mechanism(mechanism=name, sampling=sampling,
                         population=50 if sampling == 'none' else 1000)
  def epsilon(event):
    return accountant.epsilon(event, 1e-3)
  both = epsilon(mechanism.event())
  alone = epsilon(mechanism.sampled(mechanism.clip_count()))
  without = epsilon(mechanism.replace(adaptive_clipping=False).event())
  assert max(without, alone) < both < 1.5 * (without + alone)
  little = epsilon(mechanism.replace(clip_count_stddev=1e4).event())
  assert without < little < 1.001 * without


@pytest.mark.slow
@pytest.mark.parametrize('name, target', [('skellam', 8.0), ('discrete_gaussian', 0.7)])
def test_calibrated_noise_never_exceeds_the_target(name, target):
  mechanism = _mechanism(mechanism=name, clip_count_stddev=5.0)
  z = calibration.noise_multiplier(
      lambda z: mechanism.replace(noise_multiplier=z).event(), epsilon=target, delta=1e-3)
  def epsilon(noise, **changes):
    return accountant.epsilon(
        mechanism.replace(noise_multiplier=noise, **changes).event(), 1e-3)
  assert target * (1 - 1e-4) < epsilon(z) <= target
  assert epsilon(z * (1 - 1e-5)) > target
  # Without the count less noise would do.
  assert epsilon(z, adaptive_clipping=False) < target
  # The count's noise is not what was calibrated.
  assert _released(mechanism.replace(noise_multiplier=z)).events[1] == (
      _released(mechanism).events[1])


def test_account_takes_the_flags_of_the_clip_and_the_rotation(capsys):
  flags = ['--mechanism=skellam', '--delta=1e-3', '--noise_multiplier=1', '--clip=0.3',
           '--bits=14', '--dimension=1001', '--cohort_size=50', '--population=1000',
           '--rounds=20', '--sampling=poisson', '--format=json']
  def run(*more):
    assert account.main([*flags, *more]) == 0
    return json.loads(capsys.readouterr().out)
  fixed = run()
  assert fixed['dimension_padded'] == 1024
  assert run('--rotation=dft')['dimension_padded'] == 1002
  none = run('--rotation=none', '--adaptive_clipping', '--clip_count_stddev=2')
  assert none['dimension_padded'] == 1001
  assert none['epsilon'] > fixed['epsilon']
  assert account.main(['--mechanism=gaussian', '--delta=1e-3', '--noise_multiplier=1',
                       '--adaptive_clipping']) == 2
  assert 'adaptive_clipping is not used' in capsys.readouterr().err


def test_a_count_without_noise_is_refused():
  for bad in (0.0, -1.0, float('nan')):
    with pytest.raises(ValueError, match='clip_count_stddev'):
      _mechanism(clip_count_stddev=bad).event()
