"""The benchmark of the accountant compares the same calibration."""

import json

import pytest

from benchmarks import accounting


def test_both_methods_find_the_same_noise(capsys):
  accounting.main(['--json'])
  result = json.loads(capsys.readouterr().out)
  assert result['noise_multiplier'] == pytest.approx(
      result['noise_multiplier_nested_minimisation'], rel=1e-3)
  assert all(value > 0 for value in result.values())


def test_looped_epsilon_is_that_of_the_accountant():
  params = accounting.our_params(0.9)
  local_stddev = 0.9 * accounting.CLIP / accounting.COHORT**0.5
  epsilon = accounting.accountant.epsilon(
      accounting.skellam_run(params), accounting.DELTA, amplification='generic')
  assert accounting.looped_epsilon(
      accounting.heuristic_scale(local_stddev), local_stddev) == pytest.approx(
          epsilon, rel=1e-2)
